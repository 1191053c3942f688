"""Three roles: asking, being found, delivering; and where Q, K and V may come from."""

from __future__ import annotations

import torch

import eyeline
from eyeline.errors import EyelineError
from eyeline.lesson import measured
from eyeline.lesson.data import Block, Screen, Table
from eyeline.lesson.stage import Stage
from eyeline.lesson.writing import matrix, shape


def roles(stage: Stage) -> Screen:
    """A5, A8, A14, B4, B5, B6, B20."""
    write = stage.write
    pick = write.pick
    table = Table(
        (pick("role", "角色"), pick("asks or says", "它在问（说）什么")),
        (
            ("Query 查询", pick("What do I want to know?", "我想知道什么？")),
            ("Key 键", pick("What am I, for others to match?", "我是什么，别人凭什么匹配到我？")),
            ("Value 值", pick("What is taken away from me?", "匹配到之后，从我这里拿走什么？")),
        ),
        ("A5",),
    )
    blocks: list[Block] = [
        table,
        write.says(
            "All three come from the same X and are of different nature: asking, being matched and"
            " delivering are three things, so there are three matrices.",
            "三者来自同一个 X，性质却不同：提问、被匹配、交付内容是三件事，所以要三个矩阵。",
            "A8",
            "B5",
        ),
        _one_matrix(stage),
        _sizes(stage),
        *_cross(stage),
        write.change(
            "What would change if W_Q and W_K were one matrix? The scores would be symmetric: “{a}”"
            " would have to match “{b}” exactly as well as “{b}” matches “{a}”.",
            "如果 W_Q 和 W_K 是同一个矩阵呢？打分就对称了：“{a}”对“{b}”的打分必然等于“{b}”"
            "对“{a}”的打分。",
            a=stage.ledger.words[0],
            b=stage.ledger.words[-1],
        ),
    ]
    return stage.screen("roles", pick("Three roles", "三个角色"), blocks)


def _one_matrix(stage: Stage) -> Block:
    """B6: whether a word's score with itself is the largest when Q = K."""
    found = measured.same_projection(stage.settings.seed)
    X = stage.toy["X"]
    gap = (X @ X.T - (X @ X.T).T).abs().max().item()
    return stage.write.slip(
        "One reads that with Q = K = V each word's score with itself is always the largest. Put"
        " right: of 1000 random inputs of 3 words it is not so in {plain:.0%} (Q = K = X), and in"
        " {shared:.0%} where both are X times one W. What always holds is that the scores are"
        " symmetric (largest difference {gap:g}).",
        "书上常说：若 Q = K = V，每个词对自己的打分总是最大。更正：随机 1000 组 3 个词，"
        "{plain:.0%} 不是这样（Q = K = X）；共用一个 W 时 {shared:.0%} 不是。总成立的只是打分对称"
        "（最大差 {gap:g}）。",
        "B6",
        "A8",
        plain=found.plain,
        shared=found.shared,
        gap=gap,
    )


def _sizes(stage: Stage) -> Block:
    """B4 and B20: what may differ in size, and the error that says it."""
    n, d = stage.toy["X"].shape
    Q, K = torch.zeros(n, d), torch.zeros(n, d - 1 or 2)
    try:
        eyeline.attention(Q, K, torch.zeros(n, d))
        said = ""
    except EyelineError as error:
        said = str(error).splitlines()[0]
    output, _ = eyeline.attention(Q, Q, torch.zeros(n, d + 3))
    return stage.write.slip(
        "One reads that the three matrices may differ in size. Put right: W_Q and W_K must agree,"
        " for a score is a dot product of q and k, compared in one space; only W_V is free (V"
        " {V} gives an output {out}). With K {K} beside Q {Q}, eyeline says: {said}",
        "书上说三个矩阵大小可以不同。更正：W_Q 与 W_K 必须一致，因为打分是 q 与 k 的点积，要在同一"
        "个"
        "空间里比较；只有 W_V 是自由的（V 为 {V}，输出就是 {out}）。若 Q {Q} 配 K {K}，eyeline 会"
        "说：{said}",
        "B4",
        "B20",
        V=shape(torch.zeros(n, d + 3)),
        out=shape(output),
        K=shape(K),
        Q=shape(Q),
        said=said,
    )


def _cross(stage: Stage) -> list[Block]:
    """A14: self and cross side by side."""
    write, toy = stage.write, stage.toy
    others = ("<s>", "?")
    X = torch.randn(
        len(others), toy["X"].shape[-1], generator=measured.source(stage.settings.seed + 1)
    )
    _, own = eyeline.attention(toy["Q"], toy["K"], toy["V"])
    _, cross = eyeline.attention(X @ toy["W_Q"], toy["K"], toy["V"])
    return [
        write.says(
            "Self-attention takes Q, K and V from one sequence: weights {own}. Cross-attention"
            " takes"
            " Q from the decoder, K and V from the encoder: {others} words ask {n}, weights"
            " {cross}.",
            "自注意力：Q、K、V 来自同一个序列，权重 {own}。交叉注意力：Q 来自解码器，K、V 来自编码"
            "器："
            "{others} 个词去问 {n} 个词，权重 {cross}。",
            "A14",
            own=shape(own),
            cross=shape(cross),
            others=len(others),
            n=toy.n,
        ),
        matrix("self", own.to_dense(), toy.words, toy.words, "weight", ("A14",)),
        matrix("cross", cross.to_dense(), others, toy.words, "weight", ("A14",)),
    ]
