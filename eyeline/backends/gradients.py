"""Attention, reductions, columns and the logsumexp as differentiable functions of any backend.

First derivatives go through the backend's ``backward``. Where a derivative is differentiated again
(``create_graph``), it goes through the dense definition, which torch differentiates to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from eyeline.backends.base import Backend, Dropout, Gradients, Result, State, Term, Values
from eyeline.backends.passes import dropped
from eyeline.backends.reductions import Entries, LogSumExp, Reduction, View
from eyeline.backends.reference import dense
from eyeline.backends.strips import heads_matmul
from eyeline.problem import Problem

NAMES = ("q", "k", "bias", "relative", "sinks")
WHOLE = View()
_NOTHING = nullcontext()


@dataclass(frozen=True, eq=False)
class Call:
    """What a differentiable function is called with beside its tensors."""

    backend: Backend
    problem: Problem
    view: View = WHOLE
    reductions: tuple[Reduction, ...] = ()
    dropout: Dropout | None = None
    state: State | None = None

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> Problem:
        """The problem with its tensors again."""
        problem = self.problem.with_tensors(dict(zip(NAMES, tensors, strict=True)))
        problem.check_mask_fresh()
        return problem


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Autocast has had its say at the door; inside, every dtype is chosen."""
    if not torch._C._is_any_autocast_enabled():
        return _NOTHING
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return _NOTHING
    return torch.autocast(kind, enabled=False)


def _plain(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that autocast leaves alone, wherever it is called."""

    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> Any:
        device = next((g.device for g in grads if g is not None), torch.device("cpu"))
        with without_autocast(device):
            return backward(ctx, *grads)

    return run


def _inputs(problem: Problem) -> tuple[Tensor | None, ...]:
    return tuple(problem.tensors[name] for name in NAMES)


def _wanted(needs: Sequence[bool]) -> frozenset[str]:
    return frozenset(name for name, needed in zip(NAMES, needs, strict=True) if needed)


def _cast(found: Gradients, inputs: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Each gradient in the dtype of its input."""
    grads = (found.problem[name] for name in NAMES)
    return tuple(
        None if g is None or t is None else g.to(t.dtype)
        for g, t in zip(grads, inputs, strict=True)
    )


def _apart(tensors: Sequence[Tensor | None]) -> list[Any]:
    """What was saved, as views where a derivative is differentiated again.

    Saved tensors may be one and the same, or ancestors of one another: a derivative at one of them
    would run on through the others. At the views it stops.
    """
    if not torch.is_grad_enabled():
        return list(tensors)
    return [None if t is None else t.view_as(t) for t in tensors]


def _differentiate_again(
    outputs: Sequence[Tensor], grads: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated themselves, from outputs of the dense definition."""
    live = [t for t in inputs if t is not None and t.requires_grad]
    pairs = [
        (o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad
    ]
    if not live or not pairs:
        return (None,) * len(inputs)
    outs = [o for o, _ in pairs]
    arriving = [g.to(o.dtype) for o, g in pairs]
    found = iter(torch.autograd.grad(outs, live, arriving, create_graph=True, allow_unused=True))
    return tuple(next(found) if t is not None and t.requires_grad else None for t in inputs)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, v: Tensor, *inputs: Tensor | None) -> Any:
        out, lse, state = call.backend.forward(call.with_tensors(inputs), v, call.dropout)
        return (out, lse, *((None, None) if state is None else (state.m, state.l)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, v, *tensors = inputs
        ctx.call = _bare(call)
        ctx.mark_non_differentiable(*(t for t in output[1:] if t is not None))
        ctx.save_for_backward(v, output[0], output[1], *tensors)

    @staticmethod
    @_plain
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        v, out, lse, *inputs = ctx.saved_tensors
        problem = ctx.call.with_tensors(inputs)
        if torch.is_grad_enabled():
            return (None, *again(problem, v, ctx.call.dropout, grad))
        values = Values(v, ctx.call.dropout, out, lse, grad)
        wanted = _wanted(ctx.needs_input_grad[2:])
        if ctx.needs_input_grad[1]:
            wanted |= {"v"}
        found = ctx.call.backend.backward(problem, values, (), WHOLE, None, wanted)
        return (None, None if found.v is None else found.v.to(v.dtype), *_cast(found, inputs))


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, m: Tensor | None, total: Tensor | None, *tensors: Tensor | None) -> Any:
        problem, reductions = (
            call.with_tensors(tensors[:5]),
            _with_own(call.reductions, tensors[5:]),
        )
        state = None if m is None or total is None else State(m, total)
        results = call.backend.reduce(problem, reductions, call.view, state)
        return tuple(t for result in results for t in result)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, _, _, *tensors = inputs
        ctx.call, ctx.inputs = _bare(call), len(tensors)
        firsts = _starts(call.reductions)
        apart = [t for i, t in enumerate(output) if i not in firsts or not t.is_floating_point()]
        ctx.mark_non_differentiable(*apart)
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    @_plain
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        inputs, flat = _apart(saved[: ctx.inputs]), saved[ctx.inputs :]
        problem, reductions = (
            ctx.call.with_tensors(inputs[:5]),
            _with_own(ctx.call.reductions, inputs[5:]),
        )
        starts = _starts(reductions)
        results = [flat[s : s + r.parts] for s, r in zip(starts, reductions, strict=True)]
        arriving = [grads[s] for s in starts]
        if torch.is_grad_enabled():
            strip = ctx.call.view.of(dense(problem))
            made = [r.again(strip, result) for r, result in zip(reductions, results, strict=True)]
            return (None, None, None, *_differentiate_again(made, arriving, inputs))
        live = [i for i, g in enumerate(arriving) if g is not None]
        terms = [
            Term(r, result, g)
            for r, result, g in zip(reductions, results, arriving, strict=True)
            if g is not None
        ]
        if not terms:
            return (None,) * (3 + len(inputs))
        wanted = _wanted(ctx.needs_input_grad[3:8])
        found = ctx.call.backend.backward(problem, None, terms, ctx.call.view, None, wanted)
        own = dict(zip(live, found.own, strict=True))
        mine = [
            own[i][j].to(t.dtype) if i in own else None
            for i, r in enumerate(reductions)
            for j, t in enumerate(r.tensors)
        ]
        return (None, None, None, *_cast(found, inputs[:5]), *mine)


class _Lse(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, lse: Tensor, *inputs: Tensor | None) -> Tensor:
        return lse.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, _, *tensors = inputs
        ctx.call = _bare(call)
        ctx.save_for_backward(*tensors)

    @staticmethod
    @_plain
    def backward(ctx: Any, grad: Tensor) -> Any:
        inputs = _apart(ctx.saved_tensors)
        problem = ctx.call.with_tensors(inputs)
        if torch.is_grad_enabled():
            made = LogSumExp().of(dense(problem))
            return (None, None, *_differentiate_again(made, [grad], inputs))
        wanted = _wanted(ctx.needs_input_grad[2:])
        found = ctx.call.backend.backward(problem, None, (), WHOLE, grad, wanted)
        return (None, None, *_cast(found, inputs))


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, cols: Tensor, *inputs: Tensor | None) -> Tensor:
        assert call.state is not None
        return call.backend.tile(call.with_tensors(inputs), call.state, cols)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, cols, *tensors = inputs
        ctx.call = _bare(call)
        ctx.save_for_backward(cols, *tensors)

    @staticmethod
    @_plain
    def backward(ctx: Any, grad: Tensor) -> Any:
        cols, *inputs = ctx.saved_tensors
        inputs = _apart(inputs)
        problem, entries = ctx.call.with_tensors(inputs), Entries(cols)
        if torch.is_grad_enabled():
            made = entries.of(dense(problem))
            return (None, None, *_differentiate_again(made, [grad], inputs))
        wanted = _wanted(ctx.needs_input_grad[2:])
        found = ctx.call.backend.backward(
            problem, None, (Term(entries, (), grad),), WHOLE, None, wanted
        )
        return (None, None, *_cast(found, inputs))


def again(
    problem: Problem, v: Tensor, dropout: Dropout | None, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients at v, q, k, bias, relative and sinks that can be differentiated once more."""
    v, *inputs = _apart([v, *_inputs(problem)])
    strip = dense(problem.with_tensors(dict(zip(NAMES, inputs, strict=True))))
    out = heads_matmul(dropped(strip, dropout, strip.weights), v.to(strip.weights.dtype))
    return _differentiate_again([out], [grad], [v, *inputs])


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return function.apply(*args)


def _bare(call: Call) -> Call:
    """The call without its tensors, which the graph keeps by its own rules."""
    nothing = dict.fromkeys(NAMES)
    return replace(call, problem=call.problem.with_tensors(nothing), state=None)


def _starts(reductions: Sequence[Reduction]) -> list[int]:
    """Where each reduction's result begins when all are laid in a row."""
    parts = [r.parts for r in reductions]
    return [sum(parts[:i]) for i in range(len(parts))]


def _with_own(reductions: Sequence[Reduction], tensors: Sequence[Tensor | None]) -> list[Reduction]:
    left = list(tensors)
    made = []
    for reduction in reductions:
        own = [left.pop(0) for _ in reduction.tensors]
        made.append(reduction.with_tensors(tuple(own)))  # type: ignore[arg-type]
    return made


def attend(
    backend: Backend, problem: Problem, v: Tensor, dropout: Dropout | None
) -> tuple[Tensor, Tensor, State | None]:
    """``out``, and the lse and state (without a gradient of their own)."""
    if not torch.is_grad_enabled() or not (problem.requires_grad or v.requires_grad):
        with without_autocast(v.device):
            return backend.forward(problem, v, dropout)
    call = Call(backend, problem, dropout=dropout)
    with without_autocast(v.device):
        out, lse, m, total = _apply(_Attend, call, v, *_inputs(problem))
    return out, lse, None if m is None else State(m, total)


def reduce(
    backend: Backend,
    problem: Problem,
    reductions: Sequence[Reduction],
    view: View = WHOLE,
    state: State | None = None,
) -> list[Result]:
    """Every reduction's result, differentiable in the problem's tensors and its own."""
    own = [t for r in reductions for t in r.tensors]
    if not torch.is_grad_enabled() or not (
        problem.requires_grad or any(t.requires_grad for t in own)
    ):
        with torch.no_grad(), without_autocast(problem.q.device):
            return backend.reduce(problem, reductions, view, state)
    call = Call(backend, problem, view, tuple(reductions))
    with without_autocast(problem.q.device):
        known = (None, None) if state is None else (state.m, state.l)
        flat = _apply(_Reduce, call, *known, *_inputs(problem), *own)
    return [
        tuple(flat[s : s + r.parts]) for s, r in zip(_starts(reductions), reductions, strict=True)
    ]


def lse(backend: Backend, problem: Problem, value: Tensor) -> Tensor:
    """A logsumexp that is known already, with its gradient."""
    if not torch.is_grad_enabled() or not problem.requires_grad:
        return value
    made: Tensor = _apply(_Lse, Call(backend, problem), value, *_inputs(problem))
    return made


def columns(backend: Backend, problem: Problem, state: State, cols: Tensor) -> Tensor:
    """Some columns of every row from the state: ``[N, Hq, Tq, len(cols)]``."""
    if not torch.is_grad_enabled() or not problem.requires_grad:
        with torch.no_grad(), without_autocast(problem.q.device):
            return backend.tile(problem, state, cols)
    call = Call(backend, problem, state=state)
    with without_autocast(problem.q.device):
        made: Tensor = _apply(_Columns, call, cols, *_inputs(problem))
    return made
