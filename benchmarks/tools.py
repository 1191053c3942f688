"""What it costs to look into every head of a model: eyeline beside other ways and tools.

    python benchmarks/tools.py                     measure and print
    python benchmarks/tools.py --write             and store results/tools.json, fill docs/watch.md
    python benchmarks/tools.py --write 512 nnsight only these lengths and tools; the rest stays

Each measurement is a process of its own, which loads the model, runs a short text so that what
libraries set up is not counted, and then measures: the time, the peak of resident memory above
what the process held before, and what it still holds when the answer is there. Rounds are
interleaved and the median is stored; what is longer than fifteen minutes or needs more than 12 GiB
is stopped, and that is what is stored of it. Where dense attention alone is larger than the machine
its bytes are stored, and nothing is tried. Tools are measured where they are installed: tools.txt
has those that the tests use, tools-more.txt others.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import eyeline
from eyeline import models

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "tools.json"
PAGE = ROOT / "docs" / "watch.md"
CASES = (("minilm", 512), ("smollm2", 512), ("smollm2", 2048), ("smollm2", 8192))
NAMES = {"minilm": "MiniLM", "smollm2": "SmolLM2"}
MOST_SECONDS, MOST_BYTES = 900, 12 * 2**30
ROUNDS = {512: 3, 2048: 2, 8192: 1}
MIB = 2**20
Answer = Callable[[Any, dict[str, torch.Tensor], list[str]], Any]


# ---- the ways to look --------------------------------------------------------------------------


def forward(model: Any, inputs: dict[str, torch.Tensor], tokens: list[str]) -> Any:
    """The model alone, with no look at its attention."""
    return model(**inputs)[0]


def watched(model: Any, inputs: dict[str, torch.Tensor], tokens: list[str]) -> Any:
    """eyeline: three readings of every head."""
    with eyeline.watch(model) as seen:
        model(**inputs)
    ask = (eyeline.entropy, eyeline.received, partial(eyeline.top, k=8))
    return seen, [eyeline.read(weights, *ask) for weights in seen]


def eager(model: Any, inputs: dict[str, torch.Tensor], tokens: list[str]) -> Any:
    """transformers: the dense attention of every layer."""
    model.set_attn_implementation("eager")
    return model(**inputs, output_attentions=True).attentions


def bertviz(model: Any, inputs: dict[str, torch.Tensor], tokens: list[str]) -> Any:
    """BertViz: its view of every head, of dense attention, as the page that it shows."""
    from bertviz import head_view

    return head_view(eager(model, inputs, tokens), tokens, html_action="return").data


def circuitsvis(model: Any, inputs: dict[str, torch.Tensor], tokens: list[str]) -> Any:
    """circuitsvis: its view of the heads of each layer, of dense attention."""
    from circuitsvis.attention import attention_heads

    layers = eager(model, inputs, tokens)
    return [str(attention_heads(attention=layer[0], tokens=tokens)) for layer in layers]


def nnsight(model: Any, inputs: dict[str, torch.Tensor], tokens: list[str]) -> Any:
    """nnsight: the dense attention of every layer, traced and saved."""
    from nnsight import NNsight

    model.set_attn_implementation("eager")
    traced = NNsight(model)
    layers = traced.encoder.layer if hasattr(model, "encoder") else traced.layers
    with traced.trace(**inputs):
        saved = [].save()
        for layer in layers:
            attention = layer.attention.self if hasattr(model, "encoder") else layer.self_attn
            saved.append(attention.output[1])
    return saved


def attnview(model: Any, inputs: dict[str, torch.Tensor], tokens: list[str]) -> Any:
    """attnview: its page of the heads of each layer, of dense attention."""
    from attnview import render_html

    return [render_html(layer[0], tokens=tokens) for layer in eager(model, inputs, tokens)]


TOOLS: dict[str, Answer] = {
    one.__name__: one for one in (forward, watched, eager, bertviz, circuitsvis, nnsight, attnview)
}
TITLES = {
    "forward": "the forward alone",
    "watched": "eyeline: entropy, received, top 8 of every head",
    "eager": "eager, `output_attentions=True`",
    "bertviz": "BertViz, `head_view`",
    "circuitsvis": "circuitsvis, `attention_heads`",
    "nnsight": "nnsight, attention saved",
    "attnview": "attnview, `render_html`",
}
PACKAGES = ("bertviz", "circuitsvis", "nnsight", "attnview")
DENSE = ("eager", *PACKAGES)  # which hold layers x heads x tokens x tokens numbers


# ---- one measurement, in a process of its own --------------------------------------------------


def resident(key: str) -> int:
    """VmRSS or VmHWM in bytes."""
    found = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text("utf-8"))
    assert found is not None
    return int(found[1]) * 1024


def settle() -> None:
    """Give freed memory back, and let the peak begin here."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def inputs_of(loaded: Any, length: int) -> tuple[dict[str, torch.Tensor], list[str]]:
    """So many tokens of a text that goes on and on, and how they read."""
    sentence = "The keys to the old cabinet are on the table because they were too heavy. "
    found = loaded.tokens(sentence * 2)
    ids = (list(found.ids) * (length // len(found.ids) + 1))[:length]
    pieces = (list(found.pieces) * (length // len(found.ids) + 1))[:length]
    return {"input_ids": torch.tensor([ids])}, pieces


def measure(name: str, length: int, tool: str) -> dict[str, float]:
    """Time, peak and kept memory of one look."""
    loaded, ask = models.load(name), TOOLS[tool]
    with torch.no_grad():
        ask(loaded.model, *inputs_of(loaded, 16))
        given = inputs_of(loaded, length)
        settle()
        held, started = resident("VmRSS"), time.perf_counter()
        answer = ask(loaded.model, *given)
        seconds = time.perf_counter() - started
        peak = resident("VmHWM") - held
        settle()
        kept = resident("VmRSS") - held
    del answer
    return {"seconds": seconds, "peak_mib": peak / MIB, "kept_mib": kept / MIB}


def attention_bytes(name: str, length: int) -> int:
    """The float32 weights of every layer and head of a model, dense."""
    loaded = models.load(name)
    return int(loaded.layers * loaded.heads * length**2 * 4)


def memory_here() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def in_a_process(name: str, length: int, tool: str) -> dict[str, Any]:
    """`measure` elsewhere, within the limits; else {"stopped": why}."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))

    command = [sys.executable, __file__, "--one", name, str(length), tool]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            preexec_fn=limit,
        )
    except subprocess.TimeoutExpired:
        return {"stopped": "more than 15 minutes"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    if done.returncode < 0 or re.search(r"MemoryError|allocate memory", done.stderr):
        return {"stopped": "more than 12 GiB"}
    raise RuntimeError(f"{tool}, {name}, {length}: {done.stderr[-2000:]}")


# ---- all of them -------------------------------------------------------------------------------


def rounds(name: str, length: int, tools: list[str]) -> dict[str, dict[str, Any]]:
    """Each tool's medians at one length, and its time beside the forward of the same round."""
    found: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
    if (dense := attention_bytes(name, length)) > memory_here():
        found.update({tool: [{"does_not_fit": dense}] for tool in tools if tool in DENSE})
    for number in range(ROUNDS[length]):
        for turn in range(len(tools)):
            tool = tools[(turn + number) % len(tools)]
            if not any(_not_measured(one) for one in found[tool]):
                found[tool].append(in_a_process(name, length, tool))
                print(name, length, tool, found[tool][-1], file=sys.stderr, flush=True)
    return {tool: middle(measured) for tool, measured in found.items()}


def middle(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, and the spread of the time; or why there is none."""
    for one in measured:
        if _not_measured(one):
            return one
    seconds = [one["seconds"] for one in measured]
    return {
        **{key: round(statistics.median(m[key] for m in measured), 3) for key in measured[0]},
        "fastest": round(min(seconds), 3),
        "slowest": round(max(seconds), 3),
        "rounds": len(measured),
    }


def _not_measured(one: dict[str, Any]) -> bool:
    return "stopped" in one or "does_not_fit" in one


def here(tool: str) -> bool:
    """Whether a tool is installed."""
    return tool not in PACKAGES or importlib.util.find_spec(tool) is not None


def stored() -> dict[str, Any]:
    """What was measured before."""
    if not RESULTS.exists():
        return {"versions": {}, "rows": []}
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
    return found


def run(lengths: list[int], chosen: list[str], write: bool) -> dict[str, Any]:
    """Everything, or what was chosen, beside what is stored of the rest."""
    tools = [tool for tool in TOOLS if here(tool) and (not chosen or tool in chosen)]
    results = stored()
    for name, length in CASES:
        if lengths and length not in lengths:
            continue
        measured = rounds(name, length, tools)
        results = joined(stored() if write else results, name, length, measured)
        if write:
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    return results


def joined(
    results: dict[str, Any], name: str, length: int, measured: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Results with one more row, or more in a row that is there."""
    rows = {(row["model"], row["tokens"]): row["tools"] for row in results["rows"]}
    rows[name, length] = {**rows.get((name, length), {}), **measured}
    versions = {p: version(p) for p in ("torch", "transformers", *PACKAGES) if here(p)}
    return {
        "machine": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load": round(os.getloadavg()[2], 1),
        },
        "limits": {"seconds": MOST_SECONDS, "bytes": MOST_BYTES},
        "versions": {**results["versions"], **versions},
        "rows": [
            {"model": n, "tokens": t, "tools": rows[n, t]} for n, t in CASES if (n, t) in rows
        ],
    }


def table(results: dict[str, Any]) -> str:
    """The stored results as a table: time, peak and kept memory of each."""
    lines = ["| model, tokens | what | time | peak memory | kept |", "|---|---|---:|---:|---:|"]
    for row in results["rows"]:
        for tool in TOOLS:
            if (one := row["tools"].get(tool)) is None:
                continue
            start = f"| {NAMES[row['model']]}, {row['tokens']} | {TITLES[tool]} | "
            if "stopped" in one:
                lines.append(f"{start}stopped: {one['stopped']} | | |")
                continue
            if "does_not_fit" in one:
                size = f"{one['does_not_fit'] / 2**30:.1f} GiB of weights"
                lines.append(f"{start}does not fit: {size} | | |")
                continue
            sizes = " | ".join(f"{one[key]:,.0f} MiB" for key in ("peak_mib", "kept_mib"))
            lines.append(f"{start}{one['seconds']:,.2f} s | {sizes} |")
    return "\n".join(lines)


def fill(text: str, results: dict[str, Any]) -> str:
    """The page with the table between its marks renewed."""
    pattern = r"(<!-- tools -->\n).*?(<!-- /tools -->)"
    return re.sub(pattern, lambda m: f"{m[1]}{table(results)}\n{m[2]}", text, flags=re.DOTALL)


def main(arguments: list[str]) -> None:
    """Measure; print, and with --write store and fill in."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(measure(arguments[1], int(arguments[2]), arguments[3])))
        return
    chosen = [one for one in arguments if one in TOOLS]
    write = "--write" in arguments
    results = run([int(one) for one in arguments if one.isdigit()], chosen, write)
    print(table(results))
    if write:
        PAGE.write_text(fill(PAGE.read_text("utf-8"), results), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
