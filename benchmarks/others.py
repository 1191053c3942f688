"""What eyeline is measured beside that is not always here: compiled FlexAttention, KeOps."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

HIDDEN = -1e9  # a score that no softmax gives weight to

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class NotHere(Exception):
    """It cannot run here; the message says why."""


@cache
def _compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """FlexAttention and what makes its mask of blocks, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention), torch.compile(create_block_mask)


def flex(length: int, rule: Callable[..., Tensor] | None) -> Attention:
    """FlexAttention over so many tokens; ``rule(b, h, i, j)`` says who is seen.

    On a CPU it computes the output alone, without gradients or row sums. The mask of blocks is
    made here, so a call does not pay for it; the first call compiles, by a C++ compiler, and raises
    NotHere where that fails.
    """
    attend, masked = _compiled()
    blocks = None
    if rule is not None:
        with _compiling():
            blocks = masked(rule, None, None, length, length, device="cpu")

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with _compiling():
            found: Tensor = attend(q, k, v, block_mask=blocks)
        return found

    return call


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """What cannot be compiled is not here."""
    try:
        yield
    except torch._dynamo.exc.TorchDynamoException as error:
        raise NotHere(f"FlexAttention cannot be compiled: {type(error).__name__}") from error


def keops() -> Attention:
    """Causal attention as KeOps writes it: a reduction over symbolic weights, compiled once.

    Raises NotHere where pykeops is not installed; the first call does, where it has no compiler.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it says that there is no CUDA
            from pykeops.torch import LazyTensor
    except ImportError as error:
        raise NotHere(f"pykeops is not installed ({error})") from error

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        places = torch.arange(q.shape[-2], dtype=q.dtype)
        i = LazyTensor(places.view(1, 1, -1, 1, 1))
        j = LazyTensor(places.view(1, 1, 1, -1, 1))
        rows = LazyTensor((q * q.shape[-1] ** -0.5).unsqueeze(-2))
        keys, values = LazyTensor(k.unsqueeze(-3)), LazyTensor(v.unsqueeze(-3))
        scores = (rows | keys) + (i - j).ifelse(0.0, HIDDEN)  # there is no mask to give
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it says what it compiles
                found: Tensor = scores.sumsoftmaxweight(values, axis=3)
        except (OSError, RuntimeError) as error:
            raise NotHere(f"KeOps cannot be compiled: {type(error).__name__}") from error
        return found

    return call
