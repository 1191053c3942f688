"""A lesson on one head of a real model: its X, Q, K, V as they are in a running forward pass."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from eyeline.errors import EyelineError, ModelError
from eyeline.lesson.data import Settings
from eyeline.lesson.ledger import Ledger, given, run
from eyeline.lesson.splitting import MOST
from eyeline.models import LoadedModel, load

# What the projection to values is called in the models that watch can see.
_VALUE = re.compile(r"(^|\.)(v_proj|value|v_lin)$")


def model_ledger(
    settings: Settings,
    download: bool = False,
    progress: Callable[[str], None] | None = None,
) -> tuple[Settings, Ledger, Ledger, Tensor]:
    """The settings completed by what the model has, the ledger of its layer and head, that ledger
    with nothing changed, and the weights of all the layer's heads, [H, n, n].

    Errors: ModelError for a model that cannot be had, or whose values cannot be told apart;
    EyelineError for a layer or head that is not there, or a text of more than 64 tokens.
    """
    assert settings.model is not None
    loaded = load(settings.model, download=download, progress=progress)
    tokens = loaded.tokens(settings.text)
    if not settings.text.strip():
        raise EyelineError("The text is empty: give a few words to explain attention with.")
    if len(tokens) > MOST:
        raise EyelineError(
            f"The text has {len(tokens)} tokens and a lesson shows at most {MOST}: give a"
            " sentence, or see a long text with `eyeline look`."
        )
    for name, at, most in (
        ("layer", settings.layer, loaded.layers),
        ("head", settings.head, loaded.heads),
    ):
        if not 0 <= at < most:
            raise EyelineError(f"There is no {name} {at}: the {name}s are 0 to {most - 1}.")
    plain = replace(settings, scale=None, causal=loaded.causal)
    if settings.causal is None:
        settings = replace(settings, causal=loaded.causal)
    start = (
        "import math",
        "import torch",
        "import eyeline.models",
        f"loaded = eyeline.models.load({settings.model!r})",
        f"tokens = loaded.tokens({settings.text!r})",
        f"values = loaded.model.get_submodule({_values(loaded, settings.layer)!r})",
        "kept = []",
        "hook = values.register_forward_hook(lambda _, x, y: kept.append((x[0], y)))",
        "with torch.no_grad(), eyeline.watch(loaded.model) as seen:",
        "    loaded.model(**loaded.inputs(tokens))",
        "hook.remove()",
        "X = kept[0][0][0]",
    )
    layer, head = settings.layer, settings.head
    project = (
        f"problem = seen[{layer}].problem",
        f"Q = problem.q[0, {head}]",
        f"K = problem.k[0, {head} // problem.group]",
        f"V = kept[0][1][0].view(len(X), problem.Hk, -1)[:, {head} // problem.group]",
    )
    # the model is here already, so its line is printed and not run
    unloaded = tuple(line for line in start if not line.startswith("loaded ="))
    names = run({"vectors": unloaded, "project": project}, {"loaded": loaded})
    problem = names["problem"]
    own = problem.scale
    if not math.isclose(own, problem.q.shape[-1] ** -0.5):
        plain = replace(plain, scale=own)
        settings = replace(settings, scale=own) if settings.scale is None else settings
    ledger, base = (
        given(chosen, tokens.pieces, start, project, names) for chosen in (settings, plain)
    )
    heads = names["seen"][layer][0].to_dense()
    if not torch.allclose(base["weights"], heads[head].float(), atol=1e-4):
        raise ModelError(
            f"{loaded.title} adds more to its scores than a scale and a causal mask, which the"
            " lesson has no step for. See its weights with `eyeline look`."
        )
    return settings, ledger, base, heads


def _values(loaded: LoadedModel, layer: int) -> str:
    """The name of the module that makes this layer's values."""
    found: list[str] = [name for name, _ in loaded.model.named_modules() if _VALUE.search(name)]
    if len(found) != loaded.layers:
        raise ModelError(
            f"{loaded.title} keeps its values in no module of its own, so they cannot be shown."
            " See its weights with `eyeline look`."
        )
    return found[layer]
