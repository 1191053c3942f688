"""Inputs that broke others, from public bug reports: each by its number in the list of cases."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor

import eyeline
from eyeline import masks
from tests import oracle
from tests.conformance import BACKENDS, DTYPES, Setting, check, inputs

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def visible(q: Tensor, k: Tensor, mask: Any, backend: str) -> list[list[int]]:
    """Which keys get any weight at all, as 1 and 0."""
    return (eyeline.weights(q, k, mask, backend=backend).to_dense() > 0).int().tolist()


def flat(T: int) -> Tensor:
    """T equal vectors: every visible key gets the same weight."""
    return torch.zeros(T, 4)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("how", ["bool mask", "-inf bias"])
def test_case_01_a_row_that_may_see_nothing(backend: str, how: str, dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(3, 5, dtype=dtype))
    seen = torch.ones(3, 5, dtype=torch.bool)
    seen[1] = False
    given = (
        {"mask": seen}
        if how == "bool mask"
        else {"bias": torch.zeros(3, 5).masked_fill(~seen, -torch.inf)}
    )
    out, weights = eyeline.attention(q, k, v, **given, backend=backend)  # type: ignore[arg-type]
    assert (out[..., 1, :] == 0).all()
    assert (weights[..., 1, :] == 0).all()
    assert (weights.lse[..., 1] == -torch.inf).all()
    out.sum().backward()
    assert q.grad is not None
    assert (q.grad[..., 1, :] == 0).all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("where", ["k", "v"])
def test_case_02_a_hidden_nan(backend: str, where: str) -> None:
    q = torch.arange(8).view(1, 2, 4).float()
    k, v = q.clone(), q.clone()
    (k if where == "k" else v)[0, 1, 0] = float("nan")
    out, _ = eyeline.attention(
        q, k, v, torch.tensor([[True, False], [True, False]]), backend=backend
    )
    assert out.tolist() == [[[0, 1, 2, 3], [0, 1, 2, 3]]]


def test_case_03_causal_with_a_cache(backend: str) -> None:
    assert visible(flat(2), flat(5), eyeline.causal(), backend) == [
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]
    assert visible(flat(2), flat(5), eyeline.causal(offset=0), backend) == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
    ]


def test_case_04_causal_with_more_queries_than_keys(backend: str) -> None:
    q, k, v = inputs(5, 2)
    out, weights = eyeline.attention(q, k, v, eyeline.causal(), backend=backend)
    assert (out[..., :3, :] == 0).all()
    assert (weights.to_dense()[..., :3, :] == 0).all()
    assert visible(flat(5), flat(2), eyeline.causal(), backend)[3:] == [[1, 0], [1, 1]]


def test_case_05_causal_decoding(backend: str) -> None:
    assert visible(flat(1), flat(7), eyeline.causal(), backend) == [[1] * 7]


def test_case_06_window_with_causal(backend: str) -> None:
    def counts(before: int) -> list[int]:
        seen = visible(flat(5), flat(5), eyeline.window(before, 0) & eyeline.causal(), backend)
        return [sum(row) for row in seen]

    assert counts(1) == [1, 2, 2, 2, 2]
    assert counts(2) == [1, 2, 3, 3, 3]
    assert visible(flat(5), flat(5), eyeline.window(4, 0), backend) == visible(
        flat(5), flat(5), eyeline.causal(), backend
    )


def test_case_07_torch_masks_say_hidden(backend: str) -> None:
    """MHA(m) == attention(~m), with an identity for every projection."""
    E, T = 4, 5
    layer = torch.nn.MultiheadAttention(E, 1, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(E).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(E))
    x = torch.randn(2, T, E, dtype=torch.float64)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    theirs, their_weights = layer(x, x, x, attn_mask=hidden)
    out, weights = eyeline.attention(x, x, x, ~hidden, backend=backend)
    torch.testing.assert_close(out, theirs)
    torch.testing.assert_close(weights.to_dense(), their_weights)


def test_case_08_a_float_mask_of_numbers(backend: str) -> None:
    q, k, v = inputs(5)
    numbers = torch.randn(5, 5)
    with pytest.raises(eyeline.errors.MaskError, match="bias="):
        eyeline.attention(q, k, v, numbers, backend=backend)
    out, _ = eyeline.attention(q, k, v, bias=numbers, backend=backend)
    torch.testing.assert_close(
        out.double(), oracle.dense(q, k, v, bias=numbers).out, atol=1e-5, rtol=1e-5
    )


def test_case_09_a_float_mask_of_0_and_1(backend: str) -> None:
    q, k, v = inputs(6)
    out, _ = eyeline.attention(q, k, v, torch.tril(torch.ones(6, 6)), backend=backend)
    torch.testing.assert_close(
        out, eyeline.attention(q, k, v, eyeline.causal(), backend=backend)[0]
    )


def test_case_10_one_key_and_dropout(backend: str) -> None:
    q, k, v = inputs(64, 1, lead=(64,))
    v = torch.ones_like(v).requires_grad_()
    out, weights = eyeline.attention(q, k, v, dropout=0.2, backend=backend)
    assert (weights.to_dense() == 1).all()
    assert set(out.detach().unique().tolist()) == {0.0, 1.25}  # kept entries count 1 / (1 - p)
    draws = out.numel() / v.shape[-1]
    assert abs(out.mean() - 1) < 5 * (0.25 / draws) ** 0.5
    out.sum().backward()
    # Every kept entry gives its value's gradient the same factor, and only those do.
    assert v.grad is not None
    torch.testing.assert_close(v.grad, out.detach().sum((1, 2), keepdim=True).expand_as(v))


def test_case_12_grouped_heads(backend: str) -> None:
    q, k, v = inputs(5, Hq=4, Hk=2)
    _, weights = eyeline.attention(q, k, v, backend=backend)
    for head, key_head in enumerate([0, 0, 1, 1]):
        exact = (q[:, head] @ k[:, key_head].mT * 8**-0.5).softmax(-1)
        torch.testing.assert_close(weights[:, head].to_dense(), exact)
    check(
        Setting(q, k, v), lambda o, w: o, lambda d: d.out, backend
    )  # dk, dv: summed over the group


def test_case_13_softcap_before_bias(backend: str) -> None:
    weights = eyeline.weights(
        torch.tensor([[4.0]]),
        torch.tensor([[4.0], [0.0]]),
        scale=1.0,
        softcap=2.0,
        bias=torch.tensor([[0.0, -3.0]]),
        backend=backend,
    )
    torch.testing.assert_close(weights[0], torch.tensor([0.993307, 0.006693]), atol=1e-6, rtol=0)


def test_case_14_lse_of_equal_scores(backend: str) -> None:
    lse = eyeline.weights(torch.zeros(1, 3), torch.randn(4, 3), backend=backend).lse
    torch.testing.assert_close(lse, torch.tensor([1.386294]), atol=1e-6, rtol=0)


def test_case_15_scores_past_half_precision(backend: str) -> None:
    q = torch.full((1, 64), 576.0, dtype=torch.float16)
    k = torch.full((2, 64), 382.75, dtype=torch.float16)
    assert float(q[0].double() @ k[0].double()) > 65504
    out, weights = eyeline.attention(q, k, k, backend=backend)
    assert weights.to_dense().tolist() == [[0.5, 0.5]]
    assert out.isfinite().all()


def test_case_16_chunked_with_a_cache(backend: str) -> None:
    """A 9-token prompt, then one token at a time beside all earlier keys: rows of the one pass."""
    q, k, v = inputs(14, Hq=4, Hk=2, dtype=torch.float64)
    out, weights = eyeline.attention(q, k, v, eyeline.causal(), backend=backend)
    for start, stop in [(0, 9)] + [(i, i + 1) for i in range(9, 14)]:
        part, of = eyeline.attention(
            q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop], eyeline.causal(), backend=backend
        )
        torch.testing.assert_close(part, out[:, :, start:stop])
        torch.testing.assert_close(of.to_dense(), weights[:, :, start:stop, :stop].to_dense())


def test_case_17_any_strides(backend: str) -> None:
    q = (
        torch.randn(1, 2, 4, 6).expand(3, 2, 4, 6).mT.requires_grad_()
    )  # [3, 2, 6, 4], batch stride 0
    k = torch.randn(3 * 2 * 6 * 4 + 5)[5:].view(3, 2, 6, 4).requires_grad_()  # an offset
    v = torch.randn(3, 2, 6, 8)[..., ::2].requires_grad_()
    upstream = torch.randn(3, 2, 4, 6).mT
    leaves = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    out, _ = eyeline.attention(q, k, v, eyeline.causal(), backend=backend)
    same, _ = eyeline.attention(*leaves, eyeline.causal(), backend=backend)
    torch.testing.assert_close(out, same)
    for found, exact in zip(
        torch.autograd.grad(out, (q, k, v), upstream),
        torch.autograd.grad(same, leaves, upstream.contiguous()),
    ):
        torch.testing.assert_close(found, exact)


def test_case_18_future_keys(backend: str) -> None:
    q, k, v = inputs(40)
    before, weights = eyeline.attention(q, k, v, eyeline.causal(), backend=backend)
    k, v = k.clone(), v.clone()
    k[..., 20:, :], v[..., 20:, :] = 1e6, float("nan")
    after, changed = eyeline.attention(q, k, v, eyeline.causal(), backend=backend)
    assert torch.equal(before[..., :20, :], after[..., :20, :])
    assert torch.equal(weights[..., :20, :].to_dense(), changed[..., :20, :].to_dense())


def test_case_19_received_by_causal(backend: str) -> None:
    weights = eyeline.weights(flat(4), flat(2), eyeline.causal(offset=0), backend=backend)
    torch.testing.assert_close(eyeline.received(weights).values, torch.tensor([2.5, 1.5]))
    torch.testing.assert_close(
        eyeline.received(weights, mean=True).values, torch.tensor([0.625, 0.5])
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_case_20_padding(backend: str, side: str) -> None:
    """Two lengths in one batch: the real tokens' weights are the unpadded run's."""
    q, k, v = inputs(6, dtype=torch.float64)
    lengths = torch.tensor([6, 4])
    mask = eyeline.causal() & eyeline.padding(lengths, side=side)  # type: ignore[arg-type]
    out, weights = eyeline.attention(q, k, v, mask, backend=backend)
    real = slice(2, 6) if side == "left" else slice(0, 4)
    alone, of = eyeline.attention(
        *(x[1:, :, real] for x in (q, k, v)), eyeline.causal(), backend=backend
    )
    torch.testing.assert_close(out[1:, :, real], alone)
    torch.testing.assert_close(weights[1:, :, real, real].to_dense(), of.to_dense())
    assert weights.to_dense().isfinite().all()
    assert out.isfinite().all()


@pytest.mark.parametrize("size", [4_000, 50_000])
def test_case_26_large_scores(backend: str, size: int) -> None:
    """Rows of sums over 64 dimensions, float32, judged by float64 of the same float32 scores."""
    q, k, _ = inputs(64, 512, D=64)
    weights = eyeline.weights(q * size / 4, k, backend=backend)
    scores = weights.scores()
    assert scores.abs().max() > size / 2
    exact = scores.double().softmax(-1)
    assert (weights.sum(-1) - 1).abs().max() < 1e-4
    assert (weights[..., 5, :].sum(-1) - 1).abs().max() < 1e-4
    assert (weights[..., 8:24, :].to_dense().sum(-1) - 1).abs().max() < 1e-4
    assert (eyeline.entropy(weights).values - oracle.entropy(exact)).abs().max() < 1e-3


@pytest.mark.parametrize("rule", ["half of the keys", "two documents"])
def test_case_27_scattered_keys(backend: str, rule: str) -> None:
    """Right rows at 16 384 keys; nothing of the lowered mask is T x T."""
    T = 16_384 if backend != "reference" else 1024
    keep = torch.rand(T) < 0.5
    ids = torch.arange(T) % 2
    mask = masks.only(keep) if rule == "half of the keys" else masks.documents(ids)
    q, k, v = torch.randn(T, 8), torch.randn(T, 8), torch.randn(T, 3)
    weights = eyeline.weights(q, k, mask, backend=backend)
    assert weights.problem.visible is not None
    assert weights.problem.visible.nbytes <= 64 * T
    for i in (0, T // 3, T - 1):
        seen = keep if rule == "half of the keys" else ids == ids[i]
        exact = oracle.dense(q[i : i + 1], k, v, seen[None])
        torch.testing.assert_close(weights[i].double(), exact.weights[0], rtol=1e-4, atol=1e-9)
    few = torch.arange(0, T, T // 64)
    out, _ = eyeline.attention(q[few], k, v, masks.only(keep), backend=backend)
    exact = oracle.dense(q[few], k, v, keep[None])
    torch.testing.assert_close(out.double(), exact.out, rtol=1e-4, atol=1e-5)


def test_case_28_gradient_of_received_with_groups(backend: str) -> None:
    setting = Setting(*inputs(6, 9, Hq=4, Hk=2), eyeline.causal(), oracle.causal(6, 9))
    check(setting, lambda o, w: eyeline.received(w).values, lambda d: d.weights.sum(-2), backend)


FORK = """
    import os, sys
    import torch, eyeline

    def once():
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 300, 16, requires_grad=True) for _ in range(3))
        out, w = eyeline.attention(q, k, v, eyeline.causal(), backend=sys.argv[1])
        out.sum().backward()
        found = [out.sum(), eyeline.entropy(w).values.sum(), q.grad.abs().sum()]
        return torch.stack(found).detach()

    expected = once()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # OpenMP's threads do not live on in a child
        os._exit(0 if torch.allclose(once(), expected, rtol=1e-3) else 1)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_case_29_fork_after_use(backend: str) -> None:
    if backend == "small tiles":  # known to this process alone
        return
    program = textwrap.dedent(FORK)
    done = subprocess.run(
        [sys.executable, "-c", program, backend.split()[0]],
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


INTERRUPT = """
    import os, signal, sys, threading, time
    import torch, eyeline

    q = torch.randn(1, {T}, 64)
    eyeline.attention(q[:, :64], q[:, :64], q[:, :64], backend=sys.argv[1])
    start = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        _, w = eyeline.attention(q, q, q, backend=sys.argv[1])
        while True:
            eyeline.read(w, eyeline.entropy, eyeline.received)
    except KeyboardInterrupt:
        sys.exit(0 if time.monotonic() - start < 4 else 1)
"""


@pytest.mark.slow
def test_case_29_interrupted(backend: str) -> None:
    """Ctrl-C is answered between two tiles."""
    if backend == "small tiles":
        return
    program = textwrap.dedent(INTERRUPT).format(T=16_384 if backend != "reference" else 2048)
    done = subprocess.run(
        [sys.executable, "-c", program, backend.split()[0]],
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
