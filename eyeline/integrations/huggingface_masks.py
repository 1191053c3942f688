"""transformers' mask functions, told as eyeline's masks.

transformers describes a mask by a function of (batch, head, query, key) built from a few of its
own: causal, a window, chunks, packed texts, padding, and their conjunctions. Each is known here by
the name of the function that built it and by what it closes over. `told` never evaluates one on
Tq x Tk, so the rule stays O(T); a function it does not know stays untold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import masking_utils

from eyeline.calls import Place, Sight, Span
from eyeline.integrations.evaluated_masks import coded
from eyeline.integrations.torch_calls import causal_from_first
from eyeline.masks import Mask, both, causal, documents, only, window

_Function = Callable[..., Any]


@dataclass(frozen=True)
class Told:
    """A mask as a rule: `mask` None sees everything, unless not `known`.

    `sizes` is (Tq, Tk); `real` bool [B, T] the tokens that are no padding, where queries and keys
    are the same tokens; `place` where they stand in the whole text.
    """

    sizes: tuple[int, int]
    known: bool
    mask: Mask | None = None
    real: Tensor | None = None
    place: Place | None = None


class _Untold(Exception):
    """A mask function that is not one of those known here."""


def told(arguments: dict[str, Any]) -> Told:
    """The rule behind the keyword arguments of a mask function of transformers."""
    return replace(_told(arguments), place=_standing(arguments, plain=False))


def skipped(arguments: dict[str, Any]) -> Told:
    """The rule where transformers made no mask: nothing but causality, if that, hides a key.

    `arguments` are `fixed`.
    """
    if not arguments.get("allow_is_bidirectional_skip", False):
        arguments = {**arguments, "mask_function": masking_utils.causal_mask_function}
    return replace(_told(arguments), place=_standing(arguments, plain=True))


def fixed(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a mask function that made none, without what may change later."""
    places = ("q_length", "kv_length", "q_offset", "kv_offset")
    numbers = {name: int(arguments.get(name, 0)) for name in places}
    return {**arguments, **numbers, "attention_mask": None}


def causally(own: bool, flag: bool | None) -> bool:
    """Whether torch's SDPA is to be causal without a mask: by a flag, or else the module's own."""
    return bool(own if flag is None else flag)


def flagged(causally: bool, Tq: int, Tk: int) -> Mask | None:
    """What torch's SDPA lets through without a mask. A single query sees everything."""
    return causal_from_first(Tq, Tk) if causally and Tq > 1 else None


def bits(arguments: dict[str, Any]) -> Tensor:
    """The same mask as bool [B, 1, Tq, Tk], True where a key may be seen."""
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    made: Tensor = masking_utils.sdpa_mask(**{**arguments, **skips})
    return made


def _standing(arguments: dict[str, Any], *, plain: bool) -> Place:
    """Where queries and keys stand, and the same rule over other spans of the text."""
    padding = arguments.get("attention_mask")
    if padding is not None and padding.ndim == 2:
        padding = padding.to(torch.bool, copy=True)  # whoever made it may write into it again
        arguments = {**arguments, "attention_mask": padding}
    else:
        padding = None

    def sight(span: Span) -> Sight:
        moved = {
            **arguments,
            "q_length": span.queries,
            "kv_length": span.keys,
            "q_offset": span.query,
            "kv_offset": span.key,
        }
        again = _told(moved)
        return Sight(again.mask if again.known else bits(moved), again.real)

    first = int(arguments.get("q_offset", 0)), int(arguments.get("kv_offset", 0))
    making = _making(arguments.get("mask_function", masking_utils.causal_mask_function))
    return Place(*first, sight, making, plain, padding)


def _making(function: _Function) -> tuple[Any, ...]:
    """How a mask function was built: equal for two that were built alike."""
    name, held = _made_by(function), _held(function)
    inner = held.get("mask_functions", ())
    blocks = held.get("block_sequence_ids")  # a step may be given those of its own token only
    listed = None if blocks is None else blocks.clamp(min=-1).add(1).to_sparse().indices()
    return (
        name,
        held.get("sliding_window"),
        None if listed is None else str(listed.tolist()),
        *(_making(part) for part in inner),
    )


def _told(arguments: dict[str, Any]) -> Told:
    span = Span(
        query=int(arguments.get("q_offset", 0)),
        queries=int(arguments["q_length"]),
        key=int(arguments.get("kv_offset", 0)),
        keys=int(arguments["kv_length"]),
    )
    sizes = (span.queries, span.keys)
    keep = _kept(arguments.get("attention_mask"), span)
    same = span.queries == span.keys and span.query == span.key
    real = keep if same else None
    function = arguments.get("mask_function", masking_utils.causal_mask_function)
    try:
        rule = _rule(function, span)
    except _Untold:
        rule = coded(lambda first, last: bits(_part(arguments, first, last)), *sizes)
        if rule is None:
            return Told(sizes, known=False, real=real)
    return Told(sizes, known=True, mask=both(rule, _only(keep)), real=real)


def _only(keep: Tensor | None) -> Mask | None:
    return None if keep is None else only(keep)


def _part(arguments: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    """The arguments for some rows of the same mask, padding aside."""
    offset = int(arguments.get("q_offset", 0)) + first
    rows = {"q_length": last - first, "q_offset": offset, "attention_mask": None}
    return {"batch_size": 1, **arguments, **rows}


def _kept(attention_mask: Tensor | None, span: Span) -> Tensor | None:
    """bool [B, Tk] of a 2-D attention mask, with False where it ends too early."""
    if attention_mask is None or attention_mask.ndim != 2:
        return None
    missing = span.key + span.keys - attention_mask.shape[-1]
    keep = span.of_keys(pad(attention_mask.bool(), (0, max(missing, 0))))
    return None if bool(keep.all()) else keep.clone()


def _rule(function: _Function, span: Span) -> Mask | None:
    parts = _conjuncts(function)
    if any(_made_by(part) == "packed_sequence_mask_function" for part in parts):
        # Inside one packed text positions differ as indices do, so the remap says nothing new.
        parts = [inner for part in parts for inner in _conjuncts(_unmapped(part))]
    before: int | None = None
    after: int | None = None
    others: Mask | None = None
    for part in parts:
        name, held = _made_by(part), _held(part)
        if name == "causal_mask_function":
            after = _least(after, 0)
        elif name == "sliding_window_overlay":
            before = _least(before, held["sliding_window"] - 1)
        elif name == "sliding_window_bidirectional_overlay":
            before = _least(before, held["sliding_window"])
            after = _least(after, held["sliding_window"])
        elif name == "or_masks":
            others = both(others, _any(held["mask_functions"], span))
        elif name != "bidirectional_mask_function":
            others = both(others, _grouped(name, held, span))
    return both(_band(before, after, span), others)


def _any(functions: tuple[_Function, ...], span: Span) -> Mask | None:
    rules = [_rule(function, span) for function in functions]
    if any(rule is None for rule in rules):  # one of them sees everything
        return None
    union = rules[0]
    for rule in rules[1:]:
        union = rule if union is None or rule is None else union | rule
    return union


def _band(before: int | None, after: int | None, span: Span) -> Mask | None:
    if before is None:
        if after is None:
            return None
        return causal(span.offset) if after == 0 else window(span.keys, after, span.offset)
    # A window that looks ahead without end is one that ends beyond the last key.
    return window(before, span.keys if after is None else after, span.offset)


def _grouped(name: str, held: dict[str, Any], span: Span) -> Mask:
    if name == "padding_mask_function":
        return only(span.of_keys(held["padding_mask"]).clone())
    if name == "packed_sequence_mask_function":
        ids = held["packed_sequence_mask"]
        return documents(span.of_keys(ids), span.of_queries(ids))
    if name == "chunked_overlay":
        padded = held["left_padding"][:, None]
        key_at = torch.arange(span.keys, device=padded.device) + span.key
        query_at = torch.arange(span.queries, device=padded.device) + span.query
        size = held["chunk_size"]
        return documents((key_at - padded) // size, (query_at - padded) // size)
    if name == "blockwise_overlay":
        ids = held["block_sequence_ids"]
        last = max(span.query + span.queries, span.key + span.keys)
        ids = pad(ids, (0, max(last - ids.shape[-1], 0)), value=-1)
        of_queries = span.of_queries(ids)  # below 0 are those outside of any block
        return documents(span.of_keys(ids), of_queries.where(of_queries >= 0, -2))
    raise _Untold(name)


def _conjuncts(function: _Function) -> list[_Function]:
    if _made_by(function) != "and_masks":
        return [function]
    return [part for inner in _held(function)["mask_functions"] for part in _conjuncts(inner)]


def _unmapped(function: _Function) -> _Function:
    if _made_by(function) != "remap_positions_for_packed_sequence":
        return function
    inner: _Function = _held(function)["mask_function"]
    return inner


def _made_by(function: _Function) -> str:
    """The function of masking_utils that this one is, or was returned by; "" for any other."""
    if getattr(function, "__module__", None) != masking_utils.__name__:
        return ""
    return str(getattr(function, "__qualname__", "")).split(".")[0]


def _held(function: _Function) -> dict[str, Any]:
    """What a closure closes over, by name."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or cells is None:
        return {}
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
