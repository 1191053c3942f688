"""The map of a head as it is drawn: how many cells, which are dimmed, how dark each is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyeline.looking.data import Look


@dataclass(frozen=True)
class Grid:
    """A square map over words: `edges` [n + 1] word indices, `sizes` [n] tokens, `values` [n][n].

    `dim` marks the cells of special tokens (and of the first word of a causal model).

    >>> grid = Grid((0, 1, 2), (1, 1), ((0.75, 0.25), (0.0, 1.0)), (True, False))
    >>> grid.strongest
    1.0
    >>> [(i, j, round(shade, 2)) for i, j, shade, _ in grid.shades()]
    [(0, 0, 0.43), (0, 1, 0.5), (1, 0, 0.0), (1, 1, 1.0)]
    """

    edges: tuple[int, ...]
    sizes: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    dim: tuple[bool, ...]

    @classmethod
    def of(cls, look: Look) -> Grid:
        """The map of a look."""
        edges = look.map.edges
        ranges = zip(edges, edges[1:], strict=False)
        dim = tuple(all(look.special[first:last]) for first, last in ranges)
        return cls(edges, look.map.sizes, look.map.values, dim)

    def __len__(self) -> int:
        return len(self.dim)

    @property
    def whole(self) -> bool:
        """Whether every word has a cell of its own."""
        return self.edges[-1] == len(self)

    @property
    def strongest(self) -> float:
        """The largest weight outside the dimmed columns, which is drawn darkest."""
        return max(
            (w for row in self.values for w, dim in zip(row, self.dim, strict=True) if not dim),
            default=0.0,
        )

    def shades(self) -> Iterator[tuple[int, int, float, bool]]:
        """(row, column, shade, dimmed) of every cell; shades are 0 to 1 on a square-root scale.

        Dimmed columns are drawn at half strength, so that what carries meaning stands out.
        """
        most = self.strongest or 1.0
        for i, row in enumerate(self.values):
            for j, weight in enumerate(row):
                shade = math.sqrt(min(max(weight, 0.0) / most, 1.0))
                yield i, j, shade / 2 if self.dim[j] else shade, self.dim[j]

    def coarser(self) -> Grid:
        """Half as many cells: two neighbours become one, dimmed cells stay by themselves.

        Columns are added and rows averaged over their tokens, so rows still sum to 1.
        """
        groups, at = [], 0
        while at < len(self):
            pair = at + 1 < len(self) and not self.dim[at] and not self.dim[at + 1]
            groups.append(range(at, at + 2 if pair else at + 1))
            at += len(groups[-1])
        return Grid(
            edges=(*(self.edges[g[0]] for g in groups), self.edges[-1]),
            sizes=tuple(sum(self.sizes[i] for i in g) for g in groups),
            values=tuple(tuple(self._merged(rows, cols) for cols in groups) for rows in groups),
            dim=tuple(self.dim[g[0]] for g in groups),
        )

    def _merged(self, rows: Sequence[int], columns: Sequence[int]) -> float:
        total = sum(self.sizes[i] * sum(self.values[i][j] for j in columns) for i in rows)
        return total / sum(self.sizes[i] for i in rows)


def overview_shades(look: Look) -> list[list[float]]:
    """How dark each head is drawn, 0 to 1, by layers; of entropies the small ones are dark."""
    values = [value for row in look.overview for value in row]
    low, high = (min(values) if look.by == "entropy" else 0.0), max(values)
    span = (high - low) or 1.0
    scaled = [[(value - low) / span for value in row] for row in look.overview]
    return [[1 - s for s in row] for row in scaled] if look.by == "entropy" else scaled
