"""What an index of the weights asks for: which leading entries, which rows, which columns."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALL = slice(None)


@dataclass(frozen=True)
class Request:
    """An index taken apart. What comes back depends on rows and cols: two slices stay lazy."""

    lead: tuple[Any, ...]  # one entry per leading dimension, and None for new ones
    rows: Any  # a slice, or a non-negative int or index tensor of any shape
    cols: Any  # likewise

    @property
    def lazy(self) -> bool:
        """Whether the answer is again lazy weights."""
        return isinstance(self.rows, slice) and isinstance(self.cols, slice)

    @property
    def lead_is_basic(self) -> bool:
        """Whether no index tensor stands on the lead, for torch to pair with others."""
        return not any(isinstance(key, Tensor) for key in self.lead)


def parse(key: Any, shape: tuple[int, ...]) -> Request | None:
    """The request that ``key`` makes of a matrix of this shape.

    None where only a dense tensor can answer it. IndexError and ValueError as torch raises them.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    keys = [_plain(k) for k in keys]
    taken = sum(_dims(k) for k in keys)
    if taken > len(shape):
        raise IndexError(
            f"too many indices: {taken} for weights of {len(shape)} dimensions {list(shape)}"
        )
    if sum(k is Ellipsis for k in keys) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if not any(k is Ellipsis for k in keys):
        keys.append(Ellipsis)
    at = next(i for i, k in enumerate(keys) if k is Ellipsis)
    keys[at : at + 1] = [ALL] * (len(shape) - taken)
    consumed, spread = 0, []
    for k in keys:
        dims = _dims(k)
        if isinstance(k, Tensor) and k.dtype == torch.bool:
            if k.dim() != 1:
                return None  # a mask over several dimensions picks single entries
            if k.shape[0] != shape[consumed]:
                raise IndexError(
                    f"a mask of {k.shape[0]} entries for a dimension of {shape[consumed]}"
                )
            k = k.nonzero().flatten()
        spread.append((k, consumed))
        consumed += dims
    tokens = len(shape) - 2
    lead = tuple(k for k, dim in spread if dim < tokens or (k is None and dim == tokens))
    # A new dimension between rows and columns, or after them, is dense torch's business.
    tail = [k for k, dim in spread if not (dim < tokens or (k is None and dim == tokens))]
    if len(tail) != 2 or any(k is None for k in tail):
        return None
    rows, cols = (_wrapped(k, size) for k, size in zip(tail, shape[-2:], strict=True))
    return Request(lead, rows, cols)


def _plain(key: Any) -> Any:
    """Lists, ranges and arrays as tensors, index-like objects as ints."""
    if key is None or key is Ellipsis or isinstance(key, (slice, bool)):
        return torch.tensor(key) if isinstance(key, bool) else key
    if isinstance(key, Tensor):
        return int(key) if key.dim() == 0 and key.dtype != torch.bool else key
    try:
        return operator.index(key)
    except TypeError:
        pass
    try:
        made = torch.as_tensor(key)
    except (TypeError, RuntimeError):
        raise IndexError(f"{type(key).__name__} is no index") from None
    return made.long() if made.numel() == 0 else made


def _dims(key: Any) -> int:
    """How many dimensions an index consumes."""
    if key is None or key is Ellipsis:
        return 0
    return key.dim() if isinstance(key, Tensor) and key.dtype == torch.bool else 1


def _wrapped(key: Any, size: int) -> Any:
    """Non-negative indices, checked."""
    if isinstance(key, slice):
        if key.step is not None and key.step < 0:
            raise ValueError("step must be greater than zero")
        return key
    low, high = (
        (int(key.min()), int(key.max())) if isinstance(key, Tensor) and key.numel() else (key, key)
    )
    if isinstance(low, int) and (low < -size or high >= size):
        raise IndexError(f"index {low if low < -size else high} is out of bounds for {size} tokens")
    if isinstance(key, Tensor):
        return torch.where(key < 0, key + size, key)
    return key + size if key < 0 else key


def axes_after(axes: tuple[str, ...], lead: tuple[Any, ...]) -> tuple[str, ...]:
    """The names of the leading dimensions that an index keeps."""
    left = iter(axes)
    named = [("new" if key is None else next(left), key) for key in lead]
    named = [(name, key) for name, key in named if not isinstance(key, int)]
    kept = [name for name, key in named if not isinstance(key, Tensor)]
    at = [i for i, (_, key) in enumerate(named) if isinstance(key, Tensor)]
    if at:
        first = named[at[0]][0]
        more = max(named[i][1].dim() for i in at) - 1
        # As in torch: in the place of index tensors that are neighbours, in front for others.
        place = at[0] if at[-1] - at[0] == len(at) - 1 else 0
        kept[place:place] = [first, *(f"{first}_{i}" for i in range(1, more + 1))]
    return tuple(kept)


def composed(outer: slice | None, inner: slice, size: int) -> slice:
    """``inner`` of ``outer`` of ``size`` entries as one slice."""
    chosen = range(size)[outer or ALL][inner]
    return slice(chosen.start, max(chosen.stop, chosen.start), chosen.step)
