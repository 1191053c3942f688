"""Looking into PyTorch code that calls torch's own attention, whoever wrote it.

`F.scaled_dot_product_attention` and `F.multi_head_attention_forward` are seen by a
TorchFunctionMode: nothing is patched, and what they return is what the model gets. Global module
hooks tell which module is running and where a forward begins. They also step aside where
nn.TransformerEncoder asks whether anyone is looking, since it leaves its fused path if so; what
that path computes is seen by a TorchDispatchMode, from inside of the fused operator.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, has_torch_function

from eyeline.calls import Call, Missing
from eyeline.errors import ModelError
from eyeline.integrations import Handle, inside, recomputing
from eyeline.integrations.paths import attention_modules, named_cross, within
from eyeline.integrations.torch_calls import Given, Multihead, attended
from eyeline.integrations.torch_fast_path import FastPath

_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_PAUSED_BY = (nn.TransformerEncoder.forward, nn.TransformerEncoderLayer.forward)
# The reason that nn.MultiheadAttention gives itself for not being fused when nothing but a mode
# speaks against it.
_WATCHED = "some Tensor argument has_torch_function"


_here = threading.local()


@contextmanager
def intercepted(
    modules: Mapping[str, nn.Module],
    handle: Handle,
    start: Callable[[], None],
    missed: Callable[[tuple[Missing, ...]], None],
) -> Iterator[None]:
    """Hand every attention call of a model that goes through torch's own functions to `handle`.

    `modules` are all modules of the model by their paths. ``handle(call, own)`` returns the output
    [B, Hq, Tq, Dv]; ``own()`` is what the model's own kernel gives, and where that very tensor is
    returned the model gets what it always gets.
    `start` is told of each outermost forward of the model, `missed` in the end of the attention
    modules that ran without such a call. Other threads are not looked at. Several may be nested.
    """
    _refuse_compiled(modules)
    shared: _Shared | None = getattr(_here, "shared", None)
    if shared is None:
        shared = _Shared()
    one = _Interceptor(modules, handle, start, missed)
    with shared.holding(one):
        yield
    one.end()


class _Interceptor:
    """One watched model: the paths of its modules, and who is told of its calls."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        handle: Handle,
        start: Callable[[], None],
        missed: Callable[[tuple[Missing, ...]], None],
    ) -> None:
        self.model = model = modules[""]
        self.handle, self.start, self.missed = handle, start, missed
        self.paths = {id(module): name for name, module in modules.items()}
        self.paths[id(model)] = type(model).__name__  # it has no path; below it paths begin anew
        self.attention = {id(module) for module in attention_modules(modules)}
        self.depth = 0
        self.called: set[str] = set()
        self.ran: dict[str, nn.Module] = {}

    def enter(self, module: nn.Module) -> None:
        if module is self.model:
            self.depth += 1
            if self.depth == 1 and not recomputing():
                self.called.clear()
                self.ran.clear()
                self.start()
        if id(module) in self.attention:
            self.ran[self.paths[id(module)]] = module

    def leave(self, module: nn.Module) -> None:
        if module is self.model:
            self.depth -= 1
            if self.depth == 0 and not recomputing():
                self.end()

    def named(self, module: nn.Module, below: str) -> str:
        path = self.paths[id(module)]
        if below:
            path = below if module is self.model else f"{path}.{below}"
        self.called.add(path)
        return path

    def end(self) -> None:
        """Tell of the attention modules that ran without anything of theirs being seen."""
        self.missed(
            tuple(
                Missing(path, _why(module))
                for path, module in self.ran.items()
                if not any(within(one, path) for one in self.called)
            )
        )


def _why(module: nn.Module) -> str:
    if type(module).__module__.startswith("eyeline."):
        return "It calls eyeline.attention, which returns its weights itself."
    return "It computes attention with code of its own, or in a compiled form."


@dataclass
class _Running:
    """A module whose forward is running, and whether the mode was on before it."""

    module: nn.Module
    paused: bool


class _Shared:
    """What all interceptors of one thread share: the modes, the hooks, the running modules."""

    def __init__(self) -> None:
        self.interceptors: list[_Interceptor] = []
        self.running: list[_Running] = []
        self.paused = False
        self.mode = _Mode(self)
        self.fast = FastPath(self.handled)

    @contextmanager
    def holding(self, one: _Interceptor) -> Iterator[None]:
        self.interceptors.append(one)
        try:
            if len(self.interceptors) == 1:
                with self._installed():
                    yield
            else:
                yield
        finally:
            self.interceptors.remove(one)

    @contextmanager
    def _installed(self) -> Iterator[None]:
        _here.shared = self
        hooks = [
            register_module_forward_pre_hook(self.enter),
            register_module_forward_hook(self.leave, always_call=True),
        ]
        self.mode.__enter__()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.pause(False)
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            for hook in hooks:
                hook.remove()
            del _here.shared

    def enter(self, module: nn.Module, args: Any) -> None:
        if getattr(_here, "shared", None) is not self:
            return
        self.running.append(_Running(module, self.paused))
        for one in self.interceptors:
            one.enter(module)
        self.pause(self._steps_aside(module))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if getattr(_here, "shared", None) is not self:
            return
        # A forward that was left without its hook being called stands above it.
        while self.running and (
            self.running[-1].module is module or any(e.module is module for e in self.running)
        ):
            entry = self.running.pop()
            for one in self.interceptors:
                one.leave(entry.module)
            if entry.module is module:
                self.pause(entry.paused)
                break

    def pause(self, wanted: bool) -> None:
        """Take the function mode off the stack and put the dispatch mode on, or back again."""
        if wanted == self.paused:
            return
        if wanted:
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.fast.__enter__()  # type: ignore[no-untyped-call]
        else:
            self.fast.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.mode.__enter__()  # type: ignore[no-untyped-call]
        self.paused = wanted

    def _steps_aside(self, module: nn.Module) -> bool:
        """Whether this forward asks for function modes, and ours is the only one there is."""
        if module.training or getattr(type(module), "forward", None) not in _PAUSED_BY:
            return False
        if any(p.device.type != "cpu" for p in module.parameters()):
            return False  # the fused operators of other devices are not known from inside
        modes = _get_current_function_mode_stack()  # torch has no public way to ask
        return not modes if self.paused else len(modes) == 1 and modes[0] is self.mode

    def handled(self, call: Call, run: Callable[[], Tensor], below: str = "") -> Tensor:
        """The output of a call, by the innermost interceptor first."""
        told: Callable[[], Tensor] = run
        for one, module in self._places():
            name = one.named(module, below)
            kind = call.kind or ("cross" if named_cross(name) else "self")
            told = _link(one.handle, call.but(name=name, kind=kind), told)
        return told()

    def watched(self) -> bool:
        """Whether the module that runs belongs to a watched model."""
        return bool(self._places())

    def _places(self) -> list[tuple[_Interceptor, nn.Module]]:
        """Each interceptor with the nearest of its modules that is running, outermost first."""
        found = ((one, self._nearest(one)) for one in self.interceptors)
        return [(one, module) for one, module in found if module is not None]

    def _nearest(self, one: _Interceptor) -> nn.Module | None:
        for entry in reversed(self.running):
            if id(entry.module) in one.paths:
                return entry.module
        # The hooks know nothing of a forward that was called as a method.
        frame = sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
            first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            if isinstance(first, nn.Module) and id(first) in one.paths:
                return first
        return None


def _link(handle: Handle, call: Call, own: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return lambda: handle(call, own)


class _Mode(TorchFunctionMode):
    """Sees torch's two attention functions, and what the second computes inside of itself."""

    def __init__(self, shared: _Shared) -> None:
        super().__init__()
        self.shared = shared
        self.inside: Multihead | None = None
        self.known: dict[Any, Callable[[Any, Any, dict[str, Any]], Any]] = {
            F.scaled_dot_product_attention: self._attend,
            F.multi_head_attention_forward: self._multihead,
            torch.bmm: self._product,
            torch.baddbmm: self._product,
            **dict.fromkeys(_BACKWARD, self._backward),
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        known = self.known.get(func)
        if known is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return known(func, args, kwargs or {})

    def _backward(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Goes backward with the mode on: gradient checkpointing runs a forward again in there."""
        with self:
            return _body(func)(*args, **kwargs)

    def _attend(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        def run() -> Tensor:
            made: Tensor = func(*args, **kwargs)
            return made

        if inside.get() or not self.shared.watched():
            return run()
        given = Given(*args, **kwargs)
        call = attended(given, self.inside)
        if call is None:
            return run()
        return _exchanged(self.shared.handled, call, run, given.shape)

    def _multihead(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = inspect.signature(func).bind(*args, **kwargs).arguments
        tensors = tuple(value for value in given.values() if isinstance(value, Tensor))
        if inside.get() or not self.shared.watched() or has_torch_function(tensors):
            return func(*args, **kwargs)
        multihead = Multihead.of(given)
        module = _fusible(tensors)
        if module is not None:
            self.shared.fast.real = multihead.real
            try:
                with self.shared.fast:
                    return _fused(module, given)
            finally:
                self.shared.fast.real = None
        before, self.inside = self.inside, multihead
        try:
            with self:
                return _body(func)(*args, **kwargs)
        finally:
            self.inside = before

    def _product(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The two products of the path that returns weights: scores, then output."""
        multihead = self.inside
        if multihead is None:
            return func(*args, **kwargs)
        if multihead.scored is None:
            multihead.scored = args
            return func(*args, **kwargs)
        call = multihead.call(args[1])
        multihead.scored = None
        shape = (args[0].shape[0], call.q.shape[-2], args[1].shape[-1])
        return _exchanged(self.shared.handled, call, lambda: func(*args, **kwargs), shape)


def _exchanged(
    handled: Callable[[Call, Callable[[], Tensor]], Tensor],
    call: Call,
    run: Callable[[], Tensor],
    shape: tuple[int, ...],
) -> Tensor:
    """What the model gets: its own result, or in that one's shape what came in its place."""
    heads = max(call.q.shape[1], call.k.shape[1])
    kept: list[Tensor] = []

    def own() -> Tensor:
        made = run()
        fits = made.dim() == 4
        kept[:] = [made, made if fits else made.reshape(-1, heads, *made.shape[-2:])]
        return kept[1]

    out = handled(call, own)
    if kept and out is kept[1] and not kept[0].requires_grad:
        return kept[0]
    # A gradient that is asked for at `out` passes there only if the model goes through it.
    return out if out.shape == shape else out.reshape(shape)


def _body(func: Any) -> Any:
    """torch's Python function, but for the question whether someone is looking.

    Asked it first thing, and with a mode on, the function would come back here for ever.
    """
    names = {**func.__globals__, **dict.fromkeys(_QUESTIONS, lambda *tensors: False)}
    made = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _fusible(tensors: tuple[Tensor, ...]) -> nn.MultiheadAttention | None:
    """The nn.MultiheadAttention that calls, if it would run fused were no mode on."""
    frame = sys._getframe(1)
    code = nn.MultiheadAttention.forward.__code__
    while frame.f_back is not None and frame.f_code is not code:
        frame = frame.f_back
    module = frame.f_locals.get("self") if frame.f_code is code else None
    if not isinstance(module, nn.MultiheadAttention):
        return None
    if frame.f_locals.get("why_not_fast_path") != _WATCHED or _get_current_function_mode_stack():
        return None
    if module.in_proj_bias is None or any(t.device.type != "cpu" for t in tensors):
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return None
    return module


def _fused(module: nn.MultiheadAttention, given: dict[str, Any]) -> Any:
    """What nn.MultiheadAttention computes in its fused path, in the layout of the other one."""
    x = given["query"].transpose(0, 1)
    mask, kind = module.merge_masks(given["attn_mask"], given["key_padding_mask"], x)
    out, weights = torch._native_multi_head_attention(
        x,
        x,
        x,
        module.embed_dim,
        module.num_heads,
        module.in_proj_weight,
        module.in_proj_bias,
        module.out_proj.weight,
        module.out_proj.bias,
        mask,
        given["need_weights"],
        given["average_attn_weights"],
        kind,
    )
    return out.transpose(0, 1), weights


def _refuse_compiled(modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        # what `module.compile()` and `torch.compile(module)` leave, and nothing else tells
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        if compiled or "_orig_mod" in module._modules:
            raise ModelError(
                f"{name or type(module).__name__} is compiled: its attention calls are no longer"
                " there to be seen.\nWatch and call the model before torch.compile, or the module"
                " that was given to it."
            )
