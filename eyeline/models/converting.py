"""Models that are converted once: into a folder of the cache, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from eyeline.errors import ModelError
from eyeline.models.bundled import Bundled

_MANIFEST = "eyeline.json"  # the last file written into a cache folder: what it must hold


def cache() -> Path:
    """The folder for converted models: $EYELINE_CACHE, else eyeline in the user's cache folder."""
    own = os.environ.get("EYELINE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "eyeline"


def converted(bundled: Bundled, source: Path, say: Callable[[str], None]) -> Path:
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
