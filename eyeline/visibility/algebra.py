"""And, or, not on lowered masks, each in the shortest form that is still exact."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import MaskError
from eyeline.visibility import spans
from eyeline.visibility.lowered import Visible, from_bits, meet

# Interval lists may hold this many entries per query and key, all rows together; past that a bit
# per cell, or where all rows see alike a bool per key, is the better form.
ENTRIES_PER_TOKEN = 8
DENSE_LIMIT = 64 * 2**20  # bytes, where this module is used without `eyeline.dense_limit`


def both(one: Visible, two: Visible) -> Visible:
    """What both allow. Parts merge; nothing ever turns into bits."""
    starts, stops, keep = _met_intervals(one, two)
    q_ids, k_ids = _met_ids(one, two)
    if one.dense is not None and two.dense is not None:
        _afford(one, two)
    dense = meet(one.dense, two.dense)
    keep = meet(meet(one.keep, two.keep), keep)
    return Visible(one.Tq, one.Tk, starts, stops, keep, q_ids, k_ids, dense, one.device)


def either(one: Visible, two: Visible) -> Visible:
    """What at least one of them allows."""
    common, one, two = _factored(one, two)
    if not one.parts() or not two.parts():
        return common
    return both(common, _joined(one, two))


def opposite(form: Visible) -> Visible:
    """What it hides."""
    kinds = form.kinds()
    if not kinds:
        return form.nowhere()
    if len(kinds) > 1:
        return reduce(either, (opposite(form.bare(**kind)) for kind in kinds))
    if form.starts is not None and form.stops is not None:
        starts, stops = spans.complement(form.starts, form.stops, form.Tk)
        return form.bare(starts=starts, stops=stops)
    if form.keep is not None:
        return form.bare(keep=~form.keep)
    _afford(form, form)
    bits = form.tile()
    assert bits is not None  # ids and dense bits never cover
    return from_bits(~bits, form.Tq, form.Tk)


def _budget(form: Visible) -> int:
    return ENTRIES_PER_TOKEN * (form.Tq + form.Tk)


def _met_intervals(
    one: Visible, two: Visible
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Intersection of the intervals: starts, stops, and what is better kept per key."""
    if one.starts is None or one.stops is None:
        return two.starts, two.stops, None
    if two.starts is None or two.stops is None:
        return one.starts, one.stops, None
    count = one.starts.shape[3] + two.starts.shape[3] - 1
    if max(one.starts.shape[2], two.starts.shape[2]) * count > _budget(one):
        # One long list that all rows share would be copied into every row.
        if one.starts.shape[2] == 1:
            return two.starts, two.stops, one.inside()[:, :, 0]
        if two.starts.shape[2] == 1:
            return one.starts, one.stops, two.inside()[:, :, 0]
    if count == 1:
        starts = torch.maximum(one.starts, two.starts)
        starts, stops = spans.tidy(starts, torch.minimum(one.stops, two.stops), one.Tk)
    else:
        starts, stops = spans.sweep(*_side_by_side(one, two), one.Tk, depth=2)
    return starts, stops, None


def _met_ids(one: Visible, two: Visible) -> tuple[Tensor | None, Tensor | None]:
    """The pair of ids that are equal iff both pairs are."""
    if one.q_ids is None or one.k_ids is None:
        return two.q_ids, two.k_ids
    if two.q_ids is None or two.k_ids is None:
        return one.q_ids, one.k_ids
    first, _ = _ranked(one.q_ids, one.k_ids)
    second, count = _ranked(two.q_ids, two.k_ids)
    ids = first * count + second
    return ids[..., : one.Tq], ids[..., one.Tq :]


def _ranked(q_ids: Tensor, k_ids: Tensor) -> tuple[Tensor, int]:
    """Ids [N|1, H|1, Tq + Tk] as numbers below a count, and the count."""
    lead = spans.shared_lead(q_ids, k_ids)
    ids = torch.cat([q_ids.expand(*lead, -1), k_ids.expand(*lead, -1)], -1)
    values, ranks = torch.unique(ids, return_inverse=True)
    return ranks, values.shape[0]


def _factored(one: Visible, two: Visible) -> tuple[Visible, Visible, Visible]:
    """(C & A) | (C & B) as C, A and B: what both have needs no union."""
    common, others = one.bare(), two.parts()
    for kind in one.kinds():
        if all(name in others and _same(part, others[name]) for name, part in kind.items()):
            found: dict[str, Any] = dict(kind)
            without: dict[str, Any] = dict.fromkeys(kind)
            common = replace(common, **found)
            one, two = replace(one, **without), replace(two, **without)
    return common, one, two


def _same(one: Tensor, two: Tensor) -> bool:
    return one is two or (one.shape == two.shape and bool(torch.equal(one, two)))


def _joined(one: Visible, two: Visible) -> Visible:
    """The union of two forms that each hide something."""
    lists, other_lists = _as_intervals(one), _as_intervals(two)
    if lists is not None and other_lists is not None:
        starts, stops = spans.sweep(*_side_by_side(lists, other_lists), one.Tk, depth=1)
        if starts.shape[2] * starts.shape[3] <= _budget(one):
            return one.bare(starts=starts, stops=stops)
    keep, other_keep = _as_keep(one), _as_keep(two)
    if keep is not None and other_keep is not None:
        return one.bare(keep=keep | other_keep)
    _afford(one, two)
    bits, others = one.tile(), two.tile()
    if bits is None or others is None:  # one of them lets all be seen after all
        return one.bare()
    return from_bits(bits | others, one.Tq, one.Tk)


def _as_intervals(form: Visible) -> Visible | None:
    """The same as intervals alone, if they are few enough for every row to hold a copy."""
    if form.parts().keys() == {"starts", "stops"}:
        return form
    if form.keep is None or len(form.kinds()) > 1:
        return None
    lists = spans.runs(form.keep, most=_budget(form) // max(form.Tq, 1))
    if lists is None:
        return None
    return form.bare(starts=lists[0].unsqueeze(2), stops=lists[1].unsqueeze(2))


def _as_keep(form: Visible) -> Tensor | None:
    """The same as one bool per key, if all rows see alike."""
    if len(form.kinds()) > 1:
        return None
    if form.starts is not None and form.starts.shape[2] == 1:
        return form.inside()[:, :, 0]
    return form.keep


def _side_by_side(one: Visible, two: Visible) -> tuple[Tensor, Tensor]:
    """Both lists of each row in one list."""
    assert one.starts is not None
    assert one.stops is not None
    assert two.starts is not None
    assert two.stops is not None
    rows = one.starts.shape[2] if two.starts.shape[2] == 1 else two.starts.shape[2]
    shape = (*spans.shared_lead(one.starts, two.starts), rows, -1)
    starts = torch.cat([one.starts.expand(shape), two.starts.expand(shape)], -1)
    return starts, torch.cat([one.stops.expand(shape), two.stops.expand(shape)], -1)


def _afford(one: Visible, two: Visible) -> None:
    """Refuse bits above the limit; who holds bits of that size already may have them again."""
    N, H = spans.shared_lead(*one.parts().values(), *two.parts().values())
    size = N * H * one.Tq * one.Tk
    limit = int(getattr(sys.modules.get("eyeline"), "dense_limit", DENSE_LIMIT))
    held = max(0 if form.dense is None else form.dense.numel() for form in (one, two))
    if size > max(limit, held):
        raise MaskError(
            f"This combination of masks has no short list of key intervals per query, and as "
            f"bits [{N}, {H}, Tq = {one.Tq}, Tk = {one.Tk}] it takes {size / 2**20:,.0f} MiB; "
            f"eyeline.dense_limit is {limit / 2**20:,.0f} MiB. Masks joined by & need no bits; "
            f"or raise eyeline.dense_limit."
        )
