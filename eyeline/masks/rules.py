"""The rules, lowered once the size is known; `eyeline.masks` makes and checks them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from eyeline.errors import ShapeError
from eyeline.masks.base import Known, Rule
from eyeline.masks.leading import Size, from_left, from_right
from eyeline.visibility import Visible
from eyeline.visibility.lowered import from_bits, from_ids, from_intervals

FAR = 2**62  # farther than any key, and int64 still holds a position beside it
MOST = 2**63 - 1  # what int64 holds


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Rule):
    """See `eyeline.causal`."""

    offset: int | None
    rule = "causal"

    def _arguments(self) -> tuple[int | None]:
        return (self.offset,)

    def _at(self, size: Size) -> Visible:
        stops = size.positions(self.offset) + 1
        return from_intervals(size.full(0), stops, size.Tq, size.Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Window(Rule):
    """See `eyeline.window`."""

    before: int
    after: int
    offset: int | None
    rule = "window"

    def _arguments(self) -> tuple[int, int, int | None]:
        return self.before, self.after, self.offset

    def _at(self, size: Size) -> Visible:
        own = size.positions(self.offset)
        # What is cut off lies outside of the keys either way, and int64 then holds both ends.
        starts = own.clamp(min=0) - min(self.before, MOST)
        stops = own.clamp(max=size.Tk) + (min(self.after, MOST - size.Tk - 1) + 1)
        return from_intervals(starts, stops, size.Tq, size.Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Rule):
    """See `eyeline.padding`."""

    lengths: Tensor | int
    side: str
    rule = "padding"

    def _arguments(self) -> tuple[Tensor | int, str]:
        return self.lengths, self.side

    def _known(self) -> Known:
        return _lead(self.lengths, 0), None, None

    def _at(self, size: Size) -> Visible:
        real = _counts(self.lengths, size, "padding(lengths)")
        if self.side == "right":
            return from_intervals(size.full(0), real, size.Tq, size.Tk)
        return from_intervals(size.Tk - real, size.full(size.Tk), size.Tq, size.Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Rule):
    """See `eyeline.masks.documents`."""

    ids: Tensor
    query_ids: Tensor | None
    rule = "documents"

    def _arguments(self) -> tuple[Tensor, Tensor | None]:
        return self.ids, self.query_ids

    def _known(self) -> Known:
        Tq = None if self.query_ids is None else self.query_ids.shape[-1]
        return _lead(self.ids, 1), Tq, self.ids.shape[-1]

    def _at(self, size: Size) -> Visible:
        Tq, Tk = size.Tq, size.Tk
        keys = from_left(self.ids, 1, size, "documents(ids)").long()
        _check_length(self.ids, -1, "Tk", size, "documents(ids)")
        if self.query_ids is not None:
            _check_length(self.query_ids, -1, "Tq", size, "documents(query_ids)")
            queries = from_left(self.query_ids, 1, size, "documents(query_ids)").long()
        elif Tk == 0:
            queries = keys.new_zeros(1, 1, Tq)
        elif Tq > Tk:
            raise ShapeError(
                f"documents(ids) takes the ids of the last Tq keys for the queries, and there are "
                f"more queries than keys: Tq = {Tq}, Tk = {Tk}. Give query_ids, one per query."
            )
        else:
            queries = keys[..., Tk - Tq :]
        return from_ids(queries, keys)


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Rule):
    """See `eyeline.masks.prefix`."""

    n: Tensor | int
    rule = "prefix"

    def _arguments(self) -> tuple[Tensor | int]:
        return (self.n,)

    def _known(self) -> Known:
        return _lead(self.n, 0), None, None

    def _at(self, size: Size) -> Visible:
        stops = _counts(self.n, size, "prefix(n)")
        return from_intervals(size.full(0), stops, size.Tq, size.Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Only(Rule):
    """See `eyeline.masks.only`."""

    keep: Tensor
    rule = "only"

    def _arguments(self) -> tuple[Tensor]:
        return (self.keep,)

    def _known(self) -> Known:
        return _lead(self.keep, 1), None, self.keep.shape[-1]

    def _at(self, size: Size) -> Visible:
        keep = from_left(self.keep, 1, size, "only(keep)")
        _check_length(self.keep, -1, "Tk", size, "only(keep)")
        return Visible(size.Tq, size.Tk, keep=keep, device=size.device)


@dataclass(frozen=True, eq=False, repr=False)
class Intervals(Rule):
    """See `eyeline.masks.intervals`."""

    starts: Tensor
    stops: Tensor
    rule = "intervals"

    def _arguments(self) -> tuple[Tensor, Tensor]:
        return self.starts, self.stops

    def _known(self) -> Known:
        return _lead(self.starts, 2), self.starts.shape[-2], None

    def _at(self, size: Size) -> Visible:
        _check_length(self.starts, -2, "Tq", size, "intervals(starts, stops)")
        starts = from_left(self.starts, 2, size, "intervals(starts)").long()
        stops = from_left(self.stops, 2, size, "intervals(stops)").long()
        return from_intervals(starts, stops, size.Tq, size.Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Bits(Rule):
    """See `eyeline.masks.from_tensor`."""

    tensor: Tensor
    rule = "from_tensor"

    def _arguments(self) -> tuple[Tensor]:
        return (self.tensor,)

    def _known(self) -> Known:
        Tq, Tk = (None if n == 1 else n for n in (1, 1, *self.tensor.shape)[-2:])
        return tuple(self.tensor.shape[:-2]), Tq, Tk

    def _at(self, size: Size) -> Visible:
        return from_bits(from_right(self.tensor, size, "mask"), size.Tq, size.Tk)


def _check_length(tensor: Tensor, dim: int, letter: str, size: Size, name: str) -> None:
    needed = size.Tq if letter == "Tq" else size.Tk
    if tensor.shape[dim] != needed:
        raise ShapeError(
            f"{name} {list(tensor.shape)} has {tensor.shape[dim]} entries where the weights {size} "
            f"need {letter} = {needed}."
        )


def _counts(value: Tensor | int, size: Size, name: str) -> Tensor:
    """A number of keys for all, or per leading dimension: int64 [N|1, H|1, 1, 1]."""
    if isinstance(value, Tensor):
        counts = from_left(value, 0, size, name).long()[..., None, None]
    else:
        counts = size.full(min(value, FAR))
    return counts.clamp(0, size.Tk)


def _lead(value: Tensor | int, trailing: int) -> tuple[int, ...]:
    return tuple(value.shape[: value.ndim - trailing]) if isinstance(value, Tensor) else ()
