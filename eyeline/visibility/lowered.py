"""The lowered form of a mask: at most four parts, each for one size of problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eyeline.visibility import spans

Index = slice | Tensor | None

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Visible:
    """Who sees whom among `Tq` queries and `Tk` keys; made by `Mask.lower`.

    A conjunction: a key is visible to a query iff all parts that are there say so.

    * row intervals: row i sees the keys of a few `[start, stop)`; rows with one list share it;
    * a keep vector: one bool per key;
    * ids: visible iff the query's id equals the key's;
    * dense bits, for what nothing shorter can say.

    N is the product of the batch dimensions and H the heads; a part that is the same for all of
    them stores it once. All but dense bits take memory linear in Tq + Tk.

    >>> import torch, eyeline
    >>> eyeline.causal().lower((), 2, 3, torch.device("cpu")).tile()[0, 0].int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """

    Tq: int
    Tk: int
    starts: Tensor | None = None  # int64 [N|1, H|1, Tq|1, n], tidy as `spans` has it, n >= 1
    stops: Tensor | None = None
    keep: Tensor | None = None  # bool [N|1, H|1, Tk]
    q_ids: Tensor | None = None  # int64 [N|1, H|1, Tq]
    k_ids: Tensor | None = None  # int64 [N|1, H|1, Tk]
    dense: Tensor | None = None  # bool [N|1, H|1, Tq, Tk]
    device: torch.device = CPU

    def tile(self, rows: Index = None, cols: Index = None) -> Tensor | None:
        """Visibility of a block: bool, broadcastable to [N, H, R, C]; None where all is visible.

        `rows` and `cols` are slices or 1-D index tensors. None is returned only where it is
        certain; a tile of nothing but True may come back too.
        """
        shown: Tensor | None = None
        if self.starts is not None and not self._intervals_cover(rows, cols):
            shown = self.inside(rows, cols)
        if self.keep is not None and not self._keep_covers(cols):
            shown = meet(shown, _pick(self.keep, cols, 2).unsqueeze(2))
        if self.q_ids is not None and self.k_ids is not None:
            queries, keys = _pick(self.q_ids, rows, 2), _pick(self.k_ids, cols, 2)
            shown = meet(shown, queries.unsqueeze(3) == keys.unsqueeze(2))
        if self.dense is not None:
            shown = meet(shown, _pick(_pick(self.dense, rows, 2), cols, 3))
        return shown

    def key_ranges(self, rows: slice, block: int) -> list[tuple[int, int]]:
        """The key ranges, in whole blocks, outside of which no row of `rows` sees anything.

        Merged and sorted; [] where nothing is visible. May name too much, never too little.
        """
        first, last, _ = rows.indices(self.Tq)
        if last <= first or self.Tk == 0:
            return []
        low, high = 0, self.Tk
        if self.starts is not None:
            bounds = _strip(self._row_bounds, first, last)
            low, high = int(bounds[0].min()), int(bounds[1].max())
        if high <= low:
            return []
        low, high = low // block, -(-high // block)
        alive = self._live_blocks(slice(first, last), block)
        if alive is None:
            return [(low * block, min(high * block, self.Tk))]
        return _ranges(alive[low:high].tolist(), low, block, self.Tk)

    def rows(self, index: slice | Tensor) -> Visible:
        """What some queries see: a slice, or a 1-D index tensor (repeats allowed)."""
        if isinstance(index, slice):
            count = len(range(*index.indices(self.Tq)))
        else:
            count = int(index.shape[0])
        by_row = {"starts": self.starts, "stops": self.stops, "dense": self.dense}
        picked: dict[str, Any] = {
            name: _pick(part, index, 2) for name, part in by_row.items() if part is not None
        }
        if self.q_ids is not None:
            picked["q_ids"] = _take(self.q_ids, index, 2)
        return replace(self, Tq=count, **picked)

    def select(self, n: slice | Tensor, h: slice | Tensor) -> Visible:
        """Some batch entries and heads.

        Two index tensors [M] pick the pairs (n[m], h[m]), which become the batch: [M|1, 1, ...].
        All else is `choose(n, h)`.
        """
        if isinstance(n, Tensor) and isinstance(h, Tensor):
            pairs = n, h
            return self._changed(lambda part: _pairs(part, *pairs))
        return self.choose(n, h)

    def choose(self, n: slice | Tensor, h: slice | Tensor) -> Visible:
        """All chosen batch entries, and of each all chosen heads: [len(n)|1, len(h)|1, ...].

        `n` and `h` are slices or 1-D index tensors, independent of each other; repeats allowed.

        >>> import torch
        >>> from eyeline.masks import only
        >>> keep = torch.arange(6).view(2, 3, 1) % 2 == 0  # [B, H, Tk]
        >>> visible = only(keep).lower((2, 3), 1, 1, torch.device("cpu"))
        >>> visible.choose(torch.tensor([1, 0, 1]), torch.tensor([0, 1])).keep[..., 0].int()
        tensor([[0, 1],
                [1, 0],
                [0, 1]], dtype=torch.int32)
        """
        return self._changed(lambda part: _pick(_pick(part, n, 0), h, 1))

    @property
    def nbytes(self) -> int:
        """Bytes that the parts take."""
        return sum(part.numel() * part.element_size() for part in self.parts().values())

    # The parts, for the algebra.

    def parts(self) -> dict[str, Tensor]:
        """The parts that are there, by name."""
        names = ("starts", "stops", "keep", "q_ids", "k_ids", "dense")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def kinds(self) -> list[dict[str, Tensor]]:
        """The parts that are there, those that belong together in one dict."""
        parts = self.parts()
        groups = (("starts", "stops"), ("keep",), ("q_ids", "k_ids"), ("dense",))
        return [{name: parts[name] for name in group} for group in groups if group[0] in parts]

    def bare(self, **parts: Tensor) -> Visible:
        """A form of this size with these parts alone."""
        return Visible(self.Tq, self.Tk, device=self.device, **parts)

    def nowhere(self) -> Visible:
        """A form of this size that shows nothing."""
        empty = torch.full((1, 1, 1, 1), self.Tk, dtype=torch.int64, device=self.device)
        return self.bare(starts=empty, stops=empty)

    def lead(self) -> tuple[int, int]:
        """[N|1, H|1] of all parts together."""
        return spans.shared_lead(*self.parts().values())

    def inside(self, rows: Index = None, cols: Index = None) -> Tensor:
        """Whether the intervals alone let the keys be seen: bool [N|1, H|1, R|1, C]."""
        assert self.starts is not None
        assert self.stops is not None
        starts, stops = _pick(self.starts, rows, 2), _pick(self.stops, rows, 2)
        if isinstance(cols, Tensor):
            keys = cols
        else:
            keys = torch.arange(*(cols or slice(None)).indices(self.Tk), device=starts.device)
        inside = (starts[..., :1] <= keys) & (keys < stops[..., :1])
        for n in range(1, starts.shape[-1]):
            inside |= (starts[..., n, None] <= keys) & (keys < stops[..., n, None])
        return inside

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Visible:
        changed: dict[str, Any] = {name: change(part) for name, part in self.parts().items()}
        return replace(self, **changed)

    # Tiles that are all visible.

    @cached_property
    def _row_bounds(self) -> Tensor:
        """int64 [4, Tq|1] on the CPU, over all n and h.

        The first visible key and one past the last (what to visit); the largest start and the
        smallest stop (what all of them see, where each row has one interval).
        """
        assert self.starts is not None
        assert self.stops is not None
        starts, stops = self.starts, self.stops
        if starts.numel() == 0:
            return torch.tensor([[self.Tk], [0], [0], [self.Tk]])
        last = torch.where(starts < stops, stops, 0)
        over = (0, 1, 3)
        bounds = [starts.amin(over), last.amax(over), starts.amax(over), stops.amin(over)]
        return torch.stack(bounds).cpu()

    def _intervals_cover(self, rows: Index, cols: Index) -> bool:
        assert self.starts is not None
        if isinstance(rows, Tensor) or isinstance(cols, Tensor) or self.starts.shape[-1] > 1:
            return False
        first, last, _ = (rows or slice(None)).indices(self.Tq)
        low, high, _ = (cols or slice(None)).indices(self.Tk)
        if last <= first:
            return True
        bounds = _strip(self._row_bounds, first, last)
        return int(bounds[2].max()) <= low and int(bounds[3].min()) >= high

    @cached_property
    def _hidden_before(self) -> Tensor:
        """int64 [Tk + 1] on the CPU: how many of the first j keys `keep` hides for some n, h."""
        assert self.keep is not None
        hidden = (~self.keep).flatten(0, 1).any(0).cpu()
        return torch.nn.functional.pad(hidden.long().cumsum(0), (1, 0))

    def _keep_covers(self, cols: Index) -> bool:
        if isinstance(cols, Tensor):
            return False
        low, high, _ = (cols or slice(None)).indices(self.Tk)
        hidden = self._hidden_before
        return high <= low or bool(hidden[high] == hidden[low])

    # Blocks of keys in which a row may see something.

    def _live_blocks(self, rows: slice, block: int) -> Tensor | None:
        """bool [number of key blocks]; None where the rows' bounds say all there is to say."""
        alive: Tensor | None = None
        if self.starts is not None and self.starts.shape[-1] > 1:
            alive = self._touched(rows, block)
        if self.keep is not None:
            alive = meet(alive, self._kept_blocks(block))
        if self.q_ids is not None:
            alive = meet(alive, self._met_blocks(rows, block))
        if self.dense is not None:
            seen = _pick(self.dense, rows, 2).flatten(0, 2).any(0)
            alive = meet(alive, _blocks(seen, block).any(-1))
        return alive

    def _touched(self, rows: slice, block: int) -> Tensor:
        """Blocks that hold a part of some interval."""
        assert self.starts is not None
        assert self.stops is not None
        starts, stops = _pick(self.starts, rows, 2).flatten(), _pick(self.stops, rows, 2).flatten()
        change = torch.zeros(-(-self.Tk // block) + 1, dtype=torch.int64, device=starts.device)
        filled = (starts < stops).long()
        change.index_add_(0, starts.div(block, rounding_mode="floor"), filled)
        change.index_add_(0, (stops + (block - 1)).div(block, rounding_mode="floor"), -filled)
        return change.cumsum(0)[:-1] > 0

    @cached_property
    def _by_block(self) -> dict[tuple[str, int], tuple[Tensor, ...]]:
        """What was found per block size, kept for the next strip."""
        return {}

    def _kept_blocks(self, block: int) -> Tensor:
        assert self.keep is not None
        key = ("keep", block)
        if key not in self._by_block:
            kept = self.keep.flatten(0, 1).any(0)
            self._by_block[key] = (_blocks(kept, block).any(-1),)
        return self._by_block[key][0]

    def _met_blocks(self, rows: slice, block: int) -> Tensor:
        """Blocks whose range of ids meets the rows' range of ids."""
        assert self.q_ids is not None
        assert self.k_ids is not None
        key = ("ids", block)
        if key not in self._by_block:
            short = -self.Tk % block
            last = self.k_ids[..., -1:].expand(*self.k_ids.shape[:2], short)
            keys = torch.cat([self.k_ids, last], -1).view(
                *last.shape[:2], -(-self.Tk // block), block
            )
            self._by_block[key] = (keys.amin(-1), keys.amax(-1))
        smallest, largest = self._by_block[key]
        queries = self.q_ids[..., rows]
        meets = (smallest <= queries.amax(-1, True)) & (largest >= queries.amin(-1, True))
        return meets.flatten(0, 1).any(0)

    # Counting.


def from_intervals(starts: Tensor, stops: Tensor, Tq: int, Tk: int) -> Visible:
    """Any intervals, int64 [N|1, H|1, Tq|1, n]: overlapping, unsorted, out of range or empty."""
    if starts.shape[-1] == 0:
        return Visible(Tq, Tk, device=starts.device).nowhere()
    starts, stops = spans.tidy(starts.clamp(0, Tk), stops.clamp(0, Tk), Tk)
    if starts.shape[-1] != 1:
        starts, stops = spans.sweep(starts, stops, Tk, depth=1)
    return Visible(Tq, Tk, starts, stops, device=starts.device)


def from_bits(bits: Tensor, Tq: int, Tk: int) -> Visible:
    """Bits [N|1, H|1, Tq|1, Tk|1], in the smallest form that says the same."""
    if bits.shape[3] == 1:
        stops = bits.long() * Tk
        return from_intervals(torch.zeros_like(stops), stops, Tq, Tk)
    if bits.shape[2] == 1:
        return Visible(Tq, Tk, keep=bits[:, :, 0], device=bits.device)
    return Visible(Tq, Tk, dense=bits, device=bits.device)


def from_ids(q_ids: Tensor, k_ids: Tensor) -> Visible:
    """Same id sees same id: intervals where each id is one run of keys, else the ids.

    q_ids int64 [N|1, H|1, Tq], k_ids int64 [N|1, H|1, Tk].
    """
    Tq, Tk = q_ids.shape[-1], k_ids.shape[-1]
    if Tk == 0:
        return Visible(Tq, Tk, device=k_ids.device)
    ordered, order = k_ids.sort(dim=-1, stable=True)
    same = ordered[..., 1:] == ordered[..., :-1]
    if bool((same & (order.diff(dim=-1) != 1)).any()):
        return Visible(Tq, Tk, q_ids=q_ids, k_ids=k_ids, device=k_ids.device)
    lead = spans.shared_lead(q_ids, k_ids)
    queries = q_ids.expand(*lead, -1).contiguous()
    ordered, order = (part.expand(*lead, -1).contiguous() for part in (ordered, order))
    before, upto = torch.searchsorted(ordered, queries), spans.up_to(ordered, queries)
    starts = order.gather(-1, before.clamp(max=Tk - 1))
    starts, stops = spans.tidy(starts, starts + (upto - before), Tk)
    return Visible(Tq, Tk, starts.unsqueeze(3), stops.unsqueeze(3), device=k_ids.device)


def meet(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """Both of two conditions; None is no condition."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def _pick(part: Tensor, index: Index, dim: int) -> Tensor:
    """Index a dimension that may be 1 because all its entries are alike."""
    return part if index is None or part.shape[dim] == 1 else _take(part, index, dim)


def _take(part: Tensor, index: slice | Tensor, dim: int) -> Tensor:
    if isinstance(index, Tensor):
        return part.index_select(dim, index)
    return part[(slice(None),) * dim + (index,)]


def _pairs(part: Tensor, n: Tensor, h: Tensor) -> Tensor:
    """[M|1, 1, ...]: the entries at the pairs (n, h)."""
    if part.shape[0] == 1 and part.shape[1] == 1:
        return part
    batch = n if part.shape[0] > 1 else torch.zeros_like(n)
    return part[batch, h if part.shape[1] > 1 else torch.zeros_like(h)].unsqueeze(1)


def _strip(bounds: Tensor, first: int, last: int) -> Tensor:
    return bounds if bounds.shape[1] == 1 else bounds[:, first:last]


def _blocks(flags: Tensor, block: int) -> Tensor:
    """bool [Tk] as [number of blocks, block], the last one filled up with False."""
    return torch.nn.functional.pad(flags, (0, -flags.shape[0] % block)).view(-1, block)


def _ranges(alive: list[bool], first: int, block: int, Tk: int) -> list[tuple[int, int]]:
    """Runs of live blocks as key ranges."""
    ranges: list[tuple[int, int]] = []
    for number, live in enumerate(alive, first):
        start, stop = number * block, min((number + 1) * block, Tk)
        if live and ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        elif live:
            ranges.append((start, stop))
    return ranges
