"""Weights times a factor for each pair of tokens, or that factor alone: still a lazy matrix.

The factor of query i and key j is ``a_i · b_j`` with a [..., Tq, F] and b [..., Tk, F]: the length
of a value, or the gradient at a weight. Every question goes through the weights' own passes, whose
strips are multiplied as they are computed, so nothing of size Tq x Tk is formed. A pair that is
hidden has 0.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eyeline.backends.base import Result
from eyeline.backends.reductions import (
    Entries,
    Join,
    LogSumExp,
    Picked,
    Reduction,
    RowEntropy,
    RowState,
)
from eyeline.backends.strips import Strip
from eyeline.errors import ArgumentError
from eyeline.lazy import indexing
from eyeline.lazy.indexing import ALL
from eyeline.lazy.matrix import densely, hollow, nbytes, size_text, too_large
from eyeline.lazy.parts import Body
from eyeline.lazy.tensor import Weights, wrap
from eyeline.lazy.text import entries_text


@dataclass(frozen=True, eq=False)
class _Times(Reduction):
    """A reduction of the products, computed on the weights' own strips."""

    inner: Reduction
    a: Tensor  # [N|1, H|1, Tq, F]
    b: Tensor  # [N|1, H|1, columns that are shown, F]
    alone: bool

    @property
    def join(self) -> Join:
        return self.inner.join

    @property
    def parts(self) -> int:
        return self.inner.parts

    @property
    def whole(self) -> bool:
        return self.inner.whole

    def better(self, kept: Result, new: Result) -> Result:
        return self.inner.better(kept, new)

    def of(self, strip: Strip) -> Result:
        dtype = strip.weights.dtype
        a = strip.pick(self.a)[:, :, strip.rows].to(dtype)
        b = strip.pick_keys(strip.pick(self.b)).to(dtype)
        factor = a @ b.mT
        made = factor.expand(strip.weights.shape) if self.alone else strip.weights * factor
        if strip.visible is not None:  # a hidden value may be NaN, and 0 times NaN is NaN
            made = made.masked_fill(~strip.visible, 0.0)
        return self.inner.of(replace(strip, weights=made, scores=None))


@dataclass(eq=False)
class WeighedBody(Body):
    """A weights' body and the factors, a [*lead, Tq, F] and b [*lead, Tk, F] of what is shown."""

    source: Weights = None  # type: ignore[assignment]  # follows fields with defaults
    a: Tensor = None  # type: ignore[assignment]
    b: Tensor = None  # type: ignore[assignment]
    alone: bool = False

    def reduce(self, reductions: Sequence[Reduction]) -> list[Result]:
        """Reductions of the products, in the caller's leading shape."""
        for one in reductions:
            if one.reads_scores or isinstance(one, (LogSumExp, RowState, RowEntropy)):
                raise ArgumentError(
                    "These rows are no shares that sum to 1: entropies, scores and their sums are "
                    "of the weights themselves."
                )
        a, b = self.factor(self.a), self.factor(self.b)
        return self.source._body.reduce([_Times(one, a, b, self.alone) for one in reductions])


class Weighed(Weights):
    """Weights times a factor per pair ``[..., Tq, Tk]``, lazy as the weights it is made of.

    Made by `eyeline.acting.value_norm` and `seen.gradients(loss)`. Rows, columns, slices, sums,
    products, `topk` and readings such as `eyeline.received` answer as for weights, without a
    gradient; rows do not sum to 1, so there is no entropy and no `lse`. `topk` and `max` name
    entries above 0; where there are no more, the value is 0 and the index -1.
    """

    _body: WeighedBody

    @property
    def source(self) -> Weights:
        """The weights that are multiplied."""
        return self._body.source

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """False: no gradient passes here."""
        return False

    @property
    def lse(self) -> Tensor:
        """Not to be had: it is of the weights themselves."""
        raise ArgumentError("lse is of the weights themselves: ask .source.lse.")

    def scores(self, rows: slice | None = None) -> Tensor:
        """Not to be had: they are of the weights themselves."""
        raise ArgumentError("Scores are of the weights themselves: ask .source.scores().")

    def detach(self) -> Weighed:
        """The same: it has no gradient."""
        return self

    def mean(self, dim: Any = None, keepdim: bool = False, **others: Any) -> Any:
        """Means over keys (-1), queries (-2) or all; over heads a dense tensor."""
        if isinstance(dim, int) and self._dim(dim) == self.dim() - 3:
            return densely(torch.mean, "mean", (self, dim, keepdim), {})
        return super().mean(dim, keepdim, **others)

    def _entries(self, what: str, limit: float) -> Tensor:
        if nbytes(self) > limit:
            raise too_large(what, self, nbytes(self), limit)
        return self._dense(Entries())

    def _dense(self, question: Reduction) -> Tensor:
        return self._body.reduce_one(question)[0].to(self.dtype)

    def __getitem__(self, key: Any) -> Any:
        request = indexing.parse(key, tuple(self.shape))
        if request is None:
            return densely(torch.Tensor.__getitem__, "__getitem__", (self, key), {})
        lead, rows, cols = request.lead, request.rows, request.cols
        if request.lazy or request.lead_is_basic:
            whole = self._chosen(lead)
            lead = (ALL,) * (whole.dim() - 2)
        else:  # index tensors on both sides: torch pairs them in the block
            whole = self
        if request.lazy:
            return whole._sliced(rows, cols)
        picked = isinstance(rows, Tensor)
        some = whole._rows(rows.flatten()) if picked else whole._sliced(_as_slice(rows), ALL)
        at_rows = rows.new_tensor(range(rows.numel())).view(rows.shape) if picked else ALL
        if isinstance(cols, Tensor) and picked and request.lead_is_basic:
            i, j = torch.broadcast_tensors(rows, cols)
            pairs = whole._rows(i.flatten())._dense(Picked(j.flatten().to(self.device)))
            return pairs.reshape(*whole.shape[:-2], *i.shape)
        dense = some._dense(Entries())
        return dense[(*lead, 0 if isinstance(rows, int) else at_rows, cols)]

    def _chosen(self, lead: tuple[Any, ...]) -> Weighed:
        body = self._body
        a, b = (t[(*lead, ALL, ALL)] for t in (body.a, body.b))
        return weighed(body.source[(*lead, ALL, ALL)], a, b, body.alone)

    def _sliced(self, rows: slice, cols: slice) -> Weighed:
        body = self._body
        source = body.source[..., rows, cols]
        return weighed(source, body.a[..., rows, :], body.b[..., cols, :], body.alone)

    def _rows(self, index: Tensor) -> Weighed:
        """Some rows, in any order."""
        body, index = self._body, index.to(self.device)
        inner = body.source._body
        inner = replace(inner, problem=inner.problem.rows(index), state=None, lse=None)
        return weighed(wrap(inner), body.a[..., index, :], body.b, body.alone)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        what = "a factor per pair" if self._body.alone else "weights times a factor per pair"
        kept = sum(t.numel() * t.element_size() for t in (self._body.a, self._body.b))
        line = f"{what} {list(self.shape)} {str(self.dtype).removeprefix('torch.')} · keeps "
        return f"{entries_text(self)}\n{line}{size_text(kept + self.source.problem.nbytes)}"

    __str__ = __repr__  # type: ignore[assignment]

    def __copy__(self) -> Weighed:
        return weighed(self.source, self._body.a, self._body.b, self._body.alone)

    def __deepcopy__(self, memo: dict[int, Any]) -> Weighed:
        return weighed(
            copy.deepcopy(self.source, memo), self._body.a, self._body.b, self._body.alone
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return weighed, (self.source, self._body.a, self._body.b, self._body.alone)


def weighed(source: Weights, a: Tensor, b: Tensor, alone: bool = False) -> Weighed:
    """``W ∘ (a bᵀ)``, or with `alone` ``a bᵀ`` where W may see; a [..., Tq, F], b [..., Tk, F]."""
    source = source.detach()
    body = source._body
    if body.view.mean_heads:
        raise ArgumentError("Factors are of single heads: weigh before averaging over heads.")
    lead = source.shape[:-2]
    a, b = (t.detach().expand(*lead, *t.shape[-2:]) for t in (a, b))
    over = WeighedBody(
        body.problem, body.backend, body.axes, body.view, source=source, a=a, b=b, alone=alone
    )
    made = hollow(body.problem.q, over.shape).as_subclass(Weighed)
    made._body = over
    return made


def _as_slice(rows: Any) -> slice:
    return slice(rows, rows + 1) if isinstance(rows, int) else rows
