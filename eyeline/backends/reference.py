"""The definition of attention: dense, in plain PyTorch, to be read aloud.

Every other backend answers to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eyeline.backends.base import Backend, Dropout, Gradients, Result, State, Term, Values
from eyeline.backends.passes import backward_pass, forward_pass, reduce_pass
from eyeline.backends.reductions import Entries, Reduction, View
from eyeline.backends.strips import Strip
from eyeline.problem import Problem


def dense(problem: Problem) -> Strip:
    """The whole matrix as one strip; plain differentiable torch, derivatives of every order.

    ``softmax(softcap(q kᵀ · scale) + bias)`` over the visible keys, with the sink as one more logit
    that has no value. A row that sees nothing is 0.
    """
    q = problem.q.to(problem.statistics)
    k = problem.k.to(problem.statistics).repeat_interleave(problem.group, dim=1)
    scores = q @ k.mT * problem.scale
    capped = None
    if problem.softcap is not None:
        scores = capped = problem.softcap * torch.tanh(scores / problem.softcap)
    biases = [] if problem.bias is None else [problem.bias.to(scores.dtype)]
    if problem.relative is not None:
        biases.append(problem.relative_tile(problem.positions(), slice(None)))
    for bias in biases:
        scores = scores + bias

    visible = torch.ones_like(scores, dtype=torch.bool)
    if problem.visible is not None:
        may_see = problem.visible.tile(slice(0, problem.Tq), slice(0, problem.Tk))
        visible = visible if may_see is None else visible & may_see
    for bias in biases:
        visible = visible & (bias != -torch.inf)
    scores = scores.masked_fill(~visible, -torch.inf)

    logits = scores
    if problem.sinks is not None:
        sink = problem.sinks.to(scores.dtype)[..., None, None]
        logits = torch.cat((scores, sink.expand(*scores.shape[:-1], 1)), -1)
    m = (
        logits.detach().amax(-1)
        if logits.shape[-1]
        else logits.new_full(logits.shape[:-1], -torch.inf)
    )
    e = torch.exp(logits - torch.where(m == -torch.inf, 0.0, m).unsqueeze(-1))
    total = e.sum(-1)
    weights = e[..., : problem.Tk] / torch.where(total == 0, 1.0, total).unsqueeze(-1)
    weights = weights.masked_fill(~visible, 0.0)

    N, Hq, Tq, Tk = weights.shape
    everything = {"n": slice(0, N), "h": slice(0, Hq), "rows": slice(0, Tq), "cols": slice(0, Tk)}
    parts = {
        "weights": weights,
        "scores": scores,
        "m": m,
        "l": total,
        "visible": visible,
        "capped": capped,
    }
    return Strip(problem, **everything, **parts, width=Tk)  # type: ignore[arg-type]


class Reference(Backend):
    """Dense attention: T × T memory, every rule of DESIGN.md."""

    name = "reference"

    def unsupported(self, problem: Problem) -> list[str]:
        return []

    def forward(
        self, problem: Problem, v: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor, State | None]:
        return forward_pass(problem, [dense(problem)], v, dropout)

    def finds_state(self, reductions: Sequence[Reduction], view: View) -> bool:
        return False

    def reduce(
        self,
        problem: Problem,
        reductions: Sequence[Reduction],
        view: View,
        state: State | None = None,
    ) -> list[Result]:
        return reduce_pass(problem, [dense(problem)], reductions, view)

    def backward(
        self,
        problem: Problem,
        values: Values | None,
        terms: Sequence[Term],
        view: View,
        lse_grad: Tensor | None,
        wanted: frozenset[str],
    ) -> Gradients:
        return backward_pass(problem, [dense(problem)], values, terms, view, lse_grad, wanted)

    def tile(self, problem: Problem, state: State, cols: Tensor) -> Tensor:
        return Entries(cols).of(dense(problem))[0]
