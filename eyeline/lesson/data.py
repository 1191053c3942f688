"""A lesson as plain data: screens made of blocks, and the numbers of the whole calculation."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

# Rows of numbers; None stands for -inf.
Rows = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Words:
    """A paragraph. `role` is plain, change ("what would change if") or slip (put right)."""

    text: str
    role: str = "plain"
    lines: tuple[str, ...] = ()
    kind: str = "words"


@dataclass(frozen=True)
class Matrix:
    """A named matrix with its shape; `shade` is weight (0 to 1), signed, mask or none."""

    name: str
    values: Rows
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()
    shade: str = "signed"
    lines: tuple[str, ...] = ()
    kind: str = "matrix"


@dataclass(frozen=True)
class Table:
    """A table of short texts under a row of headings."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()
    kind: str = "table"


@dataclass(frozen=True)
class Code:
    """Lines of Python that give this screen's numbers, run in the order of the screens."""

    code: tuple[str, ...]
    lines: tuple[str, ...] = ()
    kind: str = "code"


@dataclass(frozen=True)
class Fan:
    """One query, its weight on each key, and the weighted sum that comes of it."""

    query: str
    keys: tuple[str, ...]
    scores: tuple[float | None, ...]
    weights: tuple[float, ...]
    result: str
    lines: tuple[str, ...] = ()
    kind: str = "fan"


@dataclass(frozen=True)
class Box:
    """A station of the flow: its name, the shape and range of what leaves it."""

    name: str
    shape: str
    range: str


@dataclass(frozen=True)
class Flow:
    """Boxes in rows; each row's boxes stand side by side and lead to the next row."""

    rows: tuple[tuple[Box, ...], ...]
    lines: tuple[str, ...] = ()
    kind: str = "flow"


Block = Words | Matrix | Table | Code | Fan | Flow


@dataclass(frozen=True)
class Screen:
    """One screen of the lesson."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Settings:
    """What can be changed; the defaults are the chapter's example."""

    text: str = "I love NLP"
    d: int = 4
    seed: int = 0
    heads: int = 1
    head: int = 0
    scale: float | None = None
    causal: bool | None = None  # None: as the model has it
    model: str | None = None
    layer: int = 0


@dataclass(frozen=True)
class Lesson:
    """A whole lesson: settings, every number of the calculation, and the screens in order.

    `numbers` holds X, W_Q, W_K, W_V, Q, K, V, scores, scaled, weights and output as nested lists;
    `places` says on which screens each line of the two chapters stands. `print(lesson)` is the
    screen of the command line.
    """

    settings: Settings
    lang: str
    words: tuple[str, ...]
    numbers: dict[str, Any]
    screens: tuple[Screen, ...]
    places: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def code(self) -> str:
        """Every printed line of code, in order: a programme that gives the printed numbers."""
        return "\n".join(
            line
            for screen in self.screens
            for block in screen.blocks
            if isinstance(block, Code)
            for line in block.code
        )

    def to_json(self) -> str:
        """All of it as JSON, under the names of the fields; -inf is null."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    def save_html(self, path: str | Path) -> None:
        """Write one self-contained page for a class: no script, nothing fetched."""
        # views show this data and so come after it; loaded when shown
        view = importlib.import_module("eyeline.views.lesson_page")
        Path(path).write_text(view.page(self), encoding="utf-8")

    def __str__(self) -> str:
        view = importlib.import_module("eyeline.views.lesson_terminal")
        return str(view.screen(self))


def listed(values: Tensor) -> Any:
    """A tensor as nested lists, -inf and NaN as None.

    >>> import torch
    >>> listed(torch.tensor([[1.0, float("-inf")]]))
    [[1.0, None]]
    """
    if values.dim():
        return [listed(part) for part in values]
    value = values.item()
    return value if math.isfinite(value) else None


def rows(values: Tensor) -> Rows:
    """A matrix as a Matrix holds it."""
    return tuple(tuple(row) for row in listed(values.reshape(-1, values.shape[-1])))
