"""Tokens are readable, and words cover them."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers import models as kinds

from eyeline import models, tokens
from eyeline.errors import ModelError


def byte_level() -> Tokenizer:
    """A byte-level tokenizer that knows a few merges: what GPT-2, Llama 3 and Qwen do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = "<|end|>"
    vocabulary = {token: i for i, token in enumerate([special, *alphabet])}
    merges = [("k", "e"), ("y", "s"), ("ke", "ys"), ("Ġ", "keys"), ("ä", "½"), ("å", "¥")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(kinds.BPE(vocab=vocabulary, merges=merges, unk_token=special))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False)])
    return tokenizer


def untrimmed() -> Tokenizer:
    """The same with the space before a word counted to its offsets."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return models.load("minilm").tokenizer


def covered(found: tokens.Tokens) -> tokens.Words:
    words = found.words()
    places = [i for first, stop in words.spans for i in range(first, stop)]
    assert places == list(range(len(found)))
    assert len(words.labels) == len(words.spans) == len(words.special) == len(words.unknown)
    return words


def labels(tokenizer: Tokenizer, text: str) -> list[str]:
    found = covered(tokens.encode(tokenizer, text))
    return [
        label for label, special in zip(found.labels, found.special, strict=True) if not special
    ]


def test_parts_of_a_character_are_marked():
    found = tokens.encode(byte_level(), "你好🙂")
    assert found.pieces == (
        "你⟨1/2⟩",
        "你⟨2/2⟩",
        "好⟨1/2⟩",
        "好⟨2/2⟩",
        "🙂⟨1/4⟩",
        "🙂⟨2/4⟩",
        "🙂⟨3/4⟩",
        "🙂⟨4/4⟩",
    )
    assert covered(found).labels == ("你", "好", "🙂")


@pytest.mark.parametrize("tokenizer", [byte_level(), untrimmed()], ids=["trimmed", "untrimmed"])
def test_space_marks_do_not_show(tokenizer):
    found = tokens.encode(tokenizer, "a keys")
    assert found.pieces == ("a", "keys")
    assert covered(found).spans == ((0, 1), (1, 2))


@pytest.mark.parametrize("tokenizer", [byte_level(), untrimmed()], ids=["trimmed", "untrimmed"])
def test_words_end_at_spaces_and_punctuation(tokenizer):
    assert labels(tokenizer, "The keys don't fit, they're 3.14 heavy...") == [
        "The",
        "keys",
        "don't",
        "fit",
        ",",
        "they're",
        "3.14",
        "heavy",
        "...",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a<b<c </script><b>x",
            ["a", "<", "b", "<", "c", "<", "/", "script", ">", "<", "b", ">", "x"],
        ),
        ('say "hi"', ["say", '"', "hi", '"']),
        ("naïve café", ["naïve", "café"]),
        ("foo_bar(1)", ["foo_bar", "(", "1", ")"]),
        ("line\n\nnext\tone", ["line", "↵↵", "next", "⇥", "one"]),
        ("I ❤️ U 👩‍👩‍👧 👍🏽", ["I", "❤️", "U", "👩‍👩‍👧", "👍🏽"]),
        ("吃饭 ok", ["吃", "饭", "ok"]),
        ("", []),
        (" ", ["␣"]),
    ],
)
def test_words_of_many_kinds(text, expected):
    assert labels(byte_level(), text) == expected
    assert labels(untrimmed(), text) == expected


def test_special_tokens_are_words_of_their_own():
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A <|end|>", special_tokens=[("<|end|>", 0)]
    )
    found = tokens.encode(tokenizer, "ab")
    assert found.pieces == ("<|end|>", "a", "b", "<|end|>")
    assert found.special == (True, False, False, True)
    assert not any(found.unknown)
    assert covered(found).labels == ("<|end|>", "ab", "<|end|>")


def test_special_tokens_that_the_text_spells_out_are_text(minilm):
    tokenizer = byte_level()
    assert labels(tokenizer, "a <|end|>") == ["a", "<", "|", "end", "|", ">"]
    assert tokenizer.encode("<|end|>").ids == [0]  # it reads as before
    found = tokens.encode(minilm, "[CLS] a [MASK] b [UNK]")
    assert found.pieces[:5] == ("[CLS]", "[", "CL", "S", "]")
    assert found.special == (True, *(False,) * (len(found) - 2), True)
    assert not any(found.unknown)
    words = covered(found).labels
    assert words == ("[CLS]", "[", "CLS", "]", "a", "[", "MASK", "]", "b", "[", "UNK", "]", "[SEP]")


def test_minilm_marks_its_ends_and_what_it_does_not_know(minilm):
    found = tokens.encode(minilm, "I love 好 NLP")
    assert found.pieces == ("[CLS]", "I", "love", "好", "NL", "P", "[SEP]")
    assert found.special == (True, *(False,) * 5, True)
    assert found.unknown == (False, False, False, True, False, False, False)
    words = covered(found)
    assert words.labels == ("[CLS]", "I", "love", "好", "NLP", "[SEP]")
    assert words.unknown == (False, False, False, True, False, False)
    assert words.special == (True, False, False, False, False, True)


def test_long_texts_are_not_cut_and_the_tokenizer_stays_as_it_was(minilm):
    minilm.enable_truncation(max_length=8)
    minilm.enable_padding(length=16)
    found = tokens.encode(minilm, "word " * 300)
    assert len(found) == 302
    assert minilm.truncation["max_length"] == 8
    assert minilm.padding["length"] == 16
    minilm.no_truncation()
    minilm.no_padding()


def test_tokenizers_of_transformers_are_taken(minilm):
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(tokenizer_object=minilm, unk_token="[UNK]")
    assert tokens.encode(wrapped, "I love 好") == tokens.encode(minilm, "I love 好")


def test_a_tokenizer_without_offsets_is_refused():
    with pytest.raises(ModelError, match="offsets of a fast tokenizer, and int has none"):
        tokens.encode(3, "a")


def test_a_character_that_a_normalizer_spreads_is_marked():
    found = tokens.assemble(
        "½ x", ids=(1, 2, 3, 4), raw=("1", "⁄", "2", "▁x"), offsets=((0, 1), (0, 1), (0, 1), (1, 3))
    )
    assert found.pieces == ("½⟨1/3⟩", "½⟨2/3⟩", "½⟨3/3⟩", "x")
    assert covered(found).labels == ("½", "x")


def test_a_token_across_two_characters_says_which_parts():
    found = tokens.assemble(
        "你好", ids=(1, 2, 3), raw=("a", "b", "c"), offsets=((0, 1), (0, 2), (1, 2))
    )
    assert found.pieces == ("你⟨1/2⟩", "你⟨2/2⟩好⟨1/2⟩", "好⟨2/2⟩")
    assert covered(found).labels == ("你好",)
