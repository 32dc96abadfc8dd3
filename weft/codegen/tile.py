"""Which parallel loops are worth a register tile, and what each value looks like in one.

A tile is ``vectors`` vectors of consecutive iterations of the innermost parallel index (a lane
each), times ``jam`` iterations of an outer parallel index that shares loads. It pays where
iterations hold serial loops whose loads are the same for all lanes or lie side by side; LLVM, which
vectorises innermost loops, would vectorise the serial loop and pay for a sum across lanes in each
iteration. This module only decides; ``lanes`` writes the code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.ir.core import Block, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import ScalarType, i1, i64, index
from weft.ir.views import For, If, Parallel, constant_of, is_constant, memory

VARYING = None  # of ``Plan.stride``: no known relation between the lanes' values

# Operations besides the pure ones that may stand in a tile.
_ALLOWED = {"memref.load", "memref.store", "scf.for", "scf.if", "scf.yield", "scf.reduce"}


@dataclass(slots=True)
class Plan:
    """A tile's shape, and for each value inside how it depends on the lane and on the jam index.

    ``stride`` is what a value grows by from lane to lane: 0 if it is the same for all lanes,
    VARYING if nothing is known. ``reverse``: lanes count the innermost index downwards.
    """

    lanes: int
    vectors: int
    jam: int
    axis: int | None  # the dimension that is jammed
    reverse: bool = False
    stride: dict[Value, int | None] = field(default_factory=dict)
    jammed: dict[Value, bool] = field(default_factory=dict)

    def stride_of(self, value: Value) -> int | None:
        return self.stride.get(value, 0)

    def is_jammed(self, value: Value) -> bool:
        return self.jammed.get(value, False)


def plan(op: Op, vector_bytes: int) -> Plan | None:
    """A tile for an scf.parallel on a machine with vectors of that many bytes, if one pays."""
    body = op.body
    loops = [inner for inner in walk(body) if inner.name == "scf.for"]
    if not loops or op.attrs["kinds"] or not is_constant(Parallel(op).steps[-1], 1):
        return None
    if not all(_allowed(inner) for inner in walk(body)):
        return None
    widest = max(_widths(body), default=0)
    if widest not in (2, 4, 8):
        return None
    found = Plan(vector_bytes // max(widest, 4), 1, 1, None)
    _analyse(found, op, jam=None)
    inside = [access for loop in loops for access in walk(loop.body) if _is_access(access)]
    steps = [lane_step(found, access) for access in inside]
    if any(step not in (0, 1, -1) for step in steps) or not any(steps):
        return None
    stores = [access for access in walk(body) if access.name == "memref.store"]
    if any(lane_step(found, store) not in (1, -1) for store in stores):
        return None
    forward, backward = steps.count(1), steps.count(-1)
    found.reverse = backward > forward
    found.axis = _best_axis(found, op, inside)
    _analyse(found, op, jam=found.axis)
    found.jam = 4 if found.axis is not None else 1
    sums = max(len(loop.results) for loop in loops)
    found.vectors = 4 if sums == 1 else 2 if sums == 2 else 1
    if sums > 2:
        found.jam = min(found.jam, 2)
    return found


def _best_axis(found: Plan, op: Op, inside: list[Op]) -> int | None:
    """The outer index, if there is one, that most loads of whole vectors do not depend on."""
    best, best_shared = None, 0
    for axis, step in enumerate(Parallel(op).steps[:-1]):
        if not is_constant(step, 1):
            continue
        _analyse(found, op, jam=axis)
        vectors = [access for access in inside if lane_step(found, access) != 0]
        shared = sum(not any(map(found.is_jammed, access.operands)) for access in vectors)
        bounds = [v for o in walk(op.body) if o.name == "scf.for" for v in For(o).bounds]
        if shared > best_shared and not any(map(found.is_jammed, bounds)):
            best, best_shared = axis, shared
    return best


def _allowed(op: Op) -> bool:
    if op.name == "scf.for":
        return is_constant(For(op).step, 1)
    if _is_access(op):
        memref, subscripts, _ = memory(op)
        return bool(subscripts) and memref.memref.element is not i1
    return op.name in _ALLOWED or OPS[op.name].pure


def _is_access(op: Op) -> bool:
    return op.name in ("memref.load", "memref.store")


def _widths(body: Block) -> list[int]:
    """Bytes of the numbers that are loaded and carried: what vectors are made of."""
    loaded = [v for op in walk(body) if op.name == "memref.load" for v in op.results]
    carried = [v for op in walk(body) if op.name == "scf.for" for v in op.results]
    return [v.type.bytes for v in (*loaded, *carried) if isinstance(v.type, ScalarType)]


def lane_step(found: Plan, op: Op) -> int | None:
    """How many elements an access moves from lane to lane; None where that is not known."""
    memref, subscripts, _ = memory(op)
    strides = [found.stride_of(v) for v in subscripts]
    if not any(s is VARYING or s for s in strides):
        return 0
    if memref.memref.layout == "strided" or any(s is VARYING or s for s in strides[:-1]):
        return VARYING
    return strides[-1]


def _analyse(found: Plan, op: Op, jam: int | None) -> None:
    """Fills ``stride`` and ``jammed``: forwards, and in loops until nothing changes."""
    found.stride.clear()
    found.jammed.clear()
    args = op.body.args
    found.stride[args[-1]] = -1 if found.reverse else 1
    if jam is not None:
        found.jammed[args[jam]] = True
    _block(found, op.body, False, False)


def _block(found: Plan, block: Block, varying: bool, jammed: bool) -> None:
    """``varying`` and ``jammed``: whether lanes (jammed iterations) disagree on running this."""
    for op in block.ops:
        if op.name == "scf.for":
            _loop(found, op, varying, jammed)
        elif op.name == "scf.if":
            condition = If(op).condition
            apart = varying or found.stride_of(condition) != 0
            many = jammed or found.is_jammed(condition)
            for region in op.regions:
                _block(found, region, apart, many)
            for k, value in enumerate(op.results):
                found.stride[value] = VARYING
                found.jammed[value] = many or any(map(found.is_jammed, If(op).arms(k)))
        else:
            step = _result_stride(found, op)
            many = jammed or any(map(found.is_jammed, op.operands))
            for value in op.results:
                found.stride[value] = step
                found.jammed[value] = many


def _loop(found: Plan, op: Op, varying: bool, jammed: bool) -> None:
    lower, upper, _ = For(op).bounds
    many = jammed or found.is_jammed(lower) or found.is_jammed(upper)
    apart = varying or many or found.stride_of(lower) != 0 or found.stride_of(upper) != 0
    rows = For(op).rows
    for arg, init, _, _ in rows:
        found.stride[arg] = VARYING if apart or found.stride_of(init) != 0 else 0
        found.jammed[arg] = many or found.is_jammed(init)
    changed = True
    while changed:
        changed = False
        _block(found, op.body, apart, many)
        for arg, _, following, result in rows:
            step = VARYING if found.stride_of(arg) != 0 or found.stride_of(following) != 0 else 0
            copies = found.is_jammed(arg) or found.is_jammed(following)
            changed |= step != found.stride[arg] or copies != found.jammed[arg]
            found.stride[arg] = found.stride[result] = step
            found.jammed[arg] = found.jammed[result] = copies


def _result_stride(found: Plan, op: Op) -> int | None:
    """The stride of a result: exact for index arithmetic that keeps lanes evenly spaced."""
    strides = [found.stride_of(v) for v in op.operands]
    if all(s == 0 for s in strides):
        return 0
    wide = bool(op.results) and op.results[0].type in (index, i64)
    if not wide or any(s is VARYING for s in strides):
        return VARYING
    known = [s for s in strides if s is not None]
    if op.name == "arith.addi":
        return known[0] + known[1]
    if op.name == "arith.subi":
        return known[0] - known[1] if known[0] != known[1] else 0
    if op.name == "arith.index_cast" and op.operand.type in (index, i64):
        return known[0]
    if op.name == "arith.muli":
        for factor, other in zip(op.operands, reversed(known), strict=True):
            number = constant_of(factor)
            if number is not None:
                return int(number) * other
    return VARYING
