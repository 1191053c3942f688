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
        if "stopped" not in row["eager"]:
            assert row["watched"]["peak_mib"] < row["eager"]["peak_mib"] / 4


@pytest.mark.slow
def test_each_tool_runs(tools):
    for tool in ("watched", "eager", "bertviz", "circuitsvis"):
        found = tools.in_a_process("minilm", 32, tool)
        assert json.dumps(found)
        assert found["peak_mib"] > 0
