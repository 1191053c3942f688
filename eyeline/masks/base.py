"""What a mask is: a rule that lowers to a `Visible`; its algebra, its text and its drawing."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from eyeline.errors import ArgumentError, EyelineError, MaskError, ShapeError
from eyeline.masks import grid
from eyeline.masks.leading import Size
from eyeline.visibility import Visible, algebra

Known = tuple[tuple[int, ...], int | None, int | None]

SAMPLE = 5  # queries and keys drawn where a mask's own tensors do not say how many


class Mask(ABC):
    """A rule that says which keys each query may see.

    Made by `causal`, `window`, `padding` and the functions of `eyeline.masks`; combined with
    `&` (both allow it), `|` (either does) and `~` (what was hidden). A mask can be printed,
    compared, pickled and copied. Inside a function under torch.compile, `~` has to happen
    outside of it: PyTorch does not trace that sign.

    >>> import eyeline
    >>> print((eyeline.causal() & ~eyeline.window(1)).draw(4))
    0 0 0 0
    0 0 0 0
    1 0 0 0
    1 1 0 0
    """

    rule = ""  # its name in `spec` and in print
    _by_name: ClassVar[dict[str, Callable[..., Mask]]] = {}

    def __init_subclass__(cls) -> None:
        if cls.rule:
            Mask._by_name[cls.rule] = cls

    @abstractmethod
    def _arguments(self) -> tuple[Mask | Tensor | int | str | None, ...]:
        """What the rule was made from, in the order in which it takes them."""

    @abstractmethod
    def _at(self, size: Size) -> Visible:
        """The rule for weights of this size."""

    @abstractmethod
    def _hidden(self, size: Size) -> Visible:
        """The opposite of the rule for weights of this size."""

    @abstractmethod
    def _known(self) -> Known:
        """Leading dimensions, Tq and Tk as far as the rule's own tensors tell them."""

    def lower(self, lead: tuple[int, ...], Tq: int, Tk: int, device: torch.device) -> Visible:
        """The rule for weights [*lead, Tq, Tk]; the last of two or more `lead` is the heads.

        >>> import torch, eyeline
        >>> visible = eyeline.causal().lower((2, 8), 4, 4, torch.device("cpu"))
        >>> visible.stops.flatten(), visible.nbytes
        (tensor([1, 2, 3, 4]), 64)
        """
        return self._at(Size(lead, Tq, Tk, device))

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise _not_an_operand(other, "&")
        return And(self, other)

    def __or__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise _not_an_operand(other, "|")
        return Or(self, other)

    # Only what is no mask itself, such as a tensor, leaves its sign to the mask on its right.

    def __rand__(self, other: object) -> NoReturn:
        raise _not_an_operand(other, "&")

    def __ror__(self, other: object) -> NoReturn:
        raise _not_an_operand(other, "|")

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        raise MaskError("A mask is neither true nor false; combine masks with &, | and ~.")

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
        for argument in self._arguments():
            if isinstance(argument, Mask):
                words.append(argument._written(tensors))
            elif isinstance(argument, Tensor):
                words.append(f"#{len(tensors)}")
                tensors.append(argument)
            else:  # an f-string, as torch.compile traces no str() of a size
                words.append("-" if argument is None else f"{argument}")
        return "(" + " ".join(words) + ")"

    @staticmethod
    def from_spec(text: str, tensors: Sequence[Tensor]) -> Mask:
        """The mask whose `spec()` this is.

        >>> Mask.from_spec("(or (causal -) (prefix 3))", []).formula
        'causal() | prefix(3)'
        """
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
        return _call(self.rule, self._arguments())

    def draw(
        self, Tq: int | None = None, Tk: int | None = None, labels: Iterable[object] | None = None
    ) -> str:
        """A table of 1 (may be seen) and 0, one row per query.

        `labels` name the keys, and the queries that stand at them, each as `str` has it; large
        tables are shortened. Sizes that are no whole numbers of at least 0 raise ArgumentError.
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
        for name, size in (("Tq", Tq), ("Tk", Tk)):
            if size is not None and (not isinstance(size, int) or size < 0):
                raise ArgumentError(f"draw({name}={size!r}): a size is an int of at least 0.")
        texts = None if labels is None else _texts(labels)
        lead, Tq, Tk = self._drawn_sizes(Tq, Tk, texts)
        visible = self.lower(lead, Tq, Tk, torch.device("cpu"))
        shown_rows, shown_cols = grid.ends(Tq), grid.ends(Tk)
        rows, cols = (torch.tensor(shown, dtype=torch.int64) for shown in (shown_rows, shown_cols))
        tile = visible.tile(rows, cols)
        cells = torch.ones(len(shown_rows), len(shown_cols), dtype=torch.int64)
        if tile is not None:
            cells = cells * tile[:1, :1].reshape(tile.shape[2:])
        if texts is None:
            return grid.table(cells.tolist(), shown_rows, shown_cols)
        if len(texts) != Tk:
            raise ShapeError(f"draw() has {len(texts)} labels for Tk = {Tk} keys.")
        names = [texts[i + Tk - Tq] if i + Tk >= Tq else "" for i in shown_rows]
        keys = [texts[j] for j in shown_cols]
        return grid.table(cells.tolist(), shown_rows, shown_cols, names, keys)

    def _drawn_sizes(
        self, Tq: int | None, Tk: int | None, labels: Sequence[str] | None
    ) -> tuple[tuple[int, ...], int, int]:
        lead, own_Tq, own_Tk = self._known()
        keys = Tk if Tk is not None else own_Tk
        keys = len(labels) if keys is None and labels is not None else keys
        queries = Tq if Tq is not None else own_Tq
        if keys is None:
            keys = SAMPLE if queries is None else queries
        return lead, keys if queries is None else queries, keys

    def __repr__(self) -> str:
        lead, Tq, Tk = self._known()
        title = self.formula
        if Tq is None and Tk is None:
            title += f", drawn for {SAMPLE} queries and {SAMPLE} keys"
        if lead:
            title += f", the first of {list(lead)}"
        try:
            return f"{title}:\n{self.draw()}"
        except EyelineError:  # its parts do not fit together: attention() says so, print does not
            return self.formula


class Rule(Mask):
    """A mask that is no combination of others."""

    def _hidden(self, size: Size) -> Visible:
        return algebra.opposite(self._at(size))

    def _known(self) -> Known:
        return (), None, None


# Combinations push `hidden` down to the rules, where the opposite is still short.


@dataclass(frozen=True, eq=False, repr=False)
class And(Mask):
    """What both masks allow."""

    left: Mask
    right: Mask
    rule = "and"

    def _arguments(self) -> tuple[Mask, Mask]:
        return self.left, self.right

    def _known(self) -> Known:
        return _joined(self.left._known(), self.right._known())

    def _at(self, size: Size) -> Visible:
        return algebra.both(self.left._at(size), self.right._at(size))

    def _hidden(self, size: Size) -> Visible:
        return algebra.either(self.left._hidden(size), self.right._hidden(size))


@dataclass(frozen=True, eq=False, repr=False)
class Or(Mask):
    """What at least one of two masks allows."""

    left: Mask
    right: Mask
    rule = "or"

    def _arguments(self) -> tuple[Mask, Mask]:
        return self.left, self.right

    def _known(self) -> Known:
        return _joined(self.left._known(), self.right._known())

    def _at(self, size: Size) -> Visible:
        return algebra.either(self.left._at(size), self.right._at(size))

    def _hidden(self, size: Size) -> Visible:
        return algebra.both(self.left._hidden(size), self.right._hidden(size))


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """What a mask hides."""

    inner: Mask
    rule = "not"

    def _arguments(self) -> tuple[Mask]:
        return (self.inner,)

    def _known(self) -> Known:
        return self.inner._known()

    def _at(self, size: Size) -> Visible:
        return self.inner._hidden(size)

    def _hidden(self, size: Size) -> Visible:
        return self.inner._at(size)


def _not_an_operand(other: object, sign: str) -> MaskError:
    if isinstance(other, Tensor):
        return MaskError(
            f"`mask {sign} tensor` is not said clearly: write only(tensor) for a tensor with one "
            f"entry per key, from_tensor(tensor) for one entry per query and key."
        )
    return MaskError(f"`mask {sign}` takes another mask, not {type(other).__name__}.")


def _texts(labels: Iterable[object]) -> list[str]:
    if not isinstance(labels, Iterable):
        raise ArgumentError(
            f"draw(labels) takes one label per key, not {type(labels).__name__}; give a list."
        )
    return [str(label) for label in labels]


def _joined(one: Known, two: Known) -> Known:
    short, long = sorted((one[0], two[0]), key=len)
    lead = tuple(map(max, short, long)) + long[len(short) :]
    Tq, Tk = (n if n is not None else other for n, other in zip(one[1:], two[1:], strict=True))
    return lead, Tq, Tk


def _equal(one: Tensor, two: Tensor) -> bool:
    if one is two:
        return True
    return one.device == two.device and one.dtype == two.dtype and torch.equal(one, two)


def _read(words: Iterator[str], tensors: Sequence[Tensor]) -> Mask:
    """One rule, its opening bracket already read."""
    rule = Mask._by_name[next(words)]
    arguments: list[Mask | Tensor | int | str | None] = []
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
    while said and (said[-1] in ("None", "'right'") or (rule, said[1:]) == ("window", ["0"])):
        said.pop()
    return f"{rule}({', '.join(said)})"


def _operand(mask: Mask, inside: str) -> str:
    """In brackets where the sign around it binds otherwise."""
    plain = mask.rule not in ("and", "or") or mask.rule == inside
    return mask.formula if plain else f"({mask.formula})"
