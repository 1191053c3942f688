"""What a watch keeps: queries and keys, by reference where that keeps no more than they are."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from typing import Any

import pytest
import torch
import transformers
from torch.multiprocessing.reductions import StorageWeakRef

from eyeline.acting import block
from eyeline.errors import ModelError, StaleError
from eyeline.integrations import intercepted
from eyeline.masks import causal, from_tensor
from eyeline.seen import Call, Seen, watch
from tests.tiny import FAMILIES, SIZES, close, eager, inputs, run, tiny


def storages(seen: Seen) -> dict[int, int]:
    held = [t for call in seen.calls for t in (call.q, call.k, call.v) if t is not None]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}


@pytest.mark.parametrize("values", [False, True], ids=["", "values"])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_more_is_kept_than_what_is_asked_for(family, values):
    model, arguments = tiny(family), inputs()
    with watch(model, values=values) as seen:
        run(model, **arguments)
    held = [t for call in seen.calls for t in (call.q, call.k, call.v) if t is not None]
    assert len(held) == (6 if values else 4)
    assert sum(storages(seen).values()) == sum(t.nbytes for t in held)


@pytest.mark.parametrize("asked", [False, True], ids=["unasked", "asked"])
def test_what_is_kept_goes_with_seen_and_waits_for_no_collector(asked):
    model, arguments = tiny("llama"), inputs()
    with watch(model) as seen:
        run(model, **arguments)
    if asked:
        assert len(seen) == 2
    gc.collect()
    gc.disable()
    try:
        there = weakref.ref(seen)
        del seen
        assert there() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("asked", [False, True], ids=["unasked", "asked"])
def test_a_text_goes_when_the_next_one_is_read(asked):
    model, made, left = tiny("bert"), [], []
    first, last = (layer.attention.self for layer in model.encoder.layer)
    first.key.register_forward_hook(
        lambda *given: made.append(StorageWeakRef(given[2].untyped_storage()))
    )
    last.key.register_forward_hook(lambda *given: left.append(sum(not m.expired() for m in made)))
    with watch(model) as seen:
        for batch in (1, 2, 3):
            run(model, **inputs(batch=batch))
            if asked:
                assert seen[1].shape[0] == batch
        run(model, **inputs(length=7))
    assert left == ([1, 2, 2, 2] if asked else [1, 1, 1, 1])
    assert [weights.shape for weights in seen] == [(2, 4, 7, 7)] * 2


def test_a_fused_product_is_kept_whole_with_values_and_copied_without():
    model, made = tiny("gpt2"), []
    for layer in model.h:
        layer.attn.c_attn.register_forward_hook(lambda *given: made.append(given[2]))
    with watch(model, values=True) as seen:
        run(model, **inputs(), use_cache=False)
    fused = {t.untyped_storage().data_ptr() for t in made}
    assert storages(seen).keys() == fused
    with watch(model) as seen:
        run(model, **inputs(), use_cache=False)
    assert not storages(seen).keys() & {t.untyped_storage().data_ptr() for t in made}


def test_copies_have_gradients():
    model = tiny("gpt2")
    with watch(model) as seen:
        model(**inputs())
    seen[1][:, :, -1].square().sum().backward()
    assert float(model.h[0].attn.c_attn.weight.grad.abs().max()) > 0


# ---- memory that is written again ----------------------------------------------------------------


def stepped(family: str, mode: Any) -> tuple[Any, list[Call], torch.Tensor]:
    """A model that decodes into a static cache: what its first step was given, its ids."""
    config = transformers.AutoConfig.for_model(family, **SIZES[family])
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = inputs(length=14)["input_ids"]
    static = transformers.StaticCache(config=config, max_cache_len=20)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with mode(), watch(model) as seen:
        model(input_ids=ids[:, :8], **{name: static})
        first = seen.calls
    with mode():
        for at in range(8, 14):
            model(input_ids=ids[:, at : at + 1], **{name: static})
    return model, list(first), ids[:, :8]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_static_cache_may_be_written_again(family, mode):
    model, calls, ids = stepped(family, mode)
    expected = eager(model, input_ids=ids).attentions
    for call, dense in zip(calls, expected, strict=True):
        weights = call.weights()[..., :8]
        assert close(weights, dense, torch.ones(2, 1, 8).bool()) < 1e-5
        assert call.reused


def test_changes_after_the_call_are_told():
    model = tiny("llama")
    with watch(model) as seen:
        run(model, **inputs())
    before = seen[0]
    seen.calls[1].q.mul_(2)
    assert before[0, 0, 0].sum() > 0
    with pytest.raises(StaleError, match=r"layers\.1\.self_attn were changed in place"):
        seen[1]


def test_inference_tensors_are_kept_though_they_count_no_changes():
    model = tiny("gpt2")
    with torch.inference_mode(), watch(model) as seen:
        run(model, **inputs())
    assert seen.calls[0].q.is_inference()
    assert float(seen["L1H3"][:, -1].sum()) == pytest.approx(2.0)


# ---- the kernel's own inputs ---------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_under_autocast_the_kernel_s_inputs_are_kept(implementation):
    model, arguments = tiny("llama", implementation), inputs("left")
    with torch.autocast("cpu", torch.bfloat16):
        before = run(model, **arguments)
        with watch(model) as seen:
            during = run(model, **arguments)
    assert all(map(torch.equal, before, during))
    assert seen.calls[0].q.dtype == seen.calls[0].k.dtype == torch.bfloat16
    other = tiny("llama", "eager")
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = other(**arguments, output_attentions=True).attentions
    real = arguments["attention_mask"].bool()[:, None]
    for weights, dense in zip(seen, expected, strict=True):
        assert close(weights.float(), dense.float(), real) < 0.02


def test_the_door_gives_values_and_takes_another_output():
    model, arguments = tiny("llama"), inputs()
    calls: list[Call] = []

    def handle(call: Call, own: Any) -> torch.Tensor:
        calls.append(call)
        out = own()
        assert out.shape == (*call.q.shape[:3], call.v.shape[-1])
        return out if call.name == "layers.0.self_attn" else torch.zeros_like(out)

    before = run(model, **arguments)
    seen_by_layer: list[torch.Tensor] = []
    model.layers[1].self_attn.register_forward_hook(
        lambda *given: seen_by_layer.append(given[2][0])
    )
    with intercepted(model, handle, lambda: None, lambda missing: None):
        after = run(model, **arguments)
    assert [call.name for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert not seen_by_layer[0].any()
    assert not torch.equal(before[0], after[0])


# ---- changed in place ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [False, True])
def test_a_mask_that_was_changed_in_place_is_told(rule):
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, visible)

    model, x, visible = Masked(), torch.randn(1, 2, 5, 4), torch.ones(5, 5).bool().tril()
    with watch(model) as seen:
        if rule:
            with block(model, mask=from_tensor(visible)):
                model(x, torch.ones(5, 5).bool())
        else:
            model(x, visible)
    visible[:, 1] = False
    with pytest.raises(StaleError, match="mask"):
        seen[0]


def test_values_that_were_changed_in_place_are_told():
    x = torch.randn(1, 2, 5, 4)
    seen = Seen([Call("layer", x, x, x.clone())])
    seen.values(0).zero_()
    with pytest.raises(StaleError, match="values"):
        seen.values(0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda seen: pickle.loads(pickle.dumps(seen))])
def test_what_was_seen_can_be_copied(copied):
    x = torch.randn(1, 2, 5, 4).mul_(2)
    seen = Seen([Call("layer", x, x, mask=causal())])
    assert torch.equal(copied(seen)[0].to_dense(), seen[0].to_dense())
    x.add_(1)
    with pytest.raises(StaleError):
        copied(seen)


def test_inside_of_torch_func_a_watch_says_that_it_cannot_look():
    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    model, x = Own(), torch.randn(1, 2, 5, 4)
    for function in (torch.func.grad(lambda x: model(x).sum()), torch.func.vmap(model)):
        function(x)
        with pytest.raises(ModelError, match="without torch"), watch(model):
            function(x)
