"""swap: eyeline's multi-head attention in place of torch's inside a model, and back."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from eyeline.errors import ModelError
from eyeline.layers.multihead import MultiheadAttention

Model = TypeVar("Model", bound=nn.Module)


def swap(model: Model, back: bool = False) -> Model:
    """Replace every ``torch.nn.MultiheadAttention`` inside a model by eyeline's, in place.

    The parameters are the same objects, so optimizers, state dicts and hooks go on; ``back=True``
    puts torch's modules there again. The model comes back (a new module, where the model itself is
    the attention); swapping twice is as good as once. Subclasses of torch's module stay, as they
    may compute something else.

    Outputs are those of torch's own Python path. Its fused inference path writes 0 for padded
    tokens of ``nn.TransformerEncoder``, which eyeline's does not; real tokens are the same.
    ModelError where there is no such attention.

    >>> import torch
    >>> from eyeline.layers import swap
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> x = torch.randn(2, 5, 8)
    >>> before = layer(x)
    >>> after = swap(layer)(x)
    >>> type(layer.self_attn).__module__, torch.allclose(before, after, atol=1e-5)
    ('eyeline.layers.multihead', True)
    """
    ours, theirs = MultiheadAttention, nn.MultiheadAttention
    old, new = (ours, theirs) if back else (theirs, ours)
    if not any(type(module) in (ours, theirs) for module in model.modules()):
        raise ModelError(
            f"swap() found no torch.nn.MultiheadAttention in {type(model).__name__}. For a "
            "Hugging Face model use eyeline.watch(model)."
        )
    if type(model) is old:
        return _turned(model, new)  # type: ignore[return-value]
    made: dict[nn.Module, nn.Module] = {}  # a module that stands in two places stays one
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None and type(child) is old:
                if child not in made:
                    made[child] = _turned(child, new)
                module._modules[name] = made[child]
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            _keep_padded(module, back)
    return model


def _turned(module: nn.Module, new: type[nn.Module]) -> nn.Module:
    """The same parameters, settings and hooks under the other class."""
    turned = new.__new__(new)
    state = dict(module.__dict__)
    # Ours says False for the class; torch's says for each module whether its weights are packed.
    state.pop("_qkv_same_embed_dim", None)
    if new is nn.MultiheadAttention:
        state["_qkv_same_embed_dim"] = module._parameters["in_proj_weight"] is not None
    turned.__dict__ = state
    return turned


def _keep_padded(encoder: nn.TransformerEncoder, back: bool) -> None:
    """Whether an encoder may hand its layers nested tensors, decided when it was built."""
    if back:
        encoder.use_nested_tensor = encoder.__dict__.pop(
            "_nested_before_swap", encoder.use_nested_tensor
        )
    else:
        encoder.__dict__.setdefault("_nested_before_swap", encoder.use_nested_tensor)
        encoder.use_nested_tensor = False
