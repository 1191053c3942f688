"""MultiheadAttention against torch's own module, in float64, over every argument."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import eyeline
from eyeline.errors import ArgumentError, DtypeError, ShapeError
from eyeline.layers import MultiheadAttention

N, L, S, E, H = 2, 5, 6, 8, 2

CONSTRUCTORS = [
    dict(zip(("bias", "add_bias_kv", "add_zero_attn", "batch_first", "sizes"), values, strict=True))
    for values in itertools.product(
        *[[False, True]] * 4, [{}, {"kdim": 3, "vdim": 7}, {"kdim": 3}, {"vdim": E}]
    )
]
ATTN_MASKS = ["none", "bool", "float", "bool per head", "float per head", "causal"]
PADDINGS = ["none", "bool", "float", "float of 0 and -inf"]


def pair(options, dtype=torch.float64):
    options = dict(options)
    options.update(options.pop("sizes", {}))
    theirs = nn.MultiheadAttention(E, H, dtype=dtype, **options)
    for parameter in theirs.parameters():  # biases of 0 would hide a mistake
        nn.init.normal_(parameter)
    ours = MultiheadAttention(E, H, dtype=dtype, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


def inputs(module, batched, same=False):
    def made(tokens, size):
        shape = (tokens, size)
        if batched:
            shape = (N, tokens, size) if module.batch_first else (tokens, N, size)
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    return made(L, E), made(S, module.kdim), made(S, module.vdim)


def attn_mask(kind, batched):
    """Each row sees some key; masks of torch's meaning."""
    count = (N if batched else 1) * H
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(L, S).triu(1).bool()
    shape = (count, L, S) if kind.endswith("per head") else (L, S)
    if kind.startswith("float"):
        return torch.randn(shape, dtype=torch.float64)
    hidden = torch.rand(shape) < 0.4
    hidden[..., 0] = False
    return hidden


def padding(kind, batched):
    if kind == "none":
        return None
    hidden = torch.zeros(N, S, dtype=torch.bool)
    hidden[0, 4:] = True
    hidden[1, 2] = True
    hidden = hidden if batched else hidden[0]
    if kind == "bool":
        return hidden
    added = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    return added if kind.endswith("inf") else added + torch.randn_like(added)


def compared(got, expected):
    """Outputs, weights where both have them, and the gradients of both."""
    torch.testing.assert_close(got[0], expected[0])
    if expected[1] is None:
        assert got[1] is None
        return
    assert isinstance(got[1], eyeline.Weights)
    assert got[1].shape == expected[1].shape
    torch.testing.assert_close(got[1].to_dense(), expected[1])


@pytest.mark.filterwarnings("ignore:Support for mismatched")  # bool beside float: torch says so
@pytest.mark.parametrize("options", CONSTRUCTORS, ids=str)
@pytest.mark.parametrize("batched", [True, False], ids=["batch", "no batch"])
def test_every_argument_means_what_it_means_in_torch(options, batched):
    theirs, ours = pair(options)
    arguments = inputs(theirs, batched)
    for mask, pad, need, average in itertools.product(
        ATTN_MASKS, PADDINGS, [True, False], [True, False]
    ):
        if not need and not average:
            continue  # says nothing more
        given = {
            "attn_mask": attn_mask(mask, batched),
            "key_padding_mask": padding(pad, batched),
            "need_weights": need,
            "average_attn_weights": average,
        }
        compared(ours(*arguments, **given), theirs(*arguments, **given))


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("options", CONSTRUCTORS[::9] + CONSTRUCTORS[-3:], ids=str)
@pytest.mark.parametrize("mask", ATTN_MASKS)
@pytest.mark.parametrize("pad", PADDINGS)
def test_gradients_are_torchs(options, mask, pad):
    theirs, ours = pair(options)
    arguments = inputs(theirs, batched=True)
    mask, pad = attn_mask(mask, batched=True), padding(pad, batched=True)
    learned = [mask.requires_grad_()] if mask is not None and mask.is_floating_point() else []
    grads = []
    for module in (theirs, ours):
        out, weights = module(*arguments, attn_mask=mask, key_padding_mask=pad)
        loss = (
            out.square().sum() + (weights @ torch.arange(1.0, weights.shape[-1] + 1).double()).sum()
        )
        wanted = [*arguments, *module.parameters(), *learned]
        grads.append(torch.autograd.grad(loss, wanted, allow_unused=True))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_one_tensor_for_all_three(need, batched):
    theirs, ours = pair({"batch_first": True})
    x = torch.randn(*((N,) if batched else ()), L, E, dtype=torch.float64)
    compared(ours(x, x, x, need_weights=need), theirs(x, x, x, need_weights=need))
    mask = torch.ones(L, L).triu(1).bool()
    given = {"need_weights": need, "attn_mask": mask, "is_causal": True}
    compared(ours(x, x, x, **given), theirs(x, x, x, **given))


def test_a_rule_of_eyeline_says_who_is_seen():
    theirs, ours = pair({"batch_first": True})
    x = torch.randn(N, L, E, dtype=torch.float64)
    hidden = torch.ones(L, L).triu(1).bool()
    got, weights = ours(x, x, x, attn_mask=eyeline.causal())
    expected, _ = theirs(x, x, x, attn_mask=hidden)
    torch.testing.assert_close(got, expected)
    assert weights.problem.visible.dense is None  # no bits per pair


def test_masks_are_the_other_way_round():
    """True hides here and shows in eyeline.attention."""
    _, ours = pair({"batch_first": True})
    x = torch.randn(N, L, E, dtype=torch.float64)
    hidden = torch.rand(L, L) < 0.4
    _, weights = ours(x, x, x, attn_mask=hidden, average_attn_weights=False)
    q, k, _ = torch.nn.functional.linear(x, ours.in_proj_weight, ours.in_proj_bias).chunk(3, -1)
    q, k = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in (q, k))
    torch.testing.assert_close(weights + 0, eyeline.weights(q, k, ~hidden) + 0)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_that_see_nothing(kind, dtype):
    theirs, ours = pair({"batch_first": True}, dtype)
    x = torch.randn(N, L, E, dtype=dtype, requires_grad=True)
    hidden = torch.zeros(L, L, dtype=torch.bool)
    hidden[2] = True
    mask = hidden if kind == "bool" else torch.zeros(L, L).masked_fill(hidden, -torch.inf).to(dtype)
    out, weights = ours(x, x, x, attn_mask=mask)
    assert torch.equal(out[:, 2], ours.out_proj.bias.expand(N, E))  # every head gives 0
    assert weights[:, 2].abs().max() == 0
    out.float().square().sum().backward()
    for t in (x, *ours.parameters()):
        assert t.grad.isfinite().all()
    expected, _ = theirs(x, x, x, attn_mask=mask)
    assert expected[:, 2].isnan().all()  # what it is that eyeline does not do
    rest = [0, 1, 3, 4]
    torch.testing.assert_close(
        out[:, rest],
        expected[:, rest],
        atol=0.1 if dtype == torch.bfloat16 else 1e-5,
        rtol=1e-2 if dtype == torch.bfloat16 else 1e-5,
    )


def test_an_entry_that_is_all_padding():
    _, ours = pair({"batch_first": True})
    x = torch.randn(N, L, E, dtype=torch.float64, requires_grad=True)
    pad = torch.tensor([[False] * L, [True] * L])
    out, weights = ours(x, x, x, key_padding_mask=pad)
    assert out.isfinite().all()
    assert weights[1].to_dense().abs().max() == 0
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.isfinite().all()


@pytest.mark.parametrize("options", CONSTRUCTORS, ids=str)
def test_state_dicts_go_both_ways_and_start_alike(options):
    options = dict(options)
    options.update(options.pop("sizes"))
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(E, H, **options)
    torch.manual_seed(5)
    ours = MultiheadAttention(E, H, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)
    theirs.load_state_dict(ours.state_dict(), strict=True)


def test_dropout_is_of_training_alone():
    ours = MultiheadAttention(E, H, dropout=0.5, batch_first=True)
    x = torch.randn(N, L, E)
    assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    ours.eval()
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])


def test_long_texts_need_no_matrix():
    ours = MultiheadAttention(E, H, batch_first=True)
    x = torch.randn(1, 6000, E)
    with torch.no_grad():
        _, weights = ours(x, x, x, attn_mask=eyeline.causal())
    assert weights.shape == (1, 6000, 6000)
    assert weights[0, -1].sum().item() == pytest.approx(1, abs=1e-5)
    with pytest.raises(eyeline.errors.DenseError):
        weights * 2


def test_compiles():
    ours = MultiheadAttention(E, H, batch_first=True)
    x = torch.randn(N, L, E)
    hidden = torch.ones(L, L).triu(1).bool()
    compiled = torch.compile(
        lambda x: ours(x, x, x, attn_mask=hidden, need_weights=False)[0],
        fullgraph=True,
        backend="eager",
    )
    torch.testing.assert_close(compiled(x), ours(x, x, x, attn_mask=hidden)[0])


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"is_causal": True}, ArgumentError, "hint about attn_mask"),
        ({"attn_mask": torch.zeros(L, S + 1)}, ShapeError, r"here \[5, 6\], and got \[5, 7\]"),
        ({"attn_mask": torch.zeros(3, L, S)}, ShapeError, r"here \[4, 5, 6\]"),
        ({"key_padding_mask": torch.zeros(N, L)}, ShapeError, r"here \[2, 6\]"),
        ({"attn_mask": torch.zeros(L, S).long()}, DtypeError, "True hides"),
    ],
)
def test_errors(given, error, text):
    _, ours = pair({"batch_first": True})
    arguments = inputs(ours, batched=True)
    with pytest.raises(error, match=text):
        ours(*arguments, **given)


def test_more_errors():
    with pytest.raises(ArgumentError, match="num_heads=3"):
        MultiheadAttention(8, 3)
    ours = MultiheadAttention(E, H, add_zero_attn=True)
    x = torch.randn(L, E)
    with pytest.raises(ArgumentError, match="True where hidden"):
        ours(x, x, x, attn_mask=eyeline.causal())
    with pytest.raises(ShapeError, match="or none of them"):
        ours(x, x[None], x[None])
