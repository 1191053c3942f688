"""Masks beside their definition, written out per (query, key), for property tests."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from eyeline.masks import (
    Mask,
    causal,
    documents,
    from_tensor,
    intervals,
    only,
    padding,
    prefix,
    window,
)
from eyeline.visibility import Visible, algebra

CPU = torch.device("cpu")
LEADS = [(), (3,), (2, 3), (1, 2), (2, 1), (0,), (2, 0), (2, 1, 2), (2, 2, 2)]


def lower(mask: Mask, lead: tuple[int, ...], Tq: int, Tk: int) -> Visible:
    return mask.lower(lead, Tq, Tk, CPU)


def canonical(lead: tuple[int, ...]) -> tuple[int, int]:
    """N and H of weights [*lead, Tq, Tk]."""
    if len(lead) < 2:
        return (*lead, 1, 1)[:2] if lead else (1, 1)
    N = 1
    for size in lead[:-1]:
        N *= size
    return N, lead[-1]


def bits(visible: Visible, lead: tuple[int, ...] = ()) -> Tensor:
    """What a lowered mask shows, in full: [N, H, Tq, Tk]."""
    shape = (*canonical(lead), visible.Tq, visible.Tk)
    tile = visible.tile()
    return torch.ones(shape, dtype=torch.bool) if tile is None else tile.expand(shape)


def shown(mask: Mask, Tq: int, Tk: int) -> list[list[int]]:
    return bits(lower(mask, (), Tq, Tk))[0, 0].int().tolist()


Case = tuple[Mask, Tensor]


def whole_numbers(draw: st.DrawFn, shape: tuple[int, ...], low: int, high: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    values = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    return torch.tensor(values, dtype=draw(st.sampled_from([torch.int64, torch.int32]))).view(shape)


def left_shape(draw: st.DrawFn, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Some of the leading sizes, from the left, some of them 1."""
    return tuple(n if draw(st.booleans()) else 1 for n in lead[: draw(st.integers(0, len(lead)))])


def spread(tensor: Tensor, own: int, lead: tuple[int, ...], after: int) -> Tensor:
    """[*own, *rest] → [*lead as ones where missing, *ones, *rest]."""
    rest = tensor.shape[own:]
    return tensor.reshape(*tensor.shape[:own], *(1,) * (len(lead) - own + after), *rest)


@st.composite
def rules(draw: st.DrawFn, lead: tuple[int, ...], Tq: int, Tk: int) -> Case:
    i, j = torch.arange(Tq)[:, None], torch.arange(Tk)[None, :]
    offset = draw(st.none() | st.integers(-4, 8))
    at = i + (Tk - Tq if offset is None else offset)
    kind = draw(
        st.sampled_from(
            ["causal", "window", "padding", "documents", "prefix", "only", "ends", "bits"]
        )
    )
    if kind == "causal":
        return causal(offset), j <= at
    if kind == "window":
        before, after = draw(st.integers(0, 4)), draw(st.integers(0, 3))
        return window(before, after, offset), (j >= at - before) & (j <= at + after)
    if kind in ("padding", "prefix"):
        shape = left_shape(draw, lead)
        number = whole_numbers(draw, shape, 0, Tk + 2)
        n = number.view(*shape, *(1,) * (len(lead) - len(shape)), 1, 1).long()
        given_as = int(number) if shape == () and draw(st.booleans()) else number
        if kind == "prefix":
            return prefix(given_as), (j < n)
        if draw(st.booleans()):
            return padding(given_as), (j < n)
        return padding(given_as, "left"), (j >= Tk - n)
    if kind == "documents":
        shape = left_shape(draw, lead)
        ids = whole_numbers(draw, (*shape, Tk), -1, 2)
        ids = ids.sort(-1).values if draw(st.booleans()) else ids
        if Tq > Tk or draw(st.booleans()):
            query_shape = left_shape(draw, lead)
            queries = whole_numbers(draw, (*query_shape, Tq), -1, 3)
            mask = documents(ids, queries)
        else:
            query_shape, queries = shape, ids[..., Tk - Tq :]
            mask = documents(ids)
        left = spread(queries, len(query_shape), lead, 0).unsqueeze(-1)
        return mask, left == spread(ids, len(shape), lead, 1)
    if kind == "only":
        shape = left_shape(draw, lead)
        keep = whole_numbers(draw, (*shape, Tk), 0, 1)
        keep = keep.bool() if draw(st.booleans()) else keep.float()
        return only(keep), spread(keep, len(shape), lead, 1).bool()
    if kind == "ends":
        shape, n = left_shape(draw, lead), draw(st.integers(0, 3))
        starts = whole_numbers(draw, (*shape, Tq, n), -2, Tk + 1)
        stops = whole_numbers(draw, (*shape, Tq, n), -2, Tk + 3)
        hit = (starts[..., None] <= j) & (j < stops[..., None])
        return intervals(starts, stops), spread(hit.any(-2), len(shape), lead, 0)
    shape = tuple(n if draw(st.booleans()) else 1 for n in (*lead, Tq, Tk))
    shape = shape[draw(st.integers(0, len(shape))) :]
    tensor = whole_numbers(draw, shape, 0, 1)
    if draw(st.booleans()):  # expanded by the caller
        tensor = tensor.bool().expand((*lead, Tq, Tk))
    return from_tensor(tensor), tensor.bool()


@st.composite
def expressions(draw: st.DrawFn, lead: tuple[int, ...], Tq: int, Tk: int, depth: int) -> Case:
    sign = draw(st.sampled_from(["rule", "&", "|", "~"])) if depth else "rule"
    if sign == "rule":
        mask, truth = draw(rules(lead, Tq, Tk))
        return mask, truth.expand(*lead, Tq, Tk)
    mask, truth = draw(expressions(lead, Tq, Tk, depth - 1))
    if sign == "~":
        return ~mask, ~truth
    other, other_truth = draw(expressions(lead, Tq, Tk, depth - 1))
    return (
        (mask & other, truth & other_truth) if sign == "&" else (mask | other, truth | other_truth)
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Mask, Tensor, tuple[int, ...], int, int]:
    lead = draw(st.sampled_from(LEADS))
    Tq, Tk = draw(st.integers(0, 8)), draw(st.integers(0, 9))
    mask, truth = draw(expressions(lead, Tq, Tk, depth=3))
    return mask, truth.reshape(*canonical(lead), Tq, Tk), lead, Tq, Tk


@st.composite
def lowered(draw: st.DrawFn) -> tuple[Visible, Tensor]:
    """A lowered mask and its truth, with short lists, middling ones and none at all."""
    mask, truth, lead, Tq, Tk = draw(cases())
    before, algebra.ENTRIES_PER_TOKEN = algebra.ENTRIES_PER_TOKEN, draw(st.sampled_from([8, 1, 0]))
    try:
        return lower(mask, lead, Tq, Tk), truth
    finally:
        algebra.ENTRIES_PER_TOKEN = before


def agrees(visible: Visible, truth: Tensor) -> bool:
    assert (visible.Tq, visible.Tk) == tuple(truth.shape[2:])
    tile = visible.tile()
    return bool((truth == (True if tile is None else tile)).all())
