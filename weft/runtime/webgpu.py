"""WebGPU: loops as WGSL, run by the package ``wgpu`` on Vulkan, Metal, DirectX 12 or OpenGL.

Tensors are in the memory of the CPU. A call copies what the loop reads or changes into buffers of
the device, runs it, and copies back what it changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import math
import struct
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

import torch

from weft import timing
from weft.codegen.interface import Slot
from weft.codegen.shading import FIRST, INT64, MOST_TURNS, STOPPED, Form, ShaderFacts, Stage
from weft.errors import KernelValueError
from weft.ir.core import Function
from weft.lang.resident import BOTH, DEVICE, HOST, Home
from weft.runtime import build, native
from weft.runtime.arguments import sizes_of
from weft.runtime.cache import from_json, to_json
from weft.runtime.webgpu_device import Device, WebGpuError, device
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
_ERROR_WORDS = 18
_MOST_SIDE = 65535  # blocks along a side of a grid
_MOST_BINDINGS, _MOST_LAUNCHES = 64, 1024  # of a call that are kept


@frozen
class Wanted:
    """Which form runs. ``private``: elements of the array that each block has a copy of."""

    schedule: Schedule
    threads: Dims
    private: int


# What no size of a call says: how far schedules go is that of a large GPU, on any device, so that
# they all compute the same.
_NARROW = GpuMachine(clusters=False, lanes=False, blocks=(_MOST_SIDE, _MOST_SIDE, _MOST_SIDE))
# Most grids fold: what does not fit along x is along z.
_MACHINE = replace(_NARROW, blocks=(2**31 - 1, _MOST_SIDE, _MOST_SIDE))


@mutable
class Compiled(build.Made):
    """A loop as shaders: by each schedule, for blocks of some threads and with so many elements of
    a block's own copy of an array. What ``forms`` has None for, this device does not run."""

    facts: ShaderFacts
    language: WebGpu
    on: Device
    optimized: Function | None = None
    forms: dict[Wanted, Form | None] = field(default_factory=dict)
    pipelines: dict[tuple[Wanted, int], Any] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.facts.slots

    def bound(
        self, tensors: Sequence[torch.Tensor], error: build.Failure, *, brief: bool
    ) -> tuple[Callable[[bytes], object], native.Direct | None]:
        if self.facts.prints:
            name = self.loop.summary.name
            warnings.warn(f"`{name}` prints, which a shader cannot: nothing is shown", stacklevel=2)
        return Call(self, self.on, error), None

    def ran(self, call: Any) -> tuple[str, bool]:
        if call.choice is None:  # there was nothing to do
            return "", True
        return f"{show(call.choice.schedule)}, workgroups of {call.choice.block}", True

    def chosen(self, sizes: Sizes) -> tuple[Choice, Wanted, Form]:
        """The first candidate whose guards hold, and that this device runs; the last one where
        none is."""
        most = self.on.limits["max-compute-invocations-per-workgroup"]
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
                self.optimized = pipeline.optimize(job.loop.function, job.options)
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
        missing = [f for f in stage.features if f not in on.features]
        if missing:
            what = "integers" if missing[0] == INT64 else "floats"
            raise WebGpuError(
                f"the loop of `{name}` computes with {what} of 64 bits, which {on.name} does not "
                "have: pass tensors and numbers of 32 bits (weft.i32, weft.f32)"
            )
        most = on.limits["max-storage-buffers-per-shader-stage"]
        count = sum(buffer != "params" for buffer in stage.buffers)
        if count > most:
            raise WebGpuError(
                f"the loop of `{name}` needs {count} buffers, and {on.name} has at "
                f"most {most} in a shader: use fewer tensors"
            )
        most = on.limits["max-compute-invocations-per-workgroup"]
        if math.prod(threads) > most:
            raise WebGpuError(
                f"the loop of `{name}` runs in blocks of {math.prod(threads)} threads, and "
                f"{on.name} has blocks of {most} at most: run it on a CPU"
            )
        return on.pipeline(stage, name, threads, free=free)


class WebGpu:
    """Shaders in ``dialect`` for what ``device`` gives."""

    version = 6

    def __init__(
        self, name: str = "webgpu", dialect: str = "wgsl", device: Callable[[], Device] = device
    ) -> None:
        self.name, self.dialect, self.device = name, dialect, device

    def machine(self) -> str:
        return "watched" * self.device().ends_loops

    def from_disk(self, job: build.Job, header: dict[str, Any], code: bytes) -> Compiled | None:
        try:
            return Compiled(job, from_json(ShaderFacts, header), self, self.device())
        except ValueError:
            return None

    def compile(self, job: build.Job) -> Compiled:
        # Passes and code generation are not imported where the cache has the code.
        from weft import compiler as pipeline  # a door of the compiler

        function, on = job.loop.function, self.device()
        if not job.noalias:
            raise KernelValueError(
                "arguments share memory, and a shader has a buffer for each", function.span,
                "pass a copy (x.clone())",
            )  # fmt: skip
        optimized = pipeline.optimize(function, job.options)
        facts = pipeline.shader_facts(optimized, self.dialect)
        if job.cache is not None:
            job.cache.store(job.key, to_json(facts), b"")
        return Compiled(job, facts, self, on, optimized)


WEBGPU = WebGpu()


@frozen
class Launch:
    """What runs for one set of sizes: the ``grids`` of its stages, and what they leave: so many
    ``words``, in ``parts``."""

    wanted: Wanted
    form: Form
    grids: tuple[Dims, ...]
    arrays: tuple[tuple[str, int, int, int], ...]  # buffer, slot, bytes, position
    parts: int
    words: int


@frozen
class Binding:
    """A launch with its buffers: ``own`` ones besides those of tensors. ``checked``: it has an
    error record. ``parts``: those in which blocks leave something."""

    parts: int
    stages: tuple[tuple[Any, Any, tuple[int, int, int]], ...]
    own: tuple[Any, ...]
    checked: bool


@frozen
class Ready:
    """A call all of whose tensors are resident: their homes, and whether it writes to them."""

    binding: Binding
    homes: tuple[tuple[weakref.ref[Home], bool], ...]
    epoch: int


class Call:
    """Calls a loop: ``call(slots)`` with the packed argument block."""

    def __init__(self, compiled: Compiled, on: Device, error: build.Failure) -> None:
        """``error`` words a failed check."""
        self.compiled, self.facts, self.on, self.error = compiled, compiled.facts, on, error
        self.first = next((k for k, s in enumerate(self.facts.slots) if s.kind != "pointer"), 0)
        kinds = [slot.kind for slot in self.facts.slots]
        # Numbers that decide nothing but what is computed: each call brings them along.
        deciding = {int(step[1]) for step in self.facts.nest.program if step[0] == "slot"}
        free = [k for k, kind in enumerate(kinds)
                if kind == "float" or (kind == "int" and k not in deciding)]  # fmt: skip
        self.free = bool(free)
        ends = [-1, *free, len(kinds)]
        self.fixed = [slice(8 * (a + 1), 8 * b) for a, b in pairwise(ends) if a + 1 < b]
        self.choice: Choice | None = None  # of the last new sizes and numbers
        self.sizes = [k for k, kind in enumerate(kinds) if kind != "pointer" and k not in free]
        self.launches: dict[bytes, Launch | None] = {}
        self.bindings: dict[tuple[Any, ...], Binding] = {}
        self.ready: dict[bytes, Ready] = {}
        self.epoch = on.epoch

    def __call__(self, slots: bytes) -> None:
        on = self.on
        with on.lock:
            ready = self.ready.get(self._fixed(slots))
            if ready is None or ready.epoch != on.epoch or not self._again(ready, slots):
                self._anew(slots)

    def _fixed(self, slots: bytes) -> bytes:
        """Words that buffers and grids depend on."""
        return b"".join([slots[part] for part in self.fixed]) if self.free else slots

    def _again(self, ready: Ready, slots: bytes) -> bool:
        """Runs what ran before, where all elements are still on the device."""
        written: list[Home] = []
        for reference, writes in ready.homes:
            home = reference()
            if home is None or home.newest is HOST or not home.alone:
                return False
            if writes:
                written.append(home)
        self._run(ready.binding, written, slots)
        if ready.binding.checked:
            self.on.later(self.record, self._check)
        return True

    def _run(self, binding: Binding, written: Sequence[Home], slots: bytes) -> None:
        self.on.run(binding.stages, self._words(slots, binding.parts) if self.free else b"")
        for home in written:
            home.newest = DEVICE

    def _anew(self, slots: bytes) -> None:
        key = self._fixed(slots)[8 * self.first :]
        sizes = b"".join([slots[8 * k : 8 * k + 8] for k in self.sizes])
        if sizes not in self.launches:
            if len(self.launches) >= _MOST_LAUNCHES:
                self.launches.clear()
            self.launches[sizes] = self._launch(slots)
        launch = self.launches[sizes]
        if launch is None:
            return
        on, form = self.on, launch.form
        buffers: dict[str, Any] = {}
        homes: dict[str, Home] = {}
        try:
            moved = self._uploaded(launch, form, slots, buffers, homes)
            binding = self._binding(launch, key, slots, {**buffers, **_buffers(homes)})
            changed = {f"a{k}" for k in self.facts.changed}
            self._run(binding, [home for name, home in homes.items() if name in changed],
                      slots)  # fmt: skip
            back = self._downloaded(launch, slots, buffers)
            if log_launch.isEnabledFor(logging.DEBUG):
                log_launch.debug(
                    "%s: on %s, grid %s of %s threads, %d bytes copied there, %d back",
                    self.compiled.loop.summary.name, on.name, launch.grids[0], form.threads,
                    moved, back,
                )  # fmt: skip
            if binding.checked and (back or not homes or self.compiled.job.options.debug):
                self._check(self.record)
            elif binding.checked:
                on.later(self.record, self._check)
        finally:
            for buffer in buffers.values():
                on.give_back(buffer)
        if not buffers and homes:
            if len(self.ready) >= _MOST_BINDINGS:
                self.ready.clear()
            self.ready[self._fixed(slots)] = Ready(
                binding, tuple((weakref.ref(h), n in changed) for n, h in homes.items()), on.epoch
            )

    @functools.cached_property
    def record(self) -> Any:
        """The error record, 0 until a check fails."""
        made = self.on.buffer(4 * _ERROR_WORDS)
        self.on.upload(made, bytes(4 * _ERROR_WORDS))
        return made

    def _launch(self, slots: bytes) -> Launch | None:
        facts = self.facts
        # A buffer begins at a multiple of any vector.
        aligned = frozenset((g.array, g.bytes) for g in alignments(facts.candidates))
        sizes = sizes_of(facts, self.compiled.loop.summary.types, slots, aligned)
        if 0 in sizes.trips and not facts.nest.kinds:
            return None
        choice, wanted, form = self.compiled.chosen(sizes)
        self.choice = choice
        log.debug("%s: by `%s`, grid %s, block %s", self.compiled.loop.summary.name,
                  show(choice.schedule), choice.grid, choice.block)  # fmt: skip
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
        folded = tuple(found for g in grids if (found := _folded(g, form)) is not None)
        assert len(folded) == len(grids)
        return Launch(wanted, form, folded, tuple(arrays), parts, words)

    def _uploaded(
        self, launch: Launch, form: Form, slots: bytes, buffers: dict[str, Any],
        homes: dict[str, Home],
    ) -> int:  # fmt: skip
        """Finds the homes of arrays, and has ``buffers`` for the others. Gives the bytes that were
        copied."""
        on, moved = self.on, 0
        used = {name for stage in form.stages for name in stage.buffers}
        for name, slot, size, _ in launch.arrays:
            if name not in used:
                continue
            (address,) = struct.unpack_from("<Q", slots, 8 * slot)
            home = Home.by_address.get(address) if size else None
            if home is not None and self._at_home(home):
                homes[name] = home
                if home.newest is HOST:
                    on.upload(home.buffer, _memory(home.address, home.bytes))
                    home.newest = BOTH
                    moved += home.bytes
                continue
            buffers[name] = on.buffer(max(size, 4))
            if size:
                on.upload(buffers[name], _memory(address, size))
                moved += size
        return moved

    def _at_home(self, home: Home) -> bool:
        """Whether the tensor's elements may be on this device alone."""
        if not home.alone or home.on not in (None, self.on):
            home.exposed()
            return False
        if home.buffer is None:
            home.placed(self.on, self.on.buffer(max(home.bytes, 4)))
        return True

    def _binding(
        self, launch: Launch, key: bytes, slots: bytes, buffers: dict[str, Any]
    ) -> Binding:
        on = self.on
        if self.epoch != on.epoch or len(self.bindings) >= _MOST_BINDINGS:
            for old in self.bindings.values():
                for buffer in old.own:
                    on.give_back(buffer)
            self.bindings.clear()
            self.ready.clear()
            self.epoch = on.epoch
        place = (key, *((name, id(buffer)) for name, buffer in buffers.items()))
        found = self.bindings.get(place)
        if found is None:
            found = self.bindings[place] = self._bound(launch, slots, buffers)
        return found

    def _bound(self, launch: Launch, slots: bytes, buffers: dict[str, Any]) -> Binding:
        on, form = self.on, launch.form
        used = {name for stage in form.stages for name in stage.buffers}
        words = self._words(slots, launch.parts)
        own: dict[str, Any] = {}
        if not self.free:
            own["params"] = on.buffer(len(words))
            on.upload(own["params"], words)
        checked = "error" in used
        shared = {"error": self.record} if checked else {}
        if "partials" in used:
            own["partials"] = on.buffer(max(launch.words, 1) * form.word)
        stages = []
        for k, (stage, grid) in enumerate(zip(form.stages, launch.grids, strict=False)):
            pipeline = self.compiled.pipeline(launch.wanted, k, free=self.free)
            given = {**buffers, **own, **shared}
            bound = [given[n] for n in stage.buffers if n in given]
            free = len(words) if self.free else 0
            stages.append((pipeline, on.group(pipeline, bound, free), grid))
        return Binding(launch.parts, tuple(stages), tuple(own.values()), checked)

    def _words(self, slots: bytes, blocks: int) -> bytes:
        """What "params" has."""
        singles = bytearray(4 * len(self.facts.slots))
        for k, slot in enumerate(self.facts.slots):
            if slot.kind == "float":
                (value,) = struct.unpack_from("<d", slots, 8 * k)
                struct.pack_into("<f", singles, 4 * k, ctypes.c_float(value).value)
        assert len(_SPECIAL) == 4 * FIRST
        return _SPECIAL + slots + struct.pack("<I", blocks) + bytes(singles)

    def _downloaded(self, launch: Launch, slots: bytes, buffers: dict[str, Any]) -> int:
        back = 0
        for name, slot, size, position in launch.arrays:
            if position in self.facts.changed and size and name in buffers:
                (address,) = struct.unpack_from("<Q", slots, 8 * slot)
                data = self.on.read(buffers[name], size)
                ctypes.memmove(address, (ctypes.c_char * size).from_buffer_copy(data), size)
                back += size
        return back

    def _check(self, buffer: Any) -> None:
        """Looks at an error record. Raises what it says."""
        data = self.on.read(buffer, 4 * _ERROR_WORDS)
        failed, number, *words = struct.unpack(f"<{_ERROR_WORDS}I", data)
        if not failed:
            return
        self.on.upload(buffer, bytes(4 * _ERROR_WORDS))
        if number == STOPPED:
            raise WebGpuError(
                f"`{self.compiled.loop.summary.name}` has so many turns of loops in an iteration "
                f"that {self.on.name} ends them too early: at most {MOST_TURNS:,} in all. Share "
                "the work among more iterations of the parallel loop, or run it on a CPU"
            )
        check = self.facts.checks[number - 1]
        values = [_value(kind, word) for kind, word in zip(check.values, words, strict=False)]
        raise self.error(check, values)


def _folded(grid: Dims, form: Form) -> Dims | None:
    """The grid that is dispatched for ``grid``; None where WebGPU has none."""
    x, y, z = grid
    layers = -(-x // _MOST_SIDE)
    if layers == 1 or (form.folds and z == 1 and layers <= _MOST_SIDE):
        return -(-x // layers), y, z * layers
    return None


def _buffers(homes: dict[str, Home]) -> dict[str, Any]:
    return {name: home.buffer for name, home in homes.items()}


def _value(kind: str, word: int) -> int:
    """A word of an error record, as other devices have it."""
    if kind == "float":
        (single,) = struct.unpack("<f", struct.pack("<I", word))
        (found,) = struct.unpack("<q", struct.pack("<d", single))
        return int(found)
    return word - (1 << 32) if kind == "int" and word >> 31 else word


def _memory(address: int, size: int) -> Any:
    """What is there, as many bytes as whole words have."""
    whole = (ctypes.c_char * size).from_address(address)
    return whole if size % 4 == 0 else bytes(whole) + bytes(-size % 4)


def _bytes(array: Array) -> int:
    return 0 if 0 in array.sizes else (array.reach + 1) * array.bytes


def _elements(choice: Choice, sizes: Sizes) -> int:
    """Of the array that each block has a copy of: the next power of two, so that there are few
    forms."""
    own = only(choice.schedule, Privatize)
    return 0 if own is None else 1 << max(sizes.count(own.array) - 1, 0).bit_length()
