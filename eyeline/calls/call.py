"""One call of an attention, and what a model did beside the calls that were seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyeline import api
from eyeline.calls.place import Place
from eyeline.errors import ArgumentError
from eyeline.lazy import Weights
from eyeline.masks import Mask, both


@dataclass(frozen=True)
class Call:
    """One call of an attention: what its weights are made from, by reference.

    q [B, Hq, Tq, D], k [B, Hk, Tk, D], v [B, Hk, Tk, Dv]; `name` is the path of the module that
    called, with "#2" for the second call of one module in one forward; `kind` "self" or "cross".
    `mask` is a rule or a bool tensor; `bias` is added to the scores, and so is `additive`, a float
    tensor that also hides where it holds -inf or its dtype's lowest value. `real` bool [B, T] marks
    the rows that are no padding, where known. `kernel` says what computed the output, "own" for the
    model's own code; `dropout` is what the model leaves out of its output, never of the weights.
    `out` [B, Hq, Tq, Dv] is what the attention gave, where it is kept for its gradient; `reused`
    marks q, k and v that lie in memory which the model writes again; `place` says where a
    step stands in a text that is read in several; `stale` that something was changed in place
    before anyone looked.

    >>> import torch
    >>> call = Call("layer", torch.eye(2)[None, None], torch.eye(2)[None, None])
    >>> call.weights()[0, 0, 0]
    tensor([0.6698, 0.3302])
    """

    name: str
    q: Tensor
    k: Tensor
    v: Tensor | None = None
    kind: str = "self"
    mask: Mask | Tensor | None = None
    bias: Tensor | None = None
    additive: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    real: Tensor | None = None
    kernel: str = "own"
    dropout: float = 0.0
    out: Tensor | None = None
    reused: bool = False
    place: Place | None = None
    stale: bool = False

    def but(self, **changes: Any) -> Call:
        """The same call with other fields: `dataclasses.replace`, at a tenth of its cost.

        >>> import torch
        >>> x = torch.eye(2)[None, None]
        >>> Call("layer", x, x).but(name="layer#2").name
        'layer#2'
        """
        made = object.__new__(Call)
        vars(made).update(vars(self), **changes)
        return made

    def weights(self) -> Weights:
        """The lazy weights [B, Hq, Tq, Tk] of this call."""
        return api.weights(self.q, self.k, **self._rule(None))

    def attention(self, v: Tensor | None = None, mask: Mask | Tensor | None = None) -> Tensor:
        """The output [B, Hq, Tq, Dv] by eyeline's own kernel, over this call's v or another.

        `mask` hides more: only what both it and the call's own mask let through is seen.

        >>> import torch
        >>> x = torch.eye(2)[None, None]
        >>> Call("layer", x, x, x).attention(mask=torch.eye(2).bool())[0, 0]
        tensor([[1., 0.],
                [0., 1.]])
        """
        v = self.v if v is None else v
        if v is None:
            raise ArgumentError(f"{self.name} holds no values: give v, [B, Hk, Tk, Dv].")
        return api.attention(self.q, self.k, v, dropout=self.dropout, **self._rule(mask))[0]

    def _rule(self, more: Mask | Tensor | None) -> dict[str, Any]:
        mask, bias = self.mask, self.bias
        if self.additive is not None:
            visible, added = _parted(self.additive)
            mask = both(mask, visible)
            bias = added if bias is None else bias if added is None else bias + added
        return {
            "mask": both(mask, more),
            "bias": bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks,
        }


Make = Callable[[Tensor, Tensor], Call]
"""What gives a call that was noted in passing, of its queries and keys."""


class Noted:
    """A call that ran in a model's own kernel, noted in passing: ``make(q, k)`` gives it later.

    Held are its name, q and k and, where no rule is known for it, the mask; `before` are the
    `versions` of q, k and the mask that it ran with.
    """

    __slots__ = ("before", "k", "make", "mask", "name", "q")

    def __init__(
        self,
        name: str,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        make: Make,
        before: tuple[int, int, int],
    ) -> None:
        self.name, self.q, self.k, self.mask, self.make = name, q, k, mask, make
        self.before = before

    @property
    def fresh(self) -> bool:
        """Whether what is held was not changed in place since."""
        now = versions(self.q, self.k, self.mask)
        return now[:2] == self.before[:2] and (self.mask is None or now[2] == self.before[2])


def versions(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[int, int, int]:
    """torch's counts of in-place changes, which inference tensors do not have."""
    return (
        0 if q.is_inference() else q._version,
        0 if k.is_inference() else k._version,
        0 if mask is None or mask.is_inference() else mask._version,
    )


@dataclass(frozen=True)
class Missing:
    """An attention that ran and could not be seen: which module, and why.

    `dense` [B, H, Tq, Tk] is what the model itself returned as its attention there, where it was
    asked to (`output_attentions=True`); dense, and by the model's own account.
    """

    name: str
    reason: str
    dense: Tensor | None = None


def _parted(additive: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A float mask as (what may be seen, what is added); None where there is nothing of it."""
    visible = additive > torch.finfo(additive.dtype).min
    added = torch.where(visible, additive, additive.new_zeros(()))
    return (
        None if bool(visible.all()) else visible,
        added if bool(added.count_nonzero()) else None,
    )
