"""Which modules of a model ran attention, which of them were never heard of, and what they gave."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eyeline.calls import Missing
from eyeline.integrations.paths import attention_modules, named_cross, within

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # by this name every model of transformers knows it
# What an attention module calls the states that its keys are made of, where not its own input.
_SOURCES = ("key_value_states", "encoder_hidden_states", "cross_attention_states", "context")


def crosses(module: torch.nn.Module, path: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an attention module that is called so makes its keys from other states."""
    sources, first = _sources(type(module).forward)
    if not sources:
        return named_cross(path)
    own = args[0] if args else kwargs.get(first)
    for place, name in sources:
        given = args[place] if place < len(args) else kwargs.get(name)
        if given is not None and given is not own:
            return True
    return False


@cache
def _always_heard(forward: Callable[..., Any]) -> bool:
    """Whether a module that runs is sure to be heard of, with nothing to be told of what it took.

    Its code calls the function that it asks transformers' interface for, on every way through, and
    it makes keys of its own input alone.
    """
    if not _asks(forward) or _sources(forward)[0]:
        return False
    try:
        return _always_calls(inspect.getsource(inspect.unwrap(forward)))
    except (OSError, SyntaxError):  # typed into a console; no statement by itself
        return False


def _asks(forward: Callable[..., Any]) -> bool:
    """Whether code asks transformers' interface for an attention function."""
    inner = inspect.unwrap(forward)
    return inspect.isfunction(inner) and _INTERFACE in inner.__code__.co_names


def _always_calls(source: str) -> bool:
    """Whether the source of a function calls what it asks for before it can return or branch."""
    function = ast.parse(textwrap.dedent(source)).body[0]
    asked: set[str] = set()
    for statement in getattr(function, "body", ()):
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Call) and _name(value.func) in asked:
            return True
        for node in ast.walk(statement):
            if isinstance(node, ast.Return):
                return False
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(_name(part) == _INTERFACE for part in ast.walk(node.value)):
                    asked.update(map(_name, targets))
    return False


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _sources(forward: Callable[..., Any]) -> tuple[tuple[tuple[int, str], ...], str]:
    """Where a forward takes other states, by place and name, and the name of its own input."""
    names = tuple(inspect.signature(forward).parameters)[1:]
    found = tuple((place, name) for place, name in enumerate(names) if name in _SOURCES)
    return found, names[0] if names else ""


class Ran:
    """The attention modules of a model that ran in one forward, in order, and what became of them.

    `kinds` says of each path whether it was cross-attention.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self.named = modules
        self.paths = {id(module): name for name, module in modules.items()}
        self.modules = attention_modules(modules)
        self.unsure = [
            module
            for module in self.modules
            if "forward" in vars(module) or not _always_heard(type(module).forward)
        ]
        self.kinds: dict[str, bool] = {}
        self.called: set[str] = set()
        self.dense: dict[str, Tensor] = {}
        self._without: dict[frozenset[str], tuple[Missing, ...]] = {}

    def clear(self) -> None:
        """A new forward begins."""
        self.kinds.clear()
        self.called.clear()
        self.dense.clear()

    def enter(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """A forward hook of the attention modules that are `unsure`: one runs."""
        path = self.paths[id(module)]
        self.kinds[path] = crosses(module, path, args, kwargs)

    def calls(self, path: str) -> bool:
        """Note that a module's attention was heard of; whether it is cross-attention."""
        self.called.add(path)
        return self.kinds.setdefault(path, named_cross(path))

    def returned(self, output: Any) -> None:
        """Note the dense attentions that a model returned, each by the module it belongs to."""
        if self.kinds.keys() <= self.called:
            return
        own = [path for path, cross in self.kinds.items() if not cross]
        across = [path for path, cross in self.kinds.items() if cross]
        encoder, decoder = (
            _given(output, "encoder_attentions"),
            _given(output, "decoder_attentions"),
        )
        if encoder or decoder:
            self._belong(own, encoder + decoder)
        else:
            self._belong(own, _given(output, "attentions"))
        self._belong(across, _given(output, "cross_attentions"))

    def _belong(self, paths: list[str], attentions: tuple[Any, ...]) -> None:
        if len(paths) != len(attentions):
            return
        for path, dense in zip(paths, attentions, strict=True):
            if isinstance(dense, Tensor) and dense.ndim == 4 and path not in self.called:
                self.dense[path] = dense

    def missing(self) -> tuple[Missing, ...]:
        """The attention that ran and called nothing of ours, and the layers that have none."""
        # a part of an attention that was heard of, as its norm may be, is no attention of its own
        unheard = [
            path
            for path in self.kinds
            if path not in self.called and not any(within(path, one) for one in self.called)
        ]
        ran = frozenset((*self.called, *self.kinds))
        if ran not in self._without:
            self._without[ran] = self._layers_without(ran)
        return (*map(self._unheard, unheard), *self._without[ran])

    def _unheard(self, path: str) -> Missing:
        kind = type(self.named[path])
        reason = (
            f"{kind.__name__} computes attention with code of its own, not through transformers'"
            " attention interface nor torch's scaled_dot_product_attention."
        )
        if _asks(kind.forward):
            reason = f"{kind.__name__} ran and did not call transformers' attention interface."
        dense = self.dense.get(path)
        if dense is not None and not self.kinds[path] and dense.shape[-2] != dense.shape[-1]:
            # a band along the diagonal, as Longformer's, is no matrix of queries and keys
            shape = list(dense.shape)
            return Missing(path, f"{reason} It returned {shape}, which is not queries by keys.")
        return Missing(path, reason, dense)

    def _layers_without(self, ran: frozenset[str]) -> tuple[Missing, ...]:
        """Layers without attention, in a stack whose others have it: hybrid models."""
        holders = ran | {self.paths[id(module)] for module in self.modules}
        missing: list[Missing] = []
        for stack in sorted(filter(None, set(map(self._stack, ran)))):
            above = f"{stack}."
            held = {one[len(above) :].partition(".")[0] for one in holders if one.startswith(above)}
            missing += (
                Missing(above + index, f"A layer without attention, {type(layer).__name__}.")
                for index, layer in self.named[stack].named_children()
                if index not in held
            )
        return tuple(missing)

    def _stack(self, path: str) -> str | None:
        """The outermost list of modules that a module stands in."""
        parts = path.split(".")
        for end in range(1, len(parts)):
            above = ".".join(parts[:end])
            if isinstance(self.named[above], torch.nn.ModuleList):
                return above
        return None


def _given(output: Any, name: str) -> tuple[Any, ...]:
    value = getattr(output, name, None)
    return value if isinstance(value, tuple) else ()
