"""What was seen, as a table: plain text for a terminal, HTML for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torch import Tensor

from eyeline.calls import Call, Missing
from eyeline.lazy.matrix import size_text
from eyeline.masks import Mask

HEADS = ("", "layer", "kind", "B", "heads", "Tq", "Tk", "D", "mask")
_ENDS = 20  # so many rows are shown of each end of a long table
_WIDEST = 48  # characters of a cell
_STYLE = "text-align:left;padding:0 1em 0 0"


def text(calls: Sequence[Call], missing: Sequence[Missing], kernel: str) -> str:
    """The table in lines: a head line, one per call, then what is missing."""
    if not calls and not missing:
        return "Seen: nothing yet"
    rows = [list(HEADS), *_rows(calls)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    told = [f"missing  {one.name or 'the model'}: {_said(one)}" for one in missing]
    return "\n".join([_title(calls, kernel), *(lines if calls else []), *told])


def html(calls: Sequence[Call], missing: Sequence[Missing], kernel: str) -> str:
    """The same as HTML; every name in it is text."""
    rows = [_row("th", HEADS), *(_row("td", row) for row in _rows(calls))]
    told = "".join(
        f"<p>missing <b>{escape(one.name or 'the model')}</b>: {escape(_said(one))}</p>"
        for one in missing
    )
    table = f"<table>{''.join(rows)}</table>" if calls else ""
    return f"<div><p>{escape(_title(calls, kernel))}</p>{table}{told}</div>"


def _title(calls: Sequence[Call], kernel: str) -> str:
    computed = "the model's own kernel" if kernel == "own" else f"{kernel}'s kernel"
    count = f"{len(calls)} attention call" + ("" if len(calls) == 1 else "s")
    return f"Seen: {count}, computed by {computed}, {size_text(_kept(calls))} kept"


def _rows(calls: Sequence[Call]) -> list[list[str]]:
    rows = [_cells(index, call) for index, call in enumerate(calls)]
    if len(rows) <= 2 * _ENDS + 1:
        return rows
    gap = ["...", f"({len(rows) - 2 * _ENDS} more)", *[""] * (len(HEADS) - 2)]
    return [*rows[:_ENDS], gap, *rows[-_ENDS:]]


def _cells(index: int, call: Call) -> list[str]:
    B, Hq, Tq, D = call.q.shape
    Hk, Tk = call.k.shape[1:3]
    heads = str(Hq) if Hq == Hk else f"{Hq}/{Hk}"
    name = call.name if len(call.name) <= _WIDEST else "..." + call.name[3 - _WIDEST :]
    return [str(index), name, call.kind, *map(str, (B, heads, Tq, Tk, D)), _mask(call)]


def _mask(call: Call) -> str:
    if isinstance(call.mask, Mask):
        found = call.mask.formula
    elif call.mask is None and call.additive is None:
        found = "everything"
    else:
        found = "a tensor"
    found += "" if call.bias is None else " + bias"
    return found if len(found) <= _WIDEST else f"{found[: _WIDEST - 3]}..."


def _said(missing: Missing) -> str:
    dense = missing.dense
    if dense is None:
        return missing.reason
    return f"{missing.reason} Its own attention, dense {list(dense.shape)}, is in .dense."


def _row(kind: str, cells: Sequence[str]) -> str:
    made = (f'<{kind} style="{_STYLE}">{escape(cell)}</{kind}>' for cell in cells)
    return f"<tr>{''.join(made)}</tr>"


def _kept(calls: Sequence[Call]) -> int:
    """The bytes that the calls hold: each storage once."""
    held: dict[int, int] = {}
    for call in calls:
        for tensor in (call.q, call.k, call.v):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())
