"""What looking into a model costs: time beside the unwatched forward, and the bytes that are kept.

    python benchmarks/watching.py            measure and print
    python benchmarks/watching.py --write    and store results/watching.json

Rounds are interleaved: each runs the model unwatched, watched, and with an attention function that
keeps queries and keys until the next text begins and does nothing else, the least that it can cost.
Each of them runs once more before it is timed, and their order is shuffled: what another left in
the allocator saves or costs the next forward thousands of pages of fresh memory. A ratio is the
median of the rounds' own ratios. The outputs are compared before anything is timed, bit for bit.
"""

from __future__ import annotations

import gc
import json
import math
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

import eyeline
from eyeline import models
from eyeline.seen import Seen

RESULTS = Path(__file__).resolve().parent / "results" / "watching.json"
ROUNDS = 21
ENOUGH = 20.0  # seconds of the unwatched model: short ones take more rounds
SPELL = 0.1  # seconds of the unwatched model in a row
CASES = (("minilm", 64), ("minilm", 512), ("smollm2", 64), ("smollm2", 512))
MIB = 2**20


def text_of(loaded: Any, length: int) -> dict[str, torch.Tensor]:
    """Inputs of so many tokens."""
    sentence = "The keys to the old cabinet are on the table. "
    ids = loaded.tokens(sentence * (length // 8)).ids[:length]
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}


class Cost(NamedTuple):
    """What a run took, and how many pages of memory it touched for the first time."""

    seconds: float
    pages: float


def cost(work: Callable[[], Any], times: int) -> Cost:
    """What it takes, on the average of so many runs, after one that finds another's memory."""
    gc.collect()
    work()
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    started = time.perf_counter()
    for _ in range(times):
        work()
    seconds = time.perf_counter() - started
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
    return Cost(seconds / times, pages / times)


@contextmanager
def keeping(model: Any) -> Iterator[None]:
    """Let the model run its SDPA attention, and keep the queries and keys of each text."""
    held: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        module: torch.nn.Module, query: Tensor, key: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        out = sdpa_attention_forward(module, query, key, *args, **kwargs)
        if id(module) in held:  # another text begins
            held.clear()
        held[id(module)] = query, key
        return out

    AttentionInterface.register("keeping", attend)
    AttentionMaskInterface.register("keeping", sdpa_mask)
    model.set_attn_implementation("keeping")
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")
        held.clear()


def kept(seen: Seen) -> tuple[int, int]:
    """The bytes of the storages that a watch keeps alive, and of the queries and keys in them."""
    held = [tensor for call in seen.calls for tensor in (call.q, call.k)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    return sum(storages.values()), sum(t.nbytes for t in held)


def runs_of(model: Any, inputs: dict[str, Tensor], times: int) -> dict[str, Callable[[], Cost]]:
    """What is measured, by name."""

    def plain() -> Any:
        return model(**inputs)

    def watched() -> Any:
        with eyeline.watch(model) as seen:
            model(**inputs)
        return seen

    def inside() -> Cost:
        """The forward alone, in a block that is open already."""
        with eyeline.watch(model):
            return cost(plain, times)

    def left() -> Cost:
        with keeping(model):
            return cost(plain, times)

    return {
        "unwatched": lambda: cost(plain, times),
        "block": lambda: cost(watched, times),
        "forward": inside,
        "kept": left,
    }


def measure(name: str, length: int) -> dict[str, Any]:
    """One model at one length."""
    loaded = models.load(name)
    model, inputs = loaded.model, text_of(loaded, length)
    with torch.no_grad():
        seconds = min(cost(lambda: model(**inputs), 1).seconds for _ in range(3))
        times = math.ceil(SPELL / seconds)
        runs = runs_of(model, inputs, times)
        with eyeline.watch(model) as seen:
            looked = model(**inputs)[0]
        assert torch.equal(looked, model(**inputs)[0])
        storages, tensors = kept(seen)
        del seen, looked
        gc.collect()
        gc.freeze()  # what stands by now need not be looked through before each run
        costs: dict[str, list[Cost]] = {key: [] for key in runs}
        shuffled = random.Random(1)
        rounds = max(ROUNDS, math.ceil(ENOUGH / (times * seconds)))
        for _ in range(rounds):
            for key in shuffled.sample(list(runs), len(runs)):
                costs[key].append(runs[key]())

    def ratio(key: str) -> float:
        pairs = zip(costs[key], costs["unwatched"], strict=True)
        return round(statistics.median(a.seconds / b.seconds for a, b in pairs), 4)

    def pages(key: str) -> int:
        return int(statistics.median(one.pages for one in costs[key]))

    unwatched = statistics.median(one.seconds for one in costs["unwatched"])
    return {
        "model": name,
        "tokens": length,
        "rounds": rounds,
        "runs_in_a_round": times,
        "unwatched_ms": round(1000 * unwatched, 2),
        "forward_ratio": ratio("forward"),
        "block_ratio": ratio("block"),
        "kept_ratio": ratio("kept"),
        "fresh_pages": {key: pages(key) for key in runs},
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
            f" {found['block_ratio']}, q and k only kept x {found['kept_ratio']}; fresh pages"
            f" {found['fresh_pages']}; keeps {found['kept_mib']} MiB, q and k are"
            f" {found['q_and_k_mib']} MiB",
            flush=True,
        )
    if "--write" in sys.argv[1:]:
        machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        machine["cores"] = os.cpu_count() or 0
        stored = {"machine": machine, "cases": cases}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
