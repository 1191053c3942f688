"""Biases that depend on `j - position(i)` alone: one vector per head in place of Tq x Tk numbers.

`position(i) = i + Tk - Tq`, as for masks. Pass the result as `bias=`; it is added to the scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.errors import ArgumentError, DtypeError, ShapeError

__all__ = ["RelativeBias", "alibi", "alibi_slopes", "relative"]

FAR = 2**62  # farther than any key, and int64 still holds a distance beside it


@dataclass(frozen=True, eq=False)
class RelativeBias(ABC):
    """A bias that is a function of `j - position(i)`; made by `alibi` and `relative`."""

    @property
    @abstractmethod
    def _heads(self) -> int | None:
        """How many heads have a bias of their own; None where all share one."""

    @abstractmethod
    def _at(self, distance: Tensor) -> Tensor:
        """The bias [H|1, n] at the distances `j - position(i)`, int64 [n]."""

    def lower(
        self,
        Tq: int,
        Tk: int,
        heads: int,
        dtype: torch.dtype,
        device: torch.device,
        offset: int | None = None,
    ) -> tuple[Tensor, int]:
        """The vector [H|1, Tq + Tk - 1] and the origin in it, for weights of this size.

        bias(i, j) = vector[h, j - position(i) + origin] for all i < Tq and j < Tk;
        position(i) = i + offset, and Tk - Tq stands in for an offset not given. Differentiable
        in the slopes or the table.

        >>> import torch
        >>> vector, origin = alibi(1.0).lower(2, 3, 1, torch.float32, torch.device("cpu"))
        >>> vector, origin  # position(0) = 1: j - position(i) runs from -2 to 1
        (tensor([[-2., -1.,  0., -1.]]), 2)
        """
        if self._heads not in (None, 1, heads):
            raise ShapeError(
                f"The bias has {self._heads} heads and the weights have Hq = {heads}. Give one "
                f"slope or table row per query head, or one for all of them."
            )
        origin = Tq - 1 + (Tk - Tq if offset is None else offset)
        distance = torch.arange(-origin, max(Tq + Tk - 1, 0) - origin, device=device)
        return self._at(distance).to(dtype), origin


@dataclass(frozen=True, eq=False)
class Alibi(RelativeBias):
    """See `alibi`."""

    slopes: Tensor | float

    @property
    def _heads(self) -> int | None:
        slopes = self.slopes
        return slopes.shape[0] if isinstance(slopes, Tensor) and slopes.ndim else None

    def _at(self, distance: Tensor) -> Tensor:
        slopes = self.slopes
        if not isinstance(slopes, Tensor):
            slopes = torch.full((), slopes, dtype=torch.float64, device=distance.device)
        # Distances beyond 256 are no bfloat16 numbers, so at least float32 until the product.
        wide = torch.promote_types(slopes.dtype, torch.float32)
        slopes = slopes.to(distance.device, wide).reshape(-1, 1)
        return slopes * (-distance.abs()).to(wide)


@dataclass(frozen=True, eq=False)
class Relative(RelativeBias):
    """See `relative`."""

    table: Tensor
    origin: int

    @property
    def _heads(self) -> int | None:
        return self.table.shape[0] if self.table.ndim == 2 else None

    def _at(self, distance: Tensor) -> Tensor:
        entries = (distance + self.origin).clamp(0, self.table.shape[-1] - 1)
        table = self.table if self.table.ndim == 2 else self.table.unsqueeze(0)
        return table.to(distance.device).index_select(1, entries)


def alibi(slopes: Tensor | float) -> RelativeBias:
    """`-slope · |j - position(i)|`: keys count less the farther away they are.

    `slopes` is a float tensor [Hq], one per head, or a number for all; `alibi_slopes` gives the
    paper's. Press, Smith, Lewis, "Train Short, Test Long" (arXiv 2108.12409).

    >>> import torch, eyeline
    >>> q = k = torch.zeros(3, 4)
    >>> eyeline.weights(q, k, eyeline.causal(), bias=alibi(0.5))[-1]
    tensor([0.1863, 0.3072, 0.5065])
    """
    if isinstance(slopes, Tensor):
        _check_floats(slopes, "alibi(slopes)")
        if slopes.ndim > 1:
            found = list(slopes.shape)
            raise ShapeError(f"alibi(slopes) takes one slope per head, [Hq], not {found}.")
    elif isinstance(slopes, bool) or not isinstance(slopes, int | float):
        raise DtypeError(f"alibi(slopes) takes a float tensor or a number, not {_name(slopes)}.")
    return Alibi(slopes)


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of the ALiBi paper: 2^(-8/H), 2^(-16/H), … for H heads, float32 [heads].

    For a number that is no power of two: those of the power below, then every second of the
    power above, as in the authors' code.

    >>> alibi_slopes(8)[:3], alibi_slopes(3)
    (tensor([0.5000, 0.2500, 0.1250]), tensor([0.0625, 0.0039, 0.2500]))
    """
    if _whole(heads, "alibi_slopes(heads)") < 0:
        raise ShapeError(f"alibi_slopes(heads) needs a number of heads, not {heads}.")
    power = 1 << max(heads.bit_length() - 1, 0)
    first = _geometric(power)[:heads]
    between = _geometric(2 * power)[::2]
    return torch.cat([first, between[: max(heads - power, 0)]])


def relative(table: Tensor, origin: int | None = None) -> RelativeBias:
    """A learned bias per relative place: entry `j - position(i) + origin` of the table.

    `table` is a float tensor [n], or [Hq, n] with a row per head; places beyond its ends take the
    end's entry. The origin, the entry for a query's own place, is the middle, (n - 1) // 2,
    unless given. Shaw, Uszkoreit, Vaswani (arXiv 1803.02155) clip distances alike.

    >>> import torch, eyeline
    >>> q = k = torch.zeros(3, 4)
    >>> previous = relative(torch.tensor([0.0, 2.0, 0.0, 0.0, 0.0]))  # favours j = i - 1
    >>> eyeline.weights(q, k, bias=previous)[-1]
    tensor([0.1065, 0.7870, 0.1065])
    """
    _check_floats(table, "relative(table)")
    if table.ndim not in (1, 2) or table.shape[-1] == 0:
        raise ShapeError(
            f"relative(table) takes [n] or [Hq, n] with n of at least 1, not {list(table.shape)}."
        )
    if origin is None:
        return Relative(table, (table.shape[-1] - 1) // 2)
    if not -FAR <= _whole(origin, "relative(origin)") <= FAR:
        raise ArgumentError(
            f"relative(origin={origin}) is the table's entry for a query's own place; give one "
            f"between -2**62 and 2**62, which is farther than any entry."
        )
    return Relative(table, origin)


def _whole(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DtypeError(f"{name} takes an int, not {_name(value)}.")
    return value


def _check_floats(value: Tensor, name: str) -> None:
    if not isinstance(value, Tensor):
        raise DtypeError(f"{name} takes a float tensor, not {_name(value)}.")
    if not value.is_floating_point():
        raise DtypeError(f"{name} takes floats, not {value.dtype}.")


def _name(value: object) -> str:
    return type(value).__name__


def _geometric(heads: int) -> Tensor:
    """2^(-8/heads) and its powers, [heads]."""
    return 2.0 ** (torch.arange(1, heads + 1) * (-8.0 / heads))
