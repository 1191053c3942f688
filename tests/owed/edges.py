"""Owed: the edge table of DESIGN.md, line by line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import eyeline
from eyeline import masks, readings
from tests import oracle
from tests.conformance import DTYPES, Setting, check, inputs, owed
from tests.owed.questions import QUESTIONS
from tests.owed.values import everything, out_of
from tests.rules import RULES
from tests.tolerance import agree


@owed()
def order_of_operations(backend: str) -> None:
    """scale, softcap, bias, mask, softmax: [16, 0] capped at 2, minus [0, 3]."""
    q, k = torch.tensor([[4.0]]), torch.tensor([[4.0], [0.0]])
    options: dict[str, Any] = {"scale": 1.0, "softcap": 2.0, "bias": torch.tensor([[0.0, -3.0]])}
    weights = eyeline.weights(q, k, **options, backend=backend)
    torch.testing.assert_close(weights.scores(), torch.tensor([[1.9999995, -3.0]]))
    torch.testing.assert_close(weights[0], torch.tensor([0.993307, 0.006693]), atol=1e-6, rtol=0)
    hidden = eyeline.weights(q, k, torch.tensor([[1, 0]]), **options, backend=backend)
    assert hidden.scores()[0, 1] == -torch.inf
    assert hidden[0].tolist() == [1.0, 0.0]


@owed(dtype=[torch.bool, torch.int64, torch.uint8, torch.float32, torch.float64, torch.bfloat16])
def a_mask_of_any_type(backend: str, dtype: torch.dtype) -> None:
    q, k, v = inputs(5)
    seen = torch.tril(torch.ones(5, 5)).to(dtype)
    out, weights = eyeline.attention(q, k, v, seen, backend=backend)
    same, rule = eyeline.attention(q, k, v, eyeline.causal(), backend=backend)
    torch.testing.assert_close(out, same)
    torch.testing.assert_close(weights.to_dense(), rule.to_dense())


@owed()
def a_mask_of_scores_is_refused(backend: str) -> None:
    with pytest.raises(eyeline.errors.MaskError, match="bias="):
        eyeline.attention(*inputs(5), torch.randn(5, 5), backend=backend)
    with pytest.raises(eyeline.errors.MaskError, match="bias="):
        eyeline.attention(*inputs(5), torch.zeros(5, 5) - torch.inf, backend=backend)


def blind(how: str, Tk: int, dtype: torch.dtype) -> dict[str, Any]:
    """Row 1 of 3 sees nothing: by a table, by bias, by both rules at once."""
    seen = torch.ones(3, Tk, dtype=torch.bool)
    seen[1] = False
    if how == "mask":
        return {"mask": seen}
    if how == "bias":
        return {"bias": torch.where(seen, 0.0, -torch.inf).to(dtype)}
    return {"mask": eyeline.window(0, offset=1) & ~masks.only(torch.arange(Tk) == 2)}


@owed(dtype=DTYPES, how=["mask", "bias", "rules"], Tk=[5, 300])
def a_row_that_sees_nothing(backend: str, dtype: torch.dtype, how: str, Tk: int) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(3, Tk, dtype=dtype))
    out, w = eyeline.attention(q, k, v, **blind(how, Tk, dtype), backend=backend)
    entropy, received, top = eyeline.read(w, eyeline.entropy, eyeline.received, eyeline.top)
    assert (out[..., 1, :] == 0).all()
    assert (w[..., 1, :] == 0).all()
    assert (w.lse[..., 1] == -torch.inf).all()
    assert (w.to_dense()[..., 1, :] == 0).all()
    assert (w[..., 2][..., 1] == 0).all()
    assert (entropy.values[..., 1] == 0).all()
    assert (readings.distance(w).values[..., 1] == 0).all()
    assert (top.values[..., 1, :] == 0).all()
    assert (top.indices[..., 1, :] == -1).all()
    assert (w.argmax(-1)[..., 1] == -1).all()
    assert (w.max(-1).indices[..., 1] == -1).all()
    assert (w.max(-1).values[..., 1] == 0).all()
    largest = readings.max_score(w)
    assert (largest.values[..., 1] == -torch.inf).all()
    assert (largest.indices[..., 1] == -1).all()
    assert received.values.isfinite().all()
    total = out.sum() + w.lse[..., ::2].sum() + top.values.sum() + received.values.square().sum()
    (total + entropy.values.sum() + w.to_dense().square().sum()).backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert x.grad.isfinite().all()
    assert q.grad is not None
    assert (q.grad[..., 1, :] == 0).all()


@owed(rule=["causal", "table"])
def everything_hidden(backend: str, rule: str) -> None:
    """No row sees a key at all: zeros, never NaN, gradients too."""
    Tq, Tk = 4, 6
    nothing = torch.zeros(Tq, Tk, dtype=torch.bool)
    mask = eyeline.causal(offset=-10) if rule == "causal" else nothing
    everything(Setting(*inputs(Tq, Tk), mask, nothing), backend)


@owed()
def a_row_that_sees_only_the_sink(backend: str) -> None:
    sinks = torch.tensor([0.7, -0.2])
    q, k, v = inputs(3, 5)
    out, w = eyeline.attention(q, k, v, **blind("mask", 5, q.dtype), sinks=sinks, backend=backend)
    assert (out[..., 1, :] == 0).all()
    assert (w[..., 1, :] == 0).all()
    torch.testing.assert_close(w.lse[..., 1], sinks.expand(2, 2))
    assert (readings.mass(w, {"sink": None}).values[..., 1, 0] == 1).all()
    assert (eyeline.entropy(w).values[..., 1] == 0).all()
    assert (eyeline.top(w, k=2).indices[..., 1, :] == -1).all()


@owed()
def more_asked_for_than_is_visible(backend: str) -> None:
    """top and topk beyond what a row sees, and beyond Tk."""
    q, k, _ = inputs(4, dtype=torch.float64)
    w = eyeline.weights(q, k, eyeline.causal(), backend=backend)
    for k_, found in ((3, eyeline.top(w, k=3)), (6, eyeline.top(w, k=6)), (3, w.topk(3))):
        assert found.values.shape == found.indices.shape == (2, 2, 4, k_)
        for i in range(4):
            seen = min(i + 1, k_)
            assert (found.indices[..., i, seen:] == -1).all()
            assert (found.values[..., i, seen:] == 0).all()
            assert sorted(found.indices[0, 0, i, :seen].tolist()) == sorted(
                w.to_dense()[0, 0, i].topk(seen).indices.tolist()
            )


POISON = [float("nan"), float("inf"), float("-inf")]


def poisoned(x: Tensor, at: int, value: float) -> Tensor:
    x = x.clone()
    x[..., at, :] = value
    return x


@owed(value=POISON, where=["k", "v", "both"], rule=["causal", "table", "only", "window"])
def hidden_never_leaks(backend: str, value: float, where: str, rule: str) -> None:
    """NaN or inf in token 3 changes only rows that may see it, forward and in every gradient."""
    T, bad = 7, 3
    mask, visible = {
        "causal": (eyeline.causal(), oracle.causal(T, T)),
        "window": (eyeline.window(1, 1), oracle.window(T, T, 1, 1)),
        "only": (masks.only(torch.arange(T) != bad), torch.arange(T).expand(T, T) != bad),
        "table": (t := torch.rand(T, T) < 0.5, t),
    }[rule]
    clean = ~visible[:, bad]  # rows that may not see it
    q, k, v = inputs(T, dtype=torch.float64)
    worse_k = poisoned(k, bad, value) if where != "v" else k
    worse_v = poisoned(v, bad, value) if where != "k" else v
    results = []
    for keys, values in ((k, v), (worse_k, worse_v)):
        a, b, c = (x.clone().requires_grad_() for x in (q, keys, values))
        out, w = eyeline.attention(a, b, c, mask, backend=backend)
        entropy, top = eyeline.read(w, eyeline.entropy, eyeline.top)
        asked = [
            out, w.to_dense(), w.lse, entropy.values, top.values,
            readings.max_score(w).values, readings.distance(w).values,
            readings.diagonal(w, 0).values, w @ torch.ones(T, 2, dtype=w.dtype),
        ]  # fmt: skip
        parts = [x[:, :, clean] for x in asked]
        sum(x[x.isfinite()].cos().sum() for x in parts).backward()
        results.append((parts, a.grad, b.grad, c.grad))
    (parts, dq, *others), (same_parts, same_dq, *same_others) = results
    for x, y in zip(parts, same_parts):
        assert torch.equal(x, y)
    torch.testing.assert_close(dq[:, :, clean], same_dq[:, :, clean], rtol=1e-12, atol=1e-14)
    if rule == "only":  # nobody sees it: no gradient of any key or value hears of it
        for x, y in zip(others, same_others):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


@owed()
def a_column_that_nobody_sees_is_clean(backend: str) -> None:
    """received and columns of other keys do not hear of a hidden NaN."""
    q, k, _ = inputs(6)
    keep = torch.arange(6) != 2
    w = eyeline.weights(q, poisoned(k, 2, float("nan")), masks.only(keep), backend=backend)
    received = eyeline.received(w).values
    assert received.isfinite().all()
    assert (received[..., 2] == 0).all()
    assert (w[..., 2] == 0).all()
    assert w[..., 3].isfinite().all()
    assert w.mT[..., 3, :].isfinite().all()
    assert readings.pooled(w, 2, 3).values.isfinite().all()


@owed(question=["row of all", "dense", "tile", "entropy", "lse", "@", "max over keys"])
def visible_nan_stays_nan(backend: str, question: str) -> None:
    q, k, v = inputs(6, 9)
    mask = eyeline.causal()
    out, w = eyeline.attention(q, poisoned(k, 5, float("nan")), v, mask, backend=backend)
    seeing = oracle.causal(6, 9)[:, 5]
    assert out[..., seeing, :].isnan().all()
    assert not out[..., ~seeing, :].isnan().any()
    asked = {"dense": (lambda o, w: w.to_dense(), None)} | QUESTIONS
    found = asked[question][0](out, w)
    if question == "row of all":
        assert found[..., :6].isnan().all()
    elif question == "tile":
        assert found[..., 1:, :4].isnan().all()
    else:
        rows = found if found.dim() == 3 else found[..., 0]
        assert rows[..., seeing].isnan().all()
        assert not rows[..., ~seeing].isnan().any()


@owed(value=[float("inf"), float("-inf")], what=["k", "v", "bias"])
def visible_inf_is_what_torch_gives(backend: str, value: float, what: str) -> None:
    q, k, v = inputs(4, 5)
    q, bias = q.abs() + 0.1, torch.zeros(4, 5)
    if what == "k":
        k = poisoned(k, 2, value)
    elif what == "v":
        v = poisoned(v, 2, value)
    else:
        bias[:, 2] = value
    scores = q.double() @ k.double().mT * 8**-0.5 + bias.double()
    weights = scores.softmax(-1)
    out, w = eyeline.attention(q, k, v, bias=bias, backend=backend)
    exact = weights @ v.double()
    torch.testing.assert_close(w.to_dense().double(), weights, equal_nan=True, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(out.double(), exact, equal_nan=True, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        w.lse.double(), scores.logsumexp(-1), equal_nan=True, rtol=1e-4, atol=1e-6
    )


@owed(sizes=[(5, 5), (2, 5), (5, 2), (1, 6)], offset=[None, 0, 1, -2, 9])
def causal_sees_up_to_its_position(
    backend: str, sizes: tuple[int, int], offset: int | None
) -> None:
    Tq, Tk = sizes
    visible = oracle.causal(Tq, Tk, offset)
    w = Setting(*inputs(Tq, Tk), eyeline.causal(offset), visible).weights(backend)
    assert torch.equal(w.to_dense() > 0, visible.expand(2, 2, Tq, Tk))


@owed(
    sizes=[(5, 5), (2, 5), (5, 2)],
    beside=[(0, 0), (2, 0), (1, 2), (0, 3), (9, 9)],
    offset=[None, 0, 2],
)
def window_counts_inclusively(
    backend: str, sizes: tuple[int, int], beside: tuple[int, int], offset: int | None
) -> None:
    Tq, Tk = sizes
    visible = oracle.window(Tq, Tk, *beside, offset)
    w = eyeline.weights(
        *inputs(Tq, Tk)[:2], eyeline.window(*beside, offset=offset), backend=backend
    )
    assert torch.equal(w.to_dense() > 0, visible.expand(2, 2, Tq, Tk))
    if beside == (2, 0) and sizes == (5, 5) and offset is None:
        assert (w.to_dense()[0, 0] > 0).sum(-1).tolist() == [1, 2, 3, 3, 3]


@owed()
def sinks_take_their_share(backend: str) -> None:
    sinks = torch.tensor([1.0, -1.0])
    setting = Setting(*inputs(6, 9), options={"sinks": sinks})
    w, exact = setting.weights(backend), setting.dense()
    assert (w.sum(-1) < 1).all()
    torch.testing.assert_close(w.lse.double(), exact.lse, rtol=1e-5, atol=1e-6)
    entropy = oracle.entropy(exact.weights)  # over keys, not renormalised
    torch.testing.assert_close(eyeline.entropy(w).values.double(), entropy, rtol=1e-5, atol=1e-6)


def dropped(backend: str, q: Tensor, k: Tensor, p: float, seed: int, mask: Any = None) -> Tensor:
    """The weights after dropout: what out is for values that are the unit vectors."""
    torch.manual_seed(seed)
    eye = torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-2], -1, -1)
    return eyeline.attention(q, k, eye, mask, dropout=p, backend=backend)[0]


@owed(sizes=[(6, 9), (150, 301)])
def dropout(backend: str, sizes: tuple[int, int]) -> None:
    Tq, Tk = sizes
    q, k, v = inputs(Tq, Tk, Hq=4, Hk=2, dtype=torch.float64)
    p = 0.25
    w = eyeline.weights(q, k, eyeline.causal(), backend=backend).to_dense()
    after = dropped(backend, q, k, p, 3, eyeline.causal())
    kept = after != 0
    torch.testing.assert_close(after, torch.where(kept, w / (1 - p), 0.0))
    share = (kept & (w > 0)).sum() / (w > 0).sum()
    assert abs(share - (1 - p)) < 4 * (p * (1 - p) / (w > 0).sum()) ** 0.5
    flat = kept.flatten(0, 1)  # every head and every batch entry draws its own
    assert all(not torch.equal(flat[0], other) for other in flat[1:])
    assert torch.equal(after, dropped(backend, q, k, p, 3, eyeline.causal()))
    assert not torch.equal(after, dropped(backend, q, k, p, 4, eyeline.causal()))

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    out, weights = eyeline.attention(*leaves, eyeline.causal(), dropout=p, backend=backend)
    torch.testing.assert_close(weights.to_dense(), w)  # weights are before dropout
    same = [x.clone().requires_grad_() for x in (q, k, v)]
    exact = oracle.dense(same[0], same[1], visible=oracle.causal(Tq, Tk)).weights
    exact = (exact * kept / (1 - p)) @ oracle.per_query_head(same[2], q)
    torch.testing.assert_close(out, exact)
    upstream = torch.randn_like(exact)
    out.backward(upstream)
    exact.backward(upstream)
    for a, b in zip(leaves, same):
        torch.testing.assert_close(a.grad, b.grad)


@owed()
def dropout_is_the_same_everywhere(backend: str) -> None:
    """Keyed by (seed, b, h, i, j): not by backend, tile or thread."""
    q, k, _ = inputs(150, 301)
    first = dropped("reference", q, k, 0.5, 5) != 0
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(dropped(backend, q, k, 0.5, 5) != 0, first)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(dropped(backend, q, k, 0.5, 5) != 0, first)


@owed(dtype=[torch.bfloat16, torch.float16, torch.float32])
def statistics_are_float32(backend: str, dtype: torch.dtype) -> None:
    """2 000 equal keys: their sum is exact, where a sum in half precision stops at 256 or 2 048."""
    q = torch.zeros(1, 4, dtype=dtype)
    out, w = eyeline.attention(
        q, torch.zeros(5000, 4, dtype=dtype), torch.ones(5000, 4, dtype=dtype), backend=backend
    )
    assert w.lse.dtype == torch.float32
    # torch's fused operator takes its exponentials to 20 bits in half precision.
    near = 1e-6 if dtype == torch.float32 else 2.0**-16
    torch.testing.assert_close(w.lse, torch.tensor([5000.0]).log(), rtol=near, atol=0)
    torch.testing.assert_close(w.sum(-1).float(), torch.ones(1))
    torch.testing.assert_close(out, torch.ones_like(out), rtol=1e-4, atol=0)


@owed()
def autocast_casts_as_sdpa_does(backend: str) -> None:
    q, k, v = inputs(6, 9, Hq=2, Hk=2)
    with torch.autocast("cpu", torch.bfloat16):
        out, w = eyeline.attention(q, k, v, backend=backend)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert out.dtype == theirs.dtype == w.dtype == torch.bfloat16
    exact = oracle.dense(*(x.bfloat16() for x in (q, k, v)))
    agree(out, out_of(exact), theirs, "out")
    agree(w.to_dense(), exact.weights, exact.weights.bfloat16(), "weights")


ZEROS = {
    "no queries": (2, 2, 1, 0, 5, 4, 3),
    "no keys": (2, 2, 1, 4, 0, 4, 3),
    "neither": (2, 2, 1, 0, 0, 4, 3),
    "no batch": (0, 2, 1, 4, 5, 4, 3),
    "no heads": (2, 0, 0, 4, 5, 4, 3),
    "no value": (2, 2, 1, 4, 5, 4, 0),
    "no D": (2, 2, 1, 4, 5, 0, 3),
}


@owed(zero=list(ZEROS), rule=["full", "causal"])
def any_zero_length(backend: str, zero: str, rule: str) -> None:
    B, Hq, Hk, Tq, Tk, D, Dv = ZEROS[zero]
    q, k, v = torch.randn(B, Hq, Tq, D), torch.randn(B, Hk, Tk, D), torch.randn(B, Hk, Tk, Dv)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    mask, _ = RULES[rule]((B, Hq), Tq, Tk)
    out, w = eyeline.attention(q, k, v, mask, backend=backend)
    assert out.shape == (B, Hq, Tq, Dv)
    assert w.shape == (B, Hq, Tq, Tk)
    entropy, received, top = eyeline.read(w, eyeline.entropy, eyeline.received, eyeline.top)
    assert entropy.values.shape == w.lse.shape == (B, Hq, Tq)
    assert received.values.shape == (B, Hq, Tk)
    assert top.values.shape == (B, Hq, Tq, 8)
    assert w.to_dense().shape == w.shape
    assert w.sum(-1).shape == (B, Hq, Tq)
    assert (w @ torch.ones(Tk, 2)).shape == (B, Hq, Tq, 2)
    assert str(w)
    if zero == "no keys":
        assert (out == 0).all()
        assert (w.lse == -torch.inf).all()
    if zero == "no D" and rule == "full":
        torch.testing.assert_close(out, v.mean(-2, keepdim=True).expand_as(out))
    (out.sum() + entropy.values.sum() + received.values.sum() + top.values.sum()).backward()
    assert all(x.grad is not None and (x.grad.isfinite()).all() for x in (q, k, v))


@owed(
    question=["out", "dense", "gradient", "entropy", "received", "top", "pooled mean", "@", "mT @"]
)
def same_inputs_same_bits(backend: str, question: str) -> None:
    mask, _ = RULES["both"]((2, 2), 200, 333)
    q, k, v = inputs(200, 333)

    def once() -> Tensor:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out, w = eyeline.attention(*leaves, mask, backend=backend)
        if question == "gradient":
            (out.square().sum() + eyeline.entropy(w).values.sum()).backward()
            return torch.cat([x.grad.flatten() for x in leaves])
        answers: dict[str, Any] = {
            "out": lambda: out,
            "dense": lambda: w.to_dense(),
            "entropy": lambda: eyeline.entropy(w).values,
            "received": lambda: eyeline.received(w).values,
            "top": lambda: eyeline.top(w).values,
            "pooled mean": lambda: readings.pooled(w, 7, 9).values,
            "@": lambda: w @ v[0, 0],
            "mT @": lambda: w.mT @ q[0, 0],
        }
        return answers[question]()

    assert torch.equal(once(), once())


@owed(size=[4_000, 50_000], rule=["full", "causal"])
def large_scores(backend: str, size: int, rule: str) -> None:
    """Rows, tiles and entropy against float64 of the same float32 scores."""
    mask, _ = RULES[rule]((1, 2), 300, 400)
    q, k, _ = inputs(300, 400, lead=(1,), D=64)
    w = eyeline.weights(q * size / 4, k, mask, backend=backend)
    scores = w.scores().double()
    assert scores[scores.isfinite()].abs().max() > size / 2
    exact = scores.softmax(-1)
    dense = w.to_dense().double()
    assert (dense.sum(-1) - 1).abs().max() < 1e-4
    assert (w.sum(-1) - 1).abs().max() < 1e-4
    assert (dense - exact).abs().max() < 1e-4
    tile = w[..., 100:200, 50:90].to_dense().double()
    assert (tile - exact[..., 100:200, 50:90]).abs().max() < 1e-4
    assert (eyeline.entropy(w).values.double() - oracle.entropy(exact)).abs().max() < 1e-3
    assert (eyeline.received(w).values.double() - exact.sum(-2)).abs().max() < 1e-2
    # Asked alone, a row's or column's scores may be summed in another order: their own roundings.
    rounding = 4 * torch.finfo(torch.float32).eps * float(scores[scores.isfinite()].abs().max())
    row, column = w[..., 7, :].double(), w[..., 60].double()
    assert (row.sum(-1) - 1).abs().max() < 1e-4
    assert (row - exact[..., 7, :]).abs().max() < rounding
    assert (column - exact[..., 60]).abs().max() < rounding


@owed(huge=[1e4, 1e8])
def large_scores_have_gradients(backend: str, huge: float) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(5, 6))
    out, w = eyeline.attention(q, k, v, scale=huge, backend=backend)
    (out.sum() + eyeline.entropy(w).values.sum() + w.lse.sum()).backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@owed()
def changed_in_place_is_noticed(backend: str) -> None:
    q, k, _ = inputs(5)
    w = eyeline.weights(q, k, backend=backend)
    k.mul_(2)
    with pytest.raises(eyeline.errors.StaleError, match="changed in place"):
        w[0, 0, 0]


@owed()
def what_a_later_key_holds_does_not_move_a_bit(backend: str) -> None:
    q, k, v = inputs(300)
    changed = [torch.cat([x[..., :150, :], torch.randn_like(x[..., 150:, :])], -2) for x in (k, v)]
    out, w = eyeline.attention(q, k, v, eyeline.causal(), backend=backend)
    other, of = eyeline.attention(q, *changed, eyeline.causal(), backend=backend)
    assert torch.equal(out[..., :150, :], other[..., :150, :])
    assert torch.equal(w[..., :150, :].to_dense(), of[..., :150, :].to_dense())
    assert torch.equal(w.lse[..., :150], of.lse[..., :150])


@owed(option=["softcap", "sinks", "bias"])
def a_blind_row_with_options(backend: str, option: str) -> None:
    options: dict[str, Any] = {
        "softcap": {"softcap": 2.0},
        "sinks": {"sinks": torch.tensor([0.5, -0.5])},
        "bias": {"bias": torch.randn(3, 5)},
    }[option]
    seen = blind("mask", 5, torch.float32)["mask"]
    setting = Setting(*inputs(3, 5), seen, seen, options)
    everything(setting, backend)
    check(setting, lambda o, w: w.max(-1).values, lambda d: d.weights.amax(-1), backend)
    check(
        setting,
        lambda o, w: w @ torch.ones(5, 1),
        lambda d: d.weights.sum(-1, keepdim=True),
        backend,
    )
    assert out_of(setting.dense()).isfinite().all()
