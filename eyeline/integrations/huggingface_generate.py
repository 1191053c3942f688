"""What transformers' `generate` is doing, by the functions that are running."""

from __future__ import annotations

import sys
from types import FrameType
from typing import NamedTuple

# More than one text, or tokens that are taken back: no step continues the one before.
_SEARCHES = {
    "_beam_search": "beam search",
    "_group_beam_search": "beam search",
    "_constrained_beam_search": "beam search",
    "_assisted_decoding": "assisted decoding",
    "_contrastive_search": "contrastive search",
    "_dola_decoding": "DoLa decoding",
    "get_unconditional_logits": "classifier-free guidance",
}
_PROMPT, _WRITING = "_prefill", "_sample"
_KNOWN = {*_SEARCHES, _PROMPT, _WRITING}


class Generating(NamedTuple):
    """What a `generate` does; both None where none is running.

    `search` is the way of decoding, if it is one that tries several continuations; `stage` is
    "prompt" while a prompt is read, "writing" after it.
    """

    search: str | None
    stage: str | None


def generating() -> Generating:
    """By the functions that are running."""
    names: list[str] = []  # the innermost first
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name in _KNOWN and "generat" in frame.f_globals.get("__name__", ""):
            names.append(name)
        frame = frame.f_back
    if not names:
        return _NOTHING
    search = next((_SEARCHES[name] for name in names if name in _SEARCHES), None)
    stage = "prompt" if _PROMPT in names else "writing" if _WRITING in names else None
    return Generating(search, stage)


_NOTHING = Generating(None, None)
