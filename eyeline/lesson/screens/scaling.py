"""Scaling: what happens to softmax and its gradient when d grows, and the division by √d."""

from __future__ import annotations

import torch

from eyeline.lesson import measured
from eyeline.lesson.data import Block, Screen, Table
from eyeline.lesson.stage import Stage
from eyeline.lesson.writing import matrix, numbers


def scale(stage: Stage) -> Screen:
    """A13, B9, B10, B17."""
    write, ledger = stage.write, stage.ledger
    blocks: list[Block] = [
        write.says(
            "Each score is multiplied by {factor:.4g}; one divides by √d_k, the size of a query of"
            " one head (d_k = {d_k}). With one head that is √embed_dim; with several it is"
            " √head_dim.",
            "每个打分乘以 {factor:.4g}；通常除以 √d_k，d_k 是一个头里查询的维数（这里 {d_k}）。"
            "只有一个头时就是 √embed_dim；多头时是 √head_dim。",
            "B17",
            factor=ledger.scale,
            d_k=ledger.d_k,
        ),
        *stage.code("scale"),
        matrix("scaled", ledger["scores"] * ledger.scale, ledger.words, ledger.words),
        *_saturation(stage),
        _products(stage),
        _training(stage),
        _change(stage),
    ]
    return stage.screen("scale", write.term("scale"), blocks)


def _saturation(stage: Stage) -> list[Block]:
    """A13: over d, without and with the scale."""
    write, seed = stage.write, stage.settings.seed
    pick = write.pick
    head = (
        "d",
        pick("variance", "方差"),
        pick("rows > {sure}", "行 > {sure}", sure=measured.SURE),
        pick("entropy", "熵"),
        pick("gradient, scores", "打分处梯度"),
        pick("gradient, W_Q", "W_Q 处梯度"),
    )
    rows, at_W_Q = [], {}
    for d in measured.SIZES:
        for scaled in (False, True):
            found = measured.saturation(d, scaled, seed)
            at_W_Q[scaled] = found.at_W_Q
            rows.append(
                (
                    f"{d} ÷√d" if scaled else f"{d}",
                    f"{found.variance:.2f}",
                    f"{found.sure:.0%}",
                    f"{found.entropy:.2f}",
                    f"{found.at_scores:.1e}",
                    f"{found.at_W_Q:.1e}",
                )
            )
    return [
        write.says(
            "The larger d, the larger the variance of a dot product; softmax saturates (one weight"
            " ≈ 1), and the gradient at the scores goes to 0 (median over rows). Measured on"
            " random vectors against {keys} keys:",
            "d 越大，点积的方差越大；softmax 饱和（某个权重 ≈ 1），打分处的梯度趋近 0（各行的中位"
            "数）。"
            "用随机向量对 {keys} 个键实测：",
            "A13",
            keys=measured.KEYS,
        ),
        Table(head, tuple(rows), ("A13", "B10")),
        write.says(
            "To be open: at W_Q the gradient is larger without scaling ({plain:.1e} against"
            " {scaled:.1e} at the largest d), for there d itself enters. What vanishes is the"
            " gradient of a typical row.",
            "要说清楚：在 W_Q 处，不缩放的梯度反而更大（最大的 d 下 {plain:.1e} 对"
            " {scaled:.1e}），因为 "
            "d 本身也乘了进去。消失的是典型一行在打分处的梯度。",
            "A13",
            plain=at_W_Q[False],
            scaled=at_W_Q[True],
        ),
    ]


def _products(stage: Stage) -> Block:
    """B9 and B10: how large dot products are at dimension 512."""
    found = measured.products(stage.settings.seed)
    return stage.write.slip(
        "One reads that at dimension {d} dot products reach hundreds or thousands. Put right: for"
        " unit-variance vectors their standard deviation is {spread:.1f} and the largest of"
        " {count:,} is {largest:.0f}; only q·q itself is about {own:.0f}. Divided by √d their"
        " variance is {scaled:.2f}.",
        "书上说 {d} 维时点积会到几百上千。更正：单位方差的向量，点积的标准差是 {spread:.1f}，"
        "{count:,} 个里最大的是 {largest:.0f}；只有 q·q 自己约为 {own:.0f}。除以 √d 之后方差是"
        " {scaled:.2f}。",
        "B9",
        "B10",
        d=found.d,
        spread=found.spread,
        count=found.count,
        largest=found.largest,
        own=found.own,
        scaled=found.scaled,
    )


def _training(stage: Stage) -> Block:
    """B10: a short training with and without."""
    with_scale, without = (measured.training(s, stage.settings.seed) for s in (True, False))
    return stage.write.says(
        "A short training at d = {d}, same task and steps: with scaling the loss goes from"
        " {a:.3f} to {b:.3f}, without from {c:.3f} to {e:.3f}.",
        "一次短训练，d = {d}，任务和步数相同：缩放时损失从 {a:.3f} 降到 {b:.3f}，不缩放时从 {c:.3f}"
        " 到 {e:.3f}。",
        "B10",
        d=measured.TRAINED,
        a=with_scale[0],
        b=with_scale[1],
        c=without[0],
        e=without[1],
    )


def _change(stage: Stage) -> Block:
    ledger = stage.ledger
    raw = ledger["scores"][stage.token]
    if ledger.causal:
        raw = raw[: stage.token + 1]
    return stage.write.change(
        "What would change if the scores were not scaled (--no-scale)? Row {i} of the weights would"
        " be {new}, in place of {old}.",
        "如果不缩放（--no-scale）呢？权重第 {i} 行会是 {new}，现在是 {old}。",
        i=stage.token,
        new=numbers(torch.softmax(raw, -1)),
        old=numbers(stage.row("weights")[: len(raw)]),
    )
