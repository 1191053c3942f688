"""look at a recording: what it says is what it said of the run, without the model."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest
import torch

import eyeline
from eyeline import models
from eyeline.errors import ArgumentError
from eyeline.looking import look
from eyeline.looking.pictures import look_at
from eyeline.looking.sounds import listen
from eyeline.seen import Call, Seen
from tests.real import DATA
from tests.test_cli import run  # noqa: F401  the fixture

TEXT = "The cat sat on the mat because it was tired."


def told(found):
    """All that a look says but the time it took and the models that may read the text too."""
    return {**dataclasses.asdict(found), "seconds": 0, "readers": ()}


def alike(one, two):
    """Equal but for the last bits of numbers: mapped keys may stand otherwise in memory."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(alike(one[name], two[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(alike, one, two))
    return one == (pytest.approx(two, abs=1e-6) if isinstance(two, float) else two)


def test_a_recording_is_looked_at_as_the_run_was(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    first = look(TEXT, token="it", save=path)
    monkeypatch.setattr(models, "load", None)
    monkeypatch.setattr("eyeline.looking.asked.load", None)
    again = look(eyeline.load(path), token="it")
    assert alike(told(again), told(first))
    assert again.title == "MiniLM (all-MiniLM-L6-v2)"
    assert again.readers == ()  # a recording is of one model
    assert look(eyeline.load(path), pieces=True, layer=2, head=3).name == "L2 H3"


def test_a_run_that_was_saved_by_hand_knows_its_model(tmp_path):
    path = tmp_path / "x.safetensors"
    loaded = models.load("minilm")
    tokens = loaded.tokens(TEXT)
    with torch.no_grad(), eyeline.watch(loaded.model) as seen:
        loaded.model(**loaded.inputs(tokens))
    seen.tokens = tokens
    seen.save(path)
    assert eyeline.load(path).model == "minilm"
    assert look(eyeline.load(path)).title == "MiniLM (all-MiniLM-L6-v2)"


def test_weights_without_a_name_are_called_by_their_class():
    loaded = models.load("minilm").model
    model = type(loaded).from_pretrained(
        None, config=type(loaded.config)(**loaded.config.to_dict()), state_dict=loaded.state_dict()
    )
    assert model.config.name_or_path == "None"
    with torch.no_grad(), eyeline.watch(model) as seen:
        model(input_ids=torch.tensor([[5, 6]]))
    assert seen.model == "BertModel"


def test_the_command_writes_and_reads_recordings(run, tmp_path):  # noqa: F811
    first = run("look", TEXT, "--save", "x.safetensors", "--json")
    again = run("look", "x.safetensors", "--json")
    assert (first.code, again.code) == (0, 0), again.err
    one, two = json.loads(first.out), json.loads(again.out)
    differing = {name for name in one if not alike(one[name], two[name])}
    assert differing <= {"seconds", "readers"}
    screen = run("look", "x.safetensors")
    assert "MiniLM" in screen.out
    commands = [line.strip() for line in screen.out.splitlines() if " look " in line]
    for command in commands:
        words = shlex.split(command.partition("  #")[0])
        done = run(*words[words.index("look") :])
        assert done.code == 0, (command, done.err)


@pytest.mark.parametrize(
    "option", [["--model", "minilm"], ["--generate", "3"], ["--block", "L0H0"]]
)
def test_what_needs_the_model_is_refused(run, option, tmp_path):  # noqa: F811
    look(TEXT, save=tmp_path / "x.safetensors")
    done = run("look", "x.safetensors", *option)
    assert done.code == 2
    assert done.err == f"eyeline: A recording and {option[0]} were given: give one of them.\n"


def test_a_damaged_recording_is_one_sentence(run, tmp_path):  # noqa: F811
    (tmp_path / "x.safetensors").write_bytes(b"nothing of the kind")
    done = run("look", "x.safetensors")
    assert done.code == 2
    assert done.err.startswith("eyeline: x.safetensors is damaged or no recording of eyeline")
    assert done.err.count("\n") == 1


def test_a_recording_that_is_not_there_is_no_text(run):  # noqa: F811
    done = run("look", "none.safetensors")
    assert done.code == 2
    assert done.err == "eyeline: none.safetensors cannot be read: No such file or directory.\n"


def test_a_run_that_cannot_be_looked_at():
    x = torch.randn(1, 2, 3, 4)
    seen = Seen([Call("layer", x, x)])
    with pytest.raises(ArgumentError, match="needs the tokens"):
        look(seen)
    seen.tokens = models.load("minilm").tokens("one two three four")
    with pytest.raises(ArgumentError, match="self-attention over it"):
        look(seen)


@pytest.mark.slow
def test_what_a_model_wrote_is_marked_in_a_recording(tmp_path):
    path = tmp_path / "x.safetensors"
    first = look("The capital of France is", "smollm2", generate=5, save=path)
    again = look(eyeline.load(path))
    assert alike(told(again), told(first))
    assert sum(again.generated) > 0
    assert eyeline.load(path).generated.sum() == 5


# ---- pictures ------------------------------------------------------------------------------------


def test_a_recording_of_a_picture_is_looked_at_without_the_model(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    first = look_at(models.read_picture(DATA / "coffee.jpg", longest=8), token="r2c3", save=path)
    monkeypatch.setattr(models, "load", None)
    monkeypatch.setattr("eyeline.looking.asked.load", None)
    again = look_at(eyeline.load(path), token="r2c3")
    of_file = ("name", "width", "height", "image", "seconds")
    one, two = (
        {name: value for name, value in vars(found).items() if name not in of_file}
        for found in (first, again)
    )
    assert alike({**one, "strongest": ()}, {**two, "strongest": ()})
    assert [patch.name for patch in one["strongest"]] == [p.name for p in two["strongest"]]
    assert (again.title, again.image) == ("DINOv2 (small)", None)
    assert (again.width, again.height) == (8 * 14, again.rows * 14)
    with pytest.raises(ArgumentError, match="no patch “r9c9”"):
        look_at(eyeline.load(path), token="r9c9")


def test_a_run_over_something_else_is_no_picture(tmp_path):
    look(TEXT, save=tmp_path / "x.safetensors")
    with pytest.raises(ArgumentError, match="patches of a picture"):
        look_at(eyeline.load(tmp_path / "x.safetensors"))
    x = torch.zeros(1, 1, 6, 2)
    seen = Seen([Call("layer", x, x)])
    seen.tokens = models.read_picture(DATA / "coffee.jpg", longest=2).tokens()
    with pytest.raises(ArgumentError, match="patches of a picture"):
        look_at(seen)


def test_the_command_records_pictures(run, tmp_path):  # noqa: F811
    coffee = str(DATA / "coffee.jpg")
    first = run("look", "--image", coffee, "--save", "x.safetensors", "--json")
    again = run("look", "x.safetensors", "--json", "--svg", "x.svg")
    assert (first.code, again.code) == (0, 0), (first.err, again.err)
    assert alike(json.loads(first.out)["values"], json.loads(again.out)["values"])
    assert "<image" not in (tmp_path / "x.svg").read_text()
    screen = run("look", "x.safetensors", "--token", "r2c3")
    assert "What r2c3 looks at" in screen.out
    assert 'look "x.safetensors" --token r2c3 --html' in screen.out
    assert "--image" not in screen.out
    for option in (["--by", "near"], ["--pieces"], ["--top", "5"]):
        done = run("look", "x.safetensors", *option)
        assert done.code == 2
        assert f"A recording of a picture and {option[0]} were given" in done.err
    done = run("look", "--image", coffee, "--save", coffee)
    assert (done.code, "name the same file" in done.err) == (2, True)


# ---- speech --------------------------------------------------------------------------------------


def test_a_recording_of_speech_is_looked_at_without_the_model(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    first = listen(DATA / "words.wav", save=path)
    monkeypatch.setattr(models, "load", None)
    monkeypatch.setattr("eyeline.looking.asked.load", None)
    again = listen(eyeline.load(path))
    assert again.words == first.words
    of_file = ("name", "notes", "seconds", "recorded", "words")
    one, two = (
        {name: value for name, value in vars(found).items() if name not in of_file}
        for found in (first, again)
    )
    assert alike(one, two)
    assert (again.title, again.recorded) == ("Whisper (tiny.en)", True)
    assert listen(eyeline.load(path), layer=2, head=1).heads == ((2, 1),)


def test_what_a_run_says_about_its_speech_is_checked(tmp_path):
    path = tmp_path / "x.safetensors"
    listen(DATA / "sentence.wav", save=path)
    told = eyeline.load(path).about["speech"]
    wrong = [{"seconds": x} for x in ("a", "nan", "inf", -1)]
    wrong += [{"heads": x} for x in ([[9, 0]], [[0]], [])]
    for changed in (*wrong, {"loud": [1]}):
        seen = eyeline.load(path)
        seen.about = {"speech": {**told, **changed}}
        with pytest.raises(ArgumentError):
            listen(seen)
    seen.about = {}
    with pytest.raises(ArgumentError, match="no run over speech"):
        listen(seen)


def test_the_command_records_speech(run, tmp_path):  # noqa: F811
    sentence = str(DATA / "sentence.wav")
    first = run("look", "--audio", sentence, "--save", "x.safetensors", "--json")
    again = run("look", "x.safetensors", "--json")
    assert (first.code, again.code) == (0, 0), (first.err, again.err)
    assert json.loads(first.out)["words"] == json.loads(again.out)["words"]
    screen = run("look", "x.safetensors", "--layer", "2")
    assert 'look "x.safetensors" --layer 2 --html' in screen.out
    assert "--audio" not in screen.out
    for option in (["--by", "near"], ["--token", "keys"]):
        done = run("look", "x.safetensors", *option)
        assert done.code == 2
        assert f"A recording of speech and {option[0]} were given" in done.err
