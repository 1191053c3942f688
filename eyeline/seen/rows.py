"""Rows of queries, keys or values that grow at the end, in memory that grows with them."""

from __future__ import annotations

import torch
from torch import Tensor

_ROOM = 8  # one row more in so many: at most 1.125 of what is needed is held


class Rows:
    """``[..., T, D]`` that rows are added to.

    The first rows are held as they are given; once more are added all are copied into memory with
    room for some more, so that adding a row costs its own size. Rows with a gradient keep it, at
    the cost of a copy of all for each step.
    """

    def __init__(self, first: Tensor) -> None:
        self._held = first
        self._count = int(first.shape[-2])
        self._owned = False

    def __len__(self) -> int:
        return self._count

    @property
    def tensor(self) -> Tensor:
        """All rows."""
        return self._held.narrow(-2, 0, self._count)

    def add(self, more: Tensor) -> None:
        """Put rows ``[..., n, D]`` behind those that are there; they are copied."""
        if torch.is_grad_enabled() and (more.requires_grad or self._held.requires_grad):
            self._held, self._owned = torch.cat((self.tensor, more), -2), False
            self._count = int(self._held.shape[-2])
            return
        total = self._count + int(more.shape[-2])
        if not self._fits(total):
            self._move(total + max(total // _ROOM, 1))
        self._held.narrow(-2, self._count, int(more.shape[-2])).copy_(more.detach())
        self._count = total

    def trim(self) -> None:
        """Give back the room that is left."""
        if self._owned and self._held.shape[-2] > self._count:
            self._move(self._count)

    def _fits(self, total: int) -> bool:
        # What was made in inference mode cannot be written into outside of it.
        locked = self._held.is_inference() and not torch.is_inference_mode_enabled()
        return self._owned and not locked and total <= self._held.shape[-2]

    def _move(self, room: int) -> None:
        shape = (*self._held.shape[:-2], room, self._held.shape[-1])
        held = self._held.new_empty(shape)
        held.narrow(-2, 0, self._count).copy_(self.tensor.detach())
        self._held, self._owned = held, True
