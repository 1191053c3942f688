"""The four steps of attention by hand, then the same from eyeline: score, scale, normalise, sum.

python examples/attention.py
"""

import torch

import eyeline

torch.manual_seed(0)
X = torch.randn(3, 4)  # three words, d_model = 4
W_Q, W_K, W_V = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
Q, K, V = X @ W_Q, X @ W_K, X @ W_V

scores = Q @ K.T  # how well word i's question matches word j's key
scaled = scores / Q.shape[-1] ** 0.5  # variance back to about 1
normalised = scaled.softmax(-1)  # each row: shares that sum to 1
by_hand = normalised @ V  # the mean of the values, weighted

output, attn = eyeline.scaled_dot_product_attention(Q, K, V)
print("how much word i attends to word j:")
print(attn)
print("output of word 0:", output[0])
print("largest difference to the steps by hand:", (output - by_hand).abs().max().item())

mask = torch.tril(torch.ones(3, 3))  # a language model must not see later words
output, attn = eyeline.scaled_dot_product_attention(Q, K, V, mask)
print("with the causal mask:")
print(attn)
