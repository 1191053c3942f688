"""Parts of lazy weights: what a body holds, and the bodies and blocks an index chooses of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eyeline.backends import gradients
from eyeline.backends.base import Backend, Result, State
from eyeline.backends.reductions import Entries, Picked, Reduction, RowState, View
from eyeline.lazy import indexing
from eyeline.lazy.indexing import ALL
from eyeline.problem import Problem, canonical


@dataclass(eq=False)
class Body:
    """What a Weights is made of."""

    problem: Problem
    backend: Backend
    axes: tuple[str, ...]  # names of the leading dimensions
    view: View
    lse: Tensor | None = None  # [N, Hq, Tq], without a gradient
    state: State | None = None

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading shape as the caller sees it."""
        return self.problem.lead[:-1] if self.view.mean_heads else self.problem.lead

    @property
    def heads(self) -> int:
        """The heads that the view shows."""
        return 1 if self.view.mean_heads else self.problem.Hq

    @property
    def shape(self) -> tuple[int, ...]:
        """The weights' shape as the caller sees it."""
        return (*self.lead, self.problem.Tq, self.view.width(self.problem.Tk))

    def reduce(self, reductions: Sequence[Reduction]) -> list[Result]:
        """Reductions in one pass, in the caller's leading shape and the statistics dtype."""
        self.problem.check_fresh()
        results = self._reduced(reductions)
        return [
            result
            if reduction.join == "total"
            else tuple(t.reshape(*self.lead, *t.shape[2:]) for t in result)
            for reduction, result in zip(reductions, results, strict=True)
        ]

    def _reduced(self, reductions: Sequence[Reduction]) -> list[Result]:
        """The results as the backend makes them; a state that falls out is kept."""
        state = self.state if self.state is not None and self.state.own else None
        if state is not None or not self.backend.finds_state(reductions, self.view):
            return gradients.reduce(self.backend, self.problem, reductions, self.view, state)
        *results, (m, total) = gradients.reduce(
            self.backend, self.problem, [*reductions, RowState()], self.view
        )
        self.state = State(m.detach(), total.detach())
        return results

    def reduce_one(self, reduction: Reduction) -> Result:
        """One reduction, alone."""
        return self.reduce([reduction])[0]

    def rows_state(self) -> State:
        """m and l of every row, computed when first needed and kept."""
        if self.state is None:
            with torch.no_grad():
                ((m, total),) = gradients.reduce(self.backend, self.problem, [RowState()])
            self.state = State(m, total)
        return self.state

    def factor(self, x: Tensor) -> Tensor:
        """A factor ``[..., T, F]`` that broadcasts against the lead, as ``[N|1, H|1, T, F]``."""
        return canonical(x, self.lead, self.problem.N, self.heads)

    def detach(self) -> Body:
        """The same without a gradient."""
        return replace(self, problem=self.problem.detach())


def choose_lead(body: Body, lead: tuple[Any, ...]) -> Body:
    """Some batch entries and heads, by an index of the leading dimensions."""
    if all(isinstance(k, slice) and k == ALL for k in lead):
        return body
    problem, device = body.problem, body.problem.q.device
    flat = torch.arange(math.prod(body.lead)).reshape(body.lead)[lead]
    shape = tuple(flat.shape)
    axes = indexing.axes_after(body.axes, lead)
    flat = flat.flatten().to(device)
    if body.view.mean_heads:  # the lead has no head: batch entries come with all of theirs
        heads = torch.arange(problem.Hq, device=device)
        chosen = problem.combinations(flat, heads, (*shape, problem.Hq))
        return replace(body, problem=chosen, axes=axes, state=None, lse=None)
    chosen = problem.select(flat, shape)

    def pick(t: Tensor) -> Tensor:
        return t.flatten(0, 1)[flat].reshape(chosen.N, chosen.Hq, chosen.Tq)

    state = None if body.state is None else _state(body.state, pick)
    lse = None if body.lse is None else pick(body.lse)
    return replace(body, problem=chosen, axes=axes, state=state, lse=lse)


def _state(state: State, pick: Callable[[Tensor], Tensor]) -> State:
    """The state of some rows."""
    return replace(state, m=pick(state.m), l=pick(state.l))


def choose_slices(body: Body, rows: slice, cols: slice) -> Body:
    """Some rows (a smaller problem) and some columns (a view: rows stay normalised over all)."""
    if rows != ALL:
        state = None if body.state is None else _state(body.state, lambda t: t[:, :, rows])
        lse = None if body.lse is None else body.lse[:, :, rows]
        body = replace(body, problem=body.problem.rows(rows), state=state, lse=lse)
    if cols != ALL:
        chosen = indexing.composed(body.view.cols, cols, body.problem.Tk)
        body = replace(body, view=replace(body.view, cols=chosen))
    return body


def block(body: Body, rows: Any, cols: Any) -> tuple[Tensor, Any, Any]:
    """The dense block that row and column indices need, and their places in it."""
    device = body.problem.q.device
    at_rows: Any  # an int, slice or index tensor
    at_cols: Any
    if isinstance(rows, int):
        part, at_rows = choose_slices(body, slice(rows, rows + 1), ALL), 0
    elif isinstance(rows, Tensor):
        chosen = body.problem.rows(rows.flatten().to(device))
        part = replace(body, problem=chosen, state=None, lse=None)
        at_rows = torch.arange(rows.numel(), device=device).view(rows.shape)
    else:
        part, at_rows = choose_slices(body, rows, ALL), ALL
    if isinstance(cols, slice):
        return entries(choose_slices(part, ALL, cols)), at_rows, ALL
    if isinstance(cols, int):
        index, at_cols = torch.tensor([cols], device=device), 0
    else:
        index = cols.flatten().to(device)
        at_cols = torch.arange(cols.numel(), device=device).view(cols.shape)
    # Of many rows, columns come from the state (O(T)); of picked rows, from those rows themselves.
    made = columns(part, index) if isinstance(rows, slice) else _entries_at(part, index)
    return made, at_rows, at_cols


def pairs(body: Body, rows: Tensor, cols: Tensor) -> Tensor:
    """Single weights: row and column indices go together, broadcast against each other."""
    device = body.problem.q.device
    try:
        i, j = torch.broadcast_tensors(rows.to(device), cols.to(device))
    except RuntimeError as error:
        raise IndexError(f"row and column indices go together: {error}") from None
    picked = replace(body, problem=body.problem.rows(i.flatten()), state=None, lse=None)
    made = picked.reduce_one(Picked(j.flatten()))[0].to(body.problem.q.dtype)
    return made.reshape(*body.lead, *i.shape)


def entries(body: Body) -> Tensor:
    """All that the body shows, dense, in q's dtype."""
    return body.reduce_one(Entries())[0].to(body.problem.q.dtype)


def _entries_at(body: Body, cols: Tensor) -> Tensor:
    """Some columns of every row, from the rows themselves."""
    return body.reduce_one(Entries(cols))[0].to(body.problem.q.dtype)


def columns(body: Body, cols: Tensor) -> Tensor:
    """Some columns of every row, from the rows' state."""
    if body.view.mean_heads:
        return _entries_at(body, cols)
    problem = body.problem
    if body.view.cols is not None:
        cols = torch.arange(problem.Tk, device=cols.device)[body.view.cols][cols]
    made = gradients.columns(body.backend, problem, body.rows_state(), cols)
    return made.reshape(*body.lead, problem.Tq, len(cols)).to(problem.q.dtype)
