"""SelfAttention and CrossAttention: projections W_Q, W_K, W_V around `eyeline.attention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eyeline.api import attention
from eyeline.errors import ArgumentError, ShapeError
from eyeline.kv_cache import KVCache
from eyeline.lazy import Weights
from eyeline.masks import Mask, from_tensor
from eyeline.positions import Rotary


class Projections(nn.Module):
    """W_Q, W_K, W_V and perhaps W_O, in heads; what both layers are made of."""

    def __init__(
        self,
        embed_dim: int,
        context_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None,
        head_dim: int | None,
        value_dim: int | None,
        out_proj: bool | None,
        bias: bool,
        dropout: float,
        rotary: Rotary | None,
        qk_norm: bool,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or kv_heads < 1 or num_heads % kv_heads:
            raise ArgumentError(
                f"num_heads={num_heads} and num_kv_heads={kv_heads}: the query heads are a "
                "multiple of the key heads, and there is at least one."
            )
        if head_dim is None and embed_dim % num_heads:
            raise ArgumentError(
                f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}. Choose another "
                "number of heads, or give head_dim."
            )
        head_dim = embed_dim // num_heads if head_dim is None else head_dim
        value_dim = head_dim if value_dim is None else value_dim
        if rotary is not None and rotary.dim > head_dim:
            raise ArgumentError(
                f"Rotary(dim={rotary.dim}) turns more numbers than a head has: head_dim={head_dim}."
            )
        self.embed_dim, self.context_dim = embed_dim, context_dim
        self.num_heads, self.num_kv_heads = num_heads, kv_heads
        self.head_dim, self.value_dim = head_dim, value_dim
        self.dropout, self.rotary = dropout, rotary
        self.W_Q = nn.Linear(embed_dim, num_heads * head_dim, bias=bias)
        self.W_K = nn.Linear(context_dim, kv_heads * head_dim, bias=bias)
        self.W_V = nn.Linear(context_dim, kv_heads * value_dim, bias=bias)
        self.W_O = (
            nn.Linear(num_heads * value_dim, embed_dim, bias=bias)
            if (num_heads > 1 if out_proj is None else out_proj)
            else None
        )
        self.q_norm = nn.RMSNorm(head_dim) if qk_norm else None
        self.k_norm = nn.RMSNorm(head_dim) if qk_norm else None

    def extra_repr(self) -> str:
        """What the projections' own sizes do not tell."""
        heads = f"num_heads={self.num_heads}"
        if self.num_kv_heads != self.num_heads:
            heads += f", num_kv_heads={self.num_kv_heads}"
        return heads + (f", dropout={self.dropout}" if self.dropout else "")

    def _attend(
        self,
        x: Tensor,
        context: Tensor,
        mask: Mask | Tensor | None,
        bias: Any,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> tuple[Tensor, Weights]:
        _check_size("x", x, self.embed_dim)
        _check_size("context", context, self.context_dim)
        # Heads need a batch in front of them: [T, H·D] alone would read as a batch of heads.
        alone = x.dim() == 2 and self.num_heads > 1
        q = self._heads(self.W_Q(x), self.num_heads, alone)
        k = self._heads(self.W_K(context), self.num_kv_heads, alone)
        v = self._heads(self.W_V(context), self.num_kv_heads, alone)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary is not None:
            q, k = self._rotated(q, k, positions, cache)
        if cache is not None:
            k, v = cache.append(k, v)
            held = cache.mask(q.shape[-2])
            mask = held if mask is None else held & _as_rule(mask)
        dropout = self.dropout if self.training else 0.0
        out, weights = attention(q, k, v, mask, bias=bias, dropout=dropout)
        if self.num_heads > 1:
            out = out.transpose(-2, -3).flatten(-2)
        if alone:
            out, weights = out[0], weights[0]
        return out if self.W_O is None else self.W_O(out), weights

    def _heads(self, x: Tensor, heads: int, alone: bool) -> Tensor:
        """``[..., T, heads · D]`` as ``[..., heads, T, D]``, as it is with one query head."""
        if self.num_heads == 1:
            return x
        split: Tensor = x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(-2, -3)
        return split.unsqueeze(0) if alone else split

    def _rotated(
        self, q: Tensor, k: Tensor, positions: Tensor | None, cache: KVCache | None
    ) -> tuple[Tensor, Tensor]:
        assert self.rotary is not None
        if positions is None and cache is not None:
            positions = torch.arange(cache.seen, cache.seen + q.shape[-2], device=q.device)
        return self.rotary(q, positions), self.rotary(k, positions)


class SelfAttention(Projections):
    """Self-attention: queries, keys and values from one sequence; ``(output, attn_weights)``.

    ``SelfAttention(embed_dim)`` is the textbook's module: ``W_Q``, ``W_K``, ``W_V`` are
    ``nn.Linear(embed_dim, embed_dim)`` with bias and its only parameters; x ``[B, T, embed_dim]``
    or ``[T, embed_dim]`` gives output of the same shape and lazy weights ``[B, T, T]`` or
    ``[T, T]``.

    * ``num_heads``: with several heads the weights are ``[B, num_heads, T, T]`` (``[num_heads, T,
      T]`` without a batch) and the heads are joined by ``W_O``. ``out_proj=True`` or ``False``
      decides that by itself; without it the output has ``num_heads · value_dim`` numbers.
    * ``num_kv_heads``: fewer key and value heads, each read by several query heads.
    * ``head_dim``: of queries and keys, ``embed_dim / num_heads`` unless given; ``value_dim``: of a
      value, ``head_dim`` unless given.
    * ``dropout``: on the weights, in training only; the weights returned are those before it.
    * ``rotary``: an `eyeline.positions.Rotary`. ``qk_norm``: an ``nn.RMSNorm`` of each head's
      queries and keys, before they are turned.

    Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.

    >>> import torch, eyeline
    >>> layer = eyeline.SelfAttention(2)
    >>> for W in (layer.W_Q, layer.W_K, layer.W_V):
    ...     _ = W.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> output, attn_weights = layer(torch.eye(2), eyeline.causal())
    >>> output
    tensor([[1.0000, 0.0000],
            [0.3302, 0.6698]], grad_fn=<ViewBackward0>)
    >>> sorted(layer.state_dict())
    ['W_K.bias', 'W_K.weight', 'W_Q.bias', 'W_Q.weight', 'W_V.bias', 'W_V.weight']
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        out_proj: bool | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: Rotary | None = None,
        qk_norm: bool = False,
    ) -> None:
        super().__init__(
            embed_dim,
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            out_proj=out_proj,
            bias=bias,
            dropout=dropout,
            rotary=rotary,
            qk_norm=qk_norm,
        )

    def forward(
        self,
        x: Tensor,
        mask: Mask | Tensor | None = None,
        *,
        bias: Any = None,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> tuple[Tensor, Weights]:
        """Output ``[..., T, embed_dim]`` and lazy weights ``[..., T, T]``.

        * ``mask``, ``bias``: as in `eyeline.attention`; a tensor broadcasts to the weights.
        * ``positions``: for ``rotary``, integers [T] or [B, T]; 0 … T - 1 unless given.
        * ``cache``: an `eyeline.kv_cache.KVCache`: x holds only the new tokens, which see those
          held, themselves and the new ones before them; positions go on where it stopped.
        """
        return self._attend(x, x, mask, bias, positions, cache)


class CrossAttention(Projections):
    """Cross-attention: queries from x, keys and values from a context, as decoder from encoder.

    ``context_dim`` is the size of a context vector, ``embed_dim`` unless given; the rest is as in
    `SelfAttention`. x ``[B, Tq, embed_dim]`` and context ``[B, Tk, context_dim]``, or both without
    B, give output ``[B, Tq, embed_dim]`` and lazy weights ``[B, Tq, Tk]``, with ``num_heads`` in
    front of ``Tq`` if there are several.

    >>> import torch
    >>> from eyeline.layers import CrossAttention
    >>> layer = CrossAttention(8, context_dim=5, num_heads=2)
    >>> output, weights = layer(torch.zeros(3, 8), torch.zeros(4, 5))
    >>> weights[0, 0].detach()             # equal scores: four equal shares
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(
        self,
        embed_dim: int,
        context_dim: int | None = None,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        out_proj: bool | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        qk_norm: bool = False,
    ) -> None:
        super().__init__(
            embed_dim,
            embed_dim if context_dim is None else context_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            out_proj=out_proj,
            bias=bias,
            dropout=dropout,
            rotary=None,
            qk_norm=qk_norm,
        )

    def forward(
        self, x: Tensor, context: Tensor, mask: Mask | Tensor | None = None, *, bias: Any = None
    ) -> tuple[Tensor, Weights]:
        """Output ``[..., Tq, embed_dim]`` and lazy weights ``[..., Tq, Tk]``.

        ``mask`` and ``bias`` are as in `eyeline.attention`, for example
        ``eyeline.padding(lengths)`` for contexts of different lengths.
        """
        if x.dim() != context.dim():
            raise ShapeError(
                f"x {list(x.shape)} and context {list(context.shape)}: both have a batch, or "
                "neither. Add the missing dimension."
            )
        return self._attend(x, context, mask, bias)


def _as_rule(mask: Mask | Tensor) -> Mask:
    return mask if isinstance(mask, Mask) else from_tensor(mask)


def _check_size(name: str, x: Tensor, size: int) -> None:
    if x.dim() < 2 or x.shape[-1] != size:
        word = "embed_dim" if name == "x" else "context_dim"
        raise ShapeError(
            f"{name} is [..., T, {size}] for a layer of {word}={size}, and got {list(x.shape)}."
        )
