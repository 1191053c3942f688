"""What the command line was given: a text from one of three places, files, options that agree."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from eyeline.errors import EyelineError

if TYPE_CHECKING:
    from eyeline.seen import Seen

PATIENCE = 1.0  # seconds that standard input may be silent without a word about it
_OPTIONS = dict.fromkeys((".jpg", ".jpeg", ".png", ".webp"), "--image") | {
    ".wav": "--audio",
    ".txt": "--file",
}
_IN_A_FILE = "save the text as UTF-8 in a file, and name that with --file"


def text_of(text: str | None, file: Path | None) -> tuple[str, str]:
    """The text, and how it was named on the command line."""
    from eyeline.looking.data import DEFAULT_TEXT
    from eyeline.views.commands import named, quoted

    if file is not None and text is not None:
        raise EyelineError("A text and --file were given: give one of them.")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8"), f"--file {quoted(str(file))}"
        except OSError as error:
            raise EyelineError(f"{file} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise EyelineError(f"{file} is no UTF-8 text: save it as UTF-8.") from error
    if text == "-":
        return _piped(), "-"
    if text is None and sys.stdin is not None and not sys.stdin.isatty():
        piped = _piped()
        if piped.strip():
            return piped, "-"
    text = DEFAULT_TEXT if text is None else utf8(text, "The text")
    option = _OPTIONS.get(Path(text).suffix.lower()) if "\n" not in text else None
    if option is not None and os.path.isfile(text):
        raise EyelineError(
            f"{text} is a file: eyeline look {option} {quoted(text)}\n"
            "To look at these words themselves, give them with -, on standard input."
        )
    return text, named(text)


def recording_of(text: str, options: Mapping[str, object]) -> Seen | None:
    """What a file that `--save` wrote holds, where the text names one; no model goes with it."""
    named = text.endswith(".safetensors") and "\n" not in text
    if not named or (" " in text and not os.path.isfile(text)):
        return None
    check_none_with("A recording", options)
    from eyeline.recording import load

    return load(text)


def kind_of(run: Seen) -> str | None:
    """What a recording is of, "a picture" or "speech"; None for a text."""
    from eyeline.looking.pictures import patches
    from eyeline.looking.sounds import is_speech

    return "a picture" if patches(run) is not None else "speech" if is_speech(run) else None


def _piped() -> str:
    """All of standard input; one that stays silent is said to be waited for."""
    if sys.stdin is None:
        return ""
    waiting = threading.Timer(PATIENCE, _waiting)
    waiting.daemon = True
    if not sys.stdin.isatty():
        waiting.start()
    try:
        found = sys.stdin.buffer.read(1)
        waiting.cancel()
        found += sys.stdin.buffer.read()
        text = found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EyelineError(f"Standard input is not UTF-8: {_IN_A_FILE}.") from error
    except OSError as error:
        raise EyelineError(f"Standard input cannot be read: {error.strerror or error}.") from error
    finally:
        waiting.cancel()
    return io.StringIO(text, newline=None).read()  # line ends as in a file


def _waiting() -> None:
    print(
        "eyeline: waiting for a text on standard input;"
        ' to name one: eyeline look "a text", or eyeline look --file a.txt',
        file=sys.stderr,
        flush=True,
    )


def utf8(argument: str, name: str, remedy: str = _IN_A_FILE) -> str:
    """An argument as its bytes have it, whatever the locale took them for."""
    if not any("\udc80" <= char <= "\udcff" for char in argument):
        return argument
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError as error:
        raise EyelineError(f"{name} is not UTF-8: {remedy}.") from error


def check_writable(*paths: Path | None) -> None:
    """Refuse a path that cannot be written before the model runs, not after."""
    for path in paths:
        if path is None:
            continue
        made = path if os.path.exists(path) else path.parent
        if os.path.isdir(path) or not os.access(made, os.W_OK):
            raise EyelineError(f"{path} cannot be written: name a file in a folder that you own.")


def check_different(paths: dict[str, Path | None]) -> None:
    """Refuse one file for two things: the second would overwrite the first."""
    seen: dict[str, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise EyelineError(f"{other} and {option} name the same file, {path}: name two.")


def check_one_of(options: dict[str, bool]) -> None:
    """Refuse options that say different things."""
    if all(options.values()):
        raise EyelineError(f"{' and '.join(options)} were given: give one of them.")


def check_none_with(one: str, options: Mapping[str, object]) -> None:
    """Refuse options that say nothing beside another one."""
    for option, value in options.items():
        check_one_of({one: True, option: bool(value)})


def check_only_with(needed: str, options: dict[str, bool]) -> None:
    """Refuse options that mean nothing without another one."""
    for option, is_given in options.items():
        if is_given:
            raise EyelineError(f"{option} was given without {needed}: give both.")


def check_no_text(
    text: str | None, image: Path | None, audio: Path | None, **options: object
) -> None:
    """Refuse a text, or an option that goes with one, beside a picture or speech."""
    check_one_of({"--image": image is not None, "--audio": audio is not None})
    other = "--image" if image is not None else "--audio"
    for option, value in ({"A text": text} | options).items():
        if value:
            raise EyelineError(f"{option} and {other} were given: give one of them.")
