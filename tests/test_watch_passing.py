"""Calls that wait to be told of while a forward runs: whatever comes between, nothing is lost."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from eyeline.acting import block
from eyeline.errors import StaleError
from eyeline.masks import causal
from eyeline.seen import watch
from tests.tiny import inputs, run, tiny


def attentions(model):
    """The attention modules of a tiny BERT, in the order they run in."""
    return [layer.attention.self for layer in model.encoder.layer]


def seen_of(model, arguments):
    with watch(model) as seen:
        run(model, **arguments)
    return seen


def test_asked_between_two_layers():
    model, arguments = tiny("bert"), inputs()
    expected = seen_of(model, arguments)
    found = []
    with watch(model) as seen:
        first, last = attentions(model)
        first.register_forward_hook(lambda *given: found.append((len(seen), seen[0].to_dense())))
        last.register_forward_hook(lambda *given: found.append((len(seen), seen[1].to_dense())))
        run(model, **arguments)
        run(model, **arguments)
    assert [count for count, _ in found] == [1, 2, 1, 2]
    for index, (_, dense) in enumerate(found):
        assert torch.equal(dense, expected[index % 2].to_dense())
    assert seen.names == expected.names


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "after"])
def test_what_ran_before_an_exception_is_there(kind, inside):
    model, arguments = tiny("bert"), inputs()
    expected = seen_of(model, arguments)

    def stop(*given):
        raise kind

    hook = attentions(model)[1].register_forward_hook(stop)
    with watch(model) as seen:
        with pytest.raises(kind):
            run(model, **arguments)
        if inside:
            assert len(seen) == 2
            hook.remove()
            run(model, **arguments)
    assert seen.names == expected.names
    assert torch.equal(seen[1].to_dense(), expected[1].to_dense())


def test_an_exception_out_of_the_block_loses_nothing():
    model = tiny("bert")

    def stop(*given):
        raise KeyboardInterrupt

    attentions(model)[1].register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt), watch(model) as seen:
        run(model, **inputs())
    assert len(seen) == 2


@pytest.mark.parametrize("asked", [False, True], ids=["unasked", "asked"])
def test_a_block_that_begins_between_two_layers_is_seen(asked):
    model, arguments = tiny("bert"), inputs()
    expected = seen_of(model, arguments)
    with ExitStack() as stack, watch(model) as seen:

        def begin(*given):
            stack.enter_context(block(model, mask=causal()))
            assert not asked or len(seen) == 1

        hook = attentions(model)[1].register_forward_pre_hook(begin)
        run(model, **arguments)
        hook.remove()
    assert torch.equal(seen[0].to_dense(), expected[0].to_dense())
    assert float(seen[1].to_dense().triu(1).abs().max()) == 0
    assert float(expected[1].to_dense().triu(1).abs().max()) > 0


def test_nothing_of_the_model_is_held_after_a_block():
    model = tiny("bert")
    seen = seen_of(model, inputs())
    gone = [weakref.ref(module) for module in model.modules()]
    del model
    gc.collect()
    assert not any(module() for module in gone)
    assert len(seen) == 2


@pytest.mark.parametrize("which", [0, 1])
def test_views_of_larger_tensors_are_copied_wherever_they_come(which):
    model, arguments = tiny("bert"), inputs()
    expected = seen_of(model, arguments)
    made, left = [], []

    def widen(module, given, out):
        wide = torch.cat([out] * 3, -1)
        made.append(StorageWeakRef(wide.untyped_storage()))
        return wide[..., : out.shape[-1]]

    def count(*given):
        left.append(sum(not one.expired() for one in made))

    attentions(model)[which].query.register_forward_hook(widen)
    attentions(model)[which].key.register_forward_hook(widen)
    attentions(model)[1].register_forward_pre_hook(count)
    with watch(model) as seen:
        run(model, **arguments)
        count()
        assert left == [0, 0]  # those of the first go at once
    for call in seen.calls:
        for tensor in (call.q, call.k):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
    for one, other in zip(seen, expected, strict=True):
        assert torch.equal(one.to_dense(), other.to_dense())


def test_a_view_that_is_changed_before_its_forward_ends_is_told():
    model, made = tiny("bert"), []
    last = attentions(model)[1]

    def widen(module, given, out):
        made.append(torch.cat([out] * 3, -1))
        return made[-1][..., : out.shape[-1]]

    def change(module, given, out):
        made[-1].mul_(2)

    last.query.register_forward_hook(widen)
    last.register_forward_hook(change)
    seen = seen_of(model, inputs())
    assert seen[0].to_dense().isfinite().all()
    with pytest.raises(StaleError, match=r"layer\.1\.attention\.self were changed"):
        seen[1]


def test_under_autocast_a_tensor_that_was_written_before_is_as_good_as_any():
    model, arguments = tiny("bert"), inputs()
    for module in attentions(model):
        module.query.register_forward_hook(lambda *given: given[2].float().clone().mul_(1))
    with torch.autocast("cpu", torch.bfloat16):
        seen = seen_of(model, arguments)
    assert seen.calls[0].q.dtype == torch.bfloat16
    assert all(weights.to_dense().isfinite().all() for weights in seen)


def test_calls_that_wait_and_calls_that_do_not_keep_their_order():
    model, arguments = tiny("albert"), inputs()
    expected = seen_of(model, arguments)
    assert expected.names[1].endswith("#2")
    for handed in ([0], [1]):
        turn = []

        def write(module, given, out, handed=handed, turn=turn):
            turn.append(len(turn))
            return out.mul_(1) if turn[-1] in handed else out  # keys that are written are not left

        keys = next(m for n, m in model.named_modules() if n.endswith("attention.key"))
        hook = keys.register_forward_hook(write)
        seen = seen_of(model, arguments)
        hook.remove()
        assert len(turn) == len(expected)
        assert seen.names == expected.names
        for one, other in zip(seen, expected, strict=True):
            assert torch.equal(one.to_dense(), other.to_dense())
