"""A figure for a paper as plain SVG: the fan of a word, or the map of a head."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from rich.cells import cell_len

from eyeline.glossary import Phrases
from eyeline.views.labels import cells, shorten
from eyeline.views.shading import Grid

if TYPE_CHECKING:
    from eyeline.looking.data import Look, Target

AT, BY = "#2563eb", "#d97706"  # where a word looks, who looks at it
_INK, _PAPER = "#1f2328", "#ffffff"
_SIZE = 14  # of the words, in px
_LETTER = 0.56 * _SIZE  # a wide guess of a letter's width: no font is at hand here
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Noto Sans CJK SC', sans-serif"
_WORDS = 40  # a fan names no more words than this
_ARCS, _WEAKEST = 8, 0.05  # arcs on each side, and the weight from which one is drawn
_SHADES = 24


def figure(look: Look) -> str:
    """A whole SVG file: the fan where a token was chosen, else the map."""
    return fan(look) if look.fan else heatmap(look)


def fan(look: Look, ink: str = _INK, paper: str | None = _PAPER) -> str:
    """The text in one line, arcs above it to the words looked at, below from those that look.

    A stroke's width is the square root of its weight; every arc drawn carries its number.
    `ink` and `paper` are the colours of the words and of the ground (None: none).
    """
    assert look.fan is not None
    say = Phrases(look.lang)
    halo = paper or "var(--paper)"  # inside a page the ground is the page's
    word = look.fan.word
    shown = _shown(look)
    places, width = _line(look, shown)
    arcs_at, arcs_by = (_strong(t) for t in (look.fan.looks_at, look.fan.looked_at_by))
    up, down = (_height(places, word, arcs) for arcs in (arcs_at, arcs_by))
    base = 46 + up  # the words' line
    height = base + 34 + down
    parts = [_text(16, 24, f"{look.title} · {look.name}", ink, "start", size=13, soft=True)]
    to = AT if paper else "rgb(var(--hue))"
    sides = ((to, "fan looks at", arcs_at, -1), (BY, "looked at by", arcs_by, 1))
    for colour, key, arcs, side in sides:
        edge = base + (-_SIZE - 2 if side < 0 else 8)
        numbers = _numbers(places, word, arcs, edge, side)
        parts += [_arc(places[word], places[t.word], t.weight, edge, side, colour) for t in arcs]
        parts += [
            _text(x, y, f"{target.weight:.2f}", colour, "middle", size=12, halo=halo)
            for target, (x, y) in zip(arcs, numbers, strict=True)
        ]
        label = say(key, token=_name(look, word))
        at = 24 if side < 0 else height - 12
        parts.append(_text(width - 16, at, label, colour, "end", size=13))
    strength = {t.word: to for t in arcs_at} | {word: ink}
    for unit in shown:
        parts.append(
            _text(
                places[unit],
                base,
                _name(look, unit),
                strength.get(unit, ink),
                "middle",
                soft=look.special[unit],
                bold=unit in strength,
            )
        )
    for left, right in zip(shown, shown[1:], strict=False):
        if right - left > 1:
            parts.append(_text((places[left] + places[right]) / 2, base, "…", ink, "middle"))
    return _svg(width, height, parts, paper, f"{_name(look, word)}: {look.title}, {look.name}")


def heatmap(look: Look, ink: str = _INK, paper: str | None = _PAPER) -> str:
    """The map of the chosen head, words beside the rows and above the columns."""
    names = cells(look.words, look.map.edges, 16)
    side = 22 if len(names) <= 32 else 14
    margin = 24 + max(cell_len(name) for name in names) * _LETTER
    left, top = margin, margin * 0.72 + 34
    count = len(names)
    width = left + count * side + margin * 0.72 + 8
    height = top + count * side + 16
    parts = [_text(16, 24, f"{look.title} · {look.name}", ink, "start", size=13, soft=True)]
    small = min(_SIZE, side - 4)
    for i, name in enumerate(names):
        middle = top + (i + 0.5) * side
        parts.append(_text(left - 8, middle + small * 0.35, name, ink, "end", size=small))
        x, y = left + (i + 0.6) * side, top - 6
        parts.append(
            _text(x, y, name, ink, "start", size=small, turn=f"rotate(-45 {x:.1f} {y:.1f})")
        )
    parts += _squares(look, left, top, side)
    parts.append(
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{count * side}" height="{count * side}"'
        f' fill="none" stroke="{ink}" stroke-opacity=".3"/>'
    )
    return _svg(width, height, parts, paper, f"{look.title}, {look.name}")


def _squares(look: Look, left: float, top: float, side: int) -> list[str]:
    """The cells, one path per shade so that the file stays small."""
    paths: dict[tuple[bool, int], list[str]] = {}
    for i, j, shade, dim in Grid.of(look).shades():
        level = round(shade * _SHADES)
        if level:
            cell = f"M{left + j * side:g} {top + i * side:g}h{side}v{side}h-{side}z"
            paths.setdefault((dim, level), []).append(cell)
    return [
        f'<path fill="{"#8b949e" if dim else AT}" fill-opacity="{level / _SHADES:.2f}"'
        f' d="{"".join(path)}"/>'
        for (dim, level), path in sorted(paths.items())
    ]


def _name(look: Look, unit: int) -> str:
    return shorten(look.words[unit], 24)


def _shown(look: Look) -> list[int]:
    """The words of a fan: all of a short text, of a long one those with an arc, and around it."""
    fan = look.fan
    assert fan is not None
    if len(look.words) <= _WORDS:
        return list(range(len(look.words)))
    named = {t.word for t in (*fan.looks_at, *fan.looked_at_by)}
    around = sorted(range(len(look.words)), key=lambda u: abs(u - fan.word))
    extra = [u for u in around if u not in named][: max(1, 20 - len(named))]
    return sorted(named | set(extra))


def _line(look: Look, shown: Sequence[int]) -> tuple[dict[int, float], float]:
    """Where each word's middle is, and the whole width."""
    places, x = {}, 20.0
    for before, unit in zip([None, *shown], shown, strict=False):
        if before is not None and unit - before > 1:
            x += 26  # room for "…"
        width = cell_len(_name(look, unit)) * _LETTER
        places[unit] = x + width / 2
        x += width + 12
    return places, max(x + 8, 420)


def _strong(targets: Sequence[Target]) -> list[Target]:
    """The targets that are worth an arc; the strongest in any case."""
    return [t for i, t in enumerate(targets) if i == 0 or t.weight >= _WEAKEST][:_ARCS]


def _rise(x: float, to: float) -> float:
    return min(0.22 * abs(x - to) + 18, 170)


def _height(places: dict[int, float], word: int, arcs: Sequence[Target]) -> float:
    return max((24 + _rise(places[word], places[t.word]) for t in arcs), default=12)


def _numbers(
    places: dict[int, float], word: int, arcs: Sequence[Target], edge: float, side: int
) -> list[tuple[float, float]]:
    """Where each arc's number stands: at its top, further out where another one is there."""
    found: list[tuple[float, float]] = []
    for target in arcs:
        x, to = places[word], places[target.word]
        middle, y = (x + to) / 2, edge + side * _rise(x, to) + (-5 if side < 0 else 14)
        while any(abs(middle - a) < 28 and abs(y - b) < 12 for a, b in found):
            y += side * 12
        found.append((middle, y))
    return found


def _arc(x: float, to: float, weight: float, edge: float, side: int, colour: str) -> str:
    peak = edge + side * _rise(x, to) * 4 / 3  # a cubic reaches three quarters of its handles
    width = 1 + 7 * math.sqrt(weight)
    opacity = 0.25 + 0.75 * math.sqrt(weight)
    return (
        f'<path d="M{x:.1f} {edge:.1f}C{x:.1f} {peak:.1f} {to:.1f} {peak:.1f} {to:.1f} {edge:.1f}"'
        f' fill="none" stroke="{colour}" stroke-width="{width:.1f}"'
        f' stroke-opacity="{opacity:.2f}" stroke-linecap="round"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    colour: str,
    anchor: str,
    *,
    size: float = _SIZE,
    soft: bool = False,
    bold: bool = False,
    turn: str = "",
    halo: str = "",
) -> str:
    extra = ' fill-opacity=".6"' if soft else ""
    extra += ' font-weight="600"' if bold else ""
    extra += f' stroke="{halo}" stroke-width="3" paint-order="stroke"' if halo else ""
    extra += f' transform="{turn}"' if turn else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}"'
        f' text-anchor="{anchor}"{extra}>{escape(text)}</text>'
    )


def _svg(width: float, height: float, parts: Iterable[str], paper: str | None, title: str) -> str:
    size = f"{math.ceil(width)} {math.ceil(height)}"
    ground = f'<rect width="100%" height="100%" rx="8" fill="{paper}"/>' if paper else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"'
        f' width="{math.ceil(width)}" height="{math.ceil(height)}" role="img"'
        f' font-family="{_FONT}">\n<title>{escape(title)}</title>\n{ground}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
