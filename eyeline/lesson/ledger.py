"""The calculation of a lesson: the lines of code that are printed, run, and what they gave."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import EyelineError
from eyeline.lesson.data import Settings, listed
from eyeline.lesson.splitting import distinct, split

NAMES = ("X", "W_Q", "W_K", "W_V", "Q", "K", "V", "scores", "scaled", "weights", "output")
Lines = tuple[str, ...]


@dataclass(frozen=True)
class Ledger:
    """Every number of one attention, and the code of each step.

    With one head Q, K, V are [n, d]; with several all hold the heads first, [H, n, d / H], but X
    [n, d] and output [n, d]. `head` is the one whose numbers the screens show.
    """

    words: tuple[str, ...]
    code: dict[str, Lines]
    values: dict[str, Tensor]
    scale: float
    causal: bool
    heads: int
    head: int

    def whole(self, name: str) -> Tensor:
        """A tensor with all its heads."""
        return self.values[name]

    def __getitem__(self, name: str) -> Tensor:
        """A tensor [n, ·] of the head that is shown."""
        value = self.values[name]
        return value[self.head] if value.dim() == 3 else value

    def __contains__(self, name: str) -> bool:
        return name in self.values

    @property
    def n(self) -> int:
        """How many words."""
        return len(self.words)

    @property
    def d_k(self) -> int:
        """The size of a query and of a key of one head."""
        return self["Q"].shape[-1]

    @property
    def head_output(self) -> Tensor:
        """What the head shown gives, [n, d_v]."""
        return self["weights"] @ self["V"]

    def numbers(self) -> dict[str, Any]:
        """Every tensor as nested lists."""
        return {name: listed(self.values[name]) for name in NAMES if name in self.values}


def drawn(settings: Settings) -> Ledger:
    """The ledger of a text whose word vectors and matrices are drawn by seed, as A19 does.

    >>> ledger = drawn(Settings())
    >>> [round(x, 4) for x in ledger["weights"][0].tolist()]
    [0.1845, 0.7254, 0.09]
    """
    words = split(settings.text)
    d, heads = settings.d, settings.heads
    _check(settings)
    places = distinct(words)
    count = max(places) + 1
    if places == tuple(range(count)):
        vectors: Lines = (f"X = torch.randn({count}, {d})",)
    else:
        vectors = (f"vectors = torch.randn({count}, {d})", f"X = vectors[{list(places)}]")
    start: Lines = ("import math", "import torch", f"torch.manual_seed({settings.seed})", *vectors)
    parted = "" if heads == 1 else f".view({len(words)}, {heads}, {d // heads}).transpose(0, 1)"
    project: Lines = (
        *(f"W_{name} = torch.randn({d}, {d})" for name in "QKV"),
        *(
            f"{name} = X @ W_{name}" if heads == 1 else f"{name} = (X @ W_{name}){parted}"
            for name in "QKV"
        ),
    )
    code = {"vectors": start, "project": project, **_steps(settings, d // heads)}
    if heads > 1:
        joined = f"output = (weights @ V).transpose(0, 1).reshape({len(words)}, {d})"
        code["sum"] = (joined,)
    with torch.random.fork_rng(devices=[]):  # the caller's own generator stays as it is
        values = run(code, {})
    return _ledger(settings, words, code, values, heads)


def given(
    settings: Settings, words: tuple[str, ...], start: Lines, project: Lines, names: dict[str, Any]
) -> Ledger:
    """The ledger of the X, Q, K and V in `names`, which `start` and `project` are the code of."""
    steps = _steps(settings, names["Q"].shape[-1])
    code = {"vectors": start, "project": project, **steps}
    return _ledger(settings, words, code, run(steps, names), 1)


def run(code: dict[str, Lines], names: dict[str, Any]) -> dict[str, Any]:
    """Run the lines in order; what is printed and what is computed cannot differ."""
    space = dict(names)
    with torch.no_grad():
        exec(compile("\n".join(_all(code)), "<lesson>", "exec"), space)
    return space


def _all(code: dict[str, Lines]) -> Iterator[str]:
    for lines in code.values():
        yield from lines


def _steps(settings: Settings, d_k: int) -> dict[str, Lines]:
    """The code from the scores to the output."""
    if settings.scale is None:
        scaled = f"scaled = scores / math.sqrt({d_k})"
    else:
        scaled = f"scaled = scores * {settings.scale!r}"
    mask: Lines = ()
    if settings.causal:
        mask = (
            "mask = torch.tril(torch.ones(scaled.shape[-2:]))",
            'scaled = scaled.masked_fill(mask == 0, float("-inf"))',
        )
    return {
        "score": ("scores = Q @ K.transpose(-2, -1)",),
        "scale": (scaled,),
        "mask": mask,
        "softmax": ("weights = torch.softmax(scaled, dim=-1)",),
        "sum": ("output = weights @ V",),
    }


def _ledger(
    settings: Settings,
    words: tuple[str, ...],
    code: dict[str, Lines],
    values: dict[str, Any],
    heads: int,
) -> Ledger:
    d_k = values["Q"].shape[-1]
    scale = d_k**-0.5 if settings.scale is None else settings.scale
    return Ledger(
        words=words,
        code=code,
        values={name: values[name] for name in NAMES if name in values},
        scale=scale,
        causal=bool(settings.causal),
        heads=heads,
        head=settings.head if heads > 1 else 0,
    )


def _check(settings: Settings) -> None:
    if not 1 <= settings.d <= 512:
        raise EyelineError(f"--d {settings.d} is no size to draw: give 1 to 512.")
    if settings.heads < 1 or settings.d % settings.heads:
        raise EyelineError(
            f"{settings.heads} heads cannot share {settings.d} numbers equally: give --heads a"
            f" divisor of --d."
        )
    if not 0 <= settings.head < settings.heads:
        raise EyelineError(
            f"There is no head {settings.head}: the heads are 0 to {settings.heads - 1}."
        )
    if settings.scale is not None and not math.isfinite(settings.scale):
        raise EyelineError(f"--scale {settings.scale} is no factor: give a finite number.")
    if not -(2**63) <= settings.seed < 2**63:
        raise EyelineError(f"--seed {settings.seed} is too large: give a 64-bit integer.")
