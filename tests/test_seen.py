"""What `seen` is asked for and answers, and what watch() says of models it cannot look into."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from eyeline.errors import ModelError
from eyeline.seen import Seen, watch
from tests.tiny import SIZES, T, inputs, run, tiny

# ---- the face of Seen ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert() -> tuple[Any, Seen]:
    model = tiny("bert")
    with watch(model) as seen:
        run(model, **inputs(batch=1))
    return model, seen


def test_layers_by_number_name_and_head(bert):
    _, seen = bert
    assert seen.names == (
        "encoder.layer.0.attention.self",
        "encoder.layer.1.attention.self",
    )
    assert seen[1] is seen[-1] is seen["encoder.layer.1"] is seen[seen.names[1]]
    assert [weights is seen[i] for i, weights in enumerate(seen)] == [True, True]
    assert seen["L1H3"].shape == (T, T)
    assert torch.equal(seen["L1H3"][2], seen[1][0, 3, 2])


def test_a_head_of_a_batch_keeps_the_batch():
    model = tiny("llama")
    with watch(model) as seen:
        run(model, **inputs())
    assert seen["L0H3"].shape == (2, T, T)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (7, "There is no layer 7: layers 0 to 1 were seen."),
        ("L7H0", "There is no layer 7"),
        ("L0H9", "There is no L0H9: layer 0 (encoder.layer.0.attention.self) has heads 0 to 3."),
        ("encoder", "'encoder' is the beginning of several of the layers that were seen"),
        ("decoder", "'decoder' is none of the layers that were seen"),
    ],
)
def test_what_is_not_there_is_said(bert, key, text):
    _, seen = bert
    with pytest.raises(ModelError) as error:
        seen[key]
    assert text in str(error.value)


def test_a_module_that_runs_again_is_listed_again():
    model = tiny("albert")
    with watch(model) as seen:
        run(model, **inputs())
    path = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert seen.names == (path, f"{path}#2")


def test_the_last_forward_is_kept():
    model = tiny("llama")
    with watch(model) as seen:
        run(model, **inputs(length=5))
        first = seen[0]
        run(model, **inputs(length=8))
    assert len(seen) == 2
    assert first.shape[-1] == 5
    assert seen[0].shape[-1] == 8


def test_a_model_inside_another_module_is_found():
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny("bert")

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(input_ids=ids).last_hidden_state

    outer = Outer()
    with torch.no_grad(), watch(outer) as seen:
        outer(inputs()["input_ids"])
    assert seen.names[0] == "inner.encoder.layer.0.attention.self"


# ---- what cannot be looked into --------------------------------------------------------------


def refusal(model: Any) -> str:
    with pytest.raises(ModelError) as error, watch(model):
        pass
    return str(error.value)


def test_nothing_seen_says_why():
    assert "The model was not called inside `with watch(model)`." in refusal(tiny("bert"))
    model = torch.nn.LSTM(4, 4)
    with pytest.raises(ModelError, match="It has no attention"), watch(model):
        model(torch.randn(3, 4))


def test_what_is_no_model_is_refused():
    assert "this is a int" in refusal(3)


def test_compiled_models_are_refused():
    assert "compiled" in refusal(torch.compile(tiny("bert"), backend="eager"))


def test_code_that_depends_on_the_name_is_refused():
    config = transformers.AutoConfig.for_model("gpt2", **SIZES["gpt2"])
    config.reorder_and_upcast_attn = True
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    assert "takes another path" in refusal(model)
