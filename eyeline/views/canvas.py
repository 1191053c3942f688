"""What every screen is drawn with: phrases, shades and lines, in ASCII where it must be."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from eyeline.glossary import Phrases

# Mid tones, readable on dark and on light ground; the marks, not the colours, carry the strength.
AT, SOFT = "rgb(64,128,240)", "dim"
_NARROWEST = 60  # below this lines wrap rather than vanish
RAMP, ASCII_RAMP = " ·░▒▓█", " .:+*@"
_ASCII = str.maketrans(
    {"→": "->", "…": "...", "·": "-", "×": "x", "±": "+-", "“": '"', "”": '"', "█": "#"}
)


def as_text(show: Callable[..., None], width: int) -> str:
    """What `show(console, encoding=...)` prints on a screen of this width, without colour."""
    file = io.StringIO()
    show(Console(file=file, width=width, color_system=None), encoding="utf-8")
    return file.getvalue().rstrip("\n")


class Canvas:
    """A console, how wide it is, and the language and characters that it can show."""

    def __init__(self, console: Console, encoding: str, lang: str) -> None:
        self.console, self.encoding = console, encoding
        self.unicode = encoding.lower().startswith("utf")
        phrases = Phrases(lang)
        if phrases("spend") != self.plain(phrases("spend")):
            phrases = Phrases("en")  # the terminal has no Chinese
        self.phrases = phrases
        self.width = max(console.width, _NARROWEST)

    def say(self, key: str, **values: object) -> str:
        """The phrase, filled in, as the output can carry it."""
        return self.plain(self.phrases(key, **values))

    def plain(self, text: str) -> str:
        """The text as the output can carry it."""
        if self.unicode:
            return text
        return text.translate(_ASCII).encode(self.encoding, "replace").decode(self.encoding)

    def mark(self, shade: float) -> str:
        """One character for a shade from 0 to 1."""
        ramp = RAMP if self.unicode else ASCII_RAMP
        return ramp[max(0, min(round(shade * (len(ramp) - 1)), len(ramp) - 1))]

    def bar(self, share: float, width: int) -> str:
        """A bar over so much of the width."""
        return self.plain("█") * round(share * width)

    def title(self, text: str) -> None:
        """A heading, after an empty line."""
        self.console.print()
        self.line(Text(text, style="bold"), wrap=True)

    def command(self, command: str, what: str) -> None:
        """A command to copy, and what it shows."""
        command = self.plain_command(command)
        room = self.width - cell_len(command) - 2
        line = Text.assemble("  ", (command, "green"))
        if what:
            note = (f"  # {what}", SOFT)
            if cell_len(note[0]) > room:
                self.line(Text(*note))
            else:
                line.append(*note)
        self.line(line)  # never broken by hand: it is to be copied

    def plain_command(self, command: str) -> str:
        """A command as the output can carry it: nothing in it is spelled another way."""
        if self.unicode:
            return command
        return command.encode(self.encoding, "replace").decode(self.encoding)

    def line(self, text: Text, wrap: bool = False) -> None:
        """One line, broken between words where `wrap`."""
        text.rstrip()
        self.console.print(text, soft_wrap=not wrap, highlight=False, markup=False, emoji=False)
