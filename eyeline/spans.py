"""What part of the weights is meant: spans of keys, edges of cells, a rectangle. Checked here."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import ArgumentError


def indicator(name: str, span: Any, Tk: int, device: torch.device) -> Tensor:
    """1 at the keys of a span."""
    keys = torch.zeros(Tk, device=device)
    if span is None:
        return keys
    if isinstance(span, tuple) and len(span) == 2 and all(isinstance(end, int) for end in span):
        start, stop = span
        if not 0 <= start <= stop <= Tk:
            raise ArgumentError(
                f"mass: span {name!r} is ({start}, {stop}), and the keys are 0..{Tk}."
            )
        keys[start:stop] = 1.0
        return keys
    try:
        index = torch.as_tensor(span, device=device)
    except (TypeError, ValueError, RuntimeError):
        index = torch.zeros(1)
    if index.dtype == torch.bool and index.shape == (Tk,):
        return index.to(keys.dtype)
    if index.numel() == 0:
        return keys
    if index.dtype == torch.bool or index.is_floating_point() or index.dim() != 1:
        raise ArgumentError(
            f"mass: a span is (start, stop), a list of key indices or {Tk} bools, one per key, and "
            f"span {name!r} is {span!r:.80}."
        )
    wrong = index[(index < -Tk) | (index >= Tk)]
    if wrong.numel():
        raise ArgumentError(
            f"mass: span {name!r} names key {int(wrong[0])}, and there are {Tk} keys."
        )
    keys[index.long()] = 1.0
    return keys


def cell_edges(cells: int | Sequence[int], first: int, last: int, name: str) -> Tensor:
    """Where cells begin and end: count + 1 increasing numbers."""
    if hasattr(cells, "__index__"):
        wanted = operator.index(cells)
        if wanted < 1:
            raise ArgumentError(
                f"pooled: {name} is a number of cells from 1 or a list of edges, and got {cells}."
            )
        count = max(min(wanted, last - first), 1)
        return torch.tensor([first + (last - first) * i // count for i in range(count + 1)])
    try:
        edges = torch.as_tensor(cells)
    except (TypeError, ValueError, RuntimeError):
        edges = torch.zeros(0)
    whole = edges.dim() == 1 and len(edges) >= 2 and not edges.is_floating_point()
    inside = whole and int(edges[0]) >= first and int(edges[-1]) <= last
    if not inside or bool((edges.diff() < 0).any()):
        raise ArgumentError(
            f"pooled: {name} is a number of cells, or edges that rise from {first} to {last} at "
            f"most, and got {cells!r:.80}."
        )
    return edges.long()


def rectangle(region: Any, Tq: int, Tk: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """``((r0, r1), (c0, c1))``, all of the weights by default."""
    if region is None:
        return (0, Tq), (0, Tk)
    try:
        (r0, r1), (c0, c1) = region
        return (operator.index(r0), operator.index(r1)), (operator.index(c0), operator.index(c1))
    except (TypeError, ValueError):
        raise ArgumentError(
            f"pooled: region is ((first row, end), (first column, end)), and got {region!r:.80}."
        ) from None
