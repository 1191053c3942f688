"""Tensors whose dimensions are the weights' leading ones, brought to [N|1, H|1, ...].

N is the product of the batch dimensions, H the heads: weights [*lead, Tq, Tk] have their heads
last in `lead`, those of rank 3 have none (H = 1), those of rank 2 have neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.errors import ShapeError


@dataclass(frozen=True)
class Size:
    """The weights that a mask is lowered for: shape [*lead, Tq, Tk]."""

    lead: tuple[int, ...]
    Tq: int
    Tk: int
    device: torch.device

    def __str__(self) -> str:
        return f"{[*self.lead, self.Tq, self.Tk]} (Tq = {self.Tq}, Tk = {self.Tk})"

    def full(self, value: int) -> Tensor:
        """One number for all rows: int64 [1, 1, 1, 1]."""
        return torch.full((1, 1, 1, 1), value, dtype=torch.int64, device=self.device)

    def positions(self, offset: int | None) -> Tensor:
        """Where each query stands among the keys: int64 [1, 1, Tq, 1]."""
        first = self.Tk - self.Tq if offset is None else offset
        return (torch.arange(self.Tq, device=self.device) + first).view(1, 1, self.Tq, 1)


def from_left(tensor: Tensor, trailing: int, size: Size, name: str) -> Tensor:
    """[N|1, H|1, *trailing] of a tensor that names the leading dimensions from the left.

    [B, n] with one trailing dimension fits weights [B, H, Tq, Tk]: it is the same for all heads.
    """
    split = tensor.ndim - trailing
    own, rest = tuple(tensor.shape[:split]), tuple(tensor.shape[split:])
    fits = len(own) <= len(size.lead)
    if not fits or any(n not in (1, whole) for n, whole in zip(own, size.lead, strict=False)):
        raise ShapeError(
            f"{name} {list(tensor.shape)} does not fit the weights {size}. Its "
            f"{'dimensions' if trailing == 0 else f'dimensions before the last {trailing}'} are "
            f"the leading ones of the weights, from the left."
        )
    shape = own + (1,) * (len(size.lead) - len(own)) + rest
    tensor = collapsed(tensor.reshape(shape), dims=len(size.lead))
    return merged(tensor, size.lead).to(size.device)


def from_right(tensor: Tensor, size: Size, name: str) -> Tensor:
    """[N|1, H|1, Tq|1, Tk|1] of a tensor that broadcasts against the weights as torch does."""
    weights = (*size.lead, size.Tq, size.Tk)
    shape = (1,) * (len(weights) - tensor.ndim) + tuple(tensor.shape)
    fits = len(shape) == len(weights)
    if not fits or any(n not in (1, whole) for n, whole in zip(shape, weights, strict=True)):
        raise ShapeError(
            f"{name} {list(tensor.shape)} does not fit the weights {size}. Its last two sizes are "
            f"Tq and Tk, or 1; those before them match the weights' from the right, or are 1. "
            f"A tokenizer's padding mask [B, Tk] goes to eyeline.masks.only."
        )
    return merged(collapsed(tensor.reshape(shape)), size.lead).to(size.device)


def collapsed(tensor: Tensor, dims: int | None = None) -> Tensor:
    """The tensor with expanded (stride 0) dimensions narrowed to 1, among the first `dims`."""
    for dim in range(tensor.ndim if dims is None else dims):
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def merged(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """[*lead, ...], each of `lead` whole or 1, as [N|1, H|1, ...]."""
    if len(lead) < 2:  # no heads
        tensor = tensor.unsqueeze(len(lead))
    batch = max(len(lead) - 1, min(len(lead), 1))
    rest = tensor.shape[batch:]
    if all(size == 1 for size in tensor.shape[:batch]):
        return tensor.reshape(1, *rest)
    return tensor.expand(*lead[:batch], *rest).flatten(0, batch - 1)
