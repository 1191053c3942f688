"""What looking into a model costs: time beside the unwatched forward, and the bytes that are kept.

    python benchmarks/watching.py            measure and print
    python benchmarks/watching.py --write    and store results/watching.json

Rounds are interleaved: each round runs the model unwatched and watched, in an order that turns
from round to round, so whatever else the machine does falls on both; a ratio is the median of the
rounds' own ratios. The outputs are compared, bit for bit, before anything is timed.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import eyeline
from eyeline import models
from eyeline.seen import Seen

RESULTS = Path(__file__).resolve().parent / "results" / "watching.json"
ROUNDS = 21
CASES = (("minilm", 64), ("minilm", 512), ("smollm2", 64), ("smollm2", 512))
MIB = 2**20


def text_of(loaded: Any, length: int) -> dict[str, torch.Tensor]:
    """Inputs of so many tokens."""
    sentence = "The keys to the old cabinet are on the table. "
    ids = loaded.tokens(sentence * (length // 8)).ids[:length]
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def kept(seen: Seen) -> tuple[int, int]:
    """The bytes of the storages that a watch keeps alive, and of the queries and keys in them."""
    held = [tensor for call in seen.calls for tensor in (call.q, call.k)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    return sum(storages.values()), sum(t.nbytes for t in held)


def measure(name: str, length: int) -> dict[str, Any]:
    """One model at one length."""
    loaded = models.load(name)
    inputs = text_of(loaded, length)
    model = loaded.model

    def plain() -> Any:
        return model(**inputs)

    def watched() -> Any:
        with eyeline.watch(model) as seen:
            model(**inputs)
        return seen

    def inside() -> float:
        """The forward alone, in a block that is open already."""
        with eyeline.watch(model):
            return seconds(plain)

    with torch.no_grad():
        with eyeline.watch(model) as seen:
            looked = model(**inputs)[0]
        assert torch.equal(looked, model(**inputs)[0])
        storages, tensors = kept(seen)
        del seen, looked
        times: dict[str, list[float]] = {"unwatched": [], "watched": [], "forward": []}
        for number in range(ROUNDS):
            runs = {
                "unwatched": lambda: seconds(plain),
                "watched": lambda: seconds(watched),
                "forward": inside,
            }
            order = list(runs)
            for turn in range(len(order)):
                key = order[(turn + number) % len(order)]
                gc.collect()
                times[key].append(runs[key]())

    def ratio(key: str) -> float:
        pairs = zip(times[key], times["unwatched"], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 4)

    return {
        "model": name,
        "tokens": length,
        "unwatched_ms": round(1000 * statistics.median(times["unwatched"]), 2),
        "forward_ratio": ratio("forward"),
        "block_ratio": ratio("watched"),
        "kept_mib": round(storages / MIB, 3),
        "q_and_k_mib": round(tensors / MIB, 3),
    }


def main() -> None:
    """Measure, print, and store where asked."""
    cases = []
    for name, length in CASES:
        found = measure(name, length)
        cases.append(found)
        print(
            f"{found['model']:8} {found['tokens']:5} tokens: unwatched {found['unwatched_ms']} ms;"
            f" watched forward x {found['forward_ratio']}, with the block itself x"
            f" {found['block_ratio']}; keeps {found['kept_mib']} MiB,"
            f" q and k are {found['q_and_k_mib']} MiB",
            flush=True,
        )
    if "--write" in sys.argv[1:]:
        machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        machine["cores"] = os.cpu_count() or 0
        stored = {"machine": machine, "rounds": ROUNDS, "cases": cases}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
