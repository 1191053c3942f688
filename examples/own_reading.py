"""A reading of one's own at 16 384 tokens, in one pass with eyeline's, and its gradient.

    python examples/own_reading.py

The dense weights would take 1 GiB; no tensor of that size is made, in the backward pass neither.
"""

import torch

import eyeline
from eyeline.readings import Reading, RowTiles, reading

T, D = 16_384, 64


@reading
def sharpest(weights):
    """The largest weight of each row."""
    values = yield RowTiles(lambda tile: tile.weights.max(-1).values)
    return Reading(values, axes=weights.axes[:-1], unit="weight")


torch.manual_seed(0)
Q, K = torch.randn(2, T, D).unbind()
Q.requires_grad_()
weights = eyeline.weights(Q, K, eyeline.causal())

largest, entropy = eyeline.read(weights, sharpest, eyeline.entropy)
print(f"mean of the rows' largest weights: {largest.values.mean().item():.4f}")
print(f"mean entropy: {entropy.values.mean().item():.3f} nats")

largest.values.mean().backward()  # which queries to move, to make rows sharper
print(f"gradient at Q: {tuple(Q.grad.shape)}, norm {Q.grad.norm().item():.2e}")
