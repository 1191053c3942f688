"""A model that is ready to run, with what it reads by."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyeline import tokens as _tokens
from eyeline.errors import ModelError
from eyeline.models.bundled import BUNDLED


@dataclass(frozen=True, repr=False)
class LoadedModel:
    """A model in eval mode and float32, ready for one input at a time, with its tokenizer.

    `reads` says what it takes: "text", "picture" or "sound"; `causal` whether a token sees only
    what is before it; `max_tokens` the most tokens it takes; `parameters` is their number;
    `source` names where its files lie. A model of pictures has no tokenizer (None).
    """

    name: str
    title: str
    model: torch.nn.Module
    tokenizer: Any
    causal: bool
    max_tokens: int
    layers: int
    heads: int
    parameters: int
    licence: str
    reads: str = "text"
    source: str = ""

    def __repr__(self) -> str:
        return (
            f"LoadedModel({self.title}: {self.layers} layers, {self.heads} heads, "
            f"{self.parameters / 1e6:.1f} M parameters, up to {self.max_tokens} tokens)"
        )

    def tokens(self, text: str) -> _tokens.Tokens:
        """The text as this model reads it, special tokens included, however long it is."""
        self.expect("text")
        return _tokens.encode(self.tokenizer, text)

    def inputs(self, tokens: _tokens.Tokens) -> dict[str, torch.Tensor]:
        """What `model(**inputs)` takes: input_ids, int64 [1, T].

        Raises ModelError where there are no tokens, or more than the model can place; the text
        then names the bundled model that takes them.
        """
        self.expect("text")
        if not len(tokens):
            raise ModelError("There is nothing to look at: the text is empty.")
        if len(tokens) > self.max_tokens:
            raise ModelError(self._too_long(len(tokens)))
        return {"input_ids": torch.tensor([tokens.ids])}

    def language_model(self) -> torch.nn.Module:
        """The model with its output layer on top: for next-token logits and `generate`.

        Its body is `model` itself, the same weights and modules. Raises ModelError for a model
        that has no output layer for next tokens.
        """
        self.expect("text")
        if not self.causal:
            raise ModelError(
                f"{self.title} reads in both directions and has no next token.\n"
                "Take a language model: --model smollm2."
            )
        transformers: Any = importlib.import_module("transformers")
        with quiet():
            whole = transformers.AutoModelForCausalLM.from_pretrained(
                self.source, local_files_only=True, dtype=torch.float32
            )
        tied = whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
        setattr(whole, whole.base_model_prefix, self.model)
        whole.config.name_or_path = self.name
        if tied:
            whole.get_output_embeddings().weight = whole.get_input_embeddings().weight
        language_model: torch.nn.Module = whole.eval().requires_grad_(False)
        return language_model

    def expect(self, reads: str) -> None:
        """Raise ModelError unless the model reads "text", "picture" or "sound", as asked."""
        if self.reads != reads:
            fitting = [model.name for model in BUNDLED if model.reads == reads]
            raise ModelError(
                f"{self.title} reads a {self.reads}, and this is a {reads}.\n"
                f"Models for a {reads}: {', '.join(fitting)}."
            )

    def _too_long(self, count: int) -> str:
        found = f"The text is {count} tokens long and {self.title} takes at most {self.max_tokens}."
        longer = [m for m in BUNDLED if m.reads == "text" and m.max_tokens > self.max_tokens]
        if not longer:
            return f"{found}\nShorten it."
        best = max(longer, key=lambda m: m.max_tokens)
        remedy = f"Try --model {best.name} ({best.title}), which takes {best.max_tokens}"
        return f"{found}\n{remedy}{'.' if count <= best.max_tokens else ', and shorten the text.'}"


def ready(
    name: str,
    title: str,
    model: torch.nn.Module,
    tokenizer: Any,
    max_tokens: int,
    licence: str,
    source: str,
    reads: str = "text",
) -> LoadedModel:
    """The model in eval mode, its weights fixed, its numbers counted."""
    config: Any = model.config
    # A cache would copy every key and value once more, and one forward has no use for it.
    config.use_cache = False
    config.name_or_path = name  # what a recording says of it, in place of a folder
    model.eval().requires_grad_(False)
    return LoadedModel(
        name=name,
        title=title,
        model=model,
        tokenizer=tokenizer,
        causal=any(getattr(module, "is_causal", False) for module in model.modules()),
        max_tokens=max_tokens,
        layers=int(getattr(config, "num_hidden_layers", 0)),
        heads=int(getattr(config, "num_attention_heads", 0)),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        licence=licence,
        reads=reads,
        source=source,
    )


def check_complete(path: Path, report: dict[str, Any]) -> None:
    """Raise ModelError unless transformers found every weight, and used every weight given."""
    wrong = [str(name) for key in ("missing_keys", "unexpected_keys") for name in report[key]]
    if wrong:
        raise ModelError(
            f"{path.name} does not fit the model: {', '.join(sorted(wrong)[:3])} and"
            f" {len(wrong) - 1} others are missing or not known."
        )


@contextmanager
def quiet(bars: bool = True) -> Iterator[None]:
    """Without transformers' progress bars (if `bars`) and reports of unused weights."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
