"""Masks against their definition, written out per (query, key); their size, text and errors."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eyeline.errors import MaskError, ShapeError
from eyeline.masks import (
    Mask,
    causal,
    documents,
    from_tensor,
    intervals,
    only,
    padding,
    prefix,
    window,
)
from eyeline.visibility import Visible, algebra

CPU = torch.device("cpu")
LEADS = [(), (3,), (2, 3), (1, 2), (2, 1), (0,), (2, 0), (2, 1, 2), (2, 2, 2)]


def lower(mask: Mask, lead: tuple[int, ...], Tq: int, Tk: int) -> Visible:
    return mask.lower(lead, Tq, Tk, CPU)


def canonical(lead: tuple[int, ...]) -> tuple[int, int]:
    """N and H of weights [*lead, Tq, Tk]."""
    if len(lead) < 2:
        return (*lead, 1, 1)[:2] if lead else (1, 1)
    N = 1
    for size in lead[:-1]:
        N *= size
    return N, lead[-1]


def bits(visible: Visible, lead: tuple[int, ...] = ()) -> Tensor:
    """What a lowered mask shows, in full: [N, H, Tq, Tk]."""
    shape = (*canonical(lead), visible.Tq, visible.Tk)
    tile = visible.tile()
    return torch.ones(shape, dtype=torch.bool) if tile is None else tile.expand(shape)


def shown(mask: Mask, Tq: int, Tk: int) -> list[list[int]]:
    return bits(lower(mask, (), Tq, Tk))[0, 0].int().tolist()


# ---- masks beside their definition -------------------------------------------------------------

Case = tuple[Mask, Tensor]


def whole_numbers(draw: st.DrawFn, shape: tuple[int, ...], low: int, high: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    values = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    return torch.tensor(values, dtype=draw(st.sampled_from([torch.int64, torch.int32]))).view(shape)


def left_shape(draw: st.DrawFn, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Some of the leading sizes, from the left, some of them 1."""
    return tuple(n if draw(st.booleans()) else 1 for n in lead[: draw(st.integers(0, len(lead)))])


def spread(tensor: Tensor, own: int, lead: tuple[int, ...], after: int) -> Tensor:
    """[*own, *rest] → [*lead as ones where missing, *ones, *rest]."""
    rest = tensor.shape[own:]
    return tensor.reshape(*tensor.shape[:own], *(1,) * (len(lead) - own + after), *rest)


@st.composite
def rules(draw: st.DrawFn, lead: tuple[int, ...], Tq: int, Tk: int) -> Case:
    i, j = torch.arange(Tq)[:, None], torch.arange(Tk)[None, :]
    offset = draw(st.none() | st.integers(-4, 8))
    at = i + (Tk - Tq if offset is None else offset)
    kind = draw(
        st.sampled_from(
            ["causal", "window", "padding", "documents", "prefix", "only", "ends", "bits"]
        )
    )
    if kind == "causal":
        return causal(offset), j <= at
    if kind == "window":
        before, after = draw(st.integers(0, 4)), draw(st.integers(0, 3))
        return window(before, after, offset), (j >= at - before) & (j <= at + after)
    if kind in ("padding", "prefix"):
        shape = left_shape(draw, lead)
        number = whole_numbers(draw, shape, 0, Tk + 2)
        n = number.view(*shape, *(1,) * (len(lead) - len(shape)), 1, 1).long()
        given_as = int(number) if shape == () and draw(st.booleans()) else number
        if kind == "prefix":
            return prefix(given_as), (j < n)
        if draw(st.booleans()):
            return padding(given_as), (j < n)
        return padding(given_as, "left"), (j >= Tk - n)
    if kind == "documents":
        shape = left_shape(draw, lead)
        ids = whole_numbers(draw, (*shape, Tk), -1, 2)
        ids = ids.sort(-1).values if draw(st.booleans()) else ids
        if Tq > Tk or draw(st.booleans()):
            query_shape = left_shape(draw, lead)
            queries = whole_numbers(draw, (*query_shape, Tq), -1, 3)
            mask = documents(ids, queries)
        else:
            query_shape, queries = shape, ids[..., Tk - Tq :]
            mask = documents(ids)
        left = spread(queries, len(query_shape), lead, 0).unsqueeze(-1)
        return mask, left == spread(ids, len(shape), lead, 1)
    if kind == "only":
        shape = left_shape(draw, lead)
        keep = whole_numbers(draw, (*shape, Tk), 0, 1)
        keep = keep.bool() if draw(st.booleans()) else keep.float()
        return only(keep), spread(keep, len(shape), lead, 1).bool()
    if kind == "ends":
        shape, n = left_shape(draw, lead), draw(st.integers(0, 3))
        starts = whole_numbers(draw, (*shape, Tq, n), -2, Tk + 1)
        stops = whole_numbers(draw, (*shape, Tq, n), -2, Tk + 3)
        hit = (starts[..., None] <= j) & (j < stops[..., None])
        return intervals(starts, stops), spread(hit.any(-2), len(shape), lead, 0)
    shape = tuple(n if draw(st.booleans()) else 1 for n in (*lead, Tq, Tk))
    shape = shape[draw(st.integers(0, len(shape))) :]
    tensor = whole_numbers(draw, shape, 0, 1)
    if draw(st.booleans()):  # expanded by the caller
        tensor = tensor.bool().expand((*lead, Tq, Tk))
    return from_tensor(tensor), tensor.bool()


@st.composite
def expressions(draw: st.DrawFn, lead: tuple[int, ...], Tq: int, Tk: int, depth: int) -> Case:
    sign = draw(st.sampled_from(["rule", "&", "|", "~"])) if depth else "rule"
    if sign == "rule":
        mask, truth = draw(rules(lead, Tq, Tk))
        return mask, truth.expand(*lead, Tq, Tk)
    mask, truth = draw(expressions(lead, Tq, Tk, depth - 1))
    if sign == "~":
        return ~mask, ~truth
    other, other_truth = draw(expressions(lead, Tq, Tk, depth - 1))
    return (
        (mask & other, truth & other_truth) if sign == "&" else (mask | other, truth | other_truth)
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Mask, Tensor, tuple[int, ...], int, int]:
    lead = draw(st.sampled_from(LEADS))
    Tq, Tk = draw(st.integers(0, 8)), draw(st.integers(0, 9))
    mask, truth = draw(expressions(lead, Tq, Tk, depth=3))
    return mask, truth.reshape(*canonical(lead), Tq, Tk), lead, Tq, Tk


@st.composite
def lowered(draw: st.DrawFn) -> tuple[Visible, Tensor]:
    """A lowered mask and its truth, with short lists, middling ones and none at all."""
    mask, truth, lead, Tq, Tk = draw(cases())
    before, algebra.ENTRIES_PER_TOKEN = algebra.ENTRIES_PER_TOKEN, draw(st.sampled_from([8, 1, 0]))
    try:
        return lower(mask, lead, Tq, Tk), truth
    finally:
        algebra.ENTRIES_PER_TOKEN = before


def agrees(visible: Visible, truth: Tensor) -> bool:
    assert (visible.Tq, visible.Tk) == tuple(truth.shape[2:])
    tile = visible.tile()
    return bool((truth == (True if tile is None else tile)).all())


@settings(max_examples=200)
@given(lowered())
def test_any_expression_is_what_it_says(case):
    visible, truth = case
    assert agrees(visible, truth)


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


@settings(max_examples=60)
@given(lowered())
def test_visible_queries_are_column_sums(case):
    visible, truth = case
    counts = visible.visible_queries()
    assert counts.dtype == torch.int64
    assert bool((truth.sum(2) == counts).all())


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


@settings(max_examples=50)
@given(cases())
def test_text_and_copies_are_the_same_mask(case):
    mask, truth, lead, Tq, Tk = case
    text, tensors = mask.spec()
    for twin in (
        Mask.from_spec(text, tensors),
        pickle.loads(pickle.dumps(mask)),
        copy.deepcopy(mask),
        copy.copy(mask),
    ):
        assert twin == mask
        assert hash(twin) == hash(mask)
        assert agrees(lower(twin, lead, Tq, Tk), truth)


# ---- the rules one by one ----------------------------------------------------------------------


def test_causal_lines_up_the_last_query_with_the_last_key():
    assert shown(causal(), 2, 5) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert shown(causal(offset=0), 2, 5) == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]


def test_causal_with_more_queries_than_keys_hides_all_from_the_first():
    assert shown(causal(), 5, 2) == [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]


def test_causal_decoding_sees_all():
    assert lower(causal(), (2, 4), 1, 7).tile() is None


def test_window_counts_the_keys_beside_the_position():
    def seen(mask):
        return [sum(row) for row in shown(causal() & mask, 5, 5)]

    assert seen(window(1, 0)) == [1, 2, 2, 2, 2]
    assert seen(window(2, 0)) == [1, 2, 3, 3, 3]
    assert shown(window(4, 0), 5, 5) == shown(causal(), 5, 5)
    assert shown(window(2**63 - 1, 2**63 - 1), 2, 2) == [[1, 1], [1, 1]]


def test_tril_of_ones_is_causal():
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        assert shown(from_tensor(torch.ones(4, 4, dtype=dtype).tril()), 4, 4) == shown(
            causal(), 4, 4
        )


def test_rank_3_tensor_means_batch():
    tensor = torch.rand(2, 3, 4) > 0.5
    visible = lower(from_tensor(tensor), (2,), 3, 4)
    assert visible.dense.shape == (2, 1, 3, 4)
    assert torch.equal(visible.dense[:, 0], tensor)
    heads = lower(from_tensor(tensor), (5, 2), 3, 4)  # from the right: the same for all 5
    assert heads.dense.shape == (1, 2, 3, 4)


def test_padding_sides():
    lengths = torch.tensor([2, 0, 9])
    right, left = (
        bits(lower(padding(lengths, side), (3, 2), 1, 4), (3, 2)) for side in ("right", "left")
    )
    assert right[:, 0, 0].int().tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert left[:, 1, 0].int().tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]


def test_documents_take_the_last_queries():
    ids = torch.tensor([0, 0, 1, 1])
    assert shown(documents(ids), 2, 4) == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert shown(documents(ids, torch.tensor([1, 0])), 2, 4) == [[0, 0, 1, 1], [1, 1, 0, 0]]


def test_two_documents_masks_merge_into_one_pair_of_ids():
    first, second = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([7, 7, -3, 7, -3])
    visible = lower(documents(first) & documents(second), (), 5, 5)
    assert {*visible.parts()} == {"q_ids", "k_ids"}
    truth = (first[:, None] == first) & (second[:, None] == second)
    assert agrees(visible, truth[None, None])


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
    counts = visible.visible_queries()
    rows = torch.tensor([0, 1, 5, 50_000, LONG - 1])
    tile = visible.tile(rows).expand(*visible.lead(), 5, LONG)
    for cols in (slice(0, 3), slice(49_000, 49_010), slice(LONG - 2, LONG)):
        part = visible.tile(slice(50_000, 50_001), cols)
        expected = tile[:, :, 3, cols]
        assert bool((expected == (True if part is None else part[:, :, 0])).all())
    assert bool((counts >= tile.sum(2)).all())


def test_random_half_of_the_keys_is_a_bool_per_key():
    keep = torch.rand(16_384) > 0.5
    visible = lower(only(keep) & causal(), (1, 4), 16_384, 16_384)
    assert visible.nbytes == 16_384 * (1 + 16)
    assert torch.equal(visible.tile(slice(16_383, 16_384))[0, 0, 0], keep)
    after = torch.arange(16_384, 0, -1)
    assert torch.equal(visible.visible_queries()[0, 0], after * keep)


def test_interleaved_documents_are_two_ids():
    ids = torch.arange(16_384) % 2
    visible = lower(documents(ids) & causal(), (1, 4), 16_384, 16_384)
    assert visible.nbytes == 16_384 * 32
    assert visible.tile(slice(4, 6), slice(0, 7))[0, 0].int().tolist() == [
        [1, 0, 1, 0, 1, 0, 0],
        [0, 1, 0, 1, 0, 1, 0],
    ]
    assert visible.visible_queries()[0, 0, :4].tolist() == [8192, 8192, 8191, 8191]


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
    import time

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


# ---- text --------------------------------------------------------------------------------------


def test_drawing():
    assert causal().draw(4) == "1 0 0 0\n1 1 0 0\n1 1 1 0\n1 1 1 1"
    assert causal().draw(2, 5) == "1 1 1 1 0\n1 1 1 1 1"
    labelled = causal().draw(labels=["the", "猫", "sat"]).splitlines()
    assert labelled == ["    the 猫 sat", "the   1  0   0", " 猫   1  1   0", "sat   1  1   1"]
    assert causal().draw(1, labels=["a", "b"]).splitlines() == ["  a b", "b 1 1"]
    with pytest.raises(ShapeError, match="3 labels for Tk = 4"):
        causal().draw(4, 4, labels=["a", "b", "c"])


@pytest.mark.parametrize(("Tq", "Tk"), [(0, 0), (0, 3), (3, 0), (1, 1), (16, 17)])
def test_any_size_can_be_drawn(Tq, Tk):
    lines = causal().draw(Tq, Tk).splitlines()
    assert len([line for line in lines if line]) == (Tq if Tk else 0)
    assert isinstance(causal().draw(Tq, Tk, labels=["x"] * Tk), str)


def test_drawing_is_shortened_where_large():
    lines = causal().draw(1000).splitlines()
    assert len(lines) == 17
    assert all(len(line) == 33 for line in lines)
    assert lines[8] == " ".join("…" * 17)
    assert lines[7] == "1 1 1 1 1 1 1 1 … 0 0 0 0 0 0 0 0"
    assert lines[-1] == "1 1 1 1 1 1 1 1 … 1 1 1 1 1 1 1 1"
    labels = causal().draw(labels=["extraordinarily"] * 30)
    assert max(map(len, labels.splitlines())) < 88


def test_printing_a_mask_draws_it():
    lines = repr(causal() & ~window(1)).splitlines()
    assert lines[0] == "causal() & ~window(1), drawn for 5 queries and 5 keys:"
    assert lines[1:] == ["0 0 0 0 0", "0 0 0 0 0", "1 0 0 0 0", "1 1 0 0 0", "1 1 1 0 0"]
    assert repr(from_tensor(torch.eye(2))).splitlines() == [
        "from_tensor(bool [2, 2]):",
        "1 0",
        "0 1",
    ]
    batched = repr(padding(torch.tensor([2, 3])) & causal())
    assert "first of [2]" in batched.splitlines()[0]
    assert batched.splitlines()[1:] == ["1 0 0 0 0"] + ["1 1 0 0 0"] * 4
    assert repr(from_tensor(torch.eye(2)) & only(torch.ones(3))) == (
        "from_tensor(bool [2, 2]) & only(bool [3])"
    )


@pytest.mark.parametrize(
    ("mask", "formula"),
    [
        (causal() & window(2) & prefix(1), "causal() & window(2) & prefix(1)"),
        ((causal() | prefix(1)) & window(2, 1), "(causal() | prefix(1)) & window(2, 1)"),
        (~(causal(0) | prefix(1)), "~(causal(0) | prefix(1))"),
        (~~causal(-3), "~~causal(-3)"),
        (window(2, offset=5), "window(2, 0, 5)"),
        (padding(3), "padding(3)"),
        (padding(3, "left"), "padding(3, 'left')"),
        (documents(torch.arange(3)), "documents(int64 [3])"),
    ],
)
def test_formula(mask, formula):
    assert mask.formula == formula


# ---- torch.compile -----------------------------------------------------------------------------


def test_spec_is_traceable():
    outside = ~window(1)

    def asked(x, lengths, shown):
        mask = (causal() & padding(lengths)) | (outside & window(x.shape[0], 1)) & prefix(2)
        mask = (
            mask
            & from_tensor(shown)
            & documents(lengths)
            & only(shown)
            & intervals(lengths, lengths)
        )
        text, tensors = mask.spec()
        return x + len(text), tensors, text

    traced = torch.compile(asked, fullgraph=True, backend="eager")
    for n in (2, 3, 4, 12):
        arguments = torch.zeros(n), torch.arange(n), torch.arange(n) > 1
        got, expected = traced(*arguments), asked(*arguments)
        assert got[2] == expected[2]
        assert torch.equal(got[0], expected[0])
        assert all(map(torch.equal, got[1], expected[1]))
        assert Mask.from_spec(got[2], got[1]) == Mask.from_spec(expected[2], expected[1])


def test_only_bool_is_taken_under_compile():
    with pytest.raises(Exception, match="must be bool"):
        torch.compile(lambda t: from_tensor(t).spec()[1][0], fullgraph=True, backend="eager")(
            torch.ones(2, 2)
        )


# ---- errors ------------------------------------------------------------------------------------


def test_wrong_size_shows_both_shapes():
    with pytest.raises(ShapeError) as caught:
        lower(from_tensor(torch.ones(4, 4)), (), 3, 3)
    assert "mask [4, 4]" in str(caught.value)
    assert "Tq = 3, Tk = 3" in str(caught.value)


def test_other_values_than_0_and_1_are_a_bias():
    with pytest.raises(MaskError, match=r"holds 0\.5.*`bias=`"):
        from_tensor(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(MaskError, match="holds nan"):
        from_tensor(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(MaskError, match=r"holds -inf.*`bias=`.*`tensor == 0`"):
        from_tensor(torch.zeros(2, 2).masked_fill(torch.eye(2).bool(), -torch.inf))
    with pytest.raises(MaskError, match="holds 2"):
        only(torch.tensor([0, 2]))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: window(-1), r"window\(before=-1\).*negative"),
        (lambda: window(1, -2), r"window\(after=-2\)"),
        (lambda: causal(0.5), r"causal\(offset\) takes an int, not float"),
        (lambda: causal(True), "not bool"),
        (lambda: padding(-3), "cannot be -3"),
        (lambda: padding(torch.tensor([1.0])), "integers, not torch.float32"),
        (lambda: padding(torch.ones(2, 5).bool()), r"only\(keep\)"),
        (lambda: padding(3, side="up"), '"right" or "left"'),
        (lambda: documents([0, 1]), "integer tensor, not list"),
        (lambda: documents(torch.tensor(1)), "at least 1 dimension"),
        (lambda: only([True]), "bool tensor"),
        (lambda: from_tensor("causal"), "not str"),
        (lambda: from_tensor(torch.ones(2) * 1j), "not torch.complex64"),
        (
            lambda: intervals(torch.ones(3).long(), torch.ones(4).long()),
            r"starts \[3\], stops \[4\]",
        ),
        (lambda: causal() & torch.ones(2), r"only\(tensor\).*from_tensor\(tensor\)"),
        (lambda: causal() | None, "not NoneType"),
        (lambda: causal() and prefix(2), "combine masks with &"),
        (lambda: lower(documents(torch.arange(2)), (), 3, 2), "Tq = 3, Tk = 2.*query_ids"),
        (lambda: lower(documents(torch.arange(2)), (), 3, 4), r"Tk = 4"),
        (lambda: lower(documents(torch.arange(4), torch.arange(2)), (), 3, 4), r"need Tq = 3"),
        (lambda: lower(only(torch.ones(3)), (), 4, 4), r"only\(keep\) \[3\].*Tk = 4"),
        (
            lambda: lower(padding(torch.tensor([1, 2])), (3, 1), 4, 4),
            r"\[2\] does not fit.*\[3, 1, 4, 4\]",
        ),
        (lambda: lower(padding(torch.tensor([1, 2])), (), 4, 4), r"\[2\] does not fit"),
        (lambda: lower(intervals(*torch.ones(2, 3).long()), (), 4, 4), r"need Tq = 4"),
        (lambda: lower(from_tensor(torch.ones(1, 1, 4, 4)), (1,), 4, 4), r"mask \[1, 1, 4, 4\]"),
    ],
)
def test_errors_say_what_was_asked_found_and_needed(make, text):
    with pytest.raises((MaskError, ShapeError), match=text):
        make()
