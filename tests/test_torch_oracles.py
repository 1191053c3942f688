"""PyTorch's own attention as an independent oracle, and eyeline inside PyTorch's machinery."""

from __future__ import annotations

import copy
import shutil
import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eyeline
from eyeline.functional import scaled_dot_product_attention
from tests.conformance import BACKENDS, inputs

MASKS = ["none", "bool", "float", "bool 4-D", "float broadcast", "causal"]


def arguments(mask: str, Tq: int, Tk: int, heads: int, dtype: torch.dtype) -> dict[str, Any]:
    if mask == "causal":
        return {"is_causal": True}
    shape = {"bool 4-D": (2, heads, Tq, Tk), "float broadcast": (heads, 1, Tk)}.get(mask, (Tq, Tk))
    allowed = torch.rand(shape) < 0.7
    allowed[..., 0] = True
    if mask == "none":
        return {}
    return {"attn_mask": allowed if "bool" in mask else torch.randn(shape, dtype=dtype)}


@pytest.mark.parametrize("gqa", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [(6, 6), (4, 9), (9, 4), (1, 5)])
def test_the_drop_in_is_torchs(
    sizes: tuple[int, int], mask: str, scale: float | None, gqa: bool
) -> None:
    """Values and gradients of every combination; is_causal is top-left for Tq != Tk."""
    q, k, v = inputs(*sizes, Hq=4, Hk=2 if gqa else 4, Dv=5, dtype=torch.float64)
    options = arguments(mask, *sizes, 4, q.dtype) | {"scale": scale, "enable_gqa": gqa}
    found = []
    for function in (scaled_dot_product_attention, F.scaled_dot_product_attention):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = function(*leaves, **options)
        assert isinstance(out, Tensor)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for mine, theirs in zip(*found):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_the_drop_in_takes_any_rank(rank: int) -> None:
    q, k, v = (torch.randn(*(2, 1, 3)[: rank - 2], n, 4, dtype=torch.float64) for n in (5, 7, 7))
    for options in ({}, {"is_causal": True}):
        mine = scaled_dot_product_attention(q, k, v, **options)
        torch.testing.assert_close(mine, F.scaled_dot_product_attention(q, k, v, **options))


def test_the_drop_in_refuses_what_torch_refuses() -> None:
    q, k, v = inputs(5, Hq=4, Hk=2)
    with pytest.raises((eyeline.errors.EyelineError, RuntimeError), match="enable_gqa"):
        scaled_dot_product_attention(q, k, v)


def test_mask_names_the_other_function() -> None:
    q, k, v = inputs(5)
    with pytest.raises(TypeError, match=r"eyeline\.attention"):
        scaled_dot_product_attention(q, k, v, mask=torch.ones(5, 5))  # type: ignore[call-arg]


def test_a_float_mask_of_0_and_1_warns_once() -> None:
    """torch adds it; whoever writes tril(ones) means something else."""
    q, k, v = inputs(5, Hq=2, Hk=2)
    ones = torch.tril(torch.ones(5, 5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = scaled_dot_product_attention(q, k, v, ones)
        scaled_dot_product_attention(q, k, v, ones)
        scaled_dot_product_attention(q, k, v, torch.randn(5, 5))
    texts = [str(w.message) for w in caught if "add" in str(w.message)]
    assert len(texts) == 1
    assert "eyeline.attention" in texts[0]
    torch.testing.assert_close(first, F.scaled_dot_product_attention(q, k, v, ones))


def test_dropout_p_drops() -> None:
    q, k, v = inputs(64, Hq=2, Hk=2)
    torch.manual_seed(1)
    once = scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(once, scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    assert not torch.allclose(once, F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal"])
def test_attention_is_torchs_sdpa(backend: str, mask: str) -> None:
    q, k, v = inputs(40, 50, Hq=4, Hk=2, dtype=torch.float64)
    theirs = arguments(mask, 40, 50, 4, q.dtype)
    given = theirs.get("attn_mask")
    mine: dict[str, Any] = {"causal": {"mask": eyeline.causal(offset=0)}, "none": {}}.get(
        mask, {"mask" if mask == "bool" else "bias": given}
    )
    out, _ = eyeline.attention(q, k, v, **mine, backend=backend)
    torch.testing.assert_close(
        out, F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **theirs)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", ["none", "hidden", "added", "padded"])
def test_weights_are_multihead_attentions(backend: str, rule: str) -> None:
    """The weights that nn.MultiheadAttention returns, head by head and averaged."""
    B, T, E, H = 2, 7, 12, 3
    layer = nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    x = torch.randn(B, T, E, dtype=torch.float64)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    numbers = torch.randn(T, T, dtype=torch.float64)
    pads = torch.arange(T) >= torch.tensor([[7], [4]])
    theirs: dict[str, Any] = {
        "none": {}, "hidden": {"attn_mask": hidden}, "added": {"attn_mask": numbers},
        "padded": {"key_padding_mask": pads, "attn_mask": hidden},
    }[rule]  # fmt: skip
    mine: dict[str, Any] = {
        "none": {}, "hidden": {"mask": eyeline.causal()}, "added": {"bias": numbers},
        "padded": {"mask": eyeline.causal() & eyeline.padding(torch.tensor([7, 4]))},
    }[rule]  # fmt: skip
    q, k, v = (
        part.unflatten(-1, (H, -1)).transpose(1, 2)
        for part in F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    )
    out, weights = eyeline.attention(q, k, v, **mine, backend=backend)
    expected, each = layer(x, x, x, average_attn_weights=False, **theirs)
    torch.testing.assert_close(layer.out_proj(out.transpose(1, 2).flatten(2)), expected)
    torch.testing.assert_close(weights.to_dense(), each)
    _, averaged = layer(x, x, x, **theirs)
    torch.testing.assert_close(weights.mean(1).to_dense(), averaged)


def test_weights_are_multi_head_attention_forwards() -> None:
    T, B, E, H = 5, 2, 8, 2
    x = torch.randn(T, B, E, dtype=torch.float64)
    W, b = torch.randn(3 * E, E, dtype=torch.float64), torch.randn(3 * E, dtype=torch.float64)
    P, c = torch.randn(E, E, dtype=torch.float64), torch.randn(E, dtype=torch.float64)
    _, theirs = F.multi_head_attention_forward(
        x, x, x, E, H, W, b, None, None, False, 0.0, P, c, average_attn_weights=False
    )
    assert theirs is not None
    q, k, _ = (p.unflatten(-1, (H, -1)).permute(1, 2, 0, 3) for p in F.linear(x, W, b).chunk(3, -1))
    torch.testing.assert_close(eyeline.weights(q, k).to_dense(), theirs)


# ---- torch.compile, autocast, modes, copies, threads


class Block(nn.Module):
    """One attention with its projections; the weights are returned and used outside."""

    def __init__(self, E: int = 8, H: int = 2) -> None:
        super().__init__()
        self.H = H
        self.qkv = nn.Linear(E, 3 * E)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, eyeline.Weights]:
        q, k, v = (p.unflatten(-1, (self.H, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        mask = eyeline.causal() & eyeline.window(3)
        if lengths is not None:
            mask = mask & eyeline.padding(lengths)
        out, weights = eyeline.attention(q, k, v, mask)
        return out.transpose(1, 2).flatten(2) * 2, weights


def compiled_equals_eager(engine: str, *extra: Tensor) -> None:
    block, x = Block(), torch.randn(2, 6, 8)
    expected, weights = block(x, *extra)
    compiled = torch.compile(block, fullgraph=True, backend=engine)
    out, lazy = compiled(x, *extra)
    torch.testing.assert_close(out, expected)
    assert isinstance(lazy, eyeline.Weights)
    assert isinstance(lazy, Tensor)
    torch.testing.assert_close(lazy.to_dense(), weights.to_dense())
    torch.testing.assert_close(lazy[0, 1, -1], weights[0, 1, -1])
    torch.testing.assert_close(eyeline.entropy(lazy).values, eyeline.entropy(weights).values)
    slopes = []
    for o, w in ((out, lazy), (expected, weights)):
        block.zero_grad()
        (o.square().sum() + eyeline.entropy(w).values.sum()).backward()
        assert block.qkv.weight.grad is not None
        slopes.append(block.qkv.weight.grad.clone())
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("engine", ["eager", "aot_eager"])
def test_compile_fullgraph(engine: str) -> None:
    torch._dynamo.reset()
    compiled_equals_eager(engine)
    torch._dynamo.reset()
    compiled_equals_eager(engine, torch.tensor([6, 4]))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_compile_with_inductor() -> None:
    torch._dynamo.reset()
    compiled_equals_eager("inductor")


def test_compile_takes_a_bool_mask_and_options() -> None:
    torch._dynamo.reset()
    q, k, v = inputs(6, 9, Hq=4, Hk=2)
    seen, bias, sinks = torch.rand(6, 9) < 0.6, torch.randn(4, 1, 9), torch.randn(4)

    def call(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return eyeline.attention(q, k, v, seen, bias=bias, sinks=sinks, softcap=3.0, scale=0.5)[0]

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, seen), call(q, k, v, seen))


def test_compile_of_the_drop_in() -> None:
    torch._dynamo.reset()
    q, k, v = inputs(6, Hq=2, Hk=2)
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(compiled(q, k, v, is_causal=True), expected)


def test_autocast_in_a_module() -> None:
    block, x = Block(), torch.randn(2, 6, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = block(x)
    assert out.dtype == torch.bfloat16
    assert weights.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), block(x)[0], atol=0.05, rtol=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = inputs(6, Hq=2, Hk=2)
        assert scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
    out.float().sum().backward()
    assert block.qkv.weight.grad is not None
    assert block.qkv.weight.grad.isfinite().all()


def test_a_module_in_eval_is_the_same_twice() -> None:
    block, x = Block().eval(), torch.randn(2, 6, 8)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            (one, _), (two, _) = block(x), block(x)
        assert torch.equal(one, two)


def test_deepcopy_of_a_module_that_kept_its_weights() -> None:
    block = Block()
    _, block.seen = block(torch.randn(2, 6, 8))  # type: ignore[assignment]
    block.seen = block.seen.detach()
    again = copy.deepcopy(block)
    torch.testing.assert_close(again.seen.to_dense(), block.seen.to_dense())


def test_threads_compute_what_one_does() -> None:
    block = Block().eval()
    xs = [torch.randn(2, 40 + i, 8) for i in range(6)]
    expected = [block(x)[0].detach() for x in xs]
    found: dict[int, Tensor] = {}

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = block(xs[i])[0].detach()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, out in enumerate(expected):
        torch.testing.assert_close(found[i], out)
