"""Owed: the definition on any input at all (hypothesis); gradients by finite differences."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import eyeline
from tests.conformance import Setting, check, inputs, owed
from tests.owed.questions import QUESTIONS, sharpest
from tests.owed.values import everything
from tests.rules import RULES, nested

OPTION_NAMES = ("scale", "softcap", "bias", "sinks")


@st.composite
def settings_(draw: st.DrawFn) -> Setting:
    """Odd sizes (none at all among them), groups, ranks, nested masks and options."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    Tq, Tk = draw(st.integers(0, 9)), draw(st.integers(0, 11))
    D, Dv = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    Hk, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    before = draw(st.sampled_from([(), (1,), (2,), (2, 2)]))
    headless = not before and draw(st.booleans())
    lead, heads = ((), ()) if headless else ((*before, Hk * group), (*before, Hk))
    if len(lead) == 1:  # rank 3 has a batch and no heads
        heads = lead
    q, k = torch.randn(*lead, Tq, D), torch.randn(*heads, Tk, D)
    v = torch.randn(*heads, Tk, Dv)
    layout = draw(st.sampled_from(["tight", "transposed", "strided"]))
    q, k, v = (strided(x, layout) for x in (q, k, v))
    mask, visible = draw(nested(lead, Tq, Tk)) if draw(st.booleans()) else (None, None)
    chosen = draw(st.sets(st.sampled_from(OPTION_NAMES)))
    H = lead[-1] if len(lead) > 1 else 1
    options: dict[str, Any] = {
        "scale": 0.6,
        "softcap": 1.7,
        "bias": torch.randn([n if draw(st.booleans()) else 1 for n in (*lead, Tq, Tk)]),
        "sinks": torch.randn(H) if len(lead) > 1 else torch.randn(()),
    }
    return Setting(q, k, v, mask, visible, {n: options[n] for n in sorted(chosen)})


def strided(x: Tensor, layout: str) -> Tensor:
    if layout == "transposed":
        return x.mT.contiguous().mT
    return torch.stack([x, x], dim=-1)[..., 0] if layout == "strided" else x


@owed()
def any_attention(backend: str) -> None:
    @given(settings_())
    def holds(setting: Setting) -> None:
        everything(setting, backend)

    holds()


ANY_SIZE = [
    "sum over keys", "sum over queries", "entropy", "received", "received mean", "distance",
    "diagonal", "scores",
]  # fmt: skip


@owed()
def any_question(backend: str) -> None:
    @given(settings_(), st.sampled_from(ANY_SIZE))
    def holds(setting: Setting, question: str) -> None:
        check(setting, *QUESTIONS[question], backend, question)

    holds()


@owed()
def any_rows_and_columns(backend: str) -> None:
    """A slice of rows and columns is that slice of the dense matrix."""
    ends = st.integers(-12, 12) | st.none()

    @given(settings_(), st.tuples(ends, ends), st.tuples(ends, ends))
    def holds(setting: Setting, rows: Any, cols: Any) -> None:
        tile = (..., slice(*rows), slice(*cols))
        check(
            setting, lambda o, w: w[tile].to_dense(), lambda d: d.weights[tile], backend, str(tile)
        )

    holds()


DIFFERENTIABLE = [
    "row", "rows", "column", "tile", "lse", "@", "mT @", "sum over queries", "max over keys",
    "topk over queries", "mean of heads", "entropy", "received", "received mean", "top",
    "max_score", "distance", "mass", "pooled mean", "pooled max", "diagonal", "scores",
]  # fmt: skip


def asked_of(setting: Setting, question: str, backend: str) -> tuple[Any, tuple[Tensor, ...]]:
    """A function of the leaves for gradcheck, and the leaves."""
    names = ["q", "k", "v", *setting.options]
    ask = {
        "out": (lambda o, w: o, None),
        "own": (lambda o, w: sharpest(w).values, None),
    } | QUESTIONS

    def function(*leaves: Tensor) -> Tensor:
        given_ = dict(zip(names, leaves, strict=True))
        out, w = eyeline.attention(
            given_.pop("q"),
            given_.pop("k"),
            given_.pop("v"),
            setting.mask,
            **given_,
            backend=backend,
        )
        return ask[question][0](out, w)

    leaves = (setting.q, setting.k, setting.v, *setting.options.values())
    return function, tuple(x.detach().clone().requires_grad_() for x in leaves)


def small(mask: Any = None) -> Setting:
    """The sizes that QUESTIONS are written for, with as few dimensions as can be."""
    q, k, v = inputs(6, 9, D=2, Dv=1, dtype=torch.float64)
    options = {"bias": torch.randn(2, 1, 9).double(), "sinks": torch.randn(2).double()}
    return Setting(q, k, v, mask, None, options)


@owed(question=["out", "own", *DIFFERENTIABLE])
def first_derivatives(backend: str, question: str) -> None:
    function, leaves = asked_of(small(RULES["causal"]((2, 2), 6, 9)[0]), question, backend)
    # -inf - -inf is NaN in the numerical derivative: scores are asked where all is visible.
    if question == "scores":
        function, leaves = asked_of(small(), question, backend)
    assert gradcheck(function, leaves, fast_mode=True)


@owed(
    question=[
        "out",
        "own",
        "row",
        "tile",
        "lse",
        "@",
        "entropy",
        "received",
        "top",
        "pooled mean",
        "mass",
    ]
)
def second_derivatives(backend: str, question: str) -> None:
    function, leaves = asked_of(small(RULES["causal"]((2, 2), 6, 9)[0]), question, backend)
    assert gradgradcheck(function, leaves, fast_mode=True)


@owed()
def a_relative_table_learns(backend: str) -> None:
    """The bias table [H, n] of j - i gets the sum of its diagonal's gradient."""
    q, k, v = inputs(5, dtype=torch.float64)
    table = torch.randn(2, 9, dtype=torch.float64)  # j - position(i) from -4 to 4
    index = torch.arange(5)[None] - torch.arange(5)[:, None] + 4

    mine = table.clone().requires_grad_()
    out, w = eyeline.attention(q, k, v, bias=eyeline.biases.relative(mine), backend=backend)
    theirs = table.clone().requires_grad_()
    same, weights = eyeline.attention(q, k, v, bias=theirs[:, index], backend=backend)
    torch.testing.assert_close(out, same)
    torch.testing.assert_close(w.to_dense(), weights.to_dense())
    for o, x in ((out, w), (same, weights)):
        (o.square().sum() + eyeline.entropy(x).values.sum() + x[..., 2].square().sum()).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
