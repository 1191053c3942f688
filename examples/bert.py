"""A BERT on Python's language reference: hidden characters, told from both sides.

python examples/bert.py          a short training, to see it work
python examples/bert.py --full   the training of the figures in docs/systems.md
python examples/bert.py --sdpa   the same on torch's SDPA: the same curve
"""

from collections import Counter, defaultdict

import torch
from blocks import Clock, Transformer, asked, cross_entropy, size, train
from textdata import alphabet, encode, ngram, split, windows

import eyeline

CONTEXT, BATCH = 64, 24
HIDDEN = 0.15  # the share that is asked for; in training twice as much, so that a step tells more
SHORT, FULL = 30, 1600  # steps
NO_TARGET = -100
SCREEN = "The following example sho_s how the function is called:"


def new(sdpa=False, seed=0):
    """An untrained model; its last kind of character stands for a hidden one."""
    torch.manual_seed(seed)
    return Transformer(len(alphabet()) + 1, sdpa=sdpa)


def hide(ids, generator, share=HIDDEN):
    """(ids with a share hidden, the targets: what is hidden, and NO_TARGET elsewhere)."""
    hidden = torch.rand(ids.shape, generator=generator) < share
    return ids.masked_fill(hidden, len(alphabet())), ids.masked_fill(~hidden, NO_TARGET)


def fit(model, steps, print_every=0, seed=1):
    """Train on windows of the training text; the losses, nats per hidden character."""
    ids, draws = encode(split().training), torch.Generator().manual_seed(seed)

    def loss_of_batch():
        shown, targets = hide(windows(ids, CONTEXT, BATCH, draws), draws, 2 * HIDDEN)
        return cross_entropy(model(shown)[0], targets, NO_TARGET)

    return train(model, loss_of_batch, steps, print_every=print_every)


def held_out_windows(characters=None):
    """(shown, targets) [N, 64] of the held-out text, the same ones for every model."""
    pieces = encode(split().held_out[:characters]).unfold(0, CONTEXT, CONTEXT)
    return hide(pieces, torch.Generator().manual_seed(2))


@torch.no_grad()
def accuracy(model, mask=None, characters=None):
    """The share of hidden characters of the held-out text that the model's first guess is."""
    shown, targets = held_out_windows(characters)
    right = [
        model(batch, mask)[0].argmax(-1)[there != NO_TARGET] == there[there != NO_TARGET]
        for batch, there in zip(shown.split(64), targets.split(64))
    ]
    return torch.cat(right).float().mean().item()


def hidden_places(characters=None):
    """Where in the held-out text the hidden characters are."""
    _, targets = held_out_windows(characters)
    return (targets.flatten() != NO_TARGET).nonzero().flatten().tolist()


def ngram_accuracy(n, characters=None):
    """The same of an n-gram model, which is shown every character before the hidden one."""
    text, places = split().held_out, hidden_places(characters)
    model = ngram(n)
    return sum(model.guess(text[max(0, i - n + 1) : i]) == text[i] for i in places) / len(places)


# How many characters before and after a hidden one are looked up, the most telling first.
SIDES = [(2, 2), (2, 1), (1, 2), (1, 1), (2, 0), (0, 2), (1, 0), (0, 1), (0, 0)]


def around_accuracy(as_bert=True, characters=None):
    """The same of counts of what stands between characters, up to two on each side.

    `as_bert`: the other hidden characters are hidden too; else all around is shown.
    """
    training, _, text = split()
    places = hidden_places(characters)
    between = defaultdict(Counter)
    for before, after in SIDES:
        for i in range(before, len(training) - after):
            between[training[i - before : i], training[i + 1 : i + 1 + after]][training[i]] += 1
    hidden = set(places) if as_bert else set()
    shown = "".join("\0" if i in hidden else c for i, c in enumerate(text))
    right = 0
    for i in places:
        sides = ((shown[max(0, i - b) : i], shown[i + 1 : i + 1 + a]) for b, a in SIDES)
        guess = next(between[side] for side in sides if side in between).most_common(1)[0][0]
        right += guess == text[i]
    return right / len(places)


def shades(row):
    """Weights as a line of blocks, as high as the largest is."""
    most = row.max().item()
    return "".join(" ▁▂▃▄▅▆▇█"[round(8 * w / most)] for w in row.tolist())


@torch.no_grad()
def screen(model, text=SCREEN):
    """Where BERT and GPT part: the same text and parameters, under no mask and the causal one."""
    place = text.index("_")
    ids = encode(text.replace("_", " "))
    ids[place] = len(alphabet())
    print(f"the hidden character of {text!r}; the weights of its row, each layer's mean of heads")
    for name, mask in (("no mask (BERT)", None), ("causal mask (GPT)", eyeline.causal())):
        logits, seen = model(ids[None], mask)
        print(f"\n{name}\n     {text}")
        for layer, weights in enumerate(seen):
            row = weights[0, :, place].mean(0)
            later = row[place + 1 :].sum().item()
            print(f"  L{layer} {shades(row)} {later:.2f} of it on later characters")
        shares = logits[0, place, : len(alphabet())].softmax(-1)
        best = shares.topk(3)
        guesses = zip(best.indices.tolist(), best.values.tolist())
        print("  guesses: " + ", ".join(f"{alphabet()[i]!r} {share:.2f}" for i, share in guesses))


def report(model, steps, took):
    """Print the figure beside those of n-grams, and the screen of both masks."""
    print(f"BERT: {size(model)}, {steps} steps, {took}")
    print(f"held out: {accuracy(model):.1%} of the hidden characters right")
    print(f"  the same model under the causal mask {accuracy(model, eyeline.causal()):.1%}")
    figures = ", ".join(f"{n}-gram {ngram_accuracy(n):.1%}" for n in (3, 4, 5))
    print(f"  shown every character before: {figures}")
    print(f"  counts of what is between two and two, as much hidden: {around_accuracy():.1%}")
    print(f"  the same, all around shown: {around_accuracy(as_bert=False):.1%}\n")
    if not model.blocks[0].sdpa:
        screen(model)


def main(arguments=None):
    """Train, and print the size, the minutes and the figures."""
    chosen = asked(__doc__, arguments)
    steps = chosen.steps or (FULL if chosen.full else SHORT)
    model, clock = new(chosen.sdpa), Clock()
    fit(model, steps, print_every=max(1, steps // 10))
    report(model, steps, str(clock))


if __name__ == "__main__":
    main()
