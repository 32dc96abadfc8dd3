"""Splitting a loop into the runs along which an integer division keeps its value."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, slice_of, walk
from weft.ir.ops import OPS
from weft.ir.types import index
from weft.ir.views import For, Parallel, constant_of, is_constant
from weft.passes.widen import ByCall, widen_by_call
from weft.schedule.variation import UNIFORM, Growth, Variation
from weft.values import mutable

# Elements of a run, below which more loops cost more than the divisions did: where a call says the
# divisor, where it is of floats, which lanes divide; and where it is written in the kernel, which
# makes multiplications of divisions, and shifts of those by powers of two.
SHORTEST, OF_FLOATS, WRITTEN, WRITTEN_POWER = 4, 5, 8, 16
BLOCK = 8192  # iterations of the split index that threads take as one ...
NARROW_BLOCK = 1024  # ... and where each of them is a loop over further indices
DEEPEST = 3  # divisions that a loop is split for


def split_quotients(function: Function) -> Function:
    """``q = (j + s) // d`` with a parallel index j becomes a loop over the runs of j that give one
    q, inside it one over the run. Subscripts such as ``(j + s) - q * d`` are then what j is above
    where its run begins: gathers become plain loads, and only the first run asks for a division.
    The parallel index j becomes one that counts blocks of j, so that threads still share the work;
    the indices inside of j become loops inside of the run.

    Several such divisions (``i // (h * w)``, then ``i // w``) make loops in each other. The split
    is chosen at run time where every d is at least ``SHORTEST`` (constants are long), otherwise a
    block's loop is left as it was; with quotients of floats (``widen_by_call``), where besides
    these are the integers' own. The innermost loop is marked ``independent``: its iterations are
    those of a parallel loop.

    Precondition: a verified function, after races were checked. j has step 1; s and d depend
    neither on j nor on the indices inside of it.
    Non-goals: reductions; falling numerators (``-j``); an index with others inside of it if the
    body holds loops (they would be the ones to vectorise); more than ``DEEPEST`` divisions.
    """
    for op in function.body.ops:
        if op.name == "scf.parallel" and not op.attrs["kinds"]:
            split = _split(op, op.body)
            if split is not None:
                return _Splitter(op, split).function(function)
            wide = widen_by_call(op)
            split = None if wide is None else _split(op, wide.body)
            if split is not None:
                return _Splitter(op, split, wide).function(function)
    return function


@mutable
class _Split:
    axis: int  # of the index that is split
    divisions: list[Op]  # the first makes the outermost loop


def _split(parallel: Op, body: Block) -> _Split | None:
    """The innermost index along which quotients of ``body`` have runs, if there is one."""
    steps = Parallel(parallel).steps
    loops = any(op.name in ("scf.for", "scf.while") for op in walk(body))
    for axis in reversed(range(len(steps))):
        if axis < len(steps) - 1 and loops:
            return None
        if is_constant(steps[axis], 1):
            divisions = _divisions(body, axis)
            if divisions:
                return _Split(axis, divisions[:DEEPEST])
    return None


def _divisions(body: Block, axis: int) -> list[Op]:
    """Each ``floordivsi`` whose quotient has runs along the index while those before it stay."""
    found: list[Op] = []
    inside = set(body.ops)

    def quotient(along: Variation, op: Op) -> Growth | None:
        """The same along a run."""
        if op.name != "arith.floordivsi" or op.result.type is not index or op not in inside:
            return None
        slow = along.slope(op.left) == 1 and along.uniform(op.right)
        pure = _is_pure(op.left, body, ()) and _is_pure(op.right, body, found)
        short = isinstance(number := constant_of(op.right), int) and _is_short(number)
        if not slow or not pure or short:
            return None
        found.append(op)
        return UNIFORM

    indices = dict.fromkeys(body.args[axis + 1 :])
    Variation(body, {**indices, body.args[axis]: 1}, rule=quotient)
    return list(dict.fromkeys(found))


def _is_short(number: int) -> bool:
    """Whether runs of a divisor that is written are not worth their loops."""
    return number < (WRITTEN if number & (number - 1) else WRITTEN_POWER)


def _is_pure(value: Value, body: Block, without: Sequence[Op]) -> bool:
    """Whether ``value`` is computed by pure operations, other than those of ``without``, from what
    comes from outside of the loop."""

    def pure(op: Op) -> bool:
        return OPS[op.name].pure and not op.regions and op not in without

    return slice_of(value, body, pure) is not None


class _Splitter(Rewriter):
    """Splits ``parallel``. In runs its iterations are those of ``wide``, if there is that."""

    def __init__(self, parallel: Op, split: _Split, wide: ByCall | None = None) -> None:
        super().__init__(around=self._around)
        self.loop, self.wide = parallel, wide
        self.body = parallel.body if wide is None else wide.body
        self.axis = split.axis
        self.divisions = split.divisions
        self.split_index = parallel.body.args[split.axis]
        self.inside = {v for op in self.body.ops for v in op.results}
        self.products = {d: _products(d, self.body) for d in self.divisions}

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op is not self.loop:
            return None
        axis = self.axis
        lowers, uppers, steps = (list(map(self.lookup, vs)) for vs in Parallel(op).ranges)
        self.span = op.span
        for made in self.wide.front.ops if self.wide else ():
            self.rewrite(made)
        inner = list(zip(lowers, uppers, steps, strict=True))[axis + 1 :]
        size = self.constant(NARROW_BLOCK if inner else BLOCK, index)
        new = self.parallel(lowers[: axis + 1], uppers[: axis + 1], [*steps[:axis], size])
        body, block = op.body, new.body
        self.stand_for(body.args[:axis], block.args[:axis])
        begin = block.args[axis]
        begin.name = "block"
        with self.at(block):
            end = self.op("arith.minsi", self.op("arith.addi", begin, size), uppers[axis])
            self._choose(begin, end, inner)
            self.do("scf.reduce")
        return []

    def _choose(self, begin: Value, end: Value, inner: list[tuple[Value, Value, Value]]) -> None:
        """Runs where all of them are long, else the loop as it was."""
        long = None if self.wide is None else self.lookup(self.wide.holds)
        memo: dict[Value, Value] = {self.split_index: self.constant(0, index)}
        shortest = self.constant(SHORTEST if self.wide is None else OF_FLOATS, index)
        for division in self.divisions:
            if constant_of(division.right) is None:  # else it is long, or would not be split for
                length = self.in_front(division.right, self.inside, memo)
                enough = self.op("arith.cmpi", length, shortest, predicate="sge")
                long = enough if long is None else self.op("arith.andi", long, enough)
        bounds = begin, end
        split = lambda: self._runs(bounds, inner, self.divisions, memo, {})  # noqa: E731
        if long is None:
            split()
        else:
            self.either(long, split, lambda: self._loop(self.loop.body, bounds, inner, {}, {}))

    def _runs(
        self, bounds: tuple[Value, Value], inner: list[tuple[Value, Value, Value]],
        divisions: list[Op], memo: dict[Value, Value], lows: dict[Op, Value],
    ) -> None:  # fmt: skip
        """A loop over the runs of the first division, and so on. ``memo``: what is known of the
        body's values where the index is 0. ``lows``: where the run of each division begins that has
        a loop already, or would, if it were whole."""
        if not divisions:
            self._loop(self.body, bounds, inner, memo, lows)
            return
        division, *others = divisions
        begin, end = bounds
        memo = dict(memo)
        start, length = (self.in_front(v, self.inside, memo) for v in division.operands)
        place = self.op("arith.addi", begin, start)
        first = self.op("arith.floordivsi", place, length, positive=True)
        low = self.op("arith.subi", self.op("arith.muli", first, length), start)
        products = self.products[division]
        wanted = any(division.result in op.operands for op in walk(self.body) if op not in products)
        outer = self.for_(low, end, length, [first] if wanted else [])
        with self.at(outer.body):
            low, *quotient = outer.body.args
            low.name = "run"
            high = self.op("arith.addi", low, length)
            run = self.op("arith.maxsi", low, begin), self.op("arith.minsi", high, end)
            product = self.op("arith.addi", low, start)
            memo |= dict.fromkeys((op.result for op in products), product)
            memo |= dict(zip([division.result], quotient, strict=False))
            self._runs(run, inner, others, memo, {**lows, division: low})
            one = self.constant(1, index)
            self.do("scf.yield", *(self.op("arith.addi", q, one) for q in quotient))

    def _loop(
        self, body: Block, bounds: tuple[Value, Value], inner: list[tuple[Value, Value, Value]],
        known: dict[Value, Value], lows: dict[Op, Value],
    ) -> None:  # fmt: skip
        """The body in loops over the index and those inside of it. In the runs that begin at
        ``lows``, quotients and their products are ``known``, and what is left over from a division
        is what the index is above the beginning."""
        levels = [(*bounds, self.constant(1, index)), *inner]
        divided = {division.result for division in lows}
        divided |= {op.result for division in lows for op in self.products[division]}
        rests = {op: low for division, low in lows.items()
                 for op in _rests(division, self.products[division], body)}  # fmt: skip

        def level(depth: int) -> None:
            if depth == len(levels):
                at = self.lookup(body.args[self.axis])
                for op in body.ops[:-1]:
                    if op in rests:
                        self.stand_for(op.results, [self.op("arith.subi", at, rests[op])])
                    elif not divided.isdisjoint(op.results):
                        self.replacement.update({v: known[v] for v in op.results if v in known})
                    else:
                        self.rewrite(op)
                return
            loop = self.for_(*levels[depth])
            if depth == len(levels) - 1:
                loop.attrs["independent"] = True
            self.stand_for([body.args[self.axis + depth]], [For(loop).index])
            self.fill(loop.body, lambda: level(depth + 1))

        level(0)


def _products(division: Op, body: Block) -> list[Op]:
    """The operations of ``body`` that multiply the quotient by the divisor again."""
    factors = {(division.result, division.right), (division.right, division.result)}
    return [op for op in body.ops if op.name == "arith.muli" and tuple(op.operands) in factors]


def _rests(division: Op, products: Sequence[Op], body: Block) -> list[Op]:
    """Those that take such a product from the dividend."""
    taken = {(division.left, op.result) for op in products}
    return [op for op in body.ops if op.name == "arith.subi" and tuple(op.operands) in taken]
