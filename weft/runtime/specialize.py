"""The forms that a device loop is compiled in: one for each set of specs that calls bring."""

from __future__ import annotations

import ast
import logging
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

import torch

from weft.errors import CompileError, KernelValueError
from weft.frontend.hints import once
from weft.frontend.kinds import NumberPinned, RegionChanged, Static
from weft.frontend.scope import Guard, TensorReached
from weft.frontend.specs import CAPTURED_BITS, ScalarSpec, Spec, constant_key
from weft.frontend.split import Region, RegionArg
from weft.lang.field import Field
from weft.lang.random import KEY
from weft.options import Options
from weft.runtime.backing import backed, is_backed
from weft.runtime.build import CPU, LOWERED, Backend, Made, compile_region
from weft.runtime.overlap import check_memory
from weft.runtime.signature import REACHED, check_devices, spec_of
from weft.settings import deep, rarely_collected
from weft.source import FunctionSource
from weft.values import mutable

log = logging.getLogger("weft.specialize")

T = TypeVar("T")
MANY = 64  # specialisations of a loop, of which a warning says why


@mutable
class Specialization:
    """One compiled form of a loop: ``signature`` reads like ``x: f32[:, :], n: int``."""

    region: int
    line: int
    signature: str
    origin: str  # "compiled" or "disk"
    stages: dict[str, float]  # milliseconds
    aliased: bool = False
    plans: int = 0  # exact argument sets it has served
    compiled: Any = field(default=None, repr=False)
    derived: Any = field(default=None, repr=False)  # what autograd keeps of it

    def __str__(self) -> str:
        time = f"{self.origin}, {sum(self.stages.values()):.1f} ms, {self.plans} exact signature(s)"
        overlap = ", overlapping memory" if self.aliased else ""
        return f"loop at line {self.line}: ({self.signature}), {time}{overlap}"


def backend(device: str, options: Options) -> Backend:
    """What compiles for a kind of device, or for "none". (What meta tensors are asked, CPUs
    answer.) Raises ``KernelValueError`` where tensors are on another device than the kernel."""
    if device == "none":
        return LOWERED
    if options.on and device != "meta":
        if device != "cpu":
            raise KernelValueError(
                f"the kernel runs on {options.on}, which takes tensors of the CPU, and these are "
                f"on {device}", help="call the kernel itself, or pass x.cpu()",
            )  # fmt: skip
        with rarely_collected:
            from weft.runtime import webgpu  # heavy, and seldom needed

        return webgpu.WEBGPU
    if device == "mps":
        with rarely_collected:
            from weft.runtime import mps  # likewise

        return mps.MPS
    if device == "cuda":
        with rarely_collected:
            from weft.runtime import gpu  # heavy, and not needed where there is no GPU

        return gpu.CUDA
    return CPU


def _drawn() -> bool:
    from weft.runtime import webgpu_device  # heavy, and seldom needed

    return webgpu_device.is_there()


def _resident(memory: torch.Tensor) -> Field:
    from weft.lang.resident import ResidentField  # where fields live on a device

    return ResidentField.of(memory)


Field.drawn, Field.resident = staticmethod(_drawn), staticmethod(_resident)


class Forms:
    """What one region is compiled in. ``forget`` is called where calls that were planned have to be
    planned anew; ``compile_region`` is that of ``build``, or what a test puts in its place."""

    def __init__(
        self, region: Region, source: FunctionSource, options: Options, forget: Callable[[], None],
        compile_region: Callable[..., Made] = compile_region,
    ) -> None:  # fmt: skip
        self.region, self.source, self.options = region, source, options
        self.forget, self.compile_region = forget, compile_region
        self.names = [arg.name for arg in region.args]
        self.lock = threading.RLock()
        self.compiled: dict[tuple[Any, ...], Specialization] = {}
        self._numbers: dict[Any, int | float] = {}  # the first value of captured ones, by place
        self._tried = frozenset[Any]()  # the numbers that are constants since the last error
        self._made = 0  # specialisations
        self._changes: Counter[str] = Counter()  # of specs from one to the next, by name
        self._last: dict[str, Spec] = {}
        self.idle: set[Any] = set()  # keys of what earlier calls reached, and this one cannot have

    # --- arguments -------------------------------------------------------------------------------
    def specs(self, args: Sequence[Any]) -> dict[str, Spec]:
        """What is known of these arguments, by name. Raises ``CompileError``s."""
        if is_backed(self.region, args):
            args = backed(self.region, args)
        pairs = zip(self.region.args, args, strict=True)
        return {
            arg.name: self._captured(arg, value) or spec_of(arg, value, self.region.span)
            for arg, value in pairs
        }

    def _captured(self, arg: RegionArg, value: Any) -> ScalarSpec | None:
        """The spec of a captured number that is passed at run time: from its second value on."""
        region, place = self.region, arg.place
        if not arg.captured or type(value) not in (int, float) or place in region.pinned:
            return None
        if place not in region.varying:
            before = self._numbers.setdefault(place, value)
            if constant_key(before) == constant_key(value):
                return None
            self._vary(place, arg.name)
        if type(value) is int and value.bit_length() > CAPTURED_BITS:
            return None
        return ScalarSpec(type(value).__name__, captured=True)

    def _vary(self, place: Any, name: str) -> None:
        """A captured number has changed: it is passed from now on, unless it has to be known."""
        log.debug(
            "%s, loop at line %d: `%s` has another value: an argument of the machine code from now "
            "on", self.source.name, self.region.span.line, name,
        )  # fmt: skip
        with self.lock:
            self.region.varying.add(place)
            self.forget()

    def check(self, args: tuple[Any, ...]) -> list[tuple[str, torch.Tensor]]:
        """The tensors among the arguments, by name. Raises ``CompileError``s for those that a loop
        cannot reach."""
        pairs = zip(self.names, args, strict=True)
        tensors = [(n, v) for n, v in pairs if isinstance(v, torch.Tensor)]
        check_devices(tensors, self.region.span)
        for name, tensor in tensors:
            if not tensor.is_meta:
                check_memory(name, tensor, self.region.span)
        return tensors

    def extended(self, args: tuple[Any, ...], count: int | None = None) -> tuple[Any, ...]:
        """The host's arguments, and after them the tensors that called functions reach (``count``
        arguments in all; every one if it is None)."""
        for arg in self.region.args[len(args) : count]:
            args = (*args, self.read(arg, args))
            if (reached := REACHED.get()) is not None:
                reached(args[-1])
        return args

    def read(self, arg: RegionArg, args: Sequence[Any]) -> Any:
        """What a called function reaches: None where this call has something else there."""
        assert arg.read is not None
        value = None if arg.key in self.idle else arg.read(args)
        return value if isinstance(value, torch.Tensor | int | float) else None

    def retried(self, args: tuple[Any, ...], call: Callable[[tuple[Any, ...]], T]) -> T:
        """``call`` of the arguments and what called functions reach, which it may have to find."""
        asked: set[Any] = set()
        following = self.region.args[len(args) : len(args) + 1]
        if following and following[0].key == KEY:  # drawn once, however often it is tried
            args = (*args, self.read(following[0], args))
        while True:
            try:
                return call(_judged(self, args, asked))
            except RegionChanged as change:
                asked.add(self.change(change))

    def change(self, change: RegionChanged) -> Any:
        """What the frontend asks for before it can lower the region. The key of what it reached."""
        with self.lock:
            if isinstance(change, NumberPinned):
                names = [a.name for a in self.region.args if a.place in change.places]
                log.debug(
                    "%s, loop at line %d: `%s` has to be known at compile time: a constant",
                    self.source.name, self.region.span.line, "`, `".join(names),
                )  # fmt: skip
                self.region.varying -= change.places
                self.region.pinned |= change.places
                self._fix(change.places)
            else:
                assert isinstance(change, TensorReached)
                self.reach(change.name, change.found)
                return change.found.key
        return None

    def _fix(self, places: frozenset[Any], known: bool = True) -> None:
        """The members of objects at these places are constants from now on, or no longer."""
        with self.lock:
            self.region.args[:] = [
                replace(arg, template=known) if arg.member and arg.place in places else arg
                for arg in self.region.args
            ]
            self._tried = places if known else frozenset()
            self.forget()

    def reach(self, name: str, found: Static) -> None:
        """Passes the tensor that a called function reaches, or a number that it captured and that
        changes, as one more argument."""
        with self.lock:
            if found.key in self.idle:
                self.idle.discard(found.key)
                self.forget()
            if any(arg.key == found.key for arg in self.region.args):
                return  # another thread was here
            while name in self.names:
                name += "_"
            self.names.append(name)
            self.region.args.append(
                RegionArg(name, ast.Constant(None), captured=True, key=found.key, read=found.read)
            )
            self.forget()

    def rescheduled(self, options: Options) -> None:
        """Other schedules from now on: what is compiled is compiled anew."""
        with self.lock:
            self.options = options
            self.compiled.clear()
            self.forget()

    # --- compiling -------------------------------------------------------------------------------
    def specialize(
        self, specs: list[Spec], aliased: bool = False, place: str = "cpu", in_order: bool = False
    ) -> Specialization:
        """The compiled form for arguments of these specs, on "cpu" or "cuda" ("none": its IR only).
        ``in_order``: one iteration after the other."""
        key = (*specs, place, aliased, in_order)
        found = self.compiled.pop(key, None)
        if found is not None and holds(found.compiled.guards):
            self.compiled[key] = found  # the last one used is the last one
            return found
        if found is not None:
            self._numbers_changed(found.compiled.guards)
        signature = ", ".join(f"{n}: {s}" for n, s in zip(self.names, specs, strict=True))
        why = "new signature" if found is None else "a value read while compiling has changed"
        log.debug(
            "%s, loop at line %d: %s (%s)%s", self.source.name, self.region.span.line, signature,
            why, ", overlapping memory" if aliased else "",
        )  # fmt: skip
        region = replace(self.region, node=once(self.region.node)) if in_order else self.region
        by_name = dict(zip(self.names, specs, strict=True))
        try:
            with deep(self.region.span):
                compiled = self.compile_region(
                    backend(place, self.options),
                    region,
                    self.source,
                    by_name,
                    self.options,
                    noalias=not aliased,
                )
        except CompileError as error:
            self.ask(error, specs)
            raise
        self._tried = frozenset()
        special = Specialization(
            self.region.index, self.region.span.line, signature, compiled.origin,
            dict(compiled.stages), aliased, compiled=compiled,
        )  # fmt: skip
        self.compiled[key] = special
        self._bound(by_name)
        return special

    def ask(self, error: CompileError, specs: Sequence[Spec]) -> None:
        """Asks for the values of numbers that are passed at run time, since ``error`` may want
        them: of captured ones, or of integers that are members of objects, first those where it
        is."""
        passed = [(a, s) for a, s in zip(self.region.args, specs, strict=True)
                  if isinstance(s, ScalarSpec)]  # fmt: skip
        captured = frozenset(a.place for a, s in passed if s.captured)
        members = {a.place: ast.unparse(a.expr) for a, s in passed
                   if a.member and s.kind in ("int", "bool")}  # fmt: skip
        where = error.span.text if error.span else ""
        named = frozenset(place for place, text in members.items() if text in where)
        if places := captured or named or frozenset(members):
            raise NumberPinned(places) from None
        if self._tried:
            self._fix(self._tried, known=False)

    def _numbers_changed(self, guards: Sequence[Guard]) -> None:
        """Numbers that called functions captured, and that have changed, become arguments."""
        for guard in guards:
            if (
                guard.where
                and guard.where not in self.region.pinned
                and type(guard.value) in (int, float)
                and not guard.holds()
                and type(guard.read()) in (int, float)
            ):
                self._vary(guard.where, guard.name)

    def _bound(self, specs: dict[str, Spec]) -> None:
        """Warns of many specialisations, once, and drops the least recently used of too many."""
        self._made += 1
        for name, spec in specs.items():
            self._changes[name] += spec != self._last.get(name, spec)
        self._last = specs
        if self._made == MANY:
            often = [f"`{name}` changed {n} times" for name, n in self._changes.most_common(3) if n]
            changed = ", ".join(often) or "values that called functions captured changed"
            warnings.warn_explicit(
                f"the loop at line {self.region.span.line} of `{self.source.name}` was compiled "
                f"{MANY} times: {changed}. What is compiled in (values of template() arguments and "
                "captured values, dtypes, ranks) costs a compilation when it changes: pass numbers "
                "and tensors as arguments of the kernel. WEFT_LOGS=specialize says which.",
                RuntimeWarning, self.region.span.file, self.region.span.line,
            )  # fmt: skip
        most = max(self.options.specializations, 2)
        if len(self.compiled) > most:
            for key in list(self.compiled)[: len(self.compiled) - most + most // 8]:
                del self.compiled[key]
            self.forget()


def _judged(forms: Forms, args: tuple[Any, ...], asked: set[Any]) -> tuple[Any, ...]:
    """The arguments, and after them what called functions reach: None in place of what an earlier
    call asked for, this one not (``asked``, by key), and no loop can have."""
    with forms.lock:
        values = [*forms.extended(args)]
        reached = [k for k, arg in enumerate(forms.region.args)
                   if arg.read is not None and arg.key != KEY and not arg.pair]  # fmt: skip
        given = (v for k, v in enumerate(values) if k not in reached)
        first = next((v for v in given if isinstance(v, torch.Tensor)), None)
        for k in reached:
            arg = forms.region.args[k]
            if values[k] is None or arg.key in forms.idle:
                values[k] = forms.read(arg, values)
            if arg.key not in asked and _is_refused(forms, arg, values[k], first):
                forms.idle.add(arg.key)
                values[k] = None
        return tuple(values)


def _is_refused(forms: Forms, arg: RegionArg, value: Any, first: torch.Tensor | None) -> bool:
    """Whether a loop that has the tensor ``first`` cannot have ``value``, too."""
    if not isinstance(value, torch.Tensor):
        return False
    span = forms.region.span
    try:
        check_devices([(arg.name, v) for v in (first, value) if v is not None], span)
        spec_of(arg, value, span)
        if not value.is_meta:
            check_memory(arg.name, value, span)
    except CompileError:
        return True
    return False


def holds(guards: Sequence[Any]) -> bool:
    return all(guard.holds() for guard in guards)
