"""The weighted sum: what the weights bring back."""

from __future__ import annotations

import torch

import eyeline
from eyeline.lesson import measured
from eyeline.lesson.data import Block, Code, Fan, Screen, listed
from eyeline.lesson.stage import Stage
from eyeline.lesson.writing import matrix, numbers, shape, span

# The figure of one query against four keys, and the weights that are drawn beside it.
FIGURE, DRAWN = (0.1, 0.9, 0.2, 0.7), (0.05, 0.45, 0.15, 0.35)


def weighted_sum(stage: Stage) -> Screen:
    """A11, A15, A16, A19, A20, A30, A31, B13."""
    write, ledger = stage.write, stage.ledger
    output = ledger["output"]
    blocks: list[Block] = [
        write.says(
            "output = weights · V: each word takes from every value its share, a weighted mean."
            " {w} · {V} gives {out}.",
            "output = weights · V：每个词按份额从所有值里取，也就是加权平均。{w} · {V} 得到"
            " {out}。",
            "B13",
            w=shape(ledger["weights"]),
            V=shape(ledger["V"]),
            out=shape(ledger.head_output),
        ),
        *stage.code("sum"),
        _fan(stage),
        _figure(stage),
        matrix("output", output, ledger.words, lines=("A19", "A20")),
        *_call(stage),
        _sizes(stage),
        _no_feed_forward(stage),
        _change(stage),
    ]
    return stage.screen("sum", write.term("weighted sum"), blocks)


def _fan(stage: Stage) -> Block:
    weight = stage.write.pick("weight", "权重")
    result = f"Σ {weight}·V = {numbers(stage.ledger.head_output[stage.token])}"
    return Fan(
        query=stage.word,
        keys=stage.ledger.words,
        scores=tuple(listed(stage.row("scaled"))),
        weights=tuple(listed(stage.row("weights"))),
        result=result,
        lines=("A11",),
    )


def _figure(stage: Stage) -> Block:
    scores = torch.tensor(FIGURE)
    return stage.write.slip(
        "A figure seen in print has scores {scores} and weights {drawn}. Put right: softmax of"
        " those"
        " scores is {right}; the output is Σ weight·V all the same.",
        "书上的图里打分是 {scores}，权重写的是 {drawn}。更正：这些打分的 softmax 是 {right}；"
        "输出仍是 Σ 权重·V。",
        "A11",
        scores=" ".join(f"{x:g}" for x in FIGURE),
        drawn=" ".join(f"{x:g}" for x in DRAWN),
        right=" ".join(f"{x:.3f}" for x in scores.softmax(-1).tolist()),
    )


def _call(stage: Stage) -> list[Block]:
    """A15, A16: the whole as one call; A20: what is printed."""
    ledger = stage.ledger
    extra = ", mask" if ledger.causal else ", mask=None"
    if ledger.scale != ledger.d_k**-0.5:
        extra += f", scale={ledger.scale!r}"
    code = (
        "import eyeline",
        f"Z, attn = eyeline.scaled_dot_product_attention(Q, K, V{extra})",
        "print(attn)",
    )
    weights = ledger.whole("weights")
    return [
        Code(code, ("A15", "A20")),
        stage.write.says(
            "All of it is one call that returns (output, weights): the weights are [..., n, n],"
            " here"
            " {shape}, any number of leading dimensions; printed, they show numbers, and each row"
            " sums to 1.",
            "整个过程就是一次调用，返回 (output, weights)：权重形状 [..., n, n]，这里 {shape}，前"
            "面可有"
            "任意多维；打印出来就是数字，每行之和为 1。",
            "A15",
            "A16",
            "A20",
            shape=shape(weights),
        ),
    ]


def _sizes(stage: Stage) -> Block:
    """A30: the size of the output is that of V."""
    ledger = stage.ledger
    d_v = ledger.d_k + 3
    output, _ = eyeline.attention(ledger["Q"], ledger["K"], torch.zeros(ledger.n, d_v))
    return stage.write.slip(
        "Must Q, K and V have d_model's size? One reads that one head gives d_model. Put right: one"
        " head's output has V's size d_v (with a V of {d_v} numbers it is {shape}); several heads"
        " split d_model among them.",
        "Q/K/V 一定要是 d_model 维吗？书上说单头输出是 d_model。更正：一个头的输出是 V 的大小 d_v"
        "（V 取 {d_v} 维，输出就是 {shape}）；多头则把 d_model 分给各头。",
        "A30",
        d_v=d_v,
        shape=shape(output),
    )


def _no_feed_forward(stage: Stage) -> Block:
    """A31: linear in V and inside the range of the values; a feed-forward part is not."""
    ledger = stage.ledger
    W, V = ledger["weights"], ledger["V"]
    draw = measured.source(stage.settings.seed)
    size = V.shape[-1]
    first, second = (torch.randn(a, b, generator=draw) for a, b in ((size, 16), (16, size)))

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ first + 1) @ second

    attention = (W @ (2 * V) - 2 * (W @ V)).abs().max().item()
    other = (feed_forward(2 * V) - 2 * feed_forward(V)).abs().max().item()
    return stage.write.says(
        "Attention cannot replace the feed-forward part (FFN): one mixes positions, the other works"
        " on each. With the weights fixed the output is linear in V (doubling V misses by"
        " {attention:.2g}) and stays inside the values' range ({out} in {V}); an FFN is not linear"
        " (it misses by {other:.2f}) and not bound to that range ({ffn}).",
        "注意力代替不了前馈网络（FFN）：一个混合位置，一个在每个位置上加工。权重固定时，输出对 V 是"
        "线性的（V 翻倍，误差 {attention:.2g}），而且不出值的范围（{out} 在 {V} 内）；FFN 不是线性"
        "的"
        "（误差 {other:.2f}），也不受这个范围约束（{ffn}）。",
        "A31",
        attention=attention,
        out=span(W @ V),
        V=span(V),
        other=other,
        ffn=span(feed_forward(V)),
    )


def _change(stage: Stage) -> Block:
    ledger = stage.ledger
    return stage.write.change(
        "What would change if all weights were equal? Every word would take the plain mean of V,"
        " {mean}; “{word}” takes {own}.",
        "如果权重全相等呢？每个词都取走 V 的普通平均 {mean}；“{word}”现在取走的是 {own}。",
        mean=numbers(ledger["V"].mean(0)),
        word=stage.word,
        own=numbers(ledger.head_output[stage.token]),
    )
