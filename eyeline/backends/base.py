"""What a backend is: four verbs over a Problem, and its reasons where it cannot run one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from eyeline.backends.reductions import Reduction, View
from eyeline.problem import Problem

Result = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class State:
    """Two numbers per row from which any weight follows: ``w = exp(score - m) / l``."""

    m: Tensor  # [N, Hq, Tq] the largest score (with the sink), -inf where the row sees nothing;
    l: Tensor  # [N, Hq, Tq] Σ exp(score - m): what m may lose when rounded is in l  # noqa: E741
    # Whether the backend that is asked has found it itself: then scores have the same bits.
    own: bool = True


@dataclass(frozen=True, eq=False)
class Dropout:
    """Dropout of the weights on their way to ``out``, redrawn from the seed where needed."""

    p: float
    seed: Tensor  # int64, one number


@dataclass(frozen=True, eq=False)
class Values:
    """What attention sums up: v, and where out is known, out and its gradient."""

    v: Tensor  # [N, Hk, Tk, Dv]
    dropout: Dropout | None = None
    out: Tensor | None = None
    lse: Tensor | None = None
    grad: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Term:
    """A reduction with its result and the gradient that arrives at it."""

    reduction: Reduction
    result: Result
    grad: Tensor


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients in the canonical form of what they belong to, in the problem's statistics dtype."""

    problem: dict[str, Tensor | None]
    v: Tensor | None
    own: list[tuple[Tensor, ...]]  # of each term's own tensors


class Backend(ABC):
    """Attention computed in one way. All backends owe what tests/conformance.py says."""

    name: str

    @abstractmethod
    def unsupported(self, problem: Problem) -> list[str]:
        """Every reason why this backend cannot run the problem; empty if it can."""

    @abstractmethod
    def forward(
        self, problem: Problem, v: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor, State | None]:
        """``out [N, Hq, Tq, Dv]`` in q's dtype, ``lse [N, Hq, Tq]``, the state if it fell out."""

    @abstractmethod
    def reduce(
        self,
        problem: Problem,
        reductions: Sequence[Reduction],
        view: View,
        state: State | None = None,
    ) -> list[Result]:
        """Every reduction's result, in one pass over the scores.

        ``state`` is that of the rows where this backend has found it before.
        """

    @abstractmethod
    def finds_state(self, reductions: Sequence[Reduction], view: View) -> bool:
        """Whether `reduce` finds every row's state on its way, and is faster with it."""

    @abstractmethod
    def backward(
        self,
        problem: Problem,
        values: Values | None,
        terms: Sequence[Term],
        view: View,
        lse_grad: Tensor | None,
        wanted: frozenset[str],
    ) -> Gradients:
        """Gradients of attention's out, of reductions and of lse, together in one pass.

        With G the gradient at the weights, ``dS = P ∘ (G - rowsum(P ∘ G) + r 1ᵀ)``, r the gradient
        of lse.
        """

    @abstractmethod
    def tile(self, problem: Problem, state: State, cols: Tensor) -> Tensor:
        """Some columns of every row ``[N, Hq, Tq, len(cols)]``, normalised by the state."""
