"""watch() over a generate: one matrix per layer over the final text, equal to one eager forward."""

from __future__ import annotations

import inspect
import itertools
from functools import partial
from typing import Any

import pytest
import torch
import transformers

from eyeline.errors import ModelError
from eyeline.masks import Mask
from eyeline.seen import Seen, watch
from eyeline.seen.rows import Rows
from tests.test_hf_attention import (
    CAUSAL,
    ENCODER_DECODER,
    causal_model,
    everything,
    sharpened,
    whisper_config,
)
from tests.tiny import T, close, eager, eager_of, inputs, rows

LIMIT = 1e-5
NEW = 9


def told(**more: Any) -> dict[str, Any]:
    return {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **more}


def written(model: Any, arguments: dict[str, Any], **more: Any) -> tuple[Seen, torch.Tensor]:
    """What was seen of a generate that gave the tokens it gives unwatched, and those."""
    model.generation_config.eos_token_id = None
    expected = model.generate(**arguments, **told(**more))
    with watch(model) as seen:
        given = model.generate(**arguments, **told(**more))
    assert torch.equal(given, expected)
    return seen, given


def whole(model: Any, given: torch.Tensor, prompt: dict[str, Any]) -> tuple[Any, torch.Tensor]:
    """(eager attentions of one forward over what was fed, bool [B, 1, T] of its real rows)."""
    ids = given[:, :-1]
    real = torch.ones_like(ids)
    if "attention_mask" in prompt:
        real[:, :T] = prompt["attention_mask"]
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    output = eager(model, input_ids=ids, attention_mask=real, position_ids=positions)
    return output.attentions, real.bool()[:, None]


def equal(seen: Any, expected: Any, real: torch.Tensor) -> None:
    assert len(seen) == len(expected) > 0
    for weights, dense in zip(seen, expected, strict=True):
        assert weights.shape == dense.shape
        assert close(weights, dense, real) < LIMIT


def in_steps(model: Any, cache: Any) -> dict[str, Any]:
    """The argument by which a model takes a cache; its name changed."""
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


# ---- decoders ----------------------------------------------------------------------------------


QUICK = {
    ("mistral", "sdpa", "left", "static"),
    ("llama", "sdpa", "left", "dynamic"),
}
EVERY = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
    for case in itertools.product(CAUSAL, ("eager", "sdpa"), (None, "left"), ("dynamic", "static"))
]


@pytest.mark.parametrize(("family", "implementation", "side", "cache"), EVERY)
def test_a_generate_is_one_text(family, implementation, side, cache):
    if implementation == "sdpa" and family in ("gemma2", "gpt_oss"):
        implementation = "eyeline"  # transformers refuses sdpa for them
    model, prompt = causal_model(family, implementation), inputs(side)
    seen, given = written(model, prompt, cache_implementation=cache)
    expected, real = whole(model, given, prompt)
    equal(seen, expected, real)
    assert seen.generated.tolist() == [False] * T + [True] * (NEW - 1)
    assert all(isinstance(call.mask, Mask) for call in seen.calls)
    if side == "left":
        assert torch.equal(seen.real(0), real[:, 0])


@pytest.mark.slow
def test_sampling_is_followed():
    model, prompt = causal_model("mistral", "sdpa"), inputs("left")
    with watch(model) as seen:
        torch.manual_seed(4)
        given = model.generate(**prompt, **told(do_sample=True, temperature=2.0, eos_token_id=None))
    expected, real = whole(model, given, prompt)
    equal(seen, expected, real)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_the_same_64_tokens_in_each_dtype(family, dtype):
    model = causal_model(family, "sdpa").to(dtype)
    seen, given = written(model, inputs("left"), max_new_tokens=64)
    assert given.shape == (2, T + 64)
    assert seen[0].shape[-2:] == (T + 63, T + 63)


@pytest.mark.slow
def test_padding_on_the_left_changes_nothing_for_real_tokens():
    model, prompt = causal_model("mistral", "sdpa"), inputs("left")
    padded, given = written(model, prompt)
    alone = {"input_ids": prompt["input_ids"][-1:, T // 3 :]}
    single, alone_given = written(model, alone)
    assert torch.equal(given[-1, T // 3 :], alone_given[0])
    for weights, expected in zip(padded, single, strict=True):
        part = weights.to_dense()[-1, :, T // 3 :, T // 3 :]
        assert float((part - expected.to_dense()[0]).abs().max()) < LIMIT


# ---- what goes on, and what starts afresh --------------------------------------------------------


def test_a_loop_of_forwards_over_one_cache_is_one_text():
    model = causal_model("mistral", "sdpa")
    ids = inputs(length=14)["input_ids"]
    with torch.no_grad(), watch(model) as seen:
        cache = transformers.DynamicCache(config=model.config)
        for part in (ids[:, :6], ids[:, 6:7], ids[:, 7:12], ids[:, 12:13], ids[:, 13:]):
            model(input_ids=part, **in_steps(model, cache))
    equal(seen, eager(model, input_ids=ids).attentions, everything(2, 14))
    assert seen.generated.nonzero().flatten().tolist() == [6, 12, 13]
    with torch.no_grad(), watch(model) as seen:
        cache = transformers.DynamicCache(config=model.config)
        model(input_ids=ids[:, :6], **in_steps(model, cache))
        model(input_ids=ids[:, 6:8], **in_steps(model, cache))
        model(input_ids=ids)  # begins a text of its own
    equal(seen, eager(model, input_ids=ids).attentions, everything(2, 14))
    assert seen.generated is None


@pytest.mark.parametrize("first", [None, "left"])
def test_tokens_that_become_padding_later_were_none_before(first):
    model = causal_model("mistral", "sdpa")
    ids, real = inputs()["input_ids"], inputs(first).get("attention_mask", torch.ones(2, T).long())
    later = real.clone()
    later[:, 4] = 0

    def steps(run: Any, **more: Any) -> list[Any]:
        cache = transformers.DynamicCache(config=model.config)
        parts = [(slice(0, 6), real[:, :6]), (slice(6, T), later)]
        return [
            run(input_ids=ids[:, part], attention_mask=mask.clone(), **in_steps(model, cache))
            for part, mask in parts
        ]

    with torch.no_grad(), watch(model) as seen:
        steps(model)
    reader = partial(eager_of(model), output_attentions=True)
    with torch.no_grad():
        before, after = (output.attentions for output in steps(reader))
    for layer, weights in enumerate(seen):
        assert close(weights[:, :, :6, :6], before[layer], real[:, None, :6].bool()) < LIMIT
        read = after[layer]
        late = weights[:, :, 6:, T - read.shape[-1] :]
        assert close(late, read, torch.ones(2, 1, T - 6).bool()) < LIMIT
    assert torch.equal(seen.real(0), later.bool())


def test_a_cache_of_another_text_with_the_same_last_token_is_refused():
    model, ids = causal_model("llama", "sdpa"), inputs()["input_ids"]
    other = ids.clone()
    other[:, :5] = ids[:, :5].flip(1)
    one, two = (transformers.DynamicCache(config=model.config) for _ in range(2))
    with torch.no_grad(), watch(model):
        model(input_ids=ids[:, :6], **in_steps(model, one))
        model(input_ids=other[:, :6], **in_steps(model, two))
        with pytest.raises(ModelError, match="another text"):
            model(input_ids=ids[:, 6:7], **in_steps(model, one))


def test_without_a_cache_written_tokens_are_known_too():
    model, prompt = causal_model("llama", "sdpa"), inputs()
    seen, given = written(model, prompt, use_cache=False)
    equal(seen, *whole(model, given, prompt))
    assert seen.generated.tolist() == [False] * T + [True] * (NEW - 1)


def test_a_prompt_read_in_chunks_is_a_prompt():
    model, prompt = causal_model("llama", "sdpa"), inputs()
    seen, given = written(model, prompt, prefill_chunk_size=3)  # the last one has a single token
    expected, real = whole(model, given, prompt)
    equal(seen, expected, real)
    assert seen.generated.tolist() == [False] * T + [True] * (NEW - 1)


def test_a_cache_that_was_filled_before_has_keys_and_no_queries():
    model = causal_model("mistral", "sdpa")
    ids = inputs(length=14)["input_ids"]
    expected = eager(model, input_ids=ids).attentions
    with torch.no_grad():
        cache = transformers.DynamicCache(config=model.config)
        model(input_ids=ids[:, :7], **in_steps(model, cache))
        with watch(model) as seen:
            model(input_ids=ids[:, 7:9], **in_steps(model, cache))
            for at in range(9, 14):
                model(input_ids=ids[:, at : at + 1], **in_steps(model, cache))
    # the window had let go of keys 0 to 3
    equal(seen, [dense[:, :, 7:, 4:] for dense in expected], everything(2, 7))


def test_the_last_of_several_generates_counts():
    model = causal_model("llama", "sdpa")
    first, second = inputs(), {"input_ids": inputs(length=6)["input_ids"]}
    with watch(model) as seen:
        model.generate(**first, **told(eos_token_id=None))
        given = model.generate(**second, **told(eos_token_id=None))
    equal(seen, eager(model, input_ids=given[:, :-1]).attentions, everything(2, 6 + NEW - 1))


def test_gradients_flow_through_steps():
    model = causal_model("llama", "sdpa")
    ids = inputs(batch=1)["input_ids"]
    with watch(model) as seen:
        cache = transformers.DynamicCache(config=model.config)
        for part in (ids[:, :6], ids[:, 6:]):
            model(input_ids=part, **in_steps(model, cache))
    (seen[1][0, 2, -1] ** 2).sum().backward()
    own = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    model.zero_grad()
    model.set_attn_implementation("eager")
    (model(input_ids=ids, output_attentions=True).attentions[1][0, 2, -1] ** 2).sum().backward()
    other = model.model.layers[0].self_attn.q_proj.weight.grad
    assert float((own - other).abs().max()) < 1e-5 * float(other.abs().max())


def test_inference_mode_and_values():
    model, prompt = causal_model("llama", "sdpa"), inputs()
    with torch.inference_mode(), watch(model, values=True) as seen:
        given = model.generate(**prompt, **told(eos_token_id=None))
    expected, real = whole(model, given, prompt)
    equal(seen, expected, real)
    with torch.no_grad(), watch(model, values=True) as single:
        model(input_ids=given[:, :-1])
    assert seen.values(1).shape == single.values(1).shape
    assert float((seen.values(1) - single.values(1)).abs().max()) < 1e-4


@pytest.mark.parametrize("cache", [pytest.param("dynamic", marks=pytest.mark.slow), "static"])
def test_eyelines_kernel_follows_a_generate_too(cache):
    model, prompt = causal_model("mistral", "sdpa"), inputs("left")
    more = told(eos_token_id=None, cache_implementation=cache)
    with watch(model, kernel="eyeline") as seen:
        given = model.generate(**prompt, **more)
    assert torch.equal(given, model.generate(**prompt, **more))
    expected, real = whole(model, given, prompt)
    equal(seen, expected, real)
    assert seen.kernel == "eyeline"


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"prompt_lookup_num_tokens": 2}, "assisted decoding"),
        ({"guidance_scale": 1.5}, "classifier-free guidance"),
    ],
)
def test_searches_are_refused_and_say_what_to_do(more, what):
    model = causal_model("llama", "sdpa")
    with pytest.raises(ModelError, match=what) as error, watch(model):
        model.generate(**inputs(batch=1), **told(**more))
    assert "watch one forward pass" in str(error.value)
    assert model.config._attn_implementation == "sdpa"
    assert model.generate(**inputs(batch=1), **told(**more)).shape[0] == 1


def test_a_cache_that_was_reordered_is_refused():
    model = causal_model("llama", "sdpa")
    ids = inputs()["input_ids"]
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad(), watch(model):
        model(input_ids=ids[:, :6], **in_steps(model, cache))
        cache.reorder_cache(torch.tensor([1, 0]))
        with pytest.raises(ModelError, match="reordered"):
            model(input_ids=ids[:, 6:7], **in_steps(model, cache))


# ---- encoder and decoder -------------------------------------------------------------------------


def ordered(output: Any) -> list[torch.Tensor]:
    found = list(output.encoder_attentions)
    for pair in zip(output.decoder_attentions, output.cross_attentions, strict=True):
        found += pair
    return found


@pytest.mark.parametrize("cache", ["dynamic", pytest.param("static", marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", [pytest.param(None, marks=pytest.mark.slow), "right"])
@pytest.mark.parametrize("family", ["t5", pytest.param("bart", marks=pytest.mark.slow)])
def test_the_decoder_is_one_text_and_the_encoder_ran_once(family, side, cache):
    configs = {
        "t5": transformers.T5Config(
            vocab_size=60,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=1,
        ),
        "bart": transformers.BartConfig(**ENCODER_DECODER, max_position_embeddings=40),
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(configs[family])
    model = sharpened(model, 0.25)
    prompt = inputs(side)
    seen, given = written(model, prompt, cache_implementation=cache, max_new_tokens=12)
    expected = ordered(eager(model, **prompt, decoder_input_ids=given[:, :-1]))
    assert seen.kinds == ("self", "self", "self", "cross", "self", "cross")
    for weights, dense, name in zip(seen, expected, seen.names, strict=True):
        real = rows(prompt) if "encoder." in name else everything(2, given.shape[1] - 1)
        assert weights.shape == dense.shape
        assert close(weights, dense, real) < LIMIT
    assert seen.generated.tolist() == [False] + [True] * 11


def test_whisper_writes_one_text():
    torch.manual_seed(0)
    model = sharpened(transformers.WhisperForConditionalGeneration(whisper_config()))
    sound = {"input_features": torch.randn(1, 8, 24)}
    seen, given = written(model, sound, max_new_tokens=6)
    fed = torch.cat((torch.ones(1, 1, dtype=torch.long), given[:, :-1]), 1)
    expected = ordered(eager(model, **sound, decoder_input_ids=fed))
    for weights, dense in zip(seen, expected, strict=True):
        assert weights.shape == dense.shape
        assert close(weights, dense, everything(1, dense.shape[2])) < LIMIT


# ---- pictures and text ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_picture_in_the_prompt_is_seen_both_ways(cache):
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 4,
        "vision_use_head": False,
    }
    text = {**CAUSAL["gemma3_text"], "layer_types": ["sliding_attention", "full_attention"]}
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**text),
        vision_config=transformers.SiglipVisionConfig(**vision),
        mm_tokens_per_image=4,
        image_token_id=59,
        boi_token_index=58,
        eoi_token_index=57,
    )
    torch.manual_seed(0)
    model = sharpened(transformers.Gemma3ForConditionalGeneration(config))
    kinds = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 0, 0]])
    picture = {"pixel_values": torch.randn(1, 3, 16, 16)}
    ids = torch.tensor([[3, 4, 59, 59, 59, 59, 5, 6, 7]])
    prompt = {"input_ids": ids, "token_type_ids": kinds, **picture}
    seen, given = written(model, prompt, cache_implementation=cache)
    kinds = torch.nn.functional.pad(kinds, (0, given.shape[1] - 1 - kinds.shape[1]))
    expected = eager(model, input_ids=given[:, :-1], token_type_ids=kinds, **picture).attentions
    language = [w for w, name in zip(seen, seen.names, strict=True) if "language" in name]
    equal(language, expected, everything(1, given.shape[1] - 1))
    assert len(seen) == 4
    assert seen.generated.tolist() == [False] * 9 + [True] * (NEW - 1)


# ---- memory --------------------------------------------------------------------------------------


def held(seen: Seen) -> tuple[int, int]:
    """(bytes of the storages that queries and keys keep alive, bytes of these themselves)."""
    storages, needed = {}, 0
    for call in seen.calls:
        for tensor in (call.q, call.k):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            needed += tensor.nbytes
    return sum(storages.values()), needed


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_memory_grows_with_the_tokens(cache):
    model = causal_model("mistral", "sdpa")
    during = []

    def look(*_: Any) -> None:
        if len(seen) and seen.generated is not None:
            during.append(held(seen))

    with watch(model) as seen:
        hook = model.register_forward_pre_hook(look)
        model.generate(
            **inputs(), **told(max_new_tokens=200, eos_token_id=None, cache_implementation=cache)
        )
        hook.remove()
    kept, needed = held(seen)
    assert needed == 2 * 2 * (4 + 2) * (T + 199) * 8 * 4  # layers, texts, heads of q and k
    assert kept == needed
    assert len(during) == 199
    assert all(some <= 1.3 * exact for some, exact in during[-150:])


def test_rows_grow_where_they_stand():
    rows_ = Rows(torch.arange(6.0).view(1, 3, 2))
    for step in range(40):
        rows_.add(torch.full((1, 1, 2), float(step)))
    assert rows_.tensor.shape == (1, 43, 2)
    assert rows_.tensor[0, 3:, 0].tolist() == [float(step) for step in range(40)]
    assert rows_.tensor.untyped_storage().nbytes() <= 1.13 * rows_.tensor.nbytes + 8
    rows_.trim()
    assert rows_.tensor.untyped_storage().nbytes() == rows_.tensor.nbytes


# ---- where nobody says where a step stands -----------------------------------------------------


def falcon(**more: Any) -> Any:
    """It calls torch's function itself, with a mask that is a tensor in every step."""
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = transformers.FalconConfig(**sizes, initializer_range=0.5, **more)
    return transformers.FalconForCausalLM(config).eval()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("side", [None, "left"])
def test_steps_that_torchs_function_was_given_are_one_text(side, cache):
    model, prompt = falcon(), inputs(side)
    with torch.no_grad():
        seen, given = written(model, prompt, cache_implementation=cache)
        real = torch.ones_like(given[:, :-1])
        if side is not None:
            real[:, :T] = prompt["attention_mask"]
        with watch(model) as expected:  # one forward of it equals the eager one: test_watch_models
            model(input_ids=given[:, :-1], attention_mask=real)
    assert len(seen) == len(expected) == 2
    assert seen.generated.tolist() == [False] * T + [True] * (NEW - 1)
    for call, weights, whole_text in zip(seen.calls, seen, expected, strict=True):
        assert isinstance(call.mask, Mask)
        assert close(weights, whole_text.to_dense(), real.bool()[:, None]) < LIMIT


def test_a_mask_that_is_more_than_causality_and_padding_is_refused_in_a_generate():
    model = falcon(alibi=True)  # its distances are in the mask
    with torch.no_grad(), pytest.raises(ModelError, match="from step to step"), watch(model):
        model.generate(**inputs(), **told(eos_token_id=None))


class _Holder(torch.nn.Module):
    """A model of somebody's own that holds another one, and has it write."""

    def __init__(self, writer: torch.nn.Module) -> None:
        super().__init__()
        self.writer = writer

    def forward(self, **given: Any) -> Any:
        return self.writer(**given)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_part_of_the_model_may_write_by_itself(cache):
    model, prompt = causal_model("llama", "sdpa"), inputs("left")
    model.generation_config.eos_token_id = None
    with torch.no_grad(), watch(_Holder(model)) as seen:
        given = model.generate(**prompt, **told(cache_implementation=cache))
    expected, real = whole(model, given, prompt)
    equal(seen, expected, real)
    assert seen.names[0].startswith("writer.")
    assert seen.generated.tolist() == [False] * T + [True] * (NEW - 1)


def test_a_part_that_tries_several_texts_is_refused():
    model = causal_model("llama", "sdpa")
    with torch.no_grad(), watch(_Holder(model)) as seen:
        with pytest.raises(ModelError, match="beam search"):
            model.generate(**inputs(), **told(num_beams=2))
        model(**inputs())
    assert seen[0].shape[-2:] == (T, T)
