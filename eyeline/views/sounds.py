"""How a look at speech is shown: on the screen, as a figure, as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from eyeline.glossary import Phrases
from eyeline.views.canvas import AT, SOFT, Canvas, as_text
from eyeline.views.commands import quoted
from eyeline.views.labels import printable, seconds, shorten
from eyeline.views.page import document, styled

if TYPE_CHECKING:
    from eyeline.looking.sounds import SoundLook

_LABEL = 14  # cells for a word
_BLUE, _INK = "#2563eb", "#1f2328"
_SHADES = 20
_CELL, _LINE = 11, 22  # of the figure, in px: the width of a cell of time, the height of a word
_NAMED = 4  # heads that are named


def screen(look: SoundLook, width: int = 80) -> str:
    """The screen as plain text."""
    return as_text(partial(show, look), width)


def show(
    look: SoundLook,
    console: Console,
    encoding: str | None = None,
    source: str | None = None,
    program: str = "eyeline",
) -> None:
    """Print the screen on a console; `source` is how the command line named the sound."""
    if look.recorded:  # named as a text is
        named = source or quoted(look.name)
    else:
        named = f"--audio {quoted(source or look.name)}"
    base = f"{program} look {named}"
    _Screen(console, encoding or console.encoding, look.lang).show(look, base)


class _Screen(Canvas):
    """One look on one console."""

    def show(self, look: SoundLook, base: str) -> None:
        facts = self.plain(_facts(look, self.phrases))
        self.line(Text.assemble((look.title, "bold"), self.plain(" · "), facts), True)
        for note in look.notes:
            self.line(Text(self.plain(note), style=SOFT), True)
        self.title(self.say("sound heard"))
        self.line(Text("  " + self.plain(printable(look.text) or self.say("sound nothing"))), True)
        if look.words:
            self.title(self.plain(_heading(look, self.phrases)))
            self.map(look)
            for note in _notes(look, self.phrases):
                self.line(Text(f"  {self.plain(note)}", style=SOFT), True)
        self.title(self.say("next"))
        for command, what in next_commands(look, base):
            self.command(command, self.say(what))

    def map(self, look: SoundLook) -> None:
        """A line for each word: when it begins, and its look over time."""
        labels = [self.plain(shorten(word.label, _LABEL - 2)) for word in look.words]
        label = max(map(cell_len, labels))
        start = self.say("sound start")
        indent = max(7, cell_len(start) + 2)
        axis = "".join(f"{second:<{width}}" for second, width in _ticks(look))
        head = set_cell_size("  " + start, indent) + " " * (label + 2) + axis
        self.line(Text(head, style=SOFT))
        for word, text, row in zip(look.words, labels, _shades(look), strict=True):
            line = Text.assemble((f"{word.start:>{indent - 1}.2f} ", SOFT))
            line.append(set_cell_size(text, label) + "  ")
            line.append("".join(self.mark(shade) for shade in row), AT)
            self.line(line)


def next_commands(look: SoundLook, base: str) -> list[tuple[str, str]]:
    """(command, the key of what it shows) for a look; `base` starts it on the same sound."""
    same = base if look.model == "whisper" else f"{base} --model {quoted(look.model)}"
    layer, head = look.heads[0]
    place = f" --layer {layer} --head {head}"
    drawn = "" if look.chosen else place if len(look.heads) == 1 else f" --layer {layer}"
    found = [(same + place, "sound next head")] if look.chosen else []
    found.append((f"{same}{drawn} --svg look.svg", "next figure"))
    found.append((f"{same}{drawn} --html look.html", "next page"))
    return found


def figure(look: SoundLook, ink: str = _INK, paper: str | None = "#ffffff") -> str:
    """A whole SVG file: words above each other, time from left to right."""
    left = 84 + 8 * max((cell_len(word.label) for word in look.words), default=0)
    cells = len(look.values[0]) if look.values else 0
    width, height = left + _CELL * cells + 16, 62 + _LINE * len(look.words)
    title = printable(f"{look.title} · {look.name}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" font-family="system-ui, sans-serif" font-size="14">',
        f"<title>{escape(title)}</title>",
    ]
    if paper:
        parts.append(f'<rect width="100%" height="100%" fill="{paper}"/>')
    parts.append(f'<text x="16" y="22" fill="{ink}" fill-opacity=".6">{escape(title)}</text>')
    at = left
    for second, span in _ticks(look):
        parts.append(
            f'<text x="{at}" y="44" font-size="12" fill="{ink}" fill-opacity=".6">{second}</text>'
        )
        at += span * _CELL
    for line, (word, row) in enumerate(zip(look.words, _shades(look), strict=True)):
        y = 52 + line * _LINE
        parts.append(
            f'<text x="{left - 8}" y="{y + 15}" fill="{ink}" text-anchor="end">'
            f'<tspan fill-opacity=".6">{word.start:.2f}</tspan> {escape(printable(word.label))}'
            "</text>"
        )
        parts += [
            f'<rect x="{left + _CELL * c}" y="{y}" width="{_CELL}" height="{_LINE - 2}"'
            f' fill="{_BLUE}" fill-opacity="{shade:.2f}"/>'
            for c, shade in enumerate(row)
            if round(shade * _SHADES)
        ]
        x = left + word.start / look.duration * _CELL * cells
        parts.append(
            f'<path d="M{x:.1f} {y}v{_LINE - 2}" stroke="#d97706" stroke-width="2" fill="none"/>'
        )
    return "\n".join([*parts, "</svg>\n"])


def page(look: SoundLook) -> str:
    """A whole HTML file."""
    title = Phrases(look.lang)("title", model=look.title)
    return document(look.lang, title, fragment(look))


def fragment(look: SoundLook) -> str:
    """What the page shows, with its own style, to stand in a notebook too."""
    return styled("\n".join(_body(look)))


def _body(look: SoundLook) -> Iterator[str]:
    say = Phrases(look.lang)
    yield f"<h1>{escape(say('title', model=look.title))}</h1>"
    yield f"<p>{escape(_facts(look, say))}</p>"
    yield f'<p class="soft">{escape(" ".join(look.notes))}</p>'
    yield f"<h2>{escape(say('sound heard'))}</h2>"
    yield f'<p class="text">{escape(printable(look.text) or say("sound nothing"))}</p>'
    if look.words:
        yield f"<h2>{escape(_heading(look, say))}</h2>"
        yield f'<div class="wide">{figure(look, "currentColor", None)}</div>'
        yield f'<p class="soft">{escape(" ".join(_notes(look, say)))}</p>'
    yield f'<p class="soft">{escape(say("page made"))}</p>'


def _facts(look: SoundLook, say: Phrases) -> str:
    return say(
        "sound facts",
        name=shorten(look.name, 30),
        duration=f"{look.duration:.2f}",
        layers=look.layers,
        tokens=look.tokens,
        seconds=seconds(look.seconds),
    )


def _heading(look: SoundLook, say: Phrases) -> str:
    if look.chosen:
        heads = say("sound known heads", count=len(look.heads))
    else:
        names = [f"L{layer} H{head}" for layer, head in look.heads]
        more = ", …" if len(names) > _NAMED else ""
        joined = ", ".join(names[:_NAMED]) + more
        heads = joined if len(names) == 1 else say("sound heads", names=joined)
    return say("sound map", heads=heads)


def _notes(look: SoundLook, say: Phrases) -> list[str]:
    most = max(map(max, look.values))
    beyond = sum(look.beyond) / len(look.beyond)
    return [
        say("sound starts"),
        say("map scale", most=f"{most:.2f}"),
        say("sound beyond", share=f"{beyond:.0%}"),
    ]


def _shades(look: SoundLook) -> list[list[float]]:
    """How dark each cell is, 0 to 1, on a square-root scale."""
    most = max(map(max, look.values), default=0.0) or 1.0
    return [[math.sqrt(weight / most) for weight in row] for row in look.values]


def _ticks(look: SoundLook) -> list[tuple[str, int]]:
    """(second, cells until the next one), from the first cell on."""
    cells = len(look.values[0]) if look.values else 0
    step = next(
        s for s in (0.5, 1, 2, 5, 10) if s * cells / max(look.duration, 0.1) >= 5 or s == 10
    )
    places = [
        round(i * step * cells / look.duration) for i in range(math.ceil(look.duration / step))
    ]
    return [
        (f"{i * step:g}", end - at)
        for i, (at, end) in enumerate(zip(places, [*places[1:], cells], strict=True))
    ]
