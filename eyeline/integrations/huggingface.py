"""Recording what the attention of a Hugging Face model is called with.

transformers looks its attention function up by a name in the model's configuration, and the
function that makes the mask by the same name. While a model is watched that name is one of ours:
both functions hand everything to the ones that the model had, return exactly what those returned,
and note queries, keys and the mask on the way. The mask is noted as a rule where the function
that describes it is one of transformers' own (causal, window, chunk, packed, padding); else it is
the tensor that was made from it.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import (
    ALL_ATTENTION_FUNCTIONS,
    AttentionInterface,
    PreTrainedModel,
)

from eyeline.errors import ModelError
from eyeline.integrations.huggingface_masks import Told, told
from eyeline.masks import Mask, causal
from eyeline.seen import Call, Seen

OLDEST = (5, 18)
# Without "sdpa", "flash", "flex" and "eager", which transformers looks for in names.
_names = (f"eyeline_watch_{number}" for number in itertools.count())
_COMPARES = r"_attn_implementation\s*(?:==|!=|not in|in)[^\n]*[\"']{}[\"']"
_CROSS = re.compile(r"cross|encoder_attn|EncDec", re.IGNORECASE)


@contextmanager
def recorded(model: torch.nn.Module, seen: Seen) -> Iterator[None]:
    """Let `seen` be told of every attention call of `model`; restore everything afterwards."""
    _check_version()
    submodels = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, PreTrainedModel)
    }
    closed = tuple(n for n, m in submodels.items() if not m._can_set_attn_implementation())
    _check(submodels, closed)
    recorder = _Recorder(model, seen)
    configs = _configs(model, {id(submodels[name].config) for name in closed})
    originals = {id(config): config._attn_implementation for config in configs}
    names = {original: next(_names) for original in set(originals.values())}
    hooks = recorder.hooks(model)
    try:
        for original, name in names.items():
            recorder.register(name, original)
        for config in configs:
            # The public setter would spread one name over configurations that differ.
            config._attn_implementation_internal = names[originals[id(config)]]
        yield
        seen._miss(recorder.missed())
    finally:
        for config in configs:
            config._attn_implementation_internal = originals[id(config)]
        for name in names.values():  # there is no public way to take a name back
            AttentionInterface._global_mapping.pop(name, None)
            AttentionMaskInterface._global_mapping.pop(name, None)
        for hook in hooks:
            hook.remove()


def _configs(model: torch.nn.Module, closed: set[int]) -> list[Any]:
    """Every configuration in the model that names an attention implementation, each once."""
    found: dict[int, Any] = {}
    waiting = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if not isinstance(config, transformers.PreTrainedConfig) or id(config) in found:
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in config.sub_configs]
    return [
        config
        for key, config in found.items()
        if key not in closed and config._attn_implementation is not None
    ]


def _check_version() -> None:
    version = transformers.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ModelError(
            f"watch() needs transformers {oldest} or newer, and this is {version}: older ones"
            f' bypass their attention interface.\nRun: pip install "transformers>={oldest}"'
        )


def _check(submodels: dict[str, PreTrainedModel], closed: tuple[str, ...]) -> None:
    top = next(iter(submodels))
    if top in closed:
        raise ModelError(
            f"watch() cannot look into {type(submodels[top]).__name__}: this family"
            f" ({submodels[top].config.model_type}) computes attention with code of its own, not"
            " through transformers' attention interface."
        )
    for name, submodel in submodels.items():
        implementation = submodel.config._attn_implementation
        if name in closed or implementation is None:
            continue
        if re.search(r"flash|flex|paged|/", implementation):
            raise ModelError(
                f"watch() looks into eager and SDPA attention, and {type(submodel).__name__} is"
                f' set to {implementation!r}.\nCall model.set_attn_implementation("sdpa") first.'
            )
        if _depends_on_name(submodel, implementation):
            raise ModelError(
                f"watch() cannot look into {type(submodel).__name__} without changing it: its code"
                f" takes another path where the implementation is called {implementation!r}."
            )


def _depends_on_name(submodel: PreTrainedModel, implementation: str) -> bool:
    """Whether the model's own code asks for the name that it loses while it is watched."""
    if any(getattr(module, "reorder_and_upcast_attn", False) for module in submodel.modules()):
        return implementation == "eager"
    source = inspect.getsource(sys.modules[type(submodel).__module__])
    lines = re.findall(_COMPARES.format(re.escape(implementation)), source)
    # GPT-2 asks in order to reorder and upcast, which was looked for above
    return bool(lines) and "reorder_and_upcast_attn" not in source


class _Recorder:
    """Notes the attention calls of one watched model."""

    def __init__(self, model: torch.nn.Module, seen: Seen) -> None:
        self.seen = seen
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.runs: Counter[str] = Counter()
        self.ran: dict[str, None] = {}  # attention modules in the order in which they ran
        self.rules: Any = WeakIdKeyDictionary()  # mask tensor → the rule it was made from

    def hooks(self, model: torch.nn.Module) -> list[Any]:
        """On the model, to know where a forward begins; on its attention modules, that they ran."""
        return [
            model.register_forward_pre_hook(self.start),
            *(m.register_forward_pre_hook(self.enter) for m in _attention_modules(model)),
        ]

    def start(self, module: torch.nn.Module, args: Any) -> None:
        self.runs.clear()
        self.ran.clear()
        self.seen._start()

    def enter(self, module: torch.nn.Module, args: Any) -> None:
        self.ran[self.paths[id(module)]] = None

    def missed(self) -> tuple[str, ...]:
        """The attention modules that ran and called nothing of ours."""
        return tuple(path for path in self.ran if path not in self.runs)

    def register(self, name: str, original: str) -> None:
        def attend(
            module: torch.nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            function = _function(module, original)
            result = function(module, query, key, value, attention_mask, *args, **kwargs)
            # Gradient checkpointing computes a layer again while it goes backward.
            if id(module) in self.paths and torch._C._current_graph_task_id() == -1:
                self.note(original, module, query, key, attention_mask, kwargs)
            return result

        def make_mask(*args: Any, **kwargs: Any) -> Any:
            mask = ALL_MASK_ATTENTION_FUNCTIONS[original](*args, **kwargs)
            if isinstance(mask, Tensor) and not args:
                self.rules[mask] = told(kwargs)
            return mask

        AttentionInterface.register(name, attend)
        # A name without a mask function is handed the mask as the caller gave it.
        if original in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(name, make_mask)

    def note(
        self,
        original: str,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        mask: Any,
        kwargs: dict[str, Any],
    ) -> None:
        path = self.paths[id(module)]
        self.runs[path] += 1
        name = path if self.runs[path] == 1 else f"{path}#{self.runs[path]}"
        if kwargs.get("sinks") is not None:
            raise ModelError(
                f"{name} has a sink per query, which watch() cannot look into; only sinks per head."
            )
        if query.shape[0] != key.shape[0]:  # learned queries that all texts share
            query = query.expand(key.shape[0], *query.shape[1:])
        rule: Told | None = self.rules.get(mask) if isinstance(mask, Tensor) else None
        if rule is not None and rule.sizes != (query.shape[-2], key.shape[-2]):
            rule = None  # the model cut the mask since
        visible, additive = _masked(original, module, query, key, mask, kwargs, rule)
        crossing = _CROSS.search(path) is not None
        # torch's SDPA takes no softcap and no sinks: what is not used is not noted
        eager = original != "sdpa"
        self.seen._add(
            Call(
                name=name,
                q=query,
                k=key,
                mask=visible,
                additive=additive,
                bias=kwargs.get("position_bias"),
                scale=kwargs.get("scaling"),
                softcap=kwargs.get("softcap") if eager else None,
                sinks=kwargs.get("s_aux") if eager else None,
                real=None if rule is None or crossing else rule.real,
            )
        )


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


def _attention_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The innermost modules that are called attention, whatever computes it there."""

    def named(module: torch.nn.Module) -> bool:
        return "Attention" in type(module).__name__

    return [
        module
        for module in model.modules()
        if named(module) and not any(named(m) for m in module.modules() if m is not module)
    ]


def _function(module: torch.nn.Module, original: str) -> Callable[..., Any]:
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
