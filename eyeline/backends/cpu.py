"""Attention by the native kernels (`native/`), at the speed of the processor.

The forward pass is native; whatever else is asked goes to `tiled`, whose rows normalise themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyeline.backends import native
from eyeline.backends.arguments import NUMBERS, arguments, dropping, view
from eyeline.backends.base import Backend, Dropout, Gradients, Result, State, Term, Values
from eyeline.backends.reductions import Reduction, View
from eyeline.backends.strips import like_query
from eyeline.backends.tiled import Tiled
from eyeline.problem import Problem


@dataclass(frozen=True)
class Cpu(Backend):
    """Register tiles over blocks of packed keys, the softmax on the way; float32 inside.

    ``table`` names the instruction set (`eyeline.backends.native.tables`); None takes the one of
    EYELINE_NATIVE_TABLE, or the best that the processor has.
    """

    name: str = "cpu"
    table: str | None = None
    rest: Tiled = field(default_factory=Tiled)

    def unsupported(self, problem: Problem) -> list[str]:
        reasons = [native.missing] if native.missing else []
        if self.table is not None and not reasons and self.table not in native.tables():
            reasons.append(f"this processor cannot run the table {self.table!r}")
        if problem.q.device.type != "cpu":
            reasons.append(f"it computes on the CPU, and q is on {problem.q.device}")
        if problem.q.dtype not in NUMBERS:
            kind = str(problem.q.dtype).removeprefix("torch.")
            reasons.append(f"it computes float32, bfloat16 and float16, and q is {kind}")
        return reasons

    def forward(
        self, problem: Problem, v: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor, State | None]:
        asked, v = arguments(problem), v.resolve_neg()
        out = like_query(problem.q, v.shape[-1])
        lse, m, total = (
            problem.q.new_empty(problem.q.shape[:3], dtype=torch.float32) for _ in range(3)
        )
        assert native.module is not None
        native.module.forward(
            self.table or native.chosen(),
            torch.get_num_threads(),
            asked.numbers,
            v.shape[3],
            view(v),
            view(out),
            (lse.data_ptr(), m.data_ptr(), total.data_ptr()),
            dropping(dropout),
        )
        return out, lse, State(m, total)

    def reduce(self, problem: Problem, reductions: Sequence[Reduction], view: View) -> list[Result]:
        return self.rest.reduce(problem, reductions, view)

    def backward(
        self,
        problem: Problem,
        values: Values | None,
        terms: Sequence[Term],
        view: View,
        lse_grad: Tensor | None,
        wanted: frozenset[str],
    ) -> Gradients:
        return self.rest.backward(problem, values, terms, view, lse_grad, wanted)

    def tile(self, problem: Problem, state: State, cols: Tensor) -> Tensor:
        return self.rest.tile(problem, state, cols)
