"""What is measured of a model that is watched: how it is seen, how exact, and that nothing changes.

`measure(case)` gives one row of docs/models.md. Nothing in a row is typed in: how an attention is
seen is counted by opening each door of `eyeline.integrations` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from eyeline.errors import ModelError
from eyeline.integrations import huggingface_door, torch_door
from eyeline.integrations.paths import modules_of
from eyeline.seen import Seen, watch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NEW = 64
Pairs = list[tuple[int, Tensor, Tensor]]  # number of the call, dense weights, bool rows that count


@dataclass(frozen=True)
class Case:
    """A model to watch: `model(implementation)`, `inputs(side)` for each of `sides`."""

    name: str
    model: Callable[[str | None], Any]
    inputs: Callable[[str | None], dict[str, Any]]
    expected: Callable[[str | None, dict[str, Any], Seen, Any], Pairs]
    sides: tuple[str | None, ...] = (None,)
    weights: str = "random"
    packages: tuple[str, ...] = ("transformers",)
    implementations: tuple[str | None, ...] = (None, "eager")
    language: Callable[[str], Any] | None = None
    prompt: Callable[[], dict[str, Any]] | None = None
    whole: Callable[[], dict[str, Any]] | None = None  # a prompt without padding
    written: str = "eager"  # the implementation whose rows are compared with eager's
    told: dict[str, Any] = field(default_factory=lambda: {"output_attentions": True})

    def asked(self, implementation: str | None, side: str | None) -> dict[str, Any]:
        """The inputs; eager attention is asked for its dense weights as well."""
        return {**self.inputs(side), **(self.told if implementation else {})}

    def installed(self) -> bool:
        """Whether everything it needs is there."""
        try:
            self.versions()
        except PackageNotFoundError:
            return False
        return True

    def versions(self) -> dict[str, str]:
        """Of what computes it."""
        return {name: version(name).partition("+")[0] for name in ("torch", *self.packages)}


def measure(case: Case) -> dict[str, Any]:
    """One row: everything that docs/models.md says of a model."""
    row: dict[str, Any] = {
        "name": case.name,
        "weights": case.weights,
        "versions": case.versions(),
        "seen": [],
        "calls": 0,
        "reasons": [],
        "dense": 0,
        "difference": None,
        "sharp": None,
    }
    for implementation in case.implementations:
        how, seen = _how(case, implementation)
        if (how, implementation) not in row["seen"]:
            row["seen"].append((how, implementation))
        row["calls"] = max(row["calls"], len(seen))
        if how == "by hand":
            row["reasons"] += [_reason(seen)]
            row["dense"] = sum(one.dense is not None for one in seen.missing)
    row["reasons"] = sorted(set(row["reasons"]))
    if row["calls"]:
        row |= _exact(case, [i for how, i in row["seen"] if how != "by hand"])
    row["bits"] = {
        name: all(
            _bits(case, implementation, side, dtype)
            for implementation in case.implementations
            for side in case.sides
        )
        for name, dtype in DTYPES.items()
    }
    row["generate"] = _generate(case) if case.language and row["calls"] else None
    return row


# ---- how ---------------------------------------------------------------------------------------


def _how(case: Case, implementation: str | None) -> tuple[str, Seen]:
    """How the attention of a model is seen, and what was."""
    model, inputs = case.model(implementation), case.inputs(case.sides[0])
    by_interface = _counted(huggingface_door.intercepted, model, inputs)
    by_torch = _counted(torch_door.intercepted, model, inputs)
    _, seen = _watched(model, case.asked(implementation, case.sides[0]))
    if not len(seen):
        return "by hand", seen
    assert len(seen) == (by_interface or by_torch)
    return ("interface" if by_interface else "torch"), seen


def _counted(
    door: Callable[..., AbstractContextManager[None]], model: Any, inputs: dict[str, Any]
) -> int:
    """How many calls come through one door of eyeline's, the others shut."""
    calls = []

    def note(call: Any, own: Callable[[], Tensor]) -> Tensor:
        calls.append(call)
        return own()

    with torch.no_grad(), door(modules_of(model), note, calls.clear, lambda missing: None):
        model(**inputs)
    return len(calls)


def _watched(model: Any, inputs: dict[str, Any]) -> tuple[Any, Seen]:
    """What a model gives while it is watched, and what was seen; nothing seen is no error here."""
    output, seen = None, Seen()
    try:
        with torch.no_grad(), watch(model) as seen:
            output = model(**inputs)
    except ModelError as error:
        if output is None or "has seen no attention" not in str(error):
            raise
        seen.refused = str(error)  # type: ignore[attr-defined]
    return output, seen


def _reason(seen: Seen) -> str:
    """Why nothing was seen, in eyeline's own words."""
    refused = getattr(seen, "refused", "")
    if refused:
        return str(refused).splitlines()[1].partition(": ")[2]
    return seen.missing[0].reason


# ---- how exact ---------------------------------------------------------------------------------


def _exact(case: Case, implementations: Iterable[str | None]) -> dict[str, float]:
    """Largest difference from the model's own dense weights, and how sharp these are."""
    implementation = list(implementations)[-1]  # eager where it is seen: the same run
    worst, peaks = 0.0, []
    for side in case.sides:
        model, inputs = case.model(implementation), case.asked(implementation, side)
        output, seen = _watched(model, inputs)
        pairs = case.expected(side, inputs, seen, output)
        assert pairs
        for index, dense, rows in pairs:
            weights = seen[index].to_dense()
            assert weights.shape == dense.shape
            worst = max(worst, apart(weights, dense, rows))
            peaks.append(dense.amax(-1)[rows].mean())
    return {"difference": worst, "sharp": float(torch.stack(peaks).mean())}


def apart(weights: Tensor, dense: Tensor, rows: Tensor) -> float:
    """Largest difference in the rows that count; all of them must be numbers."""
    differences = (weights - dense)[rows].abs()
    assert bool(differences.isfinite().all())
    return float(differences.max())


def _bits(case: Case, implementation: str | None, side: str | None, dtype: torch.dtype) -> bool:
    """Whether a watched model gives every bit of what it gives unwatched."""
    model = case.model(implementation).to(dtype)
    inputs = cast(case.asked(implementation, side), dtype)
    state = torch.get_rng_state()
    with torch.no_grad():
        before = tensors(model(**inputs))
    torch.set_rng_state(state)
    during = tensors(_watched(model, inputs)[0])
    return (
        len(before) == len(during) > 0
        and all(map(torch.equal, before, during))
        and all(bool(tensor.isfinite().all()) for tensor in before[:1])
    )


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same with numbers of another precision; ids and masks stay."""
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def tensors(output: Any) -> list[Tensor]:
    """Every tensor in what a model returned, in order."""
    if isinstance(output, Tensor):
        return [output]
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    if isinstance(output, (tuple, list)):
        return [tensor for part in output for tensor in tensors(part)]
    return []


# ---- texts that it writes -----------------------------------------------------------------------


def _generate(case: Case) -> dict[str, Any]:
    """The same 64 greedy tokens, and the rows of what was written beside one eager forward."""
    assert case.language is not None
    assert case.prompt is not None
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    same, followed = {}, True
    for name, dtype in DTYPES.items():
        model, prompt = case.language("sdpa").to(dtype), cast(case.prompt(), dtype)
        model.generation_config.eos_token_id = None
        plain = model.generate(**prompt, **settings)
        with watch(model) as seen:
            watched = model.generate(**prompt, **settings)
        same[name] = torch.equal(plain, watched)
        rows = 0 if seen.generated is None else int(seen.generated.sum())
        followed = followed and rows == NEW - 1
    difference = _written(case, settings) if followed else None
    return {"tokens": same, "followed": followed, "difference": difference}


def _written(case: Case, settings: dict[str, Any]) -> float:
    """Largest difference of a generate's weights from one eager forward over its text.

    In float64: a cache adds up in another order, and what is compared is the rows. Without padding:
    in float64 transformers' eager rows of padding are NaN, and spread.
    """
    assert case.language is not None
    assert case.whole is not None
    model, writer = (case.language(how).double() for how in ("eager", case.written))
    writer.generation_config.eos_token_id = None
    prompt = cast(case.whole(), torch.float64)
    with watch(writer) as seen:
        given = writer.generate(**prompt, **settings)[:, :-1]
    real = torch.ones(given.shape, dtype=torch.bool)
    if model.config.is_encoder_decoder:
        if model.main_input_name == "input_features":  # gives no token that it began with
            start = torch.full_like(given[:, :1], model.config.decoder_start_token_id)
            given = torch.cat((start, given), 1)
        fed = {**prompt, "decoder_input_ids": given}
    else:
        mask = prompt.get("attention_mask", torch.ones_like(prompt["input_ids"]))
        real[:, : mask.shape[1]] = mask.bool()
        fed = {**prompt, "input_ids": given, "attention_mask": real.long()}
        if "pixel_values" not in prompt:
            fed["position_ids"] = (real.long().cumsum(-1) - 1).clamp(min=0)
        else:
            kinds = torch.zeros_like(given)
            kinds[:, : mask.shape[1]] = prompt["mm_token_type_ids"]
            fed["mm_token_type_ids"] = kinds
    with torch.no_grad():
        output = model(**fed, output_attentions=True)
    worst = 0.0
    for weights, dense in _in_order(seen, output):
        rows = torch.ones(dense.shape[:3], dtype=torch.bool)
        if dense.shape[2] == real.shape[1]:
            rows &= real[:, None]
        elif "attention_mask" in prompt and dense.shape[2] == prompt["attention_mask"].shape[1]:
            rows &= prompt["attention_mask"].bool()[:, None]
        found = weights.to_dense()
        assert found.shape == dense.shape
        worst = max(worst, apart(found, dense, rows))
    return worst


def _in_order(seen: Seen, output: Any) -> list[tuple[Any, Tensor]]:
    """Each call's weights with the dense attention that the model returned for it."""
    if "cross" in seen.kinds:
        dense = list(output.encoder_attentions)
        for pair in zip(output.decoder_attentions, output.cross_attentions, strict=True):
            dense += pair
    else:
        dense = list(output.attentions)
    return list(zip(list(seen)[-len(dense) :], dense, strict=True))
