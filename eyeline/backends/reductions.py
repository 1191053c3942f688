"""What can be asked of the weights in one pass, without holding them: the reductions.

A reduction says what it makes of one strip (``of``, plain differentiable torch) and how strips
join. Its gradient needs no second formula: in the backward pass each strip is computed again and
``again`` is differentiated on it, with the positions that were chosen (a maximum, a top-k) held
fixed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from eyeline.backends.strips import (
    Strip,
    heads_matmul,
    heads_matmul_t,
    pick_heads,
    select_matmul,
    select_matmul_t,
)
from eyeline.errors import ArgumentError, ShapeError

Join = Literal["rows", "keys", "sum", "best", "total"]


@dataclass(frozen=True, eq=False)  # a compiler cannot build what it would have to hash
class View:
    """What of the weights is looked at: some columns, the mean over heads."""

    cols: slice | None = None
    mean_heads: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the weights as they are."""
        return self.cols is None and not self.mean_heads

    def width(self, Tk: int) -> int:
        """How many columns are shown of Tk."""
        return Tk if self.cols is None else len(range(*self.cols.indices(Tk)))

    def of(self, strip: Strip) -> Strip:
        """The strip as this view shows it. Differentiable in the strip's weights."""
        if self.is_whole:
            return strip
        weights, visible = strip.weights, strip.visible
        if visible is not None:
            visible = visible.expand(weights.shape)
        if self.mean_heads:
            weights = weights.mean(1, keepdim=True)
            visible = None if visible is None else visible.any(1, keepdim=True)
        strip = replace(strip, weights=weights, visible=visible, scores=None)
        if self.mean_heads:
            strip = replace(strip, h=slice(0, 1))
        if self.cols is not None:
            seen = visible if visible is not None else torch.ones_like(weights, dtype=torch.bool)
            wide = strip.full_width(seen.to(torch.uint8)) > 0
            weights = strip.full_width(weights)[..., self.cols]
            width = weights.shape[-1]
            visible = wide[..., self.cols]
            strip = replace(
                strip, weights=weights, visible=visible, cols=slice(0, width), width=width
            )
        return strip


@dataclass(frozen=True, eq=False)
class Reduction(ABC):
    """A question that one pass over the strips answers."""

    @property
    def join(self) -> Join:
        """How strips' answers make the whole.

        Along the rows, added at their keys, added by head, the best kept, or added altogether.
        """
        return "rows"

    @property
    def parts(self) -> int:
        """How many tensors a result has: the values, and what belongs to them (indices, mostly)."""
        return 1

    @property
    def whole(self) -> bool:
        """Whether a strip must hold every batch entry and head."""
        return False

    @property
    def reads_scores(self) -> bool:
        """Whether a strip must keep its scores beside its weights."""
        return False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The reduction's own tensors that carry a gradient."""
        return ()

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> Reduction:
        """The same question with other ``tensors``."""
        return self

    @abstractmethod
    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        """The strip's answer: values, and indices where there are any."""

    def again(self, strip: Strip, result: tuple[Tensor, ...]) -> Tensor:
        """The strip's values once more, differentiable, the choices in ``result`` held fixed."""
        return self.of(strip)[0]

    def better(self, kept: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Of two answers the better entries; only for ``join == "best"``."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class WeightedSum(Reduction):
    """``W @ x``: ``[N, H, Tq, F]`` for x ``[N|1, H', Tk, F]``, where H' divides the query heads."""

    x: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x,)

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> Reduction:
        return replace(self, x=tensors[0])

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        x = strip.pick_keys(pick_heads(strip, self.x)).to(strip.weights.dtype)
        if torch.is_grad_enabled():
            return (heads_matmul(strip.weights, x),)
        return (select_matmul(strip.weights, x, strip.visible),)


@dataclass(frozen=True, eq=False)
class WeightedColumns(Reduction):
    """``Wᵀ @ y``: ``[N, H, Tk, F]`` for y ``[N|1, H|1, Tq, F]``."""

    y: Tensor

    @property
    def join(self) -> Join:
        return "keys"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.y,)

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> Reduction:
        return replace(self, y=tensors[0])

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        y = strip.pick(self.y)[:, :, strip.rows].to(strip.weights.dtype)
        heads = strip.weights.shape[1]
        if torch.is_grad_enabled():
            return (heads_matmul_t(strip.weights, y, heads),)
        y = y.expand(*strip.weights.shape[:-1], y.shape[-1])
        return (select_matmul_t(strip.weights, y, strip.visible, heads),)


@dataclass(frozen=True, eq=False)
class SeenBy(Reduction):
    """How many queries may see each key: ``[N, H, Tk, 1]``; for a head mean, in any head."""

    @property
    def join(self) -> Join:
        """Added at the keys."""
        return "keys"

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        """How many of the strip's queries see each of its keys."""
        shape = strip.weights.shape
        if strip.visible is None:
            return (strip.weights.new_full((shape[0], shape[1], shape[3], 1), shape[2]),)
        seen = strip.visible.expand(shape).sum(2, dtype=strip.weights.dtype)
        return (seen.unsqueeze(-1),)


@dataclass(frozen=True, eq=False)
class RowEntropy(Reduction):
    """``-Σ_j w log w`` per row, in nats; 0 log 0 is 0."""

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        w = strip.weights
        smallest = torch.finfo(w.dtype).tiny  # 0 · log(smallest) is 0, with a finite gradient
        return (0.0 - torch.linalg.vecdot(w, w.clamp(min=smallest).log()),)


@dataclass(frozen=True, eq=False)
class RowState(Reduction):
    """m and l per row: the largest score, and the sum relative to it."""

    @property
    def parts(self) -> int:
        return 2

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        return strip.m, strip.l


@dataclass(frozen=True, eq=False)
class LogSumExp(Reduction):
    """``log Σ exp(score)`` per row, the sink included; -inf where the row sees nothing."""

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        return (strip.lse,)


@dataclass(frozen=True, eq=False)
class Entries(Reduction):
    """Chosen columns (all by default) of the weights or of the scores: ``[N, H, Tq, C]``."""

    cols: Tensor | None = None
    what: Literal["weights", "scores"] = "weights"

    @property
    def reads_scores(self) -> bool:
        return self.what == "scores"

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        source, absent = (
            (strip.weights, 0.0) if self.what == "weights" else (strip.scores, -torch.inf)
        )
        assert source is not None
        if self.cols is None:
            return (strip.full_width(source, absent),)
        column, held = strip.columns_of(self.cols)
        if source.shape[-1] == 0:
            return (source.new_full((*source.shape[:-1], len(self.cols)), absent),)
        return (source.index_select(-1, column).masked_fill(~held, absent),)


@dataclass(frozen=True, eq=False)
class Picked(Reduction):
    """One column of each row: ``[N, H, Tq]`` for the columns' indices [Tq]."""

    cols: Tensor

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        """The strip's weights there."""
        index = self.cols[strip.rows][:, None].expand(*strip.weights.shape[:2], -1, 1)
        return (_gather_keys(strip, strip.weights, index).squeeze(-1),)


@dataclass(frozen=True, eq=False)
class MaxScore(Reduction):
    """The largest score of each row and its key, the first of equals.

    -inf and -1 where the row sees nothing.
    """

    @property
    def parts(self) -> int:
        return 2

    @property
    def reads_scores(self) -> bool:
        return True

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        assert strip.scores is not None
        if strip.scores.shape[-1] == 0:
            rows = strip.scores.shape[:-1]
            return strip.scores.new_full(rows, -torch.inf), torch.full(
                rows, -1, device=strip.scores.device
            )
        value, column = strip.scores.max(-1)
        return value, strip.keys[column].masked_fill(value == -torch.inf, -1)

    def again(self, strip: Strip, result: tuple[Tensor, ...]) -> Tensor:
        assert strip.scores is not None
        value = _gather_keys(strip, strip.scores, result[1].unsqueeze(-1)).squeeze(-1)
        return torch.where(result[1] < 0, -torch.inf, value)


@dataclass(frozen=True, eq=False)
class TopKeys(Reduction):
    """The k largest weights of each row and their keys: ``[N, H, Tq, k]``.

    0 and -1 where fewer than k keys are visible.
    """

    k: int

    @property
    def parts(self) -> int:
        return 2

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        w = strip.weights.detach()
        if strip.visible is not None:
            w = w.masked_fill(~strip.visible, -1.0)
        held = min(self.k, w.shape[-1])
        if held == 1:  # unlike topk, max promises the first of equals
            value, column = w.max(-1, keepdim=True)
        else:
            value, column = w.topk(held, -1)
        keys = strip.keys[column].masked_fill(value < 0, -1)
        value = value.clamp(min=0)
        if held < self.k:
            value = torch.nn.functional.pad(value, (0, self.k - held))
            keys = torch.nn.functional.pad(keys, (0, self.k - held), value=-1)
        return value, keys

    def again(self, strip: Strip, result: tuple[Tensor, ...]) -> Tensor:
        return _gather_keys(strip, strip.weights, result[1])


@dataclass(frozen=True, eq=False)
class TopQueries(Reduction):
    """The k largest weights of each column and their queries: ``[N, H, Tk, k]``.

    0 and -1 where fewer queries may see the key.
    """

    k: int

    @property
    def parts(self) -> int:
        return 2

    @property
    def join(self) -> Join:
        return "best"

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        w = strip.weights.detach()
        if strip.visible is not None:
            w = w.masked_fill(~strip.visible, -1.0)
        w = strip.full_width(w, -1.0).mT
        held = min(self.k, w.shape[-1])
        value, row = w.max(-1, keepdim=True) if held == 1 else w.topk(held, -1)
        row = (row + strip.rows.start).masked_fill(value < 0, -1)
        pad = (0, self.k - held)
        return torch.nn.functional.pad(value, pad, value=-1.0), torch.nn.functional.pad(
            row, pad, value=-1
        )

    def better(self, kept: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        values, rows = torch.cat((kept[0], new[0]), -1), torch.cat((kept[1], new[1]), -1)
        # Stable, so that among equals the earlier query stays.
        order = values.sort(dim=-1, descending=True, stable=True).indices[..., : self.k]
        return values.gather(-1, order), rows.gather(-1, order)

    def again(self, strip: Strip, result: tuple[Tensor, ...]) -> Tensor:
        columns = strip.full_width(strip.weights).mT
        local = result[1] - strip.rows.start
        here = (local >= 0) & (local < columns.shape[-1]) & (result[1] >= 0)
        return torch.where(
            here, columns.gather(-1, local.clamp(0, max(columns.shape[-1] - 1, 0))), 0.0
        )


@dataclass(frozen=True, eq=False)
class Diagonal(Reduction):
    """The weight of the key that stands ``offset`` after each query: ``[N, H, Tq]``.

    0 where there is no such key.
    """

    offset: int

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        keys = strip.positions + self.offset
        inside = (keys >= 0) & (keys < strip.width)
        index = torch.where(inside, keys, -1)[:, None].expand(*strip.weights.shape[:2], -1, 1)
        return (_gather_keys(strip, strip.weights, index).squeeze(-1),)


@dataclass(frozen=True)
class Tile:
    """Rows of the weights as a user's reading sees them."""

    weights: Tensor  # [*lead, R, Tk], hidden entries 0
    rows: Tensor  # [R] which queries
    positions: Tensor  # [R] where they stand among the keys


@dataclass(frozen=True, eq=False)
class RowTiles(Reduction):
    """A user's own function of some full rows at a time, plain differentiable torch.

    ``f(tile)`` returns ``[*lead, R, ...]``, joined along the rows (``combine="cat"``), or a tensor
    of any fixed shape whose values are added over the tiles (``combine="sum"``). The gradient flows
    to the weights, not to other tensors that f may use.
    """

    f: Callable[[Tile], Tensor]
    combine: Literal["cat", "sum"] = "cat"
    lead: tuple[int, ...] | None = None  # the caller's leading shape, filled in by read()

    def __post_init__(self) -> None:
        if not callable(self.f) or self.combine not in ("cat", "sum"):
            raise ArgumentError(
                'RowTiles(f, combine) takes a function, and "cat" (along the rows) or "sum". Got '
                f"{self.f!r}, {self.combine!r}."
            )

    @property
    def join(self) -> Join:
        return "rows" if self.combine == "cat" else "total"

    @property
    def whole(self) -> bool:
        return True

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        lead = tuple(strip.weights.shape[:2]) if self.lead is None else self.lead
        wide = strip.full_width(strip.weights)
        rows = torch.arange(strip.rows.start, strip.rows.stop, device=wide.device)
        tile = Tile(wide.reshape(*lead, *wide.shape[-2:]), rows, strip.positions)
        before = None if tile.weights.is_inference() else tile.weights._version
        made: Any = self.f(tile)
        if before is not None and tile.weights._version != before:
            raise ArgumentError(
                "RowTiles(f) shares the tile with other readings, and f changed it in place. "
                "Work on tile.weights.clone()."
            )
        if not isinstance(made, Tensor):
            raise ShapeError(
                f"RowTiles(f) needs f to return a Tensor, and got {type(made).__name__}."
            )
        if self.combine == "sum":
            return (made,)
        if tuple(made.shape[: len(lead) + 1]) != (*lead, len(rows)):
            wanted = ", ".join(map(str, (*lead, len(rows))))
            raise ShapeError(
                f"RowTiles(f) needs f to return [*lead, R, ...], here [{wanted}, ...], and got "
                f'{list(made.shape)}. For a result that is added over the tiles use combine="sum".'
            )
        return (made.reshape(*strip.weights.shape[:2], *made.shape[len(lead) :]),)


def _gather_keys(strip: Strip, source: Tensor, keys: Tensor) -> Tensor:
    """``source [n, h, R, C]`` at key indices ``[n, h, R, k]``.

    0 for the index -1 and for keys that the strip does not hold.
    """
    column, held = strip.columns_of(keys)
    if source.shape[-1] == 0:
        return source.sum(-1, keepdim=True).expand(keys.shape)
    return torch.where(held & (keys >= 0), source.gather(-1, column), 0.0)
