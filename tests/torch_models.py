"""Small models in the styles of code that people have, on torch's own attention functions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eyeline.seen import watch


class CausalSelfAttention(nn.Module):
    """As in nanoGPT: one projection for q, k and v, SDPA with `is_causal`."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.dropout, self.by_hand = heads, dropout, False
        self.blocked: Any = None  # what a test hides: (heads, pairs)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        if self.by_hand:
            scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
            hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
            heads, pairs = self.blocked or ((), ())
            for i, j in pairs:
                hidden[i, j] = True
            self.dense = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            y = self.dense @ v
            for head in heads:
                y = y * (torch.arange(self.heads) != head)[:, None, None]
        else:
            dropout = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=None, dropout_p=dropout, is_causal=True
            )
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GPT(nn.Module):
    """As in nanoGPT: token and position embeddings, blocks, a head."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, checkpoint: bool = False):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(60, width), nn.Embedding(64, width)
        self.h = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln_1": nn.LayerNorm(width),
                    "attn": CausalSelfAttention(width, heads),
                    "ln_2": nn.LayerNorm(width),
                    "mlp": nn.Sequential(
                        nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
                    ),
                }
            )
            for _ in range(layers)
        )
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, 60, bias=False)
        self.checkpoint = checkpoint

    def block(self, block: Any, x: Tensor) -> Tensor:
        x = x + block["attn"](block["ln_1"](x))
        return x + block["mlp"](block["ln_2"](x))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(self.block, block, x, use_reentrant=False)
            else:
                x = self.block(block, x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits

    def by_hand(self, wanted: bool = True) -> GPT:
        for block in self.h:
            block["attn"].by_hand = wanted  # type: ignore[union-attr,index]
        return self


class Attention(nn.Module):
    """As in timm: fused or not, with q and k normed."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.fused_attn = heads, True
        self.scale = (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused_attn:
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        else:
            self.dense = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
            x = self.dense @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class VisionTransformer(nn.Module):
    """As in timm: patches, a class token, blocks."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, width))
        self.blocks = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 5)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patch_embed(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.head(x[:, 0])
        return logits

    def by_hand(self) -> VisionTransformer:
        for block in self.blocks:
            block.fused_attn = False
        return self


class EncoderBlock(nn.Module):
    """As in torchvision: nn.MultiheadAttention without weights, norms before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.self_attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class TorchvisionViT(nn.Module):
    """As in torchvision: patches, a class token, blocks in an encoder."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, 4, 4)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.encoder = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(layers)))
        self.heads = nn.Linear(width, 5)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.conv_proj(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        logits: Tensor = self.heads(self.encoder(x)[:, 0])
        return logits


class Called(nn.Module):
    """Whatever function, as a module: the shapes and arguments that SDPA takes."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.arguments)


PAD = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
LATER = torch.ones(6, 6, dtype=torch.bool).triu(1)


def made(seed: int = 0, **arguments: Any) -> nn.MultiheadAttention:
    torch.manual_seed(seed)
    return sharp(nn.MultiheadAttention(16, 4, **{"batch_first": True, **arguments}))


def watched(model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """What a model gives while it is watched, having checked that it is what it gives anyway."""
    state = torch.get_rng_state()
    before = model(*args, **kwargs)
    torch.set_rng_state(state)
    with watch(model, values=True) as seen:
        during = model(*args, **kwargs)
    assert same(before, during)
    assert torch.overrides._len_torch_function_stack() == 0
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    return during, seen


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other) and one.stride() == other.stride()
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def apart(weights: Tensor, expected: Tensor) -> float:
    assert weights.shape == expected.shape
    return float((weights.detach() + torch.zeros(()) - expected.detach()).abs().max())


def encoder(training: bool = False, **arguments: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, **arguments)
    return sharp(nn.TransformerEncoder(layer, 2)).train(training)


def ids(length: int = 10, batch: int = 2) -> Tensor:
    """Token ids [batch, length]."""
    return torch.randint(0, 60, (batch, length), generator=torch.Generator().manual_seed(1))


def sharp(model: Any) -> Any:
    """Larger weights, so that the attention is far from even; in evaluation mode."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name:
                parameter.mul_(2)
    return model.eval()
