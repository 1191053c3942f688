"""The table of goals out of what was measured: reached or not, and by which figure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.goals.goal import Figure, Goal

HEADINGS = ("work", "beside", "goal", "measured: median [quartiles]", "")
MARKS = re.compile(r"(<!-- goals -->\n).*?(<!-- /goals -->)", re.DOTALL)
SHARES = (Figure.PEAK, Figure.MEMORY)


@dataclass(frozen=True)
class Verdict:
    """What was measured of a goal. ``point`` is the worst one, where each must reach it."""

    lower: float
    median: float
    upper: float
    reached: bool | None
    point: str = ""
    missed: int = 0


def figure(found: Mapping[str, Any], kind: Figure) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of a point's figure."""
    if kind is Figure.MEMORY:
        share = found["bytes"]["mine"] / max(found["bytes"]["other"], 1)
        return share, share, share
    spread = found[kind.name.lower()]
    return spread["lower"], spread["median"], spread["upper"]


def reaches(three: tuple[float, float, float], goal: Goal) -> bool | None:
    """A goal is missed when even the better quartile misses it."""
    if goal.bound is None:
        return None
    lower, _, upper = three
    return upper >= goal.bound if goal.figure.at_least else lower <= goal.bound


def judge(goal: Goal, measured: Mapping[str, Any]) -> Verdict | str:
    """The verdict, or why there is none."""
    points = {point.name: measured.get(point.name) for point in goal.points}
    for found in points.values():
        if found is None:
            return "not measured"
        if "missing" in found:
            return f"not measured: {found['missing']}"
    figures = {name: figure(found, goal.figure) for name, found in points.items() if found}
    if goal.median:
        lower, median, upper = (statistics.median(column) for column in zip(*figures.values()))
        three = (lower, median, upper)
        return Verdict(*three, reaches(three, goal))
    pick = min if goal.figure.at_least else max
    worst = pick(figures, key=lambda name: figures[name][1])
    verdicts = [reaches(three, goal) for three in figures.values()]
    missed = verdicts.count(False)
    reached = None if goal.bound is None else not missed
    return Verdict(*figures[worst], reached, worst if len(figures) > 1 else "", missed)


def written(value: float, kind: Figure) -> str:
    """A figure as it is read."""
    if kind in SHARES:
        return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def bound(goal: Goal) -> str:
    """The goal, in words."""
    if goal.bound is None:
        return "–"
    sign = "≥" if goal.figure.at_least else "≤"
    number = f"{goal.bound:.0%}" if goal.figure in SHARES else f"{goal.bound:g}"
    return f"{sign} {number} {goal.figure.value}"


def cells(goal: Goal, measured: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    verdict = judge(goal, measured)
    if isinstance(verdict, str):
        return goal.work, goal.against, bound(goal), verdict, ""
    low, middle, high = (
        written(value, goal.figure) for value in (verdict.lower, verdict.median, verdict.upper)
    )
    found = f"{middle} [{low}-{high}]" if low != high else middle
    if verdict.point:
        found += f", worst of {len(goal.points)}: {verdict.point}"
    words = {None: "", True: "met", False: "**missed**"}[verdict.reached]
    if verdict.missed and len(goal.points) > 1:
        words += f" at {verdict.missed} of {len(goal.points)}"
    return goal.work, goal.against, bound(goal), found, words


def table(goals: list[Goal], measured: Mapping[str, Any]) -> str:
    """All lines, as markdown."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(cells(goal, measured) for goal in goals)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def conditions(measured: Mapping[str, Any]) -> str:
    """On what it was measured, in a sentence for each different machine or way."""
    told: dict[str, None] = {}
    for found in measured.values():
        if "missing" in found or "bytes" in found:
            continue
        of = found["conditions"]
        clock = "" if of["clock"] == "wall" else ", time of the calling thread alone"
        threads = "1 thread" if of["threads"] == 1 else f"{of['threads']} threads"
        told[
            f"{of['processor']}, table {of['table']}, {threads}{clock}, torch {of['torch']}, "
            f"{of['pairs']} pairs."
        ] = None
    rates = [found["limit"]["all"] for found in measured.values() if "limit" in found]
    unsteady = sum(not found.get("steady", True) for found in measured.values())
    text = " ".join(told)
    if rates:
        text += f" Multiply-adds alone: {statistics.median(rates):.0f} GFLOP/s."
    reads = [found["limit"].get("read", 0.0) for found in measured.values() if "limit" in found]
    if any(reads):
        text += f" Reads alone: {max(reads):.0f} GB/s."
    if unsteady:
        text += f" {unsteady} of {len(measured)} points were measured while the machine was busy."
    return text


def fill(page: str, goals: list[Goal], measured: Mapping[str, Any]) -> str:
    """The page with what stands between its marks renewed."""
    made = f"{table(goals, measured)}\n\n{conditions(measured)}\n"
    return MARKS.sub(lambda m: f"{m[1]}{made}{m[2]}", page)
