"""After a watch everything is as it was before: compared attribute by attribute."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch.nn.modules import module as module_hooks
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from eyeline import block
from eyeline.errors import ModelError
from eyeline.seen import watch
from tests.test_watch_names import T5, made
from tests.tiny import STACKS, T, apart, inputs, run, same, tiny

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def state(model: Any) -> dict[str, Any]:
    """Everything that a watch could have touched, by its name."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            found[f"{path}.{name}"] = dict(value) if isinstance(value, dict) else id(value)
        config = getattr(module, "config", None)
        if isinstance(config, transformers.PreTrainedConfig):
            found[f"{path} config"] = whole(config)
    for registry in (AttentionInterface, AttentionMaskInterface):
        found[registry.__name__] = dict(registry._global_mapping)
    found["local"] = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    found["local masks"] = dict(ALL_MASK_ATTENTION_FUNCTIONS._local_mapping)
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        found[name] = dict(getattr(module_hooks, name))
    found["flags"] = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.get_num_threads(),
        len(torch.overrides._get_current_function_mode_stack()),
        len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
    )
    return found


def whole(config: Any) -> dict[str, Any]:
    inner = {name: whole(getattr(config, name)) for name in config.sub_configs}
    return {**config.__dict__, **inner}


def unchanged(model: Any, work: Callable[[], None]) -> None:
    before = state(model)
    work()
    after = state(model)
    assert before.keys() == after.keys()
    changed = [name for name in before if before[name] != after[name]]
    assert not changed


MODELS = {
    "llama": lambda: tiny("llama"),
    "gpt2 eager": lambda: tiny("gpt2", "eager"),
    "albert": lambda: tiny("albert"),
    "t5": lambda: made("t5", **T5),
    "falcon": lambda: made(
        "falcon", vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    ),
}


def arguments(name: str) -> dict[str, Any]:
    given = inputs("left")
    return {**given, "decoder_input_ids": given["input_ids"]} if name == "t5" else given


@pytest.mark.parametrize("kernel", ["own", "eyeline"])
@pytest.mark.parametrize("name", MODELS)
def test_after_a_block(name, kernel):
    model = MODELS[name]()

    def work() -> None:
        with watch(model, kernel=kernel) as seen:
            run(model, **arguments(name))
        assert len(seen)

    run(model, **arguments(name))  # what a first forward leaves behind is the model's own
    unchanged(model, work)


@pytest.mark.parametrize("name", MODELS)
def test_after_an_exception_in_a_layer(name):
    model = MODELS[name]()
    layers: list[torch.nn.Module] = [
        module for module in model.modules() if isinstance(module, torch.nn.ModuleList)
    ]

    def stop(*_: Any) -> None:
        raise ZeroDivisionError

    layers[0][-1].register_forward_hook(stop)

    def work() -> None:
        with pytest.raises(ZeroDivisionError), watch(model):
            run(model, **arguments(name))

    unchanged(model, work)
    unchanged(model, work)


def test_after_a_block_that_saw_nothing():
    model = tiny("llama")

    def work() -> None:
        with pytest.raises(ModelError), watch(model):
            pass

    unchanged(model, work)


def test_after_nested_blocks():
    model = tiny("llama", "eager")

    def work() -> None:
        with watch(model), watch(model, kernel="eyeline") as inner, watch(model):
            run(model, **inputs())
        assert len(inner) == 2

    unchanged(model, work)


@pytest.mark.parametrize("first", [watch, partial(block, heads="L0H0")])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_blocks_that_end_in_the_order_in_which_they_began(first, implementation):
    model = tiny("llama", implementation)
    expected = run(model, **inputs())

    def work() -> None:
        outer, inner = first(model), watch(model)
        outer.__enter__()
        seen = inner.__enter__()
        run(model, **inputs())
        outer.__exit__(None, None, None)
        assert same(run(model, **inputs()), expected)
        inner.__exit__(None, None, None)
        assert len(seen) == 2
        assert same(run(model, **inputs()), expected)

    unchanged(model, work)


def test_blocks_that_begin_and_end_in_several_threads():
    model = tiny("llama", "sdpa")
    expected = run(model, **inputs())
    found: list[bool] = []
    turn = threading.Lock()  # torch's hooks are not to be set while another thread runs the model

    def often() -> None:
        for _ in range(10):
            block = watch(model)
            with turn:
                block.__enter__()
            with turn:
                found.append(same(run(model, **inputs()), expected))
            with turn, suppress(ModelError):
                block.__exit__(None, None, None)

    def work() -> None:
        threads = [threading.Thread(target=often) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    unchanged(model, work)
    assert found == [True] * 30


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_no_copy_of_a_model_is_made_that_would_stay_watched(copied):
    model = tiny("llama")
    with watch(model):
        with pytest.raises(ModelError, match="outside of the block"):
            copied(model)
        run(model, **inputs())
    copied(model)


# ---- models that are set otherwise within the block ---------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_an_implementation_set_inside_is_used_seen_and_taken_back(nested):
    model, given = tiny("llama"), inputs("left")
    with_eager = run(tiny("llama", "eager"), **given)

    def work() -> None:
        with watch(model) as seen:
            if nested:
                with watch(model):
                    run(model, **given)
                    model.set_attn_implementation("eager")
                    assert same(run(model, **given), with_eager)
            else:
                run(model, **given)
                model.set_attn_implementation("eager")
                assert same(run(model, **given), with_eager)
            assert len(seen) == 2
        assert model.config._attn_implementation == "sdpa"

    unchanged(model, work)


def test_parts_that_are_set_apart_stay_apart():
    model = apart()
    given = {**inputs("right"), "pixel_values": torch.randn(1, 3, 16, 16)}

    def work() -> None:
        with watch(model):
            model.set_attn_implementation("eager")
            run(model, **given)

    unchanged(model, work)
    assert model.config.vision_config._attn_implementation == "sdpa"


def whisper() -> Any:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=60,
        num_mel_bins=8,
        max_source_positions=T,
        max_target_positions=40,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **STACKS,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    chosen = model.generation_config
    chosen.no_timestamps_token_id, chosen.alignment_heads = 30, [[1, 0], [1, 2]]
    chosen.is_multilingual = False
    chosen.suppress_tokens = chosen.begin_suppress_tokens = None
    chosen.max_length = None
    return model


def test_whisper_s_own_timestamps_leave_nothing_behind():
    model = whisper()
    frames = torch.randn(1, 8, 2 * T)

    def spoken() -> Any:
        with torch.no_grad():
            return model.generate(
                frames, return_token_timestamps=True, max_new_tokens=6, return_dict_in_generate=True
            )

    def work() -> None:
        with watch(model) as seen:
            found.append(spoken())
        assert set(seen.kinds) == {"self", "cross"}

    expected = spoken()
    assert model.config._attn_implementation == "eager"  # as transformers leaves it
    model.set_attn_implementation("sdpa")
    found: list[Any] = []
    unchanged(model, work)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(found[0]["sequences"], expected["sequences"])
    assert torch.equal(found[0]["token_timestamps"], expected["token_timestamps"])
