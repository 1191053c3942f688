"""What the chapters state about any attention, measured on the spot with plain torch.

Each measurement depends on its arguments alone and is made once a process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

SIZES = (4, 16, 64, 256, 1024)
SURE = 0.99  # a row with a weight over this is saturated
KEYS = 16
TRAINED = 512  # the size at which a training with and without the scale is compared


def source(seed: int) -> Generator:
    """A generator of its own, so that nothing else's numbers move."""
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Saturation:
    """Dot products of unit-variance vectors of size d, softmax over 16 keys."""

    d: int
    variance: float  # of the scores
    sure: float  # share of rows with a weight over 0.99
    entropy: float  # mean, in nats
    at_scores: float  # gradient's norm at a row of scores, median
    at_W_Q: float  # gradient's norm at W_Q


@cache
def saturation(d: int, scaled: bool, seed: int) -> Saturation:
    """Measure one size, with or without the division by √d.

    >>> found = saturation(1024, False, 0)
    >>> found.sure > 0.5, found.at_scores < 0.001
    (True, True)
    """
    rows = 512
    draw = partial(torch.randn, generator=source(seed))
    X, K, V = draw(rows, d), draw(KEYS, d), draw(KEYS)
    W_Q = draw(d, d).div_(math.sqrt(d)).requires_grad_()
    with torch.enable_grad():
        scores = X @ W_Q @ K.T * (1 / math.sqrt(d) if scaled else 1.0)
        scores.retain_grad()
        weights = scores.softmax(-1)
        (weights @ V).sum().backward()
    assert scores.grad is not None
    assert W_Q.grad is not None
    weights = weights.detach()
    return Saturation(
        d=d,
        variance=scores.var().item(),
        sure=(weights.amax(-1) > SURE).float().mean().item(),
        entropy=torch.special.entr(weights).sum(-1).mean().item(),
        at_scores=scores.grad.norm(dim=-1).median().item(),
        at_W_Q=W_Q.grad.norm().item(),
    )


@dataclass(frozen=True)
class Same:
    """Of 1000 random inputs, in how many some word's largest score is not the one with itself."""

    plain: float  # Q = K = X
    shared: float  # Q = K = X W, one W


@cache
def same_projection(seed: int, trials: int = 1000) -> Same:
    """Measure it for 3 words of 4 numbers.

    >>> found = same_projection(0)
    >>> 0.2 < found.plain < found.shared < 0.7
    True
    """
    generator = source(seed)
    X, W = (torch.randn(trials, n, 4, generator=generator) for n in (3, 4))
    return Same(*(_beaten(Q @ Q.mT) for Q in (X, X @ W)))


def _beaten(scores: Tensor) -> float:
    own = torch.arange(scores.shape[-1])
    return (scores.argmax(-1) != own).any(-1).float().mean().item()


@dataclass(frozen=True)
class Products:
    """Dot products of unit-variance vectors."""

    d: int
    count: int
    spread: float  # standard deviation
    largest: float
    own: float  # mean of q · q
    scaled: float  # variance after the division by √d


@cache
def products(seed: int, d: int = 512, side: int = 2000) -> Products:
    """Measure side × side of them.

    >>> found = products(0, side=500)
    >>> round(found.spread), round(found.own / 10)
    (23, 51)
    """
    generator = source(seed)
    q, k = (torch.randn(side, d, generator=generator) for _ in range(2))
    found = q @ k.T
    return Products(
        d=d,
        count=found.numel(),
        spread=found.std().item(),
        largest=found.abs().max().item(),
        own=q.square().sum(-1).mean().item(),
        scaled=(found / math.sqrt(d)).var().item(),
    )


@cache
def training(scaled: bool, seed: int, d: int = TRAINED, steps: int = 40) -> tuple[float, float]:
    """The loss before and after a short training of W_Q and W_K: each of 16 words is to fetch the
    value of the one before it.

    >>> before, after = training(True, 0)
    >>> after < before / 5
    True
    """
    generator = source(seed)
    X, V = (torch.randn(KEYS, size, generator=generator) for size in (d, 8))
    parts = [torch.randn(d, d, generator=generator).div_(math.sqrt(d)) for _ in range(2)]
    W_Q, W_K = (part.requires_grad_() for part in parts)
    factor, losses = 1 / math.sqrt(d) if scaled else 1.0, []
    with torch.enable_grad():
        optimiser = torch.optim.SGD([W_Q, W_K], lr=0.1)
        for _ in range(steps):
            weights = ((X @ W_Q) @ (X @ W_K).T * factor).softmax(-1)
            loss = F.mse_loss(weights @ V, V.roll(1, 0))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return losses[0], losses[-1]


LETTERS, LENGTH, WIDTH = 4, 8, 16
FOLLOWS = 0.75  # how often a letter follows from the one before it; else it is drawn


@cache
def next_letter(masked: bool, seed: int, steps: int = 100) -> tuple[float, float]:
    """The loss at the end of training a one-layer language model, and when it has to go on alone.

    >>> with_mask, without = next_letter(True, 0), next_letter(False, 0)
    >>> without[0] < with_mask[0], without[1] > with_mask[1] + 0.5
    (True, True)
    """
    generator = source(seed)
    sides = ((LETTERS, WIDTH), (LENGTH, WIDTH), *((WIDTH, WIDTH),) * 3, (WIDTH, LETTERS))
    parts = [torch.randn(*s, generator=generator).mul_(0.3).requires_grad_() for s in sides]
    with torch.enable_grad():
        optimiser = torch.optim.Adam(parts, lr=0.05)
        for _ in range(steps):
            text = _letters(64, LENGTH + 1, generator)
            found = _predicted(text[:, :-1], parts, masked)
            loss = F.cross_entropy(found.flatten(0, 1), text[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    text = _letters(1000, 5, generator)
    with torch.no_grad():
        last = _predicted(text[:, :-1], parts, masked)[:, -1]
    return loss.item(), F.cross_entropy(last, text[:, -1]).item()


def knowable() -> float:
    """The loss of one who knows the rule of the letters, in nats; less is reading the answer.

    >>> round(knowable(), 2)
    0.69
    """
    follows = FOLLOWS + (1 - FOLLOWS) / LETTERS
    others = (1 - FOLLOWS) / LETTERS
    return -(follows * math.log(follows) + (LETTERS - 1) * others * math.log(others))


def _letters(lines: int, length: int, generator: Generator) -> Tensor:
    text = torch.randint(0, LETTERS, (lines, length), generator=generator)
    for t in range(1, length):
        follows = torch.rand(lines, generator=generator) < FOLLOWS
        text[:, t] = torch.where(follows, (text[:, t - 1] + 1) % LETTERS, text[:, t])
    return text


def _predicted(text: Tensor, parts: list[Tensor], masked: bool) -> Tensor:
    letters, places, W_Q, W_K, W_V, head = parts
    n = text.shape[1]
    x = letters[text] + places[:n]
    scores = (x @ W_Q) @ (x @ W_K).mT / math.sqrt(WIDTH)
    if masked:
        scores = scores.masked_fill(torch.ones(n, n).tril() == 0, -math.inf)
    return (scores.softmax(-1) @ (x @ W_V) + x) @ head
