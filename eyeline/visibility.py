"""Who may be seen, lowered to tensors of one size: what a mask is once Tq and Tk are known.

A `Visible` is a conjunction of at most four parts. A key is visible to a query iff all parts say so:

* row intervals: row i sees the keys of a few `[start, stop)`; rows that share one list store it once;
* a keep vector: one bool per key;
* a pair of id vectors: visible iff the query's id equals the key's;
* dense bits, in their smallest broadcast shape.

All but the last take memory linear in the sequence length. Everything here has the canonical
leading dimensions `[N|1, H|1]`: N is the product of the batch dimensions, H the heads, and a part
that is the same for all of them stores it once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from eyeline.errors import MaskError

Index = slice | Tensor | None

# An interval list may hold this many entries per query and key before bits are the better form.
ENTRIES_PER_TOKEN = 8
DENSE_LIMIT = 64 * 2**20  # bytes of bool; `eyeline.dense_limit` takes its place once it exists
COUNT_STRIP = 2**22  # cells counted at once where only dense bits can tell


@dataclass(frozen=True, eq=False)
class Visible:
    """Who sees whom among `Tq` queries and `Tk` keys; made by `Mask.lower`.

    starts, stops  int64 [N|1, H|1, Tq|1, n]  sorted, disjoint, not touching; empty ones last, (Tk, Tk)
    keep           bool  [N|1, H|1, Tk]
    q_ids, k_ids   int64 [N|1, H|1, Tq] and [N|1, H|1, Tk]
    dense          bool  [N|1, H|1, Tq, Tk]

    >>> import torch
    >>> from eyeline.masks import causal
    >>> causal().lower((), 2, 3, torch.device("cpu")).tile()[0, 0].int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """

    Tq: int
    Tk: int
    starts: Tensor | None = None
    stops: Tensor | None = None
    keep: Tensor | None = None
    q_ids: Tensor | None = None
    k_ids: Tensor | None = None
    dense: Tensor | None = None
    device: torch.device = torch.device("cpu")

    # ---- what a kernel asks ------------------------------------------------------------------

    def tile(self, rows: Index = None, cols: Index = None) -> Tensor | None:
        """Visibility of a block: bool, broadcastable to [N, H, R, C]; None where all is visible.

        `rows` and `cols` are slices or 1-D index tensors. None is only returned where it is
        certain; a tile of nothing but True may come back too.
        """
        shown: Tensor | None = None
        if self.starts is not None and not self._intervals_cover(rows, cols):
            shown = _both(shown, self._inside(rows, cols))
        if self.keep is not None and not self._keep_covers(cols):
            shown = _both(shown, _pick(self.keep, cols, 2).unsqueeze(2))
        if self.q_ids is not None and self.k_ids is not None:
            queries, keys = _pick(self.q_ids, rows, 2), _pick(self.k_ids, cols, 2)
            shown = _both(shown, queries.unsqueeze(3) == keys.unsqueeze(2))
        if self.dense is not None:
            shown = _both(shown, _pick(_pick(self.dense, rows, 2), cols, 3))
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
        return _runs(alive[low:high].tolist(), low, block, self.Tk)

    def visible_queries(self) -> Tensor:
        """How many queries may see each key: int64 [N|1, H|1, Tk].

        O(Tq + Tk) memory for all parts but dense bits, which are counted strip by strip.
        """
        if self.dense is not None:
            return self._counted_by_strips()
        if self.q_ids is not None and self.k_ids is not None:
            counts = self._counted_by_id(self.q_ids, self.k_ids)
        elif self.starts is not None and self.stops is not None:
            counts = _depth(self.starts, self.stops, self.Tq, self.Tk)
        else:
            counts = torch.full((1, 1, self.Tk), self.Tq, dtype=torch.int64, device=self.device)
        return counts if self.keep is None else counts * self.keep

    @property
    def nbytes(self) -> int:
        """Bytes that the parts take."""
        return sum(part.numel() * part.element_size() for part in self._parts().values())

    # ---- parts of it -------------------------------------------------------------------------

    def rows(self, index: slice | Tensor) -> Visible:
        """The same keys as seen by some queries: a slice, or a 1-D index tensor (repeats allowed)."""
        if isinstance(index, slice):
            count = len(range(*index.indices(self.Tq)))
        else:
            count = int(index.shape[0])
        by_row = {"starts": self.starts, "stops": self.stops, "dense": self.dense}
        picked = {name: _pick(part, index, 2) for name, part in by_row.items() if part is not None}
        if self.q_ids is not None:
            picked["q_ids"] = _take(self.q_ids, index, 2)
        return replace(self, Tq=count, **picked)

    def select(self, n: slice | Tensor, h: slice | Tensor) -> Visible:
        """Some batch entries and heads.

        Two slices keep both dimensions. Two index tensors [M] pick the pairs (n[m], h[m]), which
        become the batch: [M|1, 1, ...].
        """
        if isinstance(n, Tensor) and isinstance(h, Tensor):
            pairs = n, h
            return self._changed(lambda part: _pairs(part, *pairs))
        return self._changed(lambda part: _pick(_pick(part, n, 0), h, 1))

    # ---- algebra -----------------------------------------------------------------------------

    def __and__(self, other: Visible) -> Visible:
        starts, stops, keep = self._met_intervals(other)
        q_ids, k_ids = _met_ids(self, other)
        if self.dense is not None and other.dense is not None:
            _afford(self, other)
        return Visible(
            self.Tq,
            self.Tk,
            starts,
            stops,
            _both(_both(self.keep, other.keep), keep),
            q_ids,
            k_ids,
            _both(self.dense, other.dense),
            self.device,
        )

    def __or__(self, other: Visible) -> Visible:
        common, mine, theirs = _factored(self, other)
        if not mine._parts() or not theirs._parts():
            return common
        return common & mine._joined(theirs)

    def __invert__(self) -> Visible:
        hidden = [~_alone for _alone in self._single_parts()] if len(self._kinds()) > 1 else []
        if hidden:
            joined = hidden[0]
            for part in hidden[1:]:
                joined = joined | part
            return joined
        if self.starts is not None and self.stops is not None:
            return self._complement(self.starts, self.stops)
        if self.keep is not None:
            return self._bare(keep=~self.keep)
        if self._parts():
            bits = self._bits()
            return from_bits(~bits, self.Tq, self.Tk)
        return nothing(self.Tq, self.Tk, self.device)

    # ---- how ---------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Tensor]:
        names = ("starts", "stops", "keep", "q_ids", "k_ids", "dense")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def _kinds(self) -> list[dict[str, Tensor]]:
        """The parts, those that belong together in one dict."""
        parts = self._parts()
        groups = (("starts", "stops"), ("keep",), ("q_ids", "k_ids"), ("dense",))
        return [{name: parts[name] for name in group} for group in groups if group[0] in parts]

    def _single_parts(self) -> list[Visible]:
        return [self._bare(**kind) for kind in self._kinds()]

    def _bare(self, **parts: Tensor) -> Visible:
        """A form of this size with these parts alone."""
        return Visible(self.Tq, self.Tk, device=self.device, **parts)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Visible:
        return replace(self, **{name: change(part) for name, part in self._parts().items()})

    def _lead(self) -> tuple[int, int]:
        shape = torch.broadcast_shapes(*(part.shape[:2] for part in self._parts().values()), (1, 1))
        return shape[0], shape[1]

    @property
    def _budget(self) -> int:
        return ENTRIES_PER_TOKEN * (self.Tq + self.Tk)

    # ---- tiles

    def _inside(self, rows: Index, cols: Index) -> Tensor:
        """[N|1, H|1, R|1, C]: whether column j lies in one of the row's intervals."""
        assert self.starts is not None and self.stops is not None
        starts, stops = _pick(self.starts, rows, 2), _pick(self.stops, rows, 2)
        if isinstance(cols, Tensor):
            keys = cols
        else:
            keys = torch.arange(*(cols or slice(None)).indices(self.Tk), device=starts.device)
        inside = (starts[..., :1] <= keys) & (keys < stops[..., :1])
        for n in range(1, starts.shape[-1]):
            inside |= (starts[..., n, None] <= keys) & (keys < stops[..., n, None])
        return inside

    @cached_property
    def _row_bounds(self) -> Tensor:
        """int64 [4, Tq|1] on the CPU, over all n and h.

        The first visible key and one past the last (what to visit); the largest start and the
        smallest stop (what all of them see, where each row has one interval).
        """
        assert self.starts is not None and self.stops is not None
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
        """int64 [Tk + 1] on the CPU: how many of the first j keys some n, h hides by `keep`."""
        assert self.keep is not None
        hidden = (~self.keep).any(0).any(0).cpu()
        return torch.nn.functional.pad(hidden.long().cumsum(0), (1, 0))

    def _keep_covers(self, cols: Index) -> bool:
        if isinstance(cols, Tensor):
            return False
        low, high, _ = (cols or slice(None)).indices(self.Tk)
        hidden = self._hidden_before
        return high <= low or bool(hidden[high] == hidden[low])

    # ---- live blocks of keys

    def _live_blocks(self, rows: slice, block: int) -> Tensor | None:
        """bool [number of key blocks]: whether a row may see a key in it. None: nothing known."""
        alive: Tensor | None = None
        if self.starts is not None and self.starts.shape[-1] > 1:
            alive = _both(alive, self._touched(rows, block))
        if self.keep is not None:
            alive = _both(alive, self._kept_blocks(block))
        if self.q_ids is not None:
            alive = _both(alive, self._met_blocks(rows, block))
        if self.dense is not None:
            seen = _pick(self.dense, rows, 2).flatten(0, 2).any(0)
            alive = _both(alive, _blocks(seen.expand(self.Tk), block).any(-1))
        return alive

    def _touched(self, rows: slice, block: int) -> Tensor:
        assert self.starts is not None and self.stops is not None
        starts, stops = _pick(self.starts, rows, 2).flatten(), _pick(self.stops, rows, 2).flatten()
        count = -(-self.Tk // block)
        change = torch.zeros(count + 1, dtype=torch.int64, device=starts.device)
        filled = (starts < stops).long()
        change.index_add_(0, starts.div(block, rounding_mode="floor"), filled)
        change.index_add_(0, (stops + (block - 1)).div(block, rounding_mode="floor"), -filled)
        return change.cumsum(0)[:-1] > 0

    @cached_property
    def _by_block(self) -> dict[tuple[str, int], tuple[Tensor, ...]]:
        """What was found per block size; filled as asked."""
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
        assert self.q_ids is not None and self.k_ids is not None
        key = ("ids", block)
        if key not in self._by_block:
            count = -(-self.Tk // block)
            short = count * block - self.Tk
            last = self.k_ids[..., -1:].expand(*self.k_ids.shape[:2], short)
            keys = torch.cat([self.k_ids, last], -1).unflatten(-1, (count, block))
            self._by_block[key] = (keys.amin(-1), keys.amax(-1))
        smallest, largest = self._by_block[key]
        queries = self.q_ids[..., rows]
        meets = (smallest <= queries.amax(-1, True)) & (largest >= queries.amin(-1, True))
        return meets.flatten(0, 1).any(0)

    # ---- counting

    def _counted_by_id(self, q_ids: Tensor, k_ids: Tensor) -> Tensor:
        """Queries per key where ids (and intervals, if any) must agree.

        Every interval opens at (id, start) and closes at (id, stop). In that order, what opened
        minus what closed up to (id, j) counts the queries of that id that see j: intervals of
        smaller ids have both their ends before it.
        """
        starts = self.starts if self.starts is not None else k_ids.new_zeros(1, 1, 1, 1)
        stops = self.stops if self.stops is not None else starts + self.Tk
        lead = torch.broadcast_shapes(q_ids.shape[:2], k_ids.shape[:2], starts.shape[:2])
        ids = torch.cat([q_ids.expand(*lead, -1), k_ids.expand(*lead, -1)], -1)
        rank = torch.unique(ids, return_inverse=True)[1] * (self.Tk + 1)
        queries, keys = rank[..., : self.Tq, None], rank[..., self.Tq :]
        opened = (queries + starts).flatten(2).sort(-1).values
        closed = (queries + stops).flatten(2).sort(-1).values
        at = (keys + torch.arange(self.Tk, device=keys.device)).contiguous()
        return _up_to(opened, at) - _up_to(closed, at)

    def _counted_by_strips(self) -> Tensor:
        step = max(1, COUNT_STRIP // max(1, self.Tk * self._lead()[0] * self._lead()[1]))
        counts = torch.zeros(*self._lead(), self.Tk, dtype=torch.int64, device=self.device)
        for first in range(0, self.Tq, step):
            rows = slice(first, min(first + step, self.Tq))
            shown = self.tile(rows)
            if shown is None:
                counts += rows.stop - rows.start
            else:
                counts += shown.expand(*shown.shape[:2], rows.stop - rows.start, self.Tk).sum(2)
        return counts

    # ---- algebra

    def _met_intervals(self, other: Visible) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Intersection of the intervals: starts, stops, and what is better kept per key."""
        if self.starts is None or self.stops is None:
            return other.starts, other.stops, None
        if other.starts is None or other.stops is None:
            return self.starts, self.stops, None
        count = self.starts.shape[-1] + other.starts.shape[-1] - 1
        if max(self.starts.shape[2], other.starts.shape[2]) * count > self._budget:
            for shared, rest in ((self, other), (other, self)):
                assert shared.starts is not None
                if shared.starts.shape[2] == 1:
                    return rest.starts, rest.stops, shared._inside(None, None)[:, :, 0]
        if count == 1:
            met = _tidy(
                torch.maximum(self.starts, other.starts),
                torch.minimum(self.stops, other.stops),
                self.Tk,
            )
        else:
            met = _sweep(*_side_by_side(self, other), self.Tk, depth=2)
        return *met, None

    def _complement(self, starts: Tensor, stops: Tensor) -> Visible:
        edge = starts.new_zeros(*starts.shape[:-1], 1)
        starts, stops = _sweep(
            torch.cat([edge, stops], -1), torch.cat([starts, edge + self.Tk], -1), self.Tk, depth=1
        )
        return self._bare(starts=starts, stops=stops)

    def _joined(self, other: Visible) -> Visible:
        """The union of two forms that have nothing in common."""
        mine, theirs = self._as_intervals(), other._as_intervals()
        if mine is not None and theirs is not None:
            starts, stops = _side_by_side(mine, theirs)
            starts, stops = _sweep(starts, stops, self.Tk, depth=1)
            if starts.shape[2] * starts.shape[3] <= self._budget:
                return self._bare(starts=starts, stops=stops)
        per_key, other_per_key = self._as_keep(), other._as_keep()
        if per_key is not None and other_per_key is not None:
            return self._bare(keep=per_key | other_per_key)
        _afford(self, other)
        bits, more = self.tile(), other.tile()
        if bits is None or more is None:
            return self._bare()
        return from_bits(bits | more, self.Tq, self.Tk)

    def _as_intervals(self) -> Visible | None:
        """The same as intervals alone, where they are few enough for every row to hold them."""
        parts = self._parts()
        if set(parts) == {"starts", "stops"}:
            return self
        if set(parts) != {"keep"}:
            return None
        edge = torch.nn.functional.pad(parts["keep"].to(torch.int8), (1, 1)).diff(dim=-1)
        most = int((edge == 1).sum(-1).amax()) if edge.numel() else 0
        if most * self.Tq > self._budget:
            return None
        at = torch.arange(self.Tk + 1, device=edge.device)
        starts = torch.where(edge == 1, at, self.Tk).sort(-1).values[..., : max(most, 1)]
        stops = torch.where(edge == -1, at, self.Tk).sort(-1).values[..., : max(most, 1)]
        return self._bare(starts=starts.unsqueeze(2), stops=stops.unsqueeze(2))

    def _as_keep(self) -> Tensor | None:
        """The same as one bool per key, where all rows see alike."""
        parts = self._parts()
        if set(parts) == {"keep"}:
            return parts["keep"]
        if set(parts) == {"starts", "stops"} and parts["starts"].shape[2] == 1:
            return self._inside(None, None)[:, :, 0]
        return None

    def _bits(self) -> Tensor:
        _afford(self, self)
        bits = self.tile()
        if bits is None:
            bits = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device)
        return bits


def nothing(Tq: int, Tk: int, device: torch.device) -> Visible:
    """No query sees any key."""
    empty = torch.full((1, 1, 1, 1), Tk, dtype=torch.int64, device=device)
    return Visible(Tq, Tk, empty, empty, device=device)


def from_intervals(starts: Tensor, stops: Tensor, Tq: int, Tk: int) -> Visible:
    """Any intervals, int64 [N|1, H|1, Tq|1, n]: overlapping, unsorted, out of range or empty."""
    starts, stops = torch.broadcast_tensors(starts.clamp(0, Tk), stops.clamp(0, Tk))
    starts, stops = _tidy(starts, stops, Tk)
    if starts.shape[-1] != 1:
        starts, stops = _sweep(starts, stops, Tk, depth=1)
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
    lead = torch.broadcast_shapes(q_ids.shape[:2], k_ids.shape[:2])
    queries = q_ids.expand(*lead, -1).contiguous()
    ordered, order = (part.expand(*lead, -1).contiguous() for part in (ordered, order))
    before, upto = torch.searchsorted(ordered, queries), _up_to(ordered, queries)
    starts = order.gather(-1, before.clamp(max=Tk - 1))
    starts, stops = _tidy(starts, starts + (upto - before), Tk)
    return Visible(Tq, Tk, starts.unsqueeze(3), stops.unsqueeze(3), device=k_ids.device)


def collapsed(tensor: Tensor) -> Tensor:
    """The tensor with every expanded (stride 0) dimension narrowed to size 1."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


# ---- index and block ---------------------------------------------------------------------------


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


def _both(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


def _blocks(flags: Tensor, block: int) -> Tensor:
    """bool [Tk] → [number of blocks, block], short of nothing."""
    short = -flags.shape[0] % block
    return torch.nn.functional.pad(flags, (0, short)).unflatten(0, (-1, block))


def _runs(alive: list[bool], first: int, block: int, Tk: int) -> list[tuple[int, int]]:
    """Runs of live blocks as key ranges."""
    ranges: list[tuple[int, int]] = []
    for number, live in enumerate(alive, first):
        start, stop = number * block, min((number + 1) * block, Tk)
        if live and ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        elif live:
            ranges.append((start, stop))
    return ranges


# ---- intervals ---------------------------------------------------------------------------------


def _tidy(starts: Tensor, stops: Tensor, Tk: int) -> tuple[Tensor, Tensor]:
    """Empty intervals become (Tk, Tk)."""
    empty = starts >= stops
    return starts.masked_fill(empty, Tk), stops.masked_fill(empty, Tk)


def _up_to(ordered: Tensor, at: Tensor) -> Tensor:
    """How many of the ordered values are <= each of `at`."""
    return torch.searchsorted(ordered, at, right=True)


def _sweep(starts: Tensor, stops: Tensor, Tk: int, depth: int) -> tuple[Tensor, Tensor]:
    """Where at least `depth` of a row's intervals [..., n] overlap, as tidy intervals.

    All ends are walked in order; `inside` is the same for ends at one place, so intervals that
    touch become one and empty ones vanish.
    """
    starts, stops = starts.sort(-1).values, stops.sort(-1).values
    ends = torch.cat([starts, stops], -1).sort(-1).values
    inside = _up_to(starts, ends) - _up_to(stops, ends) >= depth
    before = torch.nn.functional.pad(inside[..., :-1], (1, 0))
    opens, closes = inside & ~before, before & ~inside
    count = max(1, int(opens.sum(-1).amax())) if opens.numel() else 1
    first = ends.masked_fill(~opens, Tk).sort(-1).values[..., :count]
    last = ends.masked_fill(~closes, Tk).sort(-1).values[..., :count]
    return first.contiguous(), last.contiguous()


def _side_by_side(one: Visible, two: Visible) -> tuple[Tensor, Tensor]:
    """Both lists of each row in one list."""
    assert one.starts is not None and two.starts is not None
    assert one.stops is not None and two.stops is not None
    lead = torch.broadcast_shapes(one.starts.shape[:3], two.starts.shape[:3])
    starts = torch.cat([one.starts.expand(*lead, -1), two.starts.expand(*lead, -1)], -1)
    return starts, torch.cat([one.stops.expand(*lead, -1), two.stops.expand(*lead, -1)], -1)


def _depth(starts: Tensor, stops: Tensor, Tq: int, Tk: int) -> Tensor:
    """[N|1, H|1, Tk]: how many intervals of all rows hold each key."""
    times = Tq if starts.shape[2] == 1 else 1
    change = starts.new_zeros(*starts.shape[:2], Tk + 1)
    one = torch.full((), times, dtype=torch.int64, device=starts.device)
    starts, stops = starts.flatten(2), stops.flatten(2)
    change.scatter_add_(2, starts, one.expand_as(starts))
    change.scatter_add_(2, stops, -one.expand_as(stops))
    return change.cumsum(2)[..., :-1]


# ---- the other parts ---------------------------------------------------------------------------


def _met_ids(one: Visible, two: Visible) -> tuple[Tensor | None, Tensor | None]:
    """The pair of ids that are equal iff both pairs are."""
    if one.q_ids is None or one.k_ids is None:
        return two.q_ids, two.k_ids
    if two.q_ids is None or two.k_ids is None:
        return one.q_ids, one.k_ids
    ranks = []
    for queries, keys in ((one.q_ids, one.k_ids), (two.q_ids, two.k_ids)):
        lead = torch.broadcast_shapes(queries.shape[:2], keys.shape[:2])
        ids = torch.cat([queries.expand(*lead, -1), keys.expand(*lead, -1)], -1)
        ranks.append(torch.unique(ids, return_inverse=True)[1])
    others = int(ranks[1].amax()) + 1 if ranks[1].numel() else 1
    ids = ranks[0] * others + ranks[1]
    return ids[..., : one.Tq], ids[..., one.Tq :]


def _factored(one: Visible, two: Visible) -> tuple[Visible, Visible, Visible]:
    """(C & A) | (C & B) as C, A and B: parts that both have need no union."""
    common = one._bare()
    for kind in one._kinds():
        theirs = two._parts()
        if all(name in theirs and _same(part, theirs[name]) for name, part in kind.items()):
            common = replace(common, **kind)
            one, two = (replace(form, **dict.fromkeys(kind)) for form in (one, two))
    return common, one, two


def _same(one: Tensor, two: Tensor) -> bool:
    return one is two or (one.shape == two.shape and bool(torch.equal(one, two)))


def _afford(one: Visible, two: Visible) -> None:
    """Refuse bits above the limit; who holds bits of that size already may have them again."""
    lead = torch.broadcast_shapes(one._lead(), two._lead())
    size = lead[0] * lead[1] * one.Tq * one.Tk
    limit = int(getattr(sys.modules.get("eyeline"), "dense_limit", DENSE_LIMIT))
    held = max(0 if form.dense is None else form.dense.numel() for form in (one, two))
    if size > max(limit, held):
        raise MaskError(
            f"This combination of masks has no short list of intervals, and as bits "
            f"[{lead[0]}, {lead[1]}, Tq = {one.Tq}, Tk = {one.Tk}] it takes {size / 2**20:,.0f} "
            f"MiB; eyeline.dense_limit is {limit / 2**20:,.0f} MiB. Combine the masks with & "
            f"(which needs no bits), or raise eyeline.dense_limit."
        )
