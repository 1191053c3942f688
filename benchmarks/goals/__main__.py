"""`python -m benchmarks.goals`: measure, print the table, store it."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.goals import __doc__ as about
from benchmarks.goals import peaks, table, timing
from benchmarks.goals.goal import Goal, Point
from benchmarks.goals.groups import goals, points
from benchmarks.others import NotHere
from eyeline.backends import native
from eyeline.cli.measuring import processor, rounded

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "goals.json"
PAGE = ROOT / "docs" / "backends.md"
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


def asked(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.goals",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", nargs="+", default=[], help="goals whose group or work holds one of these words")
    add("--threads", type=int, default=torch.get_num_threads(), help="threads of both sides")
    add("--pairs", type=int, default=21, help="measurements of each side (default: 21)")
    add("--clock", choices=CLOCKS, default="wall", help="cpu: the calling thread's own time")
    add("--tries", type=int, default=timing.TRIES, help="how often a disturbed point is measured")
    add("--shrink", type=int, default=1, help="divide all sizes, to see that it runs")
    add("--list", action="store_true", help="name the goals and their points; measure nothing")
    add("--write", action="store_true", help=f"store {RESULTS.name} and fill {PAGE.name}")
    found = parser.parse_args(arguments)
    if found.clock == "cpu" and found.threads != 1:
        parser.error("--clock cpu counts one thread alone: give --threads 1")
    if found.pairs < 1 or found.tries < 1:
        parser.error("--pairs and --tries count measurements: give at least 1")
    if found.write and found.shrink != 1:
        parser.error("--write stores what whole sizes take: give no --shrink")
    return found


def named(goal: Goal, words: list[str]) -> bool:
    """Whether a word names it."""
    return not words or any(word in goal.group or word in goal.work for word in words)


def measured(point: Point, given: argparse.Namespace) -> dict[str, Any]:
    """All that is known of one point."""
    torch.set_num_threads(given.threads)  # a point may have changed it
    if point.memory:
        try:
            mine, other = peaks.in_a_process(point, given.shrink)
        except NotHere as reason:
            return {"missing": str(reason)}
        found: dict[str, Any] = {"bytes": {"mine": mine, "other": other}}
    else:
        size = peaks.shrunk(given.shrink)
        clock = CLOCKS[given.clock]
        found = timing.measure(point, size, given.pairs, given.threads, clock, given.tries)
    of = {"processor": processor(), "table": native.chosen(), "threads": given.threads}
    of |= {"clock": given.clock, "pairs": given.pairs, "python": platform.python_version()}
    return found | {"conditions": of | {"torch": torch.__version__}}


def line(name: str, found: dict[str, Any]) -> str:
    """What is told of a point when it was measured."""
    if "missing" in found:
        return f"{name:<52} {found['missing']}"
    if "bytes" in found:
        mine, other = found["bytes"]["mine"], found["bytes"]["other"]
        return f"{name:<52} {mine / 2**20:.1f} MiB beside {other / 2**20:.1f} MiB"
    faster = found["faster"]
    text = (
        f"{name:<52} {found['mine']['median'] * 1e3:9.3f} ms "
        f"{faster['median']:6.2f} × [{faster['lower']:.2f}-{faster['upper']:.2f}]"
    )
    if "peak" in found:
        text += f" {found['peak']['median']:4.0%} of peak"
    return text + ("" if found["steady"] else "  (busy)")


def stored() -> dict[str, Any]:
    """The points that were measured last."""
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
    return found


def main(arguments: list[str]) -> None:
    """Measure what was asked for; with ``--write`` the points of other goals stay as stored."""
    given = asked(arguments)
    chosen = [goal for goal in goals() if named(goal, given.only)]
    if given.list:
        for goal in chosen:
            print(f"{goal.group:<10} {goal.work}: {', '.join(p.name for p in goal.points)}")
        return
    results: dict[str, Any] = {}
    with torch.no_grad():
        for name, point in points(chosen).items():
            results[name] = rounded(measured(point, given))
            print(line(name, results[name]), file=sys.stderr, flush=True)
    print(table.table(chosen, results), table.conditions(results), sep="\n\n")
    if given.write:
        all_goals = list(goals())
        before = stored() if RESULTS.exists() else {}
        kept = {
            name: (before | results)[name] for name in points(all_goals) if name in before | results
        }
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        PAGE.write_text(table.fill(PAGE.read_text("utf-8"), all_goals, kept), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
