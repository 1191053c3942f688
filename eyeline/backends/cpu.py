"""Attention by the native kernels (`native/`), at the speed of the processor.

The forward pass is native; whatever else is asked goes to `tiled`, whose rows normalise themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyeline.backends import native
from eyeline.backends.base import Backend, Dropout, Gradients, Result, State, Term, Values
from eyeline.backends.reductions import Reduction, View
from eyeline.backends.strips import like_query
from eyeline.backends.tiled import Tiled
from eyeline.problem import Problem

NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

Strides = tuple[int, int, int, int, int]


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
        q, k, v = (t.resolve_neg() for t in (problem.q, problem.k, v))
        out = like_query(problem.q, v.shape[-1])
        lse = problem.q.new_empty(problem.q.shape[:3], dtype=torch.float32)
        bias, sinks = (
            None if t is None else t.to(torch.float32) for t in (problem.bias, problem.sinks)
        )
        relative, places = problem.relative, problem.picked_positions
        relative = None if relative is None else relative.to(torch.float32).contiguous()
        places = None if places is None else places.contiguous()
        visible, masks = problem.visible, dict[str, Tensor]()
        if visible is not None:
            masks = visible.parts()
        assert native.module is not None
        native.module.forward(
            self.table or native.chosen(),
            torch.get_num_threads(),
            NUMBERS[problem.q.dtype],
            (*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]),
            (_view(q), _view(k), _view(v), _view(out)),
            lse.data_ptr(),
            problem.scale,
            problem.softcap or 0.0,
            (_view(bias), _view(relative), _view(sinks)),
            (
                problem.relative_origin,
                problem.first_position,
                problem.position_step,
                0 if places is None else places.data_ptr(),
            ),
            tuple(
                _view(masks.get(name))
                for name in ("starts", "stops", "keep", "q_ids", "k_ids", "dense")
            ),
            masks["starts"].shape[3] if "starts" in masks else 0,
            _dropping(dropout),
        )
        return out, lse, None

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


def _view(t: Tensor | None) -> Strides | None:
    """Address and strides; a dimension of size 1 broadcasts."""
    if t is None:
        return None
    strides = [0 if n == 1 else s for n, s in zip(t.shape, t.stride())]
    a, b, c, d = strides + [0] * (4 - len(strides))
    return t.data_ptr(), a, b, c, d


def _dropping(dropout: Dropout | None) -> tuple[int, int, float] | None:
    """The seed, the threshold of 2^24 (as `random.kept` has it), and the scale of what stays."""
    if dropout is None:
        return None
    scale = 0.0 if dropout.p == 1 else 1.0 / (1.0 - dropout.p)
    return int(dropout.seed), round(dropout.p * (1 << 24)), scale
