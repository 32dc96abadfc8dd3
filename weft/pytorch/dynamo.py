"""What torch.compile looks for in what it compiles: code objects, methods with a source, and what
it must not look into."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from weft.frames import eager
from weft.frontend.names import Scope
from weft.pytorch.identity import is_imported
from weft.pytorch.releases import METHODS
from weft.runtime.launch import KernelLike

# pyright: reportAttributeAccessIssue=false


def untraced(backward: Callable[..., Any]) -> Callable[..., Any]:
    """``backward``, of an ``autograd.Function``: compiled autograd breaks its graph there, and
    calls it as it is.

    What ``torch.compiler.disable`` would wrap it in costs time at every call.
    """
    assert isinstance(backward, FunctionType)
    backward._torchdynamo_disable = True  # type: ignore[attr-defined]
    backward._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "it is the backward of a kernel that was called outside of torch.compile; compiled with "
        "what calls it, the kernel has an operator for it that graphs hold"
    )
    backward.__code__ = backward.__code__.replace()  # what decorators make shares its code
    return eager(backward)


def is_compiled(ctx: Any) -> bool:
    """Whether compiled autograd carries out the backward that was given ``ctx``."""
    return not isinstance(getattr(ctx, "node", ctx), BackwardCFunction)


def with_zeros(ctx: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """``grads``, of a launch, for compiled autograd: it adds them up where one that it needs is
    None, as that of a copy of what a loop overwrites."""
    if not is_compiled(ctx):
        return grads
    needed = (*ctx.needs_input_grad, *[False] * len(grads))
    return tuple(
        torch.zeros(ctx.shapes[n], dtype=ctx.dtypes[n], device=ctx.device)
        if grad is None and need else grad
        for n, (grad, need) in enumerate(zip(grads, needed, strict=False), -1)
    )  # fmt: skip


def original(kernel: KernelLike) -> Callable[..., Any]:
    """What torch.compile of the kernel by itself compiles: a function with a code object of its
    own, which counts recompilations. Objects that are called share one."""
    if kernel.bound and METHODS.missing:
        raise AttributeError
    own = vars(kernel)
    if "_original" not in own:
        own["_original"] = _original(kernel)
    return own["_original"]


def _original(kernel: KernelLike) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return kernel(*args, **kwargs)

    own = kernel.function.__code__
    call.__code__ = call.__code__.replace(
        co_name=own.co_name, co_filename=own.co_filename, co_firstlineno=own.co_firstlineno
    )
    call.kernel = kernel  # type: ignore[attr-defined]
    return call


class BoundKernel(functools.partial[Any]):
    """The ``forward`` of a module: torch.compile looks for the source of methods, and a kernel is
    no function that has one. And a kernel of a class of Taichi's: ``instance.kernel.grad()``."""

    def grad(self, *args: Any, **kwargs: Any) -> None:
        kernel: Any = self.func
        kernel.grad(*self.args, *args, **kwargs)

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __func__(self) -> Any:
        return self.func

    @property
    def __signature__(self) -> inspect.Signature:
        kernel: Any = self.func
        signature: inspect.Signature = kernel.signature
        return signature.replace(parameters=[*signature.parameters.values()][1:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)


def _tracer() -> Any:
    """What Dynamo traces with, None if it does not."""
    from torch._dynamo.symbolic_convert import InstructionTranslator  # which calls this

    try:
        return InstructionTranslator.current_tx()
    except AttributeError:
        return None


def finds_globals(function: Callable[..., Any]) -> bool:
    """Whether Dynamo finds the globals of ``function``: those of the frame that it compiles, or of
    a module that it can import."""
    tracer = _tracer()
    own = tracer is None or tracer.output.global_scope is function.__globals__
    return own or is_imported(function)


def changed(function: Callable[..., Any], captured: Iterable[str]) -> str:
    """Which of the values ``captured`` by ``function``, dotted where they are attributes, what is
    being traced has changed, "" if none: Dynamo does that at the end of the graph, and operators
    look them up in it."""
    from torch._dynamo.variables.misc import NewGlobalVariable  # which calls this

    tracer = _tracer()
    if tracer is None:  # it is another one that traces
        return ""
    effects, scope = tracer.output.side_effects, Scope.of(function)
    stored = {name for item, attributes in effects.store_attr_mutations.items()
              if isinstance(item, NewGlobalVariable) for name in attributes}  # fmt: skip
    if function.__globals__ is not tracer.output.global_scope:
        stored = set[str]()
    for dotted in captured:
        first, *rest = dotted.split(".")
        value = scope.lookup(first)
        if first in stored and first not in scope.cells:
            return first
        for name in (*rest, None):
            known = effects.id_to_variable.get(id(value))
            if known is not None and (
                effects.is_modified(known) if name is None
                else effects.has_pending_mutation_of_attr(known, name)
            ):  # fmt: skip
                return dotted
            value = getattr(value, name, None) if name else None
    return ""
