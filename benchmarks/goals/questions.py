"""What is asked of the weights: readings after a forward pass, and parts of a long matrix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import eyeline
from benchmarks.goals.forward import square
from benchmarks.goals.goal import Figure, Goal, Pair, Point, Size, close
from eyeline.readings import max_score, pooled

CELLS, TOP = 64, 8
FOUR = (eyeline.entropy, eyeline.received, max_score, partial(pooled, rows=CELLS, cols=CELLS))
TOPS = (partial(eyeline.top, k=TOP),)
QUESTIONS = {"entropy, received, max_score, pooled": FOUR, "top(8)": TOPS, "all five": FOUR + TOPS}
LONG = 32_768


def dense(q: Tensor, k: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Scores and weights, written out."""
    T = q.shape[-2]
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    return scores, scores.softmax(-1)


def dense_answers(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """The output and the five readings of the dense weights."""
    scores, weights = dense(q, k, causal)
    cell = q.shape[-2] // CELLS
    return (
        weights @ v,
        torch.special.entr(weights).sum(-1),
        weights.sum(-2),
        scores.amax(-1),
        weights.unflatten(-1, (-1, cell)).unflatten(-3, (-1, cell)).mean((-1, -3)),
        weights.topk(TOP, -1).values,
    )


def lazy_answers(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """The same by eyeline."""
    out, weights = eyeline.attention(q, k, v, eyeline.causal() if causal else None)
    return (out, *(reading.values for reading in eyeline.read(weights, *FOUR, *TOPS)))


def after_forward(name: str, causal: bool) -> Point:
    """Readings of weights that a forward pass just returned, beside that forward pass."""
    questions = QUESTIONS[name]

    def make(size: Size) -> Pair:
        q, k, v = square(size(4096), 64, 2)
        mask = eyeline.causal() if causal else None
        fresh: dict[str, Any] = {}

        def forward() -> Tensor:
            out, fresh["weights"] = eyeline.attention(q, k, v, mask)
            return out

        return Pair(lambda: eyeline.read(fresh["weights"], *questions), forward, ready=forward)

    return Point(f"readings {name}, {'causal' if causal else 'full'}", make)


def with_readings(causal: bool, memory: bool = False) -> Point:
    """Attention and all five readings, beside dense attention and the same."""

    def make(size: Size) -> Pair:
        q, k, v = square(size(4096), 64, 2)
        return Pair(
            lambda: lazy_answers(q, k, v, causal),
            lambda: dense_answers(q, k, v, causal),
            same=close,
        )

    name = f"{'memory of ' if memory else ''}attention and readings"
    return Point(f"{name}, {'causal' if causal else 'full'}", make, memory)


def softmax_rows(q: Tensor, k: Tensor) -> Tensor:
    """The weights of some rows, by torch."""
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


def long_pair(size: Size, heads: int) -> tuple[Tensor, Tensor, eyeline.Weights]:
    """q, k and the weights of a long text; nothing of them is computed yet."""
    q, k, _ = square(size(LONG), 64, heads)
    return q, k, eyeline.weights(q, k)


def row(size: Size) -> Pair:
    """One row of every head."""
    q, k, weights = long_pair(size, 8)
    i = q.shape[2] // 2
    return Pair(
        lambda: weights[..., i, :],
        lambda: softmax_rows(q[..., i : i + 1, :], k)[..., 0, :],
        same=close,
    )


def column(size: Size) -> Pair:
    """One column, for which every row's sum must be known: torch goes over blocks of rows."""
    q, k, _ = square(size(LONG), 64, 1)
    j = q.shape[2] // 2
    return Pair(
        lambda: eyeline.weights(q, k)[..., j],
        lambda: torch.cat([softmax_rows(rows, k)[..., j] for rows in q.split(512, -2)], -1),
        same=close,
    )


def tile(size: Size) -> Pair:
    """256 × 256 weights out of the middle of every head."""
    q, k, weights = long_pair(size, 8)
    T = q.shape[2]
    part = slice(T // 2, T // 2 + min(256, T // 2))
    return Pair(
        lambda: weights[..., part, part].clone(),
        lambda: softmax_rows(q[..., part, :], k)[..., part].clone(),
        same=close,
    )


def questions() -> Iterator[Goal]:
    """Readings beside their forward pass and beside dense attention; then parts at T 32 768."""
    for (name, _), bound in zip(QUESTIONS.items(), (0.7, 0.9, 1.0), strict=True):
        points = (after_forward(name, False), after_forward(name, True))
        work = f"{name} after a forward, T 4096"
        yield Goal("readings", work, "that forward", points, bound, Figure.COST)
    work, against = "attention and the five readings, T 4096", "dense softmax, the same readings"
    yield Goal("readings", f"{work}, full", against, (with_readings(False),), 4.0)
    yield Goal("readings", f"{work}, causal", against, (with_readings(True),), 8.0)
    memory = (with_readings(False, memory=True), with_readings(True, memory=True))
    name = "their memory beyond inputs and outputs"
    yield Goal("readings", name, "dense, the same readings", memory, 0.01, Figure.MEMORY)


def parts() -> Iterator[Goal]:
    """Not slower than torch."""
    against = "the same by torch matmul and softmax"
    for name, make in (
        ("one row of 8 heads", row),
        ("one column", column),
        ("a tile of 256 × 256 in 8 heads", tile),
    ):
        point = Point(f"parts: {name}", make)
        yield Goal("parts", f"{name}, T 32 768", against, (point,), 1.0)
