"""Every obligation, on every backend, through both ways in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

import tests.owed  # noqa: F401  (fills the list)
from eyeline.backends import ops
from tests.conformance import OWED, TABLES, Obligation


@pytest.fixture(params=["direct", "operator"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Straight into the backend, or through the operators that torch.compile records."""
    way = ops.through_operators() if request.param == "operator" else contextlib.nullcontext()
    with way:
        yield request.param


@pytest.mark.parametrize("backend", ["reference", "tiled", "small tiles"])
@pytest.mark.parametrize("obligation", OWED, ids=str)
def test_owed(obligation: Obligation, backend: str, path: str) -> None:
    obligation(backend)


# What the native kernels compute themselves is tested always, on the table that runs here by
# itself; the rest is `tiled`'s, which every table passes among the slow tests.
BY_KERNELS = [
    o
    for o in OWED
    if o.check.__module__ in {"tests.owed.values", "tests.owed.edges", "tests.owed.questions"}
]


@pytest.mark.parametrize("backend", [cpu.name for cpu in TABLES[:1]])
@pytest.mark.parametrize("obligation", BY_KERNELS, ids=str)
def test_owed_by_kernels(obligation: Obligation, backend: str) -> None:
    obligation(backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [cpu.name for cpu in TABLES])
@pytest.mark.parametrize("obligation", OWED, ids=str)
def test_owed_by_every_table(obligation: Obligation, backend: str, path: str) -> None:
    obligation(backend)


def test_fresh_memory_is_nan() -> None:
    """The guard itself: a kernel that forgets to write an entry would show it."""
    some = torch.ones(3)
    fresh = [
        torch.empty(3),
        some.new_empty(3),
        torch.empty_like(some),
        torch.empty_strided((3,), (1,)),
        some.clone().resize_(5)[3:],
        torch.empty(0).resize_(3),
    ]
    assert all(x.isnan().all() for x in fresh)
