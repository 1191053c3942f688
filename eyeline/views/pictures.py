"""How a look at a picture is shown: on the screen, as a figure, as a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from eyeline.glossary import Phrases
from eyeline.views.canvas import AT, SOFT, Canvas, as_text
from eyeline.views.commands import quoted
from eyeline.views.labels import seconds, shorten, size
from eyeline.views.page import document, styled

if TYPE_CHECKING:
    from eyeline.looking.pictures import PictureLook

_HEAT = "#ff4d00"
_SHADES = 16
_WIDEST = 640  # of the figure, in px
_QUALITY = 88  # of the JPEG in it


def screen(look: PictureLook, width: int = 80) -> str:
    """The screen as plain text."""
    return as_text(partial(show, look), width)


def show(
    look: PictureLook,
    console: Console,
    encoding: str | None = None,
    source: str | None = None,
    program: str = "eyeline",
) -> None:
    """Print the screen on a console; `source` is how the command line named the picture."""
    if look.image is None:  # a recording, named as a text is
        named = source or quoted(look.name)
    else:
        named = f"--image {quoted(source or look.name)}"
    base = f"{program} look {named}"
    _Screen(console, encoding or console.encoding, look.lang).show(look, base)


class _Screen(Canvas):
    """One look on one console."""

    def show(self, look: PictureLook, base: str) -> None:
        self.line(Text.assemble((look.title, "bold"), self.plain(" · "), self.facts(look)), True)
        dense = size(4 * look.layers * look.heads * look.tokens**2)
        counts = {"layers": look.layers, "heads": look.heads, "tokens": look.tokens}
        never = self.say("picture never stored", size=dense, **counts)
        self.line(Text(never, style=SOFT), True)
        self.title(self.say(*_what(look), token=look.token, place=look.place))
        self.heat(look)
        for note in _notes(look, self.phrases):
            self.line(Text(f"  {self.plain(note)}", style=SOFT), True)
        self.title(self.say("picture heads", token=look.token))
        self.overview(look)
        self.title(self.say("next"))
        for command, what in next_commands(look, base):
            self.command(command, self.say(what))

    def facts(self, look: PictureLook) -> str:
        return self.plain(_facts(look, self.phrases))

    def heat(self, look: PictureLook) -> None:
        """The picture by rows of patches, two characters to a patch where there is room."""
        digits = len(str(look.rows - 1))
        side = 2 if 4 + digits + 2 * look.columns <= self.width else 1
        indent = " " * (3 + digits)
        tens = [f"{c:<{5 * side}}" for c in range(0, look.columns, 5)]
        self.line(Text(indent + "".join(tens), style=SOFT))
        for row, shades in enumerate(_shades(look)):
            line = Text.assemble((f"  {row:>{digits}} ", SOFT))
            for shade in shades:
                line.append(self.mark(shade) * side, AT)
            self.line(line)

    def overview(self, look: PictureLook) -> None:
        heads = "".join(f"H{head}".center(5) for head in range(look.heads))
        self.line(Text(" " * 6 + heads, style=SOFT))
        for layer, row in enumerate(look.overview):
            line = Text.assemble((f"  {'L' + str(layer):<4}", SOFT))
            for head, value in enumerate(row):
                drawn = layer == look.layer and head == look.head
                text = f"{self.mark(1 - 2 * value)}{100 * value:.0f}"
                line.append(f"[{text}]".ljust(5) if drawn else f" {text}".ljust(5), AT)
            self.line(line)


def next_commands(look: PictureLook, base: str) -> list[tuple[str, str]]:
    """(command, the key of what it shows) for a look; `base` starts it on the same picture."""
    same = base if look.model == "dinov2" else f"{base} --model {quoted(look.model)}"
    token = "" if look.token == "CLS" else f" --token {look.token}"
    sharp = min(range(look.heads), key=lambda head: look.overview[look.layer][head])
    place = f" --layer {look.layer} --head {look.head if look.head is not None else sharp}"
    found = []
    if look.token == "CLS":
        found.append((f"{same} --token {look.strongest[0].name}", "picture next patch"))
    else:
        found.append((same, "picture next whole"))
    if look.head is None:
        found.append((f"{same}{token}{place}", "picture next head"))
    drawn = token + (place if look.head is not None else "")
    found.append((f"{same}{drawn} --svg look.svg", "picture next figure"))
    found.append((f"{same}{drawn} --html look.html", "next page"))
    return found


def figure(look: PictureLook, *, paper: bool = True) -> str:
    """A whole SVG file: the picture, and over it the weights of its patches."""
    side = _WIDEST / max(look.columns, look.rows)
    width, height = side * look.columns, side * look.rows
    title = f"{look.title} · {look.token} · {look.place}"
    top = 30 if paper else 0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height + top:.0f}"'
        f' width="{width:.0f}" height="{height + top:.0f}" role="img"'
        ' font-family="system-ui, sans-serif">',
        f"<title>{escape(title)}</title>",
    ]
    if paper:
        parts.append('<rect width="100%" height="100%" fill="#ffffff"/>')
        parts.append(f'<text x="8" y="20" font-size="14" fill="#1f2328">{escape(title)}</text>')
    if look.image is not None:
        parts.append(
            f'<image x="0" y="{top}" width="{width:.0f}" height="{height:.0f}"'
            f' preserveAspectRatio="none" href="data:image/jpeg;base64,{_jpeg(look)}"/>'
        )
    parts += _squares(look, side, top)
    if look.token != "CLS":
        row, column = map(int, look.token[1:].split("c"))
        parts.append(
            f'<rect x="{column * side:.1f}" y="{top + row * side:.1f}" width="{side:.1f}"'
            f' height="{side:.1f}" fill="none" stroke="#2563eb" stroke-width="3"/>'
        )
    return "\n".join([*parts, "</svg>\n"])


def page(look: PictureLook) -> str:
    """A whole HTML file."""
    title = Phrases(look.lang)("title", model=look.title)
    return document(look.lang, title, fragment(look))


def fragment(look: PictureLook) -> str:
    """What the page shows, with its own style, to stand in a notebook too."""
    return styled("\n".join(_body(look)))


def _body(look: PictureLook) -> Iterator[str]:
    say = Phrases(look.lang)
    yield f"<h1>{escape(say('title', model=look.title))}</h1>"
    yield f"<p>{escape(_facts(look, say))}</p>"
    (what,) = _what(look)
    yield f"<h2>{escape(say(what, token=look.token, place=look.place))}</h2>"
    yield f'<div class="wide">{figure(look, paper=False)}</div>'
    yield f'<p class="soft">{escape(" ".join(_notes(look, say)))}</p>'
    yield f"<h2>{escape(say('picture heads', token=look.token))}</h2>"
    yield '<div class="wide"><table><tr><th></th>'
    yield "".join(f"<th>H{head}</th>" for head in range(look.heads)) + "</tr>"
    for layer, row in enumerate(look.overview):
        cells = (
            f'<td class="s{max(1, round(16 * (1 - 2 * value)))}'
            f'{" on" if (layer, head) == (look.layer, look.head) else ""}">{100 * value:.0f}</td>'
            for head, value in enumerate(row)
        )
        yield f'<tr><th class="row">L{layer}</th>{"".join(cells)}</tr>'
    yield f'</table></div>\n<p class="soft">{escape(say("page made"))}</p>'


def _facts(look: PictureLook, say: Phrases) -> str:
    return say(
        "picture facts",
        name=shorten(look.name, 30),
        width=look.width,
        height=look.height,
        layers=look.layers,
        heads=look.heads,
        tokens=look.tokens,
        rows=look.rows,
        columns=look.columns,
        seconds=seconds(look.seconds),
    )


def _what(look: PictureLook) -> tuple[str]:
    return ("picture map" if look.head is not None else "picture map, heads",)


def _notes(look: PictureLook, say: Phrases) -> list[str]:
    most = max(map(max, look.values))
    named = ", ".join(f"{patch.name} {patch.weight:.3f}" for patch in look.strongest)
    return [
        say("picture scale", most=f"{most:.3f}"),
        say("picture half", half=f"{look.half:.0%}", rest=f"{look.rest:.0%}"),
        say("picture most", names=named),
    ]


def _shades(look: PictureLook) -> list[list[float]]:
    """How dark each patch is: its weight, from 0 to 1 for the largest."""
    most = max(map(max, look.values)) or 1.0
    return [[weight / most for weight in row] for row in look.values]


def _squares(look: PictureLook, side: float, top: float) -> Iterator[str]:
    """The patches, one path per shade so that the file stays small."""
    paths: dict[int, list[str]] = {}
    for row, shades in enumerate(_shades(look)):
        for column, shade in enumerate(shades):
            square = (
                f"M{column * side:.1f} {top + row * side:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z"
            )
            paths.setdefault(round(shade * _SHADES), []).append(square)
    for level, path in sorted(paths.items()):
        if level:
            opacity = 0.9 * level / _SHADES
            yield f'<path fill="{_HEAT}" fill-opacity="{opacity:.2f}" d="{"".join(path)}"/>'


def _jpeg(look: PictureLook) -> str:
    """The picture in grey, so that the heat over it is the only colour."""
    file = io.BytesIO()
    look.image.convert("L").save(file, "JPEG", quality=_QUALITY)
    return base64.b64encode(file.getvalue()).decode()
