"""What a look asks of the weights: one pass per layer for all heads, then one head in blocks."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eyeline.lazy import Weights
from eyeline.looking.data import Fan, Glance, Map, Pair, Target
from eyeline.looking.units import Units
from eyeline.readings import Reading, RowTiles, distance, entropy, mass, read, reading
from eyeline.readings import top as strongest
from eyeline.seen import Seen
from eyeline.spans import weights_over

SHARES = ("special", "self", "near", "words")
CELLS = 64  # a map has at most this many rows and columns, however long the text;
POOLED = 60  # that of a longer text so many: halved and with its special tokens it fits 80 columns
NAMED = 5  # so many are named of a fan and of the strongest pairs, or `top` if that is more


@reading
def spending(weights: Weights, units: Units) -> Generator[Any, Any, Reading]:
    """Per row, the weight on special tokens, the own word, the words next door, other words.

    values [*lead, Tq, 4]. What goes to a learned sink counts as special.
    """
    widest = int((units.near_stop - units.near_start).max())
    content = (~units.is_sink).float()

    def split(tile: Any) -> Tensor:
        rows = tile.rows.to(units.start.device)
        first, own, end = units.near_start[rows], units.start[rows], units.stop[rows]
        # [R, K] keys from the previous word to the next one
        keys = first[:, None] + torch.arange(widest)
        inside = keys < units.near_stop[rows, None]
        keys = keys.clamp(max=len(units.unit) - 1)
        inside &= ~units.is_sink[keys]
        itself = inside & (keys >= own[:, None]) & (keys < end[:, None])
        values = tile.weights.float()
        close = values.gather(-1, keys.expand(*values.shape[:-2], *keys.shape))
        on_self = (close * itself).sum(-1)
        on_near = (close * (inside & ~itself)).sum(-1)
        on_words = values @ content
        rest = (on_words - on_self - on_near).clamp(min=0)
        return torch.stack([1 - on_words, on_self, on_near, rest], dim=-1)

    values = yield RowTiles(split)
    return Reading(values, axes=(*weights.axes[:-1], "share"), unit="weight", name="spending")


def survey(
    seen: Seen, units: Units, by: str
) -> tuple[dict[str, float], tuple[tuple[float, ...], ...]]:
    """How all heads together spend their attention, and the reading `by` of each head."""
    extra = {"entropy": [entropy], "distance": [distance]}.get(by, [])
    spend, overview = torch.zeros(len(SHARES)), []
    heads = 0
    for weights in seen:
        shares, *others = read(weights, partial(spending, units=units), *extra)
        per_head = torch.einsum("hts,t->hs", shares.values[0], units.share)
        spend += per_head.sum(0)
        heads += len(per_head)
        values = (
            others[0].values[0].float() @ units.share if others else (per_head[:, SHARES.index(by)])
        )
        overview.append(tuple(values.tolist()))
    return dict(zip(SHARES, (spend / heads).tolist(), strict=True)), tuple(overview)


def pairs(seen: Seen, units: Units, word: int, top: int) -> list[Pair]:
    """The looks of a word at others, neither special nor next door, over all heads, by strength."""
    away = torch.tensor([not s and abs(u - word) > 1 for u, s in enumerate(units.sink)])
    found: list[Pair] = []
    for layer, weights in enumerate(seen):
        words = weights_over(weights[0], [units.span(word)], units.words)
        values = words[:, 0].float().masked_fill(~away, 0)  # [H, units]
        for head, row in enumerate(values):
            best = row.topk(min(top, len(row)))
            found += [
                Pair(layer, head, unit, weight)
                for unit, weight in zip(best.indices.tolist(), best.values.tolist(), strict=True)
                if weight > 0
            ]
    return sorted(found, key=lambda pair: -pair.weight)


def heat_map(weights: Weights, units: Units) -> Map:
    """The head's weights over words, pooled where there are more than CELLS."""
    edges = _edges(units)
    starts = [units.span(u)[0] for u in edges[:-1]] + [len(units.unit)]
    cells = list(zip(starts, starts[1:]))
    values = weights_over(weights, cells, cells).to_dense().float().tolist()
    sizes = tuple(stop - start for start, stop in cells)
    return Map(tuple(edges), sizes, tuple(map(tuple, values)))


def _edges(units: Units) -> list[int]:
    """Every unit a cell of its own, or of a long text as many equal cells as a map has.

    Special tokens at the ends keep cells of their own, so that they can be dimmed.
    """
    count = len(units)
    if count <= CELLS:
        return list(range(count + 1))
    first = next((u for u in range(count) if not units.sink[u]), 0)
    last = next((u for u in range(count, 0, -1) if not units.sink[u - 1]), count)
    if first + count - last > POOLED // 2:  # a text of special tokens
        first, last = 0, count
    cells = POOLED - first - (count - last)
    inner = [first + (last - first) * c // cells for c in range(cells)]
    return [*range(first), *inner, *range(last, count + 1)]


def sinks(weights: Weights, units: Units) -> tuple[Target, ...]:
    """What each special column takes of this head, strongest first."""
    places = [u for u, sink in enumerate(units.sink) if sink]
    if not places:
        return ()
    taken = mass(weights, {str(u): units.span(u) for u in places}).values.float()
    shares = (units.share @ taken).tolist()
    found = [Target(u, share) for u, share in zip(places, shares, strict=True)]
    return tuple(sorted(found, key=lambda target: -target.weight))


def glances(weights: Weights, units: Units, top: int) -> Iterator[Glance]:
    """For each word that is not special, the words it looks at most (special ones aside)."""
    content = [u for u, sink in enumerate(units.sink) if not sink]
    if not content:
        return
    spans = [units.span(u) for u in content]
    best = strongest(weights_over(weights, spans, spans), min(top, len(content)))
    assert best.indices is not None
    for unit, at, values in zip(content, best.indices.tolist(), best.values.tolist(), strict=True):
        yield Glance(unit, _targets([content[place] for place in at], values))


def fan(weights: Weights, units: Units, word: int, top: int) -> Fan:
    """Whom a word looks at in this head and who looks at it, special words and itself aside."""
    words = weights_over(weights, units.words, units.words)
    others = torch.tensor([not s and u != word for u, s in enumerate(units.sink)])
    count = min(max(top, NAMED), len(units))
    row, column = (v.float().masked_fill(~others, 0) for v in (words[word], words[:, word]))
    at, by = row.topk(count), column.topk(count)
    label = units.words.labels[word]
    return Fan(
        word=word,
        looks_at=_targets(at.indices.tolist(), at.values.tolist()),
        looked_at_by=_targets(by.indices.tolist(), by.values.tolist()),
        places=tuple(u for u, other in enumerate(units.words.labels) if other == label),
    )


def _targets(words: list[int], weights: list[float]) -> tuple[Target, ...]:
    return tuple(Target(u, w) for u, w in zip(words, weights, strict=True) if w > 0)
