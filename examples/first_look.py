"""Where a real pretrained model looks: the strongest head for "they → keys", and what others do.

python examples/first_look.py
"""

import eyeline
from eyeline import models

TEXT = "The keys to the old cabinet are on the table because they were too heavy to carry."

loaded = models.load("minilm")
tokens = loaded.tokens(TEXT)
with eyeline.watch(loaded.model) as seen:
    loaded.model(**loaded.inputs(tokens))

they, keys = tokens.pieces.index("they"), tokens.pieces.index("keys")
found = [
    (weights[0, head, they, keys].item(), layer, head)
    for layer, weights in enumerate(seen)
    for head in range(weights.shape[1])
]
print("heads in which 'they' looks at 'keys' most:")
for weight, layer, head in sorted(found, reverse=True)[:3]:
    print(f"  L{layer} H{head}: {weight:.2f}")

weight, layer, head = max(found)
row = seen[f"L{layer}H{head}"][they]
print("all of that row:")
for piece, share in zip(tokens.pieces, row.tolist()):
    print(f"  {piece:>8} {share:.2f} {'█' * round(40 * share)}")
