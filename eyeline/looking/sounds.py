"""A look at speech: the words that Whisper writes, and where in time it listens for each."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyeline import recording
from eyeline.errors import ArgumentError
from eyeline.glossary import Phrases, language
from eyeline.looking import asked
from eyeline.looking.alignment import aligned
from eyeline.looking.asked import Model, within
from eyeline.looking.data import view
from eyeline.models import LoadedModel, Progress, Sound, Transcript, read_sound, transcribe
from eyeline.models.sounds import FRAME, LONGEST, RATE, sounding
from eyeline.seen import Seen, watch

CELLS = 50  # a map has so many columns, however long the sound


@dataclass(frozen=True)
class HeardWord:
    """A word, when it begins and when it is listened for most, in seconds."""

    label: str
    start: float
    peak: float


@dataclass(frozen=True)
class SoundLook:
    """What Whisper heard, and the attention that wrote it: plain data.

    `heads` (layer, head) of the decoder's cross-attention are averaged. `values` [words][cells] is
    what the tokens of a word, while they were written, gave each cell of time, of equal length
    from 0 to `duration`; `beyond` what went past the end, into the silence that fills 30 s. A row
    and its share beyond sum to 1. `recorded` looks know no file. `print(look)` is the screen of the
    command line.
    """

    name: str
    lang: str
    model: str
    title: str
    duration: float
    text: str
    tokens: int
    layers: int
    heads: tuple[tuple[int, int], ...]
    chosen: bool
    words: tuple[HeardWord, ...]
    values: tuple[tuple[float, ...], ...]
    beyond: tuple[float, ...]
    notes: tuple[str, ...]
    seconds: float
    recorded: bool = False

    def to_json(self) -> str:
        """All of it as JSON, under the names of the fields."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def save_html(self, path: str | Path) -> None:
        """Write one self-contained page: no script, nothing fetched."""
        Path(path).write_text(view("sounds").page(self), encoding="utf-8")

    def save_svg(self, path: str | Path) -> None:
        """Write the map of words over time as a figure."""
        Path(path).write_text(view("sounds").figure(self), encoding="utf-8")

    def __str__(self) -> str:
        return str(view("sounds").screen(self))

    def _repr_html_(self) -> str:
        return str(view("sounds").fragment(self))


@dataclass(frozen=True)
class _Ran:
    """What is looked at: a run over speech, and what of the sound its times need."""

    seen: Seen
    heard: Transcript
    name: str
    model: str
    title: str
    notes: tuple[str, ...]
    duration: float
    loud: np.ndarray[Any, np.dtype[np.bool_]]  # for each frame
    following: tuple[tuple[int, int], ...]  # heads (layer, head) that are known to follow the sound


def listen(
    sound: str | os.PathLike[str] | Sound | Seen,
    model: Model = "whisper",
    *,
    layer: int | None = None,
    head: int | None = None,
    save: str | os.PathLike[str] | None = None,
    lang: str | None = None,
    progress: Progress | None = None,
) -> SoundLook:
    """Let Whisper write down what is said, and say where in time it listened for each word.

    `sound` is a WAV file or what `read_sound` returned. Without `layer` and `head` it is the
    average of the heads of cross-attention that are known to follow the sound; with a layer all
    of its heads, with both one. Word starts come from these heads by dynamic time warping, as
    `eyeline.looking.alignment` says; one that falls into silence moves to its end. `save` names a
    file for a recording of the run; in place of a sound `listen` also takes one, as
    `eyeline.load(path)` gives it, and needs no model then.

    Errors: ModelError for a file that is no sound, or a model that reads none; ArgumentError for
    a layer or head that is not there, or a recording of something else.

    >>> import numpy as np
    >>> look = listen(Sound(np.zeros(16000, dtype=np.float32)))
    >>> look.duration, len(look.heads)
    (1.0, 8)
    """
    started = time.perf_counter()
    if isinstance(sound, Seen):
        ran = _recorded(sound)
    else:
        loaded = asked.loaded(model, progress=progress)
        loaded.expect("sound")
        read = sound if isinstance(sound, Sound) else read_sound(sound)
        started = time.perf_counter()
        name = "a sound" if isinstance(sound, Sound) else os.path.basename(os.fspath(sound))
        ran = _run(loaded, read, name, Phrases(language(lang)))
    if save is not None:
        recording.save(ran.seen, save, model=ran.model)
    cross = crossed(ran.seen)
    heads = _heads(ran.following, cross, layer, head)
    rows = attention(cross, heads)
    frames = max(1, min(rows.shape[-1], round(ran.duration / FRAME)))
    words, spans = _words(ran.heard)
    edges = torch.tensor([frames * c // CELLS for c in range(CELLS + 1)])
    begins = aligned(rows[..., :frames])
    means = torch.stack([rows[:, a:b].mean((0, 1)) for a, b in spans] or [rows[0, 0]])
    sums = torch.nn.functional.pad(means.cumsum(-1), (1, 0))
    return SoundLook(
        name=ran.name,
        lang=language(lang),
        model=ran.model,
        title=ran.title,
        duration=ran.duration,
        text=ran.heard.text,
        tokens=len(ran.heard.tokens),
        layers=len(cross),
        heads=heads,
        chosen=layer is None and head is None,
        words=tuple(
            _heard_word(label, ran.loud, begins.starts[a], begins.peaks[a:b], row)
            for label, (a, b), row in zip(words, spans, means)
        ),
        values=tuple(map(tuple, sums[: len(words), edges].diff().tolist())),
        beyond=tuple((1 - sums[: len(words), frames]).clamp(min=0).tolist()),
        notes=ran.notes,
        seconds=time.perf_counter() - started,
        recorded=isinstance(sound, Seen),
    )


def _run(loaded: LoadedModel, sound: Sound, name: str, say: Phrases) -> _Ran:
    """One forward over all that was written: each row is the one that chose the next token."""
    heard = transcribe(loaded, sound)
    with torch.no_grad(), watch(loaded.model) as seen:
        loaded.model(**sound.inputs(), **heard.inputs())
    config: Any = loaded.model.generation_config
    following = [[int(layer), int(head)] for layer, head in config.alignment_heads]
    loud = sound.loud()
    seen.tokens = heard.tokens
    edges = np.flatnonzero(np.diff(loud, prepend=False, append=False)).tolist()
    seen.about = {"speech": {"seconds": sound.seconds, "loud": edges, "heads": following}}
    heads = tuple((layer, head) for layer, head in following)
    notes = tuple(_notes(sound, say))
    return _Ran(seen, heard, name, loaded.name, loaded.title, notes, sound.seconds, loud, heads)


def is_speech(seen: Seen) -> bool:
    """Whether a run is one that `listen` recorded."""
    return seen.tokens is not None and "cross" in seen.kinds and "speech" in seen.about


def _recorded(seen: Seen) -> _Ran:
    """A run over speech that was recorded before."""
    if not is_speech(seen):
        raise ArgumentError("This is no run over speech: listen(sound, save=path) records one.")
    assert seen.tokens is not None
    _, heads, _, frames = crossed(seen)[0].shape
    loud = np.zeros(frames, dtype=np.bool_)
    try:
        told = seen.about["speech"]
        duration, edges = float(told["seconds"]), [int(edge) for edge in told["loud"]]
        if not 0 <= duration <= LONGEST:
            raise ValueError(f"{duration} seconds")
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            loud[start:stop] = True
        following = tuple((int(layer), int(head)) for layer, head in told["heads"])
        if not following:
            raise ValueError("no heads")
        for layer, head in following:
            within("layer", layer, seen.kinds.count("cross"))
            within("head", head, heads)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"What this run says about its speech is incomplete: {error}") from None
    name, title = asked.named(seen)
    heard = Transcript(seen.tokens)
    return _Ran(seen, heard, "a recording", name, title, (), duration, loud, following)


def _heard_word(
    label: str,
    loud: np.ndarray[Any, np.dtype[np.bool_]],
    start: int,
    peaks: Sequence[int],
    row: Tensor,
) -> HeardWord:
    """A word that the warping lets begin in a silence begins where the silence ends."""
    peak = round(max(peaks, key=lambda at: float(row[at])) * FRAME, 2)
    return HeardWord(label, sounding(loud, round(start * FRAME, 2), peak), peak)


def crossed(seen: Seen) -> list[Any]:
    """The lazy weights [1, H, tokens, frames] of each cross-attention, layer by layer."""
    return [seen[at] for at, kind in enumerate(seen.kinds) if kind == "cross"]


def attention(cross: Sequence[Any], heads: Sequence[tuple[int, int]]) -> Tensor:
    """The rows of these heads that wrote the words and the end mark: [heads, tokens, frames].

    The row of a token chooses the next one, so those of the start mark and of the end mark are
    left out: what remains begins with the row that wrote the first word.
    """
    return torch.stack([cross[layer][0, head][1:-1].to_dense().float() for layer, head in heads])


def _heads(
    following: tuple[tuple[int, int], ...],
    cross: Sequence[Any],
    layer: int | None,
    head: int | None,
) -> tuple[tuple[int, int], ...]:
    count = cross[0].shape[1]
    for name, number, limit in (("layer", layer, len(cross)), ("head", head, count)):
        if number is not None:
            within(name, number, limit)
    if layer is None and head is None:
        return following
    layers = range(len(cross)) if layer is None else [layer]
    return tuple((a, b) for a in layers for b in (range(count) if head is None else [head]))


def _notes(sound: Sound, say: Phrases) -> Iterator[str]:
    """What was changed in reading the file, a sentence each."""
    if sound.channels > 1:
        yield say("sound channels", channels=sound.channels)
    if sound.whole is not None and sound.whole > LONGEST:
        yield say("sound cut", whole=f"{sound.whole:.0f}", longest=LONGEST)
    if sound.rate != RATE:
        yield say("sound rate", before=sound.rate, after=RATE)


def _words(heard: Transcript) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """The words and the rows (first, one past the last) that wrote them, without punctuation."""
    found = heard.tokens.words()
    kept = [
        (label, (first - 2, stop - 2))  # after the two start marks, each by the row before it
        for label, (first, stop), special in zip(found.labels, found.spans, found.special)
        if not special and any(char.isalnum() for char in label)
    ]
    return tuple(label for label, _ in kept), [span for _, span in kept]
