"""Two runs over the same tokens beside each other: how far apart the rows of each head are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.backends.reductions import Entries
from eyeline.errors import ArgumentError, ShapeError
from eyeline.heads.runs import check_run
from eyeline.lazy import Weights
from eyeline.seen import Seen

_BLOCK = 1 << 20  # weights of each run that are dense at one time


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """How far two runs are apart, per layer and head; NaN where a layer has no such head.

    `total_variation` [layers, heads] is the mean over rows of ``½ Σ |p - q|``, 0 for equal rows and
    1 for rows that share no key; `kl` the mean of ``Σ p log(p / q)`` in nats; `largest` the largest
    total variation of any row, and `row` which row that is. Rows of padding are not counted.
    """

    names: tuple[str, ...]
    total_variation: Tensor
    kl: Tensor
    largest: Tensor
    row: Tensor

    def most(self) -> tuple[str, float]:
        """The head that differs most, and its mean total variation."""
        values = self.total_variation.nan_to_num(-1.0)
        layer, head = divmod(int(values.argmax()), values.shape[1])
        return f"L{layer}H{head}", float(values[layer, head])

    def __repr__(self) -> str:
        name, value = self.most()
        mean = float(self.total_variation.nanmean())
        return (
            f"Comparison of {len(self.names)} layers: mean total variation {mean:.4f}, "
            f"most in {name} with {value:.4f}"
        )


def compare(a: Seen, b: Seen) -> Comparison:
    """How the attention of two runs over the same tokens differs, head by head.

    Two models of one shape, or one before and after training, in another dtype, with something
    blocked. Streams over strips of rows. ArgumentError where the tokens differ or are known of one
    run alone; ShapeError where layers or heads do not match.

    >>> import torch
    >>> from eyeline.seen import Call, Seen
    >>> x = torch.eye(2)[None, None]
    >>> found = compare(Seen([Call("layer", x, x)]), Seen([Call("layer", 9 * x, x)]))
    >>> found.total_variation, found.kl
    (tensor([[0.3285]]), tensor([[1.4690]]))
    """
    check_run("compare(a, b)", a)
    check_run("compare(a, b)", b)
    _same_tokens(a, b)
    if len(a) != len(b) or not len(a):
        raise ShapeError(f"compare() takes runs of the same layers, and got {len(a)} and {len(b)}.")
    results = []
    for layer, (one, two) in enumerate(zip(a, b, strict=True)):
        if one.shape != two.shape:
            raise ShapeError(
                f"compare(): layer {layer} is {list(one.shape)} in one run ({a.names[layer]}) and "
                f"{list(two.shape)} in the other ({b.names[layer]})."
            )
        results.append(_layer(one.detach(), two.detach(), a.real(layer)))
    heads = max(result.shape[1] for result in results)
    made = torch.stack([torch.nn.functional.pad(r, (0, heads - r.shape[1]), value=torch.nan)
                        for r in results], 1)  # fmt: skip
    row = made[3].nan_to_num(-1).long()
    return Comparison(a.names, made[0], made[1], made[2], row)


def _same_tokens(a: Seen, b: Seen) -> None:
    if (a.tokens is None) != (b.tokens is None):
        raise ArgumentError(
            "compare() is of runs over the same tokens, and they are known of one run alone: set "
            "seen.tokens of both, or of neither."
        )
    if a.tokens is not None and b.tokens is not None and a.tokens.ids != b.tokens.ids:
        raise ArgumentError(
            "compare() is of runs over the same tokens, and these differ: "
            f"{a.tokens.text!r:.40} and {b.tokens.text!r:.40}."
        )


def _layer(a: Weights, b: Weights, real: Tensor | None) -> Tensor:
    """Mean total variation, mean KL, the largest row and which it is: float [4, H]."""
    B, H, Tq, _ = a.shape
    counted = torch.ones(B, Tq) if real is None else real[:, -Tq:].float().cpu()
    sums = torch.zeros(2, H, dtype=torch.float64)
    largest, where = torch.zeros(H, dtype=torch.float64), torch.zeros(H, dtype=torch.int64)
    for rows, p, q in _strips(a, b):
        counts = counted[:, None, rows].bool().to(p.device)
        apart = torch.where(counts, (p - q).abs().sum(-1) / 2, 0.0).double().cpu()
        kl = torch.where(counts, _kl(a, b, rows, p, q), 0.0).double().cpu()
        sums += torch.stack([apart, kl]).sum((1, 3))
        most, at = apart.amax(0).max(-1)
        where = torch.where(most > largest, at + rows.start, where)
        largest = torch.maximum(largest, most)
    total = counted.sum().clamp(min=1).double()
    made = torch.stack([*(sums / total), largest, where.double()])
    return made.to(a.problem.statistics if a.dtype == torch.float64 else torch.float32)


def _strips(a: Weights, b: Weights) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows of both runs, dense in the dtype of statistics: [B, H, R, Tk]."""
    B, H, Tq, Tk = a.shape
    step = max(_BLOCK // max(B * H * Tk, 1), 1)
    for first in range(0, Tq, step):
        rows = slice(first, min(first + step, Tq))
        p, q = (w[..., rows, :]._body.reduce_one(Entries())[0] for w in (a, b))
        yield rows, p, q


def _kl(a: Weights, b: Weights, rows: slice, p: Tensor, q: Tensor) -> Tensor:
    """``Σ p log(p / q)`` of each row, from the scores where q has become 0 by rounding."""
    if not bool(((p > 0) & (q == 0)).any()):
        logs = p.log() - q.log()
    else:
        one, two = (w.scores(rows) - w[..., rows, :].lse[..., None] for w in (a, b))
        logs = one.to(p.dtype) - two.to(p.dtype)
    return torch.where(p > 0, p * logs, 0.0).sum(-1)
