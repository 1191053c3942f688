"""How screens are written: two languages side by side, and the chapters' lines beside the text."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eyeline.glossary import LANGUAGES, Phrases
from eyeline.lesson.data import Matrix, Words, rows


class Writer:
    """Picks the language, fills in the numbers.

    >>> Writer("en").pick("{n} words", "{n} 个词", n=3), Writer("zh").term("score")
    ('3 words', '打分')
    """

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self._column = LANGUAGES.index(lang)
        self.term = Phrases(lang)

    def pick(self, en: str, zh: str, **values: object) -> str:
        """One of the two texts, filled in."""
        return (en, zh)[self._column].format(**values)

    def says(self, en: str, zh: str, *lines: str, **values: object) -> Words:
        """A paragraph; `lines` are the chapters' lines that it carries."""
        return Words(self.pick(en, zh, **values), "plain", lines)

    def slip(self, en: str, zh: str, *lines: str, **values: object) -> Words:
        """A paragraph that puts a line right."""
        return Words(self.pick(en, zh, **values), "slip", lines)

    def change(self, en: str, zh: str, *lines: str, **values: object) -> Words:
        """The "what would change if" of a screen."""
        return Words(self.pick(en, zh, **values), "change", lines)


def matrix(
    name: str,
    values: Tensor,
    labels: Sequence[str],
    columns: Sequence[str] = (),
    shade: str = "signed",
    lines: Sequence[str] = (),
) -> Matrix:
    """A matrix block of a tensor [n, m]."""
    return Matrix(name, rows(values), tuple(labels), tuple(columns), shade, tuple(lines))


def shape(values: Tensor) -> str:
    """A shape as the lesson writes it.

    >>> import torch
    >>> shape(torch.zeros(3, 4))
    '[3, 4]'
    """
    return str(list(values.shape))


def numbers(values: Tensor, count: int = 4) -> str:
    """The first numbers of a vector.

    >>> import torch
    >>> numbers(torch.tensor([0.18452, 0.7254, 0.09]))
    '0.1845 0.7254 0.0900'
    """
    shown = " ".join(f"{x:.4f}" for x in values.flatten()[:count].tolist())
    return shown + (" …" if values.numel() > count else "")


def span(values: Tensor) -> str:
    """The range of what is finite.

    >>> import torch
    >>> span(torch.tensor([1.0, -2.0, float("-inf")]))
    '-2.00 … 1.00'
    """
    finite = values[values.isfinite()]
    return f"{finite.min().item():.2f} … {finite.max().item():.2f}" if finite.numel() else "-inf"
