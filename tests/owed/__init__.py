"""The obligations, by subject; importing this lists them all."""

from tests.owed import edges, properties, questions, state, tensor, values

__all__ = ["edges", "properties", "questions", "state", "tensor", "values"]
