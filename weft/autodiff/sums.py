"""Values that a sequential loop carries and only adds to: their adjoint stays the same."""

from __future__ import annotations

from weft.ir.core import Block, Op, Value, walk
from weft.ir.views import For, If


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
    if given is not value and not _is_sum(value, given, chain, sums):
        return False
    if any(sum(v in sums for v in op.operands) != 1 for op in chain):
        return False
    return all(op in chain for v in sums for op in _uses(v, block))


def _is_sum(value: Value, given: Value, chain: set[Op], sums: set[Value]) -> bool:
    """Whether ``given`` is ``value`` plus other things; collects operations and partial sums."""
    if given is value:
        return True
    op = given.op
    if op is None:
        return False
    if op.name == "scf.if":
        arms = If(op).arms(op.results.index(given))
        chain.update(region.terminator for region in op.regions)
        sums.update(arms)
        return all(_is_sum(value, arm, chain, sums) for arm in arms)
    if op.name == "scf.for":  # one that only adds to it, too
        loop, place = For(op), op.results.index(given)
        inside, result = loop.carried[place], loop.yielded[place]
        chain.update((op, op.body.terminator))
        sums.update((loop.inits[place], inside, result))
        adds = _is_sum(inside, result, chain, sums)
        return adds and _is_sum(value, loop.inits[place], chain, sums)
    if op.name not in ("arith.addf", "arith.subf"):
        return False
    chain.add(op)
    a, b = op.operands
    inner_chain, inner_sums = set(chain), {*sums, a}
    if _is_sum(value, a, inner_chain, inner_sums):
        chain |= inner_chain
        sums |= inner_sums
        return True
    sums.add(b)
    return op.name == "arith.addf" and _is_sum(value, b, chain, sums)


def is_unread(value: Value, block: Block) -> bool:
    """A carried value that no iteration looks at but to hand it on."""
    return all(op is block.terminator for op in _uses(value, block))
