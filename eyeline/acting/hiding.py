"""Which heads and which pairs of tokens are named, and the mask that hides those pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eyeline.calls import Span
from eyeline.errors import ArgumentError
from eyeline.masks import Mask, intervals
from eyeline.seen import names
from eyeline.tokens import Tokens

Pairs = set[tuple[int, int]]  # (query, key), in tokens of the whole text

_SHOWN = 8  # words that an error lists


def heads_of(heads: Iterable[Any] | str) -> dict[int, set[int]]:
    """The heads named "L13H8" or (13, 8), by layer."""
    found: dict[int, set[int]] = defaultdict(set)
    if not isinstance(heads, Iterable):
        raise ArgumentError(f"block(heads=...) takes names such as {{'L13H8'}}, and got {heads!r}.")
    for one in [heads] if isinstance(heads, str) else heads:
        numbers = isinstance(one, tuple) and len(one) == 2 and all(_is_number(n) for n in one)
        named = one if isinstance(one, tuple) and numbers else names.parsed(one)
        if named is None or named[1] is None:
            raise ArgumentError(
                f"block(heads=...): a head is named like 'L13H8', layer 13 head 8, and got {one!r}."
            )
        found[named[0]].add(named[1])
    return dict(found)


def layer_of(key: Any) -> tuple[int, int | None]:
    """(layer, head) of "L3H1", (layer, None) of "L3"."""
    named = names.parsed(key)
    if named is None:
        raise ArgumentError(
            f"block(): 'L3' names layer 3 and 'L3H1' its head 1, and got {key!r} for one."
        )
    return named


def _is_number(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


@dataclass
class Edges:
    """Pairs to hide: everywhere, or in one layer or head; and those that a text had."""

    everywhere: Pairs = field(default_factory=set)
    placed: dict[tuple[int, int | None], Pairs] = field(default_factory=dict)
    met: Pairs = field(default_factory=set)

    @classmethod
    def of(cls, edges: Any, tokens: Tokens | Sequence[str] | None) -> Edges:
        """Pairs, or a mapping of layers and heads to pairs; words as `tokens` have them."""
        words = _Words(tokens)
        if not isinstance(edges, Mapping):
            return cls(everywhere=words.pairs(edges))
        return cls(placed={layer_of(key): words.pairs(some) for key, some in edges.items()})

    @property
    def layers(self) -> set[int]:
        """The layers that are named."""
        return {layer for layer, _ in self.placed}

    def unmet(self) -> list[tuple[int, int]]:
        """Pairs that stood in no text."""
        every = self.everywhere.union(*self.placed.values())
        return sorted(every - self.met)

    def at(self, layer: int, everywhere: bool) -> dict[int | None, Pairs]:
        """The pairs of a layer: None those of all its heads."""
        found = {head: pairs for (at, head), pairs in self.placed.items() if at == layer}
        if everywhere and self.everywhere:
            found[None] = found.get(None, set()) | self.everywhere
        return found

    def hiding(
        self,
        pairs: dict[int | None, Pairs],
        heads: int,
        span: Span,
        device: torch.device,
    ) -> Mask | None:
        """The mask of a span that lets all be seen but these pairs; None where it has none."""
        local: dict[int | None, list[tuple[int, int]]] = {}
        for head, some in pairs.items():
            for query, key in some:
                i, j = query - span.query, key - span.key
                if 0 <= i < span.queries and 0 <= j < span.keys:
                    local.setdefault(head, []).append((i, j))
                    self.met.add((query, key))
        if not local:
            return None
        of_all = local.pop(None, [])
        if not local:
            starts, stops = _around(of_all, span.queries, span.keys)
        else:
            each = [
                _around(of_all + local.get(h, []), span.queries, span.keys) for h in range(heads)
            ]
            widest = max(start.shape[-1] for start, _ in each)
            starts, stops = (
                torch.stack([torch.nn.functional.pad(t, (0, widest - t.shape[-1])) for t in ends])[
                    None
                ]
                for ends in zip(*each, strict=True)
            )
        return intervals(starts.to(device), stops.to(device))


def _around(
    pairs: Iterable[tuple[int, int]], Tq: int, Tk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ranges of keys [Tq, n] between the hidden ones of each row."""
    hidden: dict[int, set[int]] = defaultdict(set)
    for i, j in pairs:
        hidden[i].add(j)
    most = max((len(keys) for keys in hidden.values()), default=0) + 1
    starts = torch.zeros(Tq, most, dtype=torch.int64)
    stops = torch.zeros(Tq, most, dtype=torch.int64)
    stops[:, 0] = Tk
    for i, keys in hidden.items():
        ends = sorted(keys)
        begin = torch.tensor([0, *(j + 1 for j in ends)])
        starts[i, : len(begin)] = begin
        stops[i, : len(begin)] = torch.tensor([*ends, Tk])
    return starts, stops


class _Words:
    """Where words stand, by the tokens of the text."""

    def __init__(self, tokens: Tokens | Sequence[str] | None) -> None:
        self.places: dict[str, list[list[int]]] = defaultdict(list)
        self.pieces: dict[str, list[list[int]]] = defaultdict(list)
        self.known = tokens is not None
        if isinstance(tokens, Tokens):
            words = tokens.words()
            for label, (start, stop) in zip(words.labels, words.spans, strict=True):
                self.places[label].append(list(range(start, stop)))
            tokens = tokens.pieces
        for place, piece in enumerate(tokens or ()):
            self.pieces[piece].append([place])

    def pairs(self, edges: Any) -> Pairs:
        """(query, key) for each pair of words or numbers."""
        found: Pairs = set()
        if not isinstance(edges, Iterable):
            raise ArgumentError(
                f"block(edges=...) takes pairs such as [(5, 2)], and got {edges!r}."
            )
        for edge in edges:
            if not isinstance(edge, (tuple, list)) or len(edge) != 2:
                raise ArgumentError(
                    "block(edges=...): an edge is a pair (the token that looks, the token that it"
                    f" looks at), as ('they', 'keys') or (5, 2), and got {edge!r}."
                )
            queries, keys = (self.tokens(end) for end in edge)
            found |= {(i, j) for i in queries for j in keys}
        return found

    def tokens(self, end: Any) -> list[int]:
        """The tokens of one end of an edge."""
        if hasattr(end, "__index__") and not isinstance(end, bool):
            number = end.__index__()
            if number < 0:
                raise ArgumentError(f"block(edges=...): tokens count from 0, and got {number}.")
            return [number]
        if not isinstance(end, str):
            raise ArgumentError(f"block(edges=...): a word or a token's number, not {end!r}.")
        if not self.known:
            raise ArgumentError(
                f"block(edges=...) names {end!r} and does not know the text: give tokens=, as "
                "loaded.tokens(text) has them, or the tokens' numbers."
            )
        places = self.places.get(end) or self.pieces.get(end) or []
        if len(places) == 1:
            return places[0]
        if not places:
            known = list(self.places or self.pieces)
            shown = ", ".join(repr(word) for word in known[:_SHOWN])
            more = ", ..." if len(known) > _SHOWN else ""
            raise ArgumentError(f"block(edges=...): no word of the text is {end!r}: {shown}{more}.")
        listed = ", ".join(str(place[0]) for place in places)
        raise ArgumentError(
            f"block(edges=...): {end!r} stands at tokens {listed}: give the number of the one that "
            "is meant."
        )
