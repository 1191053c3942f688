"""Weights and readings in a notebook: plain tables, styled inline so that exports keep them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d

from eyeline.lazy import Weights
from eyeline.readings import Reading, pooled

_CELLS = 32  # rows and columns of a table
_NUMBERS = 12  # up to so many columns the cells carry numbers
_HUE = "37,99,235"


def weights_html(weights: Weights) -> str:
    """A heat map of the weights [*lead, Tq, Tk]: of the first head, pooled to at most 32 × 32.

    Shades are on a square-root scale, the darkest is the largest cell.
    """
    shape = list(weights.shape)
    first: Weights = weights
    for _ in shape[:-2]:
        first = first[0]
    named = "".join(f"{index}, " for index in [0] * (len(shape) - 2)) + "…"
    sides = [min(size, _CELLS) for size in shape[-2:]]
    title = f"Weights {shape}, {str(weights.dtype).removeprefix('torch.')}"
    if 0 in shape:
        return _framed(title, "")
    if len(shape) > 2:
        title += f": [{named}]"
    if sides != shape[-2:]:
        title += f", means of {sides[0]} × {sides[1]} cells"
    values = pooled(first, *sides).values.detach().float().cpu()
    return _framed(title + ", rows are queries", _table(values, root=True))


def reading_html(reading: Reading) -> str:
    """A reading as a table: its last axis across, the others down, both cut or averaged to 32."""
    values = reading.values.detach().float().cpu()
    title = f"{reading.name or 'Reading'} {list(values.shape)} ({', '.join(reading.axes)})"
    title += f", {reading.unit}"
    if values.numel() == 0:
        return _framed(title, "")
    table = values.reshape(-1, values.shape[-1]) if values.dim() else values.reshape(1, 1)
    if len(table) > _CELLS:
        title += f", the first {_CELLS} rows"
        table = table[:_CELLS]
    if table.shape[1] > _CELLS:
        title += f", means of {_CELLS} cells across"
        table = adaptive_avg_pool1d(table[:, None], _CELLS)[:, 0]
    names = _row_names(values.shape[:-1], reading.axes[:-1])[: len(table)]
    return _framed(title, _table(table, names=names))


def _row_names(shape: Sequence[int], axes: Sequence[str]) -> list[str]:
    """ "head 3" for each row; with several axes "0, 3" in their order."""
    if len(shape) == 0:
        return [""]
    if math.prod(shape[:-1]) == 1:
        return [f"{axes[-1] if axes else ''} {i}".strip() for i in range(shape[-1])]
    return [", ".join(map(str, place)) for place in torch.ones(*shape).nonzero().tolist()]


def _table(values: Tensor, names: Sequence[str] = (), root: bool = False) -> str:
    finite = values[values.isfinite()]
    low = min(float(finite.min()), 0.0) if finite.numel() else 0.0
    high = float(finite.max()) if finite.numel() else 1.0
    numbers = values.shape[1] <= _NUMBERS
    rows = []
    for index, row in enumerate(values.tolist()):
        head = 'style="font-weight:400;text-align:right;padding:0 6px"'
        cells = [f"<th {head}>{escape(names[index])}</th>"] if names else []
        for value in row:
            shade = (value - low) / ((high - low) or 1.0) if math.isfinite(value) else 0.0
            cells.append(_cell(value, math.sqrt(shade) if root else shade, numbers))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    style = "border-collapse:collapse;font-size:12px;font-variant-numeric:tabular-nums;margin:4px 0"
    return f'<table style="{style}">{"".join(rows)}</table>'


def _cell(value: float, shade: float, number: bool) -> str:
    size = "padding:1px 5px" if number else "padding:0;width:14px;height:14px"
    style = f"background:rgba({_HUE},{0.8 * shade:.2f});{size}"
    return f'<td title="{value:.3g}" style="{style}">{f"{value:.3g}" if number else ""}</td>'


def _framed(title: str, table: str) -> str:
    head = f'<div style="font-size:13px">{escape(title)}</div>'
    return f'<div style="overflow-x:auto">{head}{table}</div>'
