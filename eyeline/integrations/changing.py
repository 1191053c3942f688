"""Changes to what a model's attention computes, and how whoever looks on learns of them.

A change is asked of every call of its model: it gives the call as it is to be computed, and what
is done to the output. Whoever watches is told of the changed call, whichever of the two was begun
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:  # seen stands on this module
    from eyeline.seen.call import Call

Finish = Callable[[Tensor], Tensor]
Change = Callable[["Call", "Call"], tuple["Call", Finish | None]]
"""(the call as the model made it, as changed so far) → (the call to compute, what is done to out).

The second very call where nothing is to be computed otherwise; None where out stays as it is.
"""


@dataclass(frozen=True)
class Changing:
    """One change of one model, for as long as it stands among the active ones."""

    model: torch.nn.Module
    change: Change


_active: list[Changing] = []


@contextmanager
def active(model: torch.nn.Module, change: Change) -> Iterator[None]:
    """Let `changed` ask `change` of every call of `model`."""
    one = Changing(model, change)
    _active.append(one)
    try:
        yield
    finally:
        _active.remove(one)


def changed(model: torch.nn.Module, call: Call) -> tuple[Call, Finish | None]:
    """A call of `model` after every change of it, of what it is part of, and of its parts."""
    now: Call = call
    finishes: list[Finish] = []
    for one in _active:
        if _covers(one.model, model, call.name):
            now, finish = one.change(call, now)
            if finish is not None:
                finishes.append(finish)
    return now, _one_after_another(finishes) if finishes else None


def _one_after_another(finishes: list[Finish]) -> Finish:
    def finished(out: Tensor) -> Tensor:
        for finish in finishes:
            out = finish(out)
        return out

    return finished


def _covers(changing: torch.nn.Module, model: torch.nn.Module, name: str) -> bool:
    """Whether a module of `model`, by its name there, is part of the model that changes."""
    if any(module is model for module in changing.modules()):
        return True
    paths = (path for path, module in model.named_modules() if module is changing)
    return any(name == path or name.startswith((f"{path}.", f"{path}#")) for path in paths)
