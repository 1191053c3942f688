"""watch(): the model computes what it always does, and the weights are the model's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from eyeline import models
from eyeline.seen import watch
from tests.tiny import FAMILIES, T, apart, close, eager, inputs, rows, run, same, tiny

# ---- what the model computes -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_keep_every_bit(family, side, dtype):
    model, arguments = tiny(family).to(dtype), inputs(side)
    before = run(model, **arguments)
    with watch(model) as seen:
        during = run(model, **arguments)
    assert same(before, during)
    assert same(before, run(model, **arguments))
    assert len(seen) == 2


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("implementation", ["eager", None], ids=["eager", "default"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_equal_eager_attentions(family, implementation, side):
    model, arguments = tiny(family, implementation), inputs(side)
    with watch(model) as seen:
        run(model, **arguments)
    expected = eager(model, **arguments).attentions
    assert len(seen) == len(expected) == 2
    for weights, dense in zip(seen, expected, strict=True):
        assert weights.shape == dense.shape
        assert close(weights, dense, rows(arguments)) < 1e-5


def test_an_encoder_that_ran_before_belongs_to_the_text_that_it_was_read_for():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=60,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=40,
    )
    model = transformers.BartModel(config).eval()
    given, ids = inputs(), torch.tensor([[1, 2, 3]] * 2)
    names = [
        f"decoder.layers.{at}.{kind}" for at in (0, 1) for kind in ("self_attn", "encoder_attn")
    ]
    for times, encoders in ((1, 2), (2, 0), (3, 0)):
        with torch.no_grad(), watch(model) as seen:
            states = model.encoder(**given)
            for _ in range(times):
                model(encoder_outputs=states, decoder_input_ids=ids)
        assert list(seen.names[encoders:]) == names
        assert all(name.startswith("encoder.") for name in seen.names[:encoders])


def test_encoder_and_decoder_have_their_position_bias():
    config = transformers.T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    )
    torch.manual_seed(0)
    model = transformers.T5Model(config).eval()
    arguments = {**inputs("right"), "decoder_input_ids": inputs(length=7)["input_ids"]}
    before = run(model, **arguments)
    with watch(model) as seen:
        during = run(model, **arguments)
    assert same(before, during)
    assert [tuple(weights.shape[1:]) for weights in seen] == [(4, T, T)] * 2 + [
        (4, 7, 7),
        (4, 7, T),
    ] * 2
    expected = eager(model, **arguments)
    ordered = [*expected.encoder_attentions]
    for pair in zip(expected.decoder_attentions, expected.cross_attentions, strict=True):
        ordered += pair
    for weights, dense, name in zip(seen, ordered, seen.names, strict=True):
        real = rows(arguments) if name.startswith("encoder") else torch.ones(2, 1, 7).bool()
        assert close(weights, dense, real) < 1e-5
    assert seen.real(0) is not None
    assert seen.real("decoder.block.0.layer.1") is None


def test_attentions_asked_for_in_eager_come_all_the_same():
    model, arguments = tiny("llama", "eager"), inputs("left")
    with torch.no_grad(), watch(model) as seen:
        output = model(**arguments, output_attentions=True)
    expected = eager(model, **arguments).attentions
    assert same(list(output.attentions), list(expected))
    assert len(seen) == 2


def checkpointing(model: Any) -> None:
    # older versions have it under its older name only
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()


def test_training_with_checkpoints_keeps_gradients_and_sees_each_layer_once():
    model, arguments = tiny("llama").train(), inputs("left")
    checkpointing(model)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(**arguments).last_hidden_state.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    before = gradients()
    with watch(model) as seen:
        during = gradients()
    assert same(before, during)
    assert len(seen) == 2


# ---- what is restored ------------------------------------------------------------------------


def test_implementation_is_restored_after_an_exception():
    model = tiny("llama", "eager")
    known = set(transformers.AttentionInterface().valid_keys())

    def stop(*_: Any) -> None:
        raise ZeroDivisionError

    model.layers[1].register_forward_hook(stop)
    with pytest.raises(ZeroDivisionError), watch(model):
        run(model, **inputs())
    assert model.config._attn_implementation == "eager"
    assert set(transformers.AttentionInterface().valid_keys()) == known
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_each_sub_config_is_restored():
    model = apart()
    arguments = {**inputs("right"), "pixel_values": torch.randn(1, 3, 16, 16)}
    before = run(model, **arguments)
    with watch(model) as seen:
        assert same(before, run(model, **arguments))
    assert model.config.text_config._attn_implementation == "eager"
    assert model.config.vision_config._attn_implementation == "sdpa"
    kinds = {name.split(".")[0]: weights for name, weights in zip(seen.names, seen, strict=True)}
    expected = eager(model, **arguments)
    text = expected.text_model_output.attentions[-1]
    vision = expected.vision_model_output.attentions[-1]
    assert close(kinds["text_model"], text, rows(arguments)) < 1e-5
    assert close(kinds["vision_model"], vision, torch.ones(1, 1, 5).bool()) < 1e-5


def test_inference_mode_can_be_watched():
    model = tiny("mistral")
    with torch.inference_mode(), watch(model) as seen:
        model(**inputs("left"))
    dense = eager(model, **inputs("left")).attentions[1]
    assert float((seen["L1H2"][:, -1] - dense[:, 2, -1]).abs().max()) < 1e-5


def test_gradients_flow_into_the_model():
    model = tiny("llama")
    with watch(model) as seen:
        model(**inputs())
    (seen[1][:, :, -1] ** 2).sum().backward()
    expected = tiny("llama", "eager")
    attentions = expected(**inputs(), output_attentions=True).attentions
    (attentions[1][:, :, -1] ** 2).sum().backward()
    for layer in (0, 1):
        own, other = (m.layers[layer].self_attn.q_proj.weight.grad for m in (model, expected))
        assert float((own - other).abs().max()) < 1e-6 + 1e-4 * float(other.abs().max())


def test_watches_nest():
    model = tiny("bert")
    with watch(model) as outer, watch(model) as inner:
        run(model, **inputs("right"))
    assert len(outer) == len(inner) == 2
    assert model.config._attn_implementation == "sdpa"


# ---- memory ----------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """How many results have at least `limit` elements in memory of their own."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.count = limit, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                elements = value.untyped_storage().nbytes() // value.element_size()
                self.count += elements >= self.limit
        return result


@pytest.mark.parametrize("family", ["llama", "mistral", "bert"])
def test_no_square_tensor_is_made(family):
    length = 512
    model, arguments = tiny(family), inputs(batch=1, length=length)
    with Largest(length * length) as unwatched:
        run(model, **arguments)
    with watch(model) as seen, Largest(length * length) as watched:
        run(model, **arguments)
    assert watched.count == unwatched.count
    assert watched.count == 0 or family == "mistral"  # transformers' own mask of the window
    with Largest(length * length) as asked:
        row = seen[0][0, 1, -1]
    assert row.shape == (length,)
    assert asked.count == 0


def test_queries_and_keys_are_held_by_reference():
    model = tiny("llama")
    held = []

    def keep(module, arguments, output):
        held.append(output)

    for layer in model.layers:
        layer.self_attn.q_proj.register_forward_hook(keep)
    with watch(model) as seen:
        run(model, **inputs())
    before = seen.calls[0].q.untyped_storage().nbytes()
    assert before == held[0].untyped_storage().nbytes()


# ---- real models -----------------------------------------------------------------------------

SENTENCE = "The keys to the old cabinet are on the table because they were too heavy to carry."


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_minilm_is_seen_as_it_is(dtype):
    loaded = models.load("minilm")
    model = copy.deepcopy(loaded.model).to(dtype)
    long, short = loaded.tokens(SENTENCE), loaded.tokens("It was heavy.")
    arguments = {
        "input_ids": torch.tensor([long.ids, short.ids + (0,) * (len(long) - len(short))]),
        "attention_mask": torch.tensor(
            [[1] * len(long), [1] * len(short) + [0] * (len(long) - len(short))]
        ),
    }
    before = run(model, **arguments)
    with watch(model) as seen:
        during = run(model, **arguments)
    assert same(before, during)
    if dtype == torch.float32:
        expected = eager(model, **arguments).attentions
        for weights, dense in zip(seen, expected, strict=True):
            assert close(weights, dense, rows(arguments)) < 1e-5
        they, keys = long.pieces.index("they"), long.pieces.index("keys")
        assert abs(float(seen[3][0, 1, they, keys]) - 0.48) < 0.005


@pytest.mark.slow
def test_smollm2_is_seen_as_it_is():
    loaded = models.load("smollm2")
    tokens = loaded.tokens(SENTENCE)
    arguments = loaded.inputs(tokens)
    before = run(loaded.model, **arguments)
    with watch(loaded.model) as seen:
        during = run(loaded.model, **arguments)
    assert same(before, during)
    expected = eager(loaded.model, **arguments).attentions
    assert len(seen) == 30
    for weights, dense in zip(seen, expected, strict=True):
        assert close(weights, dense, rows(arguments)) < 1e-5
    they, keys = tokens.pieces.index("they"), tokens.pieces.index("keys")
    assert abs(float(seen[13][0, 8, they, keys]) - 0.70) < 0.01
