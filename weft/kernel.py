"""The ``kernel`` decorator and the object that it makes."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, overload

import torch
from torch.autograd import profiler

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
from weft.errors import KernelTypeError
from weft.frames import eager, shorten, user_frames
from weft.frontend.hints import configured_loops
from weft.frontend.names import Scope
from weft.frontend.parameters import Parameter, returned_types
from weft.frontend.split import HostPart, split
from weft.lang import field, numbers
from weft.options import Options, asked, default_options
from weft.pytorch import overrides
from weft.pytorch.annotations import asks_for_form, check_once, is_checked, shared
from weft.pytorch.namespace import namespace_of
from weft.runtime.entry import PLAIN, autocast_is_on, dispatched, make_entry
from weft.runtime.launch import Implementations, Launcher, Tuning
from weft.runtime.signature import check_argument
from weft.runtime.specialize import Specialization
from weft.settings import deep, rarely_collected
from weft.source import FILES, FunctionSource, Span, read_function

if TYPE_CHECKING:
    from weft.pytorch.autocast import Policy
    from weft.pytorch.cost import Cost
    from weft.pytorch.inspect_derivatives import Backward, Jvp
    from weft.pytorch.library import Operators
    from weft.pytorch.sharding import Sharding
    from weft.runtime.candidates import Schedules
    from weft.runtime.inspection import Inspection
    from weft.runtime.scheduling import Given
    from weft.schedule.machine import GpuMachine

F = TypeVar("F", bound=Callable[..., Any])
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class Definition:
    """What was written: the function, and what it was decorated with. Nothing is parsed before
    somebody asks. ``function`` is the undecorated function."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], name: str, namespace: str,
        tuning: Tuning | None = None,
    ) -> None:  # fmt: skip
        functools.update_wrapper(cast(Any, self), function)
        self.function, self.given, self.tuning = function, options, tuning
        self.implementations: Implementations | None = None  # beside the loops
        self._op_name, self._namespace = name or function.__name__, namespace
        self._host: Any = None  # the host part, from the first call on
        self._seen: set[Any] = set()
        self._plain: set[type] = {*PLAIN}  # types of arguments that need no dispatcher
        FILES.note(function)

    @functools.cached_property
    def source(self) -> FunctionSource:
        """The parsed source. Raises ``SourceUnavailableError``."""
        from weft.frontend.accumulations import accumulating  # where a kernel is called

        source, scope = read_function(self.function, self.__name__), Scope.of(self.function)
        source.asserts = self._unscheduled.asserts or self._unscheduled.debug
        with deep(source.span(source.tree)):
            source.tree = accumulating(source, scope)
            source.tree = configured_loops(source, scope)
        return source

    @functools.cached_property
    def parts(self) -> HostPart:
        """The host part and the device loops. Raises ``CompileError``s."""
        check = functools.partial(check_argument, span=self.span)
        with deep(self.span), rarely_collected:
            parts = split(self.source, self.function, check, self._unscheduled.debug)
        return parts if self.tuning is None else self.tuning.parts(self, parts)

    @functools.cached_property
    def _convert(self) -> Callable[[Any], Any] | None:
        """What makes numbers of results, where the return annotation asks for that."""
        wanted = returned_types(self.function)
        return None if wanted is None else functools.partial(numbers.returned, wanted)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        signature = inspect.signature(self.function)
        return signature if self.tuning is None else self.tuning.signature(signature)

    @property
    def profiled_name(self) -> str:
        """What profilers call it."""
        return f"{self._namespace}::{self._op_name}"

    __signature__ = property(lambda self: self.signature)
    __code__ = property(lambda self: self.function.__code__)  # export asks a ``forward`` for it

    @property
    def span(self) -> Span:
        return self.source.heading

    @property
    def mutated(self) -> frozenset[str]:
        """Parameters that the kernel writes to."""
        return self.parts.mutated & {p.name for p in self.parts.parameters}

    @functools.cached_property
    def _unscheduled(self) -> Options:
        given = {name: value for name, value in self.given.items() if name != "schedule"}
        return replace(default_options(), **{**field.Field.defaults.asked, **given})

    @functools.cached_property
    def options(self) -> Options:
        if (schedule := self.given.get("schedule")) is None:
            return self._unscheduled
        from weft.runtime import scheduling  # only where a person asks for a schedule

        found = scheduling.entries(schedule, self.__name__, self._lines, self.span)
        return replace(self._unscheduled, schedules=tuple(found))

    @property
    def _lines(self) -> list[int]:
        return [region.span.line for region in self.parts.regions]

    @property
    def described(self) -> dict[str, Any]:
        """What it was given besides its function, in words for its operators' names."""
        given = {name: value for name, value in self.given.items() if name != "schedule"}
        given |= {n: v for n in ("fuse", "on") if (v := getattr(self.options, n)) not in (None, "")}
        given |= {"implementations": self.implementations.text} if self.implementations else {}
        return {**given, **({"autotune": self.tuning.text} if self.tuning else {})}

    @user_frames
    def export(
        self, path: Any, *examples: tuple[Any, ...], target: str = "",
        dynamic: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Writes a library without Python, as ``pytorch.exported_program.export`` says."""
        from weft.pytorch import exported_program  # only where a library is written

        exported_program.export(cast(Any, self), path, examples, target, dynamic)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """The arguments by parameter name, defaults filled in. Raises ``KernelTypeError``."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            help = f"the kernel is {self.__name__}{self.signature}"
            raise KernelTypeError(f"{error}", self.span, help=help) from None
        bound.apply_defaults()
        return bound

    @functools.cached_property
    def _checked(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parts.parameters if is_checked(p))

    def check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Checks tensors against annotations that give dtype, rank or sizes (once for each set of
        shapes and dtypes)."""
        check_once(self._checked, self.bind(args, kwargs).arguments, self.span, self._seen)

    @functools.cached_property
    def _policy(self) -> Policy | None:
        from weft.pytorch.autocast import policy_of  # what the compiler needs as well

        return policy_of(cast(Any, self), self.options.autocast)

    def recast(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments of a call, as the policy for autocast wants them."""
        idle = self.options.autocast is None and not autocast_is_on()
        return (args, kwargs) if idle or not self._policy else self._policy.cast(args, kwargs)

    def _is_foreign(self, value: Any) -> bool:
        """Whether ``value`` is a tensor that only the dispatcher knows how to treat."""
        kind = type(value)
        if not isinstance(value, torch.Tensor) or overrides.dispatches_as_usual(kind):
            if not overrides.overrides(kind):
                self._plain.add(kind)
            return False
        return True

    # --- decorated again, and as plain Python ----------------------------------------------------
    def changed(self, options: dict[str, Any], tuning: Tuning | None = None) -> Self:
        """A kernel of the same function, with further options."""
        self._refuse_second(tuning)
        options = {**self.given, **options}
        return type(self)(
            self.function, options, self._op_name, self._namespace, tuning or self.tuning
        )

    def on(self, device: str) -> Self:
        """This kernel on "webgpu" (docs/webgpu.md), or on "cpu". Raises ``ValueError``."""
        return self.changed({"on": asked(device)})

    def adopt(self, options: dict[str, Any], tuning: Tuning | None = None) -> None:
        """Takes further options, where other decorators stand between. Raises
        ``KernelTypeError`` after the first call."""
        self._refuse_second(tuning)
        if self._host is not None:
            what = f"`{self.__name__}` is decorated again after its first call"
            raise KernelTypeError(what, self.span, help="decorate it where it is defined")
        for name in ("_unscheduled", "options", "signature", "source", "parts"):
            self.__dict__.pop(name, None)
        self.given, self.tuning = {**self.given, **options}, tuning or self.tuning

    def _refuse_second(self, tuning: Tuning | None) -> None:
        if tuning is not None and self.tuning is not None:
            what = f"`{self.__name__}` is autotuned twice"
            raise KernelTypeError(what, self.span, help="write one weft.autotune with all configs")

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if _is_dynamo_compiling():  # which cannot make methods
            return functools.partial(cast(Any, self), instance)
        forward = self.__name__ == "forward" and isinstance(instance, torch.nn.Module)
        if forward or getattr(owner, "weft_data_oriented", False):
            from weft.pytorch.dynamo import BoundKernel  # where a class has such methods

            return BoundKernel(cast(Any, self), instance)
        self.bound = True
        return types.MethodType(cast(Any, self), instance)

    bound = False  # whether a method was made of it
    implementing: ClassVar[Callable[[Any], Implementations]]  # of a layer above

    def implementation(
        self, device: str, *, dtypes: Sequence[torch.dtype] | None = None,
        when: Callable[..., Any] | None = None, finite: bool = False,
    ) -> Callable[[F], F]:  # fmt: skip
        """Has the function below carry out calls: ``workbench.dispatch.Implementations``."""
        found = self.implementations or Definition.implementing(self)
        return found.registration(device, dtypes, when, finite)

    @user_frames
    def interpret(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the Python itself, with bounds and races checked: see ``runtime.watch.run``, whose
        ``only=`` and ``step=`` may be given."""
        result = self._watched(args, kwargs)
        return result if self._convert is None else self._convert(result)

    def _watched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from weft.runtime import watch  # only where the Python itself is run

        return watch.interpreted(self, args, {**kwargs})

    @user_frames
    def cost(self, *args: Any, **kwargs: Any) -> Cost:
        """Operations and bytes of a call, counted from the index sets of its loops."""
        from weft.pytorch import cost  # only where somebody counts

        return cost.cost(cast(Any, self), args, kwargs, cost.forward)

    @user_frames
    def sharding(self, *args: Any, **kwargs: Any) -> Sharding:
        """How a call may be split between ranks: a table. Tensors may be on "meta", or DTensors."""
        from weft.pytorch import library  # only where somebody asks

        return library.sharding(self, args, kwargs)

    @user_frames
    def grad(self, *args: Any, **kwargs: Any) -> None:
        """Taichi's: see ``pytorch.tape.transposed``."""
        from weft.pytorch import tape  # only where a program has Taichi's gradients

        tape.transposed(cast(Any, self), args, kwargs)

    def __reduce__(self) -> str:
        """Kernels are pickled and copied as functions are: by name."""
        return self.__qualname__

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        """Of this object, and of no method made of it."""
        return id(self)

    def __repr__(self) -> str:
        return f"<weft.kernel {self.__module__}.{self.__qualname__}{self.signature}>"


class Kernel(Definition):
    """A function whose top-level loops are compiled. Call it as the function is called."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], name: str, namespace: str,
        tuning: Tuning | None = None,
    ) -> None:  # fmt: skip
        super().__init__(function, options, name, namespace, tuning)
        self._lock = threading.RLock()
        self._entry: Callable[..., Any] = self._special
        self._launchers: list[Callable[..., Any]] = []
        self._regions: list[Launcher] = []
        namespace_of(namespace).announce(self._op_name, self)

    # --- calling ---------------------------------------------------------------------------------
    @eager
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_dynamo_compiling():
            self._ready()
            return self.operators.traced(*self.recast(args, kwargs))
        try:
            try:
                return self._entry(*args, **kwargs)
            except (TypeError, AttributeError, RuntimeError) as error:
                self._explain(error, args, kwargs)
                raise
        except Exception as error:
            shorten(error)
            raise

    def _special(self, *args: Any, **kwargs: Any) -> Any:
        """A call whose way is not known: the first, one with checks, or one for the dispatcher."""
        args, kwargs = self.recast(*shared(self._checked, self.bind, args, kwargs))
        values = (*args, *kwargs.values())
        plain = self._plain.issuperset(map(type, values))
        if not plain and overrides.overriding(values):
            return overrides.overridden(self, args, kwargs)
        if dispatched():
            return self.operators(args, kwargs)
        if not plain and any(map(self._is_foreign, values)):
            try:
                return self.operators(args, kwargs)
            except (NotImplementedError, TypeError) as error:
                overrides.check_foreign(self, args, kwargs, error)
                raise
        if profiler._is_profiler_enabled:
            from weft.pytorch.profiled import recorded  # only where a profiler is

            with recorded(self, self.profiled_name, args, kwargs):
                return self.direct(*args, **kwargs)
        return self.direct(*args, **kwargs)

    def _ready(self) -> bool:
        """Makes ``operators``. Dynamo, which cannot trace that, calls this as it is."""
        _ = self.operators, self._policy
        return True

    _ready._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def direct(self, *args: Any, **kwargs: Any) -> Any:
        """A call that does not go through PyTorch's dispatcher."""
        result = self.unconverted(*args, **kwargs)
        return result if self._convert is None else self._convert(result)

    def unconverted(self, *args: Any, **kwargs: Any) -> Any:
        """The same without what a return annotation asks for: results of loops are tensors."""
        if self.options.interpret:
            return self._watched(args, kwargs)
        if self.implementations is not None:
            return self.implementations.call(args, kwargs)
        return self.carry_out(self.current_launchers(), args, kwargs)

    def current_launchers(self) -> Sequence[Callable[..., Any]]:
        """What launches each device loop in a call that does not go through the dispatcher."""
        self._prepare()
        return overrides.transformed(self._launchers, self._regions)

    def carry_out(
        self, launchers: Sequence[Callable[..., Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the host part, with ``launchers`` for the device loops."""
        host = self._prepare()
        try:
            if self._checked:
                self.check_arguments(args, kwargs)
            return host(launchers, *args, **kwargs)
        except TypeError as error:
            self._explain(error, args, kwargs)
            raise

    @property
    def _torchdynamo_orig_callable(self) -> Callable[..., Any]:
        """What torch.compile of the kernel compiles: its own code object counts recompilations."""
        from weft.pytorch.dynamo import original  # only under torch.compile

        return original(self)

    def _explain(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises an error that says what to write instead, where there is one."""
        from weft.runtime.explain import explain  # only where something went wrong

        code = getattr(inspect.unwrap(self._host), "__code__", None)
        explain(self, code, error, args, kwargs)

    def _prepare(self) -> Callable[..., Any]:
        """Splits the function and makes the launchers: at the first call."""
        if self._host is not None:  # assigned when all of it is there
            return self._host
        with self._lock:
            if self._host is None:
                parts = self.parts
                for region in parts.regions:
                    launcher = Launcher(region, self.source, self.options)
                    launcher.install = functools.partial(self._launchers.__setitem__, region.index)
                    overrides.connect(launcher)
                    self._regions.append(launcher)
                    self._launchers.append(launcher)
                _enter(self)
                self._host = parts.host
            return self._host

    @property
    def launchers(self) -> list[Launcher]:
        """What launches each device loop."""
        self._prepare()
        return self._regions

    def is_own(self, launchers: object) -> bool:
        """Whether ``launchers`` are those of plain calls."""
        return launchers is self._launchers

    # --- what is known of it ---------------------------------------------------------------------
    @user_frames
    def schedule(self, device: str, text: str | None, loop: int | str | None = None) -> Kernel:
        """Has a device loop run by the schedule ``text`` on "cpu" or "cuda"; None: by one of
        weft's own again. Gives the kernel.

        ``loop``: the loop's number or name; not needed where there is one. What the text leaves
        open is chosen as usual. Where the sizes of a call do not allow it, one of weft's own is
        taken, as the log ``launch`` says. Raises ``ScheduleError``, at the first call at the last.
        """
        from weft.runtime import scheduling  # only where a person asks for a schedule

        entry = scheduling.entry(device, text or "", loop, self.__name__, self._lines, self.span)
        with self._lock:
            schedules = scheduling.changed(self.options.schedules, *entry[:2], text)
            self.given = {**self.given, "schedule": scheduling.given(schedules)}
            self.options = replace(self.options, schedules=schedules)
            for launcher in self._regions:
                launcher.forms.rescheduled(self.options)
        return self

    def implemented(self, others: Implementations) -> None:
        """Has calls ask ``others``, and torch know of another operator."""
        with self._lock:
            self.implementations = others
            self.__dict__.pop("operators", None)
            namespace_of(self._namespace).announce(self._op_name, self)
            for launcher in self._regions:
                launcher.direct = None
            if self._host is not None:
                _enter(self)

    @property
    def specializations(self) -> list[Specialization]:
        """What was compiled so far, loop by loop."""
        return [s for launcher in self._regions for s in launcher.specializations]

    @functools.cached_property
    def operators(self) -> Operators:
        """The PyTorch operators that this kernel is."""
        with rarely_collected:
            from weft.pytorch.hosted import traced_loops  # only where PyTorch asks for an operator
            from weft.pytorch.library import Operators

        self._prepare()
        operators = Operators(self, self._namespace, self._op_name)
        special = self._checked or self._convert or self.tuning or self.options.interpret
        operators.followed = not (special or self.implementations)
        operators.loops = traced_loops(operators) if operators.followed else ()
        if not (special or operators.loops) and self.mutated:
            operators.recorded = traced_loops(operators, recorded=True)
        return operators

    @property
    @user_frames
    def op(self) -> Any:
        """The PyTorch operator, ``torch.ops.weft.<name>.default``: the one that was made first, or
        that follows from the annotations alone. Raises ``KernelTypeError`` otherwise."""
        return self.operators.default()

    @functools.cached_property
    def backward(self) -> Backward:
        """The gradient derived from the loops: ``kernel.backward.inspect(...)``, ``.interpret``."""
        from weft.pytorch.inspect_derivatives import Backward  # only for a look at it

        return Backward(self)

    @functools.cached_property
    def jvp(self) -> Jvp:
        """The loops with tangents, of forward mode: ``kernel.jvp.inspect(...)``."""
        from weft.pytorch.inspect_derivatives import Jvp  # likewise

        return Jvp(self)

    @user_frames
    def inspect(self, *args: Any, **kwargs: Any) -> Inspection:
        """Every stage of each loop that a call with these arguments runs. The call is carried out
        on copies of the tensors."""
        self._prepare()
        self.bind(args, kwargs)
        from weft.pytorch.fusible import explained  # only for a look at it
        from weft.runtime import inspection  # the compiler proper is imported where it is needed

        return inspection.inspected(self.parts.host, self._regions, args, kwargs, explained)

    @user_frames
    def schedules(
        self, *args: Any, device: str | None = None, machine: GpuMachine | None = None,
        **kwargs: Any,
    ) -> Schedules:  # fmt: skip
        """The schedules that each loop of a call with these arguments may run by: what they ask of
        the call, what they are predicted to cost, and which one it takes and why.

        Nothing is computed: tensors may be on "meta", and the host part must not ask what loops
        have computed. ``device``: "cpu" or "cuda", where the tensors are elsewhere; no GPU is
        needed. ``machine``: the GPU, if it is another.
        """
        # The compiler proper is imported where it is needed.
        from weft.pytorch.fake import fake_launchers
        from weft.runtime import candidates

        self.bind(args, kwargs)
        return candidates.of_call(
            self.parts.host, self.launchers, fake_launchers(self), args, kwargs, device, machine
        )


def _enter(kernel: Kernel) -> None:
    """Has calls that nothing is special to go to the host part, or to what stands in for it."""
    others, options = kernel.implementations, kernel.options
    if kernel._convert or options.interpret or options.autocast:
        return
    host, policy = kernel.parts.host if others is None else others.planned, kernel._policy
    checked = {p.name: asks_for_form(p) for p in kernel._checked}
    kernel._entry = entry = make_entry(
        kernel.signature, host, kernel._launchers, kernel._special, kernel._plain, bool(policy),
        checked, kernel._seen,
    )  # fmt: skip
    if len(kernel._regions) == 1 and others is None:
        from weft.pytorch.recipe import direct  # what the compiler needs as well

        put = functools.partial(setattr, kernel, "_entry")
        kernel._regions[0].direct = direct(cast(Any, kernel), entry, put, kernel._plain, policy)


def kernel_inside(function: Any) -> Kernel | None:
    """The kernel that ``function`` is, or that other decorators have wrapped."""
    while function is not None and not isinstance(function, Kernel):
        inner = getattr(function, "kernel", None)
        function = inner if isinstance(inner, Kernel) else getattr(function, "__wrapped__", None)
    return function


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    *, name: str = "", namespace: str = "weft", debug: bool | None = None,
    strict_math: bool | None = None, schedule: Given | None = None, fuse: bool | None = None,
    autocast: Any = None,
) -> Callable[[Callable[..., Any]], Kernel]: ...  # fmt: skip
def kernel(
    function: Callable[..., Any] | None = None, /, *, name: str = "", namespace: str = "weft",
    debug: bool | None = None, strict_math: bool | None = None, schedule: Given | None = None,
    fuse: bool | None = None, autocast: Any = None,
) -> Any:  # fmt: skip
    """Compiles the top-level loops of a function: ``@weft.kernel`` or ``@weft.kernel(debug=True)``.

    ``name`` and ``namespace`` are those of the PyTorch operator (``torch.ops.weft.<name>``);
    ``debug`` checks every subscript, that integers do not wrap, and undecided races (on the CPU);
    ``strict_math`` forbids contraction and reassociation. ``schedule``: how loops are run, as
    ``Kernel.schedule`` says, ``{"cuda": "unroll_jam(t, 4)"}``, or, by the number of the loop,
    ``{"cuda": {0: "unroll_jam(t, 4)", 2: "persist(32)"}}``. ``fuse``: whether Inductor may fuse
    loops with PyTorch's own; True: also those that are expected to be slower so. ``autocast``: what
    ``torch.autocast`` does to arguments of floats. False: nothing; a dtype: all go to it; names of
    parameters: these go to autocast's own; True: those that loops only contract do."""
    given = {"debug": debug, "strict_math": strict_math, "schedule": schedule, "fuse": fuse}
    options = {k: v for k, v in (given | {"autocast": autocast}).items() if v is not None}

    def decorate(function: Any) -> Any:
        inner = kernel_inside(function)
        if inner is not None and inner is not function:  # below other decorators
            inner.adopt(options)
            return function
        if inner is not None:
            return inner.changed(options) if options else inner
        if not inspect.isfunction(function):
            what = f"weft.kernel decorates a function, not {type(function).__name__}"
            help = "put it directly above the `def`, below @staticmethod and the like"
            raise KernelTypeError(what, help=help)
        if hasattr(function, "__wrapped__"):
            what = f"`{function.__name__}` is decorated below weft.kernel, and the loops are "
            what += "compiled from the function inside"
            raise KernelTypeError(what, help="put weft.kernel directly above the `def`")
        return Kernel(function, options, name, namespace)

    return decorate if function is None else decorate(function)
