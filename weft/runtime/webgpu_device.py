"""A device of WebGPU: buffers, pipelines and the queue, by the package ``wgpu``."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from typing import Any

from weft.codegen.shading import ENTRY, Stage
from weft.errors import WeftError
from weft.values import frozen

_KEPT = 256 << 20  # bytes of buffers that wait for the next call


class WebGpuError(WeftError, RuntimeError):
    """There is no device for WebGPU, or it cannot run a loop."""


@frozen
class Pipeline:
    pipeline: Any
    layout: Any


class Device:
    """An adapter's device. ``name``: what it is called."""

    def __init__(self) -> None:
        os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")  # Mesa complains without
        try:
            import wgpu  # heavy, and installed by who wants it
        except ImportError as error:
            raise WebGpuError(
                'kernel.on("webgpu") needs the package wgpu: pip install wgpu'
            ) from error
        try:
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
        self.wgpu = wgpu
        self.lock = threading.RLock()
        self.free: dict[int, list[Any]] = {}
        self.kept = 0
        self.ends_loops = self.name.startswith("llvmpipe")

    def buffer(self, size: int) -> Any:
        """A buffer of at least ``size`` bytes. Raises ``WebGpuError``."""
        most = min(self.limits["max-storage-buffer-binding-size"], self.limits["max-buffer-size"])
        if size > most:
            raise WebGpuError(
                f"a tensor of {size:,} bytes does not fit into a buffer of {self.name}: at most "
                f"{most:,}; call the kernel on parts of it"
            )
        size = min(1 << max(size - 1, 255).bit_length(), most)
        waiting = self.free.get(size)
        if waiting:
            self.kept -= size
            return waiting.pop()
        usage = self.wgpu.BufferUsage
        flags = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        return self.device.create_buffer(size=size, usage=flags)

    def give_back(self, buffer: Any) -> None:
        if self.kept + buffer.size <= _KEPT:
            self.kept += buffer.size
            self.free.setdefault(buffer.size, []).append(buffer)

    def pipeline(self, stage: Stage, name: str, threads: tuple[int, int, int]) -> Pipeline:
        """A module of the loop ``name``, compiled. Raises ``WebGpuError``."""
        try:
            return self._built(stage)
        except self.wgpu.GPUError as error:
            raise WebGpuError(f"{self.name} refuses the loop of `{name}`: {error}") from error

    def _built(self, stage: Stage) -> Pipeline:
        module = self.device.create_shader_module(code=stage.text)
        entries = [
            {"binding": k, "visibility": self.wgpu.ShaderStage.COMPUTE, "buffer": {
                "type": "storage" if name in stage.written else "read-only-storage"}}
            for k, name in enumerate(stage.buffers)
        ]  # fmt: skip
        layout = self.device.create_bind_group_layout(entries=entries)
        whole = self.device.create_pipeline_layout(bind_group_layouts=[layout])
        compute = {"module": module, "entry_point": ENTRY}
        return Pipeline(self.device.create_compute_pipeline(layout=whole, compute=compute), layout)

    def run(self, stages: Sequence[tuple[Pipeline, Sequence[Any], tuple[int, int, int]]]) -> None:
        """Runs pipelines with buffers on grids, one after the other; nothing waits for them."""
        encoder = self.device.create_command_encoder()
        for pipeline, buffers, grid in stages:
            entries = [
                {"binding": b, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                for b, buffer in enumerate(buffers)
            ]
            group = self.device.create_bind_group(layout=pipeline.layout, entries=entries)
            work = encoder.begin_compute_pass()
            work.set_pipeline(pipeline.pipeline)
            work.set_bind_group(0, group)
            work.dispatch_workgroups(*grid)
            work.end()
        self.device.queue.submit([encoder.finish()])

    def read(self, buffer: Any, size: int) -> Any:
        """The first ``size`` bytes of ``buffer``, or some more, when all that was asked for ran."""
        return self.device.queue.read_buffer(buffer, 0, -(-size // 4) * 4)

    def upload(self, buffer: Any, data: Any) -> None:
        self.device.queue.write_buffer(buffer, 0, data)


@functools.cache
def device() -> Device:
    """The device of this process. Raises ``WebGpuError``."""
    return Device()
