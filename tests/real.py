"""Real models and an input for each, as the tests take them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyeline import models
from eyeline.looking.data import DEFAULT_TEXT

DATA = Path(__file__).parent / "data"
SMILES = re.compile(r"\[[^\]]+]|Br?|Cl?|[NOSPFIbcnops()=#.+\\/:~@?*$-]|>>?|%[0-9]{2}|[0-9]")


def rxnmapper() -> tuple[Any, dict[str, int]]:
    """The ALBERT of rxnmapper and its vocabulary; its pickle is read with weights_only."""
    from transformers import AlbertConfig
    from transformers.models.albert.modeling_albert import AlbertModel

    place = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
    folder = Path(str(distribution("rxnmapper").locate_file(place)))
    state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    body = {
        name.removeprefix("albert."): weight
        for name, weight in state.items()
        if name.startswith("albert.")
    }
    config = AlbertConfig.from_dict(json.loads((folder / "config.json").read_text()))
    model, report = AlbertModel.from_pretrained(
        None, config=config, state_dict=body, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    words = (folder / "vocab.txt").read_text().splitlines()
    return model.eval(), {word: index for index, word in enumerate(words)}


def _reaction() -> tuple[Any, dict[str, Tensor]]:
    model, vocabulary = rxnmapper()
    tokens = SMILES.findall("CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1")
    ids = [vocabulary[token] for token in ("[CLS]", *tokens, "[SEP]")]
    return model, {"input_ids": torch.tensor([ids])}


def _text(name: str) -> tuple[Any, dict[str, Tensor]]:
    loaded = models.load(name)
    return loaded.model, loaded.inputs(loaded.tokens(DEFAULT_TEXT))


def _picture() -> tuple[Any, dict[str, Tensor]]:
    picture = models.read_picture(DATA / "coffee.jpg", longest=16)
    return models.load("dinov2").model, picture.inputs()


def _speech() -> tuple[Any, dict[str, Tensor]]:
    loaded = models.load("whisper")
    sound = models.read_sound(DATA / "sentence.wav")
    return loaded.model, sound.inputs() | models.transcribe(loaded, sound).inputs()


REAL: dict[str, Callable[[], tuple[Any, dict[str, Tensor]]]] = {
    "minilm": lambda: _text("minilm"),
    "smollm2": lambda: _text("smollm2"),
    "rxnmapper": _reaction,
    "dinov2": _picture,
    "whisper": _speech,
}
