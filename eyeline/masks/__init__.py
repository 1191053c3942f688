"""Masks: rules that say who may be seen, closed under `&`, `|` and `~`.

A mask has no size. Given the weights' leading dimensions, Tq and Tk, it lowers to a
`Visible`: a few key intervals per query, a bool or an id per key, and only where nothing
shorter will do, bits. The *position* of query i is `i + Tk - Tq`: the last query stands at the
last key; `offset=` replaces `Tk - Tq`.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from eyeline.errors import MaskError, ShapeError
from eyeline.masks.base import Mask
from eyeline.masks.leading import collapsed
from eyeline.masks.rules import (
    FAR,
    Bits,
    Causal,
    Documents,
    Intervals,
    Only,
    Padding,
    Prefix,
    Window,
)

__all__ = [
    "Mask",
    "causal",
    "documents",
    "from_tensor",
    "intervals",
    "only",
    "padding",
    "prefix",
    "window",
]


def causal(offset: int | None = None) -> Mask:
    """Each query sees the keys up to its own position, j <= i + Tk - Tq.

    The last query stands at the last key, so with a cache (Tq < Tk) the new queries see all that
    came before; `offset=0` is the top-left form, where query i sees keys 0..i.

    >>> import eyeline
    >>> print(eyeline.causal().draw(2, 5))
    1 1 1 1 0
    1 1 1 1 1
    >>> print(eyeline.causal(offset=0).draw(2, 5))
    1 0 0 0 0
    1 1 0 0 0
    """
    return Causal(_offset(offset, "causal"))


def window(before: int, after: int = 0, offset: int | None = None) -> Mask:
    """Each query sees `before` keys before its position, its own, and `after` behind it.

    The counts are beside the position: `window(2)` sees 3 keys. A "window of w" in Mistral's sense
    (arXiv 2310.06825) is `window(w - 1)`. Counts above Tk are fine: that side has no limit.

    >>> import eyeline
    >>> print(eyeline.window(2, after=1).draw(4))
    1 1 0 0
    1 1 1 0
    1 1 1 1
    0 1 1 1
    """
    counts = _whole(before, "window(before)"), _whole(after, "window(after)")
    for name, count in zip(("before", "after"), counts, strict=True):
        if count < 0:
            raise MaskError(
                f"window({name}={count}): counts are of keys beside the position and cannot be "
                f"negative. For a side without a limit give the number of tokens, or use causal()."
            )
    return Window(*counts, _offset(offset, "window"))


def padding(lengths: Tensor | int, side: Literal["right", "left"] = "right") -> Mask:
    """Only the real keys are seen: the first `lengths` of them, or the last with side="left".

    `lengths` is an int or an integer tensor whose dimensions are the weights' leading ones from
    the left, so [B] for [B, H, Tq, Tk]; lengths above Tk mean Tk, those below 0 raise
    MaskError. It is about keys: rows of padded queries still see the real keys.

    >>> import torch, eyeline
    >>> print(eyeline.padding(2).draw(1, 4), eyeline.padding(3, side="left").draw(1, 4), sep="\\n")
    1 1 0 0
    0 1 1 1
    """
    if side not in ("right", "left"):
        raise MaskError(f'padding(side={side!r}): the side that is padded is "right" or "left".')
    return Padding(_counts(lengths, "padding(lengths)"), side)


def documents(ids: Tensor, query_ids: Tensor | None = None) -> Mask:
    """Each query sees the keys of its own document, for texts packed into one sequence.

    `ids` are integers, one per key: [Tk], or [B, Tk]. The queries take the last Tq of them,
    unless `query_ids` [Tq] or [B, Tq] is given.

    >>> import torch
    >>> from eyeline.masks import documents
    >>> print(documents(torch.tensor([0, 0, 1])).draw())
    1 1 0
    1 1 0
    0 0 1
    """
    queries = None if query_ids is None else _integers(query_ids, 1, "documents(query_ids)")
    return Documents(_integers(ids, 1, "documents(ids)"), queries)


def prefix(n: Tensor | int) -> Mask:
    """Every query sees the first `n` keys; `causal() | prefix(n)` is a prefix language model.

    `n` is an int or an integer tensor with the weights' leading dimensions from the left, as [B].

    >>> import eyeline
    >>> from eyeline.masks import prefix
    >>> print((eyeline.causal() | prefix(2)).draw(3))
    1 1 0
    1 1 0
    1 1 1
    """
    return Prefix(_counts(n, "prefix(n)"))


def only(keep: Tensor) -> Mask:
    """Every query sees the keys where `keep`, bool [Tk] or [B, Tk], is True.

    A tokenizer's `attention_mask` of 0 and 1 is taken as well.

    >>> import torch
    >>> from eyeline.masks import only
    >>> print(only(torch.tensor([True, False, True])).draw(2))
    1 0 1
    1 0 1
    """
    if not isinstance(keep, Tensor) or keep.ndim < 1:
        raise MaskError("only(keep) takes a bool tensor with one entry per key, [Tk] or [B, Tk].")
    return Only(_as_bool(keep, "only(keep)"))


def intervals(starts: Tensor, stops: Tensor) -> Mask:
    """Query i sees the keys j with starts[i, n] <= j < stops[i, n] for any n.

    Integer tensors [Tq], [Tq, n] or [B, Tq, n] of one shape. Intervals may overlap or be empty.

    >>> import torch
    >>> from eyeline.masks import intervals
    >>> print(intervals(torch.tensor([0, 1]), torch.tensor([2, 4])).draw(Tk=4))
    1 1 0 0
    0 1 1 1
    """
    ends = [_integers(end, 1, "intervals(starts, stops)") for end in (starts, stops)]
    if ends[0].shape != ends[1].shape:
        raise ShapeError(
            f"intervals() needs one stop per start: starts {list(ends[0].shape)}, "
            f"stops {list(ends[1].shape)}."
        )
    return Intervals(*(end.unsqueeze(-1) if end.ndim == 1 else end for end in ends))


def from_tensor(t: Tensor) -> Mask:
    """A mask from a tensor: True or 1 where a key may be seen.

    bool, or 0 and 1 of any dtype, broadcastable to the weights' own shape from the right. Dense
    bits take Tq x Tk bytes; the rules above do not. Under torch.compile only bool is taken, as
    values cannot be looked at there.

    >>> import torch, eyeline
    >>> from eyeline.masks import from_tensor
    >>> print(from_tensor(torch.tril(torch.ones(3, 3))).draw())
    1 0 0
    1 1 0
    1 1 1
    """
    if not isinstance(t, Tensor):
        raise MaskError(f"A mask is a rule or a tensor, not {type(t).__name__}.")
    return Bits(_as_bool(t, "mask"))


def _whole(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise MaskError(f"{name} takes an int, not {type(value).__name__}.")
    return value


@overload
def both(one: Mask, other: Mask | Tensor | None) -> Mask: ...
@overload
def both(one: Mask | None, other: Mask | None) -> Mask | None: ...
@overload
def both(one: Mask | Tensor | None, other: Mask | Tensor | None) -> Mask | Tensor | None: ...
def both(one: Mask | Tensor | None, other: Mask | Tensor | None) -> Mask | Tensor | None:
    """What two masks, rules or bool tensors, both let through; None lets everything through."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one & other
    one, other = (from_tensor(m) if isinstance(m, Tensor) else m for m in (one, other))
    return one & other


def _offset(value: int | None, rule: str) -> int | None:
    if value is None:
        return None
    offset = _whole(value, f"{rule}(offset)")
    if not -FAR <= offset <= FAR:
        raise MaskError(
            f"{rule}(offset={offset}) is the first query's position among the keys; give one "
            f"between -2**62 and 2**62, which is farther than any key."
        )
    return offset


def _integers(tensor: Tensor, rank: int, name: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise MaskError(f"{name} takes an integer tensor, not {type(tensor).__name__}.")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        hint = " One True or False per key is only(keep)." if tensor.dtype == torch.bool else ""
        raise MaskError(f"{name} takes integers, not {tensor.dtype}.{hint}")
    if tensor.ndim < rank:
        raise ShapeError(f"{name} needs at least {rank} dimension(s), not {list(tensor.shape)}.")
    return tensor


def _counts(value: Tensor | int, name: str) -> Tensor | int:
    if isinstance(value, Tensor):
        counts = _integers(value, 0, name)
        # torch.compile cannot look at values; there a negative count shows no key.
        readable = counts.dtype.is_signed and not torch.compiler.is_compiling()
        if readable and bool((counts < 0).any()):
            raise MaskError(_below_zero(int(counts.min()), name))
        return counts
    if isinstance(value, bool) or not isinstance(value, int):
        raise MaskError(
            f"{name} takes an int or an integer tensor, not {type(value).__name__}; "
            f"torch.tensor([2, 3]) holds one count per batch entry."
        )
    if value < 0:
        raise MaskError(_below_zero(value, name))
    return value


def _below_zero(count: int, name: str) -> str:
    return f"{name} is a number of keys and cannot be {count}; give 0 or more."


def _as_bool(tensor: Tensor, name: str) -> Tensor:
    """True where a tensor of 0 and 1 is 1; refuses any other value, showing one."""
    if tensor.dtype == torch.bool:
        return tensor
    if tensor.is_complex():
        raise MaskError(f"{name} is True and False, or 1 and 0, not {tensor.dtype}.")
    if torch.compiler.is_compiling():
        raise MaskError(
            f"{name} is {tensor.dtype}. Under torch.compile a mask must be bool, as its values "
            f"cannot be looked at; write mask.bool(), or pass it as `bias=` if it is to be added."
        )
    values = collapsed(tensor.detach())
    other = values[(values != 0) & (values != 1)]
    if other.numel():
        raise MaskError(_not_a_mask(other, tensor, name))
    return (values != 0).expand(tensor.shape)


def _not_a_mask(other: Tensor, tensor: Tensor, name: str) -> str:
    found = other[0].item()
    text = (
        f"{name} says who may be seen: True or 1, False or 0. This {tensor.dtype} tensor "
        f"{list(tensor.shape)} holds {found}. If it is to be added to the scores, pass it as "
        f"`bias=`."
    )
    if tensor.is_floating_point() and bool((other == -torch.inf).all()):
        text += " A tensor of 0 and -inf is such a bias; as a mask it is `tensor == 0`."
    return text
