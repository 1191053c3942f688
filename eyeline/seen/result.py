"""What was seen of one text: the attention calls in order, as lazy weights by number and name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from eyeline.calls import Call, Missing
from eyeline.errors import ArgumentError, ModelError
from eyeline.lazy import Weights
from eyeline.seen import keeping, names, table
from eyeline.seen.words import SeenWords

if TYPE_CHECKING:
    from eyeline.tokens import Tokens


class Seen:
    """The attention calls of one forward pass, or of one generated text, in the order they ran in.

    `seen[3]` or `seen["L3"]` is the lazy weights [B, H, Tq, Tk] of layer 3, `seen["L3H1"]` those
    of its head 1 ([Tq, Tk] for a batch of one, else [B, Tq, Tk]), `seen["encoder.layer.3"]` finds
    a layer by the path of its module or the beginning of it. A module that ran again in the same
    forward is listed again with "#2", "#3", ... The weights are built when first asked for, from
    queries and keys that are held until `seen` goes. What ran and was not seen stands in `missing`.

    `tokens` are those of the text, where someone set them; `model` is the name of what ran, and
    `about` any facts of yours that a recording is to keep, as JSON has them.
    """

    def __init__(
        self,
        calls: Iterable[Call] = (),
        missing: Iterable[Missing] = (),
        *,
        tokens: Tokens | None = None,
        generated: Tensor | None = None,
    ) -> None:
        self.tokens = tokens
        self.model: str | None = None
        self.about: dict[str, Any] = {}
        self._unsettled: Callable[[], None] | None = None  # brings what was noted in passing
        self._held = list(calls)
        self._written = generated
        self._missing = tuple(missing)
        self._weights: dict[int, Weights] = {}
        self._versions = [keeping.versions(call) for call in self._held]

    @property
    def _calls(self) -> list[Call]:
        self._settle()
        return self._held

    @property
    def generated(self) -> Tensor | None:
        """bool [T], True for the rows of tokens that the model wrote itself; None of no writing."""
        self._settle()
        return self._written

    @generated.setter
    def generated(self, rows: Tensor | None) -> None:
        self._settle()
        self._written = rows

    @property
    def calls(self) -> tuple[Call, ...]:
        """What each call of an attention was given, in call order."""
        return tuple(self._calls)

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each call's module, in call order."""
        return tuple(call.name for call in self._calls)

    @property
    def kinds(self) -> tuple[str, ...]:
        """For each call "self", or "cross" where the keys come from another sequence."""
        return tuple(call.kind for call in self._calls)

    @property
    def kernel(self) -> str:
        """What computed the model's outputs: "own", its own code, or "eyeline"."""
        return self._calls[0].kernel if self._calls else "own"

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The modules that ran attention which could not be seen, and why."""
        self._settle()
        return self._missing

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Weights]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: int | str) -> Weights:
        layer, head = self._place(key)
        if layer not in self._weights:
            self._weights[layer] = self._made(layer)
        weights = self._weights[layer]
        return weights if head is None else names.one_head(weights, head)

    def __repr__(self) -> str:
        return table.text(self._calls, self.missing, self.kernel)

    def _repr_html_(self) -> str:
        return table.html(self._calls, self.missing, self.kernel)

    def __getstate__(self) -> dict[str, Any]:
        for call, before in zip(self._calls, self._versions, strict=True):
            keeping.check(call, before)
        return {**vars(self), "_weights": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._versions = [keeping.versions(call) for call in self._calls]

    def real(self, key: int | str) -> Tensor | None:
        """bool [B, T], False for the rows of a layer that are padding; None where all are real.

        Known for self-attention that was given a 2-D attention mask. Rows of padding attend to
        the real keys and mean nothing.
        """
        return self._calls[self._index(key)].real

    def values(self, key: int | str) -> Tensor:
        """v [B, Hk, Tk, Dv] of a layer, of a model watched with `values=True`."""
        index = self._index(key)
        call = self._calls[index]
        keeping.check(call, self._versions[index])
        if call.v is None:
            raise ArgumentError(
                f"The values of {call.name} were not kept: watch(model, values=True) keeps them."
            )
        return call.v

    def words(self, spans: Any = None, cols: Any = None) -> SeenWords:
        """The same over words: `seen.words()[3]` is the lazy weights [B, H, words, words].

        Columns are added and rows averaged, so rows sum to what they did. The words are those of
        `seen.tokens`, or of other tokens given; or `spans`, as in `eyeline.spans.weights_over`.
        `cols` are spans of the keys where those are of another sequence.

        >>> import torch
        >>> x = torch.zeros(1, 2, 3, 4)
        >>> Seen([Call("layer", x, x)]).words([(0, 1), (1, 3)])["L0H1"].to_dense()
        tensor([[0.3333, 0.6667],
                [0.3333, 0.6667]])
        """
        return SeenWords(self, spans, cols)

    def save(self, path: Any) -> None:
        """Write it all to a file that `eyeline.load` reads back without the model."""
        importlib.import_module("eyeline.recording").save(self, path)

    def gradients(self, loss: Tensor) -> Any:
        """How `loss` changes with the weights of each layer; see `eyeline.acting.gradients`."""
        return importlib.import_module("eyeline.acting").gradients(self, loss)

    def _made(self, index: int) -> Weights:
        """The weights of a layer, made when it is first asked for."""
        keeping.check(self._calls[index], self._versions[index])
        return self._calls[index].weights()

    def _place(self, key: int | str) -> tuple[int, int | None]:
        """(layer, head) of "L3H1", (layer, None) of any other key; an error for none of these."""
        named = names.parsed(key)
        if named is None or named[1] is None:
            return self._index(key), None
        layer, head = self._index(named[0]), named[1]
        heads = self._calls[layer].q.shape[1]
        if head >= heads:
            raise ModelError(
                f"There is no {key}: layer {layer} ({self.names[layer]}) has heads 0 to"
                f" {heads - 1}."
            )
        return layer, head

    def _index(self, key: int | str) -> int:
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            raise ArgumentError(
                f"A layer is asked for by its number or name, a head as 'L3H1'; got {key!r}."
            )
        if isinstance(key, str) and not self._calls and (unseen := self._unseen(key)):
            raise ModelError(unseen)
        if not self._calls:
            raise ModelError("No attention has been seen yet: call the model inside the block.")
        if isinstance(key, str):
            return self._named(key)
        if not -len(self) <= key < len(self):
            raise ModelError(f"There is no layer {key}: layers 0 to {len(self) - 1} were seen.")
        return key % len(self)

    def _named(self, key: str) -> int:
        exact = [i for i, name in enumerate(self.names) if name == key]
        below = (f"{key}.", f"{key}#")
        found = exact or [i for i, name in enumerate(self.names) if name.startswith(below)]
        if len(found) == 1:
            return found[0]
        if not found and (unseen := self._unseen(key)):
            raise ModelError(unseen)
        numbered = None if found else names.parsed(key)
        if numbered is not None and numbered[1] is None:
            return self._index(numbered[0])
        problem = "is the beginning of several" if found else "is none"
        listed = [self.names[i] for i in found] or list(self.names)
        shown = ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "")
        raise ModelError(
            f"{key!r} {problem} of the layers that were seen: {shown}.\n"
            'Give a whole name, a number as seen[3], or a head as seen["L3H1"].'
        )

    def _unseen(self, key: str) -> str | None:
        """What to say of a name that ran and was not seen."""
        for one in self.missing:
            if one.name == key or one.name.startswith(f"{key}.") or key.startswith(f"{one.name}."):
                kept = "" if one.dense is None else " What it returned itself is in .dense there."
                return f"{one.name} was not seen: {one.reason}\nIt stands in seen.missing.{kept}"
        return None

    def _start(self) -> None:
        """Forget the last forward: a new one begins."""
        self._held.clear()
        self._versions.clear()
        self._weights.clear()
        self._missing = ()

    def _add(self, call: Call) -> None:
        self._held.append(call)
        self._versions.append(keeping.versions(call))

    def _replace(self, calls: Iterable[Call]) -> None:
        """Put other calls in place of those that are there."""
        self._held[:] = calls
        self._versions[:] = [keeping.versions(call) for call in self._held]
        self._weights.clear()

    def _miss(self, missing: tuple[Missing, ...]) -> None:
        self._missing = missing

    def _settle(self) -> None:
        if self._unsettled is not None:
            self._unsettled()
