"""The problem: everything that determines the weights, checked once and then carried unchanged.

Inside eyeline every tensor has one form: q ``[N, Hq, Tq, D]``, k ``[N, Hk, Tk, D]``, where N is the
product of the leading dimensions before the head's (``[T, D]`` has N = H = 1, ``[B, T, D]`` has
N = B and H = 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import StaleError
from eyeline.masks import Mask
from eyeline.visibility import Visible

ALL = slice(None)


@dataclass(frozen=True, eq=False)
class Problem:
    """What determines ``softmax(q kᵀ · scale + bias)`` under a mask.

    Nothing here is T × T unless the caller gave it. Every choice of a part is a new problem.
    """

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
    versions: tuple[int, ...] = ()  # of q and k when handed over; () where torch keeps none
    _visible: Visible | None = field(default=None, repr=False)

    @property
    def N(self) -> int:
        """The product of the leading dimensions but the head's."""
        return self.q.shape[0]

    @property
    def Hq(self) -> int:
        """Query heads."""
        return self.q.shape[1]

    @property
    def Hk(self) -> int:
        """Key heads; each is read by ``group`` query heads."""
        return self.k.shape[1]

    @property
    def group(self) -> int:
        """Query heads that read one key head."""
        return self.Hq // self.Hk if self.Hk else 1

    @property
    def Tq(self) -> int:
        """Queries, the rows of the weights."""
        return self.q.shape[2]

    @property
    def Tk(self) -> int:
        """Keys, the columns of the weights."""
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
        """Whether any of the tensors asks for a gradient."""
        return any(t is not None and t.requires_grad for t in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes that the weights keep: q, k, bias and what the mask lowers to."""
        kept = [t for t in self.tensors.values() if t is not None]
        own = sum(t.numel() * t.element_size() for t in kept)
        return own + (self.visible.nbytes if self.visible is not None else 0)

    def with_tensors(self, tensors: dict[str, Tensor | None]) -> Problem:
        """The same problem over other values of `tensors`, of the same shapes."""
        return replace(self, **tensors)  # type: ignore[arg-type]

    def detach(self) -> Problem:
        """The same problem without a gradient."""
        return self.with_tensors(
            {n: t if t is None else t.detach() for n, t in self.tensors.items()}
        )

    def check_fresh(self) -> None:
        """Raise StaleError if q or k was changed in place since the problem was made."""
        if self.versions and self.versions != versions_of(self.q, self.k):
            raise StaleError(
                "These weights are computed from q and k when asked for, and q or k was changed in "
                "place after attention() or weights() was called. Hand over a copy (q.clone()), or "
                "ask before changing it."
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
        """The problem of some queries, by a slice or a 1-D index tensor; they keep their positions.

        Rows picked by a tensor have no regular positions, so a relative bias becomes the dense one
        of these rows.
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
            # The positions are irregular: the (few) rows asked for get their bias spelled out.
            spelled = self.relative_tile(self.first_position + index * self.position_step, ALL)
            shared["bias"] = spelled if shared["bias"] is None else shared["bias"] + spelled
            shared["relative"] = None
        return replace(self, **shared, versions=versions_of(shared["q"], self.k))

    def select(self, flat: Tensor, lead: tuple[int, ...]) -> Problem:
        """Some (batch, head) pairs under a new leading shape.

        ``flat``: their indices in the flattened ``lead``, in the order wanted, repeats allowed.
        """
        chosen = _grid_slices(flat, self.Hq, self.group) or _whole_entries(flat, self.Hq)
        visible = self.visible
        if chosen is not None:
            some_n, some_h = chosen
            q = self.q[some_n, some_h]
            k = self.k[some_n, some_h.start // self.group : -(-some_h.stop // self.group)]
            return replace(
                self,
                q=q,
                k=k,
                versions=versions_of(q, k),
                lead=lead,
                bias=_pick(self.bias, some_n, some_h),
                relative=None if self.relative is None else _pick_dim(self.relative, 0, some_h),
                sinks=_pick(self.sinks, some_n, some_h),
                _visible=None if visible is None else visible.select(some_n, some_h),
            )
        n, h = flat // max(self.Hq, 1), flat % max(self.Hq, 1)
        relative = self.relative
        bias = None if self.bias is None else _pair(self.bias, n, h)
        if relative is not None and relative.shape[0] > 1:
            # One head's vector per pair does not fit [H, n]: spell the bias out for its rows.
            spelled = self.relative_tile(self.positions(), ALL)
            paired = _pair(spelled, n, h)
            bias, relative = (paired if bias is None else bias + paired), None
        q, k = self.q[n, h].unsqueeze(1), self.k[n, h // self.group].unsqueeze(1)
        return replace(
            self,
            q=q,
            k=k,
            versions=versions_of(q, k),
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


def _pick(t: Tensor | None, n: slice | Tensor, h: slice) -> Tensor | None:
    return None if t is None else _pick_dim(_pick_dim(t, 0, n), 1, h)


def _pair(t: Tensor, n: Tensor, h: Tensor) -> Tensor:
    """Entries (n, h) of ``[N|1, H|1, ...]`` as ``[M|1, 1, ...]``."""
    if t.shape[0] == 1 and t.shape[1] == 1:
        return t
    n = torch.zeros_like(n) if t.shape[0] == 1 else n
    h = torch.zeros_like(h) if t.shape[1] == 1 else h
    return t[n, h].unsqueeze(1)


def _grid_slices(flat: Tensor, H: int, group: int) -> tuple[slice, slice] | None:
    """(n, h) slices that choose exactly these pairs in this order, if views of q and k can."""
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


def _whole_entries(flat: Tensor, H: int) -> tuple[Tensor, slice] | None:
    """(n, h) that choose exactly these pairs in this order, if they are entries with all heads."""
    if H == 0:
        return None
    n = flat[::H] // H
    every = n[:, None] * H + torch.arange(H, device=n.device)
    return (n, slice(0, H)) if torch.equal(every.flatten(), flat) else None


def versions_of(*tensors: Tensor) -> tuple[int, ...]:
    """torch's counts of in-place changes; () where it keeps none (compiling, inference mode)."""
    if torch.compiler.is_compiling() or any(t.is_inference() for t in tensors):
        return ()
    return tuple(t._version for t in tensors)


def canonical(t: Tensor, lead: tuple[int, ...], N: int, H: int, trailing: int = 2) -> Tensor:
    """A tensor that broadcasts against ``[*lead, ...]`` as ``[N|1, H|1, ...]``.

    ``trailing`` dimensions follow the lead. Broadcast dimensions stay 1 where they can.
    """
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
