"""Seeing attention inside torch's fused operators for nn.TransformerEncoder.

In inference `torch._transformer_encoder_layer_fwd` computes a whole layer, and
`torch._native_multi_head_attention` a whole nn.MultiheadAttention, and no Python function is
called between. Both are made of smaller operators, though: run with a TorchDispatchMode on, they
hand over q, k and v of all heads where these fall out of the projection, and the product that
gives the output. So the numbers stay those of the fused path, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eyeline.calls import Call
from eyeline.masks import Mask, only

_aten = torch.ops.aten
_LAYER = _aten._transformer_encoder_layer_fwd.default
_ATTENTION = _aten._native_multi_head_attention.default
_PROJECTED = _aten._transform_bias_rescale_qkv.default
_PRODUCT = _aten.bmm.out

_OF_KEYS = 1  # torch's number for masks [B, Tk]


@dataclass
class _Running:
    """One fused attention that runs: who may be seen, and q, k, v once they are there."""

    arguments: dict[str, Any]
    below: str
    real: Tensor | None = None
    parts: tuple[Tensor, Tensor, Tensor] | None = None

    def call(self) -> Call:
        assert self.parts is not None
        q, k, v = self.parts
        mask, real = self._mask(k.shape[-2], k.device)
        # q is divided by √D where the bias is added to it
        return Call(name="", q=q, k=k, v=v, kind="self", mask=mask, scale=1.0, real=real)

    def _mask(self, Tk: int, device: torch.device) -> tuple[Mask | Tensor | None, Tensor | None]:
        """Who may be seen, and which rows are no padding [B, T]."""
        query = self.arguments["query"]
        if query.is_nested:
            # the lengths of a nested tensor of this layout can be read in no other way
            lengths = query._nested_tensor_size()[:, 0].to(device)
            keep = torch.arange(Tk, device=device) < lengths[:, None]
            return (None, None) if bool(keep.all()) else (only(keep), keep)
        mask = self.arguments.get("mask")
        if mask is None:
            return None, None
        seen = ~mask.bool()  # the operator takes anything but 0 for hidden
        if self.arguments.get("mask_type") == _OF_KEYS:
            return only(seen), seen
        return seen, self.real


class FastPath(TorchDispatchMode):
    """Hands the attention of torch's fused operators to `handled(call, own, path below)`."""

    def __init__(self, handled: Callable[[Call, Callable[[], Tensor], str], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handled = handled
        self.running: _Running | None = None
        self.real: Tensor | None = None  # bool [B, T], where whoever calls knows the padding

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _LAYER:
            return self._opened(_Running({}, "self_attn"), func, args, kwargs)
        if func is _ATTENTION:
            below = "" if self.running is None else self.running.below
            names = (argument.name for argument in func._schema.arguments)
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
            return self._opened(_Running(arguments, below, self.real), func, args, kwargs)
        if self.running is not None and func is _PROJECTED:
            q, k, v = func(*args, **kwargs)
            self.running.parts = (q.clone(), k, v)  # the output will be written over q
            return q, k, v
        if self.running is not None and func is _PRODUCT and self.running.parts is not None:
            return self._product(self.running, func, args, kwargs)
        return func(*args, **kwargs)

    def _opened(self, running: _Running, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator's own kernel, run so that the operators it is made of come here."""
        before, self.running = self.running, running
        keys = torch._C.DispatchKey
        key = keys.NestedTensorCPU if args[0].is_nested else keys.CPU
        try:
            with self:
                # called as usual it would come back here
                return func._op_dk(key, *args, **kwargs)
        finally:
            self.running = before

    def _product(self, running: _Running, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        call, target = running.call(), kwargs["out"]
        running.parts = None
        kept: list[Tensor] = []

        def own() -> Tensor:
            kept[:] = [func(*args, **kwargs).view(*call.q.shape[:-1], -1)]
            return kept[0]

        out = self.handled(call, own, running.below)
        if not (kept and out is kept[0]):
            target.copy_(out.reshape(target.shape))
        result: Tensor = target
        return result
