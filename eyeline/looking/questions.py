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
from eyeline.readings import Reading, RowTiles, distance, entropy, mass, pooled, read, reading
from eyeline.seen import Seen

SHARES = ("special", "self", "near", "words")
CELLS = 64  # a map has at most this many rows and columns, however long the text;
POOLED = 60  # that of a longer text so many: halved and with its special tokens it fits 80 columns
NAMED = 5  # so many are named of a fan and of the strongest pairs, or `top` if that is more
_DENSE = 2**21  # entries of weights that are dense at one time


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
    start, stop = units.span(word)
    away = torch.tensor([not s and abs(u - word) > 1 for u, s in enumerate(units.sink)])
    found: list[Pair] = []
    for layer, weights in enumerate(seen):
        rows = weights[0, :, start:stop].mean(-2).float()  # [H, T]
        values = units.columns(rows).masked_fill(~away, 0)
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
    sizes = torch.tensor(starts).diff()
    means = pooled(weights, starts, starts).values.float()
    values = (means * sizes).tolist()  # columns are added, rows averaged
    return Map(tuple(edges), tuple(sizes.tolist()), tuple(map(tuple, values)))


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
    content = torch.tensor([not s for s in units.sink])
    if not content.any():
        return
    for first, last in _blocks(units):
        merged = _rows_of(weights, units, first, last).masked_fill(~content, 0)
        best = merged.topk(min(top, int(content.sum())))
        for unit, at, values in zip(
            range(first, last), best.indices.tolist(), best.values.tolist(), strict=True
        ):
            if content[unit]:
                yield Glance(unit, _targets(at, values))


def _rows_of(weights: Weights, units: Units, first: int, last: int) -> Tensor:
    """The rows of some units, averaged over their tokens, columns added: [last - first, units]."""
    start, stop = units.span(first)[0], units.span(last - 1)[1]
    if last - first == 1:  # may be of any length
        return units.columns(weights[start:stop].mean(-2).float())[None]
    rows = units.columns(weights[start:stop].to_dense().float())
    local = units.unit[start:stop] - first
    sizes = torch.bincount(local, minlength=last - first)
    merged = rows.new_zeros(last - first, len(units)).index_add_(0, local, rows)
    return merged / sizes[:, None]


def _blocks(units: Units) -> Iterator[tuple[int, int]]:
    """Ranges of units whose rows are dense at one time; a unit that is too long stands alone."""
    most = max(1, _DENSE // len(units.unit))
    first = 0
    for unit in range(1, len(units) + 1):
        if unit == len(units) or units.span(unit)[1] - units.span(first)[0] > most:
            yield first, unit
            first = unit


def fan(weights: Weights, units: Units, word: int, top: int) -> Fan:
    """Whom a word looks at in this head and who looks at it, special words and itself aside."""
    start, stop = units.span(word)
    others = torch.tensor([not s and u != word for u, s in enumerate(units.sink)])
    row = units.columns(weights[start:stop].mean(-2).float())
    column = weights[:, start:stop].sum(-1).float()
    sizes = torch.tensor([b - a for a, b in units.words.spans])
    back = units.columns(column) / sizes  # rows are averaged
    count = min(max(top, NAMED), len(units))
    at, by = (v.masked_fill(~others, 0).topk(count) for v in (row, back))
    label = units.words.labels[word]
    return Fan(
        word=word,
        looks_at=_targets(at.indices.tolist(), at.values.tolist()),
        looked_at_by=_targets(by.indices.tolist(), by.values.tolist()),
        places=tuple(u for u, other in enumerate(units.words.labels) if other == label),
    )


def _targets(words: list[int], weights: list[float]) -> tuple[Target, ...]:
    return tuple(Target(u, w) for u, w in zip(words, weights, strict=True) if w > 0)
