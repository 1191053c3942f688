"""Online softmax: a row read tile by tile, and what is kept between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """What is kept of the keys read so far: their largest score m, l = Σ exp(s - m), and the
    weighted sum of the values relative to m, [d_v]."""

    m: float
    l: float  # noqa: E741, the field's own letter
    out: Tensor


def of_tile(scores: Tensor, V: Tensor) -> State:
    """The state of one tile: scores [c], V [c, d_v]. A tile that shows nothing is m = -inf."""
    m = scores.max().item()
    if m == -math.inf:
        return State(m, 0.0, torch.zeros(V.shape[-1]))
    share = (scores - m).exp()
    return State(m, share.sum().item(), share @ V)


def merge(a: State, b: State) -> State:
    """Both together: the smaller one is brought to the larger maximum, then they add.

    >>> scores, V = torch.tensor([1.0, 3.0, 2.0]), torch.eye(3)
    >>> both = merge(of_tile(scores[:1], V[:1]), of_tile(scores[1:], V[1:]))
    >>> torch.allclose(both.out / both.l, scores.softmax(-1))
    True
    """
    m = max(a.m, b.m)
    if m == -math.inf:
        return a
    left, right = math.exp(a.m - m), math.exp(b.m - m)
    return State(m, a.l * left + b.l * right, a.out * left + b.out * right)


def tiles(n: int, count: int = 3) -> list[tuple[int, int]]:
    """At most `count` parts of n keys, as equal as can be.

    >>> tiles(3), tiles(8), tiles(2)
    ([(0, 1), (1, 2), (2, 3)], [(0, 2), (2, 5), (5, 8)], [(0, 1), (1, 2)])
    """
    count = min(count, n)
    edges = [n * i // count for i in range(count + 1)]
    return list(zip(edges, edges[1:]))
