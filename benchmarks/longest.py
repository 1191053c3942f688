"""SmolLM2 at the longest text it takes: every reading of every head, and the memory it takes.

    python -m benchmarks.longest            every layer; minutes
    python -m benchmarks.longest 0 29       only these layers

Prints one line of JSON: the peak above what was held before, of the forward alone and of watching
and reading; the bytes of the answers; the seconds; and how far the rows of any head are from giving
1 in all.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial

import torch

import eyeline
from benchmarks.tools import resident, settle
from eyeline import models, readings

TOKENS = 8192
ASK = (
    eyeline.entropy,
    eyeline.received,
    eyeline.top,
    readings.max_score,
    readings.distance,
    partial(readings.pooled, rows=64, cols=64),
)


def main(chosen: list[int]) -> None:
    """Measure and print."""
    model = models.load("smollm2").model
    ids = torch.randint(100, 40_000, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        with eyeline.watch(model) as seen:
            model(ids[:, :16])
        for weights in seen:  # what libraries set up is not counted
            eyeline.read(weights, *ASK)
        settle()
        before = resident("VmRSS")
        model(ids)
        forward = resident("VmHWM") - before
        settle()
        before = resident("VmRSS")
        with eyeline.watch(model) as seen:
            model(ids)
        started = time.perf_counter()
        found = [eyeline.read(seen[layer], *ASK) for layer in chosen or range(len(seen))]
        seconds = time.perf_counter() - started
        peak = resident("VmHWM") - before
    sums = torch.stack([answers[1].values.sum(-1) for answers in found])
    tensors = [t for answers in found for one in answers for t in (one.values, one.indices)]
    result = {
        "layers": len(found),
        "heads": sums.numel(),
        "forward": forward,
        "peak": peak,
        "answers": sum(tensor.nbytes for tensor in tensors if tensor is not None),
        "seconds": round(seconds, 1),
        "off": float((sums - TOKENS).abs().max()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:]])
