"""swap puts eyeline's attention into torch's own models: same outputs, same weights, and back."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from eyeline.errors import ModelError
from eyeline.layers import MultiheadAttention, swap

N, S, T, E = 3, 7, 5, 16
# What torch says of its own ways, with and without eyeline.
pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning"),
]

# True hides: entry 1 is two tokens shorter, entry 2 four.
PADDING = torch.arange(S) >= torch.tensor([[7], [5], [3]])


@pytest.fixture
def slow_path():
    """torch's Python path, which says what the model means for padded tokens too."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def encoder(batch_first=True, norm_first=False):
    layer = nn.TransformerEncoderLayer(
        E, 4, 32, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, 2)


def transformer(batch_first=True):
    return nn.Transformer(E, 4, 2, 2, 32, dropout=0.0, batch_first=batch_first)


def attentions(model):
    return [
        m for m in model.modules() if isinstance(m, (nn.MultiheadAttention, MultiheadAttention))
    ]


def kinds(model):
    return {type(m) for m in attentions(model)}


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.usefixtures("slow_path")
def test_encoder(training, grad, norm_first, padded, causal):
    model = encoder(norm_first=norm_first).train(training)
    x = torch.randn(N, S, E)
    mask = nn.Transformer.generate_square_subsequent_mask(S) if causal else None
    given = {"mask": mask, "is_causal": causal}
    given["src_key_padding_mask"] = PADDING if padded else None
    with torch.set_grad_enabled(grad):
        expected = model(x, **given)
        assert swap(model) is model
        close(model(x, **given), expected)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_fused_path_is_left(padded, batch_first):
    """In eval without gradients torch goes round the module; after swap it does not."""
    model = encoder(batch_first).eval()
    x = torch.randn(N, S, E) if batch_first else torch.randn(S, N, E)
    given = {"src_key_padding_mask": PADDING if padded else None}
    real = ~PADDING if padded else torch.ones(N, S, dtype=torch.bool)
    real = real if batch_first else real.T
    with torch.no_grad():
        expected = model(x, **given)
        swap(model)
        calls = []
        original = MultiheadAttention._projected

        def counted(self, *arguments):
            calls.append(self)
            return original(self, *arguments)

        MultiheadAttention._projected = counted
        try:
            close(model(x, **given)[real], expected[real])
        finally:
            MultiheadAttention._projected = original
        assert len(calls) == 2
        swap(model, back=True)
        assert torch.equal(model(x, **given), expected)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_transformer(training, batch_first, padded, causal):
    model = transformer(batch_first).train(training)
    src, tgt = torch.randn(N, S, E), torch.randn(N, T, E)
    if not batch_first:
        src, tgt = src.transpose(0, 1), tgt.transpose(0, 1)
    given = {}
    if padded:
        given = {"src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING}
        given["tgt_key_padding_mask"] = PADDING[:, :T]
    if causal:
        given["tgt_mask"] = nn.Transformer.generate_square_subsequent_mask(T)
        given["tgt_is_causal"] = True
    expected = model(src, tgt, **given)
    swap(model)
    assert kinds(model) == {MultiheadAttention}
    close(model(src, tgt, **given), expected)
    with torch.no_grad():
        close(model(src, tgt, **given), expected)


def test_training_goes_on_with_the_same_parameters():
    model = encoder()
    twin = swap(copy.deepcopy(model))
    x = torch.randn(N, S, E)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)]
    for m, optimizer in zip((model, twin), optimizers, strict=True):
        m(x, src_key_padding_mask=PADDING)[~PADDING].square().sum().backward()
        optimizer.step()
    for (name, one), (other_name, other) in zip(
        model.named_parameters(), twin.named_parameters(), strict=True
    ):
        assert name == other_name
        close(one, other)


def test_swap_keeps_parameters_mode_hooks_and_undoes_itself():
    model = transformer()
    parameters = dict(model.named_parameters())
    seen = []
    handle = model.decoder.layers[0].multihead_attn.register_forward_hook(lambda *_: seen.append(1))
    model.eval()
    swap(model)
    assert {name: id(p) for name, p in model.named_parameters()} == {
        name: id(p) for name, p in parameters.items()
    }
    assert not any(m.training for m in model.modules())
    x = torch.randn(N, S, E)
    model(x, x)
    assert seen == [1]
    handle.remove()
    model(x, x)
    assert seen == [1]
    assert swap(model) is model  # once is enough
    assert kinds(model) == {MultiheadAttention}
    swap(model, back=True)
    assert kinds(model) == {nn.MultiheadAttention}
    assert model.encoder.use_nested_tensor


def test_swapped_models_copy_and_pickle():
    model = swap(encoder()).eval()
    x = torch.randn(N, S, E)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert kinds(twin) == {MultiheadAttention}
        close(twin(x), model(x))
        swap(twin, back=True)
        assert kinds(twin) == {nn.MultiheadAttention}
        assert twin.use_nested_tensor
        close(twin(x), model(x))


def test_autocast():
    model = encoder().eval()
    x = torch.randn(N, S, E)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x, src_key_padding_mask=PADDING)
        got = swap(model)(x, src_key_padding_mask=PADDING)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got[~PADDING], expected[~PADDING], atol=0.05, rtol=0.05)


def test_compiles():
    model = swap(encoder()).eval()
    x = torch.randn(N, S, E)
    mask = nn.Transformer.generate_square_subsequent_mask(S)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    close(compiled(x, mask=mask, is_causal=True), model(x, mask=mask, is_causal=True))


@pytest.mark.parametrize("sizes", [{}, {"kdim": 3, "vdim": 5}, {"add_bias_kv": True}])
def test_a_module_by_itself(sizes):
    theirs = nn.MultiheadAttention(E, 4, batch_first=True, **sizes)
    q = torch.randn(N, T, E)
    k, v = torch.randn(N, S, theirs.kdim), torch.randn(N, S, theirs.vdim)
    expected = theirs(q, k, v)[0]
    ours = swap(theirs)
    assert type(ours) is MultiheadAttention
    close(ours(q, k, v)[0], expected)
    again = swap(ours, back=True)
    assert type(again) is nn.MultiheadAttention
    assert torch.equal(again(q, k, v)[0], expected)
    assert vars(again).keys() == vars(theirs).keys()


def test_made_here_it_goes_to_torch_too():
    ours = MultiheadAttention(E, 4, kdim=3, vdim=5)
    q, k, v = torch.randn(T, N, E), torch.randn(S, N, 3), torch.randn(S, N, 5)
    close(swap(ours, back=True)(q, k, v)[0], ours(q, k, v)[0])


def test_a_module_in_two_places_stays_one():
    shared = nn.MultiheadAttention(E, 4)
    model = nn.ModuleDict({"a": shared, "b": shared, "c": nn.ModuleList([shared])})
    swap(model)
    assert model["a"] is model["b"] is model["c"][0]
    assert type(model["a"]) is MultiheadAttention


def test_subclasses_stay():
    class Own(nn.MultiheadAttention):
        pass

    model = nn.ModuleList([Own(E, 4), nn.MultiheadAttention(E, 4)])
    swap(model)
    assert [type(m) for m in model] == [Own, MultiheadAttention]


def test_nothing_to_swap_is_said():
    with pytest.raises(ModelError, match=r"found no torch.nn.MultiheadAttention in Linear"):
        swap(nn.Linear(2, 2))
    model = encoder()
    assert swap(model, back=True) is model
    assert model.use_nested_tensor
