"""A GPT on Python's language reference: characters, a causal mask, generation with a cache.

python examples/gpt.py             a short training, to see it work
python examples/gpt.py --full      the training of the figures in docs/systems.md
python examples/gpt.py --sdpa      the same on torch's SDPA: the same curve
python examples/gpt.py --no-mask   with the causal mask and without: two curves
python examples/gpt.py --no-scale  with the division by √d_k and without: two curves
"""

import math
import time

import torch
from blocks import Transformer, asked, cross_entropy, size, train, without_scale
from textdata import alphabet, decode, encode, ngram, split, windows, xz_bits

import eyeline
from eyeline.kv_cache import KVCache
from eyeline.readings import diagonal

CONTEXT, BATCH = 128, 16
SHORT, CURVE, FULL = 30, 120, 1000  # steps


def new(sdpa=False, seed=0, heads=4):
    """An untrained model, the same for a seed whatever computes it."""
    torch.manual_seed(seed)
    return Transformer(len(alphabet()), heads=heads, sdpa=sdpa)


def fit(model, steps, mask, print_every=0, seed=1):
    """Train on windows of the training text; the losses, nats per character."""
    ids, draws = encode(split()[0]), torch.Generator().manual_seed(seed)

    def loss_of_batch():
        batch = windows(ids, CONTEXT + 1, BATCH, draws)
        return cross_entropy(model(batch[:, :-1], mask)[0], batch[:, 1:])

    return train(model, loss_of_batch, steps, print_every=print_every)


@torch.no_grad()
def bits(model, characters=None):
    """Held-out bits per character, each with at least 64 before it, none after it."""
    ids, half = encode(split()[1][:characters]), CONTEXT // 2
    pieces = ids.unfold(0, CONTEXT + 1, half)
    total = 0.0
    for batch in pieces.split(64):
        logits = model(batch[:, :-1], eyeline.causal())[0][:, half:]
        total += cross_entropy(logits, batch[:, half + 1 :]).item() * len(batch)
    return total / len(pieces) / math.log(2)


@torch.no_grad()
def generate(model, prompt, length, temperature=0.7, cached=True, seed=0):
    """`prompt` and `length` more characters, one at a time; without cache each from all before.

    Temperature 0 takes the likeliest. The cache rolls: as in training, 128 characters are seen.
    """
    draws = torch.Generator().manual_seed(seed)
    ids = encode(prompt)[None]
    caches = [KVCache(before=CONTEXT - 1) for _ in model.blocks]
    new_ids = ids
    for _ in range(length):
        if cached:
            logits = model(new_ids, caches=caches)[0][0, -1]
        else:
            logits = model(ids[:, -CONTEXT:], eyeline.causal())[0][0, -1]
        if temperature:
            shares = (logits / temperature).softmax(-1)
            new_ids = torch.multinomial(shares, 1, generator=draws)[None]
        else:
            new_ids = logits.argmax().view(1, 1)
        ids = torch.cat([ids, new_ids], dim=1)
    return decode(ids[0])


@torch.no_grad()
def heads(model, seed=0):
    """[layers, heads] twice: the mean weight on the character before, and on what followed before.

    For the first, held-out text; for the second, 64 characters at random and the same again: an
    induction head looks at what followed this character the first time, which comes next.
    Source: Olsson et al. 2022, "In-context learning and induction heads".
    """
    draws = torch.Generator().manual_seed(seed)
    held_out, half = encode(split()[1]), CONTEXT // 2
    _, seen = model(windows(held_out, CONTEXT, 32, draws), eyeline.causal())
    previous = [diagonal(w, -1).values[..., 1:].mean((0, 2)) for w in seen]
    once = torch.rand(32, len(alphabet()), generator=draws).argsort(-1)[:, :half]
    _, seen = model(torch.cat([once, once], dim=1), eyeline.causal())
    followed = [diagonal(w, 1 - half).values[..., half:].mean((0, 2)) for w in seen]
    return torch.stack(previous), torch.stack(followed)


def print_heads(model):
    """Each head's two figures, and which head is the strongest in each; an even share is 0.01."""
    names = ("previous token", "induction")
    for name, found in zip(names, heads(model)):
        layer, head = divmod(found.argmax().item(), found.shape[1])
        there = "head" if found.max() > 0.3 else "heads: none, the strongest"
        print(f"{name} {there} L{layer}H{head}, mean weight {found.max():.2f}; every head:")
        for i, row in enumerate(found):
            shares = (f"{share:.2f} {'█' * round(10 * share):10}" for share in row.tolist())
            print(f"  L{i} " + " ".join(shares))


def curves(titles, models, masks, steps):
    """Train two models on the same batches and print their losses side by side."""
    losses = [fit(model, steps, mask) for model, mask in zip(models, masks)]
    print(f"training loss, nats per character\n  step  {titles[0]:>14} {titles[1]:>14}")
    part = max(1, steps // 10)
    for end in range(part, steps + 1, part):
        one, two = (sum(x[end - part : end]) / part for x in losses)
        bars = f"{'█' * round(8 * one):35} {'█' * round(8 * two)}"
        print(f"{end:6}  {one:14.3f} {two:14.3f}  {bars}")
    for title, model in zip(titles, models):
        print(f"{title}: held out, nothing later seen: {bits(model, 8_000):.2f} bits per character")
        print("  writes:", repr(generate(model, "The ", 60, temperature=0.5)))
    return losses


def report(model, losses, minutes):
    """Print the figure beside those of n-grams and xz, a text, and the two kinds of heads."""
    held_out = split()[1]
    print(f"GPT: {size(model)}, {len(losses)} steps, {minutes:.1f} minutes")
    print(f"held out: {bits(model):.3f} bits per character")
    print("  " + ", ".join(f"{n}-gram {ngram(n).bits(held_out):.3f}" for n in (3, 4, 5)))
    alone, after = xz_bits()
    print(f"  xz {alone:.3f} by itself, {after:.3f} after the training text")
    if model.blocks[0].sdpa:
        return
    print("\nIt writes, with the cache:\n" + generate(model, "The statement", 300) + "\n")
    print_heads(model)


def main(arguments=None):
    """Train, and print the size, the minutes and the figures."""
    chosen = asked(
        __doc__,
        arguments,
        no_mask="with the causal mask and without: two curves",
        no_scale="with the division by √d_k and without: two curves",
    )
    causal = eyeline.causal()
    if chosen.no_mask:
        titles = ("causal mask", "no mask")
        curves(titles, (new(), new()), (causal, None), chosen.steps or CURVE)
    elif chosen.no_scale:
        models = (new(heads=1), without_scale(new(heads=1)))  # d_k = 128: the larger, the worse
        curves(("scaled", "not scaled"), models, (causal, causal), chosen.steps or CURVE)
    else:
        steps = chosen.steps or (FULL if chosen.full else SHORT)
        model, start = new(chosen.sdpa), time.perf_counter()
        losses = fit(model, steps, causal, print_every=max(1, steps // 10))
        report(model, losses, (time.perf_counter() - start) / 60)


if __name__ == "__main__":
    main()
