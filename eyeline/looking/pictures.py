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

from eyeline.errors import ArgumentError
from eyeline.glossary import language
from eyeline.looking import asked
from eyeline.looking.asked import Model, within
from eyeline.looking.data import view
from eyeline.models import Progress, read_picture
from eyeline.models.pictures import CLASS, Picture
from eyeline.seen import watch

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
    and `overview` the same for each layer and head. `print(look)` is the screen of the command
    line.
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


def look_at(
    picture: str | os.PathLike[str] | Picture,
    model: Model = "dinov2",
    *,
    layer: int | None = None,
    head: int | None = None,
    token: str = CLASS,
    lang: str | None = None,
    progress: Progress | None = None,
) -> PictureLook:
    """Run a picture through DINOv2 and say what one of its tokens looks at.

    `token` is the class token "CLS", which stands for the whole picture, or a patch by its row and
    column from the top left, "r3c7". `layer` is the last one unless given, `head` the average over
    its heads. Errors: ModelError for a file that is no picture, or a model that reads none;
    ArgumentError for a layer, head or token that is not there.

    >>> from PIL import Image
    >>> picture = Image.new("RGB", (140, 70), "white")
    >>> picture.paste("red", (100, 30, 120, 50))
    >>> look = look_at(read_picture(picture, longest=10))
    >>> look.rows, look.columns, look.place, look.tokens
    (5, 10, 'L11', 51)
    >>> print(f"{sum(map(sum, look.values)) + look.rest:.3f}")
    1.000
    """
    loaded = asked.loaded(model, progress=progress)
    loaded.expect("picture")
    read = picture if isinstance(picture, Picture) else read_picture(picture)
    name = "a picture" if isinstance(picture, Picture) else os.path.basename(os.fspath(picture))
    at = _index(token, read)
    started = time.perf_counter()
    with torch.no_grad(), watch(loaded.model) as seen:
        loaded.model(**read.inputs())
    chosen = len(seen) - 1 if layer is None else within("layer", layer, len(seen))
    # one row of each head: [layers, heads, tokens]
    rows = torch.stack([weights[0, :, at] for weights in seen]).float()
    if head is not None:
        within("head", head, rows.shape[1])
    row = rows[chosen].mean(0) if head is None else rows[chosen, head]
    best = row[1:].topk(min(_NAMED, len(row) - 1))
    names = read.tokens().pieces[1:]
    return PictureLook(
        name=name,
        lang=language(lang),
        model=loaded.name,
        title=loaded.title,
        width=read.size[0],
        height=read.size[1],
        rows=read.rows,
        columns=read.columns,
        layers=rows.shape[0],
        heads=rows.shape[1],
        tokens=rows.shape[2],
        token=token,
        layer=chosen,
        head=head,
        values=tuple(map(tuple, row[1:].view(read.rows, read.columns).tolist())),
        rest=float(row[0]),
        half=float(half(row[1:])),
        overview=tuple(map(tuple, half(rows[..., 1:]).tolist())),
        strongest=tuple(
            Patch(names[i], w) for i, w in zip(best.indices.tolist(), best.values.tolist())
        ),
        seconds=time.perf_counter() - started,
        image=read.image,
    )


def half(row: Tensor) -> Tensor:
    """The smallest share of the entries that together hold half of their sum: [..., n] → [...].

    0.5 where all are equal, near 0 where one holds nearly everything.

    >>> half(torch.tensor([[1.0, 1, 1, 1], [5, 1, 1, 1]]))
    tensor([0.5000, 0.2500])
    """
    sums = row.sort(-1, descending=True).values.cumsum(-1)
    needed = (sums < sums[..., -1:] / 2 - 1e-6 * sums[..., -1:]).sum(-1) + 1
    return needed / row.shape[-1]


def _index(token: str, picture: Picture) -> int:
    """The place of a token: 0 for the class token, then the patches by rows."""
    if token == CLASS:
        return 0
    found = _PATCH.fullmatch(token)
    row, column = (int(number) for number in found.groups()) if found else (-1, -1)
    if not (0 <= row < picture.rows and 0 <= column < picture.columns):
        last = f"r{picture.rows - 1}c{picture.columns - 1}"
        raise ArgumentError(
            f"The picture has no patch “{token}”: they are r0c0 to {last}, and {CLASS} is the"
            " token of the whole picture."
        )
    return 1 + row * picture.columns + column
