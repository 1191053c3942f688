"""Whisper in a CTranslate2 file → the weights under the names that transformers gives them.

CTranslate2 keeps a model in one file, model.bin: names, shapes and raw numbers, the projections
of queries, keys and values of one attention stacked in one matrix. Read by numpy alone; nothing
in it is executed. Source: `python/ctranslate2/specs/model_spec.py` and `whisper_spec.py`, the
code that writes the file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from eyeline.errors import ModelError

Array = np.ndarray[Any, Any]

_VERSION = 6  # of the format: since it, names of scalars and aliases are as read here
# the numbers that the format gives its types; 5, bfloat16, has no name in numpy
_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_NORM = {"gamma": "weight", "beta": "bias"}
_OUTER = {
    "encoder/conv1": "encoder.conv1",
    "encoder/conv2": "encoder.conv2",
    "encoder/layer_norm": "encoder.layer_norm",
    "decoder/layer_norm": "decoder.layer_norm",
}
_TABLES = {
    "encoder/position_encodings/encodings": "encoder.embed_positions.weight",
    "decoder/position_encodings/encodings": "decoder.embed_positions.weight",
    "decoder/embeddings/weight": "decoder.embed_tokens.weight",
}
_INNER = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
# A stacked matrix and the projections that stand in it, from top to bottom.
_STACKED = {
    "self_attention/linear_0": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "self_attention/linear_1": ("self_attn", ("out_proj",)),
    "attention/linear_0": ("encoder_attn", ("q_proj",)),
    "attention/linear_1": ("encoder_attn", ("k_proj", "v_proj")),
    "attention/linear_2": ("encoder_attn", ("out_proj",)),
}


def read(path: Path) -> dict[str, Array]:
    """Every variable of a CTranslate2 model file, by name; scalars have the shape ().

    Aliases are left out. Raises ModelError for a file that is none, or cut short.
    """
    content = memoryview(path.read_bytes())
    try:
        return dict(_variables(_Reader(content)))
    except (struct.error, ValueError, KeyError) as error:
        raise ModelError(f"{path.name} is no CTranslate2 model of format {_VERSION}.") from error


def whisper(path: Path) -> dict[str, Array]:
    """The weights of a Whisper model under transformers' names ("model.encoder.conv1.weight").

    The output projection is the table of token embeddings and is not listed. Raises ModelError
    where the file holds something else.
    """
    variables = read(path)
    if "encoder/conv1/weight" not in variables:
        raise ModelError(f"{path.name} holds no Whisper model: it has no encoder/conv1.")
    found: dict[str, Array] = {}
    for name, values in variables.items():
        if values.ndim:
            found.update((f"model.{to}", part) for to, part in _renamed(name, values))
    return found


class _Reader:
    """Numbers and names one after the other, little-endian as the format has them."""

    def __init__(self, content: memoryview) -> None:
        self.content, self.at = content, 0

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f"<{kind}", self.content, self.at)
        self.at += struct.calcsize(kind)
        return int(value)

    def bytes(self, count: int) -> memoryview:
        taken = self.content[self.at : self.at + count]
        if len(taken) != count:
            raise ValueError("the file ends early")
        self.at += count
        return taken

    def name(self) -> str:
        return bytes(self.bytes(self.number("H"))).rstrip(b"\0").decode()


def _variables(reader: _Reader) -> Iterator[tuple[str, Array]]:
    if reader.number("I") != _VERSION:
        raise ValueError("another format")
    reader.name()  # of the specification, and its revision
    reader.number("I")
    for _ in range(reader.number("I")):
        name = reader.name()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        dtype = np.dtype(_TYPES[reader.number("B")])
        raw = reader.bytes(reader.number("I"))
        if len(raw) != math.prod(shape) * dtype.itemsize:
            raise ValueError("a shape that its numbers do not fill")
        yield name, np.frombuffer(raw, dtype.newbyteorder("<")).reshape(shape)


def _renamed(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    if name in _TABLES:
        yield _TABLES[name], values
        return
    stem, _, kind = name.rpartition("/")
    kind = _NORM.get(kind, kind)
    if stem in _OUTER:
        yield f"{_OUTER[stem]}.{kind}", values
        return
    side, layer, part = stem.split("/", 2)
    into = f"{side}.layers.{layer.removeprefix('layer_')}"
    if part in _INNER:
        yield f"{into}.{_INNER[part]}.{kind}", values
        return
    module, projections = _STACKED[part]
    for projection, rows in zip(projections, np.split(values, len(projections)), strict=True):
        if (projection, kind) != ("k_proj", "bias"):  # Whisper's keys have none: zeros here
            yield f"{into}.{module}.{projection}.{kind}", rows
