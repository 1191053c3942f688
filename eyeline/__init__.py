"""eyeline (视线): exact attention, and the weights as a lazy matrix to look into.

>>> import torch, eyeline
>>> Q, K, V = torch.eye(2), torch.eye(2), torch.tensor([[1.0], [3.0]])
>>> output, weights = eyeline.attention(Q, K, V)
>>> weights[0]
tensor([0.6698, 0.3302])

`dense_limit` is the number of bytes up to which `Weights` turn into a dense tensor unasked. Set it
to allow more or less; above it `eyeline.errors.DenseError` says what to ask instead:

>>> eyeline.dense_limit // 2**20   # MiB
64
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eyeline import functional as functional
from eyeline.api import attention, scaled_dot_product_attention, weights
from eyeline.lazy import Weights
from eyeline.masks import causal, padding, window
from eyeline.readings import entropy, read, received, top

if TYPE_CHECKING:
    from eyeline.acting import block
    from eyeline.layers import SelfAttention
    from eyeline.looking import look
    from eyeline.recording import load
    from eyeline.seen import watch

__version__ = "0.1.0"

dense_limit: int = 64 * 2**20
"""Bytes up to which `Weights` becomes a dense tensor unasked; set it to allow more or less."""

__all__ = [
    "SelfAttention",
    "Weights",
    "attention",
    "block",
    "causal",
    "entropy",
    "load",
    "look",
    "padding",
    "read",
    "received",
    "scaled_dot_product_attention",
    "top",
    "watch",
    "weights",
    "window",
]

# Where the names live that load when first used, so that `import eyeline` stays light.
_LATER = {
    "SelfAttention": "eyeline.layers",
    "block": "eyeline.acting",
    "load": "eyeline.recording",
    "look": "eyeline.looking",
    "watch": "eyeline.seen",
}
_MODULES = ("acting", "heads", "kv_cache", "layers", "models", "positions", "recording", "spans")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    if name in _MODULES:
        from importlib import import_module

        return import_module(f"eyeline.{name}")
    raise AttributeError(f"module 'eyeline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "biases", "errors", "functional", "masks", "readings"])
