"""`watch(model)`: look into the attention of a model while it runs.

The model computes exactly what it computes unwatched: its own kernel makes its output. Queries,
keys and the mask are kept by reference; weights are formed from them only when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from eyeline import integrations
from eyeline.calls import Call
from eyeline.errors import ArgumentError, ModelError
from eyeline.seen.generation import Steps
from eyeline.seen.result import Seen

_NOTHING = (
    "The model was not called inside `with watch(model)`.",
    "It has no attention, as models of convolutions or recurrence alone.",
    "It was called through another object than the one that is watched (a compiled or traced"
    " copy, a deepcopy, another process).",
    "It ran in another thread than the block.",
    "It calls flash_attn, xformers or FlexAttention, or computes attention by hand or in a traced"
    " or scripted module: let it call torch.nn.functional.scaled_dot_product_attention.",
)


def watch(
    model: torch.nn.Module, *, values: bool = False, kernel: str = "own"
) -> AbstractContextManager[Seen]:
    """Look into the attention of a model while it runs; what it computes does not change by a bit.

    Takes models of Hugging Face transformers (5.18 or newer) in eager or SDPA attention, also
    inside another module, and any code that calls torch's own attention:
    `F.scaled_dot_product_attention`, nn.MultiheadAttention, nn.Transformer. Each call of `model`
    starts afresh, so after several only the last is kept; a `generate` is one text, a row for each
    token. `values=True` keeps v too. With `kernel="eyeline"` the outputs are computed by
    `eyeline.attention` in place of the model's own kernel: nothing of size Tq x Tk is formed, and
    the numbers differ by rounding. What was touched is restored when the block ends, also by an
    exception.

    Raises ModelError for models that cannot be looked into, and at the end of a block in which
    nothing was seen. What ran and was not seen stands in `seen.missing`.

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
    if kernel not in ("own", "eyeline"):
        raise ArgumentError(f"kernel is {kernel!r}: give 'own' or 'eyeline'.")
    return _watching(model, values, kernel)


@contextmanager
def _watching(model: torch.nn.Module, values: bool, kernel: str) -> Iterator[Seen]:
    seen = Seen()
    seen.model = _name(model)
    steps = Steps(seen, values)

    def handle(call: Call, own: Callable[[], Tensor]) -> Tensor:
        out = own() if kernel == "own" else call.attention()
        if values and out.requires_grad:
            call = call.but(out=out)
        steps.add(call.but(kernel=kernel) if kernel != "own" else call)
        return out

    replaced = kernel != "own"
    note = None if replaced or values else steps
    with integrations.intercepted(
        model, handle, steps.start, steps.end, rules=replaced, note=note
    ) as bring:
        steps.bring = bring
        try:
            yield seen
            steps.close()
        finally:
            steps.release()
    if not steps.any and all(one.dense is None for one in seen.missing):
        raise ModelError(_nothing(seen))


def _name(model: torch.nn.Module) -> str:
    """What a model calls itself, of a path the last part; else its class."""
    told = getattr(getattr(model, "config", None), "name_or_path", None)
    if not isinstance(told, str) or told in ("", "None"):  # transformers' word for weights alone
        return type(model).__name__
    return os.path.basename(os.path.normpath(told)) if os.path.isabs(told) else told


def _nothing(seen: Seen) -> str:
    reasons = [f"{missing.name}: {missing.reason}" for missing in seen.missing] or _NOTHING
    listed = "\n".join(f"  - {reason}" for reason in reasons)
    return f"watch() has seen no attention. Possible reasons:\n{listed}"
