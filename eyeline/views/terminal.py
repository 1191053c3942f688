"""The screen of a look: 80 columns and wider, plain when piped, ASCII where it must be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from eyeline.views.canvas import AT, SOFT, Canvas, as_text
from eyeline.views.commands import named, next_commands
from eyeline.views.labels import cells, number, printable, repeated, seconds, shorten, size
from eyeline.views.shading import Grid, overview_shades

if TYPE_CHECKING:
    from eyeline.looking.data import Fan, Look, Target

_BY = "rgb(208,120,20)"
_LABEL = 14  # cells for a word
_MAP_ROWS = 32  # a map of a long text is pooled to this
_LISTED = 12  # words listed of a long text


def screen(look: Look, width: int = 80) -> str:
    """The screen as plain text."""
    return as_text(partial(show, look), width)


def show(
    look: Look,
    console: Console,
    encoding: str | None = None,
    source: str | None = None,
    program: str = "eyeline",
) -> None:
    """Print the screen of a look on a console.

    `encoding` is the output's (the console's own unless given); `source` how the text was named on
    the command line and `program` how eyeline was started, for the commands to try next.
    """
    start = f"{program} look {named(look.text) if source is None else source}".rstrip()
    _Screen(look, console, encoding or console.encoding, start).show()


class _Screen(Canvas):
    """One look on one console."""

    def __init__(self, look: Look, console: Console, encoding: str, base: str) -> None:
        super().__init__(console, encoding, look.lang)
        self.look, self.base = look, base
        self.repeated = repeated(look.words)

    def show(self) -> None:
        self.head()
        self.spend()
        self.overview()
        grid = Grid.of(self.look)
        if not grid.whole:
            while len(grid) > _MAP_ROWS and len(coarser := grid.coarser()) < len(grid):
                grid = coarser
        self.map(grid)
        if self.look.fan is not None:
            self.fan(self.look.fan)
            self.pairs()
        self.title(self.say("next, again" if self.base.endswith(" -") else "next"))
        for command, what in next_commands(self.look, self.base, self.phrases.lang):
            self.command(command, self.plain(what))

    def head(self) -> None:
        look = self.look
        counts = {"layers": look.layers, "heads": look.heads, "tokens": look.tokens}
        facts = self.say(
            "facts",
            **counts,
            words=len(look.words),
            unit=self.say("unit pieces" if look.pieces else "unit words"),
            seconds=seconds(look.seconds),
        )
        self.line(Text.assemble((look.title, "bold"), self.plain(" · "), facts), wrap=True)
        dense = 4 * look.layers * look.heads * look.tokens**2
        stored = self.say("never stored", **counts, size=size(dense))
        self.line(Text(stored, style=SOFT), wrap=True)
        self.line(Text(self.say("counted"), style=SOFT), wrap=True)
        if look.mostly_unknown:
            self.unknown()
        if any(look.generated):
            self.title(self.say("generated"))
            self.line(
                Text("  " + self.plain(printable(look.written.replace("\n", "↵")))), wrap=True
            )

    def unknown(self) -> None:
        look = self.look
        words, unknown = len(look.words) - sum(look.special), sum(look.unknown)
        key = "unknown" if look.readers else "unknown, no other"
        share = f"{unknown / words:.0%}"
        said = self.say(key, model=look.short, unknown=unknown, words=words, share=share)
        self.line(Text(said, style="bold yellow"), wrap=True)
        if look.readers:
            self.command(f"{self.base} --model {look.readers[0]}", "")

    def spend(self) -> None:
        look = self.look
        self.title(self.say("spend"))
        causal = {"special": "special, causal"} if look.causal else {}
        names = {key: self.say(causal.get(key, key)) for key in look.spend}
        longest = max(map(cell_len, names.values()))
        room = min(self.width - longest - 10, 50)
        for key, share in look.spend.items():
            bar = (self.bar(share, room), SOFT if key == "special" else AT)
            self.line(Text.assemble(f"  {_fit(names[key], longest)} {share:>5.0%} ", bar))

    def overview(self) -> None:
        look = self.look
        share = look.by not in ("entropy", "distance")
        unit = self.say("unit percent" if share else f"unit of {look.by}")
        reading = self.say(f"reading {look.by}")
        marked = self.say("marked")
        self.title(self.say("overview", reading=reading, unit=unit) + self.plain(" · ") + marked)
        numbers = 6 + 5 * look.heads <= self.width
        wide = 5 if numbers else max(1, min(2, (self.width - 6) // look.heads))
        if numbers:
            heads = "".join(f"H{head}".center(wide) for head in range(look.heads))
            self.line(Text(" " * 6 + heads, style=SOFT))
        shades = overview_shades(look)
        for layer, row in enumerate(look.overview):
            line = Text.assemble((f"  {'L' + str(layer):<4}", SOFT))
            for head, value in enumerate(row):
                mark = self.mark(shades[layer][head])
                text = mark + number(value, share).ljust(2) if numbers else mark * wide
                chosen = numbers and (layer, head) == (look.layer, look.head)
                line.append(f"[{text}]" if chosen else text.center(wide), "bold" if chosen else AT)
            self.line(line)

    def map(self, grid: Grid) -> None:
        look = self.look
        self.title(self.say(f"map {look.chosen}", head=look.name, token=self.fan_word()))
        digits = len(str(grid.edges[-1]))
        names = cells([self.plain(word) for word in look.words], grid.edges, _LABEL)
        longest = max(map(cell_len, names))
        side = 2 if 3 + digits + min(longest, 10) + 2 * len(grid) <= self.width else 1
        label = min(longest, self.width - 3 - digits - side * len(grid))
        room = self.width - 3 - digits - label - side * len(grid) - 3
        beside = grid.whole and room >= 17
        indent = " " * (3 + digits + label)
        if grid.whole:
            self.numbers(indent, len(grid), side, self.say("most") if beside else "")
        glances = {glance.word: glance.at for glance in look.glances} if beside else {}
        lines = []
        for first, name, dim in zip(grid.edges, names, grid.dim, strict=False):
            word = (_fit(shorten(name, label), label) + " ", SOFT if dim else "")
            new = "+" if look.generated and look.generated[first] else " "
            lines.append(Text.assemble((f" {first:>{digits}}{new}", SOFT), word))
        for i, _, shade, dim in grid.shades():
            # special columns never get a dark mark: without colour that is what dims them
            mark = self.mark(min(shade, 0.3) if dim else shade) * side
            lines[i].append(mark, SOFT if dim else AT)
        for first, line in zip(grid.edges, lines, strict=False):
            if at := glances.get(first):
                line.append("  " + self.named(at, room))
            self.line(line)
        self.notes(grid)
        if not beside:
            self.glances()

    def numbers(self, indent: str, count: int, side: int, beside: str) -> None:
        """The numbers of the columns; tens above ones where a column is one cell wide."""
        if side == 2:
            evens = "".join(f"{column:<4}" for column in range(0, count, 2))[: 2 * count]
            self.line(Text(f"{indent}{evens:<{2 * count}}  {beside}".rstrip(), style=SOFT))
            return
        tens = "".join(str(c // 10 % 10) if c and c % 10 == 0 else " " for c in range(count))
        ones = "".join(str(column % 10) for column in range(count))
        self.line(Text(indent + tens, style=SOFT))
        self.line(Text(indent + ones, style=SOFT))

    def notes(self, grid: Grid) -> None:
        look = self.look
        notes = [self.say("map scale", most=f"{grid.strongest:.2f}")]
        if look.sinks:
            names = [f"{self.word(t.word, 16)} {t.weight:.0%}" for t in look.sinks[:4]]
            notes.append(self.say("map special", names=", ".join(names)))
        if not grid.whole:
            unit = self.say("unit pieces" if look.pieces else "unit words")
            count = len(look.words)
            notes.append(self.say("map pooled", words=count, cells=len(grid), unit=unit))
        for note in notes:
            self.line(Text(f"  {note}", style=SOFT), wrap=True)

    def glances(self) -> None:
        look = self.look
        listed = [glance for glance in look.glances if glance.at]
        long = len(listed) > 64
        if long:
            listed = sorted(listed, key=lambda g: -g.at[0].weight)[:_LISTED]
        count = {"count": len(listed), "words": len(look.glances)}
        self.title(self.say("most of all" if long else "most each", head=look.name, **count))
        digits = len(str(len(look.words)))
        for glance in listed:
            label = _fit(shorten(self.plain(look.words[glance.word]), _LABEL), _LABEL)
            places = self.named(glance.at, self.width - _LABEL - digits - 7)
            self.line(Text(self.plain(f"  {glance.word:>{digits}} {label} → ") + places))

    def fan(self, fan: Fan) -> None:
        self.title(self.say("fan", token=self.fan_word(), index=fan.word, head=self.look.name))
        if len(fan.places) > 1 and fan.word == fan.places[0]:
            note = self.say(
                "several",
                token=self.fan_word(),
                count=len(fan.places),
                places=", ".join(map(str, fan.places[:8])),
                other=fan.places[1],
            )
            self.line(Text(f"  {note}", style=SOFT), wrap=True)
        half = self.width // 2 - 2
        columns = (
            [self.say("looks at"), *self.bars(fan.looks_at, half)],
            [self.say("looked at by"), *self.bars(fan.looked_at_by, half)],
        )
        for i in range(max(map(len, columns))):
            at, by = (column[i] if i < len(column) else "" for column in columns)
            bold = "bold " if i == 0 else ""
            self.line(Text.assemble("  ", (_fit(at, half), bold + AT), "  ", (by, bold + _BY)))

    def pairs(self) -> None:
        look, word = self.look, self.fan_word()
        self.title(self.say("pairs", token=word, count=sum(map(len, look.overview))))
        for pair in look.pairs:
            to = _fit(self.word(pair.word, 16), 16)
            place = f"L{pair.layer} H{pair.head}"
            self.line(Text(self.plain(f"  {word} → {to} {pair.weight:.2f}  {place}")))
        if not look.pairs:
            self.line(Text("  " + self.say("nothing")))

    def bars(self, targets: Sequence[Target], width: int) -> Iterator[str]:
        for target in targets:
            name = _fit(self.word(target.word, _LABEL), _LABEL)
            bar = self.bar(target.weight, width - _LABEL - 7)
            yield f"{name} {target.weight:.2f} {bar}"
        if not targets:
            yield self.say("nothing")

    def word(self, index: int, width: int) -> str:
        """The word in at most so many cells; with its number where others are spelled the same."""
        same = f"({index})" if index in self.repeated else ""
        return shorten(self.plain(self.look.words[index]), width - len(same)) + same

    def fan_word(self) -> str:
        return shorten(self.plain(self.look.words[self.look.fan.word]), 24) if self.look.fan else ""

    def named(self, targets: Sequence[Target], room: int) -> str:
        """As many of the targets as fit, with their weights."""
        found = ""
        for target in targets:
            name = self.word(target.word, min(16, room - 5))
            joined = f"{found}  {name} {target.weight:.2f}".lstrip()
            if found and cell_len(joined) > room:
                break
            found = joined
        return found


def _fit(text: str, width: int) -> str:
    return set_cell_size(text, width)
