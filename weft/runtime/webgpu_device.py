"""A device of WebGPU: buffers, pipelines and the queue, by the package ``wgpu``."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from weft import timing
from weft.codegen.shading import ENTRY, Stage
from weft.errors import WeftError
from weft.lang.pending import PENDING
from weft.lang.resident import Home
from weft.values import frozen

_KEPT = 256 << 20  # bytes of buffers that wait for the next call
_NUMBERS = 1 << 16  # bytes of the arguments of a batch
_APART = 256  # bytes, from one call's to the next: what any device allows
_BATCH = 16  # dispatches that are given to the queue together: giving costs as much as eight


class WebGpuError(WeftError, RuntimeError):
    """There is no device for WebGPU, or it cannot run a loop."""


@frozen
class Pipeline:
    pipeline: Any
    layout: Any


@frozen
class Group:
    """Buffers that are bound. ``buffers``: their ids."""

    group: Any
    buffers: frozenset[int]


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
    full, or somebody waits for results."""

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
        self.lock = Home.lock
        self.free: dict[int, list[Any]] = {}
        self.kept = 0
        self.released: deque[Any] = deque()  # by tensors that are gone
        self.epoch = 0  # of buffers: others than those of an earlier one may be gone
        self.ends_loops = self.name.startswith("llvmpipe")
        self.submits = 0
        self._encoder: Any = None
        self._pass: Any = None
        self._waiting = 0
        self._batch: set[int] = set()  # ids of the buffers in it
        self._numbers = bytearray()  # of its calls, which come into ``numbers`` with it
        self._words, self._place = b"", [0]  # the last of them, and where they are
        self._bound: tuple[Any, Any, Any] = (None, None, None)  # pipeline, group, place
        self._checks: dict[Any, Callable[[Any], None]] = {}

    # -- buffers

    def buffer(self, size: int) -> Any:
        """A buffer of at least ``size`` bytes. Raises ``WebGpuError``."""
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
            raise WebGpuError(f"{self.name} gives no buffer of {size:,} bytes: {error}") from error

    def give_back(self, buffer: Any) -> None:
        """Takes back a buffer, which the batch may still have: what comes later runs later."""
        if self.kept + buffer.size <= _KEPT:
            self.kept += buffer.size
            self.free.setdefault(buffer.size, []).append(buffer)
        else:
            self.epoch += 1

    def release(self, buffer: Any) -> None:
        """``give_back`` of a tensor that is gone, at any time and in any thread."""
        self.released.append(buffer)

    def upload(self, buffer: Any, data: Any) -> None:
        if id(buffer) in self._batch:  # which runs with what is there now
            self.submit()
        self.device.queue.write_buffer(buffer, 0, data)

    def read(self, buffer: Any, size: int) -> Any:
        """The first ``size`` bytes of ``buffer``, or some more, when all that was asked for ran."""
        self.submit()
        return self.device.queue.read_buffer(buffer, 0, -(-size // 4) * 4)

    def read_into(self, buffer: Any, address: int, size: int) -> None:
        """Copies ``size`` bytes to the host. Raises what checks found until then."""
        with self.lock:
            data = self.read(buffer, size)
            ctypes.memmove(address, (ctypes.c_char * size).from_buffer(data), size)
            self.check()

    # -- pipelines

    def pipeline(
        self, stage: Stage, name: str, threads: tuple[int, int, int], *, free: bool
    ) -> Pipeline:
        """A module of the loop ``name``, compiled. ``free``: each dispatch brings its arguments
        along. Raises ``WebGpuError``."""
        try:
            return self._built(stage, free)
        except self.wgpu.GPUError as error:
            raise WebGpuError(f"{self.name} refuses the loop of `{name}`: {error}") from error

    def _built(self, stage: Stage, free: bool) -> Pipeline:
        with timing.stage("module"):
            module = self._module(stage.text)
        entries = [
            {"binding": k, "visibility": self.wgpu.ShaderStage.COMPUTE, "buffer": {
                "type": "storage" if name in stage.written else
                "uniform" if name == "params" else "read-only-storage",
                "has_dynamic_offset": free and name == "params"}}
            for k, name in enumerate(stage.buffers)
        ]  # fmt: skip
        layout = self.device.create_bind_group_layout(entries=entries)
        whole = self.device.create_pipeline_layout(bind_group_layouts=[layout])
        compute = {"module": module, "entry_point": ENTRY}
        with timing.stage("pipeline"):
            made = self.device.create_compute_pipeline(layout=whole, compute=compute)
        return Pipeline(made, layout)

    def _module(self, text: str) -> Any:
        """A module without checks of subscripts and of turns of loops, which code for CPUs and for
        CUDA does not make, either; with them where this version of wgpu cannot leave them out."""
        native: Any = importlib.import_module("wgpu.backends.wgpu_native")
        make = getattr(native._api.libf, "wgpuDeviceCreateShaderModuleTrusted", None)
        if make is None:
            return self.device.create_shader_module(code=text)
        ffi, code = native.ffi, text.encode()
        kept = ffi.new("char[]", code)
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = native.lib.WGPUSType_ShaderSourceWGSL
        source.code.data, source.code.length = kept, len(code)
        described = ffi.new("WGPUShaderModuleDescriptor *")
        described.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        module = make(self.device._internal, described, 0)
        return native.GPUShaderModule("", module, self.device)

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

    def run(
        self, stages: Sequence[tuple[Pipeline, Group, tuple[int, int, int]]], words: bytes = b""
    ) -> None:
        """Puts pipelines with their groups on grids into the batch, one after the other. ``words``:
        the arguments that they bring along."""
        if len(self._numbers) + len(words) > _NUMBERS - _APART:
            self.submit()
        if words and words != self._words:
            self._words, self._place = words, [len(self._numbers)]
            self._numbers += words + bytes(-len(words) % _APART)
        place = self._place if words else []
        work = self._pass
        if work is None:
            self._encoder = self.device.create_command_encoder()
            work = self._pass = self._encoder.begin_compute_pass()
        for pipeline, group, grid in stages:
            bound, self._bound = self._bound, (pipeline, group, place)
            if pipeline is not bound[0]:
                work.set_pipeline(pipeline.pipeline)
            if group is not bound[1] or place != bound[2]:
                work.set_bind_group(0, group.group, place)
                self._batch |= group.buffers
            work.dispatch_workgroups(*grid)
        self._waiting += len(stages)
        if self._waiting >= _BATCH:
            self.submit()

    def submit(self) -> None:
        """Gives the batch to the queue, and does not wait. Raises ``WebGpuError``."""
        if self._pass is None:
            return
        work, encoder = self._pass, self._encoder
        self._pass = self._encoder = None
        self._waiting = 0
        self._batch.clear()
        self.submits += 1
        words, self._numbers = self._numbers, bytearray()
        self._words, self._bound = b"", (None, None, None)
        try:
            if words:
                self.device.queue.write_buffer(self.numbers, 0, words)
            work.end()
            self.device.queue.submit([encoder.finish()])
        except self.wgpu.GPUError as error:
            raise WebGpuError(f"{self.name} does not run what it was given: {error}") from error

    def wait(self) -> None:
        """Waits for all that was asked for. Raises what checks found."""
        with self.lock:
            buffer = self.buffer(4)  # what is read of it comes after all before
            self.read(buffer, 4)
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
