"""Changes to what a model's attention computes, and how whoever looks on learns of them.

A change is asked of every call of its model: it gives the call as it is to be computed, and what
is done to the output. Whoever watches is told of the changed call, whichever of the two was begun
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.calls import Call

Finish = Callable[[Tensor], Tensor]
Change = Callable[[Call, Call], tuple[Call, Finish | None]]
"""(the call as the model made it, as changed so far) → (the call to compute, what is done to out).

The name of the first is that in the model which changes. Given back are the second very call where
nothing is to be computed otherwise, and None where out stays as it is.
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


def any_active() -> bool:
    """Whether any change of any model stands."""
    return bool(_active)


def changed(model: torch.nn.Module, call: Call) -> tuple[Call, Finish | None]:
    """A call of `model` after every change of it, of what it is part of, and of its parts."""
    now: Call = call
    finishes: list[Finish] = []
    for one in _active:
        name = _name_in(one.model, model, call.name)
        if name is not None:
            now, finish = one.change(call.but(name=name), now)
            if finish is not None:
                finishes.append(finish)
    return now, _one_after_another(finishes) if finishes else None


def _one_after_another(finishes: list[Finish]) -> Finish:
    def finished(out: Tensor) -> Tensor:
        for finish in finishes:
            out = finish(out)
        return out

    return finished


def _name_in(changing: torch.nn.Module, model: torch.nn.Module, name: str) -> str | None:
    """The name in the model that changes of a call by its name in `model`; None outside of it.

    A call of the model itself, which has no path in it, is named by its class.
    """
    if changing is model:
        return name
    path, mark, number = name.partition("#")
    for above, module in changing.named_modules():
        if module is model:
            inner = "" if path == type(model).__name__ else path
            return ".".join(filter(None, (above, inner))) + mark + number
    for above, module in model.named_modules():
        if module is changing:
            if path == above:
                return type(changing).__name__ + mark + number
            if path.startswith(f"{above}."):
                return path[len(above) + 1 :] + mark + number
    return None
