"""Owed: out, weights and lse with their gradients, over ranks, types, sizes, rules, options."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import eyeline
from tests import oracle
from tests.conformance import DTYPES, Setting, check, inputs, owed
from tests.rules import RULES, SQUARE
from tests.tolerance import agree


def everything(setting: Setting, backend: str, what: str = "") -> None:
    """out, the whole matrix and lse, with every gradient."""
    check(setting, lambda out, w: out, lambda d: out_of(d), backend, f"{what} out")
    check(setting, lambda out, w: w.to_dense(), lambda d: d.weights, backend, f"{what} weights")
    check(setting, lambda out, w: w.lse, lambda d: d.lse, backend, f"{what} lse")


def out_of(d: oracle.Dense) -> Tensor:
    assert d.out is not None
    return d.out


LEADS: dict[int, tuple[int, ...]] = {2: (), 3: (2,), 4: (2, 3), 5: (2, 1, 3)}


@owed(rank=list(LEADS), rule=list(SQUARE))
def every_rank_and_rule(backend: str, rank: int, rule: str) -> None:
    lead = LEADS[rank]
    q, k, v = (torch.randn(*lead, n, d) for n, d in ((5, 4), (9, 4), (9, 6)))
    mask, visible = SQUARE[rule](lead, 5, 9)
    everything(Setting(q, k, v, mask, visible), backend)


@owed(rule=list(RULES))
def more_queries_than_keys(backend: str, rule: str) -> None:
    mask, visible = RULES[rule]((2, 4), 7, 3)
    everything(Setting(*inputs(7, 3, Hq=4, Hk=2), mask, visible), backend)


@owed(dtype=DTYPES, rule=["full", "both", "table"])
def every_type(backend: str, dtype: torch.dtype, rule: str) -> None:
    mask, visible = RULES[rule]((2, 2), 33, 40)
    setting = Setting(*inputs(33, 40, D=16, dtype=dtype), mask, visible)
    everything(setting, backend)
    out, weights = setting.attention(backend)
    assert out.dtype == weights.dtype == weights.to_dense().dtype == weights[0, 0, 0].dtype == dtype
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    assert weights.lse.dtype == statistics


@owed(heads=[(1, 1), (4, 1), (4, 2), (6, 3), (3, 3)])
def every_group(backend: str, heads: tuple[int, int]) -> None:
    Hq, Hk = heads
    mask, visible = RULES["causal"]((2, Hq), 6, 6)
    everything(Setting(*inputs(6, Hq=Hq, Hk=Hk), mask, visible), backend)


@owed(size=[(1, 1), (1, 5), (2, 1), (3, 65), (65, 3), (130, 64)])
def every_size_of_a_key_and_a_value(backend: str, size: tuple[int, int]) -> None:
    everything(Setting(*inputs(5, 7, D=size[0], Dv=size[1])), backend)


@owed(sizes=[(127, 129), (257, 300), (1, 700), (513, 1030), (1100, 64)], rule=["full", "both"])
def across_tiles(backend: str, sizes: tuple[int, int], rule: str) -> None:
    Tq, Tk = sizes
    mask, visible = RULES[rule]((1, 2), Tq, Tk)
    everything(Setting(*inputs(Tq, Tk, lead=(1,)), mask, visible), backend)


BIASES: dict[str, tuple[int, ...]] = {
    "whole": (2, 2, 6, 9),
    "per head": (2, 1, 1),
    "per head 4-D": (1, 2, 6, 9),
    "per key": (9,),
    "per row": (6, 1),
    "per batch": (2, 1, 1, 9),
    "one": (),
}


@owed(bias=list(BIASES), rule=["full", "causal"])
def every_bias(backend: str, bias: str, rule: str) -> None:
    """The gradient comes in the caller's own shape: `check` compares it with the leaf's."""
    mask, visible = RULES[rule]((2, 2), 6, 9)
    options = {"bias": torch.randn(BIASES[bias])}
    everything(Setting(*inputs(6, 9), mask, visible, options), backend)


OPTIONS: dict[str, dict[str, Any]] = {
    "scale": {"scale": 0.37},
    "negative scale": {"scale": -0.5},
    "scale 0": {"scale": 0.0},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": torch.tensor([0.3, -1.0])},
    "all": {
        "scale": 0.8,
        "softcap": 2.0,
        "bias": torch.tensor([[[0.5]], [[-1.0]]]),
        "sinks": torch.tensor([1.0, 0.0]),
    },
}


@owed(option=list(OPTIONS), rule=["full", "both"])
def every_option(backend: str, option: str, rule: str) -> None:
    mask, visible = RULES[rule]((2, 2), 6, 9)
    everything(Setting(*inputs(6, 9), mask, visible, OPTIONS[option]), backend)


@owed(rank=[2, 3])
def sinks_without_heads(backend: str, rank: int) -> None:
    q = torch.randn(*LEADS[rank], 4, 3)
    everything(Setting(q, q, q, options={"sinks": torch.tensor(0.5)}), backend)


def alibi_table(slopes: Tensor, Tq: int, Tk: int) -> Tensor:
    """-slope · |position(i) - j|, per head."""
    return -slopes[:, None, None] * (oracle.positions(Tq, Tk) - torch.arange(Tk)[None]).abs()


@owed(sizes=[(5, 5), (3, 7), (7, 3), (200, 300)], rule=["full", "causal"])
def alibi(backend: str, sizes: tuple[int, int], rule: str) -> None:
    Tq, Tk = sizes
    slopes = torch.tensor([0.5, 0.25])
    mask, visible = RULES[rule]((2, 2), Tq, Tk)
    q, k, v = inputs(Tq, Tk)
    mine = eyeline.attention(q, k, v, mask, bias=eyeline.biases.alibi(slopes), backend=backend)
    setting = Setting(q, k, v, mask, visible, {"bias": alibi_table(slopes, Tq, Tk)})
    exact, plain = setting.dense(), setting.plain()
    agree(mine[0], out_of(exact), out_of(plain), "out")
    agree(mine[1].to_dense(), exact.weights, plain.weights, "weights")


@owed(layout=["transposed", "offset", "expanded batch", "expanded heads", "every other", "flipped"])
def every_layout(backend: str, layout: str) -> None:
    """Strides, offsets and expanded inputs; the upstream gradient has them too."""
    lay = {
        "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
        "offset": lambda x: torch.cat([x, x], dim=-1)[..., x.shape[-1] :],
        "expanded batch": lambda x: x[:1].expand_as(x),
        "expanded heads": lambda x: x[:, :1].expand_as(x),
        "every other": lambda x: x.repeat_interleave(2, dim=-2)[..., ::2, :],
        "flipped": lambda x: x.transpose(-2, -3).contiguous().transpose(-2, -3),
    }[layout]
    strided = [lay(x).detach().requires_grad_() for x in inputs(6, 9, Hq=4, Hk=2)]
    tight = [x.detach().contiguous().requires_grad_() for x in strided]
    ones, same = (
        eyeline.attention(*x, eyeline.causal(), backend=backend) for x in (strided, tight)
    )
    torch.testing.assert_close(ones[0], same[0])
    torch.testing.assert_close(ones[1].to_dense(), same[1].to_dense())
    upstream = lay(torch.randn_like(same[0]))
    ones[0].backward(upstream)
    same[0].backward(upstream.contiguous())
    for a, b in zip(strided, tight):
        torch.testing.assert_close(a.grad, b.grad)


@owed()
def out_keeps_the_order_of_dimensions_in_memory(backend: str) -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(6, 9, Hq=4, Hk=2))
    out, _ = eyeline.attention(q, k, v, backend=backend)
    assert out.transpose(1, 2).is_contiguous()  # [B, T, H, D], as q
    assert eyeline.attention(*inputs(6, 9), backend=backend)[0].is_contiguous()


@owed()
def batched_is_alone(backend: str) -> None:
    q, k, v = inputs(7, 11, lead=(3,), Hq=4, Hk=2)
    out, weights = eyeline.attention(q, k, v, eyeline.causal(), backend=backend)
    for b in range(3):
        alone, of = eyeline.attention(
            q[b : b + 1], k[b : b + 1], v[b : b + 1], eyeline.causal(), backend=backend
        )
        torch.testing.assert_close(alone[0], out[b])
        torch.testing.assert_close(of.to_dense()[0], weights[b].to_dense())


@owed()
def permuted_keys_permute_the_weights(backend: str) -> None:
    q, k, v = inputs(7, 300, dtype=torch.float64)
    order = torch.randperm(300)
    out, weights = eyeline.attention(q, k, v, backend=backend)
    other, permuted = eyeline.attention(q, k[..., order, :], v[..., order, :], backend=backend)
    torch.testing.assert_close(other, out)
    torch.testing.assert_close(permuted.to_dense(), weights.to_dense()[..., order])


@owed()
def split_keys_join_by_their_state(backend: str) -> None:
    """out = sum of the parts' outs, each weighed by exp(its lse - the joint lse)."""
    q, k, v = inputs(5, 400, dtype=torch.float64)
    out, weights = eyeline.attention(q, k, v, backend=backend)
    halves = [
        eyeline.attention(q, k[..., part, :], v[..., part, :], backend=backend)
        for part in (slice(0, 130), slice(130, 400))
    ]
    lse = torch.logaddexp(halves[0][1].lse, halves[1][1].lse)
    torch.testing.assert_close(lse, weights.lse)
    joined = sum((lse_ - lse).exp()[..., None] * o for o, lse_ in ((o, w.lse) for o, w in halves))
    torch.testing.assert_close(joined, out)
