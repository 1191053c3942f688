"""The native kernels beyond what every backend owes: tables, threads, forks, signals, builds."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

import eyeline
from eyeline import masks
from eyeline.backends import native
from eyeline.backends.cpu import Cpu
from eyeline.problem import make
from tests.conformance import inputs

ROOT = Path(__file__).resolve().parent.parent
TABLES = [Cpu(table=table) for table in native.tables()]
POISON = [float("nan"), float("inf"), float("-inf")]

every_table = pytest.mark.parametrize("cpu", TABLES, ids=lambda cpu: str(cpu.table))


def run(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def test_where_it_must_be_it_is():
    """With EYELINE_NATIVE=require (make, continuous integration) importing has already failed."""
    if not TABLES:
        assert "native module" in native.missing
    else:
        assert native.tables()[-1] == "scalar"
        assert native.chosen() in native.tables()


def test_info_says_what_runs_and_what_is_lost():
    told = {}
    for native_is in ("on", "off"):
        done = run("from eyeline.cli import main; main()", "info", EYELINE_NATIVE=native_is)
        told[native_is] = dict(line.split(None, 1) for line in done.stdout.splitlines())
    if TABLES:
        assert told["on"]["native"].startswith(f"{native.chosen()} (this processor runs ")
        assert told["on"]["processor"].startswith(f"caches of {native.caches()[0] >> 10} KiB, ")
    assert "switched off by EYELINE_NATIVE=off" in told["off"]["native"]
    assert "the same answers, slower" in told["off"]["native"]
    assert "processor" not in told["off"]


def test_without_the_module_everything_still_runs():
    code = (
        "import torch, eyeline; from eyeline.backends import native; q = torch.eye(3);"
        "print(eyeline.attention(q, q, q)[0].shape, native.missing);"
        "eyeline.attention(q, q, q, backend='cpu')"
    )
    done = run(code, EYELINE_NATIVE="off")
    assert "[3, 3]" in done.stdout
    assert "switched off" in done.stdout
    assert "BackendError: The backend 'cpu' cannot run this: the native module" in done.stderr


def test_a_table_can_be_named():
    code = "import torch, eyeline; from eyeline.backends import native; print(native.chosen())"
    if TABLES:
        assert run(code, EYELINE_NATIVE_TABLE="scalar").stdout.strip() == "scalar"
        done = run(code, EYELINE_NATIVE_TABLE="abacus")
        assert "EYELINE_NATIVE_TABLE=abacus names no table that runs here" in done.stderr


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux says it there")
def test_the_table_that_multiplies_bfloat16_is_here_iff_the_processor_does():
    if TABLES:
        told = Path("/proc/cpuinfo").read_text().split()
        assert ("avx512_bf16" in native.tables()) == ("avx512_bf16" in told)


@every_table
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("D", [1, 2, 31, 33, 64, 80, 127])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_scores_of_short_numbers_are_sums_of_floats(cpu, dtype, D, size):
    """Neither a product nor the scale is rounded on the way; lse shows it, for it is a float."""
    q, k, v = ((torch.randn(2, 50, D) * factor).to(dtype) for factor in (size, size, 1.0))
    exact = (q.double() @ k.double().mT * 0.3).logsumexp(-1)
    plain = (q.float() @ k.float().mT * 0.3).logsumexp(-1)
    allowed = 4 * (plain - exact).abs().max() + 1e-6 * exact.abs().max()
    apart = [x.repeat_interleave(2, -1)[..., ::2] for x in (q, k)]
    for queries, keys in ((q, k), apart):
        lse = eyeline.attention(queries, keys, v, scale=0.3, backend=cpu)[1].lse
        assert lse.dtype == torch.float32
        assert (lse - exact).abs().max() <= allowed


@every_table
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("Tq", [3, 40])
def test_an_output_is_rounded_alike_in_vectors_and_number_by_number(cpu, dtype, Tq):
    """Entries side by side are written in vectors, those that lie apart one by one."""
    q, k, v = (torch.randn(1, 2, n, 40) for n in (Tq, 30, 30))
    v[..., 7], v[..., 0, 9], v[..., 3, 20] = v[..., 7] * 1e-7, POISON[0], POISON[1]
    q, k, v = (x.to(dtype) for x in (q, k, v))
    together = eyeline.attention(q, k, v, backend=cpu)[0]
    apart = eyeline.attention(q.mT.contiguous().mT, k, v, backend=cpu)[0]
    assert together.stride(-1) == 1 != apart.stride(-1)
    assert torch.equal(together.view(torch.uint8), apart.contiguous().view(torch.uint8))


def test_a_double_is_refused_when_the_backend_is_named():
    q = torch.eye(2, dtype=torch.float64)
    with pytest.raises(eyeline.errors.BackendError, match="and q is float64"):
        eyeline.attention(q, q, q, backend="cpu")


@every_table
@pytest.mark.parametrize("value", POISON)
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("rule", ["causal", "table", "only", "bias"])
@pytest.mark.parametrize("Tq", [5, 40, 300])
def test_hidden_never_moves_a_bit(cpu, value, where, rule, Tq):
    """In float32: rows that may not see a bad key are the same to the last bit."""
    Tk, bad = 300, 40
    q, k, v = inputs(Tq, Tk, D=70, Dv=75)
    visible = {
        "causal": torch.ones(Tq, Tk).tril(bad - 2).bool(),
        "table": torch.rand(Tq, Tk) < 0.5,
        "only": (torch.arange(Tk) != bad).expand(Tq, Tk),
        "bias": torch.rand(Tq, Tk) < 0.5,
    }[rule]
    rules = {"causal": eyeline.causal(bad - 2), "only": masks.only(torch.arange(Tk) != bad)}
    options = {"mask": rules.get(rule, visible)}
    if rule == "bias":
        options = {"bias": torch.where(visible, 0.25, -torch.inf)}
    worse = {"k": k, "v": v}
    worse[where] = worse[where].clone()
    worse[where][..., bad, :] = value
    out, w = eyeline.attention(q, k, v, **options, backend=cpu)
    other, of = eyeline.attention(q, worse["k"], worse["v"], **options, backend=cpu)
    clean = ~visible[:, bad]
    assert torch.equal(out[..., clean, :], other[..., clean, :])
    assert torch.equal(w.lse[..., clean], of.lse[..., clean])
    if where == "v":
        assert not other[..., ~clean, :].isfinite().any()


INTERVALS = {
    "causal": eyeline.causal(),
    "window": eyeline.window(37) & eyeline.causal(),
    "prefix": eyeline.window(37) & eyeline.causal() | masks.prefix(50),
    "documents": masks.documents(torch.arange(1200) // 90),
}


@every_table
@pytest.mark.parametrize("rule", INTERVALS)
def test_intervals_hide_what_a_table_hides(cpu, rule):
    """To the last bit, over several blocks of keys, of which most rows reach only some."""
    q, k, v = inputs(1200, D=24)
    table = INTERVALS[rule].lower((1, 1), 1200, 1200, q.device).tile()
    of_intervals, w = eyeline.attention(q, k, v, INTERVALS[rule], backend=cpu)
    of_table, other = eyeline.attention(q, k, v, table, backend=cpu)
    assert torch.equal(of_intervals, of_table)
    assert torch.equal(w.lse, other.lse)
    assert torch.equal(eyeline.entropy(w).values, eyeline.entropy(other).values)


@every_table
def test_a_bias_whose_keys_lie_apart(cpu):
    q, k, v = inputs(130, 700, D=24)
    bias = torch.randn(700, 130).masked_fill_(torch.rand(700, 130) < 0.2, -torch.inf).mT
    apart, _ = eyeline.attention(q, k, v, bias=bias, backend=cpu)
    beside, _ = eyeline.attention(q, k, v, bias=bias.contiguous(), backend=cpu)
    assert torch.equal(apart, beside)


@every_table
def test_one_value_that_is_not_finite(cpu):
    """Its own column hears of it, and no other."""
    q, k, v = inputs(70, D=8, Dv=40)
    v[..., 5, 33] = torch.inf
    v[..., 6, 2] = -torch.inf
    out, _ = eyeline.attention(q, k, v, backend=cpu)
    assert (out[..., 33] == torch.inf).all()
    assert (out[..., 2] == -torch.inf).all()
    others = torch.tensor([c for c in range(40) if c not in (2, 33)])
    assert out[..., others].isfinite().all()


@every_table
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropout_draws_what_the_definition_draws(cpu, p):
    q, k, _ = inputs(150, 301, Hq=4, Hk=2)
    eye = torch.eye(301).expand(2, 2, -1, -1)
    torch.manual_seed(4)
    mine = eyeline.attention(q, k, eye, eyeline.causal(), dropout=p, backend=cpu)[0]
    torch.manual_seed(4)
    exact = eyeline.attention(q, k, eye, eyeline.causal(), dropout=p, backend="reference")[0]
    assert torch.equal(mine != 0, exact != 0)
    torch.testing.assert_close(mine, exact)


@every_table
def test_threads_move_no_bit(cpu):
    q, k, v = inputs(700, 900, Hq=4, Hk=2, D=40)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            found.append(eyeline.attention(q, k, v, eyeline.causal(), backend=cpu)[0])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])


@every_table
@pytest.mark.parametrize("Tq", [1, 4, 20, 45])
def test_threads_move_no_bit_where_keys_are_shared_out(cpu, Tq):
    """Few rows over many keys: how many parts share them depends on the sizes alone.

    Of 90 rows the threads share the rows.
    """
    q, k, v = inputs(Tq, 9000, Hq=2, Hk=1, lead=(1,), D=24)
    sinks = torch.tensor([2.0, -1.0])
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(eyeline.attention(q, k, v, eyeline.causal(), sinks=sinks, backend=cpu))
    finally:
        torch.set_num_threads(threads)
    (out, w), others = found[0], found[1:]
    assert all(torch.equal(out, other) and torch.equal(w.lse, of.lse) for other, of in others)
    exact, x = eyeline.attention(q, k, v, eyeline.causal(), sinks=sinks, backend="reference")
    torch.testing.assert_close(out, exact)
    torch.testing.assert_close(w.lse, x.lse)


@every_table
@pytest.mark.parametrize("value", POISON)
@pytest.mark.parametrize("where", ["k", "v"])
def test_hidden_never_moves_a_bit_where_keys_are_shared_out(cpu, value, where):
    """Also where a whole part of the keys is hidden from a row, or from all."""
    q, k, v = inputs(3, 9000, Hq=2, Hk=1, lead=(1,), D=24)
    visible = torch.zeros(3, 9000, dtype=torch.bool)
    visible[0, :100], visible[1, 8000:8500] = True, True
    visible[1, 8200] = False
    worse = {"k": k.clone(), "v": v.clone()}
    worse[where][..., [150, 5000, 8200, 8999], :] = value
    out, w = eyeline.attention(q, k, v, visible, backend=cpu)
    other, of = eyeline.attention(q, worse["k"], worse["v"], visible, backend=cpu)
    assert torch.equal(out, other)
    assert torch.equal(w.lse, of.lse)
    assert (out[..., 2, :] == 0).all()
    assert (w.lse[..., 2] == -torch.inf).all()
    worse[where][..., 8001, :] = value
    other, _ = eyeline.attention(q, worse["k"], worse["v"], visible, backend=cpu)
    assert torch.equal(out[..., 0, :], other[..., 0, :])
    assert not other[..., 1, :].equal(out[..., 1, :])


@every_table
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("apart", [75, 512])
@pytest.mark.parametrize("Tq", [3, 20])
def test_keys_of_few_rows_are_read_where_they_lie(cpu, dtype, apart, Tq):
    """Wherever that is: of 512 floats apart a cache has room for few."""
    q, k, v = (t.to(dtype) for t in inputs(Tq, 331, D=33, Dv=40))
    far_k, far_v = (torch.full((*t.shape[:3], apart), torch.nan, dtype=dtype) for t in (k, v))
    far_k[..., :33], far_v[..., :40] = k, v
    out, w = eyeline.attention(q, k, v, backend=cpu)
    other, of = eyeline.attention(q, far_k[..., :33], far_v[..., :40], backend=cpu)
    assert torch.equal(out, other)
    assert torch.equal(w.lse, of.lse)


@every_table
def test_the_order_of_keys_does_not_matter(cpu):
    q, k, v = inputs(50, 700, D=16)
    order = torch.randperm(700)
    out, _ = eyeline.attention(q, k, v, backend=cpu)
    other, _ = eyeline.attention(q, k[..., order, :], v[..., order, :], backend=cpu)
    torch.testing.assert_close(other, out)


@every_table
def test_many_python_threads(cpu):
    """One team at a time; who finds it taken works alone, and all are right."""
    q, k, v = inputs(300, 400, D=32)
    exact = eyeline.attention(q, k, v, eyeline.causal(), backend="reference")[0]
    wrong: list[int] = []

    def work(number: int) -> None:
        torch.set_num_threads(2)
        for _ in range(10):
            out, _ = eyeline.attention(q, k, v, eyeline.causal(), backend=cpu)
            if not torch.allclose(out, exact, atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _in_child(q, k, v, queue):
    queue.put(eyeline.attention(q, k, v, eyeline.causal())[0].tolist())


def test_a_forked_child_works_alone():
    """The parent's threads are gone there. (torch's own operators hang over large tensors.)"""
    q, k, v = inputs(128, lead=(1,), D=8)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = eyeline.attention(q, k, v, eyeline.causal())[0].tolist()
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=_in_child, args=(q, k, v, queue), daemon=True)
        child.start()
        child.join(timeout=30)
        assert child.exitcode == 0
        assert queue.get() == expected
    finally:
        torch.set_num_threads(threads)


CONTROL_C = """
import os, signal, threading, time
import torch, eyeline

torch.set_num_threads(2)
q = torch.randn(1, 16, 32768, 64)
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    eyeline.attention(q, q, q, backend="cpu")
except KeyboardInterrupt:
    print(time.monotonic() - began)
"""


def test_control_c_answers_between_tiles():
    """A call that takes half a minute is interrupted after one second."""
    if TABLES:
        assert 0.9 < float(run(CONTROL_C).stdout) < 3


def _wheel(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A wheel of a copy of the sources, without what an editable install left beside them."""
    copy = tmp_path / "source"
    for name in ("eyeline", "native"):
        shutil.copytree(
            ROOT / name,
            copy / name,
            ignore=shutil.ignore_patterns("*.so", "CMakeCache.txt", "CMakeFiles", "__pycache__"),
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), str(copy)]
    env = {n: v for n, v in os.environ.items() if n != "EYELINE_NATIVE"} | environment
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.mark.slow
def test_a_wheel_without_a_compiler(tmp_path):
    done = _wheel(tmp_path, CC="/bin/false", CXX="/bin/false")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    assert "eyeline/backends/cpu.py" in held
    assert "eyeline/views/page.css" in held
    assert not [name for name in held if name.endswith(".so")]


@pytest.mark.slow
def test_a_wheel_that_needs_a_compiler(tmp_path):
    required = {"CC": "/bin/false", "CXX": "/bin/false", "EYELINE_NATIVE": "require"}
    assert _wheel(tmp_path, **required).returncode != 0


def test_a_tensor_without_memory_is_told_so():
    """Its address leads nowhere: reading it would end the process."""
    q = torch.randn(1, 2, 4, 8)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(q)
        with pytest.raises(eyeline.errors.BackendError, match="a FakeTensor has none of its own"):
            eyeline.attention(fake, fake, fake, backend="cpu")
    with pytest.raises(eyeline.errors.BackendError, match="FakeTensor has none of its own"):
        Cpu().forward(make("attention", q, q, None, None, None, None, None, None)[0], fake, None)


def test_readings_under_vmap_go_to_tiled():
    q = torch.randn(3, 2, 4, 8)
    found = torch.func.vmap(lambda x: eyeline.entropy(eyeline.weights(x, x)).values)(q)
    torch.testing.assert_close(found, eyeline.entropy(eyeline.weights(q, q)).values)
