"""Run in a process of its own: peak memory of each question at T = 16 384, printed as JSON.

Usage: python -m tests.memory_probe MASK NAME...; each name is a function below.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eyeline
from eyeline import masks, readings

T, D, MiB = 16_384, 64, 2**20
LEARNING = {"forward_and_backward", "read_with_gradient", "own_reading_with_gradient"}


@readings.reading
def sharpest(weights: Any) -> Any:
    """The example of a user's own reading."""
    values = yield readings.RowTiles(lambda tile: tile.weights.max(-1).values)
    return readings.Reading(values, axes=weights.axes[:-1], unit="weight")


def forward_and_backward(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> list[Tensor]:
    out, _ = eyeline.attention(q, k, v, mask)
    out.backward(torch.ones((), device=q.device).expand_as(out))
    return [out, *gradients(q, k, v)]


def read_with_gradient(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> list[Tensor]:
    weights = eyeline.weights(q, k, mask)
    found = eyeline.read(
        weights,
        eyeline.entropy,
        eyeline.received,
        partial(eyeline.top, k=8),
        partial(readings.pooled, rows=64, cols=64),
    )
    values = [reading.values for reading in found]
    sum(x.square().sum() for x in values).backward()
    return [*values, found[2].indices, *gradients(q, k)]


def own_reading_with_gradient(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> list[Tensor]:
    weights = eyeline.weights(q, k, mask)
    own, received = eyeline.read(weights, sharpest, eyeline.received)
    (own.values.sum() + received.values.square().sum()).backward()
    return [own.values, received.values, *gradients(q, k)]


def one_row(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> list[Tensor]:
    return [eyeline.weights(q, k, mask)[0, 0, T // 2]]


def one_column(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> list[Tensor]:
    return [eyeline.weights(q, k, mask)[0, 0, :, T // 2]]


def one_tile(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> list[Tensor]:
    return [eyeline.weights(q, k, mask)[0, 0, 4096:4352, 512:768].to_dense()]


def gradients(*leaves: Tensor) -> list[Tensor]:
    found = [leaf.grad for leaf in leaves if leaf.grad is not None]
    assert len(found) == len(leaves)
    assert all(x.isfinite().all() for x in found)
    return found


def resident(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise LookupError(key)


def settle() -> None:
    """Give freed memory back, so that new memory shows; then start the peak from here."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def inputs(length: int, learning: bool, half: bool) -> tuple[Tensor, Tensor, Tensor, Any]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, D, requires_grad=learning) for _ in range(3))
    return q, k, v, masks.only(torch.rand(length) < 0.5) if half else None


def measure(ask: Callable[..., list[Tensor]], half: bool) -> dict[str, float]:
    given = inputs(T, ask.__name__ in LEARNING, half)
    settle()
    before, start = resident("VmRSS"), time.perf_counter()
    answers = ask(*given)
    seconds = time.perf_counter() - start
    outputs = sum(x.numel() * x.element_size() for x in answers)
    extra = resident("VmHWM") - before - outputs
    return {"extra_MiB": extra / MiB, "outputs_MiB": outputs / MiB, "seconds": seconds}


def warm_up(ask: Callable[..., list[Tensor]], half: bool) -> None:
    """What libraries set up at their first use is theirs: the same question, small."""
    global T
    full, T = T, 5000
    ask(*inputs(T, ask.__name__ in LEARNING, half))
    T = full


def main() -> None:
    half = sys.argv[1] == "half"
    found = {}
    for name in sys.argv[2:]:
        ask = globals()[name]
        warm_up(ask, half)
        found[name] = measure(ask, half)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
