"""When each word of a recording was said, read off Whisper's cross-attention.

    python examples/whisper_words.py            # a clip from tests/data
    python examples/whisper_words.py mine.wav

Whisper writes text; no one taught it times. But eight heads of its decoder look at the moment that
they are writing, so the path along which their rows are strongest says when a word begins.
Needs the model: make models, or the packages of models-more.txt.
"""

import sys
from pathlib import Path

import torch

import eyeline
from eyeline import models
from eyeline.looking.alignment import aligned

FRAME = 0.02  # seconds: 1500 positions of the encoder for 30 s
CLIP = Path(__file__).parent.parent / "tests" / "data" / "sentence.wav"


def word_times(path):
    """(word, start, the moment it is listened for most), in seconds."""
    loaded = models.load("whisper")
    sound = models.read_sound(path)
    heard = models.transcribe(loaded, sound)

    # One forward over all that was written: each row is the one that chose the next token.
    with torch.no_grad(), eyeline.watch(loaded.model) as seen:
        loaded.model(**sound.inputs(), **heard.inputs())
    cross = [weights for weights, kind in zip(seen, seen.kinds) if kind == "cross"]

    # The rows that chose the words and the end, over the frames that hold sound.
    frames = round(sound.seconds / FRAME)
    heads = loaded.model.generation_config.alignment_heads
    rows = torch.stack([cross[layer][0, head][1:-1, :frames].to_dense() for layer, head in heads])
    times = aligned(rows)

    words = heard.tokens.words()
    for label, (first, _), special in zip(words.labels, words.spans, words.special):
        if not special and label.isalnum():
            row = first - 2  # after <|startoftranscript|> and <|notimestamps|>
            start, peak = times.starts[row] * FRAME, times.peaks[row] * FRAME
            yield label, sound.sounding(start, peak), peak  # a word does not begin in silence


if __name__ == "__main__":
    for word, start, peak in word_times(sys.argv[1] if len(sys.argv) > 1 else CLIP):
        print(f"{start:5.2f} s  {word:<12} most at {peak:.2f} s")
