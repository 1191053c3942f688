"""MultiheadAttention: torch's module, argument for argument, with lazy weights."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from eyeline.api import attention
from eyeline.errors import ArgumentError, DtypeError, ShapeError
from eyeline.lazy import Weights
from eyeline.masks import Mask, from_tensor, only


class MultiheadAttention(nn.Module):
    """A drop-in for ``torch.nn.MultiheadAttention``: its arguments, parameters and meaning.

    Constructor, ``forward`` and state dict are torch's, so either loads the other's. A bool mask
    is True where a key is **hidden**, a float one is added. What differs:

    * the weights are lazy, ``[N, L, S]`` (a lazy mean over heads) or ``[N, num_heads, L, S]``, and
      those before dropout; ``need_weights=True`` costs nothing until something is asked of them;
    * a query that may see nothing gets 0 from every head, and gradients of 0, where torch has NaN;
    * ``attn_mask`` may also be an eyeline mask, which says who **may** be seen, in O(T) memory;
    * ``is_causal`` is torch's hint that ``attn_mask`` is causal, and changes no result.

    Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.2.

    >>> import torch
    >>> from eyeline.layers import MultiheadAttention
    >>> theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> ours = MultiheadAttention(8, 2, batch_first=True)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.zeros(1, 4, 8)
    >>> output, weights = ours(x, x, x, attn_mask=torch.ones(4, 4).triu(1).bool())
    >>> weights[0, 1].detach()
    tensor([0.5000, 0.5000, 0.0000, 0.0000])
    """

    # nn.TransformerEncoderLayer asks this before it goes round the module into a fused operator
    # that has no weights to look at; False keeps it here.
    _qkv_same_embed_dim = False

    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ArgumentError(
                f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}, both positive."
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn

        def parameter(wanted: bool, *shape: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if wanted else None

        E, packed = embed_dim, self.kdim == self.vdim == embed_dim
        # In torch's order, as optimizers and weight files go by it.
        self.register_parameter("in_proj_weight", parameter(packed, 3 * E, E))
        self.register_parameter("q_proj_weight", parameter(not packed, E, E))
        self.register_parameter("k_proj_weight", parameter(not packed, E, self.kdim))
        self.register_parameter("v_proj_weight", parameter(not packed, E, self.vdim))
        self.register_parameter("in_proj_bias", parameter(bias, 3 * E))
        self.out_proj = NonDynamicallyQuantizableLinear(E, E, bias, device=device, dtype=dtype)
        self.register_parameter("bias_k", parameter(add_bias_kv, 1, 1, E))
        self.register_parameter("bias_v", parameter(add_bias_kv, 1, 1, E))
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """torch's own first values, drawn in torch's order."""
        for weight in (
            self.in_proj_weight,
            self.q_proj_weight,
            self.k_proj_weight,
            self.v_proj_weight,
        ):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                nn.init.xavier_normal_(extra)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | Mask | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Weights | None]:
        """torch's ``forward``: ``query [L, N, E]``, ``key [S, N, kdim]``, ``value [S, N, vdim]``.

        ``[N, L, E]`` and so on with ``batch_first``, ``[L, E]`` without a batch;
        ``key_padding_mask [N, S]``, ``attn_mask [L, S]`` or ``[N · num_heads, L, S]``. The weights
        are None with ``need_weights=False``.
        """
        alone = query.dim() == 2
        if is_causal and attn_mask is None:
            raise ArgumentError(
                "is_causal is a hint about attn_mask, as in torch, and there is none. Give "
                "attn_mask=eyeline.causal(offset=0), which needs no tensor."
            )
        one = query is key and key is value
        query, key, value = (self._batched(t, alone) for t in (query, key, value))
        if alone and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        mask, bias = self._who_is_seen(query, key, key_padding_mask, attn_mask)
        q, k, v = self._projected(query, key, value, one)
        dropout = self.dropout if self.training else 0.0
        out, weights = attention(q, k, v, mask, bias=bias, dropout=dropout)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if alone:
            out = out[0]
        elif not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        shown = cast(Weights, weights.mean(1)) if average_attn_weights else weights
        return out, shown[0] if alone else shown

    def _batched(self, x: Tensor, alone: bool) -> Tensor:
        """``[N, T, E]`` of what came in torch's layout."""
        if x.dim() != (2 if alone else 3):
            raise ShapeError(
                f"query, key and value have a batch, or none of them: query "
                f"{'[L, E]' if alone else '[L, N, E] or [N, L, E]'} beside {list(x.shape)}."
            )
        if alone:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _projected(
        self, query: Tensor, key: Tensor, value: Tensor, one: bool
    ) -> tuple[Tensor, ...]:
        """q ``[N, H, L, D]`` and k, v ``[N, H, S + extra, D]`` of one tensor or three."""
        if self.in_proj_weight is not None and one:
            made = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        else:
            weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            if self.in_proj_weight is not None:
                weights = self.in_proj_weight.chunk(3)
            biases: Any = (None,) * 3
            if self.in_proj_bias is not None:
                biases = self.in_proj_bias.chunk(3)
            made = tuple(map(F.linear, (query, key, value), weights, biases))
        q, k, v = made
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.to(k.dtype).expand(len(k), 1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.to(v.dtype).expand(len(v), 1, -1)], dim=1)
        if self.add_zero_attn:
            k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
        heads = (self.num_heads, self.head_dim)
        return tuple(t.unflatten(-1, heads).transpose(1, 2) for t in (q, k, v))

    def _who_is_seen(
        self, query: Tensor, key: Tensor, padding: Tensor | None, attn_mask: Tensor | Mask | None
    ) -> tuple[Mask | None, Tensor | None]:
        """torch's two masks as eyeline's mask and bias; the keys added here are seen by all."""
        extra = (self.bias_k is not None) + self.add_zero_attn
        rules: list[Mask] = []
        biases: list[Tensor] = []
        if padding is not None:
            _check_shape("key_padding_mask", padding, (key.shape[0], key.shape[1]))
            keep, added = _taken("key_padding_mask", padding)
            if keep is not None:
                rules.append(only(F.pad(keep, (0, extra), value=True)))
            else:
                biases.append(F.pad(added, (0, extra))[:, None, None])
        if isinstance(attn_mask, Mask):
            rules.append(self._widened(attn_mask, query, key, extra))
        elif attn_mask is not None:
            shaped = self._per_head(attn_mask, query, key)
            keep, added = _taken("attn_mask", shaped)
            if keep is not None:
                rules.append(from_tensor(F.pad(keep, (0, extra), value=True)))
            else:
                biases.append(F.pad(added, (0, extra)))
        rule = rules[0] & rules[1] if len(rules) == 2 else rules[0] if rules else None
        bias = biases[0] + biases[1] if len(biases) == 2 else biases[0] if biases else None
        return rule, bias

    def _widened(self, mask: Mask, query: Tensor, key: Tensor, extra: int) -> Mask:
        if not extra:
            return mask
        raise ArgumentError(
            f"attn_mask={mask.formula} counts the keys of the text, and add_bias_kv or "
            "add_zero_attn add keys behind them. Give attn_mask as a bool tensor "
            f"[L, S] = [{query.shape[1]}, {key.shape[1]}], True where hidden."
        )

    def _per_head(self, mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """``[L, S]`` as it is, ``[N · H, L, S]`` as ``[N, H, L, S]``."""
        N, L, S = query.shape[0], query.shape[1], key.shape[1]
        if mask.dim() == 3:
            _check_shape("attn_mask", mask, (N * self.num_heads, L, S))
            return mask.reshape(N, self.num_heads, L, S)
        _check_shape("attn_mask", mask, (L, S))
        return mask


def _check_shape(name: str, mask: Tensor, wanted: tuple[int, ...]) -> None:
    if tuple(mask.shape) != wanted:
        letters = {
            ("key_padding_mask", 2): "[N, S]",
            ("attn_mask", 2): "[L, S], or [N · num_heads, L, S],",
            ("attn_mask", 3): "[N · num_heads, L, S], or [L, S],",
        }[name, len(wanted)]
        raise ShapeError(f"{name} is {letters} here {list(wanted)}, and got {list(mask.shape)}.")


def _taken(name: str, mask: Tensor) -> tuple[Tensor | None, Any]:
    """torch's mask as who may be seen, or else as what is added.

    nn.Transformer turns every bool mask into a float one of 0 and -inf, which is read back here.
    """
    if mask.dtype == torch.bool:
        return ~mask, None
    if not mask.is_floating_point():
        raise DtypeError(
            f"{name} is bool (True hides) or float (added), as in torch, and got {mask.dtype}."
        )
    if mask.requires_grad or torch.compiler.is_compiling():
        return None, mask
    hidden = mask == -torch.inf
    return (~hidden, None) if bool((hidden | (mask == 0)).all()) else (None, mask)
