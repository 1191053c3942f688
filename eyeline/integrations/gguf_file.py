"""A Llama-like model in a gguf file → the folder that transformers loads.

llama.cpp keeps a model in one gguf file: quantised weights under names of its own, the rotary
dimensions of queries and keys interleaved, vocabulary and merges as lists. Here the weights are
decoded to bfloat16, renamed and put back in the order of transformers, and the tokenizer is
written as tokenizer.json. Read by the `gguf` package; needs neither llama.cpp nor a network.
Source: the gguf specification, and llama.cpp's convert_hf_to_gguf.py read backwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eyeline.errors import ModelError

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # gguf's token type of <|im_start|> and its like


def convert(source: Path, folder: Path, progress: Callable[[str], None]) -> None:
    """Write config.json, tokenizer.json and model.safetensors of `source` into `folder`.

    `progress` is told what happens, a line at a time. Raises ModelError where the `gguf` package
    is missing or the file holds something other than a Llama with a byte-level tokenizer.
    """
    try:
        import gguf
    except ImportError as error:
        raise ModelError(
            f"{source.name} is converted once by the gguf package, which is not installed.\n"
            "Run: pip install gguf"
        ) from error
    reader = gguf.GGUFReader(source)
    found = tuple(_field(reader, name) for name in ("general.architecture", "tokenizer.ggml.model"))
    if found != ("llama", "gpt2"):
        raise ModelError(
            f"{source.name} holds {found[0]} with a {found[1]} tokenizer; only llama with gpt2's"
            " byte-level tokenizer can be converted."
        )
    config = _config(reader)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    progress("reading its vocabulary")
    _write_tokenizer(reader, folder / "tokenizer.json")
    _write_weights(gguf, reader, config, folder / "model.safetensors", progress)


def _field(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()


def _config(reader: Any) -> dict[str, Any]:
    names = {tensor.name for tensor in reader.tensors}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": _field(reader, "llama.embedding_length"),
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "num_attention_heads": _field(reader, "llama.attention.head_count"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "rms_norm_eps": _field(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _field(reader, "llama.rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in names,
        "vocab_size": _field(reader, "llama.vocab_size"),
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
    }


def _write_tokenizer(reader: Any, path: Path) -> None:
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
    )

    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    unknown = _field(reader, "tokenizer.ggml.unknown_token_id")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=None if unknown is None else tokens[unknown],
        )
    )
    # llama.cpp's pre-tokenizer "smollm": each digit alone, then GPT-2's own pattern
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if _field(reader, "tokenizer.ggml.pre") == "smollm"
        else byte_level
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    types = _field(reader, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    tokenizer.save(str(path), pretty=False)


def _write_weights(
    gguf: Any, reader: Any, config: dict[str, Any], path: Path, progress: Callable[[str], None]
) -> None:
    from safetensors.torch import save_file

    weights = {}
    total = len(reader.tensors)
    for index, tensor in enumerate(reader.tensors):
        if index * 4 // total != (index - 1) * 4 // total:  # four messages in all
            progress(f"decoding its weights, {index * 100 // total} %")
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        name = tensor.name
        if name.endswith("attn_q.weight"):
            values = _ungroup_rotary(values, config["num_attention_heads"])
        elif name.endswith("attn_k.weight"):
            values = _ungroup_rotary(values, config["num_key_value_heads"])
        weights[_name(name)] = torch.from_numpy(np.array(values)).to(torch.bfloat16)
    progress("writing the weights")
    save_file(weights, path, metadata={"format": "pt"})


def _name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("blk."):
        return f"{_OUTER[stem]}.{suffix}"
    _, layer, part = stem.split(".", 2)
    return f"model.layers.{layer}.{_INNER[part]}.{suffix}"


def _ungroup_rotary(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of each head from llama.cpp's order (pair, half) to transformers' (half, pair)."""
    half = values.shape[0] // heads // 2
    grouped = values.reshape(heads, half, 2, *values.shape[1:])
    return grouped.swapaxes(1, 2).reshape(values.shape)
