"""What eyeline costs, beside torch's fused attention and beside plain softmax attention.

    python benchmarks/costs.py            measure and print the tables
    python benchmarks/costs.py --write    and store results/costs.json, fill the READMEs' tables

Every contender is checked against the others before it is timed. Rounds are interleaved: each
round runs every contender once, so whatever else the machine does falls on all of them, and
the ratios are medians over the rounds' own ratios. Peak memory is what one call adds to a
process of its own, inputs not counted (Linux only).
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import eyeline

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "costs.json"
READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh.md"}

LENGTHS = (512, 1024, 2048, 4096, 8192)
HEADS, SIZE, TOP = 4, 64, 8
ROUNDS = 11
MIB = 2**20

Inputs = tuple[Tensor, Tensor, Tensor]


def inputs(length: int) -> Inputs:
    """q, k, v [1, HEADS, length, SIZE] in float32."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, length, SIZE).unbind(0)
    return q, k, v


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    """torch's fused attention: the output alone."""
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True),)


def plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax written out, as "eager" attention does: the output and the dense weights."""
    length = q.shape[-2]
    scores = q @ k.mT * q.shape[-1] ** -0.5
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return weights @ v, weights


def lazy(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """eyeline: the output and the lazy weights."""
    return eyeline.attention(q, k, v, eyeline.causal())


def plain_answers(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Plain attention, then entropy, received attention and the top keys of the dense weights."""
    out, weights = plain(q, k, v)
    return (
        out,
        torch.special.entr(weights).sum(-1),
        weights.sum(-2),
        weights.topk(TOP, -1).values,
    )


def lazy_answers(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """eyeline's attention, then the same three answers in one pass."""
    out, weights = lazy(q, k, v)
    ask = (eyeline.entropy, eyeline.received, partial(eyeline.top, k=TOP))
    return (out, *(reading.values for reading in eyeline.read(weights, *ask)))


CONTENDERS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "sdpa": sdpa,
    "lazy": lazy,
    "plain": plain,
    "lazy_answers": lazy_answers,
    "plain_answers": plain_answers,
}
RATIOS = (("lazy", "sdpa"), ("plain", "lazy"), ("plain_answers", "lazy_answers"))


def check(given: Inputs) -> None:
    """Stop unless every contender computes the same numbers."""
    out, weights = lazy(*given)
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
    close(out, sdpa(*given)[0])
    close(weights[0, -1, -1], plain(*given)[1][0, -1, -1])
    for ours, theirs in zip(lazy_answers(*given), plain_answers(*given), strict=True):
        close(ours, theirs)


def timed(call: Callable[..., object], given: Inputs) -> float:
    """Milliseconds of one call; what it returns is freed outside the clock."""
    start = time.perf_counter()
    kept = call(*given)
    elapsed = time.perf_counter() - start
    del kept
    return elapsed * 1e3


def spread(values: list[float]) -> dict[str, float]:
    """The three numbers that are kept of many."""
    kept = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, 3) for name, value in kept.items()}


def resident(field: str) -> int:
    """Bytes this process holds now (VmRSS) or held at most (VmHWM); Linux."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    if found is None:
        raise SystemExit(f"{field} is not in /proc/self/status")
    return int(found[1]) * 1024


def peak(name: str, length: int) -> float:
    """MiB that one call adds at most, measured in this process; a short call goes before it."""
    call, given = CONTENDERS[name], inputs(length)
    call(*inputs(64))
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # 5: forget the old maximum
    before = resident("VmRSS")
    kept = call(*given)
    added = resident("VmHWM") - before
    del kept
    return added / MIB


def peak_in_a_process(name: str, length: int) -> float | None:
    """`peak`, in a process of its own; None where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, __file__, "--peak", name, str(length)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return round(float(done.stdout), 1)


def measure(length: int) -> dict[str, Any]:
    """Times, ratios and peaks at one length."""
    given = inputs(length)
    check(given)
    rounds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, call in CONTENDERS.items():
            rounds[name].append(timed(call, given))
    ratios = {
        f"{a}/{b}": spread([x / y for x, y in zip(rounds[a], rounds[b], strict=True)])
        for a, b in RATIOS
    }
    return {
        "T": length,
        "ms": {name: spread(values) for name, values in rounds.items()},
        "ratio": ratios,
        "peak_mib": {name: peak_in_a_process(name, length) for name in CONTENDERS},
    }


def processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def run() -> dict[str, Any]:
    """Everything measured, with what it was measured on."""
    with torch.no_grad():
        rows = []
        for length in LENGTHS:
            rows.append(measure(length))
            print(f"T = {length} measured", file=sys.stderr)
    return {
        "machine": {"processor": processor(), "cores": os.cpu_count()},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "threads": torch.get_num_threads(),
        "shape": {"B": 1, "H": HEADS, "D": SIZE, "dtype": "float32", "mask": "causal"},
        "rounds": ROUNDS,
        "rows": rows,
    }


HEADINGS = {
    ("attention", "en"): (
        "T",
        "torch SDPA, no weights",
        "eyeline, lazy weights",
        "plain softmax, dense weights",
        "eyeline ÷ SDPA",
        "plain ÷ eyeline",
        "memory: SDPA · eyeline · plain",
    ),
    ("attention", "zh"): (
        "T",
        "torch SDPA，没有权重",
        "eyeline，惰性权重",
        "逐步 softmax，完整权重",
        "eyeline ÷ SDPA",
        "逐步 ÷ eyeline",
        "内存：SDPA · eyeline · 逐步",
    ),
    ("readings", "en"): ("T", "eyeline", "plain softmax", "plain ÷ eyeline", "memory: both"),
    ("readings", "zh"): ("T", "eyeline", "逐步 softmax", "逐步 ÷ eyeline", "内存：两者"),
}


def milliseconds(row: dict[str, Any], name: str) -> str:
    """The median time of one contender."""
    return f"{row['ms'][name]['median']:,.1f} ms"


def mebibytes(row: dict[str, Any], *names: str) -> str:
    """Peaks side by side."""
    peaks = [row["peak_mib"][name] for name in names]
    return " · ".join("not measured" if p is None else f"{p:,.0f}" for p in peaks) + " MiB"


def table(results: dict[str, Any], figure: str, lang: str) -> str:
    """A markdown table of the stored results; `figure` is "attention" or "readings"."""
    lines = [HEADINGS[figure, lang], ("---:",) * len(HEADINGS[figure, lang])]
    for row in results["rows"]:
        ratio = {name: f"{value['median']:.2f}" for name, value in row["ratio"].items()}
        if figure == "attention":
            times = [milliseconds(row, name) for name in ("sdpa", "lazy", "plain")]
            memory = mebibytes(row, "sdpa", "lazy", "plain")
            cells = [*times, ratio["lazy/sdpa"], ratio["plain/lazy"], memory]
        else:
            times = [milliseconds(row, name) for name in ("lazy_answers", "plain_answers")]
            memory = mebibytes(row, "lazy_answers", "plain_answers")
            cells = [*times, ratio["plain_answers/lazy_answers"], memory]
        lines.append((f"{row['T']}", *cells))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fill(text: str, results: dict[str, Any], lang: str) -> str:
    """The document with what stands between its figure marks renewed."""
    pattern = r"(<!-- figure:(\w+) -->\n).*?(<!-- /figure -->)"
    return re.sub(
        pattern,
        lambda m: f"{m[1]}{table(results, m[2], lang)}\n{m[3]}",
        text,
        flags=re.DOTALL,
    )


def main(arguments: list[str]) -> None:
    """Measure; print, and with --write store and fill in."""
    if arguments[:1] == ["--peak"]:
        with torch.no_grad():
            print(peak(arguments[1], int(arguments[2])))
        return
    results = run()
    for figure in ("attention", "readings"):
        print(table(results, figure, "en"), end="\n\n")
    if "--write" in arguments:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        for lang, path in READMES.items():
            path.write_text(fill(path.read_text("utf-8"), results, lang), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
