"""Softmax: each row of scores becomes shares."""

from __future__ import annotations

import torch

import eyeline
from eyeline.lesson.data import Block, Screen, Table
from eyeline.lesson.stage import Stage
from eyeline.lesson.writing import matrix, numbers

LARGE = (1000.0, 1001.0, 1002.0)


def softmax(stage: Stage) -> Screen:
    """A32, B11, B12."""
    write, ledger = stage.write, stage.ledger
    weights = ledger["weights"]
    sums = weights.sum(-1)
    blocks: list[Block] = [
        write.says(
            "softmax makes each row of scores shares: every value in 0 … 1 (here {low:.4f} …"
            " {high:.4f}), every row sums to 1 (here {sums}).",
            "softmax 把每行打分变成份额：每个值在 0 … 1 之间（这里 {low:.4f} … {high:.4f}），每行"
            "之和"
            "为 1（这里 {sums}）。",
            "B11",
            low=weights.min().item(),
            high=weights.max().item(),
            sums=numbers(sums),
        ),
        *stage.code("softmax"),
        matrix("weights", weights, ledger.words, ledger.words, "weight", ("A19", "B11")),
        *_three_ways(stage),
        _maximum_first(stage),
        _change(stage),
    ]
    return stage.screen("softmax", f"{write.term('normalise')} · softmax", blocks)


def _three_ways(stage: Stage) -> list[Block]:
    """A32: the row raw, divided by its sum, and by softmax."""
    write, ledger = stage.write, stage.ledger
    row = stage.row("scaled")
    row = row[row.isfinite()]
    ways = (
        (write.pick("raw", "原始打分"), row),
        (write.pick("raw / sum", "打分 / 总和"), row / row.sum()),
        ("softmax", row.softmax(-1)),
    )
    head = (stage.word, *ledger.words[: min(4, len(row))], write.pick("sum", "总和"))
    rows = tuple(
        (name, *(f"{x:.4f}" for x in values[:4].tolist()), f"{values.sum().item():.4f}")
        for name, values in ways
    )
    return [
        write.says(
            "Why softmax and not the raw product? Raw scores are no shares: they can be negative"
            " and"
            " sum to anything; divided by their sum they still can be negative or over 1.",
            "为什么要 softmax，不直接用点积？原始打分不是份额：可以为负，总和随意；除以总和之后仍"
            "可能"
            "为负或大于 1。",
            "A32",
        ),
        Table(head, rows, ("A32",)),
    ]


def _maximum_first(stage: Stage) -> Block:
    """B12: why the maximum is subtracted first."""
    scores = torch.tensor(LARGE)
    naive = scores.exp() / scores.exp().sum()
    lse = eyeline.weights(torch.ones(1, 1), scores[:, None], scale=1.0).lse
    return stage.write.slip(
        "Large scores: of {scores} the naive exp / Σ exp is {naive}; with the row's maximum taken"
        " off first it is {right}, and so do PyTorch and TensorFlow. Put right: “Log-Sum-Exp” is"
        " the name of log Σ exp itself, here {lse:.4f}; eyeline has it for each row as `attn.lse`,"
        " `attn` being the weights that step {step} makes.",
        "打分很大时：{scores} 用 exp / Σ exp 直接算得 {naive}；先减去该行最大值则得"
        " {right}，PyTorch 和"
        " TensorFlow 都这样做。更正：“Log-Sum-Exp”指的是 log Σ exp 本身，这里是 {lse:.4f}；"
        "eyeline 里每一行的这个数是 `attn.lse`（`attn` 是第 {step} 步得到的权重）。",
        "B12",
        scores=" ".join(f"{x:g}" for x in LARGE),
        naive=numbers(naive),
        right=numbers(scores.softmax(-1)),
        lse=lse.item(),
        step=stage.step("sum"),
    )


def _change(stage: Stage) -> Block:
    row = stage.row("scaled")
    raised = row + 1
    doubled = row * 2
    return stage.write.change(
        "What would change if 1 were added to a whole row? Nothing: {same}. If it were doubled?"
        " Sharper: {sharp}.",
        "如果整行都加 1 呢？不变：{same}。如果整行翻倍呢？更集中：{sharp}。",
        same=numbers(raised.softmax(-1)),
        sharp=numbers(doubled.softmax(-1)),
    )
