"""watch() on every family: the same bits, and the weights that the model itself calls its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline.seen import Seen, watch
from tests.families import CONFIGS, PAIRS, SILENT, TEXTLESS, eager_weights, inputs_of, model_of
from tests.tiny import run, same

pytestmark = pytest.mark.slow

# In eager attention Falcon computes by hand; in SDPA it is seen through torch's own function.
BY_HAND = ("falcon",)
SIDED = [(f, s) for f in CONFIGS for s in ((None,) if f in TEXTLESS else (None, "left", "right"))]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("family", "side"), SIDED)
def test_outputs_keep_every_bit(family, side, dtype):
    model = model_of(family).to(dtype)
    arguments = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs_of(family, side).items()
    }
    before = run(model, **arguments)
    with watch(model) as seen:
        during = run(model, **arguments)
    assert same(before, during)
    assert len(seen) >= 2


@pytest.mark.parametrize(("family", "side"), [pair for pair in SIDED if pair[0] not in BY_HAND])
def test_weights_are_the_eager_attentions_of_the_same_run(family, side):
    model, arguments = model_of(family, "eager"), inputs_of(family, side)
    with torch.no_grad(), watch(model) as seen:
        output = model(**arguments, output_attentions=True)
    pairs = attentions(family, side, seen, output)
    assert len(pairs) == len(seen)
    peaks = []
    for index, dense in pairs:
        weights = seen[index].to_dense()
        assert weights.shape == dense.shape
        real = real_rows(family, seen, index, arguments, dense)
        assert float((weights[real] - dense[real]).abs().max()) < 1e-5
        peaks.append(dense.max(-1).values[real].mean())
    assert float(torch.stack(peaks).mean()) > 0.5


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("family", BY_HAND)
def test_attention_by_hand_is_seen_where_torch_computes_it(family, side):
    model, arguments = model_of(family, "sdpa"), inputs_of(family, side)
    with watch(model) as seen:
        run(model, **arguments)
    by_hand = model_of(family, "eager")
    with torch.no_grad(), watch(by_hand) as other:
        output = by_hand(**arguments, output_attentions=True)
    assert [missing.name for missing in other.missing] == list(seen.names)
    for weights, dense in zip(seen, output.attentions, strict=True):
        real = real_rows(family, seen, 0, arguments, dense)
        assert float((weights.to_dense()[real] - dense[real]).abs().max()) < 1e-5


@pytest.mark.parametrize("family", CONFIGS)
def test_eyeline_s_kernel_computes_the_same(family):
    model, arguments = model_of(family), inputs_of(family, "left")
    before = run(model, **arguments)[0]
    with watch(model, kernel="eyeline"):
        after = run(model, **arguments)[0]
    mask = arguments.get("attention_mask")
    if mask is not None and before.shape[:2] == mask.shape:
        before, after = before[mask.bool()], after[mask.bool()]
    # T5 has no scale, so that its scores are in the hundreds here
    bound = 1e-4 if family == "t5" else 2e-5
    assert float((before - after).abs().max()) < bound * float(before.abs().max())


def attentions(family: str, side: str | None, seen: Seen, output: Any) -> list[tuple[int, Tensor]]:
    """Each call with the dense attention that the model computed for it."""
    if family in SILENT:
        return list(enumerate(eager_weights(family, side)))
    own = [index for index, kind in enumerate(seen.kinds) if kind == "self"]
    cross = [index for index, kind in enumerate(seen.kinds) if kind == "cross"]
    if family == "clip":
        parts = [output.text_model_output, output.vision_model_output]
        names = ["text_model", "vision_model"]
        return [
            (index, dense)
            for part, name in zip(parts, names, strict=True)
            for index, dense in zip(
                [i for i in own if seen.names[i].startswith(name)], part.attentions, strict=True
            )
        ]
    if cross:
        both = (*output.encoder_attentions, *output.decoder_attentions)
        return [
            *zip(own, both, strict=True),
            *zip(cross, output.cross_attentions, strict=True),
        ]
    return list(zip(own, output.attentions, strict=True))


def real_rows(
    family: str, seen: Seen, index: int, arguments: dict[str, Tensor], dense: Tensor
) -> Tensor:
    """bool [B, H, Tq]: rows of tokens that are no padding."""
    mask = arguments.get("attention_mask")
    whole = torch.ones(dense.shape[:3], dtype=torch.bool)
    if mask is None or mask.shape != (dense.shape[0], dense.shape[2]):
        return whole
    if family in PAIRS and not seen.names[index].startswith("encoder."):
        return whole
    return whole & mask.bool()[:, None]
