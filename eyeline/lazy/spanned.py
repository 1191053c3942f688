"""Weights over sets of tokens in place of tokens, words for instance: still a lazy matrix.

Entry (I, J) is what the tokens of set I give those of set J: columns are added and rows averaged,
so where the sets of keys hold every key once, each row still sums to what it did. With R the mean
over each set of rows and C the indicator of each set of columns it is ``R W C``: products go
through W itself, everything else through blocks of rows that are merged as they are computed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eyeline.backends.passes import reduce_pass
from eyeline.backends.reductions import (
    Join,
    LogSumExp,
    Reduction,
    RowState,
    SeenBy,
    TopKeys,
    TopQueries,
    View,
    WeightedColumns,
    WeightedSum,
)
from eyeline.backends.strips import Strip
from eyeline.errors import ArgumentError
from eyeline.lazy import indexing
from eyeline.lazy.indexing import ALL
from eyeline.lazy.matrix import densely, hollow, nbytes, size_text, too_large
from eyeline.lazy.parts import Body
from eyeline.lazy.tensor import Weights, wrap
from eyeline.lazy.text import entries_text
from eyeline.problem import Problem

BLOCK = 1 << 21  # merged entries that are dense at one time
FEW = 64  # columns of tokens that are formed one by one before a product with W is cheaper


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of tokens: `tokens[m]` belongs to set `owner[m]`, in the order of the sets.

    A token may be in several sets or in none, and a set may be empty.
    """

    tokens: Tensor  # int64 [M]
    owner: Tensor  # int64 [M], rising
    counts: Tensor  # int64 [n]

    @classmethod
    def of(cls, members: Sequence[Tensor], device: torch.device) -> Sets:
        """The sets with these tokens, int64 [.] each."""
        counts = torch.tensor([len(one) for one in members], dtype=torch.int64, device=device)
        tokens = torch.cat([*members, torch.zeros(0, dtype=torch.int64)]).to(device)
        return cls(
            tokens, torch.arange(len(members), device=device).repeat_interleave(counts), counts
        )

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def share(self) -> Tensor:
        """What each member counts for in the mean of its set: float64 [M]."""
        return 1.0 / self.counts.clamp(min=1)[self.owner].double()

    def choose(self, index: Tensor) -> Sets:
        """The sets at these indices, in their order, repeats allowed."""
        first = self.counts.cumsum(0) - self.counts
        counts = self.counts[index]
        owner = torch.arange(len(index), device=index.device).repeat_interleave(counts)
        inside = torch.arange(len(owner), device=index.device)
        inside = inside - (counts.cumsum(0) - counts)[owner]
        return Sets(self.tokens[first[index][owner] + inside], owner, counts)

    def added(self, t: Tensor, dim: int) -> Tensor:
        """Entries of tokens along ``dim`` added up to sets."""
        return _scattered(t.index_select(dim, self.tokens), dim, self.owner, len(self))

    def averaged(self, t: Tensor, dim: int) -> Tensor:
        """Entries of tokens along ``dim`` averaged to sets."""
        picked = t.index_select(dim, self.tokens)
        return _scattered(_along(picked, dim, self.share), dim, self.owner, len(self))

    def spread(self, t: Tensor, dim: int, size: int, mean: bool) -> Tensor:
        """Entries of sets along ``dim`` handed to ``size`` tokens: the transpose of the above."""
        picked = t.index_select(dim, self.owner)
        picked = _along(picked, dim, self.share) if mean else picked
        return _scattered(picked, dim, self.tokens, size)


def _along(t: Tensor, dim: int, factor: Tensor) -> Tensor:
    shape = [1] * t.dim()
    shape[dim] = -1
    return t * factor.to(t.dtype).reshape(shape)


def _scattered(t: Tensor, dim: int, index: Tensor, size: int) -> Tensor:
    shape = list(t.shape)
    shape[dim] = size
    return t.new_zeros(shape).index_add(dim, index, t)


def _picked(t: Tensor, columns: Tensor) -> Tensor:
    """Some columns; neighbours in their order, as words mostly are, without a copy."""
    first, count = int(columns[0]) if len(columns) else 0, len(columns)
    if count and int(columns[-1]) == first + count - 1 and bool((columns.diff() == 1).all()):
        return t.narrow(-1, first, count)
    return t.index_select(-1, columns)


@dataclass(frozen=True, eq=False)
class Merged(Reduction):
    """Rows averaged to sets and columns added: ``[N, H, sets of rows, sets of columns]``.

    Row r of the problem is member r of `rows`. With `visible` the visible pairs are counted in
    place of their weights.
    """

    rows: Sets
    cols: Sets | None
    visible: bool = False

    @property
    def join(self) -> Join:
        return "sum"

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        w = strip.weights
        if self.visible:
            seen = torch.ones_like(w) if strip.visible is None else strip.visible.to(w.dtype)
            w = seen.expand(w.shape)
        else:
            w = _along(w, 2, self.rows.share[strip.rows])
        rows = _scattered(w, 2, self.rows.owner[strip.rows], len(self.rows))
        if self.cols is None:
            return (strip.full_width(rows),)
        column, held = strip.columns_of(self.cols.tokens)
        picked = _picked(rows, column[held])
        return (_scattered(picked, 3, self.cols.owner[held], len(self.cols)),)


@dataclass(frozen=True, eq=False)
class _Chosen(Reduction):
    """A reduction whose values keep the gradient of the entries it chose."""

    inner: Reduction

    @property
    def parts(self) -> int:
        return self.inner.parts

    @property
    def join(self) -> Join:
        return self.inner.join

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        found = self.inner.of(strip)
        return (self.inner.again(strip, found), *found[1:]) if len(found) > 1 else found


@dataclass(eq=False)
class SpannedBody(Body):
    """Weights over sets: the tokens' body, and the sets (None: the tokens themselves).

    `problem` has the sizes of the sets and no numbers of its own.
    """

    source: Body = None  # type: ignore[assignment]  # follows fields with defaults
    rows: Sets | None = None
    cols: Sets | None = None

    def reduce(self, reductions: Sequence[Reduction]) -> list[tuple[Tensor, ...]]:
        """Reductions in the caller's leading shape: products through W, others by merged rows."""
        for reduction in reductions:
            if reduction.reads_scores or isinstance(reduction, (LogSumExp, RowState)):
                raise ArgumentError(
                    "Scores and their sums are of tokens, not of words: ask the weights that these "
                    "were made from."
                )
        products = [r for r in reductions if isinstance(r, (WeightedSum, WeightedColumns))]
        others = [r for r in reductions if r not in products]
        made = dict(zip(map(id, products), self._products(products), strict=True))
        made |= dict(zip(map(id, others), self._streamed(others), strict=True))
        return [made[id(r)] for r in reductions]

    def _products(self, asked: Sequence[WeightedSum | WeightedColumns]) -> list[tuple[Tensor, ...]]:
        if not asked:
            return []
        Tq, Tk = self.source.shape[-2:]
        dtype = self.problem.statistics
        inner: list[Reduction] = []
        for one in asked:
            if isinstance(one, WeightedSum):
                x = one.x.to(dtype)
                x = x if self.cols is None else self.cols.spread(x, 2, Tk, mean=False)
                inner.append(WeightedSum(x))
            else:
                y = one.y.to(dtype)
                y = y if self.rows is None else self.rows.spread(y, 2, Tq, mean=True)
                inner.append(WeightedColumns(y))
        answers: list[tuple[Tensor, ...]] = []
        for one, (made,) in zip(asked, self.source.reduce(inner), strict=True):
            if isinstance(one, WeightedSum):
                found = made if self.rows is None else self.rows.averaged(made, made.dim() - 2)
            else:
                found = made if self.cols is None else self.cols.added(made, made.dim() - 2)
            answers.append((found,))
        return answers

    def _streamed(self, asked: Sequence[Reduction]) -> list[tuple[Tensor, ...]]:
        if not asked:
            return []
        keeps_graph = torch.is_grad_enabled() and self.source.problem.requires_grad
        if keeps_graph and any(r.join == "best" for r in asked):
            raise ArgumentError(
                "The largest entries of columns or cells of words have no gradient here: ask "
                "weights.detach(), or the weights over tokens."
            )
        given = [_Chosen(r) if keeps_graph else r for r in asked]
        sees = any(isinstance(r, (TopKeys, TopQueries, SeenBy)) for r in asked)
        results = reduce_pass(self.problem, self._strips(sees), given, View())
        return [
            result
            if reduction.join == "total"
            else tuple(t.reshape(*self.lead, *t.shape[2:]) for t in result)
            for reduction, result in zip(asked, results, strict=True)
        ]

    def _strips(self, sees: bool) -> Iterator[Strip]:
        """The merged weights by blocks of rows, as the reductions take them."""
        problem = self.problem
        width = max(problem.N * problem.Hq * problem.Tk, 1)
        step = max(BLOCK // width, 1)
        hides = self.source.problem.visible is not None or self.source.problem.bias_hides
        for first in range(0, max(problem.Tq, 1), step):
            rows = slice(first, min(first + step, problem.Tq))
            index = torch.arange(rows.start, rows.stop, device=problem.q.device)
            merged = self.merged(index)
            seen = self.merged(index, visible=True) > 0 if sees and hides else None
            nothing = merged.new_zeros(merged.shape[:-1])
            yield Strip(
                problem,
                *(slice(0, problem.N), slice(0, problem.Hq), rows, slice(0, problem.Tk)),
                weights=merged,
                scores=None,
                m=nothing,
                l=nothing,
                visible=seen,
                width=problem.Tk,
            )

    def merged(self, index: Tensor, visible: bool = False) -> Tensor:
        """The rows of some sets ``[N, H, len(index), sets of columns]``, or what they may see."""
        rows = self.chosen_rows(index)
        part = replace(self.source, problem=self.source.problem.rows(rows.tokens))
        part = replace(part, state=None, lse=None)
        (found,) = part.reduce_one(Merged(rows, self.cols, visible))
        return found.reshape(self.problem.N, self.problem.Hq, *found.shape[-2:])

    def chosen_rows(self, index: Tensor) -> Sets:
        """Some sets of rows; each token alone where rows are tokens."""
        if self.rows is not None:
            return self.rows.choose(index)
        return Sets(index, torch.arange(len(index), device=index.device), torch.ones_like(index))

    def chosen_cols(self, index: Tensor) -> Sets:
        """Some sets of columns; each token alone where columns are tokens."""
        if self.cols is not None:
            return self.cols.choose(index)
        return Sets(index, torch.arange(len(index), device=index.device), torch.ones_like(index))


class SpannedWeights(Weights):
    """Weights over sets of tokens ``[..., rows, columns]``, lazy as those they are made from.

    Made by `eyeline.spans.weights_over` and `seen.words()`. Rows, columns, sums, products, readings
    and slices answer as for any weights; scores and `lse` are of tokens and are not to be had.
    """

    _body: SpannedBody

    @property
    def source(self) -> Weights:
        """The weights over tokens."""
        return wrap(self._body.source)

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether q, k, bias or sinks ask for a gradient."""
        return self._body.source.problem.requires_grad

    @property
    def lse(self) -> Tensor:
        """Not to be had: the sum of scores is of a token's row."""
        raise ArgumentError("lse is of a token's row: ask the weights over tokens.")

    def scores(self, rows: slice | None = None) -> Tensor:
        """Not to be had: scores are of tokens."""
        raise ArgumentError("Scores are of tokens: ask the weights over tokens.")

    def detach(self) -> SpannedWeights:
        """The same without a gradient."""
        return self._over(self.source.detach())

    def mean(self, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Means over columns (-1), rows (-2), all, or over heads: that one stays lazy."""
        if isinstance(dim, int) and self._dim(dim) == self.dim() - 3 and not args and not kwargs:
            found = self.source.mean(dim)
            if isinstance(found, Weights):
                return self._over(found)
        return super().mean(dim, *args, **kwargs)

    def _over(self, source: Weights) -> SpannedWeights:
        return spanned(source, self._body.rows, self._body.cols)

    def _entries(self, what: str, limit: float) -> Tensor:
        if nbytes(self) > limit:
            raise too_large(what, self, nbytes(self), limit)
        index = torch.arange(self.shape[-2], device=self.device)
        return self._dense(self._body, index)

    def _dense(self, body: SpannedBody, index: Tensor) -> Tensor:
        """Rows of some sets, dense, in q's dtype."""
        step = max(BLOCK // max(body.problem.N * body.problem.Hq * body.problem.Tk, 1), 1)
        parts = [body.merged(some) for some in index.split(step)] if len(index) else []
        if not parts:
            parts = [body.merged(index)]
        made = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
        return made.to(body.problem.q.dtype).reshape(*body.lead, *made.shape[2:])

    def __getitem__(self, key: Any) -> Any:
        request = indexing.parse(key, tuple(self.shape))
        if request is None:
            return densely(torch.Tensor.__getitem__, "__getitem__", (self, key), {})
        source, lead, body = self.source, request.lead, self._body
        if request.lazy or request.lead_is_basic:
            source = source[(*lead, ALL, ALL)]
            lead = (ALL,) * (source.dim() - 2)
        if request.lazy:
            return self._part(source, request.rows, request.cols)
        picks = isinstance(request.rows, Tensor) and isinstance(request.cols, Tensor)
        if picks and request.lead_is_basic:
            return self._pairs(source, request.rows, request.cols)
        rows, at_rows = _indices(request.rows, self.shape[-2], self.device)
        cols, at_cols = _indices(request.cols, self.shape[-1], self.device)
        some = body.cols if request.cols == ALL else body.chosen_cols(cols)
        if some is not None and request.rows == ALL and request.cols != ALL:
            dense = self._columns(source, some)
        else:
            dense = self._dense(spanned(source, body.rows, some)._body, rows)
        return dense[(*lead, at_rows, at_cols)]

    def _part(self, source: Weights, rows: slice, cols: slice) -> SpannedWeights:
        """Some rows and columns, still lazy."""
        of, to = self._body.rows, self._body.cols
        if rows != ALL:
            of = self._body.chosen_rows(_indices(rows, self.shape[-2], self.device)[0])
        if cols != ALL:
            to = self._body.chosen_cols(_indices(cols, self.shape[-1], self.device)[0])
        return spanned(source, of, to)

    def _columns(self, source: Weights, cols: Sets) -> Tensor:
        """Some columns of every row, from W's own columns or from a product with it."""
        if len(cols.tokens) <= FEW + 4 * len(cols):
            picked = source[..., cols.tokens].to(source.problem.statistics)
            made = _scattered(picked, picked.dim() - 1, cols.owner, len(cols))
        else:
            ones = torch.eye(len(cols), dtype=source.problem.statistics, device=source.device)
            made = source @ cols.spread(ones, 0, source.shape[-1], mean=False)
        rows = self._body.rows
        return (made if rows is None else rows.averaged(made, made.dim() - 2)).to(self.dtype)

    def _pairs(self, source: Weights, rows: Tensor, cols: Tensor) -> Tensor:
        """Single entries: row and column indices go together, broadcast against each other."""
        try:
            i, j = torch.broadcast_tensors(rows.to(self.device), cols.to(self.device))
        except RuntimeError as error:
            raise IndexError(f"row and column indices go together: {error}") from None
        of, to = self._body.chosen_rows(i.flatten()), self._body.chosen_cols(j.flatten())
        # Every member of a row's set beside every member of its column's set.
        times = to.counts[of.owner]
        row = of.tokens.repeat_interleave(times)
        owner, share = of.owner.repeat_interleave(times), of.share.repeat_interleave(times)
        first = (to.counts.cumsum(0) - to.counts)[owner]
        inside = torch.arange(len(row), device=row.device)
        inside = inside - (times.cumsum(0) - times).repeat_interleave(times)
        found = source[..., row, to.tokens[first + inside]].to(source.problem.statistics)
        made = _scattered(_along(found, -1, share), found.dim() - 1, owner, i.numel())
        return made.to(self.dtype).reshape(*source.shape[:-2], *i.shape)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        source = self._body.source
        line = f"weights {list(self.shape)} {str(self.dtype).removeprefix('torch.')} over spans of "
        line += f"{source.shape[-2]} x {source.shape[-1]} tokens"
        if source.problem.rule is not None:
            line += f" · {source.problem.rule.formula}"
        return f"{entries_text(self)}\n{line} · keeps {size_text(source.problem.nbytes)}"

    __str__ = __repr__  # type: ignore[assignment]

    def __copy__(self) -> SpannedWeights:
        return self._over(self.source)

    def __deepcopy__(self, memo: dict[int, Any]) -> SpannedWeights:
        return self._over(copy.deepcopy(self.source, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return spanned, (self.source.detach(), self._body.rows, self._body.cols)


def spanned(source: Weights, rows: Sets | None, cols: Sets | None) -> SpannedWeights:
    """The weights over these sets of rows and columns; None leaves the tokens as they are."""
    body = source._body
    Tq = source.shape[-2] if rows is None else len(rows)
    Tk = source.shape[-1] if cols is None else len(cols)
    q = body.problem.q.detach()
    # Of the sizes that readings ask for, and empty: what is computed comes from the tokens' body.
    problem = Problem(
        q=q.new_zeros(()).expand(body.problem.N, body.heads, Tq, 0),
        k=q.new_zeros(()).expand(body.problem.N, body.heads, Tk, 0),
        scale=body.problem.scale,
        lead=body.lead,
        sinks=body.problem.sinks,
        first_position=Tk - Tq,
    )
    over = SpannedBody(problem, body.backend, body.axes, View(), source=body, rows=rows, cols=cols)
    made = hollow(q, over.shape).as_subclass(SpannedWeights)
    made._body = over
    return made


def _indices(key: Any, size: int, device: torch.device) -> tuple[Tensor, Any]:
    """The indices that a row or column key names, and how the dense block is then indexed."""
    if isinstance(key, int):
        return torch.tensor([key], device=device), 0
    if isinstance(key, Tensor):
        return key.flatten().to(device), torch.arange(key.numel(), device=device).view(key.shape)
    return torch.arange(size, device=device)[key], ALL
