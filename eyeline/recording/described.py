"""A run as plain text and tensors, and back: what a recording's description says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from eyeline import biases, masks
from eyeline.backends.pooling import Pool
from eyeline.backends.reductions import LogSumExp, RowState
from eyeline.errors import EyelineError, RecordingError
from eyeline.lazy import Weights
from eyeline.masks import Mask
from eyeline.masks.leading import collapsed
from eyeline.recording.container import Container, Plan
from eyeline.seen import Call, Missing
from eyeline.spans import cell_edges
from eyeline.tokens import Tokens

THUMBNAIL = 32  # rows and columns of the small heat map of each head
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_TEXTS = ("name", "kind", "kernel")
_NUMBERS = ("scale", "softcap", "dropout")
_TENSORS = ("q", "k", "v", "additive", "sinks", "real")
_ROWS = ("lse", "m", "l")  # of each row: log Σ exp, the largest score, the sum relative to it
_EMPTY = 2**20  # the largest size of a tensor that holds nothing, and costs the file nothing
_REPEATED = ("bias", "additive", "sinks")  # what broadcasts against the weights

T = TypeVar("T")


class Writer:
    """Lists what is to be written; a tensor that several layers share is written once."""

    def __init__(self) -> None:
        self.plan = Plan()
        self._known: dict[tuple[Any, ...], str] = {}
        self._held: list[Tensor] = []  # so that no address is used twice

    def tensor(self, name: str, t: Tensor) -> str:
        """The name under which a tensor is written."""
        t = t.detach()
        key = (t.data_ptr(), t.dtype, tuple(t.shape), t.stride(), t.device)
        if t.numel() and key in self._known:
            return self._known[key]
        self._held.append(t)
        self._known[key] = name
        return self.plan.add(name, t.dtype, tuple(t.shape), lambda: t)

    def call(self, at: int, call: Call, weights: Weights) -> dict[str, Any]:
        """One call as text, its tensors listed."""
        told: dict[str, Any] = {name: getattr(call, name) for name in (*_TEXTS, *_NUMBERS)}
        for name in _TENSORS:
            t = getattr(call, name)
            if t is not None and name in _REPEATED:
                t = collapsed(t)
            told[name] = None if t is None else self.tensor(f"{at}.{name}", t)
        told["mask"] = self._mask(at, call.mask)
        told["bias"] = self._bias(at, call.bias)
        rows, map_size = tuple(weights.shape[:-1]), _map_size(weights)
        once = _Once(weights)
        for name in _ROWS:
            told[name] = self.plan.add(
                f"{at}.{name}", weights.problem.statistics, rows, once.part(name)
            )
        told["map"] = self.plan.add(f"{at}.map", torch.float32, map_size, once.part("map"))
        return told

    def _mask(self, at: int, mask: Mask | Tensor | None) -> dict[str, Any] | None:
        if mask is None:
            return None
        if isinstance(mask, Tensor):
            return {"tensor": self.tensor(f"{at}.mask", collapsed(mask))}
        text, tensors = mask.spec()
        # Leading dimensions that are expanded broadcast as well when they are 1.
        tensors = [collapsed(t, dims=max(t.dim() - 2, 0)) for t in tensors]
        named = [self.tensor(f"{at}.mask.{i}", t) for i, t in enumerate(tensors)]
        return {"rule": text, "tensors": named}

    def _bias(self, at: int, bias: Any) -> dict[str, Any] | None:
        if bias is None:
            return None
        if isinstance(bias, Tensor):
            return {"tensor": self.tensor(f"{at}.bias", collapsed(bias))}
        if isinstance(bias, biases.Relative):
            return {"relative": self.tensor(f"{at}.bias", bias.table), "origin": bias.origin}
        if isinstance(bias, biases.Alibi):
            if isinstance(bias.slopes, Tensor):
                return {"alibi": self.tensor(f"{at}.bias", bias.slopes)}
            return {"alibi": float(bias.slopes)}
        raise RecordingError(f"A bias of type {type(bias).__name__} cannot be saved.")

    def missing(self, at: int, missing: Missing) -> dict[str, Any]:
        """An attention that was not seen, its own dense weights listed."""
        dense = missing.dense
        name = None if dense is None else self.tensor(f"missing.{at}", dense)
        return {"name": missing.name, "reason": missing.reason, "dense": name}


class _Once:
    """What of a layer is computed for the file, in one pass and when its turn comes."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights.detach()
        self._left: dict[str, Tensor] = {}

    def part(self, name: str) -> Callable[[], Tensor]:
        """A function that gives one part, and lets go of it."""
        return lambda: self._taken(name)

    def _taken(self, name: str) -> Tensor:
        if name not in self._left:
            self._left = self._computed()
        return self._left.pop(name)

    def _computed(self) -> dict[str, Tensor]:
        weights, (Tq, Tk) = self._weights, self._weights.shape[-2:]
        rows, cols = (cell_edges(THUMBNAIL, 0, size, "cells") for size in (Tq, Tk))
        pool = Pool(rows.to(weights.device), cols.to(weights.device))
        with torch.no_grad():
            (m, total), (lse,), (means,) = weights._body.reduce([RowState(), LogSumExp(), pool])
        return {"lse": lse, "m": m, "l": total, "map": means.float()}


def _map_size(weights: Weights) -> tuple[int, ...]:
    cells = (min(THUMBNAIL, max(size, 1)) for size in weights.shape[-2:])
    return (*weights.shape[:-2], *cells)


@dataclass(frozen=True)
class Stored:
    """One call as it was read, and the names of its tensors."""

    call: Call
    names: tuple[str, ...]
    rows: dict[str, Tensor]  # lse, m and l
    map: Tensor


class Reader:
    """Makes of a container's description what it was made from; RecordingError where it cannot."""

    def __init__(self, file: Container) -> None:
        self.file = file
        self._used: list[str] = []

    def get(self, told: Any, name: str, kind: type[T]) -> T:
        """One entry of a part of the description, which must be of this type."""
        value = told.get(name) if isinstance(told, dict) else None
        value = float(value) if kind is float and type(value) is int else value
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            self.file.damaged(f"{name} is no {kind.__name__}")
        return value

    def maybe(self, told: Any, name: str, kind: type[T]) -> T | None:
        """The same where null may stand."""
        if isinstance(told, dict) and told.get(name, ...) is None:
            return None
        return self.get(told, name, kind)

    def tensor(self, name: Any, dtypes: Sequence[torch.dtype], rank: int | None = None) -> Tensor:
        """A tensor of the file, of one of these types and of this rank."""
        if not isinstance(name, str) or name not in self.file.entries:
            self.file.damaged(f"it speaks of a tensor {name!r:.40} that it does not hold")
        found = self.file.tensor(name)
        if found.dtype not in dtypes or (rank is not None and found.dim() != rank):
            self.file.damaged(f"{name} is {found.dtype} {list(found.shape)}")
        self._used.append(name)
        return found

    def call(self, told: Any) -> Stored:
        """One call with its tensors, all shapes checked against each other."""
        self._used = []
        given: dict[str, Any] = {name: self.get(told, name, str) for name in _TEXTS}
        given |= {name: self.maybe(told, name, float) for name in _NUMBERS}
        given["dropout"] = given["dropout"] or 0.0
        for name in _TENSORS:
            where = self.maybe(told, name, str)
            of = (torch.bool,) if name == "real" else _FLOATS
            rank = {"q": 4, "k": 4, "v": 4, "real": 2}.get(name)
            given[name] = None if where is None else self.tensor(where, of, rank)
        given["mask"] = self._mask(self.maybe(told, "mask", dict))
        given["bias"] = self._bias(self.maybe(told, "bias", dict))
        q, k, v = given["q"], given["k"], given["v"]
        if q is None or k is None or given["kind"] not in ("self", "cross"):
            self.file.damaged(f"{given['name']!r:.40} has no queries or keys")
        B, Hq, Tq, D = q.shape
        fits = k.shape[0] == B and k.shape[3] == D and k.dtype == q.dtype and k.shape[1] > 0
        fits = fits and Hq % max(k.shape[1], 1) == 0
        fits = fits and D > 0 and (q.numel() > 0 or max(*q.shape, *k.shape) <= _EMPTY)
        fits = fits and (v is None or (v.dtype == q.dtype and v.shape[:3] == k.shape[:3]))
        rows = {name: self.tensor(self.get(told, name, str), _FLOATS[:2], 3) for name in _ROWS}
        fits = fits and all(tuple(t.shape) == (B, Hq, Tq) for t in rows.values())
        small = self.tensor(self.get(told, "map", str), _FLOATS, 4)
        if not fits or tuple(small.shape[:2]) != (B, Hq):
            self.file.damaged(f"the tensors of {given['name']!r:.40} do not fit together")
        return Stored(Call(**given), tuple(dict.fromkeys(self._used)), rows, small)

    def _mask(self, told: Any) -> Mask | Tensor | None:
        if told is None:
            return None
        if "tensor" in told:
            return self.tensor(told["tensor"], (torch.bool, *_FLOATS, *_INTEGERS))
        text, named = self.get(told, "rule", str), self.get(told, "tensors", list)
        tensors = [self.tensor(name, (torch.bool, *_FLOATS, *_INTEGERS)) for name in named]
        try:
            mask = Mask.from_spec(text, tensors)
            if mask.spec()[0] != text:
                self.file.damaged("a mask is not written as masks are")
            return _made_again(mask)
        except RecordingError:
            raise
        # Whatever the text says, it is no code: what cannot be read as a rule raises one of these.
        except (EyelineError, ValueError, LookupError, TypeError, StopIteration, RuntimeError,
                AttributeError) as error:  # fmt: skip
            self.file.damaged(f"a mask cannot be read ({type(error).__name__})")

    def _bias(self, told: Any) -> Any:
        if told is None:
            return None
        if "tensor" in told:
            return self.tensor(told["tensor"], _FLOATS)
        try:
            if "relative" in told:
                table = self.tensor(told["relative"], _FLOATS)
                return biases.relative(table, self.get(told, "origin", int))
            slopes = told.get("alibi")
            return biases.alibi(
                self.tensor(slopes, _FLOATS) if isinstance(slopes, str)
                else self.get(told, "alibi", float)
            )  # fmt: skip
        except EyelineError as error:
            self.file.damaged(f"a bias cannot be read: {error}")

    def missing(self, told: Any) -> Missing:
        """An attention that was not seen."""
        dense = self.maybe(told, "dense", str)
        return Missing(
            self.get(told, "name", str),
            self.get(told, "reason", str),
            None if dense is None else self.tensor(dense, _FLOATS),
        )

    def tokens(self, told: Any) -> Tokens:
        """The tokens of the text, every field of the right length and type."""
        given: dict[str, Any] = {"text": self.get(told, "text", str)}
        kinds = {"ids": int, "pieces": str, "special": bool, "unknown": bool}
        for name, kind in kinds.items():
            listed = self.get(told, name, list)
            if any(type(value) is not kind for value in listed):
                self.file.damaged(f"its tokens' {name} cannot be read")
            given[name] = tuple(listed)
        most = len(given["text"])
        places = self.get(told, "offsets", list)
        for place in places:
            whole = isinstance(place, list) and [type(n) for n in place] == [int, int]
            if not whole or not 0 <= place[0] <= place[1] <= most:
                self.file.damaged("its tokens do not lie in its text")
        given["offsets"] = tuple((start, stop) for start, stop in places)
        if len({len(given[f.name]) for f in fields(Tokens) if f.name != "text"}) > 1:
            self.file.damaged("its tokens have fields of different lengths")
        return Tokens(**given)


def _made_again(mask: Mask) -> Mask:
    """The same mask made by the public functions, which check what they are given."""
    given = [_made_again(part) if isinstance(part, Mask) else part for part in mask._arguments()]
    if mask.rule == "and":
        return given[0] & given[1]  # type: ignore[operator,return-value]
    if mask.rule == "or":
        return given[0] | given[1]  # type: ignore[operator,return-value]
    if mask.rule == "not":
        return ~given[0]  # type: ignore[operator,return-value]
    made: Mask = getattr(masks, mask.rule)(*given)
    return made
