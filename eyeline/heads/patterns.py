"""How much each head is one of the known kinds, beside what chance gives on the same input.

Each score is a mean over rows i of the weight that falls on the kind's keys j; `KINDS` says which
and who described them. Chance is the mean over all shuffles of the tokens, which then stand at
other places while the attention stays what it is: what a head gives such keys without looking for
them. These means have closed forms, so nothing is drawn at random.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eyeline.backends.reductions import Reduction, RowEntropy, RowTiles, Tile
from eyeline.backends.strips import Strip
from eyeline.errors import ArgumentError, ShapeError
from eyeline.heads.runs import check_run
from eyeline.lazy import Weights
from eyeline.readings import Reading, read, reading
from eyeline.seen import Seen
from eyeline.tokens import Tokens

NEAR = 3  # tokens on each side that are local
KINDS = {
    "previous": "on the token before: j = i - 1 (Clark et al. 2019, arXiv 1906.04341)",
    "next": "on the token after: j = i + 1 (Clark et al. 2019)",
    "first": "on the first token, from every other (Vig and Belinkov 2019, arXiv 1906.04284; as a "
    "sink Xiao et al. 2023, arXiv 2309.17453)",
    "delimiter": "on special tokens and punctuation but the first token (Clark et al. 2019)",
    "duplicate": "on earlier occurrences of the same token, from tokens that have one "
    "(Wang et al. 2022, arXiv 2211.00593)",
    "induction": "on the tokens that followed earlier occurrences of the same token, from tokens "
    "that have one (Olsson et al. 2022, arXiv 2209.11895, prefix matching)",
    "local": f"on the {NEAR} tokens on each side (Kovaleva et al. 2019, arXiv 1908.08593)",
    "broad": "entropy over its largest value, log of the keys that may be seen (Clark et al. "
    "2019); its chance is that of rows drawn evenly from all that sum to 1",
}
# What one pass over the weights sums up of each row, in this order.
_SUMS = (
    "previous", "next", "first", "delimiter", "duplicate", "induction", "local",
    "others", "earlier", "followers", "behind_first", "entropy", "seen", "near",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores:
    """Scores of each kind [layers, heads], and `chance` of the same shape; NaN where there is none.

    `layers` are the numbers in `seen` of the layers that were scored, `rows` how many rows each
    kind's mean is over.
    """

    layers: tuple[int, ...]
    values: dict[str, Tensor]
    chance: dict[str, Tensor]
    rows: dict[str, int]

    def __getitem__(self, kind: str) -> Tensor:
        if kind not in self.values:
            raise ArgumentError(f"There is no score {kind!r}: they are {', '.join(self.values)}.")
        return self.values[kind]

    def best(self, kind: str) -> tuple[str, float, float]:
        """The head with the highest score, as "L18H6", its score, and chance for it."""
        values = self[kind].nan_to_num(-1.0)
        layer, head = divmod(int(values.argmax()), values.shape[1])
        at = (layer, head)
        return f"L{self.layers[layer]}H{head}", float(self[kind][at]), float(self.chance[kind][at])

    def __repr__(self) -> str:
        lines = [f"{'':10} best    score  chance   rows"]
        for kind in self.values:
            name, value, chance = self.best(kind)
            lines.append(f"{kind:10} {name:7} {value:5.2f}   {chance:5.2f}  {self.rows[kind]:5d}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class _SeenKeys(Reduction):
    """How many keys each row may see, and how many of them are local: ``[N, H, Tq, 2]``."""

    def of(self, strip: Strip) -> tuple[Tensor, ...]:
        w = strip.weights
        rows = torch.arange(strip.rows.start, strip.rows.stop, device=w.device)
        visible = torch.ones_like(w) if strip.visible is None else strip.visible.to(w.dtype)
        visible = visible.expand(w.shape)
        near = w.new_zeros(w.shape[:-1])
        for by in range(-NEAR, NEAR + 1):
            column, held = strip.columns_of(rows + by)
            if by and w.shape[-1]:
                index = column[:, None].expand(*w.shape[:-1], 1)
                near = near + visible.gather(-1, index).squeeze(-1) * held
        return (torch.stack([visible.sum(-1), near], -1),)


@reading
def row_sums(weights: Weights, ids: Tensor, delimiters: Tensor) -> Any:
    """What scores are made of, of each row: [*lead, T, sums]."""
    T = len(ids)
    keys = torch.arange(T, device=ids.device)
    delimiter = (delimiters & (keys > 0)).to(weights.problem.statistics)

    def of(tile: Tile) -> Tensor:
        w, rows = tile.weights, tile.rows
        same = ids[rows][:, None] == ids
        earlier = keys < rows[:, None]
        follows = torch.nn.functional.pad(same[:, :-1], (1, 0)) & earlier
        near = [_offset(w, rows, by) for by in range(-NEAR, NEAR + 1) if by]
        lower = _on(w, earlier)
        made = {
            "previous": near[NEAR - 1],
            "next": near[NEAR],
            "first": w[..., 0] * (rows > 0),
            "delimiter": w @ delimiter,
            "duplicate": _on(w, same & earlier),
            "induction": _on(w, follows),
            "local": torch.stack(near).sum(0),
            "others": w.sum(-1) - _offset(w, rows, 0),
            "earlier": lower,
            "followers": lower - w[..., 0] * (rows > 0),
            "behind_first": w[..., 1:].sum(-1),
        }
        return torch.stack([made[name] for name in _SUMS[:-3]], -1)

    sums, entropy, seen = yield [RowTiles(of), RowEntropy(), _SeenKeys()]
    values = torch.cat([sums, entropy[..., None], seen], -1)
    return Reading(values, (*weights.axes[:-1], "sum"), "weight", "row_sums")


def _on(w: Tensor, keys: Tensor) -> Tensor:
    """The weight [*lead, R] on the keys [R, T] of each row."""
    return torch.einsum("...rk,rk->...r", w, keys.to(w.dtype))


def _offset(w: Tensor, rows: Tensor, by: int) -> Tensor:
    """The weight [*lead, R] of the key that stands `by` after each row, 0 where there is none."""
    at = rows + by
    inside = (at >= 0) & (at < w.shape[-1])
    index = at.clamp(0, w.shape[-1] - 1)[:, None].expand(*w.shape[:-1], 1)
    return w.gather(-1, index).squeeze(-1) * inside


def scores(
    seen: Seen,
    tokens: Tokens | Sequence[int] | Tensor | None = None,
    rows: slice | None = None,
) -> HeadScores:
    """How much each head of each self-attention is one of the kinds in `eyeline.heads.KINDS`.

    `tokens` are those of the text (`seen.tokens` by default) or their ids alone, which know no
    delimiters; `rows` the queries that count, all by default. A batch must be of one text; rows and
    columns of padding are left out. In one pass per layer, without anything of size T x T.

    Each score is beside its chance: the mean over all shuffles of the tokens. A token's own
    occurrences, what followed them and the delimiters then stand anywhere; of the token before,
    after, first or near it, the shuffled one is as likely any other token that may be seen.

    >>> import torch
    >>> from eyeline.models import load
    >>> from eyeline.seen import watch
    >>> loaded = load("minilm")
    >>> tokens = loaded.tokens("The cat sat on the mat because the cat was tired of the mat.")
    >>> with torch.no_grad(), watch(loaded.model) as seen:
    ...     output = loaded.model(**loaded.inputs(tokens))
    >>> found = scores(seen, tokens)
    >>> name, score, chance = found.best("previous")
    >>> name, f"{score:.2f} where chance gives {chance:.2f}"
    ('L0H2', '1.00 where chance gives 0.06')
    """
    check_run("scores(seen)", seen)
    tokens = seen.tokens if tokens is None else tokens
    if tokens is None:
        raise ArgumentError(
            "scores(seen, tokens) needs the tokens of the text, or seen.tokens set."
        )
    ids, delimiters = _identities(tokens)
    counted = torch.zeros(len(ids), dtype=torch.bool)
    counted[slice(None) if rows is None else rows] = True
    rule = _Shuffles.of(ids, counted, delimiters)
    layers, found, chance = [], [], []
    for layer in range(len(seen)):
        weights = _of_text(seen, layer, len(ids))
        if weights is None:
            continue
        place = weights.device
        asked = partial(row_sums, ids=ids.to(place), delimiters=delimiters.to(place))
        (sums,) = read(weights, asked)
        of = dict(zip(_SUMS, sums.values.double().cpu().unbind(-1), strict=True))
        layers.append(layer)
        found.append(_found(of, rule))
        chance.append(_chance(of, rule))
    if not layers:
        raise ShapeError(
            f"scores() needs a row and a column for each of the {len(ids)} tokens, and no "
            f"self-attention of this run has that: the first is {list(seen[0].shape)}."
        )
    kinds = [kind for kind in KINDS if kind != "delimiter" or delimiters.any()]
    return HeadScores(
        tuple(layers),
        {kind: _stacked([one[kind] for one in found]) for kind in kinds},
        {kind: _stacked([one[kind] for one in chance]) for kind in kinds},
        {kind: int(rule.rows[kind].sum()) for kind in kinds},
    )


def _identities(tokens: Tokens | Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
    """ids int64 [T], and which of them are delimiters."""
    if isinstance(tokens, Tokens):
        delimiters = [
            special or (bool(piece) and all(map(_is_sign, piece)))
            for special, piece in zip(tokens.special, tokens.pieces, strict=True)
        ]
        return torch.tensor(tokens.ids, dtype=torch.int64), torch.tensor(delimiters)
    try:
        ids = torch.as_tensor(tokens).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"scores() takes the tokens of one text or their ids [T], and got {tokens!r:.40}."
        ) from error
    if ids.dim() == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.dim() != 1 or ids.is_floating_point() or not len(ids):
        raise ArgumentError(
            f"scores() takes the tokens of one text or their ids [T], and got {list(ids.shape)}."
        )
    return ids.long(), torch.zeros(len(ids), dtype=torch.bool)


def _is_sign(char: str) -> bool:
    return unicodedata.category(char).startswith("P")


def _of_text(seen: Seen, layer: int, T: int) -> Weights | None:
    """The weights [H, T, T] of the one text without padding; None where the layer has others."""
    weights, real = seen[layer], seen.real(layer)
    if weights.shape[0] != 1:
        raise ShapeError(
            f"scores() is of one text, and layer {layer} is {list(weights.shape)}:"
            " watch a call of the model on that text alone."
        )
    first = 0 if real is None else int(real[0].long().argmax())
    count = weights.shape[-1] if real is None else int(real[0].sum())
    if seen.kinds[layer] != "self" or count != T or weights.shape[-2] != weights.shape[-1]:
        return None
    part: Weights = weights[0, :, first : first + T, first : first + T].detach()
    return part


@dataclass(frozen=True, eq=False)
class _Shuffles:
    """What the tokens alone say: the rows that count for each kind, and what shuffles make likely.

    All float64; `rows` [T] per kind, `likely` [T] how likely a row then counts.
    """

    rows: dict[str, Tensor]
    likely: dict[str, Tensor]
    alike: float  # that two tokens are the same
    delimiter: float  # that a token, but the first, is a delimiter

    @classmethod
    def of(cls, ids: Tensor, counted: Tensor, delimiters: Tensor) -> _Shuffles:
        T = len(ids)
        at, all_rows = torch.arange(T), counted.double()
        inverse, counts = ids.unique(return_inverse=True, return_counts=True)[1:]
        begins = torch.full((len(counts),), T).scatter_reduce(0, inverse, at, "amin")[inverse]
        rows = dict.fromkeys(KINDS, all_rows)
        rows |= dict.fromkeys(("previous", "first"), all_rows * (at > 0))
        rows |= {"next": all_rows * (at < T - 1), "duplicate": all_rows * (begins < at)}
        rows["induction"] = all_rows * (begins < at - 1)
        before = _likely(counts, T)
        likely = {
            "duplicate": before * all_rows,
            "induction": torch.cat([before.new_zeros(1), before[:-1]]) * all_rows,
        }
        pairs = max(T * (T - 1), 1)
        delimiter = float((delimiters & (at > 0)).sum()) / max(T - 1, 1)
        return cls(rows, likely, float((counts * (counts - 1)).sum()) / pairs, delimiter)


def _likely(counts: Tensor, T: int) -> Tensor:
    """For each i, the chance that some of i shuffled tokens before token i is the same [T].

    A token that occurs n times of T has none among i places with C(T - n, i) / C(T - 1, i).
    """
    i = torch.arange(T, dtype=torch.float64)
    none = torch.zeros(T, dtype=torch.float64)
    for n, m in zip(*(x.tolist() for x in counts.unique(return_counts=True)), strict=True):
        possible = i <= T - n
        left = torch.where(possible, T - n - i, 0.0)
        logs = math.lgamma(T - n + 1) - (left + 1).lgamma() - math.lgamma(T) + (T - i).lgamma()
        none += torch.where(possible, m * n / T * logs.exp(), 0.0)
    return (1 - none).clamp(min=0)


def _found(of: dict[str, Tensor], rule: _Shuffles) -> dict[str, Tensor]:
    """The scores [H] of one layer, from its rows' sums [H, T]."""
    found = {kind: _mean(of[kind], rule.rows[kind]) for kind in KINDS if kind != "broad"}
    most = of["seen"].clamp(min=2).log()
    return found | {"broad": _mean(of["entropy"] / most, rule.rows["broad"] * (of["seen"] > 1))}


def _chance(of: dict[str, Tensor], rule: _Shuffles) -> dict[str, Tensor]:
    """Chance [H] for each score of one layer."""
    others = (of["seen"] - 1).clamp(min=0)
    any_other = torch.where(others > 0, of["others"] / others.clamp(min=1), 0.0)
    # The token before, after or first is then any other that the row may see.
    made = {kind: _mean(any_other, rule.rows[kind]) for kind in ("previous", "next", "first")}
    made["local"] = _mean(any_other * of["near"], rule.rows["local"])
    made["delimiter"] = rule.delimiter * _mean(of["behind_first"], rule.rows["delimiter"])
    for kind, keys in (("duplicate", "earlier"), ("induction", "followers")):
        mass = (of[keys] * rule.rows["local"]).sum(-1)
        made[kind] = rule.alike * mass / rule.likely[kind].sum()
    n = of["seen"].clamp(min=2)
    drawn = torch.special.digamma(n + 1) - torch.special.digamma(n.new_tensor(2.0))
    made["broad"] = _mean(drawn / n.log(), rule.rows["broad"] * (of["seen"] > 1))
    return made


def _mean(x: Tensor, rows: Tensor) -> Tensor:
    """The mean [H] of x [H, T] over the rows that count."""
    return (x * rows).sum(-1) / rows.sum(-1)


def _stacked(layers: list[Tensor]) -> Tensor:
    """[layers, heads], NaN where a layer has fewer heads."""
    heads = max(len(layer) for layer in layers)
    pad = torch.nn.functional.pad
    return torch.stack([pad(x, (0, heads - len(x)), value=torch.nan) for x in layers]).float()
