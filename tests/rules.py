"""Mask rules twice: in eyeline's words, and as the bool table that the words mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import eyeline
from eyeline import masks
from tests import oracle

Rule = tuple[Any, Tensor]  # (mask, visible [*lead|1, Tq, Tk])


def over_rows(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """[*lead without heads, T] → [*lead with one head, T], as it broadcasts against the weights."""
    return x if len(lead) < 2 else x.unsqueeze(-2)


def batch_of(lead: tuple[int, ...]) -> tuple[int, ...]:
    """The leading dimensions without the heads'."""
    return lead[:-1] if len(lead) > 1 else lead


def full(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    return None, torch.ones(Tq, Tk, dtype=torch.bool)


def causal(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    return eyeline.causal(), oracle.causal(Tq, Tk)


def top_left(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    return eyeline.causal(offset=0), oracle.causal(Tq, Tk, 0)


def window(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    return eyeline.window(3, 1), oracle.window(Tq, Tk, 3, 1)


def padding_right(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    lengths = torch.randint(0, Tk + 1, batch_of(lead))
    real = torch.arange(Tk) < lengths[..., None]
    return eyeline.padding(lengths), over_rows(real, lead)[..., None, :]


def padding_left(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    lengths = torch.randint(0, Tk + 1, batch_of(lead))
    real = torch.arange(Tk) >= Tk - lengths[..., None]
    return eyeline.padding(lengths, side="left"), over_rows(real, lead)[..., None, :]


def prefix(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    n = (Tk + 1) // 2
    return masks.prefix(n), (torch.arange(Tk) < n).expand(Tq, Tk)


def only(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    keep = torch.rand(Tk) < 0.5
    return masks.only(keep), keep.expand(Tq, Tk)


def documents(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    """Interleaved documents; the queries are the last Tq of the keys' tokens."""
    ids = torch.randint(0, 3, (Tk,))
    return masks.documents(ids), ids[max(Tk - Tq, 0) :, None] == ids[None]


def table(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    seen = torch.rand(*lead, Tq, Tk) < 0.6
    return masks.from_tensor(seen), seen


def per_head(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    heads = lead[-1:] if len(lead) > 1 else ()
    seen = torch.rand(*heads, Tq, 1) < 0.7
    return seen, seen.expand(*heads, Tq, Tk)


def both(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    return join("&", causal(lead, Tq, Tk), padding_right(lead, Tq, Tk))


def either(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    return join("|", window(lead, Tq, Tk), prefix(lead, Tq, Tk))


def neither(lead: tuple[int, ...], Tq: int, Tk: int) -> Rule:
    mask, visible = join("&", causal(lead, Tq, Tk), only(lead, Tq, Tk))
    return ~mask, ~visible


def join(how: str, a: Rule, b: Rule) -> Rule:
    return (a[0] & b[0], a[1] & b[1]) if how == "&" else (a[0] | b[0], a[1] | b[1])


RULES: dict[str, Callable[[tuple[int, ...], int, int], Rule]] = {
    rule.__name__: rule
    for rule in (
        full, causal, top_left, window, padding_right, padding_left, prefix, only, table, per_head,
        both, either, neither,
    )
}  # fmt: skip
SQUARE = RULES | {"documents": documents}  # documents needs a token for every query: Tq <= Tk


@st.composite
def nested(draw: st.DrawFn, lead: tuple[int, ...], Tq: int, Tk: int, depth: int = 3) -> Rule:
    """A mask of masks: leaves joined by & | ~, to the given depth."""
    if depth == 0 or draw(st.booleans()):
        names = [n for n in (SQUARE if Tq <= Tk else RULES) if n not in ("full", "per_head")]
        return SQUARE[draw(st.sampled_from(names))](lead, Tq, Tk)
    if draw(st.booleans()):
        mask, visible = draw(nested(lead, Tq, Tk, depth - 1))
        return ~mask, ~visible
    sides = draw(nested(lead, Tq, Tk, depth - 1)), draw(nested(lead, Tq, Tk, depth - 1))
    return join(draw(st.sampled_from("&|")), *sides)
