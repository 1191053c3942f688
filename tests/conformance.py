"""What every backend owes. A new backend joins by its name in BACKENDS.

An obligation is a function that takes a backend's name; `@owed` lists it, once for every
combination of the values named there. The obligations themselves are in `tests/owed/`, by subject.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import eyeline
from eyeline.backends import native
from eyeline.backends.cpu import Cpu
from eyeline.backends.tiled import Tiled
from tests import oracle
from tests.tolerance import agree
from tests.unnamed import Unnamed

# The native kernels, once for each table; without the native module there is none.
TABLES = [Unnamed(f"cpu {table}", Cpu(table=table)) for table in native.tables()]

# The tables beside the one that runs by itself are asked by the slow tests.
BACKENDS = ["reference", "tiled", "small tiles", *(cpu.name for cpu in TABLES[:1])]


def ignore(*_: Any) -> None:
    """Somebody watches the tiles: attention's forward keeps off torch's fused operator."""


# Tiled with tiles so small that every test crosses their borders.
SMALL_TILES = Tiled(name="small tiles", elements=96, key_block=4, on_tile=ignore)

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Obligation:
    """One thing that a backend owes, with the values it is asked at."""

    check: Callable[..., None]
    values: dict[str, Any]

    def __str__(self) -> str:
        words = [str(v).removeprefix("torch.") for v in self.values.values()]
        return "-".join([self.check.__name__, *words])

    def __call__(self, backend: str) -> None:
        self.check(backend, **self.values)


OWED: list[Obligation] = []


def owed(**axes: Sequence[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """List a function among the obligations, for every combination of the values in `axes`."""

    def note(check: Callable[..., None]) -> Callable[..., None]:
        for values in itertools.product(*axes.values()):
            OWED.append(Obligation(check, dict(zip(axes, values))))
        return check

    return note


@dataclass(frozen=True)
class Setting:
    """One attention: in eyeline's words (`mask`) and as the definition takes it (`visible`)."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Any = None
    visible: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def attention(self, backend: Any) -> tuple[Tensor, eyeline.Weights]:
        return eyeline.attention(self.q, self.k, self.v, self.mask, **self.options, backend=backend)

    def weights(self, backend: Any) -> eyeline.Weights:
        return eyeline.weights(self.q, self.k, self.mask, **self.options, backend=backend)

    def dense(self, dtype: torch.dtype = torch.float64) -> oracle.Dense:
        return oracle.dense(self.q, self.k, self.v, self.visible, **self.options, dtype=dtype)

    def plain(self) -> oracle.Dense:
        return self.dense(self.q.dtype)

    def learning(self, dtype: torch.dtype | None = None) -> tuple[Setting, dict[str, Tensor]]:
        """The same on fresh leaves, in another dtype if named; and those leaves by name."""
        named = {"q": self.q, "k": self.k, "v": self.v}
        named |= {n: x for n, x in self.options.items() if isinstance(x, Tensor)}
        leaves = {
            n: x.detach().to(dtype or x.dtype, copy=True).requires_grad_() for n, x in named.items()
        }
        options = self.options | {n: leaves[n] for n in self.options if n in leaves}
        return replace(self, q=leaves["q"], k=leaves["k"], v=leaves["v"], options=options), leaves


Question = Callable[[Tensor, Any], Tensor]
Answer = Callable[[oracle.Dense], Tensor]


def check(setting: Setting, ask: Question, answer: Answer, backend: Any, what: str = "") -> None:
    """eyeline's answer and every gradient of it are the definition's."""
    mine, leaves = setting.learning()
    theirs, exact_leaves = setting.learning(torch.float64)
    same, plain_leaves = setting.learning()
    found = ask(*mine.attention(backend))
    exact, plain = answer(theirs.dense()), answer(same.plain())
    agree(found, exact, plain, what)
    upstream = torch.randn(exact.shape, dtype=torch.float64).to(found.dtype)
    # Entries that are -inf (nothing was seen) do not move: no gradient is asked of them.
    upstream = torch.where(exact.isfinite(), upstream, 0.0)
    for answered in (found, exact, plain):
        if answered.requires_grad:
            answered.backward(upstream.to(answered.dtype))
    for name, leaf in leaves.items():
        reference, rough = exact_leaves[name].grad, plain_leaves[name].grad
        if reference is None or rough is None:
            assert leaf.grad is None or not leaf.grad.any(), f"{what}: d{name} should be nothing"
            continue
        slope = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        assert slope.isfinite().all(), f"{what}: d{name} is not finite"
        agree(slope, reference, rough, f"{what}: d{name}", beside=exact)


def inputs(
    Tq: int,
    Tk: int | None = None,
    *,
    lead: tuple[int, ...] = (2,),
    Hq: int = 2,
    Hk: int = 1,
    D: int = 8,
    Dv: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q [*lead, Hq, Tq, D], k [*lead, Hk, Tk, D] and v [*lead, Hk, Tk, Dv]."""
    Tk, Dv = Tq if Tk is None else Tk, D if Dv is None else Dv
    shapes = ((*lead, Hq, Tq, D), (*lead, Hk, Tk, D), (*lead, Hk, Tk, Dv))
    q, k, v = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)
    return q, k, v
