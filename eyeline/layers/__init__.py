"""Attention as modules: the textbook's own, torch's multi-head attention, and swapping it in."""

from eyeline.layers.multihead import MultiheadAttention
from eyeline.layers.projected import CrossAttention, SelfAttention
from eyeline.layers.swapping import swap

__all__ = ["CrossAttention", "MultiheadAttention", "SelfAttention", "swap"]
