"""One specialisation of one device loop: compiled or taken from the disk cache, and loaded.

What launching asks of the loop's IR is a ``Summary``. The disk cache keeps it with the hash of the
IR (``known.py``): where the loop, what it reads while it is compiled, and the machine code are as
they were, the compiler is not imported, and the IR is made only if somebody asks for it (a
gradient, arguments that share memory).
"""

from __future__ import annotations

import abc
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from weft import timing
from weft.codegen.interface import Check, Slot
from weft.errors import ScheduleError
from weft.frontend.scope import Guard
from weft.frontend.specs import Spec
from weft.frontend.split import Region
from weft.ir.core import Function
from weft.options import Options
from weft.runtime import known, native, record
from weft.runtime.cache import DiskCache, disk, from_json, hashed, to_json
from weft.runtime.cpu import Later, LoadedFunction, load
from weft.runtime.known import Summary
from weft.runtime.maker import compiler, processor
from weft.runtime.overlap import extent
from weft.settings import rarely_collected
from weft.source import FunctionSource
from weft.values import frozen, mutable

if TYPE_CHECKING:
    from weft.frontend.lower import Lowered
    from weft.runtime.tuned import Chooser

Failure = Callable[[Check, list[int]], Exception]  # the error for what a check has recorded
log = logging.getLogger("weft.specialize")
log_llvm = logging.getLogger("weft.llvm")
log_asm = logging.getLogger("weft.asm")
log_time = logging.getLogger("weft.time")
log_schedule = logging.getLogger("weft.schedule")


class Loop:
    """``digest``: a hash of its IR. ``guards``: what was read while it was lowered, and may
    change."""

    def __init__(
        self, summary: Summary, digest: str, guards: Sequence[Guard], lower: Callable[[], Function]
    ) -> None:
        self.summary = summary
        self.digest = digest
        self.guards = tuple(guards)
        self._lower = lower

    @functools.cached_property
    def function(self) -> Function:
        """The IR as lowered."""
        return self._lower()


def kept(options: Options) -> DiskCache | None:
    """Where code is kept. That with source lines is not: an edit above a loop changes these, and
    nothing of what it is asked for by."""
    return None if options.lines else disk(options)


def loop_for(
    region: Region | None, source: FunctionSource | None, specs: dict[str, Spec], options: Options,
    lowered: Lowered | None,
) -> Loop:  # fmt: skip
    """The loop ``region`` for arguments as ``specs`` says, or the one that is ``lowered`` already.
    Raises ``CompileError``s."""
    with timing.stage("frontend"):
        if lowered is not None:
            return _made(lowered, options)
        assert region is not None
        assert source is not None
        return _loop_of(region, source, specs, options)


def _loop_of(
    region: Region, source: FunctionSource, specs: dict[str, Spec], options: Options
) -> Loop:
    def lower() -> Lowered:
        # The compiler's front is not imported where the cache will do.
        from weft.runtime import lowering  # a door of the compiler

        return lowering.lower(region, specs, source, debug=options.debug)

    cache = kept(options)
    places = known.Places(source.function)
    key = known.key_of(region, specs, source, options, places) if cache is not None else None
    if cache is None or key is None:
        return _made(lower(), options)
    found = known.find(cache, key, places)
    if found is not None:
        return Loop(*found, lambda: lower().function)
    made = _made(lower(), options)
    if not source.warned and not source.printed:  # what is said, is said in each process
        known.remember(cache, key, places, made.summary, made.digest, made.guards)
    return made


def _made(lowered: Lowered, options: Options) -> Loop:
    from weft.runtime import lowering  # imported by what has lowered it

    summary, digest = lowering.summarize(lowered, options)
    return Loop(summary, digest, lowered.guards, lambda: lowered.function)


@frozen
class Job:
    """A loop to compile. ``key``: of what is kept in ``cache``; ``checked``: with tests at run time
    of what is not known about races; ``asked``: the text of a schedule, a person's or a tuned
    one. ``streaming_beyond``: where a CPU's stores may stream, the bytes of arrays from which on
    they do. ``columns``: which calls code of a CPU is for, "many", "few", or "" for both (see
    ``Compiled.fitting``). ``rare``: what is compiled is what the code for many leaves out."""

    backend: Backend
    loop: Loop
    options: Options
    noalias: bool
    key: str
    cache: DiskCache | None
    checked: bool
    asked: str | None = None
    streaming_beyond: int | None = None
    columns: str = "many"
    rare: bool = False


@mutable
class Made(abc.ABC):
    """A loop that is compiled for a kind of device. ``origin``: "compiled" or "disk"; ``stages``:
    milliseconds."""

    # Whether what ``bound`` gives takes the tensors of the argument block's pointers beside it.
    takes_tensors: ClassVar[bool] = False

    job: Job
    origin: str = field(init=False)
    stages: dict[str, float] = field(init=False)
    tuned: dict[str, Made | None] = field(init=False, default_factory=dict)  # by schedule
    # The CPU's code that checks for races first, where a loop of a GPU needs that (debug mode).
    races: Made | None = field(init=False, default=None)

    def fitting(self, tensors: Sequence[torch.Tensor], chooser: Chooser) -> Made:
        """The same by the schedule that was tuned for tensors of these sizes; itself where none
        was, or a person asks for another. ``chooser`` is told when it has to ask again."""
        job, options = self.job, self.job.options
        if not tensors or job.asked is not None or options.debug or not job.noalias:
            return self
        with rarely_collected:
            from weft.runtime import tuned  # not before a loop is launched

        tuned.records.announce(chooser)
        name = self.loop.summary.name
        text = tuned.records.schedule(options, name, self.loop.digest, tensors)
        if text is not None and text not in self.tuned:
            try:
                with rarely_collected, timing.record() as recording:
                    made = compiled(replace(job, asked=text, key=hashed(job.key, "tuned", text)))
                _finished(made, recording)
            except ScheduleError as error:
                tuned.log.debug("%s: not by `%s`, which was tuned: %s", name, text, error.message)
                made = None
            self.tuned[text] = made
        return self if text is None else self.tuned[text] or self

    def for_all_sizes(self) -> Made:
        """The same for a caller who does not ask ``fitting`` at each call."""
        return self

    @property
    def loop(self) -> Loop:
        return self.job.loop

    @property
    def function(self) -> Function:
        """As lowered: its arguments are those of the slots."""
        return self.loop.function

    @property
    def results(self) -> tuple[tuple[str, str], ...]:
        return self.loop.summary.results

    @property
    def guards(self) -> tuple[Guard, ...]:
        return self.loop.guards

    @property
    @abc.abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The words of the argument block."""

    @abc.abstractmethod
    def bound(
        self, tensors: Sequence[torch.Tensor], error: Failure, *, brief: bool
    ) -> tuple[Callable[..., object], native.Direct | None]:
        """What launches it on tensors of these sizes, given the argument block, and the same
        without Python if there is that. ``error`` words a failed check; ``brief``: a launch takes
        microseconds."""

    @abc.abstractmethod
    def ran(self, call: Any) -> tuple[str, bool]:
        """How ``call``, which ``bound`` has given, ran when it was called; whether that is as it
        was asked for."""


class Backend(Protocol):
    """What compiles loops for a kind of device. ``name`` is torch's, ``version`` is of what it
    keeps in the cache."""

    name: str
    version: int

    def machine(self) -> str:
        """What code of this machine depends on, beside the loop, its options and the compiler."""
        ...

    def from_disk(self, job: Job, header: dict[str, Any], code: bytes) -> Made | None:
        """What ``compile`` has kept; None where that cannot be used."""
        ...

    def compile(self, job: Job) -> Made:
        """Compiles a loop, and keeps it in the cache. Raises ``CompileError``s."""
        ...


def compile_region(
    backend: Backend, region: Region | None, source: FunctionSource | None, specs: dict[str, Spec],
    options: Options, *, noalias: bool = True, lowered: Lowered | None = None,
) -> Made:  # fmt: skip
    """Compiles ``region`` for arguments as ``specs`` says, or takes it from the disk cache.

    ``noalias``: no memory written through one tensor is accessed through another. ``lowered``: the
    loop's IR, where it does not come from source (``region`` and ``source`` are then not needed).
    """
    with rarely_collected, timing.record() as recording:
        loop = loop_for(region, source, specs, options, lowered)
        said = f"debug={options.debug} strict={options.strict_math} noalias={noalias}"
        asked = options.asked(backend.name, loop.summary.name)
        if asked is not None and (options.debug or not noalias):
            why = "arguments share memory" if options.debug is False else "debug mode checks"
            log.debug("%s: not by `%s`: %s", loop.summary.name, asked, why)
            asked = None
        made_by = backend.name, backend.version, compiler(), backend.machine()
        key = hashed(*made_by, said, repr(asked), loop.digest)
        checked = options.debug and region is not None
        job = Job(backend, loop, options, noalias, key, kept(options), checked, asked)
        made = compiled(job)
        if checked and backend is not CPU and backend is not LOWERED:
            made.races = _race_code(job)
    _finished(made, recording)
    told = ", ".join(f"{n}: {s}" for n, s in specs.items())
    log.debug("%s: %s for %s, (%s)", loop.summary.name, made.origin, backend.name, told)
    return made


def compiled(job: Job) -> Made:
    """What the cache has for a job, or what is compiled. Raises ``CompileError``s."""
    entry = job.cache.load(job.key) if job.cache is not None else None
    made = job.backend.from_disk(job, *entry) if entry is not None else None
    origin = "compiled" if made is None else "disk"
    if made is None:
        made = job.backend.compile(job)
    made.origin = origin
    return made


def _race_code(job: Job) -> Made | None:
    """The CPU's code that checks a loop of a GPU for races; None where index sets decide about all
    of them."""
    # Where there are such loops, debug mode compiles.
    from weft import compiler as pipeline  # the other door

    function = pipeline.race_checked(job.loop.function, noalias=job.noalias)
    if function is None:
        return None
    loop = Loop(job.loop.summary, job.loop.digest, job.loop.guards, lambda: function)
    key = hashed(job.key, "races", CPU.version, CPU.machine())
    return compiled(replace(job, backend=CPU, loop=loop, key=key, asked=None))


def _finished(made: Made, recording: timing.Recording) -> None:
    made.stages = dict(recording.stages)
    log_stages(made.loop.summary.name, made.origin, recording)


def log_stages(name: str, what: str, recording: timing.Recording) -> None:
    """Logs how long the stages of a compilation took."""
    if log_time.isEnabledFor(logging.DEBUG):
        log_time.debug("%s, %s\n%s", name, what, recording.report())


# --- the CPU --------------------------------------------------------------------------------------
@frozen
class Header:
    """What the cache keeps beside object code: what calls of it are like (see ``CpuCode``), and the
    text of its schedule. ``accessed``, ``columns``, ``rare``: of ``CpuCode``."""

    schedule: str
    symbol: str
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    prints: tuple[tuple[tuple[str | None, ...], tuple[str, ...]], ...]
    accessed: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    rare: str = ""


SMALL = 1 << 20  # bytes that every machine's last cache has


@mutable
class Compiled(Made):
    """Machine code of this process."""

    code: LoadedFunction
    header: Header
    # The same with a second loop, whose stores stream where a call is large.
    streaming: Compiled | None = field(init=False, default=None)
    beside: Compiled | None = field(init=False, default=None)  # the same for few columns
    every: Compiled | None = field(init=False, default=None)  # the same for few and many
    rare: Compiled | None = field(init=False, default=None)  # what it leaves out

    def fitting(self, tensors: Sequence[torch.Tensor], chooser: Chooser) -> Made:
        found = Made.fitting(self, tensors, chooser)
        if found is not self or self.job.asked is not None:
            return found
        if self._has_few(tensors):
            self.beside = self.beside or self._again("few", columns="few")
            return self.beside
        decide = [tensors[k] for k in self.header.accessed if k < len(tensors)]
        if not decide:
            return self
        bytes = sum(t.numel() * t.element_size() for t in decide)
        limit = self.job.options.streaming_bytes
        if limit is None:
            if bytes <= SMALL:
                return self
            from weft.codegen.caches import last_level  # which looks at files

            limit = last_level()
        return self._streaming(limit) if bytes > limit else self

    def for_all_sizes(self) -> Compiled:
        if not self.header.columns and not self.header.rare:
            return self
        if self.every is None:
            self.every = self._again("few and many", columns="")
        return self.every

    def _has_few(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a call has so few iterations along lanes that other code is for that."""
        if not self.header.columns:
            return False
        argument, axis, least = self.header.columns
        pointers = [slot.arg for slot in self.slots if slot.kind == "pointer"]
        number = pointers.index(argument)
        return number < len(tensors) and tensors[number].shape[axis] < least

    def _streaming(self, limit: int) -> Compiled:
        if self.streaming is None:
            self.streaming = self._again("streaming", limit, streaming_beyond=limit)
        return self.streaming

    def rare_address(self) -> int:
        """Of the function that is left out."""
        if self.rare is None:
            self.rare = self._again("rare", rare=True)
        return self.rare.code.address

    def _again(self, *what: object, **changes: Any) -> Compiled:
        """The same loop compiled with these ``changes`` of the job."""
        job = replace(self.job, key=hashed(self.job.key, *what), **changes)
        with rarely_collected, timing.record() as recording:
            made = compiled(job)
        _finished(made, recording)
        assert isinstance(made, Compiled)
        return made

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.header.slots

    def bound(
        self, tensors: Sequence[torch.Tensor], error: Failure, *, brief: bool
    ) -> tuple[Callable[[bytes], object], native.Direct | None]:
        code = self.code
        how, beyond = self.header.schedule, self.job.streaming_beyond
        log_schedule.debug(
            "%s: by `%s`%s%s", self.loop.summary.name, how, "" if how else ": LLVM vectorises",
            "" if beyond is None else f", stores stream beyond {beyond} bytes",
        )  # fmt: skip
        call = code.call_holding_gil if brief else code.call
        if self.header.checks:
            from weft.runtime.race_shadow import checked  # assertions, and debug mode

            sizes = [(extent(t), t.element_size()) for t in tensors]
            return checked(call, self.slots, self.header.checks, sizes, error), None
        way = record.HOLDING if brief else record.RELEASING
        return call, native.Direct(way, code.address, code) if code.address else None

    def ran(self, call: Any) -> tuple[str, bool]:
        return self.header.schedule, True


class Cpu:
    """Object code, linked into this process."""

    name, version = "cpu", 6

    def machine(self) -> str:
        return processor()

    def from_disk(self, job: Job, header: dict[str, Any], code: bytes) -> Compiled | None:
        try:
            known = from_json(Header, header)
        except ValueError:
            return None
        try:
            return self._loaded(job, known, code)
        except RuntimeError as error:
            log.warning("the cached code of %s is compiled anew: %s", known.symbol, error)
            return None

    def compile(self, job: Job) -> Compiled:
        # Passes, index sets and code generation are not imported where the cache has the code.
        from weft import compiler as pipeline  # the other door
        from weft.schedule.language import show  # imported by it

        options = replace(job.options, debug=job.checked)
        code = pipeline.to_code(
            job.loop.function, options, noalias=job.noalias, asked=job.asked,
            streaming_beyond=job.streaming_beyond, columns=job.columns, rare=job.rare,
        )  # fmt: skip
        log_llvm.debug("%s", code.llvm)
        if log_asm.isEnabledFor(logging.DEBUG):
            log_asm.debug("%s", code.assembly())
        said = show(code.schedule)
        header = Header(said, code.symbol, code.slots, code.checks, code.prints, code.accessed,
                        code.columns, code.rare)  # fmt: skip
        if job.cache is not None:
            job.cache.store(job.key, to_json(header), code.object)
        return self._loaded(job, header, code.object)

    def _loaded(self, job: Job, header: Header, code: bytes) -> Compiled:
        later = Later(lambda: made.rare_address()) if header.rare else None
        with timing.stage("load"):
            loaded = load(code, header.symbol, header.prints, cache=job.cache, later=later)
        made = Compiled(job, loaded, header)
        return made


CPU = Cpu()


# --- no device ------------------------------------------------------------------------------------
@mutable
class Uncompiled(Made):
    """A loop of which only the IR is wanted: others are derived from it."""

    slots: Any = ()
    bound: Any = None  # nobody launches it
    ran: Any = None


class NoDevice:
    name, version = "none", 0

    def machine(self) -> str:
        return ""

    def from_disk(self, job: Job, header: dict[str, Any], code: bytes) -> None:
        return None

    def compile(self, job: Job) -> Uncompiled:
        return Uncompiled(job)


LOWERED = NoDevice()
