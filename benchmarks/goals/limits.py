"""What the machine can do at most: multiply-adds of one thread and of all, and reads of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from types import ModuleType

from torch import Tensor

from eyeline.backends import native
from eyeline.cli.measuring import Clock

LOOPS, ROUNDS = 8, 1_000_000
STREAMS = (1, 2, 4, 8)
ENOUGH = 0.95  # two threads reach 1.9 times what one does


@dataclass(frozen=True)
class Multiplying:
    """Operations a second, in 10⁹: of one thread, and of all at once."""

    one: float
    all: float
    threads: int

    @property
    def steady(self) -> bool:
        """Whether the threads together do what each does alone."""
        return self.all >= ENOUGH * self.threads * self.one


def _module() -> ModuleType:
    if native.module is None:
        raise SystemExit(f"There is nothing to measure: {native.missing}")
    return native.module


def multiplying(threads: int, clock: Clock = time.perf_counter) -> Multiplying:
    """The best of a few short loops that wait for nothing."""
    module, table = _module(), native.chosen()

    def loop() -> float:
        start = clock()
        done = module.multiply_adds(table, ROUNDS)
        return float(done) / (clock() - start) / 1e9

    one = max(loop() for _ in range(LOOPS))
    if threads == 1:
        return Multiplying(one, one, 1)
    together = Barrier(threads)

    def loops(_: int) -> list[float]:
        found = []
        for _ in range(LOOPS):
            together.wait()
            found.append(loop())
        return found

    with ThreadPoolExecutor(threads) as pool:
        each = list(pool.map(loops, range(threads)))
    return Multiplying(one, max(map(sum, zip(*each, strict=True))), threads)


def reading(tensors: tuple[Tensor, ...], threads: int) -> Callable[[], None]:
    """A call that reads the bytes of the tensors once, in so many threads, by the best streams."""
    module, table = _module(), native.chosen()
    spans = [(t.data_ptr(), t.nbytes // 4 // threads) for t in tensors]
    assert all(t.is_contiguous() for t in tensors)
    pool = ThreadPoolExecutor(threads)

    def part(n: int, streams: int) -> None:
        for address, count in spans:
            module.read_floats(table, address + 4 * count * n, count, streams)

    def all_parts(streams: int) -> None:
        if threads == 1:
            part(0, streams)
        else:
            list(pool.map(lambda n: part(n, streams), range(threads)))

    taken: dict[int, float] = {}
    for streams in STREAMS * 3:
        start = time.perf_counter()
        all_parts(streams)
        taken[streams] = min(time.perf_counter() - start, taken.get(streams, float("inf")))
    best = min(taken, key=lambda streams: taken[streams])
    return lambda: all_parts(best)
