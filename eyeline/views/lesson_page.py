"""A lesson as one self-contained page for a class: no script, nothing fetched, light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby

from rich.cells import cell_len

from eyeline.glossary import Phrases
from eyeline.lesson.data import Block, Box, Code, Fan, Flow, Lesson, Matrix, Screen, Table, Words
from eyeline.views.labels import printable, shorten
from eyeline.views.lesson_terminal import number, shown

_CELLS = 16  # rows and columns of a matrix that are written
_FONT = 14
_LETTER = 0.58 * _FONT  # a wide guess of a letter's width: no font is at hand here
_LINE = 26  # between the keys of a fan


def page(lesson: Lesson) -> str:
    """A whole HTML file of a lesson."""
    say = Phrases(lesson.lang)
    title = escape(say("lesson title", text=printable(lesson.settings.text)))
    return (
        f'<!doctype html>\n<html lang="{lesson.lang}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n"
        "<style>body{margin:0 auto;max-width:66rem}@media (prefers-color-scheme:dark)"
        f"{{body{{background:#0d1117}}}}</style>\n<style>{_style()}</style>\n"
        f'</head>\n<body>\n<div class="eyeline">\n<h1>{title}</h1>\n'
        + "\n".join((*_contents(lesson), *map(_section, lesson.screens), *_programme(lesson, say)))
        + f'\n<p class="soft">{escape(say("page made"))}</p>\n</div>\n</body>\n</html>\n'
    )


@cache
def _style() -> str:
    folder = files("eyeline.views")
    return "".join(folder.joinpath(f"{name}.css").read_text("utf-8") for name in ("page", "lesson"))


def _contents(lesson: Lesson) -> Iterator[str]:
    yield "<nav>"
    for one in lesson.screens:
        yield f'<a href="#{one.name}">{escape(one.title)}</a>'
    yield "</nav>"


def _programme(lesson: Lesson, say: Phrases) -> Iterator[str]:
    """All lines of code once more, to be copied in one piece."""
    yield f'<section id="code"><h2>{escape(say("lesson code"))}</h2>'
    yield f"<pre>{escape(lesson.code())}</pre></section>"


def _section(one: Screen) -> str:
    parts = [f'<section id="{one.name}">\n<h2>{escape(one.title)}</h2>']
    # matrices that follow each other stand side by side
    for side_by_side, blocks in groupby(one.blocks, lambda block: isinstance(block, Matrix)):
        found = "\n".join(map(_block, blocks))
        parts.append(f'<div class="figures">{found}</div>' if side_by_side else found)
    return "\n".join((*parts, "</section>"))


def _block(block: Block) -> str:
    if isinstance(block, Words):
        return f'<p class="{block.role}">{escape(printable(block.text))}</p>'
    if isinstance(block, Code):
        return f"<pre>{escape(chr(10).join(block.code))}</pre>"
    if isinstance(block, Matrix):
        return _matrix(block)
    if isinstance(block, Table):
        return _table(block)
    return fan_svg(block) if isinstance(block, Fan) else flow_svg(block)


def _table(block: Table) -> str:
    head = "".join(f"<th>{escape(printable(cell))}</th>" for cell in block.head)
    rows = (
        "<tr>" + "".join(f"<td>{escape(printable(cell))}</td>" for cell in row) + "</tr>"
        for row in block.rows
    )
    return f'<div class="wide"><table class="facts"><tr>{head}</tr>{"".join(rows)}</table></div>'


def _matrix(block: Matrix) -> str:
    height, width = len(block.values), len(block.values[0])
    rows, columns = shown(height, _CELLS), shown(width, _CELLS)
    finite = [abs(x) for row in block.values for x in row if x is not None]
    most = 1.0 if block.shade in ("weight", "mask") else max(finite, default=1.0) or 1.0
    lines = []
    if block.columns:
        heads = ("…" if j is None else escape(shorten(block.columns[j], 12)) for j in columns)
        lines.append("<tr><th></th>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>")
    for i in rows:
        if i is None:
            lines.append("<tr><th>…</th></tr>")
            continue
        cells = [f'<th class="row">{escape(shorten(block.rows[i], 16))}</th>']
        for j in columns:
            cells.append("<td>…</td>" if j is None else _cell(block, i, j, most))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    caption = f"{escape(block.name)} [{height}, {width}]"
    table = f"<table>{''.join(lines)}</table>"
    return f'<figure class="wide"><figcaption>{caption}</figcaption>{table}</figure>'


def _cell(block: Matrix, i: int, j: int, most: float) -> str:
    value = block.values[i][j]
    text = f"{value:g}" if block.shade == "mask" else number(value)
    if value is None:
        return f"<td>{text}</td>"
    hue = "var(--hue)" if value >= 0 else "217 119 6"
    shade = 0.6 * math.sqrt(min(abs(value) / most, 1.0))
    title = ""
    if block.columns:
        title = f' title="{escape(shorten(f"{block.rows[i]} → {block.columns[j]}", 40))}"'
    return f'<td style="background:rgb({hue}/{shade:.2f})"{title}>{text}</td>'


def fan_svg(block: Fan) -> str:
    """The query on the left, a stroke to each key, as wide as its weight."""
    places = shown(len(block.keys), _CELLS)
    left = 24 + cell_len(shorten(block.query, 16)) * _LETTER
    right = left + 150
    height = 20 + _LINE * len(places)
    middle = height / 2 - 5
    parts = [svg_text(16, middle + 5, shorten(block.query, 16), bold=True)]
    for order, j in enumerate(places):
        y = 20 + _LINE * order
        if j is None:
            parts.append(svg_text(right + 8, y + 5, "…"))
            continue
        weight = block.weights[j]
        if weight > 0:
            parts.append(
                f'<path d="M{left:.0f} {middle:.0f}C{left + 75:.0f} {middle:.0f} {left + 75:.0f}'
                f' {y} {right:.0f} {y}" fill="none" stroke="rgb(var(--hue))"'
                f' stroke-width="{1 + 11 * weight:.1f}" stroke-opacity=".7"/>'
            )
        label = f"{shorten(block.keys[j], 16)}  {number(block.scores[j])} → {weight:.4f}"
        parts.append(svg_text(right + 10, y + 5, label))
    parts.append(svg_text(16, height + 14, block.result))
    width = right + max(300, cell_len(block.result) * _LETTER - right + 30)
    return svg(width, height + 26, parts, block.result)


def flow_svg(block: Flow) -> str:
    """Boxes row by row, arrows between the rows."""
    texts = [(box.name, _size(box)) for row in block.rows for box in row]
    wide = 24 + max(cell_len(text) for pair in texts for text in pair) * _LETTER
    most = max(len(row) for row in block.rows)
    width, step, tall = most * (wide + 16), 78, 48
    parts: list[str] = []
    before: list[float] = []
    for order, row in enumerate(block.rows):
        left = (width - len(row) * (wide + 16)) / 2 + 8
        top = 8 + order * step
        middles = [left + at * (wide + 16) + wide / 2 for at in range(len(row))]
        for start in before:
            parts += [
                f'<path d="M{start:.0f} {top - step + tall}L{end:.0f} {top - 4}" fill="none"'
                ' stroke="currentColor" stroke-opacity=".4"/>'
                for end in middles
            ]
        for box, middle in zip(row, middles):
            parts.append(
                f'<rect x="{middle - wide / 2:.0f}" y="{top}" width="{wide:.0f}" height="{tall}"'
                ' rx="6" fill="rgb(var(--hue)/.1)" stroke="rgb(var(--hue))"/>'
            )
            parts.append(svg_text(middle, top + 20, box.name, anchor="middle", bold=True))
            parts.append(svg_text(middle, top + 38, _size(box), anchor="middle", size=12))
        before = middles
    return svg(width, len(block.rows) * step, parts, " → ".join(row[0].name for row in block.rows))


def _size(box: Box) -> str:
    return f"{box.shape} {box.range}".rstrip()


def svg_text(
    x: float, y: float, text: str, anchor: str = "start", size: int = _FONT, bold: bool = False
) -> str:
    """A line of text in a drawing, at its baseline."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"'
        f' fill="currentColor"{weight}>{escape(printable(text))}</text>'
    )


def svg(width: float, height: float, parts: list[str], title: str) -> str:
    """A drawing inside a page, in the page's colours."""
    return (
        f'<svg viewBox="0 0 {math.ceil(width)} {math.ceil(height)}" width="{math.ceil(width)}"'
        f' role="img"><title>{escape(printable(title))}</title>' + "".join(parts) + "</svg>"
    )
