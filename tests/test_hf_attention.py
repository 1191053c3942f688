"""set_attn_implementation("eyeline"): eager's numbers, lazy attentions, no mask of Tq x Tk."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils

from eyeline import Weights
from eyeline.errors import ModelError
from eyeline.integrations import huggingface  # noqa: F401
from eyeline.integrations import huggingface_attention as hf
from eyeline.seen import watch
from tests.tiny import (
    ENCODERS,
    GROUPED,
    LATENT,
    SIZES,
    SMALL,
    STACKS,
    T,
    close,
    eager,
    eager_of,
    inputs,
    rows,
    tiny,
)

LIMIT = 1e-5
SOUND = {"num_mel_bins": 8, "max_source_positions": 12}
ENCODER_DECODER = {"vocab_size": 60, **STACKS}
CAUSAL = {
    "llama": SIZES["llama"],
    "mistral": SIZES["mistral"],
    "gemma2": SIZES["gemma2"],
    "gpt2": {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4},  # no end in reach
    "gpt_oss": SIZES["gpt_oss"],
    "llama4_text": SIZES["llama4_text"],
    "gemma3_text": {**GROUPED, "head_dim": 8, "sliding_window": 4},
    "deepseek_v3": {**LATENT, "num_experts_per_tok": 1},
}


def sharpened(model: Any, std: float = 0.5) -> Any:
    """Weights of the size at which attention looks somewhere, not everywhere alike."""
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "emb" not in name and "wte" not in name:
            torch.nn.init.normal_(parameter, std=std)
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model.eval()


def causal_model(family: str, implementation: str) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **CAUSAL[family])
    return sharpened(
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    )


def both(
    model: Any, arguments: dict[str, Any], dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """(eager's output in `dtype`, eyeline's) with attentions; the model is left on eyeline."""
    with torch.no_grad():
        expected = eager_of(model).to(dtype)(**arguments, output_attentions=True)
    model.set_attn_implementation("eyeline")
    with torch.no_grad():
        return expected, model(**arguments, output_attentions=True)


def compare(given: Any, expected: Any, real: torch.Tensor) -> None:
    assert len(given) == len(expected) > 0
    for weights, dense in zip(given, expected, strict=True):
        assert isinstance(weights, Weights)
        assert weights.shape == dense.shape
        assert close(weights, dense, real) < LIMIT


def everything(batch: int, queries: int) -> torch.Tensor:
    return torch.ones(batch, 1, queries, dtype=torch.bool)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("family", ENCODERS)
def test_a_model_computes_what_it_computes_eagerly(family, side):
    model, arguments = sharpened(tiny(family)), inputs(side)
    expected, output = both(model, arguments)
    real = rows(arguments)
    difference = (output.last_hidden_state - expected.last_hidden_state)[real[:, 0]]
    assert float(difference.abs().max()) < LIMIT * max(1, expected.last_hidden_state.abs().max())
    compare(output.attentions, expected.attentions, real)
    assert float(torch.stack([a.amax(-1).mean() for a in expected.attentions]).mean()) > 0.25


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("family", CAUSAL)
def test_logits_equal_eagers(family, side):
    model, arguments = causal_model(family, "eyeline"), inputs(side)
    expected, output = both(model, arguments)
    real = rows(arguments)
    assert float((output.logits - expected.logits)[real[:, 0]].abs().max()) < LIMIT * max(
        1, float(expected.logits.abs().max())
    )
    compare(output.attentions, expected.attentions, real)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_encoder_and_decoder_and_what_the_decoder_sees_of_the_encoder(family):
    configs = {
        "t5": transformers.T5Config(
            vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
        ),
        "bart": transformers.BartConfig(**ENCODER_DECODER, max_position_embeddings=40),
    }
    torch.manual_seed(0)
    model = sharpened(transformers.AutoModel.from_config(configs[family]))
    arguments = {**inputs("right"), "decoder_input_ids": inputs(length=7)["input_ids"]}
    # T5 scales no score: its weights in float32 are off by nearly as much as is allowed.
    expected, output = both(model, arguments, torch.float64)
    compare(output.encoder_attentions, expected.encoder_attentions, rows(arguments))
    compare(output.decoder_attentions, expected.decoder_attentions, everything(2, 7))
    compare(output.cross_attentions, expected.cross_attentions, everything(2, 7))


def test_sound_and_pictures():
    torch.manual_seed(0)
    whisper = sharpened(transformers.WhisperModel(whisper_config()))
    sound = {
        "input_features": torch.randn(2, 8, 24),
        "decoder_input_ids": inputs(length=7)["input_ids"],
    }
    expected, output = both(whisper, sound)
    compare(output.encoder_attentions, expected.encoder_attentions, everything(2, 12))
    compare(output.decoder_attentions, expected.decoder_attentions, everything(2, 7))
    compare(output.cross_attentions, expected.cross_attentions, everything(2, 7))
    size = {k: v for k, v in SMALL.items() if k not in ("vocab_size", "max_position_embeddings")}
    vit = sharpened(
        transformers.ViTModel(transformers.ViTConfig(**size, image_size=16, patch_size=4))
    )
    expected, output = both(vit, {"pixel_values": torch.randn(2, 3, 16, 16)})
    compare(output.attentions, expected.attentions, everything(2, 17))


def whisper_config(**more: Any) -> Any:
    return transformers.WhisperConfig(
        **{**ENCODER_DECODER, **SOUND, "max_target_positions": 80, **more}
    )


# ---- generate ----------------------------------------------------------------------------------


QUICK = {("llama", "static", None), ("gemma2", "dynamic", "left")}
EVERY = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
    for case in itertools.product(CAUSAL, ("dynamic", "static"), (None, "left"))
]


@pytest.mark.parametrize(("family", "cache", "side"), EVERY)
def test_generate_gives_eagers_tokens(family, cache, side):
    model = causal_model(family, "eager")
    arguments = {
        **inputs(side),
        "max_new_tokens": 12,
        "do_sample": False,
        "cache_implementation": cache,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    expected = model.generate(**arguments)
    told = {"output_logits": True, "return_dict_in_generate": True}
    logits = model.generate(**arguments, **told).logits
    model.set_attn_implementation("eyeline")
    assert torch.equal(model.generate(**arguments), expected)
    for own, other in zip(model.generate(**arguments, **told).logits, logits, strict=True):
        assert float((own - other).abs().max()) < LIMIT * max(1, float(other.abs().max()))


def test_generate_returns_lazy_attentions_step_by_step():
    model = causal_model("llama", "eyeline")
    output = model.generate(
        **inputs(),
        max_new_tokens=3,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    shapes = [step[1].shape for step in output.attentions]
    assert shapes == [(2, 4, T, T), (2, 4, 1, T + 1), (2, 4, 1, T + 2)]
    whole = eager(model, input_ids=output.sequences).attentions
    assert close(output.attentions[2][0], whole[0][..., T + 1 : T + 2, : T + 2], everything(2, 1))


# ---- memory ------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The largest memory that a result has of its own, in elements."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                elements = value.untyped_storage().nbytes() // value.element_size()
                self.most = max(self.most, elements)
        return result


@pytest.mark.parametrize(
    "family", ["mistral", *(pytest.param(f, marks=pytest.mark.slow) for f in ("llama", "bert"))]
)
def test_nothing_of_queries_times_keys_is_made(family):
    length = 4096
    config = transformers.AutoConfig.for_model(
        family,
        **{
            **GROUPED,
            "sliding_window": 64,
            "num_hidden_layers": 1,
            "max_position_embeddings": length,
        },
    )
    model = transformers.AutoModel.from_config(config, attn_implementation="eyeline").eval()
    arguments = inputs("left", batch=2, length=length)
    with torch.no_grad(), Largest() as found:
        output = model(**arguments, output_attentions=True)
        row = output.attentions[0][1, 2, -1]
    assert row.shape == (length,)
    assert found.most < length * length


# ---- the mask ----------------------------------------------------------------------------------


def described(**more: Any) -> dict[str, Any]:
    padding = torch.tensor([[1] * 10, [0] * 3 + [1] * 7]).bool()
    return {
        "batch_size": 2,
        "q_length": 10,
        "kv_length": 10,
        "mask_function": masking_utils.sliding_window_causal_mask_function(4),
        "attention_mask": padding,
        "dtype": torch.float32,
        **more,
    }


def test_a_mask_has_what_models_ask_of_one():
    mask = hf.make_mask(**described())
    assert (mask.ndim, mask.dim(), tuple(mask.shape), mask.dtype) == (
        4,
        4,
        (2, 1, 10, 10),
        torch.float32,
    )
    assert mask.device == torch.device("cpu")
    assert mask.untyped_storage().nbytes() == 4
    for again in (
        mask.to("cpu"),
        mask.to(torch.float32),
        mask.contiguous(),
        mask.clone(),
        mask[:, :, :, :10],
        copy.deepcopy(mask),
        hf.make_mask(**{**described(), "attention_mask": mask}),
    ):
        assert isinstance(again, hf.RuleMask)
    assert repr(mask) == "RuleMask([2, 1, 10, 10], window(3) & only(bool [2, 10]))"


@pytest.mark.parametrize("key", [(..., slice(2, 7)), (slice(None), 0, slice(3, 4)), (1,), None])
def test_what_is_computed_with_a_mask_is_eagers(key):
    mask, expected = hf.make_mask(**described()), masking_utils.eager_mask(**described())
    part, other = (mask, expected) if key is None else (mask[key], expected[key])
    assert torch.equal(part + 0, other)
    assert torch.equal(torch.softmax(part, -1), torch.softmax(other, -1))
    assert torch.equal(mask.bool(), expected.bool())
    assert type(mask.half()) is torch.Tensor


def test_cut_masks_stay_rules():
    mask, expected = hf.make_mask(**described()), masking_utils.eager_mask(**described())
    for key in ((..., slice(1, 8)), (slice(None), slice(None), slice(4, 9), slice(2, 10))):
        cut = mask[key]
        assert isinstance(cut, hf.RuleMask)
        assert cut.visible is not None
        seen = cut.visible.lower((2, 1), *cut.shape[-2:], torch.device("cpu")).tile()
        assert torch.equal(seen, expected[key] == 0)


def test_a_rule_that_is_not_known_is_taken_as_bits():
    def own(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key + query) % 2 == 0

    rules = described(mask_function=masking_utils.and_masks(own))
    visible = hf.make_mask(**rules).visible
    assert torch.equal(visible, masking_utils.sdpa_mask(**rules, allow_is_causal_skip=False))


@pytest.mark.parametrize("kind", ["bool", "float", "biased"])
def test_masks_given_whole_are_honoured(kind):
    model = sharpened(tiny("llama"))
    seen = (torch.rand(1, 1, T, T) > 0.4) | torch.eye(T, dtype=torch.bool)
    added = torch.zeros(1, 1, T, T).masked_fill(~seen, torch.finfo(torch.float32).min)
    added = added + torch.where(seen, torch.randn(1, 1, T, T), 0) if kind == "biased" else added
    expected = eager(model, **inputs(batch=1), attention_mask=added).attentions
    model.set_attn_implementation("eyeline")
    with torch.no_grad():
        output = model(
            **inputs(batch=1),
            attention_mask=seen if kind == "bool" else added,
            output_attentions=True,
        )
    compare(output.attentions, expected, everything(1, T))


class Plain(torch.nn.Module):
    is_causal = True


@pytest.mark.parametrize(
    ("flag", "module_flag", "causal"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_without_a_mask_the_call_says_whether_it_is_causal_and_else_the_module(
    flag, module_flag, causal
):
    module = Plain()
    module.is_causal = module_flag
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    out, weights = hf.attend(module, q, k, v, None, is_causal=flag)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert float((out.transpose(1, 2) - expected).abs().max()) < 1e-12
    assert out.is_contiguous()
    assert bool((weights.to_dense().triu(1) == 0).all()) == causal


def test_dropout_touches_the_output_alone():
    q, k, v = (torch.randn(1, 2, 64, 8) for _ in range(3))
    kept, weights = hf.attend(Plain(), q, k, v, None)
    dropped, same = hf.attend(Plain(), q, k, v, None, dropout=0.5)
    assert torch.equal(weights.to_dense(), same.to_dense())
    assert not torch.equal(kept, dropped)


def test_sinks_per_query_are_refused():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ModelError, match="sink per query"):
        hf.attend(Plain(), q, q, q, None, sinks=torch.zeros(1, 2, 4))


# ---- training, compiling, watching ---------------------------------------------------------------


def gradients(model: Any, with_attentions: bool) -> list[torch.Tensor]:
    model.zero_grad()
    # whole: eager attention in float64 makes NaN of rows of padding
    output = model(**inputs(), output_attentions=with_attentions)
    loss = (output.last_hidden_state[:, 4:] * torch.linspace(-1, 1, 32)).sum()
    if with_attentions:
        loss = loss + 10 * (output.attentions[1][:, :, -1] ** 2).sum()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("with_attentions", [False, True], ids=["output", "attentions"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["plain", "checkpoints"])
def test_gradients_equal_eagers(checkpoints, with_attentions):
    model = sharpened(tiny("llama", "eager")).double().train()
    expected = gradients(model, with_attentions)
    if checkpoints:
        # older versions have it under its older name only
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    model.set_attn_implementation("eyeline")
    for own, other in zip(gradients(model, with_attentions), expected, strict=True):
        # the softmax and the norms of the model stay in float32
        assert float((own - other).abs().max()) < 1e-5 * max(1, float(other.abs().max()))


def test_watch_sees_what_eyeline_computes():
    model, arguments = sharpened(tiny("mistral", "eyeline")), inputs("left")
    with torch.no_grad():
        before = model(**arguments).last_hidden_state
    with torch.no_grad(), watch(model) as seen:
        during = model(**arguments).last_hidden_state
    assert torch.equal(before, during)
    expected = eager(model, **arguments).attentions
    compare(list(seen), expected, rows(arguments))
    assert model.config._attn_implementation == "eyeline"


@pytest.mark.slow
def test_a_compiled_model_gives_eagers_numbers():
    model, arguments = sharpened(tiny("llama", "eager")), inputs("left")
    with torch.no_grad():
        expected = model(**arguments).last_hidden_state
    model.set_attn_implementation("eyeline")
    with torch.no_grad():
        given = torch.compile(model, backend="aot_eager")(**arguments).last_hidden_state
    difference = (given - expected)[rows(arguments)[:, 0]]
    assert float(difference.abs().max()) < LIMIT * float(expected.abs().max())
