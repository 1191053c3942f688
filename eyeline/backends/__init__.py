"""The backends by name, and which of them runs a problem."""

from __future__ import annotations

from eyeline.backends.base import Backend
from eyeline.backends.cpu import Cpu
from eyeline.backends.reference import Reference
from eyeline.backends.tiled import Tiled
from eyeline.errors import BackendError
from eyeline.problem import Problem

# In the order of preference: the first that has no reason against a problem runs it.
BACKENDS: tuple[Backend, ...] = (Cpu(), Tiled(), Reference())


def by_name(name: str) -> Backend:
    """The backend of this name."""
    for backend in BACKENDS:
        if backend.name == name:
            return backend
    known = ", ".join(repr(b.name) for b in BACKENDS)
    raise BackendError(f"There is no backend {name!r}. There are {known}.")


def choose(problem: Problem, asked: str | Backend | None) -> Backend:
    """The backend that was asked for, which never falls back, or the first without a reason."""
    if asked is None:
        return next(b for b in BACKENDS if not b.unsupported(problem))
    backend = asked if isinstance(asked, Backend) else by_name(asked)
    reasons = backend.unsupported(problem)
    if reasons:
        raise BackendError(f"The backend {backend.name!r} cannot run this: {'; '.join(reasons)}.")
    return backend
