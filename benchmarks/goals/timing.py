"""Pairs of times, taken in turn, after the results were compared."""

from __future__ import annotations

import gc
import math
from typing import Any

from benchmarks.goals import limits
from benchmarks.goals.goal import Pair, Point, Size, nothing
from benchmarks.others import NotHere
from eyeline.cli.measuring import Clock, seconds, spread

TRIES = 3  # how often a disturbed point is measured at most
SHORTEST = 2e-3  # seconds: what is shorter is repeated within one measurement


def measure(
    point: Point, size: Size, pairs: int, threads: int, clock: Clock, tries: int = TRIES
) -> dict[str, Any]:
    """Times of both, their ratios, the machine's limits (10⁹ a second); or why there are none."""
    try:
        pair = point.make(size)
        compare(pair)
    except NotHere as reason:
        return {"missing": str(reason)}
    for left in reversed(range(tries)):
        before = limits.multiplying(threads, clock)
        found = times(pair, pairs, clock)
        after = limits.multiplying(threads, clock)
        if (before.steady and after.steady) or not left:
            break
    gflops = max(before.all, after.all)
    made = {
        **found,
        "limit": {"one": max(before.one, after.one), "all": gflops},
        "steady": before.steady and after.steady,
    }
    if pair.read:
        made["limit"]["read"] = pair.read / found["other"]["median"] / 1e9
    if pair.flops:
        reached = [pair.flops / found["mine"][name] / 1e9 / gflops for name in _TURNED]
        made["peak"] = dict(zip(_TURNED.values(), reached, strict=True))
    return made


_TURNED = {"max": "min", "upper": "lower", "median": "median", "lower": "upper", "min": "max"}
"""The longest time is the least speed."""


def compare(pair: Pair) -> None:
    """Run both once, which also warms them up, and stop unless they agree."""
    pair.ready()
    mine = pair.mine()
    pair.other_ready()
    other = pair.other()
    if pair.same is not None:
        pair.same(mine, other)


def times(pair: Pair, pairs: int, clock: Clock) -> dict[str, Any]:
    """Seconds of both, and their ratios pair by pair: `faster`, other / mine, and `cost`."""
    sides = ((pair.ready, pair.mine), (pair.other_ready, pair.other))
    repeats = []
    for ready, run in sides:
        ready()
        once = seconds(run, clock)
        repeats.append(max(1, math.ceil(SHORTEST / max(once, 1e-7))) if ready is nothing else 1)
    taken: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    for n in range(pairs):
        for side in (0, 1) if n % 2 else (1, 0):
            ready, run = sides[side]
            ready()
            taken[side].append(seconds(run, clock, repeats[side]))
    ratios = [pair.share * other / mine for mine, other in zip(*taken, strict=True)]
    return {
        "mine": spread(taken[0]),
        "other": spread(taken[1]),
        "faster": spread(ratios),
        "cost": spread([1 / ratio for ratio in ratios]),
    }
