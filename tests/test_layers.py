"""SelfAttention and CrossAttention against the textbook's own class and against plain torch."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import eyeline
from eyeline.biases import alibi, alibi_slopes
from eyeline.errors import ArgumentError, MaskError, ShapeError
from eyeline.kv_cache import KVCache
from eyeline.layers import CrossAttention, SelfAttention
from eyeline.masks import prefix
from eyeline.positions import LinearScaling, Llama3, Rotary, YaRN


class SimpleSelfAttention(nn.Module):
    """The textbook's module: three projections, the scores, softmax, the weighted sum."""

    def __init__(self, embed_dim):
        super().__init__()
        self.embed_dim = embed_dim
        self.W_Q = nn.Linear(embed_dim, embed_dim)
        self.W_K = nn.Linear(embed_dim, embed_dim)
        self.W_V = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        Q, K, V = self.W_Q(x), self.W_K(x), self.W_V(x)
        scores = Q @ K.transpose(-2, -1) / self.embed_dim**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        attn_weights = scores.softmax(-1)
        return attn_weights @ V, attn_weights


def both(embed_dim=6):
    theirs, ours = SimpleSelfAttention(embed_dim), SelfAttention(embed_dim)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


class TestTheTextbooksModule:
    def test_parameters_are_its_and_no_others(self):
        theirs, ours = both()
        shapes = {name: p.shape for name, p in theirs.named_parameters()}
        assert {name: p.shape for name, p in ours.named_parameters()} == shapes
        assert list(ours.state_dict()) == list(theirs.state_dict())
        theirs.load_state_dict(SelfAttention(6).state_dict(), strict=True)
        torch.manual_seed(3)
        one = SimpleSelfAttention(6).state_dict()
        torch.manual_seed(3)
        other = SelfAttention(6).state_dict()  # drawn in the same order
        assert all(torch.equal(one[name], other[name]) for name in one)

    @pytest.mark.parametrize("shape", [(2, 5, 6), (5, 6), (1, 1, 6), (2, 3, 5, 6)])
    @pytest.mark.parametrize("masked", [False, True])
    def test_numbers_and_gradients_are_its(self, shape, masked):
        theirs, ours = both()
        x = torch.randn(shape)
        mask = torch.tril(torch.ones(shape[-2], shape[-2])) if masked else None
        one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected, expected_weights = theirs(one, mask)
        output, attn_weights = ours(two, mask)
        assert isinstance(attn_weights, eyeline.Weights)
        assert output.shape == shape
        assert attn_weights.shape == (*shape[:-1], shape[-2])
        torch.testing.assert_close(output, expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(attn_weights.to_dense(), expected_weights, atol=1e-6, rtol=0)
        up = torch.randn(shape)
        expected.backward(up)
        output.backward(up)
        torch.testing.assert_close(two.grad, one.grad, atol=1e-5, rtol=1e-5)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-5)

    def test_the_textbooks_three_words(self):
        """Seed 0, three words of four numbers: its weights, its output, and its causal mask."""
        torch.manual_seed(0)
        X = torch.randn(3, 4)
        layer = SelfAttention(4)
        torch.manual_seed(0)
        torch.randn(3, 4)
        for linear in (layer.W_Q, layer.W_K, layer.W_V):
            state = {"weight": torch.randn(4, 4).T, "bias": torch.zeros(4)}
            linear.load_state_dict(state)
        output, attn_weights = layer(X)
        expected = [[0.1845, 0.7254, 0.0900], [0.0205, 0.7694, 0.2101], [0.0143, 0.9323, 0.0535]]
        near = {"atol": 5e-5, "rtol": 0}
        torch.testing.assert_close(attn_weights + 0, torch.tensor(expected), **near)
        first = torch.tensor([-1.6479, -1.6206, 0.1005, 2.0153])
        torch.testing.assert_close(output[0], first, **near)
        _, masked = layer(X, torch.tril(torch.ones(3, 3)))
        expected = [[1, 0, 0], [0.0259, 0.9741, 0], [0.0143, 0.9323, 0.0535]]
        torch.testing.assert_close(masked + 0, torch.tensor(expected), **near)

    def test_a_rule_is_the_same_as_its_table(self):
        _, ours = both()
        x = torch.randn(2, 5, 6)
        rule, table = ours(x, eyeline.causal()), ours(x, torch.tril(torch.ones(5, 5)))
        torch.testing.assert_close(rule[0], table[0])
        nothing, weights = ours(x, torch.zeros(5, 5))
        assert nothing.abs().max() == 0
        assert weights.to_dense().abs().max() == 0

    def test_a_mask_of_the_wrong_kind_is_told(self):
        _, ours = both()
        with pytest.raises(MaskError, match="bias="):
            ours(torch.randn(2, 5, 6), torch.randn(5, 5))
        with pytest.raises(ShapeError, match="Tq = 5"):
            ours(torch.randn(2, 5, 6), torch.ones(4, 4))


# Every option in one or another; the plain computation below reads them from the layer.
OPTIONS = [
    {"num_heads": 1, "out_proj": True},
    {"num_heads": 1, "head_dim": 5, "value_dim": 7},
    {"num_heads": 2},
    {"num_heads": 4, "num_kv_heads": 2},
    {"num_heads": 4, "num_kv_heads": 1, "bias": False},
    {"num_heads": 3, "head_dim": 4, "value_dim": 2, "out_proj": False},
    {"num_heads": 2, "qk_norm": True},
    {"num_heads": 2, "rotary": Rotary(4, base=100.0)},
    {"num_heads": 1, "rotary": Rotary(8, scaling=YaRN(4.0, 16))},
    {"num_heads": 4, "num_kv_heads": 2, "rotary": Rotary(2, interleaved=True), "qk_norm": True},
]


def plainly(layer, x, context, visible=None, bias=None):
    """The layer's answer, in dense torch on its own weights."""

    def heads(t, count):
        return t.unflatten(-1, (count, -1)).movedim(-2, -3)

    q = heads(layer.W_Q(x), layer.num_heads)
    k = heads(layer.W_K(context), layer.num_kv_heads)
    v = heads(layer.W_V(context), layer.num_kv_heads)
    if layer.q_norm is not None:
        q = q * (q.square().mean(-1, keepdim=True) + torch.finfo(q.dtype).eps).rsqrt()
        k = k * (k.square().mean(-1, keepdim=True) + torch.finfo(q.dtype).eps).rsqrt()
    if layer.rotary is not None:
        q, k = layer.rotary(q), layer.rotary(k)
    group = layer.num_heads // layer.num_kv_heads
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = q @ k.mT / math.sqrt(layer.head_dim)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(-1)
    out = (weights @ v).movedim(-3, -2).flatten(-2)
    weights = weights.squeeze(-3) if layer.num_heads == 1 else weights
    return (out if layer.W_O is None else layer.W_O(out)), weights


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("lead", [(2,), ()], ids=["batch", "no batch"])
@pytest.mark.parametrize("masked", [False, True])
class TestOptions:
    def test_self_attention(self, options, lead, masked):
        layer = SelfAttention(8, **options).double()
        x = torch.randn(*lead, 7, 8, dtype=torch.float64)
        visible = torch.ones(7, 7).tril().bool() if masked else None
        out, weights = layer(x, eyeline.causal() if masked else None)
        expected, expected_weights = plainly(layer, x, x, visible)
        self.check(layer, (out, weights), (expected, expected_weights))
        size = 8 if layer.W_O is not None else layer.num_heads * layer.value_dim
        assert out.shape == (*lead, 7, size)

    def test_cross_attention(self, options, lead, masked):
        options = {name: value for name, value in options.items() if name != "rotary"}
        layer = CrossAttention(8, 5, **options).double()
        x = torch.randn(*lead, 3, 8, dtype=torch.float64)
        context = torch.randn(*lead, 6, 5, dtype=torch.float64)
        lengths = torch.tensor([4, 6])[: len(lead) * 2] if lead else 4
        visible = None
        if masked:
            visible = torch.arange(6) < torch.as_tensor(lengths)[..., None, None, None]
        out, weights = layer(x, context, eyeline.padding(lengths) if masked else None)
        expected = plainly(layer, x, context, visible if lead or not masked else visible[0])
        self.check(layer, (out, weights), expected)

    def check(self, layer, got, expected):
        assert isinstance(got[1], eyeline.Weights)
        for one, other in zip(got, expected, strict=True):
            other = other.squeeze(0) if other.dim() > one.dim() else other
            torch.testing.assert_close(one + 0, other)
        loss = got[0].square().sum() + eyeline.received(got[1]).values.square().sum()
        wanted = expected[0].square().sum() + expected[1].sum(-2).square().sum()
        parameters = list(layer.parameters())
        for one, other in zip(
            torch.autograd.grad(loss, parameters, allow_unused=True),
            torch.autograd.grad(wanted, parameters, allow_unused=True),
            strict=True,
        ):
            if other is not None:
                torch.testing.assert_close(one, other)


def test_when_there_is_an_output_projection():
    assert SelfAttention(8).W_O is None
    assert SelfAttention(8, out_proj=True).W_O is not None
    assert SelfAttention(8, 2).W_O is not None
    assert SelfAttention(8, 2, out_proj=False).W_O is None
    names = set(SelfAttention(8, 2, bias=False).state_dict())
    assert names == {"W_Q.weight", "W_K.weight", "W_V.weight", "W_O.weight"}


def test_a_bias_by_place():
    layer = SelfAttention(8, 4)
    x = torch.randn(2, 6, 8)
    slopes = alibi_slopes(4)
    far = (torch.arange(6) - torch.arange(6)[:, None]).abs()
    out, _ = layer(x, bias=alibi(slopes))
    torch.testing.assert_close(out, plainly(layer, x, x, bias=-slopes.view(4, 1, 1) * far)[0])


def test_a_table_for_each_batch_entry_and_more_leading_dimensions():
    layer = SelfAttention(8, 4, num_kv_heads=2).double()
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    seen = torch.rand(2, 3, 1, 5, 5) < 0.5
    seen[..., 0] = True
    for mask in (seen, seen.int()):
        out, weights = layer(x, mask)
        expected, dense = plainly(layer, x, x, seen)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(weights + 0, dense)


def test_dropout_is_of_training_alone():
    layer = SelfAttention(8, 2, dropout=0.5)
    x = torch.randn(2, 6, 8)
    one, two = layer(x), layer(x)
    assert not torch.equal(one[0], two[0])
    assert torch.equal(one[1].to_dense(), two[1].to_dense())  # weights are before dropout
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    torch.testing.assert_close(layer(x)[0], plainly(layer, x, x)[0])


ROTARIES = [None, Rotary(4), Rotary(2, scaling=LinearScaling(2.0)), Rotary(4, scaling=Llama3())]


@pytest.mark.parametrize("heads", [{"num_heads": 1, "head_dim": 4}, {"num_heads": 4}])
@pytest.mark.parametrize("rotary", ROTARIES, ids=["none", "rotary", "linear", "llama3"])
@pytest.mark.parametrize(("before", "first"), [(None, 0), (4, 2)])
def test_decoding_through_a_cache_is_one_pass(heads, rotary, before, first):
    layer = SelfAttention(16, **heads, rotary=rotary).double().eval()
    x = torch.randn(2, 17, 16, dtype=torch.float64)
    rule = eyeline.causal()
    if before is not None:
        rule = rule & (eyeline.window(before) | prefix(first))
    whole, weights = layer(x, rule)
    with torch.no_grad():
        cache, rows = KVCache(before, first), []
        for part in x.split([9] + [1] * 8, dim=1):
            out, last = layer(part, cache=cache)
            rows.append(out)
    torch.testing.assert_close(torch.cat(rows, dim=1), whole)
    torch.testing.assert_close(
        last[..., -1, :] + 0, (weights[..., -1, :] + 0)[..., cache.positions]
    )


def test_a_mask_beside_a_cache():
    layer = SelfAttention(8, 2).eval()
    x = torch.randn(1, 6, 8)
    cache = KVCache()
    layer(x[:, :4], cache=cache)
    out, _ = layer(x[:, 4:], eyeline.window(1), cache=cache)
    whole, _ = layer(x, eyeline.window(1) & eyeline.causal())
    torch.testing.assert_close(out, whole[:, 4:])
    cache.trim(4)
    table = torch.ones(2, 6, dtype=torch.bool)
    table[:, 0] = False
    out, _ = layer(x[:, 4:], table, cache=cache)
    whole, _ = layer(x, eyeline.causal() & eyeline.masks.only(torch.arange(6) > 0))
    torch.testing.assert_close(out, whole[:, 4:])


def test_left_padded_entries_by_their_own_positions():
    layer = SelfAttention(8, 2, rotary=Rotary(4)).eval()
    x = torch.randn(2, 5, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])
    mask = eyeline.causal() & eyeline.padding(torch.tensor([5, 3]), side="left")
    out, _ = layer(x, mask, positions=positions)
    alone, _ = layer(x[1:, 2:], eyeline.causal())
    torch.testing.assert_close(out[1:, 2:], alone)


def test_compiles_copies_and_pickles():
    layer = SelfAttention(8, 2, rotary=Rotary(4))
    x = torch.randn(2, 5, 8)
    expected = layer(x, eyeline.causal())[0]
    compiled = torch.compile(
        lambda x: layer(x, eyeline.causal())[0], fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(x), expected)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x, eyeline.causal())[0], expected)
    assert "num_kv_heads=2" in repr(SelfAttention(8, 4, num_kv_heads=2))


def test_autocast():
    layer = SelfAttention(8, 2)
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = layer(torch.randn(2, 5, 8))
    assert out.dtype == torch.bfloat16
    assert weights.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: SelfAttention(8, 3), ArgumentError, "embed_dim=8 is not a multiple"),
        (lambda: SelfAttention(8, 4, num_kv_heads=3), ArgumentError, "num_kv_heads=3"),
        (lambda: SelfAttention(8, 0), ArgumentError, "at least one"),
        (lambda: SelfAttention(8, 4, rotary=Rotary(4)), ArgumentError, "head_dim=2"),
        (lambda: SelfAttention(8)(torch.zeros(2, 7)), ShapeError, "embed_dim=8"),
        (lambda: SelfAttention(8)(torch.zeros(8)), ShapeError, "embed_dim=8"),
        (
            lambda: CrossAttention(8, 5)(torch.zeros(2, 8), torch.zeros(2, 8)),
            ShapeError,
            "context_dim=5",
        ),
        (
            lambda: CrossAttention(8)(torch.zeros(2, 8), torch.zeros(1, 2, 8)),
            ShapeError,
            "or neither",
        ),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()
