"""Recording a kernel for autograd without carrying its loop out once more.

Where a kernel is one device loop and returns what that loop has written, its results say all that
its gradient can want to know of it. Whether it wants to know is found by deriving it.
"""

from __future__ import annotations

import abc
import ast
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes  # has no public name

# pyright: reportPrivateUsage=false
from weft.errors import WeftError
from weft.frontend.split import HostPart
from weft.ir.core import Function
from weft.lang.dtypes import SYMBOLS
from weft.pytorch.fake import fake_launchers, hollow, loose_spec, lowered_for
from weft.pytorch.inputs import Structure, items
from weft.pytorch.transforms import PLAIN, is_float
from weft.runtime.launch import KernelLike, Launcher
from weft.runtime.pairs import apart, parts_by_name
from weft.source import FunctionSource

if TYPE_CHECKING:
    from weft.pytorch.loop import Make

T = TypeVar("T")


def returned_names(parts: HostPart, source: FunctionSource) -> tuple[str, ...] | None:
    """The names of what the only loop of a kernel is followed by a ``return`` of; None where the
    kernel is not like that."""
    if len(parts.regions) != 1 or len(parts.returns) != 1 or len(source.tree.body) < 2:
        return None
    *_, loop, last = source.tree.body
    if loop is not parts.regions[0].node or not isinstance(last, ast.Return):
        return None
    value = last.value
    items = value.elts if isinstance(value, ast.Tuple) else [value]
    names = tuple(item.id for item in items if isinstance(item, ast.Name))
    (returned,) = parts.returns  # a name may be that of a collection
    return names if len(names) == len(items) == len(returned.names) else None


def replaying(
    launcher: Launcher, outs: Mapping[str, torch.Tensor | None], make: Make | None = None
) -> Callable[..., Any]:
    """Launches the loop so that autograd sees it, but takes what it writes from ``outs`` (by name;
    None: not to be had) where all of that is there which the gradient reads. ``make``: see
    ``differentiate``."""
    from weft.pytorch.autograd import differentiate  # gradients: where one is asked for

    def call(own: Launcher, args: tuple[Any, ...]) -> Any:
        known = outs if own is launcher else parts_by_name(own.region, outs)
        return differentiate(own, own.forms.extended(args), make, known)

    def launch(*args: Any) -> Any:
        return apart(launcher, args, call)

    return launch


class _Found(abc.ABC, Generic[T]):
    """What is found out about a call by running the host part on tensors without memory, once for
    each set of types. ``run(launchers, inputs, recording=...)`` runs it."""

    def __init__(self, kernel: KernelLike, run: Callable[..., Any], unknown: T) -> None:
        """``unknown``: what is said where sizes have no values that could stand for them."""
        self.kernel, self.run, self.unknown = kernel, run, unknown
        self.known: dict[Hashable, T] = {}

    def __call__(self, inputs: Sequence[Any]) -> T:
        key = tuple(map(_kind, inputs))
        if key not in self.known:
            self.known[key] = self._find(inputs)
        return self.known[key]

    def _find(self, inputs: Sequence[Any]) -> T:
        if any(symbol.node.hint is None for symbol in _symbols(inputs)):
            return self.unknown
        # This is no part of the program, so modes that watch the program do not see it.
        with _disable_current_modes(), torch._C._ForceDispatchKeyGuard(*PLAIN):
            try:
                return self.find([hollow(v, _hint) for v in inputs], inputs)
            except (RuntimeError, WeftError):  # the host part asks for data, or has tensors of a
                return self.unknown  # device beside these. What is its own, the call has raised

    @abc.abstractmethod
    def find(self, like: Sequence[Any], inputs: Sequence[Any]) -> T:
        """``like``: the inputs, without memory."""


class NeedsOutputs(_Found[bool]):
    """Whether the gradient of a kernel's only loop reads what the loop has written."""

    def __init__(self, kernel: KernelLike, run: Callable[..., Any]) -> None:
        super().__init__(kernel, run, True)

    def find(self, like: Sequence[Any], inputs: Sequence[Any]) -> bool:
        answers: list[bool] = []
        (fake,) = fake_launchers(self.kernel)

        def ask(launcher: Launcher, given: tuple[Any, ...]) -> None:
            def answer(args: tuple[Any, ...]) -> bool:
                pairs = zip(launcher.region.args, args, strict=True)
                specs = [loose_spec(arg, value) for arg, value in pairs]
                return needs_outputs(lowered_for(launcher, specs).function)

            answers.append(launcher.forms.retried(given, answer))

        def launch(*given: Any) -> Any:
            apart(self.kernel.launchers[0], given, ask)
            return fake(*given)

        self.run((launch,), like)
        return any(answers)


class ConstantResults(_Found[frozenset[int]]):
    """Which results of a loop's operator are arguments that the loop has written to, and do not
    depend on what a gradient is asked for: counters, running means. They have no history."""

    def __init__(self, kernel: KernelLike, run: Callable[..., Any]) -> None:
        super().__init__(kernel, run, frozenset())

    def find(self, like: Sequence[Any], inputs: Sequence[Any]) -> frozenset[int]:
        from weft.pytorch.autograd import with_functions  # gradients: where one is asked for

        def make(function: Function) -> Callable[[Sequence[Any]], None]:
            return lambda values: None

        pairs = zip(Structure.of(like)[0], Structure.of(inputs)[0], strict=True)
        for own, given in pairs:
            own.requires_grad_(given.requires_grad)
        launcher = functools.partial(with_functions, self.kernel.launchers[0], make)
        try:
            with torch.enable_grad():
                outs = items(self.run((launcher,), like, recording=True))
        except WeftError:  # said again where the gradient is asked for
            return self.unknown
        return frozenset(k for k, o in enumerate(outs) if is_float(o) and not o.requires_grad)


def needs_outputs(function: Function) -> bool:
    """Whether the adjoint of ``function`` reads what it writes; true where there is none."""
    # Gradients: where one is asked for.
    from weft.autodiff.activity import read_and_written
    from weft.autodiff.names import unique_names
    from weft.autodiff.reverse import reverse

    wanted, written = read_and_written(function)
    try:
        adjoint = reverse(function, wanted, written)
    except WeftError:  # said again where the gradient is asked for
        return True
    names = unique_names(function)
    return any(names[k] in adjoint.used for k in written)


def _kind(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.requires_grad
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    return type(value)


def _symbols(value: Any) -> Iterator[Any]:
    """The symbols among sizes, strides and numbers."""
    if isinstance(value, torch.Tensor):
        value = (*value.size(), *value.stride())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _symbols(item)
    elif isinstance(value, SYMBOLS):
        yield value


def _hint(value: Any) -> Any:
    """The number that a symbol was made for: tensors of symbolic sizes are for fake modes."""
    return value.node.hint if isinstance(value, SYMBOLS) else value
