"""The problem: what determines the weights (`data`), checked once at the door (`checks`)."""

from eyeline.problem.checks import make
from eyeline.problem.data import Problem, canonical

__all__ = ["Problem", "canonical", "make"]
