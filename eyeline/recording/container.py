"""A file of named tensors, safetensors, with a checksum each; read as views of the mapped file.

Eight bytes with the length of the header, the header as JSON, then the tensors' bytes one after
the other. Nothing in it is code and nothing is unpickled. The description that goes with the
tensors, their table and a checksum of each stand in the header's metadata, and so does a checksum
of that text; the rest of the header follows from it and is compared byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import stat
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from torch import Tensor

from eyeline.errors import RecordingError

DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "U8": torch.uint8,
    "I8": torch.int8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = 8  # bytes that hold the header's length
_MOST_HEADER = 2**30
_MOST = 2**62  # bytes or entries: more are no file


@dataclass(frozen=True)
class Entry:
    """One tensor of the file: its type, shape, bytes [start, stop) of the data, and checksum."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int
    check: str = "00000000"


@dataclass
class Plan:
    """The tensors that are to be written; `make` forms each when its turn comes."""

    make: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    sizes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=dict)

    def add(
        self, name: str, dtype: torch.dtype, shape: tuple[int, ...], make: Callable[[], Tensor]
    ) -> str:
        """Have a tensor written; its name."""
        if dtype not in NAMES:
            raise RecordingError(f"A recording holds no {dtype}: {name} cannot be saved.")
        self.make[name], self.sizes[name] = make, (dtype, shape)
        return name

    def entries(self) -> dict[str, Entry]:
        """Where each tensor will lie, the widest types first, so that all are aligned."""
        found: dict[str, Entry] = {}
        start = 0
        for name in sorted(self.sizes, key=lambda n: -self.sizes[n][0].itemsize):
            dtype, shape = self.sizes[name]
            stop = start + math.prod(shape) * dtype.itemsize
            found[name] = Entry(dtype, shape, start, stop)
            start = stop
        return found


def write(path: Path, description: dict[str, Any], plan: Plan) -> None:
    """Write the file at once or not at all, readable by its owner alone."""
    beside = path
    try:
        if path.exists() and not path.is_file():
            raise RecordingError(f"{path} is no file: name a file that may be written.")
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
        with os.fdopen(handle, "wb") as file:
            _fill(file, description, plan)
        os.replace(beside, path)
    except OSError as error:
        raise RecordingError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        if beside != path:
            with contextlib.suppress(OSError):
                beside.unlink()


def _fill(file: BinaryIO, description: dict[str, Any], plan: Plan) -> None:
    entries = plan.entries()
    first = len(_header(description, entries))  # of the same length whatever the checksums
    file.seek(_LENGTH + first)
    for name, entry in entries.items():
        made = plan.make[name]().detach().cpu()
        assert (made.dtype, tuple(made.shape)) == (entry.dtype, entry.shape), name
        data = _bytes(made.contiguous()).numpy().data
        entries[name] = Entry(*_where(entry), check=f"{zlib.crc32(data):08x}")
        file.write(data)
    file.seek(0)
    header = _header(description, entries)
    assert len(header) == first
    file.write(len(header).to_bytes(_LENGTH, "little") + header)


def _where(entry: Entry) -> tuple[torch.dtype, tuple[int, ...], int, int]:
    return entry.dtype, entry.shape, entry.start, entry.stop


def _bytes(t: Tensor) -> Tensor:
    return t.reshape(-1).view(torch.uint8)


def _header(description: dict[str, Any], entries: dict[str, Entry]) -> bytes:
    """The header's bytes, with spaces at its end up to a multiple of 8."""
    table = {
        name: [NAMES[e.dtype], list(e.shape), e.start, e.stop, e.check]
        for name, e in entries.items()
    }
    told = _compact({"description": description, "tensors": table})
    header: dict[str, Any] = {
        "__metadata__": {"eyeline": told, "check": f"{zlib.crc32(told.encode()):08x}"}
    }
    for name, e in entries.items():
        header[name] = {
            "dtype": NAMES[e.dtype],
            "shape": list(e.shape),
            "data_offsets": [e.start, e.stop],
        }
    text = _compact(header).encode()
    return text + b" " * (-len(text) % 8)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class Container:
    """A file that is open for reading: its description, and its tensors as views of the mapping.

    A tensor costs no memory before its numbers are used. `check` compares them with its checksum,
    once, and raises RecordingError where they differ.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked: set[str] = set()
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                header = self._header(file, size)
            self.description, self.entries = self._parsed(header)
            end = max((e.stop for e in self.entries.values()), default=0)
            self._first = _LENGTH + len(header)
            if size != self._first + end:
                self.damaged(f"it has {size} bytes and should have {self._first + end}")
            self._bytes = self._mapped(size) if end else torch.zeros(0, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RecordingError):
                raise
            said = getattr(error, "strerror", None) or error
            raise RecordingError(f"{path} cannot be read: {said}.") from error

    def damaged(self, found: str) -> NoReturn:
        """Raise RecordingError: what was found is not what was written."""
        raise RecordingError(f"{self.path} is damaged or no recording of eyeline: {found}.")

    def tensor(self, name: str) -> Tensor:
        """A tensor as a view of the mapped file, not checked."""
        entry = self.entries[name]
        if entry.start == entry.stop:
            return torch.zeros(entry.shape, dtype=entry.dtype)
        part = self._bytes[self._first + entry.start : self._first + entry.stop]
        return part.view(entry.dtype).view(entry.shape)

    def check(self, name: str) -> None:
        """Compare a tensor's bytes with its checksum, unless that was done."""
        if name in self._checked:
            return
        data = _bytes(self.tensor(name))
        if f"{zlib.crc32(data.numpy().data):08x}" != self.entries[name].check:
            self.damaged(f"the numbers of {name} are not those that were written")
        if self.entries[name].dtype == torch.bool and bool((data > 1).any()):
            self.damaged(f"{name} holds other bytes than 0 and 1")
        self._checked.add(name)

    def _mapped(self, size: int) -> Tensor:
        """The whole file as bytes, a private mapping: nothing is read yet, nothing written back."""
        return torch.from_file(str(self.path), shared=False, size=size, dtype=torch.uint8)

    def _header(self, file: BinaryIO, size: int) -> bytes:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH or length > min(size - _LENGTH, _MOST_HEADER) or length % 8:
            self.damaged("its first bytes are not the length of its header")
        return file.read(length)

    def _parsed(self, header: bytes) -> tuple[dict[str, Any], dict[str, Entry]]:
        try:
            told = json.loads(header)["__metadata__"]["eyeline"]
            known = json.loads(told)
            description = known["description"]
            entries = {str(name): self._entry(name, e) for name, e in known["tensors"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.damaged(f"its header cannot be read ({type(error).__name__})")
        if not isinstance(description, dict) or _header(description, entries) != header:
            self.damaged("its header is not what was written")
        start = 0
        for entry in entries.values():
            if entry.start != start:
                self.damaged("its tensors do not follow each other")
            start = entry.stop
        return description, entries

    def _entry(self, name: Any, told: Any) -> Entry:
        """One line of the table, checked."""
        dtype, shape, start, stop, check = told
        numbers = [*shape, start, stop]
        whole = all(type(n) is int and 0 <= n < _MOST for n in numbers)
        if dtype not in DTYPES or not whole or not isinstance(check, str) or len(shape) > 16:
            raise ValueError(name)
        size = DTYPES[dtype].itemsize
        if stop - start != math.prod(shape) * size or start % size:
            raise ValueError(name)
        return Entry(DTYPES[dtype], tuple(shape), start, stop, check)


if sys.byteorder != "little":  # safetensors is little-endian
    raise RecordingError("Recordings can be read and written on little-endian machines only.")
