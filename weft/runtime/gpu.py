"""A specialisation for CUDA: its variants, compiled when a call first needs them, and its calls."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import math
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from weft import timing
from weft.codegen import launching
from weft.codegen.interface import Check
from weft.codegen.intervals import ANY, Interval, evaluate, fits, trip_count
from weft.codegen.launching import (
    CACHE_BYTES,
    DIVIDEND,
    DIVISOR,
    MOST_MEMBERS,
    PRIVATE_BYTES,
    PROCESSORS,
    SEVERAL,
    THREADS,
    WARP,
    Dims,
    Facts,
    Variant,
    covers,
    joined,
    reciprocal,
    roomier,
    shape,
)
from weft.frontend.specs import Spec
from weft.frontend.split import Region
from weft.ir.core import Function
from weft.ir.types import MemRefType
from weft.options import Options
from weft.runtime import build, cuda, native, record
from weft.runtime.arguments import Arguments
from weft.runtime.cache import disk, from_json, hashed, to_json
from weft.runtime.cuda import (
    NO_SUCH_CODE,
    CudaError,
    Driver,
    Frame,
    LaunchConfig,
    Module,
    driver,
    load,
    make_current,
)
from weft.runtime.maker import compiler
from weft.runtime.pending import pending
from weft.source import FunctionSource

if TYPE_CHECKING:
    from weft.frontend.lower import Lowered

FORMAT = 6  # of the cached header; another number is another key
RECORD_WORDS = 16
UNKNOWN_GRID = 1024  # blocks, where the trip counts are known on the GPU only
SMALL = 8192  # iterations of a reduction that one block does alone
_MARGIN = 1 << 24  # what is left of 32 bits for a thread's place beyond the last iteration
_WORD = struct.Struct("<q")
_TAIL = struct.Struct("<Qq")  # the address of what blocks leave, and how many blocks there are

log = logging.getLogger("weft.specialize")
log_llvm = logging.getLogger("weft.llvm")
log_asm = logging.getLogger("weft.asm")
log_launch = logging.getLogger("weft.launch")


@dataclass(slots=True)
class GpuCompiled(build.Made):
    """A specialisation for CUDA devices. ``optimized`` is made where a variant has to be
    compiled."""

    facts: Facts
    options: Options
    noalias: bool
    key: str
    optimized: Function | None = None
    texts: dict[tuple[Variant, str], str] = field(default_factory=dict)
    modules: dict[tuple[Variant, int], Module] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.facts.checks

    @property
    def prints(self) -> tuple[Any, ...]:
        return self.facts.prints

    def ptx(self, variant: Variant, arch: str, anew: bool = False) -> str:
        """The PTX of a variant: from memory, the disk cache (not ``anew``), or compiled."""
        with self.lock:
            found = None if anew else self.texts.get((variant, arch))
            if found is None:
                found = self.texts[variant, arch] = self._made(variant, arch, anew)
            return found

    def _made(self, variant: Variant, arch: str, anew: bool) -> str:
        cache = disk(self.options)
        key = hashlib.sha256(f"{self.key} {variant} {arch}".encode()).hexdigest()
        entry = cache.load(key) if cache is not None and not anew else None
        if entry is not None:
            return entry[1].decode(errors="replace")
        # Passes and code generation are not imported where the cache has the code.
        from weft import compiler as pipeline
        from weft.codegen import cuda as backend

        with timing.record() as recording:
            if self.optimized is None:
                self.optimized = pipeline.optimize(
                    self.function,
                    strict_math=self.options.strict_math,
                    noalias=self.noalias,
                    verify=self.options.verify,
                )
            code = backend.compile_cuda(
                self.optimized, self.facts, variant, arch,
                strict_math=self.options.strict_math, noalias=self.noalias,
            )  # fmt: skip
        for stage, milliseconds in recording.stages.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + milliseconds
        name = self.loop.summary.name
        log.debug("%s: compiled for %s as %s", name, arch, variant)
        build.log_stages(name, str(variant), recording)
        log_llvm.debug("%s", code.llvm)
        log_asm.debug("%s", code.ptx)
        if cache is not None:
            cache.store(key, {"variant": str(variant), "arch": arch}, code.ptx.encode())
        return code.ptx

    def module(self, variant: Variant, device: int) -> Module:
        """A variant, loaded on a device."""
        with self.lock:
            found = self.modules.get((variant, device))
            if found is None:
                names = [self.facts.symbol] + [f"{self.facts.symbol}_finish"] * bool(
                    self.facts.kinds
                )
                what, arch = f"kernel `{self.loop.summary.name}`", architecture(device)
                code = self.ptx(variant, arch)
                with timing.stage("load"):
                    try:
                        found = load(code, names, device, what)
                    except CudaError as error:
                        if error.code not in NO_SUCH_CODE:
                            raise
                        log.warning("the cached code of %s is compiled anew: %s", what, error)
                        found = load(self.ptx(variant, arch, anew=True), names, device, what)
                self.modules[variant, device] = found
            return found


@functools.cache
def architecture(device: int) -> str:
    """The architecture that code is made for on a device."""
    return launching.architecture(torch.cuda.get_device_capability(device))


def compile_region(
    region: Region | None, source: FunctionSource | None, specs: dict[str, Spec], options: Options,
    *, noalias: bool = True, lowered: Lowered | None = None,
) -> GpuCompiled:  # fmt: skip
    """What calls of ``region`` with arguments as ``specs`` says have in common. Variants are
    compiled when they are needed. Raises ``CompileError``s."""
    cache = disk(options)
    optimized = None
    with timing.record() as recording:
        loop = build.loop_for(region, source, specs, options, lowered)
        key = hashed("cuda", FORMAT, compiler(), build.said(options, noalias), loop.digest)
        entry = cache.load(key) if cache is not None else None
        facts = _known(entry[0]) if entry is not None else None
        origin = "disk"
        if facts is None:
            # Passes and code generation are not imported where the cache has the code.
            from weft import compiler as pipeline
            from weft.codegen import cuda as backend

            optimized = pipeline.optimize(
                loop.function,
                strict_math=options.strict_math,
                noalias=noalias,
                verify=options.verify,
            )
            with timing.stage("mapping"):
                facts = backend.analyse(optimized, noalias=noalias, strict_math=options.strict_math)
            origin = "compiled"
            if cache is not None:
                cache.store(key, to_json(facts), b"")
    name = loop.summary.name
    build.log_stages(name, origin, recording)
    log.debug("%s: %s for CUDA, (%s)", name, origin,
              ", ".join(f"{n}: {s}" for n, s in specs.items()))  # fmt: skip
    return GpuCompiled(loop, origin, dict(recording.stages), facts, options, noalias, key,
                       optimized)  # fmt: skip


def _known(header: dict[str, Any]) -> Facts | None:
    try:
        return from_json(Facts, header)
    except ValueError:
        return None


# -- calls


@dataclass(slots=True)
class Launch:
    """How one set of sizes and numbers runs: ``divisors`` end the argument block, ``frames`` are
    free for the taking."""

    function: Any
    finish: Any
    grid: Dims
    block: Dims
    shared: int
    blocks: int
    divisors: bytes = b""
    frames: list[Frame] = field(default_factory=list)
    record: bytes | None = None  # what ``native`` launches


class Call:
    """Calls a kernel for one exact set of shapes, on one device: ``call(slots)`` with the packed
    argument block. The grid follows from the shapes, and from integers where loops depend on
    them."""

    def __init__(
        self, compiled: GpuCompiled, device: int, error: Callable[[Check, list[int]], Exception]
    ) -> None:
        """``error`` words a failed check."""
        self.compiled = compiled
        self.error = error
        self.facts = compiled.facts
        self.device = device
        facts = compiled.facts
        self.size = 8 * len(facts.slots)
        numbers = [k for k, slot in enumerate(facts.slots) if slot.kind == "int"]
        used = {int(step[1]) for step in facts.steps if step[0] == "slot"}
        self.numbers = [k for k in numbers if k in used]
        self.within = slice(8 * min(self.numbers, default=0), 8 * max(self.numbers, default=-1) + 8)
        aligned = dict(facts.mapping.aligned) if facts.mapping is not None else {}
        even = dict(facts.even.aligned) if facts.even is not None else {}
        pointers = [(k, slot.arg) for k, slot in enumerate(facts.slots) if slot.kind == "pointer"]
        # Where an address is, a mask of the bits that must be 0, and how straight the call is else.
        self.places = [(8 * k, (even | aligned)[arg] - 1, _BENT if arg in aligned else _STRAIGHT)
                       for k, arg in pointers if arg in even or arg in aligned]  # fmt: skip
        self.launches: dict[tuple[bytes, int], Launch | None] = {}
        self.cell: ctypes.c_char_p | None = None  # where ``direct`` finds its record
        self.ready: Launch | None = None  # what that is of

    def __call__(self, slots: bytes) -> None:
        straight = _EVEN
        for place, mask, otherwise in self.places:
            if slots[place] & mask:
                straight = min(straight, otherwise)
        key = (slots[self.within], straight)
        try:
            launch = self.launches[key]
        except KeyError:
            launch = self._launch(slots, key)
        if launch is None:
            return
        if self.facts.checks:
            self._checked(launch, slots)
        elif launch.blocks > 1 and self.facts.kinds:
            self._reduce(launch, slots)
        else:
            self._run(launch, launch.function, slots + _ALONE + launch.divisors)
            if self.cell is not None and straight == _EVEN and self.ready is not launch:
                self._ready(launch, self.cell, slots)

    @functools.cached_property
    def api(self) -> Driver:
        return driver()

    def direct(self) -> native.Direct | None:
        """This call without Python, where it turns out to need one launch. Where numbers decide
        about its grid, it is for those of the last call."""
        if self.facts.checks:
            return None
        several = torch.cuda.device_count() > 1  # else torch's device is this one
        self.cell = ctypes.c_char_p()
        place = ctypes.addressof(self.cell)
        return native.Direct(record.DRIVER, place, self, self.device, several)

    def _ready(self, launch: Launch, cell: ctypes.c_char_p, slots: bytes) -> None:
        """From now on ``direct`` leads past Python, to ``launch``."""
        self.ready = launch
        if launch.record is not None:
            cell.value = launch.record
            return
        config = LaunchConfig(*launch.grid, *launch.block, launch.shared, None, None, 0)
        entry: Any = self.api.launch
        address = ctypes.cast(entry, ctypes.c_void_p).value or 0
        tests = [(place, mask, 0) for place, mask, _ in self.places]
        for k in self.numbers:
            tests.append((8 * k, (1 << 64) - 1, int.from_bytes(slots[8 * k : 8 * k + 8], "little")))
        cell.value = launch.record = native.launch_record(
            address, launch.function.value, config, self.size, _ALONE + launch.divisors, tests
        )

    def _frame(self, launch: Launch, block: bytes) -> Frame:
        try:
            return launch.frames.pop()
        except IndexError:
            return Frame(len(block), launch.grid, launch.block, launch.shared)

    def _run(self, launch: Launch, function: Any, block: bytes) -> None:
        api, device = self.api, self.device
        frame = self._frame(launch, block)
        if api.device() != device:
            with torch.cuda.device(device):
                code = self._submit(frame, function, block)
        else:
            frame.block.raw = block
            frame.config.stream = api.stream(device)
            code = api.launch(frame.reference, function, None, frame.extra)
        if code:
            self._failed(code, frame, function, block)
        launch.frames.append(frame)

    def _submit(self, frame: Frame, function: Any, block: bytes) -> int:
        frame.block.raw = block
        frame.config.stream = self.api.stream(self.device)
        return self.api.launch(frame.reference, function, None, frame.extra)

    def _failed(self, code: int, frame: Frame, function: Any, block: bytes) -> None:
        """Tries again where the thread has no context yet. Raises ``CudaError``."""
        if code in (3, 201):  # not initialised, invalid context
            with torch.cuda.device(self.device):
                make_current(self.device)
                code = self._submit(frame, function, block)
        if code:
            name = self.compiled.loop.summary.name
            late = code in (700, 710, 715, 716, 717, 718, 719, 214)
            hint = (
                "\nthe error was made by an earlier launch, of this kernel or another: "
                "CUDA_LAUNCH_BLOCKING=1 names it, debug=True checks every access" if late else ""
            )  # fmt: skip
            raise CudaError(
                f"kernel `{name}` cannot be launched: {self.api.error(code)}{hint}", code
            )

    def _reduce(self, launch: Launch, slots: bytes) -> None:
        """Two stages. What the blocks leave is torch's memory, freed in the order of the stream."""
        left = self._workspace(launch.blocks * len(self.facts.kinds))
        block = slots + _TAIL.pack(left.data_ptr(), launch.blocks) + launch.divisors
        self._run(launch, launch.function, block)
        end = launch.finish
        self._run(end, end.function, block)

    def _workspace(self, words: int) -> torch.Tensor:
        return torch.empty(words, dtype=torch.int64, device=f"cuda:{self.device}")

    def _checked(self, launch: Launch, slots: bytes) -> None:
        """Runs with an error record. Debug mode waits and raises; otherwise the error is raised by
        a later launch that finds it, or by ``synchronize``."""
        place = f"cuda:{self.device}"
        record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=place)
        block = slots[:-8] + _WORD.pack(record.data_ptr())
        if launch.blocks > 1 and self.facts.kinds:
            self._reduce(launch, block)
        else:
            self._run(launch, launch.function, block + _ALONE + launch.divisors)
        if torch.cuda.is_current_stream_capturing():
            return  # a graph's launches are recorded, not run: there is nothing to read
        pending.add(record, self.facts.checks, self.device, self.error)
        pending.poll(wait=self.compiled.options.debug)

    # -- what runs

    def _launch(self, slots: bytes, key: tuple[bytes, int]) -> Launch | None:
        if len(self.launches) > 1024:
            self.launches.clear()
        with self.compiled.lock:
            made = self.launches[key] = self._made(slots, straight=key[1])
        if made is not None:
            log_launch.debug(
                "%s: grid %s, block %s, %d bytes of shared memory",
                self.compiled.loop.summary.name, made.grid, made.block, made.shared,
            )  # fmt: skip
        return made

    def _made(self, slots: bytes, *, straight: int) -> Launch | None:
        facts = self.facts

        def word(k: int) -> Interval:
            value = _WORD.unpack_from(slots, 8 * k)[0]
            return value, value

        found = evaluate(facts.steps, word)
        arguments = Arguments(facts, self.compiled.loop.summary.types, slots)
        narrow = arguments.narrow() and all(fits(found[k]) for k in facts.needed)
        # Threads count a little further than loops go.
        ends = [high for _, high, _ in facts.bounds]
        ends += [high for _, high in facts.mapping.team] if facts.mapping is not None else []
        narrow = narrow and all(found[k][1] < (1 << 31) - _MARGIN for k in ends)
        if facts.mapping is None:
            module = self.compiled.module(Variant(narrow, covers=False), self.device)
            return Launch(module.functions[facts.symbol], None, (1, 1, 1), (1, 1, 1), 0, 1)
        trips = [trip_count(*(found[k] for k in bounds)) for bounds in facts.bounds]
        if 0 in trips and not facts.kinds:
            return None
        whole = straight != _BENT and arguments.even_rows(facts.mapping.aligned)
        even = straight == _EVEN and arguments.even(found)
        divisors = self._divisors(found) if narrow else None
        streams = arguments.streams(_second_level(self.device))
        lengths = [_length(found[low], found[high]) for low, high in facts.mapping.team]
        most = 2 * THREADS if streams else THREADS
        while True:
            variant, grid, block, shared = self._chosen(
                slots, trips, narrow, whole, min(most, THREADS), lengths
            )
            quick = variant.narrow and bool(divisors)
            vectors = variant.narrow and variant.vector > 1
            stream = streams and vectors and variant.covers
            variant = replace(variant, quick=quick, even=even and vectors, streams=stream)
            if variant.streams and most > THREADS:
                grid, block = joined(facts.mapping, grid, block)
            module = self.compiled.module(variant, self.device)
            function = module.functions[facts.symbol]
            fitting = self._fitting(function, math.prod(block))
            if variant.team or fitting >= min(most, math.prod(block)):
                break
            most = fitting
        ending = divisors if quick and divisors else b""
        finish = None
        if facts.kinds:
            end = module.functions[f"{facts.symbol}_finish"]
            finish = Launch(end, None, (1, 1, 1), (THREADS, 1, 1), 0, 1)
        blocks = math.prod(grid)
        return Launch(function, finish, grid, block, shared, blocks, ending)

    def _divisors(self, found: Sequence[Interval]) -> bytes:
        """The words of each divisor; none where one is not known, or something that is divided is
        too large."""
        words = b""
        for step, dividends in self.facts.divisions:
            low, high = found[step]
            numbers = reciprocal(low) if low == high else None
            if numbers is None or any(
                found[k][0] < -DIVIDEND or found[k][1] > DIVIDEND for k in dividends
            ):
                return b""
            words += DIVISOR.pack(*numbers)
        return words

    def _fitting(self, function: Any, threads: int) -> int:
        """The threads of a block that leave most room for others, for the registers they take."""
        mapping = self.facts.mapping
        if mapping is None or mapping.block or self.facts.kinds or not function:
            return threads
        return roomier(threads, cuda.attributes(function.value)["registers"])

    def _processors(self) -> int:
        """Multiprocessors of the device. A sum must not depend on it."""
        return _multiprocessors(self.device)

    def _chosen(
        self, slots: bytes, trips: list[int | None], narrow: bool, straight: bool, most: int,
        lengths: list[int | None],
    ) -> tuple[Variant, Dims, Dims, int]:  # fmt: skip
        """The variant for these trip counts and lengths of loops that a team may share, its grid
        and block of at most ``most`` threads, and bytes of shared memory."""
        facts, mapping = self.facts, self.facts.mapping
        assert mapping is not None
        known = [n for n in trips if n is not None]
        if len(known) < len(trips):
            x, y, z = (*mapping.block, 1, 1)[:3] if mapping.block else (mapping.threads, 1, 1)
            return Variant(narrow, covers=False), (UNKNOWN_GRID, 1, 1), (x, y, z), 0
        narrow = narrow and all(n < (1 << 31) - _MARGIN for n in known)
        total = math.prod(known)
        if lengths and (together := self._together(narrow, known, lengths)) is not None:
            return together
        jams = launching.jams(mapping, known, self._processors())
        for jam in (mapping.steps.jams[place] for place in jams):
            known[jam.axis] = jam.trips(known[jam.axis])
        ordered = [known[k] for k in mapping.order]
        least = mapping.vector * mapping.apart
        vector = mapping.vector if straight and ordered[0] >= least else 1
        shared = self._private_bytes(slots, total)
        few = bool(facts.kinds) or shared > 0
        grid, block = shape(
            mapping, ordered, vector=vector, few=few, processors=self._processors(), most=most
        )
        if facts.kinds and total <= SMALL:
            grid = (1, 1, 1)
        alone = not few and covers(mapping, ordered, grid, block, vector)
        return Variant(narrow, vector, alone, shared > 0, jams=jams), grid, block, shared

    def _together(
        self, narrow: bool, trips: list[int], lengths: list[int | None]
    ) -> tuple[Variant, Dims, Dims, int] | None:
        """As ``_chosen``, where several threads have an iteration together."""
        mapping = self.facts.mapping
        assert mapping is not None
        base = Variant(narrow, covers=False)
        if mapping.columns:
            first, *outer = (trips[k] for k in mapping.order)
            width, members = launching.columns(lengths, [first, *outer])
            if not width:
                return None
            variant = replace(base, team=MOST_MEMBERS, columns=width)
            return variant, (-(-first // width) * math.prod(outer), 1, 1), (width, members, 1), 0
        total = math.prod(trips)
        members, rows = launching.team(lengths, total)
        if not members:
            return None
        variant = replace(base, team=members if members <= WARP else max(members, SEVERAL))
        return variant, (-(-total // rows), 1, 1), (members, rows, 1), 0

    def _private_bytes(self, slots: bytes, total: int) -> int:
        """Bytes of a block's own copy of what is accumulated into; 0 where it does not pay."""
        mapping = self.facts.mapping
        assert mapping is not None
        if mapping.private < 0:
            return 0
        type = self.compiled.loop.summary.types[mapping.private]
        assert isinstance(type, MemRefType)
        count = 1
        for k, slot in enumerate(self.facts.slots):
            if slot.kind == "size" and slot.arg == mapping.private:
                count *= _WORD.unpack_from(slots, 8 * k)[0]
        size = count * type.element.bytes
        return size if 0 < size <= PRIVATE_BYTES and total >= max(16 * count, 1 << 14) else 0


_ALONE = _TAIL.pack(0, 1)
# What addresses allow: elements one by one, vectors, or the even form too.
_BENT, _STRAIGHT, _EVEN = range(3)


@functools.cache
def _second_level(device: int) -> int:
    """Bytes of a device's second-level cache."""
    if not torch.cuda.is_available():
        return CACHE_BYTES
    return torch.cuda.get_device_properties(device).L2_cache_size


@functools.cache
def _multiprocessors(device: int) -> int:
    if not torch.cuda.is_available():
        return PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _length(first: Interval, end: Interval) -> int | None:
    """The most iterations between these; None where that is not known before a kernel runs."""
    if ANY in (first, end) or end[1] - first[0] >= 1 << 40:
        return None
    return max(end[1] - first[0], 0)
