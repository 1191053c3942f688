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
from eyeline.integrations.huggingface_masks import Told, causally, flagged, skipped, told
from eyeline.masks import Mask

_OTHERS = frozenset(["position_bias", "s_aux", "sinks"])


class Rules:
    """The rules that masks of one forward were made from, by the mask tensor.

    Where transformers made none, as nothing but causality hides a key, by the sizes.
    """

    def __init__(self) -> None:
        self._rules: Any = WeakIdKeyDictionary()
        self._skipped: dict[tuple[int, int], dict[bool, Told]] = {}
        self._strided: list[tuple[Tensor, Told]] = []  # generate() may lay them out anew

    def note(self, mask: Any, arguments: dict[str, Any]) -> None:
        if isinstance(mask, Tensor) and not isinstance(mask, RuleMask):
            self._rules[mask] = rule = told(arguments)
            if not mask.is_contiguous():
                self._strided.append((mask, rule))
        elif mask is None:
            rule = skipped(arguments)
            causally = not arguments.get("allow_is_bidirectional_skip", False)
            self._skipped.setdefault(rule.sizes, {})[causally] = rule

    def of(self, mask: Any, query: Tensor, key: Tensor) -> Told | None:
        sizes = (query.shape[-2], key.shape[-2])
        if mask is None:
            # a decoder may have as many keys as the encoder that it looks at
            found = self._skipped.get(sizes, {})
            return found.get(True, found.get(False))
        rule = self._known(mask) if isinstance(mask, Tensor) else None
        if rule is None or rule.sizes != sizes:
            return None  # the model cut the mask since
        return rule

    def clear(self) -> None:
        """Forget what holds for one forward pass only."""
        self._skipped.clear()
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

    `others` are tensors too: a bias, sinks.
    """

    scale: float | None
    softcap: float | None
    dropout: float
    causally: bool
    training: bool
    others: Mapping[str, Any]

    @classmethod
    def of(cls, module: torch.nn.Module, kwargs: dict[str, Any]) -> Given:
        """By the keyword arguments of the function."""
        found = kwargs.get
        flag = causally(module, found("is_causal"))
        dropout = float(found("dropout") or 0.0)
        others = {} if _OTHERS.isdisjoint(kwargs) else {n: found(n) for n in _OTHERS}
        return cls(found("scaling"), found("softcap"), dropout, flag, module.training, others)


def call_of(
    name: str,
    original: str,
    tensors: tuple[Tensor, Tensor, Tensor | None],
    mask: Any,
    rule: Told | None,
    crossing: bool,
    given: Given,
) -> Call:
    """One call of the attention function named `original`, as that function takes it.

    `rule` is that of the mask, where there is one, which may stand in the mask's own place too.
    """
    query, key, value = tensors
    if given.others.get("sinks") is not None:
        raise ModelError(
            f"{name} has a sink per query, which watch() cannot look into; only sinks per head."
        )
    if query.shape[0] != key.shape[0]:  # learned queries that all texts share
        query = query.expand(key.shape[0], *query.shape[1:])
    query, key, value = autocast(query, key, value)
    visible, additive = _masked(original, name, query, key, mask, given.causally, rule)
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
        dropout=given.dropout if given.training or not eager else 0.0,
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
