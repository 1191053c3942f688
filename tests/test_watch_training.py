"""Watching a model that trains, recomputes or is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from eyeline.errors import ModelError
from eyeline.seen import watch
from tests.test_watch import checkpointing
from tests.tiny import GROUPED, SMALL, inputs, rows, run, same, tiny


def trained(model: Any, arguments: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of one step, with the same random numbers every time."""
    torch.manual_seed(7)
    model.zero_grad()
    model(**arguments).last_hidden_state[rows(arguments)[:, 0]].square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "checkpoints"])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_step_with_dropout_is_the_same_bit_for_bit(family, checkpoints):
    dropout = (
        {"attention_dropout": 0.3}
        if family == "llama"
        else {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.3}
    )
    sizes = GROUPED if family == "llama" else SMALL
    config = transformers.AutoConfig.for_model(family, **sizes, **dropout)
    model = transformers.AutoModel.from_config(config).train()
    if checkpoints:
        checkpointing(model)
    arguments = inputs("left")
    before = trained(model, arguments)
    with watch(model) as seen:
        during = trained(model, arguments)
    assert same(before, during)
    assert len(seen) == 2
    assert seen.calls[0].dropout == 0.3


@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_oss"])
def test_weights_carry_gradients_to_what_made_queries_and_keys(family):
    model, other = tiny(family, "eager"), tiny(family, "eager")
    with watch(model) as seen:
        model(**inputs())
    (seen[1][:, :, -1] ** 2).sum().backward()
    attentions = other(**inputs(), output_attentions=True).attentions
    (attentions[1][:, :, -1] ** 2).sum().backward()
    compared = 0
    for own, expected in zip(model.parameters(), other.parameters(), strict=True):
        if expected.grad is not None and bool(expected.grad.any()):
            scale = float(expected.grad.abs().max())
            assert float((own.grad - expected.grad).abs().max()) < 1e-7 + 1e-3 * scale
            compared += 1
    assert compared > 4


# ---- compiled code -----------------------------------------------------------------------------


def whole(model: Any) -> Callable[..., Any]:
    return torch.compile(model, backend="eager")


def in_place(model: Any) -> Callable[..., Any]:
    model.compile(backend="eager")
    return model


def layers(model: Any) -> Callable[..., Any]:
    for layer in model.layers:
        layer.compile(backend="eager")
    return model


def step(model: Any) -> Callable[..., Any]:
    return torch.compile(lambda **given: model(**given), backend="eager", fullgraph=True)


@pytest.mark.parametrize("compiled", [whole, in_place, layers, step])
def test_compiled_code_is_told_and_may_run_uncompiled(compiled):
    model, arguments = tiny("llama"), inputs()
    before = run(model, **arguments)
    called = compiled(model)
    # of a function that must be one graph, torch's own error says it
    error = torch._dynamo.exc.Unsupported if compiled is step else ModelError
    with torch.no_grad(), pytest.raises(error, match="force_eager"), watch(model):
        called(**arguments)
    with torch.no_grad(), watch(model) as seen, torch.compiler.set_stance("force_eager"):
        output = called(**arguments)
    assert torch.equal(output.last_hidden_state, before[0])
    assert len(seen) == 2
