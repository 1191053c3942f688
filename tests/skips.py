"""A pytest plugin: a skipped test is a failure unless it stands in the list below, with its reason.

A test that silently stopped running proves nothing, so the run says so and fails. Used as
`python -m pytest -p tests.skips`, which `make test`, `make test-all` and `make check` do.
"""

from __future__ import annotations

import fnmatch
import os

import pytest

# test id pattern (as pytest prints it) -> why it may be skipped
ALLOWED: dict[str, str] = {
    "tests/test_vision_packages.py::*": "torchvision and timm want another torch",
}

# Where continuous integration runs, .ci/run has installed what these need.
if not os.environ.get("CI"):
    ALLOWED["tests/test_native_program.py::*[[]neon[]]"] = "an ARM compiler and emulator are rare"

_unexpected: list[str] = []


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    if any(fnmatch.fnmatchcase(report.nodeid, pattern) for pattern in ALLOWED):
        return
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    _unexpected.append(f"{report.nodeid}: {why}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Under xdist the workers send their reports to one controller, which alone decides.
    if _unexpected and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _unexpected:
        terminalreporter.section("skips that are not in tests/skips.py")
        for line in _unexpected:
            terminalreporter.line(line)
