"""What docs/watch.md says a look costs is what benchmarks/tools.py measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tools() -> Any:
    spec = importlib.util.spec_from_file_location("tools", ROOT / "benchmarks" / "tools.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_was_measured(tools):
    page = tools.PAGE.read_text("utf-8")
    results = tools.stored()
    assert page == tools.fill(page, results)
    assert tools.table(results) in page
    assert results["rows"]
    for row in results["rows"]:
        assert {"forward", "watched", "eager"} <= set(row["tools"])


def test_looking_takes_less_memory_than_dense_attention(tools):
    rows = [row["tools"] for row in tools.stored()["rows"] if row["tokens"] >= 2048]
    assert rows
    for row in rows:
        assert "stopped" not in row["watched"]
        if "seconds" in row["eager"]:
            assert row["watched"]["peak_mib"] < row["eager"]["peak_mib"] / 4


def test_what_is_larger_than_the_machine_is_counted_and_not_tried(tools, monkeypatch):
    dense = 6 * 12 * 32**2 * 4
    assert tools.attention_bytes("minilm", 32) == dense
    tried = []

    def process(name, length, tool):
        tried.append(tool)
        return {"seconds": 1.0, "peak_mib": 2.0, "kept_mib": 3.0}

    monkeypatch.setattr(tools, "in_a_process", process)
    monkeypatch.setattr(tools, "memory_here", lambda: dense - 1)
    monkeypatch.setattr(tools, "ROUNDS", {32: 2})
    found = tools.rounds("minilm", 32, ["watched", "eager", "bertviz"])
    assert tried == ["watched", "watched"]
    assert found["watched"]["rounds"] == 2
    assert found["eager"] == found["bertviz"] == {"does_not_fit": dense}
    page = tools.table({"rows": [{"model": "smollm2", "tokens": 8192, "tools": found}]})
    assert "| does not fit: 0.0 GiB of weights | | |" in page


@pytest.mark.slow
def test_each_tool_runs(tools):
    for tool in ("watched", "eager", "bertviz", "circuitsvis"):
        found = tools.in_a_process("minilm", 32, tool)
        assert json.dumps(found)
        assert found["peak_mib"] > 0
