"""What a running model's attention saw: `watch(model)` and the lazy weights it gives.

The model computes exactly what it computes unwatched: its own kernel makes its output. Queries,
keys and the mask are kept by reference; weights are formed from them only when asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyeline.api import weights
from eyeline.errors import ArgumentError, ModelError
from eyeline.lazy import Weights
from eyeline.masks import Mask

_HEAD = re.compile(r"L(\d+)H(\d+)")
_UNSEEN = (
    "The model was not called inside `with watch(model)`.",
    "It was called through another object than the one that is watched (a compiled or traced"
    " copy, a deepcopy, another process).",
    "It computes attention with code of its own, beside transformers' attention interface.",
)


@dataclass(frozen=True)
class Call:
    """One call of an attention: what its weights are made from, by reference.

    q [B, Hq, Tq, D] and k [B, Hk, Tk, D]; `mask` a rule or a bool tensor; `bias` is added to the
    scores, and so is `additive`, a float tensor that also hides where it holds -inf or its
    dtype's lowest value. `real` bool [B, T] marks the rows that are no padding, where known.
    """

    name: str
    q: Tensor
    k: Tensor
    mask: Mask | Tensor | None = None
    bias: Tensor | None = None
    additive: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    real: Tensor | None = None

    def weights(self) -> Weights:
        """The lazy weights [B, Hq, Tq, Tk] of this call."""
        mask, bias = self.mask, self.bias
        if self.additive is not None:
            visible, added = _parted(self.additive)
            mask = visible if mask is None else mask
            bias = added if bias is None else bias if added is None else bias + added
        return weights(
            self.q,
            self.k,
            mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
        )


def _parted(additive: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A float mask as (what may be seen, what is added); None where there is nothing of it."""
    visible = additive > torch.finfo(additive.dtype).min
    added = torch.where(visible, additive, additive.new_zeros(()))
    return (
        None if bool(visible.all()) else visible,
        added if bool(added.count_nonzero()) else None,
    )


class Seen:
    """The attention calls of one forward pass, in the order in which they ran.

    `seen[3]` is the lazy weights [B, H, Tq, Tk] of layer 3, `seen["L3H1"]` those of its head 1
    ([Tq, Tk] for a batch of one, else [B, Tq, Tk]), `seen["encoder.layer.3"]` finds a layer by
    the path of its module or the beginning of it. A module that ran again in the same forward is
    listed again with "#2", "#3", ... The weights are built when first asked for, from queries and
    keys that are held until `seen` goes.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._weights: dict[int, Weights] = {}
        self._missed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each call's module, in call order."""
        return tuple(call.name for call in self._calls)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Paths of the modules that ran attention of their own, which watch() could not see."""
        return self._missed

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Weights]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: int | str) -> Weights:
        if isinstance(key, str) and (found := _HEAD.fullmatch(key)):
            layer, head = (int(number) for number in found.groups())
            return self._head(key, layer, head)
        if not isinstance(key, (int, str)):
            raise ArgumentError(
                f"A layer is asked for by its number or name, a head as 'L3H1'; got {key!r}."
            )
        index = self._index(key)
        if index not in self._weights:
            self._weights[index] = self._calls[index].weights()
        return self._weights[index]

    def __repr__(self) -> str:
        if not self._calls:
            return "Seen(nothing yet)"
        B, Hq, Tq, D = self._calls[0].q.shape
        sizes = f"B={B}, Hq={Hq}, Tq={Tq}, Tk={self._calls[0].k.shape[-2]}, D={D}"
        return f"Seen({len(self)} layers, the first {self.names[0]!r} with {sizes})"

    def real(self, key: int | str) -> Tensor | None:
        """bool [B, T], False for the rows of a layer that are padding; None where all are real.

        Known for self-attention that was given a 2-D attention mask. Rows of padding attend to
        the real keys and mean nothing.
        """
        return self._calls[self._index(key)].real

    def _head(self, key: str, layer: int, head: int) -> Weights:
        found = self[layer]
        if head >= found.shape[1]:
            raise ModelError(
                f"There is no {key}: layer {layer} ({self.names[layer]}) has heads 0 to"
                f" {found.shape[1] - 1}."
            )
        chosen: Weights = found[0, head] if found.shape[0] == 1 else found[:, head]
        return chosen

    def _index(self, key: int | str) -> int:
        if not self._calls:
            raise ModelError(_nothing())
        if isinstance(key, str):
            return self._named(key)
        if not -len(self) <= key < len(self):
            raise ModelError(f"There is no layer {key}: layers 0 to {len(self) - 1} were seen.")
        return key % len(self)

    def _named(self, key: str) -> int:
        names = self.names
        exact = [i for i, name in enumerate(names) if name == key]
        found = exact or [i for i, name in enumerate(names) if name.startswith(key + ".")]
        if len(found) == 1:
            return found[0]
        problem = "is the beginning of several" if found else "is none"
        listed = [names[i] for i in found] or list(names)
        shown = ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
        raise ModelError(
            f"{key!r} {problem} of the layers that were seen: {shown}.\n"
            'Give a whole name, a number as seen[3], or a head as seen["L3H1"].'
        )

    def _start(self) -> None:
        """Forget the last forward: a new one begins."""
        self._calls.clear()
        self._weights.clear()
        self._missed = ()

    def _add(self, call: Call) -> None:
        self._calls.append(call)

    def _miss(self, names: tuple[str, ...]) -> None:
        self._missed = names


def watch(model: torch.nn.Module) -> AbstractContextManager[Seen]:
    """Look into the attention of a model while it runs; what it computes does not change by a bit.

    Takes models of Hugging Face transformers (5.18 or newer) in eager or SDPA attention, also
    inside another module. Each call of `model` starts afresh, so after several only the last is
    kept; a `generate` keeps its last step. What was touched is restored when the block ends, also
    by an exception. Raises ModelError for models that cannot be looked into, and at the end of a
    block in which nothing was seen.

    >>> import torch
    >>> from eyeline.models import load
    >>> loaded = load("minilm")
    >>> text = "The keys to the old cabinet are on the table because they were too heavy to carry."
    >>> tokens = loaded.tokens(text)
    >>> with torch.no_grad(), watch(loaded.model) as seen:
    ...     output = loaded.model(**loaded.inputs(tokens))
    >>> len(seen), seen[3].shape
    (6, torch.Size([1, 12, 20, 20]))
    >>> they, keys = tokens.pieces.index("they"), tokens.pieces.index("keys")
    >>> print(f"{seen['L3H1'][they, keys]:.2f}")
    0.48
    """
    return _watching(model)


@contextmanager
def _watching(model: torch.nn.Module) -> Iterator[Seen]:
    seen = Seen()
    with _integration(model).recorded(model, seen):
        yield seen
    if not len(seen):
        raise ModelError(_nothing())


def _integration(model: torch.nn.Module) -> Any:
    """The module that knows how to look into this model; transformers is never imported for it."""
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            f"watch() takes a model, a torch.nn.Module, and this is a {type(model).__name__}."
        )
    whole = getattr(model, "_orig_mod", None)
    if isinstance(whole, torch.nn.Module):
        raise ModelError(
            "watch() cannot look into a compiled model: its attention calls are no longer there.\n"
            "Watch and call the model that was given to torch.compile."
        )
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is not None and any(
        isinstance(module, transformers.PreTrainedModel) for module in model.modules()
    ):
        from eyeline.integrations import huggingface

        return huggingface
    raise ModelError(
        f"watch() looks into models of Hugging Face transformers, and {type(model).__name__}"
        f" ({type(model).__module__}) holds none.\n"
        "For attention of your own, call eyeline.attention(q, k, v, mask) or"
        " eyeline.weights(q, k, mask) in it."
    )


def _nothing() -> str:
    reasons = "\n".join(f"  - {reason}" for reason in _UNSEEN)
    return f"watch() has seen no attention. Possible reasons:\n{reasons}"
