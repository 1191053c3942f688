"""Attention by the native kernels (`native/`), at the speed of the processor.

Attention's output, its gradients and most readings are native; whatever else is asked goes to
`tiled`, whose rows normalise themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyeline.backends import native
from eyeline.backends.arguments import NUMBERS, arguments, dropping, has_memory
from eyeline.backends.base import Backend, Dropout, Gradients, Result, State, Term, Values
from eyeline.backends.questions import Question, answered, question
from eyeline.backends.reductions import Entries, Reduction, View
from eyeline.backends.strips import like_query
from eyeline.backends.tiled import Tiled
from eyeline.problem import Problem

# From here on float32 rounds lse so much that weights taken from it are off by 1e-5.
FAR = 256.0
# From here on (`Softmax::most`) l cannot make up for what m loses when it is rounded.
BEYOND = 1e9


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
        if not (has_memory(problem.q) and has_memory(problem.k)):
            kind = type(problem.q if not has_memory(problem.q) else problem.k).__name__
            reasons.append(f"it reads memory, and a {kind} has none of its own")
        return reasons

    def forward(
        self, problem: Problem, v: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor, State | None]:
        q = problem.q
        out = like_query(q, v.shape[3])
        rows = q.new_empty((3, *out.shape[:3]), dtype=torch.float32)
        assert native.module is not None
        native.module.forward(
            self.table or native.chosen(),
            torch.get_num_threads(),
            arguments(problem),
            v.resolve_neg(),
            out,
            rows,
            dropping(dropout),
        )
        lse, m, total = rows.unbind()
        return out, lse, State(m, total)

    def reduce(
        self,
        problem: Problem,
        reductions: Sequence[Reduction],
        view: View,
        state: State | None = None,
    ) -> list[Result]:
        asked = {
            i: question(r, problem, view)
            for i, r in enumerate(reductions)
            if _answers(r, view) and not (_is_entries(r) and _made_up(problem))
        }
        rest = [r for i, r in enumerate(reductions) if i not in asked]
        others = iter(self.rest.reduce(problem, rest, view) if rest else ())
        # Entries of one query add up scores in another order: a pass of their own.
        for entries in (True, False):
            alike = [one for i, one in asked.items() if _is_entries(reductions[i]) is entries]
            if alike:
                self._answer(problem, alike, state)
        return [asked[i].result if i in asked else next(others) for i in range(len(reductions))]

    def finds_state(self, reductions: Sequence[Reduction], view: View) -> bool:
        return any(_answers(r, view) and not _is_entries(r) for r in reductions)

    def _answer(self, problem: Problem, asked: Sequence[Question], state: State | None) -> None:
        known = [] if state is None else [state.m.contiguous(), state.l.contiguous()]
        assert native.module is not None
        native.module.reduce(
            self.table or native.chosen(),
            torch.get_num_threads(),
            arguments(problem),
            tuple(t.data_ptr() for t in known) or (0, 0),
            [one.numbers for one in asked],
        )

    def backward(
        self,
        problem: Problem,
        values: Values | None,
        terms: Sequence[Term],
        view: View,
        lse_grad: Tensor | None,
        wanted: frozenset[str],
    ) -> Gradients:
        if terms or not _differentiates(problem, values, wanted):
            return self.rest.backward(problem, values, terms, view, lse_grad, wanted)
        state = self._state(problem, values)
        if bool(((state.m.abs() >= BEYOND) & state.m.isfinite()).any()):
            return self.rest.backward(problem, values, terms, view, lse_grad, wanted)
        return self._gradients(problem, values, state, lse_grad, wanted)

    def _gradients(
        self,
        problem: Problem,
        values: Values | None,
        state: State,
        lse_grad: Tensor | None,
        wanted: frozenset[str],
    ) -> Gradients:
        v = problem.k[..., :0] if values is None else values.v.resolve_neg()
        out, dout, dropout = None, None, None
        if values is not None:
            assert values.out is not None
            assert values.grad is not None
            out, dout, dropout = values.out, values.grad.resolve_neg(), values.dropout
        r = None if lse_grad is None else lse_grad.to(torch.float32).contiguous()
        found: dict[str, Tensor | None] = {
            name: t.new_empty(t.shape, dtype=torch.float32) if name in wanted else None
            for name, t in {"q": problem.q, "k": problem.k, "v": v}.items()
        }
        inner = None
        if "sinks" in wanted:
            inner = torch.zeros_like(state.m) if r is None else -r
        assert native.module is not None
        native.module.backward(
            self.table or native.chosen(),
            torch.get_num_threads(),
            arguments(problem),
            (v, out, dout),
            tuple(map(_address, (state.m, state.l, r))),
            tuple(map(_address, (*found.values(), inner))),
            dropping(dropout),
        )
        dv = found.pop("v")
        sinks = None if inner is None else _sinks(problem, state, inner)
        return Gradients(found | {"bias": None, "relative": None, "sinks": sinks}, dv, [])

    def _state(self, problem: Problem, values: Values | None) -> State:
        """Every row's state, from its lse, or from its scores where lse is too coarse."""
        lse = None if values is None else values.lse
        if lse is not None:
            far = (lse.abs() > FAR) & lse.isfinite()
            near = State(lse.contiguous(), torch.ones_like(lse))
            if not bool(far.any()):
                return near
        state = self.forward(problem, problem.k[..., :0], None)[2]
        assert state is not None
        if lse is None:
            return state
        # Each row by what it sees alone: what one row holds moves no bit of another.
        return State(torch.where(far, state.m, near.m), torch.where(far, state.l, near.l))

    def tile(self, problem: Problem, state: State, cols: Tensor) -> Tensor:
        return self.rest.tile(problem, state, cols)


def _answers(reduction: Reduction, view: View) -> bool:
    """Whether the kernels answer; a compiler traces torch's operators, not the kernels."""
    return answered(reduction, view) and not torch.compiler.is_compiling()


def _is_entries(reduction: Reduction) -> bool:
    return isinstance(reduction, Entries)


def _made_up(problem: Problem) -> bool:
    """Whether a score is more than a product.

    T5 scales none and has scores of thousands: with products added up in another order than
    torch's its weights are 2e-5 from its own; those of `tiled` stay within 1e-5.
    """
    return not (problem.bias is None and problem.relative is None and problem.softcap is None)


def _differentiates(problem: Problem, values: Values | None, wanted: frozenset[str]) -> bool:
    """Whether the kernels compute these gradients: not those of biases, nor of nothing at all."""
    if wanted & {"bias", "relative"} or 0 in problem.q.shape or 0 in problem.k.shape:
        return False
    if values is None:
        return True
    known = (values.out, values.lse, values.grad)
    own = values.v.shape[:3] == problem.k.shape[:3] and values.v.shape[3] > 0
    return own and all(t is not None for t in known)


def _address(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def _sinks(problem: Problem, state: State, inner: Tensor) -> Tensor:
    """The gradient of the sinks: each has a share of a row, and no value."""
    assert problem.sinks is not None
    share = (problem.sinks.to(torch.float32).unsqueeze(-1) - state.m).exp() / state.l
    share = share.masked_fill((state.l == 0) | (state.m == -torch.inf), 0.0)
    return -(share * inner).sum(-1).sum_to_size(problem.sinks.shape)
