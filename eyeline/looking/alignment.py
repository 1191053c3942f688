"""When each word was said, from the attention that wrote it.

Some heads of Whisper's decoder look at the moment of the sound that they are writing. Their rows,
one per written token, are put in order by dynamic time warping: the path through tokens × time
that never goes back and along which the rows are strongest. Where the path steps to a token, the
token begins. Source: OpenAI's `whisper/timing.py`; H. Sakoe and S. Chiba, Dynamic programming
algorithm optimization for spoken word recognition, 1978.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyeline.errors import ArgumentError

_WIDTH = 7  # frames of the median filter
_BOTH, _TOKEN, _TIME = 0, 1, 2  # what a step of the path goes on in


@dataclass(frozen=True)
class Alignment:
    """For each token the frame at which it begins, and the one at which its rows are strongest."""

    starts: tuple[int, ...]
    peaks: tuple[int, ...]


def aligned(rows: Tensor) -> Alignment:
    """The frames of each token, from rows of attention [heads, tokens, frames].

    Each frame is standardised over the tokens (so that a frame at which all of them look tells
    nothing), smoothed over time, averaged over the heads; then the path is found. The first token
    begins at frame 0, whatever is silent before it. Raises ArgumentError for another shape, or
    without tokens or frames.

    >>> rows = torch.eye(3).repeat_interleave(8, dim=1)[None]  # eight frames for each token
    >>> aligned(rows)
    Alignment(starts=(0, 8, 16), peaks=(0, 8, 16))
    """
    if rows.dim() != 3 or not rows.numel():
        raise ArgumentError(
            f"aligned() takes rows [heads, tokens, frames], none of them 0, and got {rows.shape}."
        )
    values = rows.float()
    spread = values.std(-2, keepdim=True, unbiased=False).clamp(min=1e-12)
    values = _smoothed((values - values.mean(-2, keepdim=True)) / spread).mean(0)
    strength = values.double().numpy()
    tokens, frames = _path(-strength)
    starts, peaks = [], []
    for token in range(len(strength)):
        mine = frames[tokens == token]
        starts.append(int(mine[0]))
        peaks.append(int(mine[strength[token, mine].argmax()]))
    return Alignment(tuple(starts), tuple(peaks))


def _smoothed(values: Tensor) -> Tensor:
    """The median over `_WIDTH` frames, mirrored at the ends."""
    half = _WIDTH // 2
    if values.shape[-1] <= half:
        return values
    padded = torch.nn.functional.pad(values, (half, half), mode="reflect")
    return padded.unfold(-1, _WIDTH, 1).median(-1).values


def _path(cost: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The cheapest path from the first token and frame to the last: (token, frame) of each step.

    Each step goes on by one token, by one frame, or by both. Costs are summed along
    anti-diagonals, where no entry needs another one.
    """
    tokens, frames = cost.shape
    total = np.full((tokens + 1, frames + 1), np.inf)
    total[0, 0] = 0
    step = np.full((tokens + 1, frames + 1), _TIME)
    step[:, 0] = _TOKEN
    for diagonal in range(2, tokens + frames + 1):
        i = np.arange(max(1, diagonal - frames), min(tokens, diagonal - 1) + 1)
        j = diagonal - i
        before = np.stack([total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]])
        # among equals the sound goes on, then the token
        best = np.where(before[_BOTH] < before[[_TOKEN, _TIME]].min(0), _BOTH, _TIME)
        best = np.where(before[_TOKEN] < before[[_BOTH, _TIME]].min(0), _TOKEN, best)
        total[i, j] = cost[i - 1, j - 1] + before.min(0)
        step[i, j] = best
    i, j, found = tokens, frames, []
    while i or j:
        found.append((i - 1, j - 1))
        taken = step[i, j]
        i, j = i - (taken != _TIME), j - (taken != _TOKEN)
    path = np.array(found[::-1])
    return path[:, 0], path[:, 1]
