"""The ONNX operator `Attention` (opset 23 and 24) in eyeline's words, as thin as it goes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

import eyeline

# What another operator version adds, or what describes a cache layout rather than attention.
NOT_COVERED = ("local_window", "bidirectional_window", "nonpad", "padded_kv")


@dataclass(frozen=True)
class Case:
    """One node test of the onnx package: inputs by name, attributes and what must come out."""

    name: str
    attributes: dict[str, Any]
    inputs: dict[str, Tensor]
    expected: dict[str, Tensor]


def cases() -> list[Case]:
    """Every node case of Attention in opset 23 and 24 that is about attention itself."""
    node = importlib.import_module("onnx.backend.test.case.node")
    importlib.import_module("onnx.backend.test.case.node.attention")  # registers its cases there

    return [
        read_case(case)
        for case in node._NodeTestCases
        if [n.op_type for n in case.model.graph.node] == ["Attention"]  # not the expanded bodies
        and case.model.opset_import[0].version in (23, 24)
        and not any(word in case.name for word in NOT_COVERED)
    ]


def read_case(case: Any) -> Case:
    node = case.model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    ((inputs, outputs),) = case.data_sets
    return Case(
        case.name,
        attributes,
        dict(zip((name for name in node.input if name), map(tensor, inputs))),
        dict(zip((name for name in node.output if name), map(tensor, outputs))),
    )


def tensor(array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.name == "bfloat16":  # numpy's is an extension type that torch cannot take
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.ascontiguousarray(array))


def run(case: Case, backend: str) -> dict[str, Tensor]:
    """What eyeline gives for every output that the operator has."""
    given, attributes = case.inputs, case.attributes
    q, k, v = given["Q"], given["K"], given["V"]
    flat = q.dim() == 3
    if flat:
        q, k, v = (
            x.unflatten(-1, (attributes[f"{heads}_num_heads"], -1)).transpose(1, 2)
            for x, heads in ((q, "q"), (k, "kv"), (v, "kv"))
        )
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        k = torch.cat([given["past_key"], k], dim=2)
        v = torch.cat([given["past_value"], v], dim=2)

    allowed, bias = given.get("attn_mask"), None
    if allowed is not None and allowed.dtype != torch.bool:
        allowed, bias = None, allowed
    mask: Any = None if allowed is None else eyeline.masks.from_tensor(allowed)
    if attributes.get("is_causal"):  # top-left beside the cache
        rule = eyeline.causal(offset=past)
        mask = rule if mask is None else mask & rule

    softcap = attributes.get("softcap") or None
    common: dict[str, Any] = {"scale": attributes.get("scale"), "backend": backend}
    out, weights = eyeline.attention(q, k, v, mask, bias=bias, softcap=softcap, **common)
    mode = attributes.get("qk_matmul_output_mode", 0)
    if mode == 0:
        stage = eyeline.weights(q, k, **common).scores()
    elif mode == 1:
        stage = eyeline.weights(q, k, softcap=softcap, **common).scores()
    else:
        stage = weights.scores() if mode == 2 else weights.to_dense()
    return {
        "Y": out.transpose(1, 2).flatten(2) if flat else out,
        "present_key": k,
        "present_value": v,
        "qk_matmul_output": stage,
    }
