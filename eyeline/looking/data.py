"""What a look found, as plain data."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEFAULT_TEXT = "The keys to the old cabinet are on the table because they were too heavy to carry."
DEFAULT_TOKEN = "they"  # the word of it whose looks tell most
# By what the overview is shaded, and which end of it leads.
READINGS: dict[str, str] = {
    "words": "largest",
    "special": "largest",
    "self": "largest",
    "near": "largest",
    "entropy": "smallest",
    "distance": "largest",
}


@dataclass(frozen=True)
class Target:
    """A word that is looked at, and the weight."""

    word: int
    weight: float


@dataclass(frozen=True)
class Pair:
    """A head in which the chosen word looks at another, and the weight."""

    layer: int
    head: int
    word: int
    weight: float


@dataclass(frozen=True)
class Glance:
    """A word and the words it looks at most, strongest first."""

    word: int
    at: tuple[Target, ...]


@dataclass(frozen=True)
class Fan:
    """A word, whom it looks at and who looks at it, strongest first; `places`: where it stands."""

    word: int
    looks_at: tuple[Target, ...]
    looked_at_by: tuple[Target, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class Map:
    """Weights over words: cell (i, j) is what the words of row i give those of column j.

    Columns are added and rows averaged, so a row sums to 1. `edges` are word indices: cell i
    stands for the words edges[i] to edges[i + 1] - 1, of rows and columns alike, and for
    sizes[i] tokens.
    """

    edges: tuple[int, ...]
    sizes: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Look:
    """What a model does with a text: plain data, all that the screen tells.

    `spend` says how all heads together spend their attention and sums to 1; `overview` is the
    reading `by` for each layer and head; `map`, `glances` and `sinks` are of the head (`layer`,
    `head`); `fan` and `pairs` of the chosen token. Words, layers and heads are counted from 0.
    `special` marks what takes attention without meaning: special tokens, and the first word of a
    causal model. Where the model was asked to `generate` so many tokens, `written` is what it
    wrote and `generated` marks the words of it. `print(look)` is the screen of the command line.
    """

    text: str
    lang: str
    model: str
    title: str
    causal: bool
    layers: int
    heads: int
    tokens: int
    seconds: float
    pieces: bool
    words: tuple[str, ...]
    special: tuple[bool, ...]
    unknown: tuple[bool, ...]
    readers: tuple[str, ...]
    spend: dict[str, float]
    by: str
    overview: tuple[tuple[float, ...], ...]
    layer: int
    head: int
    chosen: str
    map: Map
    sinks: tuple[Target, ...]
    glances: tuple[Glance, ...]
    fan: Fan | None
    pairs: tuple[Pair, ...]
    generate: int = 0
    written: str = ""
    generated: tuple[bool, ...] = ()

    @property
    def name(self) -> str:
        """The head that is drawn, as "L3 H1"."""
        return f"L{self.layer} H{self.head}"

    @property
    def short(self) -> str:
        """The model's title without what stands in brackets."""
        return self.title.partition(" (")[0]

    @property
    def mostly_unknown(self) -> bool:
        """Whether more than a fifth of the words are unknown to the model."""
        return 5 * sum(self.unknown) > len(self.words) - sum(self.special)

    def to_json(self) -> str:
        """All of it as JSON, under the names of the fields."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def save_html(self, path: str | Path) -> None:
        """Write one self-contained page: no script, nothing fetched, under 300 kB."""
        Path(path).write_text(view("page").page(self), encoding="utf-8")

    def save_svg(self, path: str | Path) -> None:
        """Write a figure: the fan of the chosen token, else the map."""
        Path(path).write_text(view("figure").figure(self), encoding="utf-8")

    def __str__(self) -> str:
        return str(view("terminal").screen(self))

    def _repr_html_(self) -> str:
        return str(view("page").fragment(self))


def view(name: str) -> Any:
    """A module of eyeline.views. They show what a look found and so come after it; loaded then."""
    return importlib.import_module(f"eyeline.views.{name}")
