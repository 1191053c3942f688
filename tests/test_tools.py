"""Tools that show attention take the lazy weights unchanged; large ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib
import pytest
import torch

import eyeline

matplotlib.use("Agg")

# BertViz leaves its script files to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TEXT = "the keys to the old cabinet are on the table because they were too heavy to carry up here ."
TOKENS = TEXT.split()
HEADS, LAYERS = 4, 2


def layers(T: int) -> list[eyeline.Weights]:
    """Weights [1, H, T, T] of a few layers, as a model would give them."""
    return [
        eyeline.weights(torch.randn(1, HEADS, T, 8), torch.randn(1, HEADS, T, 8))
        for _ in range(LAYERS)
    ]


def head_view(weights: list[Any], tokens: list[str]) -> str:
    from bertviz import head_view as view

    return str(view(tuple(weights), tokens, html_action="return").data)


def model_view(weights: list[Any], tokens: list[str]) -> str:
    from bertviz import model_view as view

    return str(view(tuple(weights), tokens, html_action="return").data)


def attention_heads(weights: list[Any], tokens: list[str]) -> str:
    from circuitsvis.attention import attention_heads as view

    return str(view(attention=weights[0][0], tokens=tokens))


def imshow(weights: list[Any], tokens: list[str]) -> str:
    import matplotlib.pyplot as plt

    picture = weights[0][0, 0]
    if type(picture) is torch.Tensor:  # a plain tensor's __array__ draws a warning from numpy 2
        picture = picture.numpy()
    figure, axes = plt.subplots()
    try:
        image = axes.imshow(picture)
        figure.canvas.draw()
        return repr(image.get_array()[0].tolist())
    finally:
        plt.close(figure)


TOOLS: list[Callable[[list[Any], list[str]], str]] = [
    head_view,
    model_view,
    attention_heads,
    imshow,
]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_takes_lazy_weights_unchanged(tool: Callable[[list[Any], list[str]], str]) -> None:
    assert len(TOKENS) == 20
    lazy = layers(20)
    page = tool(lazy, TOKENS)
    exact = tool([w.to_dense() for w in lazy], TOKENS)
    number = repr(float(lazy[0][0, 0, 0, 0]))[:6]
    assert number in page
    assert number in exact
    assert len(page) == len(exact)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_large_weights_are_refused(tool: Callable[[list[Any], list[str]], str]) -> None:
    with pytest.raises(eyeline.errors.DenseError, match="8000"):
        tool(layers(8000), ["word"] * 8000)
