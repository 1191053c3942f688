"""Measure the native kernels against torch's own attention, side by side.

Every row is a number of pairs, run one after the other in turn, in one process with the same
threads, after the results were compared; the figure is the ratio of times within a pair: median and
quartiles. The processor's limit (multiply-adds that wait for nothing) is measured in the same run.

    python benchmarks/native.py [--threads 2] [--pairs 21] [--clock wall|cpu] [--save FILE] [WORD]

``--clock cpu`` counts the time of the calling thread alone: right for one thread on a busy machine.
Words choose the rows whose name holds one of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import eyeline
from eyeline.backends import native
from eyeline.backends.cpu import Cpu
from eyeline.problem import make

Run = Callable[[], Tensor]
WORDS = {torch.float32: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def pair(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, theirs: Any = None, **options: Any
) -> tuple[Run, Run]:
    """The native forward pass and torch's, on one input."""
    problem, values = make("bench", q, k, v, mask, options.get("bias"), None, None, None)
    assert values is not None
    backend = Cpu()
    causal = isinstance(theirs, bool) and theirs
    dense = None if isinstance(theirs, bool) else theirs
    grouped = q.shape[1] != k.shape[1]

    def mine() -> Tensor:
        return backend.forward(problem, values, None)[0]

    def other() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dense, is_causal=causal, enable_gqa=grouped)

    return mine, other


def inputs(
    heads: tuple[int, int], sizes: tuple[int, int], D: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one batch entry."""
    (Hq, Hk), (Tq, Tk) = heads, sizes
    shapes = (1, Hq, Tq, D), (1, Hk, Tk, D), (1, Hk, Tk, D)
    q, k, v = (torch.randn(shape).to(dtype) for shape in shapes)
    return q, k, v


def rows() -> Iterator[tuple[str, Callable[[], tuple[Run, Run]], float]]:
    """Name, how to make the pair, and the floating-point operations of it (0: not counted)."""
    for dtype in WORDS:
        for D in (64, 128):
            for T in (512, 1024, 2048, 4096):
                heads = max(1, 2048 // T)
                work = 4.0 * heads * T * T * D
                x = ((heads, heads), (T, T), D, dtype)
                name = f"forward {WORDS[dtype]} D {D} T {T} × {heads}"
                yield f"{name} full", lambda x=x: pair(*inputs(*x)), work
                yield (
                    f"{name} causal",
                    lambda x=x: pair(*inputs(*x), eyeline.causal(), True),
                    work / 2,
                )
    for D in (80, 96, 256):
        x = ((4, 4), (1024, 1024), D)
        yield f"sizes D {D}", lambda x=x: pair(*inputs(*x)), 4.0 * 4 * 1024**2 * D
    for dtype in WORDS:
        for heads in ((8, 8), (32, 8)):
            for Tq, Tk in ((1, 512), (1, 8192), (4, 2048), (16, 2048)):
                x = (heads, (Tq, Tk), 64, dtype)
                name = f"decoding {WORDS[dtype]} {heads[0]}/{heads[1]} Tq {Tq} Tk {Tk}"
                yield name, lambda x=x: pair(*inputs(*x)), 0.0
    x = ((2, 2), (4096, 4096), 64)
    seen = eyeline.window(255) & eyeline.causal()
    band = torch.ones(4096, 4096).tril().triu(-255).bool()
    yield "window(255) & causal() T 4096", lambda: pair(*inputs(*x), seen, band), 0.0
    bias = torch.randn(1024, 1024)
    y = ((4, 4), (1024, 1024), 64)
    yield "full bias T 1024", lambda: pair(*inputs(*y), None, bias, bias=bias), 0.0


def measure(mine: Run, other: Run, pairs: int, clock: Callable[[], float]) -> dict[str, float]:
    """Compare the results, then the times."""
    torch.testing.assert_close(mine().float(), other().float(), atol=2e-2, rtol=2e-2)
    taken: list[tuple[float, float]] = []
    for n in range(pairs):
        times = {}
        for run in (mine, other) if n % 2 else (other, mine):
            start = clock()
            run()
            times[run] = clock() - start
        taken.append((times[mine], times[other]))
    ratios = statistics.quantiles([b / a for a, b in taken], n=4)
    return {
        "seconds": statistics.median(a for a, _ in taken),
        "torch_seconds": statistics.median(b for _, b in taken),
        **dict(zip(("lower", "median", "upper"), ratios, strict=True)),
    }


def limit(clock: Callable[[], float]) -> float:
    """The most multiply-adds a second on one core, in GFLOP/s: the best of many short loops."""
    assert native.module is not None
    best = 0.0
    for _ in range(200):
        start = clock()
        done = native.module.multiply_adds(native.chosen(), 50_000)
        best = max(best, done / (clock() - start) / 1e9)
    return best


def main() -> None:
    """Print the table, and save it as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.set_grad_enabled(False)
    clock = time.perf_counter if asked.clock == "wall" else time.thread_time
    peak = limit(clock)
    print(f"table {native.chosen()}, {asked.threads} threads, {peak:.0f} GFLOP/s a core at most")
    found = {}
    for name, made, work in rows():
        if asked.words and not any(word in name for word in asked.words):
            continue
        torch.manual_seed(0)
        row = measure(*made(), asked.pairs, clock)
        share = work / row["seconds"] / 1e9 / (peak * asked.threads)
        found[name] = row | ({"share_of_limit": share} if work else {})
        print(
            f"{name:<42} {row['seconds'] * 1e3:9.3f} ms  {row['median']:5.2f} × torch "
            f"({row['lower']:.2f}-{row['upper']:.2f})"
            + (f"  {share:4.0%} of limit" if work else ""),
            flush=True,
        )
    if asked.save:
        machine = {"processor": platform.machine(), "torch": torch.__version__, "limit": peak}
        machine |= {"table": native.chosen(), "threads": asked.threads, "clock": asked.clock}
        asked.save.write_text(json.dumps({"machine": machine, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
