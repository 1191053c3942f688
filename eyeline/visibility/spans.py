"""Lists of half-open intervals of keys, one list per row, as two int64 tensors [..., n].

Tidy lists are sorted, disjoint and not touching; their empty intervals are (Tk, Tk), last.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shared_lead(*tensors: Tensor) -> tuple[int, int]:
    """The first two sizes that tensors [N|1, H|1, ...] broadcast to."""
    N, H = (next((t.shape[dim] for t in tensors if t.shape[dim] != 1), 1) for dim in (0, 1))
    return N, H


def tidy(starts: Tensor, stops: Tensor, Tk: int) -> tuple[Tensor, Tensor]:
    """Both of one shape, empty intervals as (Tk, Tk)."""
    empty = starts >= stops
    return torch.where(empty, Tk, starts), torch.where(empty, Tk, stops)


def up_to(ordered: Tensor, at: Tensor) -> Tensor:
    """How many of the ordered values are <= each of `at`."""
    return torch.searchsorted(ordered, at, right=True)


def sweep(starts: Tensor, stops: Tensor, Tk: int, depth: int) -> tuple[Tensor, Tensor]:
    """Where at least `depth` of a row's intervals overlap, as a tidy list.

    Unions are depth 1, the intersection of two tidy lists side by side is depth 2. All ends are
    walked in order; `inside` is the same for ends at one place, so intervals that touch become
    one and empty ones vanish.

    >>> sweep(torch.tensor([0, 2, 7]), torch.tensor([2, 5, 8]), 9, depth=1)
    (tensor([0, 7]), tensor([5, 8]))
    """
    starts, stops = starts.sort(-1).values, stops.sort(-1).values
    ends = torch.cat([starts, stops], -1).sort(-1).values
    inside = up_to(starts, ends) - up_to(stops, ends) >= depth
    before = torch.nn.functional.pad(inside[..., :-1], (1, 0))
    opens, closes = inside & ~before, before & ~inside
    count = max(1, int(opens.sum(-1).amax())) if opens.numel() else 1
    first = ends.masked_fill(~opens, Tk).sort(-1).values[..., :count]
    last = ends.masked_fill(~closes, Tk).sort(-1).values[..., :count]
    return first.contiguous(), last.contiguous()


def complement(starts: Tensor, stops: Tensor, Tk: int) -> tuple[Tensor, Tensor]:
    """The keys between the intervals of tidy lists, and before and after them."""
    edge = starts.new_zeros(*starts.shape[:-1], 1)
    return sweep(torch.cat([edge, stops], -1), torch.cat([starts, edge + Tk], -1), Tk, depth=1)


def runs(keep: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """The runs of True of bool [..., Tk] as tidy lists; None where a list would exceed `most`."""
    Tk = keep.shape[-1]
    edge = torch.nn.functional.pad(keep.to(torch.int8), (1, 1)).diff(dim=-1)
    count = int((edge == 1).sum(-1).amax()) if edge.numel() else 0
    if count > most:
        return None
    at = torch.arange(Tk + 1, device=keep.device)
    ends = (torch.where(edge == sign, at, Tk).sort(-1).values for sign in (1, -1))
    starts, stops = (end[..., : max(count, 1)].contiguous() for end in ends)
    return starts, stops
