"""Tiny transformers models with random weights, and what their own eager attention says."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

T = 10
SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 600,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
# An encoder and a decoder beside each other, as BART and its kin name their sizes.
STACKS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
# DeepSeek-V3: keys from a compressed state, values of another size than keys.
LATENT = {
    **GROUPED,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
ENCODERS = ("bert", "albert")
DECODERS = ("llama", "mistral", "gemma2", "gpt_oss", "gpt2", "llama4_text")
FAMILIES = (*ENCODERS, *DECODERS)
SIZES: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "albert": {**SMALL, "embedding_size": 16},
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 4},
    "gemma2": {**GROUPED, "sliding_window": 4, "head_dim": 8, "attn_logit_softcapping": 2.0},
    "gpt_oss": {
        **GROUPED,
        "sliding_window": 4,
        "head_dim": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "gpt2": {
        "vocab_size": 60,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "llama4_text": {
        **GROUPED,
        "intermediate_size_mlp": 48,
        "head_dim": 8,
        "num_local_experts": 2,
        "attention_chunk_size": 4,
        "no_rope_layers": [1, 0],
    },
}


def tiny(family: str, implementation: str | None = None) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES[family])
    model = transformers.AutoModel.from_config(config, attn_implementation=implementation).eval()
    for module in model.modules():  # sinks start at nothing that could be told from none
        if hasattr(module, "sinks"):
            torch.nn.init.normal_(module.sinks)
    return model


def apart() -> Any:
    """A CLIP whose text part is set to eager attention and whose vision part to SDPA."""
    part = {name: SMALL[name] for name in SMALL if name.startswith(("hidden", "inter", "num"))}
    config = transformers.CLIPConfig(
        text_config={**part, "vocab_size": 60, "max_position_embeddings": 20},
        vision_config={**part, "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config).eval()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    return model


def inputs(side: str | None = None, batch: int = 2, length: int = T) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 60, (batch, length), generator=torch.Generator().manual_seed(1))
    if side is None:
        return {"input_ids": ids}
    real = torch.ones_like(ids)
    padded = length // 3
    real[-1, slice(padded) if side == "left" else slice(length - padded, None)] = 0
    return {"input_ids": ids * real, "attention_mask": real}


def run(model: Any, **arguments: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        output = model(**arguments)
    return [value for value in output.to_tuple() if isinstance(value, torch.Tensor)]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def eager_of(model: Any) -> Any:
    """The same model in eager attention."""
    config = copy.deepcopy(model.config)
    other = type(model)._from_config(config, attn_implementation="eager").eval()
    other.load_state_dict(model.state_dict())
    return other


def eager(model: Any, **arguments: Any) -> Any:
    """The attentions that transformers itself computes, dense."""
    with torch.no_grad():
        return eager_of(model)(**arguments, output_attentions=True)


def rows(arguments: dict[str, torch.Tensor]) -> torch.Tensor:
    """bool [B, 1, T]: the rows of real tokens."""
    ids = arguments["input_ids"]
    return arguments.get("attention_mask", torch.ones_like(ids)).bool()[:, None]


def close(weights: Any, expected: torch.Tensor, real: torch.Tensor) -> float:
    dense = weights.detach() + torch.zeros(())
    chosen = real.expand(expected.shape[:3])
    return float((dense[chosen] - expected[chosen]).abs().max())
