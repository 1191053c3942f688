"""Recordings: what a run saw, in one file that is looked into without the model.

`seen.save("x.safetensors")` writes queries, keys, the masks as rules, the sums of each row, tokens
and small heat maps; `eyeline.load` gives back what answers as the run itself did, mapped from the
file.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyeline.backends.base import State
from eyeline.errors import ArgumentError, EyelineError, RecordingError
from eyeline.lazy import Weights
from eyeline.recording import container
from eyeline.recording.container import Container
from eyeline.recording.described import Reader, Stored, Writer
from eyeline.seen import Call, Seen
from eyeline.tokens import Tokens

__all__ = ["Recording", "load", "save"]

FORMAT = 1


class Recording(Seen):
    """What `load` gives: a `Seen` whose tensors lie in a file and are read when they are used.

    `model` is the name of the model that ran, None where it was not known; `versions` are those of
    eyeline, torch and transformers when the file was written. The numbers of a layer are compared
    with their checksums when the layer is first asked for; RecordingError where they differ.
    """

    def __init__(self, file: Container) -> None:
        reader = Reader(file)
        told = file.description
        if told.get("format") != FORMAT:
            raise RecordingError(
                f"{file.path} is a recording of format {told.get('format')!r:.20}, and this "
                f"eyeline reads format {FORMAT}: read it with the version that wrote it."
            )
        self._file = file
        self._stored = [reader.call(one) for one in reader.get(told, "calls", list)]
        missing = [reader.missing(one) for one in reader.get(told, "missing", list)]
        tokens = reader.maybe(told, "tokens", dict)
        generated = reader.maybe(told, "generated", str)
        super().__init__(
            [stored.call for stored in self._stored],
            missing,
            tokens=None if tokens is None else reader.tokens(tokens),
            generated=None if generated is None else reader.tensor(generated, (torch.bool,), 1),
        )
        self.model = reader.maybe(told, "model", str)
        self.about: dict[str, Any] = reader.maybe(told, "about", dict) or {}
        self.versions: dict[str, str] = reader.get(told, "versions", dict)
        for name in file.entries:  # of no layer, and small but for what was missing
            if not name.partition(".")[0].isdecimal():
                file.check(name)

    @property
    def calls(self) -> tuple[Call, ...]:
        """What each call of an attention was given, all of it checked."""
        return tuple(self._checked(index).call for index in range(len(self)))

    def real(self, key: int | str) -> Tensor | None:
        """bool [B, T], False for the rows of a layer that are padding; None where all are real."""
        self._checked(self._index(key))
        return super().real(key)

    def values(self, key: int | str) -> Tensor:
        """v [B, Hk, Tk, Dv] of a layer, of a model watched with `values=True`."""
        self._checked(self._index(key))
        return super().values(key)

    def thumbnail(self, key: int | str) -> Tensor:
        """The mean weights of each head of a layer on a grid, float32 [B, H, 32, 32] or smaller."""
        return self._checked(self._index(key)).map

    def _made(self, index: int) -> Weights:
        """The weights of a layer, with what is known of its rows."""
        stored = self._checked(index)
        try:
            weights = stored.call.weights()
        except EyelineError as error:
            self._file.damaged(f"{stored.call.name!r:.40} has no weights: {error}")
        weights._body.lse = stored.rows["lse"]
        weights._body.state = State(stored.rows["m"], stored.rows["l"], own=False)
        return weights

    def _checked(self, index: int) -> Stored:
        stored = self._stored[index]
        for name in stored.names:
            self._file.check(name)
        return stored

    def _start(self) -> None:
        raise ArgumentError("A recording is read, not recorded into.")


def save(seen: Seen, path: str | os.PathLike[str], *, model: str | None = None) -> None:
    """Write what a run saw to one file, a safetensors file with mode 0600.

    It holds q and k of every layer (v too where they were kept), the sums of each row, the masks as
    rules, biases, tokens, the model's name, versions, and a small heat map of each head; for
    SmolLM2 and 1000 tokens 97 MB. The sums take one pass over the weights, so saving takes about
    as long as one reading of all layers. A text's tokens are in it: the file can be read by its
    owner alone. RecordingError where it cannot be written.

    >>> import os, tempfile, torch
    >>> from eyeline.seen import Call, Seen
    >>> x = torch.eye(2)[None, None]
    >>> path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
    >>> save(Seen([Call("layer", x, x)]), path)
    >>> load(path)["layer"][0, 0, 0]
    tensor([0.6698, 0.3302])
    """
    if not isinstance(seen, Seen) or not len(seen):
        raise ArgumentError(
            "save() takes what eyeline.watch saw, at least one layer; call the model first."
        )
    if not isinstance(seen.tokens, Tokens | None):
        raise ArgumentError(
            "save() writes the tokens that loaded.tokens(text) gives, and seen.tokens is a"
            f" {type(seen.tokens).__name__}."
        )
    writer = Writer()
    description: dict[str, Any] = {"format": FORMAT, "versions": _versions()}
    description["model"] = model if model is not None else seen.model
    description["about"] = _plain(seen.about)
    calls = [writer.call(at, call, seen[at]) for at, call in enumerate(seen.calls)]
    description["calls"] = calls
    description["missing"] = [writer.missing(at, one) for at, one in enumerate(seen.missing)]
    description["tokens"] = None if seen.tokens is None else asdict(seen.tokens)
    generated = seen.generated
    description["generated"] = (
        None if generated is None else writer.tensor("generated", generated.bool())
    )
    container.write(Path(path), description, writer.plan)


def load(path: str | os.PathLike[str]) -> Recording:
    """A recording that `seen.save(path)` wrote, without the model: it answers all that `seen` did.

    The file is mapped: opening it costs next to no memory and time, whatever its size, and a
    layer's numbers are read, and compared with their checksums, when it is first asked for. It
    must not be written to while it is in use. RecordingError for a file that is damaged, cut off,
    of another format or no recording.

    >>> import os, tempfile, torch, eyeline
    >>> from eyeline.seen import Call, Seen
    >>> x = torch.eye(3)[None, None]
    >>> path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
    >>> Seen([Call("layer", x, x, mask=eyeline.causal())]).save(path)
    >>> seen = eyeline.load(path)
    >>> seen["L0H0"][1], eyeline.entropy(seen[0]).values
    (tensor([0.3595, 0.6405, 0.0000]), tensor([[[0.0000, 0.6532, 1.0581]]]))
    """
    return Recording(Container(Path(path)))


def _plain(about: Any) -> dict[str, Any]:
    """Facts as they come back; ArgumentError for what JSON does not hold."""
    try:
        plain = json.loads(json.dumps(about, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"seen.about holds what JSON does not: {error}.") from None
    if not isinstance(plain, dict):
        raise ArgumentError(f"seen.about is a {type(about).__name__}: give a dict.")
    return plain


def _versions() -> dict[str, str]:
    import eyeline

    found = {"eyeline": eyeline.__version__, "torch": str(torch.__version__)}
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        found["transformers"] = str(transformers.__version__)
    return found
