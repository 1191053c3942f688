"""Words become vectors, and vectors become queries, keys and values."""

from __future__ import annotations

import torch

from eyeline.lesson import measured
from eyeline.lesson.data import Block, Box, Flow, Screen
from eyeline.lesson.stage import Stage
from eyeline.lesson.writing import matrix, shape, span


def vectors(stage: Stage) -> Screen:
    """X, the three projections, and their shapes."""
    write, ledger = stage.write, stage.ledger
    blocks: list[Block] = [_words(stage), *stage.code("vectors", lines=("A19",))]
    blocks.append(matrix("X", ledger["X"], ledger.words, lines=("A19", "B2")))
    blocks.append(_figure(stage))
    blocks += stage.code("project", lines=("A7", "B3"))
    for name in "QKV":
        blocks.append(matrix(name, ledger[name], ledger.words, lines=("A6", "B3")))
    if ledger.heads > 1:
        blocks.append(
            write.says(
                "{heads} heads share the {d} numbers of a vector; shown is head {head}, with"
                " {d_k}.",
                "{heads} 个头平分向量的 {d} 个数；这里画的是第 {head} 个头，每头 {d_k} 个数。",
                heads=ledger.heads,
                d=stage.settings.d,
                head=ledger.head,
                d_k=ledger.d_k,
            )
        )
    blocks.append(_other_size(stage))
    if stage.real:
        blocks.append(
            write.change(
                "What would change if another layer or head were taken (--layer {layer}, --head"
                " {head})? The same steps with other W; the higher the layer, the more each X has"
                " already gathered from the other words.",
                "如果换一层或换一个头（--layer {layer}、--head {head}）呢？步骤相同，W 不同；层越"
                "高，X 里"
                "已经收集到的别的词越多。",
                layer=stage.settings.layer + 1,
                head=stage.settings.head + 1,
            )
        )
        return stage.screen("vectors", _title(stage), blocks)
    blocks.append(
        write.change(
            "What would change if another seed drew the vectors (--seed {seed})? Every number, no"
            " shape. The W are what training changes; here they are random.",
            "如果换一个随机种子（--seed {seed}）呢？数字全变，形状不变。训练要改的正是三个 W；"
            "这里它们是随机的。",
            seed=stage.settings.seed + 1,
        )
    )
    return stage.screen("vectors", _title(stage), blocks)


def _title(stage: Stage) -> str:
    return stage.write.pick("Words, vectors, Q K V", "词、向量、Q K V")


def _words(stage: Stage) -> Block:
    write, ledger = stage.write, stage.ledger
    if stage.real:
        return write.says(
            "{model} cuts the text into {n} tokens, special ones included. X is what layer {layer}"
            " gets: each row holds a token's meaning and position. Q and K are as head {head} hands"
            " them to attention, biases and positions included.",
            "{model} 把文字切成 {n} 个 token（含特殊 token）。X 是第 {layer} 层的输入：每行带着一个"
            " token 的含义和位置。Q、K 是第 {head} 个头交给注意力的样子，偏置和位置都已在内。",
            "B2",
            "A35",
            model=stage.settings.model,
            n=ledger.n,
            layer=stage.settings.layer,
            head=stage.settings.head,
        )
    return write.says(
        "{n} words, {n} vectors of {d} numbers, drawn at random (seed {seed}); the same word has"
        " the"
        " same vector. A model's own tokenizer may cut the text otherwise: see `eyeline look"
        " --pieces`. In a model X holds each word's meaning and position.",
        "{n} 个词，{n} 个 {d} 维向量，随机抽取（种子 {seed}）；同一个词用同一个向量，中文按字切。"
        "模型自己的分词可能不同：见 `eyeline look --pieces`。在真实模型里 X 含有词的含义和位置。",
        "B2",
        "A35",
        n=ledger.n,
        d=ledger["X"].shape[-1],
        seed=stage.settings.seed,
    )


def _figure(stage: Stage) -> Block:
    """A6: X against three matrices."""
    ledger = stage.ledger
    boxes = []
    for name in "QKV":
        W = f" = X · W_{name} {shape(ledger[f'W_{name}'])}" if f"W_{name}" in ledger else ""
        boxes.append(Box(name + W, shape(ledger[name]), span(ledger[name])))
    start = Box("X [n, d_model]", shape(ledger["X"]), span(ledger["X"]))
    return Flow(((start,), tuple(boxes)), ("A6",))


def _other_size(stage: Stage) -> Block:
    X = stage.ledger["X"]
    d = X.shape[-1]
    d_k = d + 2
    draw = measured.source(stage.settings.seed)
    Q, K = (X @ torch.randn(d, d_k, generator=draw) for _ in range(2))
    return stage.write.says(
        "W_Q is [d_model, d_k], and d_k is free: with d_k = {d_k}, Q is {Q}, and the scores"
        " Q·Kᵀ are {scores} as before.",
        "W_Q 的形状是 [d_model, d_k]，d_k 可以自选：取 d_k = {d_k}，Q 就是 {Q}，打分 Q·Kᵀ"
        " 仍是 {scores}。",
        "A7",
        d_k=d_k,
        Q=shape(Q),
        scores=shape(Q @ K.T),
    )
