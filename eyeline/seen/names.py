"""How layers and heads are named: "L3" is layer 3, "L3H1" its head 1."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from eyeline.lazy import Weights

_NAME = re.compile(r"L(\d+)(?:H(\d+))?")

W = TypeVar("W", bound=Weights)


def parsed(name: Any) -> tuple[int, int | None] | None:
    """(layer, head) of a name, the head None of a whole layer; None for what is no such name.

    >>> parsed("L3H1"), parsed("L3"), parsed("encoder.layer.3")
    ((3, 1), (3, None), None)
    """
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        return None
    layer, head = found.groups()
    return int(layer), None if head is None else int(head)


def one_head(weights: W, head: int) -> W:
    """One head of [B, H, Tq, Tk]: [Tq, Tk] for a batch of one, else [B, Tq, Tk]."""
    chosen: W = weights[0, head] if weights.shape[0] == 1 else weights[:, head]
    return chosen
