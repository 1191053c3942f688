"""The native kernels without Python (`native/tests`): on ARM too, and under the sanitizers.

The program draws attentions of every kind and compares each table with the definition in double
precision. Here it is built and run in several ways; `make native-test` runs it by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from eyeline.backends import native

TESTS = Path(__file__).resolve().parent.parent / "native" / "tests"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Build:
    """One way to build and run the program."""

    name: str
    problems: int  # to draw
    sanitized: str = ""
    prefix: str = ""  # of the compiler and its tools, where they are for another processor
    emulator: str = ""
    tables: tuple[str, ...] = native.tables()

    def made(self) -> str:
        """What the program printed."""
        words = [f"BUILD={self.folder}", f"SANITIZE={self.sanitized}", "CXXFLAGS=-Werror"]
        words += [
            f"CXX={self.prefix}g++",
            f"RUN={self.emulator}",
            f"ARGS=--problems {self.problems}",
        ]
        done = in_tests("make", f"-j{os.cpu_count() or 1}", *words)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert "Sanitizer: " not in done.stderr
        return done.stdout

    def exported(self, table: str) -> list[str]:
        """The symbols that a table's object defines for others."""
        listed = in_tests(
            f"{self.prefix}nm", "-g", "--defined-only", f"{self.folder}/table/{table}.o"
        )
        return [line.split()[-1] for line in listed.stdout.splitlines() if line]

    @property
    def folder(self) -> str:
        return f"../../build/native-tests/{self.name}"


def in_tests(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True)


BUILDS = [
    Build("plain", problems=300),
    Build("addresses", problems=60, sanitized="address,undefined"),
    Build("threads", problems=60, sanitized="thread"),
    Build(
        "neon",
        problems=60,
        prefix="aarch64-linux-gnu-",
        emulator="qemu-aarch64 -L /usr/aarch64-linux-gnu",
        tables=("neon", "scalar"),
    ),
]


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_every_table_is_the_definition(build):
    for tool in (f"{build.prefix}g++", "qemu-aarch64") if build.prefix else ():
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    told = build.made()
    for table in build.tables:
        for check in ("blocks", "forward", "backward", "reduce", "team"):
            assert re.search(rf"^{table} +{check} .*: passed$", told, re.MULTILINE), told
        if not build.sanitized:
            # Anything else could be merged with a copy compiled for another processor.
            assert build.exported(table) == [f"eyeline_table_{table}"]
    assert re.search(r"^\d+ passed, 0 failed$", told, re.MULTILINE)
