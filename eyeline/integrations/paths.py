"""Modules by their paths: which stand inside others, which are attention, which look across."""

from __future__ import annotations

import re
from functools import cache

from torch import nn

_CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn|attn2", re.IGNORECASE)


def within(path: str, above: str) -> bool:
    """Whether a module is another one or stands in it.

    >>> within("encoder.layer.1", "encoder.layer"), within("encoder.layer.12", "encoder.layer.1")
    (True, False)
    """
    return path == above or path.startswith(f"{above}.")


@cache
def named_cross(path: str) -> bool:
    """Whether a module's path says that it is cross-attention."""
    return _CROSS.search(path) is not None


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The innermost modules that are called attention, whatever computes it there."""

    def named(module: nn.Module) -> bool:
        own = getattr(module, "original_name", type(module).__name__)  # of a traced one
        return "attention" in str(own).lower()

    return [
        module
        for module in model.modules()
        if named(module) and not any(named(m) for m in module.modules() if m is not module)
    ]
