"""What is kept of a call: queries and keys by reference, copied only where that keeps too much."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

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
    if torch._C._functorch.is_functorch_wrapped_tensor(call.q):
        raise ModelError(
            f"{call.name} runs inside of a function of torch.func, whose tensors are gone when it"
            " returns.\nWatch the model without torch.func, or take gradients with .backward()."
        )
    q, k, v = call.q, call.k, call.v if values else None
    tensors = [q, k] if v is None else [q, k, v]
    q = q.clone() if _holds_more(q, tensors) else q
    k = k.clone() if call.reused or _written(k) or _holds_more(k, tensors) else k
    if v is not None and (call.reused or _written(v) or _holds_more(v, tensors)):
        v = v.clone()
    if q is call.q and k is call.k and v is call.v:
        return call
    return replace(call, q=q, k=k, v=v)


def versions(call: Call) -> tuple[int, ...]:
    """torch's counts of in-place changes to what is held; none for inference tensors."""
    masks = call.mask.spec()[1] if isinstance(call.mask, Mask) else [call.mask]
    held = (call.q, call.k, call.v, call.bias, call.additive, call.sinks, *masks)
    return tuple(t._version for t in held if isinstance(t, Tensor) and not t.is_inference())


def check(call: Call, before: tuple[int, ...]) -> None:
    """Raise StaleError where a call's tensors were changed in place since."""
    if versions(call) != before:
        raise StaleError(
            f"The queries, keys, values, mask or bias of {call.name} were changed in place after"
            " the model used them, so its weights are gone.\nAsk for them inside of the block,"
            " before the change."
        )


def _written(tensor: Tensor) -> bool:
    """Whether it was written in place before, as a buffer is that is written again and again."""
    return not tensor.is_inference() and tensor._version > 0


def _holds_more(tensor: Tensor, all_kept: list[Tensor]) -> bool:
    storage = tensor.untyped_storage()
    if storage.nbytes() <= _TOO_MUCH * tensor.nbytes:
        return False
    shared = sum(t.nbytes for t in all_kept if t.untyped_storage().data_ptr() == storage.data_ptr())
    return shared < _WHOLE * storage.nbytes()
