"""Recordings: what is written comes back, lazily; what is damaged is refused."""

from __future__ import annotations

import json
import os
import random
import stat
import struct
import zlib
from functools import partial

import pytest
import safetensors.torch
import torch

import eyeline
from eyeline import biases, masks, readings
from eyeline.errors import ArgumentError, EyelineError, RecordingError
from eyeline.recording import Recording, container, save
from eyeline.seen import Call, Missing, Seen
from eyeline.tokens import assemble

T = 9
TOKENS = assemble(
    "two keys 好",
    ids=(0, 1, 2, 9),
    raw=("two", "Ġke", "ys", "å"),
    offsets=((0, 3), (4, 6), (6, 8), (9, 10)),
)
torch.manual_seed(3)
SHARED = torch.randn(1, 1, T, T)
LAYERS = {
    "plain": {},
    "causal": {"mask": eyeline.causal(), "scale": 0.3},
    "padded": {
        "mask": eyeline.causal() & masks.only(torch.arange(T) > torch.tensor([[1], [-1]])),
        "real": torch.arange(T) > torch.tensor([[1], [-1]]),
    },
    "rules": {"mask": ~eyeline.window(1) | masks.prefix(2) | masks.documents(torch.arange(T) // 3)},
    "lengths": {"mask": eyeline.padding(torch.tensor([4, 9]))},
    "tensor": {"mask": (torch.rand(1, 1, T, T) > 0.3).expand(2, 4, T, T)},
    "bias": {"bias": torch.randn(4, 1, T).expand(4, T, T), "softcap": 2.0},
    "additive": {"additive": SHARED.masked_fill(SHARED < -0.5, -torch.inf)},
    "alibi": {"bias": biases.alibi(torch.rand(4)), "mask": eyeline.causal()},
    "relative": {"bias": biases.relative(torch.randn(4, 7), origin=2)},
    "sinks": {"sinks": torch.randn(4), "kernel": "eyeline"},
    "cross": {"kind": "cross"},
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def seen_in(dtype=torch.float32, layers=LAYERS, values=True):
    torch.manual_seed(2)
    calls = []
    for name, more in layers.items():
        keys = 5 if name == "cross" else T
        q, k = torch.randn(2, 4, T, 8, dtype=dtype), torch.randn(2, 2, keys, 8, dtype=dtype)
        v = torch.randn(2, keys, 2, 6, dtype=dtype).transpose(1, 2) if values else None
        calls.append(Call(name, q, k, v, **more))
    missing = [Missing("other", "by hand"), Missing("dense", "by hand", torch.rand(2, 4, T, T))]
    seen = Seen(calls, missing, tokens=TOKENS, generated=torch.arange(T) > 5)
    seen.model = "a model"
    seen.about = {"speech": {"seconds": 2.5, "loud": [3, 9]}, "mine": "好"}
    return seen


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.safetensors"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_was_written_comes_back(path, dtype):
    seen = seen_in(dtype)
    seen.save(path)
    read = eyeline.load(path)
    assert isinstance(read, Seen)
    assert (read.names, read.kinds, len(read)) == (seen.names, seen.kinds, len(seen))
    assert (read.tokens, read.model, read.kernel) == (TOKENS, "a model", "own")
    assert read.about == seen.about
    assert read.versions["torch"] == torch.__version__
    assert read.generated.equal(seen.generated)
    assert [(m.name, m.reason) for m in read.missing] == [
        ("other", "by hand"),
        ("dense", "by hand"),
    ]
    assert read.missing[1].dense.equal(seen.missing[1].dense)
    for one, two in zip(read.calls, seen.calls, strict=True):
        assert one.q.dtype == dtype
        assert one.q.equal(two.q)
        assert one.k.equal(two.k)
        assert one.v.equal(two.v)
        assert (one.scale, one.softcap, one.kernel) == (two.scale, two.softcap, two.kernel)
    for name in seen.names:
        there, here = read[name], seen[name]
        torch.testing.assert_close(there.to_dense(), here.to_dense(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(there.lse, here.lse, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(there[..., 2], here[..., 2], rtol=1e-6, atol=1e-6)
        if name != "tensor":  # written without what it was expanded to
            assert there.problem.rule == here.problem.rule
    assert read.real("padded").equal(seen.real("padded"))
    assert read.real("plain") is None
    assert read.values("plain").equal(seen.values("plain"))


def test_it_answers_what_a_run_answers(path):
    seen = seen_in()
    seen.save(path)
    read = eyeline.load(path)
    asked = (eyeline.entropy, eyeline.received, partial(eyeline.top, k=3), readings.distance)
    for one, two in zip(
        eyeline.read(read["causal"], *asked), eyeline.read(seen[1], *asked), strict=True
    ):
        torch.testing.assert_close(one.values, two.values)
    torch.testing.assert_close(read["L1H2"].to_dense(), seen["L1H2"].to_dense())
    words = [(0, 2), (2, T)]
    torch.testing.assert_close(
        read.words(words)["causal"].to_dense(), seen.words(words)["causal"].to_dense()
    )
    expected = readings.pooled(seen[1], 32, 32).values
    torch.testing.assert_close(read.thumbnail("causal"), expected)
    assert repr(read).splitlines()[1:] == repr(seen).splitlines()[1:]
    with pytest.raises(EyelineError, match="is none of the layers"):
        read["nowhere"]
    path2 = path.with_name("again.safetensors")
    read.save(path2)
    assert eyeline.load(path2)[1].to_dense().equal(read[1].to_dense())


def test_it_is_a_safetensors_file_of_its_owner(path):
    old = os.umask(0)
    try:
        seen_in().save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half-written left
    tensors = safetensors.torch.load_file(path)
    assert tensors["0.q"].equal(seen_in().calls[0].q)
    assert tensors["1.lse"].shape == (2, 4, T)
    assert tensors["1.map"].shape == (2, 4, T, T)


def test_what_layers_share_is_written_once(path):
    mask = torch.rand(T, T) > 0.5
    mask[:, 0] = True
    q = torch.randn(1, 2, T, 8)
    Seen([Call("a", q, q, mask=mask), Call("b", q, q, mask=masks.from_tensor(mask))]).save(path)
    tensors = safetensors.torch.load_file(path)
    big = [name for name in tensors if name.split(".")[-1] not in ("lse", "m", "l", "map")]
    assert len([n for n in big if "mask" in n]) <= 2
    assert [n for n in big if "mask" not in n] == ["0.q"]
    read = eyeline.load(path)
    assert read["b"].to_dense().equal(read["a"].to_dense())


def small(path):
    layers = {name: LAYERS[name] for name in ("causal", "padded")}
    seen = seen_in(layers=layers)
    seen.save(path)
    return path.read_bytes()


def everything(path):
    read = eyeline.load(path)
    told = [read.names, read.kinds, read.tokens, read.model, read.versions, read.kernel]
    told += [read.generated.tolist(), [(m.name, m.reason) for m in read.missing]]
    numbers = [read.missing[1].dense.clone()]
    for i in range(len(read)):
        call = read.calls[i]
        numbers += [call.q, call.k, call.v, read[i].lse, read[i][..., 1], read[i][0, 1].to_dense()]
        numbers += [read.thumbnail(i)] + ([] if call.real is None else [call.real])
    return told, [n.clone() for n in numbers]


def same(one, two):
    return one[0] == two[0] and all(a.equal(b) for a, b in zip(one[1], two[1], strict=True))


def test_a_thousand_damages_are_seen(path):
    whole = small(path)
    wanted, chance = everything(path), random.Random(0)
    refused = 0
    header = 8 + int.from_bytes(whole[:8], "little")
    for attempt in range(1000):
        data = bytearray(whole)
        if attempt % 4 == 0:
            del data[chance.randrange(len(data)) :]
        else:  # half of the flips in the header, which is the smaller part
            for _ in range(chance.choice((1, 1, 1, 2, 5))):
                where = chance.randrange(header if attempt % 2 else len(data))
                data[where] ^= 1 << chance.randrange(8)
        path.unlink()  # a mapped file is never written to
        path.write_bytes(data)
        try:
            found = everything(path)
        except RecordingError as error:
            refused += str(path) in str(error)
        else:
            assert same(found, wanted)
    assert refused > 990


def rewritten(data, change):
    """The file with another description, its checksums put right: damage on purpose."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    told = json.loads(header["__metadata__"]["eyeline"])
    change(told)
    entries = {
        name: container.Entry(container.DTYPES[d], tuple(shape), start, stop, check)
        for name, (d, shape, start, stop, check) in told["tensors"].items()
    }
    new = container._header(told["description"], entries)
    return struct.pack("<Q", len(new)) + new + data[8 + length :]


def of_call(**changes):
    return lambda told: told["description"]["calls"][0].update(changes)


FORGED = {
    "another format": lambda told: told["description"].update(format=2),
    "no calls": lambda told: told["description"].pop("calls"),
    "calls of another kind": lambda told: told["description"].update(calls={"a": 1}),
    "a name that is a number": of_call(name=3),
    "a scale that is a text": of_call(scale="1"),
    "no such tensor": of_call(q="9.q"),
    "a tensor of another type": of_call(q="1.real"),
    "keys for queries": of_call(q="1.real", k="1.real"),
    "no queries": of_call(q=None),
    "maps for rows": of_call(lse="0.map"),
    "another kind": of_call(kind="none"),
    "no such rule": of_call(mask={"rule": "(rm -rf)", "tensors": []}),
    "a rule cut off": of_call(mask={"rule": "(and (causal -)", "tensors": []}),
    "a rule without end": of_call(mask={"rule": "(not " * 9000, "tensors": []}),
    "no rule": of_call(mask={"rule": "", "tensors": []}),
    "a negative window": of_call(mask={"rule": "(window -3 0 -)", "tensors": []}),
    "a tensor it does not have": of_call(mask={"rule": "(only #0)", "tensors": []}),
    "a word for a number": of_call(mask={"rule": "(causal os)", "tensors": []}),
    "a bias of no kind": of_call(bias={"other": 1}),
    "a bias of the wrong origin": of_call(bias={"relative": "0.q", "origin": 0}),
    "tokens of different lengths": lambda told: told["description"]["tokens"]["ids"].pop(),
    "tokens outside of the text": lambda told: told["description"]["tokens"].update(
        offsets=[[0, 99]] * 4
    ),
    "a scale that is no number": of_call(scale=float("nan")),
    "a softcap that cannot be": of_call(softcap=0.0),
    "a bias that does not fit": of_call(bias={"tensor": "0.q"}),
    "sinks that do not fit": of_call(sinks="0.q"),
    "a mask of numbers": of_call(mask={"tensor": "0.q"}),
    "a shape that does not fit": lambda told: told["tensors"]["0.q"][1].append(2),
    "a shape beyond all bounds": lambda told: told["tensors"]["0.q"].__setitem__(1, [2**63, 0]),
    "tensors that overlap": lambda told: told["tensors"]["0.k"].__setitem__(slice(2, 4), [0, 2304]),
    "other checksums": lambda told: told["tensors"]["0.k"].__setitem__(4, "00000000"),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_what_cannot_be_is_refused(path, change):
    data = small(path)
    path.write_bytes(rewritten(data, lambda told: None))
    everything(path)
    path.unlink()
    path.write_bytes(rewritten(data, change))
    with pytest.raises(RecordingError):
        everything(path)


@pytest.mark.parametrize(
    "data", [b"", b"abc", b"\xff" * 100, struct.pack("<Q", 2) + b"{}", b"0" * 9]
)
def test_what_is_no_recording_is_refused(path, data):
    path.write_bytes(data)
    with pytest.raises(RecordingError, match="damaged or no recording"):
        eyeline.load(path)


def test_another_safetensors_file_is_refused(path):
    safetensors.torch.save_file({"a": torch.ones(3)}, path)
    with pytest.raises(RecordingError, match="no recording of eyeline"):
        eyeline.load(path)


def test_paths_that_cannot_be(path, tmp_path):
    with pytest.raises(RecordingError, match="cannot be read: No such file"):
        eyeline.load(path)
    with pytest.raises(RecordingError, match="cannot be read"):
        eyeline.load(tmp_path)
    with pytest.raises(RecordingError, match="is no file"):
        seen_in().save(tmp_path)
    with pytest.raises(RecordingError, match="cannot be written: No such file"):
        seen_in().save(tmp_path / "none" / "x")
    with pytest.raises(ArgumentError, match="call the model first"):
        save(Seen(), path)
    with pytest.raises(RecordingError, match="cannot be written: File name too long"):
        seen_in().save(tmp_path / ("x" * 300))
    seen_in().save(path)
    with pytest.raises(ArgumentError, match="read, not recorded"):
        eyeline.load(path)._start()


@pytest.mark.parametrize(("B", "D"), [(1, 0), (0, 4)])
def test_sizes_that_cost_the_file_nothing_are_refused(path, B, D):
    small(path)
    plan, file = container.Plan(), container.Container(path)
    shapes = {"0.q": (B, 4, 9, D), "0.k": (B, 2, 2**40, D), "0.map": (B, 4, 1, 1)}
    for name in file.entries:
        shape = shapes.get(name, (B, 4, 9) if name in ("0.lse", "0.m", "0.l") else None)
        made = torch.zeros(shape) if shape else file.tensor(name).clone()
        plan.add(name, made.dtype, tuple(made.shape), lambda made=made: made)
    container.write(path, file.description, plan)
    with pytest.raises(RecordingError, match="do not fit together"):
        eyeline.load(path)


def test_tokens_are_those_that_a_model_reads(path):
    seen = seen_in()
    seen.tokens = ["two", "keys"]
    with pytest.raises(ArgumentError, match=r"seen.tokens is a list"):
        seen.save(path)


@pytest.mark.parametrize("about", [{"a": torch.ones(1)}, {"a": float("nan")}, [1], None])
def test_facts_that_are_no_json_are_refused(path, about):
    seen = seen_in()
    seen.about = about
    with pytest.raises(ArgumentError, match=r"seen\.about"):
        seen.save(path)
    assert not path.exists()


def test_a_failed_write_leaves_what_was_there(path, monkeypatch):
    before = small(path)
    monkeypatch.setattr(zlib, "crc32", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        seen_in().save(path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_no_code_is_run_and_nothing_unpickled(path, monkeypatch):
    small(path)
    import pickle

    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "Unpickler", None)
    assert isinstance(eyeline.load(path), Recording)


def test_opening_costs_no_memory(path):
    from tests.memory_probe import resident

    size = 100 * 2**20
    q = torch.randn(1, 1, 1, size // 16).expand(1, 1, 4, size // 16).contiguous()
    Seen([Call("wide", q, q[..., :1, :].clone())]).save(path)
    del q
    before = resident("RssFile:") + resident("RssAnon:")
    read = eyeline.load(path)
    assert read.names == ("wide",)
    assert resident("RssFile:") + resident("RssAnon:") - before < 20 * 2**20
    assert read[0].shape == (1, 1, 4, 1)
