"""watch() on nn.MultiheadAttention and nn.Transformer, fused or not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch_models import LATER, PAD, apart, encoder, made, sharp, watched

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"key_padding_mask": PAD},
        {"attn_mask": LATER},
        {"attn_mask": LATER, "is_causal": True},
        {"key_padding_mask": PAD, "attn_mask": LATER},
        {"attn_mask": torch.randn(6, 6)},
        {"attn_mask": torch.randn(8, 6, 6), "key_padding_mask": torch.randn(2, 6)},
    ],
    ids=["plain", "padding", "later", "causal", "both", "added", "per head"],
)
@pytest.mark.parametrize(
    "kind",
    [{}, {"batch_first": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"bias": False}],
    ids=["fused", "sequence first", "bias_kv", "zero", "no bias"],
)
def test_multihead_attention(kind, arguments, need_weights, grad):
    model = made(**kind)
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(2))
    x = x if model.batch_first else x.transpose(0, 1)
    with torch.set_grad_enabled(grad):
        _, seen = watched(model, x, x, x, need_weights=need_weights, **arguments)
        slow = copy.deepcopy(model)
        _, dense = slow(x, x, x, average_attn_weights=False, **unhinted(arguments))
    assert seen.names == ("MultiheadAttention",)
    assert seen.kinds == ("self",)
    if arguments.get("is_causal") and not need_weights and dense.shape[-1] > 6:
        assert (
            float(seen[0].detach()[..., -1].abs().max()) == 0
        )  # by the hint torch hides what it added
    else:
        assert apart(seen[0], dense) < 1e-5
    if "key_padding_mask" in arguments and arguments["key_padding_mask"] is PAD:
        assert torch.equal(seen.real(0), ~PAD)
    assert seen.values(0).shape == (2, 4, dense.shape[-1], 4)


def unhinted(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "is_causal"}


@pytest.mark.parametrize("need_weights", [False, True])
def test_cross_attention_of_other_sizes(need_weights):
    model = made(kdim=10, vdim=12)
    query, key, value = torch.randn(2, 5, 16), torch.randn(2, 7, 10), torch.randn(2, 7, 12)
    _, seen = watched(model, query, key, value, need_weights=need_weights)
    _, dense = model(query, key, value, average_attn_weights=False)
    assert seen.kinds == ("cross",)
    assert apart(seen[0], dense) < 1e-5


@pytest.mark.parametrize("need_weights", [False, True])
def test_without_a_batch(need_weights):
    model, x = made(), torch.randn(6, 16)
    _, seen = watched(model, x, x, x, need_weights=need_weights, key_padding_mask=PAD[1])
    _, dense = model(x, x, x, average_attn_weights=False, key_padding_mask=PAD[1])
    assert apart(seen[0], dense[None]) < 1e-5


def test_dropout_draws_as_it_does_unwatched():
    model, x = made(dropout=0.5).train(), torch.randn(2, 6, 16)
    for need_weights in (False, True):
        _, seen = watched(model, x, x, x, need_weights=need_weights)
        assert float((seen[0].detach().sum(-1) - 1).abs().max()) < 1e-5


# ---- nn.Transformer --------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"src_key_padding_mask": PAD}, {"mask": LATER}, {"mask": LATER, "is_causal": True}],
    ids=["plain", "padding", "mask", "causal"],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor.*:UserWarning")
def test_transformer_encoder(arguments, norm_first, grad):
    model, x = encoder(norm_first=norm_first), torch.randn(2, 6, 16)
    with torch.set_grad_enabled(grad):
        _, seen = watched(model, x, **arguments)
    assert seen.names == ("layers.0.self_attn", "layers.1.self_attn")
    assert seen.kinds == ("self", "self")
    assert not seen.missing
    attention = model.layers[0].self_attn
    first = model.layers[0].norm1(x) if norm_first else x
    masks = {"key_padding_mask": arguments.get("src_key_padding_mask")}
    _, dense = attention(
        first, first, first, attn_mask=arguments.get("mask"), average_attn_weights=False, **masks
    )
    for text, real in enumerate((6, 4 if masks["key_padding_mask"] is PAD else 6)):
        assert apart(seen[0][text, :, :real], dense[text, :, :real]) < 1e-5


@pytest.mark.parametrize("length", [5, 6])
def test_nested_tensors_of_the_fused_encoder(length):
    """Texts that end early: torch computes as many columns as the longest has."""
    model, x = encoder(), torch.randn(2, 6, 16)
    padding = torch.arange(6) >= torch.tensor([[length], [3]])
    with torch.no_grad():
        _, seen = watched(model, x, src_key_padding_mask=padding)
        _, dense = model.layers[0].self_attn(
            x, x, x, key_padding_mask=padding, average_attn_weights=False
        )
    assert seen[0].shape == (2, 4, length, length)
    assert torch.equal(seen.real(0), ~padding[:, :length])
    for text, real in enumerate((length, 3)):
        assert apart(seen[0][text, :, :real], dense[text, :, :real, :length]) < 1e-5


def test_transformer_encoder_in_training():
    model, x = encoder(training=True, dropout=0.3), torch.randn(2, 6, 16)
    _, seen = watched(model, x, src_key_padding_mask=PAD)
    assert len(seen) == 2
    assert seen.calls[0].dropout == 0.3


@pytest.mark.parametrize("training", [False, True])
def test_encoder_and_decoder(training):
    torch.manual_seed(0)
    model = sharp(nn.Transformer(16, 4, 2, 2, 24, dropout=0.0, batch_first=True)).train(training)
    arguments = {"tgt_mask": LATER[:5, :5], "src_key_padding_mask": PAD}
    with torch.set_grad_enabled(training):
        _, seen = watched(model, torch.randn(2, 6, 16), torch.randn(2, 5, 16), **arguments)
    assert seen.names == (
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.self_attn",
        "decoder.layers.1.multihead_attn",
    )
    assert seen.kinds == ("self", "self", "self", "cross", "self", "cross")
    assert seen["decoder.layers.1.multihead_attn"].shape == (2, 4, 5, 6)
    assert not seen.missing
