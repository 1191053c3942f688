"""Masks: rules that say who may be seen, closed under `&`, `|` and `~`.

A mask has no size. Given the weights' leading dimensions, Tq and Tk, it lowers to a
`Visible`: a few key intervals per query, a bool or an id per key, and only where nothing
shorter will do, bits. The *position* of query i is `i + Tk - Tq`: the last query stands at the
last key; `offset=` replaces `Tk - Tq`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor

from eyeline import grid
from eyeline.errors import EyelineError, MaskError, ShapeError
from eyeline.visibility import Visible, collapsed, from_bits, from_ids, from_intervals

Sizes = tuple[tuple[int, ...], int | None, int | None]

SAMPLE = 5  # queries and keys drawn where a mask's own tensors do not say how many


class Mask(ABC):
    """A rule that says which keys each query may see.

    Made by `causal`, `window`, `padding` and the functions of `eyeline.masks`; combined with
    `&` (both allow it), `|` (either does) and `~` (what was hidden). Equal masks compare equal,
    and every mask can be pickled and copied.
    """

    __slots__ = ()
    rule = ""

    @abstractmethod
    def arguments(self) -> tuple[Mask | Tensor | int | str | None, ...]:
        """What the rule was made from, in the order in which it takes them."""

    @abstractmethod
    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        """The rule for weights of shape [*lead, Tq, Tk]; the last of two or more leads is H."""

    def hidden(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        """The opposite of the rule, lowered."""
        return ~self.lower(lead, Tq, Tk, device)

    def sizes(self) -> Sizes:
        """Leading dimensions, Tq and Tk as far as the rule's own tensors tell them."""
        return (), None, None

    def __and__(self, other: Mask) -> Mask:
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return Not(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        (text, tensors), (other_text, others) = self.spec(), other.spec()
        return text == other_text and all(map(_equal, tensors, others))

    def __hash__(self) -> int:
        text, tensors = self.spec()
        return hash((text, *(tuple(tensor.shape) for tensor in tensors)))

    def spec(self) -> tuple[str, list[Tensor]]:
        """The mask as text and its tensors: what goes through an operator that knows no masks.

        >>> import eyeline
        >>> (eyeline.causal() & ~eyeline.window(2)).spec()
        ('(and (causal -) (not (window 2 0 -)))', [])
        """
        tensors: list[Tensor] = []
        return self._written(tensors), tensors

    def _written(self, tensors: list[Tensor]) -> str:
        words = [self.rule]
        for argument in self.arguments():
            if isinstance(argument, Mask):
                words.append(argument._written(tensors))
            elif isinstance(argument, Tensor):
                words.append(f"#{len(tensors)}")
                tensors.append(argument)
            else:
                words.append("-" if argument is None else f"{argument}")
        return "(" + " ".join(words) + ")"

    @staticmethod
    def from_spec(text: str, tensors: Sequence[Tensor]) -> Mask:
        """The mask whose `spec()` this is."""
        words = iter(re.findall(r"[()]|[^\s()]+", text))
        next(words)
        return _read(words, tensors)

    @property
    def formula(self) -> str:
        """The mask in one line, as it would be written.

        >>> import eyeline
        >>> (eyeline.causal() & ~eyeline.window(2)).formula
        'causal() & ~window(2)'
        """
        return _call(self.rule, self.arguments())

    def draw(
        self, Tq: int | None = None, Tk: int | None = None, labels: Sequence[str] | None = None
    ) -> str:
        """A table of 1 (may be seen) and 0, one row per query.

        `labels` name the keys, and the queries that stand at them; large tables are shortened.
        With batch entries or heads of their own, the first is drawn.

        >>> import eyeline
        >>> print(eyeline.causal().draw(4))
        1 0 0 0
        1 1 0 0
        1 1 1 0
        1 1 1 1
        >>> print((eyeline.causal() & eyeline.window(1)).draw(labels=["我", "爱", "你"]))
           我 爱 你
        我  1  0  0
        爱  1  1  0
        你  0  1  1
        """
        lead, Tq, Tk = self._drawn_sizes(Tq, Tk, labels)
        visible = self.lower(lead, Tq, Tk, torch.device("cpu"))
        shown_rows, shown_cols = grid.ends(Tq), grid.ends(Tk)
        tile = visible.tile(torch.tensor(shown_rows), torch.tensor(shown_cols))
        cells = torch.ones(len(shown_rows), len(shown_cols), dtype=torch.int64)
        if tile is not None:
            cells = cells * tile[:1, :1].reshape(tile.shape[2:])
        if labels is None:
            return grid.table(cells.tolist(), shown_rows, shown_cols)
        if len(labels) != Tk:
            raise ShapeError(f"draw() has {len(labels)} labels for Tk = {Tk} keys.")
        names = [labels[i + Tk - Tq] if i + Tk >= Tq else "" for i in shown_rows]
        keys = [labels[j] for j in shown_cols]
        return grid.table(cells.tolist(), shown_rows, shown_cols, names, keys)

    def _drawn_sizes(
        self, Tq: int | None, Tk: int | None, labels: Sequence[str] | None
    ) -> tuple[tuple[int, ...], int, int]:
        lead, own_Tq, own_Tk = self.sizes()
        keys = Tk if Tk is not None else own_Tk
        keys = len(labels) if keys is None and labels is not None else keys
        queries = Tq if Tq is not None else own_Tq
        if keys is None:
            keys = SAMPLE if queries is None else queries
        return lead, keys if queries is None else queries, keys

    def __repr__(self) -> str:
        _, Tq, Tk = self.sizes()
        title = self.formula
        if Tq is None and Tk is None:
            title += f" for {SAMPLE} queries and {SAMPLE} keys, as a sample"
        try:
            return f"{title}:\n{self.draw()}"
        except EyelineError:  # its parts do not fit together: attention() says so, repr does not
            return self.formula


# ---- the rules ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Mask):
    offset: int | None
    rule = "causal"

    def arguments(self) -> tuple[int | None]:
        return (self.offset,)

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        stops = _positions(Tq, Tk, self.offset, device) + 1
        return from_intervals(stops.new_zeros(()), stops, Tq, Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Window(Mask):
    before: int
    after: int
    offset: int | None
    rule = "window"

    def arguments(self) -> tuple[int, int, int | None]:
        return self.before, self.after, self.offset

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        at = _positions(Tq, Tk, self.offset, device)
        return from_intervals(at - self.before, at + (self.after + 1), Tq, Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    lengths: Tensor | int
    side: str
    rule = "padding"

    def arguments(self) -> tuple[Tensor | int, str]:
        return self.lengths, self.side

    def sizes(self) -> Sizes:
        return _shape(self.lengths, 0), None, None

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        real = _per_lead(self.lengths, 0, lead, device, "padding(lengths)", Tq, Tk)
        real = real.unflatten(-1, (-1, 1, 1)) if real.ndim == 2 else real
        ends = real.new_full((), Tk)
        if self.side == "right":
            return from_intervals(ends * 0, real, Tq, Tk)
        return from_intervals(Tk - real.clamp(0, Tk), ends, Tq, Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    ids: Tensor
    query_ids: Tensor | None
    rule = "documents"

    def arguments(self) -> tuple[Tensor, Tensor | None]:
        return self.ids, self.query_ids

    def sizes(self) -> Sizes:
        Tq = None if self.query_ids is None else self.query_ids.shape[-1]
        return _shape(self.ids, 1), Tq, self.ids.shape[-1]

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        keys = _per_lead(self.ids, 1, lead, device, "documents(ids)", Tq, Tk)
        _length(keys, Tk, "documents(ids)", "Tk", Tq, Tk)
        if self.query_ids is not None:
            queries = _per_lead(self.query_ids, 1, lead, device, "documents(query_ids)", Tq, Tk)
            _length(queries, Tq, "documents(query_ids)", "Tq", Tq, Tk)
        elif Tq > Tk > 0:
            raise ShapeError(
                f"documents(ids) takes the queries for the last Tq of the keys, and there are more "
                f"queries than keys: Tq = {Tq}, Tk = {Tk}. Give query_ids, one per query."
            )
        else:
            queries = keys[..., Tk - Tq :] if Tq <= Tk else keys.new_zeros(1, 1, Tq)
        return from_ids(queries, keys)


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask):
    n: Tensor | int
    rule = "prefix"

    def arguments(self) -> tuple[Tensor | int]:
        return (self.n,)

    def sizes(self) -> Sizes:
        return _shape(self.n, 0), None, None

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        stops = _per_lead(self.n, 0, lead, device, "prefix(n)", Tq, Tk)
        return from_intervals(stops.new_zeros(()), stops, Tq, Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Only(Mask):
    keep: Tensor
    rule = "only"

    def arguments(self) -> tuple[Tensor]:
        return (self.keep,)

    def sizes(self) -> Sizes:
        return _shape(self.keep, 1), None, self.keep.shape[-1]

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        keep = _per_lead(self.keep, 1, lead, device, "only(keep)", Tq, Tk)
        _length(keep, Tk, "only(keep)", "Tk", Tq, Tk)
        return Visible(Tq, Tk, keep=keep, device=keep.device)


@dataclass(frozen=True, eq=False, repr=False)
class Intervals(Mask):
    starts: Tensor
    stops: Tensor
    rule = "intervals"

    def arguments(self) -> tuple[Tensor, Tensor]:
        return self.starts, self.stops

    def sizes(self) -> Sizes:
        return _shape(self.starts, 2), self.starts.shape[-2], None

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        ends = []
        for name, tensor in (("starts", self.starts), ("stops", self.stops)):
            end = _per_lead(tensor, 2, lead, device, f"intervals({name})", Tq, Tk)
            _length(end[..., 0] if end.shape[-1] else end.sum(-1), Tq, f"intervals({name})", "Tq", Tq, Tk)
            ends.append(end.long())
        return from_intervals(*ends, Tq, Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Bits(Mask):
    tensor: Tensor
    rule = "from_tensor"

    def arguments(self) -> tuple[Tensor]:
        return (self.tensor,)

    def sizes(self) -> Sizes:
        shape = (1, 1, *self.tensor.shape)
        queries, keys = (size if size != 1 else None for size in shape[-2:])
        return tuple(self.tensor.shape[:-2]), queries, keys

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        weights = (*lead, Tq, Tk)
        shape = (1,) * (len(weights) - self.tensor.ndim) + tuple(self.tensor.shape)
        fits = zip(shape, weights, strict=False)
        if len(shape) > len(weights) or any(size not in (1, whole) for size, whole in fits):
            raise ShapeError(
                f"mask {list(self.tensor.shape)} does not fit the weights {_weights(lead, Tq, Tk)}: "
                f"Tq = {Tq}, Tk = {Tk}. Give a mask whose last two sizes are [Tq, Tk] (or 1) and "
                f"whose others match the weights' from the right."
            )
        bits = _merged(collapsed(self.tensor.reshape(shape)), lead).to(device)
        return from_bits(bits, Tq, Tk)


# ---- the algebra -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class And(Mask):
    left: Mask
    right: Mask
    rule = "and"

    def arguments(self) -> tuple[Mask, Mask]:
        return self.left, self.right

    def sizes(self) -> Sizes:
        return _larger(self.left.sizes(), self.right.sizes())

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        return self.left.lower(lead, Tq, Tk, device) & self.right.lower(lead, Tq, Tk, device)

    def hidden(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        return self.left.hidden(lead, Tq, Tk, device) | self.right.hidden(lead, Tq, Tk, device)


@dataclass(frozen=True, eq=False, repr=False)
class Or(Mask):
    left: Mask
    right: Mask
    rule = "or"

    def arguments(self) -> tuple[Mask, Mask]:
        return self.left, self.right

    def sizes(self) -> Sizes:
        return _larger(self.left.sizes(), self.right.sizes())

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        return self.left.lower(lead, Tq, Tk, device) | self.right.lower(lead, Tq, Tk, device)

    def hidden(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        return self.left.hidden(lead, Tq, Tk, device) & self.right.hidden(lead, Tq, Tk, device)


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    inner: Mask
    rule = "not"

    def arguments(self) -> tuple[Mask]:
        return (self.inner,)

    def sizes(self) -> Sizes:
        return self.inner.sizes()

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        return self.inner.hidden(lead, Tq, Tk, device)

    def hidden(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        return self.inner.lower(lead, Tq, Tk, device)


# ---- what users call ---------------------------------------------------------------------------


def causal(offset: int | None = None) -> Mask:
    """Each query sees the keys up to its own position, j <= i + Tk - Tq.

    The last query stands at the last key, so with a cache (Tq < Tk) the new queries see all that
    came before; `offset=0` is the top-left form, where query i sees keys 0..i.

    >>> import eyeline
    >>> print(eyeline.causal().draw(2, 5))
    1 1 1 1 0
    1 1 1 1 1
    >>> print(eyeline.causal(offset=0).draw(2, 5))
    1 0 0 0 0
    1 1 0 0 0
    """
    return Causal(_whole(offset, "causal(offset)", optional=True))


def window(before: int, after: int = 0, offset: int | None = None) -> Mask:
    """Each query sees `before` keys before its position, its own, and `after` behind it.

    The counts are beside the position: `window(2)` sees 3 keys. A "window of w" in Mistral's sense
    (arXiv 2310.06825) is `window(w - 1)`.

    >>> import eyeline
    >>> print(eyeline.window(2, after=1).draw(4))
    1 1 0 0
    1 1 1 0
    1 1 1 1
    0 1 1 1
    """
    counts = _whole(before, "window(before)"), _whole(after, "window(after)")
    for name, count in zip(("before", "after"), counts, strict=True):
        if count < 0:
            raise MaskError(
                f"window({name}={count}): counts are of keys beside the position and cannot be "
                f"negative. For a side without a limit give the number of tokens, or use causal()."
            )
    return Window(*counts, _whole(offset, "window(offset)", optional=True))


def padding(lengths: Tensor | int, side: Literal["right", "left"] = "right") -> Mask:
    """Only the real keys are seen: the first `lengths` of them, or the last with side="left".

    `lengths` is an int or an integer tensor whose dimensions are the weights' leading ones from
    the left, so [B] for [B, H, Tq, Tk]; lengths above Tk mean Tk. It is about keys: rows of padded
    queries still see the real keys.

    >>> import torch, eyeline
    >>> print(eyeline.padding(2).draw(1, 4), eyeline.padding(3, side="left").draw(1, 4), sep="\\n")
    1 1 0 0
    0 1 1 1
    """
    if side not in ("right", "left"):
        raise MaskError(f'padding(side={side!r}): the side that is padded is "right" or "left".')
    return Padding(_counts(lengths, "padding(lengths)"), side)


def documents(ids: Tensor, query_ids: Tensor | None = None) -> Mask:
    """Each query sees the keys of its own document, for texts packed into one sequence.

    `ids` are integers, one per key: [Tk], or [B, Tk]. The queries take the last Tq of them,
    unless `query_ids` [Tq] or [B, Tq] is given.

    >>> import torch
    >>> from eyeline.masks import documents
    >>> print(documents(torch.tensor([0, 0, 1])).draw())
    1 1 0
    1 1 0
    0 0 1
    """
    queries = None if query_ids is None else _integers(query_ids, 1, "documents(query_ids)")
    return Documents(_integers(ids, 1, "documents(ids)"), queries)


def prefix(n: Tensor | int) -> Mask:
    """Every query sees the first `n` keys; `causal() | prefix(n)` is a prefix language model.

    `n` is an int or an integer tensor with the weights' leading dimensions from the left, as [B].

    >>> import eyeline
    >>> from eyeline.masks import prefix
    >>> print((eyeline.causal() | prefix(2)).draw(3))
    1 1 0
    1 1 0
    1 1 1
    """
    return Prefix(_counts(n, "prefix(n)"))


def only(keep: Tensor) -> Mask:
    """Every query sees the keys where `keep`, bool [Tk] or [B, Tk], is True.

    A tokenizer's `attention_mask` of 0 and 1 is taken as well.

    >>> import torch
    >>> from eyeline.masks import only
    >>> print(only(torch.tensor([True, False, True])).draw(2))
    1 0 1
    1 0 1
    """
    if not isinstance(keep, Tensor) or keep.ndim < 1:
        raise MaskError("only(keep) takes a bool tensor with one entry per key, [Tk] or [B, Tk].")
    return Only(_as_bool(keep, "only(keep)"))


def intervals(starts: Tensor, stops: Tensor) -> Mask:
    """Query i sees the keys j with starts[i, n] <= j < stops[i, n] for any n.

    Integer tensors [Tq], [Tq, n] or [B, Tq, n] of one shape. Intervals may overlap or be empty.

    >>> import torch
    >>> from eyeline.masks import intervals
    >>> print(intervals(torch.tensor([0, 1]), torch.tensor([2, 4])).draw(Tk=4))
    1 1 0 0
    0 1 1 1
    """
    ends = [_integers(end, 1, "intervals(starts, stops)") for end in (starts, stops)]
    if ends[0].shape != ends[1].shape:
        raise ShapeError(
            f"intervals() needs one stop per start: starts {list(ends[0].shape)}, "
            f"stops {list(ends[1].shape)}."
        )
    return Intervals(*(end.unsqueeze(-1) if end.ndim == 1 else end for end in ends))


def from_tensor(t: Tensor) -> Mask:
    """A mask from a tensor: True or 1 where a key may be seen.

    bool, or 0 and 1 of any dtype, broadcastable to the weights' own shape from the right. Dense
    bits take Tq x Tk bytes; the rules above do not. Under torch.compile only bool is taken, as
    values cannot be looked at there.

    >>> import torch, eyeline
    >>> from eyeline.masks import from_tensor
    >>> print(from_tensor(torch.tril(torch.ones(3, 3))).draw())
    1 0 0
    1 1 0
    1 1 1
    """
    if not isinstance(t, Tensor):
        raise MaskError(f"A mask is a rule or a tensor, not {type(t).__name__}.")
    return Bits(_as_bool(t, "mask"))


RULES: dict[str, Callable[..., Mask]] = {
    "causal": Causal,
    "window": Window,
    "padding": Padding,
    "documents": Documents,
    "prefix": Prefix,
    "only": Only,
    "intervals": Intervals,
    "from_tensor": Bits,
    "and": And,
    "or": Or,
    "not": Not,
}


# ---- arguments ---------------------------------------------------------------------------------


def _whole(value: int | None, name: str, optional: bool = False) -> int | None:
    if isinstance(value, bool) or not (isinstance(value, int) or (optional and value is None)):
        raise MaskError(f"{name} takes an int, not {type(value).__name__}.")
    return value


def _integers(tensor: Tensor, rank: int, name: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise MaskError(f"{name} takes an integer tensor, not {type(tensor).__name__}.")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise MaskError(f"{name} takes integers, not {tensor.dtype}.")
    if tensor.ndim < rank:
        raise ShapeError(f"{name} needs at least {rank} dimension(s), not {list(tensor.shape)}.")
    return tensor


def _counts(value: Tensor | int, name: str) -> Tensor | int:
    if isinstance(value, Tensor):
        return _integers(value, 0, name)
    count = _whole(value, name)
    if count < 0:
        raise MaskError(f"{name} is a number of keys and cannot be {count}.")
    return count


def _as_bool(tensor: Tensor, name: str) -> Tensor:
    """True where a tensor of 0 and 1 is 1; refuses any other value, showing one."""
    if tensor.dtype == torch.bool:
        return tensor
    if torch.compiler.is_compiling():
        raise MaskError(
            f"{name} is {tensor.dtype}. Under torch.compile a mask must be bool, as its values "
            f"cannot be looked at; write mask.bool(), or pass it as `bias=` if it is to be added."
        )
    values = collapsed(tensor.detach())
    other = values[(values != 0) & (values != 1)]
    if other.numel():
        raise MaskError(_not_a_mask(other, tensor, name))
    return (values != 0).expand(tensor.shape)


def _not_a_mask(other: Tensor, tensor: Tensor, name: str) -> str:
    found = other[0].item()
    text = (
        f"{name} says who may be seen: True or 1, False or 0. This {tensor.dtype} tensor "
        f"{list(tensor.shape)} holds {found}. If it is to be added to the scores, pass it as "
        f"`bias=`."
    )
    if tensor.is_floating_point() and bool((other == -torch.inf).all()):
        text += " A tensor of 0 and -inf is such a bias; as a mask it is `tensor == 0`."
    return text


# ---- shapes ------------------------------------------------------------------------------------


def _positions(Tq: int, Tk: int, offset: int | None, device: torch.device) -> Tensor:
    """[1, 1, Tq, 1]: where each query stands among the keys."""
    first = Tk - Tq if offset is None else offset
    return torch.arange(first, first + Tq, device=device).view(1, 1, Tq, 1)


def _per_lead(
    value: Tensor | int,
    trailing: int,
    lead: tuple[int, ...],
    device: torch.device,
    name: str,
    Tq: int,
    Tk: int,
) -> Tensor:
    """[N|1, H|1, *trailing] of a tensor whose dimensions are the leading ones from the left.

    Without trailing dimensions it becomes int64 [N|1, H|1, 1, 1], ready to stand in intervals.
    """
    if not isinstance(value, Tensor):
        return torch.full((1, 1, 1, 1), value, dtype=torch.int64, device=device)
    own = tuple(value.shape[: value.ndim - trailing])
    fits = zip(own, lead, strict=False)
    if len(own) > len(lead) or any(size not in (1, whole) for size, whole in fits):
        raise ShapeError(
            f"{name} {list(value.shape)} does not fit the weights {_weights(lead, Tq, Tk)}: its "
            f"leading dimensions are those of the weights from the left."
        )
    shape = own + (1,) * (len(lead) - len(own)) + tuple(value.shape[value.ndim - trailing :])
    merged = _merged(collapsed_lead(value.to(device).reshape(shape), len(lead)), lead)
    if trailing == 0:
        return merged.long()[..., None, None]
    return merged if merged.dtype == torch.bool else merged.long()


def collapsed_lead(tensor: Tensor, dims: int) -> Tensor:
    """The tensor with its first dimensions narrowed to 1 where they are expanded."""
    for dim in range(dims):
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _merged(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """[*lead (each whole or 1), ...] → [N|1, H|1, ...]."""
    batch = lead[:-1] if len(lead) > 1 else lead
    own, rest = tensor.shape[: len(batch)], tensor.shape[len(batch) :]
    if len(lead) < 2:  # weights without a head dimension
        tensor = tensor.unsqueeze(len(lead))
        rest = tensor.shape[len(batch) :]
    if all(size == 1 for size in own):
        return tensor.reshape(1, *rest)
    return tensor.expand(*batch, *rest).flatten(0, len(batch) - 1)


def _length(tensor: Tensor, size: int, name: str, letter: str, Tq: int, Tk: int) -> None:
    if tensor.shape[-1] != size:
        raise ShapeError(
            f"{name} has {tensor.shape[-1]} entries and needs {letter}: Tq = {Tq}, Tk = {Tk}."
        )


def _weights(lead: tuple[int, ...], Tq: int, Tk: int) -> str:
    return str([*lead, Tq, Tk])


def _shape(value: Tensor | int, trailing: int) -> tuple[int, ...]:
    if not isinstance(value, Tensor):
        return ()
    return tuple(value.shape[: value.ndim - trailing])


def _larger(one: Sizes, two: Sizes) -> Sizes:
    long, short = sorted((one[0], two[0]), key=len, reverse=True)
    lead = tuple(max(size, other) for size, other in zip(long, short, strict=False))
    queries, keys = (a if a is not None else b for a, b in zip(one[1:], two[1:], strict=True))
    return lead + long[len(short) :], queries, keys


# ---- text --------------------------------------------------------------------------------------


def _equal(one: Tensor, two: Tensor) -> bool:
    if one is two:
        return True
    return one.device == two.device and one.dtype == two.dtype and torch.equal(one, two)


def _read(words: Iterator[str], tensors: Sequence[Tensor]) -> Mask:
    """One rule, its opening bracket already read."""
    rule, arguments = RULES[next(words)], []
    for word in words:
        if word == ")":
            break
        if word == "(":
            arguments.append(_read(words, tensors))
        elif word.startswith("#"):
            arguments.append(tensors[int(word[1:])])
        elif word == "-":
            arguments.append(None)
        else:
            arguments.append(int(word) if word.lstrip("-").isdigit() else word)
    return rule(*arguments)


def _call(rule: str, arguments: Sequence[Mask | Tensor | int | str | None]) -> str:
    masks = [_operand(mask, rule) for mask in arguments if isinstance(mask, Mask)]
    if rule in ("and", "or"):
        return (" & " if rule == "and" else " | ").join(masks)
    if rule == "not":
        return f"~{masks[0]}"
    said = [
        f"{value.dtype} {list(value.shape)}".removeprefix("torch.")
        if isinstance(value, Tensor)
        else repr(value)
        for value in arguments
    ]
    while said and said[-1] in ("None", "'right'") or (rule == "window" and said[1:] == ["0"]):
        said.pop()
    return f"{rule}({', '.join(said)})"


def _operand(mask: Mask, inside: str) -> str:
    """In brackets where the sign around it binds otherwise."""
    plain = mask.rule not in ("and", "or") or mask.rule == inside
    return mask.formula if plain else f"({mask.formula})"
