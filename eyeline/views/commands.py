"""The commands that a screen names, so that each can be typed as it stands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from eyeline.glossary import Phrases
from eyeline.looking.data import DEFAULT_TEXT, DEFAULT_TOKEN
from eyeline.views.labels import printable, shorten

if TYPE_CHECKING:
    from eyeline.looking.data import Look

_LONGEST = 400  # characters of a text that are repeated in a command


def next_commands(look: Look, base: str, lang: str | None = None) -> list[tuple[str, str]]:
    """(command, what it shows) for a look: each can be run as it stands.

    `base` starts eyeline on the same text: "eyeline look", and the text as it was named.
    """
    say = Phrases(lang or look.lang)
    written = f" --generate {look.generate}" if look.generate else ""
    base += written
    same = base if look.model == "minilm" else f"{base} --model {shlex.quote(look.model)}"
    token = look.fan.word if look.fan else _telling(look)
    asked = "" if token is None else f" --token {_argument(look, token)}"
    found: list[tuple[str, str]] = []
    if look.fan is None:
        if token is not None:
            name = shorten(look.words[token], 20)
            found.append((same + asked, say("next token", token=name)))
        if look.by != "entropy":
            found.append((f"{same} --by entropy", say("next sharp")))
        asked = ""
    else:
        drawn = (look.layer, look.head)
        others = [pair for pair in look.pairs if (pair.layer, pair.head) != drawn]
        for other in others[:1]:
            place = f" --layer {other.layer} --head {other.head}"
            found.append((same + asked + place, say("next head")))
        found.append((f"{same}{asked} --svg look.svg", say("next figure")))
    for model in () if look.generate else look.readers[:1]:
        found.append((f"{base} --model {model}", say("next model", model=model)))
    found.append((f"{same}{asked} --html look.html", say("next page")))
    return found


def quoted(text: str) -> str:
    """A text as one argument of a command line, in double quotes where every shell takes them.

    >>> quoted("I love NLP"), quoted("what is $5?"), quoted("one\\ntwo")
    ('"I love NLP"', "'what is $5?'", "$'one\\\\ntwo'")
    """
    if printable(text) != text:  # no raw control characters on the screen
        return f"$'{''.join(map(_escaped, text))}'"
    return f'"{text}"' if not any(char in text for char in '"\\$`!%') else shlex.quote(text)


def named(text: str) -> str:
    """A text as `eyeline look` takes it: itself if it is short, nothing for the default text."""
    if text == DEFAULT_TEXT:
        return ""
    return quoted(text) if len(text) <= _LONGEST else "-"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if printable(char) == char:
        return char
    return {"\n": "\\n", "\t": "\\t"}.get(char, f"\\U{ord(char):08x}")


def _argument(look: Look, unit: int) -> str:
    """A word as --token takes it: itself if that is plain and its first place, else its index."""
    word = look.words[unit]
    return word if word.isalpha() and look.words.index(word) == unit else str(unit)


def _telling(look: Look) -> int | None:
    """The word whose look at a word further off is the strongest in the drawn head."""
    if look.text == DEFAULT_TEXT and DEFAULT_TOKEN in look.words:
        return look.words.index(DEFAULT_TOKEN)
    far = [
        (glance.at[0].weight, glance.word)
        for glance in look.glances
        if glance.at and abs(glance.at[0].word - glance.word) > 1
    ]
    return max(far)[1] if far else None
