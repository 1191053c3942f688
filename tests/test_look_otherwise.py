"""Looks at pictures, at speech and at text that the model writes on."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

from eyeline import cli, models, watch
from eyeline.errors import ArgumentError, ModelError
from eyeline.looking import continued, look
from eyeline.looking.alignment import aligned
from eyeline.looking.pictures import half, look_at
from eyeline.looking.sounds import HeardWord, SoundLook, listen
from eyeline.views import pictures as picture_view
from eyeline.views import sounds as sound_view

DATA = Path(__file__).parent / "data"
HOSTILE = "</script><b>\x1b[31m&"


@pytest.fixture(scope="module")
def dinov2():
    return models.load("dinov2")


@pytest.fixture(scope="module")
def cup(dinov2):
    return look_at(models.read_picture(DATA / "coffee.jpg", longest=16), dinov2, lang="en")


@pytest.fixture(scope="module")
def whisper():
    return models.load("whisper")


@pytest.fixture(scope="module")
def speech(whisper):
    return listen(DATA / "sentence.wav", whisper, lang="en")


@pytest.mark.parametrize("token", ["CLS", "r3c7"])
def test_the_row_of_a_token_is_the_models_own(dinov2, token):
    read = models.read_picture(DATA / "coffee.jpg", longest=16)
    found = look_at(read, dinov2, token=token, layer=10, head=2)
    dinov2.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            own = dinov2.model(**read.inputs(), output_attentions=True).attentions[10][0, 2]
    finally:
        dinov2.model.set_attn_implementation("sdpa")
    row = own[0 if token == "CLS" else 1 + 3 * read.columns + 7]
    torch.testing.assert_close(torch.tensor(found.values).flatten(), row[1:])
    assert found.rest == pytest.approx(float(row[0]), abs=1e-6)
    best = row[1:].argmax()
    assert found.strongest[0].name == f"r{best // read.columns}c{best % read.columns}"


@pytest.mark.slow
def test_the_average_of_heads_is_that(dinov2, cup):
    read = models.read_picture(DATA / "coffee.jpg", longest=16)
    heads = [look_at(read, dinov2, layer=11, head=head) for head in range(6)]
    mean = torch.tensor([found.values for found in heads]).mean(0)
    torch.testing.assert_close(torch.tensor(cup.values), mean)
    assert [found.half for found in heads] == pytest.approx(cup.overview[11])


def test_half_is_the_share_that_holds_half():
    assert half(torch.ones(10)).item() == 0.5
    assert half(torch.tensor([0.0, 9, 0, 0, 0, 0, 0, 0, 0, 1])).item() == pytest.approx(0.1)


@pytest.mark.parametrize("token", ["r99c0", "r3", "cls", "cup", "r-1c0"])
def test_patches_that_are_not_there_are_refused(dinov2, token):
    read = models.read_picture(DATA / "coffee.jpg", longest=16)
    with pytest.raises(ArgumentError, match="they are r0c0 to r10c15, and CLS is the token"):
        look_at(read, dinov2, token=token)


def test_layers_and_models_that_do_not_fit_are_refused(dinov2):
    read = models.read_picture(DATA / "coffee.jpg", longest=16)
    with pytest.raises(ArgumentError, match="There is no layer 12: the layers are 0 to 11"):
        look_at(read, dinov2, layer=12)
    with pytest.raises(ArgumentError, match="There is no head 6: the heads are 0 to 5"):
        look_at(read, dinov2, head=6)
    with pytest.raises(ModelError, match="reads a text, and this is a picture"):
        look_at(read, "minilm")
    with pytest.raises(ModelError, match="reads a picture, and this is a sound"):
        listen(DATA / "sentence.wav", dinov2)


def test_a_picture_is_drawn_by_rows_of_patches(cup):
    lines = str(cup).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("   0 "))
    drawn = [line[5:] for line in lines[start : start + cup.rows]]
    most = max(map(max, cup.values))
    for row, line in zip(cup.values, drawn, strict=True):
        marks = line.ljust(2 * cup.columns)[::2]
        assert marks == "".join(" ·░▒▓█"[round(5 * weight / most)] for weight in row)
    assert max(map(cell_len, lines)) <= 80


def test_the_figure_of_a_picture_holds_it_and_its_weights(cup, tmp_path):
    cup.save_svg(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    ElementTree.fromstring(text)
    image = re.search(r'href="data:image/jpeg;base64,([^"]+)"', text)
    assert image is not None
    shown = Image.open(io.BytesIO(base64.b64decode(image[1])))
    assert shown.size == (14 * cup.columns, 14 * cup.rows)
    cup.save_html(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    found = json.loads(cup.to_json())
    assert found["values"] == [list(row) for row in cup.values]
    assert "image" not in found


def test_speech_is_written_down_with_times(speech):
    assert speech.text == "The keys to the old cabinet are on the table."
    assert [word.label for word in speech.words] == speech.text.rstrip(".").split()
    starts = [word.start for word in speech.words]
    assert starts == sorted(starts)
    assert all(word.start <= word.peak < speech.duration for word in speech.words)
    sums = torch.tensor(speech.values).sum(1) + torch.tensor(speech.beyond)
    torch.testing.assert_close(sums, torch.ones(len(speech.words)))
    assert json.loads(speech.to_json())["words"][1]["label"] == "keys"


@pytest.mark.slow
def test_one_head_of_speech_is_the_models_own():
    loaded = models.load("whisper")
    sound = models.read_sound(DATA / "sentence.wav")
    found = listen(sound, loaded, layer=2, head=1)
    assert found.heads == ((2, 1),)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        inputs = sound.inputs() | models.transcribe(loaded, sound).inputs()
        own = loaded.model(**inputs, output_attentions=True).cross_attentions[2][0, 1]
    cells = len(found.values[0])
    frames = round(sound.seconds / 0.02)
    edges = [frames * c // cells for c in range(cells + 1)]
    # "keys" is the third token and one piece: the row of the token before it wrote it
    expected = [float(own[2, a:b].sum()) for a, b in zip(edges, edges[1:])]
    assert found.values[1] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ArgumentError, match="There is no layer 4: the layers are 0 to 3"):
        listen(sound, loaded, layer=4)


def test_views_of_speech_carry_any_words(tmp_path):
    words = tuple(HeardWord(label, 0.5, 0.75) for label in (HOSTILE, "注意力", "a" * 60))
    cells = tuple(tuple(0.02 for _ in range(50)) for _ in words)
    look = SoundLook(
        name=HOSTILE,
        lang="zh",
        model="whisper",
        title="Whisper",
        duration=7.3,
        text=HOSTILE,
        tokens=5,
        layers=4,
        heads=((0, 1), (1, 2), (2, 3), (3, 4), (3, 5)),
        chosen=False,
        words=words,
        values=cells,
        beyond=(0.0, 0.0, 0.0),
        notes=(),
        seconds=1.0,
    )
    assert "\x1b" not in str(look)
    assert max(map(cell_len, str(look).splitlines())) <= 80
    ElementTree.fromstring(sound_view.figure(look))
    assert "</script>" not in sound_view.page(look)
    file = io.StringIO()
    sound_view.show(look, Console(file=file, width=80), encoding="ascii")
    assert file.getvalue().isascii()


def test_silence_has_no_words(whisper):
    silence = models.Sound(torch.zeros(16000).numpy())
    look = listen(silence, whisper, lang="en")
    assert "What it heard" in str(look)
    ElementTree.fromstring(sound_view.figure(look))
    assert sound_view.page(look)


def test_alignment_never_goes_back():
    generator = torch.Generator().manual_seed(1)
    for tokens, frames in ((1, 1), (1, 40), (6, 6), (7, 3), (9, 200)):
        found = aligned(torch.rand(2, tokens, frames, generator=generator))
        assert len(found.starts) == len(found.peaks) == tokens
        assert list(found.starts) == sorted(found.starts)
        assert found.starts[0] == 0
        assert all(0 <= start <= peak < frames for start, peak in zip(found.starts, found.peaks))
    with pytest.raises(ArgumentError, match="takes rows"):
        aligned(torch.rand(4, 5))


@pytest.mark.slow
def test_the_model_writes_on_and_the_whole_is_looked_at():
    loaded = models.load("smollm2")
    prompt = loaded.tokens("The capital of France is")
    whole = continued(loaded, prompt, 6)
    assert whole.text.startswith("The capital of France is Paris.")
    assert whole.ids[: len(prompt)] == prompt.ids
    with torch.no_grad(), watch(loaded.model) as seen:
        loaded.model(**loaded.inputs(whole))
    found = look("The capital of France is", loaded, generate=6, pieces=True, lang="en")
    assert (found.tokens, found.generate) == (len(whole), 6)
    assert found.generated == (False,) * 5 + (True,) * 6
    assert found.written == whole.text[len(prompt.text) :]
    weights = seen[found.layer][0, found.head].to_dense()
    torch.testing.assert_close(torch.tensor(found.map.values), weights, atol=1e-6, rtol=0)
    text = str(found)
    assert "Written on by the model" in text
    assert re.search(r"\n {2}5\+Paris", text)
    assert "--generate 6 --model smollm2" in text
    with pytest.raises(ModelError, match="more do not fit"):
        look("The", loaded, generate=9000)
    with pytest.raises(ModelError, match="has no next token"):
        look("The", "minilm", generate=1)
    with pytest.raises(ArgumentError, match="generate=-1"):
        look("The", loaded, generate=-1)


def test_the_command_line_takes_pictures_and_speech(monkeypatch, capsys, tmp_path):
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["eyeline", "look", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    coffee, sentence = str(DATA / "coffee.jpg"), str(DATA / "sentence.wav")
    code, out, _ = run("--image", coffee, "--token", "r2c3", "--svg", str(tmp_path / "a.svg"))
    assert code == 0
    assert "What r2c3 looks at" in out
    assert f"Wrote {tmp_path / 'a.svg'}" in " ".join(out.split())
    code, out, _ = run("--audio", sentence, "--json")
    assert json.loads(out)["name"] == "sentence.wav"
    for arguments, said in (
        (("--image", coffee, "--audio", sentence), "--image and --audio were given"),
        (("--image", coffee, "a text"), "A text and --image were given"),
        (("--audio", sentence, "--generate", "3"), "--generate and --audio were given"),
        (("--image", coffee, "--by", "near"), "--by and --image were given"),
        (("--audio", sentence, "--token", "keys"), "--audio and --token were given"),
        (("--image", sentence), "is no picture that can be read"),
        (("--audio", coffee), "cannot be read as WAV"),
        (("--image", coffee, "--model", "minilm", "--layer", "1"), "this is a picture"),
    ):
        code, _, error = run(*arguments)
        assert code == 2
        assert said in error


def test_the_view_of_a_picture_is_ascii_where_it_must_be(cup):
    file = io.StringIO()
    picture_view.show(cup, Console(file=file, width=80), encoding="ascii")
    assert file.getvalue().isascii()
