"""Rollout, head scores and comparisons against their dense definitions in float64."""

from __future__ import annotations

import math
import time

import pytest
import torch

import eyeline
from eyeline import heads
from eyeline.errors import ArgumentError, DenseError, ShapeError
from eyeline.heads import differences, patterns
from eyeline.seen import Call, Seen
from eyeline.tokens import assemble

MASKS = {
    "none": None,
    "causal": eyeline.causal(),
    "window": eyeline.causal() & eyeline.window(4),
}
T = 13
IDS = torch.tensor([1, 5, 6, 5, 5, 7, 8, 6, 5, 9, 7, 5, 6])


def run(mask=None, B=1, H=(4, 4, 4), size=T, dtype=torch.float64, real=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    calls = []
    for layer, heads_here in enumerate(H):
        q, k = (
            torch.randn(B, heads_here, size, 6, generator=generator).to(dtype) * 2 for _ in "qk"
        )
        calls.append(Call(f"layer.{layer}", q, k, mask=mask, real=real))
    return Seen(calls)


def dense(seen):
    return [weights.to_dense().double() for weights in seen]


# Rollout


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("residual", [0.5, 0.2])
def test_rollout_is_the_product_of_layers(mask, residual):
    seen = run(MASKS[mask], B=2)
    product = torch.eye(T, dtype=torch.float64).expand(2, T, T)
    for weights in dense(seen):
        layer = residual * torch.eye(T, dtype=torch.float64) + (1 - residual) * weights.mean(1)
        product = layer @ product
    found = heads.rollout(seen, residual=residual)
    same = torch.testing.assert_close
    same(found.to_dense(), product)
    for i in (0, 7, -1):
        same(found.row(i), product[:, i])
        same(found.column(i), product[..., i])
    x = torch.randn(2, T, 3, dtype=torch.float64)
    same(found @ x, product @ x)
    same(found @ x[0], product @ x[0])
    same(found @ x[0, :, 0], product @ x[0, :, 0])
    same(product.sum(-1), torch.ones(2, T, dtype=torch.float64))
    one = heads.rollout(run(MASKS[mask]))
    assert one.row(3).shape == (T,)
    assert one.to_dense().shape == one.shape == (T, T)
    assert (one @ x[0]).shape == (T, 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rollout_of_padding_is_that_of_the_text_alone(side):
    torch.manual_seed(1)
    pads = 4
    at = slice(pads, None) if side == "left" else slice(0, T)
    real = torch.zeros(1, T + pads, dtype=torch.bool)
    real[:, at] = True
    mask = eyeline.causal() & eyeline.masks.only(real)
    padded = run(mask, size=T + pads, real=real)
    calls = [
        Call(c.name, c.q[:, :, at], c.k[:, :, at], mask=eyeline.causal()) for c in padded.calls
    ]
    alone, found = heads.rollout(Seen(calls)).to_dense(), heads.rollout(padded).to_dense()
    torch.testing.assert_close(found[at, at], alone)
    assert found[~real[0]].eq(0).all()
    assert found[:, ~real[0]].eq(0).all()


def test_rollout_chooses_layers_and_refuses_what_does_not_fit():
    seen = run()
    product = heads.rollout(seen, layers=[2]).to_dense()
    expected = 0.5 * torch.eye(T, dtype=torch.float64) + 0.5 * dense(seen)[2][0].mean(0)
    torch.testing.assert_close(product, expected)
    x, y = torch.zeros(1, 2, T, 4), torch.zeros(1, 2, 5, 4)
    cross = Seen([Call("self", x, x), Call("cross", x, y, kind="cross")])
    with pytest.raises(ArgumentError, match="name them"):
        heads.rollout(cross)
    assert heads.rollout(cross, layers=["self"]).shape == (T, T)
    with pytest.raises(ShapeError, match="layers of one size"):
        heads.rollout(cross, layers=[1])
    with pytest.raises(ShapeError, match="layers of one size"):
        heads.rollout(Seen([Call("a", x, x), Call("b", y, y)]))
    with pytest.raises(IndexError, match="no token 13"):
        heads.rollout(seen).row(13)
    with pytest.raises(ArgumentError, match="is a share"):
        heads.rollout(seen, residual=2)
    with pytest.raises(ShapeError, match="one row per token"):
        heads.rollout(seen) @ torch.zeros(3)


def test_rollout_forms_nothing_of_the_square():
    size = 6000
    x = torch.randn(1, 1, size, 4)
    seen = Seen([Call(str(i), x, x, mask=eyeline.causal()) for i in range(2)])
    found = heads.rollout(seen)
    with pytest.raises(DenseError, match="137 MiB"):
        found.to_dense()
    assert float(found.row(size - 1).sum()) == pytest.approx(1, abs=1e-5)
    assert found.row(10)[11:].eq(0).all()


# Scores


def relations(ids, delimiters):
    """For each kind, which (row, key) pairs it is about: bool [T, T]; and which rows count."""
    size = len(ids)
    i, j = torch.arange(size)[:, None], torch.arange(size)[None]
    same = ids[:, None] == ids[None]
    behind = torch.zeros(size, size, dtype=torch.bool)
    behind[:, 1:] = same[:, :-1]
    every = torch.ones(size, dtype=torch.bool)
    duplicate, induction = same & (j < i), behind & (j < i) & (j >= 1)
    return {
        "previous": (j == i - 1, every & (i[:, 0] > 0)),
        "next": (j == i + 1, every & (i[:, 0] < size - 1)),
        "first": ((j == 0) & (i > 0), i[:, 0] > 0),
        "delimiter": (delimiters[None] & (j > 0) & (i >= 0), every),
        "duplicate": (duplicate, duplicate.any(1)),
        "induction": (induction, induction.any(1)),
        "local": (((i - j).abs() <= patterns.NEAR) & (i != j), every),
    }


DELIMITERS = torch.tensor([True] + [False] * 5 + [True] + [False] * 5 + [True])
TOKENS = assemble(
    "", IDS.tolist(), [str(i) for i in IDS.tolist()], [(0, 0)] * T, DELIMITERS.tolist()
)


@pytest.mark.parametrize("rows", [None, slice(4, 11)], ids=["all", "some"])
@pytest.mark.parametrize("mask", MASKS)
def test_scores_are_the_mean_weight_on_each_kinds_keys(mask, rows):
    seen = run(MASKS[mask])
    found = heads.scores(seen, TOKENS, rows)
    counted = torch.zeros(T, dtype=torch.bool)
    counted[rows or slice(None)] = True
    for kind, (pairs, which) in relations(IDS, DELIMITERS).items():
        which = which & counted
        expected = [(w[0] * pairs).sum(-1)[:, which].mean(-1) for w in dense(seen)]
        torch.testing.assert_close(found[kind], torch.stack(expected).float())
        assert found.rows[kind] == int(which.sum())
    visible = dense(seen)[0][0].gt(0).all(0)
    several = (visible.sum(-1) > 1) & counted
    spread = [torch.xlogy(w[0], w[0]).sum(-1) / -visible.sum(-1).log() for w in dense(seen)]
    expected = torch.stack([s[:, several].mean(-1) for s in spread])
    torch.testing.assert_close(found["broad"], expected.float())


@pytest.mark.parametrize("rows", [None, slice(4, 11)], ids=["all", "some"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_chance_is_the_mean_over_shuffles_of_the_tokens(mask, rows):
    seen = run(MASKS[mask], H=(4,))
    found = heads.scores(seen, TOKENS, rows)
    weights = dense(seen)[0][0]
    counted = torch.zeros(T, dtype=torch.bool)
    counted[rows or slice(None)] = True
    generator = torch.Generator().manual_seed(0)
    mass, count = dict.fromkeys(("duplicate", "induction", "delimiter"), 0.0), {}
    for _ in range(1500):
        order = torch.randperm(T, generator=generator)
        rest = 1 + torch.randperm(T - 1, generator=generator)  # the first token stays where it is
        shuffled = relations(IDS[order], DELIMITERS[torch.cat([torch.tensor([0]), rest])])
        for kind in mass:
            pairs, which = shuffled[kind]
            which = which & counted
            mass[kind] = mass[kind] + (weights * pairs).sum(-1)[:, which].sum(-1)
            count[kind] = count.get(kind, 0) + int(which.sum())
    for kind in mass:
        assert found.chance[kind][0].tolist() == pytest.approx(
            (mass[kind] / count[kind]).tolist(), rel=0.08
        )


@pytest.mark.parametrize("mask", MASKS)
def test_chance_by_place_is_any_other_token_that_may_be_seen(mask):
    seen = run(MASKS[mask], H=(4,))
    found = heads.scores(seen, TOKENS)
    weights = dense(seen)[0][0]
    visible = weights.gt(0).all(0) & ~torch.eye(T, dtype=torch.bool)
    for kind in ("previous", "next", "first", "local"):
        pairs, which = relations(IDS, DELIMITERS)[kind]
        means = []
        for i in which.nonzero().flatten().tolist():
            keys = visible[i].nonzero().flatten()
            targets = int((pairs & visible)[i].sum()) if kind == "local" else 1
            means.append(weights[:, i, keys].mean(-1) * targets if len(keys) else torch.zeros(4))
        expected = torch.stack(means).double().mean(0).float()
        torch.testing.assert_close(found.chance[kind][0], expected)
    drawn = torch.distributions.Dirichlet(torch.ones(7)).sample((20_000,))
    entropy = float((-torch.xlogy(drawn, drawn).sum(-1) / math.log(7)).mean())
    few = Seen([Call("a", torch.randn(1, 1, 7, 4), torch.randn(1, 1, 7, 4))])
    assert float(heads.scores(few, [1, 2, 3, 4, 5, 6, 7]).chance["broad"]) == pytest.approx(
        entropy, abs=0.005
    )


def test_a_head_that_looks_at_nothing_in_particular_scores_what_chance_gives():
    x = torch.zeros(1, 2, T, 4)
    found = heads.scores(Seen([Call("a", x, x)]), TOKENS)
    for kind in ("previous", "next", "first", "local"):
        torch.testing.assert_close(found[kind], found.chance[kind])
    assert found["broad"].tolist() == [[pytest.approx(1.0)] * 2]
    assert found.best("previous")[1] == pytest.approx(1 / T)


def test_scores_leave_padding_out_and_layers_that_have_other_tokens():
    pads = 3
    for side in ("left", "right"):
        at = slice(pads, None) if side == "left" else slice(0, T)
        real = torch.zeros(1, T + pads, dtype=torch.bool)
        real[:, at] = True
        mask = eyeline.causal() & eyeline.masks.only(real)
        padded = run(mask, size=T + pads, real=real)
        calls = [
            Call(c.name, c.q[:, :, at], c.k[:, :, at], mask=eyeline.causal()) for c in padded.calls
        ]
        one, two = heads.scores(padded, TOKENS), heads.scores(Seen(calls), TOKENS)
        for kind in patterns.KINDS:
            torch.testing.assert_close(one[kind], two[kind])
            torch.testing.assert_close(one.chance[kind], two.chance[kind])
    other = torch.randn(1, 2, 5, 6, dtype=torch.float64)
    mixed = run(H=(4, 2)).calls
    mixed = Seen([mixed[0], Call("cross", mixed[0].q, other, kind="cross"), mixed[1]])
    mixed.tokens = TOKENS
    found = heads.scores(mixed)
    assert found.layers == (0, 2)
    assert found["first"][1].isnan().tolist() == [False, False, True, True]
    assert found.best("first")[0] in {f"L{layer}H{h}" for layer in (0, 2) for h in range(4)}


def test_scores_say_what_they_cannot_do():
    seen = run()
    with pytest.raises(ArgumentError, match="needs the tokens"):
        heads.scores(seen)
    for no_tokens in ("abc", ["a", "b"]):
        with pytest.raises(ArgumentError, match="one text or their ids"):
            heads.scores(seen, no_tokens)
    with pytest.raises(ArgumentError, match="one text or their ids"):
        heads.scores(seen, torch.zeros(2, T).long())
    with pytest.raises(ShapeError, match="each of the 3 tokens"):
        heads.scores(seen, [1, 2, 3])
    with pytest.raises(ShapeError, match=r"is of one text.* on that text alone"):
        heads.scores(run(B=2), IDS)
    found = heads.scores(seen, IDS)
    with pytest.raises(ArgumentError, match="no score 'delimiter'"):
        found["delimiter"]
    assert "induction" in repr(found)


# Comparisons


@pytest.mark.parametrize("block", [1, differences._BLOCK], ids=["row by row", "at once"])
@pytest.mark.parametrize("mask", MASKS)
def test_compare_is_the_mean_over_rows(mask, block, monkeypatch):
    monkeypatch.setattr(differences, "_BLOCK", block)
    real = torch.ones(2, T, dtype=torch.bool)
    real[1, :4] = False
    a, b = (run(MASKS[mask], B=2, real=real, seed=seed) for seed in (1, 2))
    found = heads.compare(a, b)
    for layer, (p, q) in enumerate(zip(dense(a), dense(b), strict=True)):
        rows = (p - q).abs().sum(-1) / 2
        kl = torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum(-1)
        counted = real[:, None].expand_as(rows)
        for h in range(4):
            chosen = rows[:, h][counted[:, h]]
            assert float(found.total_variation[layer, h]) == pytest.approx(float(chosen.mean()))
            assert float(found.kl[layer, h]) == pytest.approx(float(kl[:, h][counted[:, h]].mean()))
            assert float(found.largest[layer, h]) == pytest.approx(float(chosen.max()))
            assert bool((rows[:, h, found.row[layer, h]] == chosen.max()).any())
    assert found.most()[1] == pytest.approx(float(found.total_variation.max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_run_against_itself_differs_by_nothing(dtype):
    seen = run(eyeline.causal(), dtype=dtype)
    found = heads.compare(seen, seen)
    assert found.total_variation.eq(0).all()
    assert found.kl.eq(0).all()
    assert found.largest.eq(0).all()


def test_kl_where_a_weight_has_become_nothing():
    x = torch.tensor([[[[20.0], [0.0]]]])
    steep = Seen([Call("a", x, x, scale=10.0)])  # the second weight of row 0 is exp(-4000)
    flat = Seen([Call("a", x, x, scale=0.0)])
    assert steep[0][0, 0, 0, 1] == 0
    found = heads.compare(flat, steep)
    assert float(found.kl) == pytest.approx((0.5 * (4000 - 2 * math.log(2)) + 0) / 2, rel=1e-4)
    assert heads.compare(steep, flat).kl.isfinite().all()


def test_runs_that_cannot_be_compared():
    one, two = run(), run(seed=1)
    one.tokens = TOKENS
    with pytest.raises(ArgumentError, match="of one run alone"):
        heads.compare(one, two)
    two.tokens = assemble("", [3] * T, ["3"] * T, [(0, 0)] * T)
    with pytest.raises(ArgumentError, match="these differ"):
        heads.compare(one, two)
    with pytest.raises(ShapeError, match="got 3 and 2"):
        heads.compare(run(), run(H=(4, 4)))
    with pytest.raises(ShapeError, match=r"layer 1 is \[1, 4, 13, 13\] in one run"):
        heads.compare(run(), run(H=(4, 2, 4)))
    mixed = heads.compare(run(H=(4, 2)), run(H=(4, 2), seed=1))
    assert mixed.kl[1].isnan().tolist() == [False, False, True, True]


# A real model


@pytest.mark.slow
def test_the_induction_head_of_a_real_model():
    from eyeline.models import load

    loaded = load("smollm2")
    torch.manual_seed(0)
    repeated = torch.randint(100, 40_000, (50,)).repeat(4)
    alone = torch.randint(100, 40_000, (200,))
    second_half = slice(100, 200)

    def look_at(ids):
        with torch.no_grad(), eyeline.watch(loaded.model) as seen:
            loaded.model(input_ids=ids[None])
        return heads.scores(seen, repeated, second_half)  # the same places in both

    here, there = look_at(repeated), look_at(alone)
    name, score, chance = here.best("induction")
    assert name == "L18H6"
    assert score >= 0.5
    assert chance <= 0.05
    assert float(there["induction"].max()) <= 0.05


@pytest.mark.slow
def test_one_row_of_a_long_rollout_takes_little_memory():
    from tests.memory_probe import resident, settle

    size = 100_000
    x = torch.randn(1, 1, size, 2)
    mask = eyeline.causal() & eyeline.window(500)  # so that it does not take an hour
    found = heads.rollout(Seen([Call(str(i), x, x, mask=mask) for i in range(2)]))
    settle()
    before, start = resident("VmRSS"), time.perf_counter()
    row, column = found.row(size // 2), found.column(size // 2)
    assert resident("VmHWM") - before < 300 * 2**20
    assert time.perf_counter() - start < 120
    assert float(row.sum()) == pytest.approx(1, abs=1e-4)
    assert column.shape == (size,)


def test_what_is_no_run_is_refused():
    run = Seen()
    for ask in (lambda: heads.compare(run, None), lambda: heads.compare("a", run)):
        with pytest.raises(ArgumentError, match=r"compare\(a, b\) takes a run"):
            ask()
    with pytest.raises(ArgumentError, match=r"takes a run.* and got list"):
        heads.rollout([])
    with pytest.raises(ArgumentError, match=r"takes a run.* and got NoneType"):
        heads.scores(None)
    for residual in ("a", True, None):
        with pytest.raises(ArgumentError, match="a number from 0 to 1"):
            heads.rollout(run, residual=residual)
