"""What torch's attention functions were called with, brought to eyeline's form.

`F.scaled_dot_product_attention` takes any number of leading dimensions, broadcasts them, and aligns
causal at the first key; `F.multi_head_attention_forward` computes q, k and v of several heads and
then calls the former, or, where weights are to be returned, two matrix products. Everything here
becomes q [B, Hq, Tq, D], k [B, Hk, Tk, D], v [B, Hk, Tk, Dv].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eyeline.api import autocast
from eyeline.calls import Call
from eyeline.masks import Mask, causal, from_tensor


@dataclass(frozen=True)
class Given:
    """The arguments of one call of `F.scaled_dot_product_attention`, by their names there."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of what the function returns: [..., Tq, Dv]."""
        leads = [tuple(t.shape[:-2]) for t in (self.query, self.key, self.value)]
        if self.enable_gqa:  # more heads of queries than of keys
            leads[1:] = [(*lead[:-1], 1) for lead in leads[1:]]
        alike = leads[0] == leads[1] == leads[2]
        lead = leads[0] if alike else tuple(torch.broadcast_shapes(*leads))
        return (*lead, self.query.shape[-2], self.value.shape[-1])


@dataclass
class Multihead:
    """One running `F.multi_head_attention_forward`: what its inner calls do not say themselves."""

    heads: int
    own_text: bool  # queries and keys are made of the same tensor
    real: Tensor | None  # bool [B, T]
    dropout: float
    scored: tuple[Any, ...] | None = None  # the arguments of the product that gives the scores

    @classmethod
    def of(cls, given: dict[str, Any]) -> Multihead:
        """The call with these arguments, by their names in torch."""
        query, key, padding = given["query"], given["key"], given.get("key_padding_mask")
        own_text = query is key
        real = None
        if padding is not None and own_text:
            hidden = padding if padding.dtype == torch.bool else padding == -torch.inf
            real = ~(hidden if hidden.dim() == 2 else hidden[None])
        return cls(
            heads=given["num_heads"],
            own_text=own_text,
            real=real,
            dropout=given["dropout_p"] if given.get("training", True) else 0.0,
        )

    @property
    def kind(self) -> str:
        """ "self" where queries and keys are of one text, else "cross"."""
        return "self" if self.own_text else "cross"

    def call(self, v: Tensor) -> Call:
        """The call behind the two products of the path that returns weights.

        q ``[B · H, Tq, D]`` is there already divided by ``√D``.
        """
        assert self.scored is not None
        *added, q, k = self.scored
        mask = added[0] if added else None
        if mask is not None:  # [1 or B · H, 1 or Tq, Tk]
            mask = mask.unflatten(0, (-1, self.heads)) if mask.shape[0] > 1 else mask[None]
            mask = mask.to(q.dtype)
        return Call(
            name="",
            q=q.unflatten(0, (-1, self.heads)),
            k=k.mT.unflatten(0, (-1, self.heads)),
            v=v.unflatten(0, (-1, self.heads)),
            kind=self.kind,
            additive=mask,
            scale=1.0,
            real=self.real,
            dropout=self.dropout,
        )


def attended(given: Given, inside: Multihead | None) -> Call | None:
    """The call of `F.scaled_dot_product_attention` in eyeline's form.

    None for what that function refuses itself, or what has no dense shape (nested tensors).
    """
    q, k, v = given.query, given.key, given.value
    if q.is_nested or min(t.dim() for t in (q, k, v)) < 2:
        return None
    try:
        lead = given.shape[:-2]
        q, k, v = autocast(q, k, v)
        own = given.enable_gqa  # heads of their own, not those of the queries
        q, k, v = _shaped(q, lead, own), *(_shaped(t, lead, own or _alone(t)) for t in (k, v))
    except RuntimeError:
        return None  # shapes that do not fit: torch says so in its own words
    mask, additive = _masked(given, lead, autocast(q)[0].dtype)
    return Call(
        name="",
        q=q,
        k=k,
        v=v,
        kind=_kind(given) if inside is None else inside.kind,
        mask=mask,
        additive=additive,
        scale=given.scale,
        real=None if inside is None else inside.real,
        dropout=float(given.dropout_p),
    )


def causal_from_first(Tq: int, Tk: int) -> Mask:
    """torch's `is_causal`, aligned at the first key: for as many queries as keys eyeline's own."""
    return causal() if Tq == Tk else causal(offset=0)


def _kind(given: Given) -> str:
    """ "self", "cross", or "" where the arguments do not tell.

    Queries beside another number of keys, all of which they see, are of another text, unless it is
    a single query: that may be a step of decoding.
    """
    if given.is_causal:
        return "self"
    Tq, Tk = given.query.shape[-2], given.key.shape[-2]
    return "cross" if Tq not in (1, Tk) and given.attn_mask is None else ""


def _alone(keys: Tensor) -> bool:
    """Whether one head of keys serves all queries: eyeline reads it so without copies of it."""
    return keys.dim() > 3 and keys.shape[-3] == 1


def _shaped(t: Tensor, lead: tuple[int, ...], own_heads: bool) -> Tensor:
    """[..., H, T, D] as [B, H, T, D]; without a batch or heads, these are 1."""
    if own_heads:
        lead = (*lead[:-1], t.shape[-3])
    if tuple(t.shape[:-2]) != lead:
        t = t.expand(*lead, *t.shape[-2:])
    if t.dim() == 2:
        return t[None, None]
    if t.dim() == 3:
        return t[:, None]
    return t if t.dim() == 4 else t.flatten(0, -4)


def _masked(
    given: Given, lead: tuple[int, ...], dtype: torch.dtype
) -> tuple[Mask | Tensor | None, Tensor | None]:
    """(who may be seen, what is added)."""
    rule = None
    if given.is_causal:
        rule = causal_from_first(given.query.shape[-2], given.key.shape[-2])
    mask = given.attn_mask
    if mask is None:
        return rule, None
    mask = _placed(mask, lead)
    if mask.dtype == torch.bool:
        return (mask if rule is None else rule & from_tensor(mask)), None
    return rule, mask.to(dtype)


def _placed(mask: Tensor, lead: tuple[int, ...]) -> Tensor:
    """A mask that broadcasts against [*lead, Tq, Tk], against [B, H, Tq, Tk]."""
    if mask.dim() <= 2 or len(lead) == 2:
        return mask
    if len(lead) < 2:  # one head
        return mask[:, None] if mask.dim() == 3 else mask
    if math.prod(mask.shape[:-3]) == 1:  # the same for the whole batch
        return mask.reshape(mask.shape[-3:])
    more = mask.expand(*lead[:-1], *mask.shape[-3:])
    return more.flatten(0, len(lead) - 2)
