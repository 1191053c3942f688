"""Biases by relative place against the same numbers written out per (query, key)."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline.biases import RelativeBias, alibi, alibi_slopes, relative
from eyeline.errors import ArgumentError, DtypeError, ShapeError

CPU = torch.device("cpu")
Size = tuple[int, int, int, "int | None"]  # Tq, Tk, heads, offset

sizes = st.tuples(
    st.integers(0, 9), st.integers(0, 9), st.integers(1, 3), st.none() | st.integers(-12, 12)
)


def written_out(bias: RelativeBias, size: Size, dtype: torch.dtype = torch.float64) -> Tensor:
    """[H|1, Tq, Tk], looked up in the lowered vector."""
    Tq, Tk, heads, offset = size
    vector, origin = bias.lower(Tq, Tk, heads, dtype, CPU, offset)
    assert vector.shape[1] == max(Tq + Tk - 1, 0)
    assert vector.dtype == dtype
    index = distance(size) + origin
    assert bool(((index >= 0) & (index < max(vector.shape[1], 1))).all())
    return vector[:, index]


def distance(size: Size) -> Tensor:
    """[Tq, Tk]: j - position(i)."""
    Tq, Tk, _, offset = size
    position = torch.arange(Tq) + (Tk - Tq if offset is None else offset)
    return torch.arange(Tk) - position[:, None]


@settings(max_examples=60)
@given(sizes, st.booleans())
def test_alibi_is_minus_slope_times_distance(size, per_head):
    slopes = torch.linspace(0.1, 2, size[2], dtype=torch.float64) if per_head else 0.5
    expected = -torch.as_tensor(slopes).view(-1, 1, 1) * distance(size).abs()
    assert torch.equal(written_out(alibi(slopes), size), expected + 0)


@settings(max_examples=60)
@given(sizes, st.integers(1, 8), st.none() | st.integers(-3, 12), st.booleans())
def test_relative_looks_up_its_table(size, n, origin, per_head):
    table = torch.randn(size[2], n, dtype=torch.float64) if per_head else torch.randn(n).double()
    bias = relative(table, origin)
    entry = (distance(size) + ((n - 1) // 2 if origin is None else origin)).clamp(0, n - 1)
    assert torch.equal(written_out(bias, size), table.view(-1, n)[:, entry])


@pytest.mark.parametrize("origin", [-(2**62), 2**62])
def test_an_origin_far_away_takes_the_end_of_the_table(origin):
    found = written_out(relative(torch.arange(3.0), origin), (4, 5, 1, None))
    assert bool((found == (2 if origin > 0 else 0)).all())


def test_memory_is_linear_in_the_length():
    vector, origin = alibi(torch.ones(8)).lower(100_000, 100_000, 8, torch.float32, CPU)
    assert vector.shape == (8, 199_999)
    assert origin == 99_999
    assert vector[0, origin - 70_000] == -70_000


def test_low_precision_is_rounded_once():
    vector, origin = alibi(torch.tensor([0.7])).lower(1000, 1000, 1, torch.bfloat16, CPU)
    exact = -torch.tensor(0.7) * torch.arange(-999, 1000).abs()
    assert torch.equal(vector[0], exact.bfloat16())
    assert origin == 999


def test_gradients_reach_slopes_and_table():
    def lowered(make):
        return lambda values: make(values).lower(3, 5, 2, torch.float64, CPU)[0]

    slopes = torch.rand(2, dtype=torch.float64, requires_grad=True)
    table = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    shared = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lowered(alibi), slopes)
    assert torch.autograd.gradcheck(lowered(relative), table)
    assert torch.autograd.gradcheck(lowered(relative), shared)


def test_slopes_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(16)[:2].tolist() == pytest.approx([2**-0.5, 0.5])
    # 12 heads: those of 8, then every second one of 16
    twelve = [2.0**-n for n in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12).tolist() == pytest.approx(twelve)
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(0).shape == (0,)


def test_traceable():
    def vector(slopes, table):
        a, origin = alibi(slopes).lower(4, 6, 2, torch.float32, CPU)
        b, _ = relative(table).lower(4, 6, 2, torch.float32, CPU, offset=1)
        return a + b, origin

    arguments = torch.rand(2), torch.randn(5)
    got = torch.compile(vector, fullgraph=True, backend="eager")(*arguments)
    expected = vector(*arguments)
    assert torch.equal(got[0], expected[0])
    assert got[1] == expected[1] == 5


def test_copies_are_the_same_bias():
    for bias in (alibi(torch.rand(3)), alibi(0.5), relative(torch.randn(3, 5), origin=4)):
        size = (4, 5, 3, None)
        for twin in (copy.deepcopy(bias), pickle.loads(pickle.dumps(bias))):
            assert torch.equal(written_out(twin, size), written_out(bias, size))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: alibi(torch.ones(3)).lower(2, 2, 4, torch.float32, CPU),
            ShapeError,
            "3 .* Hq = 4",
        ),
        (
            lambda: relative(torch.ones(3, 2)).lower(2, 2, 1, torch.float32, CPU),
            ShapeError,
            "Hq = 1",
        ),
        (lambda: alibi(torch.ones(3, 1)), ShapeError, r"\[Hq\], not \[3, 1\]"),
        (lambda: alibi(torch.arange(3)), DtypeError, "not torch.int64"),
        (lambda: alibi("steep"), DtypeError, "not str"),
        (lambda: relative(torch.ones(2, 0)), ShapeError, r"not \[2, 0\]"),
        (lambda: relative(torch.ones(1, 2, 3)), ShapeError, r"not \[1, 2, 3\]"),
        (lambda: relative(torch.arange(3)), DtypeError, "not torch.int64"),
        (lambda: relative([0.0, 1.0]), DtypeError, "not list"),
        (lambda: alibi_slopes(-1), ShapeError, "not -1"),
        (lambda: alibi_slopes(2.5), DtypeError, r"alibi_slopes\(heads\) takes an int, not float"),
        (lambda: alibi(True), DtypeError, "not bool"),
        (lambda: relative(torch.ones(3), 1.5), DtypeError, r"relative\(origin\) .* not float"),
        (lambda: relative(torch.ones(3), 2**70), ArgumentError, r"between -2\*\*62 and 2\*\*62"),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()
