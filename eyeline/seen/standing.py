"""Where a call stands in a text whose masks are plain tensors: told from what they let through.

transformers' interface says where queries and keys stand; a call of torch's own function does not.
Its mask tells, where it is causality and padding and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from eyeline.calls import Call, Place, Sight, Span
from eyeline.masks import Mask, both, causal, only


def standing(call: Call) -> Place | None:
    """The place of a call of self-attention, by its mask; None where that is of another kind.

    >>> import torch
    >>> q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4)
    >>> seen = torch.tensor([[False, True, True, True, False], [False, True, True, True, True]])
    >>> place = standing(Call("layer", q, k, mask=seen[None, None]))
    >>> place.query, place.padding.tolist()
    (3, [[False, True, True, True, True]])
    """
    Tq, Tk = call.q.shape[-2], call.k.shape[-2]
    visible = _visible(call)
    if visible is not None:
        return _told(visible, Tq)
    if call.additive is not None:
        return None
    if Tq == 1 and call.mask is None:
        return plainly(Tk - 1)
    whole = isinstance(call.mask, Mask) and call.mask.formula == causal().formula
    return plainly(0) if whole and Tq == Tk else None


def plainly(query: int, padding: Tensor | None = None) -> Place:
    """A place in a text where nothing but causality and padding hides anything.

    `padding` bool [B, T] has False for the tokens so far that are padding.
    """

    def sight(span: Span) -> Sight:
        rule: Mask | None = causal(span.offset)
        if padding is None:
            return Sight(rule, None)
        missing = max(span.key + span.keys - padding.shape[-1], 0)
        keep = span.of_keys(pad(padding, (0, missing), value=True))
        same = span.query == span.key and span.queries == span.keys
        return Sight(both(rule, only(keep)), keep if same else None)

    return Place(query, 0, sight, "plain", plain=padding is None, padding=padding)


def _visible(call: Call) -> Tensor | None:
    """bool [B, H, Tq, Tk] of a mask that is a tensor and only hides; None for any other."""
    if isinstance(call.mask, Tensor) and call.additive is None:
        visible = call.mask
    elif call.additive is not None and call.mask is None:
        visible = call.additive > torch.finfo(call.additive.dtype).min
        if bool((visible & (call.additive != 0)).any()):
            return None
    else:
        return None
    B, Tq, Tk = call.q.shape[0], call.q.shape[-2], call.k.shape[-2]
    return visible.expand(B, visible.shape[-3] if visible.dim() > 2 else 1, Tq, Tk)


def _told(visible: Tensor, Tq: int) -> Place | None:
    """The place behind a mask: its last row sees all tokens so far but padding."""
    last = visible[:, 0, -1]
    seen = last.any(0).nonzero()
    filled = int(seen[-1]) + 1 if len(seen) else 0
    first = filled - Tq
    if first < 0:
        return None
    keep = last[:, :filled]
    at = torch.arange(visible.shape[-1], device=visible.device)
    whole = pad(keep, (0, visible.shape[-1] - filled))
    wanted = whole[:, None, None] & (at <= at[first:filled, None])
    # what rows of padding see means nothing, and differs from version to version
    differs = (visible != wanted) & keep[:, None, first:, None]
    if bool(differs.any()):
        return None
    return plainly(first, None if bool(keep.all()) else keep.clone())
