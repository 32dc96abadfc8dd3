"""Which additions are accumulations: those that LLVM may reorder."""

from __future__ import annotations

from weft.ir.core import Function, Op, Value, walk
from weft.ir.views import For, constant_of, memory


def accumulations(function: Function) -> set[Op]:
    """The additions and subtractions that only carry a sum from one iteration of a serial loop to
    the next, and the updates of memory that nothing else reads.

    Reordering them (LLVM's ``reassoc``) lets loops vectorise. Elsewhere it would make x * (c + 1)
    of x + c * x, which is no NaN where x is infinite. Hence what is added must not depend on the
    sum: a sum that has any other use in the loop is none of these.
    """
    ops = list(walk(function.body))
    users: dict[Value, list[Op]] = {}
    parents = {region.terminator: op for op in ops for region in op.regions}
    for op in ops:
        for operand in op.operands:
            users.setdefault(operand, []).append(op)
    found: set[Op] = set()
    for loop in ops:
        if loop.name == "scf.for":
            for k, value in enumerate(loop.results):
                if value.scalar.is_float:
                    found |= _carried(loop, k, users, parents)
    return found | _updates(ops, users)


def _updates(ops: list[Op], users: dict[Value, list[Op]]) -> set[Op]:
    """The additions to elements of memrefs that are read for nothing else, and into which nothing
    else but constants is stored: LLVM knows what an element holds from the store of it."""
    found: dict[Op, Value] = {}
    read: set[Value] = set()
    stored: dict[Op, Value] = {}
    for op in ops:
        if op.name == "memref.atomic_rmw":
            found[op], _, _ = memory(op)
        elif op.name == "memref.load":
            memref, at, _ = memory(op)
            update = _update(op.result, memref, at, users)
            if update is None:
                read.add(memref)
            else:
                found[update] = memref
        elif op.name == "memref.store":
            memref, _, (value,) = memory(op)
            if constant_of(value) is None:
                stored[op] = memref
    sums = (op for op in found if op.name != "memref.atomic_rmw")
    updating = {store for op in sums for store in users.get(op.result, ())}
    read |= {memref for op, memref in stored.items() if op not in updating}
    return {op for op, memref in found.items() if memref not in read}


def _update(old: Value, memref: Value, at: list[Value], users: dict[Value, list[Op]]) -> Op | None:
    """The addition to ``old``, the element of ``memref`` at ``at``, whose result takes its place;
    None where ``old`` or the sum is used otherwise."""
    match users.get(old):
        case [Op(name="arith.addf") as add]:
            pass
        case [Op(name="arith.subf") as add] if add.right is not old:
            pass
        case _:
            return None
    match users.get(add.result):
        case [Op(name="memref.store") as store] if memory(store)[:2] == (memref, at):
            return add
        case _:
            return None


def _carried(loop: Op, place: int, users: dict[Value, list[Op]], parents: dict[Op, Op]) -> set[Op]:
    """The additions to the sum that ``loop`` carries at ``place``; none where a partial sum has
    another use in the loop."""
    found: set[Op] = set()
    left = [For(loop).carried[place]]
    sums = set(left)

    def follow(*values: Value) -> None:
        left.extend(v for v in values if v not in sums)
        sums.update(values)

    while left:
        value = left.pop()
        for op in users.get(value, ()):
            match op.name:
                case "scf.yield":
                    parent, places = (
                        parents[op],
                        [k for k, v in enumerate(op.operands) if v is value],
                    )
                    if parent is loop:
                        if places != [place]:
                            return set()
                    elif parent.name == "scf.if":
                        follow(*(parent.results[k] for k in places))
                    elif parent.name != "scf.for" or any(
                        For(parent).carried[k] not in sums for k in places
                    ):
                        return set()
                case "scf.for" if value not in For(op).bounds:
                    rows = [(arg, last) for arg, v, _, last in For(op).rows if v is value]
                    follow(*(v for row in rows for v in row))
                case "arith.addf":
                    found.add(op)
                    follow(op.result)
                case "arith.subf" if op.right is not value:
                    found.add(op)
                    follow(op.result)
                case "arith.select" if op.left is not value:
                    follow(op.result)
                case _:
                    return set()
    doubled = any(all(v in sums for v in op.operands) for op in found)
    return set() if doubled else found
