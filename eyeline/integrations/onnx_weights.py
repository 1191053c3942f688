"""DINOv2 in an ONNX file → the weights under the names that transformers gives them.

An exported graph keeps the names of most weights, and loses those of the matrices that it stores
transposed for MatMul ("onnx::MatMul_1966"). Each of these is found by where it is used: the
result of a MatMul goes to an Add, whose other input is the bias of the same layer, with its name.
(The order in the graph would not do: keys come first, then values, then queries.) Read by the
`onnx` package; the graph is not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eyeline.errors import ModelError

Array = np.ndarray[Any, Any]

_PREFIX = "backbone."  # of the encoder's own weights; a decoder for another task follows it


def dinov2(path: Path) -> dict[str, Array]:
    """The weights of the DINOv2 encoder in an ONNX graph, float32, under the names of its first
    checkpoint ("encoder.layer.0.attention.attention.query.weight").

    Raises ModelError where the `onnx` package is missing or the graph is another one.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
        from onnx import numpy_helper
    except ImportError as error:
        raise ModelError(
            f"{path.name} is read by the onnx package, which is not installed.\nRun: pip install"
            " onnx"
        ) from error
    try:
        graph = onnx.load(path, load_external_data=False).graph  # one file, and no other
    except DecodeError as error:
        raise ModelError(f"{path.name} is no ONNX file.") from error
    stored = {tensor.name: tensor for tensor in graph.initializer}
    named = {
        name.removeprefix(_PREFIX): numpy_helper.to_array(tensor)
        for name, tensor in stored.items()
        if name.startswith(_PREFIX)
    }
    for matrix, bias in _multiplied(graph, stored):
        if bias.startswith(_PREFIX):
            weight = bias.removeprefix(_PREFIX).removesuffix(".bias") + ".weight"
            named[weight] = numpy_helper.to_array(stored[matrix]).T
    try:
        named["embeddings.position_embeddings"] = np.concatenate(
            [numpy_helper.to_array(stored[name]) for name in _positions(graph, stored)], axis=1
        )
    except ValueError as error:
        raise ModelError(f"{path.name} holds no DINOv2 encoder: no positions found.") from error
    return named


def _multiplied(graph: Any, stored: dict[str, Any]) -> list[tuple[str, str]]:
    """(matrix, bias) for each MatMul with a stored matrix whose result gets a stored bias."""
    of_result = {
        node.output[0]: node.input[1]
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in stored
    }
    found = []
    for node in graph.node:
        if node.op_type == "Add":
            biases = [name for name in node.input if name in stored]
            matrices = [of_result[name] for name in node.input if name in of_result]
            if len(biases) == len(matrices) == 1:
                found.append((matrices[0], biases[0]))
    return found


def _positions(graph: Any, stored: dict[str, Any]) -> list[str]:
    """The stored positions of the class token and of the patches.

    They have lost their names too: in the embeddings, one is joined in front of the others, which
    are reshaped to their square first.
    """
    found = []
    for wanted in ("Concat", "Reshape"):
        found += [
            name
            for node in graph.node
            if node.op_type == wanted and "/embeddings/" in node.output[0]
            for name in node.input
            if name in stored and not name.startswith(_PREFIX)
        ]
    return found
