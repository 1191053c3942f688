"""look: its numbers against eager attention, its choices, its errors, its memory."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from torch import Tensor

import eyeline
from eyeline.errors import ArgumentError, EyelineError, ModelError
from eyeline.looking import DEFAULT_TEXT, READINGS, Look, look
from eyeline.models import LoadedModel, load
from eyeline.views.figure import figure
from tests.looks import merged

ROOT = Path(__file__).resolve().parent.parent

PIECES = "Eyeglasses unbelievably outshine antidisestablishmentarianism, don't they?"


@pytest.fixture(scope="module")
def minilm() -> LoadedModel:
    return load("minilm")


@pytest.fixture(scope="module")
def causal(minilm: LoadedModel) -> LoadedModel:
    """A small causal model with grouped heads and random weights, reading MiniLM's tokens."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=30522,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.5,
    )
    return dataclasses.replace(
        minilm,
        name="random",
        model=LlamaModel(config).eval(),
        causal=True,
        max_tokens=4096,
        layers=2,
        heads=4,
    )


def eager(loaded: LoadedModel, text: str) -> list[Tensor]:
    """Every layer's attention [H, T, T] as transformers itself hands it out."""
    model = type(loaded.model)(loaded.model.config)
    model.load_state_dict(loaded.model.state_dict())
    model.set_attn_implementation("eager")
    with torch.no_grad():
        inputs = loaded.inputs(loaded.tokens(text))
        out = model.eval()(**inputs, output_attentions=True)
    return [layer[0] for layer in out.attentions]


def test_they_looks_at_keys(minilm):
    seen = look(DEFAULT_TEXT, minilm, token="they")
    found = {(p.layer, p.head): p for p in seen.pairs if seen.words[p.word] == "keys"}
    assert found[3, 1].weight == pytest.approx(0.48, abs=0.02)
    assert (seen.layer, seen.head, seen.chosen) == (3, 1, "token")
    assert seen.words[seen.fan.looks_at[0].word] == "keys"
    assert seen.fan.looks_at[0].weight == pytest.approx(0.48, abs=0.02)


@pytest.mark.parametrize("pieces", [False, True], ids=["words", "pieces"])
@pytest.mark.parametrize("text", [DEFAULT_TEXT, PIECES], ids=["keys", "pieces"])
@pytest.mark.parametrize("place", [(0, 0), (3, 1), (5, 11)])
def test_map_equals_eager_attention(minilm, place, text, pieces):
    layer, head = place
    seen = look(text, minilm, layer=layer, head=head, pieces=pieces)
    shown = torch.tensor(json.loads(seen.to_json())["map"]["values"])
    tokens = minilm.tokens(text)
    raw = eager(minilm, text)[layer][head]
    spans = tuple((i, i + 1) for i in range(len(tokens))) if pieces else tokens.words().spans
    torch.testing.assert_close(shown, merged(raw, spans), rtol=0, atol=1e-5)
    if pieces:
        torch.testing.assert_close(shown, raw, rtol=0, atol=1e-5)
    assert (shown.sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("model", ["minilm", "causal"])
@pytest.mark.parametrize("text", [DEFAULT_TEXT, PIECES], ids=["keys", "pieces"])
def test_shares_equal_eager_attention(request, model, text):
    loaded = request.getfixturevalue(model)
    seen = look(text, loaded)
    spans = loaded.tokens(text).words().spans
    words = torch.stack([merged(layer, spans) for layer in eager(loaded, text)])  # [L, H, W, W]
    special = torch.tensor(seen.special)
    distance = (torch.arange(len(spans))[:, None] - torch.arange(len(spans))).abs()
    kinds = {
        "special": special.expand(len(spans), -1),
        "self": ~special & (distance == 0),
        "near": ~special & (distance == 1),
        "words": ~special & (distance > 1),
    }
    for kind, cells in kinds.items():
        share = (words * cells).sum(-1)[..., ~special].mean(-1)  # [L, H]
        assert seen.spend[kind] == pytest.approx(float(share.mean()), abs=1e-5)
        by = torch.tensor(look(text, loaded, by=kind).overview)
        torch.testing.assert_close(by, share, rtol=0, atol=1e-5)
    assert sum(seen.spend.values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("model", ["minilm", "causal"])
def test_rows_columns_and_sinks_equal_eager_attention(request, model):
    loaded = request.getfixturevalue(model)
    seen = look(PIECES, loaded, layer=1, head=2, token="they", top=4)
    spans = loaded.tokens(PIECES).words().spans
    words = merged(eager(loaded, PIECES)[1][2], spans)
    content = ~torch.tensor(seen.special)
    for glance in seen.glances:
        values = (words[glance.word] * content).topk(4).values
        got = [target.weight for target in glance.at]
        assert got == pytest.approx([v for v in values.tolist() if v > 0], abs=1e-5)
        assert all(
            words[glance.word, t.word] == pytest.approx(t.weight, abs=1e-5) for t in glance.at
        )
    word = seen.fan.word
    for targets, values in (
        (seen.fan.looks_at, words[word]),
        (seen.fan.looked_at_by, words[:, word]),
    ):
        assert all(values[t.word] == pytest.approx(t.weight, abs=1e-5) for t in targets)
        assert not any(seen.special[t.word] or t.word == word for t in targets)
    for sink in seen.sinks:
        assert float(words[content, sink.word].mean()) == pytest.approx(sink.weight, abs=1e-5)


def test_pairs_are_the_strongest_of_the_whole_model(minilm):
    seen = look(DEFAULT_TEXT, minilm, token="they", top=7)
    word = seen.fan.word
    rows = torch.stack([layer[:, word] for layer in eager(minilm, DEFAULT_TEXT)])  # a word a token
    away = torch.tensor([not s and abs(u - word) > 1 for u, s in enumerate(seen.special)])
    strongest = (rows * away).flatten().topk(7).values.tolist()
    assert [pair.weight for pair in seen.pairs] == pytest.approx(strongest, abs=1e-5)


@pytest.mark.parametrize("by", READINGS)
def test_the_leading_head_leads(minilm, by):
    seen = look(DEFAULT_TEXT, minilm, by=by)
    values = torch.tensor(seen.overview)
    best = values.min() if by == "entropy" else values.max()
    assert values[seen.layer, seen.head] == best
    assert seen.chosen == "leads"
    within = look(DEFAULT_TEXT, minilm, by=by, layer=2)
    assert within.layer == 2
    assert look(DEFAULT_TEXT, minilm, by=by, head=4).head == 4


def test_entropy_and_distance_are_means_over_words(minilm):
    raw = torch.stack(eager(minilm, DEFAULT_TEXT))[..., 1:-1, :]
    entropy = torch.special.entr(raw).sum(-1).mean(-1)
    steps = torch.arange(raw.shape[-1])
    distance = (raw * (steps[1:-1, None] - steps).abs()).sum(-1).mean(-1)
    for by, values in (("entropy", entropy), ("distance", distance)):
        found = torch.tensor(look(DEFAULT_TEXT, minilm, by=by).overview)
        torch.testing.assert_close(found, values, rtol=1e-4, atol=1e-4)


def test_first_word_of_a_causal_model_counts_as_special(causal):
    bare = dataclasses.replace(causal, tokenizer=without_specials(causal.tokenizer))
    seen = look("keys and doors and keys", bare)
    assert seen.special == (True, False, False, False, False)
    assert seen.map.values[0] == pytest.approx((1, 0, 0, 0, 0), abs=1e-6)
    assert [glance.word for glance in seen.glances] == [1, 2, 3, 4]
    assert "special or first tokens" in str(seen)


def without_specials(tokenizer: object) -> object:
    from tokenizers import Tokenizer, processors

    bare = Tokenizer.from_str(tokenizer.to_str())
    bare.post_processor = processors.Sequence([])
    return bare


@pytest.mark.parametrize("text", ["keys", "keys keys"])
def test_shortest_texts(causal, text):
    bare = dataclasses.replace(causal, tokenizer=without_specials(causal.tokenizer))
    for model in (causal, bare):
        seen = look(text, model, token=0)
        assert sum(seen.spend.values()) == pytest.approx(1, abs=1e-5)
        assert str(seen)


def test_token_is_a_word_or_its_index(minilm):
    def found(token: str | int, text: str = DEFAULT_TEXT) -> int:
        return look(text, minilm, token=token).fan.word

    assert found("keys") == found(2) == found("2") == found("KEYS") == 2
    assert found("2", "a 1 b 2 c") == 4  # the word, not the index
    several = look(DEFAULT_TEXT, minilm, token="the")
    assert several.fan.places == (4, 9)
    assert "Another one: --token 9" in str(several)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"layer": 6}, "There is no layer 6: the layers are 0 to 5."),
        ({"layer": -1}, "There is no layer -1: the layers are 0 to 5."),
        ({"head": 12}, "There is no head 12: the heads are 0 to 11."),
        ({"token": "thye"}, "The text has no word “thye”. Near it: the, they"),
        ({"token": 20}, "There is no word 20: the words are 0 to 19."),
        ({"token": "99"}, "There is no word 99: the words are 0 to 19."),
        ({"by": "beauty"}, "choose one of words, special, self, near, entropy, distance"),
        ({"top": 0}, "give 1 or more"),
        ({"lang": "fr"}, "There is no language “fr”: choose en or zh."),
    ],
)
def test_errors_say_what_there_is(minilm, asked, said):
    with pytest.raises(EyelineError) as error:
        look(DEFAULT_TEXT, minilm, **asked)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"text": 3}, "The text is of type int: give it as a str."),
        ({"text": None}, "The text is None: give it as a str."),
        ({"text": "caf\udce9"}, "The text holds '\\udce9' at 3, a part of a character"),
        ({"layer": "a"}, "layer is 'a', of type str: give a whole number."),
        ({"layer": 1.5}, "layer is 1.5, of type float: give a whole number."),
        ({"head": True}, "head is True, of type bool: give a whole number."),
        ({"top": "a"}, "top is 'a', of type str: give a whole number."),
        ({"token": 1.5}, "token is 1.5, of type float: give a word of the text or its index."),
        ({"by": []}, "There is no reading “[]”: choose one of words"),
    ],
)
def test_arguments_of_another_type_are_said(minilm, asked, said):
    with pytest.raises(ArgumentError) as error:
        look(**{"text": DEFAULT_TEXT, "model": minilm, **asked})
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_model_of_another_type_is_said(minilm):
    with pytest.raises(ModelError, match=r"^model is of type BertModel, and look takes a name"):
        look(DEFAULT_TEXT, minilm.model)
    with pytest.raises(ModelError, match=r"^name is of type int, and load takes"):
        load(3)
    with pytest.raises(ModelError, match=r"^no/folder is neither a bundled model"):
        look(DEFAULT_TEXT, Path("no/folder"))
    with pytest.raises(ModelError, match=r"^no-such-model is neither a bundled model") as error:
        load("no-such-model")
    assert error.value.__suppress_context__  # nothing of connections above it
    assert error.value.__cause__ is None


def test_whole_numbers_of_other_libraries_are_taken(minilm):
    found = look(DEFAULT_TEXT, minilm, layer=torch.tensor(3), head=torch.tensor(1))
    assert (found.layer, found.head) == (3, 1)
    assert json.loads(found.to_json())["layer"] == 3


@pytest.mark.parametrize("text", ["", "  \n "])
def test_an_empty_text_is_an_error(minilm, text):
    with pytest.raises(EyelineError, match="The text is empty"):
        look(text, minilm)


def test_a_long_text_names_the_model_that_takes_it(minilm):
    with pytest.raises(ModelError, match="takes at most 512") as error:
        look("keys and doors " * 300, minilm)
    assert "--model smollm2" in str(error.value)


def test_unknown_words_are_said(minilm):
    seen = look("注意力机制是软检索，每个词都看别的词", minilm, lang="en")
    assert seen.mostly_unknown
    assert "MiniLM does not know" in str(seen)
    assert "--model smollm2" in str(seen)
    assert not look(DEFAULT_TEXT, minilm).mostly_unknown


def test_long_text_is_pooled_and_never_dense(causal, monkeypatch):
    text = "the old keys and the cabinet table were heavy " * 80
    whole = look(text, causal, layer=1, head=3, token=400, top=2)
    monkeypatch.setattr(eyeline, "dense_limit", 4 * 2**21)  # a quarter of the strips' memory
    assert len(whole.map.edges) == 61
    assert whole.map.edges[:2] == (0, 1)
    assert whole.map.edges[-2:] == (len(whole.words) - 1, len(whole.words))
    raw = eager(causal, text)[1][3]
    spans = causal.tokens(text).words().spans
    words = merged(raw, spans)
    edges = whole.map.edges
    pooled = merged(words, tuple(zip(edges, edges[1:])))
    torch.testing.assert_close(torch.tensor(whole.map.values), pooled, rtol=0, atol=1e-5)
    assert len(whole.glances) == len(whole.words) - 2
    for glance in whole.glances[::50]:
        assert words[glance.word, glance.at[0].word] == pytest.approx(glance.at[0].weight, abs=1e-5)


def test_an_endless_word(causal):
    seen = look("x" * 3000, causal, token=1)
    assert len(seen.words) == 3
    assert str(seen)


def test_a_look_is_plain_data(minilm, tmp_path):
    seen = look(DEFAULT_TEXT, minilm, token="they")
    told = json.loads(seen.to_json())
    assert set(told) == {field.name for field in dataclasses.fields(Look)}
    assert told["fan"]["looks_at"][0]["word"] == 2
    seen.save_html(tmp_path / "a.html")
    seen.save_svg(tmp_path / "a.svg")
    assert seen._repr_html_() in (tmp_path / "a.html").read_text("utf-8")
    assert "they" in (tmp_path / "a.svg").read_text("utf-8")


def test_look_leaves_the_model_as_it_was(minilm):
    before = minilm.model.config._attn_implementation
    look(DEFAULT_TEXT, minilm)
    assert minilm.model.config._attn_implementation == before
    assert not minilm.model.training


def test_a_look_is_quick(minilm):
    look(DEFAULT_TEXT, minilm, token="they")
    began = time.process_time()  # other work on the machine does not count
    look(DEFAULT_TEXT, minilm, token="they")
    assert time.process_time() - began < 0.5


LONG = """
import resource, sys
from pydoc_data.topics import topics
from eyeline.looking import look
from eyeline.models import load

loaded = load("smollm2")
text = "\\n".join(topics.values())
text = text[: loaded.tokens(text).offsets[8000][0]]
look("A short text first, so that all code is loaded.", loaded, token=1)

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return {l.split(":")[0]: int(l.split()[1]) for l in lines if l.endswith("kB")}

above = peak()["VmRSS"]
seen = look(text, loaded, token="function")
screen = str(seen)
print(seen.tokens, peak()["VmHWM"] - above, len(seen.map.values), file=sys.stderr)
print(screen)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_8000_tokens_of_prose_stay_within_2_gb():
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    tokens, kilobytes, cells = map(int, done.stderr.split()[-3:])
    assert 7900 <= tokens <= 8000
    assert kilobytes < 2 * 2**20
    assert cells == 60
    assert "drawn as 31 cells" in done.stdout
    # 30 layers × 9 heads × 8000 × 8000 × 4 bytes
    assert "69 GB" in done.stdout


@pytest.mark.slow
def test_smollm2_equals_eager_attention():
    loaded = load("smollm2")
    seen = look(DEFAULT_TEXT, loaded, layer=13, head=8)
    raw = eager(loaded, DEFAULT_TEXT)[13][8]
    spans = loaded.tokens(DEFAULT_TEXT).words().spans
    shown = torch.tensor(seen.map.values)
    torch.testing.assert_close(shown, merged(raw, spans), rtol=0, atol=1e-5)
    they, keys = seen.words.index("they"), seen.words.index("keys")
    assert shown[they, keys] == pytest.approx(0.70, abs=0.02)


def test_the_picture_in_the_readme_is_what_look_draws(minilm):
    stored = ROOT / "docs" / "assets" / "they-keys.svg"
    drawn = figure(look(DEFAULT_TEXT, minilm, token="they", lang="en"))
    told = [
        [element.text for element in ElementTree.fromstring(svg).iter()]
        for svg in (stored.read_text("utf-8"), drawn)
    ]
    assert told[0] == told[1]
    assert "0.48" in told[0]
