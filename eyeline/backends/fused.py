"""torch's own fused attention on the CPU that returns the logsumexp, exactly where it is right.

It knows no sinks, softcap or key lengths, aligns causal to the top left, multiplies hidden values
by 0 (NaN leaks), answers lse 0 for rows that see nothing, dies on empty inputs and returns
meaningless numbers for scores beyond float32. So it is used only for plain or square causal
attention over non-empty, finite inputs of moderate scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.backends.base import Gradients, Values
from eyeline.backends.strips import like_query
from eyeline.problem import Problem
from eyeline.visibility import Visible

LARGEST_SCORE = 1e4  # far from overflow in every intermediate


def _kind(problem: Problem, v: Tensor) -> str | None:
    """The operator's mask, "full" or "causal", where the problem's form is one it takes."""
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


def _sound_rows(problem: Problem, v: Tensor, kind: str) -> Tensor:
    """The queries, in every batch entry and head, that the operator gets right: bool [Tq].

    A score is at most |q|·|k|·scale (Cauchy–Schwarz). Under causal only what a row may see counts,
    so that changing a later key never moves an earlier row from one way of computing to the other.
    """
    q = torch.linalg.vector_norm(problem.q, dim=-1, dtype=torch.float32)
    k = torch.linalg.vector_norm(problem.k, dim=-1, dtype=torch.float32)
    # NaN is no number to compare with: it counts as infinite, as does a key without a finite value.
    k = torch.where(v.isfinite().all(-1), k, torch.inf).nan_to_num(torch.inf)
    k = k.repeat_interleave(problem.group, 1)
    if kind == "causal":
        sound: Tensor = q * k.cummax(-1).values * abs(problem.scale) < LARGEST_SCORE
        return sound.flatten(0, 1).all(0).cummin(-1).values
    sound = q * k.amax(-1, keepdim=True) * abs(problem.scale) < LARGEST_SCORE
    return sound.all().expand(problem.Tq)


def forward(problem: Problem, v: Tensor) -> tuple[Tensor, Tensor, int] | None:
    """``out``, lse, and for how many first rows they hold; None where it does not apply."""
    kind = _kind(problem, v)
    if kind is None:
        return None
    sound = int(_sound_rows(problem, v, kind).sum())
    if sound == 0:
        return None
    q, k, values = (
        _plain(t, sound if kind == "causal" else None) for t in (problem.q, problem.k, v)
    )
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, values, 0.0, kind == "causal", scale=problem.scale
    )
    return like_query(problem.q, v.shape[-1]).copy_(out), lse, sound


def backward(problem: Problem, values: Values, wanted: frozenset[str]) -> Gradients | None:
    """The gradients of attention, or None where the operator does not apply to every row."""
    if (
        values.dropout is not None
        or values.out is None
        or values.lse is None
        or values.grad is None
    ):
        return None
    kind = _kind(problem, values.v)
    grad = values.grad
    # In half precision its backward rounds what strips do not.
    if kind is None or problem.q.dtype != torch.float32:
        return None
    if not bool(_sound_rows(problem, values.v, kind).all() & grad.isfinite().all()):
        return None
    q, k, v = (_plain(t) for t in (problem.q, problem.k, values.v))
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad.contiguous(),
        q,
        k,
        v,
        values.out.contiguous(),
        values.lse,
        0.0,
        kind == "causal",
        scale=problem.scale,
    )
    own = {"q": dq, "k": dk, "bias": None, "relative": None, "sinks": None}
    return Gradients(
        {n: t if n in wanted else None for n, t in own.items()}, dv if "v" in wanted else None, []
    )


def _plain(t: Tensor, sound: int | None = None) -> Tensor:
    """Contiguous, as the operator needs it; tokens from ``sound`` on are 0."""
    if sound is not None and sound < t.shape[2]:
        t = torch.cat((t[:, :, :sound], torch.zeros_like(t[:, :, sound:])), 2)
    return t.contiguous()
