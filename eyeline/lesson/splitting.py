"""A text as the lesson counts it: words, and each Chinese character by itself."""

from __future__ import annotations

import re
import unicodedata

from eyeline.errors import EyelineError

# Han characters with the marks that belong to one, kana; other runs of letters and digits; or one
# sign of any other kind.
_WORD = re.compile(r"[㐀-䶿一-鿿豈-﫿぀-ヿ\U00020000-\U0003ffff]|[^\W_]+(?:['’-][^\W_]+)*|[^\s]")
_HAN = re.compile(r"[㐀-䶿一-鿿豈-﫿぀-ヿ\U00020000-\U0003ffff]")
MOST = 64  # words: beyond this nobody reads a ledger


def split(text: str) -> tuple[str, ...]:
    """The words of a text; Chinese by character.

    Errors: EyelineError for an empty text or more than 64 words.

    >>> split("I love NLP"), split("我爱 NLP!")
    (('I', 'love', 'NLP'), ('我', '爱', 'NLP', '!'))
    """
    words: list[str] = []
    for found in _WORD.findall(unicodedata.normalize("NFC", text)):
        words += _apart(found)
    if not words:
        raise EyelineError("The text is empty: give a few words to explain attention with.")
    if len(words) > MOST:
        raise EyelineError(
            f"The text has {len(words)} words and a lesson shows at most {MOST}: give a sentence,"
            " or see a long text with `eyeline look`."
        )
    return tuple(words)


def _apart(run: str) -> list[str]:
    """A run of letters with every Chinese character in it by itself."""
    parts: list[str] = []
    at = 0
    for found in _HAN.finditer(run):
        parts += [run[at : found.start()], found[0]]
        at = found.end()
    return [part for part in (*parts, run[at:]) if part]


def distinct(words: tuple[str, ...]) -> tuple[int, ...]:
    """For each word the number of its vector: a word that stands twice has one vector.

    >>> distinct(("the", "cat", "the"))
    (0, 1, 0)
    """
    order = {word: place for place, word in enumerate(dict.fromkeys(words))}
    return tuple(order[word] for word in words)
