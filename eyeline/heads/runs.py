"""What every question about heads is asked of: a run."""

from __future__ import annotations

from eyeline.errors import ArgumentError
from eyeline.seen import Seen


def check_run(asked: str, run: object) -> None:
    """Raise ArgumentError for what is no run; `asked` is the call, as it is written.

    >>> from eyeline.seen import Seen
    >>> check_run("scores(seen)", Seen())
    """
    if not isinstance(run, Seen):
        raise ArgumentError(
            f"{asked} takes a run, as `with eyeline.watch(model) as seen` or eyeline.load gives it,"
            f" and got {type(run).__name__}."
        )
