"""Positions against their formulas, and against transformers' own numbers."""

from __future__ import annotations

import math

import pytest
import torch

import eyeline
from eyeline.biases import relative
from eyeline.errors import ArgumentError, ShapeError
from eyeline.positions import (
    DynamicNTK,
    LinearScaling,
    Llama3,
    Rotary,
    YaRN,
    sinusoidal,
    t5_buckets,
    t5_table,
)

# eyeline's scaling, and what a Llama configuration calls the same.
SCALINGS = {
    "default": (None, {}),
    "linear": (LinearScaling(4.0), {"factor": 4.0}),
    "dynamic": (DynamicNTK(2.0, original=64), {"factor": 2.0}),
    "yarn": (
        YaRN(8.0, original=64),
        {"factor": 8.0, "original_max_position_embeddings": 64},
    ),
    "yarn, all set": (
        YaRN(8.0, 64, beta_fast=20.0, beta_slow=2.0, attention_factor=1.5, truncate=False),
        {
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
            "attention_factor": 1.5,
            "truncate": False,
        },
    ),
    "llama3": (
        Llama3(8.0, low=1.0, high=4.0, original=64),
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
}


@pytest.mark.parametrize("T", [10, 64, 300])
@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_is_what_transformers_computes(name, T):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    scaling, settings = SCALINGS[name]
    kind = name.split(",")[0]
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=64,
        rope_parameters={"rope_type": kind, "rope_theta": 5000.0, **settings},
    )
    q, k = torch.randn(2, 2, 4, T, 16).unbind()
    positions = torch.arange(T)[None]
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    rotary = Rotary(16, base=5000.0, scaling=scaling)
    for x, wanted in zip((q, k), expected, strict=True):
        assert torch.equal(rotary(x, positions), wanted)
        assert torch.equal(rotary(x), wanted)


def test_rotary_turns_pairs_by_the_papers_angle():
    x = torch.randn(3, 6, dtype=torch.float64)
    made = Rotary(4, base=50.0, interleaved=True)(x, torch.tensor([0, 7, 2]))
    for t, position in enumerate([0, 7, 2]):
        for i in range(2):
            angle = position * 50.0 ** (-2 * i / 4)
            a, b = x[t, 2 * i], x[t, 2 * i + 1]
            assert made[t, 2 * i].item() == pytest.approx(
                (a * math.cos(angle) - b * math.sin(angle)).item(), abs=1e-6
            )
            assert made[t, 2 * i + 1].item() == pytest.approx(
                (a * math.sin(angle) + b * math.cos(angle)).item(), abs=1e-6
            )
    assert torch.equal(made[:, 4:], x[:, 4:])  # what is not to be turned stays


def test_both_layouts_are_one_rotation_of_reordered_numbers():
    x = torch.randn(5, 8)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # halves as neighbours
    halves, neighbours = Rotary(8)(x), Rotary(8, interleaved=True)(x[:, order])
    torch.testing.assert_close(halves[:, order], neighbours)


@pytest.mark.parametrize("name", SCALINGS)
def test_scores_depend_on_the_distance_alone(name):
    rotary = Rotary(16, scaling=SCALINGS[name][0])
    q, k = torch.randn(2, 1, 1, 16).unbind()

    def score(i, j):
        at = torch.tensor([i])
        return (rotary(q, at) * rotary(k, at + j - i)).sum()

    torch.testing.assert_close(score(5, 2), score(45, 42), atol=1e-4, rtol=1e-4)


def test_positions_of_each_batch_entry():
    rotary, x = Rotary(4), torch.randn(2, 3, 5, 4)
    positions = torch.tensor([[0, 1, 2, 3, 4], [9, 9, 0, 1, 2]])
    made = rotary(x, positions)
    for b in range(2):
        assert torch.equal(made[b], rotary(x[b], positions[b]))


def test_rotary_keeps_type_and_has_a_gradient():
    x = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Rotary(4), x)
    assert Rotary(4)(torch.randn(3, 4).bfloat16()).dtype == torch.bfloat16


def test_sinusoids_by_the_formula():
    made = sinusoidal(50, 6)
    for position in (0, 1, 17, 49):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            assert made[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert made[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert torch.equal(sinusoidal(torch.tensor([[3, 17]]), 6), made[None, [3, 17]])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (16, 40), (8, 20)])
def test_t5_buckets_are_those_of_transformers(bidirectional, buckets, farthest):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-400, 401)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, buckets, farthest)
    assert torch.equal(t5_buckets(distance, bidirectional, buckets, farthest), expected)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_table_gives_the_bias_of_a_t5_layer(bidirectional):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=8, d_kv=4, num_heads=2, is_decoder=not bidirectional)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    T = 150  # farther than max_distance
    dense = layer.compute_bias(T, T)
    embedding = layer.relative_attention_bias.weight
    q, k = torch.randn(2, 1, 2, T, 4).unbind()
    bias = relative(t5_table(embedding, bidirectional))
    got = eyeline.weights(q, k, bias=bias, scale=1.0)
    expected = (q @ k.mT + dense).softmax(-1)
    torch.testing.assert_close(got.to_dense(), expected)
    (ours,) = torch.autograd.grad(eyeline.entropy(got).values.sum(), embedding)
    entropy = -(expected * expected.log()).sum()
    (theirs,) = torch.autograd.grad(entropy, embedding)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Rotary(3), ArgumentError, "dim=3"),
        (lambda: Rotary(0), ArgumentError, "at least 2"),
        (lambda: Rotary(8)(torch.zeros(2, 4)), ShapeError, r"x \[2, 4\]"),
        (lambda: Rotary(2)(torch.zeros(2, 4), torch.arange(3)), ShapeError, "T = 2"),
        (
            lambda: Rotary(2)(torch.zeros(3, 1, 2, 4), torch.zeros(2, 2, dtype=torch.long)),
            ShapeError,
            "the first size",
        ),
        (lambda: sinusoidal(3, 5), ArgumentError, "dim=5"),
        (lambda: t5_buckets(torch.arange(3), buckets=2), ArgumentError, "at least 4"),
        (lambda: t5_buckets(torch.arange(3), max_distance=8), ArgumentError, "more than 8"),
        (lambda: t5_table(torch.zeros(32)), ShapeError, r"\[buckets, Hq\]"),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()
