"""Masks, of which only what is visible shall cost time, and biases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import eyeline
from benchmarks.goals.forward import square, tensors
from benchmarks.goals.goal import Figure, Goal, Pair, Point, Size, close
from benchmarks.others import flex
from eyeline.biases import alibi, alibi_slopes, relative
from eyeline.masks import Mask, documents, padding, prefix

BACK = 255


def band(T: int) -> Tensor:
    """Each row sees itself and BACK keys before it."""
    return torch.ones(T, T, dtype=torch.bool).tril().triu(-BACK)


def windowed(size: Size) -> Pair:
    """Beside torch's attention with the mask as a tensor."""
    q, k, v = square(size(8192), 64, 2)
    mask, dense = eyeline.window(BACK) & eyeline.causal(), band(q.shape[2])
    return Pair(
        lambda: eyeline.attention(q, k, v, mask)[0],
        lambda: F.scaled_dot_product_attention(q, k, v, dense),
        same=close,
    )


def windowed_flex(size: Size) -> Pair:
    """Beside FlexAttention, compiled, its mask of blocks made beforehand."""
    q, k, v = square(size(8192), 64, 2)
    mask = eyeline.window(BACK) & eyeline.causal()
    other = flex(q.shape[2], lambda b, h, i, j: (i >= j) & (i - j <= BACK))
    return Pair(lambda: eyeline.attention(q, k, v, mask)[0], lambda: other(q, k, v), same=close)


def visible_share(mask: Mask, q: Tensor, k: Tensor, v: Tensor, share: float) -> Pair:
    """Beside the same attention without the mask, of whose time the share counts."""
    return Pair(
        lambda: eyeline.attention(q, k, v, mask)[0],
        lambda: eyeline.attention(q, k, v)[0],
        share=share,
    )


def sixteen_documents(size: Size) -> Pair:
    """Documents of 1, 2, …, 16 shares of the text."""
    q, k, v = square(size(8192), 64, 2)
    T = q.shape[2]
    ends = [T * n * (n + 1) // 2 // 136 for n in range(17)]
    lengths = torch.tensor([b - a for a, b in zip(ends, ends[1:])])
    ids = torch.arange(16).repeat_interleave(lengths)
    return visible_share(documents(ids), q, k, v, float((lengths**2).sum()) / T**2)


def padded(size: Size) -> Pair:
    """Four texts of which the shortest fills a quarter."""
    T = size(4096)
    lengths = torch.tensor([T, T * 3 // 4, T // 2, T // 4])
    q, k, v = tensors((1, 1), (T, T), (64, 64), batch=4)
    return visible_share(padding(lengths), q, k, v, float(lengths.sum()) / (4 * T))


def prefixed(size: Size) -> Pair:
    """Causal behind a prefix of a quarter that everyone sees."""
    q, k, v = square(size(8192), 64, 2)
    T = q.shape[2]
    n = T // 4
    seen = n * n + sum(range(n + 1, T + 1))
    return visible_share(eyeline.causal() | prefix(n), q, k, v, seen / T**2)


def biased(bias: Any, dense: Tensor, given: tuple[Tensor, ...]) -> Pair:
    """Beside torch's attention with the bias as a tensor of queries by keys."""
    q, k, v = given
    return Pair(
        lambda: eyeline.attention(q, k, v, bias=bias)[0],
        lambda: F.scaled_dot_product_attention(q, k, v, dense),
        same=close,
    )


def full_bias(size: Size) -> Pair:
    """One number for each head, query and key."""
    q, k, v = square(size(2048), 64, 4)
    bias = torch.randn(1, 4, q.shape[2], q.shape[2])
    return biased(bias, bias, (q, k, v))


def slopes(size: Size) -> Pair:
    """ALiBi."""
    q, k, v = square(size(2048), 64, 4)
    place = torch.arange(q.shape[2])
    apart = (place - place[:, None]).abs().float()
    dense = -alibi_slopes(4)[:, None, None] * apart
    return biased(alibi(alibi_slopes(4)), dense[None], (q, k, v))


def table(size: Size) -> Pair:
    """A bias for each relative place."""
    q, k, v = square(size(2048), 64, 4)
    T = q.shape[2]
    entries = torch.randn(4, 2 * T - 1)
    place = torch.arange(T)
    dense = entries[:, place - place[:, None] + T - 1]
    return biased(relative(entries), dense[None], (q, k, v))


def capped(size: Size) -> Pair:
    """Scores 20·tanh(score / 20), beside attention without it."""
    q, k, v = square(size(2048), 64, 4)
    return Pair(
        lambda: eyeline.attention(q, k, v, softcap=20.0)[0],
        lambda: eyeline.attention(q, k, v)[0],
    )


def masks() -> Iterator[Goal]:
    """A window; then masks beside the visible share of the time of everything."""
    work = "window(255) & causal(), T 8192"
    one = (Point("window beside SDPA with mask", windowed),)
    yield Goal("masks", work, "torch SDPA with mask", one, 20.0)
    two = (Point("window beside FlexAttention", windowed_flex),)
    yield Goal("masks", work, "compiled FlexAttention", two, 2.0)
    for name, make in (
        ("16 documents of unequal length, T 8192", sixteen_documents),
        ("padding to T 4096", padded),
        ("causal with a prefix, T 8192", prefixed),
    ):
        against = "its visible share of the time without mask"
        yield Goal("masks", name, against, (Point(name, make),), 1.25, Figure.COST)


def biases() -> Iterator[Goal]:
    """Each beside the bias as a tensor."""
    against, work = "torch SDPA with the bias", "T 2048, D 64"
    full, far = Point("full bias", full_bias), (Point("ALiBi", slopes), Point("relative", table))
    yield Goal("biases", f"full bias, {work}", against, (full,), 1.3)
    yield Goal("biases", f"ALiBi, relative, {work}", against, far, 1.4)
    cap = (Point("softcap", capped),)
    yield Goal("biases", f"softcap, {work}", "attention without it", cap, None, Figure.COST)
