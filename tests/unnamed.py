"""A backend that does what eyeline does where none is named, beginning with a given one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from eyeline.backends.base import Backend, Dropout, Gradients, Result, State, Term, Values
from eyeline.backends.reductions import Reduction, View
from eyeline.backends.tiled import Tiled
from eyeline.problem import Problem


@dataclass(frozen=True)
class Unnamed(Backend):
    """The first, and `tiled` for what it has a reason against (float64)."""

    name: str
    first: Backend
    then: Backend = field(default_factory=Tiled)

    def of(self, problem: Problem) -> Backend:
        return self.then if self.first.unsupported(problem) else self.first

    def unsupported(self, problem: Problem) -> list[str]:
        return self.of(problem).unsupported(problem)

    def forward(
        self, problem: Problem, v: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor, State | None]:
        return self.of(problem).forward(problem, v, dropout)

    def reduce(
        self,
        problem: Problem,
        reductions: Sequence[Reduction],
        view: View,
        state: State | None = None,
    ) -> list[Result]:
        return self.of(problem).reduce(problem, reductions, view, state)

    def finds_state(self, reductions: Sequence[Reduction], view: View) -> bool:
        return self.first.finds_state(reductions, view)

    def backward(
        self,
        problem: Problem,
        values: Values | None,
        terms: Sequence[Term],
        view: View,
        lse_grad: Tensor | None,
        wanted: frozenset[str],
    ) -> Gradients:
        return self.of(problem).backward(problem, values, terms, view, lse_grad, wanted)

    def tile(self, problem: Problem, state: State, cols: Tensor) -> Tensor:
        return self.of(problem).tile(problem, state, cols)
