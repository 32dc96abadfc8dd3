"""What the runtimes of shaders have in common: which form of a loop runs for the sizes of a call,
its text, and what stands beside its tensors: numbers, and the record of a check that failed."""

from __future__ import annotations

import abc
import contextlib
import ctypes
import functools
import hashlib
import logging
import math
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Protocol

import torch

from weft import timing
from weft.codegen.interface import Slot
from weft.codegen.shading import FIRST, INT64, MOST_TURNS, STOPPED, Form, ShaderFacts, Stage
from weft.errors import KernelValueError, WeftError
from weft.ir.core import Function
from weft.runtime import build, native
from weft.runtime.arguments import sizes_of
from weft.runtime.cache import from_json, to_json
from weft.schedule.choose import Choice, alignments, choose
from weft.schedule.grid import THREADS, Dims, left_by
from weft.schedule.language import Privatize, Schedule, brief, only, show
from weft.schedule.machine import GpuMachine
from weft.schedule.sizes import Array, Sizes
from weft.settings import rarely_collected
from weft.values import frozen, mutable

log = logging.getLogger("weft.schedule")
log_launch = logging.getLogger("weft.launch")

_SPECIAL = struct.pack("<ffff", math.inf, -math.inf, math.nan, 0.0)
ERROR_WORDS = 18
_MOST_SIDE = 65535  # blocks along a side of a grid


@frozen
class Wanted:
    """Which form runs. ``private``: elements of the array that each block has a copy of."""

    schedule: Schedule
    threads: Dims
    private: int


# What no size of a call says: how far schedules go is that of a large GPU, on any device, so that
# they all compute the same.
_NARROW = GpuMachine(
    clusters=False, copies=False, lanes=False, blocks=(_MOST_SIDE, _MOST_SIDE, _MOST_SIDE)
)
# Most grids fold: what does not fit along x is along z.
_MACHINE = replace(_NARROW, blocks=(2**31 - 1, _MOST_SIDE, _MOST_SIDE))


class Device(Protocol):
    """A device, or what the tests have in its place. ``features`` and ``limits`` are named as
    WebGPU names them. ``ends_loops``: see ``MOST_TURNS``."""

    name: str
    features: frozenset[str]
    limits: dict[str, int]
    ends_loops: bool

    def pipeline(self, stage: Stage, name: str, threads: Dims, *, free: bool) -> Any:
        """A module of the loop ``name``, compiled. ``free``: each dispatch brings its numbers."""
        ...


@mutable
class Compiled(build.Made):
    """A loop as shaders: by each schedule, for blocks of some threads and with so many elements of
    a block's own copy of an array. What ``forms`` has None for, this device does not run."""

    facts: ShaderFacts
    language: Language
    on: Device
    optimized: Function | None = None
    forms: dict[Wanted, Form | None] = field(default_factory=dict)
    pipelines: dict[tuple[Wanted, int], Any] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.facts.slots

    def bound(
        self, tensors: Sequence[torch.Tensor], error: build.Failure, *, brief: bool
    ) -> tuple[Callable[..., object], native.Direct | None]:
        if self.facts.prints:
            name = self.loop.summary.name
            warnings.warn(f"`{name}` prints, which a shader cannot: nothing is shown", stacklevel=2)
        return self.language.call(self, error), None

    def ran(self, call: Any) -> tuple[str, bool]:
        if call.choice is None:  # there was nothing to do
            return "", True
        return f"{show(call.choice.schedule)}, workgroups of {call.choice.block}", True

    def chosen(self, sizes: Sizes, most: int | None = None) -> tuple[Choice, Wanted, Form]:
        """The first candidate whose guards hold, and that this device runs, in blocks of at most
        ``most`` threads where that is less than it has; the last one where none is."""
        most = most or self.on.limits["max-compute-invocations-per-workgroup"]
        left, machine = list(self.facts.candidates), _MACHINE
        while True:
            choice = choose(left, sizes, machine, min(most, 2 * THREADS))
            wanted = Wanted(choice.schedule, choice.block, _elements(choice, sizes))
            last = choice.place + 1 == len(left)
            if math.prod(choice.block) <= most or last:
                form = self.form(wanted)
                if form is not None and _folded(choice.grid, form) is not None:
                    return choice, wanted, form
                if form is not None and machine is not _NARROW:
                    machine = _NARROW
                    continue
            assert not last
            del left[: choice.place + 1]

    def form(self, wanted: Wanted) -> Form | None:
        """The text of a form: from memory, the disk cache, or compiled; None where this device does
        not run it."""
        if wanted not in self.forms:
            self.forms[wanted] = self._fitting(self._form(wanted), wanted)
        return self.forms[wanted]

    def _form(self, wanted: Wanted) -> Form | None:
        job, cache, language = self.job, self.job.cache, self.language
        what = f"{show(wanted.schedule)} {wanted.threads} {wanted.private}"
        key = hashlib.sha256(f"{job.key} {what}".encode()).hexdigest()
        entry = cache.load(key) if cache is not None else None
        if entry is not None:
            with contextlib.suppress(ValueError):
                return from_json(Form, entry[0]["form"]) if entry[0]["form"] else None
        # Passes and code generation are not imported where the cache has the code.
        from weft import compiler as pipeline  # a door of the compiler

        with rarely_collected, timing.record() as recording:
            if self.optimized is None:
                self.optimized = pipeline.optimize(
                    job.loop.function, job.options, noalias=job.noalias
                )
            made = pipeline.shader_form(
                self.optimized, wanted.schedule, wanted.threads, wanted.private,
                language.dialect, watch=self.on.ends_loops,
            )  # fmt: skip
        build.log_stages(self.loop.summary.name, brief(wanted.schedule), recording)
        if cache is not None:
            cache.store(key, {"form": None if made is None else to_json(made)}, b"")
        return made

    def _fitting(self, form: Form | None, wanted: Wanted) -> Form | None:
        """``form`` if the device has so much memory for a block. The last candidate is none that
        another follows."""
        most = self.on.limits.get("max-compute-workgroup-storage-size", (form and form.shared) or 0)
        return form if form is None or form.shared <= most else None

    def pipeline(self, wanted: Wanted, stage: int, *, free: bool) -> Any:
        key = wanted, stage
        found = self.pipelines.get(key)
        if found is None:
            form = self.form(wanted)
            assert form is not None
            with rarely_collected, timing.stage("load"):
                found = self.pipelines[key] = self._made(form.stages[stage], form.threads, free)
        return found

    def _made(self, stage: Stage, threads: Dims, free: bool) -> Any:
        on, name = self.on, self.loop.summary.name
        for feature, line in zip(stage.features, stage.lines, strict=True):
            if feature in on.features:
                continue
            what = "integers" if feature == INT64 else "floats"
            if feature == INT64 and "philox_i64(" in stage.text:
                raise self.language.error(
                    f"the loop of `{name}` draws random numbers (`{line}`), which takes integers "
                    f"of 64 bits, and {on.name} has none: pass a tensor of them (torch.rand)"
                )
            raise self.language.error(
                f"the loop of `{name}` computes with {what} of 64 bits{f' (`{line}`)' * bool(line)}"
                f", which {on.name} does not have: pass tensors and numbers of 32 bits (weft.i32, "
                "weft.f32)"
            )
        most = on.limits["max-storage-buffers-per-shader-stage"]
        count = sum(buffer != "params" for buffer in stage.buffers)
        if count > most:
            raise self.language.error(
                f"the loop of `{name}` needs {count} buffers, and {on.name} has at "
                f"most {most} in a shader: use fewer tensors"
            )
        most = on.limits["max-compute-invocations-per-workgroup"]
        if math.prod(threads) > most:
            raise self.language.error(
                f"the loop of `{name}` runs in blocks of {math.prod(threads)} threads, and "
                f"{on.name} has blocks of {most} at most: write a smaller block_dim, or none"
            )
        return on.pipeline(stage, name, threads, free=free)

    def launch(self, slots: bytes) -> Launch | None:
        """What runs for the sizes and numbers in an argument block; None where there is nothing to
        do."""
        facts, name = self.facts, self.loop.summary.name
        # A buffer begins at a multiple of any vector.
        aligned = frozenset((g.array, g.bytes) for g in alignments(facts.candidates))
        sizes = sizes_of(facts, self.loop.summary.types, slots, aligned)
        if 0 in sizes.trips and not facts.nest.kinds:
            return None
        choice, wanted, form = self.chosen(sizes)
        log.debug("%s: by `%s`, grid %s, block %s", name, show(choice.schedule), choice.grid,
                  choice.block)  # fmt: skip
        arrays = []
        for k, slot in enumerate(facts.slots):
            if slot.kind == "pointer" and slot.arg in facts.copied:
                array = sizes.arrays[facts.nest.arrays[slot.arg]]
                arrays.append((f"a{slot.arg}", k, _bytes(array), slot.arg))
        left = left_by(choice.schedule, choice.grid, choice.block, sizes)
        if left is None:
            grids, parts, words = (choice.grid,), 1, 0
        else:
            grids = (*[choice.grid] * (len(form.stages) - 1), left.last[0])
            parts, words = left.parts, left.words
        found = tuple(g for grid in grids if (g := _folded(grid, form)) is not None)
        assert len(found) == len(grids)
        return Launch(choice, wanted, form, found, tuple(arrays), parts, words)

    def words(self, slots: bytes, blocks: int, leads: bytes = b"") -> bytes:
        """What "params" has. ``leads``: what it has for pointers, if that is not 0."""
        singles = bytearray(4 * len(self.facts.slots))
        for k in self._floats:
            (value,) = struct.unpack_from("<d", slots, 8 * k)
            struct.pack_into("<f", singles, 4 * k, ctypes.c_float(value).value)
        assert len(_SPECIAL) == 4 * FIRST
        pointers = 8 * self.pointers
        numbers = (leads or bytes(pointers)) + slots[pointers:]
        return _SPECIAL + numbers + struct.pack("<I", blocks) + bytes(singles)

    @functools.cached_property
    def _floats(self) -> list[int]:
        """The words of the argument block that are floats."""
        return [k for k, slot in enumerate(self.facts.slots) if slot.kind == "float"]

    @functools.cached_property
    def pointers(self) -> int:
        """How many there are in the argument block: they come first."""
        return sum(slot.kind == "pointer" for slot in self.facts.slots)

    def deciding(self) -> list[int]:
        """The words of the argument block that decide how the loop runs: sizes, and some numbers;
        others decide nothing but what is computed."""
        used = {int(step[1]) for step in self.facts.nest.program if step[0] == "slot"}
        kinds = [slot.kind for slot in self.facts.slots]
        free = {k for k, kind in enumerate(kinds)
                if kind == "float" or (kind == "int" and k not in used)}  # fmt: skip
        return [k for k, kind in enumerate(kinds) if kind != "pointer" and k not in free]

    def failed(self, record: Sequence[int], error: build.Failure) -> Exception | None:
        """What an error record, of words without a sign, says; None where no check failed."""
        failed, number, *words = record
        if not failed:
            return None
        if number == STOPPED:
            return self.language.error(
                f"`{self.loop.summary.name}` has so many turns of loops in an iteration "
                f"that {self.on.name} ends them too early: at most {MOST_TURNS:,} in all. Share "
                "the work among more iterations of the parallel loop, or run it on a CPU"
            )
        check = self.facts.checks[number - 1]
        values = [_value(kind, word) for kind, word in zip(check.values, words, strict=False)]
        return error(check, values)


class Language(abc.ABC):
    """A ``build.Backend``: shaders in ``dialect`` for what ``device`` gives. ``error`` is what it
    raises where that refuses something."""

    version: ClassVar[int]
    error: ClassVar[type[WeftError]]
    kind: ClassVar[type[Compiled]] = Compiled
    shares: ClassVar[bool] = False  # memory among buffers

    def __init__(self, name: str, dialect: str, device: Callable[[], Any]) -> None:
        self.name, self.dialect, self.device = name, dialect, device

    @abc.abstractmethod
    def call(self, compiled: Any, error: build.Failure) -> Callable[..., object]:
        """What launches ``compiled``. ``error`` words a failed check."""

    def machine(self) -> str:
        return "watched" * self.device().ends_loops

    def from_disk(self, job: build.Job, header: dict[str, Any], code: bytes) -> Compiled | None:
        try:
            return self.kind(job, from_json(ShaderFacts, header), self, self.device())
        except ValueError:
            return None

    def compile(self, job: build.Job) -> Compiled:
        # Passes and code generation are not imported where the cache has the code.
        from weft import compiler as pipeline  # a door of the compiler

        function, on = job.loop.function, self.device()
        if not (job.noalias or self.shares):
            raise KernelValueError(
                "arguments share memory, and a shader has a buffer for each", function.span,
                "pass a copy (x.clone())",
            )  # fmt: skip
        optimized = pipeline.optimize(function, job.options, noalias=job.noalias)
        facts = pipeline.shader_facts(optimized, self.dialect)
        if job.cache is not None:
            job.cache.store(job.key, to_json(facts), b"")
        return self.kind(job, facts, self, on, optimized)


@frozen
class Launch:
    """What runs for one set of sizes: the ``grids`` of its stages, and what they leave: so many
    ``words``, in ``parts``."""

    choice: Choice
    wanted: Wanted
    form: Form
    grids: tuple[Dims, ...]
    arrays: tuple[tuple[str, int, int, int], ...]  # buffer, slot, bytes, position
    parts: int
    words: int


def _folded(grid: Dims, form: Form) -> Dims | None:
    """The grid that is dispatched for ``grid``; None where WebGPU has none."""
    x, y, z = grid
    layers = -(-x // _MOST_SIDE)
    if layers == 1 or (form.folds and z == 1 and layers <= _MOST_SIDE):
        return -(-x // layers), y, z * layers
    return None


def _value(kind: str, word: int) -> int:
    """A word of an error record, as other devices have it."""
    if kind == "float":
        (single,) = struct.unpack("<f", struct.pack("<I", word))
        (found,) = struct.unpack("<q", struct.pack("<d", single))
        return int(found)
    return word - (1 << 32) if kind == "int" and word >> 31 else word


def _bytes(array: Array) -> int:
    return 0 if 0 in array.sizes else (array.reach + 1) * array.bytes


def _elements(choice: Choice, sizes: Sizes) -> int:
    """Of the array that each block has a copy of: the next power of two, so that there are few
    forms."""
    own = only(choice.schedule, Privatize)
    return 0 if own is None else 1 << max(sizes.count(own.array) - 1, 0).bit_length()
