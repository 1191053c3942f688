"""Weights are a tensor: whatever is done to the dense one gives the same of the lazy one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import eyeline
from eyeline import biases, spans
from eyeline.errors import ArgumentError, StaleError
from eyeline.problem import Problem
from tests import oracle

LEADS: dict[int, tuple[int, ...]] = {2: (), 3: (2,), 4: (2, 4), 5: (2, 3, 4)}
RANKS = pytest.mark.parametrize("rank", list(LEADS))
TQ, TK = 5, 7
Use = Callable[[Any], Any]


def both(rank: int) -> tuple[eyeline.Weights, Tensor]:
    """Causal weights with ALiBi (and grouped heads), lazy, and their definition: float64."""
    lead, made = LEADS[rank], torch.Generator().manual_seed(rank)
    shapes = (*lead, TQ, 3), (*((*lead[:-1], 2) if rank > 3 else lead), TK, 3)
    q, k = (torch.randn(shape, dtype=torch.float64, generator=made) for shape in shapes)
    slopes = torch.rand(lead[-1:] if rank > 3 else (), generator=made).double()
    apart = (oracle.positions(TQ, TK) - torch.arange(TK)).abs()
    bias, visible = -slopes[..., None, None] * apart, oracle.causal(TQ, TK)
    exact = oracle.dense(q, k, visible=visible, bias=bias).weights
    return eyeline.weights(q, k, eyeline.causal(), bias=biases.alibi(slopes)), exact


def same(found: Any, exact: Any) -> None:
    """One shape, dtype and the same numbers; what is lazy is made dense first."""
    found = found.to_dense() if isinstance(found, eyeline.Weights) else found
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-12)


def asked(index: Any, of: Any) -> Any:
    """What an index gives, or the kind of error that it is."""
    try:
        return of[index]
    except (IndexError, ValueError) as error:
        return type(error)


def entries(size: int) -> st.SearchStrategy[Any]:
    """An index of a dimension: mostly valid, sometimes one too far."""
    place, far = st.integers(-size, size - 1), st.none() | st.integers(-size - 2, size + 2)
    count = st.sampled_from((1, 2, 2, 3))
    several = count.flatmap(lambda n: st.lists(place, min_size=n, max_size=n))
    chosen = st.lists(st.booleans(), min_size=size, max_size=size)
    numbers = [several, several.map(torch.tensor), several.map(np.array)]
    numbers += [several.map(lambda some: torch.tensor(some)[:, None])]
    slices = [st.builds(slice, far, far, st.none() | st.integers(1, 3)), st.just(slice(None))]
    chosen = chosen | chosen.map(torch.tensor)
    return st.one_of(place, st.integers(-size - 1, size), *slices, *numbers, chosen)


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """An index of a tensor: an entry per dimension or fewer, with `...` and None among them."""
    key = [draw(entries(size)) for size in shape]
    if draw(st.booleans()):
        start = draw(st.integers(0, len(key)))
        key[start : draw(st.integers(start, len(key)))] = [...]
    else:
        key = key[: draw(st.integers(1, len(key)))]
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return key[0] if len(key) == 1 and draw(st.booleans()) else tuple(key)


@RANKS
@pytest.mark.parametrize("head_mean", [False, True])
@settings(max_examples=50)
@given(data=st.data())
def test_any_index_and_any_index_of_that(rank: int, head_mean: bool, data: st.DataObject) -> None:
    found, exact = both(rank)
    if head_mean:
        found, exact = (w.mean(-3) if rank > 2 else w for w in (found, exact))
    while isinstance(exact, Tensor) and exact.dim() and 0 not in exact.shape:
        index = data.draw(indices(tuple(exact.shape)), label="index")
        found, exact = asked(index, found), asked(index, exact)
        if not isinstance(exact, Tensor):
            assert found is exact
            return
        same(found, exact)
        assert not isinstance(found, eyeline.Weights) or len(found.axes) == exact.dim()


INDEXED: list[Use] = [
    lambda w: w[0][3][-1],
    lambda w: w.mean(1)[[1, 0]][..., [0, 3], :],
    lambda w: w[[1, 0, 1]].mean(1)[1:, 2:],
    lambda w: w[torch.ones(2, 4, TQ, dtype=torch.bool)],
    lambda w: w[True],
    lambda w: w[np.int64(1), torch.tensor(2)],
    lambda w: w[range(1)],
    lambda w: w[..., torch.tensor([], dtype=torch.int64), :],
]


@pytest.mark.parametrize("case", range(len(INDEXED)))
def test_indices_of_other_kinds(case: int) -> None:
    weights, exact = both(4)
    same(INDEXED[case](weights), INDEXED[case](exact))


def test_axes_keep_their_names() -> None:
    weights, _ = both(5)
    pairs, apart = ([[0, 1]], [[1], [0]]), ([0, 1], slice(None), [1, 0])
    assert weights[:, 1, 1:].axes == ("batch", "head", "query", "key")
    assert weights[pairs].axes == ("batch", "batch_1", "head", "query", "key")
    assert weights[apart].axes == ("batch", "batch_1", "query", "key")


@pytest.mark.parametrize("index", [(0,) * 5, "heads", 1.5, (..., slice(None, None, -1))])
def test_what_is_no_index(index: Any) -> None:
    weights, exact = both(4)
    assert asked(index, weights) is asked(index, exact)


X, Y = (torch.linspace(-1, 1, 2 * T, dtype=torch.float64).view(T, 2) for T in (TK, TQ))
USES: dict[str, Use] = {
    "stack and cat": lambda w: (torch.stack([w, w]), torch.cat([w, w], -1)),
    "einsum": lambda w: torch.einsum("...ij->...ji", w),
    "compare": lambda w: w > 0.5,
    "arithmetic": lambda w: (w * 2, 2 * w, w + w, -w, 1 - w),
    "tolist": lambda w: w.tolist(),
    "asarray": lambda w: np.asarray(w),
    "iterate": lambda w: (len(w), torch.stack(list(w))),
    "unbind": lambda w: (torch.stack(w.unbind(-2)), torch.stack(torch.unbind(w, -1))),
    "unsqueeze": lambda w: w.unsqueeze(0).unsqueeze(-1).unsqueeze(-3),
    "squeeze": lambda w: (w[:1].squeeze(0), w[..., :1, :].squeeze(), torch.squeeze(w, -1)),
    "into a tensor": lambda w: torch.ones(w.shape).double().add_(w),
    "of all": lambda w: (w.sum(), torch.mean(w), w.max(), w.argmax(), w.sum((-1, -2))),
    "topk keys": lambda w: tuple(w[..., -2:, :].topk(3)),
    "topk queries": lambda w: tuple(torch.topk(w[..., :2], 2, dim=-2)),
    "topk smallest": lambda w: w.topk(2, largest=False).values,
    "w @ x": lambda w: (w @ X, w @ X[:, 0], torch.matmul(w, X.expand(*w.shape[:-2], TK, 2))),
    "x @ w": lambda w: (Y.mT @ w, Y[:, 0] @ w, Y.mT.expand(*w.shape[:-2], 2, TQ) @ w),
    "wider @ w": lambda w: Y.mT.expand(2, *w.shape[:-2], 2, TQ) @ w,
    "mT @ y": lambda w: (w.mT @ Y, w.mT @ Y[:, 0], X.mT @ w.mT, w @ w.mT),
    "mT": lambda w: (w.mT.sum(-1), w.mT.max(-1), w.mT[..., 0], w.mT.mT, torch.squeeze(w.mT)),
}
for over, dim in {"keys": -1, "queries": -2, "the first": 0}.items():
    for keep in (False, True):
        for name in ("sum", "mean", "amax", "argmax", "max"):
            kept = f"{name} over {over}{', kept' if keep else ''}"
            USES[kept] = lambda w, d=dim, k=keep, n=name: getattr(w, n)(dim=d, keepdim=k)
            USES[f"torch.{kept}"] = lambda w, d=dim, k=keep, n=name: getattr(torch, n)(w, d, k)


@RANKS
@pytest.mark.parametrize("use", list(USES))
def test_any_use(rank: int, use: str) -> None:
    weights, exact = both(rank)
    same(USES[use](weights), USES[use](exact))


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4, 5), (2, 3, 40, 50), (1, 12, 100), (30, 40)])
@pytest.mark.parametrize("options", [{}, {"precision": 2, "edgeitems": 2}, {"threshold": 10}])
def test_prints_as_torch_prints(shape: tuple[int, ...], options: dict[str, int]) -> None:
    q, k = torch.randn(*shape[:-1], 3), torch.randn(*shape[:-2], shape[-1], 3)
    weights = eyeline.weights(q, k, eyeline.window(20, 5))
    before = vars(torch._tensor_str.PRINT_OPTS).copy()
    with torch._tensor_str.printoptions(**options):
        *lines, about = repr(weights).splitlines()
        assert lines == repr(weights.to_dense()).splitlines()
        assert about.startswith(f"weights {list(shape)} float32")
        assert f"{weights}" == str(weights) == repr(weights)
    assert vars(torch._tensor_str.PRINT_OPTS) == before


CHANGES: dict[str, Use] = {
    "add_": lambda w: w.add_(1),
    "relu": lambda w: torch.nn.functional.relu(w, inplace=True),
    "*=": lambda w: w.__imul__(2),
    "an entry": lambda w: w.__setitem__((0, 0), 1.0),
    "requires_grad_": lambda w: w.requires_grad_(),
    "out": lambda w: torch.add(torch.ones(()), 1, out=w),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_in_place_is_refused(change: str) -> None:
    weights, exact = both(4)
    with pytest.raises(ArgumentError, match="to_dense"):
        CHANGES[change](weights)
    same(weights, exact)


@pytest.mark.parametrize("use", ["compare", "arithmetic", "asarray", "tolist", "wider @ w"])
def test_above_the_limit(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eyeline, "dense_limit", 1000)
    weights, exact = both(4)
    with pytest.raises(eyeline.errors.DenseError, match=r"KiB.*1000 bytes[\s\S]*eyeline\.re"):
        USES[use](weights)
    for lazy in ("sum over keys", "mean over queries", "topk keys", "max over keys", "w @ x"):
        same(USES[lazy](weights), USES[lazy](exact))
    same(weights[0, 1], exact[0, 1])
    same(weights.to_dense(limit=10**6), exact)


def test_stale_after_a_change_in_place() -> None:
    q, k = torch.randn(4, 3), torch.randn(6, 3)
    whole = eyeline.weights(q, k)
    part = whole[1:]
    q.add_(1)
    for ask in (lambda w: w[0], lambda w: w.sum(-1), repr, lambda w: w * 2, lambda w: w.lse):
        for weights in (whole, part):
            with pytest.raises(StaleError, match="clone"):
                ask(weights)


def test_gradients_are_asked_for_as_of_a_tensor() -> None:
    q, k = torch.randn(4, 3, requires_grad=True), torch.randn(6, 3)
    weights = eyeline.weights(q, k)
    learning = (weights, weights * 2, weights[1], weights[1:], weights.lse)
    assert all(x.requires_grad for x in learning)
    with torch.no_grad():
        unlearned = [eyeline.weights(q, k), weights[1], weights.detach()[1:]]
    unlearned += [weights.detach(), weights.detach()[1], unlearned[0].sum(-1)]
    assert not any(x.requires_grad for x in unlearned)
    weights[1].square().sum().backward()
    assert q.grad is not None


def pickled(weights: Any) -> Any:
    return pickle.loads(pickle.dumps(weights))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@RANKS
def test_copies(copied: Use, rank: int) -> None:
    weights, exact = both(rank)
    for part in (lambda w: w, lambda w: w[..., 1:, 2:5]):
        twin = copied(part(weights))
        assert isinstance(twin, eyeline.Weights)
        assert twin.axes == weights.axes
        same(twin, part(exact))


def test_a_problem_holds_what_it_names():
    """Its fields are written in one step, which checks no name."""
    q, k, v = torch.randn(3, 2, 6, 4).unbind()
    weights = eyeline.attention(q, k, v, eyeline.causal())[1]
    words = spans.weights_over(weights, [(0, 3), (3, 6)])
    named = dataclasses.fields(Problem)
    without = {field.name for field in named if field.default is dataclasses.MISSING}
    for problem in (weights.problem, words.problem, weights[:, 2:].problem):
        assert without <= set(vars(problem)) <= {field.name for field in named}


def test_a_weights_that_is_written_to_spoils_no_other():
    before = eyeline.weights(torch.ones(2, 3), torch.ones(2, 3))
    with torch._C.DisableTorchFunctionSubclass():
        before[:1, :1].fill_(7.0)
        after = eyeline.weights(torch.ones(2, 3), torch.ones(2, 3))
        assert torch.Tensor.isnan(after).all()
