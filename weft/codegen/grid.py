"""Grids: the LLVM IR of what each thread of a GPU runs, as the schedule left it.

The steps of a schedule make a function that a grid runs (``schedule.bind`` and others): here it
gets its arguments, and is written.
"""

from __future__ import annotations

from weft.codegen.arith import from_word, narrow
from weft.codegen.cuda_target import ORDERING, CudaTarget
from weft.codegen.emit import Emitter, Module, View, symbol_of
from weft.codegen.lines import Lines
from weft.codegen.llvm import emit_block
from weft.codegen.threads import argument_slots
from weft.ir.core import Function, Value
from weft.ir.types import MemRefType, f64
from weft.ir.writes import written
from weft.schedule.apply_cuda import OnGrid
from weft.schedule.language import Align, IndexWidth, Schedule, only, several
from weft.schedule.nest import arrays_of


def stage_names(symbol: str, count: int) -> list[str]:
    """The names of a kernel's stages, the first of which has its own."""
    between = [f"{symbol}_{k}" for k in range(1, count - 1)]
    return [symbol, *between, *[f"{symbol}_finish"] * (count > 1)]


class GridEmitter:
    """The LLVM module of one kernel while it is written."""

    def __init__(self, grid: OnGrid, schedule: Schedule) -> None:
        self.function, self.bound = grid.function, grid.bound
        arrays = arrays_of(self.function)
        # Of each argument that is accessed in whole vectors, their bytes.
        self.limits = {arrays.index(a.array): a.bytes for a in several(schedule, Align)}
        self.narrow = only(schedule, IndexWidth) is not None
        self.divisors = grid.divisors  # the argument block has reciprocals of so many
        self.cuda = CudaTarget(self.bound.stages)
        lines = Lines(self.function.span, gpu=True) if self.function.lined else None
        self.module = Module(lines=lines)
        self.symbol = symbol_of(self.function.name)
        self.slots = argument_slots(self.function)
        self.written = written(self.function)
        bounds = grid.bounds
        traits = f'nounwind "nvvm.maxntid"="{bounds.threads // bounds.cluster}"'
        if bounds.cluster > 1:
            self.cuda.group = bounds.threads
            traits += f' "nvvm.cluster_dim"="{bounds.cluster},1,1"'
        if bounds.resident:
            traits += f' "nvvm.minctasm"="{bounds.resident}"'
        self.traits = self.module.attribute(traits)

    def emit(self) -> str:
        """The module's text: the kernel's stages."""
        stages = self.bound.stages
        for function, name in zip(stages, stage_names(self.symbol, len(stages)), strict=True):
            self._write(function, name)
        return str(self.module)

    def _write(self, function: Function, name: str) -> None:
        e = Emitter(self.module, self.cuda, strict_math=self.function.strict)
        e.ordering = ORDERING
        e.offset_type = "i32" if self.narrow else "i64"
        self._arguments(e, function)
        self.cuda.leave = "leave"
        emit_block(e, function.body)
        self._end(e, name)

    def _arguments(self, e: Emitter, function: Function) -> None:
        args = function.args
        for k, slot in enumerate(self.slots):
            if slot.kind == "record":  # belongs to no argument: there may be none
                self.cuda.record = self._generic(e, f"%s{k}") if self.cuda.checks else ""
                continue
            value = args[slot.arg]
            match slot.kind:
                case "pointer":
                    e.views[value] = View(self._generic(e, f"%s{k}"), value.memref, [], [])
                case "int":
                    e.names[value] = from_word(e, f"%s{k}", value.scalar)
                case "float":
                    e.names[value] = narrow(e, f64, value.scalar, f"%s{k}")
                case "size":
                    e.views[value].sizes.append(self._extent(e, k, value, slot.axis))
                case _:
                    e.views[value].strides.append(self._extent(e, k, value, slot.axis))
        for value in args:
            if (
                isinstance(value.type, MemRefType)
                and value.type.layout == "unit"
                and value.type.rank
            ):
                e.views[value].strides.append("1")
        if len(args) > len(self.function.args):
            partials, blocks = args[-2:]
            words = self._generic(e, "%partials")
            e.views[partials] = View(words, partials.memref, [], [])
            e.names[blocks] = "%blocks"
        self.cuda.reciprocals = [self._reciprocal(e, k) for k in range(self.divisors)]

    def _reciprocal(self, e: Emitter, k: int) -> tuple[str, str]:
        """Multiplier and shift of a divisor, in 32 bits."""
        multiplier = e.inst(f"trunc i64 %d{k} to i32")
        shift = e.inst(f"trunc i64 {e.inst(f'lshr i64 %d{k}, 32')} to i32")
        return multiplier, shift

    def _generic(self, e: Emitter, name: str) -> str:
        return e.inst(f"addrspacecast ptr addrspace(1) {name} to ptr")

    def _extent(self, e: Emitter, k: int, value: Value, axis: int) -> str:
        """A size or stride. Those that rows of aligned vectors depend on are multiples of
        vectors."""
        name = f"%s{k}"
        type = value.memref
        if self.narrow:
            name = e.inst(f"trunc i64 {name} to i32")
        aligned = self.limits
        slot = self.slots[k]
        position = slot.arg
        row = slot.kind == "stride" if type.layout == "unit" else axis == type.rank - 1
        if position in aligned and type.rank > 1 and row:
            name = e.inst(
                f"and {e.offset_type} {name}, {-(aligned[position] // type.element.bytes)}"
            )
        return name

    def _end(self, e: Emitter, name: str) -> None:
        if self.cuda.checks:
            e.jump("leave")
            e.start("leave")
        e.line("ret void")
        types = {"pointer": "ptr addrspace(1)", "record": "ptr addrspace(1)", "float": "double"}
        params = []
        for k, slot in enumerate(self.slots):
            traits = ""
            if slot.kind == "pointer":
                value = self.function.args[slot.arg]
                traits = " noalias" if self.function.attrs.get("noalias", True) else ""
                traits += "" if value in self.written else " readonly"
                traits += f" align {self.limits.get(slot.arg, value.memref.element.bytes)}"
            params.append(f"{types.get(slot.kind, 'i64')}{traits} %s{k}")
        params += ["ptr addrspace(1) noalias %partials", "i64 %blocks"]
        params += [f"i64 %d{k}" for k in range(self.divisors)]
        e.finish(f"define ptx_kernel void @{name}({', '.join(params)}) {self.traits}")
