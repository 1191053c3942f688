"""How eyeline reaches into other libraries; nothing else in the package knows them.

`intercepted` is the one door to the attention of a running model: it hands every call of an
attention to a function, which lets the model's own kernel run or computes something else.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from eyeline.calls import Call, Missing, Noted
from eyeline.errors import ModelError
from eyeline.integrations import changing
from eyeline.integrations.changing import Change, Finish
from eyeline.integrations.paths import modules_of, within

__all__ = ["Change", "Finish", "Handle", "Note", "changed", "inside", "intercepted", "recomputing"]

Handle = Callable[[Call, Callable[[], Tensor]], Tensor]
"""What is handed each call and the model's own kernel, and gives the output."""


class Note(Protocol):
    """What is told of calls that the model's own kernel has computed."""

    def first(self, q: Tensor, k: Tensor) -> None:
        """The first call of a forward has come; it is noted with the others."""

    def note(self, call: Noted) -> None:
        """A call ran, and can be looked into later."""


inside: ContextVar[bool] = ContextVar("inside", default=False)
"""True while an attention function runs whose call was handed over: what it calls is part of it."""


def recomputing() -> bool:
    """Whether this is gradient checkpointing, which runs a forward again while going backward.

    The calls in it are none of their own. Only torch's number of the running backward tells.
    """
    return torch._C._current_graph_task_id() != -1


@contextmanager
def intercepted(
    model: torch.nn.Module,
    handle: Handle,
    start: Callable[[], None],
    missed: Callable[[tuple[Missing, ...]], None],
    *,
    rules: bool = False,
    note: Note | None = None,
) -> Iterator[Callable[[], None]]:
    """Hand every attention call of `model` to `handle`; restore everything afterwards.

    ``handle(call, own) -> out [B, Hq, Tq, Dv]``: `own()` runs the model's own kernel and gives its
    output; where `handle` returns that very tensor, the model goes on with what its own function
    returned, bit for bit. `call.v` is always there. `start()` is called where an outermost forward
    of the model begins, `missed(...)` where it ends, with the attention that ran unseen. Several
    interceptions may be nested; the inner one is asked first and its `own()` asks the outer one.
    With `rules`, for a `handle` that runs no kernel of the model's, masks are never made as tensors
    where they can stay rules. Calls are handed over as `changing` changed them. A call that nobody
    else is told of, and that needs nothing but queries and keys, goes to `note` where that is
    given, which costs less; such a `handle` must let the model's own kernel run. It is told of such
    calls when their forward ends, or when what this gives is called.

    Raises ModelError for what is no model, or a model that cannot be looked into.
    """
    _check(model)
    heard = _Heard(model, handle, start, missed, note)
    with _told(model, heard, rules):
        yield heard.tell


@contextmanager
def changed(
    model: torch.nn.Module,
    change: Change,
    start: Callable[[], None],
    missed: Callable[[tuple[Missing, ...]], None],
) -> Iterator[None]:
    """Let the attention calls of `model` be computed as `change` says; see `changing`.

    A call that is not changed is left to the model's own kernel, any other goes through
    ``call.attention()``. `start`, `missed` and errors are those of `intercepted`.
    """
    _check(model)
    with changing.active(model, change), _told(model, _Acting(model, start, missed)):
        yield


@contextmanager
def _told(model: torch.nn.Module, heard: _Heard, rules: bool = False) -> Iterator[None]:
    """Let everything that can see calls of `model` tell `heard` of them."""
    with ExitStack() as stack:
        stack.enter_context(heard.listening())
        modules = modules_of(model)
        kinds = {type(module) for module in modules.values()}
        inside_interface = _holds_transformers(kinds)
        beside = not inside_interface or _calls_torch(kinds)  # torch's own door
        if inside_interface:
            from eyeline.integrations import huggingface_door

            heard.tell = stack.enter_context(
                huggingface_door.intercepted(
                    modules,
                    heard.handle,
                    heard.start,
                    partial(heard.missed, "interface"),
                    heard if heard.notes and not beside else None,
                    heard.alone,
                    rules=rules,
                )
            )
        if beside:
            from eyeline.integrations import torch_door

            stack.enter_context(
                torch_door.intercepted(
                    modules,
                    heard.handle,
                    (lambda: None) if inside_interface else heard.start,
                    partial(heard.missed, "torch"),
                )
            )
        yield


class _Heard:
    """What several integrations tell of one forward, as one: names once, missing what all missed.

    Calls of one module are numbered from the second on ("#2"), whoever tells of them.
    """

    _listening: ClassVar[list[_Heard]] = []  # outermost first

    def __init__(
        self,
        model: torch.nn.Module,
        handle: Handle,
        start: Callable[[], None],
        missed: Callable[[tuple[Missing, ...]], None],
        note: Note | None = None,
    ) -> None:
        self._model = model
        self._handle, self._start, self._missed, self._note = handle, start, missed, note
        self.notes = note is not None
        self.tell: Callable[[], None] = lambda: None  # of the calls that wait to be noted
        self._runs: dict[str, int] = {}
        self._told: dict[str, tuple[Missing, ...]] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        for heard in self._listening:
            heard.tell()
        self._listening.append(self)
        try:
            yield
        finally:
            self._listening.remove(self)

    def start(self) -> None:
        self._runs.clear()
        self._told.clear()
        self._start()

    def handle(self, call: Call, own: Callable[[], Tensor]) -> Tensor:
        """What becomes of a call; one that is computed again while going backward is no new one."""
        if recomputing():
            return own()
        self.tell()
        call = call.but(name=self._numbered(call.name))
        now, finish = changing.changed(self._model, call)
        kept: list[Tensor] = []

        def once() -> Tensor:
            kept[:] = [own()]
            return kept[0]

        out = self._handle(now if now is call else now.but(kernel="eyeline"), once)
        if not kept and self._watched_outside():
            own()
        if finish is None or (kept and out is kept[0]):
            return out
        return finish(out)

    def alone(self) -> bool:
        """Whether nobody else is told of calls, or changes them."""
        return len(self._listening) == 1 and not changing.any_active()

    def first(self, q: Tensor, k: Tensor) -> None:
        """As `Note` says."""
        assert self._note is not None
        self._note.first(q, k)

    def note(self, call: Noted) -> None:
        """As `Note` says."""
        assert self._note is not None
        call.name = self._numbered(call.name)
        self._note.note(call)

    def _watched_outside(self) -> bool:
        """Whether someone watches from outside, who is told of a call where `own()` runs."""
        outside = self._listening[: self._listening.index(self)]
        return any(not isinstance(heard, _Acting) for heard in outside)

    def _numbered(self, path: str) -> str:
        path = path.partition("#")[0]
        number = self._runs[path] = self._runs.get(path, 0) + 1
        return path if number == 1 else f"{path}#{number}"

    def missed(self, teller: str, missing: tuple[Missing, ...]) -> None:
        self._told[teller] = missing
        found: dict[str, Missing] = {}
        for _, told in sorted(self._told.items()):  # the interface knows what models returned
            for one in told:
                if not self._heard(one.name):
                    found.setdefault(one.name, one)
        self._missed(tuple(found.values()))

    def _heard(self, path: str) -> bool:
        return any(within(name, path) for name in self._runs)


class _Acting(_Heard):
    """Computes calls as they were changed. It is the inner one of two that computes for both."""

    def __init__(
        self,
        model: torch.nn.Module,
        start: Callable[[], None],
        missed: Callable[[tuple[Missing, ...]], None],
    ) -> None:
        super().__init__(model, _own, start, missed)

    def handle(self, call: Call, own: Callable[[], Tensor]) -> Tensor:
        if not recomputing():
            call = call.but(name=self._numbered(call.name))
        now, finish = changing.changed(self._model, call)
        if now is call:
            out = own()
        else:
            if self._watched_outside():
                own()
            out = now.attention()
        return out if finish is None else finish(out)


def _own(call: Call, own: Callable[[], Tensor]) -> Tensor:
    return own()


def _check(model: torch.nn.Module) -> None:
    if not isinstance(model, torch.nn.Module):
        inner = getattr(model, "model", None)
        hint = " Give its .model." if isinstance(inner, torch.nn.Module) else ""
        raise ModelError(
            f"watch() takes a model, a torch.nn.Module, and this is a {type(model).__name__}.{hint}"
        )
    whole = getattr(model, "_orig_mod", None)
    if isinstance(whole, torch.nn.Module):
        raise ModelError(
            "watch() cannot look into a compiled model: its attention calls are no longer there.\n"
            "Watch and call the model that was given to torch.compile."
        )


def _calls_torch(kinds: set[type[torch.nn.Module]]) -> bool:
    """Whether code in a model with parts of transformers calls torch's own attention functions."""
    if any(issubclass(kind, torch.nn.MultiheadAttention) for kind in kinds):
        return True
    return any(_names_torch(name) for name in {kind.__module__ for kind in kinds})


@cache
def _names_torch(module: str) -> bool:
    """Whether the source of a Python module, torch's own aside, names torch's SDPA."""
    if module.partition(".")[0] == "torch":
        return False
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):  # typed into a console, or no Python: it may
        return True
    return "scaled_dot_product_attention(" in source


def _holds_transformers(kinds: set[type[torch.nn.Module]]) -> bool:
    """Whether a model of transformers is among them; transformers is never imported to know."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and any(issubclass(kind, library.PreTrainedModel) for kind in kinds)
