"""One self-contained page of a look: readable without scripts, nothing fetched, light and dark.

Its size does not grow with the text: words, cells and rows that are written are all bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from eyeline.glossary import Phrases
from eyeline.views.commands import named
from eyeline.views.figure import fan
from eyeline.views.labels import cells, number, printable, repeated, seconds, shorten, size
from eyeline.views.shading import Grid, overview_shades

if TYPE_CHECKING:
    from eyeline.looking.data import Look

_LEVELS = 20  # shades of a cell
_TEXT = 1500  # characters of the text that are shown
_LISTED = 100  # words whose looks are listed
_NAMED_CELLS = 32  # up to this many rows every cell carries its two words

# How the four shares are coloured, from attention without content to content.
_SHARES = {"special": "grey", "self": "a", "near": "b", "words": "c"}
_COLOURS = {
    "grey": "rgb(var(--grey)/.45)",
    "a": "#e3b341",
    "b": "#57ab8a",
    "c": "rgb(var(--hue)/.85)",
}


def page(look: Look) -> str:
    """A whole HTML file for a look, under 300 kB however long the text."""
    return document(look.lang, Phrases(look.lang)("title", model=look.title), fragment(look))


def document(lang: str, title: str, body: str) -> str:
    """A whole HTML file around what `styled` returned."""
    return (
        f'<!doctype html>\n<html lang="{lang}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n"
        "<style>body{margin:0 auto;max-width:66rem}@media (prefers-color-scheme:dark)"
        "{body{background:#0d1117}}</style>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def styled(body: str) -> str:
    """A part of a page with the style it needs, to stand in a notebook too."""
    return f'<div class="eyeline">\n<style>{_style()}</style>\n{body}\n</div>'


def fragment(look: Look) -> str:
    """What the page shows, with its own style, to stand in a notebook too."""
    say = Phrases(look.lang)
    parts = [
        *_head(look, say),
        *_text(look, say),
        *_spend(look, say),
        *_overview(look, say),
        *_fan(look, say),
        *_map(look, say),
        *_glances(look, say),
    ]
    return styled("\n".join(parts))


@cache
def _style() -> str:
    rules = files("eyeline.views").joinpath("page.css").read_text("utf-8")
    hue = (f".eyeline .s{i}{{background:rgb(var(--hue)/{i / _LEVELS:.2f})}}" for i in _levels())
    grey = (f".eyeline .g{i}{{background:rgb(var(--grey)/{i / _LEVELS:.2f})}}" for i in _levels())
    return "".join((rules, *hue, *grey))


def _levels() -> range:
    return range(1, _LEVELS + 1)


def _shade(shade: float, dim: bool = False) -> str:
    level = round(shade * _LEVELS)
    return f"{'g' if dim else 's'}{level}" if level else ""


def _head(look: Look, say: Phrases) -> Iterator[str]:
    yield f"<h1>{escape(say('title', model=look.title))}</h1>"
    counts = {"layers": look.layers, "heads": look.heads, "tokens": look.tokens}
    facts = say(
        "facts",
        **counts,
        words=len(look.words),
        unit=say("unit pieces" if look.pieces else "unit words"),
        seconds=seconds(look.seconds),
    )
    dense = 4 * look.layers * look.heads * look.tokens**2
    yield f"<p>{escape(facts)}</p>"
    yield f'<p class="soft">{escape(say("never stored", **counts, size=size(dense)))}'
    yield f"{escape(say('counted'))}</p>"
    if look.mostly_unknown:
        words, unknown = len(look.words) - sum(look.special), sum(look.unknown)
        key = "unknown" if look.readers else "unknown, no other"
        share = f"{unknown / words:.0%}"
        warning = say(key, model=look.short, unknown=unknown, words=words, share=share)
        yield f'<p class="warn">{escape(warning)}'
        if look.readers:
            source = shorten(named(look.text), 400)
            yield f"<code>eyeline look {escape(source)} --model {escape(look.readers[0])}</code>"
        yield "</p>"


def _text(look: Look, say: Phrases) -> Iterator[str]:
    text = look.text.strip()
    shown = printable_lines(text[:_TEXT])
    if len(text) > _TEXT:
        shown += " " + say("shortened", count=len(text))
    yield f"<h2>{escape(say('text'))}</h2>"
    yield f'<p class="text">{escape(shown)}</p>'
    if look.written:
        yield f"<h2>{escape(say('generated page'))}</h2>"
        yield f'<p class="text">{escape(printable_lines(look.written[:_TEXT]))}</p>'


def printable_lines(text: str) -> str:
    """The text with its line breaks, other control characters replaced."""
    return "\n".join(printable(line) for line in text.splitlines())


def _spend(look: Look, say: Phrases) -> Iterator[str]:
    yield f'<h2>{escape(say("spend"))}</h2>\n<div class="bar">'
    for key, share in look.spend.items():
        colour = _COLOURS[_SHARES[key]]
        yield f'<i style="width:{100 * share:.2f}%;background:{colour}"></i>'
    yield '</div>\n<p class="keys">'
    for share_key, share in look.spend.items():
        causal = share_key == "special" and look.causal
        name = say("special, causal" if causal else share_key)
        colour = _COLOURS[_SHARES[share_key]]
        key = f'<i class="key" style="background:{colour}"></i>'
        yield f"<span>{key}{escape(name)} {share:.0%}</span>"
    yield "</p>"


def _overview(look: Look, say: Phrases) -> Iterator[str]:
    share = look.by not in ("entropy", "distance")
    unit = say("unit percent" if share else f"unit of {look.by}")
    title = say("overview", reading=say(f"reading {look.by}"), unit=unit)
    yield f'<h2>{escape(title)}</h2>\n<div class="wide"><table><tr><th></th>'
    yield "".join(f"<th>H{head}</th>" for head in range(look.heads)) + "</tr>"
    for layer, (row, tints) in enumerate(zip(look.overview, overview_shades(look), strict=True)):
        line = [f'<tr><th class="row">L{layer}</th>']
        for head, (value, tint) in enumerate(zip(row, tints, strict=True)):
            on = " on" if (layer, head) == (look.layer, look.head) else ""
            line.append(f'<td class="{_shade(0.85 * tint)}{on}">{number(value, share)}</td>')
        yield "".join(line) + "</tr>"
    yield "</table></div>"


def _fan(look: Look, say: Phrases) -> Iterator[str]:
    if look.fan is None:
        return
    word = shorten(look.words[look.fan.word], 40)
    title = say("fan", token=word, index=look.fan.word, head=look.name)
    yield f"<h2>{escape(title)}</h2>"
    yield f'<div class="wide">{fan(look, ink="currentColor", paper=None)}</div>'
    count = sum(len(row) for row in look.overview)
    yield f"<h2>{escape(say('pairs', token=word, count=count))}</h2>"
    yield '<table class="list">'
    same = repeated(look.words)
    for pair in look.pairs:
        to = _numbered(look, pair.word, same)
        place = f"L{pair.layer} H{pair.head}"
        yield (
            f"<tr><td>{escape(word)} → <b>{to}</b></td><td>{pair.weight:.2f}</td>"
            f"<td>{place}</td></tr>"
        )
    yield "</table>"


def _map(look: Look, say: Phrases) -> Iterator[str]:
    grid = Grid.of(look)
    token = shorten(look.words[look.fan.word], 40) if look.fan else ""
    yield f"<h2>{escape(say(f'map {look.chosen}', head=look.name, token=token))}</h2>"
    names = [escape(name) for name in cells(look.words, grid.edges, 16)]
    few = len(grid) <= _NAMED_CELLS
    yield f'<div class="wide"><table class="map{"" if few else " many"}">'
    rows = [
        [f'<tr><th class="row{" dim" if dim else ""}">{name} {first}</th>']
        for first, name, dim in zip(grid.edges, names, grid.dim, strict=False)
    ]
    if few:
        heads = (
            f'<th class="col{" dim" if dim else ""}">{name}</th>'
            for name, dim in zip(names, grid.dim, strict=True)
        )
        yield f"<tr><th></th>{''.join(heads)}</tr>"
    for i, j, shade, dim in grid.shades():
        weight = f"{grid.values[i][j]:.2f}"
        if few:
            weight = f"{names[i]} → {names[j]} {weight}"
        rows[i].append(f'<td class="{_shade(shade, dim)}" title="{weight}">')
    yield from ("".join(row) + "</tr>" for row in rows)
    yield f'</table></div>\n<p class="soft">{escape(_notes(look, grid, say))}</p>'


def _notes(look: Look, grid: Grid, say: Phrases) -> str:
    notes = [say("map scale", most=f"{grid.strongest:.2f}")]
    if look.sinks:
        taken = (f"{shorten(look.words[t.word], 16)} {t.weight:.0%}" for t in look.sinks[:4])
        notes.append(say("map special", names=", ".join(taken)))
    if not grid.whole:
        unit = say("unit pieces" if look.pieces else "unit words")
        notes.append(say("map pooled", words=len(look.words), cells=len(grid), unit=unit))
    return " ".join(notes)


def _glances(look: Look, say: Phrases) -> Iterator[str]:
    listed = [glance for glance in look.glances if glance.at]
    long = len(listed) > _LISTED
    if long:
        listed = sorted(listed, key=lambda glance: -glance.at[0].weight)[:_LISTED]
    count = {"count": len(listed), "words": len(look.glances)}
    title = say("most of all" if long else "most each", head=look.name, **count)
    yield f'<h2>{escape(title)}</h2>\n<table class="list">'
    same = repeated(look.words)
    for glance in listed:
        targets = " · ".join(
            f"{_numbered(look, t.word, same)} {t.weight:.2f}" for t in glance.at[:10]
        )
        word = escape(shorten(look.words[glance.word], 24))
        yield f"<tr><th>{glance.word}</th><td>{word}</td><td>{targets}</td></tr>"
    yield f'</table>\n<p class="soft">{escape(say("page made"))}</p>'


def _numbered(look: Look, word: int, same: frozenset[int]) -> str:
    """The word as HTML, with its number where others are spelled the same."""
    number_of = f"({word})" if word in same else ""
    return escape(shorten(look.words[word], 24)) + number_of
