"""Heat maps: the mean or the maximum of each cell of a grid over the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from eyeline.backends.reductions import Join, Reduction
from eyeline.backends.strips import Strip


@dataclass(frozen=True, eq=False)
class Pool(Reduction):
    """The mean or the maximum of every cell of a grid, ``[N, H, rows, cols]``.

    The cells lie between edges along the queries and the keys.
    """

    row_edges: Tensor
    col_edges: Tensor
    reduce: Literal["mean", "max"] = "mean"

    @property
    def parts(self) -> int:
        return 1 if self.reduce == "mean" else 2

    @property
    def join(self) -> Join:
        return "sum" if self.reduce == "mean" else "best"

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        rows, row_cell = self._rows(strip)
        w, keys, key_cell = self._keys(strip, strip.weights[:, :, rows])
        if self.reduce == "mean":
            return (self._mean(w, row_cell, key_cell),)
        first_row = strip.rows.start + (rows.start or 0)
        return self._max(w.detach(), first_row, keys, row_cell, key_cell, strip.width)

    def _rows(self, strip: Strip) -> tuple[slice, Tensor]:
        """The strip's rows that lie in the grid, and the grid row of each."""
        first, last = int(self.row_edges[0]), int(self.row_edges[-1])
        start, stop = max(strip.rows.start, first), min(strip.rows.stop, last)
        stop = max(stop, start)
        i = torch.arange(start, stop, device=strip.weights.device)
        cell = torch.bucketize(i, self.row_edges, right=True) - 1
        return slice(start - strip.rows.start, stop - strip.rows.start), cell

    def _keys(self, strip: Strip, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The columns of ``w`` that lie in the grid, their keys, and the grid column of each."""
        keys = strip.keys
        inside = (keys >= self.col_edges[0]) & (keys < self.col_edges[-1])
        if not bool(inside.all()):
            w, keys = w[..., inside], keys[inside]
        return w, keys, torch.bucketize(keys, self.col_edges, right=True) - 1

    def _mean(self, w: Tensor, row_cell: Tensor, key_cell: Tensor) -> Tensor:
        rows, cols = len(self.row_edges) - 1, len(self.col_edges) - 1
        few = 256  # columns up to which a product with the indicator beats scattered adds
        if cols <= few:
            indicator = w.new_zeros(w.shape[-1], cols).scatter_(1, key_cell[:, None], 1.0)
            cells = w @ indicator
        else:
            cells = w.new_zeros((*w.shape[:-1], cols)).index_add(-1, key_cell, w)
        total = w.new_zeros((*w.shape[:2], rows, cols)).index_add(2, row_cell, cells)
        area = self.row_edges.diff()[:, None] * self.col_edges.diff()[None, :]
        return total / area.clamp(min=1)

    def _max(
        self,
        w: Tensor,
        first_row: int,
        keys: Tensor,
        row_cell: Tensor,
        key_cell: Tensor,
        width: int,
    ) -> tuple[Tensor, Tensor]:
        """The largest weight of each cell, and its place: the first of equals, -1 where none is."""
        value = self._cells(w, row_cell, key_cell, -1.0, "amax")
        rows = first_row + torch.arange(len(row_cell), device=w.device)
        places = rows[:, None] * width + keys
        nowhere = torch.iinfo(torch.int64).max
        largest = (w == value[:, :, row_cell][..., key_cell]) | w.isnan()
        place = torch.where(largest, places, nowhere)
        place = self._cells(place, row_cell, key_cell, nowhere, "amin")
        return value, place.masked_fill(place == nowhere, -1)

    def _cells(
        self, t: Tensor, row_cell: Tensor, key_cell: Tensor, start: float, how: str
    ) -> Tensor:
        """``t [N, H, R, C]`` reduced to the grid's cells, over the keys first."""
        rows, cols = len(self.row_edges) - 1, len(self.col_edges) - 1
        tall = t.new_full((*t.shape[:3], cols), start)
        tall.scatter_reduce_(-1, key_cell.expand(t.shape), t, how)
        made = t.new_full((*t.shape[:2], rows, cols), start)
        return made.scatter_reduce_(2, row_cell[:, None].expand(tall.shape), tall, how)

    def better(self, kept: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        wins = (new[0] > kept[0]) | new[0].isnan()
        return torch.where(wins, new[0], kept[0]), torch.where(wins, new[1], kept[1])

    def again(self, strip: Strip, result: tuple[Tensor, ...]) -> Tensor:
        if self.reduce == "mean":
            return self.of(strip)[0]
        place = result[1]
        row, key = place // max(strip.width, 1) - strip.rows.start, place % max(strip.width, 1)
        column, held = strip.columns_of(key)
        w = strip.weights
        here = held & (place >= 0) & (row >= 0) & (row < w.shape[2])
        if w.shape[2] == 0 or w.shape[3] == 0:
            return w.new_zeros(place.shape) + w.sum()
        flat = row.clamp(0, w.shape[2] - 1) * w.shape[3] + column
        chosen = w.flatten(2).gather(-1, flat.flatten(2)).view(place.shape)
        return torch.where(here, chosen, 0.0)
