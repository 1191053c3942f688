"""What is kept of a call: queries and keys by reference, copied only where that keeps too much."""

from __future__ import annotations

from torch import Tensor

from eyeline.calls import Call
from eyeline.calls.holding import one_held, refuse_wrapped
from eyeline.errors import StaleError
from eyeline.masks import Mask


def kept(call: Call, values: bool) -> Call:
    """The call as it is held after the model went on; with v only where `values` are wanted.

    A tensor is copied where its storage is more than twice as large, as where q, k and v are views
    of one product, and where the model writes into it again, as into a static cache. A copy has
    the gradient of what was copied.
    """
    refuse_wrapped(call.name, call.q)
    q, k, v = call.q, call.k, call.v if values else None
    tensors = [q, k] if v is None else [q, k, v]
    q = one_held(q, tensors, False)
    k = one_held(k, tensors, call.reused or _written(k))
    v = None if v is None else one_held(v, tensors, call.reused or _written(v))
    return call.but(q=q, k=k, v=v)


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


def _written(tensor: Tensor) -> bool:
    """Whether it was written in place before, as a buffer is that is written again and again."""
    return not tensor.is_inference() and tensor._version > 0
