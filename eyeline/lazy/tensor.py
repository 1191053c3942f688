"""Weights: the attention weights as a tensor that is not there, computed where it is looked at."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from eyeline.backends import gradients
from eyeline.backends.reductions import (
    Entries,
    LogSumExp,
    TopKeys,
    TopQueries,
    WeightedColumns,
    WeightedSum,
)
from eyeline.errors import ArgumentError, ShapeError
from eyeline.lazy import indexing
from eyeline.lazy.indexing import ALL
from eyeline.lazy.matrix import (
    LazyMatrix,
    dense_limit,
    densely,
    hollow,
    nbytes,
    too_large,
)
from eyeline.lazy.parts import Body, block, choose_lead, choose_slices, entries, pairs
from eyeline.lazy.text import entries_text, summary
from eyeline.problem import Problem


class Weights(LazyMatrix):
    """The attention weights ``[..., Tq, Tk]``: a tensor computed where it is looked at, exactly.

    Printing, indexing, sums and products compute what they need and no more. Slices, batch entries
    and heads stay lazy; rows and columns picked by a number are tensors. Whatever else torch, numpy
    or matplotlib does to a tensor works up to ``eyeline.dense_limit`` bytes and raises `DenseError`
    above.

    >>> import torch, eyeline
    >>> q = k = torch.eye(3)
    >>> weights = eyeline.weights(q, k, eyeline.causal(), scale=2.0)
    >>> weights
    tensor([[1.0000, 0.0000, 0.0000],
            [0.1192, 0.8808, 0.0000],
            [0.1065, 0.1065, 0.7870]])
    weights [3, 3] float32 · causal() · keeps 120 bytes, the dense tensor would take 36 bytes
    >>> weights[-1]                      # where the last token looks
    tensor([0.1065, 0.1065, 0.7870])
    >>> weights.sum(-2)                  # what each key receives
    tensor([1.2257, 0.9873, 0.7870])
    """

    _body: Body

    @property
    def problem(self) -> Problem:
        """q, k, mask, bias and scale in eyeline's one form; frozen."""
        return self._body.problem

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the dimensions, ``("batch", "head", "query", "key")`` at rank 4."""
        return (*self._body.axes, "query", "key")

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether q, k, bias or sinks ask for a gradient."""
        return self._body.problem.requires_grad

    @property
    def lse(self) -> Tensor:
        """``log Σ exp(score)`` of each row ``[*lead, Tq]`` in nats, the sink included.

        -inf for a row that sees nothing.

        >>> import torch, eyeline
        >>> eyeline.weights(torch.zeros(2, 3), torch.ones(4, 3)).lse   # four scores of 0: log 4
        tensor([1.3863, 1.3863])
        """
        body = self._body
        if body.view.mean_heads:
            raise ArgumentError(
                "A mean over heads has no logsumexp. Take weights.lse before the mean."
            )
        body.problem.check_fresh()
        if body.lse is None:
            made = body.reduce_one(LogSumExp())
            body.lse = made[0].detach().reshape(body.problem.N, body.problem.Hq, body.problem.Tq)
            return made[0]
        known = gradients.lse(body.backend, body.problem, body.lse)
        return known.reshape(*body.problem.lead, body.problem.Tq)

    def detach(self) -> Weights:
        """The same weights without a gradient."""
        body = self._body
        return wrap(body.detach())

    def __getitem__(self, key: Any) -> Any:
        request = indexing.parse(key, tuple(self.shape))
        if request is None:
            return densely(torch.Tensor.__getitem__, "__getitem__", (self, key), {})
        self._body.problem.check_fresh()
        body, lead = self._body, request.lead
        if request.lazy or request.lead_is_basic:
            # Otherwise index tensors stand on both sides, and torch pairs them in the block below.
            body = choose_lead(body, lead)
            lead = (ALL,) * len(body.lead)
        if request.lazy:
            return wrap(choose_slices(body, request.rows, request.cols))
        if (
            request.lead_is_basic
            and isinstance(request.rows, Tensor)
            and isinstance(request.cols, Tensor)
        ):
            return pairs(body, request.rows, request.cols)
        dense, rows, cols = block(body, request.rows, request.cols)
        return torch.Tensor.__getitem__(dense, (*lead, rows, cols))

    def select(self, dim: int, index: Any) -> Any:
        """``weights[..., index, ...]`` with the index in dimension ``dim``."""
        return self[(ALL,) * self._dim(dim) + (index,)]

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """The entries along one dimension."""
        return tuple(self.select(dim, i) for i in range(self.shape[dim]))

    def _entries(self, what: str, limit: float) -> Tensor:
        if nbytes(self) > limit:
            raise too_large(what, self, nbytes(self), limit)
        return entries(self._body)

    def scores(self, rows: slice | None = None) -> Tensor:
        """The scores of some rows before the softmax, dense ``[*lead, R, Tk]``.

        They are scaled, capped and biased; -inf where hidden. DenseError above the limit.

        >>> import torch, eyeline
        >>> eyeline.weights(torch.eye(2), torch.eye(2), eyeline.causal(), scale=3.0).scores()
        tensor([[3., -inf],
                [0., 3.]])
        """
        if rows is not None and not isinstance(rows, slice):
            raise ArgumentError(f"scores(rows) takes a slice, as slice(0, 4), and got {rows!r}.")
        part = self if rows is None else wrap(choose_slices(self._body, rows, ALL))
        if not part._body.view.is_whole:
            raise ArgumentError(
                "Scores are of whole heads and rows: ask before slicing columns or averaging heads."
            )
        if nbytes(part) > dense_limit():
            raise too_large("scores", part, nbytes(part), dense_limit())
        return part._body.reduce_one(Entries(None, "scores"))[0]

    def sum(
        self,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        axis: Any = None,
    ) -> Tensor:
        """Sums over keys (-1), over queries (-2) or of all; other dimensions are summed densely."""
        dim = axis if dim is None else dim
        left = self._left(dim)
        if left is None or not isinstance(keepdim, bool):
            return cast(Tensor, densely(torch.sum, "sum", (self, dim, keepdim), {"dtype": dtype}))
        made = self._sums("key" if left == "all" else left)
        if left == "all":
            made = made.sum().reshape((1,) * self.dim() if keepdim else ())
        elif keepdim:
            made = made.unsqueeze(-1 if left == "query" else -2)
        return made.to(dtype or self.dtype)

    def mean(
        self,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        axis: Any = None,
    ) -> Tensor:
        """Means over keys (-1), queries (-2), all, or over heads: that one stays lazy."""
        dim = axis if dim is None else dim
        left = self._left(dim)
        if left is not None and isinstance(keepdim, bool):
            counts = {"query": self.shape[-1], "key": self.shape[-2]}
            total = self.sum(dim, keepdim, dtype=self._body.problem.statistics)
            return (total / counts.get(left, math.prod(self.shape))).to(dtype or self.dtype)
        body = self._body
        heads_last = (
            body.axes and body.axes[-1] == "head" and body.problem.lead[-1:] == (body.problem.Hq,)
        )
        over_heads = isinstance(dim, int) and self._dim(dim) == self.dim() - 3
        if over_heads and heads_last and keepdim is False and dtype is None:
            view = replace(body.view, mean_heads=True)
            return wrap(replace(body, view=view, axes=body.axes[:-1], state=None, lse=None))
        return cast(Tensor, densely(torch.mean, "mean", (self, dim, keepdim), {"dtype": dtype}))

    def max(self, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
        """The largest weight over keys (-1) or queries (-2) with its index, or the largest of all.

        The index is that of the first of equals, -1 where nothing is seen.
        """
        dim = axis if dim is None else dim
        if dim is None:
            return self._largest(1, "query")[0].max()
        left = self._left(dim) if isinstance(dim, int) else None
        if left is None:
            args = (self, dim, keepdim) if isinstance(dim, int) else (self, dim)
            return densely(torch.max, "max", args, {})
        values, indices = self._largest(1, left)
        if not keepdim:
            values, indices = values.squeeze(-1), indices.squeeze(-1)
        elif left == "key":
            values, indices = values.mT, indices.mT
        return torch.return_types.max((values, indices))

    def amax(self, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
        """The largest weight over keys (-1) or queries (-2), or of all."""
        dim = axis if dim is None else dim
        left = self._left(dim)
        if left is None or (left == "all" and keepdim):
            dims = () if dim is None else dim
            return cast(Tensor, densely(torch.amax, "amax", (self, dims, keepdim), {}))
        if left == "all":
            return cast(Tensor, self.max())
        return cast(Tensor, self.max(dim if isinstance(dim, int) else dim[0], keepdim).values)

    def argmax(self, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
        """The key (-1) or query (-2) with the largest weight, the first of equals.

        -1 where nothing is seen.
        """
        dim = axis if dim is None else dim
        if isinstance(dim, int) and self._left(dim) is not None:
            return cast(Tensor, self.max(dim, keepdim).indices)
        return cast(Tensor, densely(torch.argmax, "argmax", (self, dim, keepdim), {}))

    def topk(self, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        """The k largest weights over keys (-1) or queries (-2), with their indices.

        The index is -1 where fewer than k are seen.
        """
        left = self._left(dim)
        if left in (None, "all") or not largest or not 0 < k <= self.shape[dim]:
            return densely(torch.topk, "topk", (self, k, dim, largest, sorted), {})
        values, indices = self._largest(k, left)
        if left == "key":
            values, indices = values.mT, indices.mT
        return torch.return_types.topk((values, indices))

    def _dim(self, dim: int, rank: int | None = None) -> int:
        """A dimension counted from 0; IndexError where there is none such."""
        rank = self.dim() if rank is None else rank
        if not -rank <= dim < rank:
            raise IndexError(
                f"Dimension out of range: weights {list(self.shape)} have none numbered {dim}."
            )
        return dim % rank

    def _left(self, dim: Any) -> str | None:
        """What reducing over ``dim`` leaves: "query" (over keys), "key" (over queries) or "all".

        "all" means a number. None where the reduction is not lazy.
        """
        if dim is None:
            return "all"
        if isinstance(dim, (tuple, list)):
            if len(dim) != 1:
                return None
            dim = dim[0]
        if not isinstance(dim, int) or isinstance(dim, bool):
            return None
        return {self.dim() - 1: "query", self.dim() - 2: "key"}.get(self._dim(dim))

    def _sums(self, left: str) -> Tensor:
        problem = self._body.problem
        ones = torch.ones(
            1, 1, self.shape[-1] if left == "query" else self.shape[-2], 1, device=problem.q.device
        )
        question = WeightedSum(ones) if left == "query" else WeightedColumns(ones)
        return self._body.reduce_one(question)[0].squeeze(-1)

    def _largest(self, k: int, left: str) -> tuple[Tensor, Tensor]:
        values, indices = self._body.reduce_one(TopKeys(k) if left == "query" else TopQueries(k))
        return values.to(self.dtype), indices

    def __matmul__(self, x: Any) -> Tensor:
        """``weights @ x`` in linear memory; x is ``[Tk]``, ``[Tk, F]`` or ``[*lead, Tk, F]``."""
        if not _is_factor(x, self.shape[:-2]):
            return cast(Tensor, densely(torch.matmul, "matmul", (self, x), {}))
        return product(self, self._body, x, WeightedSum)

    def matmul(self, other: Any) -> Tensor:
        """The same as ``weights @ other``."""
        return self.__matmul__(other)

    def __rmatmul__(self, y: Any) -> Tensor:
        """``y @ weights`` is ``(weights.mT @ y.mT).mT``."""
        if not _is_factor(y, self.shape[:-2]):
            return cast(Tensor, densely(torch.matmul, "matmul", (y, self), {}))
        made: Tensor = self.mT @ (y if y.dim() == 1 else y.mT)
        return made if y.dim() == 1 else made.mT

    @property
    def mT(self) -> TransposedWeights:  # type: ignore[override]
        """The transposed weights; ``weights.mT @ y`` is computed without them."""
        return transposed(self)

    @property
    def T(self) -> Any:  # type: ignore[override]
        """`mT` of two dimensions; more are turned around densely, as in torch."""
        return self.mT if self.dim() == 2 else densely(lambda w: w.T, "T", (self,), {})

    def transpose(self, dim0: int, dim1: int) -> Any:
        """`mT` for the last two dimensions; any other pair is swapped densely."""
        if {self._dim(dim0), self._dim(dim1)} == {self.dim() - 1, self.dim() - 2}:
            return self.mT
        return densely(torch.transpose, "transpose", (self, dim0, dim1), {})

    def squeeze(self, dim: Any = None) -> Any:  # type: ignore[override]
        """Without leading dimensions of 1, lazily; queries and keys are squeezed densely."""
        lead = len(self.shape) - 2
        if dim is None and 1 not in self.shape[-2:]:
            return self[tuple(0 if size == 1 else ALL for size in self.shape[:-2])]
        if isinstance(dim, int) and self._dim(dim) < lead:
            return self.select(dim, 0) if self.shape[dim] == 1 else self
        return densely(torch.squeeze, "squeeze", (self,) if dim is None else (self, dim), {})

    def unsqueeze(self, dim: int) -> Any:
        """With a new dimension of 1, lazily where it stands before the queries."""
        at = self._dim(dim, self.dim() + 1)
        if at <= self.dim() - 2:
            return self[(ALL,) * at + (None,)]
        return densely(torch.unsqueeze, "unsqueeze", (self, dim), {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{entries_text(self)}\n{summary(self)}"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        # Only a notebook needs the drawing code.
        notebook = importlib.import_module("eyeline.views.notebook")
        return cast(str, notebook.weights_html(self))

    def __copy__(self) -> Weights:
        return wrap(self._body)

    def __deepcopy__(self, memo: dict[int, Any]) -> Weights:
        problem = self._body.problem
        problem.check_fresh()
        tensors = {
            n: t if t is None else copy.deepcopy(t, memo) for n, t in problem.tensors.items()
        }
        copied = replace(problem.with_tensors(tensors), versions=())
        return wrap(replace(self._body, problem=copied))

    def __reduce_ex__(self, protocol: Any) -> Any:
        body = self._body
        body.problem.check_fresh()
        return wrap, (replace(body, problem=replace(body.problem.detach(), versions=())),)


class TransposedWeights(LazyMatrix):
    """``weights.mT`` ``[..., Tk, Tq]``: a product with it sums over the queries, lazily.

    Everything else is the dense transpose, up to ``eyeline.dense_limit``.
    """

    _weights: Weights

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the weights carry a gradient."""
        return self._weights.requires_grad

    @property
    def mT(self) -> Weights:  # type: ignore[override]
        """The weights themselves."""
        return self._weights

    def __matmul__(self, y: Any) -> Tensor:
        """Columns summed with weights y ``[Tq]``, ``[Tq, F]`` or ``[*lead, Tq, F]``."""
        if not _is_factor(y, self.shape[:-2]):
            return cast(Tensor, densely(torch.matmul, "matmul", (self, y), {}))
        return product(self, self._weights._body, y, WeightedColumns)

    def matmul(self, other: Any) -> Tensor:
        """The same as ``weights.mT @ other``."""
        return self.__matmul__(other)

    def _entries(self, what: str, limit: float) -> Tensor:
        return self._weights._entries(what, limit).mT

    def __getitem__(self, key: Any) -> Any:
        return densely(torch.Tensor.__getitem__, "__getitem__", (self, key), {})

    def detach(self) -> TransposedWeights:
        """The same without a gradient."""
        return transposed(self._weights.detach())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"the transpose of\n{self._weights!r}"


def wrap(body: Body) -> Weights:
    """The Weights of a body."""
    made = hollow(body.problem.q, body.shape).as_subclass(Weights)
    made._body = body
    return made


def transposed(weights: Weights) -> TransposedWeights:
    """The transposed weights."""
    shape = (*weights.shape[:-2], weights.shape[-1], weights.shape[-2])
    made = hollow(weights._body.problem.q, shape).as_subclass(TransposedWeights)
    made._weights = weights
    return made


def product(
    matrix: LazyMatrix,
    body: Body,
    x: Tensor,
    question: Callable[[Tensor], WeightedSum | WeightedColumns],
) -> Tensor:
    """``matrix @ x`` for x ``[n]``, ``[n, F]`` or ``[*lead, n, F]``, in the promoted dtype."""
    vector = x.dim() == 1
    if x.shape[-1 if vector else -2] != matrix.shape[-1]:
        raise ShapeError(
            f"{list(matrix.shape)} @ {list(x.shape)}: the right side needs "
            f"{matrix.shape[-1]} rows, one for each column of the left."
        )
    made = body.reduce_one(question(body.factor(x.unsqueeze(-1) if vector else x)))[0]
    out = made.to(torch.promote_types(matrix.dtype, x.dtype))
    return out.squeeze(-1) if vector else out


def _is_factor(x: Any, lead: Sequence[int]) -> bool:
    """Whether ``x`` is a plain tensor whose leading dimensions broadcast to the weights'."""
    if (
        not isinstance(x, Tensor)
        or isinstance(x, LazyMatrix)
        or not x.is_floating_point()
        or x.dim() == 0
    ):
        return False
    own = x.shape[:-2]
    return len(own) <= len(lead) and all(
        a in (1, b) for a, b in zip(reversed(own), reversed(lead), strict=False)
    )
