"""watch and block on torchvision's and timm's own models, where these packages are installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline import block, watch
from tests.proof import measure
from tests.proof_cases import packages, timm_vit, torchvision_vit

PICTURES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
HEADS = {"L0H1", "L1H0"}


@pytest.mark.parametrize("number", [0, 1], ids=["torchvision", "timm"])
def test_weights_are_those_by_hand_and_no_bit_changes(number):
    case = packages()[number]
    pytest.importorskip(case.packages[0])
    row = measure(case)
    assert row["seen"] == [("torch", None)]
    assert row["difference"] < 1e-5
    assert row["sharp"] > 0.5
    assert all(row["bits"].values())


def test_timm_without_some_heads():
    pytest.importorskip("timm")
    model = timm_vit()
    with torch.no_grad():
        with block(model, heads=HEADS):
            blocked = model(PICTURES)
        expected = without(model, {0: 1, 1: 0})
        plain = model(PICTURES)
    assert float((blocked - expected).abs().max()) < 1e-5 * max(1, float(expected.abs().max()))
    assert float((blocked - plain).abs().max()) > 1e-3


def without(model: Any, heads: dict[int, int]) -> Tensor:
    """The model changed by hand: zeros where a head's part goes into the last projection."""
    hooks = []
    for layer, head in heads.items():
        attention = model.blocks[layer].attn
        size = attention.head_dim

        def cut(_: Any, args: tuple[Tensor, ...], at: int = head * size, size: int = size) -> Any:
            x = args[0].clone()
            x[..., at : at + size] = 0
            return (x, *args[1:])

        hooks.append(attention.proj.register_forward_pre_hook(cut))
    output: Tensor = model(PICTURES)
    for hook in hooks:
        hook.remove()
    return output


def test_torchvision_without_some_heads():
    pytest.importorskip("torchvision")
    model = torchvision_vit()
    with torch.no_grad():
        plain = model(PICTURES)
        with block(model, heads=HEADS), watch(model) as seen:
            blocked = model(PICTURES)
        after = model(PICTURES)
        by_hand = torchvision_vit()
        attentions = [m for m in by_hand.modules() if isinstance(m, nn.MultiheadAttention)]
        for layer, head in ((0, 1), (1, 0)):  # a head whose values are 0 gives 0
            attention = attentions[layer]
            size = attention.head_dim
            rows = slice(2 * attention.embed_dim + head * size, None)
            attention.in_proj_weight[rows][:size] = 0
            attention.in_proj_bias[rows][:size] = 0
        expected = by_hand(PICTURES)
    assert len(seen) == 3
    assert torch.equal(plain, after)
    assert float((blocked - expected).abs().max()) < 1e-5 * max(1, float(expected.abs().max()))
    assert float((blocked - plain).abs().max()) > 1e-3
