"""What a run saw over words, or any spans, in place of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from eyeline.errors import ArgumentError, ShapeError
from eyeline.lazy import Weights
from eyeline.lazy.spanned import SpannedWeights
from eyeline.spans import weights_over
from eyeline.tokens import Tokens, Words

if TYPE_CHECKING:
    from eyeline.seen.result import Seen


class SeenWords:
    """A run's weights over words: `words[3]` [B, H, words, words], `words["L3H1"]`, lazily.

    Made by `seen.words()`. Columns are added and rows averaged, so that a row sums to what it did.
    `spans` are those of the side that has as many tokens as the text; another side, such as the
    encoder's of cross-attention, stays in tokens unless `cols` are given. `labels` are the words,
    None for spans without.
    """

    def __init__(self, seen: Seen, spans: Any = None, cols: Any = None) -> None:
        spans = seen.tokens if spans is None else spans
        if spans is None:
            raise ArgumentError(
                "seen.words() needs to know the tokens: set seen.tokens = loaded.tokens(text), or "
                "give spans, as seen.words([(0, 1), (1, 4)])."
            )
        if isinstance(spans, Sequence) and any(isinstance(piece, str) for piece in spans):
            raise ArgumentError(
                "seen.words() cannot tell from a list of pieces which of them make a word: set "
                "seen.tokens to what loaded.tokens(text) gives, or give spans, as "
                "seen.words([(0, 1), (1, 4)])."
            )
        self._seen = seen
        self._size = len(spans) if isinstance(spans, Tokens) else None
        self.spans = spans.words() if isinstance(spans, Tokens) else spans
        self.cols = cols.words() if isinstance(cols, Tokens) else cols

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The words themselves, where they are known."""
        return self.spans.labels if isinstance(self.spans, Words) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each call's module, in call order."""
        return self._seen.names

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[SpannedWeights]:
        return (self[layer] for layer in range(len(self)))

    def __getitem__(self, key: int | str) -> SpannedWeights:
        weights: Weights = self._seen[key]
        Tq, Tk = weights.shape[-2:]
        size = self._size if self._size is not None else self._covered(Tq)
        rows = self.spans if Tq == size else None
        cols = self.cols if self.cols is not None else self.spans if Tk == size else None
        if rows is None and cols is None:
            raise ShapeError(
                f"The spans are of {size} tokens, and layer {key!r} has {Tq} queries and {Tk} keys:"
                " give the tokens of this run."
            )
        return weights_over(weights, rows, cols)

    def __repr__(self) -> str:
        return f"{len(self.spans)} words of {self._seen!r}"

    def _covered(self, Tq: int) -> int:
        """How many tokens the spans are of: what words cover, else the queries' side."""
        return self.spans.spans[-1][1] if isinstance(self.spans, Words) and len(self.spans) else Tq
