"""What attention costs at each length, beside other ways to compute it.

    python -m benchmarks.costs            measure and print the tables
    python -m benchmarks.costs --write    and store results/costs.json, fill the READMEs, draw

Every way is checked against the others before it is timed. Rounds are interleaved: each round runs
every way once, so whatever else the machine does falls on all of them, and the ratios are medians
over the rounds' own ratios. A way leaves the rounds when it has taken MOST_SECONDS, and is left out
of a length where a call would take longer than that or its memory is not there. Peak memory is what
one call adds to a process of its own, inputs not counted (Linux only).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import others
from benchmarks.costs_shown import fill, pictures, table
from eyeline.cli.costs import WAYS, Shape, fitting
from eyeline.cli.measuring import GIVEN_BACK, peak, processor, rounded, seconds, spread

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "costs.json"
READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh.md"}

LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
SHAPE = Shape(heads=4, d=64, dtype="float32", causal=True)
ROUNDS, MOST_SECONDS = 11, 20.0
WARMING = (256, 384)  # tokens; two lengths, after which a compiled kernel is one for all
MIB = 2**20
RATIOS = (
    ("eyeline", "sdpa"),
    ("eyeline", "flex"),
    ("dense", "eyeline"),
    ("dense_readings", "eyeline_readings"),
)

Run = Callable[[], tuple[Tensor, ...]]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """FlexAttention's way to say it."""
    return i >= j


def attended(attend: others.Attention, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    """The output alone, in the form of the other ways."""
    return (attend(q, k, v),)


def made(name: str, length: int) -> Run:
    """A call of one way; NotHere where it cannot run."""
    given = SHAPE.inputs(length)
    if name == "flex":
        return partial(attended, others.flex(length, causal), *given)
    if name == "keops":
        return partial(attended, others.keops(), *given)
    if name not in fitting(SHAPE, length):
        raise others.NotHere("memory")
    return partial(WAYS[name], *given, SHAPE.causal)


def runs(length: int, last: dict[str, float]) -> tuple[dict[str, Run], dict[str, str]]:
    """A call of each way that can run at this length, and why the others cannot."""
    found: dict[str, Run] = {}
    missing: dict[str, str] = {}
    for name in (*WAYS, "flex", "keops"):
        if 4 * last.get(name, 0.0) > MOST_SECONDS:
            missing[name] = "time"
            continue
        try:
            found[name] = made(name, length)
        except others.NotHere as reason:
            missing[name] = str(reason)
    return found, missing


def check(found: dict[str, Run], missing: dict[str, str]) -> None:
    """Stop unless every way computes the same numbers; what cannot be compiled goes to missing."""
    answers = {}
    for name, run in list(found.items()):
        try:
            answers[name] = run()
        except others.NotHere as reason:
            missing[name] = str(reason)
            del found[name]
            continue
        if name in ("eyeline", "dense"):  # a row of the weights; all of them fill the memory
            answers[name] = (answers[name][0], answers[name][1][..., -1, :].clone())
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
    for name, answer in answers.items():
        close(answer[0], answers["sdpa"][0])
        if name == "dense":
            close(answers["eyeline"][1], answer[1])
    if {"eyeline_readings", "dense_readings"} <= answers.keys():
        for ours, theirs in zip(
            answers["eyeline_readings"], answers["dense_readings"], strict=True
        ):
            close(ours, theirs)


def measure(length: int, last: dict[str, float]) -> dict[str, Any]:
    """Times, ratios and peaks at one length; ``last`` are the seconds at half of it."""
    found, missing = runs(length, last)
    check(found, missing)
    rounds: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(ROUNDS):
        for name, run in found.items():
            if sum(rounds[name]) < MOST_SECONDS * 1e3:
                rounds[name].append(seconds(run) * 1e3)
    ratios = {
        f"{a}/{b}": spread([x / y for x, y in zip(rounds[a], rounds[b])])
        for a, b in RATIOS
        if a in rounds and b in rounds
    }
    return {
        "T": length,
        "ms": {name: spread(values) for name, values in rounds.items()},
        "rounds": {name: len(values) for name, values in rounds.items()},
        "ratio": ratios,
        "peak_mib": {name: peak_in_a_process(name, length) for name in found},
        "missing": missing,
    }


def peak_in_a_process(name: str, length: int) -> float | None:
    """MiB that one call adds at most; None where the system does not tell."""
    command = [sys.executable, "-m", "benchmarks.costs", "--peak", name, str(length)]
    env = os.environ | GIVEN_BACK
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    found: int | None = json.loads(done.stdout.splitlines()[-1])
    return None if found is None else round(found / MIB, 1)


def peak_here(name: str, length: int) -> int | None:
    """`peak` of one way; two short calls go before it, which compile what is compiled."""
    for short in WARMING:
        made(name, short)()
    return peak(made(name, length))


def installed(package: str) -> str | None:
    """Its version, None where it is not here."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run() -> dict[str, Any]:
    """Everything measured, with what it was measured on."""
    rows: list[dict[str, Any]] = []
    last: dict[str, float] = {}
    for length in LENGTHS:
        rows.append(rounded(measure(length, last)))
        last = {name: 4 * took for name, took in last.items()}  # also of those that left
        last |= {name: ms["median"] / 1e3 for name, ms in rows[-1]["ms"].items()}
        print(f"T = {length} measured", file=sys.stderr, flush=True)
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {
        "machine": {"processor": processor(), "cores": os.cpu_count()},
        "versions": versions | {"pykeops": installed("pykeops")},
        "threads": torch.get_num_threads(),
        "shape": {"B": 1, "H": SHAPE.heads, "D": SHAPE.d, "dtype": SHAPE.dtype, "mask": "causal"},
        "rounds": ROUNDS,
        "most_seconds": MOST_SECONDS,
        "rows": rows,
    }


def main(arguments: list[str]) -> None:
    """Measure; print, and with --write store, fill in and draw."""
    with torch.no_grad():
        if arguments[:1] == ["--peak"]:
            print(json.dumps(peak_here(arguments[1], int(arguments[2]))))
            return
        results = run()
    for figure in ("attention", "memory", "readings"):
        print(table(results, figure, "en"), end="\n\n")
    if "--write" in arguments:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        for lang, path in READMES.items():
            path.write_text(fill(path.read_text("utf-8"), results, lang), "utf-8")
        for path, drawn in pictures(results).items():
            path.write_text(drawn, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
