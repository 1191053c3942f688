"""What is kept of a call: queries and keys by reference, copied only where that keeps too much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from eyeline.calls import Call
from eyeline.errors import ModelError, StaleError
from eyeline.masks import Mask

_TOO_MUCH = 2  # a reference may keep so many times the bytes that are looked at
_WHOLE = 0.9  # a storage of which so much is kept anyway is kept as it is


def kept(call: Call, values: bool) -> Call:
    """The call as it is held after the model went on; with v only where `values` are wanted.

    A tensor is copied where its storage is more than twice as large, as where q, k and v are views
    of one product, and where the model writes into it again, as into a static cache. A copy has
    the gradient of what was copied.
    """
    if is_functorch_wrapped_tensor(call.q):
        _refuse_wrapped(call.name)
    q, k, v = call.q, call.k, call.v if values else None
    tensors = [q, k] if v is None else [q, k, v]
    q = _held(q, tensors, False)
    k = _held(k, tensors, call.reused or _written(k))
    v = None if v is None else _held(v, tensors, call.reused or _written(v))
    return call.but(q=q, k=k, v=v)


def held(name: str, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a call that is noted in passing, of which no more is kept than q and k."""
    if is_functorch_wrapped_tensor(q):
        _refuse_wrapped(name)
    for one in (q, k):  # asked here too: between a model's layers each function's code comes late
        if one.untyped_storage().nbytes() > _TOO_MUCH * one.nbytes:
            return _held(q, (q, k), False), _held(k, (q, k), False)
    return q, k


def versions(call: Call) -> tuple[int, ...]:
    """torch's counts of in-place changes to what is held; none for inference tensors."""
    mask = call.mask
    masks = mask.spec()[1] if isinstance(mask, Mask) else () if mask is None else (mask,)
    held = (call.q, call.k, call.v, call.bias, call.additive, call.sinks, *masks)
    return tuple([t._version for t in held if isinstance(t, Tensor) and not t.is_inference()])


def check(call: Call, before: tuple[int, ...]) -> None:
    """Raise StaleError where a call's tensors were changed in place since."""
    if call.stale or versions(call) != before:
        raise StaleError(
            f"The queries, keys, values, mask or bias of {call.name} were changed in place after"
            " the model used them, so its weights are gone.\nAsk for them inside of the block,"
            " before the change."
        )


def _refuse_wrapped(name: str) -> NoReturn:
    raise ModelError(
        f"{name} runs inside of a function of torch.func, whose tensors are gone when it"
        " returns.\nWatch the model without torch.func, or take gradients with .backward()."
    )


def _held(tensor: Tensor, all_kept: Sequence[Tensor], written: bool) -> Tensor:
    return tensor.clone() if written or _holds_more(tensor, all_kept) else tensor


def _written(tensor: Tensor) -> bool:
    """Whether it was written in place before, as a buffer is that is written again and again."""
    return not tensor.is_inference() and tensor._version > 0


def _holds_more(tensor: Tensor, all_kept: Sequence[Tensor]) -> bool:
    """Whether a reference keeps too much, beside all that is kept."""
    storage = tensor.untyped_storage()
    if storage.nbytes() <= _TOO_MUCH * tensor.nbytes:
        return False
    shared = sum(t.nbytes for t in all_kept if t.untyped_storage().data_ptr() == storage.data_ptr())
    return shared < _WHOLE * storage.nbytes()
