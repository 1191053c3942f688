"""Print constraints.txt for the environment that runs this: every installed version, pinned.

    .venv/bin/python .ci/pin.py > constraints.txt

A package that asks for a newer Python than eyeline does gets a marker, so that the older
Pythons are left to choose an earlier release of it.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_HERE = {"eyeline", "pip", "setuptools"}
TESTED_PYTHON = "3.11"


def canonical(name: str) -> str:
    """The one spelling of a package's name: `Foo_Bar` and `foo.bar` are `foo-bar`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_elsewhere() -> set[str]:
    """Names with a file of their own, installed without their requirements."""
    files = ("models.txt", "models-more.txt", "tools.txt")
    text = "\n".join((ROOT / name).read_text("utf-8") for name in files)
    return {canonical(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)}


def pins() -> list[str]:
    """One line for each installed package, sorted."""
    skip = NOT_HERE | pinned_elsewhere()
    lines = set()
    for found in distributions():
        name = canonical(found.metadata["Name"])
        if name in skip:
            continue
        version = found.version.split("+")[0]  # torch's build tag: any build of it will do
        asks = re.search(r">=\s*3\.(\d+)", found.metadata.get("Requires-Python") or "")
        newer = asks is not None and int(asks[1]) > 10
        marker = f'; python_version >= "{TESTED_PYTHON}"' if newer else ""
        lines.add(f"{name}=={version}{marker}")
    return sorted(lines)


if __name__ == "__main__":
    print("# Every version that the tests ran with (Python 3.11). Made by .ci/pin.py.")
    print("\n".join(pins()))
