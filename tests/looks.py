"""Made-up looks for the tests of the views, and the plain way to the numbers of real ones."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.looking.data import Fan, Glance, Look, Map, Pair, Target


def made_up(words: tuple[str, ...], **changes: object) -> Look:
    """A look at random weights over these words; the first and the last are special."""
    count = len(words)
    generator = torch.Generator().manual_seed(0)
    cells = min(count, 64)
    edges = tuple(count * c // cells for c in range(cells + 1))
    values = torch.rand(cells, cells, generator=generator).softmax(-1)
    sizes = tuple(b - a for a, b in zip(edges, edges[1:]))
    special = (True, *[False] * (count - 2), True)
    targets = tuple(Target(u % count, 0.6 / (u + 1)) for u in range(1, 4))
    fields: dict[str, object] = {
        "text": " ".join(words),
        "lang": "en",
        "model": "minilm",
        "title": "MiniLM (made up)",
        "causal": False,
        "layers": 2,
        "heads": 3,
        "tokens": count,
        "seconds": 0.25,
        "pieces": False,
        "words": words,
        "special": special,
        "unknown": (False,) * count,
        "readers": ("smollm2",),
        "spend": {"special": 0.5, "self": 0.125, "near": 0.125, "words": 0.25},
        "by": "words",
        "overview": ((0.25, 0.5, 0.75), (0.1, 1.0, 0.0)),
        "layer": 0,
        "head": 2,
        "chosen": "leads",
        "map": Map(edges, sizes, tuple(map(tuple, values.tolist()))),
        "sinks": (Target(count - 1, 0.5), Target(0, 0.125)),
        "glances": tuple(Glance(u, targets) for u in range(1, count - 1)),
        "fan": Fan(1, targets, targets, (1,)),
        "pairs": (Pair(1, 2, 2, 0.5), Pair(0, 1, 3, 0.25)),
    }
    return Look(**(fields | changes))  # type: ignore[arg-type]


def merged(weights: Tensor, spans: tuple[tuple[int, int], ...]) -> Tensor:
    """Dense weights [..., T, T] over words: columns added, rows averaged."""
    columns = torch.stack([weights[..., a:b].sum(-1) for a, b in spans], -1)
    return torch.stack([columns[..., a:b, :].mean(-2) for a, b in spans], -2)
