"""Memory is linear in the sequence: measured as peak resident memory, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED_MiB = 64.0  # beside inputs and outputs; the dense matrix would take 1024

LIGHT = ["one_row", "one_column", "one_tile", "forward_and_backward"]
HEAVY = ["read_with_gradient", "own_reading_with_gradient"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("mask", ["none", "half"])
@pytest.mark.parametrize(
    "questions", [LIGHT, pytest.param(HEAVY, marks=pytest.mark.slow)], ids=["light", "heavy"]
)
def test_peak_memory_at_16384(questions: list[str], mask: str) -> None:
    command = [sys.executable, "-m", "tests.memory_probe", mask, *questions]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == questions
    for name, measured in found.items():
        print(name, mask, measured)
        assert measured["extra_MiB"] <= ALLOWED_MiB, f"{name} with mask {mask}: {measured}"
