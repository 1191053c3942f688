"""Times side by side, the memory of one call, and the machine: what `eyeline bench` measures with.

`benchmarks/` measures with it too.
"""

from __future__ import annotations

import gc
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Run = Callable[[], object]
Clock = Callable[[], float]

GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""The environment of a process whose `peak` is exact: freed memory goes back to the system."""

_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def seconds(run: Run, clock: Clock = time.perf_counter, times: int = 1) -> float:
    """How long one call takes, the mean of `times`; what it returns is freed outside the clock."""
    start = clock()
    for _ in range(times):
        kept = run()
    elapsed = clock() - start
    del kept
    return elapsed / times


def spread(values: Sequence[float]) -> dict[str, float]:
    """What is kept of many measurements: least, quartiles, most.

    >>> spread([3.0, 1.0, 2.0])
    {'min': 1.0, 'lower': 1.5, 'median': 2.0, 'upper': 2.5, 'max': 3.0}
    """
    if len(values) == 1:
        lower = median = upper = values[0]
    else:
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "min": min(values),
        "lower": lower,
        "median": median,
        "upper": upper,
        "max": max(values),
    }


def rounded(value: Any) -> Any:
    """Five figures of every number in lists and dicts: no measurement has more.

    >>> rounded({"ms": [123.456789, 2]})
    {'ms': [123.46, 2]}
    """
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def peak(run: Run) -> int | None:
    """The bytes of memory that one call adds at most, its result included; Linux, else None.

    Exact in a process that was started with `GIVEN_BACK`: elsewhere memory that was freed is kept
    by the process, and used again unseen.
    """
    if not _FORGET.exists():
        return None
    gc.collect()
    _FORGET.write_text("5", "ascii")  # 5: forget the old maximum
    before = _resident("VmRSS")
    kept = run()
    added = _resident("VmHWM") - before
    del kept
    return max(added, 0)


def _resident(field: str) -> int:
    """Bytes this process holds now (VmRSS) or held at most (VmHWM)."""
    found = re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text("ascii"))
    assert found is not None
    return int(found[1]) * 1024


def available() -> int | None:
    """The bytes of memory that can be had without swapping; Linux, else None."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
