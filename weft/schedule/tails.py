"""Rows in whole vectors, and their ends under a mask.

LLVM writes a loop by vectors several times: by four vectors at a time, by half a vector, and one by
one. A row of 100 numbers goes by all three, one of 20 by the last two, and where an iteration goes
along several short rows, that is most of its time. Here such a loop goes to the last whole four
vectors, and a second one from there to the end: of that LLVM makes one loop by vectors, in whose
last turn a mask leaves out what is not there. A mask costs some operations for each vector, so this
is for turns that compute much.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.bounded import LOOPS
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, defined, walk
from weft.ir.ops import DIVISIONS
from weft.ir.types import ScalarType, f32, i1
from weft.ir.views import For, constant_of, is_constant, memory
from weft.schedule.combiners import combiners, is_joint
from weft.schedule.legal_cpu import INSTRUCTIONS, is_access, is_plain
from weft.schedule.machine import CpuMachine
from weft.schedule.variation import Variation

VECTORS = 4  # at a time, which LLVM has of a loop
COMPUTED = 3  # operations for each access, up to which masks cost more than they save
_FUNCTION = 20  # operations that a function is
# What code generation writes out as arithmetic of f32: of other functions there are calls.
WRITTEN_OUT = ("math.exp", "math.exp2", "math.log", "math.tanh", "math.erf")


def tails(function: Function, machine: CpuMachine) -> Function:
    """``function``, whose threads share chunks, with such loops along rows.

    Where there are no vectors with masks, where arguments may overlap, and where sums keep their
    order nothing changes, nor do loops whose turns LLVM has no masked vectors for, whose stores
    stream, or whose number of turns is known or differs from iteration to iteration.
    """
    if machine.vector_bytes < 64 or not function.attrs.get("noalias") or function.strict:
        return function
    found: dict[Op, int] = {}
    for shared in (op for op in function.body.ops if "chunks" in op.attrs):
        for around in walk(shared.body):
            if around.name == "scf.for" and "independent" not in around.attrs:
                found |= {op: lanes for op in _rows(around) if (lanes := _lanes(op, machine))}
    return _Tails(found).function(function) if found else function


def _rows(around: Op) -> list[Op]:
    """The loops in an iteration of ``around`` whose bounds are those of all iterations: others may
    have two or three turns, with nothing to gain."""
    made = defined([around.body])
    return [op for op in around.body.ops
            if op.name == "scf.for" and made.isdisjoint(For(op).bounds)]  # fmt: skip


def _lanes(loop: Op, machine: CpuMachine) -> int:
    """The lanes of a vector of ``loop``, if it is to be cut; else 0."""
    view, ops = For(loop), loop.body.ops[:-1]
    known = constant_of(view.lower) is not None and constant_of(view.upper) is not None
    if known or not is_constant(view.step, 1) or not {*loop.attrs} <= {"counts"}:
        return 0
    if any(op.name in LOOPS or op.regions or "streaming" in op.attrs for op in ops):
        return 0
    if not _in_parts(loop):
        return 0
    accesses = [op for op in ops if is_access(op)]
    loaded = [v for op in accesses for v in (*op.results, *memory(op)[2])]
    types = [v.type for v in (*loaded, *loop.results) if isinstance(v.type, ScalarType)]
    if len(types) < len(loaded) + len(loop.results) or i1 in types or not accesses:
        return 0
    if sum(map(_cost, ops)) <= COMPUTED * len(accesses):
        return 0
    width = machine.vector_bytes // max(4, *(t.bytes for t in types))
    if not all(_has_masks(op, machine) for op in ops):
        return 0
    along = Variation(loop.body, {view.index: 1})
    strides = [along.stride(op) for op in accesses]
    stored = [s for op, s in zip(accesses, strides, strict=True) if op.name == "memref.store"]
    return width if {*strides} <= {0, 1} and 1 in strides and {*stored} <= {1} else 0


def _in_parts(loop: Op) -> bool:
    """Whether each lane may have a part of what ``loop`` carries: no products, and sums of floats
    in any order."""
    for kind, (_, _, end, _) in zip(combiners(loop).kinds, For(loop).rows, strict=True):
        if kind is None or kind == "mulf" or is_joint(kind):
            return False
        if kind == "addf" and (end.op is None or "reassociate" not in end.op.attrs):
            return False
    return True


def _has_masks(op: Op, machine: CpuMachine) -> bool:
    """Whether LLVM makes vectors of ``op`` in a loop in which a mask leaves out lanes."""
    if is_access(op):
        return True
    if op.name.startswith("math.") and op.name not in INSTRUCTIONS:
        return op.name in WRITTEN_OUT and op.result.scalar is f32 and bool(machine.lanes(f32))
    return is_plain(op) and op.name not in DIVISIONS


def _cost(op: Op) -> int:
    if is_access(op) or op.name == "arith.constant":
        return 0
    return _FUNCTION if op.name in WRITTEN_OUT else 1


class _Tails(Rewriter):
    def __init__(self, found: dict[Op, int]) -> None:
        super().__init__(None, self._around)
        self.found = found

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op not in self.found:
            return None
        lower, upper, step = map(self.lookup, For(op).bounds)
        shift = self.index((VECTORS * self.found[op]).bit_length() - 1)
        length = self.op("arith.subi", upper, lower, overflow="nsw")
        length = self.op("arith.maxsi", length, self.index(0))
        whole = self.op("arith.shli", self.op("arith.shrsi", length, shift), shift)
        middle = self.op("arith.addi", lower, whole, overflow="nsw")
        carried = list(map(self.lookup, For(op).inits))
        for begin, end, attrs in ((lower, middle, {}), (middle, upper, {"tail": True})):
            made = self.for_(begin, end, step, carried, **op.attrs, **attrs)
            self.region(op.body, made.body)
            carried = list(made.results)
        return carried
