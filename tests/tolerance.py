"""How close is close: a stated multiple of plain PyTorch's own error, both against float64."""

from __future__ import annotations

import torch
from torch import Tensor

# Error allowed, in units of what dense PyTorch gets wrong in the same dtype on the same input.
MULTIPLE = {torch.float64: 4.0, torch.float32: 4.0, torch.bfloat16: 2.0, torch.float16: 2.0}
# Where plain PyTorch happens to be exact: this many roundings of the largest value.
ROUNDINGS = {torch.float64: 64.0, torch.float32: 16.0, torch.bfloat16: 1.0, torch.float16: 1.0}


def agree(found: Tensor, exact: Tensor, plain: Tensor, what: str = "") -> None:
    """`found` is as near to `exact` (float64) as `plain` (found's dtype), within the multiple."""
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
    yardstick = torch.where(
        yardstick.isinf(), 0.0, yardstick
    )  # half precision overflows where we may not
    size = torch.where(special, 0.0, exact.abs()).max()
    floor = ROUNDINGS[kind] * torch.finfo(kind).eps * size + torch.finfo(kind).tiny
    bound = MULTIPLE[kind] * yardstick.max() + floor
    worst = error.max()
    assert worst <= bound, f"{what}: off by {worst:.3e}, plain {kind} by {yardstick.max():.3e}"
