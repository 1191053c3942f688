"""Parts of a lesson as SVG files of their own: no script, readable on light and on dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from eyeline.lesson.data import Fan, Flow, Matrix
from eyeline.views.labels import shorten
from eyeline.views.lesson_page import fan_svg, flow_svg, svg, svg_text
from eyeline.views.lesson_terminal import number

_INK, _PAPER, _HUE, _WARM = "#1f2328", "#ffffff", "#2563eb", "#d97706"
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Noto Sans CJK SC', sans-serif"
# A page's colours follow the reader's theme; a file is looked at in many places, on its own ground.
_FIXED = (
    ("rgb(var(--hue)/.1)", "#e9effd"),
    ("rgb(var(--hue))", _HUE),
    ("currentColor", _INK),
)
_CELL, _ROW, _WORD = 70, 30, 8.2  # a number's cell, its height, a wide guess of a letter's width
_WIDE, _TALL = 250, 190  # of a panel of curves


def standalone(drawn: str) -> str:
    """An inline drawing of a lesson's page as a whole file.

    >>> standalone('<svg viewBox="0 0 9 9"><title>t</title></svg>').startswith("<svg xmlns=")
    True
    """
    for old, new in _FIXED:
        drawn = drawn.replace(old, new)
    head, rest = drawn.split("</title>", 1)
    head = head.replace(
        "<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" font-family="{_FONT}" ', 1
    )
    ground = f'<rect width="100%" height="100%" rx="8" fill="{_PAPER}"/>'
    return f"{head}</title>{ground}{rest}".replace("><", ">\n<") + "\n"


def fan(block: Fan) -> str:
    """A query and its weight on each key, as a file."""
    return standalone(fan_svg(block))


def flow(block: Flow) -> str:
    """Boxes and arrows, as a file."""
    return standalone(flow_svg(block))


def grids(matrices: Sequence[Matrix], between: Sequence[str] = ()) -> str:
    """Matrices side by side, shaded, `between` what leads from one to the next, as a file."""
    parts: list[str] = []
    x, tallest = 12.0, 0
    for order, block in enumerate(matrices):
        if order:
            label = between[order - 1] if between else ""
            room = 22 + cell_len(label) * _WORD
            parts.append(svg_text(x + room / 2, 62 + _ROW, label, anchor="middle", size=13))
            x += room
        left = x + 12 + max(cell_len(shorten(word, 12)) for word in block.rows) * _WORD
        parts.append(svg_text(left, 24, block.name, bold=True))
        for j, word in enumerate(block.columns):
            middle = left + (j + 0.5) * _CELL
            parts.append(svg_text(middle, 46, shorten(word, 8), anchor="middle", size=13))
        for i, row in enumerate(block.values):
            top = 54 + i * _ROW
            word = shorten(block.rows[i], 12)
            parts.append(svg_text(left - 8, top + 20, word, anchor="end", size=13))
            parts += [_cell(block, left + j * _CELL, top, value) for j, value in enumerate(row)]
        x = left + len(block.values[0]) * _CELL
        tallest = max(tallest, len(block.values))
    return standalone(svg(x + 14, 68 + tallest * _ROW, parts, " · ".join(m.name for m in matrices)))


def _cell(block: Matrix, x: float, y: float, value: float | None) -> str:
    most = max((abs(v) for row in block.values for v in row if v is not None), default=1.0) or 1.0
    most = 1.0 if block.shade in ("weight", "mask") else most
    colour = _HUE if value is None or value >= 0 else _WARM
    shade = 0.0 if value is None else 0.6 * math.sqrt(min(abs(value) / most, 1.0))
    text = f"{value:g}" if block.shade == "mask" and value is not None else number(value)
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_CELL - 2}" height="{_ROW - 2}" fill="{colour}"'
        f' fill-opacity="{shade:.2f}" stroke="{_INK}" stroke-opacity=".15"/>'
    ) + svg_text(x + _CELL / 2 - 1, y + 19, text, anchor="middle", size=13)


@dataclass(frozen=True)
class Curve:
    """A measured line: its name, and its value at each place of the panel."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """Curves over named places; `log` draws powers of ten, from `low` to `high`."""

    title: str
    places: tuple[str, ...]
    curves: tuple[Curve, ...]
    low: float
    high: float
    log: bool = False


def curves(panels: Sequence[Panel]) -> str:
    """Panels of measured curves side by side, as a file."""
    parts: list[str] = []
    for order, panel in enumerate(panels):
        parts += _panel(panel, 64 + order * (_WIDE + 90))
    width = len(panels) * (_WIDE + 90) + 10
    title = " · ".join(panel.title for panel in panels)
    return standalone(svg(width, _TALL + 100, parts, title))


def _panel(panel: Panel, left: float) -> list[str]:
    top = 44

    def level(value: float) -> float:
        low, high, at = panel.low, panel.high, max(value, panel.low)
        if panel.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return top + _TALL * (1 - (at - low) / (high - low))

    step = _WIDE / (len(panel.places) - 1)
    parts = [svg_text(left - 40, 22, panel.title, bold=True, size=13)]
    parts += [
        svg_text(left + at * step, top + _TALL + 18, place, anchor="middle", size=12)
        for at, place in enumerate(panel.places)
    ]
    for mark in _marks(panel):
        y = level(mark)
        parts.append(
            f'<path d="M{left:.0f} {y:.0f}h{_WIDE}" stroke="{_INK}" stroke-opacity=".15"/>'
        )
        parts.append(svg_text(left - 8, y + 4, f"{mark:g}", anchor="end", size=12))
    for order, curve in enumerate(panel.curves):
        colour = (_WARM, _HUE)[order % 2]
        dots = [(left + at * step, level(value)) for at, value in enumerate(curve.values)]
        line = "L".join(f"{x:.0f} {y:.1f}" for x, y in dots)
        dashes = ' stroke-dasharray="6 4"' if order % 2 == 0 else ""
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{x:.0f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in dots]
        x, y = left + order * 130, top + _TALL + 42
        parts.append(f'<path d="M{x:.0f} {y:.0f}h24" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(svg_text(x + 30, y + 4, curve.name, size=12))
    return parts


def _marks(panel: Panel) -> list[float]:
    """Where a line is ruled: every power of ten, or five equal parts."""
    if panel.log:
        low, high = (round(math.log10(edge)) for edge in (panel.low, panel.high))
        return [10.0**power for power in range(low, high + 1)]
    return [panel.low + (panel.high - panel.low) * part / 4 for part in range(5)]


@dataclass(frozen=True)
class Point:
    """A named arrow from the origin; the query's `weight` is None."""

    name: str
    x: float
    y: float
    weight: float | None = None


def plane(points: Sequence[Point], title: str) -> str:
    """Keys and a query as arrows in a plane, a key's stroke as wide as its weight, as a file."""
    scale = 150.0
    left = 20 + max(0.0, *(_beside(point) - scale * point.x for point in points if point.x < 0))
    top = 30 + scale * max(point.y for point in points)
    parts = []
    for point in points:
        x, y = left + scale * point.x, top - scale * point.y
        colour = _WARM if point.weight is None else _HUE
        wide = 2.5 if point.weight is None else 1 + 14 * point.weight
        dashes = ' stroke-dasharray="5 4"' if point.weight is None else ""
        parts.append(
            f'<path d="M{left:.0f} {top:.0f}L{x:.0f} {y:.0f}" stroke="{colour}"'
            f' stroke-width="{wide:.1f}" stroke-opacity=".75"{dashes}/>'
        )
        # the query's name stands above its end, a key's below or beside it
        label = point.name if point.weight is None else f"{point.name} {point.weight:.4f}"
        anchor, aside = ("end", -10) if point.x < 0 else ("start", 10)
        lower = -8 if point.weight is None else 10
        bold = point.weight is None
        parts.append(svg_text(x + aside, y + lower, label, anchor=anchor, bold=bold))
    width = left + scale * max(point.x for point in points) + 150
    return standalone(svg(width, top + 40, parts, title))


@dataclass(frozen=True)
class Station:
    """A box of a chain: a heading, and lines below it."""

    name: str
    lines: tuple[str, ...]


def chain(upper: Sequence[Station], lower: Sequence[Station], title: str) -> str:
    """What is read above, what is kept below: box i above joins what is kept and gives box i below,
    as a file."""
    boxes = [*upper, *lower]
    wide = 20 + 7.4 * max(cell_len(text) for box in boxes for text in (box.name, *box.lines))
    tall = 32 + 19 * max(len(box.lines) for box in boxes)
    parts: list[str] = []
    for row, stations in enumerate((upper, lower)):
        for at, box in enumerate(stations):
            x, y = 14 + at * (wide + 34), 14 + row * (tall + 44)
            fill = "#fdf3e7" if row == 0 else "#e9effd"
            parts.append(
                f'<rect x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{tall:.0f}" rx="6"'
                f' fill="{fill}" stroke="{(_WARM, _HUE)[row]}"/>'
            )
            parts.append(svg_text(x + 10, y + 21, box.name, bold=True, size=13))
            parts += [
                svg_text(x + 10, y + 41 + 19 * order, line, size=12)
                for order, line in enumerate(box.lines)
            ]
            if row == 0:
                parts.append(_arrow(x + wide / 2, y + tall, x + wide / 2, y + tall + 44))
            elif at + 1 < len(stations):
                parts.append(_arrow(x + wide, y + tall / 2, x + wide + 34, y + tall / 2))
    width = 28 + len(upper) * wide + (len(upper) - 1) * 34
    return standalone(svg(width, 2 * tall + 72, parts, title))


def _beside(point: Point) -> float:
    return 20 + (cell_len(point.name) + 7) * _WORD


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A line that ends in a head, pointing right or down."""
    head = "l-7 -4v8z" if to_y == y else "l-4 -7h8z"
    return (
        f'<path d="M{x:.0f} {y:.0f}L{to_x:.0f} {to_y:.0f}" stroke="{_INK}" stroke-opacity=".6"/>'
        f'<path d="M{to_x:.0f} {to_y:.0f}{head}" fill="{_INK}" fill-opacity=".6"/>'
    )
