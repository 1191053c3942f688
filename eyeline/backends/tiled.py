"""Attention by strips, in plain PyTorch on any device.

O(T·D) memory per head; blocks of hidden keys are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eyeline.backends import fused
from eyeline.backends.base import Backend, Dropout, Gradients, Result, State, Term, Values
from eyeline.backends.passes import backward_pass, forward_pass, reduce_pass
from eyeline.backends.reductions import Reduction, View
from eyeline.backends.strips import Plan, Strip, scores, softmax_
from eyeline.problem import Problem

OnTile = Callable[[slice, "slice | Tensor", tuple[int, ...]], None]


@dataclass(frozen=True)
class Tiled(Backend):
    """Strips of a fixed number of scores.

    ``on_tile(rows, cols, shape)`` is called for each block of scores that is evaluated, of shape
    ``[n, h, R, C]``; handing one over also keeps attention off torch's fused operator, whose tiles
    cannot be counted.
    """

    name: str = "tiled"
    # 4 MiB of float32 scores: they stay near the cores, and a few temporaries stay small.
    elements: int = 1 << 20
    key_block: int = 256
    on_tile: OnTile | None = None

    def unsupported(self, problem: Problem) -> list[str]:
        return []

    def forward(
        self, problem: Problem, v: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor, State | None]:
        if dropout is None and self.on_tile is None:
            found = fused.forward(problem, v)
            if found is not None:
                out, lse, sound = found
                if sound < problem.Tq:
                    rest = problem.rows(slice(sound, problem.Tq))
                    out[:, :, sound:], lse[:, :, sound:], _ = forward_pass(
                        rest, self._strips(rest), v, None
                    )
                return out, lse, None
        return forward_pass(problem, self._strips(problem), v, dropout)

    def finds_state(self, reductions: Sequence[Reduction], view: View) -> bool:
        return False

    def reduce(
        self,
        problem: Problem,
        reductions: Sequence[Reduction],
        view: View,
        state: State | None = None,
    ) -> list[Result]:
        whole = view.mean_heads or any(r.whole for r in reductions)
        keep = any(r.reads_scores for r in reductions)
        return reduce_pass(
            problem, self._strips(problem, whole=whole, keep_scores=keep), reductions, view
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
        if not terms and lse_grad is None and values is not None and self.on_tile is None:
            found = fused.backward(problem, values, wanted)
            if found is not None:
                return found
        whole = view.mean_heads or any(t.reduction.whole for t in terms)
        keep = any(t.reduction.reads_scores for t in terms)
        # Differentiating a reduction takes several tensors of a strip's size: smaller strips.
        cut = replace(self, elements=self.elements // 2) if terms else self
        strips = cut._strips(problem, whole=whole, keep_scores=keep, keep_capped=True)
        return backward_pass(problem, strips, values, terms, view, lse_grad, wanted)

    def tile(self, problem: Problem, state: State, cols: Tensor) -> Tensor:
        made = problem.q.new_empty(
            (problem.N, problem.Hq, problem.Tq, len(cols)), dtype=problem.statistics
        )
        rows = max(self.elements // max(problem.N * problem.Hq * len(cols), 1), 1)
        for i in range(0, problem.Tq, rows):
            strip = slice(i, min(i + rows, problem.Tq))
            block, visible, _ = scores(problem, strip, cols)
            m, total = state.m[:, :, strip, None], state.l[:, :, strip, None]
            block.sub_(m.masked_fill(m == -torch.inf, 0.0)).exp_()
            block.div_(total.masked_fill(total == 0, 1.0))
            if visible is not None:
                block.masked_fill_(~visible, 0.0)
            made[:, :, strip] = block
        return made

    def _strips(
        self,
        problem: Problem,
        *,
        whole: bool = False,
        keep_scores: bool = False,
        keep_capped: bool = False,
    ) -> Iterator[Strip]:
        plan = Plan(self.elements, self.key_block, whole)
        for n, h, height in plan.units(problem):
            part = problem.part(n, h)
            part = replace(part, k=part.k.to(part.statistics))
            heads = slice(h.start * problem.group, h.stop * problem.group)
            for rows, cols in plan.row_strips(part, height):
                s, visible, capped = scores(part, rows, cols, keep_capped)
                if self.on_tile is not None:
                    self.on_tile(rows, cols, tuple(s.shape))
                before = s.clone() if keep_scores else None
                weights, m, total = softmax_(s, visible, part.sinks)
                at = (n, heads, rows, cols)
                yield Strip(problem, *at, weights, before, m, total, visible, problem.Tk, capped)
