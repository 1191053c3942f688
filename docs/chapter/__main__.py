"""Write the chapter on attention into docs/: `python -m docs.chapter`, or into another folder.

`--seed N --to FOLDER` writes a class's own copy: the same chapter with other numbers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from docs.chapter.figures import figures
from docs.chapter.numbers import UntrueError
from docs.chapter.rendering import HERE, LANGUAGES, render, suffix


def files(seed: int = 0) -> dict[str, str]:
    """Every file of the chapter, by its path below docs/."""
    found = {}
    for lang in LANGUAGES:
        pages = render(lang, seed)
        found[f"attention{suffix(lang)}"] = pages.chapter
        found[f"attention-answers{suffix(lang)}"] = pages.answers
        ending = ".svg" if lang == "en" else f".{lang}.svg"
        for name, drawing in figures(lang, seed).items():
            found[f"assets/attention-{name}{ending}"] = drawing
    return found


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="what the numbers are drawn by")
    parser.add_argument("--to", type=Path, default=HERE.parent, help="the folder to write into")
    chosen = parser.parse_args()
    try:
        made = files(chosen.seed)
    except UntrueError as error:
        parser.error(str(error))
    for name, text in made.items():
        path = chosen.to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
