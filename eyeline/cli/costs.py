"""What attention costs on this machine, beside torch's fused attention and dense softmax.

`python -m eyeline.cli.costs` is how `eyeline bench` asks for peak memory, in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import eyeline
from eyeline.backends import choose, native
from eyeline.cli.measuring import GIVEN_BACK, available, peak, processor, rounded, seconds, spread
from eyeline.errors import EyelineError

if TYPE_CHECKING:
    from rich.console import Console

TOP = 8
ROUNDS, MOST_SECONDS = 11, 8.0  # of one length; what is slow is measured less often
MIB = 2**20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Shape:
    """One layer of self-attention, q, k, v ``[1, heads, T, d]``."""

    heads: int = 4
    d: int = 64
    dtype: str = "float32"
    causal: bool = True

    def inputs(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of a length."""
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, self.heads, length, self.d).to(DTYPES[self.dtype]).unbind(0)
        return q, k, v

    def dense_bytes(self, length: int) -> int:
        """What dense softmax holds at most: scores and weights."""
        return 2 * self.heads * length**2 * DTYPES[self.dtype].itemsize


Way = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, ...]]


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor]:
    """torch's fused attention: the output alone."""
    return (F.scaled_dot_product_attention(q, k, v, is_causal=causal),)


def dense(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Softmax written out, as "eager" attention does: the output and the dense weights."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, -torch.inf)
    weights = scores.softmax(-1)
    return weights @ v, weights


def lazy(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, eyeline.Weights]:
    """eyeline: the output and the lazy weights."""
    return eyeline.attention(q, k, v, eyeline.causal() if causal else None)


def dense_answers(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """Dense attention, then entropy, received attention and the top keys of its weights."""
    out, weights = dense(q, k, v, causal)
    top = weights.topk(min(TOP, weights.shape[-1]), -1).values
    return out, torch.special.entr(weights).sum(-1), weights.sum(-2), top


def lazy_answers(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """eyeline's attention, then the same three answers in one pass."""
    out, weights = lazy(q, k, v, causal)
    ask = (eyeline.entropy, eyeline.received, partial(eyeline.top, k=min(TOP, k.shape[-2])))
    return (out, *(reading.values for reading in eyeline.read(weights, *ask)))


WAYS: dict[str, Way] = {
    "sdpa": sdpa,
    "eyeline": lazy,
    "dense": dense,
    "eyeline_readings": lazy_answers,
    "dense_readings": dense_answers,
}


def fitting(shape: Shape, length: int) -> dict[str, Way]:
    """The ways whose memory is there: half of what is free may be taken."""
    free = available()
    fits = free is None or shape.dense_bytes(length) < free / 2
    return {name: way for name, way in WAYS.items() if fits or not name.startswith("dense")}


def measure(
    lengths: Sequence[int], shape: Shape, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Times in turn, and peaks: everything that `eyeline bench` shows.

    ``ms`` are milliseconds, ``ratio`` the times of two ways divided, round by round, ``peak_mib``
    what one call adds at most, its result included; a way that does not fit is left out.
    """
    with torch.no_grad():
        rows = [_timed(length, shape, progress) for length in lengths]
    progress("Measuring memory ...")
    for row, peaks in zip(rows, _peaks_in_a_process(lengths, shape, progress), strict=True):
        row["peak_mib"] = peaks
    weights = eyeline.weights(*shape.inputs(2)[:2])
    return {
        "machine": {"processor": processor(), "threads": torch.get_num_threads()},
        "versions": {
            "eyeline": eyeline.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "backend": choose(weights.problem, None).name,
        "table": native.chosen(),
        "native": native.missing,
        "shape": asdict(shape),
        "rows": rounded(rows),
    }


def _timed(length: int, shape: Shape, progress: Callable[[str], None]) -> dict[str, Any]:
    progress(f"Measuring {length} tokens ...")
    given, ways = shape.inputs(length), fitting(shape, length)
    runs = {name: partial(way, *given, shape.causal) for name, way in ways.items()}
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    started = time.perf_counter()
    for n in range(ROUNDS):
        for name, run in runs.items():
            times[name].append(seconds(run) * 1e3)
        if n and time.perf_counter() - started > MOST_SECONDS:
            break
    ratios = {}
    for name in _RATIOS_SHOWN:
        a, b = (times.get(way, []) for way in name.split("/"))
        if a and b:
            ratios[name] = spread([x / y for x, y in zip(a, b, strict=True)])
    return {
        "T": length,
        "rounds": len(times["sdpa"]),
        "ms": {name: spread(values) for name, values in times.items()},
        "ratio": ratios,
    }


def _peaks(lengths: Sequence[int], shape: Shape) -> list[dict[str, float | None]]:
    """MiB that one call of each way adds at most."""
    found = []
    for length in lengths:
        given, peaks = shape.inputs(length), dict[str, float | None]()
        for name, way in fitting(shape, length).items():
            way(*shape.inputs(16), shape.causal)  # what is set up once is not counted
            most = peak(partial(way, *given, shape.causal))
            peaks[name] = None if most is None else round(most / MIB, 1)
        found.append(peaks)
    return found


def _peaks_in_a_process(
    lengths: Sequence[int], shape: Shape, progress: Callable[[str], None]
) -> list[dict[str, float | None]]:
    """`_peaks` where freed memory is given back at once."""
    command = [
        sys.executable,
        "-m",
        "eyeline.cli.costs",
        json.dumps([list(lengths), asdict(shape)]),
    ]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    env = os.environ | threads | GIVEN_BACK
    try:
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        progress(f"The process that measures memory could not: {error}")
        return [dict.fromkeys(fitting(shape, length)) for length in lengths]
    found: list[dict[str, float | None]] = json.loads(done.stdout)
    return found


def lengths_of(text: str) -> list[int]:
    """The lengths that the command line names: "512,2048"."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise EyelineError(f"--tokens takes numbers of tokens as 512,2048, and got {text!r}.")
    return found


def show(found: dict[str, Any], screen: Console) -> None:
    """Times, ratios of times and memory, a table each."""
    shape, machine, versions = found["shape"], found["machine"], found["versions"]
    ran = found["backend"] + (f", table {found['table']}" if found["backend"] == "cpu" else "")
    mask = "causal" if shape["causal"] else "no mask"
    for line in (
        f"eyeline {versions['eyeline']}, torch {versions['torch']}, {machine['processor']}",
        f"threads: {machine['threads']}, backend: {ran}",
        f"{shape['heads']} heads, D {shape['d']}, {shape['dtype']}, {mask}",
        "",
        "SDPA: torch's fused attention, which has no weights. Dense: softmax written out.",
        f"Readings: attention, then entropy, received and top({TOP}).",
    ):
        screen.print(line, markup=False, highlight=False)
    medians = [
        {name: f"{value['median']:,.1f}" for name, value in row["ms"].items()}
        for row in found["rows"]
    ]
    _print_table(screen, found, "Milliseconds, the median", _WAYS_SHOWN, medians)
    divided = [
        {name: f"{value['median']:.2f}" for name, value in row["ratio"].items()}
        for row in found["rows"]
    ]
    _print_table(screen, found, "Times divided, turn by turn", _RATIOS_SHOWN, divided)
    peaks = [
        {name: "?" if mib is None else f"{mib:,.0f}" for name, mib in row["peak_mib"].items()}
        for row in found["rows"]
    ]
    _print_table(screen, found, "MiB that a call adds at most", _WAYS_SHOWN, peaks)
    if any("dense" not in row["ms"] for row in found["rows"]):
        screen.print("\n–: the dense weights would take more than half of the free memory.")
    if found["native"]:
        screen.print(f"\nSlower than it could be: {found['native']}", markup=False, highlight=False)


_WAYS_SHOWN = {
    "sdpa": "SDPA",
    "eyeline": "eyeline",
    "dense": "dense",
    "eyeline_readings": "eyeline,\nreadings",
    "dense_readings": "dense,\nreadings",
}
_RATIOS_SHOWN = {
    "sdpa/eyeline": "SDPA ÷\neyeline",
    "dense/eyeline": "dense ÷\neyeline",
    "dense_readings/eyeline_readings": "readings:\ndense ÷ eyeline",
    "eyeline_readings/eyeline": "eyeline:\nreadings ÷ attention",
}


def _print_table(
    screen: Console,
    found: dict[str, Any],
    title: str,
    shown: dict[str, str],
    cells: Sequence[dict[str, str]],
) -> None:
    from rich.table import Table

    made = Table(title=title, box=None, title_justify="left", title_style="bold", pad_edge=False)
    for heading in ("tokens", *shown.values()):
        made.add_column(heading, justify="right")
    for row, known in zip(found["rows"], cells, strict=True):
        made.add_row(str(row["T"]), *(known.get(name, "–") for name in shown))
    screen.print()
    screen.print(made, highlight=False)


if __name__ == "__main__":
    asked_lengths, asked_shape = json.loads(sys.argv[1])
    with torch.no_grad():
        print(json.dumps(_peaks(asked_lengths, Shape(**asked_shape))))
