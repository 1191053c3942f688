"""What is measured and what it shall be: pairs of calls, points that make them, goals over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from eyeline.cli.measuring import Run

Size = Callable[[int], int]
"""What becomes of a number of tokens: itself, or a small one where only the code is tested."""

CLOSE = {torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def nothing() -> None:
    """No preparation."""


@dataclass(frozen=True)
class Pair:
    """Two calls to be timed in turn.

    ``flops`` are the multiplications and additions of ``mine`` (0: not counted), ``read`` the bytes
    that ``other`` reads and does nothing else. ``share`` is what
    the time of ``other`` counts for: 0.1 where ``mine`` has a tenth of its work to do.
    ``ready`` and ``other_ready`` run before each call, outside the clock. ``same`` compares the two
    results; None where they answer different questions.
    """

    mine: Run
    other: Run
    flops: float = 0.0
    read: int = 0
    share: float = 1.0
    ready: Run = nothing
    other_ready: Run = nothing
    same: Callable[[Any, Any], None] | None = None


@dataclass(frozen=True)
class Point:
    """One measurement: its name, and how its pair is made for sizes that `Size` may shrink.

    With ``memory`` it is the peak memory of the two calls that is compared, not their time.
    """

    name: str
    make: Callable[[Size], Pair]
    memory: bool = False


class Figure(Enum):
    """What a goal speaks of; each with how it is written."""

    FASTER = "×"  # time of the other / my time
    COST = "× the time"  # my time / time of the other
    PEAK = "of peak"  # my operations a second / those of multiply-adds alone
    MEMORY = "of its memory"  # my bytes / bytes of the other

    @property
    def at_least(self) -> bool:
        """Whether more is better."""
        return self in (Figure.FASTER, Figure.PEAK)


@dataclass(frozen=True)
class Goal:
    """A line of the table. ``bound`` None: measured, with no goal.

    ``median``: the goal is for the median over the points, else for each of them.
    """

    group: str
    work: str
    against: str
    points: tuple[Point, ...]
    bound: float | None
    figure: Figure = Figure.FASTER
    median: bool = False


def close(mine: Any, other: Any) -> None:
    """Compare two results: tensors or tuples of them, by the precision of their type."""
    if isinstance(mine, Tensor):
        mine, other = (mine,), (other,)
    for a, b in zip(mine, other, strict=True):
        error = CLOSE[a.dtype]
        torch.testing.assert_close(a.float(), b.float(), rtol=error, atol=error)
