"""docs/models.md: which models can be watched, how, and how exactly; measured, then written.

    python -m tests.models_page            measure everything that is installed, write the page
    python -m tests.models_page NAME ...   only these models or parts; the others stay
    python -m tests.models_page --only-page   write the page again from what is stored

What was measured stands in benchmarks/results/models.json, each row with the versions it ran on;
rows of packages that are not installed here stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.proof import NEW, measure
from tests.proof_cases import every

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "models.json"
PAGE = ROOT / "docs" / "models.md"

PARTS = {
    "real": (
        "Real models",
        "Trained weights, as `make models` and the tests install them; texts in a batch of two,"
        " padded on the left and on the right, a picture, a spoken sentence.",
    ),
    "families": (
        "Families of transformers",
        "Small models with random weights, drawn so wide that rows are sharp: a mask, a scale or a"
        " head in the wrong place would show. Texts longer than the windows, in a batch of two,"
        " padded on the left, on the right and not at all.",
    ),
    "torch": (
        "Code that calls torch",
        "In the styles of code that people have; compared with the same model's attention computed"
        " by hand, or with the weights that `nn.MultiheadAttention` returns where it is asked to.",
    ),
    "packages": (
        "Packages for pictures",
        "The packages themselves, with random weights, compared in the same way.",
    ),
}
SEEN = {
    "interface": "transformers' interface",
    "torch": "torch's function",
    "by hand": "no: by hand",
}
INTRODUCTION = """# Which models can be watched

Made by `make models-page` from a run that watches every model below; nothing here is typed in.

* **seen through**: how [watch](watch.md) sees its attention; **calls**: how many attentions one
  forward has.
* **largest difference** of any weight, in float32, from the model's own eager attention, over every
  layer, head and row that is no padding; beside it how sharp those rows are.
* **same bits**: whether the outputs are the same, bit for bit, with and without watch, in float32,
  bfloat16 and float16, in the model's usual attention and in its eager one.
* **{new} tokens**: whether a greedy generation writes the same in all three, and how far its rows,
  one for every token that was read, are from one eager forward over the finished text.

Not listed does not mean not seen: what calls transformers' interface or torch's functions is.
"""
HEADER = "| model | seen through | calls | sharpest weight of a row, mean | largest difference |"
HEADER += " same bits | {new} tokens |"
HAND = """## Attention by hand

These compute attention with code of their own, so that there is nothing to see on the way: no lazy
weights, and no long text. `seen.missing` names each such layer, and with `output_attentions=True`
holds in `.dense` what the model returned itself; where it returns nothing, watch raises and says
why. Nothing changes in what they compute.

| model | layers with their own dense weights | same bits | why |
|---|---:|---|---|"""
STEP = "only its last step is seen"


def measured(names: list[str]) -> None:
    """Measure the named models, or all, and store each as soon as it is done."""
    for part, cases in every().items():
        for case in cases():
            if not names or case.name in names or part in names:
                keep(part, measure(case))
                print(case.name, file=sys.stderr, flush=True)


def keep(part: str, row: dict[str, Any]) -> None:
    """Store one row in the place of the one before, by name."""
    stored = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    rows = {one["name"]: one for one in stored.get(part, [])} | {row["name"]: row}
    stored = {**stored, part: [rows[name] for name in sorted(rows, key=str.lower)]}
    text = json.dumps({name: stored.get(name, []) for name in PARTS}, indent=1) + "\n"
    RESULTS.write_text(text, "utf-8")


def page(stored: dict[str, Any]) -> str:
    """The page, of what was measured."""
    text = [INTRODUCTION.format(new=NEW)]
    for part, (title, about) in PARTS.items():
        rows = [row for row in stored[part] if row["calls"]]
        text += [f"## {title}\n", f"{about} {_versions(rows)}\n", HEADER.format(new=NEW)]
        text += ["|---|---|---:|---:|---:|---|---|"]
        text += [_line(row) for row in rows] + [""]
    text += [HAND]
    for row in (row for part in PARTS for row in stored[part] if not row["calls"]):
        reasons = " ".join(row["reasons"])
        text += [f"| {row['name']} | {row['dense'] or 'none'} | {_bits(row)} | {reasons} |"]
    return "\n".join(text) + "\n"


def _versions(rows: list[dict[str, Any]]) -> str:
    found: dict[str, set[str]] = {}
    for row in rows:
        for package, version in row["versions"].items():
            found.setdefault(package, set()).add(version)
    return "With " + ", ".join(f"{p} {' and '.join(sorted(v))}" for p, v in found.items()) + "."


def _line(row: dict[str, Any]) -> str:
    cells = [
        row["name"],
        _how(row["seen"]),
        str(row["calls"]),
        f"{row['sharp']:.2f}",
        f"{row['difference']:.0e}",
        _bits(row),
        _generate(row["generate"]),
    ]
    return "| " + " | ".join(cells) + " |"


def _how(seen: list[list[Any]]) -> str:
    """Through which door, where several kernels of the model differ for each."""
    if len({how for how, _ in seen}) == 1:
        return SEEN[seen[0][0]]
    return "; ".join(f"{SEEN[how]} in {name or 'SDPA'}" for how, name in seen)


def _bits(row: dict[str, Any]) -> str:
    same = [name for name, equal in row["bits"].items() if equal]
    return "yes" if len(same) == len(row["bits"]) else "only " + ", ".join(same) if same else "no"


def _generate(found: dict[str, Any] | None) -> str:
    if found is None:
        return "—"
    same = "the same" if all(found["tokens"].values()) else "not the same"
    if not found["followed"]:
        return f"{same}; {STEP}"
    return f"{same}, rows to {found['difference']:.0e}"


def main(arguments: list[str]) -> None:
    """Measure, store, and write the page."""
    if arguments != ["--only-page"]:
        measured(arguments)
    PAGE.write_text(page(json.loads(RESULTS.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
