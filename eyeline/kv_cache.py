"""KVCache: the keys and values of the tokens so far, so that a new token costs one row."""

from __future__ import annotations

import torch
from torch import Tensor

from eyeline.errors import ArgumentError, DtypeError, ShapeError
from eyeline.masks import Mask, causal, intervals


class KVCache:
    """Keys ``[..., T, D]`` and values ``[..., T, Dv]`` of the tokens so far, for one layer.

    ``append`` takes those of the new tokens and returns all that are held; decoding step by step
    gives the rows that one full causal pass gives. ``KVCache(before=w, first=s)`` rolls: a new
    token sees the w tokens before it and the first s of all, and memory stays at s + w tokens and
    those of the last step. One full pass under ``causal() & (window(w) | prefix(s))`` is the same.

    Without gradients, keys are written into a buffer that grows by doubling, so a step copies only
    its own; with gradients they are joined, and gradients reach every step.
    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"
    (arXiv 2309.17453), for the kept first tokens.

    >>> import torch, eyeline
    >>> from eyeline.kv_cache import KVCache
    >>> Q, K, V = torch.eye(3), torch.eye(3), torch.tensor([[1.0], [2.0], [3.0]])
    >>> cache = KVCache()
    >>> for t in range(3):
    ...     k, v = cache.append(K[t : t + 1], V[t : t + 1])
    ...     row, _ = eyeline.attention(Q[t : t + 1], k, v)
    >>> row, eyeline.attention(Q, K, V, eyeline.causal())[0][-1:]
    (tensor([[2.2066]]), tensor([[2.2066]]))
    """

    def __init__(self, before: int | None = None, first: int = 0) -> None:
        if first < 0 or (before is not None and before < 0):
            raise ArgumentError(
                f"KVCache(before={before}, first={first}): both are numbers of tokens."
            )
        if first and before is None:
            raise ArgumentError(
                f"KVCache(first={first}) without before= keeps everything already. Give before=w "
                "to keep the first tokens and the last w."
            )
        self.before = before
        self.first = first
        self.seen = 0
        """How many tokens were appended: the position of the next one."""
        self._k: Tensor | None = None  # [..., capacity, D]; the first len(self) rows are held
        self._v: Tensor | None = None
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def __repr__(self) -> str:
        rolls = "" if self.before is None else f"before={self.before}, first={self.first}"
        return f"KVCache({rolls}): {self._held} of {self.seen} tokens held"

    @property
    def k(self) -> Tensor:
        """The keys that are held ``[..., len(cache), D]``."""
        return self._part(self._k)

    @property
    def v(self) -> Tensor:
        """The values that are held ``[..., len(cache), Dv]``."""
        return self._part(self._v)

    @property
    def nbytes(self) -> int:
        """Bytes that the cache takes, with the room it has for more."""
        buffers = [t for t in (self._k, self._v) if t is not None]
        return sum(t.numel() * t.element_size() for t in buffers)

    @property
    def positions(self) -> Tensor:
        """The position of every key that is held, int64 ``[len(cache)]``.

        >>> cache = KVCache(before=1, first=1)
        >>> for _ in range(5):
        ...     _ = cache.append(torch.zeros(1, 2), torch.zeros(1, 2))
        >>> cache.positions
        tensor([0, 3, 4])
        """
        start = min(self.first, self._held)
        rest = torch.arange(self.seen - (self._held - start), self.seen)
        return torch.cat([torch.arange(start), rest])

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens; what is held now, the new ones last.

        ShapeError where they do not fit those held.
        """
        self._check(k, v)
        if self.before is None:
            self._k = _extended(self._k, self._held, k)
            self._v = _extended(self._v, self._held, v)
            self._held += k.shape[-2]
        else:
            self._k, self._v = self._rolled(self._k, k), self._rolled(self._v, v)
            self._held = self._k.shape[-2]
        self.seen += k.shape[-2]
        return self.k, self.v

    def mask(self, Tq: int) -> Mask:
        """Which of the keys held each of the last Tq tokens may see.

        Needed where several tokens are appended at once; a single one sees all that is held.

        >>> cache = KVCache(before=1, first=1)
        >>> for _ in range(2):
        ...     _ = cache.append(torch.zeros(3, 2), torch.zeros(3, 2))
        >>> print(cache.mask(3).draw(Tk=len(cache), labels=["0", "2", "3", "4", "5"]))
          0 2 3 4 5
        3 1 1 1 0 0
        4 1 0 1 1 0
        5 1 0 0 1 1
        """
        if self.before is None:
            return causal()
        own = torch.arange(self._held - Tq, self._held)  # the queries' columns
        starts = torch.stack([torch.zeros_like(own), (own - self.before).clamp(min=0)], dim=-1)
        stops = torch.stack([(own + 1).clamp(max=self.first), own + 1], dim=-1)
        return intervals(starts, stops)

    def trim(self, seen: int) -> None:
        """Forget the newest tokens, so that ``seen`` remain (for a draft that was refused).

        ArgumentError where a rolling cache no longer holds what token ``seen`` would look at.
        """
        if not 0 <= seen <= self.seen:
            raise ArgumentError(f"trim({seen}): {self.seen} tokens were seen.")
        gone = self.seen - seen
        if gone == 0:
            return
        forgotten = self.seen - self._held
        if forgotten and seen - (self.before or 0) < self.first + forgotten:
            raise ArgumentError(
                f"trim({seen}): a token at position {seen} would see the {self.before} before it, "
                f"and of those this cache holds position {self.first + forgotten} and later ones. "
                "Trim before it rolls on, or give a larger before=."
            )
        self._held, self.seen = self._held - gone, seen
        # The rows that are gone were handed out: what comes next must not be written over them.
        self._k, self._v = self.k.clone(), self.v.clone()

    def reorder(self, index: Tensor) -> None:
        """Batch entries by index, int64 [B'], as beam search chooses them; one may come twice.

        >>> cache = KVCache()
        >>> _ = cache.append(torch.tensor([[[1.0]], [[2.0]]]), torch.zeros(2, 1, 1))
        >>> cache.reorder(torch.tensor([1, 1]))
        >>> cache.k.flatten()
        tensor([2., 2.])
        """
        if self._k is None or self._v is None:
            return
        if self._k.dim() < 3:
            raise ShapeError(
                f"reorder() chooses batch entries, and this cache holds k {list(self.k.shape)} "
                "without a batch."
            )
        self._k = self.k.index_select(0, index.to(self._k.device))
        self._v = self.v.index_select(0, index.to(self._v.device))

    def reset(self) -> None:
        """Forget everything."""
        self._k = self._v = None
        self._held = self.seen = 0

    def _part(self, buffer: Tensor | None) -> Tensor:
        if buffer is None:
            raise ArgumentError("This KVCache is empty: append keys and values first.")
        return buffer[..., : self._held, :]

    def _rolled(self, buffer: Tensor | None, new: Tensor) -> Tensor:
        """What the new tokens may see, and the new tokens."""
        if buffer is None:
            return new
        assert self.before is not None
        tail = max(min(self.first, self._held), self._held - self.before)
        return torch.cat([buffer[..., : self.first, :], buffer[..., tail:, :], new], dim=-2)

    def _check(self, k: Tensor, v: Tensor) -> None:
        if k.dim() < 2 or k.dim() != v.dim() or k.shape[:-1] != v.shape[:-1]:
            raise ShapeError(
                f"append() takes keys [..., T, D] and values [..., T, Dv] of the same tokens, "
                f"and got k {list(k.shape)}, v {list(v.shape)}."
            )
        if self._k is None or self._v is None:
            return
        for name, new, held in (("k", k, self._k), ("v", v, self._v)):
            if (new.shape[:-2], new.shape[-1]) != (held.shape[:-2], held.shape[-1]):
                raise ShapeError(
                    f"append() got {name} {list(new.shape)} and holds {name} "
                    f"{list(self._part(held).shape)}: all sizes but the tokens' must agree. "
                    "reorder() chooses batch entries, reset() starts anew."
                )
            if (new.dtype, new.device) != (held.dtype, held.device):
                raise DtypeError(
                    f"append() got {name} as {new.dtype} on {new.device} and holds {held.dtype} on "
                    f"{held.device}. reset() starts anew."
                )


def _extended(buffer: Tensor | None, held: int, new: Tensor) -> Tensor:
    """A buffer whose rows from `held` on are the new ones."""
    if buffer is None:
        return new
    total = held + new.shape[-2]
    if torch.is_grad_enabled() and (buffer.requires_grad or new.requires_grad):
        return torch.cat([buffer[..., :held, :], new], dim=-2)
    locked = buffer.is_inference() and not torch.is_inference_mode_enabled()
    if locked or buffer.requires_grad or buffer.shape[-2] < total:
        shape = (*buffer.shape[:-2], max(total, 2 * held), buffer.shape[-1])
        larger = buffer.detach().new_zeros(shape)
        larger[..., :held, :] = buffer[..., :held, :]
        buffer = larger
    # `.data`, as weights of earlier steps watch the version of the rows they were made from,
    # and those rows do not change.
    buffer.data[..., held:total, :] = new
    return buffer
