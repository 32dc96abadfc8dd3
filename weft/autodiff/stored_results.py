"""What the loop has stored, in an adjoint: loaded, where it would be computed once more.

``out[j] = exp(x[j] - m) / t`` says what ``out[j]`` is in the adjoint, too. There, ``g / t`` times
``exp(x[j] - m)`` is ``g * out[j]``: neither ``m`` nor ``t`` nor ``x`` is asked for, and softmax's
gradient goes over its rows twice, as one writes it by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from weft.autodiff.clean import clean
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, defined, walk
from weft.ir.types import f32, f64
from weft.ir.views import is_constant, made_by, memory
from weft.ir.writes import loaded, written
from weft.passes.cse import cse
from weft.passes.factor import factor
from weft.passes.hoist import hoist
from weft.passes.same_range_loops import ValueNumbers, same_range_loops, walk_blocks
from weft.values import frozen

_LONGEST = 16  # factors of a product that is looked at


def stored_results(function: Function, results: Collection[str]) -> Function | None:
    """``function``, an adjoint that stores again what the arguments ``results`` hold, with loads of
    these in place of products that have what was stored as a factor, and without the stores. None
    where no loop is saved by that, or no array that would be read.

    Precondition: each element of ``results`` is stored once, and has the contents from after the
    loop. Rounds otherwise than the usual adjoint does: not used with ``strict_math``.
    """
    usual = _without(function, results)
    function = factor(cse(hoist(function)))
    found = dict(_uses(function, [a for a in function.args if a.name in results]))
    if not found:
        return None
    made = _without(_Loads(found).function(function), results)
    fewer = _count_loops(made) < _count_loops(usual)
    return made if fewer and _reads(made) - {*results} < _reads(usual) else None


def _count_loops(function: Function) -> int:
    return sum(op.name == "scf.for" for op in walk(function.body))


def _reads(function: Function) -> set[str | None]:
    return {memref.name for memref in loaded(function)}


def _without(function: Function, results: Collection[str]) -> Function:
    """``function`` without stores to ``results``, and without additions of nothing."""

    def visit(op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op.name == "memref.store" and memory(op)[0].name in results:
            return ()
        if op.name == "memref.atomic_rmw" and op.attrs["kind"] == "addf":
            (added,) = memory(op)[2]
            return (added,) if is_constant(added, 0) else None
        return None

    return clean(Rewriter(visit).function(function))


@frozen
class _Product:
    """A product or quotient: ``above`` by ``below``, or the negative of that."""

    above: Counter[Value]
    below: Counter[Value]
    minus: bool

    def times(self, other: _Product) -> _Product:
        return _Product(
            self.above + other.above, self.below + other.below, self.minus != other.minus
        )

    def has(self, other: _Product) -> bool:
        return other.above <= self.above and other.below <= self.below

    def by(self, other: _Product, names: Mapping[Value, Value]) -> _Product:
        """What is left without ``other``, a factor, by other ``names``."""
        above, below = (
            Counter([names.get(v, v) for v in (mine - theirs).elements()])
            for mine, theirs in ((self.above, other.above), (self.below, other.below))
        )
        return _Product(above, below, self.minus != other.minus)


class _Products:
    """Values as products of values that are none; ``equal``: what these are called."""

    def __init__(self, equal: Mapping[Value, Value]) -> None:
        self.equal = equal
        self.known: dict[Value, _Product] = {}

    def __getitem__(self, value: Value) -> _Product:
        if value not in self.known:
            found = self._product(value)
            long = found is None or sum((found.above + found.below).values()) > _LONGEST
            self.known[value] = self._alone(value) if found is None or long else found
        return self.known[value]

    def _alone(self, value: Value) -> _Product:
        above = () if is_constant(value, 1) else (self.equal.get(value, value),)
        return _Product(Counter(above), Counter(), False)

    def _product(self, value: Value) -> _Product | None:
        if (negative := made_by(value, "arith.negf")) is not None:
            one = self[negative.operand]
            return _Product(one.above, one.below, not one.minus)
        if (product := made_by(value, "arith.mulf")) is not None:
            return self[product.left].times(self[product.right])
        if (quotient := made_by(value, "arith.divf")) is not None:
            one = self[quotient.right]
            return self[quotient.left].times(_Product(one.below, one.above, one.minus))
        return None


@frozen
class _Use:
    """An operation that gives ``rest`` times the element ``at`` of ``result``."""

    result: Value
    at: tuple[Value, ...]
    rest: _Product


def _uses(function: Function, results: Collection[Value]) -> Iterator[tuple[Op, _Use]]:
    """The operations with a factor that is stored in the same block, or in a loop beside it."""
    constant = {*function.args} - written(function)
    for block in walk_blocks(function.body):
        stores = _stores(block, results)
        if stores:
            yield from _in_block(block, stores, block, {})
        for group in same_range_loops(block):
            loops = [block.ops[k] for k in group]
            for loop in loops:
                if not (stores := _stores(loop.body, results)):
                    continue
                numbers = ValueNumbers(loop, lambda m: m in constant)
                for other in loops:
                    if other is not loop:
                        equal = numbers.matched(other)
                        yield from _in_block(loop.body, stores, other.body, equal)


def _stores(block: Block, results: Collection[Value]) -> list[Op]:
    return [
        op for op in block.ops
        if op.name == "memref.store" and (memref := memory(op)[0]) in results
        and memref.memref.element in (f32, f64)
    ]  # fmt: skip


def _in_block(
    block: Block, stores: Sequence[Op], into: Block, equal: Mapping[Value, Value]
) -> Iterator[tuple[Op, _Use]]:
    """Those of the block ``into`` with a factor that ``block`` stores. ``equal``: what values of
    ``into`` are in ``block``."""
    same = {theirs: mine for mine, theirs in equal.items()}
    inside = defined([block]) if block is not into else set[Value]()
    own, given = _Products({}), _Products(equal)
    for store in stores:
        memref, at, (value,) = memory(store)
        if any(v in inside and v not in same for v in at):
            continue
        places = tuple(same.get(v, v) for v in at)
        known = own[value]
        for op in into.ops:
            if op.name in ("arith.mulf", "arith.divf") and given[op.result].has(known):
                yield op, _Use(memref, places, given[op.result].by(known, same))


class _Loads(Rewriter):
    """Each operation of ``found`` as a product with a load."""

    def __init__(self, found: Mapping[Op, _Use]) -> None:
        super().__init__()
        self.found = found

    def rewrite(self, op: Op) -> None:
        use = self.found.get(op)
        if use is None:
            super().rewrite(op)
            return
        value = self.load(self.lookup(use.result), [self.lookup(v) for v in use.at])
        for times in use.rest.above.elements():
            value = self.op("arith.mulf", self.lookup(times), value)
        for divisor in use.rest.below.elements():
            value = self.op("arith.divf", value, self.lookup(divisor))
        if use.rest.minus:
            value = self.op("arith.negf", value)
        self.replacement[op.result] = value
