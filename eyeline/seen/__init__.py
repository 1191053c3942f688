"""What a running model's attention saw: `watch(model)` and the lazy weights it gives."""

from __future__ import annotations

from eyeline.calls import Call, Missing
from eyeline.seen.result import Seen
from eyeline.seen.watching import watch

__all__ = ["Call", "Missing", "Seen", "watch"]
