"""A text that a model reads in steps, as one matrix per layer: `watch` over a `generate`.

A forward pass whose queries continue what the last one left in the key-value cache is a step of
the same text. Of each step only its own rows are copied, queries and keys, so that memory grows
with the tokens; keys that a sliding window lets go are kept. The mask of the whole is a rule: that
of the last step, asked for over all positions.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from eyeline import biases, masks
from eyeline.calls import Call, Missing, Noted, Place, Sight, Span
from eyeline.calls.holding import refuse_wrapped
from eyeline.errors import EyelineError, ModelError
from eyeline.integrations import huggingface_generate
from eyeline.masks import Mask
from eyeline.seen.keeping import check, kept, versions
from eyeline.seen.result import Seen
from eyeline.seen.rows import Rows
from eyeline.seen.standing import standing

_INSTEAD = (
    "Generate outside of the block, then watch one forward pass over the final sequence:\n"
    "  with watch(model) as seen: model(sequences)"
)


class Steps:
    """Gathers the calls of forward passes into a `Seen`; the passes of one text as one."""

    def __init__(self, seen: Seen, values: bool) -> None:
        # `seen` may hold these steps, to settle them later: queries and keys go when it goes
        self._result, self._values = weakref.ref(seen), values
        self._layers: dict[str, _Layer] = {}
        self._written: list[bool] = []  # per row of the text: whether the model wrote the token
        self._prompt = 0  # how many tokens a `generate` was given
        self._before: list[Call] = []  # of parts that ran alone, as an encoder before the decoder
        self._running = False  # inside of a forward pass
        self._undecided = True  # no call of this pass has come yet
        self._continuing = False
        self._ended = True
        self._stage: str | None = None
        self._step = 0  # how many queries this pass has
        # what was only noted in passing, calls and the ends of passes, of one pass at most
        self._waiting: deque[Noted | tuple[Missing, ...]] = deque()
        self.bring: Callable[[], None] = _nothing  # what was not told yet
        self._begun = False  # a pass has, after one that waits; its first call says what it is

    @property
    def _seen(self) -> Seen:
        seen = self._result()
        assert seen is not None, "whoever watches, or asks, holds it"
        return seen

    @property
    def any(self) -> bool:
        """Whether any attention was called."""
        return bool(self._waiting or len(self._seen))

    def start(self) -> None:
        """A forward pass begins."""
        search, stage = huggingface_generate.generating()
        if search is not None:
            raise ModelError(
                f"watch() follows a generate that writes one text, and this one runs {search},"
                " which reads others beside it.\nSet num_beams=1 and no assistant, prompt lookup,"
                f" penalty_alpha or guidance_scale, or watch what came out. {_INSTEAD}"
            )
        if stage is None and self._waiting and not isinstance(self._waiting[-1], Noted):
            self._begun = True
        else:
            self._settle()
            self._begin(stage)

    def first(self, q: Tensor, k: Tensor) -> None:
        """The first of the calls that are noted from now on has come."""
        if self._begun and q.shape[-2] == k.shape[-2] > 1:  # it looks at nothing before
            self._waiting.clear()
            self._before.clear()
            self._begin(None)
        elif self._begun:
            self._settle()
        self._seen._unsettled = self._settle

    def note(self, call: Noted) -> None:
        """An attention was called, which can be looked into later."""
        refuse_wrapped(call.name, call.q)
        self._waiting.append(call)

    def add(self, call: Call) -> None:
        """An attention was called."""
        self._settle()
        self._add(call)

    def end(self, missing: tuple[Missing, ...]) -> None:
        """The forward pass ended."""
        # it saw nothing, or may be a step of what came before, or none that can be followed
        if self._begun or self._layers:
            self._settle()
        if self._waiting:
            self._waiting.append(missing)
        else:
            self._end(missing)

    def close(self) -> None:
        """No step will follow."""
        for layer in self._layers.values():
            layer.trim()
        if any(layer.grown for layer in self._layers.values()):
            self._show()

    def release(self) -> None:
        """Nothing more will be told; the model is held no longer."""
        self.bring()
        self.bring = _nothing

    def _begin(self, stage: str | None) -> None:
        self._running = self._undecided = True
        self._continuing, self._stage, self._begun = False, stage, False

    def _settle(self) -> None:
        """Look at what was noted in passing."""
        self._seen._unsettled = None  # what follows asks the run as well
        try:
            self.bring()
            while self._waiting:
                one = self._waiting[0]
                if isinstance(one, Noted):
                    made = one.make(one.q, one.k)
                    self._add(made.but(name=one.name, stale=not one.fresh))
                else:
                    self._end(one)
                self._waiting.popleft()
        except EyelineError:  # it was refused, and is told once
            self._waiting.clear()
            raise
        finally:  # stopped on the way: whoever asks again goes on
            if self._waiting:
                self._seen._unsettled = self._settle
        if self._begun:
            self._begin(None)

    def _add(self, call: Call) -> None:
        if not self._running:
            self._alone(call)
            return
        if self._undecided:
            self._undecided = False
            self._continuing = self._continues(call)
            if not self._continuing:
                self._afresh()
            self._step = int(call.q.shape[-2])
        layer = self._layers.get(call.name)
        if self._continuing and layer is not None:
            for one in (layer.call, call):
                check(one, versions(one))
            if layer.follow(call):
                return
        self._new(call)

    def _end(self, missing: tuple[Missing, ...]) -> None:
        if self._running and self._undecided:  # nothing was seen in it
            self._afresh()
        if self._running:
            self._mark()
        if self._continuing:
            self._show()
        self._running = self._continuing = False
        self._ended = True
        self._seen._miss(missing)

    def _alone(self, call: Call) -> None:
        if self._ended:  # what ran before is another text's
            self._layers.clear()
            self._before.clear()
            self._seen._start()
            self._ended = False
        call = kept(call, self._values)
        self._before.append(call)
        self._seen._add(call)

    def _afresh(self) -> None:
        self._layers.clear()
        self._written.clear()
        self._seen._start()
        self._seen.generated = None
        for call in self._before:
            self._layers[call.name] = _Layer(call, self._values)
            self._seen._add(call)
        self._before.clear()

    def _continues(self, call: Call) -> bool:
        layer = self._layers.get(call.name)
        if layer is None or not layer.grows:
            return False
        place = layer.place_of(call)
        if place is None and self._stage == "writing" and call.k.shape[-2] > call.q.shape[-2]:
            raise _no_rule(call.name, "mask")
        if place is None or place.query != layer.end or place.query == 0:
            return False
        same = layer.recalls(call, place)
        if not same and call.place is not None:
            raise _other_keys(call.name)
        return same

    def _new(self, call: Call) -> None:
        # a part that ran alone, and again in the whole
        shown = any(call.name == one.name for one in self._seen._held)
        self._layers[call.name] = layer = _Layer(call, self._values)
        if self._continuing:
            return  # all are shown at the end
        if shown:
            self._show()
        else:
            self._seen._add(layer.call)

    def _mark(self) -> None:
        """Which rows the model wrote: those of tokens that it read one by one after the prompt."""
        texts = [layer for layer in self._layers.values() if layer.grows and layer.places]
        if not texts:
            return
        count = texts[-1].end - texts[-1].first[0]
        added = self._step if self._continuing else count
        if self._stage == "prompt":
            self._prompt = count
        written = self._continuing and added == 1 and self._stage != "prompt"
        before = [*self._written[: count - added], *[False] * (count - added)][: count - added]
        self._written = before + [written] * added
        if self._stage == "writing" and not self._continuing:  # without a cache all is read again
            self._written = [at >= self._prompt for at in range(count)]
        if self._stage is not None or any(self._written):
            device = texts[-1].call.q.device
            self._seen.generated = torch.tensor(self._written, device=device)

    def _show(self) -> None:
        sights: dict[Any, Sight] = {}
        self._seen._replace([layer.merged(sights) for layer in self._layers.values()])


def _nothing() -> None:
    """There is nothing to bring."""


class _Layer:
    """One attention of a text: its rows so far, and where each kind of mask begins."""

    def __init__(self, call: Call, values: bool) -> None:
        self.values, self.grown = values, False
        self.told = False  # whether where it stands had to be told from masks
        place = call.place
        self.grows = call.kind == "self"
        self.first = (0, 0) if place is None else (place.query, place.key)
        self.places: list[tuple[int, Place]] = [] if place is None else [(place.query, place)]
        Tq = int(call.q.shape[-2])
        self.call = kept(call if place is None else _filled(call, place, Tq), values)
        self.rows: dict[str, Rows] = {}

    @property
    def end(self) -> int:
        """The position behind the last query."""
        return self.first[0] + (len(self.rows["q"]) if self.rows else int(self.call.q.shape[-2]))

    def place_of(self, call: Call) -> Place | None:
        """Where a call stands; where nobody said, by its mask and that of the first call."""
        if call.place is not None:
            return call.place
        if self.grows and not self.places:
            self._tell()
        return standing(call) if self.told else None

    def _tell(self) -> None:
        """Where the text begins, by the mask of the first call, if that tells."""
        first = standing(self.call)
        if first is not None and first.query == 0:
            self.places, self.told = [(0, first)], True
            filled = _filled(self.call, first, int(self.call.q.shape[-2]))
            self.call = kept(filled, self.values)

    def recalls(self, call: Call, place: Place) -> bool:
        """Whether the newest key that a call found in its cache is the last one that was seen."""
        held = self.rows["k"].tensor if self.rows else self.call.k
        at = place.query - 1 - place.key
        if held.shape[:2] != call.k.shape[:2] or at >= call.k.shape[-2]:
            return False
        if at < 0:  # it was let go of, and no query of this step looks at it
            return True
        return _recalled(held[..., -1, :], call.k[..., at, :])

    def follow(self, call: Call) -> bool:
        """Add the rows of the next step; False for a call that is none."""
        place = self.place_of(call) if self.grows else None
        if self.grows and (place is None or place.query != self.end):
            return False
        if place is not None and not self.recalls(call, place):
            raise _other_keys(call.name)
        if not self.grows and call.k.shape != self.call.k.shape:
            return False
        bias = _bias_after(self, call)
        if not self.rows:
            names = ("q", "k", "v") if self.values and self.grows else ("q", "k")
            self.rows = {n: Rows(getattr(self.call, n)) for n in names if n == "q" or self.grows}
        if place is not None:
            self._mark(place)
            at = place.query - place.key
            for name in self.rows.keys() - {"q"}:
                self.rows[name].add(getattr(call, name).narrow(-2, at, call.q.shape[-2]))
        else:
            call = call.but(mask=_one_row(self.call, call, "mask"))
            call = call.but(additive=_one_row(self.call, call, "additive"))
        self.rows["q"].add(call.q)
        # Of the step itself nothing is held: its keys may be all of the cache.
        nothing = call.q.new_empty(0)
        k, v = (nothing, None) if self.grows else (self.call.k, self.call.v)
        self.call = call.but(q=nothing, k=k, v=v, bias=bias, out=None, place=None, reused=False)
        self.grown = True
        return True

    def merged(self, sights: dict[Any, Sight]) -> Call:
        """The layer over all steps."""
        if not self.grown:
            return self.call
        tensors = {name: rows.tensor for name, rows in self.rows.items()}
        call = self.call.but(**tensors)
        if not self.grows:
            return call
        span = Span(self.first[0], len(self.rows["q"]), self.first[1], len(self.rows["k"]))
        key = (span, *(id(place) for _, place in self.places))
        if key not in sights:
            sights[key] = _sight(self.places, span, call.q.device)
        return call.but(
            mask=sights[key].mask,
            additive=None,
            real=sights[key].real,
        )

    def trim(self) -> None:
        for rows in self.rows.values():
            rows.trim()

    def _mark(self, place: Place) -> None:
        """Remember where another kind of mask begins."""
        start, last = self.places[-1]
        if place.goes_on(last):
            self.places[-1] = (start, place)
        else:
            self.places.append((place.query, place))


def _filled(call: Call, place: Place, Tq: int) -> Call:
    """A call without the keys of a static cache that are not written yet."""
    filled = place.query + Tq - place.key
    if filled >= call.k.shape[-2]:
        return call
    sight = place.sight(Span(place.query, Tq, place.key, filled))
    bias = call.bias
    if isinstance(bias, Tensor) and bias.shape[-1] == call.k.shape[-2]:
        bias = bias[..., :filled]
    return call.but(
        k=call.k[..., :filled, :],
        v=None if call.v is None else call.v[..., :filled, :],
        bias=bias,
        mask=sight.mask,
        additive=None,
        real=sight.real,
        reused=True,
    )


def _sight(places: Sequence[tuple[int, Place]], span: Span, device: torch.device) -> Sight:
    """The mask over a span whose rows go by the rules of several places, each from its own on."""
    found = [place.sight(span) for _, place in places]
    if len(found) == 1:
        return found[0]
    starts = [max(start - span.query, 0) for start, _ in places]
    rows = torch.arange(span.queries, device=device)
    union: Mask | None = None
    for sight, start, stop in zip(found, starts, [*starts[1:], span.queries], strict=True):
        inside = (rows >= start) & (rows < stop)
        part = masks.intervals(torch.zeros_like(rows), inside * span.keys)
        part = masks.both(part, sight.mask)
        union = part if union is None else union | part
    return Sight(union, found[-1].real)


def _bias_after(layer: _Layer, call: Call) -> Any:
    """The bias of all steps: nothing, or a vector over distances, as T5's is."""
    before: Any = layer.call.bias
    now: Any = call.bias
    if now is None and before is None:
        return None
    if not layer.grows:
        if all(b is None or not b.count_nonzero() for b in (before, now)):
            return None  # as T5 gives it to the decoder's view of the encoder
        raise _no_rule(call.name, "bias")
    if not isinstance(now, Tensor) or now.shape[0] != 1:
        raise _no_rule(call.name, "bias")
    if isinstance(before, Tensor):
        before = _by_distance(layer.call.name, before[..., : layer.end - layer.first[1]])
    rows = call.q.shape[-2]
    table = _by_distance(call.name, now[..., : layer.end + rows - layer.first[1]])
    if before is not None and not torch.equal(
        before.table, table.table[:, -before.table.shape[-1] :]
    ):
        raise _no_rule(call.name, "bias")
    return table


def _by_distance(name: str, bias: Tensor) -> biases.Relative:
    """A bias [1, H, Tq, Tk] whose last query stands at the last key, as a vector per head."""
    if bias.shape[0] != 1 or not torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1]):
        raise _no_rule(name, "bias")
    table = bias[0, :, -1].contiguous()
    return biases.Relative(table, table.shape[-1] - 1)


def _one_row(before: Call, now: Call, name: str) -> Any:
    """What hides keys from a decoder, as one row: it must hide them from every row alike."""
    masks_of = [getattr(call, name) for call in (before, now)]
    tensors = [mask for mask in masks_of if isinstance(mask, Tensor)]
    if not tensors:
        return masks_of[1]
    row = tensors[-1][..., :1, :]
    if len(tensors) == 1 or any(not torch.equal(t, row.expand_as(t)) for t in tensors):
        raise _no_rule(now.name, "mask")
    return row


def _recalled(held: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether two keys are one. A cache that holds what keys are made of (MLA) makes them anew in
    each step, where a product of another size may round otherwise."""
    if torch.equal(held, now):
        return True
    bound = 32 * torch.finfo(held.dtype).eps * held.abs().max()
    return held.dtype == now.dtype and bool((held - now).abs().max() <= bound)


def _other_keys(name: str) -> ModelError:
    return ModelError(
        f"The keys in the cache of {name} are not those that were seen: the cache is of another"
        " text, or was reordered, as beam search does, quantised or changed by hand, so these steps"
        f" are no single text.\n{_INSTEAD}"
    )


def _no_rule(name: str, what: str) -> ModelError:
    return ModelError(
        f"The {what} of {name} changes from step to step in a way that watch() cannot tell for the"
        f" whole text.\n{_INSTEAD}"
    )
