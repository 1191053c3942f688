"""Lazy weights: a tensor that is computed where it is looked at.

The tensor itself is in `weights`; how torch meets it in `matrix`; what an index asks for in
`indexing`, and chooses in `parts`; how it prints in `text`.
"""

from eyeline.lazy.tensor import Weights, wrap

__all__ = ["Weights", "wrap"]
