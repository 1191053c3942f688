"""A problem as the native kernels take it: numbers, addresses and strides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.backends.base import Dropout
from eyeline.errors import BackendError
from eyeline.problem import Problem

NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

MASKS = ("starts", "stops", "keep", "q_ids", "k_ids", "dense")
NO_MASKS = (None,) * len(MASKS)

Strides = tuple[int, int, int, int, int]
Sizes = tuple[int, int, int, int, int, int]
Views = tuple["Strides | None", ...]
Numbers = tuple[int, Sizes, Views, float, float, Views, tuple[int, int, int, int], Views, int]


@dataclass(frozen=True, eq=False)
class Arguments:
    """A problem in numbers, and the tensors that must live as long as these are used."""

    numbers: Numbers
    kept: tuple[Tensor | None, ...]


def arguments(problem: Problem) -> Arguments:
    """What native/module.cpp reads as its Problem."""
    q, k = problem.q.resolve_neg(), problem.k.resolve_neg()
    bias, sinks = (
        None if t is None else t.to(torch.float32) for t in (problem.bias, problem.sinks)
    )
    relative, places = problem.relative, problem.picked_positions
    relative = None if relative is None else relative.to(torch.float32).contiguous()
    places = None if places is None else places.contiguous()
    visible = problem.visible
    masks = {} if visible is None else visible.parts()
    numbers = (
        NUMBERS[q.dtype],
        (*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3]),
        (view(q), view(k)),
        problem.scale,
        problem.softcap or 0.0,
        (view(bias), view(relative), view(sinks)),
        (
            problem.relative_origin,
            problem.first_position,
            problem.position_step,
            0 if places is None else places.data_ptr(),
        ),
        tuple(view(masks.get(name)) for name in MASKS) if masks else NO_MASKS,
        masks["starts"].shape[3] if "starts" in masks else 0,
    )
    return Arguments(numbers, (q, k, bias, sinks, relative, places, *masks.values()))


def has_memory(t: Tensor) -> bool:
    """Whether its numbers lie at its address: not so in a FakeTensor, nor under vmap."""
    kind = type(t)
    own = kind is Tensor or kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    return own and not torch._C._functorch.is_batchedtensor(t)


def view(t: Tensor | None) -> Strides | None:
    """Address and strides; a dimension of size 1 broadcasts."""
    if t is None:
        return None
    if not has_memory(t):
        raise BackendError(
            f"The native kernels read memory, and a {type(t).__name__} has none of its own. "
            "Make all tensors of one kind, or name backend='tiled'."
        )
    shape, strides = t.shape, t.stride()
    if 1 in shape:
        strides = tuple(0 if n == 1 else s for n, s in zip(shape, strides))
    a, b, c, d = strides if len(strides) == 4 else (*strides, 0, 0, 0)[:4]
    return t.data_ptr(), a, b, c, d


def dropping(dropout: Dropout | None) -> tuple[int, int, float] | None:
    """The seed, the threshold of 2^24 (as `random.kept` has it), and the scale of what stays."""
    if dropout is None:
        return None
    scale = 0.0 if dropout.p == 1 else 1.0 / (1.0 - dropout.p)
    return int(dropout.seed), round(dropout.p * (1 << 24)), scale
