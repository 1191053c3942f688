"""Every model that docs/models.md speaks of, as a case of tests/proof.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from eyeline import models
from eyeline.seen import Seen
from tests.families import BY_HAND, CONFIGS, PAIRS, TEXTLESS, inputs_of, model_of, peaked
from tests.proof import Case, Pairs
from tests.real import REAL, SMILES, rxnmapper
from tests.test_watch_models import attentions, real_rows
from tests.tiny import inputs
from tests.torch_models import GPT, PAD, TorchvisionViT, VisionTransformer, encoder, ids, sharp

NAMES = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "distilbert": "DistilBERT",
    "albert": "ALBERT",
    "electra": "ELECTRA",
    "modernbert": "ModernBERT",
    "gpt2": "GPT-2",
    "gpt_neox": "GPT-NeoX",
    "opt": "OPT",
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "phi3": "Phi-3",
    "cohere2": "Cohere2",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3",
    "gpt_oss": "gpt-oss",
    "llama4_text": "Llama 4",
    "deepseek_v3": "DeepSeek-V3 (MLA)",
    "jamba": "Jamba",
    "falcon": "Falcon",
    "t5": "T5",
    "bart": "BART",
    "marian": "Marian",
    "m2m_100": "M2M-100",
    "whisper": "Whisper",
    "vit": "ViT",
    "dinov2": "DINOv2",
    "clip": "CLIP",
    "swin": "Swin",
    "wav2vec2": "wav2vec 2.0",
    "qwen2_5_vl": "Qwen2.5-VL",
    "bloom": "Bloom",
    "mpt": "MPT",
    "gpt_neo": "GPT-Neo",
    "deberta-v2": "DeBERTa v2",
    "longformer": "Longformer",
    "mpnet": "MPNet",
}
WRITERS = (  # families with a generate
    *("gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "phi3", "cohere2", "gemma2"),
    *("gemma3_text", "gpt_oss", "llama4_text", "deepseek_v3", "jamba", "falcon"),
    *PAIRS,
    "qwen2_5_vl",
)
NO_SDPA = ("gemma2", "gpt_oss")  # transformers has no SDPA with softcap or sinks


# ---- families of transformers, random weights --------------------------------------------------


def family(name: str) -> Case:
    """A small model of a family."""
    return Case(
        NAMES[name],
        lambda implementation: model_of(name, implementation),
        lambda side: inputs_of(name, side),
        lambda side, given, seen, output: _pairs(name, given, seen, output, side),
        (None,) if name in TEXTLESS else (None, "left", "right"),
        implementations=("eager",) if name in BY_HAND else (None, "eager"),
        language=(lambda how: _language(name, how)) if name in WRITERS else None,
        prompt=lambda: _prompt(name),
        written="sdpa" if name == "falcon" else "eager",
        whole=lambda: _whole(name),
    )


def _pairs(name: str, given: dict[str, Tensor], seen: Seen, output: Any, side: str | None) -> Pairs:
    """Each call with the dense attention of the model; of Falcon, which is by hand in eager,
    with that of the same model in eager."""
    if name == "falcon":
        with torch.no_grad():
            output = model_of(name, "eager")(**inputs_of(name, side), output_attentions=True)
    return [
        (index, dense, real_rows(name, seen, index, given, dense))
        for index, dense in attentions(name, side, seen, output)
    ]


def _language(name: str, implementation: str) -> Any:
    """The model with what it needs to write."""
    more = {"max_position_embeddings": 128} if name == "opt" else {}
    more |= {"decoder_start_token_id": 1} if name == "t5" else {}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **{**CONFIGS[name], **more})
    kind: Any = transformers.AutoModelForCausalLM
    if name == "whisper":
        kind = transformers.AutoModelForSpeechSeq2Seq
    elif name in PAIRS:
        kind = transformers.AutoModelForSeq2SeqLM
    elif name == "qwen2_5_vl":
        kind = transformers.AutoModelForImageTextToText
    if name in NO_SDPA and implementation == "sdpa":
        implementation = "eager"
    model = kind.from_config(config, attn_implementation=implementation)
    model.set_experts_implementation("eager")  # the grouped product knows no float64
    return peaked(model)


def _prompt(name: str) -> dict[str, Any]:
    """What is written on: two texts, one padded; a picture with a text; sound."""
    if name == "qwen2_5_vl":
        return inputs_of(name, "left")
    if name == "whisper":
        return {"input_features": inputs_of(name)["input_features"]}
    return inputs("right" if name in PAIRS else "left")


def _whole(name: str) -> dict[str, Any]:
    """The same without padding, but of pairs, whose encoders take it as it is."""
    if name == "qwen2_5_vl":
        return inputs_of(name)
    return _prompt(name) if name in PAIRS else inputs()


# ---- real models -------------------------------------------------------------------------------

TEXTS = (
    "The keys to the old cabinet are on the table because they were too heavy to carry.",
    "Whoever reads this slowly sees more than one word at a time.",
)


def _padded(rows: list[list[int]], side: str) -> dict[str, Tensor]:
    """Two texts in one batch, the shorter one padded on a side."""
    longest = max(map(len, rows))
    ids_, mask = torch.zeros(2, longest).long(), torch.zeros(2, longest).long()
    for row, tokens in enumerate(rows):
        place = slice(longest - len(tokens), None) if side == "left" else slice(len(tokens))
        ids_[row, place], mask[row, place] = torch.tensor(tokens), 1
    return {"input_ids": ids_, "attention_mask": mask}


def _real_text(key: str, name: str, weights: str) -> Case:
    def rows() -> list[list[int]]:
        loaded = models.load(key)
        return [list(loaded.tokens(text).ids) for text in TEXTS]

    writes = key if key == "smollm2" else ""
    return _real_rows(name, weights, lambda: models.load(key).model, rows, writes)


def _rxnmapper() -> Case:
    def rows() -> list[list[int]]:
        _, vocabulary = rxnmapper()
        return [
            [vocabulary[token] for token in ("[CLS]", *SMILES.findall(reaction), "[SEP]")]
            for reaction in ("CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1", "CCO.CC(=O)O>>CC(=O)OCC")
        ]

    return _real_rows("ALBERT (rxnmapper)", "real", lambda: rxnmapper()[0], rows, "")


def _real_rows(
    name: str,
    weights: str,
    model: Callable[[], Any],
    tokens: Callable[[], list[list[int]]],
    writes: str,
) -> Case:
    rows = cache(tokens)

    def given(side: str | None) -> dict[str, Tensor]:
        if side is None:
            return {"input_ids": torch.tensor(rows()[:1])}
        return _padded(rows(), side)

    def expected(side: str | None, inputs: dict[str, Tensor], seen: Seen, output: Any) -> Pairs:
        real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()[:, None]
        found = zip(range(len(seen)), output.attentions, strict=True)
        return [(index, dense, real.expand(dense.shape[:3])) for index, dense in found]

    def language(how: str) -> Any:
        loaded = models.load(writes)
        loaded.model.set_attn_implementation(how)
        return loaded.language_model()

    return Case(
        name,
        lambda how: _set(model(), how),
        given,
        expected,
        (None, "left", "right"),
        weights,
        language=language if writes else None,
        prompt=lambda: _padded(rows(), "left"),
        whole=lambda: given(None),
    )


def _real_other(key: str, name: str) -> Case:
    def expected(side: str | None, inputs: dict[str, Tensor], seen: Seen, output: Any) -> Pairs:
        dense = list(output.get("attentions") or output.get("encoder_attentions"))
        for pair in zip(
            output.get("decoder_attentions") or (),
            output.get("cross_attentions") or (),
            strict=True,
        ):
            dense += pair
        whole = [torch.ones(one.shape[:3], dtype=torch.bool) for one in dense]
        return list(zip(range(len(seen)), dense, whole, strict=True))

    return Case(
        name,
        lambda how: _set(REAL[key]()[0], how),
        lambda side: REAL[key]()[1],
        expected,
        weights="real",
    )


def _set(model: Any, how: str | None) -> Any:
    if how is not None:
        model.set_attn_implementation(how)
    return model


def real() -> list[Case]:
    """The real models that the tests install."""
    return [
        _real_text("minilm", "BERT (MiniLM)", "real"),
        _rxnmapper(),
        _real_text("smollm2", "Llama (SmolLM2)", "real"),
        _real_other("whisper", "Whisper (tiny.en)"),
        _real_other("dinov2", "DINOv2 (small)"),
    ]


# ---- code that calls torch's own functions -----------------------------------------------------


def multihead(model: Any, given: dict[str, Any]) -> list[Tensor]:
    """The weights [B, H, Tq, Tk] that each nn.MultiheadAttention returns itself where asked to."""
    asked: list[tuple[Any, Any, Any]] = []
    hooks = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: asked.append((module, args, kwargs)), with_kwargs=True
        )
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
    ]
    state = torch.get_rng_state()
    with torch.no_grad():
        model(**given)
    torch.set_rng_state(state)
    for hook in hooks:
        hook.remove()
    found = []
    for module, args, kwargs in asked:
        training = module.training
        told = {**kwargs, "need_weights": True, "average_attn_weights": False}
        with torch.no_grad():  # dropout is no part of what a query looks at
            found.append(module.eval()(*args, **told)[1])
        module.train(training)
    return found


def in_torch(
    name: str,
    model: Callable[[], Any],
    given: dict[str, Any],
    by_hand: Callable[[Any, dict[str, Any]], list[Tensor]],
    weights: str = "random",
    packages: tuple[str, ...] = (),
) -> Case:
    """A model whose code calls torch's functions, with its weights as it says them by hand."""

    def made() -> Any:
        found = model()
        torch.manual_seed(5)  # for what a model in training leaves out
        return found

    def expected(side: str | None, inputs: dict[str, Any], seen: Seen, output: Any) -> Pairs:
        dense = by_hand(made(), given)
        padded = given.get("src_key_padding_mask")
        rows = torch.ones(dense[0].shape[:3], dtype=torch.bool)
        if padded is not None:
            rows &= ~padded[:, None]
        return [(index, one, rows) for index, one in enumerate(dense)]

    return Case(
        name,
        lambda how: made(),
        lambda side: given,
        expected,
        weights=weights,
        packages=packages,
        implementations=(None,),
        told={},
    )


def _gpt() -> Any:
    torch.manual_seed(0)
    return sharp(GPT())


def _vit() -> Any:
    torch.manual_seed(0)
    return peaked(sharp(VisionTransformer()))


def _torchvision_style() -> Any:
    torch.manual_seed(0)
    return sharp(sharp(TorchvisionViT()))


def _by_hand(blocks: str) -> Callable[[Any, dict[str, Any]], list[Tensor]]:
    def weights(model: Any, given: dict[str, Any]) -> list[Tensor]:
        with torch.no_grad():
            model.by_hand()(**given)
        return [module.dense for name, module in model.named_modules() if hasattr(module, "dense")]

    return weights


def torch_code() -> list[Case]:
    """In the styles of code that people have."""
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    pictures = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    padded = {"src": x, "src_key_padding_mask": PAD}
    return [
        in_torch("nn.TransformerEncoder, eval", encoder, {"src": x}, multihead),
        in_torch("nn.TransformerEncoder, eval, padded", encoder, padded, multihead),
        in_torch("nn.TransformerEncoder, train", lambda: encoder(True), padded, multihead),
        in_torch("in nanoGPT's style", _gpt, {"ids": ids()}, _by_hand("h")),
        in_torch("ViT in timm's style", _vit, {"pictures": pictures}, _by_hand("blocks")),
        in_torch(
            "ViT in torchvision's style", _torchvision_style, {"pictures": pictures}, multihead
        ),
    ]


# ---- packages for pictures ---------------------------------------------------------------------


def torchvision_vit() -> Any:
    """torchvision's vit_b_16, random weights, few layers."""
    torchvision: Any = importlib.import_module("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=3, num_heads=12, hidden_dim=768, mlp_dim=1024
    )
    torch.nn.init.normal_(model.heads.head.weight)  # it starts at zeros, and would say nothing
    return sharp(sharp(model))


def timm_vit(fused: bool = True) -> Any:
    """timm's vit_tiny_patch16_224, random weights."""
    timm: Any = importlib.import_module("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=64)
    for block in model.blocks:
        block.attn.fused_attn = fused
    return sharp(sharp(sharp(model)))


def timm_by_hand(model: Any, given: dict[str, Any]) -> list[Tensor]:
    """What timm itself computes unfused: its softmax is the input of its dropout."""
    found: list[Tensor] = []
    hooks = []
    for block in model.blocks:
        block.attn.fused_attn = False
        hooks.append(
            block.attn.attn_drop.register_forward_pre_hook(lambda _, args: found.append(args[0]))
        )
    with torch.no_grad():
        model(**given)
    for hook in hooks:
        hook.remove()
    return found


def packages() -> list[Case]:
    """Of packages that are not installed with the rest."""
    pictures = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    return [
        in_torch(
            "torchvision VisionTransformer",
            torchvision_vit,
            {"x": pictures},
            multihead,
            packages=("torchvision",),
        ),
        in_torch(
            "timm vit_tiny_patch16", timm_vit, {"x": pictures}, timm_by_hand, packages=("timm",)
        ),
    ]


def every() -> dict[str, Callable[[], list[Case]]]:
    """All cases by part of the page; made where asked for, as real models are loaded."""
    return {
        "families": lambda: [family(name) for name in (*CONFIGS, *BY_HAND)],
        "real": real,
        "torch": torch_code,
        "packages": lambda: [case for case in packages() if case.installed()],
    }
