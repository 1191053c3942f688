"""A model of transformers before it is looked into: its parts, and what speaks against it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import transformers
from transformers.modeling_utils import PreTrainedModel

from eyeline.errors import ModelError

OLDEST = (5, 18)
_COMPARES = r"_attn_implementation\s*(?:==|!=|not in|in)[^\n]*[\"']{}[\"']"


def outermost(submodels: dict[str, PreTrainedModel]) -> list[torch.nn.Module]:
    """The models of transformers that stand in no other one."""
    found: dict[str, torch.nn.Module] = {}
    for name, submodel in submodels.items():
        if not any(not above or name.startswith(f"{above}.") for above in found):
            found[name] = submodel
    return list(found.values())


def configs(modules: Mapping[str, torch.nn.Module], closed: set[int]) -> list[Any]:
    """Every configuration in the model that names an attention implementation, each once."""
    found: dict[int, Any] = {}
    # asked of classes first, since a module that lacks an attribute takes long to say so
    kinds = {kind for kind in set(map(type, modules.values())) if hasattr(kind, "config")}
    waiting = [
        getattr(module, "config", None)
        for module in modules.values()
        if "config" in vars(module) or type(module) in kinds
    ]
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


def check_version() -> None:
    """Raise ModelError for a transformers that is too old."""
    version = transformers.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ModelError(
            f"watch() needs transformers {oldest} or newer, and this is {version}: older ones"
            f' bypass their attention interface.\nRun: pip install "transformers>={oldest}"'
        )


def check(submodels: dict[str, PreTrainedModel], closed: set[int]) -> None:
    """Raise ModelError for a model that cannot be looked into without changing it."""
    for submodel in submodels.values():
        implementation = submodel.config._attn_implementation
        if id(submodel.config) in closed or implementation is None:
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
    asks, reorders = _asks(type(submodel).__module__, implementation)
    if reorders:  # GPT-2 asks in order to reorder and upcast
        return implementation == "eager" and any(
            getattr(module, "reorder_and_upcast_attn", False) for module in submodel.modules()
        )
    return asks


@cache
def _asks(module: str, implementation: str) -> tuple[bool, bool]:
    """Whether the source of a module compares with this name, and whether it may reorder."""
    source = inspect.getsource(sys.modules[module])
    lines = re.findall(_COMPARES.format(re.escape(implementation)), source)
    return bool(lines), "reorder_and_upcast_attn" in source
