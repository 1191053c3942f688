"""Real pretrained models to look into: some that come as packages, and any that you have.

The bundled ones are ordinary packages of files (models.txt, models-more.txt); their code is never
imported and nothing is fetched while running. Any other name is an id on the Hugging Face Hub or
a folder; an id is looked up in the local cache and fetched only when asked.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import torch

from eyeline.errors import ModelError
from eyeline.models.bundled import BUNDLED, Bundled
from eyeline.models.converting import cache, converted
from eyeline.models.loaded import LoadedModel, quiet, ready
from eyeline.models.pictures import Picture, read_picture
from eyeline.models.sounds import Sound, Transcript, read_sound, transcribe

__all__ = [
    "Bundled",
    "LoadedModel",
    "Picture",
    "Sound",
    "Transcript",
    "cache",
    "known",
    "load",
    "read_picture",
    "read_sound",
    "transcribe",
]

DEFAULT = "minilm"
LIBRARIES = 'pip install "transformers>=5.18,<6" tokenizers safetensors gguf'

Progress = Callable[[str], None]


def known() -> tuple[Bundled, ...]:
    """The bundled models, the default first; `.installed` says whether the files are there.

    >>> [(model.name, model.reads, model.max_tokens) for model in known()][:3]
    [('minilm', 'text', 512), ('smollm2', 'text', 8192), ('dinov2', 'picture', 1370)]
    """
    return BUNDLED


def load(
    name: str | os.PathLike[str] = DEFAULT,
    *,
    download: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a bundled model by name, or any Hugging Face model by Hub id or folder.

    Hub ids are looked up in the local cache; only `download=True` fetches. `progress` is told,
    a line at a time, what takes long: SmolLM2 is converted on first use and kept in the folder of
    `cache()`. An encoder–decoder from the Hub gives its encoder. Raises ModelError, which says
    what to do.

    >>> bundled = known()[0]
    >>> model = load(bundled.name)
    >>> model.layers, model.heads, model.parameters
    (6, 12, 22713216)
    >>> model.inputs(model.tokens("I love NLP"))["input_ids"].shape
    torch.Size([1, 6])
    """
    say = progress or (lambda message: None)
    if isinstance(name, os.PathLike):
        name = os.fspath(name)
    if not isinstance(name, str):
        kind = type(name).__name__
        raise ModelError(f"name is of type {kind}, and load takes a name, an id or a folder.")
    _libraries()
    for bundled in known():
        if name == bundled.name:
            return _load_bundled(bundled, say)
    return _load_named(name, download, say)


def _libraries() -> None:
    missing = [n for n in ("transformers", "tokenizers", "safetensors") if not _installed(n)]
    if missing:
        raise ModelError(
            f"Loading a model needs {', '.join(missing)}, which {_is(missing)} not installed.\n"
            f"Run: {LIBRARIES}"
        )


def _installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _load_bundled(bundled: Bundled, say: Progress) -> LoadedModel:
    source = bundled.path
    if source is None:
        raise ModelError(
            f"{bundled.title} is not installed.\nRun: make models, or {bundled.command}"
        )
    from tokenizers import Tokenizer

    from eyeline.models import pictures, sounds

    tokenizer = None
    with quiet():
        if bundled.reads == "picture":
            model = pictures.build(source)
        elif bundled.reads == "sound":
            model = sounds.build(source)
            tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        else:
            source = source if source.is_dir() else converted(bundled, source, say)
            model = _text_model(source, bundled)
            tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    return ready(
        bundled.name,
        bundled.title,
        model,
        tokenizer,
        bundled.max_tokens,
        bundled.licence,
        str(source),
        bundled.reads,
    )


def _text_model(folder: Path, bundled: Bundled) -> torch.nn.Module:
    # The classes themselves: transformers' Auto classes look at every family they know.
    if bundled.name == "smollm2":
        from transformers.models.llama.modeling_llama import LlamaModel as Family
    else:
        from transformers.models.bert.modeling_bert import BertModel as Family

    model: torch.nn.Module = Family.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32
    )
    return model


def _load_named(name: str, download: bool, say: Progress) -> LoadedModel:
    from transformers import AutoModel, AutoTokenizer

    fetch = download and not Path(name).is_dir()
    if fetch and os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise ModelError(
            f"{name} was to be fetched, and HF_HUB_OFFLINE forbids it.\nUnset it: HF_HUB_OFFLINE=0"
        )
    if fetch:
        say(f"Looking for {name} on the Hugging Face Hub")
    try:
        with quiet(bars=not fetch):
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=not fetch)
            model = AutoModel.from_pretrained(name, local_files_only=not fetch, dtype=torch.float32)
    except (OSError, ValueError, KeyError, ImportError) as error:
        # of a name that is nowhere the message says all, and theirs is long and of connections
        told = error if Path(name).is_dir() or download else None
        raise ModelError(_not_found(name, download, error)) from told
    if getattr(model.config, "is_encoder_decoder", False):
        model = model.get_encoder()
    places = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    limit = min(int(places), int(tokenizer.model_max_length))
    title = name if not Path(name).is_dir() else Path(name).resolve().name
    return ready(name, title, model, tokenizer, limit, "see its model card", name)


def _not_found(name: str, download: bool, error: Exception) -> str:
    names = ", ".join(bundled.name for bundled in known())
    reason = str(error).strip().splitlines() or [type(error).__name__]
    if Path(name).is_dir() or download:
        return f"{name} cannot be loaded: {reason[0]}\nThe bundled models are {names}."
    return (
        f"{name} is neither a bundled model ({names}) nor a folder, and the local Hugging Face"
        f" cache has no model of this name.\nTo fetch it from the Hub: --download; in Python "
        "download=True."
    )
