"""What the command line prints and writes: screens, JSON and files, in any encoding."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyeline.errors import EyelineError

if TYPE_CHECKING:
    from rich.console import Console


def show_and_save(
    found: Any,
    show: Callable[..., None],
    source: str,
    json: bool,
    html: Path | None,
    svg: Path | None,
    lang: str,
) -> None:
    """Write what a look found to the files asked for, and show it."""
    from eyeline.glossary import Phrases

    if html is not None:
        save_to(found.save_html, html)
    if svg is not None:
        save_to(found.save_svg, svg)
    if json:
        print_json(found.to_json())
        return
    screen = console()
    show(screen, source=source, program=program())
    say = Phrases(lang)
    for path in (html, svg):
        if path is not None:
            screen.print()
            screen.print(carried(say("written", path=path)), markup=False, highlight=False)


def program() -> str:
    """How eyeline was started, so that the commands it names can be typed: its name or path."""
    started = sys.argv[0]
    if Path(started).name == "__main__.py":
        return f"{_typed(sys.executable, 'python')} -m eyeline"
    return _typed(started, "eyeline")


def _typed(path: str, name: str) -> str:
    """The name where typing it finds this very file, else its path."""
    from eyeline.views.commands import quoted

    found = shutil.which(name)
    if found is not None and Path(found).resolve() == Path(path).resolve():
        return name
    if shutil.which(path) is None:
        return name
    return path if " " not in path else quoted(path)


def save_to(save: Callable[[Path], None], path: Path) -> None:
    """Write to a path; EyelineError where that cannot be."""
    try:
        save(path)
    except OSError as error:
        raise EyelineError(f"{path} cannot be written: {error.strerror}.") from error


def print_json(text: str) -> None:
    """JSON is UTF-8 whatever the locale, so that no character is lost."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8")
    print(text)


def console() -> Console:
    """The screen; COLUMNS=0, a width that is not known, is 80."""
    from rich.console import Console

    made = Console()
    if made.width < 1:
        made.width = 80
    return made


def goes_on(question: str) -> bool:
    """Whether the reader presses Enter, not q or the end of the input."""
    try:
        return input(f"{question} ").strip().lower() != "q"
    except (EOFError, KeyboardInterrupt):
        return False


def forgiving(stream: object) -> None:
    """What the output's encoding cannot carry becomes "?", not an error."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def carried(text: str) -> str:
    """The text as the output's encoding can carry it."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
