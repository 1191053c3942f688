"""The public conformance suite of the ONNX operator Attention, as the pinned package ships it."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch import Tensor

from tests.conformance import BACKENDS
from tests.onnx_adapter import Case, cases, run

CASES = cases()
COUNT = {"1.23.2": 73}  # the cases change by version: a new one is looked at before it is counted

# The package compares with rtol 1e-3; float32 needs no such slack.
RTOL, ATOL = 1e-5, 1e-6


def test_no_case_is_missed() -> None:
    assert len(CASES) == COUNT[onnx.__version__]
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, backend: str) -> None:
    found = run(case, backend)
    for name, expected in case.expected.items():
        agree(found[name], expected, f"{case.name}: {name}")


def agree(found: Tensor, expected: Tensor, what: str) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    if expected.dtype == torch.float32:
        torch.testing.assert_close(
            found, expected, rtol=RTOL, atol=ATOL, msg=lambda m: f"{what}\n{m}"
        )
        return
    # The expected values round the weights to half precision before they average, so what is exact
    # differs from them by up to one unit in the last place of the values that are averaged.
    largest = expected.abs().max()
    one_ulp = (
        torch.nextafter(largest, torch.full_like(largest, torch.inf)).double() - largest.double()
    )
    assert (found.double() - expected.double()).abs().max() <= one_ulp, what
