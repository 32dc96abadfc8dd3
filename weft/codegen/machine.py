"""The CPU that code is made for, as LLVM describes it: this machine's, or a named one."""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from weft.codegen import libraries
from weft.schedule.machine import CpuMachine

# The levels of x86-64, and the bytes of their vectors that code generation uses.
LEVELS = {"x86-64": 0, "x86-64-v2": 0, "x86-64-v3": 32, "x86-64-v4": 64}


@functools.cache
def machine(effort: int = 1, cpu: str = "") -> llvm.TargetMachine:
    """The description of this machine that LLVM works with, or of one of the ``LEVELS``.

    ``effort`` (0 to 3) is about the last steps, from LLVM IR to machine code: 1 makes code as fast
    as 3 does in a third of the time (measured on vector loops and register tiles).
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = "" if cpu else llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=cpu or llvm.get_host_cpu_name(), features=features, opt=effort,
        reloc="pic", codemodel="small",
    )  # fmt: skip


def described() -> str:
    """The CPU that code is made for, its name and features."""
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def features() -> set[str]:
    """The instruction sets of this machine's CPU, by LLVM's names."""
    return {name for name, there in llvm.get_host_cpu_features().items() if there}


@functools.cache
def host_cpu(cpu: str = "") -> CpuMachine:
    """This machine's CPU, or one of the ``LEVELS``, as code generation sees it."""
    if cpu:
        return CpuMachine(LEVELS[cpu], LEVELS[cpu] > 0 and libraries.load().sleef)
    available = features()
    length = 64 if "avx512f" in available else 32 if "avx2" in available else 0
    vectors = length == 64 or (length == 32 and "fma" in available)
    cycles = llvm.get_process_triple().startswith("x86_64")
    clock = ("readcyclecounter", 100_000_000) if cycles else ("readsteadycounter", 1_000_000)
    # Zen 4: 22 cycles for 16 elements of a gather, 13 for the loads. Other CPUs were not measured.
    gathers = not llvm.get_host_cpu_name().startswith("znver")
    return CpuMachine(length, vectors and libraries.load().sleef, clock, gathers)
