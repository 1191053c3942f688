"""Plain attention, forward and backward, in each type and size, beside torch SDPA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

import eyeline
from benchmarks.goals.goal import Figure, Goal, Pair, Point, Size, close

WORDS = {torch.float32: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}
GRID = (512, 1024, 2048, 4096, 8192)
SDPA = "torch SDPA"


def tensors(
    heads: tuple[int, int],
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    batch: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v for ``(Hq, Hk)``, ``(Tq, Tk)``, ``(D, Dv)``."""
    torch.manual_seed(0)
    (Hq, Hk), (Tq, Tk), (D, Dv) = heads, lengths, sizes
    q = torch.randn(batch, Hq, Tq, D).to(dtype)
    k = torch.randn(batch, Hk, Tk, D).to(dtype)
    v = torch.randn(batch, Hk, Tk, Dv).to(dtype)
    return q, k, v


def square(T: int, D: int, heads: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """q, k and v of self-attention."""
    return tensors((heads, heads), (T, T), (D, D), dtype)


def heads_at(T: int) -> int:
    """Fewer heads where the text is long: a call takes about a tenth of a second at most."""
    return max(1, min(8, 4096 // T))


def beside_sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Pair:
    """Attention, and torch's fused attention."""
    mask = eyeline.causal() if causal else None
    grouped = q.shape[1] != k.shape[1]
    flops = 2.0 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (q.shape[3] + v.shape[3])
    return Pair(
        lambda: eyeline.attention(q, k, v, mask)[0],
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped),
        flops=flops / 2 if causal else flops,
        same=close,
    )


def trained(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Pair:
    """Attention and the gradients of q, k and v, both ways."""
    given = tuple(t.requires_grad_() for t in (q, k, v))
    above = torch.randn_like(q)
    mask = eyeline.causal() if causal else None

    def run(attend: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            out = attend()
            return (out.detach(), *torch.autograd.grad(out, given, above))

    return Pair(
        lambda: run(lambda: eyeline.attention(q, k, v, mask)[0]),
        lambda: run(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)),
        same=close_gradients,
    )


def close_gradients(mine: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> None:
    """Gradients of 16-bit inputs differ by roundings of their largest entries."""
    for a, b in zip(mine, other, strict=True):
        error = float((a.float() - b.float()).abs().max() / b.float().abs().max())
        assert error < (1e-4 if a.dtype == torch.float32 else 3e-2), f"they differ by {error}"


def plain(T: int, D: int, dtype: torch.dtype, causal: bool) -> Point:
    """A forward pass."""
    H = heads_at(T)
    name = f"forward {WORDS[dtype]} {'causal' if causal else 'full'} D {D} T {T} H {H}"
    return Point(name, lambda size: beside_sdpa(*square(size(T), D, H, dtype), causal))


def training(T: int, D: int, dtype: torch.dtype, causal: bool) -> Point:
    """A forward and a backward pass."""
    H = max(1, 2048 // T)
    name = f"backward {WORDS[dtype]} {'causal' if causal else 'full'} D {D} T {T} H {H}"
    return Point(name, lambda size: trained(*square(size(T), D, H, dtype), causal))


def shaped(name: str, H: int, lengths: tuple[int, int], sizes: tuple[int, int]) -> Point:
    """A forward pass of lengths or sizes that differ."""

    def make(size: Size) -> Pair:
        return beside_sdpa(*tensors((H, H), (size(lengths[0]), size(lengths[1])), sizes))

    return Point(f"sizes {name} H {H}", make)


def forward() -> Iterator[Goal]:
    """float32 over the whole grid, then the 16-bit types."""
    full = tuple(plain(T, D, torch.float32, False) for D, T in product((64, 128), GRID))
    work = "forward float32, D 64 and 128, T 512-8192"
    yield Goal("forward", f"{work}: median of the grid", SDPA, full, 1.25, median=True)
    yield Goal("forward", f"{work}: each point", SDPA, full, 1.15)
    for D, bound in ((64, 0.70), (128, 0.75)):
        long = tuple(plain(T, D, torch.float32, False) for T in GRID if T >= 2048)
        name = f"forward float32, D {D}, T ≥ 2048"
        yield Goal("forward", name, "multiply-adds alone", long, bound, Figure.PEAK)
    for lengths, bound in ((GRID[:2], 1.5), (GRID[2:], 1.25)):
        points = tuple(plain(T, D, torch.float32, True) for D, T in product((64, 128), lengths))
        name = f"forward float32 causal, T {lengths[0]}-{lengths[-1]}"
        yield Goal("forward", name, SDPA, points, bound)
    for dtype, bound in ((torch.bfloat16, 1.25), (torch.float16, 1.8)):
        cases = product((False, True), (64, 128), (512, 2048, 4096))
        points = tuple(plain(T, D, dtype, causal) for causal, D, T in cases)
        yield Goal("forward", f"forward {WORDS[dtype]}, full and causal", SDPA, points, bound)


def backward() -> Iterator[Goal]:
    """Forward and backward together."""
    goals: tuple[tuple[torch.dtype, bool | None, float], ...] = (
        (torch.float32, False, 1.25),
        (torch.float32, True, 1.4),
        (torch.bfloat16, None, 4.0),
        (torch.float16, None, 7.0),
    )
    for dtype, causal, bound in goals:
        lengths = (512, 2048, 4096) if dtype == torch.float32 else (512, 2048)
        cases = product((False, True) if causal is None else (causal,), (64, 128), lengths)
        points = tuple(training(T, D, dtype, masked) for masked, D, T in cases)
        kind = {None: "full and causal", False: "full", True: "causal"}[causal]
        yield Goal("backward", f"forward + backward {WORDS[dtype]}, {kind}", SDPA, points, bound)


def sizes() -> Iterator[Goal]:
    """Sizes of heads, values of another size, fewer queries than keys."""
    odd = tuple(shaped(f"D {D}", 4, (2048, 2048), (D, D)) for D in (80, 96, 256))
    yield Goal("sizes", "D 80, 96, 256, T 2048", SDPA, odd, 1.12)
    pairs = tuple(shaped(f"D {D} Dv {Dv}", 4, (2048, 2048), (D, Dv)) for D, Dv in LATENT)
    yield Goal("sizes", "Dv ≠ D, T 2048", SDPA, pairs, 3.0)
    fewer = ((64, 4096), (256, 4096), (1024, 4096))
    points = tuple(shaped(f"Tq {Tq} Tk {Tk}", 4, (Tq, Tk), (64, 64)) for Tq, Tk in fewer)
    yield Goal("sizes", "Tq ≠ Tk, D 64", SDPA, points, 1.2)


LATENT = ((64, 128), (128, 64), (192, 128))
"""The last one is multi-head latent attention's."""
