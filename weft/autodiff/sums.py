"""Values that a sequential loop carries and only adds to: their adjoint stays the same."""

from __future__ import annotations

from weft.ir.core import Block, Op, Value, walk
from weft.ir.views import For, If
from weft.values import remembered


def _uses(value: Value, block: Block) -> list[Op]:
    return [op for op in walk(block) if value in op.operands]


def passes_through(value: Value, given: Value, block: Block) -> bool:
    """Whether ``given`` is ``value`` plus something, and neither ``value`` nor the sums on the way
    are used for anything else: the adjoint is then the same before and after.

    Each operation on the way takes one of these sums: a terminator that has two hands one of them
    on under another name (``before = s; s += x``).
    """
    chain: set[Op] = {block.terminator}
    sums: set[Value] = {value, given}
    found = _Sums(value)
    if not found.has(given):
        return False
    found.collect(given, chain, sums)
    if any(sum(v in sums for v in op.operands) != 1 for op in chain):
        return False
    return all(op in chain for v in sums for op in _uses(v, block))


class _Sums:
    """Which values are ``value`` plus other things. Many ways lead from one to the next: each is
    looked at once."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.collected: set[Value] = {value}

    @remembered
    def has(self, given: Value) -> bool:
        op = given.op
        if op is None or given is self.value:
            return given is self.value
        match op.name:
            case "scf.if":
                return all(map(self.has, If(op).arms(op.results.index(given))))
            case "scf.for":  # one that only adds to it, too
                _, init, result, inside = _carried(given)
                return _Sums(inside).has(result) and self.has(init)
            case "arith.addf":
                return any(map(self.has, op.operands))
            case "arith.subf":
                return self.has(op.left)
            case _:
                return False

    def collect(self, given: Value, chain: set[Op], sums: set[Value]) -> None:
        """Adds the operations between the two and the partial sums, of a ``given`` that it has."""
        op = given.op
        if given in self.collected or op is None:
            return
        self.collected.add(given)
        before: list[Value] = []
        if op.name == "scf.if":
            before = [*If(op).arms(op.results.index(given))]
            chain.update(region.terminator for region in op.regions)
        elif op.name == "scf.for":
            loop, init, result, inside = _carried(given)
            chain.update((loop, loop.body.terminator))
            sums.update((inside, result))
            _Sums(inside).collect(result, chain, sums)
            before = [init]
        else:
            chain.add(op)
            before = [next(filter(self.has, op.operands))]
        sums.update(before)
        for each in before:
            self.collect(each, chain, sums)


def _carried(result: Value) -> tuple[Op, Value, Value, Value]:
    """The loop that ``result`` is of, and what it begins at, ends a turn as, and is in it."""
    assert result.op is not None
    loop, place = For(result.op), result.op.results.index(result)
    return result.op, loop.inits[place], loop.yielded[place], loop.carried[place]


def is_unread(value: Value, block: Block) -> bool:
    """A carried value that no iteration looks at but to hand it on."""
    return all(op is block.terminator for op in _uses(value, block))
