"""The attention calls of a Hugging Face model, intercepted.

transformers looks its attention function up by a name in the model's configuration, and the
function that makes the mask by the same name. While a model is looked into that name is one of
ours: both functions hand everything to the ones that the model had and return exactly what those
returned, unless whoever looks puts something else in its place. The mask is told as a rule where
the function that describes it is one of transformers' own (causal, window, chunk, packed,
padding); else it is the tensor that was made from it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling as _is_compiling
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface, PreTrainedModel

from eyeline.api import autocast
from eyeline.calls import Missing, versions
from eyeline.errors import ModelError
from eyeline.integrations import (
    Handle,
    Note,
    huggingface_attention,
    huggingface_generate,
    inside,
    recomputing,
)
from eyeline.integrations.huggingface_calls import (
    OTHERS,
    Given,
    Rules,
    call_of,
    function_of,
)
from eyeline.integrations.huggingface_model import check, check_version, configs, outermost
from eyeline.integrations.huggingface_passing import Passing
from eyeline.integrations.huggingface_ran import Ran

# Without "sdpa", "flash", "flex" and "eager", which transformers looks for in names.
_names = (f"eyeline_watch_{number}" for number in itertools.count())
_taken: dict[str, str] = {}  # each name of ours that is in use → the implementation under it
_Function = tuple[Callable[..., Any], str]  # an attention function and what it is called
_open: list[_Door] = []  # in any order: the one that began last need not end first
_spent: set[str] = set()  # names of ours that nobody uses any more
_changing = threading.RLock()  # held while names are put in place or taken back
_graph_task = torch._C._current_graph_task_id  # what `recomputing` asks, between a model's layers
_any_autocast = torch._C._is_any_autocast_enabled


@contextmanager
def intercepted(
    modules: Mapping[str, torch.nn.Module],
    handle: Handle,
    start: Callable[[], None],
    missed: Callable[[tuple[Missing, ...]], None],
    note: Note | None = None,
    alone: Callable[[], bool] = lambda: True,
    *,
    rules: bool = False,
) -> Iterator[Callable[[], None]]:
    """`eyeline.integrations.intercepted` for calls that go through transformers' interface.

    `modules` are all modules of the model by their paths. Calls go to `note` only while nobody
    else is told of them, which `alone()` says.
    """
    check_version()
    door = _Door(modules, handle, start, missed, note, alone, rules)
    try:
        door.open()
        yield door.passing.tell
        door.missed(door.ran.missing())
    finally:
        door.close()


class _Door:
    """One interception of one model: the names it has taken, the hooks it has set."""

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        handle: Handle,
        start: Callable[[], None],
        missed: Callable[[tuple[Missing, ...]], None],
        note: Note | None,
        alone: Callable[[], bool],
        only_rules: bool,
    ) -> None:
        self.model = modules[""]
        self.handle, self.start, self.missed = handle, start, missed
        self.only_rules = only_rules
        self.notes, self.alone = note is not None, alone
        self.ran = Ran(modules)
        self.submodels = {n: m for n, m in modules.items() if isinstance(m, PreTrainedModel)}
        # whose code calls no attention function by its name; there is no public way to ask
        self.closed = {
            id(m.config) for m in self.submodels.values() if not m._can_set_attn_implementation()
        }
        check(self.submodels, self.closed)
        self.outermost = outermost(self.submodels)
        self.configs = configs(modules, self.closed)
        self.settings = [vars(config) for config in self.configs]  # a config answers slowly
        self.before: list[str] = []
        self.names: set[str] = set()  # ours, each over an implementation that the model had
        self.hooks: list[Any] = []
        self.rules = Rules()
        self.passing = Passing(self.ran, self.rules, note)
        # by a name of ours and the kind of a module, for one forward of a model
        self.functions: dict[str, dict[type, _Function]] = {}
        self.replaced = False  # whether an output was not the model's own
        self.cache_writes = False  # whether this forward was given a cache of fixed size
        self.running: torch.nn.Module | None = None  # whose forward pass this is

    def open(self) -> None:
        with _changing:
            self.before = [config._attn_implementation for config in self.configs]
            _open.append(self)
            self.claim()
        beginning = {id(m): m for m in (self.model, *self.outermost)}.values()
        models = {id(m): m for m in (*beginning, *self.submodels.values())}.values()
        self.hooks = [
            *(m.register_forward_pre_hook(self.enter_model, with_kwargs=True) for m in models),
            *(m.register_forward_pre_hook(self.enter, with_kwargs=True) for m in self.ran.unsure),
            *(m.register_forward_hook(self.returned) for m in beginning),
            *(m.register_forward_hook(self.leave, always_call=True) for m in beginning),
        ]

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.passing.on = False
        with _changing:
            if self in _open:
                _open.remove(self)
                self.give_back()

    def give_back(self) -> None:
        """Take our names out, from under others too that are still there."""
        for config, implementation in zip(self.configs, self.before, strict=True):
            now = config._attn_implementation
            if now in self.names or not self.covers(now):
                config._attn_implementation_internal = implementation
        under = {name: _taken.pop(name) for name in self.names}
        for name, original in _taken.items():
            _taken[name] = under.get(original, original)
        for door in _open:
            door.before = [under.get(before, before) for before in door.before]
        _spent.update(self.names)
        while _spent and not _open:  # another thread may have read one, to look it up next
            name = _spent.pop()  # there is no public way to take a name back
            AttentionInterface._global_mapping.pop(name, None)
            AttentionMaskInterface._global_mapping.pop(name, None)

    def claim(self) -> None:
        """Put a name of ours over every implementation that has none on top or under others."""
        with _changing:
            for config in self.configs if self in _open else ():
                original = config._attn_implementation
                if not self.covers(original):
                    # The public setter would spread one name over configurations that differ.
                    config._attn_implementation_internal = self.name_over(original)

    def name_over(self, original: str) -> str:
        for name in self.names:
            if _taken[name] == original:
                return name
        name = next(_names)
        self.names.add(name)
        _taken[name] = original
        self.register(name, original)
        return name

    def covers(self, implementation: str) -> bool:
        """Whether a name of this door is in the chain of names that others have put over it."""
        while implementation in _taken:
            if implementation in self.names:
                return True
            implementation = _taken[implementation]
        return False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy of the model would keep our hooks, and a name that is no longer there."""
        raise ModelError(_COPIED)

    def begin(self, module: torch.nn.Module) -> None:
        if torch.compiler.is_compiling():
            _refuse_compiled()
        if recomputing():
            return
        self.passing.tell()
        self.running = module
        self.ran.clear()
        self.cache_writes = False
        self.start()

    def begins(self, module: torch.nn.Module) -> bool:
        """Whether a forward of the whole begins: of the model that is looked into.

        A part that writes by itself makes a text of its own; else it is part of the whole.
        """
        if module is self.model or module is self.running:
            return True
        part = module in self.outermost and self.running is None
        return part and any(huggingface_generate.generating())

    def returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if recomputing():
            return
        self.passing.tell()
        if module in self.outermost:
            self.ran.returned(output)
        if module is self.running:
            self.running = None
            self.rules.clear()
            self.missed(self.ran.missing())

    def leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Also where a forward raised: the next one is not part of it."""
        if module is self.running and not recomputing():
            self.passing.tell()
            self.running = None

    def register(self, name: str, first: str) -> None:
        """Make a name of ours known; `first` is the implementation that it is put over."""
        AttentionInterface.register(name, self.attending(name, first))
        # A name without a mask function is handed the mask as the caller gave it.
        if first in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(name, self.masking(name, first))

    def attending(self, name: str, first: str) -> Callable[..., Any]:
        """The attention function under a name of ours."""
        functions = self.functions[name] = {}
        passing = self.passing

        def attend(
            module: torch.nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if _is_compiling():  # of all compilers the model itself was asked
                _refuse_compiled()
            function, kernel = functions.get(type(module)) or self.find(module, name, first)
            if (
                (passing.on or self.may_pass())
                and OTHERS.isdisjoint(kwargs)
                and (attention_mask is None or isinstance(attention_mask, Tensor))
                and (before := versions(query, key, attention_mask))[1] == 0
                and _graph_task() == -1
            ):
                out = function(module, query, key, value, attention_mask, *args, **kwargs)
                if _any_autocast():
                    query, key = autocast(query, key)
                    before = versions(query, key, attention_mask)
                tensors = query, key, attention_mask
                call = kernel, module, module.training, *tensors, kwargs, before
                if passing.on:
                    passing.calls.append(call)
                else:
                    passing.begin(call)
                return out
            path = self.ran.paths.get(id(module))
            tensors = (query, key, value)
            run = partial(_inside, function, module, *tensors, attention_mask, *args, **kwargs)
            if path is None or self not in _open:
                return run()
            if recomputing():
                if self.replaced:
                    raise ModelError(_AGAIN)
                return run()
            given = Given.of(module, kwargs, module.training)
            return self.hand(kernel, path, tensors, attention_mask, given, run)

        return attend

    def may_pass(self) -> bool:
        """Whether calls of this forward may be noted in passing."""
        return self.notes and not self.cache_writes and self in _open and self.alone()

    def find(self, module: torch.nn.Module, name: str, first: str) -> _Function:
        """The function that a module of this kind asks for, and the model's own under it."""
        original = _taken.get(name, first)
        function = function_of(module, original)
        found = self.functions[name][type(module)] = function, _own(original)
        return found

    def masking(self, name: str, first: str) -> Callable[..., Any]:
        """The mask function under a name of ours."""

        def make_mask(*args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                _refuse_compiled()
            if self.only_rules and not args:
                return huggingface_attention.make_mask(**kwargs)
            mask = ALL_MASK_ATTENTION_FUNCTIONS[_taken.get(name, first)](*args, **kwargs)
            if not args:
                self.rules.note(mask, kwargs)
            return mask

        return make_mask

    def enter(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            _refuse_compiled()
        self.ran.enter(module, args, kwargs)
        self.look_for_cache(kwargs.values())

    def enter_model(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self.begins(module):
            self.begin(module)
        # generate() may set another implementation on the way, and calls encoders alone
        for settings in self.settings:
            if settings.get("_attn_implementation_internal") not in self.names:
                self.claim()
                break
        for functions in self.functions.values():
            functions.clear()
        self.look_for_cache((*args, *kwargs.values()))

    def look_for_cache(self, given: Iterable[Any]) -> None:
        """A cache that a compiler could take in is of fixed size: it is written in place."""
        for one in given:
            if isinstance(one, Cache) and one.is_compileable:
                self.cache_writes = True
                self.passing.on = False

    def hand(
        self,
        kernel: str,
        path: str,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        given: Given,
        run: Callable[[], Any],
    ) -> Any:
        crossing = self.ran.calls(path)
        rule = self.rules.of(mask, *tensors[:2])
        call = call_of(path, kernel, mask, rule, crossing, given, *tensors)
        if self.cache_writes:
            call = call.but(reused=True)
        result: Any = None
        own: Tensor | None = None

        def own_kernel() -> Tensor:
            nonlocal result, own
            result = run()
            own = result[0].transpose(1, 2)
            return own

        out = self.handle(call, own_kernel)
        if own is not None and out is own:
            # A gradient that is asked for at `own` passes there only if the model goes through it.
            return (own.transpose(1, 2), *result[1:]) if own.requires_grad else result
        self.check_replaced()
        weights = None if result is None else result[1]
        return out.transpose(1, 2).contiguous(), weights

    def check_replaced(self) -> None:
        """Another output than the model's own must not be computed again without it."""
        self.replaced = True
        if torch.is_grad_enabled() and any(
            module.training and getattr(module, "gradient_checkpointing", False)
            for module in self.model.modules()
        ):
            raise ModelError(_AGAIN)


def _inside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call an attention function; what it calls in its turn is part of it."""
    token = inside.set(True)
    try:
        return function(*args, **kwargs)
    finally:
        inside.reset(token)


def _own(implementation: str) -> str:
    """The model's own implementation, under all names that were put over it."""
    while implementation in _taken:
        implementation = _taken[implementation]
    return implementation


_AGAIN = (
    "The model's attention was replaced (kernel='eyeline', or a block), and gradient checkpointing"
    " computes it again without that.\nTurn gradient checkpointing off first, or watch with the"
    " model's own kernel."
)


_COPIED = (
    "The model is watched or blocked, and so would be its copy, when the block has long ended.\n"
    "Copy or pickle it outside of the block; save_pretrained and state_dict work inside too."
)


_COMPILED = (
    "watch() and block() look into calls that a compiler makes one with the rest, and this model is"
    ' called by compiled code.\nWrite `with torch.compiler.set_stance("force_eager"):` around it,'
    " or call the model that was given to torch.compile."
)


def _refuse() -> None:
    raise ModelError(_COMPILED)


# the compiler leaves what it compiles here and calls this, at run time
_refuse_compiled: Callable[[], None] = torch.compiler.disable(_refuse, reason=_COMPILED)
