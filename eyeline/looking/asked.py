"""What a look is asked for, checked: a model, whole numbers, a layer and a head that are there."""

from __future__ import annotations

import operator
import os

from eyeline.errors import ArgumentError, ModelError
from eyeline.models import LoadedModel, Progress, known, load
from eyeline.seen import Seen

Model = str | os.PathLike[str] | LoadedModel
"""A model by name, folder or Hub id, or what `eyeline.models.load` returned."""


def loaded(model: Model, download: bool = False, progress: Progress | None = None) -> LoadedModel:
    """The model itself."""
    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, (str, os.PathLike)):
        return load(model, download=download, progress=progress)
    raise ModelError(
        f"model is {kind(model)}, and look takes a name or what eyeline.models.load returned."
    )


def named(seen: Seen) -> tuple[str, str]:
    """The name of the model that a run or a recording is of, and its title."""
    name = seen.model or "a model"
    return name, next((model.title for model in known() if model.name == name), name)


def whole(name: str, value: object, wanted: str = "a whole number") -> int:
    """A whole number, whatever type has it; ArgumentError names what is `wanted` in its place."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ArgumentError(f"{name} is {value!r}, {kind(value)}: give {wanted}.")


def within(name: str, asked: int, count: int) -> int:
    """A layer or a head, counted from 0, that is one of `count`."""
    if not 0 <= asked < count:
        raise ArgumentError(f"There is no {name} {asked}: the {name}s are 0 to {count - 1}.")
    return asked


def kind(value: object) -> str:
    """What a value is, as an error says it."""
    return "None" if value is None else f"of type {type(value).__name__}"
