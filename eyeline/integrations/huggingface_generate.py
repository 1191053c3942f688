"""What transformers' `generate` is doing, by the functions that are running."""

from __future__ import annotations

import sys
from collections.abc import Iterator

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


def search() -> str | None:
    """The way of decoding that is running, if it is one that tries several continuations."""
    return next((_SEARCHES[name] for name in _running() if name in _SEARCHES), None)


def stage() -> str | None:
    """ "prompt" while a `generate` reads its prompt, "writing" after it; None outside of one."""
    names = set(_running())
    if "_prefill" in names:
        return "prompt"
    return "writing" if "_sample" in names else None


def writing() -> bool:
    """Whether a `generate` is running, of one text or of several."""
    return stage() is not None or search() is not None


def _running() -> Iterator[str]:
    """Names of the functions of a `generate` that are running, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if "generat" in module:
            yield frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
