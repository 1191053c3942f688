"""docs/models.md is what was measured, of every family, and that proves what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import models_page
from tests.families import BY_HAND, CONFIGS
from tests.proof import measure
from tests.proof_cases import NAMES, WRITERS, every, family

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")

PINS = Path(__file__).resolve().parent.parent / "constraints.txt"
PINNED = dict(re.findall(r"^([\w-]+)==([\w.]+)", PINS.read_text("utf-8"), re.MULTILINE))
LIMIT = 1e-5
ROWS = json.loads(models_page.RESULTS.read_text("utf-8"))
FLAT = [(part, row) for part, rows in ROWS.items() for row in rows]
BROUGHT = ("torchvision", "timm")  # packages that no other part of the tests installs


def shown(pair: tuple[str, dict]) -> str:
    return str(pair[1]["name"])


def test_the_page_is_what_was_measured():
    assert models_page.PAGE.read_text("utf-8") == models_page.page(ROWS)


def test_every_family_is_on_it():
    named = {part: {row["name"] for row in rows} for part, rows in ROWS.items()}
    assert named["families"] == {NAMES[name] for name in (*CONFIGS, *BY_HAND)}
    assert set(NAMES) == {*CONFIGS, *BY_HAND}
    assert len(named["real"]) == 5
    assert named["torch"] == {case.name for case in every()["torch"]()}
    for row in ROWS["packages"]:
        assert set(row["versions"]) & set(BROUGHT)
    for _, row in FLAT:
        if not set(row["versions"]) & set(BROUGHT):
            pinned = {name: PINNED[name] for name in row["versions"]}
            assert row["versions"] == pinned, "make models-page"


@pytest.mark.parametrize("pair", FLAT, ids=shown)
def test_what_was_measured_is_a_proof(pair):
    holds(*pair)


def holds(part: str, row: dict) -> None:
    """What must be true of every model on the page."""
    assert all(row["bits"].values())
    if not row["calls"]:
        assert row["name"] in {NAMES[name] for name in BY_HAND}
        assert row["reasons"]
        return
    assert row["difference"] < LIMIT
    assert row["sharp"] > (0.2 if part == "real" else 0.5)
    if (written := row["generate"]) is not None:
        assert all(written["tokens"].values())
        assert written["followed"]
        assert written["difference"] < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONFIGS, *BY_HAND])
def test_a_family_measured_anew(name):
    row = measure(family(name))
    holds("families", row)
    assert (row["generate"] is not None) == (name in WRITERS)
    [stored] = [stored for _, stored in FLAT if stored["name"] == row["name"]]
    for what in ("calls", "dense", "reasons", "bits"):
        assert row[what] == stored[what]


@pytest.mark.slow
def test_real_models_measured_anew():
    for case in every()["real"]():
        holds("real", measure(case))


def test_torch_s_functions_measured_anew():
    for case in every()["torch"]():
        holds("torch", measure(case))
