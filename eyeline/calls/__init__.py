"""One call of an attention, in the one form in which every library's calls are handed over."""

from __future__ import annotations

from eyeline.calls.call import Call, Missing, Noted, versions
from eyeline.calls.place import Place, Sight, Span

__all__ = ["Call", "Missing", "Noted", "Place", "Sight", "Span", "versions"]
