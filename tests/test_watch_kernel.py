"""watch(model, kernel="eyeline"): eyeline computes the outputs, by the model's own rule."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
import transformers

from eyeline.errors import ArgumentError, ModelError
from eyeline.seen import watch
from tests.test_watch import Largest, checkpointing
from tests.test_watch_names import T5, made
from tests.tiny import FAMILIES, GROUPED, LATENT, SIZES, close, eager, inputs, rows, run, same, tiny


def model_of(family: str) -> Any:
    if family == "deepseek_v3":
        return made(family, **LATENT)
    return made("t5", **T5) if family == "t5" else tiny(family)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("family", [*FAMILIES, "deepseek_v3", "t5"])
def test_outputs_are_the_model_s_own_up_to_rounding(family, side):
    model, arguments = model_of(family), inputs(side)
    if family == "t5":
        arguments["decoder_input_ids"] = inputs(length=7)["input_ids"]
    before = run(model, **arguments)[0]
    with watch(model, kernel="eyeline") as seen:
        during = run(model, **arguments)[0]
    real = rows(arguments)[:, 0] if family != "t5" else torch.ones(2, 7).bool()
    assert float((before - during)[real].abs().max()) < 3e-6 * float(before[real].abs().max())
    assert seen.kernel == "eyeline"
    assert repr(seen).startswith(f"Seen: {len(seen)} attention calls, computed by eyeline's kernel")


def test_own_kernel_is_said():
    model = tiny("bert")
    with watch(model) as seen:
        run(model, **inputs())
    assert seen.kernel == "own"
    with pytest.raises(ArgumentError, match="give 'own' or 'eyeline'"):
        watch(model, kernel="other")
    import_module("eyeline.integrations.huggingface")
    model.set_attn_implementation("eyeline")
    with watch(model) as seen:
        run(model, **inputs())
    assert seen.kernel == "eyeline"


@pytest.mark.parametrize("family", ["llama", "mistral", "bert", "gemma2"])
def test_nothing_is_queries_by_keys(family):
    length = 1536  # more than eyeline's own budget of scores
    sizes = {**SIZES[family], "max_position_embeddings": length}
    model = made(family, **sizes)
    arguments = inputs("left", batch=1, length=length)
    with watch(model, kernel="eyeline") as seen, Largest(length * length) as largest:
        run(model, **arguments)
    assert largest.count == 0
    assert seen[1].shape == (1, 4, length, length)


def test_values_are_kept_where_wanted():
    model, arguments = tiny("llama"), inputs()
    held = []
    model.layers[1].self_attn.v_proj.register_forward_hook(lambda *given: held.append(given[2]))
    with watch(model, values=True) as seen:
        run(model, **arguments)
    assert torch.equal(seen.values(1).transpose(1, 2).flatten(2), held[0])
    with watch(model) as seen:
        run(model, **arguments)
    assert seen.calls[0].v is None
    with pytest.raises(ArgumentError, match="watch\\(model, values=True\\) keeps them"):
        seen.values(0)


# ---- training ----------------------------------------------------------------------------------


def gradients(model: Any, **watching: Any) -> list[torch.Tensor]:
    model.zero_grad()
    arguments = inputs("left")
    with watch(model, **watching):
        model(**arguments).last_hidden_state[rows(arguments)[:, 0]].square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_gradients_are_the_model_s_own(family):
    # gpt-oss multiplies its experts in float32 only
    model, error = (tiny(family), 1e-3) if family == "gpt_oss" else (tiny(family).double(), 1e-9)
    own, other = gradients(model), gradients(model, kernel="eyeline")
    for one, two in zip(own, other, strict=True):
        assert float((one - two).abs().max()) < error * (1 + float(one.abs().max()))


def test_dropout_in_training_is_honoured():
    config = transformers.AutoConfig.for_model("llama", **GROUPED, attention_dropout=0.5)
    model = transformers.AutoModel.from_config(config).train()
    arguments = inputs(batch=1)

    def outputs(count: int) -> torch.Tensor:
        found = []
        with watch(model, kernel="eyeline", values=True) as seen:
            model.layers[0].self_attn.o_proj.register_forward_pre_hook(
                lambda module, given: found.append(given[0].detach())
            )
            for _ in range(count):
                run(model, **arguments)
        assert seen.calls[0].dropout == 0.5
        whole = seen[0].detach() @ seen.values(0).detach().repeat_interleave(2, 1)
        found.append(whole.transpose(1, 2).flatten(2))
        return torch.stack(found)

    *drawn, expected = outputs(225)
    assert not torch.equal(drawn[0], drawn[1])
    mean, spread = torch.stack(drawn).mean(0), torch.stack(drawn).std(0)
    assert bool(((mean - expected).abs() <= 5 * spread / 15 + 1e-6).all())
    model.eval()
    with watch(model, kernel="eyeline") as seen:
        first = run(model, **arguments)
        assert same(first, run(model, **arguments))
    assert seen.calls[0].dropout == 0.0


def test_checkpoints_are_refused_where_the_kernel_is_replaced():
    model = tiny("llama").train()
    checkpointing(model)
    with pytest.raises(ModelError, match="gradient checkpointing computes it again"):
        gradients(model, kernel="eyeline")
    model.eval()
    assert gradients(model, kernel="eyeline")


# ---- where the model writes, or computes with eyeline anyway -------------------------------------


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_generate_is_one_text(family, cache):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family, **{**SIZES[family], "initializer_range": 0.5}
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    chosen = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": [], "pad_token_id": 0}
    chosen |= {} if cache is None else {"cache_implementation": cache}
    arguments = inputs("left")
    before = model.generate(**arguments, **chosen)
    with torch.no_grad(), watch(model) as own:
        model.generate(**arguments, **chosen)
    with torch.no_grad(), watch(model, kernel="eyeline") as seen:
        during = model.generate(**arguments, **chosen)
    assert torch.equal(before, during)
    real = torch.nn.functional.pad(arguments["attention_mask"].bool(), (0, 7), value=True)
    for weights, expected in zip(seen, own, strict=True):
        assert weights.shape[-2:] == (17, 17)
        assert close(weights, expected.to_dense(), real[:, None]) < 1e-5


def test_a_model_that_is_set_to_eyeline_is_watched():
    model, arguments = tiny("gemma2"), inputs("left")
    import_module("eyeline.integrations.huggingface")
    model.set_attn_implementation("eyeline")
    before = run(model, **arguments)
    with watch(model) as seen:
        during = run(model, **arguments)
    assert same(before, during)
    for weights, dense in zip(seen, eager(model, **arguments).attentions, strict=True):
        assert close(weights, dense, rows(arguments)) < 1e-5
