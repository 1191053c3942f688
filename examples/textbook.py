"""The textbook's programme with a layer: three words, their weights, and the causal mask.

python examples/textbook.py
"""

import torch

import eyeline
from eyeline import SelfAttention

torch.manual_seed(0)
X = torch.randn(3, 4)  # three words, four numbers each
W_Q, W_K, W_V = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)

layer = SelfAttention(embed_dim=4)  # W_Q, W_K, W_V with bias, and nothing else
for linear, W in ((layer.W_Q, W_Q), (layer.W_K, W_K), (layer.W_V, W_V)):
    with torch.no_grad():
        linear.weight.copy_(W.T)  # nn.Linear computes x @ weight.T + bias
        linear.bias.zero_()
layer.eval().requires_grad_(False)

output, attn_weights = layer(X)
print("attn_weights[i][j]: how much word i attends to word j")
print(attn_weights)
print("each row sums to", attn_weights.sum(-1).tolist())
print("output", list(output.shape), "- row 0:", output[0])

n = X.shape[0]
mask = torch.tril(torch.ones(n, n))  # a language model must not see later words
print("\nthe causal mask, and the weights under it:")
print(mask)
masked_output, masked_weights = layer(X, mask)
print(masked_weights)
same, _ = layer(X, eyeline.causal())  # the same mask as a rule, without a table
print("largest difference between table and rule:", (same - masked_output).abs().max().item())

batch = torch.stack([X, X.flip(0)])  # the same words, turned round
outputs, _ = layer(batch)
print("\na batch:", list(batch.shape), "->", list(outputs.shape))
turned = (outputs[1].flip(0) - outputs[0]).abs().max().item()
print(f"without positions, order says nothing: the outputs differ by {turned:.0e}, turned back")
