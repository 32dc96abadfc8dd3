"""The CPU back end: LLVM IR of a kernel, optimised for this machine, as object code."""

from __future__ import annotations

import copy
import re

import llvmlite.binding as llvm

from weft import timing
from weft.codegen.interface import Check, Slot
from weft.codegen.machine import host_cpu, machine
from weft.codegen.optimize import optimize
from weft.codegen.past_caches import streaming
from weft.codegen.tables import described, printed
from weft.codegen.threads import CpuModule, argument_slots
from weft.ir.core import Function, Op, walk
from weft.ir.types import MemRefType, f32, f64, index
from weft.schedule import default_cpu, legal_cpu
from weft.schedule.apply_cpu import apply_cpu
from weft.schedule.language import Schedule, Vectorize, only
from weft.schedule.listener import Listener, ignored
from weft.schedule.machine import CpuMachine
from weft.schedule.register_tile import all_vectors
from weft.schedule.streaming import accessed
from weft.values import frozen

# LLVM's loop vectoriser takes time that grows with the square of the instructions between two
# branches (it asks of each operation what all are that it depends on): 5 s for so many.
MOST_VECTORISED = 4000
# What computes with floats in a cycle, and how much of that a load or a store has time for.
_PLAIN = {"arith.addf", "arith.subf", "arith.mulf", "arith.negf", "arith.cmpf", "arith.select",
          "arith.maximumf", "arith.minimumf", "math.fma"}  # fmt: skip
_FEW = 3


@frozen
class CpuCode:
    """A compiled kernel. ``function``: after the steps of its schedule. ``prints`` holds (parts,
    kinds of the values) of each weft.print. ``simplified``: LLVM vectorised nothing. ``accessed``:
    if stores could stream, the tensors, by number, whose bytes tell whether that pays."""

    function: Function
    llvm: str
    object: bytes
    symbol: str
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    prints: tuple[tuple[tuple[str | None, ...], tuple[str, ...]], ...]
    schedule: Schedule
    simplified: bool
    cpu: str = ""  # what it is made for, if not this machine
    accessed: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()  # what says that there are few, see ``register_tile``
    rare: str = ""  # the function of a loop that few calls take, which is left out

    @property
    def tiled(self) -> bool:
        """Whether it is a register tile."""
        return only(self.schedule, Vectorize) is not None

    def optimized(self) -> str:
        """The LLVM IR after optimisation."""
        return str(_optimize(self.llvm, self.simplified, self.cpu))

    def assembly(self) -> str:
        """The machine code, as assembly."""
        module = _optimize(self.llvm, self.simplified, self.cpu)
        return machine(cpu=self.cpu).emit_assembly(module)


def compile_cpu(
    function: Function, schedule: Schedule | None = None, cpu: str = "",
    streaming_beyond: int | None = None, columns: str = "", *, rare: bool = False,
) -> CpuCode:  # fmt: skip
    """Machine code of ``function`` for this machine, or for the ``cpu`` that is one of
    ``machine.LEVELS``. Without a ``schedule``, the first candidate is taken, and stores may stream
    where its arrays have more bytes than ``streaming_beyond``. ``columns``: "many" where it is not
    called for few iterations along lanes (what the code says of that is to be asked first), "few"
    where it is called for these alone. ``rare``: what is compiled is the function that is left out
    of the code for many, if there is one.
    Raises ``ScheduleError`` where a schedule is not legal."""
    beyond = streaming_beyond if schedule is None else None
    if schedule is not None:
        legal_cpu.check(function, schedule, host_cpu(cpu))
    with timing.stage("emit"):
        if schedule is None:
            found = default_cpu.candidates(function, host_cpu(cpu))
            schedule = found[-1] if columns == "few" else found[0]
            if columns:
                function = copy.copy(function)
                function.attrs = {**function.attrs, "columns": columns}
        kernel = scheduled(
            function, schedule, host_cpu(cpu), streaming_beyond=beyond, rare=rare
        )  # fmt: skip
        text = kernel.emit()
    with timing.stage("llvm"):
        simplified = all_vectors(kernel.function)
        code = machine(cpu=cpu).emit_object(_optimize(text, simplified, cpu))
    symbol = kernel.rare_symbol if rare else kernel.symbol
    return CpuCode(
        kernel.function, text, code, symbol, argument_slots(function),
        described(kernel.function), printed(kernel.function), schedule, simplified, cpu,
        _deciding(kernel.function, schedule, host_cpu(cpu)), _asked(kernel.function),
        "" if rare else kernel.rare_symbol,
    )  # fmt: skip


def _deciding(function: Function, schedule: Schedule, machine: CpuMachine) -> tuple[int, ...]:
    if schedule or machine.vector_bytes < 32:  # whole vectors stream
        return ()
    arrays = accessed(function)
    tensors = (v for v in function.args if isinstance(v.type, MemRefType))
    return tuple(k for k, array in enumerate(tensors) if array in arrays)


def _asked(function: Function) -> tuple[int, ...]:
    said = function.attrs.get("columns", ())
    return said if isinstance(said, tuple) else ()


def scheduled(
    function: Function, schedule: Schedule, machine: CpuMachine, listener: Listener = ignored,
    *, streaming_beyond: int | None = None, rare: bool = False,
) -> CpuModule:  # fmt: skip
    """``function`` after the steps of ``schedule``, to be written as LLVM IR. ``rare``: see
    ``compile_cpu``."""
    beyond = streaming_beyond
    made = apply_cpu(function, schedule, machine, listener, streaming_beyond=beyond)
    bits = 256 if beyond is None and only_moves(function) else 512
    return CpuModule(made, machine, bits, rare=rare)


def only_moves(function: Function) -> bool:
    """Whether its loops compute so little of what they load and store that memory is what they wait
    for: vectors of half the length are as fast at least. In a call of microseconds the first long
    ones take longer than all the rest, for the processor makes ready for them."""
    ops = list(walk(function.body))
    moved = sum(op.name in ("memref.load", "memref.store") for op in ops)
    computed = sum(op.name in _PLAIN for op in ops)
    others = (op for op in ops if op.regions and op.name != "scf.parallel")
    arrays = (a.type.element for a in function.args if isinstance(a.type, MemRefType))
    return (
        computed <= _FEW * moved
        and not any(others)
        and all(_moves(op) for op in ops)
        and all(element in (f32, f64) for element in arrays)
    )


def _moves(op: Op) -> bool:
    if op.name in ("memref.load", "memref.store", "scf.parallel", "scf.reduce", "func.return"):
        return not op.results or op.name == "memref.load"
    of_indices = bool(op.results) and all(value.type is index for value in op.results)
    return op.name in _PLAIN or op.name in ("arith.constant", "memref.dim") or of_indices


# -- LLVM's side


def _optimize(text: str, simplified: bool, cpu: str) -> llvm.ModuleRef:
    """Tiles are vectors already: where there is nothing else, they need LLVM's simplifications, not
    its vectorisers. Loops with more than ``MOST_VECTORISED`` instructions go without these, too."""
    module = llvm.parse_assembly(text)
    made_for = machine(cpu=cpu)
    module.triple, module.data_layout = made_for.triple, str(made_for.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=1 if simplified else 2)
    options.loop_vectorization = longest_block(text) <= MOST_VECTORISED
    optimize(module, made_for, options, simplified=simplified)
    return streaming(module, host_cpu(cpu).vector_bytes)


def longest_block(text: str) -> int:
    """The most instructions of LLVM IR between two labels, to a few lines."""
    return max(part.count("\n") for part in re.split(r"^[\w.]+:$", text, flags=re.MULTILINE))
