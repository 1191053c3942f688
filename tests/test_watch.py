"""watch(): the model computes what it always does, and the weights are the model's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils

from eyeline import masks, models
from eyeline.errors import ModelError
from eyeline.integrations.huggingface_masks import told
from eyeline.seen import Seen, watch

T = 10
SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 600,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
ENCODERS = ("bert", "albert")
DECODERS = ("llama", "mistral", "gemma2", "gpt_oss", "gpt2", "llama4_text")
FAMILIES = (*ENCODERS, *DECODERS)
SIZES: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "albert": {**SMALL, "embedding_size": 16},
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 4},
    "gemma2": {**GROUPED, "sliding_window": 4, "head_dim": 8, "attn_logit_softcapping": 2.0},
    "gpt_oss": {
        **GROUPED,
        "sliding_window": 4,
        "head_dim": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "gpt2": {
        "vocab_size": 60,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "llama4_text": {
        **GROUPED,
        "intermediate_size_mlp": 48,
        "head_dim": 8,
        "num_local_experts": 2,
        "attention_chunk_size": 4,
        "no_rope_layers": [1, 0],
    },
}


def tiny(family: str, implementation: str | None = None) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES[family])
    model = transformers.AutoModel.from_config(config, attn_implementation=implementation).eval()
    for module in model.modules():  # sinks start at nothing that could be told from none
        if hasattr(module, "sinks"):
            torch.nn.init.normal_(module.sinks)
    return model


def inputs(side: str | None = None, batch: int = 2, length: int = T) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 60, (batch, length), generator=torch.Generator().manual_seed(1))
    if side is None:
        return {"input_ids": ids}
    real = torch.ones_like(ids)
    padded = length // 3
    real[-1, slice(padded) if side == "left" else slice(length - padded, None)] = 0
    return {"input_ids": ids * real, "attention_mask": real}


def run(model: Any, **arguments: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        output = model(**arguments)
    return [value for value in output.to_tuple() if isinstance(value, torch.Tensor)]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def eager(model: Any, **arguments: Any) -> Any:
    """The attentions that transformers itself computes, dense."""
    config = copy.deepcopy(model.config)
    other = type(model)._from_config(config, attn_implementation="eager").eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        return other(**arguments, output_attentions=True)


def rows(arguments: dict[str, torch.Tensor]) -> torch.Tensor:
    """bool [B, 1, T]: the rows of real tokens."""
    ids = arguments["input_ids"]
    return arguments.get("attention_mask", torch.ones_like(ids)).bool()[:, None]


def close(weights: Any, expected: torch.Tensor, real: torch.Tensor) -> float:
    dense = weights.detach() + torch.zeros(())
    chosen = real.expand(expected.shape[:3])
    return float((dense[chosen] - expected[chosen]).abs().max())


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


def test_training_with_checkpoints_keeps_gradients_and_sees_each_layer_once():
    model, arguments = tiny("llama").train(), inputs("left")
    # older versions have it under its older name only
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()

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
    part = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = transformers.CLIPConfig(
        text_config={**part, "vocab_size": 60, "max_position_embeddings": 20},
        vision_config={**part, "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config).eval()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
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
    before = seen._calls[0].q.untyped_storage().nbytes()
    assert before == held[0].untyped_storage().nbytes()


# ---- masks as rules --------------------------------------------------------------------------


def packed(positions: torch.Tensor) -> Any:
    sequence = masking_utils.find_packed_sequence_indices(positions)
    inner = masking_utils.sliding_window_causal_mask_function(3)
    if hasattr(masking_utils, "remap_positions_for_packed_sequence"):  # newer than 5.18
        inner = masking_utils.remap_positions_for_packed_sequence(inner, positions)
    return masking_utils.and_masks(inner, masking_utils.packed_sequence_mask_function(sequence))


PADDED = torch.tensor([[1] * 10, [0] * 3 + [1] * 7]).bool()
RULES = {
    "causal": (masking_utils.causal_mask_function, "causal()"),
    "window": (masking_utils.sliding_window_causal_mask_function(3), "window(2)"),
    "both sides": (masking_utils.sliding_window_bidirectional_mask_function(2), "window(2, 2)"),
    "everything": (masking_utils.bidirectional_mask_function, None),
    "chunks": (
        masking_utils.chunked_causal_mask_function(4, torch.tensor([0, 3])),
        "causal() & documents(int64 [2, 10], int64 [2, 10])",
    ),
    "packed": (
        packed(torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1], [*range(10)]])),
        "window(2) & documents(int64 [2, 10], int64 [2, 10])",
    ),
    "either": (
        masking_utils.or_masks(
            masking_utils.causal_mask_function,
            masking_utils.sliding_window_bidirectional_overlay(1),
        ),
        "causal() | window(1, 1)",
    ),
}


def lowered(rule: Any, batch: int, queries: int, keys: int) -> torch.Tensor:
    whole = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    if rule.mask is None:
        return whole
    tile = rule.mask.lower((batch, 1), queries, keys, torch.device("cpu")).tile()
    return whole if tile is None else whole & tile


@pytest.mark.parametrize("padding", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("name", RULES)
def test_masks_are_told_as_rules(name, padding):
    function, formula = RULES[name]
    arguments = {
        "batch_size": 2,
        "q_length": 10,
        "kv_length": 10,
        "mask_function": function,
        "attention_mask": padding,
    }
    expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    rule = told(arguments)
    assert rule.known
    assert torch.equal(lowered(rule, 2, 10, 10), expected)
    if padding is None:
        assert (None if rule.mask is None else rule.mask.formula) == formula
        assert rule.real is None
    else:
        assert torch.equal(rule.real, PADDED)


@pytest.mark.parametrize("offsets", [(6, 0, 4, 10), (6, 3, 4, 7), (0, 0, 4, 9)])
def test_rules_know_where_queries_stand_in_a_cache(offsets):
    q_offset, kv_offset, queries, keys = offsets
    for function in (
        masking_utils.causal_mask_function,
        masking_utils.sliding_window_causal_mask_function(3),
    ):
        arguments = {
            "batch_size": 2,
            "q_length": queries,
            "kv_length": keys,
            "q_offset": q_offset,
            "kv_offset": kv_offset,
            "mask_function": function,
            "attention_mask": PADDED,
        }
        expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
        rule = told(arguments)
        assert rule.real is None or offsets[0] == offsets[1]
        assert torch.equal(lowered(rule, 2, queries, keys), expected)


def test_unknown_mask_function_is_not_told():
    def own(batch, head, query, key):
        return key % 2 == query % 2

    arguments = {"q_length": 4, "kv_length": 4, "mask_function": own}
    assert not told(arguments).known
    both = masking_utils.and_masks(masking_utils.causal_mask_function, own)
    assert not told({**arguments, "mask_function": both}).known


def test_a_mask_given_whole_is_taken_whole():
    model = tiny("llama")
    visible = torch.rand(1, 1, T, T) > 0.4
    visible |= torch.eye(T, dtype=torch.bool)
    float_mask = torch.zeros(1, 1, T, T).masked_fill(~visible, torch.finfo(torch.float32).min)
    biased = float_mask + torch.where(visible, torch.randn(1, 1, T, T), 0)
    for mask in (visible, float_mask, biased):
        arguments = {**inputs(batch=1), "attention_mask": mask}
        with watch(model) as seen:
            run(model, **arguments)
        float_one = float_mask if mask.dtype == torch.bool else mask
        expected = eager(model, **{**arguments, "attention_mask": float_one}).attentions
        for weights, dense in zip(seen, expected, strict=True):
            assert close(weights, dense, torch.ones(1, 1, T).bool()) < 1e-5


def test_plain_causal_and_padding_stay_rules():
    model = tiny("mistral")
    with watch(model) as seen:
        run(model, **inputs("left"))
    call = seen._calls[0]
    assert isinstance(call.mask, masks.Mask)
    assert call.mask.formula == "window(3) & only(bool [2, 10])"
    assert torch.equal(seen.real(0), inputs("left")["attention_mask"].bool())


def test_rows_of_padding_are_known():
    model = tiny("llama")
    arguments = inputs("left")
    with watch(model) as seen:
        run(model, **arguments)
    real = seen.real(0)
    assert torch.equal(real, arguments["attention_mask"].bool())
    alone = {"input_ids": arguments["input_ids"][-1:, T // 3 :]}
    with watch(model) as single:
        run(model, **alone)
    padded = (seen[1] + torch.zeros(()))[-1, :, T // 3 :, T // 3 :]
    assert float((padded - single[1][0]).abs().max()) < 1e-5
    assert single.real(0) is None


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
    assert repr(seen).startswith(
        "Seen(2 layers, the first 'encoder.layer.0.attention.self' with B=1"
    )


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


def test_generation_keeps_its_last_step():
    config = transformers.AutoConfig.for_model("llama", **SIZES["llama"])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    arguments = inputs("left")
    with torch.no_grad():
        before = model.generate(**arguments, max_new_tokens=3, do_sample=False, eos_token_id=[])
        with watch(model) as seen:
            during = model.generate(**arguments, max_new_tokens=3, do_sample=False, eos_token_id=[])
    assert torch.equal(before, during)
    assert [tuple(weights.shape) for weights in seen] == [(2, 4, 1, T + 2)] * 2
    whole = {
        "input_ids": before[:, :-1],
        "attention_mask": torch.nn.functional.pad(arguments["attention_mask"], (0, 2), value=1),
    }
    for weights, dense in zip(seen, eager(model, **whole).attentions, strict=True):
        assert close(weights, dense[:, :, -1:], torch.ones(2, 1, 1).bool()) < 1e-5


def test_attention_beside_the_interface_is_named():
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = tiny("bert")
            self.other = torch.nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            hidden = self.seen(input_ids=ids).last_hidden_state
            return self.other(hidden, hidden, hidden)[0]

    model = Both()
    with torch.no_grad(), watch(model) as seen:
        model(inputs()["input_ids"])
    assert seen.unseen == ("other",)
    assert len(seen) == 2


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


# ---- what cannot be looked into ----------------------------------------------------------------


def refusal(model: Any) -> str:
    with pytest.raises(ModelError) as error, watch(model):
        pass
    return str(error.value)


def test_nothing_seen_says_why():
    assert "The model was not called inside `with watch(model)`." in refusal(tiny("bert"))


def test_families_with_attention_of_their_own_are_named():
    config = transformers.BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4)
    text = refusal(transformers.BloomModel(config))
    assert text.startswith("watch() cannot look into BloomModel: this family (bloom)")


def test_other_modules_are_told_what_can_be_seen():
    text = refusal(torch.nn.Linear(2, 2))
    assert text.startswith("watch() looks into models of Hugging Face transformers, and Linear")
    assert "this is a int" in refusal(3)


def test_compiled_models_are_refused():
    assert "compiled" in refusal(torch.compile(tiny("bert"), backend="eager"))


def test_code_that_depends_on_the_name_is_refused():
    config = transformers.AutoConfig.for_model("gpt2", **SIZES["gpt2"])
    config.reorder_and_upcast_attn = True
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    assert "takes another path" in refusal(model)


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
