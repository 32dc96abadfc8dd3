"""Kernels for CUDA, run on this machine: a thread of the grid is a call of its code.

The LLVM IR of a kernel is compiled for the host with the registers that name a thread read from
memory, the threads of a block one after the other (``fibers.py``); where there are barriers and
shuffles, up to the next one. Exact: what a GPU would compute, but for the rounding of its
mathematics. Races between threads stay unseen.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections.abc import Callable
from typing import Any, ClassVar

import llvmlite.binding as llvm
import torch

import weft
from tests.cuda import fibers, interpreted
from weft.codegen import cuda as backend
from weft.codegen import launching, libraries, ptx
from weft.frontend.lower import Lowered
from weft.options import Options
from weft.runtime import build, gpu
from weft.runtime.build import compile_region as compile_on
from weft.runtime.cuda import Module
from weft.runtime.function import CompiledFunction
from weft.runtime.launch import Launcher
from weft.schedule.choose import Candidate, Choice, candidate, choose
from weft.schedule.grid import MOST_CLUSTERED, SEVERAL
from weft.schedule.language import Schedule
from weft.schedule.machine import GpuMachine
from weft.schedule.sizes import Sizes

_REGISTERS = [f"{name}.{side}" for name in ("tid", "ntid", "ctaid", "nctaid") for side in "xyz"]
_numbers = itertools.count()
_PRIVATE_BYTES = 16384

_SUPPORT = """
define internal i32 @emulated_register(ptr %context, i32 %k) alwaysinline {
  %p = getelementptr i32, ptr %context, i32 %k
  %v = load i32, ptr %p
  ret i32 %v
}
define internal float @emulated_rsqrtf(float %x) {
  %r = call float @llvm.sqrt.f32(float %x)
  %q = fdiv float 1.0, %r
  ret float %q
}
define internal double @emulated_rsqrt(double %x) {
  %r = call double @llvm.sqrt.f64(double %x)
  %q = fdiv double 1.0, %r
  ret double %q
}
define internal i32 @emulated_mulhi(i32 %a, i32 %b) {
  %x = sext i32 %a to i64
  %y = sext i32 %b to i64
  %p = mul i64 %x, %y
  %h = lshr i64 %p, 32
  %r = trunc i64 %h to i32
  ret i32 %r
}
define internal i32 @emulated_lane(ptr %context) {
  %x = call i32 @emulated_register(ptr %context, i32 0)
  %y = call i32 @emulated_register(ptr %context, i32 1)
  %sx = call i32 @emulated_register(ptr %context, i32 3)
  %row = mul i32 %y, %sx
  %number = add i32 %row, %x
  %lane = and i32 %number, 31
  ret i32 %lane
}
define internal i32 @emulated_up(ptr %context, i32 %mask, i32 %value, i32 %away) {
  %lane = call i32 @emulated_lane(ptr %context)
  %before = sub i32 %lane, %away
  %none = icmp slt i32 %before, 0
  %other = select i1 %none, i32 %lane, i32 %before
  %offset = xor i32 %lane, %other
  %taken = call i32 @emulated_exchange(ptr %context, i32 %mask, i32 %value, i32 %offset)
  ret i32 %taken
}
define internal i32 @emulated_at(ptr %context, i32 %mask, i32 %value, i32 %place) {
  %lane = call i32 @emulated_lane(ptr %context)
  %offset = xor i32 %lane, %place
  %taken = call i32 @emulated_exchange(ptr %context, i32 %mask, i32 %value, i32 %offset)
  ret i32 %taken
}
define internal void @emulated_copy4(ptr %into, ptr %from) {
  %v = load i32, ptr %from
  store i32 %v, ptr %into
  ret void
}
define internal void @emulated_copy8(ptr %into, ptr %from) {
  %v = load i64, ptr %from
  store i64 %v, ptr %into
  ret void
}
declare float @llvm.sqrt.f32(float)
declare double @llvm.sqrt.f64(double)
declare void @emulated_barrier(ptr)
declare i32 @emulated_exchange(ptr, i32, i32, i32)
declare void @emulated_meeting(ptr, i32)
"""


LANES = 0  # what a thread finds out of which lanes of its warp are beside it; -1: all of them


def in_cluster(text: str) -> str:
    """``text``, in which each block of a cluster has its own part of an array."""
    found = re.search(r"@(weft_cluster\d+) = internal global (\[.*?\]) undef", text)
    if found is None:
        return text
    name, row = found[1], found[2]
    every = f"[{MOST_CLUSTERED // SEVERAL} x {row}]"
    text = text.replace(found[0], f"@{name} = internal global {every} undef")
    part = rf"getelementptr {row}, ptr @{name}, i32"
    text = re.sub(r"call ptr @llvm\.nvvm\.mapa\(ptr \S+, i32 (\S+)\)", rf"{part} \1", text)
    thread = f"call i32 @emulated_register(ptr %context, i32 {_REGISTERS.index('tid.x')})"
    block = rf"\1.t = {thread}\n\1.b = lshr i32 \1.t, {SEVERAL.bit_length() - 1}\n"
    own = rf"(\S+) = bitcast ptr @{name} to ptr"
    return re.sub(own, rf"{block}\1 = {part} \1.b", text)


def host_text(text: str) -> str:
    """The LLVM IR of a kernel for the host: each function takes a context as its first argument."""
    text = re.sub(r"define ptx_kernel void @(\w+)\(", r"define void @\1(ptr %context, ", text)
    text = re.sub(
        r"@weft_private = external addrspace\(3\) global \[0 x i8\]",
        f"@weft_private = internal global [{_PRIVATE_BYTES} x i8] zeroinitializer",
        text,
    )
    text = re.sub(r" ?addrspace\([13]\)", "", text)
    text = text.replace("addrspacecast ptr", "bitcast ptr")
    for k, name in enumerate(_REGISTERS):
        call = f"@llvm.nvvm.read.ptx.sreg.{name}()"
        text = text.replace(f"declare i32 {call}\n", "")
        text = text.replace(
            f"call i32 {call}", f"call i32 @emulated_register(ptr %context, i32 {k})"
        )
    for name, other in (("nclusterid.x", "nctaid.x"), ("clusterid.x", "ctaid.x")):
        k = _REGISTERS.index(other)  # the blocks of a cluster are one
        text = text.replace(f"call i32 @llvm.nvvm.read.ptx.sreg.{name}()",
                            f"call i32 @emulated_register(ptr %context, i32 {k})")  # fmt: skip
    text = text.replace("call i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()", "add i32 0, 0")
    text = in_cluster(text)
    text = re.sub(r"declare .*@llvm\.nvvm\..*\n", "", text)
    text = re.sub(
        r"@llvm\.nvvm\.cp\.async\.ca\.shared\.global\.(\d+)\(", r"@emulated_copy\1(", text
    )
    text = re.sub(r".*@llvm\.nvvm\.cp\.async\.wait\.all\(.*\n", "", text)
    text = re.sub(r".*@llvm\.nvvm\.barrier\.cluster\.arrive.*\n", "", text)
    text = text.replace(
        "@llvm.nvvm.barrier.cluster.wait.aligned()", "@emulated_barrier(ptr %context)"
    )
    text = re.sub(
        r"call void @llvm\.nvvm\.barrier\S*\(i32 0\)",
        "call void @emulated_barrier(ptr %context)",
        text,
    )
    text = re.sub(
        r"call i32 @llvm\.nvvm\.shfl\.sync\.bfly\.i32\(i32 (\S+), i32 (\S+), i32 (\d+), i32 31\)",
        r"call i32 @emulated_exchange(ptr %context, i32 \1, i32 \2, i32 \3)",
        text,
    )
    for mode, name in (("up", "up"), ("idx", "at")):  # of whole warps
        text = re.sub(
            rf"call i32 @llvm\.nvvm\.shfl\.sync\.{mode}\.i32"
            r"\(i32 (\S+), i32 (\S+), i32 (\S+), i32 \d+\)",
            rf"call i32 @emulated_{name}(ptr %context, i32 \1, i32 \2, i32 \3)", text,
        )  # fmt: skip
    text = text.replace(
        "call void @llvm.nvvm.bar.warp.sync(", "call void @emulated_meeting(ptr %context, "
    )
    lanes = r'call i32 asm sideeffect "activemask[^"]*", "=r"\(\)( #\d+)?'
    text = re.sub(lanes, f"add i32 {LANES}, 0", text)
    text = re.sub(r'asm "mul\.hi\.s32 [^"]*", "[^"]*"', "@emulated_mulhi", text)
    text = re.sub(r"declare .*@__nv_rsqrtf?\(.*\n", "", text)
    text = text.replace("@__nv_rsqrt", "@emulated_rsqrt").replace("@__nv_", "@")
    support = _SUPPORT
    for declaration in re.findall(r"declare \S+ @llvm\S*\(\w+\)", _SUPPORT):
        if declaration in text:
            support = support.replace(declaration, "")
    return text + support


class Function:
    """One function of a kernel, callable for one thread."""

    def __init__(self, text: str, name: str) -> None:
        libraries.load()
        found = re.search(r'"nvvm\.cluster_dim"="(\d+),1,1"', text)
        self.blocks = int(found[1]) if found is not None else 1  # of a cluster
        self.waits = (
            re.search(r"emulated_(barrier|exchange|meeting)\(ptr %context", text) is not None
        )
        text += fibers.trampoline(text, name)
        builder = llvm.JITLibraryBuilder().add_ir(text).add_current_process()
        for symbol, address in fibers.addresses().items():
            builder.import_symbol(symbol, address)
        builder.export_symbol(f"{name}.call")
        self.tracker = builder.link(fibers.jit(), f"emulated.{next(_numbers)}")
        self.address = self.tracker[f"{name}.call"]

    def run(self, grid: tuple[int, ...], block: tuple[int, ...], data: bytes) -> None:
        """All threads of a grid."""
        fibers.run(self.address, *interpreted.joined(grid, block, self.blocks), data,
                   waits=self.waits)  # fmt: skip


@functools.lru_cache(128)
def functions(text: str, mathematics: tuple[str, ...]) -> dict[str, Function]:
    """Those of a module, which LLVM has to take for a GPU, too."""
    assembly = ptx.assemble(ptx.optimized(text, "sm_90", mathematics), "sm_90")
    here = host_text(text)
    return {name: Function(here, name) for name in launching.entries(assembly)}


class Emulated(gpu.GpuCompiled):
    """A specialisation whose code runs here, by whatever schedule."""

    def bound(self, tensors: Any, error: build.Failure, *, brief: bool) -> Any:
        """Each call is a new one: tests change what it may choose."""
        return lambda slots: EmulatedCall(self, 0, error)(slots), None

    def module(self, schedule: Schedule, device: int) -> Module:
        EmulatedCall.seen.append(schedule)
        if self.optimized is None:
            raise AssertionError("the emulator compiles anew: turn the cache off")
        key = schedule, EmulatedCall.interpreted
        if key not in self.modules:
            self.modules[key] = self.made(schedule)
        return self.modules[key]

    def made(self, schedule: Schedule) -> Module:
        assert self.optimized is not None
        grid = backend.scheduled(self.optimized, schedule)
        if EmulatedCall.interpreted:
            name, kinds = self.facts.symbol, self.facts.nest.kinds
            found = interpreted.functions(name, grid.bound, self.optimized, schedule, kinds)
            return Module(None, found)  # type: ignore[arg-type]
        text = grid.emit()
        return Module(None, functions(text, tuple(sorted(grid.cuda.functions))))  # type: ignore[arg-type]


class EmulatedCall(gpu.Call):
    seen: ClassVar[list[Schedule]] = []  # that ran, for tests to look at
    allowed: ClassVar[Callable[[Candidate], bool] | None] = None  # what may be chosen
    change: ClassVar[Callable[[Choice], Choice] | None] = None
    interpreted: ClassVar[bool] = False  # whether the IR is run, not machine code

    def _workspace(self, words: int) -> torch.Tensor:
        left = torch.empty(words, dtype=torch.int64)
        interpreted.WORDS[left.data_ptr()] = words
        return left

    def _fitting(self, schedule: Schedule, function: Function, threads: int) -> int:
        return threads

    def _chosen(self, sizes: Sizes, machine: GpuMachine, most: int) -> Choice:
        allowed = EmulatedCall.allowed or (lambda _: True)
        texts = [text for text in self.facts.candidates if allowed(candidate(text))]
        chosen = choose(texts, sizes, machine, most)
        return EmulatedCall.change(chosen) if EmulatedCall.change is not None else chosen

    def _run(self, launch: gpu.Launch, function: Function, block: bytes) -> None:
        function.run(launch.grid, launch.block, block)

    def _checked(self, launch: gpu.Launch, slots: bytes) -> None:
        record = torch.zeros(gpu.RECORD_WORDS, dtype=torch.int64)
        block = slots[:-8] + struct.pack("<q", record.data_ptr())
        if launch.then:
            self._stages(launch, block)
        else:
            self._run(launch, launch.function, block + struct.pack("<Qq", 0, 1) + launch.divisors)
        words = record.tolist()
        if words[0]:
            raise self.error(self.facts.checks[words[0] - 1], words[1:])


class Emulator(gpu.Cuda):
    """As the back end of a GPU, for tensors of the CPU."""

    def from_disk(self, job: build.Job, header: dict[str, Any], code: bytes) -> None:
        """What the cache has is for a GPU: everything is compiled here."""

    def compile(self, job: build.Job) -> Emulated:
        made = super().compile(job)
        return Emulated(job, made.facts, made.optimized)


def compile_region(_: build.Backend, *args: Any, **kwargs: Any) -> build.Made:
    return compile_on(Emulator(), *args, **kwargs)


def emulated(kernel: weft.Kernel, **options: Any) -> weft.Kernel:
    """A kernel like ``kernel`` whose loops run in the emulator, on CPU tensors."""
    made = weft.kernel(**{**kernel.given, **options})(kernel.function)
    made.__dict__["options"] = type(made.options)(
        debug=made.options.debug, strict_math=made.options.strict_math, cache=False,
        schedules=kernel.options.schedules,
    )  # fmt: skip
    made._prepare()
    for k, launcher in enumerate(made._regions):
        fresh = Launcher(launcher.region, launcher.source, made.options, compile_region)
        fresh.install = lambda entry, k=k: made._launchers.__setitem__(k, entry)
        made._regions[k] = fresh
        made._launchers[k] = fresh
    return made


class EmulatedFunction(CompiledFunction):
    """A loop of a gradient, as the emulator runs it."""

    def _compiled(self, place: str) -> build.Made:
        lowered = Lowered(self.function, [], [], "")
        options = Options(debug=False, strict_math=self.options.strict_math, cache=False)
        return compile_region(build.CPU, None, None, {}, options, lowered=lowered)


def gradients(kernel: weft.Kernel, *args: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of what ``kernel(*args)`` gives, of which the emulator runs every loop."""

    def make(launcher: Launcher) -> Any:
        return lambda function: EmulatedFunction(function, launcher.options)

    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    return torch.autograd.grad(kernel.backward.made(make, args, {}), leaves, grad)
