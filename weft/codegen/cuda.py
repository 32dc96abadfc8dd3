"""The CUDA back end: what is known of a kernel before a call, and its PTX by a schedule."""

from __future__ import annotations

from weft import timing
from weft.codegen import ptx
from weft.codegen.emit import symbol_of
from weft.codegen.grid import GridEmitter
from weft.codegen.launching import Facts
from weft.codegen.program import program_of
from weft.codegen.tables import described, printed
from weft.codegen.threads import argument_slots
from weft.ir.core import Function, Op, walk
from weft.ir.ops import OPS
from weft.ir.views import memory
from weft.passes.reciprocal import reciprocal
from weft.schedule import analyse as analysis
from weft.schedule.apply_cuda import apply_cuda
from weft.schedule.language import Scan, Schedule, only
from weft.schedule.listener import Listener, ignored
from weft.schedule.prefetch import only_sums
from weft.settings import deeply
from weft.values import frozen


@frozen
class CudaCode:
    """A kernel by one schedule, for one architecture. Its functions are ``symbol`` and, where it
    reduces, ``symbol`` + "_finish"."""

    arch: str
    schedule: Schedule
    llvm: str
    functions: tuple[str, ...]  # of libdevice
    ptx: str
    symbol: str

    def optimized(self) -> str:
        """The LLVM IR after optimisation."""
        return str(ptx.optimized(self.llvm, self.arch, self.functions))


@deeply
def analyse(function: Function, asked: str | None = None) -> Facts:
    """What launching needs to know of ``function``, the result of the passes: see
    ``schedule.analyse``. Raises ``ScheduleError``."""
    found = analysis.analyse(function, program_of(function), asked)
    return Facts(
        symbol_of(function.name), argument_slots(function), described(function),
        printed(function), found.nest, tuple(map(str, found.candidates)), found.asked,
    )  # fmt: skip


@deeply
def compile_cuda(function: Function, schedule: Schedule, arch: str) -> CudaCode:
    """PTX of ``function`` by a schedule. ``arch`` as ``ptx.architecture`` gives it."""
    with timing.stage("emit"):
        grid = scheduled(function, schedule)
        text = grid.emit()
    with timing.stage("llvm"):
        functions = tuple(sorted(grid.cuda.functions))
        module = ptx.optimized(text, arch, functions)
    with timing.stage("ptx"):
        assembly = ptx.assemble(module, arch)
        stages = grid.bound.stages
        if any("streaming" in op.attrs for stage in stages for op in walk(stage.body)):
            assembly = ptx.streaming(assembly)
        loops = [op for op in walk(stages[0].body) if op.name in ("scf.for", "scf.while")]
        if all(map(_unrolls, loops)):
            assembly = ptx.unrolled(assembly)
        assembly = ptx.dependent(assembly, arch)
    return CudaCode(arch, schedule, text, functions, assembly, grid.symbol)


def _unrolls(loop: Op) -> bool:
    """Whether ``ptxas`` may unroll ``loop`` as it likes: where it only sums, or only reads what
    threads of a block share."""
    if loop.name != "scf.for" or "unroll" in loop.attrs:
        return False
    plain = all(op.name == "memref.load" or OPS[op.name].pure for op in loop.body.ops[:-1])
    loads = [op for op in loop.body.ops if op.name == "memref.load"]
    return only_sums(loop) or (plain and all(memory(op)[0].memref.space for op in loads))


def scheduled(function: Function, schedule: Schedule, listener: Listener = ignored) -> GridEmitter:
    """``function`` after the steps of ``schedule``, to be written as LLVM IR. ``listener``: see
    ``apply_cuda``. Raises ``ScheduleError`` for what the loop does not allow."""
    if only(schedule, Scan) is None and not function.strict:
        function = reciprocal(function, carried=True)
    return GridEmitter(apply_cuda(function, schedule, program_of, listener), schedule)
