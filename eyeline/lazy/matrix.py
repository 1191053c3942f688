"""A tensor that is not there: its torch functions, and its dense form up to a limit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from eyeline.errors import ArgumentError, DenseError

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


def dense_limit() -> float:
    """``eyeline.dense_limit``: the bytes up to which the whole matrix is made unasked."""
    return float(sys.modules["eyeline"].dense_limit)


class LazyMatrix(torch.Tensor):
    """A tensor whose entries are computed when asked for.

    Its storage is one NaN, which no one should see.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not args and isinstance(kwargs.get("input"), LazyMatrix):
            args = (kwargs.pop("input"),)
        name = getattr(func, "__name__", str(func))
        if name == "__get__" or name in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if any(isinstance(t, LazyMatrix) for t in tree_flatten(written(name, args, kwargs))[0]):
            raise ArgumentError(
                f"{name} would change weights in place. They are computed from q and k, not "
                "stored: take a copy with weights.to_dense()."
            )
        own, first = LAZY.get(name, ""), args[0] if args else None
        if isinstance(first, LazyMatrix) and any(
            own in vars(kind) for kind in type(first).__mro__ if issubclass(kind, LazyMatrix)
        ):
            return getattr(first, own)(*args[1:], **kwargs)
        if name == "matmul" and len(args) == 2 and isinstance(args[1], cls):
            return args[1].__rmatmul__(args[0])
        return densely(func, name, args, kwargs)

    def _entries(self, what: str, limit: float) -> Tensor:
        """The dense matrix, or DenseError."""
        raise NotImplementedError

    def to_dense(
        self, dtype: torch.dtype | None = None, *, limit: float | None = None, **_: Any
    ) -> Tensor:
        """The whole matrix as an ordinary tensor, in ``dtype`` if given.

        DenseError above ``limit`` bytes (``eyeline.dense_limit`` unless given).
        """
        made = self._entries("to_dense", dense_limit() if limit is None else limit)
        return made if dtype is None else made.to(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        made = self._entries("__array__", dense_limit()).detach().cpu()
        made = made.float() if made.dtype == torch.bfloat16 else made
        array = made.numpy()
        return array if dtype is None else array.astype(dtype)

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else format(self.to_dense(), spec)

    # torch would read these off the storage.
    @property
    def data(self) -> Any:  # type: ignore[override]
        """The same without a gradient."""
        return self.detach()

    @property
    def mH(self) -> Any:  # type: ignore[override]
        """The same as `mT`: weights are real."""
        return self.mT

    @property
    def H(self) -> Any:  # type: ignore[override]
        """The same as `T`: weights are real."""
        return self.T

    @property
    def real(self) -> Any:  # type: ignore[override]
        """The weights themselves."""
        return self

    def register_hook(self, hook: Any) -> Any:
        """Not to be had: no gradient passes here. Hook q, k or what was computed from weights."""
        raise ArgumentError(
            "Weights are not part of a graph, so a hook on them would never run. Register it on q, "
            "on k, or on what you compute from the weights."
        )

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __hash__(self) -> int:
        return id(self)


# What a tensor can say of itself without its entries.
METADATA = frozenset(
    [
        "size",
        "stride",
        "storage_offset",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "element_size",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_inference",
        "__len__",
        "get_device",
        "is_sparse",
        "is_conj",
        "is_neg",
        "is_same_size",
        "has_names",
    ]
)
# Functions of torch that may have a lazy form, by the method that has it.
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


def written(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """What a function of torch writes into, by its name and arguments."""
    in_place = name.endswith("_") and not name.startswith("__")
    if in_place or name in ("__set__", "__setitem__") or kwargs.get("inplace"):
        return [*(args[:1] or kwargs.values())]
    return [kwargs.get("out")]


def densely(
    func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Call a function of torch with dense tensors in place of lazy ones.

    DenseError where they take more than the limit together.
    """
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
    """The error of a function that would take ``count`` bytes, with a question that needs none."""
    plain = name.strip("_")
    what = f"{list(matrix.shape)} {str(matrix.dtype).removeprefix('torch.')}"
    hint = HINTS.get(plain, ASK)
    return DenseError(
        f"{plain} needs the whole matrix {what}: {size_text(count)}, "
        f"and eyeline.dense_limit is {size_text(limit)}.\n"
        f"{hint}: no such memory is needed for that. If you do want it all: "
        f"weights.to_dense(limit={count})."
    )


# Made once: making one takes as long as a tenth of a small attention.
NANS = {
    dtype: torch.full((), math.nan, dtype=dtype, device="cpu")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
}


def hollow(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor of this shape that holds one NaN.

    Code that reads its memory gets NaN, not plausible numbers.
    """
    if type(like) is Tensor and like.is_cpu and like.dtype in NANS and not _transformed():
        if NANS[like.dtype]._version:  # written to by code that goes round torch's functions
            NANS[like.dtype] = torch.full_like(NANS[like.dtype], math.nan)
            _nans.cache_clear()
        return _nans(like.dtype, shape)
    return like.new_full((), math.nan).expand(shape)


@lru_cache(maxsize=256)
def _nans(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return NANS[dtype].expand(shape)


def _transformed() -> bool:
    """Whether new tensors are of another kind here: a compiler's, a transform's, inference's."""
    return (
        torch.compiler.is_compiling()
        or torch.is_inference_mode_enabled()
        or torch._C._are_functorch_transforms_active()
    )
