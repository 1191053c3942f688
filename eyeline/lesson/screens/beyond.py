"""From one head to a block: the module, several heads, positions, norms and residuals."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import eyeline
from eyeline.layers import SelfAttention, swap
from eyeline.lesson import measured
from eyeline.lesson.data import Block, Box, Code, Flow, Screen, Table
from eyeline.lesson.stage import Stage
from eyeline.lesson.writing import numbers, shape
from eyeline.positions import sinusoidal

_DIM, _WORDS, _HEADS = 8, 5, 2  # of the small modules that are run here


def beyond(stage: Stage) -> Screen:
    """A35, B16, B18, B21 to B24."""
    write = stage.write
    blocks: list[Block] = [
        *_module(stage),
        *_heads(stage),
        _positions(stage),
        *_block(stage),
        write.says(
            "Real projects add several heads, dropout and residual sums; the core, Q, K, V and"
            " these"
            " four steps, stays the same in encoders, decoders and encoder–decoders.",
            "真实项目会加上多头、dropout 和残差；核心逻辑（Q、K、V 和这四步）在编码器、解码器、"
            "编码器–解码器里都不变。",
            "B18",
            "B24",
        ),
        write.change(
            "What would change if all heads were one average? See the table: what one head sees,"
            " the"
            " others thin out.",
            "如果把所有的头平均成一个呢？看上表：一个头看到的东西会被别的头冲淡。",
        ),
    ]
    return stage.screen(
        "beyond", write.pick("Heads, positions, blocks", "多头、位置、整块"), blocks
    )


def _module(stage: Stage) -> list[Block]:
    """B16: the chapter's module is eyeline's."""
    toy = stage.toy
    d = toy["X"].shape[-1]
    with torch.random.fork_rng(devices=[]):
        layer = SelfAttention(d).eval()
    with torch.no_grad():
        for name in "QKV":
            part = getattr(layer, f"W_{name}")
            part.weight.copy_(toy[f"W_{name}"].T)
            part.bias.zero_()
        output, weights = layer(toy["X"][None])
    gap = (output[0] - toy["weights"] @ toy["V"]).abs().max().item()
    names = " ".join(name for name, _ in layer.named_parameters())
    return [
        Code(
            (
                "from eyeline.layers import SelfAttention",
                f"layer = SelfAttention(embed_dim={d})",
            ),
            ("B16",),
        ),
        stage.write.says(
            "As a module: SelfAttention(embed_dim) holds {names} and takes x [batch, seq, dim]:"
            " {x} → output {out}, attn_weights {w}. With the matrices of the example its output is"
            " the example's (largest difference {gap:.1g}).",
            "写成模块：SelfAttention(embed_dim) 含 {names}，输入 x [batch, seq, dim]：{x} → output"
            " {out}，"
            "attn_weights {w}。装上例子里的矩阵，输出与例子相同（最大差 {gap:.1g}）。",
            "B16",
            names=names,
            x=shape(toy["X"][None]),
            out=shape(output),
            w=shape(weights),
            gap=gap,
        ),
    ]


def _heads(stage: Stage) -> list[Block]:
    """B21: why several heads and not one."""
    write, pick = stage.write, stage.write.pick
    heads = stage.heads
    n = heads.shape[-1]
    rows = [(f"{pick('head', '头')} {h}", *_leanings(heads[h])) for h in range(min(len(heads), 12))]
    mean = heads.mean(0)
    rows.append((pick("all averaged", "平均成一个"), *_leanings(mean)))
    head = (
        "",
        pick("the word before", "前一个词"),
        pick("the first word", "首个词"),
        pick("itself", "自己"),
        pick("others", "其他词"),
        pick("entropy", "熵"),
    )
    own = torch.special.entr(heads).sum(-1).mean().item()
    averaged = torch.special.entr(mean).sum(-1).mean().item()
    if stage.real:
        which = pick("layer {layer} of {model}", "{model} 第 {layer} 层", **_named(stage))
    else:
        which = pick(
            "{count} heads drawn at random; for a real layer: eyeline explain --model minilm",
            "随机抽取的 {count} 个头；真实的层：eyeline explain --model minilm",
            count=len(heads),
        )
    return [
        write.says(
            "Why eight heads and not one? Each is a lens of its own ({which}; share of the weights,"
            " mean over {n} rows). An average is blurred: entropy {own:.2f} of a head,"
            " {averaged:.2f}"
            " of the average.",
            "为什么要八个头而不是一个？每个头是一副自己的透镜（{which}；权重份额，{n} 行平均）。平"
            "均之后"
            "就模糊了：单个头的熵 {own:.2f}，平均后 {averaged:.2f}。",
            "B21",
            "A35",
            which=which,
            n=n,
            own=own,
            averaged=averaged,
        ),
        Table(head, tuple(rows), ("B21",)),
    ]


def _named(stage: Stage) -> dict[str, object]:
    return {"layer": stage.settings.layer, "model": stage.settings.model}


def _leanings(weights: Tensor) -> tuple[str, ...]:
    """Shares of one head's weights [n, n] by where they go, and their mean entropy."""
    n = len(weights)
    itself = weights.diagonal().sum().item() / n
    before = weights.diagonal(-1).sum().item() / n
    # where the first word is the word itself or the one before, it is counted there
    first = weights[2:, 0].sum().item() / n
    entropy = torch.special.entr(weights).sum(-1).mean().item()
    shares = (before, first, itself, max(0.0, 1 - before - first - itself))
    return (*(f"{share:.0%}" for share in shares), f"{entropy:.2f}")


def _positions(stage: Stage) -> Block:
    """B22: shuffled words without and with positions."""
    draw = measured.source(stage.settings.seed)
    X = torch.randn(_WORDS, _DIM, generator=draw)
    W_Q, W_K, W_V = (torch.randn(_DIM, _DIM, generator=draw) for _ in range(3))
    order = torch.arange(_WORDS).flip(0)

    def attend(x: Tensor) -> Tensor:
        output, _ = eyeline.attention(x @ W_Q, x @ W_K, x @ W_V)
        return output

    places = sinusoidal(_WORDS, _DIM)
    without = (attend(X[order]) - attend(X)[order]).abs().max().item()
    withal = (attend(X[order] + places) - attend(X + places)[order]).abs().max().item()
    return stage.write.says(
        "Attention knows no order. Shuffle the words: without positions the outputs are the same,"
        " shuffled (largest difference {without:.1g}); with positions added to X they are not"
        " ({withal:.2f}). Hence position encoding.",
        "注意力不知道顺序。把词打乱：不加位置，输出一样，只是跟着打乱（最大差 {without:.1g}）；X"
        " 加上位置"
        "就不一样了（{withal:.2f}）。所以需要位置编码。",
        "B22",
        "A35",
        without=without,
        withal=withal,
    )


def _block(stage: Stage) -> list[Block]:
    """B23: LayerNorm and residual around it; torch's own block with its attention swapped."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stage.settings.seed)
        block = nn.TransformerEncoderLayer(_DIM, _HEADS, 4 * _DIM, batch_first=True).eval()
        x = torch.randn(1, _WORDS, _DIM)
    with torch.no_grad():
        before = block(x)
        after = swap(block)(x)
    gap = (before - after).abs().max().item()
    size = shape(x)
    boxes = (
        (Box("x", size, numbers(x[0, 0], 2)),),
        (Box(stage.write.pick("attention", "注意力"), size, ""),),
        (Box("+ x, LayerNorm", size, ""),),
        (Box("FFN", size, ""),),
        (Box("+, LayerNorm", size, numbers(after[0, 0], 2)),),
    )
    return [
        Flow(boxes, ("B23",)),
        stage.write.says(
            "One block: attention, residual and LayerNorm, FFN, residual and LayerNorm. This is"
            " torch's own nn.TransformerEncoderLayer; with its attention swapped for eyeline's"
            " (eyeline.layers.swap) the output differs by {gap:.1g}.",
            "一个完整的块：注意力、残差加 LayerNorm、FFN、再残差加 LayerNorm。这里就是 torch 自己的"
            " nn.TransformerEncoderLayer；把其中的注意力换成 eyeline 的（eyeline.layers.swap），输"
            "出只差"
            " {gap:.1g}。",
            "B23",
            gap=gap,
        ),
    ]
