"""torch's own signature, with torch's meaning of every argument."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from eyeline.api import attended, autocast
from eyeline.errors import DtypeError, ShapeError
from eyeline.masks import Mask, causal, from_tensor
from eyeline.problem import make

_warned = False


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **unknown: Any,
) -> Tensor:
    """A drop-in for ``torch.nn.functional.scaled_dot_product_attention``: the output alone.

    torch's meaning: a bool ``attn_mask`` is True where a key may be seen, a float one is **added**
    to the scores (a mask of 0 and 1 is no mask to torch, and warns once); ``is_causal`` is aligned
    to the top left; fewer key heads need ``enable_gqa``. Errors are those of `eyeline.attention`.

    >>> import torch
    >>> from eyeline.functional import scaled_dot_product_attention
    >>> x = torch.eye(2)
    >>> scaled_dot_product_attention(x, x, x, is_causal=True)
    tensor([[1.0000, 0.0000],
            [0.3302, 0.6698]])
    """
    if unknown:
        names = ", ".join(unknown)
        hint = (
            " mask= belongs to eyeline.attention, which returns (out, weights)."
            if "mask" in unknown
            else ""
        )
        raise TypeError(
            "eyeline.functional.scaled_dot_product_attention has torch's arguments, "
            f"and got {names}.{hint}"
        )
    if (
        not enable_gqa
        and query.dim() > 3
        and query.shape[-3] != key.shape[-3]
        and key.shape[-3] != 1
    ):
        raise ShapeError(
            f"query has {query.shape[-3]} heads and key {key.shape[-3]}. "
            "torch wants enable_gqa=True for that."
        )
    mask = causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None:
        if isinstance(attn_mask, Mask):
            raise DtypeError(
                "attn_mask is a tensor, as in torch. A rule goes to eyeline.attention(mask=...)."
            )
        if attn_mask.dtype == torch.bool:
            seen = from_tensor(attn_mask)
            mask = seen if mask is None else seen & mask
        elif attn_mask.is_floating_point():
            bias = attn_mask
            _warn_of_zero_one(attn_mask)
        else:
            raise DtypeError(f"torch takes attn_mask as bool or float, and got {attn_mask.dtype}.")
    q, k, v = autocast(query, key, value)
    problem, values = make("attention", q, k, v, mask, bias, scale, None, None)
    return attended(problem, values, dropout_p)[0]


def _warn_of_zero_one(attn_mask: Tensor) -> None:
    global _warned
    if _warned or torch.compiler.is_compiling() or attn_mask.numel() == 0:
        return
    if bool(((attn_mask == 0) | (attn_mask == 1)).all()) and bool((attn_mask == 1).any()):
        _warned = True
        warnings.warn(
            "attn_mask is a float tensor of only 0 and 1, and torch adds it to the scores: "
            "it hides nothing. For a mask use attn_mask.bool(), or eyeline.attention(mask=...), "
            "which takes 0 and 1.",
            UserWarning,
            stacklevel=3,
        )
