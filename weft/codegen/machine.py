"""This machine's CPU, as LLVM describes it."""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from weft.codegen import libraries
from weft.schedule.machine import CpuMachine


@functools.cache
def machine(effort: int = 1) -> llvm.TargetMachine:
    """The description of this machine that LLVM works with.

    ``effort`` (0 to 3) is about the last steps, from LLVM IR to machine code: 1 makes code as fast
    as 3 does in a third of the time (measured on vector loops and register tiles).
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=effort,
        reloc="pic", codemodel="small",
    )  # fmt: skip


def described() -> str:
    """The CPU that code is made for, its name and features."""
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


@functools.cache
def host_cpu() -> CpuMachine:
    """This machine's CPU, as code generation sees it."""
    available = {name for name, there in llvm.get_host_cpu_features().items() if there}
    length = 64 if "avx512f" in available else 32 if "avx2" in available else 0
    vectors = length == 64 or (length == 32 and "fma" in available)
    cycles = llvm.get_process_triple().startswith("x86_64")
    clock = ("readcyclecounter", 100_000_000) if cycles else ("readsteadycounter", 1_000_000)
    return CpuMachine(length, vectors and libraries.load().sleef, clock)
