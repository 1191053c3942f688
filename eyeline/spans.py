"""What part of the weights is meant: spans of tokens, edges of cells, a rectangle. Checked here.

`weights_over` gives the weights over spans, such as words, in place of tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import ArgumentError
from eyeline.lazy import Weights
from eyeline.lazy.spanned import Sets, SpannedWeights, spanned

__all__ = ["weights_over"]


def weights_over(weights: Weights, rows: Any = None, cols: Any = None) -> SpannedWeights:
    """The weights over spans of tokens: columns added, rows averaged, as a lazy matrix.

    `weights` is ``[*lead, Tq, Tk]``, the result ``[*lead, len(rows), len(cols)]``: entry (I, J) is
    ``1/|I| Σ_{i in I} Σ_{j in J} w[i, j]``, so where `cols` hold every key once a row sums to what
    it did. Spans are a list of ``(start, stop)``, slices, lists of indices or bool tensors ``[T]``,
    also overlapping, or the `Words` of a text; None leaves the tokens. Entropy, `received`, `top`
    and the other readings of the result are over spans. Differentiable; its readings then keep the
    merged rows, `@` does not.

    >>> import torch, eyeline
    >>> weights = eyeline.weights(torch.zeros(4, 1), torch.zeros(4, 1), eyeline.causal())
    >>> words = weights_over(weights, [(0, 1), (1, 4)], [(0, 1), (1, 4)])   # 1 and 3 tokens
    >>> words.to_dense(), eyeline.entropy(words).values
    (tensor([[1.0000, 0.0000],
            [0.3611, 0.6389]]), tensor([0.0000, 0.6541]))
    """
    if not isinstance(weights, Weights) or isinstance(weights, SpannedWeights):
        raise ArgumentError(
            "weights_over() takes the weights over tokens that eyeline.attention, eyeline.weights "
            f"or a watched run gives, and got {type(weights).__name__}."
        )
    Tq, Tk = weights.shape[-2:]
    return spanned(
        weights,
        _sets(rows, Tq, "rows", weights.device),
        _sets(cols, Tk, "cols", weights.device),
    )


def _sets(spans: Any, size: int, name: str, device: torch.device) -> Sets | None:
    """Spans of one side as sets of tokens."""
    if spans is None:
        return None
    spans = getattr(spans, "spans", spans)  # the words of a text
    if isinstance(spans, (str, int, Tensor)) or not isinstance(spans, (list, tuple)):
        raise ArgumentError(
            f"weights_over({name}): spans are a list such as [(0, 1), (1, 4)] or the words of a "
            f"text, tokens.words(), and got {spans!r:.80}."
        )
    return Sets.of([_members(span, size, name, place) for place, span in enumerate(spans)], device)


def _members(span: Any, size: int, name: str, place: int) -> Tensor:
    """The tokens of one span."""
    if isinstance(span, slice):
        return torch.arange(size)[span]
    named = f"weights_over({name}): span {place}"
    if isinstance(span, tuple) and len(span) == 2 and all(isinstance(end, int) for end in span):
        start, stop = span
        if not 0 <= start <= stop <= size:
            raise ArgumentError(f"{named} is ({start}, {stop}), and the tokens are 0..{size}.")
        return torch.arange(start, stop)
    try:
        index = torch.as_tensor(span).cpu()
    except (TypeError, ValueError, RuntimeError):
        index = torch.zeros(1)
    if index.dtype == torch.bool and index.shape == (size,):
        return index.nonzero().flatten()
    if index.numel() == 0 and index.dim() == 1:
        return torch.zeros(0, dtype=torch.int64)
    if index.dtype == torch.bool or index.is_floating_point() or index.dim() != 1:
        raise ArgumentError(
            f"{named} is {span!r:.80}; give (start, stop), a list of tokens' indices or {size} "
            "bools, one per token."
        )
    wrong = index[(index < -size) | (index >= size)]
    if wrong.numel():
        raise ArgumentError(f"{named} names token {int(wrong[0])}, and there are {size}.")
    index = torch.where(index < 0, index + size, index).long()
    if len(index.unique()) != len(index):
        raise ArgumentError(f"{named} names a token twice: {span!r:.80}.")
    return index


def indicator(name: str, span: Any, Tk: int, device: torch.device) -> Tensor:
    """1 at the keys of a span."""
    keys = torch.zeros(Tk, device=device)
    if span is None:
        return keys
    if isinstance(span, tuple) and len(span) == 2 and all(isinstance(end, int) for end in span):
        start, stop = span
        if not 0 <= start <= stop <= Tk:
            raise ArgumentError(
                f"mass: span {name!r} is ({start}, {stop}), and the keys are 0..{Tk}."
            )
        keys[start:stop] = 1.0
        return keys
    try:
        index = torch.as_tensor(span, device=device)
    except (TypeError, ValueError, RuntimeError):
        index = torch.zeros(1)
    if index.dtype == torch.bool and index.shape == (Tk,):
        return index.to(keys.dtype)
    if index.numel() == 0:
        return keys
    if index.dtype == torch.bool or index.is_floating_point() or index.dim() != 1:
        raise ArgumentError(
            f"mass: a span is (start, stop), a list of key indices or {Tk} bools, one per key, and "
            f"span {name!r} is {span!r:.80}."
        )
    wrong = index[(index < -Tk) | (index >= Tk)]
    if wrong.numel():
        raise ArgumentError(
            f"mass: span {name!r} names key {int(wrong[0])}, and there are {Tk} keys."
        )
    keys[index.long()] = 1.0
    return keys


def cell_edges(cells: int | Sequence[int], first: int, last: int, name: str) -> Tensor:
    """Where cells begin and end: count + 1 increasing numbers."""
    if hasattr(cells, "__index__"):
        wanted = operator.index(cells)
        if wanted < 1:
            raise ArgumentError(
                f"pooled: {name} is a number of cells from 1 or a list of edges, and got {cells}."
            )
        count = max(min(wanted, last - first), 1)
        return torch.tensor([first + (last - first) * i // count for i in range(count + 1)])
    try:
        edges = torch.as_tensor(cells)
    except (TypeError, ValueError, RuntimeError):
        edges = torch.zeros(0)
    whole = edges.dim() == 1 and len(edges) >= 2 and not edges.is_floating_point()
    inside = whole and int(edges[0]) >= first and int(edges[-1]) <= last
    if not inside or bool((edges.diff() < 0).any()):
        raise ArgumentError(
            f"pooled: {name} is a number of cells, or edges that rise from {first} to {last} at "
            f"most, and got {cells!r:.80}."
        )
    return edges.long()


def rectangle(region: Any, Tq: int, Tk: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """``((r0, r1), (c0, c1))``, all of the weights by default."""
    if region is None:
        return (0, Tq), (0, Tk)
    try:
        (r0, r1), (c0, c1) = region
        return (operator.index(r0), operator.index(r1)), (operator.index(c0), operator.index(c1))
    except (TypeError, ValueError):
        raise ArgumentError(
            f"pooled: region is ((first row, end), (first column, end)), and got {region!r:.80}."
        ) from None
