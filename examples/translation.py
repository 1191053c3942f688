"""Dates into Chinese and English words by an encoder and a decoder, and how they align.

    python examples/translation.py          a short training, to see it work
    python examples/translation.py --full   the training of the figures in docs/systems.md
    python examples/translation.py --sdpa   the same on torch's SDPA: the same curve

    2026-11-29 → <zh> 二 〇 二 六 年 十 一 月 二 十 九 日
    2026-11-29 → <en> November twenty-nine , twenty twenty-six

Each word comes from digits that are known, so it is known where the decoder has to look.
"""

import datetime
import random

import torch
from blocks import Block, Clock, asked, cross_entropy, size, train
from torch import nn

import eyeline
from eyeline.kv_cache import KVCache
from eyeline.masks import documents

DIM, HEADS, BATCH = 64, 4, 128
SHORT, FULL = 30, 400  # steps
FIRST, LAST = datetime.date(2001, 1, 1), datetime.date(2999, 12, 31)
UNSEEN = 2000  # dates that no batch of the training holds

DIGITS = "〇一二三四五六七八九"
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September"]
MONTHS += ["October", "November", "December"]
ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"]
TEENS += ["eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
END = "<end>"

# Which source tokens say each part of yyyy-mm-dd.
CENTURY, REST, MONTH, DAY = (0, 1), (2, 3), (5, 6), (8, 9)
# What the encoder reads together: the two digits of the month, and of the day.
NUMBERS = torch.tensor([0, 1, 2, 3, 4, 5, 5, 6, 7, 7])


def english(number, tens_of=None):
    """1 … 99 in words: "twenty-six"; 0 is "hundred", as a year's last two digits are read."""
    if number == 0:
        return "hundred"
    if number < 10:
        return ("oh-" if tens_of == "year" else "") + ONES[number]
    if number < 20:
        return TEENS[number - 10]
    return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")


def chinese(number):
    """1 … 99 in characters."""
    tens, ones = divmod(number, 10)
    return (DIGITS[tens] if tens > 1 else "") + ("十" if tens else "") + DIGITS[ones][: bool(ones)]


def translated(date, language):
    """[(word, the source places that say it)]; no place where it is the same in every date.

    Which character of 二十九 or of 九 comes next depends on both digits, so both say it.
    """
    if language == "zh":
        year = [(DIGITS[int(digit)], (i,)) for i, digit in enumerate(f"{date.year}")]
        year[0] = ("二", ())  # of every year from 2001 to 2999
        month = [(character, MONTH) for character in chinese(date.month)]
        day = [(character, DAY) for character in chinese(date.day)]
        return [*year, ("年", ()), *month, ("月", ()), *day, ("日", ())]
    century, rest = divmod(date.year, 100)
    words = [(MONTHS[date.month - 1], MONTH), (english(date.day), DAY), (",", ())]
    return [*words, (english(century), CENTURY), (english(rest, "year"), REST)]


def vocabularies():
    """Source tokens and target words, in a fixed order."""
    days = [datetime.date(year, 1, 1) for year in range(FIRST.year, LAST.year + 1)]
    days += [datetime.date(2000, 1, 1) + datetime.timedelta(i) for i in range(366)]
    words = {word for day in days for lang in ("zh", "en") for word, _ in translated(day, lang)}
    return ["-", *"0123456789"], ["<zh>", "<en>", END, *sorted(words)]


SOURCE, TARGET = vocabularies()
LONGEST = 14  # 二 〇 二 六 年 十 二 月 三 十 一 日, its language and end


def encode(dates, languages):
    """Source ids [B, 10] and target ids [B, 14]: the language, the words, filled up with END."""
    target = [
        [f"<{language}>", *(word for word, _ in translated(date, language))]
        for date, language in zip(dates, languages)
    ]
    filled = [words + [END] * (LONGEST - len(words)) for words in target]
    here = {token: i for i, token in enumerate(SOURCE)}
    there = {word: i for i, word in enumerate(TARGET)}
    ids = torch.tensor([[here[c] for c in date.isoformat()] for date in dates])
    return ids, torch.tensor([[there[w] for w in row] for row in filled])


def random_date(draws):
    """Any date of the range, each as likely."""
    return FIRST + datetime.timedelta(draws.randrange((LAST - FIRST).days + 1))


def unseen_dates():
    """The dates kept for the test, the same in every run."""
    draws = random.Random(0)
    return [random_date(draws) for _ in range(UNSEEN)]


class Translator(nn.Module):
    """An encoder in which month and day are read whole, and a causal decoder that looks at it.

    The encoder's mask keeps the numbers apart, so a source place holds its own number and no more,
    and the decoder looks at it in one block, with one head: so alignment means something.
    """

    def __init__(self, sdpa=False):
        super().__init__()
        self.source = nn.Embedding(len(SOURCE), DIM)
        self.places = nn.Parameter(torch.randn(10, DIM) / DIM**0.5)
        self.target = nn.Embedding(len(TARGET), DIM)
        self.encoder = Block(DIM, HEADS, sdpa=sdpa)
        self.decoder = nn.ModuleList(Block(DIM, HEADS, cross_heads, sdpa) for cross_heads in (0, 1))
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, len(TARGET)))

    def encode(self, source):
        """Source ids [B, 10] → [B, 10, dim]."""
        return self.encoder(self.source(source) + self.places, documents(NUMBERS))[0]

    def decode(self, target, context, caches=None):
        """Target ids [B, T] → logits [B, T, words], and the cross-attention's weights."""
        x, weights = self.target(target), None
        for i, block in enumerate(self.decoder):
            cache = None if caches is None else caches[i]
            x, weights = block(x, eyeline.causal(), context, cache)
        return self.head(x), weights

    def forward(self, source, target):
        return self.decode(target, self.encode(source))


def new(sdpa=False, seed=0):
    """An untrained model, the same for a seed whatever computes it."""
    torch.manual_seed(seed)
    return Translator(sdpa)


def fit(model, steps, print_every=0, seed=1):
    """Train on random dates that are not kept for the test; the losses, nats per word."""
    draws, kept = random.Random(seed), set(unseen_dates())

    def loss_of_batch():
        dates = [date for date in (random_date(draws) for _ in range(BATCH)) if date not in kept]
        source, target = encode(dates, [draws.choice(("zh", "en")) for _ in dates])
        return cross_entropy(model(source, target[:, :-1])[0], target[:, 1:])

    return train(model, loss_of_batch, steps, print_every=print_every)


@torch.no_grad()
def translate(model, source, languages):
    """The likeliest words one after the other, with a cache: ids [B, 14], the language first."""
    context = model.encode(source)
    caches = [KVCache() for _ in model.decoder]
    words = torch.tensor([[TARGET.index(f"<{language}>")] for language in languages])
    for _ in range(LONGEST - 1):
        logits, _ = model.decode(words[:, -1:], context, caches)
        words = torch.cat([words, logits[:, -1:].argmax(-1)], dim=1)
    return words


def exact(model, language, dates):
    """The share of dates whose every word is right."""
    languages = [language] * len(dates)
    source, target = encode(dates, languages)
    return (translate(model, source, languages) == target).all(-1).float().mean().item()


@torch.no_grad()
def aligned(model, language, dates):
    """How often a word's cross-attention is largest on a digit that says it; over the words
    that some digits say."""
    source, target = encode(dates, [language] * len(dates))
    _, weights = model(source, target[:, :-1])
    hits = [
        there in places
        for row, date in zip(weights.argmax(-1).tolist(), dates)
        for there, (_, places) in zip(row, translated(date, language))
        if places
    ]
    return sum(hits) / len(hits)


@torch.no_grad()
def picture(model, language, date):
    """The cross-attention as a table: a row for each word."""
    source, target = encode([date], [language])
    _, weights = model(source, target[:, :-1])
    print(f"\n{date} · <{language}> · cross-attention")
    print(" " + "   ".join(date.isoformat()))
    for (word, _), row in zip(translated(date, language), weights[0]):
        print(" ".join(f"{w:.1f}".replace("0.0", " · ") for w in row.tolist()) + f"  {word}")


def report(model, steps, took):
    """Print what is exact on unseen dates, how the words align, and two pictures of it."""
    sdpa = model.encoder.sdpa
    print(f"translation: {size(model)}, {steps} steps, {took}")
    for language in ("zh", "en"):
        share = exact(model, language, unseen_dates())
        print(f"{language}: {share:.2%} of {UNSEEN} unseen dates exact")
        if not sdpa:
            share = aligned(model, language, unseen_dates())
            print(f"  aligned: {share:.1%} of the words look most at a digit that says them")
    if not sdpa:
        for language in ("zh", "en"):
            picture(model, language, datetime.date(2026, 11, 29))


def main(arguments=None):
    """Train, and print the size, the minutes and the figures."""
    chosen = asked(__doc__, arguments)
    steps = chosen.steps or (FULL if chosen.full else SHORT)
    model, clock = new(chosen.sdpa), Clock()
    fit(model, steps, print_every=max(1, steps // 10))
    report(model, steps, str(clock))


if __name__ == "__main__":
    main()
