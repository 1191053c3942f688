"""look --block: how the next token changes without some heads."""

from __future__ import annotations

import json

import pytest
import torch

from eyeline import models
from eyeline.acting import block
from eyeline.errors import ArgumentError, ModelError
from eyeline.looking.blocked import Chance, Without, without
from eyeline.views.blocked import screen

FOUND = Without(
    text="The capital of France is",
    lang="en",
    model="smollm2",
    title="SmolLM2",
    heads=("L13H8", "L0H1"),
    tokens=5,
    chances=(Chance("Paris", 0.771, 0.601), Chance("好", 0.064, 0.091)),
    moved=0.177,
    seconds=0.1,
)


def test_screen():
    assert screen(FOUND).splitlines() == [
        "SmolLM2 · 5 tokens · without L13H8, L0H1: their output is 0",
        "",
        "What comes next after “The capital of France is”",
        "                      before   without",
        "  Paris                77.1%     60.1%  ████████████",
        "  好                    6.4%      9.1%  ██",
        "  17.7% of all probability went to other tokens.",
        "",
        "Try next",
        "  # what the head looks at",
        '  eyeline look "The capital of France is" --model smollm2 --layer 13 --head 8',
    ]
    assert json.loads(FOUND.to_json())["chances"][0] == {
        "token": "Paris",
        "before": 0.771,
        "after": 0.601,
    }


def test_chinese_screen_stands_in_columns():
    lines = screen(Without(**{**vars(FOUND), "lang": "zh"})).splitlines()
    assert lines[2:4] == [
        "“The capital of France is”之后的下一个 token",
        "                        之前    关掉后",
    ]


def test_models_that_read_both_ways_are_refused():
    with pytest.raises(ModelError, match="has no next token"):
        without("The keys", "L0H0", "minilm")
    for heads in ("", [], " , "):
        with pytest.raises(ArgumentError, match="No head is named"):
            without("The keys", heads, "minilm")
    with pytest.raises(ArgumentError, match="names no token"):
        without("The keys", "L0H0", "minilm", top=0)


@pytest.mark.slow
def test_probabilities_are_the_models_own():
    loaded = models.load("smollm2")
    found = without("The capital of France is", "L18H6, L0H0", loaded, top=3)
    whole = loaded.language_model()
    inputs = loaded.inputs(loaded.tokens("The capital of France is"))
    with torch.no_grad():
        before = whole(**inputs).logits[0, -1].double().softmax(-1)
        with block(whole, heads={"L18H6", "L0H0"}):
            after = whole(**inputs).logits[0, -1].double().softmax(-1)
    assert found.heads == ("L18H6", "L0H0")
    assert found.chances[0].token == "Paris"
    assert abs(found.chances[0].before - float(before.max())) < 1e-6
    assert abs(found.chances[0].after - float(after[before.argmax()])) < 1e-6
    assert abs(found.moved - float((before - after).abs().sum()) / 2) < 1e-6
    assert {round(chance.after, 6) for chance in found.chances} >= {
        round(value, 6) for value in after.topk(3).values.tolist()
    }
    with pytest.raises(ModelError, match="no L13H99"):
        without("The keys", "L13H99", loaded)
