"""A text by what is shown of it, its words or pieces, as vectors over its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.tokens import Tokens, Words


@dataclass(frozen=True)
class Units:
    """What is shown, words or pieces, in the form that readings take: a few vectors over tokens.

    Unit u is the tokens start[t] to stop[t] - 1 of any token t in it.
    """

    words: Words
    sink: tuple[bool, ...]  # per unit: special, or first of a causal model
    unit: Tensor  # [T] which unit a token is in
    share: Tensor  # [T] what a token's row counts for in a mean over words
    is_sink: Tensor  # [T]
    start: Tensor  # [T] own unit
    stop: Tensor
    near_start: Tensor  # [T] own unit with its neighbours
    near_stop: Tensor

    @classmethod
    def of(cls, tokens: Tokens, causal: bool, pieces: bool) -> Units:
        """The words of a text, or its pieces, for a model that is causal or not."""
        words = _pieces(tokens) if pieces else tokens.words()
        count = len(words.spans)
        sink = list(words.special)
        if causal and not sink[0]:
            sink[0] = True
        sizes = torch.tensor([stop - start for start, stop in words.spans])
        unit = torch.repeat_interleave(torch.arange(count), sizes)
        # a text of one word has no other rows to count
        counted = torch.tensor([not s for s in (sink if not all(sink) else words.special)])
        if not counted.any():
            counted = torch.ones_like(counted)
        bounds = torch.tensor(words.spans)
        return cls(
            words=words,
            sink=tuple(sink),
            unit=unit,
            share=(counted / (counted.sum() * sizes))[unit].float(),
            is_sink=torch.tensor(sink)[unit],
            start=bounds[:, 0][unit],
            stop=bounds[:, 1][unit],
            near_start=bounds[:, 0][(unit - 1).clamp(min=0)],
            near_stop=bounds[:, 1][(unit + 1).clamp(max=count - 1)],
        )

    def __len__(self) -> int:
        return len(self.words.spans)

    def span(self, unit: int) -> tuple[int, int]:
        """The tokens (first, one past the last) of a unit."""
        return self.words.spans[unit]


def _pieces(tokens: Tokens) -> Words:
    return Words(
        labels=tokens.pieces,
        spans=tuple((i, i + 1) for i in range(len(tokens.ids))),
        special=tokens.special,
        unknown=tokens.unknown,
    )
