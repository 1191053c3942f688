"""The command line: `eyeline look`, `explain`, `bench` and `info`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from enum import Enum
from functools import partial
from json import dumps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from eyeline.cli.arguments import (
    check_different,
    check_no_text,
    check_none_with,
    check_one_of,
    check_only_with,
    check_writable,
    kind_of,
    recording_of,
    text_of,
    utf8,
)
from eyeline.cli.printing import (
    carried,
    console,
    forgiving,
    goes_on,
    print_json,
    save_to,
    show_and_save,
)
from eyeline.errors import EyelineError

if TYPE_CHECKING:
    from eyeline.seen import Seen

Looked = tuple[Any, Callable[..., None]]
"""What a look found, and what shows it on a console."""

# Options that mean the same in every command.
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch a Hub model that is not here yet.")
]

app = typer.Typer(
    name="eyeline",
    help="Attention you can look into.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Lang(str, Enum):
    """The languages of the screen."""

    en = "en"
    zh = "zh"


class By(str, Enum):
    """The readings by which heads can be shaded."""

    words = "words"
    special = "special"
    self = "self"
    near = "near"
    entropy = "entropy"
    distance = "distance"


class Dtype(str, Enum):
    """The types of numbers that the native kernels compute."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


LENGTHS = "512,2048,8192"  # tokens that `eyeline bench` measures


@app.callback()
def eyeline() -> None:
    """Attention you can look into."""


@app.command()
def look(
    text: Annotated[
        str | None,
        typer.Argument(
            help="The text, - for standard input, or a recording. [default: an example sentence]"
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the text from a file.")] = None,
    image: Annotated[Path | None, typer.Option(help="Look at a picture, with DINOv2.")] = None,
    audio: Annotated[
        Path | None, typer.Option(help="Listen to speech in a WAV file, with Whisper.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="minilm, smollm2, a folder, or an id of the Hugging Face Hub. [default: minilm]"
        ),
    ] = None,
    generate: Annotated[
        int, typer.Option(help="Let the model write on by so many tokens, and look at all.")
    ] = 0,
    block: Annotated[
        str | None,
        typer.Option(help="Switch heads off, as L13H8,L5H0, and show what the next word becomes."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="The layer to draw, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="The head to draw, from 0.")] = None,
    token: Annotated[
        str | None,
        typer.Option(help="A word, its number, or a patch as r3c7: whom it looks at."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many words to name beside each.")] = 3,
    by: Annotated[By, typer.Option(help="What the heads are shaded and chosen by.")] = By.words,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="The model's own pieces in place of words.")
    ] = False,
    lang: Annotated[
        Lang | None, typer.Option(help="The language of the screen. [default: the locale's]")
    ] = None,
    json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a figure for a paper.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write a recording: look FILE shows it again without the model."),
    ] = None,
    download: Download = False,
) -> None:
    """Run a text through a real model and show what its attention does."""
    if not download:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    check_writable(html, svg, save)
    read = {"--file": file, "--image": image, "--audio": audio}
    check_different({**read, "--html": html, "--svg": svg, "--save": save})

    from eyeline.glossary import language

    spoken = language(lang.value if lang else None)
    if image is not None or audio is not None:
        check_no_text(
            text,
            image,
            audio,
            **{"--file": file, "--generate": generate, "--block": block, "--pieces": pieces},
            **{"--by": by is not By.words, "--top": top != 3},
        )
    if audio is not None:
        check_none_with("--audio", {"--token": token is not None})
        found, show = _of_sound(audio, model, layer, head, spoken, save)
        source = str(audio)
    elif image is not None:
        found, show = _of_picture(image, model, layer, head, token, spoken, save)
        source = str(image)
    else:
        words, source = text_of(text, file)
        run = recording_of(words, {"--model": model, "--generate": generate, "--block": block})
        common: dict[str, Any] = {
            "top": top,
            "lang": spoken,
            "download": download,
            "progress": _tell,
        }
        if block is not None:
            told = {"--layer": layer, "--head": head, "--token": token, "--html": html}
            told |= {"--svg": svg, "--save": save}
            check_none_with(
                "--block",
                {"--generate": generate, "--pieces": pieces}
                | {option: value is not None for option, value in told.items()},
            )
            found, show = _without_heads(words, block, model, **common)
        elif run is not None and (kind := kind_of(run)) is not None:
            of_text = {"--pieces": pieces, "--by": by is not By.words, "--top": top != 3}
            check_none_with(f"A recording of {kind}", of_text)
            if kind == "speech":
                check_none_with("A recording of speech", {"--token": token is not None})
                found, show = _of_sound(run, None, layer, head, spoken, save)
            else:
                found, show = _of_picture(run, None, layer, head, token, spoken, save)
        else:
            found, show = _of_text(
                words if run is None else run,
                model or ("smollm2" if generate else "minilm"),
                generate=generate,
                layer=layer,
                head=head,
                token=None if token is None else utf8(token, "--token", "give the word's number"),
                by=by.value,
                pieces=pieces,
                save=save,
                **common,
            )
    show_and_save(found, show, source, json, html, svg, spoken)


def _of_sound(
    audio: Path | Seen,
    model: str | None,
    layer: int | None,
    head: int | None,
    lang: str,
    save: Path | None,
) -> Looked:
    """A look at speech, or at a recording of one."""
    from eyeline.looking.sounds import listen
    from eyeline.views.sounds import show

    found = listen(audio, model or "whisper", layer=layer, head=head, save=save, lang=lang)
    return found, partial(show, found)


def _of_picture(
    image: Path | Seen,
    model: str | None,
    layer: int | None,
    head: int | None,
    token: str | None,
    lang: str,
    save: Path | None,
) -> Looked:
    """A look at a picture, or at a recording of one."""
    from eyeline.looking.pictures import look_at
    from eyeline.views.pictures import show

    found = look_at(
        image, model or "dinov2", layer=layer, head=head, token=token or "CLS", save=save, lang=lang
    )
    return found, partial(show, found)


def _without_heads(words: str, heads: str, model: str | None, *, top: int, **asked: Any) -> Looked:
    """A look at the next word of a model whose heads are switched off."""
    from eyeline.looking.blocked import without
    from eyeline.views.blocked import show

    found = without(words, heads, model or "smollm2", top=max(top, 8), **asked)
    return found, partial(show, found)


def _of_text(text: str | Seen, model: str, **asked: Any) -> Looked:
    """A look at a text, or at a recording."""
    from eyeline.looking import look as looked
    from eyeline.views.terminal import show

    found = looked(text, model, **asked)
    return found, partial(show, found)


def _tell(line: str) -> None:
    """What takes long is told beside the output, not in it."""
    print(line, file=sys.stderr, flush=True)


@app.command()
def explain(
    text: Annotated[
        str, typer.Argument(help="A few words; Chinese is taken by character.")
    ] = "I love NLP",
    step: Annotated[int | None, typer.Option(help="Only this step, from 0.")] = None,
    token: Annotated[
        str, typer.Option(help="The word whose row is followed, or its number.")
    ] = "0",
    d: Annotated[int | None, typer.Option("--d", help="Numbers in a vector. [default: 4]")] = None,
    seed: Annotated[int | None, typer.Option(help="What the numbers are drawn by.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads that share a vector.")] = None,
    scale: Annotated[
        float | None, typer.Option(help="Multiply scores by this. [default: 1 / sqrt(d)]")
    ] = None,
    no_scale: Annotated[bool, typer.Option("--no-scale", help="Leave the scores as are.")] = False,
    causal: Annotated[bool, typer.Option("--causal", help="Put the causal mask on.")] = False,
    no_mask: Annotated[
        bool, typer.Option("--no-mask", help="Take a model's causal mask away.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Take the numbers from a real model: minilm, smollm2, ...")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="The model's layer, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="The head that is shown, from 0.")] = None,
    lang: Annotated[
        Lang | None, typer.Option(help="The language of the lesson. [default: the locale's]")
    ] = None,
    json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write one page for a class.")] = None,
    download: Download = False,
) -> None:
    """Explain attention step by step, on a text, with every number."""
    if not download:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    check_writable(html)
    check_one_of({"--scale": scale is not None, "--no-scale": no_scale})
    check_one_of({"--causal": causal, "--no-mask": no_mask})
    if model is None:
        check_only_with("--model", {"--layer": layer is not None, "--download": download})
    else:
        drawn = {"--d": d, "--seed": seed, "--heads": heads}
        check_none_with("--model", {option: n is not None for option, n in drawn.items()})

    from eyeline.glossary import Phrases, language
    from eyeline.lesson import Settings, check_step, lesson

    check_step(step)

    settings = Settings(
        text=utf8(text, "The text", "type it as UTF-8"),
        d=4 if d is None else d,
        seed=seed or 0,
        heads=1 if heads is None else heads,
        head=head or 0,
        scale=1.0 if no_scale else scale,
        causal=True if causal else False if no_mask else None,
        model=model,
        layer=layer or 0,
    )
    tell = partial(
        lesson,
        settings,
        token=utf8(token, "--token", "give the word's number"),
        download=download,
        progress=_tell,
    )
    spoken = language(lang.value if lang else None)
    shown = step if html is None and not json else None  # files hold the whole lesson
    found = tell(lang=spoken, step=shown)
    if html is not None:
        save_to(found.save_html, html)
    if json:
        print_json(found.to_json())
        return

    from eyeline.views.lesson_terminal import show

    say = Phrases(spoken)
    if say("score") != carried(say("score")):  # the terminal has no Chinese
        say, found = Phrases("en"), tell(lang="en", step=shown)
    terminal = console()
    screens = found.screens
    if step is not None and shown is None:
        screens = screens[step : step + 1]
    paged = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    for place, screen in enumerate(screens):
        if paged and place and not goes_on(carried(say("lesson next"))):
            break
        show(screen, terminal)
    if html is not None:
        print(carried(say("written", path=html)))


@app.command()
def bench(
    tokens: Annotated[str, typer.Option(help="Lengths to measure, with commas.")] = LENGTHS,
    heads: Annotated[int, typer.Option(min=1, help="Heads of the layer.")] = 4,
    d: Annotated[int, typer.Option("--d", min=1, help="Numbers in a query or key.")] = 64,
    dtype: Annotated[Dtype, typer.Option(help="The type of the numbers.")] = Dtype.float32,
    full: Annotated[bool, typer.Option("--full", help="Without the causal mask.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads to compute with. [default: torch's]")
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure what attention costs here: time and memory beside torch's, in half a minute."""
    import torch

    from eyeline.cli.costs import Shape, lengths_of, measure, show

    lengths = lengths_of(tokens)
    if threads is not None:
        torch.set_num_threads(threads)
    found = measure(lengths, Shape(heads, d, dtype.value, not full), _tell)
    if json:
        print_json(dumps(found, indent=1))
        return
    show(found, console())


@app.command()
def info() -> None:
    """Say which versions, backends and models are here, and what is missing."""
    import torch

    from eyeline.backends import BACKENDS, native
    from eyeline.models import LIBRARIES, cache, known

    _row("eyeline", _version("eyeline") or f"{Path(__file__).parent.parent}, not installed")
    _row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    _row("torch", f"{torch.__version__}, {torch.get_num_threads()} threads, {_device(torch)}")
    _row("backends", ", ".join(backend.name for backend in BACKENDS))
    _row("native", _native(native.missing, native.tables(), native.chosen()))
    if caches := native.caches():
        _row("processor", "caches of " + ", ".join(f"{size >> 10} KiB" for size in caches))
    for package in ("transformers", "tokenizers", "safetensors", "gguf"):
        _row(package, _version(package) or f"missing, needed for models: {LIBRARIES}")
    for package in ("onnx", "pillow"):
        remedy = f"missing, needed for pictures: pip install {package}"
        _row(package, _version(package) or remedy)
    for model in known():
        here = f"{model.title}, {model.takes}, {model.licence}"
        missing = f"missing: {model.command} ({model.download_mb} MB)"
        _row(model.name, here if model.installed else missing)
    _row("cache", str(cache()))


def _native(missing: str, tables: tuple[str, ...], chosen: str) -> str:
    if missing:
        return f"{missing} Until then attention runs on `tiled`: the same answers, slower."
    return f"{chosen} (this processor runs {', '.join(tables)})"


def _device(torch: ModuleType) -> str:
    if torch.cuda.is_available():
        return f"CPU and {torch.cuda.get_device_name()}"
    return "CPU"


def main() -> None:
    """Run the command line. Errors are one sentence on standard error, and exit code 2."""
    if sys.stdout is None:  # closed by the shell: files may still be asked for
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open as long as the process is)
    forgiving(sys.stdout)
    forgiving(sys.stderr)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what cannot be written is known here, not at the exit
    except EyelineError as error:
        _fail(str(error))
    except BrokenPipeError:  # whoever read the output has seen enough
        _drop_output()
        sys.exit(0)
    except OSError as error:
        if error.errno is None or error.filename is not None:  # no write to an open stream
            raise
        _drop_output()
        _fail(f"The output cannot be written: {error.strerror}.")


def _fail(message: str) -> NoReturn:
    print(f"eyeline: {message}", file=sys.stderr)
    sys.exit(2)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _row(name: str, value: str) -> None:
    print(f"{name:<14}{value}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
