"""Every number, word and table of the chapter, by the name under which the templates ask for it.

`drawn` depends on the seed; `fixed` holds at any seed. What the prose says of the drawn ones is
checked here: a seed for which it is not true is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import eyeline
from docs.chapter import facts
from eyeline.lesson import Settings, measured
from eyeline.lesson.data import listed
from eyeline.lesson.ledger import Ledger
from eyeline.lesson.ledger import drawn as drawn_ledger
from eyeline.lesson.screens import lookup, summing
from eyeline.lesson.stage import ORDER, causal_mask
from eyeline.lesson.tiles import State, merge, of_tile, tiles
from eyeline.lesson.writing import numbers as row
from eyeline.views.lesson_terminal import number

Named = dict[str, str]


class UntrueError(Exception):
    """With this seed the numbers do not show what the chapter says."""


def ledger(seed: int) -> Ledger:
    """The chapter's example, A19's, drawn by a seed."""
    return drawn_ledger(Settings(seed=seed))


def fixed(lang: str) -> Named:
    """What no seed changes: sizes, constants, the dictionary, the real model."""
    found = {f"step.{name}": str(place) for place, name in enumerate(ORDER)}
    found |= {f"source.{name}": text for name, text in facts.SOURCES.items()}
    found |= {"words": '["I", "love", "NLP"]'} | _lookup(lang) | _sizes() | facts.model()
    return found


def drawn(seed: int, lang: str) -> Named:
    """What another seed changes."""
    book = ledger(seed)
    found = {"seed": str(seed), "other": str(seed + 1)}
    found |= _example(book) | _trained(book) | _measured(seed) | _merged(book) | _shuffled(book)
    if lang == "zh":
        found["sat.table"] = found.pop("sat.table.zh")
    found.pop("sat.table.zh", None)
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right.

    >>> print(table(("", "a"), [("b", "1")]))
    |  | a |
    |---|---:|
    | b | 1 |
    """
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    made = [f"| {' | '.join(line)} |" for line in lines]
    made[1] = made[1].replace(" ", "")
    return "\n".join(made)


def matrix(values: Tensor, labels: Sequence[str], columns: Sequence[str] | None = None) -> str:
    """A tensor [n, m] as a Markdown table with named rows."""
    heads = [str(j) for j in range(values.shape[1])] if columns is None else columns
    rows = [[label, *map(number, line)] for label, line in zip(labels, listed(values), strict=True)]
    return table(("", *heads), rows)


def _lookup(lang: str) -> Named:
    """A1 to A3: four entries and one query that is none of them."""
    K, V = torch.tensor(list(lookup.ENTRIES.values())), torch.tensor(lookup.METRES)
    scores = K @ torch.tensor(lookup.QUERY)
    names = facts.ENTRIES[lang]
    rows = []
    for factor in (*lookup.SHARPER, math.inf):
        sharp = torch.eye(len(V))[scores.argmax()]
        weights = sharp if factor == math.inf else (scores * factor).softmax(-1)
        name = "× ∞" if factor == math.inf else f"× {factor:g}"
        rows.append((name, *(f"{w:.4f}" for w in weights.tolist()), f"{(weights @ V).item():.2f}"))
    twice = (scores * 2).softmax(-1)
    once = scores.softmax(-1)
    try:
        said = str({"cat": V[0]}["kitten"])
    except KeyError as error:
        said = f"KeyError: {error}"
    return {
        "lookup.said": said,
        "lookup.query": _pair(list(lookup.QUERY)),
        "lookup.product": " + ".join(
            f"{q:g} · {k:g}" for q, k in zip(lookup.QUERY, lookup.ENTRIES["dog"])
        ),
        "lookup.dog": f"{scores[1].item():.3f}",
        "lookup.scores": ", ".join(f"{s:.3f}" for s in scores.tolist()),
        "lookup.metres": ", ".join(f"{v:g}" for v in V.tolist()),
        "lookup.given": table(
            ("", *names),
            [
                (facts.WORDS["key"][lang], *map(_pair, K.tolist())),
                (facts.WORDS["score"][lang], *(f"{s:.3f}" for s in scores.tolist())),
                (facts.WORDS["metres"][lang], *(f"{v:g}" for v in V.tolist())),
            ],
        ),
        "lookup.table": table(
            (facts.WORDS["scores"][lang], *names, facts.WORDS["answer"][lang]), rows
        ),
        "lookup.exps": ", ".join(f"{s:.3f}" for s in scores.exp().tolist()),
        "lookup.sum": f"{scores.exp().sum().item():.3f}",
        "lookup.first": f"{once[0].item():.4f}",
        "lookup.once": f"{(once @ V).item():.2f}",
        "lookup.twice": f"{(twice @ V).item():.2f}",
        "lookup.twice.exps": ", ".join(f"{s:.3f}" for s in (scores * 2).exp().tolist()),
        "lookup.twice.sum": f"{(scores * 2).exp().sum().item():.3f}",
        "lookup.exact": f"{V[0].item():g}",
        "lookup.factor": "2",
        "times.low": f"× {lookup.SHARPER[0]:g}",
        "times.more": f"× {lookup.SHARPER[1]:g}",
    }


def _pair(vector: Sequence[float]) -> str:
    """A vector in the plane.

    >>> _pair([0.9, 0.4])
    '(0.9, 0.4)'
    """
    return f"({', '.join(f'{x:.2g}' for x in vector)})"


def _sizes() -> Named:
    """Sizes and costs that follow from the lengths alone."""
    n, d, long, few = 3, 4, 100_000, 1000
    layers, heads, kv_heads, size, held = 30, 9, 3, 64, 8192
    token = 2 * layers * kv_heads * size * 2
    figure = torch.tensor(summing.FIGURE)
    large = torch.tensor([1000.0, 1001.0, 1002.0])
    naive = large.exp() / large.exp().sum()
    larger = torch.tensor([900.0, 902.0, 903.0])
    return {
        "n": str(n),
        "d": str(d),
        "n.n": str(n * n),
        "root": f"{math.sqrt(d):g}",
        "factor": f"{d**-0.5:g}",
        "wide": str(facts.WIDE),
        "narrow": str(d - 1),
        "wide.heads": str(facts.WIDE_HEADS),
        "wide.d_k": str(facts.WIDE // facts.WIDE_HEADS),
        "wide.factor": f"{(facts.WIDE // facts.WIDE_HEADS) ** -0.5:g}",
        "long": f"{long:,}",
        "long.scores": f"{long * long:,}",
        "long.GB": f"{long * long * 4 / 1e9:g}",
        "long.MB": f"{long * 2 * 4 / 1e6:g}",
        "long.ratio": f"{long * long // (2 * long):,}",
        "few": f"{few}",
        "few.again": f"{sum(t * t for t in range(1, few + 1)):,}",
        "few.cached": f"{sum(range(1, few + 1)):,}",
        "few.again.plain": str(sum(t * t for t in range(1, few + 1))),
        "few.cached.plain": str(sum(range(1, few + 1))),
        "few.ratio": f"{sum(t * t for t in range(1, few + 1)) / sum(range(1, few + 1)):.0f}",
        "kv.layers": str(layers),
        "kv.heads": str(heads),
        "kv.kv_heads": str(kv_heads),
        "kv.size": str(size),
        "kv.token": f"{token:,}",
        "kv.token.plain": str(token),
        "kv.held": str(held),
        "kv.MB": f"{token * held / 1e6:.1f}",
        "kv.MB.full": f"{2 * layers * heads * size * 2 * held / 1e6:.1f}",
        "kv.ratio": str(heads // kv_heads),
        "kv.ratio.zh": "零一二三四五六七八九"[heads // kv_heads],
        "book.scores": row(figure).replace("000", ""),
        "book.printed": "0.05 0.45 0.15 0.35",
        "book.right": " ".join(f"{w:.3f}" for w in figure.softmax(-1).tolist()),
        "large": " ".join(f"{s:g}" for s in large.tolist()),
        "large.naive": row(naive),
        "large.right": row(large.softmax(-1)),
        "large.lse": f"{large.logsumexp(-1).item():.4f}",
        "larger": " ".join(f"{s:g}" for s in larger.tolist()),
        "larger.right": row(larger.softmax(-1)),
        "ln.two": f"{math.log(2):.4f}",
        "unknown": str(d + 3),
        "free": str(d + 2),
    }


def _example(book: Ledger) -> Named:
    """The example's matrices, and the numbers that are worked out by hand."""
    words, n = book.words, book.n
    found = {f"word.{i}": word for i, word in enumerate(words)}
    for name in ("X", "Q", "K", "V", "output"):
        found[f"table.{name}"] = matrix(book[name], words)
    found["table.W_Q"] = matrix(book["W_Q"], [str(i) for i in range(len(book["W_Q"]))])
    for name in ("scores", "scaled", "weights"):
        found[f"table.{name}"] = matrix(book[name], words, words)
    hidden = book["scaled"].masked_fill(causal_mask(n) == 0, -math.inf)
    masked = hidden.softmax(-1)
    found["table.masked"] = matrix(masked, words, words)
    for i in range(n):
        for name in ("scaled", "weights", "output", "scores", "V", "Q", "K"):
            found[f"{name}.{i}"] = row(book[name][i])
        found[f"masked.{i}"] = row(masked[i])
        found[f"best.{i}"] = words[int(book["weights"][i].argmax())]
        found[f"best.weight.{i}"] = number(book["weights"][i].max().item())
        found[f"raw.{i}"] = row(book["scores"][i].softmax(-1))
        for j in range(n):
            found[f"score.{i}.{j}"] = number(book["scores"][i, j].item())
            found[f"weight.{i}.{j}"] = number(book["weights"][i, j].item())
    found["plus.0"] = row((book["scaled"][0] + 1).softmax(-1))
    found["double.0"] = row((2 * book["scaled"][0]).softmax(-1))
    found["raw.sum.0"] = row(book["scaled"][0] / book["scaled"][0].sum())
    found["raw.total.0"] = number(book["scaled"][0].sum().item())
    for name, a, b in (
        ("score.sum", book["Q"][0], book["K"][1]),
        ("score.hand", book["Q"][1], book["K"][0]),
        ("q.sum", book["X"][0], book["W_Q"][:, 0]),
        ("q.hand", book["X"][1], book["W_Q"][:, 0]),
        ("out.hand", book["weights"][0], book["V"][:, 0]),
        ("out.next", book["weights"][1], book["V"][:, 0]),
    ):
        found[name] = _products(a, b)
        found[f"{name}.result"] = number((a @ b).item())
    column = book["V"][:, 0]
    found["V.low"], found["V.high"] = number(column.min().item()), number(column.max().item())
    found["exps.0"] = ", ".join(f"{x:.4f}" for x in book["scaled"][0].exp().tolist())
    found["exps.sum.0"] = number(book["scaled"][0].exp().sum().item())
    raw = book["scores"][0].exp()
    found["raw.exps"] = ", ".join(number(x) for x in raw.tolist())
    found["raw.exps.sum"] = number(raw.sum().item())
    first = book["scaled"][1, :2].exp()
    found["hand.exps"] = " + ".join(f"{x:.4f}" for x in first.tolist())
    found["hand.sum"] = number(first.sum().item())
    gap = book["weights"][0].max() - book["scores"][0].softmax(-1).max()
    _holds(gap.item() < 0, "a row is sharper without the scale")
    return found


def _products(a: Tensor, b: Tensor) -> str:
    """A dot product written out.

    >>> _products(torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0]))
    '(1.0000)(3.0000) + (2.0000)(-4.0000)'
    """
    return " + ".join(f"({x:.4f})({y:.4f})" for x, y in zip(a.tolist(), b.tolist(), strict=True))


def _trained(book: Ledger) -> Named:
    """A4: one step down the gradient at W_Q."""
    W_Q = book["W_Q"].clone().requires_grad_()
    target, rate = book.n - 1, 0.02
    with torch.enable_grad():
        logs = (book["X"] @ W_Q @ book["K"].T * book.scale).log_softmax(-1)
        (-logs[0, target]).backward()
    assert W_Q.grad is not None
    before = logs.detach()[0].exp()
    stepped = W_Q.detach() - rate * W_Q.grad
    after = (book["X"] @ stepped @ book["K"].T * book.scale).softmax(-1)[0]
    _holds(after[target].item() > before[target].item(), "a step raises the weight")
    return {
        "train.before": number(before[target].item()),
        "train.after": number(after[target].item()),
        "train.row": row(before),
        "train.new": row(after),
        "train.gain": number((after - before)[target].item()),
        "train.others.before": number(before[:target].sum().item()),
        "train.others.after": number(after[:target].sum().item()),
    }


def _measured(seed: int) -> Named:
    """A13, A22, B6, B9, B10: what is measured and not derived."""
    plain, scaled = (
        [measured.saturation(d, s, seed) for d in measured.SIZES] for s in (False, True)
    )
    found = _saturation_tables(plain, scaled)
    big, mild = plain[-1], scaled[-1]
    _holds(big.sure > 0.5 and mild.sure < 0.05, "most rows saturate without the scale, few with it")
    _holds(big.at_scores < mild.at_scores / 100, "the gradient at the scores vanishes")
    _holds(big.at_W_Q > mild.at_W_Q, "at W_Q it is larger without the scale")
    found |= {
        "sat.d": str(big.d),
        "sat.keys": str(measured.KEYS),
        "sat.limit": str(measured.SURE),
        "sat.sure": f"{big.sure:.0%}",
        "sat.sure.scaled": f"{mild.sure:.0%}",
        "sat.grad": f"{big.at_scores:.1e}",
        "sat.grad.scaled": f"{mild.at_scores:.1e}",
        "sat.W_Q": f"{big.at_W_Q:.1e}",
        "sat.W_Q.scaled": f"{mild.at_W_Q:.1e}",
    }
    with_scale, without = (measured.training(s, seed) for s in (True, False))
    _holds(with_scale[1] < with_scale[0] / 5, "with the scale the loss falls")
    _holds(without[1] > without[0] / 2, "without it the loss stays")
    for name, losses in (("fit", with_scale), ("unfit", without)):
        found |= {f"{name}.from": f"{losses[0]:.3f}", f"{name}.to": f"{losses[1]:.3f}"}
    product = measured.products(seed)
    _holds(100 < product.largest < 150, "the largest product is over a hundred")
    found |= {
        "dot.d": str(product.d),
        "dot.count": f"{product.count:,}",
        "dot.spread": f"{product.spread:.1f}",
        "dot.largest": f"{product.largest:.0f}",
        "dot.own": f"{product.own:.0f}",
        "dot.scaled": f"{product.scaled:.2f}",
    }
    same = measured.same_projection(seed)
    _holds(0.1 < same.plain < same.shared, "another word's score is often the larger one")
    found |= {"same.plain": f"{same.plain:.0%}", "same.shared": f"{same.shared:.0%}"}
    return found | _letters(seed)


def _saturation_tables(
    plain: Sequence[measured.Saturation], scaled: Sequence[measured.Saturation]
) -> Named:
    made = {}
    for lang, name in (("en", "sat.table"), ("zh", "sat.table.zh")):
        rows = []
        for divided, line in ((False, plain), (True, scaled)):
            for at in line:
                rows.append(
                    (
                        f"{at.d}",
                        facts.WORDS["yes" if divided else "no"][lang],
                        f"{at.variance:.2f}",
                        f"{at.sure:.0%}",
                        f"{at.entropy:.2f}",
                        f"{at.at_scores:.1e}",
                        f"{at.at_W_Q:.1e}",
                    )
                )
        made[name] = table(facts.SATURATION[lang], rows)
    return made


def _letters(seed: int) -> Named:
    """A22: a language model that reads ahead."""
    masked, unmasked = (measured.next_letter(m, seed) for m in (True, False))
    knowable = measured.knowable()
    _holds(abs(masked[0] - knowable) < 0.3 > abs(masked[1] - knowable), "the masked one learns")
    _holds(unmasked[0] < knowable / 2, "the unmasked one reads the answer")
    _holds(unmasked[1] > masked[1] + 0.5, "and fails when there is none")
    return {
        "lm.knowable": f"{knowable:.2f}",
        "lm.masked": f"{masked[0]:.2f}",
        "lm.masked.alone": f"{masked[1]:.2f}",
        "lm.unmasked": f"{unmasked[0]:.2f}",
        "lm.unmasked.alone": f"{unmasked[1]:.2f}",
    }


def states(book: Ledger, token: int = 0) -> Iterator[tuple[str, State, State, tuple[float, ...]]]:
    """Tile by tile of a row: its words, its state, the state kept, and the two factors."""
    kept: State | None = None
    for start, stop in tiles(book.n):
        one = of_tile(book["scaled"][token, start:stop], book["V"][start:stop])
        before, kept = kept, one if kept is None else merge(kept, one)
        factors: tuple[float, ...] = ()
        if before is not None:
            factors = math.exp(before.m - kept.m), math.exp(one.m - kept.m)
        yield " ".join(book.words[start:stop]), one, kept, factors


def _merged(book: Ledger) -> Named:
    """The online softmax of row 0, in three tiles."""
    found: Named = {}
    kept = None
    for at, (_, one, kept, factors) in enumerate(states(book)):
        for name, state in (("tile", one), ("kept", kept)):
            found |= {
                f"{name}.{at}.m": number(state.m),
                f"{name}.{at}.l": number(state.l),
                f"{name}.{at}.out": row(state.out),
                f"{name}.{at}.first": number(state.out[0].item()),
            }
        for side, factor in zip(("old", "new"), factors):
            found[f"factor.{at}.{side}"] = number(factor)
    assert kept is not None
    found["streamed"] = row(kept.out / kept.l)
    _holds(torch.allclose(kept.out / kept.l, book["output"][0], atol=1e-5), "tiles give the row")
    return found


def _shuffled(book: Ledger) -> Named:
    """B22 on the example's own numbers, and two heads against their average."""
    order = [2, 1, 0]
    mine, _ = eyeline.attention(book["Q"][order], book["K"][order], book["V"][order])
    _holds(torch.allclose(mine[1], book["output"][1], atol=1e-4), "shuffled in, shuffled out")
    masked, _ = eyeline.attention(
        book["Q"][order], book["K"][order], book["V"][order], eyeline.causal()
    )
    plain, _ = eyeline.attention(book["Q"], book["K"], book["V"], eyeline.causal())
    _holds((masked[1] - plain[1]).abs().max().item() > 0.01, "the causal mask feels the order")
    few, _ = eyeline.attention(book["Q"][:2], book["K"][:2], book["V"][:2])
    moved = (few - book["output"][:2]).abs().max().item()
    _holds(moved > 0.01, "without the mask earlier outputs move")
    return {
        "shuffled.1": row(mine[1]),
        "masked.out.1": row(plain[1]),
        "masked.shuffled.1": row(masked[1]),
        "moved": f"{moved:.2f}",
    }


def _holds(true: bool, claim: str) -> None:
    if not true:
        raise UntrueError(
            f"The chapter says that {claim}. With this seed it is not so: take another."
        )
