"""The problem: everything that determines the weights, checked once and then carried unchanged.

Inside eyeline every tensor has one form: q ``[N, Hq, Tq, D]``, k ``[N, Hk, Tk, D]``, where N is the product
of the leading dimensions before the head's (``[T, D]`` has N = H = 1, ``[B, T, D]`` has N = B and H = 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eyeline.biases import RelativeBias
from eyeline.errors import ArgumentError, DtypeError, MaskError, ShapeError, StaleError
from eyeline.masks import Mask, from_tensor
from eyeline.visibility import Visible

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
Index = slice | Tensor
ALL = slice(None)


def flat_lead(shape: tuple[int, ...]) -> tuple[int, int]:
    """N and H of a tensor of the caller's rank: ``[*lead, H, T, D]``, ``[B, T, D]`` or ``[T, D]``."""
    if len(shape) == 2:
        return 1, 1
    if len(shape) == 3:
        return shape[0], 1
    return math.prod(shape[:-3]), shape[-3]


@dataclass(frozen=True, eq=False)
class Problem:
    """What determines ``softmax(q kᵀ · scale + bias)`` under a mask; nothing here is T × T unless the caller gave it."""

    q: Tensor  # [N, Hq, Tq, D]
    k: Tensor  # [N, Hk, Tk, D]
    scale: float
    lead: tuple[int, ...]  # the weights' leading shape as the caller sees it; its product is N · Hq
    rule: Mask | None = None
    softcap: float | None = None
    bias: Tensor | None = None  # [N|1, Hq|1, Tq|1, Tk|1]
    relative: Tensor | None = None  # [Hq|1, n]: a bias that depends on j - position(i) alone,
    relative_origin: int = 0  # at index j - position(i) + relative_origin
    sinks: Tensor | None = None  # [N|1, Hq|1]
    first_position: int = 0  # position(i) = first_position + i · position_step
    position_step: int = 1
    versions: tuple[int, ...] = ()  # of q and k when they were handed over; () where torch keeps none
    _visible: Visible | None = field(default=None, repr=False)

    @property
    def N(self) -> int:
        return self.q.shape[0]

    @property
    def Hq(self) -> int:
        return self.q.shape[1]

    @property
    def Hk(self) -> int:
        return self.k.shape[1]

    @property
    def group(self) -> int:
        """Query heads that read one key head."""
        return self.Hq // self.Hk if self.Hk else 1

    @property
    def Tq(self) -> int:
        return self.q.shape[2]

    @property
    def Tk(self) -> int:
        return self.k.shape[2]

    @property
    def shape(self) -> tuple[int, ...]:
        """The weights' shape as the caller sees it."""
        return (*self.lead, self.Tq, self.Tk)

    @property
    def statistics(self) -> torch.dtype:
        """The dtype of scores, sums and maxima: float64 for float64, else float32."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def visible(self) -> Visible | None:
        """Who may be seen, lowered to this problem's sizes; None where every key may be."""
        if self._visible is None and self.rule is not None:
            lowered = self.rule.lower(self.lead, self.Tq, self.Tk, self.q.device)
            object.__setattr__(self, "_visible", lowered)
        return self._visible

    @cached_property
    def bias_hides(self) -> bool:
        """Whether some bias is -inf, which hides a key as a mask does."""
        biases = [b for b in (self.bias, self.relative) if b is not None]
        return any(bool((b == -math.inf).any()) for b in biases)

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """The tensors that carry gradients."""
        names = ("q", "k", "bias", "relative", "sinks")
        return {name: getattr(self, name) for name in names}

    @property
    def requires_grad(self) -> bool:
        return any(t is not None and t.requires_grad for t in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes that the weights keep: q, k, bias and what the mask lowers to."""
        kept = [t for t in self.tensors.values() if t is not None]
        own = sum(t.numel() * t.element_size() for t in kept)
        return own + (self.visible.nbytes if self.visible is not None else 0)

    def with_tensors(self, tensors: dict[str, Tensor | None]) -> Problem:
        return replace(self, **tensors)  # type: ignore[arg-type]

    def detach(self) -> Problem:
        """The same problem without a gradient."""
        return self.with_tensors({n: t if t is None else t.detach() for n, t in self.tensors.items()})

    def check_fresh(self) -> None:
        """Raise StaleError if q or k was changed in place since the problem was made."""
        if self.versions and self.versions != _versions(self.q, self.k):
            raise StaleError(
                "These weights are computed from q and k when asked for, and q or k was changed in place after "
                "attention() or weights() was called. Hand over a copy (q.clone()), or ask before changing it."
            )

    def positions(self, rows: slice | None = None) -> Tensor:
        """Where the queries stand among the keys: ``i + Tk - Tq`` unless rows were selected."""
        start, stop, _ = (rows or ALL).indices(self.Tq)
        i = torch.arange(start, stop, device=self.q.device)
        return self.first_position + i * self.position_step

    def part(self, n: slice, h: slice) -> Problem:
        """The batch entries n and key heads h (with the query heads that read them)."""
        heads = slice(h.start * self.group, h.stop * self.group)
        visible = self.visible
        return replace(
            self,
            q=self.q[n, heads],
            k=self.k[n, h],
            bias=_pick(self.bias, n, heads),
            relative=None if self.relative is None else _pick_dim(self.relative, 0, heads),
            sinks=_pick(self.sinks, n, heads),
            _visible=None if visible is None else visible.select(n, heads),
        )

    def rows(self, index: slice | Tensor) -> Problem:
        """The problem of some queries: a slice, or a 1-D index tensor. Their positions stay what they were.

        An index tensor loses the regular positions, so a relative bias becomes a dense one of these rows.
        """
        visible = self.visible
        shared: dict[str, Any] = {
            "q": self.q[:, :, index],
            "bias": self.bias if self.bias is None else _pick_dim(self.bias, 2, index),
            "_visible": None if visible is None else visible.rows(index),
        }
        if isinstance(index, slice):
            start, _, step = index.indices(self.Tq)
            shared["first_position"] = self.first_position + start * self.position_step
            shared["position_step"] = self.position_step * step
        elif self.relative is not None:
            # Row by row the positions are irregular: the (few) rows asked for get their bias spelled out.
            spelled = self.relative_tile(self.first_position + index * self.position_step, ALL)
            shared["bias"] = spelled if shared["bias"] is None else shared["bias"] + spelled
            shared["relative"] = None
        return replace(self, **shared, versions=_versions(shared["q"], self.k))

    def select(self, flat: Tensor, lead: tuple[int, ...]) -> Problem:
        """Some (batch, head) pairs, by their index in the flattened lead, under a new leading shape."""
        chosen = _grid_slices(flat, self.N, self.Hq, self.group)
        visible = self.visible
        if chosen is not None:
            n, h = chosen
            q = self.q[n, h]
            k = self.k[n, h.start // self.group : -(-h.stop // self.group)]
            return replace(
                self,
                q=q,
                k=k,
                versions=_versions(q, k),
                lead=lead,
                bias=_pick(self.bias, n, h),
                relative=None if self.relative is None else _pick_dim(self.relative, 0, h),
                sinks=_pick(self.sinks, n, h),
                _visible=None if visible is None else visible.select(n, h),
            )
        n, h = flat // max(self.Hq, 1), flat % max(self.Hq, 1)
        relative = self.relative
        bias = None if self.bias is None else _pair(self.bias, n, h)
        if relative is not None and relative.shape[0] > 1:
            # One head's vector per pair does not fit [H, n]: spell the bias out through its own rows.
            spelled = self.relative_tile(self.positions(), ALL)
            paired = _pair(spelled, n, h)
            bias, relative = (paired if bias is None else bias + paired), None
        q, k = self.q[n, h].unsqueeze(1), self.k[n, h // self.group].unsqueeze(1)
        return replace(
            self,
            q=q,
            k=k,
            versions=_versions(q, k),
            lead=lead,
            bias=bias,
            relative=relative,
            sinks=None if self.sinks is None else _pair(self.sinks, n, h),
            _visible=None if visible is None else visible.select(n, h),
        )

    def relative_tile(self, positions: Tensor, cols: slice | Tensor) -> Tensor:
        """The relative bias ``[1, Hq|1, R, C]`` of queries at these positions."""
        assert self.relative is not None
        keys = torch.arange(self.Tk, device=self.q.device)[cols]
        index = keys[None, :] - positions[:, None] + self.relative_origin
        return self.relative[:, index].unsqueeze(0)


def _pick_dim(t: Tensor, dim: int, index: slice | Tensor) -> Tensor:
    """Select along one dimension, unless it broadcasts."""
    if t.shape[dim] == 1:
        return t
    return t[(ALL,) * dim + (index,)]


def _pick(t: Tensor | None, n: slice, h: slice) -> Tensor | None:
    return None if t is None else _pick_dim(_pick_dim(t, 0, n), 1, h)


def _pair(t: Tensor, n: Tensor, h: Tensor) -> Tensor:
    """Entries (n, h) of ``[N|1, H|1, ...]`` as ``[M|1, 1, ...]``."""
    if t.shape[0] == 1 and t.shape[1] == 1:
        return t
    n = torch.zeros_like(n) if t.shape[0] == 1 else n
    h = torch.zeros_like(h) if t.shape[1] == 1 else h
    return t[n, h].unsqueeze(1)


def _grid_slices(flat: Tensor, N: int, H: int, group: int) -> tuple[slice, slice] | None:
    """(n, h) slices that choose exactly these pairs in this order, if views of q and k can do it."""
    if flat.numel() == 0 or H == 0:
        return None
    flat = flat.cpu()
    first, last = int(flat[0]), int(flat[-1])
    n0, h0, n1, h1 = first // H, first % H, last // H + 1, last % H + 1
    if n1 <= n0 or h1 <= h0:
        return None
    grid = torch.arange(n0, n1)[:, None] * H + torch.arange(h0, h1)
    if grid.numel() != flat.numel() or not bool((grid.flatten() == flat).all()):
        return None
    whole_groups = h0 % group == 0 and h1 % group == 0
    one_group = h0 // group == (h1 - 1) // group
    return (slice(n0, n1), slice(h0, h1)) if whole_groups or one_group else None


def _versions(*tensors: Tensor) -> tuple[int, ...]:
    if torch.compiler.is_compiling() or any(t.is_inference() for t in tensors):
        return ()
    return tuple(t._version for t in tensors)


def canonical(t: Tensor, lead: tuple[int, ...], N: int, H: int, trailing: int = 2) -> Tensor:
    """A tensor that broadcasts against ``[*lead, ...]`` as ``[N|1, H|1, ...]``; broadcast dimensions stay 1 where they can."""
    tail = t.shape[t.dim() - trailing :]
    own = (1,) * (len(lead) - (t.dim() - trailing)) + tuple(t.shape[: t.dim() - trailing])
    if all(size == 1 for size in own):
        return t.reshape(1, 1, *tail)
    if lead and lead[-1] == H and all(size == 1 for size in own[:-1]):
        return t.reshape(1, own[-1], *tail)
    if lead and lead[-1] == H:
        full = t.reshape(*own, *tail).expand(*lead[:-1], own[-1], *tail)
        return full.reshape(N, own[-1], *tail)
    return t.reshape(*own, *tail).expand(*lead, *tail).reshape(N, H, *tail)


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
            raise DtypeError(f"{caller}() needs {name} to be a torch.Tensor, and got {type(t).__name__}.")
        if t.dim() < 2:
            raise ShapeError(
                f"{caller}() needs {name} to be [T, D], [B, T, D] or [..., H, T, D], and got shape {list(t.shape)}."
            )
    q = tensors["q"]
    if q.dtype not in DTYPES:
        raise DtypeError(
            f"{caller}() computes in float32, float64, bfloat16 or float16, and q is {q.dtype}. Use q.float()."
        )
    for name, t in tensors.items():
        if t.dtype != q.dtype or t.device != q.device:
            raise DtypeError(
                f"{caller}() needs one dtype and device: q is {q.dtype} on {q.device}, {name} is {t.dtype} on {t.device}."
            )
        if t.dim() != q.dim():
            shapes = side_by_side(**tensors)
            raise ShapeError(f"{caller}() needs q, k and v of one rank.\n{shapes}\nAdd the missing dimensions.")


def _check_sizes(caller: str, tensors: dict[str, Tensor]) -> None:
    q, k, v = tensors["q"], tensors["k"], tensors.get("v")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"q has D={q.shape[-1]} and k has D={k.shape[-1]}. A score is a sum over d of q[d]·k[d], so both must have "
            "the same D: W_Q and W_K project into one space where questions and answers are compared. v may differ."
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
                f"{caller}() needs the query heads to be a multiple of the key heads.\n{side_by_side(**tensors)}\n"
                f"{heads} is not a multiple of {key_heads}. Give k and v {remedy} heads."
            )


def _batch(caller: str, tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """The common leading shape before the head (or before the tokens of rank 3)."""
    keep = 3 if tensors["q"].dim() > 3 else 2
    try:
        return tuple(torch.broadcast_shapes(*(t.shape[: t.dim() - keep] for t in tensors.values())))
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


def _number(caller: str, name: str, value: Any) -> float:
    if isinstance(value, Tensor) or isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = " Multiply q by it, and it has a gradient too." if name == "scale" else ""
        raise DtypeError(f"{caller}() takes {name} as a number, and got {type(value).__name__}.{hint}")
    return float(value)


def _as_rule(mask: Any, caller: str) -> Mask | None:
    if mask is None or isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        return from_tensor(mask)
    raise MaskError(
        f"{caller}() takes mask as a rule such as eyeline.causal() or as a tensor that is 1 or True where a key may be "
        f"seen, and got {type(mask).__name__}."
    )


def _as_bias(bias: Any, caller: str, shape: tuple[int, ...], q: Tensor) -> Tensor:
    N, H = q.shape[0], q.shape[1]
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        found = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise DtypeError(
            f"{caller}() takes bias as a float tensor that is added to the scores, and got {found}. "
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
            f"{caller}() needs a bias that broadcasts to the weights: bias {list(bias.shape)} beside "
            f"weights {list(shape)}, with Tq = {shape[-2]}, Tk = {shape[-1]}."
        )
    return canonical(bias, shape[:-2], N, H)


def _as_sinks(sinks: Any, caller: str, lead: tuple[int, ...], q: Tensor) -> Tensor:
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        raise DtypeError(f"{caller}() takes sinks as a float tensor with one logit per query head.")
    if sinks.device != q.device:
        raise DtypeError(f"{caller}() needs one device: q is on {q.device}, sinks on {sinks.device}.")
    fits = sinks.dim() <= len(lead) and all(
        a in (1, b) for a, b in zip(reversed(sinks.shape), reversed(lead), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{caller}() needs one sink per query head: sinks {list(sinks.shape)} beside leading shape {list(lead)}."
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
    tensors = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    _check_tensors(caller, tensors)
    _check_sizes(caller, tensors)
    batch = _batch(caller, tensors)
    lead = (*batch, q.shape[-3]) if q.dim() > 3 else batch
    size = q.shape[-1]
    flat_q, flat_k = _flatten(q, batch), _flatten(k, batch)
    shape = (*lead, q.shape[-2], k.shape[-2])
    softcap = None if softcap is None else _number(caller, "softcap", softcap)
    if softcap is not None and not softcap > 0:
        raise ArgumentError(f"{caller}() needs softcap > 0 (c·tanh(score/c)), and got {softcap}. None means no cap.")
    dense = relative = None
    origin = 0
    if isinstance(bias, RelativeBias):
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        relative, origin = bias.lower(q.shape[-2], k.shape[-2], flat_q.shape[1], dtype, q.device)
    elif bias is not None:
        dense = _as_bias(bias, caller, shape, flat_q)
    problem = Problem(
        q=flat_q,
        k=flat_k,
        scale=(size**-0.5 if size else 1.0) if scale is None else _number(caller, "scale", scale),
        lead=lead,
        rule=_as_rule(mask, caller),
        softcap=softcap,
        bias=dense,
        relative=relative,
        relative_origin=origin,
        sinks=None if sinks is None else _as_sinks(sinks, caller, lead, flat_q),
        first_position=k.shape[-2] - q.shape[-2],
        versions=_versions(flat_q, flat_k),
    )
    if not torch.compiler.is_compiling():
        problem.visible  # noqa: B018  lowering now is what raises the mask's own errors at the door
    return problem, None if v is None else _flatten(v, batch)
