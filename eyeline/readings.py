"""Readings: questions to the weights, answered by streaming over them. Several go in one pass.

A reading is a generator function under `reading`: it yields the reductions it needs and is sent
their tensors.
"""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from typing import Any, Literal, cast

import torch
from torch import Tensor

from eyeline.backends.pooling import Pool
from eyeline.backends.reductions import (
    Diagonal,
    MaxScore,
    Reduction,
    RowEntropy,
    RowTiles,
    SeenBy,
    Tile,
    TopKeys,
    WeightedColumns,
    WeightedSum,
)
from eyeline.errors import ArgumentError
from eyeline.lazy import Weights
from eyeline.spans import cell_edges, indicator, rectangle

__all__ = [
    "Reading",
    "Reduction",
    "RowTiles",
    "WeightedColumns",
    "WeightedSum",
    "diagonal",
    "distance",
    "entropy",
    "mass",
    "max_score",
    "pooled",
    "read",
    "reading",
    "received",
    "top",
]


@dataclass(frozen=True, eq=False)
class Reading:
    """The answer to a question: ``values``, the names of their ``axes`` and their ``unit``.

    ``indices`` (keys, of the values' shape) are there where the question has them.

    >>> import torch, eyeline
    >>> reading = eyeline.entropy(eyeline.weights(torch.zeros(1, 2), torch.zeros(4, 2)))
    >>> reading.values, reading.axes, reading.unit
    (tensor([1.3863]), ('query',), 'nats')
    """

    values: Tensor
    axes: tuple[str, ...]
    unit: str
    name: str = ""
    indices: Tensor | None = None

    def __repr__(self) -> str:
        shape = ", ".join(
            f"{axis} {size}" for axis, size in zip(self.axes, self.values.shape, strict=False)
        )
        more = "" if self.indices is None else f"\nindices {self.indices!r}"
        return f"{self.name or 'reading'} [{shape}] in {self.unit}\n{self.values!r}{more}"

    def _repr_html_(self) -> str:
        # Only a notebook needs the drawing code.
        notebook = importlib.import_module("eyeline.views.notebook")
        return cast(str, notebook.reading_html(self))


Asked = Generator[Any, Any, Reading]


class Question:
    """A reading function: called, it answers alone; in `read` it shares the pass with others."""

    def __init__(self, ask: Callable[..., Asked]) -> None:
        self.ask = ask
        update_wrapper(self, ask)

    def __call__(self, weights: Weights, *args: Any, **kwargs: Any) -> Reading:
        return read(weights, partial(self, *args, **kwargs) if args or kwargs else self)[0]


def reading(ask: Callable[..., Asked]) -> Question:
    """Make a reading of a generator function ``ask(weights, ...)``.

    It yields reductions and returns a Reading: ``yield reduction`` is sent its tensor,
    ``yield [a, b]`` a list of them; a reduction with indices gives a pair. Each strip of the
    weights is computed once for all readings of a `read`, whoever wrote them.

    >>> import torch, eyeline
    >>> from eyeline.readings import Reading, RowTiles, reading
    >>> @reading
    ... def sharpest(weights):
    ...     values = yield RowTiles(lambda tile: tile.weights.amax(-1))
    ...     return Reading(values, weights.axes[:-1], "weight", "sharpest")
    >>> sharpest(eyeline.weights(torch.eye(2), torch.eye(2))).values
    tensor([0.6698, 0.6698])
    """
    if not inspect.isgeneratorfunction(ask):
        raise ArgumentError(
            f"@reading takes a generator function: one that yields reductions and returns a "
            f"Reading. {ask!r} yields nothing."
        )
    return Question(ask)


def read(weights: Weights, *questions: Any) -> list[Reading]:
    """The readings of several questions in one pass over the weights, in their order.

    Arguments go with functools.partial: ``read(weights, entropy, received, partial(top, k=8))``.

    >>> import torch, eyeline
    >>> weights = eyeline.weights(torch.zeros(2, 2), torch.zeros(4, 2), eyeline.causal(offset=0))
    >>> entropy, received = eyeline.read(weights, eyeline.entropy, eyeline.received)
    >>> entropy.values, received.values
    (tensor([0.0000, 0.6931]), tensor([1.5000, 0.5000, 0.0000, 0.0000]))
    """
    if not isinstance(weights, Weights):
        raise ArgumentError(
            "A reading takes the weights that eyeline.attention or eyeline.weights returns, "
            f"and got {type(weights).__name__}. They are the second of (out, weights); of a "
            "watched run ask each layer, as seen[0]."
        )
    asked = [_start(weights, question) for question in questions]
    waiting: list[tuple[int, Any]] = []
    answers: list[Reading | None] = [None] * len(asked)
    for i, generator in enumerate(asked):
        _advance(generator, None, i, waiting, answers)
    while waiting:
        batch, waiting = waiting, []
        wanted = [list(w) if isinstance(w, (list, tuple)) else [w] for _, w in batch]
        flat = [_fitted(weights, reduction) for group in wanted for reduction in group]
        results = iter(weights._body.reduce(flat)) if flat else iter(())
        for (i, want), group in zip(batch, wanted, strict=True):
            made = [_unwrapped(next(results)) for _ in group]
            sent = made if isinstance(want, (list, tuple)) else made[0]
            _advance(asked[i], sent, i, waiting, answers)
    return [answer for answer in answers if answer is not None]


def _start(weights: Weights, question: Any) -> Asked:
    """The generator of a question, which may come with arguments by functools.partial."""
    args, kwargs = (), {}
    if isinstance(question, partial):
        args, kwargs, question = question.args, question.keywords, question.func
    if not isinstance(question, Question):
        raise ArgumentError(
            "read() takes readings such as eyeline.entropy, partial(eyeline.top, k=8) or a "
            f"function under @eyeline.readings.reading, and got {question!r}."
        )
    return question.ask(weights, *args, **kwargs)


def _advance(
    generator: Asked,
    sent: Any,
    i: int,
    waiting: list[tuple[int, Any]],
    answers: list[Reading | None],
) -> None:
    """Send a generator its tensors; put what it asks next in ``waiting``, or its answer away."""
    try:
        waiting.append((i, generator.send(sent)))
    except StopIteration as done:
        if not isinstance(done.value, Reading):
            raise ArgumentError(
                f"A reading must return a Reading, and one returned {done.value!r}."
            ) from None
        answers[i] = done.value


def _fitted(weights: Weights, reduction: Any) -> Reduction:
    """The reduction in eyeline's one form, refused where the weights' view cannot answer it.

    Factors get eyeline's leading dimensions, a user's tiles the caller's.
    """
    if isinstance(reduction, WeightedSum):
        return replace(
            reduction,
            x=weights._body.factor(_factor(reduction.x, weights.shape[-1], "WeightedSum(x)")),
        )
    if isinstance(reduction, WeightedColumns):
        return replace(
            reduction,
            y=weights._body.factor(_factor(reduction.y, weights.shape[-2], "WeightedColumns(y)")),
        )
    if isinstance(reduction, RowTiles):
        return replace(reduction, lead=tuple(weights.shape[:-2]))
    if not isinstance(reduction, Reduction):
        raise ArgumentError(
            "A reading yields reductions such as RowTiles(f) or WeightedSum(x), "
            f"and yielded {reduction!r}."
        )
    if isinstance(reduction, MaxScore) and not weights._body.view.is_whole:
        raise ArgumentError(
            "Scores are of whole heads and rows: ask before slicing columns or averaging heads."
        )
    if isinstance(reduction, Diagonal) and weights._body.view.cols is not None:
        raise ArgumentError("A diagonal is of whole rows: ask before slicing columns.")
    return reduction


def _factor(x: Tensor, size: int, what: str) -> Tensor:
    if x.dim() < 2 or x.shape[-2] != size:
        raise ArgumentError(
            f"{what} needs [..., {size}, F] for these weights, and got {list(x.shape)}."
        )
    return x


def _unwrapped(result: tuple[Tensor, ...]) -> Any:
    return result[0] if len(result) == 1 else result


def _rows(weights: Weights) -> tuple[str, ...]:
    return weights.axes[:-1]


@reading
def entropy(weights: Weights) -> Asked:
    """How spread each row is: ``-Σ_j w log w`` in nats, ``[*lead, Tq]``.

    0 looks at one key, log n at n keys alike. A row that sees nothing has 0. With sinks the sum is
    over the keys alone and is not renormalised. Differentiable. Source: Shannon 1948.

    >>> import torch, eyeline
    >>> same = torch.zeros(3, 2)
    >>> eyeline.entropy(eyeline.weights(same, same, eyeline.causal())).values
    tensor([0.0000, 0.6931, 1.0986])
    """
    values = yield RowEntropy()
    return Reading(values, _rows(weights), "nats", "entropy")


@reading
def received(weights: Weights, mean: bool = False) -> Asked:
    """How much each key is looked at: the column sums ``Σ_i w`` ``[*lead, Tk]``.

    With ``mean=True`` averaged over the queries that may see the key (0 where none may): under a
    causal mask early keys are seen by more rows, and the sum alone favours them. Differentiable.
    Source: H2O, Zhang et al. 2023 (accumulated attention).

    >>> import torch, eyeline
    >>> weights = eyeline.weights(torch.zeros(4, 1), torch.zeros(2, 1), eyeline.causal(offset=0))
    >>> eyeline.received(weights).values, eyeline.received(weights, mean=True).values
    (tensor([2.5000, 1.5000]), tensor([0.6250, 0.5000]))
    """
    ones = torch.ones(weights.shape[-2], 1, device=weights.device, dtype=weights.problem.statistics)
    if mean:
        sums, seen = yield [WeightedColumns(ones), SeenBy()]
        sums = sums / seen.clamp(min=1)
    else:
        sums = yield WeightedColumns(ones)
    unit = "mean weight" if mean else "weight"
    return Reading(sums.squeeze(-1), (*weights.axes[:-2], "key"), unit, "received")


@reading
def top(weights: Weights, k: int = 8) -> Asked:
    """The k largest weights of each row, largest first, and their keys.

    ``values`` and ``indices`` are ``[*lead, Tq, k]``. Where fewer than k keys are visible the value
    is 0 and the index -1, also for k > Tk. Which of equal weights comes first is fixed but not
    promised (k = 1: the first). The values are differentiable, the choice held fixed.

    >>> import torch, eyeline
    >>> reading = eyeline.top(eyeline.weights(torch.eye(3), torch.eye(3), eyeline.causal()), k=2)
    >>> reading.indices[0], reading.values[2, 0]
    (tensor([ 0, -1]), tensor(0.4711))
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ArgumentError(f"top(weights, k) needs k to be a whole number from 1, and got {k!r}.")
    values, indices = yield TopKeys(k)
    return Reading(values, (*_rows(weights), "rank"), "weight", "top", indices)


@reading
def max_score(weights: Weights) -> Asked:
    """The largest score of each row and its key, ``values`` and ``indices`` ``[*lead, Tq]``.

    Scores are those before the softmax: scaled, capped, biased. What QK-clip watches while
    training. A row that sees nothing has -inf and index -1. Of equal scores the first key is named
    and has the whole gradient. Source: Kimi K2 technical report 2025 (MuonClip).

    >>> import torch, eyeline
    >>> from eyeline.readings import max_score
    >>> max_score(eyeline.weights(torch.tensor([[2.0]]), torch.tensor([[3.0], [5.0]]))).values
    tensor([10.])
    """
    values, indices = yield MaxScore()
    return Reading(values, _rows(weights), "score", "max_score", indices)


@reading
def distance(weights: Weights) -> Asked:
    """How far each row looks: ``Σ_j w |position(i) - j|`` in tokens, ``[*lead, Tq]``.

    position(i) is i + Tk - Tq. A row that sees nothing has 0. Differentiable.

    >>> import torch, eyeline
    >>> from eyeline.readings import distance
    >>> distance(eyeline.weights(torch.zeros(3, 1), torch.zeros(3, 1), eyeline.causal())).values
    tensor([0.0000, 0.5000, 1.0000])
    """
    if weights._body.view.cols is not None:
        raise ArgumentError("A distance is of whole rows: ask before slicing columns.")
    keys = torch.arange(weights.shape[-1], device=weights.device)

    def of(tile: Tile) -> Tensor:
        apart = (tile.positions[:, None] - keys).abs_().to(tile.weights.dtype)
        return (tile.weights * apart).sum(-1)

    values = yield RowTiles(of)
    return Reading(values, _rows(weights), "tokens", "distance")


@reading
def mass(weights: Weights, spans: Mapping[str, Any]) -> Asked:
    """The share of each row that falls on named sets of keys, ``[*lead, Tq, len(spans)]``.

    In the order of ``spans``. A span is ``(start, stop)``, a list of key indices or a bool tensor
    ``[Tk]``; ``None`` (as in ``{"sink": None}``) asks for the share of the sink, what the row does
    not spend on keys. Differentiable.

    >>> import torch, eyeline
    >>> from eyeline.readings import mass
    >>> weights = eyeline.weights(torch.zeros(1, 1), torch.zeros(5, 1))
    >>> mass(weights, {"first": (0, 1), "rest": (1, 5)}).values
    tensor([[0.2000, 0.8000]])
    """
    Tk, dtype = weights.shape[-1], weights.problem.statistics
    columns = [indicator(name, span, Tk, weights.device) for name, span in spans.items()]
    x = (
        torch.stack(columns, -1).to(dtype)
        if columns
        else torch.zeros(Tk, 0, dtype=dtype, device=weights.device)
    )
    values = yield WeightedSum(x)
    sink = [i for i, span in enumerate(spans.values()) if span is None]
    if sink:
        values = values.index_copy(
            -1, torch.tensor(sink, device=values.device), _sink_share(weights, len(sink))
        )
    return Reading(values, (*_rows(weights), "span"), "share of the row", "mass")


def _sink_share(weights: Weights, count: int) -> Tensor:
    """``exp(sink - lse)`` of each row, ``count`` times side by side; 0 without sinks."""
    body = weights._body
    shape = (*weights.shape[:-1], count)
    if body.problem.sinks is None:
        return torch.zeros(shape, dtype=body.problem.statistics, device=weights.device)
    if body.view.mean_heads:
        raise ArgumentError("The sink's share is of one head: ask before averaging heads.")
    sinks = body.problem.sinks.to(body.problem.statistics).expand(body.problem.N, body.problem.Hq)
    lse = weights.lse
    share = (sinks.reshape(*weights.shape[:-2], 1) - lse).exp()
    share = torch.where(lse == -torch.inf, 0.0, share)  # nothing seen, and no sink to speak of
    return share.unsqueeze(-1).expand(shape)


@reading
def pooled(
    weights: Weights,
    rows: int | Sequence[int],
    cols: int | Sequence[int],
    reduce: Literal["mean", "max"] = "mean",
    region: tuple[tuple[int, int], tuple[int, int]] | None = None,
) -> Asked:
    """A heat map: the mean (or the maximum) of the weights in each cell of a grid.

    ``values`` are ``[*lead, rows, cols]``. ``rows`` and ``cols`` are numbers of cells as equal as
    can be (capped at the region's size), or edges such as word boundaries ``[0, 1, 3, 6]``.
    ``region=((r0, r1), (c0, c1))`` is the rectangle that is looked at, all by default. Hidden
    weights count as 0, empty cells are 0. Differentiable; for "max" the first largest entry has the
    gradient.

    >>> import torch, eyeline
    >>> from eyeline.readings import pooled
    >>> pooled(eyeline.weights(torch.zeros(4, 1), torch.zeros(4, 1), eyeline.causal()), 2, 2).values
    tensor([[0.5000, 0.0000],
            [0.2917, 0.2083]])
    """
    if reduce not in ("mean", "max"):
        raise ArgumentError(f'pooled(reduce=...) is "mean" or "max", and got {reduce!r}.')
    Tq, Tk = weights.shape[-2:]
    (r0, r1), (c0, c1) = rectangle(region, Tq, Tk)
    if not (0 <= r0 <= r1 <= Tq and 0 <= c0 <= c1 <= Tk):
        raise ArgumentError(
            f"pooled: region {region} does not lie in weights {list(weights.shape)}."
        )
    row_edges = cell_edges(rows, r0, r1, "rows").to(weights.device)
    col_edges = cell_edges(cols, c0, c1, "cols").to(weights.device)
    made = yield Pool(row_edges, col_edges, reduce)
    values = made if reduce == "mean" else made[0]
    axes = (*weights.axes[:-2], "query cell", "key cell")
    return Reading(values, axes, f"{reduce} weight", "pooled")


@reading
def diagonal(weights: Weights, offset: int = 0) -> Asked:
    """The weight that each query gives the key ``offset`` after its position, ``[*lead, Tq]``.

    -1 is the previous token, 0 the token itself (position(i) is i + Tk - Tq). Where there is no
    such key the value is 0. Differentiable.

    >>> import torch, eyeline
    >>> from eyeline.readings import diagonal
    >>> diagonal(eyeline.weights(torch.zeros(3, 1), torch.zeros(3, 1), eyeline.causal()), -1).values
    tensor([0.0000, 0.5000, 0.3333])
    """
    if isinstance(offset, bool) or not hasattr(offset, "__index__") or abs(offset) > 2**62:
        raise ArgumentError(f"diagonal(weights, offset) needs a whole number, and got {offset!r}.")
    values = yield Diagonal(operator.index(offset))
    return Reading(values, _rows(weights), "weight", "diagonal")
