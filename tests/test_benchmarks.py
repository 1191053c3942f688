"""The benchmarks: every point runs on small sizes, a goal is judged as it is said to be."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import costs, costs_shown
from benchmarks.goals import __main__ as command
from benchmarks.goals import limits, peaks, table, timing
from benchmarks.goals.forward import beside_sdpa, square
from benchmarks.goals.goal import Figure, Goal, Pair, Point, close
from benchmarks.goals.groups import goals, points
from benchmarks.others import NotHere, keops
from eyeline.backends import native
from eyeline.cli.costs import WAYS

GOALS = list(goals())
POINTS = points(GOALS)
SLOW = ("SmolLM2", "FlexAttention", "memory")  # a model to load, a compiler, a process
# torch's own compiler imports what torch has deprecated.
compiling = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def short_loops(monkeypatch):
    monkeypatch.setattr(limits, "LOOPS", 1)
    monkeypatch.setattr(limits, "ROUNDS", 1000)
    monkeypatch.setattr(timing, "SHORTEST", 0.0)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@compiling
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if any(w in name for w in SLOW) else [])
        for name in POINTS
    ],
)
def test_every_point_runs_and_agrees(name):
    threads = torch.get_num_threads()
    given = command.asked(["--pairs", "2", "--shrink", "1000000", "--threads", str(threads)])
    found = command.measured(POINTS[name], given)
    torch.set_num_threads(threads)
    if name.startswith("threads") and threads == 1:
        assert found["missing"] == "it was asked to run on one thread"
        return
    assert json.dumps(found)
    if POINTS[name].memory:
        assert set(found["bytes"]) == {"mine", "other"}
    else:
        assert found["faster"]["min"] > 0
        assert found["mine"]["min"] <= found["mine"]["median"] <= found["mine"]["max"]


def test_points_of_one_name_are_one_point():
    assert len(POINTS) == len({point.name for goal in GOALS for point in goal.points})
    assert len({(goal.work, goal.against, goal.bound) for goal in GOALS}) == len(GOALS)


def test_what_does_not_agree_is_not_timed():
    q, k, v = square(16, 8, 1)
    wrong = replace(beside_sdpa(q, k, v), other=lambda: v)
    with pytest.raises(AssertionError):
        timing.measure(Point("wrong", lambda size: wrong), int, 2, 1, time_of_nothing, 1)


def time_of_nothing() -> float:
    time_of_nothing.now += 1.0
    return time_of_nothing.now


time_of_nothing.now = 0.0


def test_ratios_are_pair_by_pair_and_the_preparation_is_outside_the_clock():
    now = [0.0]

    def takes(seconds):
        def run():
            now[0] += seconds
            return torch.zeros(1)

        return run

    pair = Pair(takes(2.0), takes(6.0), share=0.5, ready=takes(100.0), same=close)
    found = timing.times(pair, 3, lambda: now[0])
    assert found["mine"]["median"] == 2.0
    assert found["faster"]["median"] == 1.5  # half of 6 counts
    assert found["cost"]["max"] == pytest.approx(1 / 1.5)


def test_what_is_missing_says_why():
    def make(size):
        raise NotHere("it is not installed")

    goal = Goal("group", "work", "other", (Point("p", make),), 1.0)
    found = timing.measure(goal.points[0], int, 2, 1, time_of_nothing, 1)
    assert table.judge(goal, {"p": found}) == "not measured: it is not installed"
    assert table.judge(goal, {}) == "not measured"


def spread(lower, median, upper):
    return {"lower": lower, "median": median, "upper": upper}


def judged(bound, *three, figure=Figure.FASTER, median=False):
    names = [f"p{n}" for n in range(len(three))]
    made = tuple(Point(name, lambda size: Pair(int, int)) for name in names)
    goal = Goal("group", "work", "other", made, bound, figure, median)
    found = {n: {figure.name.lower(): spread(*t)} for n, t in zip(names, three, strict=True)}
    return table.judge(goal, found)


def test_a_goal_is_missed_when_even_the_better_quartile_misses_it():
    assert judged(1.25, (1.1, 1.2, 1.25)).reached
    assert not judged(1.25, (1.1, 1.2, 1.24)).reached
    assert judged(0.7, (0.7, 0.8, 0.9), figure=Figure.COST).reached
    assert not judged(0.7, (0.71, 0.8, 0.9), figure=Figure.COST).reached
    assert judged(None, (1.0, 1.0, 1.0)).reached is None


def test_each_point_must_reach_a_goal_unless_it_is_for_the_median():
    three = ((2.0, 2.0, 2.0), (1.0, 1.0, 1.0), (3.0, 3.0, 3.0))
    each = judged(1.5, *three)
    assert (each.reached, each.median, each.point, each.missed) == (False, 1.0, "p1", 1)
    whole = judged(1.5, *three, median=True)
    assert (whole.reached, whole.median) == (True, 2.0)


def test_the_table_says_met_or_missed():
    point = Point("p", lambda size: Pair(int, int))
    goal = Goal("group", "work", "other", (point,), 1.25)
    assert table.cells(goal, {"p": {"faster": spread(1.3, 1.4, 1.5)}}) == (
        "work",
        "other",
        "≥ 1.25 ×",
        "1.40 [1.30-1.50]",
        "met",
    )
    assert table.cells(goal, {"p": {"faster": spread(1.0, 1.1, 1.2)}})[-1] == "**missed**"
    memory = Goal("group", "work", "other", (point,), 0.01, Figure.MEMORY)
    found = {"p": {"bytes": {"mine": 1, "other": 200}}}
    assert table.cells(memory, found)[2:] == ("≤ 1% of its memory", "0.5%", "met")


def test_the_page_holds_what_was_measured():
    page = command.PAGE.read_text("utf-8")
    assert page == table.fill(page, GOALS, command.stored())
    assert table.table(GOALS, command.stored()) in page


def test_a_busy_machine_is_seen():
    assert limits.Multiplying(90.0, 171.0, 2).steady
    assert not limits.Multiplying(90.0, 170.9, 2).steady
    assert limits.multiplying(2).all > 0


@pytest.mark.parametrize("table_name", native.tables())
def test_what_is_read_is_all_of_it(table_name):
    data = torch.arange(1.0, 1 + 8 * 4 * 16 * 2)
    for streams in limits.STREAMS:
        found = native.module.read_floats(table_name, data.data_ptr(), data.numel(), streams)
        assert found == data.sum()


def test_a_disturbed_point_is_measured_again(monkeypatch):
    busy, calm = limits.Multiplying(90.0, 100.0, 2), limits.Multiplying(90.0, 180.0, 2)
    answers = iter([calm, busy, calm, calm])
    monkeypatch.setattr(limits, "multiplying", lambda *_: next(answers))
    point = Point("p", lambda size: Pair(lambda: None, lambda: None))
    assert timing.measure(point, int, 2, 2, time_of_nothing, 3)["steady"]
    monkeypatch.setattr(limits, "multiplying", lambda *_: busy)
    assert not timing.measure(point, int, 2, 2, time_of_nothing, 2)["steady"]


def test_words_choose_goals(capsys):
    command.main(["--list", "--only", "decoding"])
    listed = capsys.readouterr().out.splitlines()
    assert listed
    assert all(line.startswith("decoding") for line in listed)


def test_memory_counts_neither_inputs_nor_outputs():
    size = 2**24
    given = torch.zeros(size)
    found = peaks.beyond(lambda: (given + 1) + 1)
    if found is not None:
        assert 0.9 * 4 * size < found < 1.1 * 4 * size


@pytest.mark.slow
@compiling
def test_costs_are_measured_at_every_length(monkeypatch):
    monkeypatch.setattr(costs, "LENGTHS", (64, 128))
    monkeypatch.setattr(costs, "ROUNDS", 2)
    results = costs.run()
    assert json.dumps(results)
    for row in results["rows"]:
        assert row["ms"].keys() | row["missing"].keys() == {*WAYS, "flex", "keops"}
        assert {"sdpa", "eyeline", "dense", "flex"} <= row["peak_mib"].keys()
        assert row["ratio"]["eyeline/sdpa"]["median"] > 0
    for lang, path in costs_shown.FILES.items():
        assert costs_shown.pictures(results)[path].startswith("<?xml")
        for figure in costs_shown.FIGURES:
            assert "| 128 |" in costs_shown.table(results, figure, lang)


def test_what_would_take_too_long_or_does_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr("eyeline.cli.costs.available", lambda: 2 * 2 * 4 * 4 * 100**2)
    found, missing = costs.runs(
        128, {"sdpa": costs.MOST_SECONDS / 3.9, "flex": 100.0, "keops": 9.0}
    )
    assert set(found) == {"eyeline", "eyeline_readings"}
    assert missing == {
        "sdpa": "time",
        "flex": "time",
        "keops": "time",
        "dense": "memory",
        "dense_readings": "memory",
    }


def test_the_picture_says_why_a_line_ends():
    row = {"T": 64, "ms": {"dense": {"median": 1.0}}, "peak_mib": {"dense": 1.0}, "missing": {}}
    after = {"T": 128, "ms": {}, "peak_mib": {}, "missing": {"dense": "memory"}}
    drawn = costs_shown.plot({"rows": [row, after]}, "en")
    assert "no room" in drawn
    assert "too long" not in drawn


def test_keops_is_no_part_of_eyeline(monkeypatch):
    monkeypatch.setitem(sys.modules, "pykeops.torch", None)
    with pytest.raises(NotHere, match="pykeops is not installed"):
        keops()
