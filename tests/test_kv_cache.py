"""A cache holds the right keys: decoding through it is one full pass, row by row."""

from __future__ import annotations

import copy

import pytest
import torch

import eyeline
from eyeline import causal, window
from eyeline.errors import ArgumentError, DtypeError, ShapeError
from eyeline.kv_cache import KVCache
from eyeline.masks import prefix
from tests import oracle

T = 23
STEPS = {
    "one by one": [1] * T,
    "a prompt of 9, then one by one": [9] + [1] * (T - 9),
    "chunks": [5, 4, 0, 1, 7, 3, 3],
}
ROLLS = [(None, 0), (6, 0), (6, 2), (1, 1), (0, 3), (0, 0), (30, 4)]


def whole(before, first):
    return causal() if before is None else causal() & (window(before) | prefix(first))


def visible(before, first):
    p, j = torch.arange(T)[:, None], torch.arange(T)
    if before is None:
        return j <= p
    return (j <= p) & ((j >= p - before) | (j < first))


@pytest.mark.parametrize("grad", [False, True], ids=["no gradient", "gradient"])
@pytest.mark.parametrize(("before", "first"), ROLLS)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps_are_one_pass(steps, before, first, grad):
    q, k, v = torch.randn(3, 2, 4, T, 8, dtype=torch.float64).unbind()
    k, v = k[:, :2].requires_grad_(grad), v[:, :2].requires_grad_(grad)
    expected = oracle.dense(q, k, v, visible(before, first))
    out, full = eyeline.attention(q, k, v, whole(before, first))
    torch.testing.assert_close(out, expected.out)
    cache, made, start = KVCache(before, first), [], 0
    for n in steps:
        rows = slice(start, start + n)
        held_k, held_v = cache.append(k[:, :, rows], v[:, :, rows])
        step, weights = eyeline.attention(q[:, :, rows], held_k, held_v, cache.mask(n))
        made.append(step)
        start += n
        assert cache.seen == start
        assert len(cache) == len(cache.positions) == held_k.shape[-2]
        torch.testing.assert_close(held_k, k[:, :, cache.positions])
        if n:
            torch.testing.assert_close(
                weights.to_dense(), full[:, :, rows, :].to_dense()[..., cache.positions]
            )
    torch.testing.assert_close(torch.cat(made, dim=2), expected.out)
    if before is not None:
        assert len(cache) <= first + before + steps[-1]
    if grad:
        up = torch.randn_like(out)
        got = torch.autograd.grad(torch.cat(made, dim=2), (k, v), up)
        wanted = torch.autograd.grad(out, (k, v), up)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_a_single_token_needs_no_mask():
    q, k, v = torch.randn(3, 1, 9, 4).unbind()
    cache = KVCache(before=3, first=1)
    for t in range(9):
        row = slice(t, t + 1)
        out, _ = eyeline.attention(q[:, row], *cache.append(k[:, row], v[:, row]))
    torch.testing.assert_close(
        out, eyeline.attention(q, k, v, causal() & (window(3) | prefix(1)))[0][:, -1:]
    )


def test_weights_of_earlier_steps_stay_right():
    """Rows that were handed out are never written over, after a trim neither."""
    q, k, v = torch.randn(3, 12, 4).unbind()
    cache, kept = KVCache(), []
    for t in range(8):
        held, _ = cache.append(k[t : t + 1], v[t : t + 1])
        kept.append(eyeline.weights(q[t : t + 1], held))
    cache.trim(5)
    cache.append(k[8:], v[8:])
    for t, weights in enumerate(kept):
        expected = oracle.dense(q[t : t + 1], k[: t + 1]).weights
        torch.testing.assert_close(weights.to_dense(), expected, check_dtype=False)
    assert torch.equal(cache.k, torch.cat([k[:5], k[8:]]))


def test_a_step_copies_only_its_own_rows():
    cache = KVCache()
    for _ in range(100):
        cache.append(torch.zeros(1, 4), torch.zeros(1, 4))
    before = cache.k.data_ptr()
    cache.append(torch.zeros(1, 4), torch.zeros(1, 4))
    assert cache.k.data_ptr() == before
    assert cache.nbytes <= 2 * 2 * 101 * 4 * 4


def test_a_rolling_cache_stays_small():
    cache = KVCache(before=10, first=2)
    for _ in range(200):
        cache.append(torch.zeros(1, 4), torch.zeros(1, 4))
    assert len(cache) == 13
    assert cache.nbytes == 2 * 13 * 4 * 4


@pytest.mark.parametrize(("before", "first"), [(None, 0), (4, 0), (4, 2)])
@pytest.mark.parametrize("back", [0, 1, 3])
def test_trim_and_go_on(before, first, back):
    k, v = torch.randn(2, 20, 4).unbind()
    cache = KVCache(before, first)
    cache.append(k[:9], v[:9])
    cache.append(k[9:12], v[9:12])
    cache.trim(12 - back)
    assert cache.seen == 12 - back
    held, values = cache.append(k[12 - back : 13 - back], v[12 - back : 13 - back])
    assert torch.equal(held, k[cache.positions])
    assert torch.equal(values, v[cache.positions])
    sees = visible(before, first)[12 - back, :20]
    assert set(torch.nonzero(sees).flatten().tolist()) <= set(cache.positions.tolist())


def test_trim_says_what_a_rolling_cache_forgot():
    cache = KVCache(before=2, first=1)
    for _ in range(9):
        cache.append(torch.zeros(1, 4), torch.zeros(1, 4))
    with pytest.raises(ArgumentError, match="holds position 6 and later"):
        cache.trim(7)
    cache.trim(8)
    assert cache.positions.tolist() == [0, 6, 7]


def test_reorder_reset_and_copy():
    k, v = torch.randn(2, 3, 2, 5, 4).unbind()
    cache = KVCache()
    cache.reorder(torch.tensor([0]))  # nothing to reorder yet
    cache.append(k, v)
    twin = copy.deepcopy(cache)
    index = torch.tensor([2, 0, 0, 1])
    cache.reorder(index)
    assert torch.equal(cache.k, k[index])
    held, _ = cache.append(k[index], v[index])
    assert held.shape == (4, 2, 10, 4)
    assert torch.equal(twin.k, k)
    cache.reset()
    assert (len(cache), cache.seen, cache.nbytes) == (0, 0, 0)
    assert repr(KVCache(before=3, first=1)) == "KVCache(before=3, first=1): 0 of 0 tokens held"


def test_inference_mode_and_back():
    k, v = torch.randn(2, 6, 4).unbind()
    cache = KVCache()
    with torch.inference_mode():
        for t in range(4):
            cache.append(k[t : t + 1], v[t : t + 1])
    held, _ = cache.append(k[4:], v[4:])
    assert torch.equal(held, k)


def test_no_grad_after_a_pass_with_gradients():
    k, v = torch.randn(2, 6, 4).unbind()
    cache = KVCache()
    cache.append(k[:3].requires_grad_(), v[:3])
    with torch.no_grad():
        held, _ = cache.append(k[3:].detach(), v[3:])
    assert torch.equal(held, k)
    assert not held.requires_grad


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: KVCache(before=-1), ArgumentError, "before=-1"),
        (lambda: KVCache(first=2), ArgumentError, "without before="),
        (lambda: KVCache().k, ArgumentError, "empty"),
        (lambda: filled().append(torch.zeros(2, 4), torch.zeros(2, 4)), ShapeError, r"\[2, 4\]"),
        (
            lambda: filled().append(torch.zeros(1, 2, 4), torch.zeros(1, 3, 4)),
            ShapeError,
            "same tokens",
        ),
        (
            lambda: filled().append(*torch.zeros(2, 1, 2, 4).double().unbind()),
            DtypeError,
            "float64",
        ),
        (lambda: filled().trim(9), ArgumentError, "3 tokens were seen"),
        (lambda: flat().reorder(torch.tensor([0])), ShapeError, "without a batch"),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()


def filled():
    cache = KVCache()
    cache.append(torch.zeros(1, 3, 4), torch.zeros(1, 3, 4))
    return cache


def flat():
    cache = KVCache()
    cache.append(torch.zeros(3, 4), torch.zeros(3, 4))
    return cache
