"""One specialisation of one device loop: compiled or taken from the disk cache, and loaded.

What launching asks of the loop's IR is a ``Summary``. The disk cache keeps it with the hash of the
IR (``known.py``): where the loop, what it reads while it is compiled, and the machine code are as
they were, the compiler is not imported, and the IR is made only if somebody asks for it (a
gradient, arguments that share memory).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft import timing
from weft.codegen.interface import Check, Slot
from weft.collector import paused
from weft.frontend.scope import Guard
from weft.frontend.specs import Spec
from weft.frontend.split import Region
from weft.ir.core import Function
from weft.options import Options
from weft.runtime import known
from weft.runtime.cache import DiskCache, disk, from_json, hashed, to_json
from weft.runtime.cpu import LoadedFunction, load
from weft.runtime.known import Summary
from weft.runtime.maker import compiler, processor
from weft.source import FunctionSource

if TYPE_CHECKING:
    from weft.frontend.lower import Lowered

FORMAT = 2  # of the header; another number is another key
log = logging.getLogger("weft.specialize")
log_llvm = logging.getLogger("weft.llvm")
log_asm = logging.getLogger("weft.asm")
log_time = logging.getLogger("weft.time")


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
        with paused():  # the compiler's front: not where the cache will do
            from weft.runtime import lowering  # a door of the compiler

        return lowering.lower(region, specs, source, debug=options.debug)

    cache = disk(options)
    places = known.Places(source.function)
    key = known.key_of(region, specs, source, options, places) if cache is not None else None
    if cache is None or key is None:
        return _made(lower(), options)
    found = known.find(cache, key, places)
    if found is not None:
        return Loop(*found, lambda: lower().function)
    made = _made(lower(), options)
    if not source.warned:  # what is said, is said in each process
        known.remember(cache, key, places, made.summary, made.digest, made.guards)
    return made


def _made(lowered: Lowered, options: Options) -> Loop:
    from weft.runtime import lowering  # imported by what has lowered it

    summary, digest = lowering.summarize(lowered, options)
    return Loop(summary, digest, lowered.guards, lambda: lowered.function)


@dataclass(slots=True)
class Made:
    """A specialisation for some device. ``origin``: "compiled" or "disk"; ``stages``:
    milliseconds."""

    loop: Loop
    origin: str
    stages: dict[str, float]

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


@dataclass(frozen=True, slots=True)
class Header:
    """What the cache keeps beside object code: what calls of it are like (see ``CpuCode``)."""

    symbol: str
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    prints: tuple[tuple[tuple[str | None, ...], tuple[str, ...]], ...]


@dataclass(slots=True)
class Compiled(Made):
    """A specialisation that can be called: ``load.call(packed slots)``."""

    load: LoadedFunction
    header: Header

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.header.slots

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.header.checks


def compile_region(
    region: Region | None, source: FunctionSource | None, specs: dict[str, Spec], options: Options,
    *, noalias: bool = True, lowered: Lowered | None = None,
) -> Compiled:  # fmt: skip
    """Compiles ``region`` for arguments as ``specs`` says, or loads it from the disk cache.

    ``noalias``: no memory written through one tensor is accessed through another. ``lowered``: the
    loop's IR, where it does not come from source (``region`` and ``source`` are then not needed).
    """
    cache = disk(options)
    with timing.record() as recording:
        loop = loop_for(region, source, specs, options, lowered)
        key = hashed(FORMAT, compiler(), processor(), said(options, noalias), loop.digest)
        found = _from_disk(cache, key)
        if found is not None:
            loaded, header = found
            origin = "disk"
        else:
            # Passes, index sets and code generation are not imported where the cache has the code.
            with paused():
                from weft import compiler as pipeline  # the other door

            code = pipeline.to_code(
                loop.function,
                strict_math=options.strict_math,
                noalias=noalias,
                verify=options.verify,
                debug=options.debug and region is not None,
            )
            log_llvm.debug("%s", code.llvm)
            if log_asm.isEnabledFor(logging.DEBUG):
                log_asm.debug("%s", pipeline.cpu.assembly(code))
            header = Header(code.symbol, code.slots, code.checks, code.prints)
            origin = "compiled"
            if cache is not None:
                cache.store(key, to_json(header), code.object)
            with timing.stage("load"):
                loaded = load(code.object, code.symbol, code.prints, cache=cache)
    name = loop.summary.name
    log_stages(name, origin, recording)
    log.debug("%s: %s for (%s)", name, origin, ", ".join(f"{n}: {s}" for n, s in specs.items()))
    return Compiled(loop, origin, dict(recording.stages), loaded, header)


def said(options: Options, noalias: bool) -> str:
    """What of the options makes other code."""
    return f"debug={options.debug} strict={options.strict_math} noalias={noalias}"


def _from_disk(cache: DiskCache | None, key: str) -> tuple[LoadedFunction, Header] | None:
    """The code stored under ``key``, loaded, and its tables; None where it has to be compiled."""
    entry = cache.load(key) if cache is not None else None
    if entry is None:
        return None
    try:
        header = from_json(Header, entry[0])
    except ValueError:
        return None
    with timing.stage("load"):
        try:
            return load(entry[1], header.symbol, header.prints, cache=cache), header
        except RuntimeError as error:
            log.warning("the cached code of %s is compiled anew: %s", header.symbol, error)
            return None


def log_stages(name: str, what: str, recording: timing.Recording) -> None:
    """Logs how long the stages of a compilation took."""
    if log_time.isEnabledFor(logging.DEBUG):
        log_time.debug("%s, %s\n%s", name, what, recording.report())
