"""The chapter's figures, drawn by eyeline from the numbers of a seed."""

from __future__ import annotations

from typing import TypeVar

import torch

from docs.chapter import facts
from docs.chapter.numbers import ledger, states
from eyeline.lesson import Settings, lesson, measured
from eyeline.lesson.data import Fan, Flow
from eyeline.lesson.screens import lookup
from eyeline.lesson.stage import causal_mask
from eyeline.lesson.tiles import State
from eyeline.lesson.writing import matrix
from eyeline.views import lesson_figure as draw
from eyeline.views.figure import figure
from eyeline.views.lesson_terminal import number

B = TypeVar("B", Fan, Flow)


def figures(lang: str, seed: int) -> dict[str, str]:
    """Every figure of one language, by name."""
    told = lesson(Settings(seed=seed), lang=lang)
    screens = {screen.name: screen.blocks for screen in told.screens}

    def first(name: str, kind: type[B]) -> B:
        return next(block for block in screens[name] if isinstance(block, kind))

    return {
        "lookup": _lookup(lang),
        "projection": draw.flow(first("vectors", Flow)),
        "steps": _steps(lang, seed),
        "saturation": _saturation(lang, seed),
        "fan": draw.fan(first("sum", Fan)),
        "masks": _masks(lang, seed),
        "block": draw.flow(first("beyond", Flow)),
        "tiles": _tiles(lang, seed),
        "they": figure(facts.seen(facts.TEXT, lang)),
        "flow": draw.flow(first("flow", Flow)),
    }


def _lookup(lang: str) -> str:
    K = torch.tensor(list(lookup.ENTRIES.values()))
    query = torch.tensor(lookup.QUERY)
    weights = (K @ query).softmax(-1).tolist()
    points = [
        draw.Point(name, x, y, weight)
        for name, (x, y), weight in zip(facts.ENTRIES[lang], lookup.ENTRIES.values(), weights)
    ]
    asked = facts.ASKED[lang]
    return draw.plane([*points, draw.Point(asked, *lookup.QUERY)], asked)


def _steps(lang: str, seed: int) -> str:
    book = ledger(seed)
    names = {
        "en": ("scores", "scaled", "weights"),
        "zh": ("打分 scores", "缩放 scaled", "权重 weights"),
    }[lang]
    shades = ("signed", "signed", "weight")
    parts = [
        matrix(title, book[name], book.words, book.words, shade)
        for title, name, shade in zip(names, ("scores", "scaled", "weights"), shades)
    ]
    return draw.grids(parts, ("÷ √d", "softmax"))


def _masks(lang: str, seed: int) -> str:
    book = ledger(seed)
    allowed = causal_mask(book.n)
    hidden = book["scaled"].masked_fill(allowed == 0, float("-inf"))
    names = {
        "en": ("no mask (BERT)", "causal mask", "masked (GPT)"),
        "zh": ("无掩码（BERT）", "因果掩码", "有掩码（GPT）"),
    }[lang]
    values = (book["weights"], allowed, hidden.softmax(-1))
    parts = [
        matrix(name, value, book.words, book.words, shade)
        for name, value, shade in zip(names, values, ("weight", "mask", "weight"))
    ]
    return draw.grids(parts)


def _saturation(lang: str, seed: int) -> str:
    titles = {
        "en": ("rows with a weight over {0:g}, in %", "gradient at a row of scores, median"),
        "zh": ("有权重超过 {0:g} 的行（%）", "打分处的梯度（各行中位数）"),
    }[lang]
    names = {"en": ("not scaled", "divided by √d"), "zh": ("不缩放", "除以 √d")}[lang]
    lines = [[measured.saturation(d, s, seed) for d in measured.SIZES] for s in (False, True)]
    places = tuple(f"d = {d}" if i == 0 else f"{d}" for i, d in enumerate(measured.SIZES))
    sure = [draw.Curve(n, tuple(100 * at.sure for at in line)) for n, line in zip(names, lines)]
    slope = [draw.Curve(n, tuple(at.at_scores for at in line)) for n, line in zip(names, lines)]
    lowest = min(value for curve in slope for value in curve.values)
    floor = 10.0 ** int(torch.tensor(lowest).log10().floor())
    return draw.curves(
        [
            draw.Panel(titles[0].format(measured.SURE), places, tuple(sure), 0, 100),
            draw.Panel(titles[1], places, tuple(slope), floor, 1, log=True),
        ]
    )


def _tiles(lang: str, seed: int) -> str:
    tile, kept = {"en": ("tile", "kept"), "zh": ("块", "留下")}[lang]
    upper, lower = [], []
    for words, one, both, factors in states(ledger(seed)):
        upper.append(draw.Station(f"{tile} {words}", _state(one)))
        by = " · ".join(f"× {number(factor)}" for factor in factors)
        lower.append(draw.Station(f"{kept} {by}".rstrip(), _state(both)))
    return draw.chain(upper, lower, "online softmax")


def _state(state: State) -> tuple[str, ...]:
    m, total, out = state.m, state.l, state.out
    numbers = " ".join(f"{x:.4f}" for x in out.tolist())
    return (f"m = {number(m)}", f"l = {number(total)}", f"Σ·V = {numbers}")
