"""Where a call of an attention stands in a text that a model reads in several steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from eyeline.masks import Mask


class Span(NamedTuple):
    """Some queries and some keys of a text, each by the position of the first and their number."""

    query: int
    queries: int
    key: int
    keys: int


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
    so that the rule of a later step is as good.
    """

    query: int
    key: int
    sight: Callable[[Span], Sight]
    making: Any = None
    plain: bool = False
