"""Pipelines of a device of WebGPU: the text of a shader, compiled by ``wgpu`` and a driver."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from weft import timing
from weft.codegen.shading import ENTRY, Stage
from weft.errors import WeftError
from weft.values import mutable

_AT_ONCE = 4
T = TypeVar("T")


class WebGpuError(WeftError, RuntimeError):
    """There is no device for WebGPU, or it cannot run a loop."""


@mutable
class Pipeline:
    """A pipeline of the loop ``name``. ``found``: None as long as nobody waited for ``making``,
    which a thread compiles."""

    name: str
    layout: Any
    making: Future[Any]
    found: Any = None


class Pipelines:
    """Compiles in threads, while the program goes on. ``compiling``: what was begun."""

    def __init__(self, wgpu: Any, device: Any, name: str) -> None:
        """``name``: of the device."""
        self.wgpu, self.device, self.name = wgpu, device, name
        self.compiling: list[Pipeline] = []

    def unfinished(self) -> list[Pipeline]:
        """Those that are not there yet."""
        self.compiling = [p for p in self.compiling if not p.making.done()]
        return self.compiling

    def start(self, stage: Stage, name: str, *, free: bool) -> Pipeline:
        """A module of the loop ``name``, which a thread compiles from now on. ``free``: each
        dispatch brings its arguments along."""
        entries = [
            {"binding": k, "visibility": self.wgpu.ShaderStage.COMPUTE, "buffer": {
                "type": "storage" if name in stage.written else
                "uniform" if name == "params" else "read-only-storage",
                "has_dynamic_offset": free and name == "params"}}
            for k, name in enumerate(stage.buffers)
        ]  # fmt: skip
        layout = self.device.create_bind_group_layout(entries=entries)
        making = self.aside(self._compiled, stage.text, layout)
        found = Pipeline(name, layout, making)
        self.compiling.append(found)
        return found

    def aside(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """What a thread does from now on."""
        return self._threads.submit(copy_context().run, work, *args)

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_AT_ONCE, "weft-shaders")

    def _compiled(self, text: str, layout: Any) -> Any:
        with timing.stage("module"):
            module = self._module(text)
        with timing.stage("pipeline"):
            whole = self.device.create_pipeline_layout(bind_group_layouts=[layout])
            return self.device.create_compute_pipeline(
                layout=whole, compute={"module": module, "entry_point": ENTRY}
            )

    def wait(self, pipeline: Pipeline) -> Any:
        """Waits for ``pipeline``. Raises ``WebGpuError``."""
        if pipeline.found is None:
            try:
                with timing.stage("wait"):
                    pipeline.found = pipeline.making.result()
            except self.wgpu.GPUError as error:
                raise WebGpuError(
                    f"{self.name} refuses the loop of `{pipeline.name}`: {error}"
                ) from error
        return pipeline.found

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
