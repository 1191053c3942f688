"""Owed: the state per row, and what surrounds a call: modes, copies, threads, processes."""

from __future__ import annotations

import copy
import pickle
import threading

import torch

import eyeline
from eyeline import masks
from tests import oracle
from tests.conformance import Setting, inputs, owed


@owed()
def no_grad_and_inference_mode(backend: str) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(6, 9))
    expected = eyeline.attention(q, k, v, backend=backend)[0].detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out, w = eyeline.attention(q, k, v, backend=backend)
            entropy = eyeline.entropy(w).values
            dense = w.to_dense()
        assert not (out.requires_grad)
        assert not (w.requires_grad)
        assert not (entropy.requires_grad)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(dense.sum(-1), torch.ones(2, 2, 6))


@owed()
def inference_tensors(backend: str) -> None:
    """They have no version counter, and are asked after the mode ends."""
    with torch.inference_mode():
        q, k, v = (x.clone() for x in inputs(6, 9))
        out, w = eyeline.attention(q, k, v, backend=backend)
    torch.testing.assert_close(w.sum(-1), torch.ones(2, 2, 6))
    assert torch.isfinite(out).all()


@owed()
def detached_weights_hold_no_graph(backend: str) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(6, 9))
    _, w = eyeline.attention(q, k, v, backend=backend)
    assert w.requires_grad
    assert eyeline.entropy(w).values.requires_grad
    quiet = w.detach()
    assert not quiet.requires_grad
    assert not eyeline.entropy(quiet).values.requires_grad
    torch.testing.assert_close(quiet.to_dense(), w.to_dense())


@owed()
def deepcopy_of_weights(backend: str) -> None:
    _, w = eyeline.attention(*inputs(6, 9), eyeline.causal(), backend=backend)
    again = copy.deepcopy(w)
    torch.testing.assert_close(again.to_dense(), w.to_dense())
    torch.testing.assert_close(eyeline.entropy(again).values, eyeline.entropy(w).values)


@owed()
def masks_are_pickled(backend: str) -> None:
    rules = {
        "causal": eyeline.causal(),
        "joined": (eyeline.causal(offset=1) & eyeline.padding(torch.tensor([3, 6])))
        | masks.prefix(2),
        "table": ~masks.from_tensor(torch.rand(6, 9) < 0.5),
    }
    q, k, v = inputs(6, 9)
    for rule in rules.values():
        again = pickle.loads(pickle.dumps(rule))
        out = eyeline.attention(q, k, v, rule, backend=backend)[0]
        assert torch.equal(out, eyeline.attention(q, k, v, again, backend=backend)[0])
        assert torch.equal(out, eyeline.attention(q, k, v, copy.deepcopy(rule), backend=backend)[0])


@owed()
def six_threads_at_once(backend: str) -> None:
    """Right results each, gradients too."""
    settings = [Setting(*inputs(60 + 10 * i, 90, dtype=torch.float64)) for i in range(6)]
    expected = [s.dense() for s in settings]
    found: list[object] = [None] * 6

    def work(i: int) -> None:
        try:
            for _ in range(3):
                setting, leaves = settings[i].learning()
                out, w = setting.attention(backend)
                torch.testing.assert_close(out, expected[i].out)
                torch.testing.assert_close(
                    eyeline.entropy(w).values, oracle.entropy(expected[i].weights)
                )
                out.sum().backward()
                assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves.values())
            found[i] = True
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6


@owed()
def functional_transforms_agree(backend: str) -> None:
    """torch.func.grad sees the same gradient as backward."""
    q, k, v = inputs(5, 7, dtype=torch.float64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return eyeline.attention(x, k, v, eyeline.causal(), backend=backend)[0].square().sum()

    leaf = q.clone().requires_grad_()
    loss(leaf).backward()
    torch.testing.assert_close(torch.func.grad(loss)(q), leaf.grad)
