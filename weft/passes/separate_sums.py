"""Sums of terms under conditions and with factors that a loop does not change: both leave it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import f32, f64
from weft.ir.views import For, If, Select, is_constant
from weft.values import frozen, remembered

MOST = 8  # sums that a loop carries in place of those that it had


def separate_sums(function: Function) -> Function:
    """In a derivative, where a turn of a loop adds several terms to what it carries, each of them
    linear in a value of that turn by what the loop does not change (factors, signs, choices), some
    in branches whose conditions it does not change: each such value gets a sum of its own, and the
    terms are made of these sums behind the loop, once.

    ``if c: s += (u if q else -u) * w``, with ``u`` of the turn alone, becomes ``if c: t += u``, and
    behind the loop ``s += ((t if q else -t) * w if c else 0)``. So the gradients of coordinates at
    which a picture is sampled cost one addition for each pixel and channel.

    Precondition: a verified function after ``hoist`` and ``cse``. Not used with ``strict_math``:
    sums are rounded otherwise. As with ``factor``, a function that a person wrote keeps its sums.
    Non-goals: conditions that turns decide; sums of f16 and bf16; sums in loops of the loop.
    """
    if function.strict or not function.attrs.get("order"):
        return function
    if not any(op.name == "scf.for" and op.results for op in walk(function.body)):
        return function
    uses = _Uses(function)
    found = {
        op: terms for op in walk(function.body) if op.name == "scf.for" and op.results
        if (terms := _terms(op, uses)) and _pays(terms)
    }  # fmt: skip
    return _Separated(found).function(function) if found else function


# -- what is added


@frozen
class _Term:
    """What ``add`` adds to the carried value ``place``, in the block ``arm``: ``value``, linear in
    ``core``. ``conditions``: which branches it is in, each with the arm."""

    place: int
    add: Op
    arm: Block
    value: Value
    core: Value
    conditions: tuple[tuple[Value, int], ...]
    operations: int  # between core and value, beside a product that the addition takes in


class _Uses:
    """Who uses each value, and the block that each operation is in."""

    def __init__(self, function: Function) -> None:
        self.of: dict[Value, list[Op]] = {}
        self.block: dict[Op, Block] = {}
        self.owner: dict[Block, Op] = {}
        self._survey(function.body)

    def _survey(self, block: Block) -> None:
        for op in block.ops:
            self.block[op] = block
            for value in op.operands:
                self.of.setdefault(value, []).append(op)
            for region in op.regions:
                self.owner[region] = op
                self._survey(region)

    def within(self, value: Value, block: Block) -> list[tuple[Op, Op]]:
        """Of the uses of ``value`` inside ``block``: the operation, and that of ``block`` which it
        is in."""
        found: list[tuple[Op, Op]] = []
        for op in self.of.get(value, ()):
            around: Op | None = op
            while around is not None and self.block[around] is not block:
                around = self.owner.get(self.block[around])
            if around is not None:
                found.append((op, around))
        return found


def _terms(loop: Op, uses: _Uses) -> list[_Term]:
    """What turns of ``loop`` add to the values that it does nothing else with."""
    inside = _inside(loop)
    found: list[_Term] = []
    for place, (arg, _, _, _) in enumerate(For(loop).rows):
        if arg.type in (f32, f64):
            terms: list[_Term] = []
            end = _chain(arg, loop.body, place, (), inside, uses, terms)
            if end == place:
                found += terms
    return found


def _inside(loop: Op) -> set[Value]:
    return {*loop.body.args, *(v for op in walk(loop.body) for v in op.results)}


def _chain(
    value: Value, block: Block, place: int, conditions: tuple[tuple[Value, int], ...],
    inside: set[Value], uses: _Uses, terms: list[_Term],
) -> int | None:  # fmt: skip
    """Which operand of the terminator of ``block`` the sum that begins with ``value`` ends as, if
    ``block`` does nothing with it but add; ``terms`` gets what is added."""
    while True:
        users = uses.within(value, block)
        if not users or len({around for _, around in users}) > 1:
            return None
        op, around = users[0]
        if op is block.terminator and len(users) == 1:
            return op.operands.index(value)
        if op is around and len(users) == 1 and (added := _added(op, value)) is not None:
            core, operations = _linear(added, inside)
            if core is None:
                return None
            terms.append(_Term(place, op, block, added, core, conditions, operations))
            value = op.result
        elif around.name == "scf.if" and If(around).condition not in inside:
            ends = {
                _chain(value, region, place, (*conditions, (If(around).condition, side)),
                       inside, uses, terms)
                for side, region in enumerate(around.regions)
            }  # fmt: skip
            end, *others = ends
            if end is None or others:
                return None
            value = around.results[end]
        else:
            return None


def _added(op: Op, total: Value) -> Value | None:
    """What ``op`` adds to ``total``, or takes from it."""
    if op.name == "arith.subf":
        return op.right if op.left is total else None
    if op.name == "arith.addf":
        return op.right if op.left is total else op.left
    return None


def _linear(value: Value, inside: set[Value]) -> tuple[Value | None, int]:
    """What of the turn ``value`` is linear in, and how many operations that takes beside a product
    that an addition takes in; None where it is nothing of the turn."""
    core, operations = _core(value, inside)
    while (op := value.op) is not None and op.name == "arith.negf":
        value = op.operand
    free = value is not core and op is not None and op.name == "arith.mulf"
    return core, operations - free


def _core(value: Value, inside: set[Value]) -> tuple[Value | None, int]:
    """The same with all operations. Zero is linear in anything (None)."""
    return _Cores(inside).of(value)


class _Cores:
    def __init__(self, inside: set[Value]) -> None:
        self.inside = inside

    @remembered
    def of(self, value: Value) -> tuple[Value | None, int]:
        inside = self.inside
        if is_constant(value, 0):
            return None, 0
        op = value.op if value in inside else None
        if op is None:
            return (value, 0) if value in inside else (None, 0)
        if op.name == "arith.negf":
            return self.of(op.operand)
        if op.name == "arith.mulf" and (op.left in inside) != (op.right in inside):
            core, count = self.of(op.left if op.left in inside else op.right)
            return core, count + 1
        if op.name == "arith.divf" and op.right not in inside:
            core, count = self.of(op.left)
            return core, count + 1
        if op.name == "arith.select" and Select(op).condition not in inside:
            arms = Select(op).yes, Select(op).no
            if all(arm in inside or is_constant(arm, 0) for arm in arms):
                (one, n), (other, m) = map(self.of, arms)
                if one is None or other is None or one is other:
                    return (one if other is None else other), n + m + 1
        return value, 0


def _sums(terms: Sequence[_Term]) -> list[tuple[Value, Block]]:
    """The sums that stand for ``terms``: of which value, in which block."""
    return list(dict.fromkeys((term.core, term.arm) for term in terms))


def _pays(terms: Sequence[_Term]) -> bool:
    """Whether turns do less with sums of their own, of which there are not too many."""
    sums = len(_sums(terms))
    return sums <= min(MOST, len(terms)) and (
        sums < len(terms) or any(term.operations > 0 for term in terms)
    )


# -- the sums of their own


class _Separated(Rewriter):
    """Loops with sums of their own for their terms."""

    def __init__(self, terms: dict[Op, list[_Term]]) -> None:
        super().__init__(None, self._around)
        self.terms = terms
        self.adds: dict[Op, tuple[Value, Block]] = {}  # which sum each addition becomes one to
        self.now: dict[tuple[Value, Block], Value] = {}  # what the sums are so far
        self.gone: set[Value] = set()  # what the loops carried, from turn to turn
        self.inside: set[Value] = set()  # what turns of a loop make
        self.skipped: set[Op] = set()  # additions whose sum another one makes

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op in self.terms:
            return self._loop(op, self.terms[op])
        if op.name == "scf.if" and any(v in self.gone for v in op.results):
            return self._branch(op)
        return None

    def _loop(self, op: Op, terms: list[_Term]) -> Sequence[Value]:
        view, places = For(op), {term.place for term in terms}
        sums, left = _sums(terms), [k for k in range(len(op.results)) if k not in places]
        self._note(op, terms, places)
        inits = [self.lookup(view.inits[k]) for k in left]
        zeros = [self.constant(0.0, core.scalar) for core, _ in sums]
        lower, upper, step = map(self.lookup, view.bounds)
        loop = self.for_(lower, upper, step, [*inits, *zeros])
        loop.attrs, loop.span = dict(op.attrs), op.span
        carried = loop.body.args
        for new, old in zip(carried, [view.index, *(view.carried[k] for k in left)], strict=False):
            new.name = old.name
            self.replacement[old] = new
        self.now |= zip(sums, carried[1 + len(left) :], strict=True)

        def body() -> list[Value]:
            self._operations(op.body)
            ends = [self.lookup(view.yielded[k]) for k in left]
            return [*ends, *(self.now[key] for key in sums)]

        self.fill(loop.body, body)
        results = dict(zip(left, loop.results, strict=False))
        totals = dict(zip(sums, loop.results[len(left) :], strict=True))
        for place in sorted(places):
            results[place] = self.lookup(view.inits[place])
        some = self.op("arith.cmpi", lower, upper, predicate="slt")
        self.inside = _inside(op)
        for term in terms:
            with self.about(term.add.span):
                value, before = (
                    self._total(term, totals[term.core, term.arm], some),
                    results[term.place],
                )
                first = is_constant(before, 0) and term.add.name == "arith.addf"
                results[term.place] = value if first else self.op(term.add.name, before, value)
        return [results[k] for k in range(len(op.results))]

    def _note(self, op: Op, terms: list[_Term], places: set[int]) -> None:
        seen = set[tuple[Value, Block]]()
        for term in terms:
            key = term.core, term.arm
            self.adds[term.add] = key
            if key in seen:
                self.skipped.add(term.add)
            seen.add(key)
        begun = [For(op).carried[k] for k in places]
        self.gone |= {*begun, *(term.add.result for term in terms)}
        for inner in walk(op.body):  # an operation comes after what it uses
            if inner.name == "scf.if":
                self._note_branch(inner)

    def _note_branch(self, op: Op) -> None:
        """The results of a branch that are sums which the loop does not carry any more."""
        for inner in (o for region in op.regions for o in region.ops if o.name == "scf.if"):
            self._note_branch(inner)
        for k, result in enumerate(op.results):
            if all(arm in self.gone for arm in If(op).arms(k)):
                self.gone.add(result)

    def _operations(self, block: Block) -> None:
        """The operations of ``block``, additions to sums of their own among them."""
        for op in block.ops[:-1]:
            if op not in self.adds:
                self.rewrite(op)
            elif op not in self.skipped:
                key = self.adds[op]
                with self.about(op.span):
                    self.now[key] = self.op("arith.addf", self.now[key], self.lookup(key[0]))

    def _branch(self, op: Op) -> Sequence[Value]:
        left = [k for k, v in enumerate(op.results) if v not in self.gone]
        blocks = {*_blocks(op)}
        sums = [key for key in self.now if key[1] in blocks]
        types = [op.results[k].type for k in left] + [core.type for core, _ in sums]
        branch = self.if_(self.lookup(If(op).condition), types)
        branch.attrs, before, ends = dict(op.attrs), dict(self.now), list[Value]()
        for old, new in zip(op.regions, branch.regions, strict=True):
            self.now = dict(before)
            with self.at(new):
                self._operations(old)
                ends = [self.lookup(old.terminator.operands[k]) for k in left]
                self.do("scf.yield", *ends, *(self.now[key] for key in sums))
        self.now = before | dict(zip(sums, branch.results[len(left) :], strict=True))
        made = dict(zip(left, branch.results, strict=False))
        none = self.lookup(If(op).condition)  # for what nobody asks
        return [made.get(k, none) for k in range(len(op.results))]

    # -- behind the loop

    def _total(self, term: _Term, total: Value, some: Value) -> Value:
        """The sum of a term over all turns, of the sum of its core: 0 where no turn has it, as a
        factor may then be anything."""
        value = self._made(term.value, {term.core: total})
        if value is total:
            return value
        holds = some
        for condition, side in term.conditions:
            asked = self.lookup(condition)
            if side == 1:
                asked = self.op("arith.xori", asked, self.constant(True, asked.scalar))
            holds = self.op("arith.andi", holds, asked)
        return self.op(
            "arith.select", holds, value, self.constant(0.0, value.scalar), type=value.type
        )

    def _made(self, value: Value, known: dict[Value, Value]) -> Value:
        """``value`` of the values that stand for some in ``known``, to which it is added."""
        if value not in known:
            op = value.op
            if op is None or value not in self.inside:
                return self.lookup(value)
            for operand in op.operands:
                self._made(operand, known)
            known[value] = self.copied(op, lambda v: known.get(v) or self.lookup(v)).result
        return known[value]


def _blocks(op: Op) -> Iterator[Block]:
    for region in op.regions:
        yield region
        for inner in region.ops:
            yield from _blocks(inner)
