"""The door: attention that returns its weights, and the weights alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eyeline.backends import choose, gradients, ops
from eyeline.backends.base import Backend, Dropout, State
from eyeline.backends.gradients import WHOLE
from eyeline.errors import ArgumentError, DtypeError
from eyeline.lazy import Weights, wrap
from eyeline.lazy.parts import Body
from eyeline.masks import Mask
from eyeline.problem import Problem, make


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    backend: str | Backend | None = None,
    **unknown: Any,
) -> tuple[Tensor, Weights]:
    """``softmax(q kᵀ / √D) v`` and, beside it, the weights: ``(out, weights)``.

    ``q [..., Hq, Tq, D]``, ``k [..., Hk, Tk, D]``, ``v [..., Hk, Tk, Dv]`` →
    ``out [..., Hq, Tq, Dv]`` and lazy ``weights [..., Hq, Tq, Tk]``; also ``[B, T, D]`` and
    ``[T, D]`` without heads. Hq is a multiple of Hk: query head h reads key head
    ``h // (Hq // Hk)``. Nothing of size Tq × Tk is formed.

    * ``mask``: who **may** be seen: `causal()`, `window`, `padding`, `eyeline.masks`, or a tensor
      of True/False or 1/0. A row that sees nothing gives 0.
    * ``bias``: added to the scores: a float tensor that broadcasts to the weights, or one of
      `eyeline.biases`.
    * ``scale``: ``D ** -0.5`` unless given.
    * ``softcap``: scores become ``c·tanh(score/c)``, before the bias.
    * ``sinks``: a logit per query head in the softmax that has no value: rows then sum to less
      than 1.
    * ``dropout``: the probability that a weight is left out of ``out``; the weights are those
      before dropout.
    * ``backend``: "cpu" (C++, where it is installed), "tiled" or "reference" (dense); the first
      that can unless named.

    Errors: ShapeError, DtypeError, MaskError, ArgumentError, BackendError, each with what to do.
    Source: Vaswani et al. 2017, "Attention is all you need", eq. 1.

    >>> import torch, eyeline
    >>> Q = K = torch.eye(2)
    >>> V = torch.tensor([[10.0], [20.0]])
    >>> output, weights = eyeline.attention(Q, K, V, eyeline.causal())
    >>> output
    tensor([[10.0000],
            [16.6976]])
    >>> weights[1]
    tensor([0.3302, 0.6698])
    """
    if unknown:
        raise TypeError(
            f"attention() has no argument {', '.join(unknown)}. A causal mask is "
            "mask=eyeline.causal(); torch's own arguments are those of "
            "eyeline.functional.scaled_dot_product_attention."
        )
    q, k, v = autocast(q, k, v)
    problem, values = make("attention", q, k, v, mask, bias, scale, softcap, sinks)
    out, body = attended(problem, values, dropout, backend)
    return out, wrap(body)


scaled_dot_product_attention = attention


def attended(
    problem: Problem, v: Tensor | None, dropout: float, backend: str | Backend | None = None
) -> tuple[Tensor, Body]:
    """`attention`'s output, and what its weights are made of; v is in the problem's form."""
    if v is None:
        raise DtypeError(
            "attention() needs v to be a torch.Tensor, and got None. The weights alone are "
            "eyeline.weights(q, k)."
        )
    problem, chosen = _settled(problem), choose(problem, backend)
    drop = _dropout(dropout)
    state: State | None = None
    with gradients.without_autocast(v.device):
        if ops.wanted_here():
            out, lse = ops.attend(ops.key_of(chosen), problem, v, drop)
            lse = lse.detach()
        else:
            out, lse, state = gradients.attend(chosen, problem, v, drop)
    lead = problem.lead
    body = Body(problem, chosen, _axes(lead), WHOLE, lse=lse, state=state)
    return out if len(lead) == 2 else out.reshape(*lead, *out.shape[2:]), body


def weights(
    q: Tensor,
    k: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    backend: str | Backend | None = None,
) -> Weights:
    """The weights ``softmax(q kᵀ / √D)`` ``[..., Hq, Tq, Tk]`` alone, computed when asked for.

    Arguments and errors are those of `attention`.

    >>> import torch, eyeline
    >>> weights = eyeline.weights(torch.ones(1, 4), torch.ones(3, 4))
    >>> weights[0]                       # three equal keys share the query
    tensor([0.3333, 0.3333, 0.3333])
    """
    q, k = autocast(q, k)
    problem, _ = make("weights", q, k, None, mask, bias, scale, softcap, sinks)
    problem = _settled(problem)
    return wrap(Body(problem, choose(problem, backend), _axes(problem.lead), WHOLE))


def _axes(lead: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the leading dimensions."""
    if len(lead) == 2:  # most often, and asked by small calls
        return ("batch", "head")
    if len(lead) < 2:
        return ("batch",)[: len(lead)]
    return ("batch", *(f"batch_{i}" for i in range(1, len(lead) - 1)), "head")


def _settled(problem: Problem) -> Problem:
    """Without grad mode the weights carry no gradient later either, as any tensor made there."""
    settled = torch.is_grad_enabled() or not problem.requires_grad
    return problem if settled else problem.detach()


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """As F.scaled_dot_product_attention gets them: all but float64 in autocast's dtype, if on."""
    if not torch._C._is_any_autocast_enabled():  # most often, and asked in passing
        return tensors
    first = tensors[0]
    if not isinstance(first, Tensor) or not torch.amp.is_autocast_available(first.device.type):
        return tensors
    if not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(
        t.to(dtype)
        if isinstance(t, Tensor) and t.is_floating_point() and t.dtype != torch.float64
        else t
        for t in tensors
    )


def _dropout(p: float) -> Dropout | None:
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0.0 <= p <= 1.0:
        raise ArgumentError(
            f"attention() needs dropout to be a probability in 0..1, and got {p!r}."
        )
    if p == 0:
        return None
    return Dropout(float(p), torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64))
