"""Changing what a model's attention does, and weighing what its weights do."""

from __future__ import annotations

from eyeline.acting.blocking import block
from eyeline.acting.weighing import Gradients, value_norm
from eyeline.acting.weighing import gradients as gradients  # for `seen.gradients(loss)`

__all__ = ["Gradients", "block", "value_norm"]
