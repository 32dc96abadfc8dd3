"""Kernels for CUDA, run on this machine: a thread of the grid is a call of its code.

The LLVM IR of a kernel is compiled for the host with the registers that name a thread read from
memory. Kernels without barriers run one thread after the other; those with barriers and shuffles
run the threads of a block as threads of the host, which wait for each other. Slow, and exact: what
a GPU would compute, but for the rounding of its mathematics. Races between threads stay unseen.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import struct
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import llvmlite.binding as llvm
import torch

import weft
from weft.codegen import cuda as backend
from weft.codegen import libraries
from weft.codegen.cpu import machine
from weft.codegen.launching import Variant
from weft.runtime import gpu
from weft.runtime.cuda import Module
from weft.runtime.launch import Launcher, check_error

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
declare float @llvm.sqrt.f32(float)
declare double @llvm.sqrt.f64(double)
declare void @emulated_barrier(ptr)
declare i32 @emulated_exchange(ptr, i32, i32, i32)
declare void @emulated_meeting(ptr, i32)
"""


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
    text = re.sub(r"declare .*@llvm\.nvvm\..*\n", "", text)
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
    text = text.replace(
        "call void @llvm.nvvm.bar.warp.sync(", "call void @emulated_meeting(ptr %context, "
    )
    text = re.sub(r'asm "mul\.hi\.s32 [^"]*", "[^"]*"', "@emulated_mulhi", text)
    text = re.sub(r"declare .*@__nv_rsqrtf?\(.*\n", "", text)
    text = text.replace("@__nv_rsqrt", "@emulated_rsqrt").replace("@__nv_", "@")
    support = _SUPPORT
    for declaration in re.findall(r"declare \S+ @llvm\S*\(\w+\)", _SUPPORT):
        if declaration in text:
            support = support.replace(declaration, "")
    return text + support


class _Block:
    """The threads of a block that runs: what they exchange, and where they wait."""

    def __init__(self, threads: int) -> None:
        self.values = [0] * threads
        self.barrier = threading.Barrier(threads)
        self.groups: dict[tuple[int, int], threading.Barrier] = {}  # by warp and mask of its lanes
        self.lock = threading.Lock()

    def meet(self, number: int, mask: int) -> None:
        """Waits for the lanes of ``mask`` in the warp of thread ``number``."""
        mask &= (1 << 32) - 1
        assert mask >> number % 32 & 1, "a lane waits with others than itself"
        lanes = min(mask.bit_count(), len(self.values) - number // 32 * 32)
        with self.lock:
            barrier = self.groups.setdefault((number // 32, mask), threading.Barrier(lanes))
        barrier.wait(timeout=60)


_blocks: dict[int, tuple[_Block, int]] = {}  # by the address of a thread's context


def _barrier(context: int) -> None:
    _blocks[context][0].barrier.wait()


def _exchange(context: int, mask: int, value: int, offset: int) -> int:
    block, number = _blocks[context]
    assert mask >> (number % 32 ^ offset) & 1, "the other lane takes no part"
    block.values[number] = value
    block.meet(number, mask)
    taken = block.values[number ^ offset]
    block.meet(number, mask)
    return taken


def _meeting(context: int, mask: int) -> None:
    block, number = _blocks[context]
    block.meet(number, mask)


_exchange_callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int
)(_exchange)
_meeting_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(_meeting)
_barrier_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_barrier)
_jit: list[Any] = []


class Function:
    """One function of a kernel, callable for one thread."""

    def __init__(self, text: str, name: str) -> None:
        libraries.load()
        if not _jit:
            _jit.append(
                llvm.create_lljit_compiler(machine(), use_jit_link=False, suppress_errors=False)
            )
        self.waits = (
            re.search(r"emulated_(barrier|exchange|meeting)\(ptr %context", text) is not None
        )
        builder = llvm.JITLibraryBuilder().add_ir(text).add_current_process()
        for symbol, callback in (("emulated_barrier", _barrier_callback),
                                 ("emulated_exchange", _exchange_callback),
                                 ("emulated_meeting", _meeting_callback)):  # fmt: skip
            builder.import_symbol(symbol, ctypes.cast(callback, ctypes.c_void_p).value)
        builder.export_symbol(name)
        self.tracker = builder.link(_jit[0], f"emulated.{next(_numbers)}")
        self.address = self.tracker[name]

    def run(
        self, grid: tuple[int, ...], block: tuple[int, ...], kinds: list[str], data: bytes
    ) -> None:
        """All threads of a grid. ``kinds`` says of each word of ``data`` whether it is a double."""
        types = [ctypes.c_double if kind == "float" else ctypes.c_int64 for kind in kinds]
        values = [struct.unpack_from("<d" if kind == "float" else "<q", data, 8 * k)[0]
                  for k, kind in enumerate(kinds)]  # fmt: skip
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *types)(self.address)
        for place in itertools.product(*(range(n) for n in reversed(grid))):
            self._block(call, values, grid, block, place[::-1])

    def _block(self, call: Any, values: list[Any], grid: Any, block: Any, place: Any) -> None:
        contexts = [
            (ctypes.c_int * 12)(*thread[::-1], *block, *place, *grid)
            for thread in itertools.product(*(range(n) for n in reversed(block)))
        ]
        if not self.waits:
            for context in contexts:
                call(ctypes.addressof(context), *values)
            return
        shared = _Block(len(contexts))
        for number, context in enumerate(contexts):
            _blocks[ctypes.addressof(context)] = (shared, number)
        threads = [
            threading.Thread(target=call, args=(ctypes.addressof(c), *values)) for c in contexts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for context in contexts:
            del _blocks[ctypes.addressof(context)]


class Emulated(gpu.GpuCompiled):
    """A specialisation whose variants run here. ``force`` changes the variant that a call chose."""

    def module(self, variant: Variant, device: int) -> Module:
        EmulatedCall.seen.append(variant)
        if self.optimized is None:
            raise AssertionError("the emulator compiles anew: turn the cache off")
        code = backend.compile_cuda(
            self.optimized, self.facts, variant, "sm_90", strict_math=self.options.strict_math,
            noalias=self.noalias,
        )  # fmt: skip
        text = host_text(code.llvm)
        names = [self.facts.symbol] + [f"{self.facts.symbol}_finish"] * bool(self.facts.kinds)
        return Module(None, {name: Function(text, name) for name in names})  # type: ignore[arg-type]


class EmulatedCall(gpu.Call):
    variants: ClassVar[list[Variant]] = []  # that ran, for tests to look at
    seen: ClassVar[list[Variant]] = []  # the same, as they were compiled
    change: ClassVar[Callable[..., Any] | None] = None  # of (variant, grid, block, shared)

    def _workspace(self, words: int) -> torch.Tensor:
        return torch.empty(words, dtype=torch.int64)

    def _fitting(self, function: Function, threads: int) -> int:
        return threads

    def _chosen(self, *args: Any) -> Any:
        chosen = super()._chosen(*args)
        if EmulatedCall.change is not None:
            chosen = EmulatedCall.change(*chosen)
        self.variants.append(chosen[0])
        return chosen

    def _run(self, launch: gpu.Launch, function: Function, block: bytes) -> None:
        kinds = [slot.kind for slot in self.facts.slots] + ["pointer", "int"]
        kinds += ["int"] * (len(block) // 8 - len(kinds))
        function.run(launch.grid, launch.block, kinds, block)

    def _checked(self, launch: gpu.Launch, slots: bytes) -> None:
        record = torch.zeros(gpu.RECORD_WORDS, dtype=torch.int64)
        block = slots[:-8] + struct.pack("<q", record.data_ptr())
        if launch.blocks > 1 and self.facts.kinds:
            self._reduce(launch, block)
        else:
            self._run(launch, launch.function, block + struct.pack("<Qq", 0, 1))
        words = record.tolist()
        if words[0]:
            raise self.error(self.facts.checks[words[0] - 1], words[1:])


class _Loaded:
    address = 0

    def __init__(self, compiled: Emulated) -> None:
        self.compiled = compiled

    def call(self, slots: bytes) -> None:
        EmulatedCall(self.compiled, 0, check_error)(slots)

    call_holding_gil = call


class _Compiled:
    """What the launcher sees: the emulated specialisation in the place of one for the CPU."""

    def __init__(self, compiled: Emulated) -> None:
        self.function, self.results, self.guards = (
            compiled.function,
            compiled.results,
            compiled.guards,
        )
        self.origin, self.stages, self.checks, self.prints = "compiled", compiled.stages, (), ()
        self.load = _Loaded(compiled)


def compile_region(*args: Any, **kwargs: Any) -> _Compiled:
    found = gpu.compile_region(*args, **kwargs)
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return _Compiled(Emulated(**fields))


def emulated(kernel: weft.Kernel, **options: Any) -> weft.Kernel:
    """A kernel like ``kernel`` whose loops run in the emulator, on CPU tensors."""
    made = weft.kernel(**{**kernel.given, **options})(kernel.function)
    made.__dict__["options"] = type(made.options)(
        debug=made.options.debug, strict_math=made.options.strict_math, cache=False
    )
    made._prepare()
    for k, launcher in enumerate(made._regions):
        fresh = Launcher(launcher.region, launcher.source, made.options, compile_region)
        fresh.install = lambda entry, k=k: made._launchers.__setitem__(k, entry)
        made._regions[k] = fresh
        made._launchers[k] = fresh
    return made
