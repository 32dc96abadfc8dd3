"""What the loop has stored, in an adjoint: loaded, where it would be computed once more.

``out[j] = exp(x[j] - m) / t`` says what ``out[j]`` is in the adjoint, too. There, ``g / t`` times
``exp(x[j] - m)`` is ``g * out[j]``: neither ``m`` nor ``t`` nor ``x`` is asked for, and softmax's
gradient goes over its rows twice, as one writes it by hand.

So it does where ``inv = 1 / t`` was written, and ``exp(x[j] - m) * inv``: products with a
reciprocal are quotients here. Its adjoint, the sum of ``g * exp(x[j] - m)``, is asked for as a
quotient by ``t`` alone, and becomes the sum of such quotients, which are ``g * out[j]``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from weft.autodiff.clean import clean
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, defined, walk
from weft.ir.types import f32, f64
from weft.ir.views import For, is_constant, made_by, memory
from weft.ir.writes import loaded, written
from weft.passes.cse import cse
from weft.passes.factor import factor
from weft.passes.hoist import hoist
from weft.passes.same_range_loops import ValueNumbers, same_range_loops, walk_blocks
from weft.values import frozen

_LONGEST = 16  # factors of a product that is looked at
_SUMS = ("arith.addf", "arith.subf", "math.fma", "scf.for")


def stored_results(
    function: Function, results: Collection[str]
) -> tuple[Function | None, Function]:
    """``function``, an adjoint that stores again what the arguments ``results`` hold, with loads of
    these in place of products that have what was stored as a factor, and without the stores. None
    where no loop is saved by that, or no array that would be read. Then the usual adjoint, which
    stores nothing again.

    Precondition: each element of ``results`` is stored once, and has the contents from after the
    loop. Rounds otherwise than the usual adjoint does: not used with ``strict_math``.
    """
    usual = _without(function, results)
    function = clean(factor(cse(hoist(_quotients(function)))))
    if divided := _divided_sums(function, [a for a in function.args if a.name in results]):
        function = _DividedSums(divided).function(function)
    found = dict(_uses(function, [a for a in function.args if a.name in results]))
    if not found:
        return None, usual
    made = _without(_Loads(found).function(function), results)
    fewer = _count_loops(made) < _count_loops(usual)
    return made if fewer and _reads(made) - {*results} < _reads(usual) else None, usual


def may_save(function: Function, results: Collection[Value]) -> bool:
    """Whether ``stored_results`` of an adjoint of ``function`` may find what it looks for, as far
    as that is seen before there is an adjoint: some of what is stored in ``results`` is a factor
    there. A sum that is only stored is none: its derivative does not ask for it."""
    ops = [*walk(function.body)]
    if not any(op.name == "scf.for" for op in ops):
        return False
    uses = Counter(v for op in ops for v in op.operands)
    like = Counter(map(_form, ops))
    stored = (memory(op) for op in ops if op.name == "memref.store")
    return any(
        value.op is None or uses[value] > 1 or like[_form(value.op)] > 1
        or value.op.name not in _SUMS
        for memref, _, (value,) in stored if memref in results
    )  # fmt: skip


def _form(op: Op) -> tuple[str, ...]:
    """What operations that compute the same have in common, at a glance."""
    of = (made.name if (made := v.op) is not None else "" for v in op.operands)
    return op.name, *of


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


def _quotients(function: Function) -> Function:
    """``function`` with ``a / t`` for each ``a * (1 / t)``."""

    def visit(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op.name == "arith.mulf":
            for value, other in ((op.left, op.right), (op.right, op.left)):
                inverse = made_by(value, "arith.divf")
                if inverse is not None and is_constant(inverse.left, 1):
                    return [rewriter.op("arith.divf", other, inverse.right)]
        return None

    return Rewriter(visit).function(function)


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
class _DividedSum:
    """The sum of what ``add`` adds to what was there ``before``, which ``quotient`` divides and
    nobody else asks for."""

    add: Op
    before: Value
    addend: Value
    quotient: Op


def _divided_sums(function: Function, results: Collection[Value]) -> list[_DividedSum]:
    """The sums of products that have a factor which is stored in their loop, once they are divided
    by what they are divided by behind it."""
    users: dict[Value, list[Op]] = {}
    for op in walk(function.body):
        for value in op.operands:
            users.setdefault(value, []).append(op)
    found = list[_DividedSum]()
    for block in walk_blocks(function.body):
        known = {*function.args}  # in front of the loop
        for op in block.ops:
            if op.name == "scf.for" and (stores := _stores(op.body, results)):
                sums = (_divided_sum(row, stores, users) for row in For(op).rows)
                found += [one for one in sums if one and one.quotient.right in known]
            known.update(op.results)
    return found


def _divided_sum(
    row: tuple[Value, Value, Value, Value], stores: Sequence[Op], users: Mapping[Value, list[Op]]
) -> _DividedSum | None:
    before, init, after, total = row
    add = made_by(after, "arith.addf")
    if add is None or not is_constant(init, 0) or users[before] != [add] or len(users[after]) > 1:
        return None
    match users.get(total):
        case [Op(name="arith.divf") as quotient] if quotient.right is not total:
            pass
        case _:
            return None
    addend, products = add.right if add.left is before else add.left, _Products({})
    by = products[quotient.right]
    divided = products[addend].times(_Product(by.below, by.above, by.minus))
    stored = [products[memory(op)[2][0]] for op in stores]
    gains = any(divided.has(one) and not products[addend].has(one) for one in stored)
    return _DividedSum(add, before, addend, quotient) if gains else None


class _DividedSums(Rewriter):
    """Sums of quotients in place of the quotients of sums."""

    def __init__(self, found: Sequence[_DividedSum]) -> None:
        super().__init__()
        self.adds = {one.add: one for one in found}
        self.quotients = {one.quotient for one in found}

    def rewrite(self, op: Op) -> None:
        if op in self.quotients:
            self.replacement[op.result] = self.lookup(op.left)
            return
        one = self.adds.get(op)
        if one is None:
            super().rewrite(op)
            return
        part = self.op("arith.divf", self.lookup(one.addend), self.lookup(one.quotient.right))
        self.replacement[op.result] = self.op("arith.addf", self.lookup(one.before), part)


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
