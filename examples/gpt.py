"""A GPT on Python's language reference: characters, a causal mask, generation with a cache.

python examples/gpt.py             a short training, to see it work
python examples/gpt.py --full      the training of the figures in docs/systems.md
python examples/gpt.py --sdpa      the same on torch's SDPA: the same curve
python examples/gpt.py --no-mask   with the causal mask and without: two curves
python examples/gpt.py --no-scale  with the division by √d_k and without: two curves
"""

import math

import torch
from blocks import Clock, Transformer, asked, cross_entropy, size, train, without_scale
from textdata import alphabet, decode, encode, ngram, split, windows, xz_bits

import eyeline
from eyeline.kv_cache import KVCache
from eyeline.readings import diagonal

CONTEXT, BATCH = 128, 16
SHORT, CURVE, FULL = 30, 120, 1600  # steps
COPYING = 1000  # steps on short windows, before those of FULL
COPIES = 2  # windows of the 16 that are repeated random characters, in FULL


def new(sdpa=False, seed=0, heads=2):
    """An untrained model, the same for a seed whatever computes it.

    Two layers, as an induction head needs: its keys hold what a head of the layer before copied
    from one place earlier. With more, that head came late and an induction head not at all.
    """
    torch.manual_seed(seed)
    return Transformer(len(alphabet()), layers=2, heads=heads, sdpa=sdpa)


def repeated(size, count, generator, shortest, longest):
    """Random characters, again and again after a random number of them, [count, size].

    Only what came earlier in the window tells the next character, and at no fixed distance.
    """
    period = torch.randint(shortest, longest + 1, (count, 1), generator=generator)
    once = torch.randint(len(alphabet()), (count, size), generator=generator)
    return once.gather(1, torch.arange(size) % period)


def fit_copying(model, steps=COPYING, print_every=0, seed=2):
    """Train on short windows, half of them text and half repeated random; the losses.

    The text brings a head that looks one back, and the short distances let its use be found.
    """
    ids, draws = encode(split().training), torch.Generator().manual_seed(seed)

    def loss_of_batch():
        text = windows(ids, 33, 8, draws)
        batch = torch.cat([text, repeated(33, 8, draws, shortest=3, longest=16)])
        return cross_entropy(model(batch[:, :-1], eyeline.causal())[0], batch[:, 1:])

    return train(model, loss_of_batch, steps, print_every=print_every)


def fit(model, steps, mask, print_every=0, seed=1, copies=0):
    """Train on windows of the training text; the losses, nats per character.

    `copies` of the windows of every batch are repeated random characters instead.
    """
    ids, draws = encode(split().training), torch.Generator().manual_seed(seed)

    def loss_of_batch():
        batch = windows(ids, CONTEXT + 1, BATCH - copies, draws)
        if copies:
            random = repeated(CONTEXT + 1, copies, draws, shortest=16, longest=100)
            batch = torch.cat([batch, random])
        return cross_entropy(model(batch[:, :-1], mask)[0], batch[:, 1:])

    return train(model, loss_of_batch, steps, print_every=print_every)


@torch.no_grad()
def bits(model, characters=None, part="held_out"):
    """Bits per character of a part of the text, each with at least 64 before it, none after it."""
    ids, half = encode(getattr(split(), part)[:characters]), CONTEXT // 2
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


def twice(count, generator, size=CONTEXT, again=True):
    """(ids [count, size], how many characters come twice, how far back those of each row were).

    A third of the size and a little less comes twice, and the other characters once. `again=False`:
    the second time other random characters stand there.
    """
    some = size // 3 - 2
    most = size - 2 * some
    orders = torch.rand(count, len(alphabet()), generator=generator).argsort(-1)
    others = torch.randint(len(alphabet()), (count, some), generator=generator)
    gaps = torch.randint(most + 1, (count,), generator=generator).tolist()
    rows = []
    for order, other, gap in zip(orders, others, gaps):
        first, rest = order[:some], order[some : some + most]
        rows.append(torch.cat([rest[gap:], first, rest[:gap], first if again else other]))
    return torch.stack(rows), some, [some + gap for gap in gaps]


@torch.no_grad()
def followed(model, size=CONTEXT, again=True, seed=0):
    """[layers, heads]: the mean weight of a repeated character on what followed it before.

    Of 128 random characters 40 come twice, 40 to 88 places apart. What followed before comes next,
    so an induction head looks there, and no head can that looks a fixed distance back.
    Source: Olsson et al. 2022, "In-context learning and induction heads".
    """
    ids, some, back = twice(32, torch.Generator().manual_seed(seed), size, again)
    _, seen = model(ids, eyeline.causal())
    shares = [
        [diagonal(w[i : i + 1], 1 - b).values[0, :, -some:].mean(-1) for i, b in enumerate(back)]
        for w in seen
    ]
    return torch.stack([torch.stack(rows).mean(0) for rows in shares])


@torch.no_grad()
def copied(model, size=CONTEXT, again=True, seed=0):
    """How often the likeliest next character is right among those that come the second time."""
    ids, some, _ = twice(128, torch.Generator().manual_seed(seed), size, again)
    guesses = model(ids, eyeline.causal())[0].argmax(-1)
    return (guesses[:, -some:-1] == ids[:, 1 - some :]).float().mean().item()


@torch.no_grad()
def previous(model, seed=0):
    """[layers, heads]: the mean weight on the character before, on held-out text."""
    draws = torch.Generator().manual_seed(seed)
    _, seen = model(windows(encode(split().held_out), CONTEXT, 32, draws), eyeline.causal())
    return torch.stack([diagonal(w, -1).values[..., 1:].mean((0, 2)) for w in seen])


def print_heads(model):
    """Each head's figures, and which is the strongest in each; an even share is 0.01."""
    names = ("previous token", "induction", "the same places, nothing repeated")
    measured = (previous(model), followed(model), followed(model, again=False))
    for name, found in zip(names, measured):
        layer, head = divmod(found.argmax().item(), found.shape[1])
        print(f"{name}: at most {found.max():.2f}, of L{layer}H{head}; every head:")
        for i, row in enumerate(found):
            shares = (f"{share:.2f} {'█' * round(10 * share):10}" for share in row.tolist())
            print(f"  L{i} " + " ".join(shares))
    print(f"random characters that come again: {copied(model):.0%} of the next ones guessed,")
    print(f"  {copied(model, again=False):.0%} where nothing comes again")


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


def report(model, steps, took):
    """Print the figure beside those of n-grams and xz, a text, and the two kinds of heads."""
    held_out = split().held_out
    print(f"GPT: {size(model)}, {steps} steps, {took}")
    print(f"held out: {bits(model):.3f} bits per character")
    print(f"  of the part for choosing settings: {bits(model, part='validation'):.3f}")
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
        model, clock, copies = new(chosen.sdpa), Clock(), 0
        if chosen.full:
            print("short windows of text and of repeated random characters")
            fit_copying(model, print_every=COPYING // 6)
            print("long windows")
            copies = COPIES
        fit(model, steps, causal, print_every=max(1, steps // 10), copies=copies)
        report(model, steps, str(clock))


if __name__ == "__main__":
    main()
