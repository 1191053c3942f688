"""The lesson: attention step by step on a text of one's own, every number computed on the spot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from eyeline.errors import EyelineError
from eyeline.glossary import language
from eyeline.lesson.data import Lesson, Screen, Settings
from eyeline.lesson.ledger import Ledger, drawn
from eyeline.lesson.screens.beyond import beyond
from eyeline.lesson.screens.lookup import lookup
from eyeline.lesson.screens.masking import mask
from eyeline.lesson.screens.normalising import softmax
from eyeline.lesson.screens.roles import roles
from eyeline.lesson.screens.scaling import scale
from eyeline.lesson.screens.scoring import score
from eyeline.lesson.screens.streaming import stream
from eyeline.lesson.screens.summing import weighted_sum
from eyeline.lesson.screens.table import table
from eyeline.lesson.screens.vectors import vectors
from eyeline.lesson.screens.whole import flow
from eyeline.lesson.stage import ORDER, Stage, carried
from eyeline.lesson.writing import Writer

__all__ = ["Lesson", "Settings", "lesson"]

_SCREENS: dict[str, Callable[[Stage], Screen]] = {
    "table": table,
    "lookup": lookup,
    "vectors": vectors,
    "roles": roles,
    "score": score,
    "scale": scale,
    "mask": mask,
    "softmax": softmax,
    "sum": weighted_sum,
    "stream": stream,
    "beyond": beyond,
    "flow": flow,
}


def lesson(
    settings: Settings | None = None,
    *,
    token: str | int = 0,
    lang: str | None = None,
    step: int | None = None,
    download: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Lesson:
    """The lesson on a text, its numbers drawn by seed or taken from a real model's head.

    `token` is the word whose row is followed, or its index. `step` makes only that screen, counted
    from 0, without the work that the others take. Errors: EyelineError for settings that
    cannot be, ModelError for a model that cannot be had.

    >>> found = lesson(lang="en")
    >>> [round(x, 4) for x in found.numbers["weights"][0]]
    [0.1845, 0.7254, 0.09]
    >>> len(found.screens), found.places["A29"]
    (12, (11,))
    """
    check_step(step)
    settings = settings or Settings()
    write = Writer(language(lang))
    toy = replace(Settings(), seed=settings.seed)
    if settings.model is None:
        ledger = drawn(settings)
        base = drawn(Settings(settings.text))
        plain = replace(settings, heads=1, head=0, scale=None, causal=None)
        small, heads = drawn(plain), _random_heads(ledger, plain)
    else:
        from eyeline.lesson.real import model_ledger  # loads what real models need

        settings, ledger, base, heads = model_ledger(settings, download, progress)
        small = drawn(toy)
    if base.values.keys() == ledger.values.keys() and all(
        torch.equal(base.values[name], ledger.values[name]) for name in ledger.values
    ):
        base = ledger
    stage = Stage(settings, ledger, base, small, _place(token, ledger.words), write, heads)
    asked = ORDER if step is None else ORDER[step : step + 1]
    with torch.no_grad():
        screens = tuple(_SCREENS[name](stage) for name in asked)
    return Lesson(
        settings=settings,
        lang=write.lang,
        words=ledger.words,
        numbers=ledger.numbers(),
        screens=screens,
        places=_places(screens),
    )


def check_step(step: int | None) -> None:
    """An error for a step that the lesson does not have."""
    if step is not None and not 0 <= step < len(ORDER):
        raise EyelineError(f"There is no step {step}: they are 0 to {len(ORDER) - 1}.")


def _random_heads(ledger: Ledger, plain: Settings) -> torch.Tensor:
    """The weights of several heads [H, n, n]: the ledger's own, or those of two drawn ones."""
    if ledger.heads > 1:
        return ledger.whole("weights")
    even = plain if plain.d % 2 == 0 else replace(plain, d=plain.d + 1)
    return drawn(replace(even, heads=2)).whole("weights")


def _place(token: str | int, words: tuple[str, ...]) -> int:
    """The index of the word that is followed."""
    if isinstance(token, str) and token in words:
        return words.index(token)
    if isinstance(token, str) and not token.isdecimal():
        raise EyelineError(f"The text has no word “{token}”. Its words: {', '.join(words[:8])}.")
    index = int(token)
    if not 0 <= index < len(words):
        raise EyelineError(f"There is no word {index}: the words are 0 to {len(words) - 1}.")
    return index


def _places(screens: tuple[Screen, ...]) -> dict[str, tuple[int, ...]]:
    """On which screens each line of the chapters stands."""
    found = [carried(screen) for screen in screens]
    lines = sorted({line for lines in found for line in lines}, key=lambda s: (s[0], int(s[1:])))
    return {line: tuple(i for i, lines in enumerate(found) if line in lines) for line in lines}
