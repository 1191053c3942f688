"""How what was seen is named, and how what was not seen is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention

from eyeline.errors import ModelError
from eyeline.integrations import huggingface_ran
from eyeline.seen import Call, Missing, Seen, watch
from tests.tiny import SIZES, SMALL, STACKS, T, close, eager, inputs, run, same, tiny

T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


def made(family: str, **sizes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **sizes)
    return transformers.AutoModel.from_config(config).eval()


# ---- self and cross ----------------------------------------------------------------------------


def crossing(family: str) -> tuple[Any, dict[str, Any]]:
    """A model whose cross-attention has as many keys as its self-attention, and its inputs."""
    ids = inputs()["input_ids"]
    if family == "whisper":
        model = made("whisper", vocab_size=60, num_mel_bins=8, max_source_positions=T, **STACKS)
        frames = torch.randn(2, 8, 2 * T)
        return model, {"input_features": frames, "decoder_input_ids": ids}
    if family in ("bert", "gpt2"):
        extra = {"is_decoder": True, "add_cross_attention": True}
        model = made(family, **{**SIZES[family], **extra})
        return model, {"input_ids": ids, "encoder_hidden_states": torch.randn(2, T, 32)}
    sizes = T5 if family == "t5" else {"vocab_size": 60, **STACKS}
    return made(family, **sizes), {"input_ids": ids, "decoder_input_ids": ids}


@pytest.mark.parametrize("family", ["t5", "bart", "marian", "whisper", "bert", "gpt2"])
def test_self_and_cross_are_told_apart(family):
    model, arguments = crossing(family)
    with watch(model) as seen:
        run(model, **arguments)
    pairs = ("self", "cross") * 2
    assert seen.kinds == (pairs if family in ("bert", "gpt2") else ("self", "self", *pairs))
    expected = eager(model, **arguments)
    across = [weights for weights, kind in zip(seen, seen.kinds, strict=True) if kind == "cross"]
    for weights, dense in zip(across, expected.cross_attentions, strict=True):
        assert close(weights, dense, torch.ones(2, 1, T).bool()) < 1e-5


# ---- several calls, and layers without attention -------------------------------------------------


def test_calls_of_one_module_are_numbered():
    model = tiny("albert")
    with watch(model) as seen:
        run(model, **inputs())
    path = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert seen.names == (path, f"{path}#2")
    assert seen[path] is seen[0]
    assert seen[f"{path}#2"] is seen[1]
    with pytest.raises(ModelError, match="beginning of several"):
        seen["encoder.albert_layer_groups.0"]


JAMBA = {
    **SMALL,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 2,
    "mamba_d_state": 4,
}


def test_layers_without_attention_are_named():
    model = made("jamba", **JAMBA)
    with watch(model) as seen:
        run(model, **inputs())
    assert seen.names == ("layers.1.self_attn", "layers.3.self_attn")
    assert [missing.name for missing in seen.missing] == ["layers.0", "layers.2"]
    assert seen.missing[0].reason == "A layer without attention, JambaMambaDecoderLayer."
    with pytest.raises(ModelError, match=r"layers\.0 was not seen: A layer without attention"):
        seen["layers.0"]


class SkippingAttention(LlamaAttention):
    """Asks transformers' interface for its function, but not always."""

    skips = True

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        if self.skips:
            return hidden_states, None
        assert ALL_ATTENTION_FUNCTIONS
        return super().forward(hidden_states, **kwargs)


def test_attention_that_does_not_call_the_interface_is_named():
    model = tiny("llama")
    first, second = (layer.self_attn for layer in model.layers)
    second.__class__ = SkippingAttention
    with watch(model) as seen:
        assert second._forward_pre_hooks
        assert not first._forward_pre_hooks
        run(model, **inputs())
    assert seen.names == ("layers.0.self_attn",)
    assert [missing.name for missing in seen.missing] == ["layers.1.self_attn"]
    assert seen.missing[0].reason == (
        "SkippingAttention ran and did not call transformers' attention interface."
    )
    second.skips = False
    with watch(model) as seen:
        run(model, **inputs())
    assert seen.names == ("layers.0.self_attn", "layers.1.self_attn")
    assert seen.missing == ()


# ---- attention by hand -------------------------------------------------------------------------

ALONE = {
    "bloom": {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"vocab_size": 60, "d_model": 32, "n_layers": 2, "n_heads": 4},
    "gpt_neo": {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 48,
        "attention_types": [[["global", "local"], 1]],
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "mpnet": SMALL,
    "deberta-v2": SMALL,
    "fsmt": {"src_vocab_size": 60, "tgt_vocab_size": 60, **STACKS},
    "longformer": {**SMALL, "attention_window": 4},
}


@pytest.mark.parametrize("family", ALONE)
def test_attention_by_hand_is_named_with_what_it_returned(family):
    model, arguments = made(family, **ALONE[family]), inputs()
    before = run(model, **arguments, output_attentions=True)
    with torch.no_grad(), watch(model) if family != "longformer" else unseen(model) as seen:
        output = model(**arguments, output_attentions=True)
    assert same(before, [value for value in output.to_tuple() if isinstance(value, torch.Tensor)])
    assert not len(seen)
    reason = "computes attention with code of its own"
    assert all(reason in missing.reason for missing in seen.missing)
    if family == "longformer":
        assert seen.missing[0].dense is None
        assert "[2, 4, 10, 5], which is not queries by keys" in seen.missing[0].reason
    elif family == "fsmt":
        names = {missing.name: missing.dense for missing in seen.missing}
        assert names["encoder.layers.1.self_attn"] is output.encoder_attentions[1]
        assert names["decoder.layers.1.encoder_attn"] is output.cross_attentions[1]
        assert names["decoder.layers.0.self_attn"] is output.decoder_attentions[0]
    else:
        assert [missing.dense for missing in seen.missing] == list(output.attentions)
        with pytest.raises(ModelError, match=r"is in \.dense there"):
            seen[seen.missing[0].name]


class unseen:
    """A watch whose block may see nothing."""

    def __init__(self, model: Any) -> None:
        self.watched = watch(model)

    def __enter__(self) -> Seen:
        return self.watched.__enter__()

    def __exit__(self, *error: Any) -> None:
        with pytest.raises(ModelError, match="has seen no attention"):
            self.watched.__exit__(*error)


def test_a_block_that_saw_nothing_says_why():
    model = made("bloom", **ALONE["bloom"])
    with pytest.raises(ModelError) as error, watch(model):
        run(model, **inputs())
    assert "h.0.self_attention: BloomAttention computes attention with code" in str(error.value)


# ---- the table ---------------------------------------------------------------------------------


def test_the_table_lists_every_call():
    model, arguments = crossing("t5")
    with watch(model) as seen:
        run(model, **arguments)
    lines = repr(seen).splitlines()
    assert lines[0].startswith("Seen: 6 attention calls, computed by the model's own kernel, ")
    assert len(lines) == 8
    assert lines[5].split()[:5] == [
        "3",
        "decoder.block.0.layer.1.EncDecAttention",
        "cross",
        "2",
        "4",
    ]
    assert lines[4].endswith("causal() + bias")
    assert repr(Seen()) == "Seen: nothing yet"


def test_nothing_in_a_table_is_markup():
    name = "</script><b>x\"'&"
    x = torch.zeros(1, 1, 2, 2)
    seen = Seen([Call(name, x, x)], [Missing(f"{name}2", "<i>why</i>")])
    page = seen._repr_html_()
    for markup in ("<b>x", "</script>", "<i>"):
        assert markup not in page
    assert "&lt;/script&gt;&lt;b&gt;x" in page
    assert "&lt;i&gt;why" in page


def test_a_layer_by_its_letter_and_number():
    x = torch.zeros(1, 2, 3, 4)
    seen = Seen([Call("first", x, x), Call("second", x[:, :, :2], x)])
    assert seen["L1"] is seen[1]
    assert seen.real("L1") is None
    with pytest.raises(ModelError, match="'L1H0' is none of the layers"):
        seen.real("L1H0")
    with pytest.raises(ModelError, match="no layer 2: layers 0 to 1"):
        seen["L2"]
    named = Seen([Call("L1.attn", x, x), Call("L0", x[:, :, :2], x)])
    assert named["L1"] is named[0]


def test_what_holds_a_model_is_told_from_one():
    class Holder:
        def __init__(self, model: Any) -> None:
            self.model = model

    for held, said in ((torch.nn.Linear(2, 2), "is a Holder. Give its .model."), (3, "a Holder.")):
        with pytest.raises(ModelError) as error, watch(Holder(held)):  # type: ignore[arg-type]
            pass
        assert str(error.value).endswith(said)


def test_a_long_table_is_shortened():
    x = torch.zeros(1, 1, 2, 2)
    seen = Seen([Call("a" * 100 + str(index), x, x) for index in range(500)])
    assert len(repr(seen)) < 6000
    assert "(460 more)" in repr(seen)
    assert len(seen._repr_html_()) < 40_000


def test_code_that_is_no_statement_by_itself_is_not_sure_to_be_heard():
    def forward(self, hidden):
        interface, note = (
            ALL_ATTENTION_FUNCTIONS.get("sdpa"),
            """a text that goes on
at the beginning of a line""",
        )
        return interface(self, hidden, note)

    assert not huggingface_ran._always_heard(forward)
