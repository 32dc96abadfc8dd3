"""SplitReduction: several blocks have an iteration together and share its loops.

A function runs in stages, each a launch. In the first, each block has some iterations of the
loops, and leaves in memory what these carried. In the next, the blocks of an iteration combine that
in the order of the parts, and go on: to loops that ask for it, or, in the last stage, to what is
behind all loops. What does not depend on a loop is computed anew in each stage. Stores outside of
loops, and loops that only store, are done in the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.core import Function, Op, Value, below, walk
from weft.ir.types import MemRefType
from weft.ir.views import For
from weft.ir.writes import written
from weft.schedule.bind import Bound
from weft.schedule.cooperate import Members, inner_turns
from weft.schedule.expose import expose
from weft.schedule.grid import BESIDE_THREADS
from weft.schedule.language import SplitReduction
from weft.schedule.spmd import Bounds, from_word, to_word

_COPIES = 8  # iterations of a loop that a thread has at a time, at most
_MOST_OPS = 128  # in them
_MOST_SUMS = 16  # that it carries


def split_reduction(function: Function, parallel: Op, first: int, step: SplitReduction) -> Bound:
    """``function`` as stages. Its operations are marked as for ``cooperate``. ``first``: the index
    along which groups stand side by side."""
    function, parallel = expose(function, parallel)
    stages = _Stages(parallel)
    made: list[Function] = []
    for number in range(stages.last + 1):
        stage = _Stage(function, parallel, step, stages, number)
        made.append(stage.rebuilt(first))
    return Bound(tuple(made))


class _Stages:
    """When each operation of an iteration is done. ``of``: the first stage that has what it needs.
    ``known``: the first that has its results. ``words``: of loops that carry values, where theirs
    begin among those of an iteration."""

    def __init__(self, parallel: Op) -> None:
        self.of: dict[Op, int] = {}
        self.known: dict[Op, int] = {}
        self.words: dict[Op, int] = {}
        self.at: dict[Value, int] = {}  # of a local array: of what it holds
        words = 0
        for op in parallel.body.ops[:-1]:
            carries = shared(op) and bool(op.results)
            operands = [v for inner in below(op) for v in inner.operands]
            bounds, inits = ([*For(op).bounds], For(op).inits) if carries else (op.operands, [])
            inside = operands[len(op.operands) :]
            self.of[op] = self.latest([*bounds, *inside])
            self.known[op] = max(self.of[op] + carries, self.latest(inits))
            if carries:
                self.words[op] = words
                words += len(op.results)
            for value in (*op.results, *written(op)):
                self.at[value] = max(self.at.get(value, 0), self.known[op])
        self.last = max(self.known.values(), default=0)

    def latest(self, values: Sequence[Value]) -> int:
        return max((self.at.get(v, 0) for v in values), default=0)


def shared(op: Op) -> bool:
    """Whether blocks share a loop."""
    return op.name == "scf.for" and "team" in op.attrs


class _Stage(Members):
    """What one launch does. ``partials``: words, of each value, part and iteration. ``part``: the
    block's, of ``parts``; ``portion``: likewise, of the loop that threads have turns of.
    ``iteration``: its number, of ``total``."""

    iteration: Value
    total: Value
    portion: tuple[Value, Value]

    def __init__(
        self, function: Function, parallel: Op, step: SplitReduction, stages: _Stages, stage: int
    ) -> None:
        super().__init__(function, parallel, step)
        self.stages = stages
        self.stage = stage
        self.several, self.columns, self.side = True, max(step.columns, 1), "y"

    def rebuilt(self, first: int) -> Function:
        made = self.start(0, [("partials", MemRefType(self.left_word, 1)), ("parts", self.tally)])
        self.partials, self.parts = made.args[-2:]
        self.part = self.register("block_id", "y", self.tally)
        self.all(first)
        return made

    def body(self, bounds: Sequence[Bounds], parts: dict[int, Value]) -> None:
        self.iteration = self.total = self.constant(0, self.tally)
        for k, count in enumerate(self.counts):
            wide = self.to(count, self.tally)
            self.iteration = self.add(self.mul(self.iteration, wide), parts[k]) if k else parts[k]
            self.total = self.mul(self.total, wide) if k else wide
        block = self.outer.body
        for k, three in enumerate(bounds):
            place = self.to(parts[k], three[0].type)
            self.replacement[block.args[k]] = self.index_of(place, three)
        for op in block.ops[:-1]:
            self.staged(op)

    def staged(self, op: Op) -> None:
        """What this stage does of an operation of the iteration."""
        stages, last = self.stages, self.stage == self.stages.last
        if stages.of[op] > self.stage:
            return
        if op in stages.words:
            if stages.of[op] == self.stage:
                self.leave(op)
            elif stages.known[op] <= self.stage:
                self.stand_for(op.results, self.combined(op))
        elif not shared(op):
            self.rewrite(op)
        elif last:
            self.mine(op, [])

    def visited(self, op: Op) -> Sequence[Value] | None:
        if "team" not in op.attrs or self.stage == self.stages.last:
            return super().visited(op)
        return [op.left for _ in op.results]

    def alone(self) -> Value:
        """Whether this thread does what is done once for the iteration."""
        first = self.compare("eq", self.part, self.constant(0, self.tally))
        return self.op("arith.andi", super().alone(), first)

    # -- loops

    def mine(self, op: Op, inits: list[Value]) -> list[Value]:
        """What the thread's iterations of a loop make of ``inits``."""
        lower, upper, there = self.lookup(For(op).lower), self.lookup(For(op).upper), self.there
        assert there is not None
        self.portion = self.part, self.parts
        nested = inner_turns(op) is not None
        begin, step = self.over(lower, upper) if nested else self.turns(lower)
        if nested:
            there = self.op("arith.andi", there, self.compare("slt", *self.portion))
        upper = self.op("arith.select", there, upper, lower, type=lower.type)
        if not nested:
            return self.strided(op, begin, upper, step, inits, op.attrs["team"])
        return self.loop(
            begin, upper, step, inits, lambda iv, sums: self.inline(op.body, [iv, *sums]), unroll=1
        )

    def over(self, lower: Value, upper: Value) -> tuple[Value, Value]:
        """The first iteration of the block's part of a loop that has another inside, and from each
        to the next. Where there are more parts than iterations, some of them share the loop inside;
        what is left over of these has none."""
        count = self.to(self.trips(lower, upper, self.constant(1, lower.scalar)), self.tally)
        some = self.op("arith.maxsi", count, self.constant(1, self.tally))
        across = self.op("arith.minsi", some, self.parts)
        deep, _ = self.divide(self.parts, across)
        inside, place = self.divide(self.part, across)
        self.portion = inside, deep
        return self.add(lower, self.to(place, lower.type), "nsw"), self.to(across, lower.type)

    def beside(self) -> tuple[Value, Value]:
        """The member's place in its block, and how many there are."""
        members = self.register("block_dim", self.side, self.tally)
        return self.register("thread_id", self.side, self.tally), members

    def turns(self, lower: Value) -> tuple[Value, Value]:
        place, members = self.beside()
        part, parts = self.portion
        place = self.add(self.mul(part, members), place)
        begin = self.add(lower, self.to(place, lower.type), "nsw")
        return begin, self.to(self.mul(parts, members), lower.type)

    def inner_loop(self, op: Op) -> list[Value]:
        lower, upper = self.lookup(For(op).lower), self.lookup(For(op).upper)
        begin, size = self.turns(lower)
        inits = [self.lookup(v) for v in For(op).inits]
        return self.strided(op, begin, upper, size, inits, op.attrs["turns"])

    def strided(
        self, op: Op, begin: Value, upper: Value, size: Value, inits: list[Value],
        kinds: Sequence[str],
    ) -> list[Value]:  # fmt: skip
        """Every ``size``-th iteration of a loop, several at a time, each with sums of its own, so
        that their loads are on their way together."""
        return self.at_once(
            begin, upper, size, inits, kinds, _copies(op),
            lambda iv, sums: self.inline(op.body, [iv, *sums]),
            halved=self.columns > 1 and self.count <= BESIDE_THREADS,  # turns are some hundred
        )  # fmt: skip

    def at_once(
        self, begin: Value, upper: Value, size: Value, inits: list[Value], kinds: Sequence[str],
        copies: int, body: Callable[[Value, list[Value]], list[Value]], *, halved: bool = False,
    ) -> list[Value]:  # fmt: skip
        """``body`` for every ``size``-th index, ``copies`` of them at a time. What is left goes one
        by one, or, ``halved``, half as many at a time, and so on."""
        if copies > 1:
            count, end = len(inits), self.before(upper, size, copies)
            stride = self.mul(size, self.constant(copies, size.scalar), "nsw")
            none = self.neutral(kinds, [v.scalar for v in inits])
            more = [begin, *inits, *none * (copies - 1)]

            def together(iv: Value, carried: list[Value]) -> list[Value]:
                made, sums = iv, list[Value]()
                for k in range(copies):
                    sums += body(made, carried[1 + k * count : 1 + (k + 1) * count])
                    made = self.add(made, size, "nsw")
                return [made, *sums]

            begin, *sums = self.loop(begin, end, stride, more, together, unroll=1)
            inits = sums[:count]
            for k in range(1, copies):
                inits = self.pairs(kinds, inits, sums[k * count : (k + 1) * count])
        if not halved or copies == 1:
            return self.loop(begin, upper, size, inits, body, unroll=1)
        state = [begin, *inits]
        while copies := copies // 2:

            def some(state: list[Value] = state, copies: int = copies) -> list[Value]:
                iv, *sums = state
                for _ in range(copies):
                    sums = body(iv, sums)
                    iv = self.add(iv, size, "nsw")
                return [iv, *sums]

            there = self.compare("slt", state[0], self.before(upper, size, copies))
            types = [v.type for v in state]
            state = self.either(there, some, lambda state=state: state, types)
        return state[1:]

    def before(self, upper: Value, size: Value, copies: int) -> Value:
        """Where so many indices begin at the latest, every ``size``-th."""
        ahead = self.mul(size, self.constant(copies - 1, size.scalar), "nsw")
        return self.op("arith.subi", upper, ahead)

    def leave(self, op: Op) -> None:
        """The block's part of a loop, and what it carried."""
        kinds, types = op.attrs["team"], [v.scalar for v in op.results]
        sums = self.mine(op, self.neutral(kinds, types))
        sums = self.in_block(kinds, sums, self.columns if self.columns > 1 else 0)

        def store() -> None:
            for k, value in enumerate(sums):
                place = self.word_of(op, k, self.part)
                self.store(to_word(self, value, self.left_word), self.partials, [place])

        self.branch(super().alone(), store)

    def combined(self, op: Op) -> list[Value]:
        """What all parts of a loop carried."""
        kinds, types = op.attrs["team"], [v.scalar for v in op.results]
        first, members = self.beside()

        def one(part: Value, sums: list[Value]) -> list[Value]:
            words = [self.word_of(op, k, part) for k in range(len(types))]
            parts = [
                from_word(self, self.load(self.partials, [word]), type)
                for word, type in zip(words, types, strict=True)
            ]
            return self.pairs(kinds, sums, parts)

        copies = min(_COPIES // 2, max(_MOST_SUMS // len(types), 1))
        none = self.neutral(kinds, types)
        sums = self.at_once(first, self.parts, members, none, kinds, copies, one)
        sums = self.in_block(kinds, sums, self.columns if self.columns > 1 else 0)
        return self.pairs(kinds, [self.lookup(v) for v in For(op).inits], sums)

    def word_of(self, op: Op, k: int, part: Value) -> Value:
        """Where a part of an iteration leaves value ``k`` of a loop."""
        value = self.constant(self.stages.words[op] + k, self.tally)
        row = self.add(self.mul(value, self.parts), part)
        return self.add(self.mul(row, self.total), self.iteration)


def _copies(op: Op) -> int:
    """How many iterations of a loop a thread has at a time."""
    inside = [*walk(op.body)]
    if any(inner.name in ("scf.for", "scf.while") for inner in inside):
        return 1
    most = min(_MOST_OPS // len(inside), _MOST_SUMS // max(len(op.results), 1), _COPIES)
    return 1 << max(most, 1).bit_length() - 1
