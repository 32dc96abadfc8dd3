"""The CPU back end: LLVM IR of a kernel, optimised for this machine, as object code."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import llvmlite.binding as llvm

from weft import timing
from weft.codegen.interface import Check, Slot
from weft.codegen.machine import host_cpu, machine
from weft.codegen.threads import Kernel, argument_slots
from weft.ir.core import Function

# LLVM's loop vectoriser takes time that grows with the square of the instructions between two
# branches (it asks of each operation what all are that it depends on): 5 s for so many.
MOST_VECTORISED = 4000
# Loops in a tile whose bounds differ between lanes are written twice, those inside them four times:
# a tile of so many lines is left out. (Those of the examples have 3,200 at most.)
MOST_TILED = 8_000


@dataclass(frozen=True, slots=True)
class CpuCode:
    """A compiled kernel. ``prints`` holds (parts, kinds of the values) of each weft.print."""

    llvm: str
    object: bytes
    symbol: str
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    prints: tuple[tuple[tuple[str | None, ...], tuple[str, ...]], ...]
    tiled: bool  # whether a register tile was written


def compile_cpu(
    function: Function, *, strict_math: bool = False, noalias: bool = False, tiles: bool = True
) -> CpuCode:
    """Machine code of ``function`` for this machine.

    ``strict_math`` turns contraction and reassociation off. ``noalias`` says that no memory written
    through one argument is accessed through another. ``tiles`` allows register tiles.
    """
    with timing.stage("emit"):
        write = functools.partial(
            Kernel, function, host_cpu(), strict_math=strict_math, noalias=noalias
        )
        generator = write(tiles=tiles)
        text = generator.emit()
        if generator.plan is not None and text.count("\n") > MOST_TILED:
            generator = write(tiles=False)
            text = generator.emit()
    with timing.stage("llvm"):
        tiled = generator.plan is not None
        code = machine().emit_object(_optimize(text, tiled=tiled))
    return CpuCode(
        text, code, generator.symbol, argument_slots(function), generator.cpu.tables.described(),
        generator.cpu.tables.printed(), tiled,
    )  # fmt: skip


def optimized(code: CpuCode) -> str:
    """The LLVM IR of a kernel after optimisation."""
    return str(_optimize(code.llvm, tiled=code.tiled))


def assembly(code: CpuCode) -> str:
    """The machine code of a kernel, as assembly."""
    return machine().emit_assembly(_optimize(code.llvm, tiled=code.tiled))


# -- LLVM's side


def _optimize(text: str, *, tiled: bool) -> llvm.ModuleRef:
    """Tiles are vectors already: they need LLVM's simplifications, not its vectorisers. Loops
    with more than ``MOST_VECTORISED`` instructions are not vectorised either."""
    module = llvm.parse_assembly(text)
    module.triple = machine().triple
    module.data_layout = str(machine().target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=1 if tiled else 2)
    options.loop_vectorization = longest_block(text) <= MOST_VECTORISED
    builder = llvm.create_pass_builder(machine(), options)
    if tiled:
        passes = builder.getFunctionPassManager()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
    else:
        builder.getModulePassManager().run(module, builder)
    return module


def longest_block(text: str) -> int:
    """The most instructions of LLVM IR between two labels, to a few lines."""
    return max(part.count("\n") for part in re.split(r"^[\w.]+:$", text, flags=re.MULTILINE))
