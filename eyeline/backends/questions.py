"""Reductions that the native pass answers, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyeline.backends.base import Result
from eyeline.backends.pooling import Pool
from eyeline.backends.reductions import (
    Diagonal,
    Entries,
    LogSumExp,
    MaxScore,
    Reduction,
    RowEntropy,
    RowState,
    SeenBy,
    TopKeys,
    View,
    WeightedColumns,
)
from eyeline.problem import Problem

# As native/question.h numbers them.
ASKS = {
    RowState: 0,
    LogSumExp: 1,
    RowEntropy: 2,
    MaxScore: 3,
    TopKeys: 4,
    WeightedColumns: 5,
    SeenBy: 6,
    Pool: 7,
    Diagonal: 8,
    Entries: 9,
}
FEW_KEYS = 64  # of a row, kept in order by insertion
FEW_COLUMNS = 4  # of a factor, added up one after the other

# ask, count, offset, (values, more, keys), factor, (row edges, key edges), (row cells, key cells)
Asked = tuple[
    int, int, int, tuple[int, int, int], "Tensor | None", tuple[int, int], tuple[int, int]
]


def answered(reduction: Reduction, view: View) -> bool:
    """Whether the native pass answers this reduction of what the view shows."""
    if isinstance(reduction, Entries):
        side_by_side = view.cols is None or view.cols.step in (None, 1)
        plain = reduction.cols is None and reduction.what == "weights"
        return plain and side_by_side and not view.mean_heads
    if not view.is_whole:
        return False
    if isinstance(reduction, TopKeys):
        return reduction.k <= FEW_KEYS
    if isinstance(reduction, WeightedColumns):
        # What is not finite must not reach hidden keys: torch's product with a selection does that.
        y = reduction.y
        return y.shape[-1] <= FEW_COLUMNS and bool(y.isfinite().all())
    if isinstance(reduction, Pool):
        return reduction.reduce == "mean"
    return type(reduction) in ASKS


@dataclass(frozen=True, eq=False)
class Question:
    """A reduction in numbers, its result, and the tensors that must live until it is there."""

    numbers: Asked
    result: Result
    kept: tuple[Tensor, ...] = ()


def question(reduction: Reduction, problem: Problem, view: View) -> Question:
    """What native/module.cpp reads as a Question, with empty results for it to write."""
    rows = (problem.N, problem.Hq, problem.Tq)
    ask, q = ASKS[type(reduction)], problem.q

    def made(*shape: int) -> Tensor:
        return q.new_empty(shape, dtype=torch.float32)

    def keys(*shape: int) -> Tensor:
        return q.new_empty(shape, dtype=torch.int64)

    if isinstance(reduction, RowState):
        return _question(ask, made(*rows), more=made(*rows))
    if isinstance(reduction, MaxScore):
        return _question(ask, made(*rows), keys=keys(*rows))
    if isinstance(reduction, TopKeys):
        shape = (*rows, reduction.k)
        return _question(ask, made(*shape), keys=keys(*shape), count=reduction.k)
    if isinstance(reduction, WeightedColumns):
        y = reduction.y.detach().to(torch.float32)
        made_columns = made(problem.N, problem.Hq, problem.Tk, y.shape[-1])
        return _question(ask, made_columns, count=y.shape[-1], factor=y)
    if isinstance(reduction, SeenBy):
        return _question(ask, made(problem.N, problem.Hq, problem.Tk, 1))
    if isinstance(reduction, Pool):
        edges = reduction.row_edges.contiguous(), reduction.col_edges.contiguous()
        cells = len(edges[0]) - 1, len(edges[1]) - 1
        return _question(ask, made(problem.N, problem.Hq, *cells).zero_(), edges=edges)
    if isinstance(reduction, Entries):
        first, stop, _ = (view.cols or slice(None)).indices(problem.Tk)
        count = max(stop - first, 0)
        return _question(ask, made(*rows, count), count=count, offset=first)
    if isinstance(reduction, Diagonal):
        return _question(ask, made(*rows).zero_(), offset=reduction.offset)
    return _question(ask, made(*rows))


def _question(
    ask: int,
    values: Tensor,
    *,
    more: Tensor | None = None,
    keys: Tensor | None = None,
    count: int = 1,
    offset: int = 0,
    factor: Tensor | None = None,
    edges: tuple[Tensor, Tensor] | None = None,
) -> Question:
    addresses: Any = tuple(0 if t is None else t.data_ptr() for t in (values, more, keys))
    at_edges = (0, 0) if edges is None else (edges[0].data_ptr(), edges[1].data_ptr())
    cells = (0, 0) if edges is None else (len(edges[0]) - 1, len(edges[1]) - 1)
    numbers = (ask, count, offset, addresses, factor, at_edges, cells)
    result = tuple(t for t in (values, more, keys) if t is not None)
    return Question(numbers, result, (*(edges or ()), *(() if factor is None else (factor,))))
