"""What the three systems share: a Transformer block on eyeline's layers, and a training loop.

    python examples/blocks.py

Every block can compute the same on torch's SDPA (`sdpa=True`), from the same parameters.
"""

import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional

import eyeline
from eyeline.layers import CrossAttention, SelfAttention
from eyeline.positions import Rotary


def on_sdpa(layer, x, context, mask):
    """The output of a layer of eyeline's, computed by torch's fused attention."""
    q, k, v = (
        W(of).unflatten(-1, (layer.num_heads, layer.head_dim)).transpose(1, 2)
        for W, of in ((layer.W_Q, x), (layer.W_K, context), (layer.W_V, context))
    )
    q, k = layer.q_norm(q), layer.k_norm(k)
    if layer.rotary is not None:
        q, k = layer.rotary(q), layer.rotary(k)
    visible = None if mask is None else mask.lower((1, 1), q.shape[2], k.shape[2], x.device)
    table = None if visible is None else visible.tile(None, None)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=table)
    out = out.transpose(1, 2).flatten(2)
    return out if layer.W_O is None else layer.W_O(out)


class Block(nn.Module):
    """Self-attention, cross-attention if it has a context, feed-forward; each added to x."""

    def __init__(self, dim, heads, cross_heads=0, sdpa=False):
        super().__init__()
        self.sdpa = sdpa
        self.norm = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, rotary=Rotary(dim // heads), qk_norm=True)
        self.cross_norm, self.cross = None, None
        if cross_heads:
            self.cross_norm = nn.LayerNorm(dim)
            self.cross = CrossAttention(dim, num_heads=cross_heads, out_proj=True, qk_norm=True)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, x, mask=None, context=None, cache=None):
        """x [B, T, dim] → the same, and the weights (cross-attention's, where there is one)."""
        y = self.norm(x)
        if self.sdpa:
            out, weights = on_sdpa(self.attention, y, y, mask), None
        elif cache is not None:  # one token after the other: what is held is the past
            out, weights = self.attention(y, cache=cache)
        else:
            out, weights = self.attention(y, mask)
        x = x + out
        if self.cross is not None:
            y = self.cross_norm(x)
            if self.sdpa:
                out = on_sdpa(self.cross, y, context, None)
            else:
                out, weights = self.cross(y, context)
            x = x + out
        return x + self.feed_forward(x), weights


class Transformer(nn.Module):
    """Characters in, a guess for each position out; which mask is given makes it GPT or BERT."""

    def __init__(self, kinds, dim=128, layers=4, heads=4, sdpa=False):
        super().__init__()
        self.embedding = nn.Embedding(kinds, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, sdpa=sdpa) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, kinds))

    def forward(self, ids, mask=None, caches=None):
        """ids [B, T] → logits [B, T, kinds], and each layer's weights [B, heads, T, T]."""
        x, seen = self.embedding(ids), []
        for i, block in enumerate(self.blocks):
            x, weights = block(x, mask, cache=None if caches is None else caches[i])
            seen.append(weights)
        return self.head(x), seen


def without_scale(model):
    """Take the division by √d_k out of every self-attention: its queries are √d_k times as long."""
    for module in model.modules():
        if isinstance(module, SelfAttention):
            longer = module.head_dim**0.5
            module.q_norm.register_forward_hook(lambda _, x, out, by=longer: out * by)
    return model


def cross_entropy(logits, targets, ignore=-100):
    """Mean over the targets [B, T] that are not `ignore`, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignore)


def train(model, loss_of_batch, steps, rate=3e-3, print_every=0):
    """Train in place by AdamW, the rate warmed up and let down; the loss of every step."""
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    warm = min(50, steps)

    def share(step):
        done = step / max(1, steps)
        return min((step + 1) / warm, 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    losses, start = [], time.perf_counter()
    for step in range(steps):
        loss = loss_of_batch()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if print_every and (step + 1) % print_every == 0:
            recent = sum(losses[-print_every:]) / print_every
            minutes = (time.perf_counter() - start) / 60
            print(f"  step {step + 1:5}  loss {recent:.3f}  {minutes:.1f} min", flush=True)
    model.eval()
    return losses


def asked(document, arguments, **flags):
    """The options of an example: those that all three have, and its own with their meanings."""
    parser = argparse.ArgumentParser(description=document.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the training of the figures")
    parser.add_argument("--steps", type=int, help="as many instead")
    parser.add_argument("--sdpa", action="store_true", help="attention by torch's SDPA")
    for flag, meaning in flags.items():
        parser.add_argument("--" + flag.replace("_", "-"), action="store_true", help=meaning)
    return parser.parse_args(arguments)


class Clock:
    """Since when it was made: minutes on the clock, and minutes of one core."""

    def __init__(self):
        self.start = time.perf_counter(), time.process_time()

    def __str__(self):
        clock, core = time.perf_counter() - self.start[0], time.process_time() - self.start[1]
        return f"{clock / 60:.1f} minutes ({core / 60:.1f} of one core)"


def size(model):
    """How many parameters, in words."""
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters"


def main():
    """Print how far eyeline and SDPA are apart on one block."""
    torch.manual_seed(0)
    model = Transformer(kinds=100)
    ids = torch.randint(100, (2, 128))
    outputs = []
    for sdpa in (False, True):
        for block in model.blocks:
            block.sdpa = sdpa
        with torch.no_grad():
            outputs.append(model(ids, eyeline.causal())[0])
    print(size(model))
    apart = (outputs[0] - outputs[1]).abs().max().item()
    print(f"largest difference between eyeline's and SDPA's logits: {apart:.1e}")


if __name__ == "__main__":
    main()
