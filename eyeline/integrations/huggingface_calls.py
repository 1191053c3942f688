"""What an attention function of transformers is called with, as a `Call`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eyeline.errors import ModelError
from eyeline.integrations.huggingface_masks import Told, told
from eyeline.masks import Mask, causal
from eyeline.seen.call import Call

_CROSS = re.compile(r"cross|encoder_attn|EncDec", re.IGNORECASE)
# What an attention module calls the states that its keys are made of, where not its own input.
_SOURCES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")


class Rules:
    """The rules that masks of one forward were made from, by the mask tensor."""

    def __init__(self) -> None:
        self._rules: Any = WeakIdKeyDictionary()

    def note(self, mask: Any, arguments: dict[str, Any]) -> None:
        if isinstance(mask, Tensor):
            self._rules[mask] = told(arguments)

    def of(self, mask: Any, query: Tensor, key: Tensor) -> Told | None:
        rule: Told | None = self._rules.get(mask) if isinstance(mask, Tensor) else None
        if rule is None or rule.sizes != (query.shape[-2], key.shape[-2]):
            return None  # the model cut the mask since
        return rule


def call_of(
    name: str,
    original: str,
    module: torch.nn.Module,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Any,
    rules: Rules,
    crossing: bool,
    kwargs: dict[str, Any],
) -> Call:
    """One call of the attention function named `original`, as that function takes it."""
    query, key, value = tensors
    if kwargs.get("sinks") is not None:
        raise ModelError(
            f"{name} has a sink per query, which watch() cannot look into; only sinks per head."
        )
    if query.shape[0] != key.shape[0]:  # learned queries that all texts share
        query = query.expand(key.shape[0], *query.shape[1:])
    rule = rules.of(mask, query, key)
    visible, additive = _masked(original, module, query, key, mask, kwargs, rule)
    # torch's SDPA takes no softcap and no sinks: what is not used is not noted
    eager = original != "sdpa"
    dropout = float(kwargs.get("dropout") or 0.0)
    return Call(
        name=name,
        q=query,
        k=key,
        v=value,
        kind="cross" if crossing else "self",
        mask=visible,
        additive=additive,
        bias=kwargs.get("position_bias"),
        scale=kwargs.get("scaling"),
        softcap=kwargs.get("softcap") if eager else None,
        sinks=kwargs.get("s_aux") if eager else None,
        real=None if rule is None or crossing else rule.real,
        dropout=dropout if module.training or not eager else 0.0,
    )


def crosses(module: torch.nn.Module, path: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an attention module that is called so makes its keys from other states."""
    names = _parameters(type(module).forward)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    sources = [name for name in _SOURCES if name in names]
    if not sources:
        return named_cross(path)
    own = next(iter(given.values()), None)
    return any(given.get(name) is not None and given[name] is not own for name in sources)


def named_cross(path: str) -> bool:
    """Whether a module's path says that it is cross-attention."""
    return _CROSS.search(path) is not None


@cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)[1:]


def _masked(
    original: str,
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Any,
    kwargs: dict[str, Any],
    rule: Told | None,
) -> tuple[Mask | Tensor | None, Tensor | None]:
    """(what may be seen, what is added), as the attention function named `original` takes it."""
    if mask is None:
        return _unmasked(original, module, query, key, kwargs), None
    if rule is not None and rule.known:
        return rule.mask, None
    if not isinstance(mask, Tensor):
        raise ModelError(
            f"watch() knows masks that are tensors, and {type(module).__name__} was given a"
            f" {type(mask).__name__}."
        )
    mask = mask[..., : key.shape[-2]]
    return (mask, None) if mask.dtype == torch.bool else (None, mask)


def _unmasked(
    original: str, module: torch.nn.Module, query: Tensor, key: Tensor, kwargs: dict[str, Any]
) -> Mask | None:
    """Without a mask, eager attention sees everything; the others may be causal by a flag."""
    if original == "eager" or query.shape[-2] == 1:
        return None
    flag = kwargs.get("is_causal")
    if not (getattr(module, "is_causal", True) if flag is None else flag):
        return None
    # torch aligns causal at the first key
    return causal() if query.shape[-2] == key.shape[-2] else causal(offset=0)


def attention_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The innermost modules that are called attention, whatever computes it there."""

    def named(module: torch.nn.Module) -> bool:
        return "Attention" in type(module).__name__

    return [
        module
        for module in model.modules()
        if named(module) and not any(named(m) for m in module.modules() if m is not module)
    ]


def function_of(module: torch.nn.Module, original: str) -> Callable[..., Any]:
    """The attention function that this module uses under the name `original`."""
    place = inspect.unwrap(type(module).forward).__globals__
    interface = place.get("ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    function = interface.get_interface(original, place.get("eager_attention_forward"))
    if function is None:
        raise ModelError(
            f"{type(module).__name__} runs eager attention that watch() cannot find.\n"
            'Call model.set_attn_implementation("sdpa") first.'
        )
    found: Callable[..., Any] = function
    return found
