"""Other code that computes what a kernel's loops do: written in Triton, CUDA C++, Numba, C, or of
PyTorch's functions. It is compared with the loop when it first applies to a call, and carries out
the calls that it applies to. All else stays the loop's."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from weft.errors import KernelTypeError, KernelValueError
from weft.kernel import Kernel
from weft.lang.dtypes import DType
from weft.pytorch.forward_level import is_open
from weft.pytorch.identity import may_draw, text_of
from weft.runtime.fastpath import disjoint_pairs
from weft.runtime.overlap import distances, meets_itself
from weft.values import frozen
from weft.workbench.verification import Verification

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false
log = logging.getLogger("weft.launch")
F = TypeVar("F", bound=Callable[..., Any])
DEVICES = ("cpu", "cuda")
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_SIMPLE = (int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, DType,
           Kernel, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)  # fmt: skip
_transforms = torch._C._are_functorch_transforms_active


@frozen
class Implementation:
    """A function of the kernel's parameters, for calls on ``device`` whose tensors have one of
    ``dtypes`` (None: any) and for which ``when`` of the arguments is true."""

    name: str
    function: Callable[..., Any]
    device: str
    dtypes: tuple[torch.dtype, ...] | None
    when: Callable[..., Any] | None

    def __str__(self) -> str:
        return f"{self.name} on {self.device}"

    def applies(self, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> bool:
        for tensor in tensors:
            if tensor.device.type != self.device or (
                self.dtypes is not None and tensor.dtype not in self.dtypes
            ):
                return False
        return self.when is None or bool(self.when(*args))


class Implementations:
    """Those of one kernel. A call is carried out by the first of them that applies.

    None does where a tensor has no elements, is of a subclass, or under a transform of
    ``torch.func``, in debug mode, and where ``torch.use_deterministic_algorithms`` asks for an
    order of sums: there the loop runs, as it does where a kernel writes to its arguments, and a
    gradient is asked for, or what is written shares memory.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.registered: list[Implementation] = []
        # The loop by itself: what others are compared with. It is no other operator of that name.
        self.loop = Kernel(kernel.function, kernel.given, kernel.__name__,
                           f"{kernel._namespace}_loops", kernel.tuning)  # fmt: skip
        # Why an implementation is wrong ("": it is not), by what it was compared for.
        self.verdicts: dict[tuple[Any, ...], str] = {}
        self._parameters = _parameters(kernel)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = all(p.kind in kinds for p in self._parameters)
        self._lock = threading.RLock()

    @property
    def text(self) -> str:
        """Which there are, in words that are the same in each process."""
        return ", ".join(map(str, self.registered))

    def providers(self, device: torch.device, backward: bool) -> dict[str, Callable[..., Any]]:
        """The loop by itself, and what may stand in for it on ``device``, by name."""
        found: dict[str, Callable[..., Any]] = {"weft": self.loop}
        for one in self.registered if not backward else ():
            if one.device == device.type:
                found[one.name] = functools.partial(self._provided, one)
        return found

    def _provided(self, one: Implementation, *args: Any, **named: Any) -> Any:
        taken = self._taken(one, args, named)
        if taken is None:
            raise KernelValueError("it is not for such arguments", self.kernel.span)
        return self.run(one, *taken)

    def _taken(
        self, one: Implementation, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments as ``one`` takes them; None where it does not apply."""
        given, named = self._given(args, named)
        tensors: list[torch.Tensor] = []
        values = (*(given or ()), *named.values())
        if given is None or not _add_plain(values, tensors) or not one.applies(values, tensors):
            return None
        return given, named

    # --- registering -----------------------------------------------------------------------------
    def registration(
        self, device: str, dtypes: Sequence[torch.dtype] | None, when: Callable[..., Any] | None
    ) -> Callable[[F], F]:
        """What registers a function. Raises ``KernelValueError`` and ``KernelTypeError``."""
        kernel = self.kernel
        if device not in DEVICES:
            raise KernelValueError(
                f"no implementation is for the device {device!r}", kernel.span,
                help='write "cpu" or "cuda"',
            )  # fmt: skip
        listed: Any = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
        if listed is not None and not all(isinstance(d, torch.dtype) for d in listed):
            raise KernelTypeError(
                f"dtypes={dtypes!r} of an implementation are no dtypes", kernel.span,
                help="write dtypes=[torch.float32]: those that tensors of a call may have",
            )  # fmt: skip
        if when is not None:
            _check_signature(kernel, when, "`when`")

        def register(function: F) -> F:
            name = getattr(function, "__name__", type(function).__name__)
            _check_function(self.kernel, function, name)
            if name in {one.name for one in self.registered}:
                name = f"{name} of {function.__module__}, {len(self.registered)}"
            chosen = None if listed is None else tuple(listed)
            self.registered.append(Implementation(name, function, device, chosen, when))
            self.kernel.implemented(self)
            return function

        return register

    # --- calling ---------------------------------------------------------------------------------
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of the kernel: by an implementation, or by the loop."""
        kernel = self.kernel
        if kernel._checked:
            kernel.check_arguments(args, kwargs)
        found, given, named = None, args, kwargs
        if kwargs or not self._positional or len(args) != len(self._parameters):
            given, named = self._given(args, kwargs)
        if given is not None:
            found = self._found(given, named)
        if found is None or given is None:
            return kernel.carry_out(kernel.current_launchers(), args, kwargs)
        if torch.is_grad_enabled():
            values = (*given, *named.values())
            asked = torch._C._any_requires_grad(*values)
            hidden = self._reads_around or not all(map(_is_simple, values))  # who may ask for one
            if hidden or (asked and kernel.mutated):
                return kernel.carry_out(kernel.current_launchers(), args, kwargs)
            if asked:
                return kernel.operators(args, kwargs)  # which comes back without the gradient
        return self.run(found, given, named)

    @functools.cached_property
    def _reads_around(self) -> bool:
        """Whether the kernel may read tensors that are no arguments."""
        function = self.kernel.function
        names = inspect.getclosurevars(function)
        values = [*names.nonlocals.values(), *names.globals.values()]
        return any(isinstance(v, torch.Tensor) or not _is_simple(v) for v in values)

    def _given(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...] | None, dict[str, Any]]:
        """Arguments with their defaults; None where those of a config (``weft.autotune``) are
        among them, which are the loop's alone."""
        bound = self.kernel.bind(args, kwargs)
        names = {p.name for p in self._parameters}
        if any(v is not None for n, v in bound.arguments.items() if n not in names):
            return None, {}
        return bound.args, {n: v for n, v in bound.kwargs.items() if n in names}

    def _found(self, args: tuple[Any, ...], named: dict[str, Any]) -> Implementation | None:
        """The first that applies. Raises ``KernelValueError`` where it is wrong."""
        values = (*args, *named.values()) if named else args
        tensors: list[torch.Tensor] = []
        if (
            not _add_plain(values, tensors) or not tensors or _transforms() or is_open()
            or self.kernel.options.debug or torch._C._get_deterministic_algorithms()
        ):  # fmt: skip
            return None
        if self.kernel.mutated and _overlap(self._written(args, named), tensors):
            return None
        for one in self.registered:
            if one.applies(values, tensors):
                key = (one.name, one.function, *[(t.dtype, t.dim()) for t in tensors])
                why = self.verdicts.get(key)
                if why is None:
                    why = self._verdict(key, one, args, named, tensors[0].device)
                if why:
                    raise self._error(one, why)
                return None if why is None else one
        return None

    def _written(self, args: tuple[Any, ...], named: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that a call writes to."""
        bound = self.kernel.signature.bind(*args, **named)
        written: list[torch.Tensor] = []
        _add_plain([v for n, v in bound.arguments.items() if n in self.kernel.mutated], written)
        return written

    def _verdict(
        self, key: tuple[Any, ...], one: Implementation, args: tuple[Any, ...],
        named: dict[str, Any], device: torch.device,
    ) -> str | None:  # fmt: skip
        """Why it is wrong for such arguments, "" if it is not; None where that cannot be seen."""
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            log.debug("%s: a graph is captured before %s is verified: the loop runs",
                      self.kernel.__name__, one)  # fmt: skip
            return None

        def call(*args: Any, **named: Any) -> Any:
            return self._provided(one, *args, **named)

        def applies(*args: Any, **named: Any) -> bool:
            return self._taken(one, args, named) is not None

        with self._lock:
            why = self.verdicts.get(key)
            if why is None and may_draw(text_of(self.kernel.source, {})):
                why = self.verdicts[key] = (
                    "the kernel draws random numbers, and others would be drawn: draw them outside"
                )
            if why is None:
                found = Verification(self.loop, call, applies, device)
                why = self.verdicts[key] = found.verdict(args, named)
                log.debug("%s: %s: %s", self.kernel.__name__, one, why or "verified")
        return why

    def run(self, one: Implementation, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What an implementation returns. It gets tensors that ask for no gradient, which other
        libraries do not take, on the device that is current, and its writes are counted, which go
        by addresses."""
        given, passed = args, named
        if torch._C._any_requires_grad(*args, *named.values()):
            given = tuple(map(_detached, args))
            passed = {n: _detached(v) for n, v in named.items()}
        recorded = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            if one.device == "cuda":
                with torch.cuda.device(_device(args, named)):
                    out = one.function(*given, **passed)
            else:
                out = one.function(*given, **passed)
        finally:
            torch._C._set_grad_enabled(recorded)
        for tensor in self._written(args, named) if self.kernel.mutated else ():
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
        if given is not args:  # an argument that it returns is the caller's
            own = {id(a): b for a, b in zip(given, args, strict=True)}
            several = isinstance(out, tuple | list)
            return tuple(own.get(id(v), v) for v in out) if several else own.get(id(out), out)
        return out

    def _error(self, one: Implementation, why: str) -> KernelValueError:
        return KernelValueError(
            f"`{one.name}` does not compute what the loop does: {why}", self.kernel.span,
            help="an implementation has to agree for all arguments that it is registered for: "
            "when=lambda x: x.is_contiguous() and dtypes=[torch.float32] leave calls to the loop",
        )  # fmt: skip


def _parameters(kernel: Kernel) -> list[inspect.Parameter]:
    """Those of a kernel, without those that configs give (``weft.autotune``)."""
    found = kernel.signature.parameters.values()
    if kernel.tuning is None:
        return [*found]
    return [p for p in found if p.default is not None or p.kind is not p.KEYWORD_ONLY]


def _check_function(kernel: Kernel, function: Any, name: str) -> None:
    if isinstance(function, str):
        help = "give a function that launches it: weft.cuda_source and weft.c_source compile it"
    elif type(function).__module__.partition(".")[0] in ("triton", "numba", "numba_cuda"):
        help = (f"give its launcher: a function of {kernel.signature} that makes what is "
                f"returned and calls {name}[grid](...)")  # fmt: skip
    elif isinstance(function, Kernel) or not callable(function):
        help = f"give a function of {kernel.signature} that is no weft.kernel"
    else:
        _check_signature(kernel, function, f"`{name}`")
        return
    raise KernelTypeError(
        f"{type(function).__name__} is no implementation of `{kernel.__name__}`",
        kernel.span, help=help,
    )  # fmt: skip


def _check_signature(kernel: Kernel, function: Callable[..., Any], name: str) -> None:
    parameters = _parameters(kernel)
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a builtin, which has none
        return
    try:
        signature.bind(
            *[None for p in parameters if p.kind is not p.KEYWORD_ONLY],
            **{p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY},
        )
    except TypeError as error:
        raise KernelTypeError(
            f"{name}{signature} does not take the arguments of `{kernel.__name__}`: "
            f"{error}", kernel.span,
            help=f"they are passed as the kernel's: {kernel.__name__}"
            f"{kernel.signature}",
        ) from None  # fmt: skip


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def _device(args: tuple[Any, ...], named: dict[str, Any]) -> torch.device:
    tensors: list[torch.Tensor] = []
    _add_plain((*args, *named.values()), tensors)
    return tensors[0].device


def _overlap(written: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of ``written``, which are among ``tensors``, may share memory with another of
    these, or with itself. Storages say not all: two may be of one array of NumPy's."""
    memory = [t.untyped_storage().data_ptr() for t in tensors]
    own = [k for k, t in enumerate(tensors) if any(t is w for w in written)]
    pairs = disjoint_pairs(own, range(len(tensors)))
    return (
        any(memory.count(memory[k]) > 1 or 0 in tensors[k].stride() for k in own)
        or any(meets_itself(tensors[k]) for k in own) or bool(distances(tensors, pairs))
    )  # fmt: skip


def _add_plain(values: Sequence[Any], tensors: list[torch.Tensor]) -> bool:
    """Adds the tensors among ``values``; False where one is of a subclass or in a list, or has no
    elements."""
    for value in values:
        if value.__class__ in _TENSORS:
            if not value.numel():
                return False
            tensors.append(value)
        elif isinstance(value, torch.Tensor) or (
            isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value)
        ):
            return False
    return True


def _is_simple(value: object) -> bool:
    """Whether ``value`` holds no other tensor, by which a gradient may be asked for."""
    if isinstance(value, list | tuple):
        return all(map(_is_simple, value))
    return value.__class__ in _TENSORS or isinstance(value, _SIMPLE)
