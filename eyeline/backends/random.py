"""Dropout that can be drawn again.

Whether weight (b, h, i, j) is kept depends on the seed and these four numbers alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.backends.strips import Strip


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


# The finaliser of splitmix64 (Steele, Lea, Flood 2014) on 64-bit integers that wrap around.
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)
STEP = _signed(0x9E3779B97F4A7C15)
SIGN_FREE = {shift: (1 << (64 - shift)) - 1 for shift in (27, 30, 31, 40)}


def _right(x: Tensor, shift: int) -> Tensor:
    """A logical right shift (torch's keeps the sign)."""
    return (x >> shift).bitwise_and_(SIGN_FREE[shift])


def _mix(x: Tensor) -> Tensor:
    x = x ^ _right(x, 30)
    x = x.mul_(FIRST)
    x ^= _right(x, 27)
    x = x.mul_(SECOND)
    return x.bitwise_xor_(_right(x, 31))


def kept(strip: Strip, seed: Tensor, p: float) -> Tensor:
    """Which weights of the strip dropout keeps, each with probability 1 - p: bool [n, h, R, C]."""
    problem, device = strip.problem, strip.weights.device
    n = torch.arange(problem.N, device=device)[strip.n]
    h = torch.arange(problem.Hq, device=device)[strip.h]
    i = torch.arange(problem.Tq, device=device)[strip.rows]
    key = seed.to(device)
    for index, shape in ((n, (-1, 1, 1)), (h, (1, -1, 1)), (i, (1, 1, -1))):
        key = _mix(key + (index.view(shape) + 1) * STEP)
    drawn = _mix(key.unsqueeze(-1) + (strip.keys + 1) * STEP)
    return _right(drawn, 40) >= round(p * (1 << 24))
