"""value_norm and gradients: lazy matrices of what weights carry, and of what they are worth."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import eyeline
from eyeline.acting import value_norm
from eyeline.errors import ArgumentError, DenseError, ShapeError
from eyeline.masks import causal
from eyeline.seen import watch
from tests.tiny import T, inputs, rows, tiny
from tests.torch_models import GPT, ids, sharp


def apart(one: Any, other: Any) -> float:
    return float((one - other).detach().abs().max())


def test_value_norm_is_the_length_of_what_is_taken():
    q, k = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 9, 8)
    v = torch.randn(2, 2, 9, 6)
    weights = eyeline.weights(q, k, causal())
    found = value_norm(weights, v)
    dense = weights.to_dense() * v.norm(dim=-1).repeat_interleave(2, 1)[:, :, None]
    assert apart(found.to_dense(), dense) < 1e-6
    assert apart(found[1, 3, -1], dense[1, 3, -1]) < 1e-6
    assert apart(found[:, :, 2:5, 1:4].to_dense(), dense[:, :, 2:5, 1:4]) < 1e-6
    assert apart(found[0, 1, torch.tensor([3, 1])], dense[0, 1, [3, 1]]) < 1e-6
    assert (
        apart(found[..., torch.tensor([3, 1]), torch.tensor([0, 2])], dense[..., [3, 1], [0, 2]])
        < 1e-6
    )
    assert apart(found[..., 4], dense[..., 4]) < 1e-6
    assert apart(found.sum(-1), dense.sum(-1)) < 1e-5
    assert apart(eyeline.received(found).values, dense.sum(-2)) < 1e-5
    assert apart(found @ v[:, :1], dense @ v[:, :1]) < 1e-5
    assert torch.equal(found.topk(3).indices[0, 0, -1], dense[0, 0, -1].topk(3).indices)
    assert apart(found.mean(1), dense.mean(1)) < 1e-6
    assert apart(copy.deepcopy(found)[0, 0, 0], dense[0, 0, 0]) < 1e-6
    assert "weights times a factor per pair [2, 4, 7, 9]" in repr(found)
    for ask in (eyeline.entropy, lambda w: w.lse, lambda w: w.scores()):
        with pytest.raises(ArgumentError):
            ask(found)
    with pytest.raises(ShapeError, match="one value per key"):
        value_norm(weights, v[:, :, :5])


def test_value_norm_takes_no_more_than_lines():
    q = k = v = torch.randn(1, 2, 9000, 8)
    found = value_norm(eyeline.weights(q, k, causal()), v)
    with pytest.raises(DenseError):
        found.to_dense()
    assert found[0, 1, -1].shape == (9000,)


def test_hidden_values_do_not_leak():
    q, v = torch.randn(4, 8), torch.randn(4, 3)
    v[3] = torch.nan
    found = value_norm(eyeline.weights(q, q, causal()), v)
    assert not found[:3].to_dense().isnan().any()
    assert found[3, 3].isnan()


@pytest.mark.parametrize("kernel", ["own", "eyeline"])
def test_gradients_are_those_of_dense_attention(kernel):
    torch.manual_seed(0)
    model, text = sharp(GPT()), ids()
    with watch(model, values=True, kernel=kernel) as seen:
        loss = model(text)[:, -1].logsumexp(-1).sum()
    found = seen.gradients(loss)
    model.by_hand()
    loss = model(text)
    for part in model.h:
        part["attn"].dense.retain_grad()
    loss[:, -1].logsumexp(-1).sum().backward()
    assert len(found) == 2
    for layer, part in enumerate(model.h):
        dense = part["attn"].dense
        expected = dense.grad.tril()
        assert apart(found[layer].to_dense(), expected) < 1e-5 * float(expected.abs().max())
        weighed = found.times_weights[layer]
        assert apart(weighed.to_dense(), dense * expected) < 1e-5 * float(expected.abs().max())
        assert apart(found[f"L{layer}H1"][:, -1], found[layer][:, 1, -1]) == 0
        assert apart(weighed.sum(-2), (dense * expected).sum(-2)) < 1e-4


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2"])
def test_gradients_in_models_of_transformers(family):
    model, arguments = tiny(family), inputs("left")
    with watch(model, values=True) as seen:
        loss = model(**arguments).last_hidden_state[:, -1].logsumexp(-1).sum()
    found = seen.gradients(loss)
    loss.backward()
    other = tiny(family, "eager")
    output = other(**arguments, output_attentions=True)
    for attention in output.attentions:
        attention.retain_grad()
    output.last_hidden_state[:, -1].logsumexp(-1).sum().backward()
    real = rows(arguments).expand(2, 4, T)
    for layer, attention in enumerate(output.attentions):
        expected = attention.detach() * attention.grad
        got = found.times_weights[layer].to_dense()
        assert apart(got[real], expected[real]) < 1e-5 * float(expected.abs().max())


def test_gradients_say_what_they_need():
    model, text = sharp(GPT()), ids()
    with watch(model) as seen:
        loss = model(text).sum()
    with pytest.raises(ArgumentError, match="values=True"):
        seen.gradients(loss)
    with torch.no_grad(), watch(model, values=True) as seen:
        loss = model(text).sum()
    with pytest.raises(ArgumentError, match="with grad enabled"):
        seen.gradients(loss)
    with watch(model, values=True) as seen:
        loss = model(text).sum()
    loss.backward()
    with pytest.raises(ArgumentError, match="retain_graph=True"):
        seen.gradients(loss)
    with watch(model, values=True) as seen:
        first = model.wte(text).sum()
        model(text)
    assert not seen.gradients(first)[1][0, 0].to_dense().count_nonzero()
