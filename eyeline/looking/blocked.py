"""A language model without some of its heads: how its next token changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from eyeline.acting import block
from eyeline.errors import ArgumentError
from eyeline.glossary import language
from eyeline.looking import asked
from eyeline.looking.asked import Model
from eyeline.models import Progress
from eyeline.tokens import from_ids

Heads = str | Iterable[str]


@dataclass(frozen=True)
class Chance:
    """One token that may come next, and how likely it is with and without the heads."""

    token: str
    before: float
    after: float


@dataclass(frozen=True)
class Without:
    """What a look at a blocked model found: the likeliest next tokens, before and after.

    `moved` is the share of all probability that went to other tokens, ½ Σ |before - after|.
    """

    text: str
    lang: str
    model: str
    title: str
    heads: tuple[str, ...]
    tokens: int
    chances: tuple[Chance, ...]
    moved: float
    seconds: float

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=2)


def without(
    text: str,
    heads: Heads,
    model: Model = "smollm2",
    *,
    top: int = 8,
    lang: str | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> Without:
    """How a causal model's next token after `text` changes where `heads` give 0.

    `heads` are named as for `eyeline.block`: "L13H8", several in a list or "L13H8,L5H0"; `top` is
    how many of the likeliest tokens of either side are listed, those before the change first.
    Raises ModelError for a model that predicts no next token, and for heads that it lacks.

    >>> found = without("The capital of France is", "L13H8", top=1)   # the slow part is loading
    >>> found.chances[0].token, found.moved < 0.1
    ('Paris', True)
    """
    names = _named(heads)
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ArgumentError(f"top={top!r} names no token: give 1 or more.")
    loaded = asked.loaded(model, download, progress)
    language_model: Any = loaded.language_model()
    tokens = loaded.tokens(text)
    inputs = loaded.inputs(tokens)
    started = time.perf_counter()
    with torch.no_grad():
        before = _next(language_model(**inputs).logits)
        with block(language_model, heads=names):
            after = _next(language_model(**inputs).logits)
    listed = list(dict.fromkeys(_likeliest(before, top) + _likeliest(after, top)))

    def piece(number: int) -> str:
        return from_ids(loaded.tokenizer, [number], tokens).pieces[-1]

    return Without(
        text=text,
        lang=language(lang),
        model=loaded.name,
        title=loaded.title,
        heads=names,
        tokens=len(tokens),
        chances=tuple(Chance(piece(i), float(before[i]), float(after[i])) for i in listed),
        moved=float((before - after).abs().sum()) / 2,
        seconds=time.perf_counter() - started,
    )


def _named(heads: Heads) -> tuple[str, ...]:
    given = [heads] if isinstance(heads, str) else list(heads)
    names = [name.strip() for one in given for name in str(one).split(",")]
    if not any(names):
        raise ArgumentError("No head is named: give one or several as L13H8 or L13H8,L5H0.")
    return tuple(filter(None, names))


def _next(logits: Tensor) -> Tensor:
    """The probabilities of the next token, [vocabulary]."""
    return logits[0, -1].double().softmax(-1)


def _likeliest(chances: Tensor, count: int) -> list[int]:
    found: list[int] = chances.topk(min(count, len(chances))).indices.tolist()
    return found
