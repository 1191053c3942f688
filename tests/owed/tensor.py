"""Owed: in place of a tensor, small weights are one and large weights say what to ask instead."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import eyeline
from tests.conformance import Setting, inputs, owed
from tests.rules import RULES


def both(backend: str, rule: str = "causal") -> tuple[eyeline.Weights, torch.Tensor]:
    """Lazy weights and the dense tensor they stand for."""
    mask, visible = RULES[rule]((2, 2), 6, 9)
    weights = Setting(*inputs(6, 9), mask, visible).weights(backend)
    return weights, weights.to_dense()


USES = {
    "compare": lambda w: w > 0.2,
    "times": lambda w: w * 2,
    "from the left": lambda w: 1 - w,
    "divided": lambda w: w / w.sum(-1, keepdim=True),
    "stack": lambda w: torch.stack([w, w]),
    "cat": lambda w: torch.cat([w, w], dim=1),
    "einsum": lambda w: torch.einsum("bhij->bji", w),
    "squeeze": lambda w: w[:1, :1].squeeze(),
    "unsqueeze": lambda w: w.unsqueeze(0),
    "transpose": lambda w: w.transpose(1, 2),
    "mT": lambda w: w.mT + 0,
    "reshape": lambda w: w.reshape(4, -1),
    "permute": lambda w: w.permute(0, 2, 3, 1),
    "flatten": lambda w: w.flatten(),
    "cpu": lambda w: w.cpu() + 0,
    "double": lambda w: w.double(),
    "to": lambda w: w.to(torch.float64),
    "clone": lambda w: w.clone() + 0,
    "contiguous": lambda w: w.contiguous() + 0,
    "where": lambda w: torch.where(w > 0.1, w, -1.0),
    "log": lambda w: w.clamp(min=1e-6).log(),
    "std": lambda w: w.std(-1),
    "sum of all": lambda w: w.sum(),
    "sum of two": lambda w: w.sum((-1, -2)),
    "mean of all": lambda w: w.mean(),
    "mean of dims": lambda w: w.mean(dim=(0, 1)),
    "max of all": lambda w: w.max(),
    "keepdim": lambda w: w.sum(-1, keepdim=True),
    "max keepdim": lambda w: w.max(-1, keepdim=True).values,
    "sort": lambda w: w.sort(-1).values,
    "cumsum": lambda w: w.cumsum(-1),
    "matmul": lambda w: torch.matmul(w, torch.ones(9, 2)),
    "from the right": lambda w: torch.ones(3, 6) @ w,
    "bool index": lambda w: w[torch.tensor([True, False])],
    "bool mask": lambda w: w[w > 0.2],
    "None": lambda w: w[:, None, 0],
    "step": lambda w: w[..., ::2, 1::3] + 0,
    "pairs": lambda w: w[0, 1, torch.tensor([0, 5]), torch.tensor([1, 2])],
    "diagonal": lambda w: torch.diagonal(w, dim1=-2, dim2=-1),
    "triu": lambda w: torch.triu(w),
    "allclose": lambda w: torch.tensor(torch.allclose(w, w + 0)),
    "softmax": lambda w: torch.softmax(w, -1),
    "iterate": lambda w: torch.stack([head[1] + 0 for head in w]),
    "asarray": lambda w: torch.from_numpy(np.asarray(w[0, 0])),
    "numpy": lambda w: torch.from_numpy(np.asarray(w.numpy())),
    "numpy mean": lambda w: torch.tensor(np.mean(np.asarray(w), axis=-1)),
    "tolist": lambda w: torch.tensor(w.tolist()),
    "item": lambda w: torch.tensor(w[0, 0, 0, 0].item()),
    "double index": lambda w: w[0][1][-1],
    "amax": lambda w: w.amax(-1),
    "norm": lambda w: torch.linalg.norm(w, dim=-1),
    "zeros_like": lambda w: torch.zeros_like(w),
    "pad": lambda w: torch.nn.functional.pad(w, (1, 1)),
    "interpolate": lambda w: torch.nn.functional.avg_pool2d(w, 3),
    "interval": lambda w: torch.quantile(w.float(), 0.5, dim=-1),
}


@owed(use=list(USES))
def small_weights_are_a_tensor(backend: str, use: str) -> None:
    weights, dense = both(backend)
    found, exact = USES[use](weights), USES[use](dense)
    torch.testing.assert_close(torch.as_tensor(found), exact)


@owed()
def facts_of_a_tensor(backend: str) -> None:
    w, dense = both(backend)
    assert isinstance(w, torch.Tensor)
    assert isinstance(w, eyeline.Weights)
    assert (w.shape, w.dtype, w.device) == (dense.shape, dense.dtype, dense.device)
    assert (w.dim(), w.ndim, w.numel(), len(w)) == (4, 4, dense.numel(), 2)
    assert (w.size(), w.size(-1), w.is_floating_point()) == (dense.size(), 9, True)
    assert f"{w[0, 0, 0, 0]:.3f}" == f"{dense[0, 0, 0, 0]:.3f}"
    assert w.problem.nbytes == 4 * (2 * 2 * 6 * 8 + 2 * 9 * 8) + w.problem.visible.nbytes


@owed()
def what_stays_lazy(backend: str) -> None:
    """The type of index decides: slices give Weights, ints and index tensors on rows a Tensor."""
    w, _ = both(backend)
    lazy = [
        w[0],
        w[0, 1],
        w[:, 1],
        w[..., 1:4, :],
        w[..., 2:5],
        w[0, 1, :, 2:],
        w.mean(1),
        w.detach(),
    ]
    lazy += [w[torch.tensor([1, 0])], w[:, torch.tensor([1])], w[..., -3:, -2:]]
    assert all(isinstance(x, eyeline.Weights) for x in lazy)
    there = [w[0, 1, 2], w[..., 3], w[0, 1, 2, 3], w[..., torch.tensor([1, 2]), :], w[:, :, -1]]
    assert not any(isinstance(x, eyeline.Weights) for x in there)


@owed(rule=["full", "causal", "table"])
def printing_is_torchs_and_one_line(backend: str, rule: str) -> None:
    w, dense = both(backend, rule)
    *numbers, last = str(w).splitlines()
    assert "\n".join(numbers).split() == str(dense).split()
    assert "[2, 2, 6, 9]" in last
    assert repr(w) == str(w)


@owed()
def large_prints_compute_the_edges_alone(backend: str) -> None:
    """What torch prints of a large tensor, where the dense one could not be had at all."""
    T = 3000 if backend != "small tiles" else 200
    q, k = torch.randn(T, 4), torch.randn(T, 4)
    w = eyeline.weights(q, k, eyeline.causal(), backend=backend)
    *numbers, last = str(w).splitlines()
    assert "\n".join(numbers).split() == str(w.to_dense()).split()
    assert f"[{T}, {T}]" in last
    assert "causal" in last


LARGE_USES = [
    "times",
    "compare",
    "stack",
    "sort",
    "flatten",
    "asarray",
    "tolist",
    "numpy",
    "softmax",
]


@owed(use=LARGE_USES)
def large_weights_are_refused(backend: str, use: str) -> None:
    """The bytes it would take, the limit, and what to ask instead."""
    q = torch.randn(5000, 2)
    w = eyeline.weights(q, q, backend=backend)[None, None]
    with pytest.raises(eyeline.errors.DenseError) as refused:
        USES[use](w)
    text = str(refused.value)
    assert ("191 MiB" if use == "stack" else "95 MiB") in text  # stack was given it twice
    assert "64 MiB" in text
    assert "eyeline." in text


@owed()
def the_limit_can_be_named(backend: str) -> None:
    w, dense = both(backend)
    with pytest.raises(eyeline.errors.DenseError):
        w.to_dense(limit=100)
    torch.testing.assert_close(w.to_dense(limit=dense.numel() * 4), dense)


@owed()
def weights_learn_through_any_operation(backend: str) -> None:
    q, k, _ = (x.requires_grad_() for x in inputs(5, dtype=torch.float64))
    lazy = eyeline.weights(q, k, backend=backend)
    (lazy * 2 + lazy[..., 0].exp()[..., None]).square().sum().backward()
    mine = q.grad
    q.grad = None
    dense = (q @ k.repeat_interleave(2, 1).mT * q.shape[-1] ** -0.5).softmax(-1)
    (dense * 2 + dense[..., 0].exp()[..., None]).square().sum().backward()
    torch.testing.assert_close(mine, q.grad)


@owed()
def saved_weights_are_dense_or_nothing(backend: str) -> None:
    """pickle and torch.save never keep a husk."""
    w, dense = both(backend)
    again = pickle.loads(pickle.dumps(w))
    torch.testing.assert_close(torch.as_tensor(again) + 0, dense)
