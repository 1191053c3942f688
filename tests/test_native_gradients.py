"""The native backward pass beyond what every backend owes: blocks, bits, large scores, reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import eyeline
from eyeline import masks
from eyeline.backends.base import Gradients
from eyeline.backends.cpu import Cpu
from eyeline.backends.tiled import Tiled
from tests.conformance import Setting, check, inputs
from tests.owed.values import out_of
from tests.rules import RULES
from tests.test_native import POISON, every_table


@dataclass(frozen=True)
class Absent(Tiled):
    """In the place of the backend that takes what the kernels do not."""

    def backward(self, *_: Any) -> Gradients:
        raise AssertionError("the kernels should have computed this")


def gradients(
    backend: Any, leaves: tuple[Tensor, ...], upstream: Tensor, **options: Any
) -> list[Tensor]:
    """Those of q, k and v."""
    fresh = [x.detach().clone().requires_grad_() for x in leaves]
    torch.manual_seed(4)  # what dropout draws
    eyeline.attention(*fresh, **options, backend=backend)[0].backward(upstream)
    return [x.grad for x in fresh if x.grad is not None]


# Beyond one block of keys, one chunk of rows, and one piece of a head; and within the smallest.
SIZES = {
    "one of each": (1, 1, 1, 1, 1, 1),
    "a few": (5, 7, 4, 2, 8, 8),
    "blocks": (150, 301, 4, 2, 24, 40),
    "chunks": (550, 270, 2, 1, 70, 33),
    "pieces": (600, 700, 1, 1, 16, 16),
}


@every_table
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("rule", ["full", "causal", "window", "padding_right", "table", "both"])
def test_as_near_to_float64_as_plain_torch(cpu, size, rule):
    Tq, Tk, Hq, Hk, D, Dv = SIZES[size]
    mask, visible = RULES[rule]((1, Hq), Tq, Tk)
    q, k, v = inputs(Tq, Tk, lead=(1,), Hq=Hq, Hk=Hk, D=D, Dv=Dv)
    backend = Cpu(table=cpu.table, rest=Absent())
    check(Setting(q, k, v, mask, visible), lambda out, w: out, out_of, backend)


@every_table
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(cpu, dtype):
    mask, visible = RULES["causal"]((1, 2), 300, 400)
    setting = Setting(*inputs(300, 400, lead=(1,), D=64, dtype=dtype), mask, visible)
    check(setting, lambda out, w: out, out_of, Cpu(table=cpu.table, rest=Absent()))


@every_table
@pytest.mark.parametrize("option", ["scale", "softcap", "bias", "sinks", "all"])
def test_options(cpu, option):
    Tq, Tk = 130, 300
    every: dict[str, Any] = {
        "scale": -0.7,
        "softcap": 1.5,
        "bias": torch.randn(Tq, Tk).masked_fill(torch.rand(Tq, Tk) < 0.2, -torch.inf),
        "sinks": torch.tensor([0.5, -1.0]),
    }
    options = every if option == "all" else {option: every[option]}
    mask, visible = RULES["window"]((1, 2), Tq, Tk)
    q, k, v = inputs(Tq, Tk, lead=(1,))
    upstream = torch.randn(1, 2, Tq, 8)
    backend = Cpu(table=cpu.table, rest=Absent())
    mine = gradients(backend, (q, k, v), upstream, mask=mask, **options)
    wide = {n: x.double() if isinstance(x, Tensor) else x for n, x in options.items()}
    doubles = (q.double(), k.double(), v.double())
    exact = gradients("reference", doubles, upstream.double(), mask=mask, **wide)
    for found, expected in zip(mine, exact):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=3e-6)
    if option == "sinks":
        check(Setting(q, k, v, mask, visible, options), lambda out, w: out, out_of, backend)


@every_table
def test_differences(cpu):
    """The slope along a direction, from two outputs in float64."""
    q, k, v = inputs(200, 300, Hq=4, Hk=2, dtype=torch.float64)
    mask, upstream = eyeline.causal(), torch.randn(2, 4, 200, 8).double()
    leaves = (q, k, v)
    found = gradients(cpu, tuple(x.float() for x in leaves), upstream.float(), mask=mask)
    for n, gradient in enumerate(found):
        way = torch.randn_like(leaves[n])
        ends = []
        for step in (1e-4, -1e-4):
            moved = [x + step * way if i == n else x for i, x in enumerate(leaves)]
            ends.append((eyeline.attention(*moved, mask, backend="reference")[0] * upstream).sum())
        slope = (ends[0] - ends[1]) / 2e-4
        torch.testing.assert_close((gradient * way).sum(), slope, rtol=1e-5, atol=1e-4)


@every_table
def test_a_gradient_of_lse_alone(cpu):
    mask, visible = RULES["both"]((1, 2), 130, 300)
    setting = Setting(*inputs(130, 300, lead=(1,)), mask, visible)
    backend = Cpu(table=cpu.table, rest=Absent())
    check(setting, lambda out, w: w.lse, lambda d: d.lse, backend)


@every_table
@pytest.mark.parametrize("value", POISON)
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("rule", ["causal", "table", "bias"])
@pytest.mark.parametrize("Tq", [5, 600])
def test_a_hidden_key_never_moves_a_bit(cpu, value, where, rule, Tq):
    """Rows that may not see it: dq is the same to the last bit."""
    Tk, bad = 600, 40
    visible = torch.ones(Tq, Tk).tril(bad - 2).bool()
    if rule != "causal":
        visible = torch.rand(Tq, Tk) < 0.5
    options: dict[str, Any] = {"mask": visible}
    if rule == "causal":
        options = {"mask": eyeline.causal(bad - 2)}
    if rule == "bias":
        options = {"bias": torch.where(visible, 0.25, -torch.inf)}
    q, k, v = inputs(Tq, Tk, lead=(1,), D=40, Dv=35)
    upstream, worse = torch.randn(1, 2, Tq, 35), {"k": k, "v": v}
    worse[where] = worse[where].clone()
    worse[where][..., bad, :] = value
    backend = Cpu(table=cpu.table, rest=Absent())
    dq, *_ = gradients(backend, (q, k, v), upstream, **options)
    same, *_ = gradients(backend, (q, worse["k"], worse["v"]), upstream, **options)
    clean = ~visible[:, bad]
    assert torch.equal(dq[..., clean, :], same[..., clean, :])
    assert not same[..., ~clean, :].isfinite().all(-1).any()


@every_table
@pytest.mark.parametrize("value", POISON)
@pytest.mark.parametrize("where", ["q", "upstream"])
@pytest.mark.parametrize("rule", ["window", "table", "blind"])
def test_a_bad_row_never_moves_a_bit(cpu, value, where, rule):
    """Keys that it may not see, and other rows, are the same to the last bit."""
    Tq, Tk, bad = 400, 600, 130
    visible = torch.rand(Tq, Tk) < 0.5
    if rule == "blind":
        visible[bad] = False
    mask: Any = visible
    if rule == "window":
        mask, visible = RULES["window"]((1, 2), Tq, Tk)
    q, k, v = inputs(Tq, Tk, lead=(1,), Hk=2, D=40, Dv=35)
    given = {"q": q, "upstream": torch.randn(1, 2, Tq, 35)}
    worse = given | {where: given[where].clone()}
    worse[where][:, 0, bad, 1:] = value
    backend = Cpu(table=cpu.table, rest=Absent())
    dq, dk, dv = gradients(backend, (given["q"], k, v), given["upstream"], mask=mask)
    rows, keys, values = gradients(backend, (worse["q"], k, v), worse["upstream"], mask=mask)
    clean, others = ~visible[bad], torch.arange(Tq) != bad
    assert torch.equal(dk[:, :, clean], keys[:, :, clean])
    assert torch.equal(dv[:, :, clean], values[:, :, clean])
    assert torch.equal(dq[:, :, others], rows[:, :, others])
    assert torch.equal(dk[:, 1], keys[:, 1])
    if rule != "blind":
        assert not keys[:, 0, ~clean].isfinite().all(-1).any()
        assert not values[:, 0, ~clean].isfinite().all(-1).any()
    else:
        assert (rows[:, 0, bad] == 0).all()


@every_table
def test_a_key_that_nobody_sees_gets_nothing(cpu):
    Tk, bad = 300, 40
    q, k, v = inputs(70, Tk, lead=(1,))
    mask, upstream = masks.only(torch.arange(Tk) != bad), torch.randn(1, 2, 70, 8)
    before = gradients(cpu, (q, k, v), upstream, mask=mask)
    k[..., bad, :], v[..., bad, :] = torch.nan, torch.inf
    after = gradients(cpu, (q, k, v), upstream, mask=mask)
    assert all(torch.equal(x, y) for x, y in zip(before, after))
    assert (after[1][..., bad, :] == 0).all()
    assert (after[2][..., bad, :] == 0).all()


@every_table
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropout_is_drawn_again(cpu, p):
    leaves = inputs(150, 301, Hq=4, Hk=2)
    upstream, options = torch.randn(2, 4, 150, 8), {"mask": eyeline.causal(), "dropout": p}
    mine = gradients(Cpu(table=cpu.table, rest=Absent()), leaves, upstream, **options)
    exact = gradients("reference", leaves, upstream, **options)
    for found, expected in zip(mine, exact):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


@every_table
@pytest.mark.parametrize("heads", [(1, 1), (4, 2)])
def test_threads_move_no_bit(cpu, heads):
    Hq, Hk = heads
    leaves = inputs(700, 1100, lead=(1,), Hq=Hq, Hk=Hk, D=40)
    upstream = torch.randn(1, Hq, 700, 40)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            found.append(gradients(cpu, leaves, upstream, mask=eyeline.causal()))
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], others))


@every_table
@pytest.mark.parametrize("Tq", [3, 40])
def test_scores_of_a_hundred_million(cpu, Tq):
    """Nine weights of 1/9, where lse in float32 is the score itself: the state tells them."""
    q, k = torch.ones(Tq, 1), torch.full((9, 1), 1e8)
    v, upstream = torch.randn(9, 4), torch.randn(Tq, 4)
    mine = gradients(Cpu(table=cpu.table, rest=Absent()), (q, k, v), upstream, scale=1.0)
    doubles = (q.double(), k.double(), v.double())
    exact = gradients("reference", doubles, upstream.double(), scale=1.0)
    for found, expected in zip(mine[1:], exact[1:]):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@every_table
@pytest.mark.parametrize("size", [1e9, 3e9, 1e12, 1e30])
def test_scores_beyond_all_measure(cpu, size):
    """Products of q and k that float32 holds exactly; one row sees three keys with the same."""
    q, k = torch.ones(40, 1), torch.tensor([size, size, size, size / 4, 0.0])[:, None]
    v, upstream = torch.randn(5, 4), torch.randn(40, 4)
    mine = gradients(cpu, (q, k, v), upstream, scale=1.0)
    doubles = (q.double(), k.double(), v.double())
    exact = gradients("reference", doubles, upstream.double(), scale=1.0)
    for found, expected in zip(mine[1:], exact[1:]):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@every_table
def test_a_row_of_large_scores_moves_no_bit_of_others(cpu):
    q, k, v = inputs(60, 90, lead=(1,))
    upstream, larger = torch.randn(1, 2, 60, 8), q.clone()
    larger[..., 50:, :] *= 1e4
    before, after = (gradients(cpu, (x, k, v), upstream)[0] for x in (q, larger))
    assert torch.equal(before[..., :50, :], after[..., :50, :])


@every_table
@pytest.mark.parametrize("what", ["bias", "a reading", "no keys"])
def test_what_the_kernels_do_not_differentiate_goes_to_tiled(cpu, what):
    q, k, v = (x.requires_grad_() for x in inputs(5, 0 if what == "no keys" else 6))
    bias = torch.randn(5, 6, requires_grad=what == "bias") if what != "no keys" else None
    out, weights = eyeline.attention(
        q, k, v, bias=bias, backend=Cpu(table=cpu.table, rest=Absent())
    )
    asked = eyeline.entropy(weights).values if what == "a reading" else out
    with pytest.raises(AssertionError, match="the kernels should have"):
        asked.sum().backward()
