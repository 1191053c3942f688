"""What every screen is made from: the calculation, what it is compared with, and the language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.lesson.data import Block, Code, Screen, Settings
from eyeline.lesson.ledger import Ledger
from eyeline.lesson.writing import Writer

# The screens in order; a screen's place is the number of its step.
ORDER = (
    "table",
    "lookup",
    "vectors",
    "roles",
    "score",
    "scale",
    "mask",
    "softmax",
    "sum",
    "stream",
    "beyond",
    "flow",
)


@dataclass(frozen=True)
class Stage:
    """`ledger` is the lesson's own, `base` the same text with nothing changed, `toy` one with
    word vectors and matrices, one head and no mask. `heads` [H, n, n] are the weights of several
    heads side by side, `token` the word whose row is followed."""

    settings: Settings
    ledger: Ledger
    base: Ledger
    toy: Ledger
    token: int
    write: Writer
    heads: Tensor

    @property
    def word(self) -> str:
        """The word whose row is followed."""
        return self.ledger.words[self.token]

    @property
    def real(self) -> bool:
        """Whether the numbers are a real model's."""
        return self.settings.model is not None

    def row(self, name: str) -> Tensor:
        """The followed word's row of a tensor of the ledger."""
        return self.ledger[name][self.token]

    def step(self, name: str) -> int:
        """The number of a screen."""
        return ORDER.index(name)

    def screen(self, name: str, title: str, blocks: Sequence[Block]) -> Screen:
        """A screen, its title behind its number."""
        return Screen(name, f"{self.step(name)} · {title[0].upper()}{title[1:]}", tuple(blocks))

    def code(self, *names: str, lines: Sequence[str] = ()) -> list[Block]:
        """The ledger's code for these steps, nothing where there is none."""
        code = tuple(line for name in names for line in self.ledger.code[name])
        return [Code(code, tuple(lines))] if code else []


def causal_mask(n: int) -> Tensor:
    """[n, n] of 1 and 0: row i may see the columns up to i."""
    return torch.tril(torch.ones(n, n))


def strongest(words: Sequence[str], row: Tensor) -> str:
    """The word that gets most of a row of weights, and its share.

    >>> strongest(("I", "love"), torch.tensor([0.25, 0.75]))
    'love 0.75'
    """
    at = int(row.argmax())
    return f"{words[at]} {row[at].item():.2f}"


def carried(screen: Screen) -> set[str]:
    """The chapters' lines that a screen carries."""
    return {line for block in screen.blocks for line in block.lines}
