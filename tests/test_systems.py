"""The three systems of `examples/`, trained for a short while: what they learn, and on what."""

from __future__ import annotations

import datetime
import math
import sys
from pathlib import Path

import pytest
import torch

import eyeline

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import bert
import blocks
import gpt
import textdata
import translation

pytestmark = pytest.mark.slow

CAUSAL = eyeline.causal()
GPT_STEPS, COPYING_STEPS, BERT_STEPS, DATE_STEPS = 120, 800, 200, 250  # of the short trainings


@pytest.fixture(scope="module")
def one_thread():
    """The minutes of these trainings are counted on one thread; so is the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained_gpt(one_thread):
    model = gpt.new()
    return model, gpt.fit(model, GPT_STEPS, CAUSAL)


@pytest.fixture(scope="module")
def copying_gpt(one_thread):
    model = gpt.new()
    return model, gpt.fit_copying(model, COPYING_STEPS)


@pytest.fixture(scope="module")
def trained_bert(one_thread):
    model = bert.new()
    return model, bert.fit(model, BERT_STEPS)


@pytest.fixture(scope="module")
def trained_translator(one_thread):
    model = translation.new()
    return model, translation.fit(model, DATE_STEPS)


def mean(losses):
    return sum(losses) / len(losses)


class TestText:
    def test_no_paragraph_is_in_two_parts(self):
        parts = textdata.split()
        paragraphs = [[textdata.words(p) for p in part.split("\n\n")] for part in parts]
        long = [{p for p in found if len(p) >= textdata.QUOTED} for found in paragraphs]
        assert min(map(len, long)) > 50
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert not long[i] & long[j]
        shares = [len(part) / sum(map(len, parts)) for part in parts]
        assert 0.05 < shares[1] < 0.2
        assert 0.05 < shares[2] < 0.2

    def test_characters_and_numbers_are_one_to_one(self):
        text = textdata.split().held_out[:500]
        assert textdata.decode(textdata.encode(text)) == text

    @pytest.mark.parametrize("n", [1, 3, 5])
    @pytest.mark.parametrize("context", ["", "e", "the ", "zqzq", "import "])
    def test_an_ngram_model_shares_out_one(self, n, context):
        model = textdata.ngram(n)
        shares = [
            model.probability(context[-(n - 1) :] if n > 1 else "", c) for c in textdata.alphabet()
        ]
        assert math.isclose(sum(shares), 1)
        assert min(shares) > 0

    def test_an_ngram_models_numbers_by_hand(self):
        model = textdata.NGram(2, textdata.counted("aab", longest=1))
        kinds = len(textdata.alphabet())
        one = (2 + 2 / kinds) / 5  # a: 2 of 3; two kinds follow nothing
        two = (1 + 2 * one) / 4  # after a: a once and b once
        assert math.isclose(model.probability("a", "a"), two)
        assert model.guess("b") == "a"

    def test_longer_contexts_tell_more(self):
        text = textdata.split().held_out[:5000]
        bits = [textdata.ngram(n).bits(text) for n in (1, 2, 3, 4)]
        assert bits == sorted(bits, reverse=True)
        alone, after = textdata.xz_bits()
        assert after < alone < 3.5


class TestSameOnSDPA:
    """One flag changes what computes attention, and not the curve."""

    @pytest.mark.parametrize(
        "curve",
        [
            lambda sdpa: gpt.fit(gpt.new(sdpa), 5, CAUSAL),
            lambda sdpa: gpt.fit(gpt.new(sdpa), 5, CAUSAL, copies=2),
            lambda sdpa: gpt.fit_copying(gpt.new(sdpa), 5),
            lambda sdpa: bert.fit(bert.new(sdpa), 5),
            lambda sdpa: translation.fit(translation.new(sdpa), 5),
        ],
        ids=["gpt", "gpt with copies", "gpt copying", "bert", "translation"],
    )
    def test_first_losses(self, one_thread, curve):
        ours, theirs = curve(False), curve(True)
        assert ours[-1] < ours[0]
        assert ours == pytest.approx(theirs, abs=1e-4)

    def test_it_is_sdpa_that_computes(self, monkeypatch):
        calls = []
        real = torch.nn.functional.scaled_dot_product_attention

        def counted(*given, **options):
            calls.append(options)
            return real(*given, **options)

        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
        ids = torch.zeros(1, 4, dtype=torch.int64)
        _, seen = gpt.new(sdpa=True)(ids, CAUSAL)
        assert len(calls) == len(seen) == 2
        assert seen == [None] * 2


class TestGPT:
    def test_it_learns(self, trained_gpt):
        model, losses = trained_gpt
        untrained = gpt.bits(gpt.new(), 4_000)
        found = gpt.bits(model, 4_000)
        assert untrained > 6
        assert found < textdata.ngram(2).bits(textdata.split().held_out[:4_000])
        assert mean(losses[-20:]) < 0.6 * mean(losses[:20])

    def test_the_cache_changes_nothing(self, trained_gpt):
        model, _ = trained_gpt
        texts = [gpt.generate(model, "The ", 60, temperature=0, cached=c) for c in (True, False)]
        assert texts[0] == texts[1]
        drawn = [gpt.generate(model, "The ", 60, cached=c) for c in (True, False)]
        assert drawn[0] == drawn[1]
        assert len(set(drawn[0])) > 5

    def test_the_cache_rolls(self, trained_gpt):
        assert len(gpt.generate(trained_gpt[0], "The ", 150)) == 154

    def test_without_the_mask_it_reads_what_it_should_guess(self, trained_gpt):
        """A22: the training loss falls further, and what was learned is of no use."""
        masked, losses = trained_gpt
        model = gpt.new()
        unmasked = gpt.fit(model, GPT_STEPS, None)
        assert unmasked[-1] < 0.5 * losses[-1]
        assert gpt.bits(model, 4_000) > gpt.bits(masked, 4_000) + 1

    def test_without_the_scale(self):
        """B10: scores are √d_k times as large, at first exactly."""
        scaled, not_scaled = gpt.new(), gpt.without_scale(gpt.new())
        x = torch.randn(1, 6, 128)
        layers = [model.blocks[0].attention for model in (scaled, not_scaled)]
        rows = [layer(x, CAUSAL)[1][0, 0, 5].log() for layer in layers]
        one, two = (row - row[0] for row in rows)
        torch.testing.assert_close(two, one * layers[0].head_dim ** 0.5, rtol=1e-3, atol=1e-3)

    def test_heads_that_look_one_back(self, trained_gpt, copying_gpt):
        before = gpt.previous(gpt.new())
        assert before.shape == (2, 2)
        assert before.max() < 0.1
        assert gpt.previous(trained_gpt[0]).max() > 0.2
        first_layer = gpt.previous(copying_gpt[0])[0]  # an induction head needs one below it
        assert first_layer.max() > 0.2

    def test_induction_heads(self, copying_gpt):
        """They look at what followed, wherever that was; nothing looks there without a repeat."""
        model, losses = copying_gpt
        assert mean(losses[-20:]) < 0.6 * mean(losses[:20])
        assert gpt.followed(gpt.new(), size=32).max() < 0.1
        assert gpt.followed(model, size=32, again=False).max() < 0.1
        first, second = gpt.followed(model, size=32).amax(-1)
        assert first < 0.1
        assert second > 0.4

    def test_what_induction_heads_are_for(self, copying_gpt, trained_gpt):
        assert gpt.copied(copying_gpt[0], size=32) > 0.6
        assert gpt.copied(copying_gpt[0], size=32, again=False) < 0.1
        assert gpt.copied(trained_gpt[0], size=32) < 0.1  # text alone did not bring them

    @pytest.mark.parametrize("size", [32, 128])
    def test_what_comes_twice(self, size):
        ids, some, back = gpt.twice(20, torch.Generator().manual_seed(0), size)
        assert ids.shape == (20, size)
        for row, distance in zip(ids, back):
            assert torch.equal(row[-some:], row[-some - distance : size - distance])
            assert len(row.unique()) == size - some
        assert len(set(back)) > 5  # so a fixed distance back is of no use

    def test_repeated_characters(self):
        ids = gpt.repeated(33, 50, torch.Generator().manual_seed(0), shortest=3, longest=16)
        periods = [next(p for p in range(1, 33) if torch.equal(row[p:], row[:-p])) for row in ids]
        assert set(periods) <= set(range(3, 17))
        assert len(set(periods)) > 8


class TestBERT:
    def test_what_is_hidden(self):
        ids = torch.arange(1000) % 50
        shown, targets = bert.hide(ids, torch.Generator().manual_seed(0))
        hidden = shown == len(textdata.alphabet())
        assert 100 < hidden.sum() < 200
        assert torch.equal(targets[hidden], ids[hidden])
        assert (targets[~hidden] == bert.NO_TARGET).all()
        assert torch.equal(shown[~hidden], ids[~hidden])

    def test_it_learns(self, trained_bert):
        model, losses = trained_bert
        assert mean(losses[-20:]) < 0.8 * mean(losses[:20])
        most_frequent = bert.ngram_accuracy(1, 8_000)
        assert bert.accuracy(bert.new(), characters=8_000) < most_frequent
        assert bert.accuracy(model, characters=8_000) > most_frequent + 0.05

    def test_the_screen_of_both_masks(self, trained_bert, capsys):
        bert.screen(trained_bert[0])
        both, causal = capsys.readouterr().out.split("causal mask (GPT)")
        assert causal.count("0.00 of it on later") == 4
        assert both.count("0.00 of it on later") < 4


class TestTranslation:
    def test_words_and_where_they_come_from(self):
        day = datetime.date(2026, 11, 29)
        chinese, english = (translation.translated(day, lang) for lang in ("zh", "en"))
        assert "".join(word for word, _ in chinese) == "二〇二六年十一月二十九日"
        assert " ".join(word for word, _ in english) == "November twenty-nine , twenty twenty-six"
        source = day.isoformat()
        places = ["".join(source[i] for i in where) for _, where in chinese]
        assert places == ["", "0", "2", "6", "", "11", "11", "", "29", "29", "29", ""]
        places = ["".join(source[i] for i in where) for _, where in english]
        assert places == ["11", "29", "", "20", "26"]
        tenth = translation.translated(datetime.date(2010, 10, 5), "zh")
        assert "".join(word for word, _ in tenth) == "二〇一〇年十月五日"

    def test_unseen_dates_are_not_trained_on(self, monkeypatch):
        encoded, real = [], translation.encode

        def counted(dates, languages):
            encoded.extend(dates)
            return real(dates, languages)

        monkeypatch.setattr(translation, "encode", counted)
        translation.fit(translation.new(), 3)
        assert len(encoded) > 300
        assert not set(encoded) & set(translation.unseen_dates())

    @pytest.mark.parametrize("language", ["zh", "en"])
    def test_it_learns_and_aligns(self, trained_translator, language):
        model, losses = trained_translator
        dates = translation.unseen_dates()[:200]
        assert mean(losses[-20:]) < 0.2 * mean(losses[:20])
        assert translation.exact(translation.new(), language, dates) == 0
        assert translation.exact(model, language, dates) > 0.5
        # by chance: at most two of the ten source tokens say a word
        assert translation.aligned(model, language, dates) > 0.5

    def test_the_cache_changes_nothing(self, trained_translator):
        model, _ = trained_translator
        languages = ["zh", "en"] * 10
        source, _ = translation.encode(translation.unseen_dates()[:20], languages)
        words = translation.translate(model, source, languages)
        with torch.no_grad():
            logits, _ = model(source, words[:, :-1])
        assert torch.equal(logits.argmax(-1), words[:, 1:])


@pytest.mark.parametrize("system", [gpt, bert, translation], ids=lambda m: m.__name__)
@pytest.mark.parametrize("flags", [[], ["--sdpa"]], ids=["eyeline", "sdpa"])
def test_each_prints_its_size_and_minutes(system, flags, capsys, one_thread):
    system.main(["--steps", "2", *flags])
    printed = capsys.readouterr().out
    assert "million parameters, 2 steps, 0." in printed
    assert "minutes" in printed


def test_parameters_are_those_said_on_the_page():
    page = (Path(__file__).resolve().parent.parent / "docs" / "systems.md").read_text("utf-8")
    for system in (gpt, bert, translation):
        assert blocks.size(system.new()) in page
