"""`block(model, ...)`: a model without some of its heads, or of what they may see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eyeline import integrations
from eyeline.acting.hiding import Edges, heads_of, layer_of
from eyeline.calls import Call, Missing, Place, Sight, Span
from eyeline.errors import ArgumentError, ModelError
from eyeline.integrations import Finish
from eyeline.masks import Mask, both, from_tensor
from eyeline.tokens import Tokens


def block(
    model: torch.nn.Module,
    heads: Iterable[str] | str = (),
    edges: Iterable[Any] | Mapping[str, Iterable[Any]] = (),
    mask: Mask | Tensor | Mapping[str, Mask | Tensor] | None = None,
    tokens: Tokens | Sequence[str] | None = None,
) -> AbstractContextManager[None]:
    """Run a model without some heads, edges or views; all else stays as it is.

    * ``heads``: those heads give 0, before the output projection: ``{"L13H8"}`` is head 8 of layer
      13. Layers count as in `watch`, ``seen[13]``.
    * ``edges``: pairs (token that looks, token it looks at) that are hidden before the softmax, so
      that the row's other weights share 1 among them: numbers of tokens, or words if ``tokens``
      (what ``loaded.tokens(text)`` gives, or a list of pieces) tell where they stand. In every head
      of every self-attention; ``{"L3H1": [...], "L5": [...]}`` names heads and layers, among them
      those of cross-attention. While a text is generated, tokens count from its beginning.
    * ``mask``: what **may** be seen, beside the model's own mask: in every self-attention, or
      ``{"L3": mask}``.

    Takes the models that `watch` takes, and nests with it and itself in any order; what is watched
    shows the blocked weights. Layers of which pairs are hidden are computed by eyeline's kernel,
    all others by the model's own. What was touched is restored when the block ends.

    Raises ArgumentError for words that are not in the text, or more than once, and for edges that
    no text had; ModelError for heads and layers that the model lacks, and where nothing ran.
    Source: head ablation, Michel et al. 2019 (arXiv 1905.10650); attention knockout, Geva et al.
    2023 (arXiv 2304.14767).

    >>> import torch
    >>> from eyeline import block, watch
    >>> from eyeline.models import load
    >>> loaded = load("minilm")
    >>> tokens = loaded.tokens("The keys are on the table because they were heavy.")
    >>> edges = [("they", "keys")]
    >>> with torch.no_grad(), block(loaded.model, edges=edges, tokens=tokens):
    ...     with watch(loaded.model) as seen:
    ...         output = loaded.model(**loaded.inputs(tokens))
    >>> they, keys = tokens.pieces.index("they"), tokens.pieces.index("keys")
    >>> float(seen["L3H1"][they, keys])
    0.0
    """
    masks = mask if isinstance(mask, Mapping) else {} if mask is None else {"": mask}
    blocked = _Blocked(
        heads_of(heads),
        Edges.of(edges, tokens),
        {None if key == "" else _layer(key): _rule(one) for key, one in masks.items()},
    )
    return _blocking(model, blocked)


@contextmanager
def _blocking(model: torch.nn.Module, blocked: _Blocked) -> Iterator[None]:
    with integrations.changed(model, blocked.change, blocked.start, blocked.missed):
        yield
    blocked.check()


class _Blocked:
    """What is taken from a model, and how far the forward that runs has come."""

    def __init__(
        self, heads: dict[int, set[int]], edges: Edges, masks: dict[int | None, Mask]
    ) -> None:
        self.heads, self.edges, self.masks = heads, edges, masks
        self.last: Call | None = None
        self.layers: dict[str, int] = {}  # in the order in which they ran first
        self.places: dict[int, _Standing] = {}
        self.first_query = 0
        self.unseen: tuple[Missing, ...] = ()

    def start(self) -> None:
        """A forward begins."""
        self.last = None

    def missed(self, unseen: tuple[Missing, ...]) -> None:
        """Attention that ran and could not be reached."""
        self.unseen = unseen

    def change(self, made: Call, now: Call) -> tuple[Call, Finish | None]:
        """The call without what is blocked, and what silences heads."""
        layer = self._layer_of(made)
        silent = self.heads.get(layer, set())
        self._check_heads(made, layer, silent)
        place = self.places[layer]
        Tq, Tk = _sizes(made)
        rule = self._rule_of(made, layer, Span(place.query, Tq, place.key, Tk))
        if rule is not None:
            now = now.but(mask=both(rule, now.mask), place=self._elsewhere(made, layer, now))
        if not silent:
            return now, None
        off = torch.zeros(made.q.shape[1], dtype=torch.bool, device=made.q.device)
        off[list(silent)] = True
        return now, lambda out: out.masked_fill(off[:, None, None], 0.0)

    def check(self) -> None:
        """Raise where something that was named was never there."""
        if not self.layers:
            raise ModelError(_nothing(self.unseen))
        named = {*self.heads, *self.edges.layers, *(n for n in self.masks if n is not None)}
        most = len(self.layers)
        absent = sorted(layer for layer in named if layer >= most)
        if absent:
            raise ModelError(f"block(): there is no layer {absent[0]}: layers 0 to {most - 1} ran.")
        if unmet := self.edges.unmet():
            raise ArgumentError(
                f"block(edges=...): no text had the tokens {unmet[0]}: numbers count from 0, and "
                "an edge is hidden where its layer has both."
            )

    def _layer_of(self, made: Call) -> int:
        """The number of a call's layer. Several may ask for one call, one after the other."""
        if integrations.recomputing():
            if f"{made.name}#2" in self.layers or made.name not in self.layers:
                raise ModelError(
                    f"block() cannot tell which run of {made.name} gradient checkpointing computes"
                    " again: switch checkpointing off."
                )
            return self.layers[made.name]
        layer = self.layers.setdefault(made.name, len(self.layers))
        if self.last is None or made.q is not self.last.q or made.k is not self.last.k:
            self.last = made
            self.places[layer] = self._standing(made, layer)
        return layer

    def _standing(self, made: Call, layer: int) -> _Standing:
        """Where this call's queries and keys stand in the whole text."""
        before = self.places.get(layer)
        if made.kind == "cross":  # its queries are those of the layer before
            return _Standing(self.first_query, 0, 0)
        place = _Standing.of(made, before)
        self.first_query = place.query
        return place

    def _rule_of(self, made: Call, layer: int, span: Span) -> Mask | None:
        """What may be seen beside the model's own mask, of some queries and keys of the text."""
        own_text = made.kind != "cross"
        named = [n for n in (None, layer) if n in self.masks and (own_text or n == layer)]
        whole: Mask | None = None
        for number in named:
            whole = both(self.masks[number], whole)
        pairs = self.edges.at(layer, own_text)
        hiding = self.edges.hiding(pairs, made.q.shape[1], span, made.q.device)
        return whole if hiding is None else both(hiding, whole)

    def _elsewhere(self, made: Call, layer: int, now: Call) -> Place | None:
        """The same rule for other parts of the text, for whoever puts steps together."""
        place = now.place
        if place is None:
            return None

        def sight(span: Span) -> Sight:
            seen = place.sight(span)
            rule = self._rule_of(made, layer, span)
            return seen if rule is None else seen._replace(mask=both(rule, seen.mask))

        return replace(place, sight=sight, making=(place.making, id(self)), plain=False)

    def _check_heads(self, made: Call, layer: int, silent: set[int]) -> None:
        count = made.q.shape[1]
        named = silent | {
            head for at, head in self.edges.placed if at == layer and head is not None
        }
        if named and max(named) >= count:
            raise ModelError(
                f"block(): there is no L{layer}H{max(named)}: layer {layer} ({made.name}) has heads"
                f" 0 to {count - 1}."
            )


class _Standing:
    """Where a call's first query and first key stand in the text, and how long that is by now."""

    def __init__(self, query: int, key: int, length: int) -> None:
        self.query, self.key, self.length = query, key, length

    @classmethod
    def of(cls, made: Call, before: _Standing | None) -> _Standing:
        """By the sizes of the call and the length that its layer had before.

        A cache that grows has as many keys as the text has tokens; one that forgets has fewer, and
        those are the last; one of a fixed size has more.
        """
        Tq, Tk = _sizes(made)
        if made.place is not None:
            return cls(made.place.query, made.place.key, made.place.query + Tq)
        so_far = 0 if before is None else before.length
        if made.reused:
            length = so_far + Tq if Tq == 1 else Tq
            return cls(length - Tq, 0, length)
        if Tq == Tk or Tk > so_far + Tq:
            return cls(Tk - Tq, 0, Tk)
        length = so_far + Tq
        return cls(length - Tq, length - Tk, length)


def _sizes(call: Call) -> tuple[int, int]:
    return call.q.shape[-2], call.k.shape[-2]


def _layer(key: Any) -> int:
    layer, head = layer_of(key)
    if head is not None:
        raise ArgumentError(f"block(mask=...): a mask is of a layer, 'L{layer}', not of {key!r}.")
    return layer


def _rule(mask: Any) -> Mask:
    return mask if isinstance(mask, Mask) else from_tensor(mask)


def _nothing(unseen: tuple[Missing, ...]) -> str:
    reasons = [f"{missing.name}: {missing.reason}" for missing in unseen] or [
        "The model was not called inside of the block, or not this very object.",
        "It ran in another thread than the block.",
        "It calls flash_attn, xformers or FlexAttention, or computes attention by hand or in a"
        " compiled, traced or scripted form.",
    ]
    return "block() has met no attention. Possible reasons:\n" + "\n".join(
        f"  - {reason}" for reason in reasons
    )
