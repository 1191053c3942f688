"""Lowered masks: their parts, the key ranges and counts they give, and the memory they take."""

from __future__ import annotations

import sys
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyeline.errors import MaskError
from eyeline.masks import (
    causal,
    documents,
    from_tensor,
    only,
    padding,
    prefix,
    window,
)
from tests.mask_truth import agrees, lower, lowered


@settings(max_examples=60)
@given(lowered(), st.data())
def test_parts_of_it_are_parts_of_the_truth(case, data):
    visible, truth = case
    N, H, Tq, Tk = truth.shape
    parts = []
    for size in (N, H, Tq, Tk):
        first = data.draw(st.integers(0, size))
        parts.append(slice(first, data.draw(st.integers(first, size))))
    n, h, rows, cols = parts
    tile = visible.tile(rows, cols)
    assert bool((truth[:, :, rows, cols] == (True if tile is None else tile)).all())
    assert agrees(visible.rows(rows), truth[:, :, rows])
    assert agrees(visible.select(n, h), truth[n, h])
    if Tq and Tk:
        index = torch.tensor(
            data.draw(st.lists(st.integers(0, Tq - 1), max_size=4)), dtype=torch.int64
        )
        keys = torch.tensor(
            data.draw(st.lists(st.integers(0, Tk - 1), max_size=4)), dtype=torch.int64
        )
        tile = visible.tile(index, keys)
        assert bool((truth[:, :, index][..., keys] == (True if tile is None else tile)).all())
        assert agrees(visible.rows(index), truth[:, :, index])
    if N and H:
        pairs = data.draw(
            st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, H - 1)), max_size=4)
        )
        at_n, at_h = (torch.tensor([p[d] for p in pairs], dtype=torch.int64) for d in (0, 1))
        assert agrees(visible.select(at_n, at_h), truth[at_n, at_h].unsqueeze(1))


@settings(max_examples=60)
@given(lowered(), st.data())
def test_batch_entries_and_heads_are_chosen_independently(case, data):
    visible, truth = case
    chosen, indices = [], []
    for size in truth.shape[:2]:
        if size and data.draw(st.booleans()):
            index = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), max_size=4))).long()
            chosen.append(index)
            indices.append(index)
        else:
            first = data.draw(st.integers(0, size))
            some = slice(first, data.draw(st.integers(first, size)))
            chosen.append(some)
            indices.append(torch.arange(size)[some])
    n, h = indices
    found = visible.choose(*chosen)
    assert agrees(found, truth[n][:, h])
    for before, after in zip(visible.parts().values(), found.parts().values(), strict=True):
        sizes = [1 if was == 1 else len(i) for was, i in zip(before.shape, (n, h), strict=False)]
        assert [*after.shape[:2]] == sizes


@settings(max_examples=60)
@given(lowered(), st.integers(1, 4), st.data())
def test_key_ranges_never_miss(case, block, data):
    visible, truth = case
    Tq, Tk = truth.shape[2:]
    first = data.draw(st.integers(0, Tq))
    rows = slice(first, data.draw(st.integers(first, Tq)))
    ranges = visible.key_ranges(rows, block)
    named = torch.zeros(Tk, dtype=torch.bool)
    end = -1
    for start, stop in ranges:
        assert end < start < stop <= Tk  # sorted, and merged where they touch
        assert start % block == 0
        assert stop % block == 0 or stop == Tk
        named[start:stop] = True
        end = stop
    seen = truth[:, :, rows].flatten(0, 2).any(0)
    assert not bool((seen & ~named).any())


@settings(max_examples=50)
@given(lowered())
def test_lists_are_tidy(case):
    visible, _ = case
    for part, size in ((visible.keep, 2), (visible.q_ids, 2), (visible.dense, 3)):
        assert part is None or part.shape[size] in (visible.Tk, visible.Tq)
    if visible.starts is None:
        return
    starts, stops = visible.starts, visible.stops
    assert starts.shape == stops.shape
    assert starts.dtype == stops.dtype == torch.int64
    empty = starts >= stops
    assert bool((starts[empty] == visible.Tk).all())
    assert bool((stops[empty] == visible.Tk).all())
    apart = (stops[..., :-1] < starts[..., 1:]) | empty[..., 1:]
    assert bool(apart.all())
    assert bool((starts[~empty] >= 0).all())


# ---- memory ------------------------------------------------------------------------------------

LONG = 100_000


@pytest.mark.parametrize(
    "mask",
    [
        causal() & window(4096) & padding(LONG - 7),
        causal() & padding(torch.tensor([LONG, 5]), side="left"),
        (causal() & window(100, 100)) | prefix(64),
        ~(causal() | prefix(64)),
        ~window(100) & causal(),
        documents(torch.arange(LONG) // 1000) & causal(),
        ~documents(torch.arange(LONG) // 1000),
        (documents(torch.arange(LONG) % 2) & causal())
        | (documents(torch.arange(LONG) % 2) & prefix(9)),
        ~(~only(torch.arange(LONG) % 3 == 0) | ~causal()),
        (causal() & only(torch.arange(LONG) % 3 == 0))
        | (prefix(9) & only(torch.arange(LONG) % 3 == 0)),
        only(torch.arange(LONG) % 3 == 0) | only(torch.arange(LONG) % 5 == 0) | prefix(77),
        causal() | only(torch.arange(LONG) // 30_000 == 1),
    ],
    ids=lambda mask: mask.formula,
)
def test_size_is_linear_in_the_length(mask):
    visible = lower(mask, (2, 8), LONG, LONG)
    assert visible.nbytes <= 8 * 16 * 2 * LONG
    rows = torch.tensor([0, 1, 5, 50_000, LONG - 1])
    tile = visible.tile(rows).expand(*visible.lead(), 5, LONG)
    for cols in (slice(0, 3), slice(49_000, 49_010), slice(LONG - 2, LONG)):
        part = visible.tile(slice(50_000, 50_001), cols)
        expected = tile[:, :, 3, cols]
        assert bool((expected == (True if part is None else part[:, :, 0])).all())


def test_random_half_of_the_keys_is_a_bool_per_key():
    keep = torch.rand(16_384) > 0.5
    visible = lower(only(keep) & causal(), (1, 4), 16_384, 16_384)
    assert visible.nbytes == 16_384 * (1 + 16)
    assert torch.equal(visible.tile(slice(16_383, 16_384))[0, 0, 0], keep)


def test_interleaved_documents_are_two_ids():
    ids = torch.arange(16_384) % 2
    visible = lower(documents(ids) & causal(), (1, 4), 16_384, 16_384)
    assert visible.nbytes == 16_384 * 32
    assert visible.tile(slice(4, 6), slice(0, 7))[0, 0].int().tolist() == [
        [1, 0, 1, 0, 1, 0, 0],
        [0, 1, 0, 1, 0, 1, 0],
    ]


def test_key_ranges_skip_what_is_hidden():
    T = 4096
    assert lower(causal(), (), T, T).key_ranges(slice(0, 128), 64) == [(0, 128)]
    assert lower(causal() & window(100), (), T, T).key_ranges(slice(1024, 1088), 64) == [
        (896, 1088)
    ]
    both_ends = lower(causal() & (window(100) | prefix(10)), (), T, T)
    assert both_ends.key_ranges(slice(1024, 1088), 64) == [(0, 64), (896, 1088)]
    middle = torch.arange(T) // 1024 == 1
    assert lower(only(middle), (), T, T).key_ranges(slice(0, T), 256) == [(1024, 2048)]
    packed = torch.cat([torch.zeros(1000), torch.ones(24), torch.zeros(3072)]).long()  # not one run
    assert lower(documents(packed), (), T, T).key_ranges(slice(1000, 1010), 256) == [(768, 1024)]
    dense = torch.zeros(T, 256, dtype=torch.bool)
    dense[:, 70], dense[0, 0] = True, True
    assert lower(from_tensor(dense), (), T, 256).key_ranges(slice(1, 9), 64) == [(64, 128)]
    assert lower(padding(0), (), 3, 8).key_ranges(slice(0, 3), 4) == []


def test_tiles_that_are_all_visible_are_none():
    visible = lower(causal() & window(500), (2, 4), 1000, 1000)
    assert visible.tile(slice(600, 700), slice(200, 600)) is None
    assert visible.tile(slice(600, 702), slice(200, 600)) is not None
    assert lower(only(torch.arange(8) < 4), (), 8, 8).tile(None, slice(0, 4)) is None


def test_expanded_tensors_are_stored_once():
    row = torch.rand(1, 1, 1, 64) > 0.5
    visible = lower(from_tensor(row.expand(2, 8, 64, 64)), (2, 8), 64, 64)
    assert {name: tuple(t.shape) for name, t in visible.parts().items()} == {"keep": (1, 1, 64)}
    queries = torch.rand(2, 1, 64, 1) > 0.5
    visible = lower(from_tensor(queries.expand(2, 8, 64, 64)), (2, 8), 64, 64)
    assert visible.starts.shape == (2, 1, 64, 1)
    tall = torch.rand(64, 64) > 0.5
    assert lower(from_tensor(tall.expand(2, 8, 64, 64)), (2, 8), 64, 64).dense.shape == (
        1,
        1,
        64,
        64,
    )


def test_bits_above_the_limit_are_refused_with_their_size(monkeypatch):
    mixed = causal() | only(torch.arange(1024) % 2 == 0)
    assert lower(mixed, (), 1024, 1024).dense.shape == (1, 1, 1024, 1024)
    monkeypatch.setattr(sys.modules["eyeline"], "dense_limit", 2**20 - 1, raising=False)
    with pytest.raises(MaskError, match=r"Tq = 1024, Tk = 1024\] it takes 1 MiB"):
        lower(mixed, (), 1024, 1024)
    held = from_tensor(torch.rand(1024, 1024) > 0.5)  # the caller already pays for that much
    assert lower(~held, (), 1024, 1024).dense is not None


def test_lowering_and_asking_are_quick():
    best = min(
        _seconds(lambda: lower(causal(), (1, 8), 16_384, 16_384), time.perf_counter)
        for _ in range(5)
    )
    assert best < 5e-3  # about 0.1 ms on an idle machine
    visible = lower(causal() & window(1000), (1, 8), 16_384, 16_384)
    visible.key_ranges(slice(0, 1), 64)
    asked = min(
        _seconds(lambda: visible.key_ranges(slice(8000, 8128), 64), time.perf_counter)
        for _ in range(20)
    )
    assert asked < 1e-3  # about 10 µs


def _seconds(call, clock):
    start = clock()
    call()
    return clock() - start
