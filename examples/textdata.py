"""Real prose that every Python has, its held-out split, and what n-grams and xz make of it.

    python examples/textdata.py

The text is that of Python's own `help("topics")`, `pydoc_data.topics`: the language reference.
Topics quote each other, so a paragraph that was seen before is left out. One topic in ten is held
out for the figures, and one in ten for choosing settings; neither is trained on.
"""

import lzma
import math
from collections import Counter, defaultdict
from functools import lru_cache
from pydoc_data.topics import topics
from typing import NamedTuple

import torch

VALIDATION, HELD_OUT, OF = 0, 5, 10  # topics number 0, 10, 20, ... and 5, 15, 25, ...
QUOTED = 40  # paragraphs of as many characters are compared; "Note:" may well come twice


class Parts(NamedTuple):
    """The text in three: to learn from, to choose settings by, and to be asked about at the end."""

    training: str
    validation: str
    held_out: str


@lru_cache
def split():
    """The parts: whole topics, without paragraphs that came before."""
    seen, kept = set(), []
    for topic in topics.values():
        paragraphs = topic.strip("\n").split("\n\n")
        kept.append("\n\n".join(p for p in paragraphs if len(p) < QUOTED or words(p) not in seen))
        seen.update(map(words, paragraphs))
    training = [topic for i, topic in enumerate(kept) if i % OF not in (VALIDATION, HELD_OUT)]
    parts = (training, kept[VALIDATION::OF], kept[HELD_OUT::OF])
    return Parts(*("\n\n".join(part) for part in parts))


def words(paragraph):
    """The paragraph without its indentation and line ends, in which quotations differ."""
    return " ".join(paragraph.split())


@lru_cache
def alphabet():
    """The characters of the text, sorted: a character's number is its place here."""
    return "".join(sorted(set("".join(split()))))


def encode(text):
    """Numbers of the characters, int64 [T]."""
    number = {c: i for i, c in enumerate(alphabet())}
    return torch.tensor([number[c] for c in text])


def decode(ids):
    """The text of numbers [T]."""
    return "".join(alphabet()[i] for i in ids)


def windows(ids, size, count, generator):
    """`count` random pieces of a text, [count, size]."""
    starts = torch.randint(len(ids) - size + 1, (count, 1), generator=generator)
    return ids[starts + torch.arange(size)]


class NGram:
    """A back-off model: the next character from the n - 1 before it, and from fewer.

    A context that was seen `total` times, with `kinds` different characters after it, keeps the
    share kinds / (total + kinds) for the context that is one character shorter.
    Source: Witten and Bell 1991; Chen and Goodman 1999, section 2.
    """

    def __init__(self, n, counts):
        self.n, self.counts = n, counts

    def probability(self, context, character):
        """Of `character` after `context`."""
        found = 1 / len(alphabet())
        for length in range(min(self.n, len(context) + 1)):
            counts = self.counts.get(context[len(context) - length :])
            if counts is None:
                break
            kinds, total = len(counts), counts.total()
            found = (counts[character] + kinds * found) / (total + kinds)
        return found

    def bits(self, text):
        """Bits per character of a text."""
        each = (
            math.log2(self.probability(text[max(0, i - self.n + 1) : i], character))
            for i, character in enumerate(text)
        )
        return -sum(each) / len(text)

    def guess(self, context):
        """The character that is most probable after `context`."""
        for length in range(min(self.n - 1, len(context)), -1, -1):
            counts = self.counts.get(context[len(context) - length :])
            if counts is not None:
                return max(counts, key=lambda c: self.probability(context, c))
        raise ValueError("a model of no text")


def counted(text, longest):
    """What follows each context of up to `longest` characters, and how often."""
    counts = defaultdict(Counter)
    for i, character in enumerate(text):
        for length in range(min(longest, i) + 1):
            counts[text[i - length : i]][character] += 1
    return counts


@lru_cache
def counted_in_training():
    """The counts that the n-gram models of up to 5 characters share."""
    return counted(split().training, longest=4)


def ngram(n):
    """The n-gram model of the training text, n up to 5."""
    return NGram(n, counted_in_training())


def xz_bits():
    """Bits per character of the held-out text under xz: by itself, and after the training text."""
    training, _, held_out = split()

    def size(text):
        return 8 * len(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))

    alone, after = size(held_out), size(training + held_out) - size(training)
    return alone / len(held_out), after / len(held_out)


def main():
    """Print the split and the figures to beat."""
    training, validation, held_out = split()
    print(f"training {len(training):,} characters, held out {len(held_out):,}")
    print(f"kept for choosing settings {len(validation):,}")
    print(f"{len(alphabet())} different characters")
    for n in (3, 4, 5):
        print(f"{n}-gram {ngram(n).bits(held_out):.3f} bits per character")
    alone, after = xz_bits()
    print(f"xz     {alone:.3f} by itself, {after:.3f} after the training text")


if __name__ == "__main__":
    main()
