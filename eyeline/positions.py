"""Where a token stands: rotary positions with their scalings, sinusoids, T5's relative buckets.

Attention alone does not know the order of its tokens. Rotary positions turn queries and keys,
sinusoids are added to the tokens' vectors, a relative bias is added to the scores
(`eyeline.biases`, where ALiBi is).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from eyeline.errors import ArgumentError, ShapeError

__all__ = [
    "DynamicNTK",
    "LinearScaling",
    "Llama3",
    "Rotary",
    "Scaling",
    "YaRN",
    "sinusoidal",
    "t5_buckets",
    "t5_table",
]


class Scaling(ABC):
    """How rotary frequencies are stretched to texts longer than those of the training."""

    @abstractmethod
    def frequencies(self, dim: int, base: float, length: int) -> Tensor:
        """Radians per token, float32 [dim / 2], for a text of `length` tokens."""

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0

    @property
    def needs_length(self) -> bool:
        """Whether the frequencies depend on the length of the text."""
        return False


@dataclass(frozen=True)
class Rotary:
    """Turns pairs of a vector's numbers by angles that grow with the position.

    The score of a rotated query and a rotated key depends on the distance of their positions
    alone. ``rotary(x, positions)`` takes ``x [..., T, D]`` with D of at least ``dim`` and turns its
    first ``dim`` numbers; ``positions`` are integers [T], or [B, T] for x of [B, H, T, D], and
    0 … T - 1 unless given. Pair i turns by ``position · base^(-2i / dim)`` radians.

    * ``scaling``: `LinearScaling`, `DynamicNTK`, `YaRN` or `Llama3`.
    * ``interleaved``: pairs are (0, 1), (2, 3), … as in the paper; else number i goes with
      i + dim / 2, as in most published models (Llama, Qwen, GPT-NeoX).

    Angles are float32 whatever x is, as in those models. ArgumentError for an odd ``dim``.
    Source: Su et al. 2021, "RoFormer" (arXiv 2104.09864), eq. 34.

    >>> import torch
    >>> from eyeline.positions import Rotary
    >>> Rotary(2)(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))  # position 1 turns by one radian
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """

    dim: int
    base: float = 10_000.0
    scaling: Scaling | None = None
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise ArgumentError(
                f"Rotary(dim={self.dim}): numbers are turned in pairs, so dim is even and at "
                "least 2. With an odd head size give the even part that is to be turned."
            )

    def frequencies(self, length: int = 0) -> Tensor:
        """Radians per token of each pair, float32 [dim / 2].

        >>> Rotary(4, base=100.0).frequencies()
        tensor([1.0000, 0.1000])
        """
        if self.scaling is None:
            return _frequencies(self.dim, self.base)
        return self.scaling.frequencies(self.dim, self.base, length)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 [..., T, dim / 2], of positions [..., T]."""
        scaling, length = self.scaling, 0
        if scaling is not None and scaling.needs_length and positions.numel():
            length = int(positions.max()) + 1
        turns = positions.float().unsqueeze(-1) * self.frequencies(length).to(positions.device)
        size = 1.0 if scaling is None else scaling.magnitude
        return turns.cos() * size, turns.sin() * size

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        if x.dim() < 2 or x.shape[-1] < self.dim:
            raise ShapeError(
                f"Rotary(dim={self.dim}) turns the first {self.dim} numbers of x [..., T, D], "
                f"and got x {list(x.shape)}. Give a dim of at most D."
            )
        if positions is None:
            positions = torch.arange(x.shape[-2], device=x.device)
        positions = _beside(positions, x)
        cos, sin = (t.to(x.dtype) for t in self.angles(positions))
        turned, rest = x[..., : self.dim], x[..., self.dim :]
        if self.interleaved:
            one, two = turned[..., 0::2], turned[..., 1::2]
            pairs = torch.stack([one * cos - two * sin, two * cos + one * sin], dim=-1)
            turned = pairs.flatten(-2)
        else:
            one, two = turned.chunk(2, dim=-1)
            turned = torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def _beside(positions: Tensor, x: Tensor) -> Tensor:
    """Positions [T] or [B, T] with the dimensions of 1 that let them broadcast against x."""
    B = x.shape[0] if x.dim() > 2 else None
    if positions.shape[-1:] != x.shape[-2:-1] or positions.dim() not in (1, 2):
        raise ShapeError(
            f"positions {list(positions.shape)} beside x {list(x.shape)}: one position per token, "
            f"[T] or [B, T] with T = {x.shape[-2]}."
        )
    if positions.dim() == 1:
        return positions
    if B is None or positions.shape[0] not in (1, B):
        raise ShapeError(
            f"positions {list(positions.shape)} beside x {list(x.shape)}: the first size is x's, "
            "or 1."
        )
    return positions.view(positions.shape[0], *(1,) * (x.dim() - 3), positions.shape[1])


def _frequencies(dim: int, base: float) -> Tensor:
    return 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Positions divided by ``factor``.

    Source: Chen et al. 2023, "Extending Context Window … via Position Interpolation"
    (arXiv 2306.15595).

    >>> Rotary(4, base=100.0, scaling=LinearScaling(4.0)).frequencies()
    tensor([0.2500, 0.0250])
    """

    factor: float

    def frequencies(self, dim: int, base: float, length: int) -> Tensor:
        return _frequencies(dim, base) / self.factor


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """A base that grows with the text once it is longer than ``original`` tokens.

    Keys that a cache already holds keep the angles of the shorter text, as in transformers, so
    beyond ``original`` decoding step by step is not the same as one pass.
    Source: bloc97 and emozilla 2023; Peng et al. (arXiv 2309.00071), section 3.3 and appendix B.1.

    >>> rotary = Rotary(4, base=100.0, scaling=DynamicNTK(2.0, original=8))
    >>> rotary.frequencies(length=8), rotary.frequencies(length=16)
    (tensor([1.0000, 0.1000]), tensor([1.0000, 0.0333]))
    """

    factor: float
    original: int

    def frequencies(self, dim: int, base: float, length: int) -> Tensor:
        stretch = self.factor * max(length, self.original) / self.original - (self.factor - 1)
        # A single pair turns by 1 whatever the base is, and the exponent has no value there.
        return _frequencies(dim, base * stretch ** (dim / (dim - 2)) if dim > 2 else base)

    @property
    def needs_length(self) -> bool:
        return True


@dataclass(frozen=True)
class YaRN(Scaling):
    """Fast pairs keep their frequency, slow ones are divided by ``factor``, a ramp lies between.

    A pair is fast if it turns more than ``beta_fast`` times in ``original`` tokens, and slow if
    less than ``beta_slow`` times. ``attention_factor`` multiplies cosines and sines,
    ``0.1 · ln(factor) + 1`` unless given; ``truncate`` rounds the ramp's ends to whole pairs.
    Source: Peng et al. 2023, "YaRN" (arXiv 2309.00071), eq. 22 and 23.

    >>> scaling = YaRN(4.0, original=64)
    >>> Rotary(8, base=100.0, scaling=scaling).frequencies(), round(scaling.magnitude, 4)
    (tensor([1.0000, 0.2372, 0.0500, 0.0079]), 1.1386)
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def frequencies(self, dim: int, base: float, length: int) -> Tensor:
        low, high = (self._pair(turns, dim, base) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        high = high + 0.001 if low == high else high  # a ramp needs a width
        slow = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
        kept = 1 - slow
        periods = base ** (torch.arange(0, dim, 2).float() / dim)
        return 1.0 / (self.factor * periods) * (1 - kept) + 1.0 / periods * kept

    def _pair(self, turns: float, dim: int, base: float) -> float:
        """The pair, a real number, that turns this often in the original text."""
        return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))


@dataclass(frozen=True)
class Llama3(Scaling):
    """As Llama 3.1: long waves divided by ``factor``, short ones kept, a blend between.

    Short is a wavelength under ``original / high`` tokens, long one over ``original / low``.
    Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models" (arXiv 2407.21783) and the
    authors' code.

    >>> Rotary(8, base=100.0, scaling=Llama3(original=128)).frequencies()
    tensor([1.0000, 0.3162, 0.0428, 0.0040])
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def frequencies(self, dim: int, base: float, length: int) -> Tensor:
        plain = _frequencies(dim, base)
        wavelength = 2 * math.pi / plain
        blend = (self.original / wavelength - self.low) / (self.high - self.low)
        scaled = (1 - blend) * plain / self.factor + blend * plain
        scaled = torch.where(wavelength > self.original / self.low, plain / self.factor, scaled)
        return torch.where(wavelength < self.original / self.high, plain, scaled)


def sinusoidal(positions: int | Tensor, dim: int, base: float = 10_000.0) -> Tensor:
    """Sines and cosines to add to word vectors, float32 ``[T, dim]``.

    ``positions`` is a number of tokens, or a tensor [..., T] of places, which gives [..., T, dim].
    Entry 2i is ``sin(position / base^(2i / dim))``, entry 2i + 1 its cosine. ArgumentError for an
    odd ``dim``. Source: Vaswani et al. 2017, "Attention is all you need", section 3.5.

    >>> from eyeline.positions import sinusoidal
    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if dim < 2 or dim % 2:
        raise ArgumentError(
            f"sinusoidal(dim={dim}): sines and cosines come in pairs, so dim is even."
        )
    places = positions if isinstance(positions, Tensor) else torch.arange(positions)
    turns = places.double().unsqueeze(-1) * base ** (
        -torch.arange(0, dim, 2, dtype=torch.float64, device=places.device) / dim
    )
    return torch.stack([turns.sin(), turns.cos()], dim=-1).flatten(-2).float()


def t5_buckets(
    distance: Tensor, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128
) -> Tensor:
    """T5's bucket, int64 in 0 … buckets - 1, of each distance ``j - position(i)`` in tokens.

    Near distances have a bucket each, farther ones share one logarithmically, and all from
    ``max_distance`` on share the last. With ``bidirectional`` (an encoder) the upper half of the
    buckets is for keys behind the query; without, those keys are bucket 0.
    Source: Raffel et al. 2020, "T5" (arXiv 1910.10683), section 2.1, and the authors' code.

    >>> import torch
    >>> from eyeline.positions import t5_buckets
    >>> t5_buckets(torch.tensor([-200, -20, -1, 0, 1, 20]))
    tensor([15, 10,  1,  0, 17, 26])
    """
    count = buckets // 2 if bidirectional else buckets
    exact = count // 2
    if exact < 1 or max_distance <= exact:
        raise ArgumentError(
            f"t5_buckets(buckets={buckets}, max_distance={max_distance}): half of each side's "
            f"buckets are single distances, so there are at least {4 if bidirectional else 2} "
            f"buckets, and max_distance is more than {exact}."
        )
    behind = (distance > 0).long() * count if bidirectional else torch.zeros_like(distance)
    far = distance.abs() if bidirectional else (-distance).clamp(min=0)
    share = torch.log(far.float().clamp(min=1) / exact) / math.log(max_distance / exact)
    shared = (exact + (share * (count - exact)).long()).clamp(max=count - 1)
    return behind + torch.where(far < exact, far, shared)


def t5_table(embedding: Tensor, bidirectional: bool = True, max_distance: int = 128) -> Tensor:
    """T5's learned relative bias as a table ``[Hq, 2 · max_distance + 1]`` for `biases.relative`.

    ``embedding`` is the model's weight ``[buckets, Hq]``; gradients reach it. The table's middle is
    a query's own place, which is where `relative` looks for it, so the bias takes O(T) memory. T5
    does not divide its scores: pass ``scale=1.0`` too.

    >>> import torch, eyeline
    >>> from eyeline.biases import relative
    >>> from eyeline.positions import t5_table
    >>> embedding = torch.zeros(32, 1)
    >>> embedding[1] = 2.0                        # the bucket of the key just before
    >>> bias = relative(t5_table(embedding))
    >>> eyeline.weights(torch.zeros(3, 4), torch.zeros(3, 4), bias=bias, scale=1.0)[2]
    tensor([0.1065, 0.7870, 0.1065])
    """
    if embedding.dim() != 2:
        raise ShapeError(
            f"t5_table(embedding) takes the weight [buckets, Hq], not {list(embedding.shape)}."
        )
    distance = torch.arange(-max_distance, max_distance + 1, device=embedding.device)
    chosen = t5_buckets(distance, bidirectional, embedding.shape[0], max_distance)
    return embedding.index_select(0, chosen).t()
