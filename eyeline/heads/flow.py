"""Attention rollout: the product of all layers with their residual connections, never formed."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor

from eyeline.errors import ArgumentError, ShapeError
from eyeline.heads.runs import check_run
from eyeline.lazy import Weights
from eyeline.lazy.matrix import dense_limit, too_large
from eyeline.seen import Seen

_BLOCK = 64  # columns of the dense form that are followed at one time


class Rollout:
    """The matrix R ``[T, T]`` (``[B, T, T]`` for a batch): what of token j is in token i, R[i, j].

    ``R = A_L ... A_2 A_1`` with ``A_l = r I + (1 - r) mean over heads of W_l``, the residual
    connection counting for r. Nothing is kept of it: a row, a column or a product passes once over
    each layer, in memory linear in T. Rows and columns of padding are 0.
    """

    def __init__(self, layers: list[Weights], real: Tensor | None, residual: float) -> None:
        self._layers, self._real, self._residual = layers, real, residual
        first = layers[0]
        self._batch, self._size = first.shape[0], first.shape[-1]
        self._dtype = first.problem.statistics

    @property
    def shape(self) -> tuple[int, ...]:
        """``(T, T)``, or ``(B, T, T)`` for a batch of several."""
        batch = () if self._batch == 1 else (self._batch,)
        return (*batch, self._size, self._size)

    def __repr__(self) -> str:
        return f"Rollout {list(self.shape)} over {len(self._layers)} layers"

    def row(self, i: int) -> Tensor:
        """What token i is made of: ``R[i]`` ``[T]``, or ``[B, T]``."""
        return self._given(self._back(self._unit(i)))

    def column(self, j: int) -> Tensor:
        """Where token j goes: ``R[:, j]`` ``[T]``, or ``[B, T]``."""
        return self._given(self._forth(self._unit(j)))

    def __matmul__(self, x: Tensor) -> Tensor:
        """``R @ x`` for x ``[T]``, ``[T, F]`` or ``[B, T, F]``."""
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() not in (1, 2, 3):
            raise ArgumentError("rollout @ x takes a float tensor [T], [T, F] or [B, T, F].")
        wide = x[:, None] if x.dim() == 1 else x
        fits = wide.shape[-2] == self._size
        if not fits or (x.dim() == 3 and x.shape[0] not in (1, self._batch)):
            raise ShapeError(f"{list(self.shape)} @ {list(x.shape)}: x has one row per token.")
        made = self._forth(wide.to(self._dtype).expand(self._batch, *wide.shape[-2:]))
        if x.dim() == 1:
            return self._given(made)
        return made[0] if self._batch == 1 and x.dim() == 2 else made

    def to_dense(self, *, limit: float | None = None) -> Tensor:
        """All of R; DenseError above ``limit`` bytes (``eyeline.dense_limit`` unless given)."""
        allowed = dense_limit() if limit is None else limit
        like = torch.empty((), dtype=self._dtype).expand(self.shape)
        count = like.numel() * self._dtype.itemsize
        if count > allowed:
            raise too_large("to_dense", like, count, allowed)
        eye = torch.eye(self._size, dtype=self._dtype, device=self._layers[0].device)
        parts = [
            self._forth(some.expand(self._batch, *some.shape)) for some in eye.split(_BLOCK, 1)
        ]
        made = torch.cat(parts, -1)
        return made[0] if self._batch == 1 else made

    def _forth(self, x: Tensor) -> Tensor:
        """``A_L ... A_1 x`` for x ``[B, T, F]``: from the tokens to the last layer."""
        x = self._masked(x)
        for weights in self._layers:
            looked = (weights @ x[:, None]).mean(1)
            x = self._masked(self._residual * x + (1 - self._residual) * looked)
        return x

    def _back(self, y: Tensor) -> Tensor:
        """``A_1ᵀ ... A_Lᵀ y`` for y ``[B, T, F]``: from the last layer to the tokens."""
        y = self._masked(y)
        for weights in reversed(self._layers):
            at = y.ne(0).any(-1).any(0).nonzero().flatten()
            first, stop = (int(at[0]), int(at[-1]) + 1) if len(at) else (0, 0)
            # Rows that nothing comes from need not be looked at: of a causal model those behind i.
            part = weights[:, :, first:stop]
            looked = (part.mT @ y[:, None, first:stop]).mean(1)
            y = self._masked(self._residual * y + (1 - self._residual) * looked)
        return y

    def _unit(self, i: int) -> Tensor:
        i = operator.index(i)
        if not -self._size <= i < self._size:
            raise IndexError(f"There is no token {i}: they are 0 to {self._size - 1}.")
        one = torch.zeros(self._batch, self._size, 1, dtype=self._dtype)
        one[:, i] = 1.0
        return one.to(self._layers[0].device)

    def _masked(self, x: Tensor) -> Tensor:
        return x if self._real is None else x * self._real[..., None]

    def _given(self, x: Tensor) -> Tensor:
        return x[0, :, 0] if self._batch == 1 else x[..., 0]


def rollout(
    seen: Seen, layers: Iterable[int | str] | None = None, *, residual: float = 0.5
) -> Rollout:
    """How attention and residual connections carry tokens through the layers, as a lazy matrix.

    `layers` are those to multiply, first to last, all self-attention by default; a model that has
    cross-attention too needs them named. `residual` is the share of the residual connection, the
    paper's 0.5. Heads are averaged. Row i of the result sums to 1 where the layers' rows do.
    Source: Abnar and Zuidema 2020 (arXiv 2005.00928), attention rollout.

    >>> import torch
    >>> from eyeline.models import load
    >>> from eyeline.seen import watch
    >>> loaded = load("minilm")
    >>> tokens = loaded.tokens("The keys are on the table because they were heavy.")
    >>> with torch.no_grad(), watch(loaded.model) as seen:
    ...     output = loaded.model(**loaded.inputs(tokens))
    >>> row = rollout(seen).row(tokens.pieces.index("they"))
    >>> [tokens.pieces[j] for j in row.topk(3).indices], f"{float(row.sum()):.3f}"
    (['[CLS]', '[SEP]', '.'], '1.000')
    """
    check_run("rollout(seen)", seen)
    if isinstance(residual, bool) or not isinstance(residual, (int, float)):
        raise ArgumentError(f"rollout(residual={residual!r}) is a share, a number from 0 to 1.")
    if not 0.0 <= residual <= 1.0:
        raise ArgumentError(f"rollout(residual={residual}) is a share, 0 to 1.")
    if layers is None:
        if "cross" in seen.kinds:
            raise ArgumentError(
                "rollout() is of one stack of layers, and this model has two: name them, as "
                f"rollout(seen, layers=[{seen.kinds.index('self')}, ...]). They are: "
                f"{', '.join(seen.names[:4])}, ..."
            )
        layers = range(len(seen))
    chosen = list(layers)
    if not chosen:
        raise ArgumentError("rollout() needs a layer at least.")
    found = [seen[key] for key in chosen]
    sizes = {(*weights.shape[:1], *weights.shape[2:]) for weights in found}
    if (
        any(weights.dim() != 4 for weights in found)
        or len(sizes) > 1
        or len({*sizes.pop()[1:]}) > 1
    ):
        shapes = ", ".join(str(list(weights.shape)) for weights in found[:4])
        raise ShapeError(f"rollout() multiplies layers of one size [B, H, T, T], and got {shapes}.")
    return Rollout(found, seen.real(chosen[0]), residual)
