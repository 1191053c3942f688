"""A text as a model reads it: tokens with their places in the text, and the words they make.

Tokenizers hand out byte pieces ("å¥½"), marks of their own ("Ġkeys", "##s") and special tokens.
Here every token is shown as the piece of *text* it stands for, found by its offsets, and pieces
are merged to the words a person sees. Any fast tokenizer will do: `tokenizers.Tokenizer` or the
fast tokenizers of transformers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eyeline.errors import ModelError

_JOINERS = "\u200d\ufe0e\ufe0f"  # zero width joiner and the two variation selectors
_BLANKS = {" ": "␣", "\n": "↵", "\r": "↵", "\t": "⇥", "\u3000": "␣", "\u00a0": "␣"}
# Written without spaces between words, so that each piece of the tokenizer stands for itself.
_UNSPACED = (
    (0x2E80, 0x303F),  # radicals and punctuation
    (0x3040, 0x30FF),  # hiragana, katakana
    (0x31C0, 0x31FF),  # strokes, katakana extensions
    (0x3400, 0x4DBF),  # unified ideographs A
    (0x4E00, 0x9FFF),  # unified ideographs
    (0xF900, 0xFAFF),  # compatibility ideographs
    (0x20000, 0x3FFFF),  # the ideographs beyond the first plane
)


@dataclass(frozen=True)
class Words:
    """The words of a text, each a range of tokens; together they cover every token once.

    `spans` holds (first token, one past the last token) per word.

    >>> tokens = assemble("two keys", ids=(0, 1, 2), raw=("two", "Ġke", "ys"),
    ...                   offsets=((0, 3), (4, 6), (6, 8)))
    >>> tokens.words().labels, tokens.words().spans
    (('two', 'keys'), ((0, 1), (1, 3)))
    """

    labels: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    unknown: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text.

    `pieces` are readable; where a character is spread over several tokens each is marked as its
    part, "好⟨1/3⟩". `offsets` are (start, stop) in characters of `text`, (0, 0) for tokens that
    stand for none. `special` marks [CLS], <|im_start|> and the like; `unknown` marks text for
    which the model has no token, so that it sees a stand-in.

    >>> tokens = assemble("好 a", ids=(7, 8, 9, 1), raw=("å", "¥", "½", "Ġa"),
    ...                   offsets=((0, 1), (0, 1), (0, 1), (1, 3)))
    >>> tokens.pieces
    ('好⟨1/3⟩', '好⟨2/3⟩', '好⟨3/3⟩', 'a')
    """

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    unknown: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def words(self) -> Words:
        """Merge the pieces to words.

        Words end at white space; punctuation and symbols are words of their own (an apostrophe
        inside a word and a point inside a number are not); in scripts without spaces each piece
        of the tokenizer is a word; so is each special token. Pieces of one character are never
        parted.
        """
        starts = [i for i in range(len(self)) if i == 0 or self._word_starts(i)]
        spans = tuple(zip(starts, [*starts, len(self)][1:], strict=True))
        return Words(
            labels=tuple(self._label(first, stop) for first, stop in spans),
            spans=spans,
            special=tuple(self.special[first] for first, _ in spans),
            unknown=tuple(any(self.unknown[first:stop]) for first, stop in spans),
        )

    def _word_starts(self, i: int) -> bool:
        if self.special[i] or self.special[i - 1]:
            return True
        start, stop = self.offsets[i]
        before, end = self.offsets[i - 1]
        if before == end or start == stop:  # a piece without text belongs to what follows it
            return before != end
        if start < end:  # part of a character that began before
            return False
        left, right = _core(self.text, before, end), _core(self.text, start, stop)
        if right is None:  # line ends and indents join each other, a space what follows it
            return left is not None or self.text[start:stop] == " "
        if left is None:
            return self.text[before:end] != " "
        if any(char.isspace() for char in self.text[left[1] : right[0]]):
            return True
        return not _joined(self.text, left[1] - 1, right[0])

    def _label(self, first: int, stop: int) -> str:
        ranges = [r for r in self.offsets[first:stop] if r[0] < r[1]]
        if self.special[first] or not ranges:
            return "".join(self.pieces[first:stop])
        return _readable(self.text, min(r[0] for r in ranges), max(r[1] for r in ranges))


def assemble(
    text: str,
    ids: Iterable[int],
    raw: Sequence[str],
    offsets: Iterable[tuple[int, int]],
    special: Iterable[bool] | None = None,
    unknown: Iterable[bool] | None = None,
) -> Tokens:
    """`Tokens` from what a tokenizer returned: its own strings `raw`, and offsets into `text`.

    >>> assemble("a\\nb", (1, 2, 3), ("a", "Ċ", "b"), ((0, 1), (1, 2), (2, 3))).pieces
    ('a', '↵', 'b')
    """
    places = tuple((int(start), int(stop)) for start, stop in offsets)
    marks = tuple(special) if special is not None else (False,) * len(raw)
    owners = _owners(places, marks)
    pieces = tuple(
        _raw_piece(token) if mark or start == stop else _piece(text, index, start, stop, owners)
        for index, (token, (start, stop), mark) in enumerate(zip(raw, places, marks, strict=True))
    )
    return Tokens(
        text=text,
        ids=tuple(int(i) for i in ids),
        pieces=pieces,
        offsets=places,
        special=marks,
        unknown=tuple(unknown) if unknown is not None else (False,) * len(raw),
    )


def encode(tokenizer: Any, text: str) -> Tokens:
    """Tokenize `text` whole (no truncation, no padding) with any fast tokenizer.

    `tokenizer` is a `tokenizers.Tokenizer` or a fast tokenizer of transformers; one that cannot
    tell offsets raises ModelError. The special tokens that the model expects are added; one that
    the text spells out, "[CLS]", stays text.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> tokenizer = Tokenizer(models.WordLevel({"look": 0, "here": 1, "?": 2}, unk_token="?"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> encode(tokenizer, "look there").unknown
    (False, True)
    """
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(fast, "get_added_tokens_decoder"):
        raise ModelError(
            "eyeline finds words by the offsets of a fast tokenizer, and"
            f" {type(tokenizer).__name__} has none. Load the model with a fast tokenizer."
        )
    cut, pad, spelled = fast.truncation, fast.padding, fast.encode_special_tokens
    fast.no_truncation()
    fast.no_padding()
    fast.encode_special_tokens = True  # what the text spells out is text
    try:
        encoding = fast.encode(text)
    finally:  # the tokenizer is the caller's
        fast.encode_special_tokens = spelled
        if cut is not None:
            fast.enable_truncation(**cut)
        if pad is not None:
            fast.enable_padding(**pad)
    unknown_id = _unknown_id(tokenizer, fast)
    named = {i for i, token in fast.get_added_tokens_decoder().items() if token.special}
    special, unknown = [], []
    for i, mark in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
        stand_in = i == unknown_id and not mark
        unknown.append(stand_in)
        special.append(bool(mark) or (i in named and not stand_in))
    return assemble(text, encoding.ids, encoding.tokens, encoding.offsets, special, unknown)


def from_ids(tokenizer: Any, ids: Sequence[int], before: Tokens | None = None) -> Tokens:
    """Tokens that a model wrote, in place of a text: their text is what they decode to.

    `before` are tokens that come first, those of a prompt. A character whose bytes several tokens
    carry belongs to each of them.

    >>> from tokenizers import Tokenizer, decoders, models
    >>> tokenizer = Tokenizer(models.BPE({"Ġkey": 0, "s": 1, "å": 2, "¥": 3, "½": 4}, []))
    >>> tokenizer.decoder = decoders.ByteLevel()
    >>> written = from_ids(tokenizer, [0, 1, 2, 3, 4])
    >>> written.text, written.pieces
    (' keys好', ('key', 's', '好⟨1/3⟩', '好⟨2/3⟩', '好⟨3/3⟩'))
    """
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    named = {i for i, token in fast.get_added_tokens_decoder().items() if token.special}
    # The first token of a text may be decoded without its space: one before it keeps that.
    plain = [i for i in before.ids if i not in named][-1:] if before else []
    known = len(fast.decode(plain, skip_special_tokens=False))
    text, offsets = "", []
    for i in ids:
        if i in named:
            offsets.append((0, 0))
            continue
        plain.append(i)
        # what is not yet a whole character decodes to the replacement character
        start = len(text.rstrip("\ufffd"))
        text = fast.decode(plain, skip_special_tokens=False)[known:]
        offsets.append((start, len(text)))
    if before is not None:
        first = len(before.text)
        offsets = [(a + first, b + first) if a < b else (a, b) for a, b in offsets]
    raw = [fast.id_to_token(i) or "" for i in ids]
    special = [i in named for i in ids]
    if before is None:
        return assemble(text, ids, raw, offsets, special)
    written = assemble(before.text + text, ids, raw, offsets, special)
    return Tokens(
        text=written.text,
        ids=before.ids + written.ids,
        pieces=before.pieces + written.pieces,
        offsets=before.offsets + written.offsets,
        special=before.special + written.special,
        unknown=before.unknown + written.unknown,
    )


def _unknown_id(tokenizer: Any, fast: Any) -> int | None:
    token = getattr(fast.model, "unk_token", None) or getattr(tokenizer, "unk_token", None)
    candidates = [token] if token else ["<unk>", "[UNK]"]
    return next((i for i in map(fast.token_to_id, candidates) if i is not None), None)


def _owners(places: Sequence[tuple[int, int]], special: Sequence[bool]) -> dict[int, list[int]]:
    """Which tokens share each character, for the characters that more than one token touches."""
    owners: dict[int, list[int]] = {}
    for index in range(1, len(places)):
        (before, end), (start, stop) = places[index - 1], places[index]
        if special[index] or special[index - 1]:
            continue
        for char in range(max(start, before), min(stop, end)):
            holders = owners.setdefault(char, [index - 1])
            holders.append(index)
    return owners


def _piece(text: str, index: int, start: int, stop: int, owners: dict[int, list[int]]) -> str:
    core = _core(text, start, stop)
    if core is None:
        return _blank(text[start:stop])
    parts = []
    for char in range(*core):
        parts.append(_BLANKS.get(text[char], text[char]))
        if char in owners:
            parts.append(f"⟨{owners[char].index(index) + 1}/{len(owners[char])}⟩")
    return "".join(parts)


def _readable(text: str, start: int, stop: int) -> str:
    core = _core(text, start, stop)
    return _blank(text[start:stop] if core is None else text[slice(*core)])


def _blank(text: str) -> str:
    return "".join(_BLANKS.get(char, char) for char in text)


def _raw_piece(token: str) -> str:
    """A token that stands for no text, without the space marks of byte-level and metaspace."""
    return token.replace("Ġ", "␣").replace("▁", "␣")


def _core(text: str, start: int, stop: int) -> tuple[int, int] | None:
    """The range without white space at its ends; None where nothing else is in it."""
    while start < stop and text[start].isspace():
        start += 1
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    return (start, stop) if start < stop else None


def _joined(text: str, left: int, right: int) -> bool:
    """Whether the characters at `left` and `right`, which follow each other, share a word."""
    a, b = _kind(text[left]), _kind(text[right])
    if b == "mark" or text[left] == "\u200d":
        return True
    if a == "word" and b == "word":
        return True
    if a == "sign" and b == "sign":
        return text[left] == text[right]  # "..." and "!!" are one sign
    if a == "word" and b == "sign":
        return _inside_word(text, right)
    return a == "sign" and b == "word" and _inside_word(text, left)


def _inside_word(text: str, at: int) -> bool:
    """An apostrophe between letters or a point between digits."""
    if not 0 < at < len(text) - 1:
        return False
    if text[at] in "'’":
        return text[at - 1].isalnum() and text[at + 1].isalnum()
    return text[at] in ".," and text[at - 1].isdigit() and text[at + 1].isdigit()


def _kind(char: str) -> str:
    """One of word, unspaced, mark (belongs to the character before it) and sign."""
    if char in _JOINERS or unicodedata.category(char) in ("Mn", "Mc", "Me"):
        return "mark"
    if 0x1F3FB <= ord(char) <= 0x1F3FF:  # skin tones follow their emoji
        return "mark"
    if any(first <= ord(char) <= last for first, last in _UNSPACED):
        return "unspaced"
    return "word" if char.isalnum() or char == "_" else "sign"
