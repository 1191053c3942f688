"""The definition of attention, dense and in float64, written without eyeline.

Everything the tests believe is here or in PyTorch itself. `dense` takes the visible pairs as a
plain bool tensor; the functions at the end write each mask rule and reading as its definition.
Run in the inputs' own dtype, the same code is "plain PyTorch": its error against float64 is the
yardstick for every tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HIDDEN = float("-inf")


@dataclass(frozen=True)
class Dense:
    """Everything attention could be asked, as whole tensors."""

    scores: Tensor  # [*lead, Tq, Tk] after scale, softcap, bias and mask
    weights: Tensor  # [*lead, Tq, Tk]
    lse: Tensor  # [*lead, Tq]
    out: Tensor | None  # [*lead, Tq, Dv]


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    visible: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Dense:
    """Attention by its formula: scale, softcap, bias, mask, softmax (with sink), weighted sum."""
    q, k = q.to(dtype), per_query_head(k.to(dtype), q)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(dtype)
    if visible is not None:
        scores = torch.where(visible, scores, HIDDEN)
    logits = scores
    if sinks is not None:  # one more key that has a logit and no value
        sink = sinks.to(dtype).reshape(-1, 1, 1) if q.dim() > 3 else sinks.to(dtype).reshape(1, 1)
        logits = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
    logits = torch.nn.functional.pad(logits, (0, 1), value=HIDDEN)  # a maximum where Tk = 0
    largest = logits.detach().amax(-1, keepdim=True)
    largest = torch.where(largest == HIDDEN, 0.0, largest)
    total = torch.exp(logits - largest).sum(-1, keepdim=True)
    nothing = total == 0
    total = torch.where(nothing, 1.0, total)
    weights = torch.exp(scores - largest) / total
    lse = torch.where(nothing, HIDDEN, largest + total.log()).squeeze(-1)
    out = None if v is None else weights @ per_query_head(v.to(dtype), q)
    return Dense(scores, weights, lse, out)


def per_query_head(x: Tensor, q: Tensor) -> Tensor:
    """Query head h reads key head h // (Hq // Hk)."""
    return x if q.dim() < 4 else x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3)


def entropy(weights: Tensor) -> Tensor:
    """-sum p log p per row, in nats; 0 log 0 is 0."""
    return -(weights * torch.where(weights > 0, weights, 1.0).log()).sum(-1)


def positions(Tq: int, Tk: int, offset: int | None = None) -> Tensor:
    """Position of each query: the last query stands at the last key."""
    return torch.arange(Tq)[:, None] + (Tk - Tq if offset is None else offset)


def causal(Tq: int, Tk: int, offset: int | None = None) -> Tensor:
    return torch.arange(Tk)[None] <= positions(Tq, Tk, offset)


def window(Tq: int, Tk: int, before: int, after: int = 0, offset: int | None = None) -> Tensor:
    at, j = positions(Tq, Tk, offset), torch.arange(Tk)[None]
    return (j >= at - before) & (j <= at + after)


def distance(weights: Tensor) -> Tensor:
    """Mean of |position(i) - j| under the weights."""
    Tq, Tk = weights.shape[-2:]
    return (weights * (positions(Tq, Tk) - torch.arange(Tk)[None]).abs()).sum(-1)


def diagonal(weights: Tensor, offset: int) -> Tensor:
    """The weight of key position(i) + offset, 0 where there is none."""
    Tq, Tk = weights.shape[-2:]
    there = torch.arange(Tk)[None] == positions(Tq, Tk) + offset
    return torch.where(there, weights, 0.0).sum(-1)


def pooled(weights: Tensor, rows: list[int], cols: list[int], reduce: str = "mean") -> Tensor:
    """Mean or max of the weights in each cell between consecutive edges."""
    cells = [
        [
            weights[..., r0:r1, c0:c1].mean((-2, -1))
            if reduce == "mean"
            else weights[..., r0:r1, c0:c1].amax((-2, -1))
            for c0, c1 in zip(cols, cols[1:])
        ]
        for r0, r1 in zip(rows, rows[1:])
    ]
    return torch.stack([torch.stack(line, -1) for line in cells], -2)
