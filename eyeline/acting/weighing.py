"""What weights do: the values that they carry, and how a loss changes with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import ArgumentError, ShapeError
from eyeline.lazy import Weights
from eyeline.lazy.weighed import Weighed, weighed
from eyeline.seen import Call, Seen, names


def value_norm(weights: Weights, v: Tensor) -> Weighed:
    """``w_ij · |v_j|``: how much of each key's value each query takes, lazily ``[..., Tq, Tk]``.

    A large weight on a short vector moves nothing. v ``[..., Hk, Tk, Dv]`` are the values, as
    ``seen.values(3)`` has them, or what else the weights are to be measured by, such as the values
    after the output projection. Rows, columns, sums and readings answer as for weights; rows do not
    sum to 1. Without a gradient.
    Source: Kobayashi et al. 2020 (arXiv 2004.10102), with f(x) the values given.

    >>> import torch, eyeline
    >>> from eyeline.acting import value_norm
    >>> weights = eyeline.weights(torch.zeros(1, 2), torch.zeros(2, 2))
    >>> value_norm(weights, torch.tensor([[3.0, 4.0], [0.0, 1.0]]))[0]
    tensor([2.5000, 0.5000])
    """
    if not isinstance(weights, Weights):
        raise ArgumentError(
            "value_norm(weights, v) takes the weights that eyeline.attention returns, or those of "
            f"a layer, as seen[3], and got {type(weights).__name__}."
        )
    if not isinstance(v, Tensor) or v.dim() < 2 or v.shape[-2] != weights.shape[-1]:
        shape = list(v.shape) if isinstance(v, Tensor) else type(v).__name__
        raise ShapeError(
            f"value_norm() needs one value per key: weights {list(weights.shape)}, v {shape}.\n"
            f"Give v as [..., {weights.shape[-1]}, Dv]."
        )
    norms = torch.linalg.vector_norm(v.detach().to(weights.problem.statistics), dim=-1)
    b = _per_query_head(norms.unsqueeze(-1), weights)
    return weighed(weights, b.new_ones(weights.shape[-2], 1), b)


class Gradients:
    """How a loss changes with the weights of each layer, as lazy matrices.

    ``gradients[3]`` and ``gradients["L3H1"]`` are ``dloss/dw``; ``gradients.times_weights`` has
    ``w · dloss/dw`` under the same keys: to first order, what the loss owes to a weight.
    """

    def __init__(self, seen: Seen, found: list[Tensor | None], times: bool = False) -> None:
        self._seen, self._found, self._times = seen, found, times

    @property
    def times_weights(self) -> Gradients:
        """Gradient times attention, ``w · dloss/dw``, for every layer."""
        return Gradients(self._seen, self._found, times=True)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Weighed]:
        return (self[layer] for layer in range(len(self)))

    def __getitem__(self, key: int | str) -> Weighed:
        layer, head = self._seen._place(key)
        call, found = self._seen.calls[layer], self._found[layer]
        weights = self._seen[layer]
        assert call.v is not None
        if found is None:  # the loss does not depend on this layer
            found = call.v.new_zeros(*weights.shape[:-1], call.v.shape[-1])
        b = _per_query_head(self._seen.values(layer), weights)
        made = weighed(weights, found, b, alone=not self._times)
        return made if head is None else names.one_head(made, head)

    def __repr__(self) -> str:
        what = "w · dloss/dw" if self._times else "dloss/dw"
        return f"{what} of {self._seen!r}"


def gradients(seen: Seen, loss: Tensor) -> Gradients:
    """``dloss/dw = dout vᵀ`` of every layer, and gradient times attention; `seen.gradients(loss)`.

    Watch with ``values=True`` and grad enabled, dropout off, and ask before ``loss.backward()``
    frees the graph, or after ``loss.backward(retain_graph=True)``. Kept are the gradients of each
    attention's output ``[B, Hq, Tq, Dv]``; no matrix is formed before it is asked for. Hidden pairs
    have 0. Source: Barkan et al. 2021 (arXiv 2106.12620), gradient times attention.

    >>> import torch
    >>> from eyeline import watch
    >>> from eyeline.models import load
    >>> loaded = load("minilm")
    >>> model = loaded.model.requires_grad_(True)   # it is loaded with its weights fixed
    >>> tokens = loaded.tokens("The keys are on the table.")
    >>> with watch(model, values=True) as seen:
    ...     output = model(**loaded.inputs(tokens))
    >>> found = seen.gradients(output.last_hidden_state[0, 0].square().sum())
    >>> found[3].shape, float(found.times_weights["L3H1"][0].abs().sum()) > 0
    (torch.Size([1, 12, 9, 9]), True)
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.grad_fn is None:
        raise ArgumentError(
            "gradients(loss) takes one number that the model computed with grad enabled, such as"
            " output.logits[0, -1].max(). Run the model without torch.no_grad()."
        )
    outs = [_output(call) for call in seen.calls]
    try:
        found = torch.autograd.grad(
            loss.reshape(()), outs, retain_graph=True, allow_unused=True, materialize_grads=False
        )
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise ArgumentError(
            "The graph of this loss is gone: ask for seen.gradients(loss) before loss.backward(),"
            " or call loss.backward(retain_graph=True)."
        ) from error
    return Gradients(seen, [None if one is None else one.detach() for one in found])


def _output(call: Call) -> Tensor:
    if call.dropout:
        raise ArgumentError(
            f"{call.name} ran with dropout, which its gradient would have to know: call"
            " model.eval() first."
        )
    if call.v is None or call.out is None:
        raise ArgumentError(
            f"The values and the output of {call.name} were not kept: gradients need"
            " watch(model, values=True), and grad enabled."
        )
    return call.out


def _per_query_head(t: Tensor, weights: Weights) -> Tensor:
    """[..., Hk, Tk, F] for the query heads that read each key head."""
    lead: Any = weights.shape[:-2]
    if t.dim() < 3 or not lead or t.shape[-3] in (1, lead[-1]):
        return t
    if lead[-1] % t.shape[-3]:
        raise ShapeError(
            f"Weights {list(weights.shape)} have {lead[-1]} heads, which {t.shape[-3]} heads of"
            f" values {list(t.shape)} do not divide."
        )
    return t.repeat_interleave(lead[-1] // t.shape[-3], dim=-3)
