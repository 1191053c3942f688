"""A small model of every family that watch() is proven on, with random weights and peaked heads.

The weights are drawn wide (0.5), so that the mean largest attention weight is far from uniform and
an error in a mask, a scale or a head would show.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import torch
import transformers

from tests.tiny import GROUPED, LATENT, SIZES, SMALL, STACKS, T, inputs

WIDE = {"initializer_range": 0.5}
ENCODER = {**SMALL, **WIDE}
DECODER = {**GROUPED, **WIDE}
PAIR = {"vocab_size": 60, **STACKS, "init_std": 0.5}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    **WIDE,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "roberta": ENCODER,
    "distilbert": {
        "vocab_size": 60,
        "dim": 32,
        "hidden_dim": 48,
        "n_layers": 2,
        "n_heads": 4,
        "pad_token_id": 0,
        **WIDE,
    },
    "albert": {**ENCODER, "embedding_size": 16},
    "electra": {**ENCODER, "embedding_size": 16},
    "modernbert": {
        **ENCODER,
        "local_attention": 4,
        "global_attn_every_n_layers": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "gpt2": {**SIZES["gpt2"], **WIDE},
    "gpt_neox": ENCODER,
    "opt": {
        "vocab_size": 60,
        "hidden_size": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
        "pad_token_id": 0,
        "max_position_embeddings": 64,
        "init_std": 0.5,
    },
    "llama": DECODER,
    "mistral": {**DECODER, "sliding_window": 4},
    "qwen2": DECODER,
    "qwen3": {**DECODER, "head_dim": 8},
    "phi3": {**DECODER, "sliding_window": 4},
    "cohere2": {**DECODER, "sliding_window": 4},
    "gemma2": {**SIZES["gemma2"], **WIDE},
    "gemma3_text": {**DECODER, "sliding_window": 4, "head_dim": 8, "query_pre_attn_scalar": 1},
    "gpt_oss": {**SIZES["gpt_oss"], **WIDE},
    "llama4_text": {**SIZES["llama4_text"], **WIDE},
    "deepseek_v3": {**LATENT, **WIDE},
    "jamba": {
        **DECODER,
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
        "mamba_d_state": 4,
    },
    "falcon": {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        **WIDE,
    },
    "t5": {
        "vocab_size": 60,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "initializer_factor": 4.0,
    },
    "bart": PAIR,
    "marian": {**PAIR, "init_std": 0.6},
    "m2m_100": PAIR,
    "whisper": {**PAIR, "num_mel_bins": 8, "max_source_positions": 12},
    "vit": VISION,
    "dinov2": VISION,
    "clip": {
        "text_config": {
            **ENCODER,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "initializer_factor": 20.0,
        },
        "vision_config": {**VISION, "initializer_factor": 20.0},
        "projection_dim": 16,
    },
    "swin": {
        "image_size": 32,
        "patch_size": 4,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
        **WIDE,
    },
    "wav2vec2": {
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "conv_dim": [16, 16],
        "conv_kernel": [10, 3],
        "conv_stride": [5, 2],
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        **WIDE,
    },
    "qwen2_5_vl": {
        "text_config": {
            **DECODER,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [1, 1, 2],
                "rope_theta": 10000.0,
            },
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "out_hidden_size": 32,
            "patch_size": 4,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **WIDE,
        },
        "image_token_id": 51,
        "vision_start_token_id": 50,
        "vision_end_token_id": 52,
    },
}
# Families that compute attention with code of their own, whatever the implementation.
BY_HAND: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4, **WIDE},
    "mpt": {
        "vocab_size": 60,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "expansion_ratio": 2,
        "max_seq_len": 128,
        **WIDE,
    },
    "gpt_neo": {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 48,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
        "bos_token_id": 1,
        "eos_token_id": 1,
        **WIDE,
    },
    "deberta-v2": {
        **ENCODER,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
    },
    "longformer": {**ENCODER, "attention_window": [4, 4]},
    "mpnet": ENCODER,
}
TEXTLESS = ("whisper", "vit", "dinov2", "swin", "wav2vec2")
SILENT = ("swin", "qwen2_5_vl")  # return the attention of some of their layers only
PAIRS = ("t5", "bart", "marian", "m2m_100", "whisper")


def model_of(family: str, implementation: str | None = None) -> Any:
    """A model with random weights, the same each time."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**CONFIGS, **BY_HAND}[family])
    return peaked(transformers.AutoModel.from_config(config, attn_implementation=implementation))


def peaked(model: Any) -> Any:
    """A model in which sinks and norms of queries and keys are not as they start."""
    for module in model.modules():  # sinks start at nothing that could be told from none
        if hasattr(module, "sinks"):
            torch.nn.init.normal_(module.sinks)
        if hasattr(module, "q_norm"):  # normed queries and keys would give flat rows
            torch.nn.init.constant_(module.q_norm.weight, 3.0)
    return model.eval()


def inputs_of(family: str, side: str | None = None) -> dict[str, torch.Tensor]:
    """What the model takes: texts of two lengths padded on a side, pictures, sound."""
    draw = torch.Generator().manual_seed(2)
    if family in ("vit", "dinov2", "swin"):
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=draw)}
    if family == "wav2vec2":
        return {"input_values": torch.randn(2, 500, generator=draw)}
    if family == "qwen2_5_vl":
        return _seen_and_read(side, draw)
    given = inputs(side)
    if family in PAIRS:
        given["decoder_input_ids"] = inputs(length=T - 3)["input_ids"]
    if family == "whisper":
        frames = torch.randn(2, 8, 24, generator=draw)
        return {"input_features": frames, "decoder_input_ids": given["decoder_input_ids"]}
    if family == "clip":
        given["pixel_values"] = torch.randn(2, 3, 32, 32, generator=draw)
    return given


def _seen_and_read(side: str | None, draw: torch.Generator) -> dict[str, torch.Tensor]:
    """A picture with a text; with a side two of them, the shorter text padded there."""
    picture = [50, *[51] * 16, 52]
    texts = [[5, *picture, 7, 8, 9], [6, *picture, 4]][: 1 if side is None else 2]
    ids = torch.zeros(len(texts), len(texts[0])).long()
    for row, text in zip(ids, texts, strict=True):
        row[slice(-len(text), None) if side == "left" else slice(len(text))] = torch.tensor(text)
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "pixel_values": torch.randn(64 * len(texts), 96, generator=draw),
        "image_grid_thw": torch.tensor([[1, 8, 8]] * len(texts)),
        "mm_token_type_ids": (ids == 51).long(),
    }


def eager_weights(family: str, side: str | None) -> list[torch.Tensor]:
    """The dense weights of each call in order, as transformers' eager function returns them.

    For families that return themselves only some of what they compute.
    """
    model, found = model_of(family, "eager"), []
    code = sys.modules[type(model).__module__]
    own = code.eager_attention_forward

    def noted(*args: Any, **kwargs: Any) -> Any:
        output = own(*args, **kwargs)
        found.append(output[1])
        return output

    with mock.patch.object(code, "eager_attention_forward", noted), torch.no_grad():
        model(**inputs_of(family, side))
    return found
