"""The passes that every backend of strips makes: forward, reduce, backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eyeline.backends.base import Dropout, Gradients, Result, State, Term, Values
from eyeline.backends.random import kept
from eyeline.backends.reductions import Reduction, View
from eyeline.backends.strips import (
    Strip,
    heads_matmul,
    like_query,
    pick_heads,
    select_matmul,
    select_matmul_t,
)
from eyeline.problem import Problem


def _heads_of(strip: Strip, t: Tensor) -> Tensor:
    """This strip's part of a value-like ``[N|1, H', Tk, F]``, in the dtype of the weights."""
    return strip.pick_keys(pick_heads(strip, t)).to(strip.weights.dtype)


def dropped(strip: Strip, dropout: Dropout | None, t: Tensor) -> Tensor:
    """``t [n, h, R, C]`` with dropout's zeros and scale."""
    if dropout is None:
        return t
    scale = 0.0 if dropout.p == 1 else 1.0 / (1.0 - dropout.p)
    return t * kept(strip, dropout.seed, dropout.p).to(t.dtype).mul_(scale)


def forward_pass(
    problem: Problem, strips: Iterable[Strip], v: Tensor, dropout: Dropout | None
) -> tuple[Tensor, Tensor, State]:
    """``out = P v`` and the state of every row."""
    out = like_query(problem.q, v.shape[-1])
    m = problem.q.new_empty((problem.N, problem.Hq, problem.Tq), dtype=problem.statistics)
    total = torch.empty_like(m)
    lse = torch.empty_like(m)
    for strip in strips:
        weights = dropped(strip, dropout, strip.weights)
        at = (strip.n, strip.h, strip.rows)
        out[at] = select_matmul(weights, _heads_of(strip, v), strip.visible)
        m[at], total[at], lse[at] = strip.m, strip.l, strip.lse
    return out, lse, State(m, total)


def reduce_pass(
    problem: Problem, strips: Iterable[Strip], reductions: Sequence[Reduction], view: View
) -> list[Result]:
    """Every reduction's result; each strip is computed once for all of them."""
    results: list[Result | None] = [None] * len(reductions)
    heads = 1 if view.mean_heads else problem.Hq
    for strip in strips:
        shown = view.of(strip)
        for i, reduction in enumerate(reductions):
            results[i] = _join(
                problem, reduction, heads, view, results[i], shown, reduction.of(shown)
            )
    return [
        _finish(reduction, result) for reduction, result in zip(reductions, results, strict=True)
    ]


def _join(
    problem: Problem,
    reduction: Reduction,
    heads: int,
    view: View,
    kept: Result | None,
    strip: Strip,
    new: Result,
) -> Result:
    if reduction.join == "rows":
        if kept is None:
            shape = (problem.N, heads, problem.Tq)
            kept = tuple(t.new_empty((*shape, *t.shape[3:])) for t in new)
        for into, t in zip(kept, new, strict=True):
            into[strip.n, strip.h, strip.rows] = t
        return kept
    if reduction.join == "keys":
        (t,) = new
        if kept is None:
            kept = (t.new_zeros((problem.N, heads, view.width(problem.Tk), t.shape[-1])),)
        into = kept[0][strip.n, strip.h]
        if isinstance(strip.cols, Tensor):
            kept[0][strip.n, strip.h] = into.index_add(2, strip.cols, t)
        else:
            into[:, :, strip.cols] += t
        return kept
    if reduction.join == "total":
        return new if kept is None else (kept[0] + new[0],)
    if kept is None:
        fill = 0 if reduction.join == "sum" else -1
        kept = tuple(t.new_full((problem.N, heads, *t.shape[2:]), fill) for t in new)
    at = (strip.n, strip.h)
    if reduction.join == "sum":
        kept[0][at] += new[0]
    else:
        better = reduction.better(tuple(t[at] for t in kept), new)
        for into, t in zip(kept, better, strict=True):
            into[at] = t
    return kept


def _finish(reduction: Reduction, result: Result | None) -> Result:
    assert result is not None
    if reduction.join == "best":  # -1 marked what was never seen
        return (result[0].clamp(min=0), *result[1:])
    return result


def backward_pass(
    problem: Problem,
    strips: Iterable[Strip],
    values: Values | None,
    terms: Sequence[Term],
    view: View,
    lse_grad: Tensor | None,
    wanted: frozenset[str],
) -> Gradients:
    """Every gradient that is wanted, in one pass over strips that are computed again."""
    sums = _Sums(problem, wanted)
    dv = None
    if values is not None and "v" in wanted:
        dv = values.v.new_zeros(values.v.shape, dtype=problem.statistics)
    own = [
        [torch.zeros_like(t, dtype=problem.statistics) for t in term.reduction.tensors]
        for term in terms
    ]
    for strip in strips:
        at = (strip.n, strip.h, strip.rows)
        G = None
        r = None if lse_grad is None else lse_grad[at].to(strip.weights.dtype)
        if values is not None:
            G = _value_gradient(strip, values, dv)
        pulled = _pull(strip, terms, view, own)
        G, r = _plus(G, pulled.get("weights")), _plus(r, pulled.get("lse"))
        sums.add(strip, G, r, pulled.get("scores"))
    return Gradients(sums.gradients(), dv, [tuple(o) for o in own])


def _value_gradient(strip: Strip, values: Values, dv: Tensor | None) -> Tensor:
    """``G = dout vᵀ`` at the weights; the strip's part of ``dv = Pᵀ dout`` is added to dv."""
    assert values.grad is not None
    dout = values.grad[strip.n, strip.h, strip.rows].to(strip.weights.dtype)
    v = _heads_of(strip, values.v)
    if dv is not None:
        weights = dropped(strip, values.dropout, strip.weights)
        _add_keys(
            pick_heads(strip, dv), strip, select_matmul_t(weights, dout, strip.visible, v.shape[1])
        )
    G = heads_matmul(dout, v.mT)
    if strip.visible is not None and not bool(v.isfinite().all() & dout.isfinite().all()):
        G.masked_fill_(~strip.visible, 0.0)
    return dropped(strip, values.dropout, G)


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of gradients of which either may be missing."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _pull(
    strip: Strip, terms: Sequence[Term], view: View, own: list[list[Tensor]]
) -> dict[str, Tensor | None]:
    """The gradients that reductions send to a strip, at its "weights", "scores" and "lse".

    They are differentiated one after the other, so that their intermediate tensors never add up.
    """
    pulled: dict[str, Tensor | None] = {}
    for term, sums in zip(terms, own, strict=True):
        leaves = {"weights": strip.weights, "lse": strip.m}  # lse = m + log l: m stands for it
        if strip.scores is not None:
            leaves["scores"] = strip.scores
        leaves = {name: t.detach().requires_grad_() for name, t in leaves.items()}
        tensors = tuple(t.detach().requires_grad_() for t in term.reduction.tensors)
        with torch.enable_grad():
            free = replace(
                strip, weights=leaves["weights"], m=leaves["lse"], scores=leaves.get("scores")
            )
            shown = view.of(free)
            result, grad = _at_strip(term, shown)
            out = term.reduction.with_tensors(tensors).again(shown, result)
        if not out.requires_grad:
            continue
        if term.reduction.join == "keys":
            grad = shown.pick_keys(grad)
        grad = grad.to(out.dtype).expand(out.shape)
        found = torch.autograd.grad(out, [*leaves.values(), *tensors], grad, allow_unused=True)
        for name, g in zip(leaves, found, strict=False):
            pulled[name] = _plus(pulled.get(name), g)
        for into, g in zip(sums, found[len(leaves) :], strict=True):
            if g is not None:
                into += g
    if strip.visible is not None:
        hidden = ~strip.visible
        for name in ("weights", "scores"):
            arriving = pulled.get(name)
            if arriving is not None:
                pulled[name] = arriving.masked_fill(hidden, 0.0)
    return pulled


def _at_strip(term: Term, shown: Strip) -> tuple[Result, Tensor]:
    """The part of a term's result and gradient that belongs to a strip."""
    if term.reduction.join == "rows":
        at: tuple[slice, ...] = (shown.n, shown.h, shown.rows)
    elif term.reduction.join == "total":
        return term.result, term.grad
    else:
        at = (shown.n, shown.h)
    return tuple(t[at] for t in term.result), term.grad[at]


def _add_keys(into: Tensor, strip: Strip, t: Tensor) -> None:
    """Add ``t [n, h, C, F]`` at the strip's keys; ``into`` may have one batch entry for all."""
    if into.shape[0] == 1 and t.shape[0] > 1:
        t = t.sum(0, keepdim=True)
    if isinstance(strip.cols, Tensor):
        into.index_add_(2, strip.cols, t)
    else:
        into[:, :, strip.cols] += t


class _Sums:
    """The gradients of a problem's tensors as they add up strip by strip."""

    def __init__(self, problem: Problem, wanted: frozenset[str]) -> None:
        self.problem = problem
        self.kept = {
            name: torch.zeros_like(
                t, dtype=problem.statistics, memory_format=torch.contiguous_format
            )
            for name, t in problem.tensors.items()
            if t is not None and name in wanted
        }

    def gradients(self) -> dict[str, Tensor | None]:
        return {name: self.kept.get(name) for name in self.problem.tensors}

    def add(self, strip: Strip, G: Tensor | None, r: Tensor | None, direct: Tensor | None) -> None:
        dS = _plus(self._at_scores(strip, G, r), direct)
        if dS is None:
            return
        if "bias" in self.kept:
            self._add_bias(strip, dS)
        if "relative" in self.kept:
            self._add_relative(strip, dS)
        if strip.capped is not None:
            assert self.problem.softcap is not None
            slope = 1.0 - (strip.capped / self.problem.softcap) ** 2
            dS = dS * (slope if strip.visible is None else slope.masked_fill(~strip.visible, 0.0))
        self._add_query_key(strip, dS)

    def _at_scores(self, strip: Strip, G: Tensor | None, r: Tensor | None) -> Tensor | None:
        """``dS = P ∘ (G - rowsum(P ∘ G) + r)``, and the sink's share of it."""
        if G is None and r is None:
            return None
        P = strip.weights
        if G is None:
            shift = r
            dS = P * r.unsqueeze(-1)  # type: ignore[union-attr]
        else:
            dS = G.mul(P)
            inner = dS.sum(-1)
            shift = -inner if r is None else r - inner
            dS.addcmul_(P, shift.unsqueeze(-1))
            if strip.visible is not None and not bool(inner.isfinite().all()):
                dS.masked_fill_(~strip.visible, 0.0)
        if "sinks" in self.kept:
            self._add_sinks(strip, shift)
        return dS

    def _add_sinks(self, strip: Strip, shift: Tensor | None) -> None:
        assert self.problem.sinks is not None
        assert shift is not None
        sinks = strip.pick(self.problem.sinks).to(shift.dtype).unsqueeze(-1)
        share = torch.where(strip.l == 0, 0.0, (sinks - strip.lse).exp())
        into = strip.pick(self.kept["sinks"])
        into += (share * shift).sum(-1).sum_to_size(into.shape)

    def _add_query_key(self, strip: Strip, dS: Tensor) -> None:
        problem, scale = self.problem, self.problem.scale
        if "q" in self.kept:
            k = _heads_of(strip, problem.k)
            self.kept["q"][strip.n, strip.h, strip.rows] = select_matmul(dS, k, strip.visible).mul_(
                scale
            )
        if "k" in self.kept:
            q = problem.q[strip.n, strip.h, strip.rows].to(dS.dtype)
            into = pick_heads(strip, self.kept["k"])
            _add_keys(into, strip, select_matmul_t(dS, q, strip.visible, into.shape[1]).mul_(scale))

    def _add_bias(self, strip: Strip, dS: Tensor) -> None:
        into = strip.pick(self.kept["bias"])
        if into.shape[2] > 1:
            into = into[:, :, strip.rows]
        shape = [s if into.shape[d] > 1 else 1 for d, s in enumerate(dS.shape)]
        part = dS.sum_to_size(shape)
        if into.shape[3] == 1:
            into += part
        elif isinstance(strip.cols, Tensor):
            into.index_add_(3, strip.cols, part)
        else:
            into[..., strip.cols] += part

    def _add_relative(self, strip: Strip, dS: Tensor) -> None:
        """Sums along the diagonals of dS: one number per distance between key and query."""
        into = strip.pick(self.kept["relative"])
        lead = [dS.shape[d] if into.shape[d] > 1 else 1 for d in (0, 1)]
        summed = dS.sum_to_size([*lead, *dS.shape[2:]]).flatten(2)
        index = strip.keys[None, :] - strip.positions[:, None] + self.problem.relative_origin
        into.index_add_(2, index.flatten(), summed)
