"""Weights over words and other spans, against the dense matrices R W C in float64."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch

import eyeline
from eyeline import masks, readings
from eyeline.errors import ArgumentError, DenseError, ShapeError
from eyeline.lazy import spanned
from eyeline.seen import Call, Seen
from eyeline.seen.words import SeenWords
from eyeline.spans import weights_over
from eyeline.tokens import assemble

WORDS = [(0, 1), (1, 4), (4, 6), (6, 7), (7, 11)]
MIXED = [[0, 5, 9], (2, 2), slice(1, 4), [10], [3, 4]]  # gaps, an empty one, an overlap
CASES = {"words": (WORDS, WORDS), "mixed": (MIXED, WORDS), "cols": (None, MIXED)}
MASKS = {
    "none": None,
    "causal": eyeline.causal(),
    "window": eyeline.causal() & eyeline.window(2),
    "scattered": masks.only(torch.arange(11) % 3 != 1),
}


def indicator(spans, size=11, mean=False):
    """[n, size], 1 (or 1 over the count) at the tokens of each span."""
    if spans is None:
        return torch.eye(size, dtype=torch.float64)
    made = torch.zeros(len(spans), size, dtype=torch.float64)
    for row, span in zip(made, spans, strict=True):
        at = slice(*span) if isinstance(span, tuple) else span
        row[at] = 1.0
        if mean:
            row /= row.sum().clamp(min=1)
    return made


def token_weights(mask=None, lead=(2, 4), dtype=torch.float64, **kwargs):
    torch.manual_seed(1)
    q = torch.randn(*lead, 11, 6, dtype=dtype) * 2
    k = torch.randn(*lead[:-1], 2, 11, 6, dtype=dtype) if lead else torch.randn(11, 6, dtype=dtype)
    return eyeline.weights(q.requires_grad_(), k, mask, **kwargs)


def both(case, mask, **kwargs):
    rows, cols = CASES[case]
    weights = token_weights(MASKS[mask], **kwargs)
    dense = indicator(rows, mean=True) @ weights.detach().to_dense().double()
    return weights_over(weights.detach(), rows, cols), dense @ indicator(cols).mT


@pytest.fixture(params=[1, spanned.BLOCK], ids=["row by row", "one block"], autouse=True)
def blocks(request, monkeypatch):
    monkeypatch.setattr(spanned, "BLOCK", request.param)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("case", CASES)
def test_every_part_is_that_of_the_dense_product(case, mask):
    words, dense = both(case, mask)
    assert words.shape == dense.shape
    same = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-13)
    same(words.to_dense(), dense)
    rows, cols = torch.tensor([2, 0, 2]), torch.tensor([[1, 0, 4]])
    keys = [
        (1, 2, 3), (1, 2, 3, 1), (..., 2), (..., slice(1, 4), 2), (..., rows, slice(None)),
        (..., slice(None), cols), (0, 3, rows, cols), (slice(None), 1, -1, -1), (1,),
        ([0, 1], [1, 2], 3), (0, 1, slice(0, 3), slice(2, 4)), (..., rows[:, None], cols),
    ]  # fmt: skip
    for key in keys:
        part = words[key]
        same(part.to_dense() if isinstance(part, eyeline.Weights) else part, dense[key])
    x, y = torch.randn(dense.shape[-1], 3).double(), torch.randn(4, dense.shape[-2], 2).double()
    same(words @ x, dense @ x)
    same(words.mT @ y, dense.mT @ y)
    same(words.sum(-1), dense.sum(-1))
    same(words.sum(-2), dense.sum(-2))
    same(words.mean(1).to_dense(), dense.mean(1))
    same(words.mean(1)[0, 2], dense.mean(1)[0, 2])
    same(words[:, [1, 3]].to_dense(), dense[:, [1, 3]])
    same(words.max(-1).values, dense.max(-1).values)
    same(words.max(-2).values, dense.max(-2).values)
    best, some = words.argmax(-1), dense.sum(-1) > 0
    assert best[~some].eq(-1).all() or mask == "none"
    same(dense.gather(-1, best.clamp(min=0)[..., None])[..., 0][some], dense.amax(-1)[some])


@pytest.mark.parametrize("mask", MASKS)
def test_readings_answer_for_words(mask):
    words, dense = both("words", mask)
    asked = [
        eyeline.entropy,
        eyeline.received,
        partial(eyeline.top, k=2),
        partial(readings.mass, spans={"two": (0, 2)}),
        partial(readings.pooled, rows=2, cols=2, reduce="max"),
        readings.distance,
        partial(readings.diagonal, offset=-1),
    ]
    entropy, received, top, mass, pooled, distance, diagonal = eyeline.read(words, *asked)
    torch.testing.assert_close(entropy.values, -torch.xlogy(dense, dense).sum(-1))
    torch.testing.assert_close(received.values, dense.sum(-2))
    torch.testing.assert_close(top.values, dense.topk(2).values)
    torch.testing.assert_close(mass.values[..., 0], dense[..., :2].sum(-1))
    torch.testing.assert_close(pooled.values[..., 1, 0], dense[..., 2:, :2].amax((-1, -2)))
    apart = (torch.arange(5)[:, None] - torch.arange(5)).abs()
    torch.testing.assert_close(distance.values, (dense * apart).sum(-1))
    torch.testing.assert_close(diagonal.values[..., 1:], dense.diagonal(-1, -2, -1))
    assert entropy.axes == ("batch", "head", "query")


def test_a_hidden_word_is_not_among_the_top():
    words, _ = both("words", "causal")
    found = eyeline.top(words, k=3)
    assert found.indices[0, 0, 0].tolist() == [0, -1, -1]
    assert eyeline.received(words, mean=True).values.shape == (2, 4, 5)


def test_rows_still_sum_to_one():
    words, _ = both("words", "causal", dtype=torch.float32)
    torch.testing.assert_close(words.sum(-1), torch.ones(2, 4, 5))
    bfloat = weights_over(token_weights(dtype=torch.bfloat16), WORDS, WORDS)
    assert bfloat.dtype == bfloat[0, 0, 1].dtype == torch.bfloat16


def test_gradients_reach_q():
    weights = token_weights(eyeline.causal(), lead=(1, 2))
    words = weights_over(weights, WORDS, WORDS)
    R, C = indicator(WORDS, mean=True), indicator(WORDS).mT
    x = torch.randn(5, 2).double()

    def of(entries, product, entropy, top):
        return entries.square().sum() + product.sin().sum() + entropy.sum() + top.sum()

    found = of(
        words[0, 1, :, 2], words @ x, eyeline.entropy(words).values, eyeline.top(words, 1).values
    )
    dense = R @ weights.to_dense() @ C
    spread = -(dense * dense.clamp(min=1e-300).log()).sum(-1)
    wanted = of(dense[0, 1, :, 2], dense @ x, spread, dense.amax(-1))
    torch.testing.assert_close(found, wanted)
    q = weights.problem.q
    (one,), (two,) = torch.autograd.grad(found, q), torch.autograd.grad(wanted, q)
    torch.testing.assert_close(one, two)
    with pytest.raises(ArgumentError, match="no gradient"):
        words.max(-2)


def test_a_hidden_key_never_leaks():
    q, k = torch.randn(2, 1, 1, 11, 4).unbind()
    clean = weights_over(eyeline.weights(q, k, eyeline.causal()), WORDS, WORDS).to_dense()
    k = k.clone()
    k[..., 8, :] = float("nan")
    words = weights_over(eyeline.weights(q, k, eyeline.causal()), WORDS, WORDS)
    torch.testing.assert_close(words.to_dense()[..., :4, :], clean[..., :4, :])
    assert words.to_dense()[..., 4, :].isnan().all()
    x = torch.randn(5, 2)
    x[4] = float("nan")
    assert (words @ x)[..., :4, :].isfinite().all()


def test_the_words_of_a_text():
    tokens = assemble("two keys", (0, 1, 2), ("two", "Ġke", "ys"), ((0, 3), (4, 6), (6, 8)))
    weights = eyeline.weights(torch.zeros(3, 2), torch.zeros(3, 2))
    words = weights_over(weights, tokens.words(), tokens.words())
    expected = torch.tensor([[1 / 3, 2 / 3], [1 / 3, 2 / 3]])
    torch.testing.assert_close(words.to_dense(), expected)
    x, memory = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    calls = [
        Call("self", x, x),
        Call("cross", x, memory, kind="cross"),
        Call("else", memory, memory),
    ]
    seen = Seen(calls)
    with pytest.raises(ArgumentError, match="to know the tokens"):
        SeenWords(seen)
    with pytest.raises(ArgumentError, match="which of them make a word"):
        SeenWords(seen, ["two", "ke", "ys"])
    seen.tokens = tokens
    found = SeenWords(seen)
    torch.testing.assert_close(found["L0H1"].to_dense(), expected)
    assert found[0].shape == found["self"].shape == (1, 2, 2, 2)
    assert found[1].shape == (1, 2, 2, 5)
    assert SeenWords(seen, cols=[(0, 5)])["cross"].shape == (1, 2, 2, 1)
    assert SeenWords(seen, [(0, 5)])[2].shape == (1, 2, 1, 1)
    assert found.labels == ("two", "keys")
    assert [len(found), *found.names] == [3, "self", "cross", "else"]
    with pytest.raises(ShapeError, match="of 3 tokens, and layer 2 has 5 queries"):
        found[2]


def test_it_prints_copies_and_pickles():
    words, dense = both("words", "causal")
    assert "over spans of 11 x 11 tokens · causal()" in repr(words)
    assert repr(words[0, 0]).startswith(repr(words[0, 0].to_dense()))
    for made in (copy.copy(words), copy.deepcopy(words), pickle.loads(pickle.dumps(words))):
        torch.testing.assert_close(made.to_dense(), dense)
    with pytest.raises(ArgumentError, match="of a token's row"):
        words.lse  # noqa: B018
    with pytest.raises(ArgumentError, match="ask the weights"):
        readings.max_score(words)
    torch.testing.assert_close(torch.sum(words, -2), dense.sum(-2))


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ("ab", "spans are a list"),
        ([(0, 12)], r"span 0 is \(0, 12\), and the tokens are 0..11"),
        ([[0], [11]], "span 1 names token 11, and there are 11"),
        ([[1, 1]], "names a token twice"),
        ([0.5], "give \\(start, stop\\)"),
    ],
)
def test_spans_that_cannot_be(spans, said):
    with pytest.raises(ArgumentError, match=said):
        weights_over(token_weights(), spans, spans)


def test_memory_does_not_grow_with_the_square():
    T = 20_000
    weights = eyeline.weights(*torch.randn(2, 1, 1, T, 4).unbind(), eyeline.causal())
    spans = [(i, i + 2) for i in range(0, T, 2)]
    words = weights_over(weights, spans, spans)
    with pytest.raises(DenseError, match="381 MiB"):
        words * 2
    torch.testing.assert_close(
        words[0, 0, 700], weights[0, 0, 1400:1402].to_dense().mean(0).view(-1, 2).sum(-1)
    )
    assert words[0, 0, 10:20, 5:9].shape == (10, 4)
