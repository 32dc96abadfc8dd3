"""A specialisation for CUDA: its code by each schedule, compiled when a call first needs it, and
its calls."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import math
import struct
import threading
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch

from weft import timing
from weft.codegen import launching
from weft.codegen.interface import Slot
from weft.codegen.launching import Facts
from weft.ir.core import Function
from weft.lang.pending import PENDING
from weft.runtime import build, cuda, native, record
from weft.runtime.arguments import sizes_of
from weft.runtime.cache import from_json, to_json
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
from weft.schedule.choose import Choice, alignments, candidate, choose
from weft.schedule.grid import THREADS, Dims, left_by, roomier
from weft.schedule.guards import judged
from weft.schedule.language import (
    BlockDim,
    Cooperate,
    FastDivision,
    Schedule,
    Stage,
    brief,
    only,
    show,
)
from weft.schedule.machine import GpuMachine
from weft.schedule.sizes import Sizes
from weft.settings import rarely_collected
from weft.values import mutable

RECORD_WORDS = 16
_WORD = struct.Struct("<q")
_TAIL = struct.Struct("<Qq")  # the address of what blocks leave, and how many blocks there are

log = logging.getLogger("weft.specialize")
log_llvm = logging.getLogger("weft.llvm")
log_asm = logging.getLogger("weft.asm")
log_launch = logging.getLogger("weft.launch")


@mutable
class GpuCompiled(build.Made):
    """A specialisation for CUDA devices. ``optimized`` is made where a schedule has to be
    compiled."""

    facts: Facts
    optimized: Function | None = None
    texts: dict[tuple[Schedule, str], str] = field(default_factory=dict)
    modules: dict[tuple[Schedule, int], Module] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.facts.slots

    def bound(
        self, tensors: Sequence[torch.Tensor], error: build.Failure, *, brief: bool
    ) -> tuple[Call, native.Direct | None]:
        call = Call(self, tensors[0].get_device(), error)
        return call, call.direct()

    def ran(self, call: Call) -> tuple[str, bool]:
        choice = call.choice
        if choice is None:  # there was nothing to do
            return "", True
        how = f"{show(choice.schedule)}, grid {choice.grid}, block {choice.block}"
        return how, as_asked(self.facts, choice)

    def ptx(self, schedule: Schedule, arch: str, anew: bool = False) -> str:
        """The PTX by a schedule: from memory, the disk cache (not ``anew``), or compiled."""
        with self.lock:
            found = None if anew else self.texts.get((schedule, arch))
            if found is None:
                found = self.texts[schedule, arch] = self._made(schedule, arch, anew)
            return found

    def _made(self, schedule: Schedule, arch: str, anew: bool) -> str:
        job, cache = self.job, self.job.cache
        key = hashlib.sha256(f"{job.key} {show(schedule)} {arch}".encode()).hexdigest()
        entry = cache.load(key) if cache is not None and not anew else None
        if entry is not None:
            return entry[1].decode(errors="replace")
        with rarely_collected, timing.record() as recording:
            if self.optimized is None:
                self.optimized = optimized(job)
            from weft.codegen import cuda as backend  # a door of the compiler

            code = backend.compile_cuda(self.optimized, schedule, arch)
        for stage, milliseconds in recording.stages.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + milliseconds
        name = self.loop.summary.name
        log.debug("%s: compiled for %s as %s", name, arch, brief(schedule))
        build.log_stages(name, brief(schedule), recording)
        log_llvm.debug("%s", code.llvm)
        log_asm.debug("%s", code.ptx)
        if cache is not None:
            cache.store(key, {"schedule": show(schedule), "arch": arch}, code.ptx.encode())
        return code.ptx

    def module(self, schedule: Schedule, device: int) -> Module:
        """The code by a schedule, loaded on a device."""
        with self.lock:
            found = self.modules.get((schedule, device))
            if found is None:
                what, arch = f"kernel `{self.loop.summary.name}`", architecture(device)
                code = self.ptx(schedule, arch)
                names = launching.entries(code)
                with timing.stage("load"):
                    try:
                        found = load(code, names, device, what)
                    except CudaError as error:
                        if error.code not in NO_SUCH_CODE:
                            raise
                        log.warning("the cached code of %s is compiled anew: %s", what, error)
                        found = load(self.ptx(schedule, arch, anew=True), names, device, what)
                self.modules[schedule, device] = found
            return found


@functools.cache
def architecture(device: int) -> str:
    """The architecture that code is made for on a device."""
    return launching.architecture(torch.cuda.get_device_capability(device))


def optimized(job: build.Job) -> Function:
    """The loop after the passes."""
    # Passes and code generation are not imported where the cache has the code.
    from weft import compiler as pipeline  # a door of the compiler

    return pipeline.optimize(
        job.loop.function, job.options, noalias=job.noalias, asked=job.asked
    )  # fmt: skip


class Cuda:
    """What calls of a loop have in common. Schedules are compiled when they are needed."""

    name, version = "cuda", 8

    def machine(self) -> str:
        return ""

    def from_disk(self, job: build.Job, header: dict[str, Any], code: bytes) -> GpuCompiled | None:
        try:
            return GpuCompiled(job, from_json(Facts, header))
        except ValueError:
            return None

    def compile(self, job: build.Job) -> GpuCompiled:
        function = optimized(job)
        from weft.codegen import cuda as backend  # a door of the compiler

        with timing.stage("schedule"):
            facts = backend.analyse(function, job.asked)
        if job.cache is not None:
            job.cache.store(job.key, to_json(facts), b"")
        return GpuCompiled(job, facts, function)


CUDA = Cuda()


def as_asked(facts: Facts, choice: Choice) -> bool:
    """Whether a call goes by the schedule that was asked for, if any was."""
    asked = facts.candidates[: facts.asked]
    return not asked or any(candidate(text).schedule == choice.schedule for text in asked)


# -- calls


@mutable
class Launch:
    """How one set of sizes and numbers runs: ``divisors`` end the argument block, ``frames`` are
    free for the taking. ``then``: the stages behind it, where blocks leave so many ``words`` in
    ``blocks`` parts. ``follows``: it is one of these."""

    function: Any
    grid: Dims
    block: Dims
    shared: int
    divisors: bytes = b""
    blocks: int = 1
    words: int = 0
    then: tuple[Launch, ...] = ()
    follows: bool = False
    frames: list[Frame] = field(default_factory=list)
    record: bytes | None = None  # what ``native`` launches


class Call:
    """Calls a kernel for one exact set of shapes, on one device: ``call(slots)`` with the packed
    argument block. The grid follows from the shapes, and from integers where loops depend on
    them."""

    def __init__(self, compiled: GpuCompiled, device: int, error: build.Failure) -> None:
        """``error`` words a failed check."""
        self.compiled = compiled
        self.error = error
        self.facts = compiled.facts
        self.device = device
        facts = compiled.facts
        self.size = 8 * len(facts.slots)
        numbers = [k for k, slot in enumerate(facts.slots) if slot.kind == "int"]
        used = {int(step[1]) for step in facts.nest.program if step[0] == "slot"}
        self.numbers = [k for k in numbers if k in used]
        self.within = slice(8 * min(self.numbers, default=0), 8 * max(self.numbers, default=-1) + 8)
        self.asked = [(guard.array, guard.bytes) for guard in alignments(facts.candidates)]
        words = {facts.nest.arrays[slot.arg]: k for k, slot in enumerate(facts.slots)
                 if slot.kind == "pointer"}  # fmt: skip
        # Where an address is, a mask of the bits that must be 0 for a vector, and the bit that says
        # that they are not.
        self.places = [(8 * words[name], n - 1, 1 << k) for k, (name, n) in enumerate(self.asked)]
        self.launches: dict[tuple[bytes, int], Launch | None] = {}
        self.cell: ctypes.c_char_p | None = None  # where ``direct`` finds its record
        self.ready: Launch | None = None  # what that is of
        self.choice: Choice | None = None  # of the last new sizes and numbers

    def __call__(self, slots: bytes) -> None:
        astray = 0
        for place, mask, bit in self.places:
            if slots[place] & mask:
                astray |= bit
        key = (slots[self.within], astray)
        try:
            launch = self.launches[key]
        except KeyError:
            launch = self._launch(slots, key)
        if launch is None:
            return
        if self.facts.checks:
            self._checked(launch, slots)
        elif launch.then:
            self._stages(launch, slots)
        else:
            self._run(launch, launch.function, slots + _ALONE + launch.divisors)
            if self.cell is not None and not astray and self.ready is not launch:
                self._ready(launch, self.cell, slots)

    def launch_of(self, slots: bytes) -> tuple[Launch | None, tuple[tuple[int, int], ...]]:
        """What runs with this argument block, None where there is nothing to do; and its words
        that are pointers to multiples of so many bytes, where that counts."""
        bits = [
            (place // 8, mask, bit, not slots[place] & mask) for place, mask, bit in self.places
        ]
        astray = sum(bit for _, _, bit, fits in bits if not fits)
        launch = self._launch(slots, (slots[self.within], astray))
        return launch, tuple((word, mask + 1) for word, mask, _, fits in bits if fits)

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
            follows = launch.follows and self._overlap
            return Frame(len(block), launch.grid, launch.block, launch.shared, follows)

    @functools.cached_property
    def _overlap(self) -> bool:
        """Whether launches may start before those ahead of them have ended, here and in graphs."""
        able = launching.overlap(architecture(self.device))
        return able and self.api.version >= cuda.FOLLOWING

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

    def _stages(self, launch: Launch, slots: bytes) -> None:
        """What the blocks leave is torch's memory, freed in the order of the stream."""
        left = self._workspace(launch.words)
        block = slots + _TAIL.pack(left.data_ptr(), launch.blocks) + launch.divisors
        for stage in (launch, *launch.then):
            self._run(stage, stage.function, block)

    def _workspace(self, words: int) -> torch.Tensor:
        return torch.empty(words, dtype=torch.int64, device=f"cuda:{self.device}")

    def _checked(self, launch: Launch, slots: bytes) -> None:
        """Runs with an error record. Debug mode waits and raises; otherwise the error is raised by
        a later launch that finds it, or by ``weft.sync``."""
        place = f"cuda:{self.device}"
        record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=place)
        block = slots[:-8] + _WORD.pack(record.data_ptr())
        if launch.then:
            self._stages(launch, block)
        else:
            self._run(launch, launch.function, block + _ALONE + launch.divisors)
        if torch.cuda.is_current_stream_capturing():
            return  # a graph's launches are recorded, not run: there is nothing to read
        checks, error = self.facts.checks, self.error
        with torch.cuda.device(self.device):
            event = torch.cuda.Event()
            event.record()
        PENDING.add(record, event, lambda words: error(checks[words[0] - 1], words[1:]))
        PENDING.poll(wait=self.compiled.job.options.debug)

    # -- what runs

    def _launch(self, slots: bytes, key: tuple[bytes, int]) -> Launch | None:
        if len(self.launches) > 1024:
            self.launches.clear()
        with self.compiled.lock:
            made = self.launches[key] = self._made(slots, key[1])
        if made is not None:
            log_launch.debug(
                "%s: grid %s, block %s, %d bytes of shared memory",
                self.compiled.loop.summary.name, made.grid, made.block, made.shared,
            )  # fmt: skip
        return made

    def _made(self, slots: bytes, astray: int) -> Launch | None:
        facts, machine = self.facts, machine_of(self.device)
        aligned = frozenset(pair for k, pair in enumerate(self.asked) if not astray >> k & 1)
        sizes = sizes_of(facts, self.compiled.loop.summary.types, slots, aligned)
        kinds = facts.nest.kinds
        if 0 in sizes.trips and not kinds:
            return None
        most = 2 * THREADS
        while True:
            choice = self._chosen(sizes, machine, most)
            threads = math.prod(choice.block)
            module = self.compiled.module(choice.schedule, self.device)
            function = module.functions[facts.symbol]
            fitting = self._fitting(choice.schedule, function, threads)
            if fitting >= min(most, threads):
                break
            most = fitting
        self.choice = choice
        if build.log_schedule.isEnabledFor(logging.DEBUG):
            self._tell(choice, sizes, machine, most)
        if not as_asked(facts, choice):
            log_launch.debug(
                "%s: these sizes do not allow `%s`: by `%s`", self.compiled.loop.summary.name,
                self.compiled.job.asked, show(choice.schedule),
            )  # fmt: skip
        ending = sizes.divisors if only(choice.schedule, FastDivision) else b""
        launch = Launch(function, choice.grid, choice.block, choice.shared, ending)
        _, *later = module.functions.values()
        if (left := left_by(choice.schedule, choice.grid, choice.block, sizes)) is not None:
            launch.blocks, launch.words = left.parts, left.words
            dims = [(choice.grid, choice.block)] * (len(later) - 1) + [left.last]
            launch.then = tuple(
                Launch(f, *d, 0, follows=True) for f, d in zip(later, dims, strict=True)
            )
        return launch

    def _chosen(self, sizes: Sizes, machine: GpuMachine, most: int) -> Choice:
        return choose(self.facts.candidates, sizes, machine, most)

    def _tell(self, choice: Choice, sizes: Sizes, machine: GpuMachine, most: int) -> None:
        """Logs what is run, and of the candidates before it what does not hold."""
        name, log = self.compiled.loop.summary.name, build.log_schedule
        log.debug("%s: by `%s`, grid %s, block %s", name, show(choice.schedule), choice.grid,
                  choice.block)  # fmt: skip
        for text in self.facts.candidates[: choice.place]:
            tried = candidate(text)
            found = [(g, *judged(g, tried.schedule, sizes, machine, most)) for g in tried.guards]
            told = "; ".join(f"not {show((g,))}: {why}" for g, holds, why in found if not holds)
            log.debug("%s: not by `%s`: %s", name, show(tried.schedule), told)

    def _fitting(self, schedule: Schedule, function: Any, threads: int) -> int:
        """The threads of a block that leave most room for others, for the registers they take."""
        alone = not any(only(schedule, kind) for kind in (Cooperate, BlockDim, Stage))
        if threads == 1 or not alone or self.facts.nest.kinds or not function:
            return threads
        return roomier(threads, cuda.attributes(function.value)["registers"])


_ALONE = _TAIL.pack(0, 1)


@functools.cache
def machine_of(device: int) -> GpuMachine:
    """A device, as schedules see it. Sums must not depend on it."""
    if not torch.cuda.is_available():
        return GpuMachine()
    properties = torch.cuda.get_device_properties(device)
    return GpuMachine(
        properties.multi_processor_count, properties.L2_cache_size,
        clusters=properties.major >= 9, copies=properties.major >= 8,
    )  # fmt: skip
