"""torch's own fused attention on the CPU that returns the logsumexp, exactly where it is right.

It knows no sinks, softcap or key lengths, aligns causal to the top left, multiplies hidden values by 0 (NaN leaks), answers
lse 0 for rows that see nothing, dies on empty inputs and returns meaningless numbers for scores beyond float32. So it is
used only for plain or square causal attention over non-empty, finite inputs of moderate scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.backends.base import Gradients, State, Values
from eyeline.backends.strips import like_query
from eyeline.problem import Problem
from eyeline.visibility import Visible

LARGEST_SCORE = 1e4  # far from overflow in every intermediate
LARGEST_STATE = 64.0  # an lse of another summation order gives weights to 64 · 2⁻²⁴ · a few, as good as float32's own


def _kind(problem: Problem, v: Tensor) -> str | None:
    """"full" or "causal" where the fused operator applies by its shape, else None."""
    q, k = problem.q, problem.k
    if problem.sinks is not None or problem.softcap is not None or problem.bias is not None:
        return None
    if problem.relative is not None or q.device.type != "cpu" or v.shape[-1] != q.shape[-1]:
        return None
    if v.shape[1] != k.shape[1] or 0 in q.shape or 0 in k.shape or q.dtype == torch.float64:
        return None
    visible = problem.visible
    if visible is None:
        return "full"
    if problem.Tq == problem.Tk and problem.position_step == 1 and _is_causal(visible):
        return "causal"
    return None


def _is_causal(visible: Visible) -> bool:
    """Whether row i sees exactly the keys 0..i."""
    others = (visible.keep, visible.q_ids, visible.k_ids, visible.dense)
    if visible.starts is None or visible.stops is None or any(part is not None for part in others):
        return False
    if tuple(visible.stops.shape) != (1, 1, visible.Tq, 1) or bool((visible.starts != 0).any()):
        return False
    return bool((visible.stops.flatten() == torch.arange(1, visible.Tq + 1)).all())


def _largest_score(problem: Problem) -> float:
    """No score is larger than this (Cauchy–Schwarz); NaN or inf if q or k holds one."""
    q = torch.linalg.vector_norm(problem.q, dim=-1, dtype=torch.float32).amax()
    k = torch.linalg.vector_norm(problem.k, dim=-1, dtype=torch.float32).amax()
    return float(q * k) * abs(problem.scale)


def forward(problem: Problem, v: Tensor) -> tuple[Tensor, Tensor, State | None] | None:
    kind = _kind(problem, v)
    if kind is None:
        return None
    largest = _largest_score(problem)
    if not largest < LARGEST_SCORE or not bool(v.isfinite().all()):
        return None
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        _rows_dense(problem.q), _rows_dense(problem.k), _rows_dense(v), 0.0, kind == "causal", scale=problem.scale
    )
    out = like_query(problem.q, v.shape[-1]).copy_(out)
    state = State(lse, torch.ones_like(lse)) if largest < LARGEST_STATE else None
    return out, lse, state


def backward(problem: Problem, values: Values, wanted: frozenset[str]) -> Gradients | None:
    if values.dropout is not None or values.out is None or values.lse is None or values.grad is None:
        return None
    kind = _kind(problem, values.v)
    grad = values.grad
    if kind is None or problem.q.dtype != torch.float32:  # in half precision its backward rounds what strips do not
        return None
    if not _largest_score(problem) < LARGEST_SCORE or not bool((values.v.isfinite().all() & grad.isfinite().all())):
        return None
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad.contiguous(),
        _rows_dense(problem.q),
        _rows_dense(problem.k),
        _rows_dense(values.v),
        values.out,
        values.lse,
        0.0,
        kind == "causal",
        scale=problem.scale,
    )
    own = {"q": dq, "k": dk, "bias": None, "relative": None, "sinks": None}
    return Gradients({n: t if n in wanted else None for n, t in own.items()}, dv if "v" in wanted else None, [])


def _rows_dense(t: Tensor) -> Tensor:
    """The operator reads rows with stride 1."""
    return t if t.stride(-1) == 1 else t.contiguous()
