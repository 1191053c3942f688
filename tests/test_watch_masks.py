"""Masks of transformers are told as rules, and other masks taken as they are."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import masking_utils

from eyeline import masks
from eyeline.integrations.huggingface_masks import told
from eyeline.seen import watch
from tests.test_watch import Largest
from tests.tiny import T, close, eager, inputs, run, tiny


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


def blocks(edges: torch.Tensor) -> Any:
    """Causal, but for blocks that see all of themselves, as the patches of a picture do."""

    def inner(batch: Any, head: Any, query: Any, key: Any) -> Any:
        both = (edges[batch, query] == edges[batch, key]) & (edges[batch, query] >= 0)
        return (key <= query) | both

    return inner


@pytest.mark.parametrize("padding", [None, PADDED], ids=["whole", "padded"])
def test_an_unknown_mask_function_becomes_intervals(padding):
    edges = torch.tensor([[-1, 0, 0, 0, -1, 1, 1, -1, -1, -1], [-1] * 7 + [2] * 3])
    arguments = {
        "batch_size": 2,
        "q_length": 10,
        "kv_length": 10,
        "mask_function": blocks(edges),
        "attention_mask": padding,
    }
    rule = told(arguments)
    assert rule.known
    assert rule.mask is not None
    assert rule.mask.formula.startswith("intervals(")
    expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    assert torch.equal(lowered(rule, 2, 10, 10), expected)


def test_an_unknown_mask_function_is_never_queries_by_keys():
    length = 4096
    edges = torch.full((1, length), -1)
    edges[0, 100:356] = 0
    edges[0, 1000:1256] = 1
    arguments = {
        "batch_size": 1,
        "q_length": length,
        "kv_length": length,
        "mask_function": blocks(edges),
    }
    with Largest(length * length // 2) as largest:
        rule = told(arguments)
    assert largest.count == 0
    assert rule.known
    last = {"q_length": 8, "q_offset": 96, "kv_length": length, "batch_size": 1}
    few = masking_utils.sdpa_mask(**{**arguments, **last})
    lowest = rule.mask.lower((1, 1), length, length, torch.device("cpu"))
    assert torch.equal(lowest.rows(slice(96, 104)).tile().expand(few.shape), few)


def test_a_mask_of_many_runs_is_not_told():
    def own(batch, head, query, key):
        return key % 2 == query % 2

    arguments = {"q_length": 16, "kv_length": 16, "mask_function": own}
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


@pytest.mark.parametrize("kind", [torch.bool, torch.int64])
@pytest.mark.parametrize("nested", [False, True])
def test_eager_attention_adds_whatever_mask_it_is_given(kind, nested):
    model = tiny("llama", "eager")
    mask = torch.ones(T, T).tril()[None, None].to(kind)
    arguments = {**inputs(), "attention_mask": mask}
    expected = eager(model, **arguments).attentions
    with watch(model) if nested else nullcontext(), watch(model) as seen:
        run(model, **arguments)
    for weights, dense in zip(seen, expected, strict=True):
        assert close(weights, dense, torch.ones(1, 1, T).bool()) < 1e-5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_without_a_mask_nested_watches_see_what_one_sees(implementation):
    model, x = tiny("llama", implementation), torch.randn(1, T, 32)
    positions = model.rotary_emb(x, torch.arange(T)[None])
    with torch.no_grad(), watch(model) as outer, watch(model) as inner:
        model.layers[0](x, position_embeddings=positions)
    causally = 0.0 if implementation == "sdpa" else 1.0
    for seen in (outer, inner):
        assert float((seen[0][0, :, 0, 1:].detach() > 0).float().mean()) == causally


def test_plain_causal_and_padding_stay_rules():
    model = tiny("mistral")
    with watch(model) as seen:
        run(model, **inputs("left"))
    call = seen.calls[0]
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
