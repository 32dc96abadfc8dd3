"""Compiling kernels for GPUs that need not be here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, overload

from weft import compiler
from weft.autodiff.activity import read_and_written
from weft.autodiff.forward_mode import forward_mode
from weft.autodiff.reverse import reverse
from weft.codegen import cuda, ptx
from weft.codegen.cuda import CudaCode
from weft.codegen.launching import Facts, architecture
from weft.codegen.shading import DIALECTS, ShaderCode
from weft.frontend.lower import lower
from weft.ir.core import Function
from weft.kernel import Kernel
from weft.options import Options
from weft.passes.write_out import as_numbers
from weft.pytorch.fake import fake_launchers
from weft.runtime.inspection import visited
from weft.runtime.launch import Launcher
from weft.schedule.choose import candidate, for_large_calls
from weft.schedule.grid import threads_of
from weft.schedule.guards import Clusters, Copies
from weft.schedule.language import Schedule, brief
from weft.values import frozen


@frozen
class GpuLoop:
    """One device loop of a kernel for one architecture. ``codes``: by each schedule that calls may
    take, first the one that a large call takes."""

    name: str
    facts: Facts
    codes: tuple[CudaCode, ...]

    @property
    def ptx(self) -> str:
        """The PTX by the schedule that a large call takes."""
        return self.codes[0].ptx

    def usage(self) -> dict[tuple[Schedule, str], ptx.Usage]:
        """Registers, shared memory and spills of each function by each schedule, by ptxas. Raises
        ``AssemblerError`` where it is not found, or refuses."""
        return {
            (code.schedule, name): use
            for code in self.codes for name, use in ptx.usage(code.ptx, code.arch).items()
        }  # fmt: skip


@frozen
class GpuCode:
    """A kernel for one architecture."""

    arch: str
    loops: tuple[GpuLoop, ...]

    def __iter__(self) -> Iterator[GpuLoop]:
        return iter(self.loops)

    @property
    def ptx(self) -> str:
        """The PTX of all loops, each by the schedule that a large call takes."""
        return "\n".join(loop.ptx for loop in self.loops)

    def __str__(self) -> str:
        if ptx.ptxas() is None:
            return "\n".join(f"{loop.name}: {len(loop.codes)} schedules" for loop in self.loops)
        return "\n".join(
            f"{brief(schedule)}: {use.describe(threads_of(schedule))}"
            for loop in self.loops for (schedule, _), use in loop.usage().items()
        )  # fmt: skip


@frozen
class Shaders:
    """A kernel in a shading language. ``loops``: names and code."""

    language: str
    loops: tuple[tuple[str, ShaderCode], ...]

    def __str__(self) -> str:
        return "\n".join(f"// {name}\n{code.text}" for name, code in self.loops)


@overload
def compile_for(
    arch: Literal["wgsl", "msl"], kernel: Kernel, *args: Any, backward: bool = ..., jvp: bool = ...,
    **kwargs: Any,
) -> Shaders: ...  # fmt: skip
@overload
def compile_for(
    arch: str, kernel: Kernel, *args: Any, every_schedule: bool = ..., backward: bool = ...,
    jvp: bool = ..., **kwargs: Any,
) -> GpuCode: ...  # fmt: skip
def compile_for(
    arch: str,
    kernel: Kernel,
    *args: Any,
    every_schedule: bool = False,
    backward: bool = False,
    jvp: bool = False,
    **kwargs: Any,
) -> GpuCode | Shaders:
    """``kernel`` for the GPU ``arch`` ("sm_90"), or as shaders in "wgsl" or "msl", as a call with
    these arguments would compile it.

    Tensors may be anywhere, also on "meta": only dtypes, ranks and strides matter, and no loop
    runs. ``every_schedule``: also those for other alignments and sizes. ``backward``: after each
    loop, also the loops of its gradient with respect to every floating-point tensor that it only
    reads; ``jvp``: also each loop with tangents of all of these. Raises ``CompileError``s,
    ``GradientError`` and ``UnsupportedArchitectureError``.
    """
    language = arch if arch in DIALECTS else ""
    target = language or architecture(arch)
    functions: list[Function] = []
    for loop in lowered_loops(kernel, *args, **kwargs):
        functions += [loop, *(gradient_loops(loop) if backward else ())]
        functions += tangent_loops(loop) if jvp else ()
    options = kernel.options
    if language:
        made = ((f.name, compiler.to_shader(f, options, language)) for f in functions)
        return Shaders(language, tuple(made))
    return GpuCode(target, tuple(compiled(f, target, options, every_schedule) for f in functions))


def lowered_loops(kernel: Kernel, *args: Any, **kwargs: Any) -> list[Function]:
    """The IR of each device loop that a call with these arguments would launch, in order. Tensors
    may be on "meta"."""
    kernel.bind(args, kwargs)
    launchers = [Launcher(r, kernel.source, kernel.options) for r in kernel.parts.regions]

    def lowered(launcher: Launcher, values: tuple[Any, ...]) -> Function:
        specs = launcher.forms.specs(values)
        return lower(launcher.region, specs, kernel.source, debug=kernel.options.debug).function

    fakes = fake_launchers(kernel)
    return visited(kernel.parts.host, launchers, fakes, args, kwargs, lowered)


def compiled(function: Function, target: str, options: Options, every_schedule: bool) -> GpuLoop:
    """One loop for an architecture, as ``codegen.launching.architecture`` gives it."""
    asked = options.asked("cuda", function.name)
    optimized = compiler.optimize(function, options, asked=asked)
    facts = cuda.analyse(optimized, asked)
    able = int(re.findall(r"\d+", target)[0])
    lacking = {guard for guard, least in ((Clusters(), 90), (Copies(), 80)) if able < least}
    found = [c.schedule for c in map(candidate, facts.candidates) if lacking.isdisjoint(c.guards)]
    usual = for_large_calls(facts.candidates, facts.asked)
    wanted = [usual if usual in found else found[0]]
    if every_schedule:
        wanted += [schedule for schedule in found if schedule != wanted[0]]
    codes = tuple(cuda.compile_cuda(optimized, schedule, target) for schedule in wanted)
    return GpuLoop(function.name, facts, codes)


def tangent_loops(function: Function) -> tuple[Function, ...]:
    """The loops with tangents of the floating tensors that ``function`` reads."""
    wanted, _ = read_and_written(function)
    return forward_mode(as_numbers(function), wanted).steps


def gradient_loops(function: Function) -> tuple[Function, ...]:
    """The loops of the gradient with respect to the floating tensors that ``function`` reads."""
    wanted, written = read_and_written(function)
    return reverse(as_numbers(function), wanted, written).steps if wanted else ()
