"""One new token, or a few, over many cached keys."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import eyeline
from benchmarks.goals import limits
from benchmarks.goals.forward import SDPA, WORDS, beside_sdpa, tensors
from benchmarks.goals.goal import Goal, Pair, Point, Size

FAR, NEAR = 65_536, 2_048
"""Keys that no cache holds (67 million numbers of keys and values), and keys that one does."""


def decoding(heads: tuple[int, int], Tq: int, Tk: int, D: int, dtype: torch.dtype) -> Point:
    """Beside torch's attention."""
    name = f"decoding {WORDS[dtype]} H {heads[0]}/{heads[1]} D {D} Tq {Tq} Tk {Tk}"
    return Point(name, lambda size: beside_sdpa(*tensors(heads, (Tq, size(Tk)), (D, D), dtype)))


def reads(dtype: torch.dtype) -> Point:
    """Beside reading the same keys and values and computing nothing."""

    def make(size: Size) -> Pair:
        q, k, v = tensors((8, 8), (1, size(FAR)), (64, 64), dtype)
        reading = limits.reading((k, v), torch.get_num_threads())
        return Pair(lambda: eyeline.attention(q, k, v)[0], reading, read=k.nbytes + v.nbytes)

    return Point(f"decoding {WORDS[dtype]} beside reads", make)


def decode() -> Iterator[Goal]:
    """Keys beyond the last cache, keys within, grouped heads."""
    for dtype, bound in ((torch.float32, 1.4), (torch.bfloat16, 6.0), (torch.float16, 9.0)):
        far = decoding((8, 8), 1, FAR, 64, dtype)
        work = f"decoding {WORDS[dtype]}, Tq 1, keys beyond the last cache"
        yield Goal("decoding", work, SDPA, (far,), bound)
        share = 0.85 if dtype == torch.float32 else None
        yield Goal("decoding", work, "best stream read", (reads(dtype),), share)
    near = tuple(decoding((8, 8), 1, NEAR, 64, dtype) for dtype in WORDS)
    yield Goal("decoding", "decoding, Tq 1, keys in cache", SDPA, near, 2.0)
    for Tq, bound in ((1, 4.0), (4, 5.0), (16, 2.5)):
        points = tuple(decoding((32, 8), Tq, 4096, D, torch.float32) for D in (64, 128))
        work = f"decoding, grouped heads 32/8, Tq {Tq}"
        yield Goal("decoding", work, "torch SDPA, enable_gqa", points, bound)
