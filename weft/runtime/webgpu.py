"""WebGPU: loops as WGSL, run by the package ``wgpu`` on Vulkan, Metal, DirectX 12 or OpenGL.

Tensors are in the memory of the CPU. A call copies what the loop reads or changes into buffers of
the device, runs it, and copies back what it changed.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import struct
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft import timing
from weft.codegen.interface import Slot
from weft.codegen.shading import FIRST, INT64, MOST_TURNS, STOPPED, Form, ShaderCode, Stage
from weft.errors import KernelValueError
from weft.lang.resident import BOTH, DEVICE, HOST, Home
from weft.runtime import build, native
from weft.runtime.arguments import sizes_of
from weft.runtime.cache import from_json, to_json
from weft.runtime.webgpu_device import Device, WebGpuError, device
from weft.schedule.sizes import Array, Sizes
from weft.schedule.workgroup import MOST_BLOCKS
from weft.values import frozen, mutable

log_launch = logging.getLogger("weft.launch")

_SPECIAL = struct.pack("<ffff", math.inf, -math.inf, math.nan, 0.0)
_ERROR_WORDS = 18
_MOST_SIDE = 65535  # blocks along a side of a grid
_MOST_BINDINGS, _MOST_LAUNCHES = 64, 1024  # of a call that are kept
_UNKNOWN = 256  # blocks, where the trip count is known on the device only


@mutable
class Compiled(build.Made):
    """A loop as shaders."""

    code: ShaderCode
    on: Device
    pipelines: dict[tuple[int, int], Any]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.code.slots

    def bound(
        self, tensors: Sequence[torch.Tensor], error: build.Failure, *, brief: bool
    ) -> tuple[Callable[[bytes], object], native.Direct | None]:
        if self.code.prints:
            name = self.loop.summary.name
            warnings.warn(f"`{name}` prints, which a shader cannot: nothing is shown", stacklevel=2)
        return Call(self, self.on, error), None

    def ran(self, call: Any) -> tuple[str, bool]:
        return "workgroups of " + " x ".join(map(str, self.code.threads)), True

    def pipeline(self, form: int, stage: int) -> Any:
        key = form, stage
        found = self.pipelines.get(key)
        if found is None:
            with timing.stage("load"):
                found = self.pipelines[key] = self._made(self.code.forms[form].stages[stage])
        return found

    def _made(self, stage: Stage) -> Any:
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
        most, threads = on.limits["max-compute-invocations-per-workgroup"], self.code.threads
        if math.prod(threads) > most:
            raise WebGpuError(
                f"the loop of `{name}` runs in blocks of {math.prod(threads)} threads, and "
                f"{on.name} has blocks of {most} at most: run it on a CPU"
            )
        return on.pipeline(stage, name, threads)


class WebGpu:
    """Shaders in ``dialect`` for what ``device`` gives."""

    version = 2

    def __init__(
        self, name: str = "webgpu", dialect: str = "wgsl", device: Callable[[], Device] = device
    ) -> None:
        self.name, self.dialect, self.device = name, dialect, device

    def machine(self) -> str:
        return "watched" * self.device().ends_loops

    def from_disk(self, job: build.Job, header: dict[str, Any], code: bytes) -> Compiled | None:
        try:
            return Compiled(job, from_json(ShaderCode, header), self.device(), {})
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
        code = pipeline.to_shader(function, job.options, self.dialect, watch=on.ends_loops)
        if job.cache is not None:
            job.cache.store(job.key, to_json(code), b"")
        return Compiled(job, code, on, {})


WEBGPU = WebGpu()


@frozen
class Launch:
    """What runs for one set of sizes: the number of the form, and its blocks along x, y and z."""

    form: int
    grid: tuple[int, int, int]
    arrays: tuple[tuple[str, int, int, int], ...]  # buffer, slot, bytes, position

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)


@frozen
class Binding:
    """A launch with its buffers: ``own`` ones besides those of tensors. ``checked``: it has an
    error record."""

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
        self.compiled, self.code, self.on, self.error = compiled, compiled.code, on, error
        self.first = next((k for k, s in enumerate(self.code.slots) if s.kind != "pointer"), 0)
        kinds = [slot.kind for slot in self.code.slots]
        self.sizes = [k for k, kind in enumerate(kinds) if kind not in ("pointer", "float")]
        self.launches: dict[bytes, Launch | None] = {}
        self.bindings: dict[tuple[Any, ...], Binding] = {}
        self.ready: dict[bytes, Ready] = {}
        self.epoch = on.epoch

    def __call__(self, slots: bytes) -> None:
        on = self.on
        with on.lock:
            ready = self.ready.get(slots)
            if ready is None or ready.epoch != on.epoch or not self._again(ready):
                self._anew(slots)

    def _again(self, ready: Ready) -> bool:
        """Runs what ran before, where all elements are still on the device."""
        written: list[Home] = []
        for reference, writes in ready.homes:
            home = reference()
            if home is None or home.newest is HOST or not home.alone:
                return False
            if writes:
                written.append(home)
        self._run(ready.binding, written)
        if ready.binding.checked:
            self.on.later(self.record, self._check)
        return True

    def _run(self, binding: Binding, written: Sequence[Home]) -> None:
        self.on.run(binding.stages)
        for home in written:
            home.newest = DEVICE

    def _anew(self, slots: bytes) -> None:
        key = slots[8 * self.first :]
        sizes = b"".join([slots[8 * k : 8 * k + 8] for k in self.sizes])
        if sizes not in self.launches:
            if len(self.launches) >= _MOST_LAUNCHES:
                self.launches.clear()
            self.launches[sizes] = self._launch(slots)
        launch = self.launches[sizes]
        if launch is None:
            return
        on, form = self.on, self.code.forms[launch.form]
        buffers: dict[str, Any] = {}
        homes: dict[str, Home] = {}
        try:
            moved = self._uploaded(launch, form, slots, buffers, homes)
            binding = self._binding(launch, form, key, {**buffers, **_buffers(homes)})
            changed = {f"a{k}" for k in self.code.changed}
            self._run(binding, [home for name, home in homes.items() if name in changed])
            back = self._downloaded(launch, slots, buffers)
            if log_launch.isEnabledFor(logging.DEBUG):
                log_launch.debug(
                    "%s: on %s, grid %s of %s threads, %d bytes copied there, %d back",
                    self.compiled.loop.summary.name, on.name, launch.grid, self.code.threads,
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
            self.ready[slots] = Ready(
                binding, tuple((weakref.ref(h), n in changed) for n, h in homes.items()), on.epoch
            )

    @functools.cached_property
    def record(self) -> Any:
        """The error record, 0 until a check fails."""
        made = self.on.buffer(4 * _ERROR_WORDS)
        self.on.upload(made, bytes(4 * _ERROR_WORDS))
        return made

    def _launch(self, slots: bytes) -> Launch | None:
        code = self.code
        sizes = sizes_of(code, self.compiled.loop.summary.types, slots, frozenset())
        if 0 in sizes.trips and not code.nest.kinds:
            return None
        form = 0 if sizes.fits_32 or len(code.forms) == 1 else 1
        arrays = []
        for k, slot in enumerate(code.slots):
            if slot.kind == "pointer" and slot.arg in code.copied:
                array = sizes.arrays[code.nest.arrays[slot.arg]]
                arrays.append((f"a{slot.arg}", k, _bytes(array), slot.arg))
        return Launch(form, _grid(code, sizes), tuple(arrays))

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

    def _binding(self, launch: Launch, form: Form, key: bytes, buffers: dict[str, Any]) -> Binding:
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
            found = self.bindings[place] = self._bound(launch, form, key, buffers)
        return found

    def _bound(self, launch: Launch, form: Form, key: bytes, buffers: dict[str, Any]) -> Binding:
        on = self.on
        used = {name for stage in form.stages for name in stage.buffers}
        words = self._words(bytes(8 * self.first) + key, launch.blocks)
        own = {"params": on.buffer(len(words))}
        on.upload(own["params"], words)
        checked = "error" in used
        shared = {"error": self.record} if checked else {}
        if "partials" in used:
            own["partials"] = on.buffer(launch.blocks * len(self.code.nest.kinds) * form.word)
        grids = (launch.grid, (1, 1, 1))
        stages = []
        for k, stage in enumerate(form.stages[: 1 if launch.blocks == 1 else 2]):
            pipeline = self.compiled.pipeline(launch.form, k)
            given = {**buffers, **own, **shared}
            bound = [given[n] for n in stage.buffers]
            stages.append((pipeline, on.group(pipeline, bound), grids[k]))
        return Binding(tuple(stages), tuple(own.values()), checked)

    def _words(self, slots: bytes, blocks: int) -> bytes:
        """What "params" has."""
        singles = bytearray(4 * len(self.code.slots))
        for k, slot in enumerate(self.code.slots):
            if slot.kind == "float":
                (value,) = struct.unpack_from("<d", slots, 8 * k)
                struct.pack_into("<f", singles, 4 * k, ctypes.c_float(value).value)
        assert len(_SPECIAL) == 4 * FIRST
        return _SPECIAL + slots + struct.pack("<I", blocks) + bytes(singles)

    def _downloaded(self, launch: Launch, slots: bytes, buffers: dict[str, Any]) -> int:
        back = 0
        for name, slot, size, position in launch.arrays:
            if position in self.code.changed and size and name in buffers:
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
        check = self.code.checks[number - 1]
        values = [_value(kind, word) for kind, word in zip(check.values, words, strict=False)]
        raise self.error(check, values)


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


def _grid(code: ShaderCode, sizes: Sizes) -> tuple[int, int, int]:
    """Blocks along x, y and z: one thread for each iteration, as far as there may be so many."""
    trips = [sizes.trips[k] for k in code.order]
    sides = [*trips[:2], math.prod(trips[2:]) if None not in trips[2:] else None]  # type: ignore[arg-type]
    most = MOST_BLOCKS if code.nest.kinds else None
    grid = []
    for side, threads in zip((*sides, 1, 1), code.threads, strict=False):
        blocks = _UNKNOWN if side is None else max(-(-side // threads), 1)
        blocks = min(blocks, _MOST_SIDE, most or _MOST_SIDE)
        most = most and max(most // blocks, 1)
        grid.append(blocks)
    return grid[0], grid[1], grid[2]
