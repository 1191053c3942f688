"""The lesson's numbers: against plain torch, against its own printed code, and when changed."""

from __future__ import annotations

import ast
import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import eyeline.lesson
from eyeline.errors import EyelineError
from eyeline.lesson import Lesson, Settings, lesson, real
from eyeline.lesson.data import Code, Matrix, Table
from eyeline.lesson.ledger import NAMES
from eyeline.lesson.splitting import split
from eyeline.lesson.tiles import merge, of_tile, tiles
from eyeline.models import load

SENTENCE = "The keys to the old cabinet are on the table because they were too heavy to carry."


def tensor(numbers: object) -> Tensor:
    """Nested lists of the JSON as a tensor; null is -inf."""
    text = json.dumps(numbers).replace("null", "-Infinity")
    return torch.tensor(json.loads(text))


def by_name(found: Lesson, name: str) -> Matrix:
    return next(
        block
        for screen in found.screens
        for block in screen.blocks
        if isinstance(block, Matrix) and block.name == name
    )


def run(code: str) -> dict[str, object]:
    """The lesson's printed code, executed in order."""
    names: dict[str, object] = {}
    with torch.random.fork_rng():
        exec(code, names)
    return names


def test_the_json_is_plain_torch_for_the_chapters_example():
    torch.manual_seed(0)
    X = torch.randn(3, 4)
    W_Q, W_K, W_V = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V
    scores = Q @ K.T
    scaled = scores / math.sqrt(4)
    weights = F.softmax(scaled, dim=-1)
    expected = dict(zip(NAMES, (X, W_Q, W_K, W_V, Q, K, V, scores, scaled, weights, weights @ V)))
    for settings in (Settings(), Settings("I love NLP")):
        told = json.loads(lesson(settings).to_json())
        assert told["words"] == ["I", "love", "NLP"]
        assert set(told["numbers"]) == set(NAMES)
        for name, value in expected.items():
            torch.testing.assert_close(tensor(told["numbers"][name]), value, msg=name)


def test_the_chapters_numbers_are_on_the_screen():
    text = str(lesson(lang="en"))
    for number in re.findall(
        r"\S+", "0.1845 0.7254 0.0900 0.0205 0.7694 0.2101 0.0143 0.9323 0.0535"
    ):
        assert number in text
    assert "-1.6479 -1.6206 0.1005 2.0153" in text


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings("the cat saw the dog", d=6, seed=3),
        Settings("我爱注意力，我也爱 NLP", d=8, heads=2, head=1, causal=True),
        Settings("one", d=1),
        Settings(scale=1.0, causal=True),
    ],
    ids=["chapter", "repeated", "heads", "smallest", "scale"],
)
def test_the_printed_code_gives_the_printed_numbers(settings, capsys):
    found = lesson(settings, lang="en")
    names = run(found.code())
    for name, value in found.numbers.items():
        given = names[name]
        assert isinstance(given, Tensor)
        torch.testing.assert_close(given, tensor(value), msg=name)
    weights, V = names["weights"], names["V"]
    torch.testing.assert_close(names["Z"], weights @ V)  # eyeline's own call
    logs = names["attn"].lse  # as the step on softmax says
    torch.testing.assert_close(logs, names["scaled"].logsumexp(-1))
    head = weights[settings.head] if settings.heads > 1 else weights
    for name, value in (("weights", head), ("GPT", names["causal_weights"]), ("X", names["X"])):
        if name == "GPT" and settings.heads > 1:
            value = value[settings.head]
        torch.testing.assert_close(tensor(by_name(found, name).values), value)
    values = V[settings.head] if settings.heads > 1 else V
    torch.testing.assert_close(names["streamed"], (head @ values)[0])
    assert "weights [" in capsys.readouterr().out  # print(attn)


def test_the_same_word_has_the_same_vector_and_chinese_is_by_character():
    found = lesson(Settings("the cat saw the dog"))
    X = tensor(found.numbers["X"])
    assert torch.equal(X[0], X[3])
    assert len(X.unique(dim=0)) == 4
    assert lesson(Settings("我爱我")).words == ("我", "爱", "我")
    assert split("don't stop, 注意力!") == ("don't", "stop", ",", "注", "意", "力", "!")


def test_one_thing_changes_and_what_follows_is_said():
    plain = lesson(lang="en")
    for settings, said in (
        (Settings(scale=1.0), "scale 0.5 → 1"),
        (Settings(causal=True), "mask none → causal"),
        (Settings(seed=1), "seed 0 → 1"),
        (Settings(d=64), "d 4 → 64"),
        (Settings(heads=2), "heads 1 → 2"),
    ):
        found = lesson(settings, lang="en")
        first = found.screens[0]
        assert any(said in getattr(block, "text", "") for block in first.blocks), said
        table = [block for block in first.blocks if isinstance(block, Table)][-1]
        old, new = table.rows[0][1:]
        assert old == " ".join(f"{x:.4f}" for x in plain.numbers["weights"][0])
        assert new != old
    assert len([b for b in plain.screens[0].blocks if isinstance(b, Table)]) == 1


def test_no_mask_and_no_scale_numbers():
    causal = tensor(lesson(Settings(causal=True)).numbers["weights"])
    assert (causal.triu(1) == 0).all()
    sharp = tensor(lesson(Settings(scale=1.0)).numbers["weights"])
    mild = tensor(lesson(Settings()).numbers["weights"])
    torch.testing.assert_close(sharp, (mild.log() * 2).softmax(-1))


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "settings",
    [Settings("a", d=1), Settings(" ".join("abcdefgh" * 8), d=512), Settings("x " * 64, d=3)],
    ids=["one", "many", "repeated"],
)
def test_any_size(settings, lang):
    found = lesson(settings, lang=lang)
    assert found.to_json()
    assert str(found).count("── ") >= 12


def test_the_followed_word():
    assert "Row 1 (“love”)" in str(lesson(token="love", lang="en"))
    assert "Row 2 (“NLP”)" in str(lesson(token=2, lang="en"))


@pytest.mark.parametrize(
    ("settings", "token", "said"),
    [
        (Settings(""), 0, "The text is empty"),
        (Settings("x " * 65), 0, "at most 64"),
        (Settings(d=0), 0, "--d 0"),
        (Settings(heads=3), 0, "3 heads cannot share 4"),
        (Settings(head=1), 0, "the heads are 0 to 0"),
        (Settings(scale=math.nan), 0, "finite"),
        (Settings(seed=2**70), 0, "too large"),
        (Settings(), 3, "the words are 0 to 2"),
        (Settings(), "hate", "no word “hate”"),
    ],
)
def test_errors_say_what_to_do(settings, token, said):
    with pytest.raises(EyelineError, match=re.escape(said)):
        lesson(settings, token=token)


def test_one_step_is_made_alone(monkeypatch):
    whole = lesson(lang="en")
    for name in set(eyeline.lesson._SCREENS) - {"score"}:
        monkeypatch.setitem(eyeline.lesson._SCREENS, name, None)
    alone = lesson(lang="en", step=4)
    assert alone.screens == whole.screens[4:5]
    assert alone.numbers == whole.numbers
    for step in (-1, 12):
        with pytest.raises(EyelineError, match=f"There is no step {step}: they are 0 to 11"):
            lesson(step=step)


def test_the_callers_generator_stays_as_it_is():
    torch.manual_seed(7)
    expected = torch.randn(3)
    torch.manual_seed(7)
    lesson()
    assert torch.equal(torch.randn(3), expected)


def test_it_is_fast():
    started = time.process_time()
    lesson(Settings(seed=123))  # nothing of it was measured before
    assert time.process_time() - started < 4


def test_tiles_merge_to_the_whole_row():
    """In any order, and with a tile that shows nothing."""
    scores, V = torch.randn(9).double() * 20, torch.randn(9, 4).double()
    scores[:3] = -math.inf
    first, second, third = (of_tile(scores[a:b], V[a:b]) for a, b in tiles(9))
    for state in (merge(merge(first, second), third), merge(first, merge(third, second))):
        torch.testing.assert_close(state.out / state.l, scores.softmax(-1) @ V)


def test_the_streamed_row_is_the_outputs_row():
    found = lesson(Settings("a b c d e f g"), lang="en")
    stream = next(screen for screen in found.screens if screen.name == "stream")
    table = next(block for block in stream.blocks if isinstance(block, Table))
    assert [row[0].split()[0] for row in table.rows] == ["tile", "tile", "merged", "tile", "merged"]
    m, total = map(float, table.rows[-1][1:3])
    scaled = tensor(found.numbers["scaled"])[0]
    assert m == pytest.approx(scaled.max().item(), abs=1e-4)
    assert total == pytest.approx((scaled - scaled.max()).exp().sum().item(), abs=1e-4)


@pytest.mark.parametrize(("model", "layer", "head"), [("minilm", 3, 1), ("smollm2", 2, 4)])
def test_a_real_models_head(model, layer, head):
    """The weights are those that eager attention gives; the code runs, too."""
    loaded = load(model)
    found = lesson(Settings(SENTENCE, model=model, layer=layer, head=head), lang="en")
    loaded.model.set_attn_implementation("eager")
    inputs = loaded.inputs(loaded.tokens(SENTENCE))
    with torch.no_grad():
        eager = loaded.model(**inputs, output_attentions=True).attentions[layer][0, head]
    weights = tensor(found.numbers["weights"])
    torch.testing.assert_close(weights, eager, atol=1e-5, rtol=1e-4)
    assert found.words == loaded.tokens(SENTENCE).pieces
    assert found.settings.causal == loaded.causal
    names = run(found.code())
    for name, value in found.numbers.items():
        torch.testing.assert_close(names[name], tensor(value), msg=name, atol=1e-4, rtol=1e-4)
    output = weights @ tensor(found.numbers["V"])
    torch.testing.assert_close(tensor(found.numbers["output"]), output, atol=1e-4, rtol=1e-4)


def test_a_causal_model_without_its_mask():
    found = lesson(Settings(model="smollm2", causal=False), lang="en")
    assert "mask causal → none" in str(found)
    assert (tensor(found.numbers["weights"]).triu(1).sum()) > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(model="minilm", layer=6), "the layers are 0 to 5"),
        (Settings(model="minilm", head=12), "the heads are 0 to 11"),
        (Settings(" ", model="minilm"), "empty"),
        (Settings("word " * 70, model="minilm"), "at most 64"),
    ],
)
def test_errors_with_a_model(settings, said):
    with pytest.raises(EyelineError, match=said):
        lesson(settings)


def test_no_result_is_typed_by_hand():
    """No text of a screen holds a decimal number; results are filled in."""
    folder = Path(eyeline.lesson.__file__).parent / "screens"
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                typed = re.findall(r"(?<![.:])\b\d+\.\d+", node.value)
                assert set(typed) <= {"0.0"}, f"{path.name}: {node.value}"


def test_each_screen_has_its_parts():
    found = lesson(lang="en")
    assert [screen.name for screen in found.screens][0::11] == ["table", "flow"]
    for screen in found.screens:
        roles = {getattr(block, "role", "") for block in screen.blocks}
        assert "change" in roles, f"{screen.name} says what would change"
    coded = [s.name for s in found.screens if any(isinstance(b, Code) for b in s.blocks)]
    assert {"vectors", "score", "scale", "mask", "softmax", "sum", "stream"} <= set(coded)


def test_models_that_the_lesson_cannot_show(monkeypatch):
    """Where values have no module, and where the weights are not those of scores and mask."""
    loaded = load("minilm")
    monkeypatch.setattr(real, "load", lambda *_, **__: replace(loaded, causal=True))
    with pytest.raises(EyelineError, match="more to its scores"):
        lesson(Settings(model="minilm"))
    monkeypatch.setattr(real, "_VALUE", re.compile("nowhere"))
    with pytest.raises(EyelineError, match="in no module of its own"):
        lesson(Settings(model="minilm"))
