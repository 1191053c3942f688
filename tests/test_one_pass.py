"""Several readings, one pass: a backend that counts sees each score evaluated once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import eyeline
from eyeline import readings
from eyeline.backends.tiled import Tiled
from tests import oracle
from tests.conformance import inputs

TQ, TK = 700, 900


@readings.reading
def sharpest(weights: Any) -> Any:
    """A user's own reading."""
    values = yield readings.RowTiles(lambda tile: tile.weights.max(-1).values)
    return readings.Reading(values, axes=weights.axes[:-1], unit="weight")


class Counter:
    """How often each (query, key) position's score was evaluated, and in how many heads."""

    def __init__(self) -> None:
        self.seen = torch.zeros(TQ, TK, dtype=torch.int64)

    def __call__(self, rows: slice, cols: Tensor | slice, shape: tuple[int, ...]) -> None:
        n, heads, R, C = shape
        block = torch.zeros(TQ, TK, dtype=torch.int64)
        block[rows] += torch.zeros(R, TK, dtype=torch.int64).index_fill(
            1, torch.arange(TK)[cols], 1
        )
        assert int(block.sum()) == R * C
        self.seen += block * (n * heads)


READINGS = [
    eyeline.entropy,
    eyeline.received,
    partial(eyeline.top, k=8),
    sharpest,
    readings.max_score,
    readings.distance,
    partial(readings.mass, spans={"first": (0, 1)}),
    partial(readings.pooled, rows=10, cols=10),
    partial(readings.diagonal, offset=-1),
]


@pytest.mark.parametrize("rule", ["full", "causal"])
@pytest.mark.parametrize("readings_", [READINGS[:4], READINGS], ids=["the example", "all"])
def test_each_score_once(rule: str, readings_: list[Any]) -> None:
    count = Counter()
    q, k, _ = inputs(TQ, TK, Hq=4, Hk=2)
    mask = eyeline.causal() if rule == "causal" else None
    weights = eyeline.weights(q, k, mask, backend=Tiled(on_tile=count))
    assert not count.seen.any()  # nothing is computed before it is asked for
    eyeline.read(weights, *readings_)
    visible = oracle.causal(TQ, TK) if rule == "causal" else torch.ones(TQ, TK, dtype=torch.bool)
    pairs = 2 * 4  # batch entries times heads
    assert (count.seen[visible] == pairs).all()
    assert (count.seen[~visible] <= pairs).all()  # a tile on the border holds some hidden positions
    if rule == "causal":
        assert count.seen.sum() < 0.85 * pairs * TQ * TK  # and tiles beyond it are not evaluated


def test_one_row_is_one_row() -> None:
    """A row costs a row."""
    count = Counter()
    q, k, _ = inputs(TQ, TK)
    weights = eyeline.weights(q, k, backend=Tiled(on_tile=count))
    torch.testing.assert_close(weights[0, 1, 5].sum(), torch.tensor(1.0))
    assert count.seen.sum() == TK
