"""How lazy weights print: what torch prints for the dense tensor, and one line of what they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from eyeline.lazy.indexing import ALL
from eyeline.lazy.matrix import nbytes, size_text

if TYPE_CHECKING:
    from eyeline.lazy.tensor import Weights


def entries_text(weights: Weights) -> str:
    """What torch prints for the dense tensor, computing only the entries that it prints."""
    options = torch._tensor_str.PRINT_OPTS
    if math.prod(weights.shape) <= options.threshold:
        return repr(weights._entries("print", math.inf).detach())
    edge = max(int(options.edgeitems), 1)
    # A stand-in with one filler entry where torch writes "...": it prints the same text.
    ends = [
        list(range(edge)) + list(range(n - edge, n)) if n > 2 * edge else list(range(n))
        for n in weights.shape
    ]
    shown: Any = weights.detach()
    for dim, kept in enumerate(ends[:-2]):
        shown = shown[(ALL,) * dim + (torch.tensor(kept),)]
    block = shown[..., torch.tensor(ends[-2]), :][..., torch.tensor(ends[-1])]
    for dim, (n, kept) in enumerate(zip(weights.shape, ends, strict=True)):
        if n > 2 * edge:
            first, last = block.split([edge, len(kept) - edge], dim)
            block = torch.cat((first, torch.zeros_like(first.narrow(dim, 0, 1)), last), dim)
    with torch._tensor_str.printoptions(threshold=0):
        return repr(block)


def summary(weights: Weights) -> str:
    """One line: shape, mask, what the weights keep and what the dense tensor would take."""
    body = weights._body
    parts = [f"weights {list(weights.shape)} {str(weights.dtype).removeprefix('torch.')}"]
    if body.view.mean_heads:
        parts.append(f"mean of {body.problem.Hq} heads")
    if body.problem.rule is not None:
        parts.append(body.problem.rule.formula)
    kept, dense = size_text(body.problem.nbytes), size_text(nbytes(weights))
    parts.append(f"keeps {kept}, the dense tensor would take {dense}")
    return " · ".join(parts)
