"""The peak memory of a pair beyond what it returns, in a process of its own (Linux).

python -m benchmarks.goals.peaks POINT DIVISOR    prints the bytes of both as JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.goals.goal import Point, Size
from benchmarks.goals.groups import goals, points
from benchmarks.others import NotHere
from eyeline.cli.measuring import GIVEN_BACK, Run, peak

ROOT = Path(__file__).resolve().parents[2]
WARM = 64


def in_a_process(point: Point, divisor: int) -> tuple[int, int]:
    """Bytes beyond inputs and outputs of ``mine`` and of ``other``."""
    command = [sys.executable, "-m", "benchmarks.goals.peaks", point.name, str(divisor)]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    env = os.environ | threads | GIVEN_BACK
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    mine, other = json.loads(done.stdout)
    if mine is None:
        raise NotHere("peak memory is asked of Linux alone")
    return mine, other


def beyond(run: Run) -> int | None:
    """The peak of one call without the tensors that it returns."""
    returned: list[Tensor] = []

    def kept() -> None:
        returned.extend(tensors(run()))

    most = peak(kept)
    return None if most is None else max(most - sum(t.nbytes for t in returned), 0)


def tensors(found: object) -> Iterator[Tensor]:
    """The tensors of a result."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, tuple | list):
        for part in found:
            yield from tensors(part)


def shrunk(divisor: int) -> Size:
    """Sizes divided by a number, but for what is smaller than any kernel's own sizes."""
    return lambda tokens: tokens if divisor == 1 else max(WARM, tokens // divisor)


def main() -> None:
    """Measure both calls of a point."""
    name, divisor = sys.argv[1], int(sys.argv[2])
    point = points(list(goals()))[name]
    with torch.no_grad():
        small = point.make(shrunk(10**9))
        small.mine(), small.other()  # what is set up once is not counted
        pair = point.make(shrunk(divisor))
        print(json.dumps([beyond(pair.mine), beyond(pair.other)]))


if __name__ == "__main__":
    main()
