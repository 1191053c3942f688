"""The real models, watched: every weight is their own, and not a bit of what they say changes."""

from __future__ import annotations

import pytest
import torch

from eyeline import models, watch
from tests.real import DATA, REAL

pytestmark = pytest.mark.slow

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("name", REAL)
def test_every_weight_is_the_models_own(name):
    model, inputs = REAL[name]()
    model.set_attn_implementation("eager")
    with torch.no_grad(), watch(model) as seen:
        output = model(**inputs, output_attentions=True)
    assert not seen.missing
    if name == "whisper":
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        own = [*output.encoder_attentions, *(weights for pair in pairs for weights in pair)]
        assert seen.kinds == ("self",) * 4 + ("self", "cross") * 4
    else:
        own = list(output.attentions)
    assert len(seen) == len(own)
    sharp = 0.0
    for weights, expected in zip(seen, own, strict=True):
        assert weights.shape == expected.shape
        torch.testing.assert_close(weights.to_dense(), expected, atol=1e-5, rtol=0)
        sharp = max(sharp, float(expected.amax(-1).mean()))
    assert sharp > 0.2  # of 0.05 and less where rows are uniform


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REAL)
def test_what_it_computes_does_not_change_by_a_bit(name, dtype):
    model, inputs = REAL[name]()
    model.to(dtype)
    inputs = {key: v.to(dtype) if v.is_floating_point() else v for key, v in inputs.items()}
    with torch.no_grad():
        before = model(**inputs)[0]
        with watch(model) as seen:
            watched = model(**inputs)[0]
        after = model(**inputs)[0]
    assert len(seen) > 0
    assert watched.dtype == dtype
    assert torch.equal(watched, before)
    assert torch.equal(after, before)


def test_the_same_64_tokens_are_written():
    loaded = models.load("smollm2")
    model = loaded.language_model()
    inputs = loaded.inputs(loaded.tokens("Once upon a time"))
    for dtype in DTYPES:
        model.to(dtype)
        settings = {"max_new_tokens": 64, "do_sample": False, "use_cache": True}
        settings["pad_token_id"] = model.config.eos_token_id
        with torch.no_grad():
            plain = model.generate(**inputs, **settings)
            with watch(model) as seen:
                watched = model.generate(**inputs, **settings)
        assert torch.equal(plain, watched)
        assert len(seen) == 30


def test_whisper_hears_the_same():
    loaded = models.load("whisper")
    sound = models.read_sound(DATA / "words.wav")
    plain = models.transcribe(loaded, sound)
    with watch(loaded.model):
        watched = models.transcribe(loaded, sound)
    assert watched.tokens == plain.tokens
