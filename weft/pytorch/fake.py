"""The meta kernel: the host part of a kernel, run with launchers that do nothing.

Shapes, dtypes and devices of what a kernel returns are made by its host part. What a device loop
adds is the dtype of what it reduces into, and which tensors it writes to: the frontend knows both.
"""

from __future__ import annotations

import ast
import functools
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext
from torch.utils import _pytree as pytree

from weft.errors import CompileError, KernelTypeError, KernelValueError, warn
from weft.frontend.lower import Lowered, lower
from weft.frontend.parameters import element_shape
from weft.frontend.scope import OF
from weft.frontend.specs import ConstSpec, Spec, TensorSpec, TupleSpec
from weft.frontend.split import RegionArg
from weft.ir.writes import written
from weft.lang.dtypes import SYMBOLS
from weft.lang.vectors import Backing
from weft.pytorch.members import put_together, taken_apart
from weft.runtime.backing import backed, is_backed, put_back
from weft.runtime.launch import KernelLike, Launcher, empty_results
from weft.runtime.overlap import OverlapWarning, fakes_need_order, is_number, place_of
from weft.runtime.pairs import apart
from weft.runtime.signature import DTYPES, REACHED, check_one_device, come_apart, spec_of
from weft.source import FunctionSource, Span, subtree

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


# pyright: reportPrivateUsage=false
# What torch says where a fake tensor is asked for its data, if it does not by a class of its own.
_NO_DATA = (
    "tolist() shouldn't be called", "Cannot access data pointer", ".numpy() is not supported",
)  # fmt: skip


# Whether what the host part has may be on another device than the arguments say.
_STAND_IN = ContextVar("weft_stand_in", default=False)


def fake_launchers(kernel: KernelLike, operator: bool = False) -> tuple[Callable[..., Any], ...]:
    """One launcher for each device loop of ``kernel``: it gives what the loop reduces into, and
    counts what the loop writes to as written. Of an ``operator`` that must be arguments."""
    return tuple(_launcher(launcher, kernel.source, operator) for launcher in kernel.launchers)


def _launcher(launcher: Launcher, source: FunctionSource, operator: bool) -> Callable[..., Any]:
    region = launcher.region
    known: dict[tuple[Spec, ...], Lowered] = {}
    others: dict[Launcher, Callable[..., Any]] = {}  # for pairs

    def lowered(args: tuple[Any, ...]) -> Lowered:
        specs = tuple(loose_spec(arg, value) for arg, value in zip(region.args, args, strict=True))
        if specs not in known:
            known[specs] = lowered_for(launcher, specs)
        return known[specs]

    def of_pairs(own: Launcher, given: tuple[Any, ...]) -> Any:
        if own not in others:
            others[own] = _launcher(own, source, operator)
        return others[own](*given)

    def launch(*args: Any) -> Any:
        if (reached := REACHED.get()) is not None:
            reached(*args)
        if come_apart(region, args):
            return apart(launcher, args, of_pairs)
        if is_backed(region, args):
            tensors = backed(region, args)
            empty = [torch.empty_like(t) if isinstance(t, torch.Tensor) else t for t in tensors]
            put_back(region, args, empty)
            args = tensors
        args, found = launcher.forms.retried(args, lambda given: (given, lowered(given)))
        tensors = [v for v in args if isinstance(v, torch.Tensor)]
        if operator and fakes_need_order(found.function, tensors):
            warn(
                OverlapWarning, "arguments share memory that the loop writes and reads: PyTorch's "
                "graphs write to a copy, and the loop reads what was there before", region.span,
                "pass a copy (x.clone()) if that is meant, or call the kernel outside of "
                "torch.compile", source.warned,
            )  # fmt: skip
        stored = written(found.function)
        given = found.function.args[: len(found.function.args) - len(found.results)]
        names = {memref.name for memref in given if memref in stored}
        if operator and not _STAND_IN.get():
            pairs = zip((arg.name for arg in region.args), args, strict=True)
            check_one_device(
                [(n, v) for n, v in pairs
                 if isinstance(v, torch.Tensor) and (n in names or not is_number(v))],
                region.span,
            )  # fmt: skip
        for arg, value in zip(region.args, args, strict=True):
            if operator and arg.captured and _is_changed(value):
                raise changed_error(arg.name, region.span)
            ours = arg.key[:1] == ("arg",) and OF not in arg.key
            if arg.name in names and operator and arg.captured and not ours:
                raise hidden_write(arg.name, region.span)
            if arg.name in names:
                _count(value)
        return empty_results(found.results, place_of(args))

    return launch


def lowered_for(launcher: Launcher, specs: Sequence[Spec]) -> Lowered:
    """The loop of ``launcher`` for arguments of these specs. Raises ``CompileError``s, and
    ``RegionChanged``, which ``launcher.forms.retried`` sees to."""
    region = launcher.region
    try:
        named = dict(zip((arg.name for arg in region.args), specs, strict=True))
        return lower(region, named, launcher.source)
    except CompileError as error:
        launcher.forms.ask(error, specs)
        raise


def _count(value: Any) -> None:
    """Counts the tensors of ``value``, which a loop writes to, as written."""
    for tensor in value if isinstance(value, list | tuple) else [value]:
        if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def hollow(value: Any, number: Callable[[Any], Any] = lambda n: n) -> Any:
    """Tensors like those in ``value``, without memory. ``number`` gives what stands for a number, a
    size or a stride."""
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, torch.Tensor):
        shape, strides = ([number(n) for n in words] for words in (value.size(), value.stride()))
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        items = [hollow(v, number) for v in value]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return number(value)


def changed_error(name: str, span: Span) -> KernelValueError:
    """What is said of a value that a graph changes, and that an operator in it looks up."""
    return KernelValueError(
        f"`{name}` is changed by what is compiled, maybe after the kernel has read it: it is none "
        "of the kernel's arguments", span,
        help="pass it as an argument, or change it outside of torch.compile",
    )  # fmt: skip


def _is_changed(value: Any) -> bool:
    """Whether the graph that is being made writes to the tensor ``value``, which is none of the
    operator's arguments. It may do so after the operator: Inductor would not see the order."""
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None or not isinstance(value, torch.Tensor):
        return False
    known = context.fake_mode.fake_tensor_converter.meta_converter
    own = known.tensor_memo.get(known.describer.get_tensor_id(value))
    return own is not None and own is not value and own._version > 0


def hidden_write(name: str, span: Span) -> KernelValueError:
    """What an operator raises for a write to what is none of its arguments."""
    return KernelValueError(
        f"`{name}` is written, and it is not a tensor argument of the kernel", span,
        help="torch.compile and other transforms must see what is written: pass the tensor as an "
        "argument",
    )  # fmt: skip


def unmade(kernel: KernelLike, name: str, in_loops: bool) -> KernelTypeError:
    """What is said where a kernel's operator is asked for, and what its parameter ``name`` is is
    not known. ``in_loops``: graphs have operators of its loops."""
    other = ", or call the kernel once through the operator (under torch.compile, say)"
    if in_loops:
        other = "; graphs of it have operators of its loops, not one of the whole kernel"
    return KernelTypeError(
        f"the operator of `{kernel.__name__}` is not made yet: nothing says what `{name}` is",
        kernel.span, help=f"annotate every parameter (torch.Tensor, float, int, bool){other}",
    )  # fmt: skip


def no_argument(name: str, kernel: str, what: str) -> str:
    """Why a graph cannot have the value of the parameter ``name``, or the "call" itself."""
    match what:
        case "call":
            return f"the arguments do not fit the parameters of `{kernel}`"
        case "nested":
            return f"`{name}` is a nested tensor: pass its values, and wrap what comes of it"
        case "numpy":
            return (
                f"`{name}` is of NumPy: pass a number as Python's (`.item()`), made before the "
                f"compiled function is called, and an array as torch.from_numpy({name})"
            )
        case "draws":
            return (
                f"`{name}`, which `{kernel}` reads, gives another value each time, and the "
                "derivative would be that of another call: call it before, and pass what it gives "
                "as an argument"
            )
        case "asks" | "asks_always":
            return (
                f"the host part of `{kernel}` asks for `{name}`, which a graph does not have as "
                "the caller has it: ask before the call, and pass the answer as an argument"
            )
        case _:
            return (
                f"`{name}` is an object of which `{kernel}` does not only read attributes that are "
                "tensors, numbers, functions, dtypes, strings, None, or lists, dicts, named tuples "
                "and dataclasses of these: PyTorch's graphs hold nothing else. Read "
                f"`{name}.attribute` in the kernel itself, or give what it reads parameters of its "
                "own, and pass them from a function or method around it"
            )


def loose_spec(arg: RegionArg, value: Any) -> Spec:
    """As ``spec_of``, but asks a tensor nothing that would fix its strides."""
    if isinstance(value, torch.Tensor) and value.dtype in DTYPES:
        element = getattr(value, "element", None)
        backing = isinstance(element, Backing)
        inner = element.shape if element is not None else element_shape(arg.parameter)
        shape = element.shape if element is not None and backing else None
        return TensorSpec(
            DTYPES[value.dtype], value.dim(), "strided", shape, inner, backing, pair=arg.pair,
            offset=getattr(element, "offset", ()), of_field=element is not None and not backing,
        )  # fmt: skip
    return _known(spec_of(arg, value))


def _known(spec: Spec) -> Spec:
    """With numbers in place of the symbols in a collection that is compiled in: a graph is one for
    these."""
    if isinstance(spec, TupleSpec):
        return replace(spec, items=tuple(map(_known, spec.items)))
    found: list[Any] = []
    like = taken_apart(spec.value, (), found) if isinstance(spec, ConstSpec) else None
    if like is None or not any(isinstance(v, SYMBOLS) for v in found):
        return spec
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # which made the symbols

    numbers = [guard_scalar(v) if isinstance(v, SYMBOLS) else v for v in found]
    return ConstSpec(put_together(like, iter(numbers)))


def without_data(implementation: Callable[..., Any], kernel: KernelLike) -> Callable[..., Any]:
    """``implementation`` for fake tensors; its error says so where the host part asks for data."""

    def fake(*args: Any) -> Any:
        mode = _active_mode()
        try:
            with beside_fakes(mode) as give, _standing_in(mode is not None, args):
                return give(implementation(*args))
        except RuntimeError as error:
            refused, asks_for_data = _data_errors()
            asks = isinstance(error, asks_for_data) or any(s in str(error) for s in _NO_DATA)
            if not asks:
                raise
            span = statement_span(kernel, error)
        # Not as its cause, which Dynamo would look at instead.
        raise refused(span)

    return fake


@contextmanager
def _standing_in(fake: bool, args: Sequence[Any]) -> Generator[None]:
    """Where ``args`` of an operator are ``fake`` and on the CPU, loops do not ask for one device:
    they may stand for tensors of a GPU, which the host part names. DTensor asks for shapes so."""
    devices = {t.device.type for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)}
    token = _STAND_IN.set(fake and devices == {"cpu"})
    try:
        yield
    finally:
        _STAND_IN.reset(token)


def _active_mode() -> Any:
    """The ``FakeTensorMode`` around, or None."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


@contextmanager
def beside_fakes(mode: FakeTensorMode | None) -> Generator[Callable[[Any], Any]]:
    """Tensors around a kernel stand beside fake ones, as fake ones. The symbols that stand for data
    go no further, but for those in the sizes of what the function that this yields is given."""
    if mode is None:
        yield lambda made: made
        return
    # Imported by what has made the mode.
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    before = mode.allow_non_fake_inputs
    pending = [] if mode.shape_env is None else mode.shape_env.pending_fresh_unbacked_symbols
    told = {*pending}

    def give(made: Any) -> Any:
        told.update(free_unbacked_symbols([made] if isinstance(made, torch.Tensor) else made))
        return made

    mode.allow_non_fake_inputs = True
    try:
        yield give
    finally:
        mode.allow_non_fake_inputs = before
        pending[:] = [symbol for symbol in pending if symbol in told]


def statement_span(kernel: KernelLike, error: Exception) -> Span:
    """The statement of the host part that has raised ``error``."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = {f.lineno for f in frames if f.filename == kernel.source.file}
    tree = kernel.source.tree
    found = [n for n in subtree(tree) if isinstance(n, ast.stmt) and n.lineno in lines]
    return kernel.source.span(found[-1]) if found else kernel.span


def of_samples(call: Callable[..., Any], kernel: KernelLike) -> Callable[..., Any]:
    """``call``, whose error says where the host part of ``kernel`` asks for data of a batch."""

    def sampled(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except RuntimeError as error:
            if not str(error).startswith("vmap: It looks like you're"):
                raise
            raise KernelValueError(
                "the host part makes a number of what is in a tensor, and under vmap each sample "
                "has its own", statement_span(kernel, error),
                help="sizes and branches may depend on shapes and numbers only: use torch.where "
                "and the like, or compute the number outside of vmap and pass it as an argument",
            ) from error  # fmt: skip

    return sampled


@functools.cache
def _data_errors() -> tuple[Callable[[Span], Exception], tuple[type[Exception], ...]]:
    """What to raise, and torch's errors: a fake tensor is asked for its data."""
    # Imported by what has made the fake tensor.
    from torch._subclasses import fake_tensor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    class DataDependentError(KernelValueError, fake_tensor.DataDependentOutputException):
        """Where torch's error would break a graph, this does."""

        def __init__(self, span: Span) -> None:
            what = "the host part makes a number of what is in a tensor, and there is no data yet"
            help = (
                "under torch.compile sizes and branches may depend on shapes and numbers only: "
                "compute the number outside of the kernel and pass it as an argument"
            )
            KernelValueError.__init__(self, what, span, help)
            self.func: Any = str(self)

    asks_for_data = (
        fake_tensor.DataDependentOutputException, fake_tensor.UnsupportedFakeTensorException,
        GuardOnDataDependentSymNode,
    )  # fmt: skip
    return DataDependentError, asks_for_data
