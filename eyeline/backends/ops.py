"""Attention as operators of torch, for torch.compile.

A compiler sees two opaque operators with known shapes, ``eyeline::attend`` and
``eyeline::attend_backward``. Masks travel as a short text and the tensors it names, and are lowered
inside. Outside of a compiler the direct path is taken: an operator's dispatch costs more than a
small attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from eyeline.backends import BACKENDS, by_name, gradients
from eyeline.backends.base import Backend, Dropout, Values
from eyeline.backends.strips import like_query
from eyeline.errors import BackendError
from eyeline.masks import Mask
from eyeline.problem import Problem

_forced: ContextVar[bool] = ContextVar("eyeline_through_operators", default=False)

library = torch.library.Library("eyeline", "DEF")
_problem = (
    "Tensor q, Tensor k, Tensor? bias, Tensor? relative, Tensor? sinks, Tensor[] mask_tensors, "
    "Tensor? seed, str mask, float scale, float softcap, SymInt[] lead, SymInt origin, "
    "SymInt first_position, float dropout, str backend"
)
library.define(f"attend(Tensor v, {_problem}) -> (Tensor, Tensor)")
library.define(
    "attend_backward(Tensor grad, Tensor out, Tensor lse, bool[] wanted, Tensor v, "
    f"{_problem}) -> Tensor[]"
)

MASK_TENSORS, LEAD = 6, 11  # where these arguments stand in attend


@contextmanager
def through_operators() -> Iterator[None]:
    """Take the operators where the direct path would be taken (tests run both)."""
    token = _forced.set(True)
    try:
        yield
    finally:
        _forced.reset(token)


def wanted_here() -> bool:
    """Whether attention must go through the operators now."""
    if torch.compiler.is_compiling():
        return True
    # torch.func's transforms do not enter an operator's registered gradient, but they do enter
    # that of the direct path.
    return _forced.get() and not torch._C._are_functorch_transforms_active()


# Backends that were handed over as objects, by the text under which operators know them.
_handed: dict[str, Backend] = {}


def key_of(backend: Backend) -> str:
    """The text under which an operator finds this backend again."""
    if any(known is backend for known in BACKENDS):
        return backend.name
    if torch.compiler.is_compiling():
        raise BackendError(
            "Under torch.compile name a backend by its string, as backend='tiled': a backend "
            "object cannot be part of a graph."
        )
    key = f"{backend.name} {id(backend)}"
    _handed[key] = backend
    return key


def _backend_of(key: str) -> Backend:
    return _handed[key] if key in _handed else by_name(key)


def attend(
    backend: str, problem: Problem, v: Tensor, dropout: Dropout | None
) -> tuple[Tensor, Tensor]:
    """``out`` and lse through the operator."""
    mask, tensors = ("", []) if problem.rule is None else problem.rule.spec()
    return torch.ops.eyeline.attend(  # type: ignore[no-any-return]
        v,
        problem.q,
        problem.k,
        problem.bias,
        problem.relative,
        problem.sinks,
        tensors,
        None if dropout is None else dropout.seed,
        mask,
        problem.scale,
        0.0 if problem.softcap is None else problem.softcap,
        problem.lead,
        problem.relative_origin,
        problem.first_position,
        0.0 if dropout is None else dropout.p,
        backend,
    )


def _problem_of(args: tuple[Any, ...]) -> tuple[Problem, Dropout | None, str]:
    (
        q,
        k,
        bias,
        relative,
        sinks,
        tensors,
        seed,
        mask,
        scale,
        softcap,
        lead,
        origin,
        first,
        p,
        backend,
    ) = args
    problem = Problem(
        q=q,
        k=k,
        scale=scale,
        lead=tuple(lead),
        rule=Mask.from_spec(mask, tensors) if mask else None,
        softcap=softcap or None,
        bias=bias,
        relative=relative,
        relative_origin=origin,
        sinks=sinks,
        first_position=first,
    )
    return problem, None if seed is None else Dropout(p, seed), backend


def _attend(v: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    problem, dropout, backend = _problem_of(args)
    out, lse, _ = _backend_of(backend).forward(problem, v, dropout)
    return out, lse


def _attend_fake(v: Tensor, q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    return like_query(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=statistics)


def _attend_backward(
    grad: Tensor, out: Tensor, lse: Tensor, wanted: list[bool], v: Tensor, *args: Any
) -> list[Tensor]:
    problem, dropout, backend = _problem_of(args)
    names = ("v", *gradients.NAMES)
    asked = frozenset(name for name, needed in zip(names, wanted, strict=True) if needed)
    values = Values(v, dropout, out, lse, grad)
    found = _backend_of(backend).backward(problem, values, (), gradients.WHOLE, None, asked)
    every = {"v": found.v, **found.problem}
    inputs = {"v": v, **problem.tensors}
    made = []
    for name in names:
        g, t = every[name], inputs[name]
        made.append(v.new_empty(0) if g is None or t is None else g.to(t.dtype).contiguous())
    return made


def _attend_backward_fake(
    grad: Tensor, out: Tensor, lse: Tensor, wanted: list[bool], v: Tensor, *args: Any
) -> list[Tensor]:
    inputs = (v, *args[:5])
    return [
        v.new_empty(0) if t is None or not needed else t.new_empty(t.shape)
        for t, needed in zip(inputs, wanted, strict=True)
    ]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    v, *args = inputs
    tensors = [v, *args[:5], args[6]]
    ctx.present = [t is not None for t in tensors]
    ctx.masks, ctx.lead = len(inputs[MASK_TENSORS]), inputs[LEAD]
    ctx.rest = args[7:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0], output[1], *(t for t in tensors if t is not None), *args[5])


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> Any:
    wanted = [*ctx.needs_input_grad[:6]]
    nothing: list[Any] = [None] * 16
    nothing[MASK_TENSORS] = [None] * ctx.masks
    if not ctx.lead:
        nothing[LEAD] = []  # torch cannot tell an empty list of sizes from an empty list of tensors
    if grad is None:
        return tuple(nothing)
    out, lse, *saved = ctx.saved_tensors
    mask_tensors = saved[len(saved) - ctx.masks :]
    left = iter(saved)
    v, q, k, bias, relative, sinks, seed = (next(left) if here else None for here in ctx.present)
    assert v is not None
    args = (q, k, bias, relative, sinks, mask_tensors, seed, *ctx.rest)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        problem, dropout, _name = _problem_of(args)
        nothing[:6] = gradients.again(problem, v, dropout, grad)
        return tuple(nothing)
    found = torch.ops.eyeline.attend_backward(grad, out, lse, wanted, v, *args)
    nothing[:6] = [g if needed else None for g, needed in zip(found, wanted, strict=True)]
    return tuple(nothing)


library.impl("attend", _attend, "CompositeExplicitAutograd")
library.impl("attend_backward", _attend_backward, "CompositeExplicitAutograd")
torch.library.register_fake("eyeline::attend", _attend_fake, lib=library)
torch.library.register_fake("eyeline::attend_backward", _attend_backward_fake, lib=library)
torch.library.register_autograd("eyeline::attend", _backward, setup_context=_setup, lib=library)
