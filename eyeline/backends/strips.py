"""Strips: some rows of the weights times the keys that any of them may see.

Each row is normalised within itself. Both backends compute by strips: the reference has one, the
whole matrix; ``tiled`` has many small ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.problem import Problem

SEEN_NOTHING = float("-inf")


@dataclass(eq=False)
class Strip:
    """A block of rows of the weights, over the keys that any of them may see.

    All other weights of these rows are 0.
    """

    problem: Problem  # of the whole call
    n: slice  # which batch entries,
    h: slice  # query heads
    rows: slice  # and queries these are,
    cols: slice | Tensor  # and which keys the last dimension holds
    weights: Tensor  # [n, h, R, C]
    # [n, h, R, C] after scale, softcap, bias and mask (-inf where hidden); None unless asked for
    scores: Tensor | None
    m: Tensor  # [n, h, R] the largest score of the row (with the sink), -inf where it sees nothing
    l: Tensor  # [n, h, R] Σ exp(score - m)  # noqa: E741  the name in the papers
    visible: Tensor | None  # bool, broadcasts to [n, h, R, C]; None where all is visible
    width: int  # how many keys there are in all
    capped: Tensor | None = None  # the scores after a softcap and before the bias

    @property
    def lse(self) -> Tensor:
        """``log Σ exp(score)`` [n, h, R], -inf for a row that sees nothing."""
        nothing = self.l == 0
        lse = self.m + torch.where(nothing, 1.0, self.l).log()
        lse = torch.where(self.m == torch.inf, self.m, lse)  # where inf - inf has made l NaN
        return torch.where(nothing, SEEN_NOTHING, lse)

    @property
    def positions(self) -> Tensor:
        """Where the queries stand among the keys [R]."""
        return self.problem.positions(self.rows)

    @property
    def keys(self) -> Tensor:
        """The key index of each column [C]."""
        if isinstance(self.cols, Tensor):
            return self.cols
        return torch.arange(self.cols.start, self.cols.stop, device=self.weights.device)

    def columns_of(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Where these key indices stand among the columns, and whether they stand there at all."""
        width = self.weights.shape[-1]
        if isinstance(self.cols, Tensor):
            column = torch.searchsorted(self.cols, keys.contiguous()).clamp(max=max(width - 1, 0))
            held = self.cols[column] == keys if width else torch.zeros_like(keys, dtype=torch.bool)
        else:
            column = keys - self.cols.start
            held = (column >= 0) & (column < width)
        return column.clamp(0, max(width - 1, 0)), held

    def pick(self, t: Tensor) -> Tensor:
        """This strip's batch entries and heads of ``[N|1, H|1, ...]``; what is 1 stays 1."""
        t = t if t.shape[0] == 1 else t[self.n]
        return t if t.shape[1] == 1 else t[:, self.h]

    def pick_keys(self, t: Tensor, dim: int = -2) -> Tensor:
        """The entries of this strip's keys along ``dim``."""
        if isinstance(self.cols, Tensor):
            return t.index_select(dim, self.cols)
        return t.narrow(dim, self.cols.start, self.cols.stop - self.cols.start)

    def full_width(self, t: Tensor, fill: float = 0.0) -> Tensor:
        """``[..., C]`` over this strip's keys as ``[..., Tk]`` over all of them."""
        if t.shape[-1] == self.width:
            return t
        wide = t.new_full((*t.shape[:-1], self.width), fill)
        return wide.index_copy(-1, self.keys, t)


def scores(
    part: Problem, rows: slice, cols: slice | Tensor, keep_capped: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Scores ``softcap(q·k × scale) + bias`` [n, Hq, R, C], and two tensors beside them.

    The scores are -inf where hidden. Beside them: who is visible (None: all), and the capped scores
    before the bias (None without a softcap, or unless they are to be kept). The order of operations
    is that of ONNX Attention-23 and of every model with a softcap.
    """
    dtype = part.statistics
    q, k = part.q[:, :, rows].to(dtype), part.k[:, :, cols].to(dtype)
    s = heads_matmul(q, k.mT).mul_(part.scale)
    capped = None
    if part.softcap is not None:
        s = s.div_(part.softcap).tanh_().mul_(part.softcap)
        capped = s.clone() if keep_capped else None
    visible = None if part.visible is None else part.visible.tile(rows, cols)
    biases = [] if part.bias is None else [_narrow(_narrow(part.bias, 2, rows), 3, cols)]
    if part.relative is not None:
        biases.append(part.relative_tile(part.positions(rows), cols))
    for bias in biases:
        s.add_(bias)
        if part.bias_hides:
            seen = bias != SEEN_NOTHING
            visible = seen if visible is None else visible & seen
    if visible is not None:
        s.masked_fill_(~visible, SEEN_NOTHING)
    return s, visible, capped


def _narrow(t: Tensor, dim: int, index: slice | Tensor) -> Tensor:
    return t if t.shape[dim] == 1 else t[(slice(None),) * dim + (index,)]


def softmax_(
    s: Tensor, visible: Tensor | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn scores into weights in place: the weights, and m and l of each row.

    The sink is a logit without a value.
    """
    m = s.amax(-1) if s.shape[-1] else s.new_full(s.shape[:-1], SEEN_NOTHING)
    if sinks is not None:
        m = torch.maximum(m, sinks.to(s.dtype).unsqueeze(-1))
    shift = m.masked_fill(m == SEEN_NOTHING, 0.0)
    s.sub_(shift.unsqueeze(-1)).exp_()
    total = s.sum(-1)
    if sinks is not None:
        total = total + (sinks.to(s.dtype).unsqueeze(-1) - shift).exp()
    s.div_(total.masked_fill(total == 0, 1.0).unsqueeze(-1))
    if visible is not None and not bool(total.isfinite().all()):
        s.masked_fill_(~visible, 0.0)  # a NaN of the row would stand at its hidden keys too
    return s, m, total


def heads_matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a [n, Ha, R, X] @ b [n|1, Hb, X, C]`` without repeating b.

    Each of the Hb heads serves Ha // Hb heads of a.
    """
    n, heads, rows, inner = a.shape
    shared = b.shape[1]
    if shared == heads:
        return a @ b
    group = heads // shared if shared else 1
    folded = a.reshape(n, shared, group * rows, inner) @ b
    return folded.reshape(n, heads, rows, b.shape[-1])


def heads_matmul_t(w: Tensor, y: Tensor, heads: int) -> Tensor:
    """``wᵀ @ y`` summed over the query heads that share one of ``heads``: ``[n, heads, C, F]``."""
    n, Hq, rows, cols = w.shape
    group = Hq // heads if heads else 1
    y = y.expand(n, Hq, rows, y.shape[-1])
    folded = y.reshape(n, heads, group * rows, y.shape[-1])
    return w.reshape(n, heads, group * rows, cols).mT @ folded


def select_matmul(w: Tensor, x: Tensor, visible: Tensor | None) -> Tensor:
    """``w @ x`` in which a hidden pair contributes nothing, even where x is NaN or inf.

    ``w [n, Hq, R, C]`` is 0 where hidden; ``x [n|1, Hx, C, F]``.
    """
    if visible is None or bool(x.isfinite().all()):
        return heads_matmul(w, x)
    seen = visible.expand(w.shape)
    weighty = seen & (w != 0)
    clean = heads_matmul(w, x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    kinds = {"nan": x.isnan(), "up": x == float("inf"), "down": x == -float("inf")}
    kinds = {name: kind.to(w.dtype) for name, kind in kinds.items()}
    nan = heads_matmul(seen.to(w.dtype), kinds["nan"])
    nan = nan + heads_matmul((seen & (w == 0)).to(w.dtype), kinds["up"] + kinds["down"])
    sign = torch.where(weighty, w.sign().nan_to_num(), 0.0)
    plus, minus = sign.clamp(min=0), (-sign).clamp(min=0)
    up = heads_matmul(plus, kinds["up"]) + heads_matmul(minus, kinds["down"])
    down = heads_matmul(plus, kinds["down"]) + heads_matmul(minus, kinds["up"])
    inf = float("inf")
    clean = clean + torch.where(up > 0, inf, 0.0) + torch.where(down > 0, -inf, 0.0)
    return clean.masked_fill(nan > 0, float("nan"))


def select_matmul_t(w: Tensor, y: Tensor, visible: Tensor | None, heads: int) -> Tensor:
    """``wᵀ @ y`` summed over groups.

    A hidden pair contributes nothing, even where y is NaN or inf.
    """
    if visible is None or bool(y.isfinite().all()):
        return heads_matmul_t(w, y, heads)
    n, Hq, rows, _ = w.shape
    group = Hq // heads if heads else 1

    def fold(t: Tensor) -> Tensor:
        return t.expand(n, Hq, rows, t.shape[-1]).reshape(n, heads, group * rows, t.shape[-1])

    return select_matmul(fold(w).mT, fold(y), fold(visible.expand(w.shape)).mT)


def like_query(q: Tensor, size: int) -> Tensor:
    """An empty ``[N, H, T, size]`` whose dimensions lie in memory in q's order."""
    if size == q.shape[3]:
        return torch.empty_like(q)
    if q.is_contiguous():
        return q.new_empty((*q.shape[:3], size))
    strides = q.stride()
    order = sorted(range(4), key=lambda d: -strides[d])
    shape = [*q.shape[:3], size]
    return q.new_empty([shape[d] for d in order]).permute([order.index(d) for d in range(4)])


def pick_heads(strip: Strip, x: Tensor) -> Tensor:
    """The part of ``x [N|1, H', Tk, F]`` that this strip's query heads read.

    H' divides the query heads of the call.
    """
    x = x if x.shape[0] == 1 else x[strip.n]
    if x.shape[1] in (0, 1):
        return x
    group = max(strip.problem.Hq, 1) // x.shape[1]
    return x[:, strip.h.start // group : -(-strip.h.stop // group)]


@dataclass(frozen=True)
class Plan:
    """How the work is cut.

    By the problem, never by the number of threads, so that results do not depend on it.
    """

    elements: int  # scores held at once, about
    key_block: int  # granularity at which hidden keys are left out
    # Every batch entry and head in each strip, for what looks across heads.
    whole: bool = False

    def units(self, problem: Problem) -> Iterator[tuple[slice, slice, int]]:
        """Batch entries, key heads, and the rows per strip for them."""
        N, Hk, group, Tk = problem.N, problem.Hk, problem.group, max(problem.Tk, 1)
        few = max(min(problem.Tq, 64), 1)  # rows below which a matrix product is no longer one
        per_head = group * Tk * few
        if self.whole or N * Hk * per_head <= self.elements:
            rows = max(self.elements // max(N * Hk * group * Tk, 1), 1)
            yield slice(0, N), slice(0, Hk), rows
            return
        heads = max(min(self.elements // per_head, Hk), 1)
        entries = max(self.elements // (per_head * Hk), 1)  # more than 1 only where all heads fit
        rows = max(self.elements // (entries * heads * group * Tk), 8)
        for n in range(0, N, entries):
            for h in range(0, Hk, heads):
                yield slice(n, min(n + entries, N)), slice(h, min(h + heads, Hk)), rows

    def row_strips(self, part: Problem, rows: int) -> Iterator[tuple[slice, slice | Tensor]]:
        """Row slices of a part, each with the keys that any of its rows may see."""
        visible = part.visible
        if visible is None or part.Tq == 0:
            step = max(rows, 1)
            for i in range(0, max(part.Tq, 1), step):
                yield slice(i, min(i + step, part.Tq)), slice(0, part.Tk)
            return
        budget = rows * max(part.Tk, 1)
        i = 0
        while i < part.Tq:
            # A narrow band leaves room for more rows under the same budget.
            stop = min(i + rows, part.Tq)
            ranges = visible.key_ranges(slice(i, stop), self.key_block)
            while stop < part.Tq and 2 * (stop - i) * max(_width(ranges), 1) <= budget:
                longer = min(i + 2 * (stop - i), part.Tq)
                wider = visible.key_ranges(slice(i, longer), self.key_block)
                if (longer - i) * _width(wider) > budget:
                    break
                stop, ranges = longer, wider
            yield slice(i, stop), _columns(ranges, part.q.device)
            i = stop


def _width(ranges: list[tuple[int, int]]) -> int:
    return sum(b - a for a, b in ranges)


def _columns(ranges: list[tuple[int, int]], device: torch.device) -> slice | Tensor:
    if not ranges:
        return slice(0, 0)
    if len(ranges) == 1:
        return slice(*ranges[0])
    return torch.cat([torch.arange(a, b, device=device) for a, b in ranges])
