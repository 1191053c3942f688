"""How close is close: a stated multiple of plain PyTorch's own error, both against float64."""

from __future__ import annotations

import torch
from torch import Tensor

# Error allowed, in units of what dense PyTorch gets wrong in the same dtype on the same input.
MULTIPLE = {torch.float64: 4.0, torch.float32: 4.0, torch.bfloat16: 2.0, torch.float16: 2.0}
# Where plain PyTorch happens to be exact: this many roundings of the largest value.
ROUNDINGS = {torch.float64: 64.0, torch.float32: 16.0, torch.bfloat16: 1.0, torch.float16: 1.0}
CANCELLED = 8.0


def agree(
    found: Tensor, exact: Tensor, plain: Tensor, what: str = "", beside: Tensor | None = None
) -> None:
    """`found` is as near to `exact` (float64) as `plain` (found's dtype), within the multiple.

    What cancelled to nothing keeps the roundings of what was added up: `beside`, in full precision.
    """
    assert found.shape == exact.shape, f"{what}: shape {list(found.shape)}, not {list(exact.shape)}"
    if exact.numel() == 0:
        return
    found, exact, plain = found.detach().double(), exact.detach(), plain.detach()
    kind = plain.dtype
    special = ~exact.isfinite()
    same = found[special].nan_to_num(nan=7.0) == exact[special].nan_to_num(nan=7.0)
    assert same.all(), f"{what}: NaN or inf is not where it belongs\n{found}\n{exact}"
    error, yardstick = (
        torch.where(special, 0.0, (x.double() - exact).abs().nan_to_num(nan=torch.inf))
        for x in (found, plain)
    )
    # Half precision overflows where float32 statistics do not: no excuse.
    yardstick = torch.where(yardstick.isinf(), 0.0, yardstick)
    floor = ROUNDINGS[kind] * torch.finfo(kind).eps * largest(exact) + torch.finfo(kind).tiny
    if beside is not None:
        statistics = torch.float64 if kind == torch.float64 else torch.float32
        floor += CANCELLED * torch.finfo(statistics).eps * largest(beside)
    bound = MULTIPLE[kind] * yardstick.max() + floor
    worst = error.max()
    assert worst <= bound, f"{what}: off by {worst:.3e}, plain {kind} by {yardstick.max():.3e}"


def largest(x: Tensor) -> float:
    """The largest finite magnitude."""
    return float(x.detach().abs().nan_to_num(nan=0.0, posinf=0.0).max()) if x.numel() else 0.0
