"""A look at a picture: how much of its attention a patch, or the class token, gives each patch."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyeline import recording
from eyeline.errors import ArgumentError
from eyeline.glossary import language
from eyeline.looking import asked
from eyeline.looking.asked import Model, within
from eyeline.looking.data import view
from eyeline.models import Progress, read_picture
from eyeline.models.pictures import CLASS, PATCH, Picture, patch_names
from eyeline.seen import Seen, watch

_PATCH = re.compile(r"r(\d+)c(\d+)")
_NAMED = 5  # of the patches that are looked at most


@dataclass(frozen=True)
class Patch:
    """A patch by its name, and the weight on it."""

    name: str
    weight: float


@dataclass(frozen=True)
class PictureLook:
    """What one token of a picture looks at: plain data, and the picture.

    `values` [rows][columns] is what the token gives each patch, `rest` what it gives the class
    token; together they sum to 1. `head` None means the average over the heads of the layer.
    `half` is the smallest share of the patches that together hold half of what all patches get,
    and `overview` the same for each layer and head. `image` is None for a recording, which holds no
    picture; `width` and `height` are then those that the model saw. `print(look)` is the screen of
    the command line.
    """

    name: str
    lang: str
    model: str
    title: str
    width: int
    height: int
    rows: int
    columns: int
    layers: int
    heads: int
    tokens: int
    token: str
    layer: int
    head: int | None
    values: tuple[tuple[float, ...], ...]
    rest: float
    half: float
    overview: tuple[tuple[float, ...], ...]
    strongest: tuple[Patch, ...]
    seconds: float
    image: Any = field(repr=False, compare=False)

    @property
    def place(self) -> str:
        """The layer and head that are drawn, as "L11 H2"; "L11" for the average of its heads."""
        return f"L{self.layer}" + ("" if self.head is None else f" H{self.head}")

    def to_json(self) -> str:
        """All of it but the picture as JSON, under the names of the fields."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "image"}
        kept["strongest"] = [vars(patch) for patch in self.strongest]
        return json.dumps(kept, ensure_ascii=False)

    def save_html(self, path: str | Path) -> None:
        """Write one self-contained page: no script, nothing fetched."""
        Path(path).write_text(view("pictures").page(self), encoding="utf-8")

    def save_svg(self, path: str | Path) -> None:
        """Write the picture with its heat map over it."""
        Path(path).write_text(view("pictures").figure(self), encoding="utf-8")

    def __str__(self) -> str:
        return str(view("pictures").screen(self))

    def _repr_html_(self) -> str:
        return str(view("pictures").fragment(self))


@dataclass(frozen=True)
class _Ran:
    """What is looked at: a run over the patches of a picture."""

    seen: Seen
    name: str
    model: str
    title: str
    rows: int
    columns: int
    size: tuple[int, int]
    image: Any


def look_at(
    picture: str | os.PathLike[str] | Picture | Seen,
    model: Model = "dinov2",
    *,
    layer: int | None = None,
    head: int | None = None,
    token: str = CLASS,
    save: str | os.PathLike[str] | None = None,
    lang: str | None = None,
    progress: Progress | None = None,
) -> PictureLook:
    """Run a picture through DINOv2 and say what one of its tokens looks at.

    `token` is the class token "CLS", which stands for the whole picture, or a patch by its row and
    column from the top left, "r3c7". `layer` is the last one unless given, `head` the average over
    its heads. `save` names a file for a recording of the run; in place of a picture `look_at` also
    takes one, as `eyeline.load(path)` gives it, and needs no model then. Errors: ModelError for a
    file that is no picture, or a model that reads none; ArgumentError for a layer, head or token
    that is not there, or a run over something else.

    >>> from PIL import Image
    >>> picture = Image.new("RGB", (140, 70), "white")
    >>> picture.paste("red", (100, 30, 120, 50))
    >>> look = look_at(read_picture(picture, longest=10))
    >>> look.rows, look.columns, look.place, look.tokens
    (5, 10, 'L11', 51)
    >>> print(f"{sum(map(sum, look.values)) + look.rest:.3f}")
    1.000
    """
    started = time.perf_counter()
    if isinstance(picture, Seen):
        ran = _recorded(picture)
        at = _index(token, ran.rows, ran.columns)
    else:
        loaded = asked.loaded(model, progress=progress)
        loaded.expect("picture")
        read = picture if isinstance(picture, Picture) else read_picture(picture)
        at = _index(token, read.rows, read.columns)
        started = time.perf_counter()
        name = "a picture" if isinstance(picture, Picture) else os.path.basename(os.fspath(picture))
        with torch.no_grad(), watch(loaded.model) as seen:
            loaded.model(**read.inputs())
        seen.tokens = read.tokens()
        grid = (read.rows, read.columns)
        ran = _Ran(seen, name, loaded.name, loaded.title, *grid, read.size, read.image)
    if save is not None:
        recording.save(ran.seen, save, model=ran.model)
    chosen = len(ran.seen) - 1 if layer is None else within("layer", layer, len(ran.seen))
    # one row of each head: [layers, heads, tokens]
    rows = torch.stack([weights[0, :, at] for weights in ran.seen]).float()
    if head is not None:
        within("head", head, rows.shape[1])
    row = rows[chosen].mean(0) if head is None else rows[chosen, head]
    best = row[1:].topk(min(_NAMED, len(row) - 1))
    assert ran.seen.tokens is not None
    names = ran.seen.tokens.pieces[1:]
    return PictureLook(
        name=ran.name,
        lang=language(lang),
        model=ran.model,
        title=ran.title,
        width=ran.size[0],
        height=ran.size[1],
        rows=ran.rows,
        columns=ran.columns,
        layers=rows.shape[0],
        heads=rows.shape[1],
        tokens=rows.shape[2],
        token=token,
        layer=chosen,
        head=head,
        values=tuple(map(tuple, row[1:].view(ran.rows, ran.columns).tolist())),
        rest=float(row[0]),
        half=float(half(row[1:])),
        overview=tuple(map(tuple, half(rows[..., 1:]).tolist())),
        strongest=tuple(
            Patch(names[i], w) for i, w in zip(best.indices.tolist(), best.values.tolist())
        ),
        seconds=time.perf_counter() - started,
        image=ran.image,
    )


def patches(seen: Seen) -> tuple[int, int] | None:
    """(rows, columns) of the picture that a run is over; None where it is over something else.

    >>> from eyeline.tokens import assemble
    >>> pieces = (CLASS, *patch_names(2, 3))
    >>> places = [(0, 0)] * 7
    >>> patches(Seen(tokens=assemble("", ids=range(7), raw=pieces, offsets=places)))
    (2, 3)
    """
    pieces = () if seen.tokens is None else tuple(seen.tokens.pieces)
    last = _PATCH.fullmatch(pieces[-1]) if pieces else None
    if last is None:
        return None
    rows, columns = int(last[1]) + 1, int(last[2]) + 1
    whole = len(pieces) == 1 + rows * columns and pieces[1:] == tuple(patch_names(rows, columns))
    return (rows, columns) if whole and pieces[0] == CLASS else None


def _recorded(seen: Seen) -> _Ran:
    """A run over a picture that was watched or recorded before."""
    grid = patches(seen)
    count = 0 if grid is None else 1 + grid[0] * grid[1]
    if grid is None or any(tuple(weights.shape[2:]) != (count, count) for weights in seen):
        raise ArgumentError(
            "look_at() is of a run over the patches of a picture, and this one has other tokens:"
            " set seen.tokens = picture.tokens() before you save it."
        )
    name, title = asked.named(seen)
    rows, columns = grid
    size = (PATCH * columns, PATCH * rows)
    return _Ran(seen, "a recording", name, title, rows, columns, size, None)


def half(row: Tensor) -> Tensor:
    """The smallest share of the entries that together hold half of their sum: [..., n] → [...].

    0.5 where all are equal, near 0 where one holds nearly everything.

    >>> half(torch.tensor([[1.0, 1, 1, 1], [5, 1, 1, 1]]))
    tensor([0.5000, 0.2500])
    """
    sums = row.sort(-1, descending=True).values.cumsum(-1)
    needed = (sums < sums[..., -1:] / 2 - 1e-6 * sums[..., -1:]).sum(-1) + 1
    return needed / row.shape[-1]


def _index(token: str, rows: int, columns: int) -> int:
    """The place of a token: 0 for the class token, then the patches by rows."""
    if token == CLASS:
        return 0
    found = _PATCH.fullmatch(token)
    row, column = (int(number) for number in found.groups()) if found else (-1, -1)
    if not (0 <= row < rows and 0 <= column < columns):
        raise ArgumentError(
            f"The picture has no patch “{token}”: they are r0c0 to r{rows - 1}c{columns - 1}, and"
            f" {CLASS} is the token of the whole picture."
        )
    return 1 + row * columns + column
