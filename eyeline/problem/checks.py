"""The door: what is handed over is checked once; what is wrong is said with what to do."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor

from eyeline.biases import RelativeBias
from eyeline.errors import ArgumentError, DtypeError, MaskError, ShapeError
from eyeline.masks import Mask, from_tensor
from eyeline.problem.data import Problem, canonical, versions_now

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def side_by_side(**tensors: Tensor) -> str:
    """The shapes one under the other in the alphabet of DESIGN.md."""
    width = max(len(name) for name in tensors)
    lines = []
    for name, t in tensors.items():
        head, tokens, size = ("Hq", "Tq", "D") if name in ("q", "query") else ("Hk", "Tk", "D")
        if name in ("v", "value"):
            size = "Dv"
        letters = {2: [tokens, size], 3: ["B", tokens, size]}.get(t.dim())
        if letters is None:
            letters = [f"B{i}" for i in range(t.dim() - 4)] + ["B", head, tokens, size]
            letters = letters[-t.dim() :]
        cells = ", ".join(f"{a}={b}" for a, b in zip(letters, t.shape, strict=True))
        lines.append(f"  {name:<{width}}  [{cells}]")
    return "\n".join(lines)


def _check_tensors(caller: str, tensors: dict[str, Tensor]) -> None:
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise DtypeError(
                f"{caller}() needs {name} to be a torch.Tensor, and got {type(t).__name__}."
            )
        if t.is_nested or t.layout != torch.strided:
            kind = "nested" if t.is_nested else str(t.layout).removeprefix("torch.")
            raise DtypeError(
                f"{caller}() computes with dense tensors, and {name} is {kind}. Make it dense; "
                "texts of several lengths are padded, with mask=eyeline.padding(lengths)."
            )
        if t.dim() < 2:
            raise ShapeError(
                f"{caller}() needs {name} to be [T, D], [B, T, D] or [..., H, T, D], "
                f"and got shape {list(t.shape)}."
            )
    q = tensors["q"]
    if q.dtype not in DTYPES:
        raise DtypeError(
            f"{caller}() computes in float32, float64, bfloat16 or float16, and q is {q.dtype}. "
            "Use q.float()."
        )
    for name, t in tensors.items():
        if t.dtype != q.dtype or t.device != q.device:
            raise DtypeError(
                f"{caller}() needs one dtype and device: q is {q.dtype} on {q.device}, "
                f"{name} is {t.dtype} on {t.device}."
            )
        if t.dim() != q.dim():
            shapes = side_by_side(**tensors)
            raise ShapeError(
                f"{caller}() needs q, k and v of one rank.\n{shapes}\nAdd the missing dimensions."
            )


def _check_sizes(caller: str, tensors: dict[str, Tensor]) -> None:
    q, k, v = tensors["q"], tensors["k"], tensors.get("v")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"q has D={q.shape[-1]} and k has D={k.shape[-1]}. A score is a sum over d of "
            "q[d]·k[d], so both must have the same D: W_Q and W_K project into one space where "
            "questions and answers are compared. v may differ."
        )
    if v is not None and v.shape[-2] != k.shape[-2]:
        raise ShapeError(
            f"{caller}() needs one value per key.\n{side_by_side(**tensors)}\n"
            f"k has {k.shape[-2]} tokens and v has {v.shape[-2]}: both come from the same tokens."
        )
    if q.dim() > 3:
        heads, key_heads = q.shape[-3], k.shape[-3]
        if v is not None and v.shape[-3] != key_heads:
            raise ShapeError(
                f"{caller}() needs as many value heads as key heads.\n{side_by_side(**tensors)}\n"
                f"k has {key_heads} heads and v has {v.shape[-3]}."
            )
        if key_heads == 0 and heads == 0:
            return
        if key_heads == 0 or heads % key_heads:
            fits = [str(n) for n in range(1, heads + 1) if heads % n == 0]
            remedy = ", ".join(fits[:-1]) + " or " + fits[-1] if len(fits) > 1 else "1"
            raise ShapeError(
                f"{caller}() needs the query heads to be a multiple of the key heads.\n"
                f"{side_by_side(**tensors)}\n"
                f"{heads} is not a multiple of {key_heads}. Give k and v {remedy} heads."
            )


def _batch(caller: str, tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """The common leading shape before the head (or before the tokens of rank 3)."""
    keep = 3 if tensors["q"].dim() > 3 else 2
    shapes = [t.shape[:-keep] for t in tensors.values()]
    if all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        raise ShapeError(
            f"{caller}() needs leading dimensions that agree.\n{side_by_side(**tensors)}"
        ) from None


def _flatten(t: Tensor, batch: tuple[int, ...]) -> Tensor:
    """``[*batch, H, T, D]`` or ``[*batch, T, D]`` as ``[N, H, T, D]``."""
    if t.dim() <= 3:
        t = t.unsqueeze(-3)
    tail = t.shape[-3:]
    if t.dim() == 4 and tuple(t.shape[:1]) == batch:
        return t
    return t.expand(*batch, *tail).reshape(math.prod(batch), *tail)


def _fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nothing is wrong with ``[N, H, T, D]`` of one kind: a small call is fast by this."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return False
    if not (q.dim() == k.dim() == v.dim() == 4):
        return False
    if q.is_nested or k.is_nested or v.is_nested:
        return False
    if not (q.layout == k.layout == v.layout == torch.strided):
        return False
    (N, Hq, _, D), (Nk, Hk, Tk, Dk), (Nv, Hv, Tv, _) = q.shape, k.shape, v.shape
    sizes = N == Nk == Nv and Hk == Hv and Tk == Tv and Dk == D and Hk > 0 and Hq % Hk == 0
    kind = q.dtype == k.dtype == v.dtype and q.device == k.device == v.device
    return sizes and kind and q.dtype in DTYPES


def _canonical(
    caller: str, q: Tensor, k: Tensor, v: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, ...]]:
    """q, k and v, checked and as ``[N, H, T, D]``, and the weights' leading shape."""
    if _fits(q, k, k if v is None else v):
        return q, k, v, (q.shape[0], q.shape[1])
    tensors = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    _check_tensors(caller, tensors)
    _check_sizes(caller, tensors)
    batch = _batch(caller, tensors)
    lead = (*batch, q.shape[-3]) if q.dim() > 3 else batch
    flat_v = None if v is None else _flatten(v, batch)
    return _flatten(q, batch), _flatten(k, batch), flat_v, lead


def _number(caller: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = " Multiply q by it, and it has a gradient too." if name == "scale" else ""
        raise DtypeError(
            f"{caller}() takes {name} as a number, and got {type(value).__name__}.{hint}"
        )
    if abs(value) > sys.float_info.max and value == value and abs(value) != math.inf:
        raise ArgumentError(f"{caller}() needs {name} to fit into a float, and it does not.")
    return float(value)


def _as_rule(mask: Any, caller: str) -> Mask | None:
    if mask is None or isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return from_tensor(mask)
    if callable(mask):
        name = getattr(mask, "__name__", "mask")
        raise MaskError(f"{caller}() got the function {name}: call it, as in eyeline.{name}(...).")
    raise MaskError(
        f"{caller}() takes mask as a rule such as eyeline.causal() or as a tensor that is 1 or "
        f"True where a key may be seen, and got {type(mask).__name__}."
    )


def _as_bias(bias: Any, caller: str, shape: tuple[int, ...], q: Tensor) -> Tensor:
    N, H = q.shape[0], q.shape[1]
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        found = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise DtypeError(
            f"{caller}() takes bias as a float tensor that is added to the scores, "
            f"and got {found}. "
            "A tensor of True/False or 1/0 that says who may be seen goes to mask=."
        )
    if bias.device != q.device:
        raise DtypeError(f"{caller}() needs one device: q is on {q.device}, bias on {bias.device}.")
    if bias.dim() < 2:
        bias = bias.reshape((1,) * (2 - bias.dim()) + tuple(bias.shape))
    fits = bias.dim() <= len(shape) and all(
        a in (1, b) for a, b in zip(reversed(bias.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{caller}() needs a bias that broadcasts to the weights: bias {list(bias.shape)} "
            f"beside weights {list(shape)}, with Tq = {shape[-2]}, Tk = {shape[-1]}."
        )
    return canonical(bias, shape[:-2], N, H)


def _as_sinks(sinks: Any, caller: str, lead: tuple[int, ...], q: Tensor) -> Tensor:
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        raise DtypeError(f"{caller}() takes sinks as a float tensor with one logit per query head.")
    if sinks.device != q.device:
        raise DtypeError(
            f"{caller}() needs one device: q is on {q.device}, sinks on {sinks.device}."
        )
    fits = sinks.dim() <= len(lead) and all(
        a in (1, b) for a, b in zip(reversed(sinks.shape), reversed(lead), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{caller}() needs one sink per query head: sinks {list(sinks.shape)} "
            f"beside leading shape {list(lead)}."
        )
    return canonical(sinks, lead, q.shape[0], q.shape[1], trailing=0)


def make(
    caller: str,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    mask: Any,
    bias: Any,
    scale: float | None,
    softcap: float | None,
    sinks: Any,
) -> tuple[Problem, Tensor | None]:
    """Check everything once; the problem and v ``[N, Hk, Tk, Dv]`` in eyeline's one form."""
    flat_q, flat_k, flat_v, lead = _canonical(caller, q, k, v)
    *_, Tq, size = flat_q.shape
    Tk = flat_k.shape[2]
    softcap = None if softcap is None else _number(caller, "softcap", softcap)
    if softcap is not None and not 0 < softcap < math.inf:
        raise ArgumentError(
            f"{caller}() needs a finite softcap > 0 (c·tanh(score/c)), and got {softcap}. "
            "None means no cap."
        )
    dense = relative = None
    origin = 0
    if isinstance(bias, RelativeBias):
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        heads = flat_q.shape[1]
        vector, origin = bias.lower(Tq, Tk, heads, dtype, q.device)
        relative = vector.unsqueeze(0)
    elif bias is not None:
        dense = _as_bias(bias, caller, (*lead, Tq, Tk), flat_q)
    rule = _as_rule(mask, caller)
    sinks = None if sinks is None else _as_sinks(sinks, caller, lead, flat_q)
    problem = Problem(
        q=flat_q,
        k=flat_k,
        scale=(size**-0.5 if size else 1.0) if scale is None else _number(caller, "scale", scale),
        lead=lead,
        rule=rule,
        softcap=softcap,
        bias=dense,
        relative=relative,
        relative_origin=origin,
        sinks=sinks,
        first_position=Tk - Tq,
        versions=versions_now((flat_q, flat_k, dense, relative, sinks), rule),
    )
    if rule is not None and not torch.compiler.is_compiling():
        problem.visible  # noqa: B018  lowering now is what raises the mask's own errors at the door
    return problem, flat_v
