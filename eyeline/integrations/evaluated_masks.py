"""A mask that nobody described, as intervals of keys: evaluated by blocks of rows, run by run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from eyeline.masks import Mask, intervals

_BLOCK = 2**22  # bits that are looked at in one time
_FEW = 64  # intervals are kept where no row has more than one for so many keys, or two


def coded(rows: Callable[[int, int], Tensor], Tq: int, Tk: int) -> Mask | None:
    """The intervals of keys that each row sees; None where they would take more than bits do.

    ``rows(first, last)`` gives some rows of the mask, bool [B, 1, last - first, Tk]. Nothing of
    size Tq x Tk is formed as long as there are few intervals.

    >>> import torch
    >>> visible = torch.ones(2, 3).tril(-1).bool()
    >>> print(coded(lambda first, last: visible[None, None, first:last], 2, 3).draw(Tk=3))
    0 0 0
    1 0 0
    """
    most = max(2, Tk // _FEW)
    starts: list[Tensor] = []
    stops: list[Tensor] = []
    first = 0
    height = max(1, _BLOCK // max(Tk, 1))
    while first < Tq:
        last = min(first + height, Tq)
        found = _runs(rows(first, last)[:, 0], most)
        if found is None:
            return None
        starts.append(found[0])
        stops.append(found[1])
        first = last
    if not starts:
        return None
    count = max(block.shape[-1] for block in starts)
    begin, end = (
        torch.cat([pad(block, (0, count - block.shape[-1])) for block in blocks], dim=1)
        for blocks in (starts, stops)
    )
    if all(bool((both == both[:1]).all()) for both in (begin, end)):
        begin, end = begin[0], end[0]  # one rule for the whole batch
    return intervals(begin, end)


def _runs(visible: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """Where the runs of True begin and end in each row, [B, R, n]; None for more than `most`."""
    B, R = visible.shape[:2]
    edges = pad(visible.to(torch.int8), (1, 1)).diff(dim=-1)
    begins = edges == 1
    counts = begins.sum(-1)
    n = int(counts.max()) if counts.numel() else 0
    if n > most:
        return None
    # each row has as many ends as beginnings, in the same order
    slot = (torch.arange(n, device=visible.device) < counts[..., None]).nonzero(as_tuple=True)
    starts = visible.new_zeros(B, R, n, dtype=torch.int64)
    stops = torch.zeros_like(starts)
    starts[slot] = begins.nonzero(as_tuple=True)[-1]
    stops[slot] = (edges == -1).nonzero(as_tuple=True)[-1]
    return starts, stops
