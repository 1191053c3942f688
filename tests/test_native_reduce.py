"""Readings by the native pass, beyond what every backend owes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import eyeline
from eyeline import masks, readings
from eyeline.backends import native
from eyeline.backends.base import State
from eyeline.backends.cpu import Cpu
from eyeline.backends.questions import answered
from eyeline.backends.reductions import Entries, TopKeys, View, WeightedColumns
from eyeline.backends.tiled import Tiled
from tests.conformance import inputs
from tests.test_native import POISON, every_table, run

NATIVE = [
    eyeline.entropy,
    eyeline.received,
    partial(eyeline.received, mean=True),
    readings.max_score,
    partial(eyeline.top, k=5),
    partial(readings.pooled, rows=7, cols=33),
    partial(readings.diagonal, offset=-1),
]


@readings.reading
def sharpest(weights: Any) -> Any:
    """A reading that the native pass does not know."""
    values = yield readings.RowTiles(lambda tile: tile.weights.amax(-1))
    return readings.Reading(values, weights.axes[:-1], "weight")


class NotAsked(Tiled):
    """In the place of `tiled`: nobody may come here."""

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the native pass was to answer this")


def same(found: list[readings.Reading], expected: list[readings.Reading]) -> None:
    """To the last bit."""
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.values, theirs.values, rtol=0, atol=0, equal_nan=True)
        assert (mine.indices is None) == (theirs.indices is None)
        if mine.indices is not None:
            assert torch.equal(mine.indices, theirs.indices)


TQ, TK = 500, 1100  # more than one block of keys; two key heads' rows make several chunks


def holed() -> Tensor:
    """A bias that hides a third; the same in each process, so that no two scores come too close."""
    chance = torch.Generator().manual_seed(2)
    hidden = torch.rand(TQ, TK, generator=chance) < 0.3
    return torch.randn(TQ, TK, generator=chance).masked_fill_(hidden, -torch.inf)


KINDS = {
    "full": {},
    "causal": {"mask": eyeline.causal()},
    "window": {"mask": eyeline.window(100) & eyeline.causal()},
    "padding": {"mask": eyeline.padding(torch.tensor([7, 1000]))},
    "documents": {"mask": masks.documents(torch.arange(TK) // 90, torch.arange(TQ) // 90)},
    "interleaved": {"mask": masks.documents(torch.arange(TK) % 3, torch.arange(TQ) % 3)},
    "table": {"mask": torch.rand(TQ, TK, generator=torch.Generator().manual_seed(1)) < 0.02},
    "bias": {"bias": holed()},
    "alibi": {"bias": eyeline.biases.alibi(4)},
    "softcap": {"softcap": 2.0, "mask": eyeline.causal()},
    "sinks": {"sinks": torch.tensor([0.0, 3.0, -2.0, 9.0]), "mask": eyeline.causal()},
}


@every_table
@pytest.mark.parametrize("kind", KINDS)
def test_every_reading_is_the_definitions(cpu, kind):
    q, k, v = inputs(TQ, TK, Hq=4, Hk=2, D=24)
    native_only = Cpu(table=cpu.table, rest=NotAsked())
    _, w = eyeline.attention(q, k, v, **KINDS[kind], backend=native_only)
    exact = eyeline.weights(q.double(), k.double(), **KINDS[kind], backend="tiled")
    found, expected = eyeline.read(w, *NATIVE), eyeline.read(exact, *NATIVE)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.values.double(), theirs.values, rtol=2e-5, atol=2e-6)
        if mine.indices is not None:
            assert torch.equal(mine.indices, theirs.indices)


@every_table
@pytest.mark.parametrize(("rows", "keys"), [(5, 900), (700, 900), (24, 8192)])
def test_with_and_without_a_forward_the_same_bits(cpu, rows, keys):
    q, k, v = inputs(rows, keys, Hq=2, Hk=1, D=33)
    _, after = eyeline.attention(q, k, v, eyeline.causal(), backend=cpu)
    alone = eyeline.weights(q, k, eyeline.causal(), backend=cpu)
    first = eyeline.read(alone, *NATIVE)
    same(first, eyeline.read(after, *NATIVE))
    same(first, eyeline.read(alone, *NATIVE))  # whose state is known by now
    assert alone._body.state is not None
    for question, expected in zip(NATIVE, first, strict=True):
        same(eyeline.read(after, question), [expected])


@every_table
def test_threads_move_no_bit(cpu):
    q, k, v = inputs(900, 1100, Hq=4, Hk=2, D=40, lead=(1,))
    _, w = eyeline.attention(q, k, v, eyeline.causal(), backend=cpu)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            found.append(eyeline.read(w, *NATIVE))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        same(other, found[0])


@every_table
@pytest.mark.parametrize("size", [30.0, 3000.0, 50000.0])
def test_large_scores(cpu, size):
    """Rows add up to 1 and columns to the rows, however large the scores are."""
    q, k, v = inputs(400, 700, lead=(1,), D=64)
    q = q * (size / (q @ k.mT / 8).abs().max())
    _, w = eyeline.attention(q, k, v, backend=cpu)
    entropy, received, top = eyeline.read(w, eyeline.entropy, eyeline.received, eyeline.top)
    total = received.values.double().sum(-1)
    torch.testing.assert_close(total, torch.full_like(total, 400), rtol=1e-6, atol=0)
    # Scores as float32 has them, which is what both can know.
    scores = (q @ k.mT * 0.125).double()
    exact = torch.distributions.Categorical(logits=scores).entropy()
    plain = torch.special.entr((q @ k.mT * 0.125).softmax(-1)).sum(-1).double()
    worse = (plain - torch.distributions.Categorical(logits=scores).entropy()).abs().max()
    rounding = size * torch.finfo(torch.float32).eps
    assert (entropy.values.double() - exact).abs().max() < 4 * worse + 64 * rounding
    assert (entropy.values >= 0).all()
    assert (top.values.sum(-1) < 1 + 1e-6).all()


@every_table
@pytest.mark.parametrize("size", [1e8, 1e9, 3e9, 1e12, 1e30])
@pytest.mark.parametrize("rule", ["full", "causal", "bias"])
def test_scores_at_which_logits_are_coarse(cpu, size, rule):
    """Each product is exact, so that float64 knows what a row sees: the largest, or its equals."""
    steps = torch.randint(-2000, 2000, (700, 1), generator=torch.Generator().manual_seed(3))
    q, k = torch.tensor([1.0, -3.0]).repeat(200)[:, None], steps.float() * (size / 2000)
    v = torch.randn(700, 8)
    options: dict[str, Any] = {"mask": eyeline.causal()} if rule == "causal" else {}
    if rule == "bias":
        options["bias"] = torch.zeros(400, 700)
    exact_out, exact = eyeline.attention(
        q.double(), k.double(), v.double(), **options, scale=0.7, backend="reference"
    )
    out, w = eyeline.attention(q, k, v, **options, scale=0.7, backend=cpu)
    torch.testing.assert_close(out.double(), exact_out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(w.to_dense().double(), exact.to_dense(), rtol=1e-6, atol=1e-7)
    asked = [eyeline.entropy, eyeline.received, partial(eyeline.top, k=3)]
    for mine, theirs in zip(eyeline.read(w, *asked), eyeline.read(exact, *asked), strict=True):
        torch.testing.assert_close(mine.values.double(), theirs.values, rtol=1e-5, atol=1e-6)


@every_table
def test_a_row_whose_scores_overflow_is_nan(cpu):
    """Finite q·k, infinite once scaled: as in the definition, and in no other row."""
    q, k, v = torch.tensor([[1e18], [1.0], [-1e18]]), torch.ones(600, 1), torch.randn(600, 4)
    k[300] = 1e18
    for backend in (cpu, "reference"):
        out, w = eyeline.attention(q, k, v, scale=1e3, backend=backend)
        assert out[0].isnan().all()
        assert w.to_dense()[0].isnan().all()
        assert out[1].isfinite().all()
        assert out[2].isfinite().all()
        assert w.lse[0] == torch.inf
        entropy, top = eyeline.read(w, eyeline.entropy, eyeline.top)
        assert entropy.values.isnan().tolist() == [True, False, False]
        assert top.values[0].isnan().all()


@every_table
def test_a_row_that_looks_at_one_key_has_entropy_0(cpu):
    q, k = torch.tensor([[900.0, 0.0]]).expand(20, 2), torch.randn(600, 2).clamp(-1, 1)
    k[77] = torch.tensor([90.0, 0.0])
    w = eyeline.weights(q, k, backend=cpu)
    entropy, top = eyeline.read(w, eyeline.entropy, partial(eyeline.top, k=1))
    assert (top.indices == 77).all()
    assert (top.values - 1).abs().max() < 2e-7
    assert 0 <= entropy.values.min() <= entropy.values.max() < 2e-7


@every_table
@pytest.mark.parametrize("value", POISON)
@pytest.mark.parametrize("rule", ["causal", "table", "only", "bias"])
def test_hidden_never_moves_a_bit(cpu, value, rule):
    """Rows, and keys that only such rows see, are the same to the last bit."""
    Tq, Tk, bad = 300, 700, 40
    q, k, _ = inputs(Tq, Tk, D=20)
    visible = {
        "causal": torch.ones(Tq, Tk).tril(bad - 2).bool(),
        "table": torch.rand(Tq, Tk) < 0.5,
        "only": (torch.arange(Tk) != bad).expand(Tq, Tk),
        "bias": torch.rand(Tq, Tk) < 0.5,
    }[rule]
    rules = {"causal": eyeline.causal(bad - 2), "only": masks.only(torch.arange(Tk) != bad)}
    options: dict[str, Any] = {"mask": rules.get(rule, visible)}
    if rule == "bias":
        options = {"bias": torch.where(visible, 0.25, -torch.inf)}
    worse = k.clone()
    worse[..., bad, :] = value
    asked = [
        eyeline.entropy,
        eyeline.top,
        readings.max_score,
        partial(readings.diagonal, offset=-9),
    ]
    found, other = (
        eyeline.read(eyeline.weights(q, x, **options, backend=cpu), *asked) for x in (k, worse)
    )
    clean = ~visible[:, bad]
    for mine, theirs in zip(found, other, strict=True):
        assert torch.equal(mine.values[:, :, clean], theirs.values[:, :, clean])
        if mine.indices is not None:
            assert torch.equal(mine.indices[:, :, clean], theirs.indices[:, :, clean])
    received = eyeline.received(eyeline.weights(q, worse, **options, backend=cpu)).values
    reached = visible[~clean].any(0) if rule != "only" else torch.zeros(Tk, dtype=torch.bool)
    assert received[..., ~reached].isfinite().all()


@every_table
def test_what_is_not_finite_is_as_in_the_definition(cpu):
    q, k, _ = inputs(40, 600, D=8)
    q[..., 3, :] = torch.nan
    q[..., 7, 0] = torch.inf
    q[..., 9, :] = -torch.inf
    # The definition of pooled is a product, which carries a row's NaN to all of its cells.
    asked = [*NATIVE[:5], NATIVE[6]]
    for mask in (None, eyeline.causal(), torch.rand(40, 600) < 0.01):
        found = eyeline.read(eyeline.weights(q, k, mask, backend=cpu), *asked)
        exact = eyeline.read(eyeline.weights(q, k, mask, backend="reference"), *asked)
        for mine, theirs in zip(found, exact, strict=True):
            torch.testing.assert_close(
                mine.values, theirs.values, rtol=1e-4, atol=1e-5, equal_nan=True, msg=mine.name
            )


@every_table
def test_a_mixed_request(cpu):
    """What is asked beside it moves no bit of a native answer, and both kinds come in order."""
    q, k, v = inputs(300, 600, D=16)
    _, w = eyeline.attention(q, k, v, eyeline.causal(), backend=cpu)
    pool = partial(readings.pooled, rows=4, cols=4, reduce="max")
    entropy, own, received, largest, distance = eyeline.read(
        w, eyeline.entropy, sharpest, eyeline.received, pool, readings.distance
    )
    same([entropy, received], eyeline.read(w, eyeline.entropy, eyeline.received))
    dense = w.to_dense()
    torch.testing.assert_close(own.values, dense.amax(-1))
    apart = (torch.arange(300)[:, None] + 300 - torch.arange(600)).abs()
    torch.testing.assert_close(distance.values, (dense * apart).sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(largest.values[..., 0, 0], dense[..., :75, :150].amax((-1, -2)))


@every_table
def test_cells_that_cross_every_border(cpu):
    """Of strips, of blocks, of chunks; empty cells; a region."""
    q, k, _ = inputs(1000, 1200, Hq=2, Hk=1, lead=(1,))
    w = eyeline.weights(q, k, eyeline.causal(), backend=cpu)
    dense = eyeline.weights(q.double(), k.double(), eyeline.causal(), backend="tiled")
    rows, cols = [3, 3, 4, 100, 700, 999], [5, 9, 9, 511, 513, 1100]
    grids = [
        partial(readings.pooled, rows=rows, cols=cols),
        partial(readings.pooled, rows=1, cols=1),
        partial(readings.pooled, rows=1000, cols=1),
        partial(readings.pooled, rows=9, cols=300, region=((11, 803), (600, 1200))),
    ]
    for mine, theirs in zip(eyeline.read(w, *grids), eyeline.read(dense, *grids), strict=True):
        torch.testing.assert_close(mine.values.double(), theirs.values, rtol=1e-5, atol=1e-7)


@every_table
def test_equal_weights_the_first_first(cpu):
    w = eyeline.weights(torch.zeros(9, 4), torch.zeros(700, 4), backend=cpu)
    top, largest = eyeline.read(w, partial(eyeline.top, k=64), readings.max_score)
    assert torch.equal(top.indices, torch.arange(64).expand(9, 64))
    assert (largest.indices == 0).all()
    sparse = eyeline.weights(
        torch.zeros(9, 4),
        torch.zeros(700, 4),
        masks.only(torch.arange(700) % 350 == 5),
        backend=cpu,
    )
    reading = eyeline.top(sparse, k=4)
    assert torch.equal(reading.indices[0], torch.tensor([5, 355, -1, -1]))
    assert torch.equal(reading.values[0], torch.tensor([0.5, 0.5, 0.0, 0.0]))


@every_table
def test_a_column_factor_that_differs_by_head(cpu):
    q, k, _ = inputs(500, 600, Hq=4, Hk=2)
    y = torch.randn(2, 4, 500, 3)

    @readings.reading
    def columns(weights: Any) -> Any:
        values = yield WeightedColumns(y)
        return readings.Reading(values, weights.axes[:-2], "weight")

    w = eyeline.weights(q, k, eyeline.causal(), backend=Cpu(table=cpu.table, rest=NotAsked()))
    exact = eyeline.weights(q, k, eyeline.causal(), backend="tiled").to_dense()
    torch.testing.assert_close(columns(w).values, exact.mT @ y)


def test_what_the_native_pass_leaves_to_tiled():
    whole, mean, strided = View(), View(mean_heads=True), View(slice(0, 9, 2))
    assert answered(TopKeys(64), whole)
    assert not answered(TopKeys(65), whole)
    assert not answered(TopKeys(4), View(slice(0, 9)))
    assert not answered(WeightedColumns(torch.full((1, 1, 4, 1), torch.nan)), whole)
    assert not answered(WeightedColumns(torch.ones(1, 1, 4, 5)), whole)
    assert answered(Entries(), whole)
    assert answered(Entries(), View(slice(3, 9)))
    assert not answered(Entries(), mean)
    assert not answered(Entries(), strided)
    assert not answered(Entries(torch.tensor([3])), whole)
    assert not answered(Entries(what="scores"), whole)


@every_table
@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_tiles_are_the_definitions(cpu, kind):
    q, k, v = inputs(TQ, TK, Hq=4, Hk=2, D=24)
    made_up = {"bias", "softcap"} & set(KINDS[kind])
    native_only = cpu if made_up else Cpu(table=cpu.table, rest=NotAsked())
    _, after = eyeline.attention(q, k, v, **KINDS[kind], backend=native_only)
    alone = eyeline.weights(q, k, **KINDS[kind], backend=native_only)
    exact = eyeline.weights(q.double(), k.double(), **KINDS[kind], backend="tiled").to_dense()
    parts: list[Any] = [
        (..., 77, slice(None)),
        (1, 2, -1),
        (..., slice(0, 3), slice(500, 530)),
        (..., slice(250, 400), slice(1000, None)),
        (..., slice(40, 41), slice(7, 7)),
        (0, [3, 1], slice(90, 120), slice(511, 1025)),
    ]
    for part in parts:
        found, again = (torch.clone(w[part]) for w in (alone, after))
        torch.testing.assert_close(found.double(), exact[part], rtol=2e-5, atol=1e-7)
        assert torch.equal(found, again)


@every_table
@pytest.mark.parametrize("rows", [slice(5, 6), slice(0, 40)])
@pytest.mark.parametrize("value", POISON)
def test_what_is_not_finite_in_a_row(cpu, value, rows):
    """Visible it is NaN or what torch makes of it; hidden it moves no bit."""
    q, k, _ = inputs(40, 600, D=8)
    worse = k.clone()
    worse[..., 20, 3] = value
    for mask in (None, eyeline.causal(4), torch.rand(40, 600) < 0.5):
        clean, found, exact = (
            eyeline.weights(q, keys, mask, backend=backend)[..., rows, :].clone()
            for keys, backend in ((k, cpu), (worse, cpu), (worse, "reference"))
        )
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-7, equal_nan=True)
        if mask is None:
            continue
        sees = eyeline.weights(q, k, mask, backend="reference")[..., rows, 20] > 0
        assert torch.equal(found[~sees], clean[~sees])


@every_table
def test_gradients_of_rows(cpu):
    q, k, _ = inputs(90, 600, Hq=2, Hk=1)
    slopes = []
    for backend in (cpu, "reference"):
        leaves = q.clone().requires_grad_(), k.clone().requires_grad_()
        w = eyeline.weights(*leaves, eyeline.causal(), backend=backend)
        loss = w[..., 7, :].square().sum() + w[..., 20:60, 100:300].to_dense().square().sum()
        slopes.append(torch.autograd.grad(loss, leaves))
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


@every_table
def test_a_state_from_elsewhere_is_no_measure(cpu):
    """Out of a file it says where columns stand; a row normalises itself."""
    q, k, v = inputs(200, 300)
    _, w = eyeline.attention(q, k, v, backend=cpu)
    expected = eyeline.read(w, *NATIVE)
    state = w._body.state
    w._body.state = State(state.m + 1, state.l * 3, own=False)
    same(eyeline.read(w, *NATIVE), expected)


@every_table
def test_part_of_the_weights_has_its_part_of_the_state(cpu):
    q, k, v = inputs(200, 700, Hq=4, Hk=2)
    _, w = eyeline.attention(q, k, v, eyeline.causal(), backend=cpu)
    whole = eyeline.entropy(w).values
    for part, expected in (
        (w[:, :, 10:150:3], whole[:, :, 10:150:3]),
        (w[1, 2:], whole[1, 2:]),
        (w[:, [3, 0]], whole[:, [3, 0]]),
        (w[0, 1, 30:36], whole[0, 1, 30:36]),
    ):
        assert torch.equal(eyeline.entropy(part).values, expected)


@every_table
def test_gradients_take_the_choices_of_the_native_pass(cpu):
    q, k, _ = inputs(90, 600, Hq=2, Hk=1)
    asked = [partial(eyeline.top, k=3), readings.max_score, eyeline.received, eyeline.entropy]
    slopes: list[tuple[Tensor, ...]] = []
    for backend in (cpu, "reference"):
        leaves = q.clone().requires_grad_(), k.clone().requires_grad_()
        w = eyeline.weights(*leaves, eyeline.causal(), backend=backend)
        found = eyeline.read(w, *asked)
        loss = sum((r.values * r.values.detach().cos()).sum() for r in found)
        slopes.append(torch.autograd.grad(loss, leaves))
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


CONTROL_C = """
import os, signal, threading, time
import torch, eyeline

torch.set_num_threads(2)
q = torch.randn(1, 16, 32768, 64)
weights = eyeline.weights(q, q, backend="cpu")
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    eyeline.received(weights)
except KeyboardInterrupt:
    print(time.monotonic() - began)
"""


def test_control_c_answers_between_blocks():
    if native.tables():
        assert 0.9 < float(run(CONTROL_C).stdout) < 3
