"""Small calls, whole models, and both threads against one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import eyeline
from benchmarks.goals.forward import SDPA, beside_sdpa, square
from benchmarks.goals.goal import Figure, Goal, Pair, Point, Size
from benchmarks.others import NotHere


@cache
def model(name: str) -> Any:
    """A bundled model, able to compute with eyeline."""
    try:
        import eyeline.integrations.huggingface  # noqa: F401
    except ImportError as error:
        raise NotHere(f"transformers is missing ({error})") from error
    from eyeline import models
    from eyeline.errors import ModelError

    try:
        return models.load(name).model
    except ModelError as error:
        raise NotHere(str(error)) from error


def same_states(mine: Tensor, other: Tensor) -> None:
    """The states of a deep model: compared as a whole, since roundings grow with the layers."""
    error = float((mine - other).norm() / other.norm())
    assert error < 1e-3, f"the model's states differ by {error}"


def whole(name: str, texts: int, length: int, size: Size) -> Pair:
    """A forward pass with eyeline's attention, and with SDPA."""
    loaded = model(name)
    torch.manual_seed(0)
    ids = torch.randint(1000, 5000, (texts, size(length)))

    def run() -> Tensor:
        states: Tensor = loaded(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
        return states

    return Pair(
        run,
        run,
        ready=lambda: loaded.set_attn_implementation("eyeline"),
        other_ready=lambda: loaded.set_attn_implementation("sdpa"),
        same=same_states,
    )


def both_threads(causal: bool, heads: int, size: Size) -> Pair:
    """The same call with all threads and with one."""
    threads = torch.get_num_threads()
    if threads == 1:
        raise NotHere("it was asked to run on one thread")
    q, k, v = square(size(4096), 64, heads)
    mask = eyeline.causal() if causal else None

    def run() -> Tensor:
        return eyeline.attention(q, k, v, mask)[0]

    return Pair(
        run,
        run,
        ready=lambda: torch.set_num_threads(threads),
        other_ready=lambda: torch.set_num_threads(1),
    )


def wholes() -> Iterator[Goal]:
    """Latency, models, threads."""
    for T, bound in ((16, 1.6), (128, 0.9)):
        # As short as they are, these are not shrunk under test.
        point = Point(f"small T {T}", lambda size, T=T: beside_sdpa(*square(T, 64, 8)))
        work = f"one small call, B 1 H 8 D 64, T {T}"
        yield Goal("small", work, SDPA, (point,), bound, Figure.COST)
    against = "the model on SDPA"
    for title, name, texts, length, bound in (
        ("MiniLM, 8 texts of 128 tokens", "minilm", 8, 128, 1.0),
        ("SmolLM2, 2048 tokens", "smollm2", 1, 2048, 0.95),
    ):
        point = Point(f"model {title}", partial(whole, name, texts, length))
        yield Goal("models", title, against, (point,), bound, Figure.COST)
    cases = ((False, 1), (False, 8), (True, 1), (True, 8))
    points = tuple(
        Point(f"threads {'causal' if c else 'full'} H {H}", partial(both_threads, c, H))
        for c, H in cases
    )
    yield Goal("threads", "2 threads, D 64 T 4096, H 1 and 8", "1 thread", points, 1.85)
