"""How a model without some of its heads is shown: next tokens, before and after."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from eyeline.views.canvas import AT, SOFT, Canvas, as_text
from eyeline.views.commands import quoted
from eyeline.views.labels import printable, shorten

if TYPE_CHECKING:
    from eyeline.looking.blocked import Without

_LABEL = 16  # cells for a token
_NUMBER = 8  # cells for a number and what stands above it
_BAR = 20  # cells for a probability of 1


def screen(found: Without, width: int = 80) -> str:
    """The screen as plain text."""
    return as_text(partial(show, found), width)


def show(
    found: Without,
    console: Console,
    encoding: str | None = None,
    source: str | None = None,
    program: str = "eyeline",
) -> None:
    """Print the screen on a console; `source` is the text as the command line named it."""
    named = quoted(found.text) if source is None else source
    _Screen(console, encoding or console.encoding, found.lang).show(found, f"{program} look", named)


class _Screen(Canvas):
    """One comparison on one console."""

    def show(self, found: Without, command: str, source: str) -> None:
        heads = ", ".join(found.heads)
        self.line(
            Text.assemble(
                (found.title, "bold"),
                self.plain(" · "),
                self.say("without facts", tokens=found.tokens, heads=heads),
            ),
            True,
        )
        self.title(self.say("without next", text=_end(found.text)))
        before, after = (_right(self.say(f"without {side}")) for side in ("before", "after"))
        self.line(Text(f"  {'':<{_LABEL}}  {before}  {after}", style=SOFT))
        for chance in found.chances:
            label = shorten(self.plain(printable(chance.token)), _LABEL)
            line = Text(f"  {set_cell_size(label, max(_LABEL, cell_len(label)))}  ")
            line.append(f"{chance.before:>{_NUMBER}.1%}  {chance.after:>{_NUMBER}.1%}  ")
            line.append(self.bar(chance.after, _BAR), style=AT)
            self.line(line)
        self.line(Text("  " + self.say("without moved", share=f"{found.moved:.1%}"), style=SOFT))
        self.title(self.say("next"))
        model = f" --model {found.model}"
        first = found.heads[0].removeprefix("L").split("H")
        chosen = f" --layer {first[0]} --head {first[1]}"
        said = f" {source}" if source else ""
        self.command(f"{command}{said}{model}{chosen}", self.say("without next head"))


def _right(text: str) -> str:
    return " " * (_NUMBER - cell_len(text)) + text


def _end(text: str) -> str:
    """The last words of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= 40 else "…" + line[-39:]
