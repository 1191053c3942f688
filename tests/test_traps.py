"""Inputs that once broke eyeline itself. Each stands for a kind."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import eyeline
from eyeline import biases, readings
from eyeline.backends.tiled import Tiled
from eyeline.errors import ArgumentError, DtypeError, StaleError

SMALL = Tiled(elements=64, key_block=2)


def related(kind: str) -> tuple[torch.Tensor, ...]:
    """q, k, v that are one tensor, or made from one another."""
    x = torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    return {"same": (x, x, x), "made": (x, 2 * x, 3 * x), "copied": (x, x.clone(), x)}[kind]


@pytest.mark.parametrize("kind", ["same", "made", "copied"])
@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("asked", ["out", "entropy", "lse", "column", "row", "bias"])
def test_a_first_gradient_is_the_same_with_create_graph(kind, backend, asked):
    q, k, v = related(kind)
    bias = q @ q.mT if asked == "bias" else None
    out, weights = eyeline.attention(q, k, v, bias=bias, backend=backend)
    answer = {
        "out": lambda: out,
        "bias": lambda: out,
        "entropy": lambda: eyeline.entropy(weights).values,
        "lse": lambda: weights.lse,
        "column": lambda: weights[..., 1],
        "row": lambda: weights[0, 1, 2],
    }[asked]
    loss = answer().pow(2).sum()
    plain = torch.autograd.grad(loss, q, retain_graph=True)[0]
    again = torch.autograd.grad(loss, q, create_graph=True)[0]
    torch.testing.assert_close(again, plain)


def stale_after(change: str):
    q, bias, sinks = torch.randn(1, 2, 4, 3), torch.zeros(4, 4), torch.zeros(2)
    mask = torch.ones(4, 4, dtype=torch.bool)
    _, weights = eyeline.attention(q, q, q, mask, bias=bias, sinks=sinks)
    weights[..., 0]
    {"q": q, "bias": bias, "sinks": sinks, "mask": mask}[change].zero_()
    return weights


@pytest.mark.parametrize("change", ["q", "bias", "sinks", "mask"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda w: w[0, 1, 2],
        lambda w: w[..., 0],
        lambda w: w.scores(slice(0, 1)),
        lambda w: w[0, 1],
        lambda w: eyeline.entropy(w),
        lambda w: w.lse,
        copy.deepcopy,
        pickle.dumps,
    ],
)
def test_what_was_changed_in_place_is_said(change, ask):
    with pytest.raises(StaleError, match="changed in place"):
        ask(stale_after(change))


def test_a_mask_changed_before_its_gradient_is_said():
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool)
    out, _ = eyeline.attention(x, x, x, mask)
    mask.fill_(False)
    with pytest.raises(StaleError, match="mask"):
        out.sum().backward()


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_bools_of_any_kind_name_keys(make):
    weights = eyeline.weights(torch.randn(2, 3), torch.randn(4, 3))
    found = readings.mass(weights, {"ends": make([True, False, False, True])}).values[:, 0]
    torch.testing.assert_close(found, weights.to_dense()[:, [0, 3]].sum(-1))


@pytest.mark.parametrize(
    "ask",
    [
        lambda w: readings.mass(w, {"a": [0.7]}),
        lambda w: readings.mass(w, {"a": "word"}),
        lambda w: readings.mass(w, {"a": [-9, 2]}),
        lambda w: readings.pooled(w, [0, 1.7, 4], 2),
        lambda w: readings.pooled(w, 2.5, 2),
        lambda w: readings.pooled(w, None, 2),
        lambda w: readings.pooled(w, 2, 2, region=(0, 3)),
        lambda w: readings.diagonal(w, 1.5),
        lambda w: readings.diagonal(w, 10**30),
        lambda w: readings.RowTiles(lambda t: t.weights, "mean"),
        lambda w: readings.reading(lambda weights: 3),
        lambda w: eyeline.weights(w.problem.q[0], w.problem.k[0], softcap=float("inf")),
        lambda w: eyeline.weights(w.problem.q[0], w.problem.k[0], scale=10**400),
        lambda w: w.scores(1),
        lambda w: w.register_hook(print),
    ],
)
def test_what_has_no_meaning_is_refused(ask):
    with pytest.raises(ArgumentError):
        ask(eyeline.weights(torch.randn(1, 4, 3), torch.randn(1, 5, 3)))


def test_numpy_integers_are_numbers_of_cells():
    weights = eyeline.weights(torch.randn(4, 3), torch.randn(5, 3))
    assert readings.pooled(weights, np.int64(2), np.int64(3)).values.shape == (2, 3)


@pytest.mark.parametrize("backend", ["reference", "tiled", SMALL])
def test_received_on_average_counts_who_sees_the_key(backend):
    q, k = torch.zeros(1, 2, 4, 1), torch.zeros(1, 2, 2, 1)
    mask = torch.zeros(1, 2, 4, 2, dtype=torch.bool)
    mask[0, 0, :2] = mask[0, 1, 2:] = True
    mean = eyeline.weights(q, k, mask, backend=backend).mean(1)
    assert eyeline.received(mean, mean=True).values.tolist() == [[0.25, 0.25]]
    hidden = torch.zeros(3, 3).masked_fill(~torch.ones(3, 3).tril().bool(), -torch.inf)
    x = torch.randn(3, 2)
    by_bias = eyeline.weights(x, x, bias=hidden, backend=backend)
    by_mask = eyeline.weights(x, x, eyeline.causal(), backend=backend)
    found = [eyeline.received(w, mean=True).values for w in (by_bias, by_mask)]
    torch.testing.assert_close(*found)


def test_a_reading_that_writes_into_its_tile_is_told():
    @readings.reading
    def careless(weights):
        values = yield readings.RowTiles(lambda tile: tile.weights.mul_(0).sum(-1))
        return readings.Reading(values, weights.axes[:-1], "weight")

    weights = eyeline.weights(torch.randn(3, 2), torch.randn(3, 2))
    with pytest.raises(ArgumentError, match="in place"):
        eyeline.read(weights, careless, eyeline.received)


def test_no_attribute_shows_the_hollow_storage():
    weights = eyeline.weights(torch.randn(5, 3), torch.randn(4, 3))
    dense = weights.to_dense()
    for seen, exact in [
        (weights.data, dense),
        (weights.H, dense.T),
        (weights.mH, dense.T),
        (weights.real, dense),
        (copy.copy(weights), dense),
    ]:
        torch.testing.assert_close(seen.to_dense(), exact)


@pytest.mark.parametrize("backend", ["reference", "tiled", SMALL])
def test_chosen_heads_keep_their_own_relative_bias(backend):
    q, k = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 7, 3)
    slopes = biases.alibi(biases.alibi_slopes(4))
    weights = eyeline.weights(q, k, eyeline.causal(), bias=slopes, backend=backend)
    dense = weights.to_dense()
    for chosen, exact in [
        (weights[:, [0, 3]], dense[:, [0, 3]]),
        (weights[[1, 0, 1], [3, 0, 2]], dense[[1, 0, 1], [3, 0, 2]]),
        (weights[:, ::3][:, :, 1::2], dense[:, ::3][:, :, 1::2]),
        (weights[1, [0, 2]][:, [4, 0]], dense[1, [0, 2]][:, [4, 0]]),
        (weights[:, [0, 2]].mean(1), dense[:, [0, 2]].mean(1)),
    ]:
        found = chosen.to_dense() if isinstance(chosen, eyeline.Weights) else chosen
        torch.testing.assert_close(found, exact)
        if isinstance(chosen, eyeline.Weights) and chosen.dim() == 4:
            assert chosen.problem.bias is None  # a vector still, not T × T
    mean = weights[:, [0, 2]].mean(1)
    assert isinstance(mean, eyeline.Weights)


@pytest.mark.parametrize("backend", ["reference", "tiled", SMALL])
def test_pairs_of_indices_pick_single_weights(backend):
    q, k = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 5, 4)
    weights = eyeline.weights(q.requires_grad_(), k, eyeline.causal(), backend=backend)
    dense = weights.to_dense()
    rows, cols = torch.tensor([[0, 5, 2], [3, 3, -1]]), torch.tensor([4, 0, 1])
    for key in [(..., rows, cols), (1, slice(1, 3), rows, cols), ([1, 0], [2, 2], [5, 4], [0, 1])]:
        torch.testing.assert_close(weights[key], dense[key])
    found = torch.autograd.grad(weights[..., rows, cols].pow(2).sum(), q)[0]
    exact = torch.autograd.grad(dense[..., rows, cols].pow(2).sum(), q)[0]
    torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("backend", ["reference", "tiled", SMALL])
def test_largest_of_each_cell(backend):
    q = torch.randn(2, 9, 4, requires_grad=True)
    weights = eyeline.weights(q, torch.randn(2, 11, 4), eyeline.causal(), backend=backend)
    dense = weights.to_dense()
    rows, cols = [0, 2, 2, 7, 9], [1, 4, 5, 11]
    found = readings.pooled(weights, rows, cols, reduce="max").values
    cells = [
        [dense[:, a:b, c:d].amax((-1, -2)) if b > a else dense.new_zeros(2) for c, d in pairs(cols)]
        for a, b in pairs(rows)
    ]
    exact = torch.stack([torch.stack(row, -1) for row in cells], -2)
    torch.testing.assert_close(found, exact)
    upstream = torch.randn_like(found)
    gradients = [torch.autograd.grad(x, q, upstream, retain_graph=True)[0] for x in (found, exact)]
    torch.testing.assert_close(*gradients)


def pairs(edges: list[int]) -> list[tuple[int, int]]:
    return list(zip(edges[:-1], edges[1:]))


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_bias_hides_as_a_mask_does(value):
    q, k = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    k[2] = value
    bias = torch.zeros(3, 5)
    bias[:, 2] = -torch.inf
    for backend in ("reference", "tiled"):
        weights = eyeline.weights(q, k, bias=bias, backend=backend)
        assert (weights[:, 2] == 0).all()
        assert torch.autograd.grad(eyeline.entropy(weights).values.sum(), q)[0].isfinite().all()


def test_dimensions_out_of_range_are_said():
    weights = eyeline.weights(torch.randn(2, 4, 3), torch.randn(2, 5, 3))
    for ask in (weights.mean, weights.sum, weights.unsqueeze):
        with pytest.raises(IndexError):
            ask(5)
    with pytest.raises(IndexError):
        weights.select(7, 0)


def test_axis_is_another_word_for_dim():
    weights = eyeline.weights(torch.randn(4, 3), torch.randn(5, 3))
    dense = weights.to_dense()
    torch.testing.assert_close(weights.sum(axis=-2), dense.sum(-2))
    torch.testing.assert_close(torch.sum(input=weights, dim=-2), dense.sum(-2))
    torch.testing.assert_close(weights.mean(axis=-2, keepdim=True), dense.mean(-2, keepdim=True))
    torch.testing.assert_close(weights.max(axis=-1).values, dense.max(-1).values)
    torch.testing.assert_close(weights.sum(None, True), dense.sum(dim=None, keepdim=True))
    torch.testing.assert_close(weights.amax(), dense.amax())


@pytest.mark.parametrize(
    "ask", [lambda w: w[0, 1, 2], lambda w: eyeline.entropy(w).values, lambda w: w.sum(-2)]
)
def test_weights_asked_inside_a_compiled_function_break_its_graph_and_answer(ask):
    def program(q):
        return ask(eyeline.attention(q, q, q, eyeline.causal())[1])

    torch._dynamo.reset()
    q = torch.randn(1, 2, 4, 8)
    torch.testing.assert_close(torch.compile(program, backend="eager")(q), program(q))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(
    "kind",
    [
        lambda t: torch.nested.nested_tensor([t[0], t[0]]),
        lambda t: t.to_sparse(),
        lambda t: t.to_mkldnn(),
        lambda t: None,
    ],
    ids=["nested", "sparse", "mkldnn", "None"],
)
def test_what_is_no_dense_tensor_is_named(name, kind):
    given = {x: torch.randn(2, 2, 5, 4) for x in ("q", "k", "v")}
    given[name] = kind(given[name])
    with pytest.raises(DtypeError, match=rf"^attention\(\) .*{name}"):
        eyeline.attention(**given)
