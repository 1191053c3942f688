"""Owed: every question that a Weights answers without being dense, with its gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

import eyeline
from eyeline import readings
from tests import oracle
from tests.conformance import Answer, Question, Setting, check, inputs, owed
from tests.rules import RULES

X = torch.linspace(-1, 1, 9 * 3, dtype=torch.float64).sin().reshape(9, 3)  # other values, [Tk, F]
Y = torch.linspace(-2, 2, 6 * 3, dtype=torch.float64).cos().reshape(6, 3)  # per query, [Tq, F]
SPANS: dict[str, Any] = {
    "first": (0, 2),
    "some": [1, 4, 5],
    "kept": torch.tensor([True, False] * 4 + [True]),
}


def shares(d: oracle.Dense) -> Tensor:
    columns = [slice(0, 2), [1, 4, 5], [0, 2, 4, 6, 8]]
    return torch.stack([d.weights[..., c].sum(-1) for c in columns], dim=-1)


def per_seeing_query(d: oracle.Dense) -> Tensor:
    seeing = (d.scores > oracle.HIDDEN).sum(-2)
    return d.weights.sum(-2) / seeing.clamp(min=1)


# what -> (asked of eyeline, the definition)
QUESTIONS: dict[str, tuple[Question, Answer]] = {
    "row": (lambda o, w: w[0, 1, -1], lambda d: d.weights[0, 1, -1]),
    "row of all": (lambda o, w: w[..., 2, :], lambda d: d.weights[..., 2, :]),
    "rows": (
        lambda o, w: w[..., torch.tensor([4, 0, 4]), :],
        lambda d: d.weights[..., [4, 0, 4], :],
    ),
    "row slice": (lambda o, w: w[..., 2:5, :].to_dense(), lambda d: d.weights[..., 2:5, :]),
    "column": (lambda o, w: w[..., 3], lambda d: d.weights[..., 3]),
    "columns": (lambda o, w: w[..., torch.tensor([8, 1])], lambda d: d.weights[..., [8, 1]]),
    "column slice": (lambda o, w: w[..., 3:8].to_dense(), lambda d: d.weights[..., 3:8]),
    "tile": (lambda o, w: w[..., 1:4, 2:7].to_dense(), lambda d: d.weights[..., 1:4, 2:7]),
    "entry": (lambda o, w: w[1, 0, 5, 0], lambda d: d.weights[1, 0, 5, 0]),
    "head": (lambda o, w: w[:, 1].to_dense(), lambda d: d.weights[:, 1]),
    "heads": (lambda o, w: w[:, torch.tensor([1, 1])].to_dense(), lambda d: d.weights[:, [1, 1]]),
    "chained": (lambda o, w: w[1][0][-2], lambda d: d.weights[1, 0, -2]),
    "lse": (lambda o, w: w.lse, lambda d: d.lse),
    "scores": (lambda o, w: w.scores(), lambda d: d.scores),
    "@": (lambda o, w: w @ X.to(w.dtype), lambda d: d.weights @ X.to(d.weights.dtype)),
    "mT @": (lambda o, w: w.mT @ Y.to(w.dtype), lambda d: d.weights.mT @ Y.to(d.weights.dtype)),
    "sum over keys": (lambda o, w: w.sum(-1), lambda d: d.weights.sum(-1)),
    "sum over queries": (lambda o, w: w.sum(-2), lambda d: d.weights.sum(-2)),
    "mean over keys": (lambda o, w: w.mean(-1), lambda d: d.weights.mean(-1)),
    "mean over queries": (lambda o, w: w.mean(dim=-2), lambda d: d.weights.mean(-2)),
    "max over keys": (lambda o, w: w.max(-1).values, lambda d: d.weights.amax(-1)),
    "max over queries": (lambda o, w: w.max(-2).values, lambda d: d.weights.amax(-2)),
    "topk over keys": (lambda o, w: w.topk(3).values, lambda d: d.weights.topk(3).values),
    "topk over queries": (
        lambda o, w: w.topk(2, dim=-2).values,
        lambda d: d.weights.topk(2, dim=-2).values,
    ),
    "mean of heads": (lambda o, w: w.mean(1).to_dense(), lambda d: d.weights.mean(1)),
    "row of the mean of heads": (lambda o, w: w.mean(1)[0, 3], lambda d: d.weights.mean(1)[0, 3]),
    "received by the mean of heads": (
        lambda o, w: w.mean(1).sum(-2),
        lambda d: d.weights.mean(1).sum(-2),
    ),
    "entropy": (lambda o, w: eyeline.entropy(w).values, lambda d: oracle.entropy(d.weights)),
    "received": (lambda o, w: eyeline.received(w).values, lambda d: d.weights.sum(-2)),
    "received mean": (lambda o, w: eyeline.received(w, mean=True).values, per_seeing_query),
    "top": (lambda o, w: eyeline.top(w, k=4).values, lambda d: d.weights.topk(4).values),
    "max_score": (lambda o, w: readings.max_score(w).values, lambda d: d.scores.amax(-1)),
    "distance": (lambda o, w: readings.distance(w).values, lambda d: oracle.distance(d.weights)),
    "mass": (lambda o, w: readings.mass(w, SPANS).values, shares),
    "pooled mean": (
        lambda o, w: readings.pooled(w, [0, 1, 4, 6], [0, 5, 9]).values,
        lambda d: oracle.pooled(d.weights, [0, 1, 4, 6], [0, 5, 9]),
    ),
    "pooled max": (
        lambda o, w: readings.pooled(w, 3, 3, reduce="max").values,
        lambda d: oracle.pooled(d.weights, [0, 2, 4, 6], [0, 3, 6, 9], "max"),
    ),
    "pooled region": (
        lambda o, w: readings.pooled(w, 2, 3, region=((2, 6), (3, 9))).values,
        lambda d: oracle.pooled(d.weights, [2, 4, 6], [3, 5, 7, 9]),
    ),
    "diagonal": (
        lambda o, w: readings.diagonal(w, -2).values,
        lambda d: oracle.diagonal(d.weights, -2),
    ),
}


@owed(question=list(QUESTIONS), rule=["full", "both", "table"])
def every_question(backend: str, question: str, rule: str) -> None:
    mask, visible = RULES[rule]((2, 2), 6, 9)
    ask, answer = QUESTIONS[question]
    check(Setting(*inputs(6, 9), mask, visible), ask, answer, backend, question)


@owed(question=list(QUESTIONS))
def every_question_with_every_option(backend: str, question: str) -> None:
    mask, visible = RULES["causal"]((2, 4), 6, 9)
    options = {
        "scale": 0.7,
        "softcap": 2.0,
        "bias": torch.randn(4, 1, 9),
        "sinks": torch.tensor([0.5, -0.5, 0.0, 1.0]),
    }
    ask, answer = QUESTIONS[question]
    setting = Setting(*inputs(6, 9, Hq=4, Hk=2, dtype=torch.float64), mask, visible, options)
    check(setting, ask, answer, backend, question)


def waves(length: int, dtype: torch.dtype) -> Tensor:
    return torch.arange(length, dtype=torch.float64)[:, None].sin().to(dtype)


LARGE: dict[str, tuple[Question, Answer]] = {
    name: QUESTIONS[name]
    for name in (
        "row", "column", "columns", "tile", "sum over queries", "max over queries",
        "topk over keys", "topk over queries", "mean of heads", "entropy", "received",
        "received mean", "top", "max_score", "distance", "diagonal",
    )
} | {
    "@": (
        lambda o, w: w @ waves(w.shape[-1], w.dtype),
        lambda d: d.weights @ waves(d.weights.shape[-1], d.weights.dtype),
    ),
    "mT @": (
        lambda o, w: w.mT @ waves(w.shape[-2], w.dtype),
        lambda d: d.weights.mT @ waves(d.weights.shape[-2], d.weights.dtype),
    ),
    "pooled mean": (
        lambda o, w: readings.pooled(w, [0, 100, 301], [0, 257, 640]).values,
        lambda d: oracle.pooled(d.weights, [0, 100, 301], [0, 257, 640]),
    ),
    "pooled max": (
        lambda o, w: readings.pooled(w, [0, 100, 301], [0, 257, 640], reduce="max").values,
        lambda d: oracle.pooled(d.weights, [0, 100, 301], [0, 257, 640], "max"),
    ),
}  # fmt: skip


@owed(question=list(LARGE), rule=["full", "both"])
def every_question_across_tiles(backend: str, question: str, rule: str) -> None:
    if backend == "small tiles":  # every other test crosses those
        return
    mask, visible = RULES[rule]((2, 2), 301, 640)
    ask, answer = LARGE[question]
    check(Setting(*inputs(301, 640), mask, visible), ask, answer, backend, question)


@owed(rank=[2, 3, 4, 5])
def readings_name_their_axes(backend: str, rank: int) -> None:
    lead = ((), (2,), (2, 3), (2, 1, 3))[rank - 2]
    q, k = torch.randn(*lead, 5, 4), torch.randn(*lead, 7, 4)
    weights = eyeline.weights(q, k, backend=backend)
    assert weights.shape == (*lead, 5, 7)
    assert len(weights.axes) == rank
    assert weights.axes[-2:] == ("query", "key")
    entropy, received, top = eyeline.read(
        weights, eyeline.entropy, eyeline.received, partial(eyeline.top, k=2)
    )
    assert entropy.axes == weights.axes[:-1]
    assert entropy.unit == "nats"
    assert received.axes == (*weights.axes[:-2], "key")
    assert received.unit == "weight"
    assert top.values.shape == top.indices.shape == (*lead, 5, 2)
    for reading in (entropy, received, top):
        assert len(reading.axes) == reading.values.dim()


@owed()
def indices_say_where(backend: str) -> None:
    mask, visible = RULES["causal"]((2, 2), 6, 9)
    setting = Setting(*inputs(6, 9, dtype=torch.float64), mask, visible)
    weights, exact = setting.weights(backend), setting.dense().weights
    assert torch.equal(weights.argmax(-1), exact.argmax(-1))
    assert torch.equal(weights.argmax(-2), exact.argmax(-2))
    assert torch.equal(weights.max(-1).indices, exact.argmax(-1))
    among = exact.topk(2, dim=-2)  # the last key is seen by one query alone
    assert torch.equal(weights.topk(2, dim=-2).indices, among.indices.where(among.values > 0, -1))
    assert torch.equal(eyeline.top(weights, k=3).indices, exact.topk(3).indices)
    assert torch.equal(readings.max_score(weights).indices, setting.dense().scores.argmax(-1))
    values, indices = weights.topk(2)
    assert torch.equal(exact.gather(-1, indices).sum(-1) > 0, values.sum(-1) > 0)


@owed()
def the_sink_has_its_share(backend: str) -> None:
    sinks = torch.tensor([0.3, -1.0])
    setting = Setting(*inputs(6, 9), options={"sinks": sinks})
    share = readings.mass(setting.weights(backend), {"all": (0, 9), "sink": None}).values
    torch.testing.assert_close(share.sum(-1), torch.ones(2, 2, 6))
    exact = (sinks.double()[:, None] - setting.dense().lse).exp()
    torch.testing.assert_close(share[..., 1], exact.float())


@owed()
def read_gives_what_each_reading_gives_alone(backend: str) -> None:
    mask, visible = RULES["both"]((2, 2), 40, 50)
    weights = Setting(*inputs(40, 50), mask, visible).weights(backend)
    asked = [
        eyeline.entropy,
        eyeline.received,
        partial(eyeline.top, k=3),
        readings.max_score,
        readings.distance,
        partial(readings.mass, spans={"first": (0, 1)}),
        partial(readings.pooled, rows=4, cols=5),
        partial(readings.pooled, rows=4, cols=5, reduce="max"),
        partial(readings.diagonal, offset=-1),
        sharpest,
    ]
    for together, ask in zip(eyeline.read(weights, *asked), asked, strict=True):
        alone = ask(weights)
        assert together.axes == alone.axes
        assert together.unit == alone.unit
        torch.testing.assert_close(together.values, alone.values)
        if alone.indices is not None:
            assert torch.equal(together.indices, alone.indices)


@readings.reading
def sharpest(weights: Any) -> Any:
    """A user's own reading: the largest weight of each row."""
    values = yield readings.RowTiles(lambda tile: tile.weights.max(-1).values)
    return readings.Reading(values, axes=weights.axes[:-1], unit="weight")


@readings.reading
def seen_by_own_sum(weights: Any) -> Any:
    """A user's own reading that adds strips: received attention the long way."""
    values = yield readings.RowTiles(lambda tile: tile.weights.sum(-2), combine="sum")
    return readings.Reading(values, axes=(*weights.axes[:-2], "key"), unit="weight")


@owed(rule=["full", "both"])
def a_users_own_reading(backend: str, rule: str) -> None:
    mask, visible = RULES[rule]((2, 2), 6, 9)
    setting = Setting(*inputs(6, 9), mask, visible)
    check(setting, lambda o, w: sharpest(w).values, lambda d: d.weights.amax(-1), backend)
    check(setting, lambda o, w: seen_by_own_sum(w).values, lambda d: d.weights.sum(-2), backend)


@owed()
def strips_know_their_rows(backend: str) -> None:
    """tile.rows counts from 0, tile.positions from the keys' side."""

    @readings.reading
    def own_weight(weights: Any) -> Any:
        def here(tile: Any) -> Tensor:
            assert torch.equal(tile.positions, tile.rows + 4)
            at = tile.positions.expand(*tile.weights.shape[:-2], -1)[..., None]
            return tile.weights.gather(-1, at).squeeze(-1)

        values = yield readings.RowTiles(here)
        return readings.Reading(values, axes=weights.axes[:-1], unit="weight")

    setting = Setting(*inputs(300, 304, dtype=torch.float64))
    found = own_weight(setting.weights(backend)).values
    torch.testing.assert_close(found, oracle.diagonal(setting.dense().weights, 0))


@owed()
def one_row_of_many_needs_no_others(backend: str) -> None:
    """Rows and tiles at the far end of 70 000 x 70 000: past 32-bit indices, at once."""
    q, k = torch.randn(70_000, 4), torch.randn(70_000, 4)
    weights = eyeline.weights(
        q, k, eyeline.causal(), backend=backend if backend != "reference" else None
    )
    exact = oracle.dense(q[-3:], k).weights
    torch.testing.assert_close(weights[69_999].double(), exact[-1], rtol=1e-4, atol=1e-9)
    tile = weights[-3:, -5:].to_dense().double()
    seen = oracle.causal(3, 70_000)
    exact = oracle.dense(q[-3:], k, visible=seen).weights[:, -5:]
    torch.testing.assert_close(tile, exact, rtol=1e-4, atol=1e-9)
