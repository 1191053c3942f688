"""Each rule, and any combination of them: what it shows, its text, copies and errors."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings

from eyeline.errors import ArgumentError, MaskError, ShapeError
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
from tests.mask_truth import agrees, bits, cases, lower, lowered, shown


@settings(max_examples=200)
@given(lowered())
def test_any_expression_is_what_it_says(case):
    visible, truth = case
    assert agrees(visible, truth)


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


FAR = 2**62


@pytest.mark.parametrize("offset", [None, -FAR, -3, 4, FAR - 2, FAR])
@pytest.mark.parametrize("before", [0, 2, FAR, FAR + 3, 2**63 - 1, 2**80])
@pytest.mark.parametrize("after", [0, 1, FAR, FAR + 3, 2**63 - 1, 2**80])
def test_far_offsets_and_counts_do_not_wrap_around(offset, before, after):
    Tq, Tk = 5, 6
    own = [i + (Tk - Tq if offset is None else offset) for i in range(Tq)]
    seen = [[p - before <= j <= p + after for j in range(Tk)] for p in own]
    assert shown(window(before, after, offset), Tq, Tk) == seen
    assert shown(causal(offset), Tq, Tk) == [[j <= p for j in range(Tk)] for p in own]


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


def test_labels_are_anything_that_str_takes():
    named = causal().draw(labels=["1", "None", "2.5"])
    assert causal().draw(labels=[1, None, 2.5]) == named
    assert causal().draw(labels=(label for label in (1, None, 2.5))) == named


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
        (lambda: causal(2**70), r"causal\(offset=\d+\).*between -2\*\*62 and 2\*\*62"),
        (lambda: window(1, offset=-(2**63)), r"window\(offset=-\d+\).*between"),
        (lambda: window(1.5), r"window\(before\) takes an int, not float"),
        (lambda: padding(-3), "cannot be -3; give 0 or more"),
        (lambda: padding(torch.tensor([2, -1])), "cannot be -1; give 0 or more"),
        (lambda: padding(2.0), "takes an int or an integer tensor, not float"),
        (lambda: padding([1, 2]), r"takes an int or an integer tensor, not list; torch\.tensor"),
        (lambda: prefix(True), "not bool"),
        (lambda: prefix(torch.tensor(-4)), r"prefix\(n\).*cannot be -4"),
        (lambda: causal().draw(-3), r"draw\(Tq=-3\)"),
        (lambda: causal().draw(3, 2.5), r"draw\(Tk=2\.5\)"),
        (lambda: causal().draw(labels=3), "one label per key, not int"),
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
        (lambda: torch.ones(2) & causal(), r"`mask & tensor`.*only\(tensor\)"),
        (lambda: torch.ones(2, 2).bool() | causal(), r"`mask \| tensor`.*from_tensor\(tensor\)"),
        (lambda: True & causal(), "`mask &` takes another mask, not bool"),
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
    with pytest.raises((ArgumentError, MaskError, ShapeError), match=text):
        make()
