"""How exact the backends are: at most twice the error of plain PyTorch, both against float64.

Plain PyTorch is the dense definition (`tests/oracle.py`) in the inputs' own dtype. The error of a
tensor is its root mean square: one entry's error is a matter of luck, and may be a few times plain
PyTorch's largest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import eyeline
from eyeline.backends import native
from eyeline.backends.cpu import Cpu
from tests import oracle

MULTIPLE = 2.0
MULTIPLE_OF_LARGEST = 4.0

Answers = tuple[Tensor, Tensor, Tensor]  # out, weights, entropy


@dataclass(frozen=True)
class Input:
    """Sizes, and how large queries and keys are."""

    Tq: int
    Tk: int
    deviation: float = 1.0
    causal: bool = False


INPUTS = {
    "normal": Input(300, 700),
    "causal": Input(512, 512, causal=True),
    "scores of thousands": Input(300, 700, deviation=30.0),
    "a few new tokens after a long text": Input(12, 32768),
    "a block of rows of a long text": Input(48, 32768),
    "large scores in a long text": Input(48, 32768, deviation=8.0),
}


def answers(
    ask: Callable[[Tensor, Tensor, Tensor], Answers],
    leaves: list[Tensor],
    upstream: tuple[Tensor, Tensor],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """What `ask` makes of q, k and v in a dtype, and its gradients, all as float64."""
    q, k, v = (x.to(dtype, copy=True).requires_grad_() for x in leaves)
    out, weights, entropy = ask(q, k, v)
    found = {"out": out, "weights": weights, "entropy": entropy}
    slopes = torch.autograd.grad(out, (q, k, v), upstream[0].to(out.dtype), retain_graph=True)
    found |= dict(zip(("dq of out", "dk of out", "dv of out"), slopes))
    slopes = torch.autograd.grad(entropy, (q, k), upstream[1].to(entropy.dtype))
    found |= dict(zip(("dq of entropy", "dk of entropy"), slopes))
    return {name: x.detach().double() for name, x in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", list(INPUTS))
def test_at_most_twice_the_error_of_plain_torch(name, dtype):
    given = INPUTS[name]
    sizes, deviation = (given.Tq, given.Tk, given.Tk), (given.deviation, given.deviation, 1.0)
    leaves = [
        (torch.randn(1, 2, n, 64, dtype=torch.float64) * size).to(dtype)
        for n, size in zip(sizes, deviation)
    ]
    upstream = (torch.randn(1, 2, given.Tq, 64), torch.randn(1, 2, given.Tq))
    upstream = (upstream[0].to(dtype), upstream[1])
    visible = torch.ones(given.Tq, given.Tk).tril().bool() if given.causal else None
    mask = eyeline.causal() if given.causal else None

    def defined(q: Tensor, k: Tensor, v: Tensor) -> Answers:
        dense = oracle.dense(q, k, v, visible, dtype=q.dtype)
        assert dense.out is not None
        return dense.out, dense.weights, oracle.entropy(dense.weights)

    exact = answers(defined, leaves, upstream, torch.float64)
    plain = answers(defined, leaves, upstream, dtype)
    for backend in ("tiled", *(Cpu(table=table) for table in native.tables())):

        def asked(q: Tensor, k: Tensor, v: Tensor) -> Answers:
            out, weights = eyeline.attention(q, k, v, mask, backend=backend)  # noqa: B023
            rows = [weights[..., i : i + 8, :].to_dense() for i in range(0, given.Tq, 8)]
            return out, torch.cat(rows, dim=-2), eyeline.entropy(weights).values

        for what, x in answers(asked, leaves, upstream, dtype).items():
            error, yardstick = (
                (tensor - exact[what]).nan_to_num(nan=torch.inf) for tensor in (x, plain[what])
            )
            where = f"{backend}: {what}"
            assert rms(error) <= MULTIPLE * rms(yardstick), where
            assert error.abs().max() <= MULTIPLE_OF_LARGEST * yardstick.abs().max(), where


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())
