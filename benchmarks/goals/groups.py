"""All goals, in the order of the table."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.goals import decoding, forward, masks, questions, whole
from benchmarks.goals.goal import Goal, Point


def goals() -> Iterator[Goal]:
    """Every line of the table."""
    yield from forward.forward()
    yield from forward.backward()
    yield from forward.sizes()
    yield from decoding.decode()
    yield from masks.masks()
    yield from masks.biases()
    yield from questions.questions()
    yield from questions.parts()
    yield from whole.wholes()


def points(chosen: list[Goal]) -> dict[str, Point]:
    """What is to be measured for these goals, each once though several goals speak of it."""
    return {point.name: point for goal in chosen for point in goal.points}
