"""Tensors of a call held by reference, and copied only where that keeps too much."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from eyeline.errors import ModelError

_TOO_MUCH = 2  # a reference may keep so many times the bytes that are looked at
_WHOLE = 0.9  # a storage of which so much is kept anyway is kept as it is


def keeps_more(q: Tensor, k: Tensor) -> bool:
    """Whether references to the queries and keys of a call keep more than twice their bytes."""
    try:
        return _in_larger(q) or _in_larger(k)
    except NotImplementedError:  # one has no storage
        return False


def held(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The queries and keys of a call of which no more is kept.

    A tensor is copied where its storage is more than twice as large, as where q, k and v are views
    of one product. A copy has the gradient of what was copied.
    """
    return one_held(q, (q, k), False), one_held(k, (q, k), False)


def one_held(tensor: Tensor, all_kept: Sequence[Tensor], written: bool) -> Tensor:
    """One tensor beside all that is kept; copied also where it is `written` again."""
    return tensor.clone() if written or _holds_more(tensor, all_kept) else tensor


def refuse_wrapped(name: str, q: Tensor) -> None:
    """Raise ModelError for a call inside of a function of torch.func."""
    if is_functorch_wrapped_tensor(q):
        raise ModelError(
            f"{name} runs inside of a function of torch.func, whose tensors are gone when it"
            " returns.\nWatch the model without torch.func, or take gradients with .backward()."
        )


def _holds_more(tensor: Tensor, all_kept: Sequence[Tensor]) -> bool:
    """Whether a reference keeps too much, beside all that is kept."""
    if not _in_larger(tensor):
        return False
    storage = tensor.untyped_storage()
    shared = sum(t.nbytes for t in all_kept if t.untyped_storage().data_ptr() == storage.data_ptr())
    return shared < _WHOLE * storage.nbytes()


def _in_larger(tensor: Tensor) -> bool:
    """Whether the storage of a tensor is more than twice what is looked at of it."""
    return tensor.untyped_storage().nbytes() > _TOO_MUCH * tensor.nbytes
