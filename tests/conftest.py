"""What every test runs under: fresh memory is NaN, and both ways into a backend can be chosen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from eyeline.backends import native

# The machine may be busy: no example is too slow; and the same examples are drawn every time.
settings.register_profile("eyeline", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("eyeline")


@pytest.fixture(autouse=True)
def nan_memory() -> Iterator[None]:
    """Memory from torch.empty, new_empty, empty_like and resize_ is NaN (or a huge integer).

    So is the memory of the native kernels.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    if native.module is not None:
        native.module.poison(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        if native.module is not None:
            native.module.poison(False)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers whichever tests run before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that name a backend may name "small tiles", or one table of the native kernels."""
    if "backend" in request.fixturenames:
        from eyeline import backends
        from tests.conformance import SMALL_TILES, TABLES

        more = (SMALL_TILES, *TABLES)
        monkeypatch.setattr(backends, "BACKENDS", (*backends.BACKENDS, *more))
