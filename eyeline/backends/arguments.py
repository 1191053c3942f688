"""A problem as the native kernels take it: tensors, of the types they read, and numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.backends.base import Dropout
from eyeline.problem import Problem

NUMBERS = (torch.float32, torch.bfloat16, torch.float16)

MASKS = ("starts", "stops", "keep", "q_ids", "k_ids", "dense")

Tensors = tuple["Tensor | None", ...]
Asking = tuple[
    Tensor,
    Tensor,
    float,
    float,
    Tensors,
    "tuple[int, int, int]",
    "Tensor | None",
    "Tensors | None",
]


def arguments(problem: Problem) -> Asking:
    """What native/module.cpp reads as its Problem; it must live as long as that is used."""
    bias, relative, sinks = (
        None if t is None else t.to(torch.float32)
        for t in (problem.bias, problem.relative, problem.sinks)
    )
    picked, visible = problem.picked_positions, problem.visible
    masks = None if visible is None else visible.parts()
    return (
        problem.q.resolve_neg(),
        problem.k.resolve_neg(),
        problem.scale,
        problem.softcap or 0.0,
        (bias, None if relative is None else relative.contiguous(), sinks),
        (problem.relative_origin, problem.first_position, problem.position_step),
        None if picked is None else picked.contiguous(),
        tuple(masks.get(name) for name in MASKS) if masks else None,
    )


def has_memory(t: Tensor) -> bool:
    """Whether its numbers lie at its address: not so in a FakeTensor, nor under vmap."""
    kind = type(t)
    own = kind is Tensor or kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    return own and not torch._C._functorch.is_batchedtensor(t)


def dropping(dropout: Dropout | None) -> tuple[int, int, float] | None:
    """The seed, the threshold of 2^24 (as `random.kept` has it), and the scale of what stays."""
    if dropout is None:
        return None
    scale = 0.0 if dropout.p == 1 else 1.0 / (1.0 - dropout.p)
    return int(dropout.seed), round(dropout.p * (1 << 24)), scale
