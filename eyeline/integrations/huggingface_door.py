"""The attention calls of a Hugging Face model, intercepted.

transformers looks its attention function up by a name in the model's configuration, and the
function that makes the mask by the same name. While a model is looked into that name is one of
ours: both functions hand everything to the ones that the model had and return exactly what those
returned, unless whoever looks puts something else in its place. The mask is told as a rule where
the function that describes it is one of transformers' own (causal, window, chunk, packed,
padding); else it is the tensor that was made from it.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface, PreTrainedModel

from eyeline.api import autocast
from eyeline.calls import Missing
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
    Given,
    Rules,
    call_of,
    function_of,
    lasting,
)
from eyeline.integrations.huggingface_masks import Told
from eyeline.integrations.huggingface_ran import Ran

OLDEST = (5, 18)
# Without "sdpa", "flash", "flex" and "eager", which transformers looks for in names.
_names = (f"eyeline_watch_{number}" for number in itertools.count())
_taken: dict[str, str] = {}  # each name of ours that is in use → the implementation under it
_open: list[_Door] = []  # in any order: the one that began last need not end first
_spent: set[str] = set()  # names of ours that nobody uses any more
_changing = threading.RLock()  # held while names are put in place or taken back
_COMPARES = r"_attn_implementation\s*(?:==|!=|not in|in)[^\n]*[\"']{}[\"']"


@contextmanager
def intercepted(
    modules: Mapping[str, torch.nn.Module],
    handle: Handle,
    start: Callable[[], None],
    missed: Callable[[tuple[Missing, ...]], None],
    noting: Callable[[], Note | None] = lambda: None,
    *,
    rules: bool = False,
) -> Iterator[None]:
    """`eyeline.integrations.intercepted` for calls that go through transformers' interface.

    `modules` are all modules of the model by their paths.
    """
    _check_version()
    door = _Door(modules, handle, start, missed, noting, rules)
    try:
        door.open()
        yield
        door.end()
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
        noting: Callable[[], Note | None],
        only_rules: bool,
    ) -> None:
        self.model = modules[""]
        self.handle, self.start, self.missed, self.noting = handle, start, missed, noting
        self.only_rules = only_rules
        self.ran = Ran(modules)
        self.submodels = {n: m for n, m in modules.items() if isinstance(m, PreTrainedModel)}
        # whose code calls no attention function by its name; there is no public way to ask
        self.closed = {
            id(m.config) for m in self.submodels.values() if not m._can_set_attn_implementation()
        }
        _check(self.submodels, self.closed)
        self.configs = _configs(modules, self.closed)
        self.before: list[str] = []
        self.names: set[str] = set()  # ours, each over an implementation that the model had
        self.hooks: list[Any] = []
        self.rules = Rules()
        # by the kind of a module and the name of an implementation, for one forward of a model
        self.functions: dict[tuple[type, str], tuple[Callable[..., Any], str]] = {}
        self.replaced = False  # whether an output was not the model's own
        self.cache_writes = False  # whether this forward was given a cache of fixed size
        self.running: torch.nn.Module | None = None  # whose forward pass this is

    def open(self) -> None:
        with _changing:
            self.before = [config._attn_implementation for config in self.configs]
            _open.append(self)
            self.claim()
        self.hooks = [
            self.model.register_forward_pre_hook(self.begin),
            *(m.register_forward_pre_hook(self.enter, with_kwargs=True) for m in self.ran.unsure),
            *(m.register_forward_hook(self.returned) for m in self.outermost()),
            *(m.register_forward_pre_hook(self.begin_part) for m in self.parts()),
            *(m.register_forward_hook(self.finish) for m in (self.model, *self.parts())),
            *(
                m.register_forward_hook(self.leave, always_call=True)
                for m in (self.model, *self.parts())
            ),
            *(
                m.register_forward_pre_hook(self.enter_model, with_kwargs=True)
                for m in self.submodels.values()
            ),
        ]

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
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

    def begin(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            _refuse_compiled()
        if recomputing():
            return
        self.running = module
        self.ran.clear()
        self.cache_writes = False
        self.start()

    def begin_part(self, module: torch.nn.Module, args: Any) -> None:
        """A part that writes by itself makes a text of its own; else it is part of the whole."""
        writes = self.running is None and huggingface_generate.writing()
        if writes or self.running is module:
            self.begin(module, args)

    def parts(self) -> list[PreTrainedModel]:
        """What can `generate` by itself, though it is not the model that is looked into."""
        return [m for m in self.outermost() if m is not self.model]

    def outermost(self) -> list[PreTrainedModel]:
        """The models of transformers that stand in no other one."""
        found: dict[str, PreTrainedModel] = {}
        for name, submodel in self.submodels.items():
            if not any(not above or name.startswith(f"{above}.") for above in found):
                found[name] = submodel
        return list(found.values())

    def returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if not recomputing():
            self.ran.returned(output)

    def finish(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if module is self.running and not recomputing():
            self.running = None
            self.rules.clear()
            self.end()

    def leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Also where a forward raised: the next one is not part of it."""
        if module is self.running and not recomputing():
            self.running = None

    def end(self) -> None:
        self.missed(self.ran.missing())

    def register(self, name: str, first: str) -> None:
        """Make a name of ours known; `first` is the implementation that it is put over."""
        AttentionInterface.register(name, self.attending(name, first))
        # A name without a mask function is handed the mask as the caller gave it.
        if first in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(name, self.masking(name, first))

    def attending(self, name: str, first: str) -> Callable[..., Any]:
        """The attention function under a name of ours."""

        def attend(
            module: torch.nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if torch.compiler.is_dynamo_compiling():  # of all compilers the model itself was asked
                _refuse_compiled()
            original = _taken.get(name, first)
            known = self.functions.get((type(module), original)) or self.find(module, original)
            function, kernel = known
            tensors = (query, key, value)
            run = partial(_inside, function, module, *tensors, attention_mask, *args, **kwargs)
            path = self.ran.paths.get(id(module))
            if path is None or self not in _open:
                return run()
            if recomputing():
                if self.replaced:
                    raise ModelError(_AGAIN)
                return run()
            given = Given.of(module, kwargs)
            note = None if given.others or self.cache_writes else self.noting()
            if note is not None and lasting(key, attention_mask):
                out = run()
                self.pass_on(note, kernel, path, query, key, attention_mask, given)
                return out
            return self.hand(kernel, path, tensors, attention_mask, given, run)

        return attend

    def find(self, module: torch.nn.Module, original: str) -> tuple[Callable[..., Any], str]:
        """The function that a module of this kind asks for, and the model's own under it."""
        found = function_of(module, original), _own(original)
        self.functions[type(module), original] = found
        return found

    def masking(self, name: str, first: str) -> Callable[..., Any]:
        """The mask function under a name of ours."""

        def make_mask(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
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
        # generate() may set another implementation on the way, and calls encoders alone
        self.claim()
        self.functions.clear()
        self.look_for_cache((*args, *kwargs.values()))

    def look_for_cache(self, given: Iterable[Any]) -> None:
        """A cache that a compiler could take in is of fixed size: it is written in place."""
        for one in given:
            if isinstance(one, Cache) and one.is_compileable:
                self.cache_writes = True

    def pass_on(
        self,
        note: Note,
        kernel: str,
        path: str,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        given: Given,
    ) -> None:
        """Note a call with its queries and keys and the rule of its mask, or else the mask."""
        crossing = self.ran.calls(path)
        query, key = autocast(query, key)
        rule = self.rules.of(mask, query, key)
        known = isinstance(rule, Told) and rule.known
        make = partial(call_of, path, kernel, rule if known else mask, rule, crossing, given)
        note(path, query, key, None if known else mask, make)

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


def _configs(modules: Mapping[str, torch.nn.Module], closed: set[int]) -> list[Any]:
    """Every configuration in the model that names an attention implementation, each once."""
    found: dict[int, Any] = {}
    # asked of classes first, since a module that lacks an attribute takes long to say so
    kinds = {kind for kind in set(map(type, modules.values())) if hasattr(kind, "config")}
    waiting = [
        getattr(module, "config", None)
        for module in modules.values()
        if "config" in vars(module) or type(module) in kinds
    ]
    while waiting:
        config = waiting.pop()
        if not isinstance(config, transformers.PreTrainedConfig) or id(config) in found:
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in config.sub_configs]
    return [
        config
        for key, config in found.items()
        if key not in closed and config._attn_implementation is not None
    ]


def _check_version() -> None:
    version = transformers.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ModelError(
            f"watch() needs transformers {oldest} or newer, and this is {version}: older ones"
            f' bypass their attention interface.\nRun: pip install "transformers>={oldest}"'
        )


def _check(submodels: dict[str, PreTrainedModel], closed: set[int]) -> None:
    for submodel in submodels.values():
        implementation = submodel.config._attn_implementation
        if id(submodel.config) in closed or implementation is None:
            continue
        if re.search(r"flash|flex|paged|/", implementation):
            raise ModelError(
                f"watch() looks into eager and SDPA attention, and {type(submodel).__name__} is"
                f' set to {implementation!r}.\nCall model.set_attn_implementation("sdpa") first.'
            )
        if _depends_on_name(submodel, implementation):
            raise ModelError(
                f"watch() cannot look into {type(submodel).__name__} without changing it: its code"
                f" takes another path where the implementation is called {implementation!r}."
            )


def _depends_on_name(submodel: PreTrainedModel, implementation: str) -> bool:
    """Whether the model's own code asks for the name that it loses while it is watched."""
    asks, reorders = _asks(type(submodel).__module__, implementation)
    if reorders:  # GPT-2 asks in order to reorder and upcast
        return implementation == "eager" and any(
            getattr(module, "reorder_and_upcast_attn", False) for module in submodel.modules()
        )
    return asks


@cache
def _asks(module: str, implementation: str) -> tuple[bool, bool]:
    """Whether the source of a module compares with this name, and whether it may reorder."""
    source = inspect.getsource(sys.modules[module])
    lines = re.findall(_COMPARES.format(re.escape(implementation)), source)
    return bool(lines), "reorder_and_upcast_attn" in source
