"""block(): a model without heads and edges is the one changed by hand; what weights weigh."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from eyeline import models
from eyeline.acting import block
from eyeline.errors import ArgumentError, ModelError
from eyeline.masks import causal, only, window
from eyeline.seen import watch
from tests.tiny import T, inputs, rows, run, tiny
from tests.torch_models import GPT, VisionTransformer, ids, sharp

EDGES = [(5, 2), (7, 7), (9, 0)]
SENTENCE = "The keys to the old cabinet are on the table because they were too heavy to carry."


@contextmanager
def by_hand(
    model: Any, heads: tuple[tuple[int, int], ...] = (), pairs: Any = (), mask: Any = None
) -> Iterator[Any]:
    """A copy of a model of transformers whose eager attention is changed as a person would.

    `pairs` are hidden everywhere, or by (layer, head); `mask` bool [T, T] is what may be seen.
    """
    other = copy.deepcopy(model)
    calls: list[int] = []

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, given: Any, **kwargs: Any) -> Any:
        layer, (Tq, Tk) = len(calls), (q.shape[-2], k.shape[-2])
        calls.append(layer)
        hidden = torch.zeros(1, q.shape[1], Tq, Tk)
        placed = pairs if isinstance(pairs, dict) else {(layer, None): pairs}
        for (at, head), some in placed.items():
            for i, j in some:
                i = i - (Tk - Tq)
                if at == layer and 0 <= i < Tq and j < Tk:
                    hidden[:, slice(None) if head is None else head, i, j] = -torch.inf
        if mask is not None:
            hidden[..., ~mask] = -torch.inf
        hidden = hidden if given is None else given + hidden
        eager = sys.modules[type(module).__module__].eager_attention_forward
        out, weights = eager(module, q, k, v, hidden, **kwargs)
        for at, head in heads:
            if at == layer:
                out[:, :, head] = 0
        return out, weights

    AttentionInterface.register("by_hand", attend)
    AttentionMaskInterface.register("by_hand", eager_mask)
    other.set_attn_implementation("by_hand")
    other.register_forward_pre_hook(lambda *_: calls.clear())
    try:
        yield other
    finally:
        AttentionInterface._global_mapping.pop("by_hand")
        AttentionMaskInterface._global_mapping.pop("by_hand")


def apart(one: Any, other: Any, real: Tensor | None = None) -> float:
    if real is not None:
        one, other = one[real], other[real]
    return float((one - other).detach().abs().max())


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    )
    torch.manual_seed(0)
    return transformers.T5Model(config).eval()


# ---- models of transformers ------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("family", ["llama", "bert", "albert", "gpt2", "mistral", "gpt_oss"])
def test_blocked_models_are_those_changed_by_hand(family, side, implementation):
    if family == "gpt_oss" and implementation == "sdpa":
        implementation = "eager"  # it has no other
    model, arguments = tiny(family, implementation), inputs(side)
    real = rows(arguments)[:, 0]
    before = run(model, **arguments)[0]
    cases: list[dict[str, Any]] = [
        {"heads": {"L1H2", "L0H0"}},
        {"edges": EDGES},
        {"edges": {"L1H3": [(6, 5)], "L0": [(6, 3)]}, "heads": [(1, 0)]},
        {"mask": window(2)},
    ]
    changed: list[dict[str, Any]] = [
        {"heads": ((1, 2), (0, 0))},
        {"pairs": EDGES},
        {"pairs": {(1, 3): [(6, 5)], (0, None): [(6, 3)]}, "heads": ((1, 0),)},
        {"mask": (torch.arange(T)[:, None] - torch.arange(T)).abs() <= 2},
    ]
    if family in ("bert", "albert"):
        changed[3]["mask"] = changed[3]["mask"].tril()
    for asked, done in zip(cases, changed, strict=True):
        with block(model, **asked):
            got = run(model, **arguments)[0]
        with by_hand(model, **done) as other:
            expected = run(other, **arguments)[0]
        assert apart(got, expected, real) < 1e-5
        assert apart(got, before, real) > 1e-3
    assert torch.equal(before, run(model, **arguments)[0])
    assert model.config._attn_implementation == implementation


def test_heads_alone_leave_the_kernel_and_every_other_head():
    model, arguments = tiny("llama"), inputs()
    outs: list[Tensor] = []
    for layer in model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda m, args: outs.append(args[0]))
    run(model, **arguments)
    with block(model, heads="L0H1"):
        run(model, **arguments)
    before, after = outs[0].unflatten(-1, (4, 8)), outs[2].unflatten(-1, (4, 8))
    kept = [0, 2, 3]
    assert torch.equal(before[:, :, kept], after[:, :, kept])
    assert not after[:, :, 1].count_nonzero()


def test_encoder_and_decoder():
    model = t5()
    arguments = {**inputs("right"), "decoder_input_ids": inputs(length=7)["input_ids"]}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"heads": {"L0H1", "L3H2", "L4H0"}}, {"heads": ((0, 1), (3, 2), (4, 0))}),
        (
            {"edges": {"L3": [(6, 9)], "L1H2": [(3, 2)]}},
            {"pairs": {(3, None): [(9, 9)], (1, 2): [(3, 2)]}},  # queries end where keys do
        ),
    ]
    for asked, done in cases:
        with block(model, **asked):
            got = run(model, **arguments)[0]
        with by_hand(model, **done) as other:
            assert apart(got, run(other, **arguments)[0]) < 1e-5
    # edges that name no layer are of self-attention
    with block(model, edges=[(3, 2)]), watch(model) as seen:
        run(model, **arguments)
    hidden = [float(weights[..., 3, 2].abs().max()) == 0 for weights in seen]
    assert hidden == [True, True, True, False, True, False]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_generation(family, cache):
    torch.manual_seed(0)
    config = tiny(family).config
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    arguments = {**inputs("left", length=6), "max_new_tokens": 6, "do_sample": False}
    arguments |= {"cache_implementation": cache, "output_logits": True}
    arguments |= {"return_dict_in_generate": True, "eos_token_id": None}
    edges = [(3, 1), (7, 4), (8, 7), (9, 2)] if family == "llama" else [(3, 1), (8, 7)]
    with block(model, heads="L0H3", edges=edges):
        got = model.generate(**arguments)
    arguments["cache_implementation"] = "dynamic"
    if family == "mistral":
        # its cache holds the last 3 keys: the same text in one pass has them all
        with by_hand(model, heads=((0, 3),), pairs=edges) as other, torch.no_grad():
            real = torch.cat([arguments["attention_mask"], torch.ones(2, 6).long()], 1)[:, :-1]
            whole = other(input_ids=got.sequences[:, :-1], attention_mask=real).logits[:, 5:]
        assert apart(torch.stack(got.logits, 1), whole) < 1e-4
        return
    with by_hand(model, heads=((0, 3),), pairs=edges) as other:
        expected = other.generate(**arguments)
    assert torch.equal(got.sequences, expected.sequences)
    assert apart(torch.stack(got.logits), torch.stack(expected.logits)) < 1e-5


def test_generation_of_an_encoder_and_decoder():
    """Layers count as in a whole forward, though a step runs the decoder alone."""
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(t5().config).eval()
    arguments = {**inputs("right"), "max_new_tokens": 6, "do_sample": False}
    arguments |= {"return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}
    arguments["decoder_start_token_id"] = 0
    asked = {"edges": {"L3": [(2, 4), (4, 0)], "L4": [(3, 1)], "L0H1": [(5, 2)]}, "heads": "L5H2"}
    with block(model, **asked):
        got = model.generate(**arguments)
    # by hand queries end where keys do: the decoder's six beside the encoder's ten
    crossing = [(i + T - 6, j) for i, j in ((2, 4), (4, 0))]
    pairs = {(3, None): crossing, (4, None): [(3, 1)], (0, 1): [(5, 2)]}
    with by_hand(model, heads=((5, 2),), pairs=pairs) as other, torch.no_grad():
        whole = other(**inputs("right"), decoder_input_ids=got.sequences[:, :-1]).logits
    assert apart(torch.stack(got.logits, 1), whole) < 1e-4


@pytest.mark.parametrize("order", ["block first", "watch first"])
def test_a_watched_generation_shows_the_blocked_weights(order):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(tiny("llama").config).eval()
    arguments = {**inputs(length=6), "max_new_tokens": 5, "do_sample": False}
    edges = [(3, 1), (7, 2), (9, 8)]
    blocking = block(model, edges={"L0": edges, "L1H2": edges})
    if order == "block first":
        with blocking, watch(model) as seen:
            text = model.generate(**arguments)
    else:
        with watch(model) as seen, blocking:
            text = model.generate(**arguments)
    with block(model, edges={"L0": edges, "L1H2": edges}), watch(model) as whole:
        run(model, input_ids=text[:, :-1])
    for layer in (0, 1):
        assert seen[layer].shape == whole[layer].shape == (2, 4, 10, 10)
        assert apart(seen[layer].to_dense(), whole[layer].to_dense()) < 1e-5
    for i, j in edges:
        assert not seen[0][..., i, j].count_nonzero()


def test_gradients_pass_through_a_block():
    model, arguments = tiny("llama"), inputs("left")

    def gradient(model: Any) -> Tensor:
        model.zero_grad()
        model(**arguments).last_hidden_state[0].square().mean().backward()
        found: Tensor = model.layers[0].self_attn.q_proj.weight.grad.clone()
        return found

    with block(model, heads="L1H1", edges=EDGES):
        got = gradient(model)
    with by_hand(model, ((1, 1),), EDGES) as other:
        assert apart(got, gradient(other)) < 1e-6


def test_checkpointing_of_transformers_is_refused():
    model = tiny("llama").train()
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()
    with pytest.raises(ModelError, match="checkpointing"), block(model, edges=EDGES):
        model(**inputs()).last_hidden_state.sum().backward()
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_smollm2():
    loaded = models.load("smollm2")
    tokens = loaded.tokens(SENTENCE)
    arguments = loaded.inputs(tokens)
    edge = (tokens.pieces.index("they"), tokens.pieces.index("keys"))
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"heads": {"L13H8"}}, {"heads": ((13, 8),)}),
        ({"edges": [("they", "keys")], "tokens": tokens}, {"pairs": [edge]}),
    ]
    before = run(loaded.model, **arguments)[0]
    for asked, done in cases:
        with block(loaded.model, **asked), watch(loaded.model) as seen:
            got = run(loaded.model, **arguments)[0]
        with by_hand(loaded.model, **done) as other:
            expected = run(other, **arguments)[0]
        assert apart(got, expected) < 1e-5 * float(expected.abs().max())
        assert apart(got, before) > 1e-2
        assert len(seen) == 30
        assert (float(seen["L13H8"][edge].abs()) == 0) == ("edges" in asked)


# ---- code on torch's own functions -------------------------------------------------------------


def changed_by_hand(model: GPT, blocked: dict[int, Any]) -> GPT:
    other = copy.deepcopy(model).by_hand()
    for layer, part in enumerate(other.h):
        part["attn"].blocked = blocked.get(layer)  # type: ignore[index,union-attr]
    return other


@pytest.mark.parametrize("checkpoint", [False, True])
def test_gpt(checkpoint):
    torch.manual_seed(0)
    model, text = sharp(GPT(checkpoint=checkpoint)), ids()
    other = changed_by_hand(model, {0: ([1], [(5, 2)]), 1: ([], [(5, 2)])})
    found = []
    for one in (model, other):
        if one is model:
            with block(model, heads="L0H1", edges=[(5, 2)]):
                got = model(text)
                got.square().mean().backward()
        else:
            got = other(text)
            got.square().mean().backward()
        found.append((got, one.h[0]["attn"].c_attn.weight.grad))
    assert apart(found[0][0], found[1][0]) < 1e-5
    assert apart(found[0][1], found[1][1]) < 1e-5 * float(found[1][1].abs().max())


def test_fused_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    model = sharp(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x = torch.randn(2, 6, 16)
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[4, 1] = True
    before = model(x)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            with block(model, edges=[(4, 1)]):
                got = model(x)
            assert apart(got, model(x, mask=mask)) < 1e-5
            with block(model, heads={"L0H0"}), watch(model) as seen:
                got = model(x)
        assert len(seen) == 2
        assert apart(got, before) > 1e-3


def test_vision_transformer():
    torch.manual_seed(0)
    model, pictures = sharp(VisionTransformer()), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        keep = torch.ones(17, dtype=torch.bool)
        keep[5] = False
        with block(model, mask=only(keep)), watch(model) as seen:
            model(pictures)
    assert float(seen[1][..., 5].abs().max()) == 0
    assert apart(seen[1].sum(-1), torch.ones(2, 4, 17)) < 1e-5


# ---- with others -------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["own", "eyeline"])
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_watch_and_block_nest_in_any_order(family, kernel):
    model = tiny("llama") if family == "llama" else sharp(GPT())
    arguments = (inputs("left"),) if family == "llama" else (ids(),)

    def out() -> Tensor:
        with torch.no_grad():
            made = model(**arguments[0]) if family == "llama" else model(*arguments)
        found: Tensor = made if isinstance(made, Tensor) else made.last_hidden_state
        return found

    asked: dict[str, Any] = {"edges": {"L0": [(5, 4)], "L1H3": [(6, 5)]}, "heads": {"L1H0"}}
    with block(model, **asked):
        expected = out()
    with block(model, **asked), watch(model, kernel=kernel) as inner:
        within = out()
    with watch(model, kernel=kernel) as outer, block(model, **asked):
        around = out()
    with block(model, heads=asked["heads"]), block(model, edges=asked["edges"]):
        twice = out()
    with watch(model) as seen, block(model, heads={"L1H0"}), block(model, edges=asked["edges"]):
        thrice = out()
    for got in (within, around, twice, thrice):
        assert apart(got, expected, rows(arguments[0])[:, 0] if family == "llama" else None) < 1e-5
    for one in (inner, outer, seen):
        assert len(one) == 2
        assert [call.kernel for call in one.calls] == ["eyeline", "eyeline"]
        assert float(one[0][:, :, 5, 4].abs().max()) == 0
        assert float(one["L1H3"][:, 6, 5].abs().max()) == 0
        assert float(one["L1H2"][:, 6, 5].abs().min()) > 0


def test_blocks_of_a_part_and_of_another_model():
    model, other, text = sharp(GPT()), sharp(GPT()), ids()
    with torch.no_grad():
        before, apart_from_it = model(text), other(text)
        with block(model.h[1]["attn"], heads="L0H2"), watch(model) as seen, watch(other) as second:
            got = model(text)
            assert torch.equal(other(text), apart_from_it)
        with block(model, heads="L1H2"):
            assert torch.equal(got, model(text))
    assert len(seen) == len(second) == 2
    assert apart(got, before) > 1e-3


def test_everything_is_restored_after_an_exception():
    model = tiny("bert")
    before = run(model, **inputs())

    def stop(*_: Any) -> None:
        raise ZeroDivisionError

    hook = model.encoder.layer[1].register_forward_hook(stop)
    with pytest.raises(ZeroDivisionError), block(model, heads="L0H1"):
        run(model, **inputs())
    hook.remove()
    with pytest.raises(ZeroDivisionError), block(model, heads="L0H1"):
        raise ZeroDivisionError
    assert all(map(torch.equal, before, run(model, **inputs())))
    assert model.config._attn_implementation == "sdpa"


# ---- words and errors --------------------------------------------------------------------------


def test_words_are_all_of_their_pieces():
    loaded = models.load("minilm")
    tokens = loaded.tokens("Tokenization of keys: keys open tokenization.")
    word = next(
        span
        for span, label in zip(tokens.words().spans, tokens.words().labels, strict=True)
        if label == "Tokenization"
    )
    assert word[1] - word[0] > 1
    edges = [("Tokenization", "of")]
    with block(loaded.model, edges=edges, tokens=tokens), watch(loaded.model) as seen:
        run(loaded.model, **loaded.inputs(tokens))
    assert float(seen[0][0, :, word[0] : word[1], word[1]].to_dense().abs().max()) == 0
    cases = {
        ("keys", "of"): r"'keys' stands at tokens \d+, \d+",
        ("lock", "of"): "no word of the text is 'lock': '\\[CLS\\]', 'Tokenization', 'of'",
        (-1, 2): "count from 0",
        (1.5, 2): "a word or a token's number",
    }
    for edge, message in cases.items():
        with pytest.raises(ArgumentError, match=message):
            block(loaded.model, edges=[edge], tokens=tokens)
    with pytest.raises(ArgumentError, match="does not know the text"):
        block(loaded.model, edges=[("keys", "of")])
    with pytest.raises(ArgumentError, match="an edge is a pair"):
        block(loaded.model, edges=["they keys"], tokens=tokens)


def test_pieces_in_a_list():
    model, text = sharp(GPT()), ids(3)
    with block(model, edges=[("c", "a")], tokens=["a", "b", "c"]), watch(model) as seen:
        model(text)
    assert not seen[0][:, :, 2, 0].detach().count_nonzero()


def test_what_is_not_there_is_said():
    model = tiny("llama")
    with (
        pytest.raises(
            ModelError, match=r"no L1H9: layer 1 \(layers.1.self_attn\) has heads 0 to 3"
        ),
        block(model, heads="L1H9"),
    ):
        run(model, **inputs())
    with pytest.raises(ModelError, match="no L0H4"), block(model, edges={"L0H4": [(1, 0)]}):
        run(model, **inputs())
    absent = "no layer 7: layers 0 to 1 ran"
    with pytest.raises(ModelError, match=absent), block(model, heads="L7H0"):
        run(model, **inputs())
    unmet = r"no text had the tokens \(40, 2\)"
    with pytest.raises(ArgumentError, match=unmet), block(model, edges=[(40, 2)]):
        run(model, **inputs())
    with pytest.raises(ArgumentError, match="named like 'L13H8'"):
        block(model, heads={"13.8"})
    with pytest.raises(ArgumentError, match="takes names such as"):
        block(model, heads=None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="takes pairs such as"):
        block(model, edges=5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="'L3' names layer 3"):
        block(model, edges={"layer 3": [(1, 0)]})
    with pytest.raises(ArgumentError, match="a mask is of a layer"):
        block(model, mask={"L0H1": causal()})
    with pytest.raises(ModelError, match="met no attention"), block(model, heads="L0H0"):
        pass
    other = GPT().by_hand()
    with pytest.raises(ModelError, match="code of its own"), block(other, heads="L0H0"):
        other(ids())
    assert model.config._attn_implementation == "sdpa"
