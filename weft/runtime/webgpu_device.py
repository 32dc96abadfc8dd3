"""A device of WebGPU: buffers, pipelines and the queue, by the package ``wgpu``."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from weft import timing
from weft.codegen.shading import Stage
from weft.lang.pending import PENDING
from weft.lang.resident import SPARE, Home
from weft.runtime.webgpu_pipelines import Pipeline, Pipelines, WebGpuError
from weft.values import frozen

_KEPT = 256 << 20  # bytes of buffers that wait for the next call
_NUMBERS = 1 << 16  # bytes of the arguments of a batch
_APART = 256  # bytes, from one call's to the next: what any device allows
# Dispatches that are given to the queue together: giving costs as much as some thirty (H200). There
# are more from batch to batch, until somebody waits.
_BATCH, _MOST_BATCH = 16, 256
_STAGING = 64 << 20  # bytes of the buffer that results are read through


@frozen
class Group:
    """Buffers that are bound. ``buffers``: their ids."""

    group: Any
    buffers: frozenset[int]


class Pass:
    """Dispatches that are given to the queue together. ``handle``: wgpu's, None before the first;
    ``group``: what is bound, with the arguments at ``place`` of those that calls bring along."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.encoder: Any = None
        self.encoded: Any = None
        self.handle: Any = None
        self.pipeline: Any = None
        self.group: Group | None = None
        self.place: list[int] | None = None

    def bind(self, pipeline: Any, group: Group, place: list[int] | None) -> None:
        """What the next dispatches run, and their buffers."""
        if self.encoded is None:
            self.encoder = self.device.create_command_encoder()
            self.encoded = self.encoder.begin_compute_pass()
            self.handle = self.encoded._internal
        if pipeline is not self.pipeline:
            self.encoded.set_pipeline(pipeline)
            self.pipeline = pipeline
        self.encoded.set_bind_group(0, group.group, place or [])
        self.group, self.place = group, place

    def ended(self) -> Any:
        """What the queue takes."""
        self.encoded.end()
        return self.encoder.finish()


class Buffers:
    """Buffers of a device, which those that are given back come from again."""

    def __init__(self, wgpu: Any, device: Any, limits: dict[str, int], name: str) -> None:
        """``name``: of the device."""
        self.wgpu, self.device, self.limits, self.name = wgpu, device, limits, name
        self.free: dict[int, list[Any]] = {}
        self.kept = 0
        self.released: deque[Any] = deque()  # by tensors that are gone
        self.epoch = 0

    def take(self, size: int, *, last: bool = False) -> Any:
        """One of at least ``size`` bytes; None where the device has no memory. Raises
        ``WebGpuError``, then, too, if ``last``."""
        most = min(self.limits["max-storage-buffer-binding-size"], self.limits["max-buffer-size"])
        most -= most % 16  # whole vectors: shaders that access them do not get at others
        if size > most:
            raise WebGpuError(
                f"a tensor of {size:,} bytes does not fit into a buffer of {self.name}: at most "
                f"{most:,}; call the kernel on parts of it"
            )
        while self.released:
            self.give_back(self.released.popleft())
        size = min(1 << max(size - 1, 255).bit_length(), most)
        waiting = self.free.get(size)
        if waiting:
            self.kept -= size
            return waiting.pop()
        usage = self.wgpu.BufferUsage
        flags = usage.STORAGE | usage.UNIFORM | usage.COPY_DST | usage.COPY_SRC
        try:
            return self.device.create_buffer(size=size, usage=flags)
        except self.wgpu.GPUError as error:
            if last:
                raise WebGpuError(
                    f"{self.name} gives no buffer of {size:,} bytes: {error}"
                ) from error
        return None

    def give_back(self, buffer: Any) -> None:
        if self.kept + buffer.size <= _KEPT:
            self.kept += buffer.size
            self.free.setdefault(buffer.size, []).append(buffer)
        else:
            self.epoch += 1

    def clear(self) -> None:
        """Frees those that nobody has, when all that was submitted ran."""
        self.released.clear()
        self.free.clear()
        self.kept = 0
        self.epoch += 1
        self.device._poll_wait()


Dispatch = tuple[Pipeline, Group, tuple[int, int, int]]  # and its grid


@contextlib.contextmanager
def _runtime_folder() -> Generator[None]:
    """The environment has XDG_RUNTIME_DIR, without which Mesa complains: it is looked at while
    adapters are looked for."""
    missing = "XDG_RUNTIME_DIR" not in os.environ
    if missing:
        os.environ["XDG_RUNTIME_DIR"] = "/tmp"
    try:
        yield
    finally:
        if missing:
            os.environ.pop("XDG_RUNTIME_DIR", None)


class Device:
    """An adapter's device. ``name``: what it is called. Dispatches wait in a batch until it is
    full, or somebody waits for results; and those of pipelines that are still compiled, and what
    follows them, until then or until there are many."""

    def __init__(self) -> None:
        try:
            import wgpu  # heavy, and installed by who wants it
        except ImportError as error:
            raise WebGpuError(
                'kernel.on("webgpu") needs the package wgpu: pip install wgpu'
            ) from error
        try:
            with _runtime_folder():
                adapter: Any = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        except RuntimeError as error:
            raise WebGpuError(
                "there is no adapter for WebGPU: install a Vulkan driver (on Debian and Ubuntu, "
                "mesa-vulkan-drivers has one that needs no GPU)"
            ) from error
        self.features = frozenset({"shader-int64", "shader-f64"} & set(adapter.features))
        self.limits: dict[str, int] = dict(adapter.limits)
        self.device = adapter.request_device_sync(
            required_features=sorted(self.features), required_limits=self.limits
        )
        self.name = str(adapter.info["device"])
        self.is_gpu = adapter.info["adapter_type"] != "CPU"
        self.wgpu = wgpu
        self.pipelines = Pipelines(wgpu, self.device, self.name)
        self.lock = Home.lock
        self.buffers = Buffers(wgpu, self.device, self.limits, self.name)
        self.ends_loops = self.name.startswith("llvmpipe")
        self.submits = 0
        self._pass = Pass(self.device)
        self._waiting = 0
        self._batch: set[int] = set()  # ids of the buffers in it
        self._numbers = bytearray()  # of its calls, which come into ``numbers`` with it
        self._words, self._place = b"", [0]  # the last of them, and where they are
        self._most = _BATCH  # dispatches of this batch
        self._later: deque[tuple[Sequence[Dispatch], bytes]] = deque()
        self._staging: Any = None
        native: Any = importlib.import_module("wgpu.backends.wgpu_native")
        # Without wgpu's look for errors, which the end of the batch has: half of a call's time.
        self._dispatch = native.lib.wgpuComputePassEncoderDispatchWorkgroups
        self._checks: dict[Any, Callable[[Any], None]] = {}

    # -- buffers

    def buffer(self, size: int) -> Any:
        """A buffer of at least ``size`` bytes. Raises ``WebGpuError``."""
        found = self.buffers.take(size)
        if found is None:  # what waits for later calls goes
            SPARE.clear()
            self._staging = None
            self.submit()
            self.buffers.clear()
            found = self.buffers.take(size, last=True)
        return found

    def give_back(self, buffer: Any) -> None:
        """Takes back a buffer, which the batch may still have: what comes later runs later."""
        self.buffers.give_back(buffer)

    def release(self, buffer: Any) -> None:
        """``give_back`` of a tensor that is gone, at any time and in any thread."""
        self.buffers.released.append(buffer)

    @property
    def epoch(self) -> int:
        """Of buffers: others than those of an earlier one may be gone."""
        return self.buffers.epoch

    def upload(self, buffer: Any, data: Any) -> None:
        if id(buffer) in self._batch:  # which runs with what is there now
            self.submit()
        self._written(buffer, data)

    def upload_aside(self, buffer: Any, data: Any) -> Future[None]:
        """Begins an ``upload``, which a thread carries out."""
        if id(buffer) in self._batch:
            self.submit()
        return self.pipelines.aside(self._written, buffer, data)

    def _written(self, buffer: Any, data: Any) -> None:
        with timing.stage("upload"):
            self.device.queue.write_buffer(buffer, 0, data)

    def read(self, buffer: Any, address: int, size: int) -> None:
        """Copies the first ``size`` bytes of ``buffer`` to the host when all that was asked for
        ran."""
        self.submit()
        with timing.stage("read"):
            self._read(buffer, address, size)

    def _read(self, buffer: Any, address: int, size: int) -> None:
        self._most = _BATCH
        usage, words = self.wgpu.BufferUsage, -(-size // 4) * 4
        staging = self._staging
        if staging is None or staging.size < words:
            count = max(words, min(1 << (words - 1).bit_length(), _STAGING))
            staging = self.device.create_buffer(size=count, usage=usage.COPY_DST | usage.MAP_READ)
            if count <= _STAGING:
                self._staging = staging
        encoder = self.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(buffer, 0, staging, 0, words)
        self.device.queue.submit([encoder.finish()])
        staging.map_async("READ_NOSYNC", 0, words).sync_wait()
        try:
            found = staging.read_mapped(0, words, copy=False)
            ctypes.memmove(address, np.frombuffer(found, np.uint8).ctypes.data, size)
        finally:
            staging.unmap()

    def words(self, buffer: Any, count: int) -> tuple[int, ...]:
        """The first words of ``buffer``, when all that was asked for ran."""
        found = (ctypes.c_uint32 * count)()
        self.read(buffer, ctypes.addressof(found), 4 * count)
        return tuple(found)

    def read_into(self, buffer: Any, address: int, size: int) -> None:
        """Copies ``size`` bytes to the host. Raises what checks found until then."""
        with self.lock:
            self.read(buffer, address, size)
            self.check()

    # -- what dispatches bind

    def pipeline(
        self, stage: Stage, name: str, threads: tuple[int, int, int], *, free: bool
    ) -> Pipeline:
        """A module of the loop ``name``, which a thread compiles from now on. ``free``: each
        dispatch brings its arguments along."""
        return self.pipelines.start(stage, name, free=free)

    @functools.cached_property
    def numbers(self) -> Any:
        """The arguments of a batch's calls that bring theirs along."""
        return self.buffer(_NUMBERS)

    def group(self, pipeline: Pipeline, buffers: Sequence[Any], free: int = 0) -> Group:
        """The buffers of a dispatch, bound; behind so many bytes that it brings along, if any."""
        sizes = [(buffer, buffer.size) for buffer in buffers]
        if free:
            sizes.insert(0, (self.numbers, -(-free // 16) * 16))
        entries = [
            {"binding": b, "resource": {"buffer": buffer, "offset": 0, "size": size}}
            for b, (buffer, size) in enumerate(sizes)
        ]
        group = self.device.create_bind_group(layout=pipeline.layout, entries=entries)
        return Group(group, frozenset(map(id, buffers)))

    # -- the queue

    def run(self, stages: Sequence[Dispatch], words: bytes = b"") -> None:
        """Puts pipelines with their groups on grids into the batch, one after the other. ``words``:
        the arguments that they bring along. Raises ``WebGpuError``."""
        if self.pipelines.compiling and self._behind(stages):
            self._later.append((stages, words))
            for _, group, _ in stages:
                self._batch |= group.buffers
            if len(self._later) >= _BATCH:
                self.submit()
        else:
            self._encode(stages, words)

    def _behind(self, stages: Sequence[Dispatch]) -> bool:
        """Whether something is compiled that must be there first."""
        compiling = self.pipelines.unfinished()
        if not compiling:
            self._resume()
        return bool(self._later) or any(p in compiling for p, _, _ in stages)

    def _resume(self) -> None:
        """Puts into the batch what came behind pipelines, which may have to be waited for."""
        while self._later:
            self._encode(*self._later.popleft())

    def _encode(self, stages: Sequence[Dispatch], words: bytes) -> None:
        if words and words != self._words:
            if len(self._numbers) + len(words) > _NUMBERS - _APART:
                self._give()
            self._words, self._place = words, [len(self._numbers)]
            self._numbers += words + bytes(-len(words) % _APART)
        dispatch, work, place = self._dispatch, self._pass, self._place if words else None
        for each, group, (x, y, z) in stages:
            # A group has its pipeline.
            if group is not work.group or (words and place is not work.place):
                work.bind(each.found or self.pipelines.wait(each), group, place)
                self._batch |= group.buffers
            dispatch(work.handle, x, y, z)
        self._waiting += len(stages)
        if self._waiting >= self._most:
            self._most = min(2 * self._most, _MOST_BATCH)
            self._give()

    def submit(self) -> None:
        """Gives all that was asked for to the queue, and does not wait for it, but for pipelines
        that are compiled. Raises ``WebGpuError``."""
        self._resume()
        self._give()

    def _give(self) -> None:
        """Gives the batch to the queue."""
        work = self._pass
        if work.handle is None:
            return
        self._pass = Pass(self.device)
        self._waiting = 0
        self._batch = {buffer for stages, _ in self._later for _, group, _ in stages
                       for buffer in group.buffers}  # fmt: skip
        self.submits += 1
        words, self._numbers = self._numbers, bytearray()
        self._words = b""
        try:
            if words:
                self.device.queue.write_buffer(self.numbers, 0, words)
            self.device.queue.submit([work.ended()])
        except self.wgpu.GPUError as error:
            raise WebGpuError(f"{self.name} does not run what it was given: {error}") from error

    def wait(self) -> None:
        """Waits for all that was asked for. Raises what checks found."""
        with self.lock:
            buffer = self.buffer(4)  # what is read of it comes after all before
            self.words(buffer, 1)
            self.give_back(buffer)
            self.check()

    # -- checks

    def later(self, buffer: Any, check: Callable[[Any], None]) -> None:
        """Has ``check`` look at an error record when somebody waits."""
        self._checks[buffer] = check

    def check(self) -> None:
        """Looks at the error records of launches that nobody waited for. Raises the first error."""
        checks, self._checks = self._checks, {}
        for buffer, check in checks.items():
            check(buffer)


@functools.cache
def device() -> Device:
    """The device of this process. Raises ``WebGpuError``."""
    found = Device()
    PENDING.devices.append(found.wait)
    return found


def is_there() -> bool:
    """Whether there is a device, and it is a GPU: not a driver that runs shaders on a CPU."""
    try:
        return device().is_gpu
    except WebGpuError:
        return False
