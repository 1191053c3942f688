"""eyeline as an attention implementation of transformers: ``set_attn_implementation("eyeline")``.

Two functions are registered under the name "eyeline", once a process, when
`eyeline.integrations.huggingface` is imported: one computes attention and gives the lazy weights
beside it, so that ``output_attentions=True`` returns them; the other makes the mask, and makes it a
`RuleMask`: a tensor that keeps the rule and has no entries of its own. What transformers and its
models do with a mask - hand it on, cut it to the keys, hand it in again - leaves it a rule; what
they compute with it is computed with the tensor that eager attention would have been given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from eyeline.api import attention
from eyeline.errors import ModelError
from eyeline.integrations.huggingface_masks import Told, bits, causally, flagged, told
from eyeline.lazy import Weights
from eyeline.lazy.matrix import METADATA, hollow
from eyeline.masks import Mask

# Without "sdpa", "flash", "flex" and "eager", which transformers looks for in names.
NAME = "eyeline"
_FACTS = METADATA | {"untyped_storage"}
_SIZES = ("batch_size", "q_length", "kv_length", "q_offset", "kv_offset")
_AS_IT_IS = frozenset(["contiguous", "detach", "clone", "requires_grad_", "__copy__"])


class RuleMask(Tensor):
    """A mask ``[B, 1, Tq, Tk]`` of transformers that keeps its rule and none of its entries.

    Its storage is one NaN. Slices of queries and keys with a step of 1 keep the rule; every other
    function of torch is given the float tensor that eager attention adds: 0 where a key may be
    seen, the dtype's lowest value where not.
    """

    _arguments: dict[str, Any]
    _told: Told
    _bits: Tensor | None

    @property
    def visible(self) -> Mask | Tensor | None:
        """Who may be seen: a rule; None for everything; bool bits for a rule that is not known."""
        if self._told.known:
            return self._told.mask
        if self._bits is None:
            self._bits = bits(self._arguments)
        return self._bits

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        rule = self._told.mask
        known = "everything" if rule is None else rule.formula
        return f"RuleMask({list(self.shape)}, {known if self._told.known else 'bits'})"

    def __deepcopy__(self, memo: Any) -> RuleMask:
        return self

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name == "__get__" or name in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, RuleMask):
            if name in _AS_IT_IS or (name == "to" and _same_place(first, args[1:], kwargs)):
                return first
            if name == "__getitem__" and (cut := first._cut(args[1])) is not None:
                return cut
        return func(*tree_map(_dense, tuple(args)), **tree_map(_dense, kwargs))

    def _cut(self, key: Any) -> RuleMask | None:
        """The rule for some queries and keys that follow each other; None for any other index."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if not all(k is Ellipsis or isinstance(k, slice) for k in keys) or len(keys) > 4:
            return None
        if keys.count(Ellipsis) == 0:
            keys.append(Ellipsis)
        if keys.count(Ellipsis) > 1:
            return None
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (5 - len(keys))
        spans = [range(n)[k] for k, n in zip(keys, self.shape, strict=True)]
        whole = all(len(span) == n for span, n in zip(spans[:2], self.shape[:2], strict=True))
        if not whole or any(span.step != 1 for span in spans):
            return None
        rows, cols = spans[2:]
        if (len(rows), len(cols)) == tuple(self.shape[2:]):
            return self
        moved = {
            "q_length": len(rows),
            "kv_length": len(cols),
            "q_offset": self._arguments["q_offset"] + rows.start,
            "kv_offset": self._arguments["kv_offset"] + cols.start,
        }
        return rule_mask({**self._arguments, **moved})


def rule_mask(arguments: dict[str, Any]) -> RuleMask:
    """The mask that transformers describes by the keyword arguments of its mask functions."""
    sizes = {name: int(arguments.get(name, 0)) for name in _SIZES}
    arguments = {**arguments, **sizes}  # a static cache counts on in the tensor that it gave
    shape = (sizes["batch_size"], 1, sizes["q_length"], sizes["kv_length"])
    like = torch.empty(
        0, dtype=arguments.get("dtype", torch.float32), device=arguments.get("device", "cpu")
    )
    made = hollow(like, shape).as_subclass(RuleMask)
    made._arguments, made._told, made._bits = arguments, told(arguments), None
    return made


def make_mask(**arguments: Any) -> Any:
    """The mask function: called by transformers with keywords, as its own ones are."""
    given = arguments.get("attention_mask")
    if isinstance(given, RuleMask):
        return given
    # A compiler can follow no rule that stands beside its tensor.
    return bits(arguments) if torch.compiler.is_compiling() else rule_mask(arguments)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Weights]:
    """The attention function: ``out [B, Tq, Hq, Dv]``, and the lazy weights ``[B, Hq, Tq, Tk]``.

    query ``[B, Hq, Tq, D]``, key ``[B, Hk, Tk, D]``, value ``[B, Hk, Tk, Dv]``. Without a mask
    attention is causal where `is_causal`, or else the module's own flag, says so.
    """
    if others.get("sinks") is not None:
        raise ModelError(
            f"{type(module).__name__} has a sink per query, and eyeline computes sinks per head.\n"
            'Call model.set_attn_implementation("eager").'
        )
    if query.shape[0] != key.shape[0]:  # learned queries that all texts share
        query = query.expand(key.shape[0], *query.shape[1:])
    visible, bias = _taken(module, query, key, attention_mask, is_causal)
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    out, weights = attention(
        query,
        key,
        value,
        visible,
        bias=bias,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout,
    )
    return out.transpose(1, 2).contiguous(), weights


def register() -> None:
    """Make the name known to transformers; again and again is as good as once."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)


def _taken(
    module: torch.nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, flag: bool | None
) -> tuple[Mask | Tensor | None, Tensor | None]:
    """(what may be seen, what is added) by the mask that the model hands over."""
    Tq, Tk = query.shape[-2], key.shape[-2]
    if mask is None:
        return flagged(causally(getattr(module, "is_causal", True), flag), Tq, Tk), None
    mask = mask[..., :Tk]
    if isinstance(mask, RuleMask):
        return mask.visible, None
    if mask.dtype == torch.bool:
        return mask, None
    # both are handed over whatever they hold: to ask would part the graph of a compiler
    visible = mask > torch.finfo(mask.dtype).min
    return visible, torch.where(visible, mask, mask.new_zeros(())).to(query.dtype)


def _same_place(mask: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether `mask.to(...)` asks for the dtype and device that the mask has."""
    with torch._C.DisableTorchFunctionSubclass():
        like = mask.new_empty(())
        asked = like.to(*args, **kwargs)
    return asked.dtype == like.dtype and asked.device == like.device


def _dense(value: Any) -> Any:
    """A rule as the tensor that eager attention adds to its scores; anything else as it is."""
    if not isinstance(value, RuleMask):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        dtype = value.dtype
    seen = bits(value._arguments)
    return torch.where(seen, seen.new_zeros((), dtype=dtype), torch.finfo(dtype).min)
