"""What an attention function of transformers is called with, as a `Call`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eyeline.api import autocast
from eyeline.calls import Call
from eyeline.errors import ModelError
from eyeline.integrations.huggingface_attention import NAME, RuleMask
from eyeline.integrations.huggingface_masks import Told, causally, fixed, flagged, skipped, told
from eyeline.masks import Mask

OTHERS = frozenset(["position_bias", "s_aux", "sinks"])


class Skipped:
    """The rules of one forward where transformers made no mask, by the sizes.

    Nothing but causality, if that, hides a key there. They are told when first asked for.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], dict[bool, Told | dict[str, Any]]] = {}

    def note(self, arguments: dict[str, Any]) -> None:
        """What a mask function was called with that gave None."""
        arguments = fixed(arguments)
        sizes = (arguments["q_length"], arguments["kv_length"])
        causally = not arguments.get("allow_is_bidirectional_skip", False)
        self._found.setdefault(sizes, {})[causally] = arguments

    def of(self, query: Tensor, key: Tensor) -> Told | None:
        found = self._found.get((query.shape[-2], key.shape[-2]))
        if found is None:
            return None
        causally = True in found  # a decoder may have as many keys as the encoder it looks at
        rule = found[causally]
        if not isinstance(rule, Told):
            rule = found[causally] = skipped(rule)
        return rule


class Rules:
    """The rules that masks of one forward were made from, by the mask tensor."""

    def __init__(self) -> None:
        self.skipped: Skipped | None = None
        self._rules: Any = WeakIdKeyDictionary()
        self._strided: list[tuple[Tensor, Told]] = []  # generate() may lay them out anew

    def note(self, mask: Any, arguments: dict[str, Any]) -> None:
        if isinstance(mask, Tensor) and not isinstance(mask, RuleMask):
            self._rules[mask] = rule = told(arguments)
            if not mask.is_contiguous():
                self._strided.append((mask, rule))
        elif mask is None:
            if self.skipped is None:
                self.skipped = Skipped()
            self.skipped.note(arguments)

    def of(self, mask: Any, query: Tensor, key: Tensor) -> Told | Skipped | None:
        """The rule of a call's mask; all those of this forward for a call without a mask."""
        if mask is None:
            return self.skipped
        rule = self._known(mask) if isinstance(mask, Tensor) else None
        if rule is None or rule.sizes != (query.shape[-2], key.shape[-2]):
            return None  # the model cut the mask since
        return rule

    def clear(self) -> None:
        """Forget what holds for one forward pass only; calls of it may be asked about yet."""
        self.skipped = None
        self._strided.clear()

    def _known(self, mask: Tensor) -> Told | None:
        if isinstance(mask, RuleMask):
            return mask._told
        rule: Told | None = self._rules.get(mask)
        if rule is None:
            for other, found in self._strided:
                if other.dtype == mask.dtype and torch.equal(other, mask):
                    self._rules[mask] = rule = found
                    break
        return rule


class Given(NamedTuple):
    """What an attention function was given beside its tensors, and what it asks of its module.

    `own` is the module's word on what `is_causal` leaves open; `others` are tensors too: a bias,
    sinks.
    """

    scale: float | None
    softcap: float | None
    dropout: float | None
    is_causal: bool | None
    own: bool
    training: bool
    others: Mapping[str, Any]

    @classmethod
    def of(cls, module: torch.nn.Module, kwargs: dict[str, Any], training: bool) -> Given:
        """By the keyword arguments of the function."""
        own = getattr(module, "is_causal", True)
        found = kwargs.get
        others = {} if OTHERS.isdisjoint(kwargs) else {n: found(n) for n in OTHERS}
        return cls(
            found("scaling"),
            found("softcap"),
            found("dropout"),
            found("is_causal"),
            own,
            training,
            others,
        )


def call_of(
    name: str,
    original: str,
    mask: Any,
    rule: Told | Skipped | None,
    crossing: bool,
    given: Given,
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
) -> Call:
    """One call of the attention function named `original`, as that function takes it.

    `rule` is that of the mask, where there is one, which may stand in the mask's own place too.
    """
    if isinstance(rule, Skipped):
        rule = rule.of(query, key)
    if given.others.get("sinks") is not None:
        raise ModelError(
            f"{name} has a sink per query, which watch() cannot look into; only sinks per head."
        )
    if query.shape[0] != key.shape[0]:  # learned queries that all texts share
        query = query.expand(key.shape[0], *query.shape[1:])
    query, key, value = autocast(query, key, value)
    by_flag = causally(given.own, given.is_causal)
    visible, additive = _masked(original, name, query, key, mask, by_flag, rule)
    # torch's SDPA takes no softcap and no sinks: what is not used is not noted
    eager = original != "sdpa"
    return Call(
        name=name,
        q=query,
        k=key,
        v=value,
        kind="cross" if crossing else "self",
        mask=visible,
        additive=additive,
        bias=given.others.get("position_bias"),
        scale=given.scale,
        softcap=given.softcap if eager else None,
        sinks=_settled(given.others.get("s_aux")) if eager else None,
        real=None if rule is None or crossing else rule.real,
        kernel="eyeline" if original == NAME else "own",
        dropout=float(given.dropout or 0.0) if given.training or not eager else 0.0,
        place=None if rule is None or crossing else rule.place,
    )


def _settled(parameter: Tensor | None) -> Tensor | None:
    """Without grad mode the weights of a call carry no gradient later either."""
    return parameter if parameter is None or torch.is_grad_enabled() else parameter.detach()


def _masked(
    original: str,
    name: str,
    query: Tensor,
    key: Tensor,
    mask: Any,
    causally: bool,
    rule: Told | None,
) -> tuple[Mask | Tensor | None, Tensor | None]:
    """(what may be seen, what is added), as the attention function named `original` takes it."""
    if isinstance(mask, Told):
        return mask.mask, None
    if mask is None:
        if original == "eager":
            return None, None
        return flagged(causally, query.shape[-2], key.shape[-2]), None
    if rule is not None and rule.known:
        return rule.mask, None
    if not isinstance(mask, Tensor):
        raise ModelError(
            f"watch() knows masks that are tensors, and {name} was given a {type(mask).__name__}."
        )
    mask = mask[..., : key.shape[-2]]
    if isinstance(mask, RuleMask):
        return mask.visible, None
    if mask.dtype == torch.bool and original == "sdpa":
        return mask, None
    # eager attention adds what it is given, 1 where that is True
    return None, mask if mask.is_floating_point() else mask.to(query.dtype)


def function_of(module: torch.nn.Module, original: str) -> Callable[..., Any]:
    """The attention function that this module uses under the name `original`."""
    interface, eager = _interface(type(module).forward)
    function = interface.get_interface(original, eager)
    if function is None:
        raise ModelError(
            f"{type(module).__name__} runs eager attention that watch() cannot find.\n"
            'Call model.set_attn_implementation("sdpa") first.'
        )
    found: Callable[..., Any] = function
    return found


@cache
def _interface(forward: Callable[..., Any]) -> tuple[Any, Any]:
    """The registry that a module's code looks attention functions up in, and its eager one."""
    place = inspect.unwrap(forward).__globals__
    interface = place.get("ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    return interface, place.get("eager_attention_forward")
