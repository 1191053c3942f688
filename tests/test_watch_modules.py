"""watch() on code that calls torch's own attention: nothing changes, and nothing is missed."""

from __future__ import annotations

import contextlib
import copy
import threading
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from eyeline import integrations
from eyeline.errors import ModelError
from eyeline.integrations import changing
from eyeline.layers import SelfAttention
from eyeline.seen import watch
from tests.torch_models import (
    GPT,
    LATER,
    PAD,
    Called,
    VisionTransformer,
    apart,
    encoder,
    ids,
    made,
    same,
    sharp,
    watched,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")

# ---- SDPA in code of others ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gpt(dtype):
    torch.manual_seed(0)
    model, text = sharp(GPT()).to(dtype), ids()
    with torch.no_grad():
        _, seen = watched(model, text)
        if dtype == torch.float32:
            model.by_hand()(text)
    assert seen.names == ("h.0.attn", "h.1.attn")
    assert seen.kinds == ("self", "self")
    if dtype == torch.float32:
        for block, weights in zip(model.h, seen, strict=True):
            assert apart(weights, block["attn"].dense) < 1e-5
        assert float(seen[1].amax(-1).mean()) > 0.5  # it is about something


def test_vision_transformer():
    torch.manual_seed(0)
    model, pictures = sharp(VisionTransformer()), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        _, seen = watched(model, pictures)
        model.by_hand()(pictures)
    assert seen.names == ("blocks.0", "blocks.1")
    for block, weights in zip(model.blocks, seen, strict=True):
        assert apart(weights, block.dense) < 1e-5


SHAPES = {
    "[T, D]": ((5, 8), (7, 8), {}),
    "[B, T, D]": ((3, 5, 8), (3, 7, 8), {}),
    "[B, T, D] and one of keys": ((3, 5, 8), (1, 7, 8), {}),
    "[B, H, T, D]": ((2, 3, 5, 8), (2, 3, 7, 8), {}),
    "one text of keys": ((2, 3, 5, 8), (1, 3, 7, 8), {}),
    "one head of keys": ((2, 3, 5, 8), (2, 1, 7, 8), {}),
    "one head of queries": ((2, 1, 5, 8), (2, 3, 7, 8), {}),
    "groups": ((2, 6, 5, 8), (2, 2, 7, 8), {"enable_gqa": True}),
    "groups and one text": ((2, 6, 5, 8), (1, 2, 7, 8), {"enable_gqa": True}),
    "5-D": ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), {}),
    "5-D broadcast": ((2, 3, 4, 5, 8), (3, 1, 7, 8), {}),
    "scale": ((2, 3, 5, 8), (2, 3, 7, 8), {"scale": 0.7}),
}
MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "keys": {"attn_mask": torch.tensor([[True, False] + [True] * 5])},
    "bool": {"attn_mask": torch.rand(5, 7) < 0.7},
    "float": {"attn_mask": torch.randn(5, 7)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_arguments_of_sdpa(shape, mask):
    queries, keys, more = SHAPES[shape]
    torch.manual_seed(0)
    q, k, v = torch.randn(queries), torch.randn(keys), torch.randn(*keys[:-1], 6)
    arguments = {**more, **MASKS[mask]}
    _, seen = watched(Called(**arguments), q, k, v)
    if more.get("enable_gqa"):
        k, v = (t.repeat_interleave(3, -3) for t in (k, v))
    expected = dense_weights(q, k, {**MASKS[mask], "scale": more.get("scale")})
    lead = expected.shape[:-2]
    four = {0: (1, 1), 1: (*lead, 1)}.get(len(lead), (-1, lead[-1] if lead else 1))
    assert apart(seen[0], expected.reshape(*four, 5, 7)) < 1e-5


def dense_weights(q: Tensor, k: Tensor, arguments: dict[str, Any]) -> Tensor:
    """SDPA's weights by its own documentation, as its output for values that pick keys."""
    scale = arguments["scale"] or q.shape[-1] ** -0.5
    scores = (q.double() @ k.double().mT) * scale
    mask = arguments.get("attn_mask")
    hidden = torch.zeros(5, 7, dtype=torch.bool)
    if arguments.get("is_causal"):
        hidden |= torch.ones(5, 7, dtype=torch.bool).triu(1)
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        scores = scores + mask
    return scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0).float()


def test_a_mask_beside_causal():
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    arguments = {"attn_mask": torch.rand(5, 7) < 0.7, "is_causal": True}
    try:
        Called(**arguments)(q, k, k)
    except RuntimeError:  # as torch does from 2.14 on
        with pytest.raises(RuntimeError, match="is_causal"), watch(model := Called(**arguments)):
            model(q, k, k)
        return
    _, seen = watched(Called(**arguments), q, k, k)
    assert apart(seen[0], dense_weights(q, k, {**arguments, "scale": None})) < 1e-5


@pytest.mark.parametrize("lead", [(2, 1), (1, 3), (2, 3), (1, 1)])
def test_masks_per_text_and_head(lead):
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    mask = torch.rand(*lead, 5, 7) < 0.8
    _, seen = watched(Called(attn_mask=mask), q, k, k)
    scores = (q @ k.mT / 8**0.5).masked_fill(~mask, -torch.inf)
    assert apart(seen[0], scores.softmax(-1).nan_to_num(0.0)) < 1e-5


def test_masks_of_5_dimensions():
    q, k = torch.randn(2, 3, 4, 5, 8), torch.randn(2, 3, 4, 7, 8)
    mask = torch.rand(3, 1, 5, 7) < 0.8
    _, seen = watched(Called(attn_mask=mask), q, k, k)
    scores = (q @ k.mT / 8**0.5).masked_fill(~mask, -torch.inf)
    assert apart(seen[0], scores.softmax(-1).nan_to_num(0.0).flatten(0, 1)) < 1e-5


def test_autocast():
    torch.manual_seed(0)
    model, text = sharp(GPT()), ids()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, seen = watched(model, text)
        q = torch.randn(1, 2, 5, 8)
        _, raw = watched(Called(), q, q, q)
    assert seen[0].dtype == raw[0].dtype == torch.bfloat16
    assert torch.equal(raw.calls[0].q, q.bfloat16())


# ---- kernel="eyeline" ------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
def test_eyelines_own_kernel(grad):
    x = torch.randn(2, 6, 16)
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (sharp(GPT()), (ids(),), {}),
        (encoder(), (x,), {"src_key_padding_mask": PAD}),
        (encoder(), (x,), {}),
        (made(), (x, x, x), {"attn_mask": LATER}),
        (made(), (x, x, x), {"attn_mask": LATER, "need_weights": False}),
        (Called(), (x, x[:1], x[:1]), {}),
        (Called(enable_gqa=True), (torch.randn(2, 3, 4, 5, 8), *[torch.randn(3, 2, 7, 8)] * 2), {}),
    ]
    for model, args, kwargs in cases:
        with torch.set_grad_enabled(grad):
            expected = model(*args, **kwargs)
            with watch(model, kernel="eyeline") as seen:
                got = model(*args, **kwargs)
        one, other = (t[0] if isinstance(t, tuple) else t for t in (expected, got))
        assert seen.kernel == "eyeline"
        assert one.shape == other.shape
        assert apart(one, other) < 1e-5


# ---- training --------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [False, True])
def test_gradients_stay_and_flow(checkpoint):
    torch.manual_seed(0)
    model, text = sharp(GPT(checkpoint=checkpoint)).train(), ids()

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(text).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    before = gradients()
    with watch(model) as seen:
        during = gradients()
    assert all(map(torch.equal, before, during))
    assert len(seen) == 2
    model.checkpoint = False
    with watch(model) as seen:
        model(text)
    model.zero_grad()
    seen[1][:, :, -1].square().sum().backward()
    own = model.h[0]["attn"].c_attn.weight.grad.clone()
    model.by_hand()(text)
    model.zero_grad()
    model.h[1]["attn"].dense[:, :, -1].square().sum().backward()
    expected = model.h[0]["attn"].c_attn.weight.grad
    assert float((own - expected).abs().max()) < 1e-6 + 1e-4 * float(expected.abs().max())


def test_gradients_of_multihead_attention():
    model, x = made(), torch.randn(2, 6, 16)
    for need_weights in (False, True):
        with watch(model) as seen:
            model(x, x, x, need_weights=need_weights)
        model.zero_grad()
        seen[0].square().sum().backward()
        own = model.in_proj_weight.grad.clone()
        model.zero_grad()
        model(x, x, x, average_attn_weights=False)[1].square().sum().backward()
        assert float((own - model.in_proj_weight.grad).abs().max()) < 1e-4


# ---- what is restored, and said ----------------------------------------------------------------


def test_exceptions_leave_nothing_behind():
    model = encoder()

    def stop(*_: Any) -> None:
        raise ZeroDivisionError

    hook = model.layers[1].linear1.register_forward_hook(stop)
    for grad in (False, True):
        with (
            torch.set_grad_enabled(grad),
            pytest.raises(ZeroDivisionError),
            watch(model),
        ):
            model(torch.randn(2, 6, 16))
    hook.remove()
    with torch.no_grad():
        watched(model, torch.randn(2, 6, 16))


def test_interruptions_leave_nothing_behind():
    model, x = encoder(), torch.randn(2, 6, 16)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for place in (model.layers[0].norm1, model.layers[1].linear2):
        hook = place.register_forward_hook(stop)
        for grad in (False, True):
            with torch.set_grad_enabled(grad), pytest.raises(KeyboardInterrupt), watch(model):
                model(x)
        hook.remove()
    assert _get_current_dispatch_mode_stack() == []
    assert not integrations._Heard._listening
    assert not changing._active
    for name, module in model.named_modules():
        assert {k: v for k, v in vars(module).items() if v is not before[name].get(k)} == {}
    with torch.no_grad():
        watched(model, x)


def test_an_exception_that_the_model_catches():
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()

        def forward(self, x: Tensor) -> Tensor:
            with contextlib.suppress(RuntimeError):
                self.encoder(x[..., :3])
            return self.encoder(x)

    with torch.no_grad():
        _, seen = watched(Catching(), torch.randn(2, 6, 16))
    assert seen.names == ("encoder.layers.0.self_attn", "encoder.layers.1.self_attn")


@pytest.mark.parametrize("order", [0, 1])
def test_watches_nest(order):
    model, text = sharp(GPT()), ids()
    inner = model.h[1]["attn"]
    first, second = (model, inner) if order else (inner, model)
    with torch.no_grad(), watch(first) as one, watch(second) as other:
        model(text)
    whole, part = (one, other) if order else (other, one)
    assert whole.names == ("h.0.attn", "h.1.attn")
    assert part.names == ("CausalSelfAttention",)
    assert apart(whole[1], part[0].to_dense()) == 0


def test_nested_watches_of_the_fused_encoder():
    model, x = encoder(), torch.randn(2, 6, 16)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            before = model(x)
            with watch(model) as outer, watch(model) as inner:
                assert same(before, model(x))
        assert outer.names == inner.names == ("layers.0.self_attn", "layers.1.self_attn")


def test_several_calls_of_one_module_are_numbered():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = made()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = self.attention(x, x, x)[0]
            return x

    _, seen = watched(Twice(), torch.randn(2, 6, 16))
    assert seen.names == ("attention", "attention#2")
    assert seen[0].shape == (2, 4, 6, 6)


def test_a_forward_called_as_a_method_keeps_its_name():
    model = sharp(GPT())
    with torch.no_grad(), watch(model) as seen:
        model.forward(ids())
    assert seen.names == ("h.0.attn", "h.1.attn")


def test_attention_by_hand_is_named():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.unseen = GPT(layers=1), GPT(layers=1).by_hand()

        def forward(self, text: Tensor) -> Tensor:
            return self.seen(text) + self.unseen(text)

    with torch.no_grad():
        _, seen = watched(Mixed().eval(), ids())
    assert seen.names == ("seen.h.0.attn",)
    assert [missing.name for missing in seen.missing] == ["unseen.h.0.attn"]
    with torch.no_grad(), pytest.raises(ModelError, match="code of its own"):
        watched(GPT().by_hand(), ids())


def test_models_of_transformers_that_call_torch_themselves():
    config = transformers.FalconConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=False
    )
    torch.manual_seed(0)
    model = transformers.FalconModel(config).eval()
    with torch.no_grad():
        before = model(ids()).last_hidden_state
        with watch(model) as seen:
            assert torch.equal(before, model(ids()).last_hidden_state)
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    other = transformers.FalconModel(config).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = other(ids(), output_attentions=True).attentions
    assert seen.names == ("h.0.self_attention", "h.1.self_attention")
    for weights, dense in zip(seen, expected, strict=True):
        assert apart(weights, dense) < 1e-5


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traced_modules_are_named():
    model, text = sharp(GPT()), ids()
    with torch.no_grad():
        part = model.h[1]["attn"]
        model.h[1]["attn"] = torch.jit.trace(part, torch.randn(2, 10, 32))
        with watch(model) as seen:
            model(text)
    assert seen.names == ("h.0.attn",)
    assert [missing.name for missing in seen.missing] == ["h.1.attn"]


def test_layers_of_eyeline_say_what_to_do():
    layer = SelfAttention(16)
    with pytest.raises(ModelError, match="returns its weights itself"), watch(layer):
        layer(torch.randn(2, 6, 16))


@pytest.mark.filterwarnings("ignore:.*jit.script.*:DeprecationWarning")
def test_compiled_models_are_refused():
    model = GPT()
    model.h[0]["attn"] = torch.compile(model.h[0]["attn"])
    with pytest.raises(ModelError, match=r"h\.0\.attn is compiled"), watch(model):
        pass
    with pytest.raises(ModelError, match="compiled"), watch(torch.compile(GPT())):
        pass
    model = GPT()
    model.compile()
    with pytest.raises(ModelError, match="compiled"), watch(model):
        pass


def test_other_threads_are_not_seen():
    model, text = sharp(GPT()), ids()

    def elsewhere() -> None:
        thread = threading.Thread(target=model, args=(text,))
        thread.start()
        thread.join()

    with pytest.raises(ModelError, match="thread"), watch(model):
        elsewhere()


def test_code_outside_of_the_model_is_left_alone():
    model, other, text = sharp(GPT()), sharp(GPT()), ids()
    q = torch.randn(1, 2, 5, 8)
    with torch.no_grad(), watch(model) as seen:
        model(text)
        other(text)
        F.scaled_dot_product_attention(q, q, q)
        made()(text[..., None].float().expand(-1, -1, 16), *[torch.zeros(2, 10, 16)] * 2)
    assert len(seen) == 2
