"""What heads do: how attention flows through all layers, what each head looks for, what changed.

`rollout` follows attention from the last layer back to the tokens, `scores` says how much each head
is one of the known kinds, beside what chance gives, `compare` sets two runs beside each other. All
of it streams over the weights: nothing of size T x T is formed.
"""

from __future__ import annotations

from eyeline.heads.differences import Comparison, compare
from eyeline.heads.flow import Rollout, rollout
from eyeline.heads.patterns import HeadScores, scores

__all__ = ["Comparison", "HeadScores", "Rollout", "compare", "rollout", "scores"]
