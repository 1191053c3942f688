"""Where a call of an attention stands in a text that a model reads in several steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from eyeline.masks import Mask


class Span(NamedTuple):
    """Some queries and some keys of a text, each by the position of the first and their number."""

    query: int
    queries: int
    key: int
    keys: int

    @property
    def offset(self) -> int | None:
        """The position of the first query among the keys, as masks take it.

        None where the last query stands at the last key, which they take for granted.
        """
        first = self.query - self.key
        return None if first == self.keys - self.queries else first

    def of_queries(self, vector: Tensor) -> Tensor:
        """The part of a vector over all tokens [..., T] that is of the queries."""
        return vector[..., self.query : self.query + self.queries]

    def of_keys(self, vector: Tensor) -> Tensor:
        """The part of a vector over all tokens [..., T] that is of the keys."""
        return vector[..., self.key : self.key + self.keys]


class Sight(NamedTuple):
    """Who may be seen in a span: a rule, bool bits, or None for everything.

    `real` bool [B, T] marks the tokens that are no padding, where queries and keys are the same.
    """

    mask: Mask | Tensor | None
    real: Tensor | None


@dataclass(frozen=True, eq=False)
class Place:
    """The positions of a call's first query and first key, and the rule of its mask elsewhere.

    `sight` gives the mask over any span of the text by the rule of this call's mask. `making` is
    equal where two rules are made alike; `plain` says that nothing but causality hid anything here,
    so that the rule of a later step is as good. `padding` bool [B, T] has False for the tokens of
    the text so far that are padding, None where none is.
    """

    query: int
    key: int
    sight: Callable[[Span], Sight]
    making: Any = None
    plain: bool = False
    padding: Tensor | None = None

    def goes_on(self, before: Place) -> bool:
        """Whether the rule here is also that of the steps before, which had other tokens yet."""
        if not before.plain and before.making != self.making:
            return False
        then, now = (_until(place.padding, self.query) for place in (before, self))
        if then is None or now is None:
            return then is now
        return torch.equal(then, now)


def _until(padding: Tensor | None, count: int) -> Tensor | None:
    """What of the first tokens is padding; None where none of them is."""
    if padding is None:
        return None
    first = pad(padding[:, :count], (0, max(count - padding.shape[-1], 0)))
    return None if bool(first.all()) else first
