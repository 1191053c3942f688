"""The native module: whether it is here, and which of its tables runs.

A table is all kernels compiled for one instruction set. The processor is asked which it can run.
Environment variables, read once: ``EYELINE_NATIVE=require`` makes a missing module an error,
``EYELINE_NATIVE=off`` leaves it alone, ``EYELINE_NATIVE_TABLE`` names the table to take.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from types import ModuleType

import torch  # noqa: F401  (the module's threads are those of the OpenMP that torch brings)

from eyeline.errors import BackendError

REMEDY = "Install eyeline again where there is a C++ compiler (on Debian and Ubuntu: g++)."


def _load() -> tuple[ModuleType | None, str]:
    """The module, and why it is missing."""
    asked = os.environ.get("EYELINE_NATIVE", "")
    if asked == "off":
        return None, "the native module is switched off by EYELINE_NATIVE=off."
    try:
        return import_module("eyeline.backends._native"), ""
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        missing = f"the native module is {'missing' if absent else 'of no use'} ({error})."
        missing += f" {REMEDY}" if absent else ""
        if asked == "require":
            raise BackendError(f"EYELINE_NATIVE=require, and {missing}") from error
        return None, missing


module, missing = _load()


@cache
def tables() -> tuple[str, ...]:
    """The tables that this processor can run, the best first; () without the module.

    >>> from eyeline.backends import native
    >>> len(native.tables()) >= 1 or bool(native.missing)
    True
    """
    return () if module is None else tuple(module.tables())


@cache
def caches() -> tuple[int, ...]:
    """Bytes that each level of the processor's caches holds; () without the module.

    >>> from eyeline.backends import native
    >>> all(size > 0 for size in native.caches())
    True
    """
    return () if module is None else tuple(module.caches())


@cache
def chosen() -> str:
    """The table that runs unless a backend names one; "" without the module."""
    asked = os.environ.get("EYELINE_NATIVE_TABLE")
    if not asked or module is None:
        return "".join(tables()[:1])
    if asked not in tables():
        raise BackendError(
            f"EYELINE_NATIVE_TABLE={asked} names no table that runs here. "
            f"There are {', '.join(tables())}."
        )
    return asked
