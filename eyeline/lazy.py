"""Weights: the attention weights as a tensor that is not there, computed where it is looked at."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from eyeline import indexing
from eyeline.backends import gradients
from eyeline.backends.base import Backend, Result, State
from eyeline.backends.reductions import (
    Entries,
    LogSumExp,
    Reduction,
    RowState,
    TopKeys,
    TopQueries,
    View,
    WeightedColumns,
    WeightedSum,
)
from eyeline.errors import ArgumentError, DenseError, ShapeError
from eyeline.problem import Problem, canonical

ALL = indexing.ALL
ASK = "Ask for rows (weights[0, 3, -1]), eyeline.received, eyeline.top, weights @ x"
HINTS = {
    "array": "For a picture use eyeline.readings.pooled(weights, 256, 256).values",
    "stack": "For a picture use eyeline.readings.pooled(weights, 256, 256).values",
    "tolist": "For a picture use eyeline.readings.pooled(weights, 256, 256).values",
    "numpy": "For a picture use eyeline.readings.pooled(weights, 256, 256).values",
    "log": "For -Σ w log w use eyeline.entropy(weights)",
    "sort": "For the largest weights of each row use eyeline.top(weights, k)",
    "argsort": "For the largest weights of each row use eyeline.top(weights, k)",
    "cumsum": "For the share of a range of keys use eyeline.readings.mass(weights, spans)",
    "diagonal": "For one diagonal use eyeline.readings.diagonal(weights, offset)",
}


def dense_limit() -> int:
    """The bytes up to which the whole matrix is made without being asked: ``eyeline.dense_limit``."""
    return int(sys.modules["eyeline"].dense_limit)


@dataclass(eq=False)
class Body:
    """What a Weights is made of."""

    problem: Problem
    backend: Backend
    axes: tuple[str, ...]  # names of the leading dimensions
    view: View = View()
    lse: Tensor | None = None  # without a gradient
    state: State | None = None


class LazyMatrix(torch.Tensor):
    """A tensor whose entries are computed when asked for; its storage is one NaN, which no one should see."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name == "__get__" or name in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name == "__set__" or name == "__setitem__" or (name.endswith("_") and not name.startswith("__")):
            raise ArgumentError(
                f"{name} would change weights in place. They are computed from q and k, not stored: "
                "take a copy with weights.to_dense()."
            )
        own = LAZY.get(name)
        if own is not None and args and isinstance(args[0], cls):
            return getattr(args[0], own)(*args[1:], **kwargs)
        if name in ("matmul", "__rmatmul__") and len(args) == 2 and isinstance(args[1], cls):
            left, right = args if name == "matmul" else (args[0], args[1])
            return right.__rmatmul__(left)
        return densely(func, name, args, kwargs)

    def _entries(self, what: str, limit: float) -> Tensor:
        """The dense matrix, or DenseError."""
        raise NotImplementedError

    def to_dense(self, dtype: torch.dtype | None = None, *, limit: float | None = None, **_: Any) -> Tensor:  # type: ignore[override]
        """The whole matrix as an ordinary tensor, up to ``limit`` bytes (``eyeline.dense_limit`` unless given)."""
        made = self._entries("to_dense", dense_limit() if limit is None else limit)
        return made if dtype is None else made.to(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        made = self._entries("__array__", dense_limit()).detach().cpu()
        made = made.float() if made.dtype == torch.bfloat16 else made
        array = made.numpy()
        return array if dtype is None else array.astype(dtype)

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else format(self.to_dense(), spec)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __hash__(self) -> int:
        return id(self)


# What a tensor can say of itself without its entries.
METADATA = frozenset(
    "size dim ndimension numel nelement element_size is_floating_point is_complex is_signed is_inference "
    "__len__ get_device is_sparse is_conj is_neg is_same_size type_as_meta has_names".split()
)
# Functions of torch that have a lazy form, by the method of Weights that has it.
LAZY = {
    "sum": "sum",
    "mean": "mean",
    "max": "max",
    "amax": "amax",
    "argmax": "argmax",
    "topk": "topk",
    "matmul": "__matmul__",
    "__matmul__": "__matmul__",
    "__getitem__": "__getitem__",
    "select": "select",
    "detach": "detach",
    "transpose": "transpose",
    "swapaxes": "transpose",
    "squeeze": "squeeze",
    "unsqueeze": "unsqueeze",
    "unbind": "unbind",
}


def densely(func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function of torch with dense tensors in place of lazy ones, together within the limit."""
    lazy = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, LazyMatrix)]
    total = sum(nbytes(t) for t in lazy)
    if total > dense_limit():
        raise too_large(name, lazy[0], total, dense_limit())

    def dense(t: Any) -> Any:
        return t._entries(name, math.inf) if isinstance(t, LazyMatrix) else t

    return func(*tree_map(dense, tuple(args)), **tree_map(dense, kwargs))


def nbytes(matrix: Tensor) -> int:
    """Bytes of the dense form."""
    return math.prod(matrix.shape) * matrix.dtype.itemsize


def size_text(count: float) -> str:
    """Bytes for people: 309 MiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.{0 if count / size >= 10 else 1}f} {unit}"
    return f"{count:.0f} bytes"


def too_large(name: str, matrix: Tensor, count: int, limit: float) -> DenseError:
    plain = name.strip("_")
    what = f"{list(matrix.shape)} {str(matrix.dtype).removeprefix('torch.')}"
    hint = HINTS.get(plain, ASK)
    return DenseError(
        f"{plain} needs the whole matrix {what}: {size_text(count)}, and eyeline.dense_limit is {size_text(limit)}.\n"
        f"{hint}; they need no such memory. If you do want it all: weights.to_dense(limit={count})."
    )


class Weights(LazyMatrix):
    """The attention weights ``[..., Tq, Tk]``: a tensor that is computed where it is looked at, exactly.

    Printing, indexing, sums and products compute what they need and no more. Slices, batch entries and heads stay lazy;
    rows and columns picked by a number are tensors. Whatever else torch, numpy or matplotlib does to a tensor works up to
    ``eyeline.dense_limit`` bytes and raises `DenseError` above.

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

    # -- what it is ----------------------------------------------------------------------------------------------

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
        return self._body.problem.requires_grad

    @property
    def lse(self) -> Tensor:
        """``log Σ exp(score)`` of each row ``[*lead, Tq]`` in nats, the sink included; -inf for a row that sees nothing.

        >>> import torch, eyeline
        >>> eyeline.weights(torch.zeros(2, 3), torch.ones(4, 3)).lse   # four equal scores of 0: log 4
        tensor([1.3863, 1.3863])
        """
        body = self._body
        if body.view.mean_heads:
            raise ArgumentError("A mean over heads has no logsumexp. Take weights.lse before the mean.")
        body.problem.check_fresh()
        if body.lse is None:
            (made,) = reduce(self, [LogSumExp()])
            body.lse = made[0].detach().reshape(body.problem.N, body.problem.Hq, body.problem.Tq)
            return made[0]
        known = gradients.lse(body.backend, body.problem, body.lse)
        return known.reshape(*body.problem.lead, body.problem.Tq)

    def detach(self) -> Weights:
        """The same weights without a gradient."""
        body = self._body
        return wrap(replace(body, problem=body.problem.detach()))

    # -- looking at parts ----------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        request = indexing.parse(key, tuple(self.shape))
        if request is None:
            return densely(torch.Tensor.__getitem__, "__getitem__", (self, key), {})
        self._body.problem.check_fresh()
        if request.lazy or request.lead_is_basic:
            chosen = self._lead(request.lead)
        else:
            chosen = self  # index tensors on both sides go together: torch pairs them up below
        if request.lazy:
            return chosen._slices(request.rows, request.cols)
        block, rows, cols = chosen._block(request.rows, request.cols)
        lead = request.lead if chosen is self and not request.lead_is_basic else (ALL,) * len(body_lead(chosen._body))
        return torch.Tensor.__getitem__(block, (*lead, rows, cols))

    def select(self, dim: int, index: int) -> Any:
        """``weights[..., index, ...]`` with the index in dimension ``dim``."""
        return self[(ALL,) * (dim % self.dim()) + (index,)]

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """The entries along one dimension."""
        return tuple(self.select(dim, i) for i in range(self.shape[dim]))

    def _lead(self, lead: tuple[Any, ...]) -> Weights:
        if all(isinstance(k, slice) and k == ALL for k in lead):
            return self
        body = self._body
        shape = body_lead(body)
        grid = torch.arange(math.prod(shape)).reshape(shape)[lead]
        problem = body.problem
        if body.view.mean_heads:
            # The lead has no head: choose batch entries with all of their heads.
            heads = torch.arange(problem.Hq)
            flat = (grid.flatten()[:, None] * problem.Hq + heads).flatten()
            chosen = problem.select(flat, (*grid.shape, problem.Hq))
            if chosen.Hq != problem.Hq:
                raise ArgumentError("Choose batch entries before taking the mean over heads.")
        else:
            flat = grid.flatten()
            chosen = problem.select(flat.to(problem.q.device), tuple(grid.shape))
        axes = indexing.axes_after(body.axes, lead)
        return wrap(replace(body, problem=chosen, axes=axes, **_picked(body, flat.to(problem.q.device), chosen)))

    def _slices(self, rows: slice, cols: slice) -> Weights:
        body = self._body
        if rows != ALL:
            state = None if body.state is None else State(body.state.m[:, :, rows], body.state.l[:, :, rows])
            lse = None if body.lse is None else body.lse[:, :, rows]
            body = replace(body, problem=body.problem.rows(rows), state=state, lse=lse)
        if cols != ALL:
            chosen = indexing.composed(body.view.cols, cols, body.problem.Tk)
            body = replace(body, view=replace(body.view, cols=chosen))
        return self if body is self._body else wrap(body)

    def _block(self, rows: Any, cols: Any) -> tuple[Tensor, Any, Any]:
        """The dense block that the row and column indices need, and their places in it."""
        part, at_rows = self, rows
        if isinstance(rows, int):
            part, at_rows = self._slices(slice(rows, rows + 1), ALL), 0
        elif isinstance(rows, Tensor):
            body = self._body
            flat = rows.flatten().to(body.problem.q.device)
            part = wrap(replace(body, problem=body.problem.rows(flat), state=None, lse=None))
            at_rows = torch.arange(rows.numel(), device=flat.device).view(rows.shape)
        else:
            part, at_rows = self._slices(rows, ALL), ALL
        if isinstance(cols, slice):
            return part._slices(ALL, cols)._entries("__getitem__", math.inf), at_rows, ALL
        device = self._body.problem.q.device
        chosen = torch.tensor([cols]) if isinstance(cols, int) else cols.flatten()
        at_cols = 0 if isinstance(cols, int) else torch.arange(cols.numel(), device=device).view(cols.shape)
        block = part._columns(chosen.to(device), alone=isinstance(rows, slice))
        return block, at_rows, at_cols

    def _columns(self, cols: Tensor, alone: bool) -> Tensor:
        """Columns of every row. Of many rows they come from the state (O(T)); of picked rows, from those rows."""
        body = self._body
        if not alone or body.view.mean_heads:
            (made,) = reduce(self, [Entries(cols)])
            return made[0].to(body.problem.q.dtype)
        if body.view.cols is not None:
            every = torch.arange(body.problem.Tk, device=cols.device)[body.view.cols]
            cols = every[cols]
        made = gradients.columns(body.backend, body.problem, state_of(self), cols)
        return made.reshape(*body.problem.lead, body.problem.Tq, len(cols)).to(body.problem.q.dtype)

    def _entries(self, what: str, limit: float) -> Tensor:
        if nbytes(self) > limit:
            raise too_large(what, self, nbytes(self), limit)
        (made,) = reduce(self, [Entries()])
        return made[0].to(self._body.problem.q.dtype)

    def scores(self, rows: slice | None = None) -> Tensor:
        """The scores before the softmax (scaled, capped, biased; -inf where hidden) of some rows ``[*lead, R, Tk]``.

        >>> import torch, eyeline
        >>> eyeline.weights(torch.eye(2), torch.eye(2), eyeline.causal(), scale=3.0).scores()
        tensor([[3., -inf],
                [0., 3.]])
        """
        part = self if rows is None else self._slices(rows, ALL)
        if part._body.view != View():
            raise ArgumentError("Scores are of whole heads and rows: ask before slicing columns or averaging heads.")
        if nbytes(part) > dense_limit():
            raise too_large("scores", part, nbytes(part), dense_limit())
        (made,) = reduce(part, [Entries(None, "scores")])
        return made[0]

    # -- sums, means, maxima -------------------------------------------------------------------------------------

    def sum(self, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:  # type: ignore[override]
        """Sums over keys (-1), over queries (-2) or of all; other dimensions go through the dense tensor."""
        axis = self._axis(dim)
        if axis is None:
            return densely(torch.sum, "sum", (self, dim, keepdim), {"dtype": dtype})  # type: ignore[no-any-return]
        made = self._sums("key" if axis == "all" else axis)
        if axis == "all":
            made = made.sum()
        elif keepdim:
            made = made.unsqueeze(-1 if axis == "query" else -2)
        return made.to(dtype or self.dtype)

    def mean(self, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:  # type: ignore[override]
        """Means over keys (-1), queries (-2), all, or over heads: that one stays lazy."""
        axis = self._axis(dim)
        if axis is not None:
            count = {"query": self.shape[-1], "key": self.shape[-2]}.get(axis, math.prod(self.shape))
            total = self.sum(dim, keepdim, dtype=self._body.problem.statistics)
            return (total / count).to(dtype or self.dtype)
        body = self._body
        heads_last = body.axes and body.axes[-1] == "head" and body.problem.lead[-1:] == (body.problem.Hq,)
        over_heads = isinstance(dim, int) and dim % self.dim() == self.dim() - 3
        if over_heads and heads_last and not keepdim and dtype is None and not body.view.mean_heads:
            view = replace(body.view, mean_heads=True)
            return wrap(replace(body, view=view, axes=body.axes[:-1], state=None, lse=None))
        return densely(torch.mean, "mean", (self, dim, keepdim), {"dtype": dtype})  # type: ignore[no-any-return]

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:  # type: ignore[override]
        """The largest weight over keys (-1) or queries (-2) with its index, -1 where nothing is seen; or of all."""
        axis = "all" if dim is None else self._axis(dim) if isinstance(dim, int) else None
        if axis is None:
            return densely(torch.max, "max", (self, dim, keepdim) if isinstance(dim, int) else (self, dim), {})
        values, indices = self._largest(1, "query" if axis == "all" else axis)
        if axis == "all":
            return values.max()
        if not keepdim:
            values, indices = values.squeeze(-1), indices.squeeze(-1)
        elif axis == "key":
            values, indices = values.mT, indices.mT
        return torch.return_types.max((values, indices))

    def amax(self, dim: Any = None, keepdim: bool = False) -> Tensor:  # type: ignore[override]
        """The largest weight over keys (-1) or queries (-2)."""
        if isinstance(dim, int) and self._axis(dim) is not None:
            return self.max(dim, keepdim).values  # type: ignore[no-any-return]
        return densely(torch.amax, "amax", (self, () if dim is None else dim, keepdim), {})  # type: ignore[no-any-return]

    def argmax(self, dim: Any = None, keepdim: bool = False) -> Tensor:  # type: ignore[override]
        """The key (-1) or query (-2) with the largest weight, the first of equals; -1 where nothing is seen."""
        if isinstance(dim, int) and self._axis(dim) is not None:
            return self.max(dim, keepdim).indices  # type: ignore[no-any-return]
        return densely(torch.argmax, "argmax", (self, dim, keepdim), {})  # type: ignore[no-any-return]

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # type: ignore[override]
        """The k largest weights over keys (-1) or queries (-2), with their indices (-1 where fewer are seen)."""
        axis = self._axis(dim)
        if axis is None or axis == "all" or not largest or not 0 < k <= self.shape[dim]:
            return densely(torch.topk, "topk", (self, k, dim, largest, sorted), {})
        values, indices = self._largest(k, axis)
        if axis == "key":
            values, indices = values.mT, indices.mT
        return torch.return_types.topk((values, indices))

    def _axis(self, dim: Any) -> str | None:
        """What remains after reducing over ``dim``: "query" (over keys), "key" (over queries), "all", or None: not lazy."""
        if dim is None:
            return "all"
        if isinstance(dim, (tuple, list)):
            if len(dim) != 1:
                return None
            dim = dim[0]
        if not isinstance(dim, int) or not -self.dim() <= dim < self.dim():
            return None
        return {self.dim() - 1: "query", self.dim() - 2: "key"}.get(dim % self.dim())

    def _sums(self, axis: str) -> Tensor:
        problem = self._body.problem
        ones = torch.ones(1, 1, self.shape[-1] if axis == "query" else self.shape[-2], 1, device=problem.q.device)
        question = WeightedSum(ones) if axis == "query" else WeightedColumns(ones)
        (made,) = reduce(self, [question])
        return made[0].squeeze(-1)

    def _largest(self, k: int, axis: str) -> tuple[Tensor, Tensor]:
        (made,) = reduce(self, [TopKeys(k) if axis == "query" else TopQueries(k)])
        return made[0].to(self.dtype), made[1]

    # -- products ------------------------------------------------------------------------------------------------

    def __matmul__(self, x: Any) -> Tensor:  # type: ignore[override]
        """``weights @ x`` for x ``[Tk]``, ``[Tk, F]`` or ``[*lead, Tk, F]``, without the weights."""
        if not _is_factor(x, self.shape[:-2]):
            return densely(torch.matmul, "matmul", (self, x), {})  # type: ignore[no-any-return]
        return product(self, x, self.shape[-1], WeightedSum)

    matmul = __matmul__  # type: ignore[assignment]

    def __rmatmul__(self, y: Any) -> Tensor:
        """``y @ weights`` is ``(weights.mT @ y.mT).mT``."""
        if not _is_factor(y, self.shape[:-2]):
            return densely(torch.matmul, "matmul", (y, self), {})  # type: ignore[no-any-return]
        made = self.mT @ (y if y.dim() == 1 else y.mT)
        return made if y.dim() == 1 else made.mT

    @property
    def mT(self) -> TransposedWeights:  # type: ignore[override]
        """The transposed weights; ``weights.mT @ y`` is computed without them."""
        return transposed(self)

    @property
    def T(self) -> Any:  # type: ignore[override]
        return self.mT if self.dim() == 2 else densely(lambda w: w.T, "T", (self,), {})

    def transpose(self, dim0: int, dim1: int) -> Any:  # type: ignore[override]
        if {dim0 % self.dim(), dim1 % self.dim()} == {self.dim() - 1, self.dim() - 2}:
            return self.mT
        return densely(torch.transpose, "transpose", (self, dim0, dim1), {})

    def squeeze(self, dim: Any = None) -> Any:  # type: ignore[override]
        lead = len(self.shape) - 2
        if dim is None and 1 not in self.shape[-2:]:
            return self[tuple(0 if size == 1 else ALL for size in self.shape[:-2])]
        if isinstance(dim, int) and dim % self.dim() < lead:
            return self.select(dim, 0) if self.shape[dim] == 1 else self
        return densely(torch.squeeze, "squeeze", (self,) if dim is None else (self, dim), {})

    def unsqueeze(self, dim: int) -> Any:  # type: ignore[override]
        at = dim % (self.dim() + 1)
        if at <= self.dim() - 2:
            return self[(ALL,) * at + (None,)]
        return densely(torch.unsqueeze, "unsqueeze", (self, dim), {})

    # -- shown, copied -------------------------------------------------------------------------------------------

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{entries_text(self)}\n{summary(self)}"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        # Only a notebook needs the drawing code.
        return importlib.import_module("eyeline.views.notebook").weights_html(self)  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Weights:
        copied = torch.utils._pytree.tree_map(lambda t: t, self._body)
        problem = copied.problem
        tensors = {n: t if t is None else _deep(t, memo) for n, t in problem.tensors.items()}
        return wrap(replace(copied, problem=replace(problem.with_tensors(tensors), versions=())))

    def __reduce_ex__(self, protocol: Any) -> Any:
        body = self._body
        return wrap, (replace(body, problem=replace(body.problem.detach(), versions=())),)


def _deep(t: Tensor, memo: dict[int, Any]) -> Tensor:
    return t.__deepcopy__(memo)


class TransposedWeights(LazyMatrix):
    """``weights.mT``: a product with it sums over the queries. Everything else is the dense transpose, up to the limit."""

    _weights: Weights

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return self._weights.requires_grad

    @property
    def mT(self) -> Weights:  # type: ignore[override]
        return self._weights

    def __matmul__(self, y: Any) -> Tensor:  # type: ignore[override]
        if not _is_factor(y, self.shape[:-2]):
            return densely(torch.matmul, "matmul", (self, y), {})  # type: ignore[no-any-return]
        return product(self._weights, y, self.shape[-1], WeightedColumns)

    matmul = __matmul__  # type: ignore[assignment]

    def _entries(self, what: str, limit: float) -> Tensor:
        return self._weights._entries(what, limit).mT

    def __getitem__(self, key: Any) -> Any:
        return densely(torch.Tensor.__getitem__, "__getitem__", (self, key), {})

    def detach(self) -> TransposedWeights:
        return transposed(self._weights.detach())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"the transpose of\n{self._weights!r}"


def _hollow(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor of this shape that holds one NaN: code that reads its memory gets NaN, not plausible numbers."""
    return like.detach().new_full((), float("nan")).expand(shape)


def wrap(body: Body) -> Weights:
    """The Weights of a body."""
    problem = body.problem
    shape = (*body_lead(body), problem.Tq, body.view.width(problem.Tk))
    made = _hollow(problem.q, shape).as_subclass(Weights)
    made._body = body
    return made


def body_lead(body: Body) -> tuple[int, ...]:
    """The leading shape as the caller sees it."""
    return body.problem.lead[:-1] if body.view.mean_heads else body.problem.lead


def transposed(weights: Weights) -> TransposedWeights:
    shape = (*weights.shape[:-2], weights.shape[-1], weights.shape[-2])
    made = _hollow(weights._body.problem.q, shape).as_subclass(TransposedWeights)
    made._weights = weights
    return made


def reduce(weights: Weights, reductions: Sequence[Reduction]) -> list[Result]:
    """Reductions of the weights in one pass, in the caller's leading shape and the statistics dtype."""
    body = weights._body
    body.problem.check_fresh()
    lead = tuple(weights.shape[:-2])
    results = gradients.reduce(body.backend, body.problem, reductions, body.view)
    return [
        result
        if reduction.whole and reduction.join == "sum"
        else tuple(t.reshape(*lead, *t.shape[2:]) for t in result)
        for reduction, result in zip(reductions, results, strict=True)
    ]


def state_of(weights: Weights) -> State:
    """m and l of every row, computed when first needed and kept."""
    body = weights._body
    if body.state is None:
        with torch.no_grad():
            ((m, total),) = gradients.reduce(body.backend, body.problem, [RowState()])
        body.state = State(m, total)
    return body.state


def factor(weights: Weights, x: Tensor) -> Tensor:
    """A factor ``[..., T, F]`` that broadcasts against the weights' lead, in eyeline's form ``[N|1, H|1, T, F]``."""
    problem = weights._body.problem
    heads = 1 if weights._body.view.mean_heads else problem.Hq
    return canonical(x, tuple(weights.shape[:-2]), problem.N, heads)


def product(
    weights: Weights, x: Tensor, size: int, question: Callable[[Tensor], WeightedSum | WeightedColumns]
) -> Tensor:
    vector = x.dim() == 1
    if x.shape[-1 if vector else -2] != size:
        raise ShapeError(
            f"weights {list(weights.shape)} @ x {list(x.shape)}: x needs {size} rows, one for each of the weights' columns."
        )
    (made,) = reduce(weights, [question(factor(weights, x.unsqueeze(-1) if vector else x))])
    out = made[0].to(torch.promote_types(weights.dtype, x.dtype))
    return out.squeeze(-1) if vector else out


def _is_factor(x: Any, lead: Sequence[int]) -> bool:
    """Whether ``x`` is a plain tensor whose leading dimensions broadcast to the weights'."""
    if not isinstance(x, Tensor) or isinstance(x, LazyMatrix) or not x.is_floating_point() or x.dim() == 0:
        return False
    own = x.shape[:-2]
    return len(own) <= len(lead) and all(a in (1, b) for a, b in zip(reversed(own), reversed(lead), strict=False))


def _picked(body: Body, flat: Tensor, chosen: Problem) -> dict[str, Any]:
    """The state and lse of chosen (batch, head) pairs."""
    if body.view.mean_heads:
        return {"state": None, "lse": None}

    def pick(t: Tensor) -> Tensor:
        return t.flatten(0, 1)[flat].reshape(chosen.N, chosen.Hq, chosen.Tq)

    state = None if body.state is None else State(pick(body.state.m), pick(body.state.l))
    return {"state": state, "lse": None if body.lse is None else pick(body.lse)}


def entries_text(weights: Weights) -> str:
    """What torch prints for the dense tensor, computing only the entries that it prints."""
    options = torch._tensor_str.PRINT_OPTS
    if math.prod(weights.shape) <= options.threshold:
        return repr(weights._entries("print", math.inf).detach())
    edge = max(int(options.edgeitems), 1)
    # A stand-in with one filler entry where torch writes "...": it prints the same text.
    ends = [list(range(edge)) + list(range(n - edge, n)) if n > 2 * edge else list(range(n)) for n in weights.shape]
    shown: Any = weights.detach()
    for dim, kept in enumerate(ends[:-2]):
        shown = shown[(ALL,) * dim + (torch.tensor(kept),)]
    block = shown[..., torch.tensor(ends[-2]), :][..., torch.tensor(ends[-1])]
    for dim, (n, kept) in enumerate(zip(weights.shape, ends, strict=True)):
        if n > 2 * edge:
            first, last = block.split([edge, len(kept) - edge], dim)
            block = torch.cat((first, torch.zeros_like(first.narrow(dim, 0, 1)), last), dim)
    with torch._tensor_str.printoptions(threshold=0):
        return repr(block)


def summary(weights: Weights) -> str:
    """One line: shape, mask, what the weights keep and what the dense tensor would take."""
    body = weights._body
    parts = [f"weights {list(weights.shape)} {str(weights.dtype).removeprefix('torch.')}"]
    if body.view.mean_heads:
        parts.append(f"mean of {body.problem.Hq} heads")
    if body.problem.rule is not None:
        parts.append(body.problem.rule.formula)
    kept, dense = size_text(body.problem.nbytes), size_text(nbytes(weights))
    parts.append(f"keeps {kept}, the dense tensor would take {dense}")
    return " · ".join(parts)
