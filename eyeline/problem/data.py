"""The problem: everything that determines the weights, checked once and then carried unchanged.

Inside eyeline every tensor has one form: q ``[N, Hq, Tq, D]``, k ``[N, Hk, Tk, D]``, where N is the
product of the leading dimensions before the head's (``[T, D]`` has N = H = 1, ``[B, T, D]`` has
N = B and H = 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import StaleError
from eyeline.masks import Mask
from eyeline.visibility import Visible

ALL = slice(None)
Index = slice | Tensor


@dataclass(frozen=True, eq=False, init=False)
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
    relative: Tensor | None = None  # [N|1, Hq|1, n]: a bias that depends on j - position(i) alone,
    relative_origin: int = 0  # at index j - position(i) + relative_origin
    sinks: Tensor | None = None  # [N|1, Hq|1]
    first_position: int = 0  # position(i) = first_position + i · position_step, but for
    position_step: int = 1
    picked_positions: Tensor | None = None  # [Tq], where rows were picked one by one
    versions: tuple[int, ...] = ()  # torch's counts of in-place changes at the door
    _visible: Visible | None = field(default=None, repr=False)

    def __init__(self, **fields: Any) -> None:
        # What a frozen dataclass writes one by one, at a tenth of a small attention's time.
        self.__dict__.update(fields)

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
        return {
            "q": self.q,
            "k": self.k,
            "bias": self.bias,
            "relative": self.relative,
            "sinks": self.sinks,
        }

    @property
    def requires_grad(self) -> bool:
        """Whether any of the tensors asks for a gradient."""
        if self.q.requires_grad or self.k.requires_grad:
            return True
        return any(
            t is not None and t.requires_grad for t in (self.bias, self.relative, self.sinks)
        )

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
        """Raise StaleError if something handed over was changed in place since then."""
        if self.versions and self.versions != self.versions_now():
            raise StaleError(
                "These weights are computed when asked for, from the q, k, mask, bias and sinks "
                "that were handed over, and one of these was changed in place since then. Hand "
                "over a copy (q.clone()), or ask before changing it."
            )

    def versions_now(self) -> tuple[int, ...]:
        """torch's counts of in-place changes; () where it keeps none (compiling, inference)."""
        return versions_now(self.tensors.values(), self.rule)

    def check_mask_fresh(self) -> None:
        """Raise StaleError if a mask's tensor was changed in place before the gradient."""
        if not self.versions or self.rule is None:
            return
        now = tuple(t._version for t in self.rule.spec()[1])
        if now != self.versions[len(self.versions) - len(now) :]:
            raise StaleError(
                "A tensor of the mask was changed in place between attention and its gradient, "
                "which needs it as it was. Hand over a copy (mask.clone())."
            )

    def derived(self, **changes: Any) -> Problem:
        """A problem made of parts of this one, which must not have gone stale."""
        self.check_fresh()
        made = replace(self, **changes)
        return replace(made, versions=made.versions_now() if self.versions else ())

    def positions(self, rows: slice | None = None) -> Tensor:
        """Where the queries stand among the keys: ``i + Tk - Tq`` unless rows were selected."""
        if self.picked_positions is not None:
            return self.picked_positions[rows or ALL]
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
            relative=_pick(self.relative, n, heads),
            sinks=_pick(self.sinks, n, heads),
            _visible=None if visible is None else visible.select(n, heads),
        )

    def rows(self, index: slice | Tensor) -> Problem:
        """The problem of some queries, by a slice or a 1-D index tensor; they keep positions."""
        visible = self.visible
        shared: dict[str, Any] = {
            "q": self.q[:, :, index],
            "bias": self.bias if self.bias is None else _pick_dim(self.bias, 2, index),
            "_visible": None if visible is None else visible.rows(index),
        }
        if isinstance(index, Tensor) or self.picked_positions is not None:
            shared["picked_positions"] = self.positions()[index]
        else:
            start, _, step = index.indices(self.Tq)
            shared["first_position"] = self.first_position + start * self.position_step
            shared["position_step"] = self.position_step * step
        return self.derived(**shared)

    def select(self, flat: Tensor, lead: tuple[int, ...]) -> Problem:
        """Some (batch, head) pairs under a new leading shape.

        ``flat``: their indices in the flattened ``lead``, in the order wanted, repeats allowed.
        """
        visible = self.visible
        n, h = flat // max(self.Hq, 1), flat % max(self.Hq, 1)
        grid = _grid(n, h)
        if grid is None:  # pairs: each a batch entry of one head
            return self.derived(
                q=self.q[n, h].unsqueeze(1),
                k=self.k[n, h // self.group].unsqueeze(1),
                lead=lead,
                bias=_pair(self.bias, n, h),
                relative=_pair(self.relative, n, h),
                sinks=_pair(self.sinks, n, h),
                _visible=None if visible is None else visible.select(n, h),
            )
        return self.combinations(*grid, lead)

    def combinations(self, n: Tensor, h: Tensor, lead: tuple[int, ...]) -> Problem:
        """All of these batch entries, and of each all of these heads, under a new leading shape."""
        visible = self.visible
        some_n, some_h = _as_slice(n), _as_slice(h)
        if isinstance(some_h, slice) and self._shares_groups(some_h):
            key_heads: Index = slice(some_h.start // self.group, -(-some_h.stop // self.group))
        else:
            some_h, key_heads = h, h // self.group
        return self.derived(
            q=self.q[some_n][:, some_h],
            k=self.k[some_n][:, key_heads],
            lead=lead,
            bias=_pick(self.bias, some_n, some_h),
            relative=_pick(self.relative, some_n, some_h),
            sinks=_pick(self.sinks, some_n, some_h),
            _visible=None if visible is None else visible.choose(some_n, some_h),
        )

    def _shares_groups(self, heads: slice) -> bool:
        """Whether these query heads are whole groups, or lie in one group."""
        first, last = heads.start, heads.stop - 1
        whole = first % self.group == 0 and heads.stop % self.group == 0
        return bool(whole or first // self.group == last // self.group)

    def relative_tile(self, positions: Tensor, cols: slice | Tensor) -> Tensor:
        """The relative bias ``[N|1, Hq|1, R, C]`` of queries at these positions."""
        assert self.relative is not None
        keys = torch.arange(self.Tk, device=self.q.device)[cols]
        index = keys[None, :] - positions[:, None] + self.relative_origin
        return self.relative[:, :, index]


def versions_now(tensors: Iterable[Tensor | None], rule: Mask | None) -> tuple[int, ...]:
    """torch's counts of in-place changes of these and of the rule's tensors.

    () where torch keeps none: compiling, and in inference mode.
    """
    if torch.compiler.is_compiling():
        return ()
    kept = [t for t in tensors if t is not None]
    if rule is not None:
        kept += rule.spec()[1]
    for t in kept:
        if t.is_inference():
            return ()
    return tuple([t._version for t in kept])


def _pick_dim(t: Tensor, dim: int, index: slice | Tensor) -> Tensor:
    """Select along one dimension, unless it broadcasts."""
    if t.shape[dim] == 1:
        return t
    return t[(ALL,) * dim + (index,)]


def _pick(t: Tensor | None, n: Index, h: Index) -> Tensor | None:
    return None if t is None else _pick_dim(_pick_dim(t, 0, n), 1, h)


def _pair(t: Tensor | None, n: Tensor, h: Tensor) -> Tensor | None:
    """Entries (n, h) of ``[N|1, H|1, ...]`` as ``[M|1, 1, ...]``."""
    if t is None or (t.shape[0] == 1 and t.shape[1] == 1):
        return t
    n = torch.zeros_like(n) if t.shape[0] == 1 else n
    h = torch.zeros_like(h) if t.shape[1] == 1 else h
    return t[n, h].unsqueeze(1)


def _grid(n: Tensor, h: Tensor) -> tuple[Tensor, Tensor] | None:
    """Batch entries and heads of which these pairs are every combination, in this order."""
    if n.numel() == 0:
        return None
    changes = (n != n[0]).nonzero()
    heads = h[: int(changes[0])] if len(changes) else h
    entries = n[:: len(heads)]
    pairs = entries.repeat_interleave(len(heads)), heads.repeat(len(entries))
    same = len(pairs[0]) == len(n) and torch.equal(pairs[0], n) and torch.equal(pairs[1], h)
    return (entries, heads) if same else None


def _as_slice(index: Tensor) -> Index:
    """The slice that chooses the same, where there is one: a view in place of a copy."""
    if index.numel() == 0:
        return index
    first = int(index[0])
    rising = torch.arange(first, first + len(index), device=index.device)
    return slice(first, first + len(index)) if torch.equal(rising, index) else index


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
