"""Speech as Whisper reads it: a spectrogram of 30 s, and the words that it hears in it."""

from __future__ import annotations

import json
import os
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eyeline.errors import ModelError
from eyeline.models.loaded import LoadedModel, check_complete, quiet
from eyeline.tokens import Tokens, from_ids

SLOWEST, FASTEST = 1_000, 1_000_000  # samples per second that a file may have
RATE = 16_000  # samples per second that Whisper was trained with
LONGEST = 30  # seconds
FRAME = 0.02  # seconds that one position of Whisper's encoder stands for
_BYTES = 2  # of a sample: 16 bits
_SILENT = 0.02  # of the loudest sample: less is no sound of speech


@dataclass(frozen=True, repr=False)
class Sound:
    """Mono sound, float32 [n] from -1 to 1, 16 000 samples a second, 30 s at most.

    `rate` and `channels` are those of the file it was read from, `whole` the seconds in it.
    """

    samples: np.ndarray[Any, np.dtype[np.float32]]
    rate: int = RATE
    channels: int = 1
    whole: float | None = None

    def __repr__(self) -> str:
        return f"Sound({self.seconds:.2f} s)"

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / RATE

    def sounding(self, start: float, until: float) -> float:
        """The first moment in seconds, from `start` on, that is not silent; else `start`.

        A frame of 20 ms is silent where no sample reaches a fiftieth of the loudest one. Looks no
        further than `until`.

        >>> Sound(np.repeat(np.float32([0, 0, 1, 0]), 320)).sounding(0.0, 0.06)
        0.04
        """
        return sounding(self.loud(), start, until)

    def loud(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each frame of 20 ms whether a sample in it reaches a fiftieth of the loudest one."""
        size = round(FRAME * RATE)
        frames = np.abs(np.append(self.samples, np.zeros(-len(self.samples) % size)))
        found: np.ndarray[Any, np.dtype[np.bool_]]
        found = frames.reshape(-1, size).max(1) > _SILENT * frames.max()
        return found

    def inputs(self) -> dict[str, torch.Tensor]:
        """What Whisper's encoder takes: input_features, float32 [1, 80, 3000], 10 ms each."""
        from transformers import WhisperFeatureExtractor

        found = WhisperFeatureExtractor()(self.samples, sampling_rate=RATE, return_tensors="pt")
        return {"input_features": found["input_features"]}


def sounding(loud: np.ndarray[Any, np.dtype[np.bool_]], start: float, until: float) -> float:
    """The first moment from `start` to `until` whose frame is loud; else `start`."""
    first, last = round(start / FRAME), round(until / FRAME)
    found = np.flatnonzero(loud[first : last + 1])
    return start if len(found) == 0 else round(float(first + found[0]) * FRAME, 2)


@dataclass(frozen=True)
class Transcript:
    """What Whisper heard, as the tokens that it wrote: start and end marks included."""

    tokens: Tokens

    @property
    def text(self) -> str:
        """The words, without the marks."""
        return self.tokens.text.strip()

    def inputs(self) -> dict[str, torch.Tensor]:
        """What the decoder takes: decoder_input_ids, int64 [1, T]."""
        return {"decoder_input_ids": torch.tensor([self.tokens.ids])}


def read_sound(path: str | os.PathLike[str]) -> Sound:
    """Sound from a WAV file of 16-bit PCM, of any rate and number of channels.

    Channels are averaged, another rate is brought to 16 000 samples a second (exactly, for sound
    that repeats: the spectrum is cut or padded), and what is after 30 s is left out. Raises
    ModelError where the file is not there or is another kind.
    """
    name = os.fspath(path)
    try:
        with wave.open(name, "rb") as file:
            form = file.getparams()
            raw = file.readframes(form.nframes)
    except FileNotFoundError as error:
        raise ModelError(f"There is no sound {name}.") from error
    except (wave.Error, EOFError, OSError) as error:
        raise ModelError(f"{name} cannot be read as WAV: {error}.\n{_remedy(name)}") from error
    if form.sampwidth != _BYTES:
        raise ModelError(
            f"{name} has {8 * form.sampwidth} bits a sample, and 16 are read.\n{_remedy(name)}"
        )
    whole = len(raw) - len(raw) % (_BYTES * form.nchannels)
    samples = np.frombuffer(raw[:whole], "<i2").reshape(-1, form.nchannels).mean(1) / 32768
    if not len(samples):
        raise ModelError(f"{name} holds no sound: it has 0 samples.")
    if not SLOWEST <= form.framerate <= FASTEST:
        raise ModelError(
            f"{name} is damaged: it says that it has {form.framerate} samples a second."
        )
    taken = samples[: LONGEST * form.framerate]
    if form.framerate != RATE:
        taken = _resampled(taken, round(len(taken) * RATE / form.framerate))
    seconds = len(samples) / form.framerate
    return Sound(taken.astype(np.float32), form.framerate, form.nchannels, seconds)


def transcribe(loaded: LoadedModel, sound: Sound) -> Transcript:
    """The words that Whisper hears, taking the likeliest token at each step.

    Raises ModelError where the model is not one of sound.
    """
    loaded.expect("sound")
    model: Any = loaded.model
    with torch.no_grad(), quiet():
        written = model.generate(**sound.inputs(), do_sample=False, num_beams=1)
    config = model.generation_config
    start = [config.decoder_start_token_id, config.no_timestamps_token_id]
    marks = {*start, config.eos_token_id}
    words = [i for i in written[0].tolist() if i not in marks]
    return Transcript(from_ids(loaded.tokenizer, [*start, *words, config.eos_token_id]))


def build(folder: Path) -> torch.nn.Module:
    """Whisper with the weights of a CTranslate2 folder: model.bin, config.json, tokenizer.json."""
    from tokenizers import Tokenizer
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperForConditionalGeneration

    from eyeline.integrations import ctranslate2_file

    weights = ctranslate2_file.whisper(folder / "model.bin")
    words, width = weights["model.decoder.embed_tokens.weight"].shape
    config = WhisperConfig(
        vocab_size=words,
        d_model=width,
        num_mel_bins=weights["model.encoder.conv1.weight"].shape[1],
        **{f"{side}_layers": _layers(weights, side) for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": width // 64 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 4 * width for side in ("encoder", "decoder")},
    )
    model: Any
    model, report = WhisperForConditionalGeneration.from_pretrained(
        None,
        config=config,
        state_dict={name: torch.from_numpy(np.array(w)).float() for name, w in weights.items()},
        output_loading_info=True,
    )
    check_complete(folder, report)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model.generation_config = _generation(settings, tokenizer)
    whisper: torch.nn.Module = model
    return whisper


def _generation(settings: dict[str, Any], tokenizer: Any) -> Any:
    """How an English Whisper writes: its marks, and the tokens that it must not write."""
    from transformers import GenerationConfig

    end = tokenizer.token_to_id("<|endoftext|>")
    return GenerationConfig(
        decoder_start_token_id=tokenizer.token_to_id("<|startoftranscript|>"),
        no_timestamps_token_id=tokenizer.token_to_id("<|notimestamps|>"),
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        is_multilingual=False,
        max_length=448,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
        return_timestamps=False,
    )


def _layers(weights: dict[str, Any], side: str) -> int:
    return len({name.split(".")[3] for name in weights if name.startswith(f"model.{side}.layers.")})


def _resampled(samples: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """As many samples of the same sound: its spectrum, cut or padded with nothing."""
    spectrum = np.fft.rfft(samples)
    return np.fft.irfft(spectrum, count) * (count / len(samples))


def _remedy(name: str) -> str:
    stem = Path(name).stem
    return f"Convert it: ffmpeg -i {name} -ac 1 -ar {RATE} -c:a pcm_s16le {stem}-16k.wav"
