"""Sums of products with what a loop does not change: that factor is taken out of the sum."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.made import made_alike
from weft.ir.ops import OPS
from weft.ir.types import f32, f64
from weft.ir.views import For, Select, is_constant, made_by
from weft.passes.same_range_loops import (
    Touched,
    ValueNumbers,
    may_reuse_memory,
    same_range_loops,
    walk_blocks,
)
from weft.values import frozen, remembered


def factor(function: Function) -> Function:
    """In a derivative, a sum of ``c * z``, ``z / c`` or ``-z``, where the loop does not change c,
    is c times the sum of z, divided by c, or taken off: where a loop of the same iterations, in
    front of it or the same, adds up z already; or where such a loop may do so, as c need not be
    known. ``y`` less ``s * (y / s)`` is nothing then.

    So softmax's gradient adds up its exponentials and ``g * exp(x)``, and nothing else.
    Precondition: a verified function after ``hoist`` and ``cse``. Not used with ``strict_math``:
    sums are rounded otherwise. A function that a person wrote keeps its sums, some of which may
    overflow where others do not; those of a derivative have no order that anybody wrote.
    Non-goals: sums of f16 and bf16, which overflow early.
    """
    if not function.attrs.get("order") or not may_reuse_memory(function):
        return function
    while (found := _first(function)) is not None:
        function = found.function(function)
    return function


class _Uses:
    """Who uses each value, and what each operation is in."""

    def __init__(self, function: Function) -> None:
        self.of: dict[Value, list[Op]] = {}
        self.around: dict[Op, Op | None] = {}
        self.survey(function.body, None)

    def survey(self, block: Block, around: Op | None) -> None:
        for op in block.ops:
            self.around[op] = around
            for value in op.operands:
                self.of.setdefault(value, []).append(op)
            for region in op.regions:
                self.survey(region, op)

    @remembered
    def only_in(self, value: Value, bounds: tuple[Value, ...]) -> bool:
        """Whether nobody asks for ``value`` where loops with these ``bounds`` have no turns."""

        def inside(op: Op | None) -> bool:
            while (op := self.around[op] if op is not None else None) is not None:
                if op.name == "scf.for" and For(op).bounds == bounds:
                    return True
            return False

        def alike(op: Op) -> bool:
            if inside(op):
                return True
            results = op.results
            if op.name == "scf.for" and For(op).bounds == bounds:
                results = [
                    v for v, init in zip(results, For(op).inits, strict=True) if init is value
                ]
            elif op.regions or not OPS[op.name].pure:
                return False
            return all(self.only_in(v, bounds) for v in results)

        return all(map(alike, self.of.get(value, ())))


@frozen
class _Term:
    """What an iteration adds to carried value ``place``: ``core``, with operations on it (name,
    other operand), each with what the loop does not change. ``sure``: the sum does not matter where
    the loop has no turns."""

    place: int
    core: Value
    by: tuple[tuple[str, Value | None], ...]
    sure: bool


def _first(function: Function) -> _Factored | None:
    uses = _Uses(function)
    for block in walk_blocks(function.body):
        groups = same_range_loops(block)
        touched = Touched(block) if groups else None
        for group in groups:
            before: dict[int, list[_Term]] = {}
            for n, place in enumerate(group):
                loop = block.ops[place]
                terms = _terms(loop, uses)
                known = _known(block, before, place, terms, touched) if touched else {}
                before[place] = terms
                cores = [t.core for t in terms]
                moved = [t for t in terms if any(name != "arith.negf" for name, _ in t.by)]
                twice = len({*cores}) < len(cores) and any(t.by for t in terms)
                if known or twice or (n and moved):
                    return _Factored(loop, terms, known)
    return None


def _terms(loop: Op, uses: _Uses) -> list[_Term]:
    """The sums of a loop."""
    body, bounds = loop.body, For(loop).bounds
    inside = {*body.args, *(v for op in walk(body) for v in op.results)}
    found: list[_Term] = []
    for k, (arg, _, end, last) in enumerate(For(loop).rows):
        op = end.op
        once = len(uses.of.get(end, ())) == len(uses.of.get(arg, ())) == 1
        if op not in body.ops or end.type not in (f32, f64) or not once:
            continue
        if op.name == "arith.addf" and arg in op.operands:
            added, by = (op.right if op.left is arg else op.left), []
        elif op.name == "arith.subf" and op.left is arg:
            added, by = op.right, [("arith.negf", None)]
        else:
            continue
        sure = uses.only_in(last, bounds)
        found.append(_Term(k, *_core(added, by, inside, body), sure))
    return found


def _core(
    value: Value, by: Sequence[tuple[str, Value | None]], inside: set[Value], body: Block
) -> tuple[Value, tuple[tuple[str, Value | None], ...]]:
    """What is left of ``value`` without factors from outside of the loop, and these."""
    while (op := value.op) is not None and value in inside:
        if op.name == "arith.negf":
            value, more = op.operand, ("arith.negf", None)
        elif op.name == "arith.addf" and op.left is op.right:
            value, more = op.left, ("arith.addf", None)
        elif op.name == "arith.mulf" and (op.left in inside) != (op.right in inside):
            value, other = (op.left, op.right) if op.left in inside else (op.right, op.left)
            more = "arith.mulf", other
        elif op.name == "arith.divf" and op.right not in inside:
            value, more = op.left, ("arith.divf", op.right)
        elif op.name == "arith.mulf" and (found := _quotient(op, inside, body)) is not None:
            value, more = found[0], ("arith.divf", found[1])
        else:
            break
        by = [more, *by]
    return value, tuple(by)


def _quotient(op: Op, inside: set[Value], body: Block) -> tuple[Value, Value] | None:
    """y * z and c of a product y * (z / c), if the loop has y * z, too."""
    for y, other in ((op.left, op.right), (op.right, op.left)):
        quotient = made_by(other, "arith.divf")
        if quotient is None or quotient.right in inside:
            continue
        for same in body.ops:
            if same.name == "arith.mulf" and {*same.operands} == {y, quotient.left}:
                return same.result, quotient.right
    return None


def _known(
    block: Block, others: Mapping[int, Sequence[_Term]], place: int, terms: Sequence[_Term],
    touched: Touched,
) -> dict[Value, Value]:  # fmt: skip
    """Of cores of ``terms``, of the loop at ``place``, the sums that loops at ``others``, with
    their terms, in front have."""
    found: dict[Value, Value] = {}
    for early, theirs in others.items() if terms else ():
        loop = block.ops[early]
        sums: dict[Hashable, Value] = {
            t.core: For(loop).rows[t.place][3] for t in theirs
            if not t.by and is_constant(For(loop).inits[t.place], 0)
        }  # fmt: skip
        if not sums:
            continue
        changed = touched.changed(early, place)
        equal = ValueNumbers(loop, lambda m, c=changed: m not in c).matched(block.ops[place])
        for term in terms:
            if (total := sums.get(equal.get(term.core))) is not None:
                found.setdefault(term.core, total)
    return found


def _equal(a: Value, b: Value) -> bool:
    """Whether two values are the same quotient or product, perhaps made twice."""
    return made_alike(
        a, b, lambda x, y: x.name == y.name and x.name in ("arith.mulf", "arith.divf")
    )


def _sign(value: Value) -> tuple[Value, bool]:
    """What ``value`` is the negative of, or itself; and whether it is."""
    op = made_by(value, "arith.negf")
    return (value, False) if op is None else (op.operand, True)


class _Factored(Rewriter):
    """``terms`` of ``loop`` as sums of their cores, each from 0 on. ``known``: those that are
    there."""

    def __init__(self, loop: Op, terms: Sequence[_Term], known: dict[Value, Value]) -> None:
        super().__init__(self._visit, self._around)
        self.none: set[Value] = set()  # sums of which nothing is left
        self.loop, self.terms, self.known = loop, terms, known

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op is not self.loop:
            return None
        view, by_place = For(op), {t.place: t for t in self.terms}
        left = [k for k in range(len(op.results)) if k not in by_place]
        cores = list(dict.fromkeys(t.core for t in self.terms if t.core not in self.known))
        inits = [self.lookup(view.inits[k]) for k in left]
        zeros = [self.constant(0.0, core.scalar) for core in cores]
        lower, upper, step = map(self.lookup, view.bounds)
        loop = self.for_(lower, upper, step, [*inits, *zeros])
        loop.attrs, loop.span = dict(op.attrs), op.span
        iv, *carried = loop.body.args
        names = [view.index, *(view.carried[k] for k in left)]
        for new, old in zip((iv, *carried), names, strict=False):
            new.name = old.name
            self.replacement[old] = new
        made = {view.yielded[t.place].op for t in self.terms}

        def body() -> list[Value]:
            for inner in op.body.ops[:-1]:
                if inner not in made:
                    self.rewrite(inner)
            ends = [self.lookup(view.yielded[k]) for k in left]
            sums = zip(carried[len(left) :], cores, strict=True)
            return [*ends, *(self.op("arith.addf", arg, self.lookup(core)) for arg, core in sums)]

        self.fill(loop.body, body)
        sums = dict(zip(cores, loop.results[len(left) :], strict=True))
        results = dict(zip(left, loop.results, strict=False))
        for term in self.terms:
            results[term.place] = self.total(term, sums.get(term.core), view.inits[term.place])
        return [results[k] for k in range(len(op.results))]

    def total(self, term: _Term, made: Value | None, init: Value) -> Value:
        """What a carried value is in the end. ``made``: the sum of its core, if it is not known."""
        value = self.known[term.core] if made is None else made
        by, minus, old = [*term.by], False, made is None
        if old and by and by[0][1] is not None and by[0][0] == "arith.mulf":
            quotient, minus = _sign(by[0][1])
            divided = made_by(quotient, "arith.divf")
            if divided is not None and divided.right is value:  # s * (y / s)
                value, by = divided.left, by[1:]
            else:
                minus = False
        while by and by[0][0] == "arith.negf":
            minus, by = not minus, by[1:]
        first, less = _sign(init)
        if old and not by and term.sure and _equal(first, value) and less != minus:
            none = self.constant(0.0, value.scalar)
            self.none.add(none)
            return none
        value = self.lookup(value)
        value = self.op("arith.negf", value) if minus else value
        for name, other in by:
            operands = [] if name == "arith.negf" else [value if other is None else other]
            value = self.op(name, value, *map(self.lookup, operands))
        if term.by and not term.sure:  # c may be anything where the loop has no turns
            lower, upper, _ = map(self.lookup, For(self.loop).bounds)
            some = self.op("arith.cmpi", lower, upper, predicate="slt")
            none = self.constant(0.0, value.scalar)
            value = self.op("arith.select", some, value, none, type=value.type)
        if is_constant(init, 0):
            return value
        return self.op("arith.addf", self.lookup(init), value)

    def _visit(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        """What is made of nothing is nothing."""
        if op.name == "arith.negf" and op.operand in self.none:
            return (op.operand,)
        if op.name in ("arith.divf", "arith.mulf") and op.left in self.none:
            return (op.left,)
        if op.name == "arith.select" and Select(op).yes in self.none:
            return (Select(op).yes,) if is_constant(Select(op).no, 0) else None
        return None
