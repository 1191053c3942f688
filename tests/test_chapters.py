"""The two chapters on attention, line by line: A is the course page, B the section on QKV.

Each test has its line's number in its name, and uses the chapter's own names. Where the chapter
slips, the test holds the right number. All indices start at 0.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eyeline

ROOT = Path(__file__).parent.parent
SENTENCE = "I love NLP"


def chapter_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """A19's example: Q, K, V of three words of four numbers, by seed 0."""
    torch.manual_seed(0)
    X = torch.randn(3, 4)
    W_Q, W_K, W_V = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
    return X @ W_Q, X @ W_K, X @ W_V


def the_chapters_own(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A15 as it is printed, in plain torch."""
    scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return weights @ V, weights


# ---- A


def test_a2_a_dictionary() -> None:
    """Exact look-up fails for a word that is no entry; the soft one answers, near the nearest."""
    entries = {"cat": [1.0, 0.0], "dog": [0.9, 0.4], "car": [0.0, 1.0], "bus": [-0.4, 0.9]}
    K, V = torch.tensor(list(entries.values())), torch.eye(4)
    assert "kitten" not in entries
    kitten = torch.tensor([[0.98, 0.05]])
    found, weights = eyeline.attention(kitten, K, V, scale=8.0)
    assert list(entries)[int(weights.argmax(-1))] == "cat"
    torch.testing.assert_close(found.sum(), torch.tensor(1.0))
    exact, _ = eyeline.attention(K[:1], K, V, scale=1e4)  # sharp enough, it is the exact look-up
    assert exact.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_a7_projections_to_another_size() -> None:
    n, d_model, d_k = 3, 4, 6
    X, W_Q, W_K = torch.randn(n, d_model), torch.randn(d_model, d_k), torch.randn(d_model, d_k)
    W_V = torch.randn(d_model, d_model)
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V
    output, weights = eyeline.attention(Q, K, V)
    expected, theirs = the_chapters_own(Q, K, V)
    assert Q.shape == (n, d_k)
    assert output.shape == (n, d_model)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.to_dense(), theirs)


def test_a11_one_query_against_four_keys() -> None:
    """The figure's scores give 0.163 0.362 0.180 0.296, not the weights drawn beside them."""
    K, V = torch.tensor([[0.1], [0.9], [0.2], [0.7]]), torch.randn(4, 3)
    output, weights = eyeline.attention(torch.ones(1, 1), K, V, scale=1.0)
    torch.testing.assert_close(weights.scores()[0], K[:, 0])
    torch.testing.assert_close(
        weights[0], torch.tensor([0.163, 0.362, 0.180, 0.296]), atol=5e-4, rtol=0
    )
    torch.testing.assert_close(output[0], sum(weights[0, j] * V[j] for j in range(4)))


def test_a12_all_positions_at_once() -> None:
    Q, K, V = chapter_inputs()
    output, weights = eyeline.attention(Q, K, V)
    for i in range(3):
        alone, row = eyeline.attention(Q[i : i + 1], K, V)
        torch.testing.assert_close(output[i], alone[0])
        torch.testing.assert_close(weights[i], row[0])


def test_a14_self_and_cross() -> None:
    W_Q, W_K, W_V = (torch.randn(4, 4) for _ in range(3))
    encoder, decoder = torch.randn(5, 4), torch.randn(3, 4)
    _, own = eyeline.attention(decoder @ W_Q, decoder @ W_K, decoder @ W_V)
    crossed, cross = eyeline.attention(decoder @ W_Q, encoder @ W_K, encoder @ W_V)
    assert own.shape == (3, 3)
    assert cross.shape == (3, 5)
    expected, _ = the_chapters_own(decoder @ W_Q, encoder @ W_K, encoder @ W_V)
    torch.testing.assert_close(crossed, expected)


def test_a15_scaled_dot_product_attention_returns_both() -> None:
    assert eyeline.scaled_dot_product_attention is eyeline.attention
    Q, K, V = chapter_inputs()
    output, weights = eyeline.scaled_dot_product_attention(Q, K, V, mask=None)
    expected, theirs = the_chapters_own(Q, K, V)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights @ V, expected)
    torch.testing.assert_close(weights.to_dense(), theirs)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 1, 3), (2, 1, 2, 3)])
def test_a16_any_number_of_leading_dimensions(lead: tuple[int, ...]) -> None:
    Q, K, V = (torch.randn(*lead, 5, 4) for _ in range(3))
    output, weights = eyeline.scaled_dot_product_attention(Q, K, V)
    assert weights.shape == (*lead, 5, 5)
    expected, theirs = the_chapters_own(Q, K, V)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.to_dense(), theirs)


def test_a17_mask_0_is_weight_exactly_0() -> None:
    """And a row that sees nothing, NaN in the chapter's code, is 0."""
    Q, K, V = chapter_inputs()
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    assert the_chapters_own(Q, K, V, mask)[0][1].isnan().all()
    output, weights = eyeline.scaled_dot_product_attention(Q, K, V, mask)
    assert (weights.to_dense()[mask == 0] == 0).all()
    assert output[1].tolist() == [0, 0, 0, 0]
    expected, theirs = the_chapters_own(Q[[0, 2]], K, V, mask[[0, 2]])
    torch.testing.assert_close(output[[0, 2]], expected)
    torch.testing.assert_close(weights.to_dense()[[0, 2]], theirs)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    ],
)
def test_a18_a_mask_of_0_and_1_of_any_type(dtype: torch.dtype) -> None:
    Q, K, V = chapter_inputs()
    mask = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 1]])
    output, _ = eyeline.scaled_dot_product_attention(Q, K, V, mask.to(dtype))
    torch.testing.assert_close(output, the_chapters_own(Q, K, V, mask)[0])


A19_WEIGHTS = torch.tensor(
    [[0.1845, 0.7254, 0.0900], [0.0205, 0.7694, 0.2101], [0.0143, 0.9323, 0.0535]]
)
A19_OUTPUT = torch.tensor([-1.6479, -1.6206, 0.1005, 2.0153])


def test_a19_the_example_by_seed_0() -> None:
    Q, K, V = chapter_inputs()
    output, weights = eyeline.scaled_dot_product_attention(Q, K, V)
    expected, theirs = the_chapters_own(Q, K, V)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.to_dense(), theirs)
    torch.testing.assert_close(weights.to_dense(), A19_WEIGHTS, atol=5.1e-5, rtol=0)
    torch.testing.assert_close(output[0], A19_OUTPUT, atol=5.1e-5, rtol=0)


def test_a20_printing_shows_numbers_and_rows_sum_to_1() -> None:
    Q, K, V = chapter_inputs()
    output, attn = eyeline.scaled_dot_product_attention(Q, K, V)
    printed = str(attn)
    assert all(f"{x:.4f}" in printed for x in A19_WEIGHTS.flatten().tolist())
    torch.testing.assert_close(attn.sum(-1), torch.ones(3))
    assert output.shape == (3, 4)


def test_a21_attn_i_j() -> None:
    """n x n entries by plain indexing; nothing of that size is kept."""
    Q, K, V = chapter_inputs()
    _, attn = eyeline.scaled_dot_product_attention(Q, K, V)
    _, theirs = the_chapters_own(Q, K, V)
    for i in range(3):
        for j in range(3):
            torch.testing.assert_close(attn[i][j], theirs[i][j])
    n = 50_000
    long = eyeline.weights(torch.randn(n, 4), torch.randn(n, 4))
    assert long.problem.nbytes <= 2 * 4 * n * 4
    assert long.shape == (n, n)
    assert 0 < float(long[49_999][0]) < 1


class Copier(nn.Module):
    """One attention layer that predicts the next of V letters."""

    V, T, D = 5, 12, 24

    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.mask = mask
        self.letters, self.places = nn.Embedding(self.V, self.D), nn.Embedding(self.T, self.D)
        self.qkv, self.head = nn.Linear(self.D, 3 * self.D), nn.Linear(self.D, self.V)

    def forward(self, letters: Tensor) -> Tensor:
        T = letters.shape[1]
        x = self.letters(letters) + self.places.weight[:T]
        out, _ = eyeline.attention(*self.qkv(x).chunk(3, -1), self.mask)
        return self.head(out + x)


def noisy_text(lines: int, length: int) -> Tensor:
    """Each letter is the one before it plus 1, except that a quarter is drawn at random."""
    text = torch.randint(0, Copier.V, (lines, length))
    for t in range(1, length):
        follows = torch.rand(lines) < 0.75
        text[:, t] = torch.where(follows, (text[:, t - 1] + 1) % Copier.V, text[:, t])
    return text


def test_a22_without_the_mask_training_and_inference_differ() -> None:
    """Without it the loss falls below what can be known, and the next letter is guessed badly."""
    torch.manual_seed(0)
    results = {}
    for name, mask in (("masked", eyeline.causal()), ("unmasked", None)):
        model = Copier(mask)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(500):
            text = noisy_text(32, Copier.T + 1)
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            text = noisy_text(1000, 7)  # to generate is to have no next letter yet
            generating = F.cross_entropy(model(text[:, :-1])[:, -1], text[:, -1])
        results[name] = loss.item(), generating.item()
    knowable = -(0.8 * math.log(0.8) + 4 * 0.05 * math.log(0.05))  # 0.75 + 0.25 / 5 = 0.8
    assert abs(results["masked"][0] - knowable) < 0.2
    assert abs(results["masked"][1] - knowable) < 0.2
    assert results["unmasked"][0] < 0.3 * knowable  # it has read the answer
    assert results["unmasked"][1] > results["masked"][1] + 1  # where there is none to read


def test_a23_a_mask_prints_as_the_figure() -> None:
    picture = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    lines = eyeline.causal().draw(4).splitlines()
    assert [[int(c) for c in line.split()] for line in lines] == picture
    labelled = eyeline.causal().draw(3, labels=["I", "love", "NLP"])
    assert all(word in labelled for word in ("I", "love", "NLP"))
    assert "1" in repr(eyeline.causal())


def test_a24_tril_as_mask() -> None:
    Q, K, V = chapter_inputs()
    n = 3
    output, weights = eyeline.scaled_dot_product_attention(Q, K, V, torch.tril(torch.ones(n, n)))
    same, rule = eyeline.scaled_dot_product_attention(Q, K, V, eyeline.causal())
    torch.testing.assert_close(output, same)
    torch.testing.assert_close(weights.to_dense(), rule.to_dense())


def test_a25_the_mask_of_four_beside_three_words() -> None:
    Q, K, V = chapter_inputs()
    with pytest.raises(eyeline.errors.ShapeError) as refused:
        eyeline.scaled_dot_product_attention(Q, K, V, torch.tril(torch.ones(4, 4)))
    text = str(refused.value)
    assert "[4, 4]" in text
    assert "Tq = 3" in text
    assert "Tk = 3" in text
    _, weights = eyeline.scaled_dot_product_attention(Q, K, V, torch.tril(torch.ones(3, 3)))
    right = torch.tensor([[1, 0, 0], [0.0259, 0.9741, 0], [0.0143, 0.9323, 0.0535]])
    torch.testing.assert_close(weights.to_dense(), right, atol=5.1e-5, rtol=0)


def test_a26_the_upper_triangle_is_exactly_0() -> None:
    Q, K, V = chapter_inputs()
    _, weights = eyeline.scaled_dot_product_attention(Q, K, V, eyeline.causal())
    assert (weights.to_dense()[torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)] == 0).all()


# ---- B


def look() -> str:
    """`eyeline look` as a user runs it."""
    command = [sys.executable, "-m", "eyeline", "look", SENTENCE]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_b1_every_word_looks_at_others() -> None:
    """`eyeline look` says for each word where it looks most."""
    screen = look()
    assert all(word in screen for word in SENTENCE.split())


def test_b2_three_words_and_a_models_tokens() -> None:
    """Three words; MiniLM's own tokenizer makes six tokens of them."""
    from eyeline import models

    tokens = models.load("minilm").tokens(SENTENCE)
    assert len(tokens.ids) == 6
    words = tokens.words()
    assert [w for w, special in zip(words.labels, words.special) if not special] == SENTENCE.split()


@pytest.mark.slow
def test_b2_smollm2_makes_three_tokens() -> None:
    from eyeline import models

    assert len(models.load("smollm2").tokens(SENTENCE).ids) == 3


def test_b3_learnable_projections() -> None:
    """W_Q, W_K and W_V learn through attention."""
    W_Q, W_K, W_V = (nn.Linear(4, 4, bias=False) for _ in range(3))
    X = torch.randn(3, 4)
    output, _ = eyeline.attention(W_Q(X), W_K(X), W_V(X))
    output.square().sum().backward()
    mine = [W.weight.grad for W in (W_Q, W_K, W_V)]
    for W in (W_Q, W_K, W_V):
        W.weight.grad = None
    the_chapters_own(W_Q(X), W_K(X), W_V(X))[0].square().sum().backward()
    for W, grad in zip((W_Q, W_K, W_V), mine):
        assert grad is not None
        assert grad.abs().sum() > 0
        torch.testing.assert_close(grad, W.weight.grad)


def test_b7_scores_are_q_times_k() -> None:
    """Entry (i, j) = word i's attention to word j, before scale and softmax."""
    Q, K, _ = chapter_inputs()
    scores = eyeline.weights(Q, K, scale=1.0).scores()
    torch.testing.assert_close(scores, Q @ K.T)
    torch.testing.assert_close(scores[0, 1], Q[0] @ K[1])


def test_b11_softmax_per_row() -> None:
    Q, K, _ = chapter_inputs()
    weights = eyeline.weights(Q, K)
    dense = weights.to_dense()
    assert ((dense >= 0) & (dense <= 1)).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3))


def test_b12_the_rows_maximum_first() -> None:
    """[1000 1001 1002]: naive NaN, right 0.0900 0.2447 0.6652; the log-sum-exp is `weights.lse`."""
    scores = torch.tensor([1000.0, 1001.0, 1002.0])
    assert (scores.exp() / scores.exp().sum()).isnan().all()
    weights = eyeline.weights(torch.ones(1, 1), scores[:, None], scale=1.0)
    torch.testing.assert_close(
        weights[0], torch.tensor([0.0900, 0.2447, 0.6652]), atol=5.1e-5, rtol=0
    )
    torch.testing.assert_close(weights.lse, scores.logsumexp(-1, keepdim=True))


def test_b13_output_is_a_weighted_mean_of_all_values() -> None:
    Q, K, V = chapter_inputs()
    output, weights = eyeline.attention(Q, K, V)
    assert output.shape == (3, 4)
    torch.testing.assert_close(output, weights.to_dense() @ V)
    assert (output <= V.max(0).values + 1e-6).all()
    assert (output >= V.min(0).values - 1e-6).all()


def test_b14_the_formula_whole() -> None:
    Q, K, V = chapter_inputs()
    d_k = K.shape[-1]
    expected = torch.softmax(Q @ K.T / d_k**0.5, dim=-1) @ V
    torch.testing.assert_close(eyeline.attention(Q, K, V)[0], expected)


def test_b20_why_q_and_k_agree_in_size() -> None:
    sentence = (
        "q has D=64 and k has D=48. A score is a sum over d of q[d]·k[d], so both must have the "
        "same D: W_Q and W_K project into one space where questions and answers are compared. "
        "v may differ."
    )
    with pytest.raises(eyeline.errors.ShapeError) as refused:
        eyeline.attention(torch.randn(3, 64), torch.randn(3, 48), torch.randn(3, 48))
    assert sentence in str(refused.value)
    assert eyeline.attention(torch.randn(3, 64), torch.randn(3, 64), torch.randn(3, 48))[
        0
    ].shape == (3, 48)
