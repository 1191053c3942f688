"""Lazy weights: the tensor itself (`weights`), what it holds (`parts`), how torch meets it (`matrix`)."""

from eyeline.lazy.weights import Weights, wrap

__all__ = ["Weights", "wrap"]
