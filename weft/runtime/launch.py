"""Launching a device loop: from argument values to a call of compiled code, in about 2 µs.

For each *exact* set of arguments (dtype, shape and strides of each tensor, type of each scalar,
value of each constant) a plan is remembered. The functions that find the plan and call the code are
generated (``fastpath.py``).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, Self

import torch

from weft.codegen.interface import number_of
from weft.errors import (
    OVERFLOW_HELP,
    CompileError,
    KernelAssertionError,
    KernelIndexError,
    KernelOverflowError,
    KernelValueError,
    warn,
)
from weft.frontend.specs import Spec, TensorSpec
from weft.frontend.split import HostPart, Parts, Region
from weft.ir.core import Function
from weft.lang.dtypes import Housed
from weft.options import Options
from weft.runtime import native
from weft.runtime.backing import backed, is_backed, put_back
from weft.runtime.build import Made, compile_region
from weft.runtime.cache import disk
from weft.runtime.fastpath import (
    MOST_BUILTINS,
    Direct,
    Generated,
    Plan,
    bounds,
    counter,
    disjoint_pairs,
    distinct,
    generate,
    kind_of,
    scalar_formats,
)
from weft.runtime.overlap import (
    OverlapWarning,
    any_shared,
    check_writable,
    dense,
    distances,
    extent,
    needs_order,
    refuse_overlap_within,
    refuse_rows,
)
from weft.runtime.signature import TORCH_DTYPES, come_apart
from weft.runtime.specialize import Forms, Specialization, holds
from weft.settings import rarely_collected
from weft.source import FunctionSource, Span

log_launch = logging.getLogger("weft.launch")

MOST_PLANS = 4096  # per launcher: a program of ever new shapes must not grow without end
MOST_OTHERS = 256  # launchers for pairs and members
TINY = 4096  # elements of all tensors together, up to which a brief loop keeps the GIL


class Tuning(Protocol):
    """What fills in parameters that a call leaves out (see ``weft.autotune``). ``text`` tells it
    from others."""

    @property
    def text(self) -> str: ...
    def signature(self, signature: inspect.Signature) -> inspect.Signature: ...
    def parts(self, kernel: Any, parts: HostPart) -> HostPart: ...
    def completed(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]: ...


class Implementations(Protocol):
    """Other code that computes what a kernel's loops do (see ``Kernel.implementation``). ``text``
    tells it from others."""

    @property
    def text(self) -> str: ...
    def registration(
        self, device: str, dtypes: Sequence[torch.dtype] | None, when: Callable[..., Any] | None,
        finite: bool,
    ) -> Callable[[Any], Any]: ...  # fmt: skip
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def planned(
        self, launchers: Sequence[Callable[..., Any]], *args: Any, **kwargs: Any
    ) -> Any: ...


class KernelLike(Protocol):
    """What is asked of a kernel below the layer that has them."""

    __name__: str
    function: Callable[..., Any]
    bound: bool  # whether a method was made of it

    @property
    def implementations(self) -> Implementations | None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    @functools.cached_property
    def parts(self) -> HostPart: ...
    @functools.cached_property
    def source(self) -> FunctionSource: ...
    @property
    def span(self) -> Span: ...
    @property
    def mutated(self) -> frozenset[str]: ...
    @property
    def described(self) -> dict[str, Any]: ...
    @property
    def launchers(self) -> list[Launcher]: ...
    @property
    def op(self) -> Any: ...
    @functools.cached_property
    def operators(self) -> Any: ...
    def bind(self, args: Any, kwargs: Any) -> inspect.BoundArguments: ...
    def schedule(self, device: str, text: str | None, loop: str) -> object: ...
    def direct(self, *args: Any, **kwargs: Any) -> Any: ...
    def unconverted(self, *args: Any, **kwargs: Any) -> Any: ...
    def current_launchers(self) -> Sequence[Callable[..., Any]]: ...
    def carry_out(
        self, launchers: Sequence[Callable[..., Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...


def one_or_all(results: Sequence[torch.Tensor]) -> Any:
    """What a launch gives that reduces into ``results``."""
    return (results[0] if len(results) == 1 else tuple(results)) if results else None


def empty_results(results: Sequence[tuple[str, str]], device: Any) -> Any:
    """What a launch would give that reduces into scalars of these names and dtypes."""
    made = [torch.empty((), dtype=TORCH_DTYPES[dtype], device=device) for _, dtype in results]
    return one_or_all(made)


class Launcher:
    """Launches one region. Call ``first`` until ``entry`` is set, then ``entry``."""

    def __init__(
        self, region: Region, source: FunctionSource, options: Options,
        compile_region: Callable[..., Made] = compile_region,
    ) -> None:  # fmt: skip
        self.region, self.source = region, source
        self.forms = Forms(region, source, options, self._forget, compile_region)
        self.lock = self.forms.lock
        self.generated: dict[Any, Generated] = {}
        self.promoted: list[native.FastCall] = []  # what builtins are made of, newest first
        self.complex_calls: dict[tuple[Any, ...], int] = {}  # how many there were, by what they had
        self.direct: Direct | None = None  # of its kernel
        self.boxed = weakref.WeakSet[Any]()  # operators that launch it from machine code
        self.warned = False  # of arguments that share memory
        self.current: Callable[..., Any] = self
        self.install: Callable[[Callable[..., Any]], None] = self._become
        self.others: dict[Parts, Self] = {}  # where arguments come apart
        # What launches the loop where a gradient is asked for; autograd is a layer above.
        self.differentiate: Callable[[tuple[Any, ...]], Any] = self.refuse_grad
        # Has another launcher of the loop do the same where a gradient is asked for.
        self.connect: Callable[[Launcher], None] = lambda launcher: None
        # What tells autograd of launches with exactly such arguments, where that can be known.
        self.history: Callable[[tuple[Any, ...]], native.History | None] = lambda args: None

    def _become(self, entry: Callable[..., Any]) -> None:
        self.current = entry

    def __call__(self, *args: Any) -> Any:
        return self.slow(args)

    @property
    def options(self) -> Options:
        return self.forms.options

    @property
    def specializations(self) -> list[Specialization]:
        """What was compiled so far, also for pairs and members."""
        others = (s for launcher in self.others.values() for s in launcher.specializations)
        return [*self.forms.compiled.values(), *others]

    def forget(self) -> None:
        """There are other records of tuning."""
        with self.lock:
            self._forget()

    def _forget(self) -> None:
        """Plans and what serves them are made anew; what runs in other threads keeps its own."""
        self.generated.clear()
        self.promoted.clear()
        self.complex_calls.clear()
        for launcher in self.others.values():
            launcher.forget()
        for kernel in self.boxed:
            kernel.forget()
        self.install(self)
        if self.direct is not None:
            self.direct.install(self.direct.entry)

    # --- the slow path ---------------------------------------------------------------------------
    def slow(self, args: tuple[Any, ...]) -> Any:
        """A call whose exact arguments are new: checks them, compiles if needed, makes a plan."""
        if come_apart(self.region, args):
            return _apart(self, args)
        if is_backed(self.region, args):
            return self._with_backing(args)
        if not self.options.on and any(isinstance(v, Housed) for v in args):
            return self.current(*on_host(args))
        return self.forms.retried(args, self._launched)

    def _launched(self, args: tuple[Any, ...]) -> Any:
        with self.lock:  # another thread may find that there are more arguments
            args = self.forms.extended(args)
            if any(isinstance(v, torch.Tensor) and v.is_meta for v in args):
                return _on_meta(self, args)
            with rarely_collected:  # from the first to the last of what compiles
                code, plan, values = self._planned(args)
        return code.run(plan, *values)

    def other(self, key: Parts) -> Self:
        """What launches the loop where the arguments at these places are pairs of floats, or where
        collections of these forms are passed as their members."""
        with self.lock:
            found = self.others.get(key)
            if found is None or found.options is not self.options:
                if len(self.others) >= MOST_OTHERS:
                    self.others.clear()
                own, compiling = self.region.of_parts(key), self.forms.compile_region
                found = self.others[key] = type(self)(own, self.source, self.options, compiling)
                self.connect(found)
            return found

    def _with_backing(self, args: tuple[Any, ...]) -> Any:
        """A call that stores into vectors of the host part: into tensors, and back."""
        tensors = backed(self.region, args)
        code = next(iter(self.generated.values()), None)
        results = self._extending(code.launch)(*tensors) if code else self.slow(tensors)
        put_back(self.region, args, tensors)
        return results

    def _planned(self, given: tuple[Any, ...]) -> tuple[Generated, Plan, tuple[Any, ...]]:
        """What serves the call, its plan, and the arguments with memory for all of them."""
        span = self.region.span
        args = dense(given)
        specs = list(self.forms.specs(args).values())
        tensors = self.forms.check(args)
        place = tensors[0][1].device.type if tensors else "cpu"
        special = self.forms.specialize(specs, aliased=False, place=place)
        written = special.compiled.loop.summary.written
        code = self._generated(specs, args, written)
        _refuse_copies(self, given, args, specs, written)
        for k in code.writes:
            check_writable(self.forms.names[k], given[k], span)
        refuse_overlap_within(args, code.writes, self.forms.names, span)
        key, shared = code.key(*args), distances(args, code.pairs)

        def planned(plans: dict[tuple[Any, ...], Plan], key: tuple[Any, ...]) -> Plan:
            if len(plans) >= MOST_PLANS:
                plans.clear()
            plan = plans[key] = _plan(self, special, specs, args, written)
            special.plans += 1
            return plan

        if not shared:
            return code, planned(code.plans, key), args
        refuse_rows(special.compiled.function, args, code.pairs, shared, self.forms.names, span)
        if key not in code.plans:
            planned(code.plans, key)  # what finds, at later calls, that memory is shared
        values = [v for _, v in tensors]  # debug mode looks for races
        order = not self.options.debug and needs_order(special.compiled.function, values)
        special = self.forms.specialize(specs, aliased=True, place=place, in_order=order)
        if order:  # and not refused
            _warn_of_order(self, code.pairs[[d is not None for d in shared].index(True)])
        return code, planned(code.alias_plans, (key, shared)), args

    def alias(self, code: Generated, args: tuple[Any, ...]) -> Any:
        """A call in which memory that is written overlaps another's, as far as addresses tell."""
        plan = code.plan_of(args, distances(args, code.pairs))
        if plan is None or not holds(plan.guards):
            return self.slow(args)
        return code.run(plan, *args)

    def stale(self, args: tuple[Any, ...]) -> Any:
        """A guard of the plan that was found does not hold any more: compile again."""
        with self.lock:
            for code in self.generated.values():
                code.plans.clear()
                code.alias_plans.clear()
            self.promoted.clear()
        return self.slow(args)

    def refuse_grad(self, args: tuple[Any, ...]) -> None:
        """Raises the error about a gradient that is asked for."""
        name = next(
            n for n, v in zip(self.forms.names, args, strict=True)
            if isinstance(v, torch.Tensor) and v.requires_grad
        )  # fmt: skip
        raise gradient_error(name, self.region.span)

    def entry(self, *args: Any) -> Any:
        """A call that does not ask whether a gradient is wanted."""
        with torch.no_grad():
            made = next(iter(self.generated.values()), None)
            return self.slow(args) if made is None else made.launch(*args)

    def _extending(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        count = len(self.region.args)
        return lambda *args: launch(*self.forms.extended(args, count))

    # --- the generated functions -----------------------------------------------------------------
    def _generated(
        self, specs: list[Spec], args: tuple[Any, ...], written: frozenset[int]
    ) -> Generated:
        """The generated functions for arguments of these kinds; the first are installed."""
        kinds = tuple(kind_of(spec, value) for spec, value in zip(specs, args, strict=True))
        form = (*kinds, *map(bounds, specs)), written
        if (known := self.generated.get(form)) is not None:
            return known
        memory = _memory(specs)
        writes = [memory[k] for k in sorted(written) if k < len(memory)]
        region = self.region
        mutated = [k for k in writes if not region.args[k].fresh
                  or region.order.met_before(region.node, region.args[k].name)]  # fmt: skip
        uses = {
            "slow": functools.partial(_of_other_kinds, self, len(self.generated) + 1),
            "stale": self.stale, "holds": holds,
            "differentiate": lambda args: self.differentiate(args),
        }  # fmt: skip
        name = f"<weft launcher of {self.source.name}, line {self.region.span.line}>"
        made, scope = generate(name, kinds, specs, writes, mutated, len(self.region.totals), uses)
        scope["alias"] = functools.partial(self.alias, made)
        scope["promote"] = functools.partial(self.promote, made)
        self.generated[form] = made
        if len(self.generated) == 1:
            self._chain()
        return made

    def promote(self, code: Generated, args: tuple[Any, ...]) -> Any:
        """A later call of a plan: a builtin for it is put before those of other plans; the last of
        them goes."""
        specs = list(self.forms.specs(args).values())
        with self.lock:
            plan = code.plans.get(code.key(*args))
            fits = tuple(map(kind_of, specs, args)) == tuple(code.kinds)
            if plan is not None and fits and any(code is own for own in self.generated.values()):
                recorded = plan.grad and torch.is_grad_enabled() and not code.mutated
                history = _history(self, plan, args) if recorded else next(iter(plan.history), None)
                self.put(code.for_plan(plan, specs, args, history), args)
        return code.launch(*args)

    def put(self, work: native.FastCall | None, args: tuple[Any, ...]) -> None:
        """Puts a builtin for ``work``, which is for calls with such ``args``, before the others."""
        if work is not None:
            if self.direct is not None and not self._reaches:
                work.whole = self.direct.work(work, args)
            others = [w for w in self.promoted if not (w.grad and w.serves(work))]
            self.promoted = [work, *others][:MOST_BUILTINS]
            self._chain()

    def _chain(self) -> None:
        """Installs what serves a call: the builtins in their order, then the exact key."""
        first = next(iter(self.generated.values()), None)
        entry: Callable[..., Any] = self if first is None else first.launch
        options = self.options
        cache = disk(options)
        for work in reversed(self.promoted):
            entry = native.builtin(work.packed(), entry, cache)
        self.install(self._extending(entry) if self._reaches else entry)
        if self.direct is not None:
            entry = self.direct.entry
            for work in reversed(self.promoted):
                if work.whole is not None:  # its check sees torch's modes
                    entry = native.builtin(work.whole.packed(), entry, cache)
            self.direct.install(entry)

    @property
    def _reaches(self) -> bool:
        return any(arg.read is not None for arg in self.region.args)


def on_host(args: Iterable[Any]) -> Iterable[Any]:
    """Arguments of a loop on the CPU, where some of them live on a device."""
    from weft.lang import resident  # where tensors live on a device

    return map(resident.on_host, args)


def _of_other_kinds(launcher: Launcher, place: int, args: tuple[Any, ...]) -> Any:
    """A call of which the generated functions before ``place`` have no plan: those behind, for
    other kinds of arguments (None in place of a tensor), are asked in their order."""
    behind = next(itertools.islice(launcher.generated.values(), place, None), None)
    return launcher.slow(args) if behind is None else behind.launch(*args)


def _apart(launcher: Launcher, args: tuple[Any, ...]) -> Any:
    from weft.runtime.pairs import apart, work_of  # only where there are such arguments

    def call(own: Launcher, given: tuple[Any, ...]) -> Any:
        found = own.current(*given)
        if not own.region.collections:
            with launcher.lock:
                launcher.put(work_of(launcher.complex_calls, args, own, given), args)
        return found

    return apart(launcher, args, call)


def _warn_of_order(launcher: Launcher, pair: tuple[int, int]) -> None:
    """Says once that the loop is slow for arguments that share memory."""
    if launcher.warned:
        return
    launcher.warned = True
    one, two = (launcher.forms.names[k] for k in pair)
    warn(
        OverlapWarning,
        f"`{one}` and `{two}` share memory in which iterations may meet: the loop runs in "
        "order, on one thread",
        launcher.region.span,
        f"pass a copy ({two}.clone()) to run it in parallel",
    )


def _plan(
    launcher: Launcher, special: Specialization, specs: list[Spec], args: tuple[Any, ...],
    written: frozenset[int],
) -> Plan:  # fmt: skip
    """What is known of calls with exactly these arguments."""
    compiled: Made = special.compiled
    loop = compiled.loop.summary
    memory = _memory(specs)
    tensors = [args[k] for k in memory]
    place = tensors[0].device if tensors else torch.device("cpu")
    head = "Q" * (len(tensors) + len(compiled.results)) + "".join(map(scalar_formats, specs))
    tail: list[int] = []
    for spec, value in zip(specs, args, strict=True):
        if isinstance(spec, TensorSpec):
            tail += value.size()
            if spec.layout != "contiguous":
                tail += value.stride()[: -1 if spec.layout == "unit" else None]
    tail.append(0)  # for an error record
    results = [TORCH_DTYPES[dtype] for _, dtype in compiled.results]
    tiny = sum(t.numel() for t in tensors) <= TINY and loop.brief
    fitting = compiled.fitting(tensors, launcher)
    call, direct = fitting.bound(tensors, check_error, brief=tiny)
    takes_tensors = compiled.takes_tensors
    if compiled.races is not None:
        from weft.runtime.checked_copies import CheckedFirst  # debug mode of a GPU

        call = CheckedFirst(call, takes_tensors, compiled.races, tensors, check_error)
        direct, takes_tensors = None, True
    if loop.unordered:
        from weft.runtime.deterministic import Ordered  # what few loops need

        on_gpu = place.type != "cpu" or bool(launcher.options.on)
        call = Ordered(call, compiled, on_gpu, launcher.region.span)
    outputs = [tensors[k].dtype for k in written if k < len(tensors)] + results
    differentiable = any(d.is_floating_point for d in outputs)
    grad = differentiable and any(t.requires_grad for t in tensors if t.is_floating_point())
    extents = [extent(t) for t in tensors]
    if log_launch.isEnabledFor(logging.DEBUG) and not launcher.options.on:
        threads = f" with at most {torch.get_num_threads()} threads"
        log_launch.debug(
            "%s, loop at line %d: on %s%s, %d bytes in %d tensors", launcher.source.name,
            launcher.region.span.line, place, threads if place.type == "cpu" else "", sum(extents),
            len(tensors),
        )  # fmt: skip
    pack = struct.Struct("<" + head).pack
    makers = [functools.partial(torch.empty, (), dtype=d, device=place) for d in results]
    return Plan(call, pack, struct.pack(f"<{len(tail)}q", *tail), takes_tensors, grad,
                tuple(compiled.guards),
                tuple(extents), tuple(makers), direct, counter(), loop.unordered, [])  # fmt: skip


def _history(launcher: Launcher, plan: Plan, args: tuple[Any, ...]) -> native.History | None:
    """What tells autograd of calls like this one. A backward is planned for tensors that are the
    same as in the first one: where some are, calls have a history of their own."""
    if not plan.history and holds(plan.guards):
        found = launcher.history(args)
        plan.history.extend([found] if found else [])
    tensors = [v for v in args if isinstance(v, torch.Tensor)]
    same = plan.history and len(distinct(tensors)) < len(tensors)
    return launcher.history(args) if same else next(iter(plan.history), None)


def _memory(specs: Sequence[Spec]) -> list[int]:
    """Positions of the tensors among the arguments."""
    return [k for k, spec in enumerate(specs) if isinstance(spec, TensorSpec)]


def _on_meta(launcher: Launcher, given: tuple[Any, ...]) -> Any:
    """A call with meta tensors, which have shapes and dtypes and no data: results are like them,
    and nothing is computed."""
    args = dense(given)
    specs = list(launcher.forms.specs(args).values())
    launcher.forms.check(args)
    wanted = any(isinstance(v, torch.Tensor) and v.requires_grad for v in args)
    if wanted and torch.is_grad_enabled():
        return launcher.differentiate(given)
    compiled = launcher.forms.specialize(specs, place="meta").compiled
    _refuse_copies(launcher, given, args, specs, compiled.loop.summary.written)
    return empty_results(compiled.results, "meta")


def _refuse_copies(
    launcher: Launcher, given: tuple[Any, ...], args: Sequence[Any], specs: Sequence[Spec],
    written: AbstractSet[int],
) -> None:  # fmt: skip
    """Refuses tensors on several devices of which the loop would write to the copy of one."""
    memory = _memory(specs)
    if any(args[memory[k]].device != given[memory[k]].device for k in written if k < len(memory)):
        launcher.forms.check(given)


def overlaps(
    launcher: Launcher, specs: Sequence[Spec], args: Sequence[Any], function: Function
) -> bool:
    """Whether an element that the loop writes is also one of another argument."""
    from weft.runtime.lowering import writes  # imported by what has lowered it

    memory, written = _memory(specs), writes(function)
    writes = [memory[k] for k in sorted(written) if k < len(memory)]
    for k in writes:
        check_writable(launcher.forms.names[k], args[k], launcher.region.span)
    refuse_overlap_within(args, writes, launcher.forms.names, launcher.region.span)
    return any_shared(args, disjoint_pairs(writes, memory))


# --- checks of debug mode -----------------------------------------------------------------------
def check_error(check: Any, values: list[int]) -> CompileError:
    """The error that a failed check stands for; ``values`` are the words that it recorded."""
    span = Span(*check.span) if check.span is not None else None
    if check.kind == "bounds":
        subscript, extent = values[:2]
        return KernelIndexError(
            f"subscript {subscript} of `{check.tensor}` is out of range: its dimension "
            f"{check.axis} has {extent} element{'s' * (extent != 1)}", span,
            help="narrow the loop, or test the subscript before",
        )  # fmt: skip
    message = check.message or "assertion failed"
    if check.values:
        message = message.format(*map(number_of, values, check.values))
    if check.kind == "overflow":
        return KernelOverflowError(message, span, help=OVERFLOW_HELP)
    return KernelAssertionError(message, span)


def gradient_error(name: str, span: Span | None) -> KernelValueError:
    """The error about a gradient that is asked for where there is none."""
    return KernelValueError(
        f"`{name}` requires grad, and there is no gradient of a kernel that writes to its "
        "arguments where it is called as an operator", span,
        help="return a new tensor, call it outside of torch.compile, torch.func and dispatch "
        f"modes, or without a gradient: under torch.no_grad(), or with {name}.detach()",
    )  # fmt: skip
