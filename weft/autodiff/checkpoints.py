"""Sequential loops carried out with a tape, and backwards from it: whole, or from checkpoints.

Of a long loop, only what it carries at the start of each segment is kept. A loop of n iterations is
cut into segments of S, about the square root of n. The recomputation keeps what is carried where a
segment starts: n / S entries. The sweep backwards goes through the segments from the last to the
first; each is carried out from its start with a tape of S entries, which all of them use, and
then reversed. The price is that the loop is carried out once more (Griewank, "Achieving logarithmic
growth of temporal and spatial complexity in reverse automatic differentiation", 1992, with one
level of checkpoints). S is an argument of the adjoint, because a tape is sized when it is launched.

Where a machine has many registers, a loop that carries some numbers goes in chunks of a few
iterations instead, and a rest. What a chunk carries is kept in local arrays, and its loops are
written out, so that these are registers (``write_out.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from weft.autodiff.recompute import Recomputation
from weft.autodiff.tape import SCOPES, Tape, Tapes
from weft.ir.core import Block, Op, Value
from weft.ir.types import index
from weft.ir.views import For, While
from weft.ir.writes import written

WRITTEN_OUT = "written_out"  # the attribute of loops through a chunk
# Reverses an iteration: from the adjoints that the one after it hands on to those that it does.
Reverse = Callable[[Sequence[Value]], Sequence[Value]]


class Loops:
    """The loops of ``new`` in both directions.

    ``undone``: loops of the primal. A loop of the adjoint that reverses all iterations of one has
    the place of that one here as its attribute "undoes".
    """

    def __init__(self, new: Recomputation, tapes: Tapes) -> None:
        self.new, self.tapes, self.b = new, tapes, new.b
        self.undone: list[Op] = []

    # --- forwards ---------------------------------------------------------------------------------
    def taped(self, block: Block, later: Sequence[Op] = (), of: Op | None = None) -> None:
        """Carries out ``block`` again, without its terminator, as the sweep backwards will follow:
        the loops directly in it write down what they carry. ``later``: what is carried out after
        it, before that sweep. ``of``: the loop of which this is an iteration, that begins with what
        was read from its tape."""
        copies = {} if of is None else self.tapes.starts(of)
        for k, op in enumerate(block.ops[:-1]):
            if op.name in SCOPES:
                self.tapes.snapshot(op, [*block.ops[k + 1 :], *later], copies)
            for memref in written(op):
                copies.pop(memref, None)
            self.b.span = op.span
            match op.name:
                case "scf.for" if self.tapes.in_chunks(op):
                    self._chunks_of(op)
                case "scf.for" if op in self.tapes.checkpoints:
                    self._segments_of(op)
                case "scf.for":
                    tape = self.tapes.of(op, For(op).carried)
                    self.new.for_(op, partial(self.tapes.write, tape))
                case "scf.while":
                    tape = self.tapes.of(op, While(op).before.args)
                    tape.trips = self.new.while_(op, partial(self._evaluation, tape))
                case _:
                    self.new.op(op)

    def _evaluation(self, tape: Tape, count: Value) -> None:
        """Keeps what a ``scf.while`` carries where its condition is evaluated."""
        if tape.segment is None:
            self.tapes.write(tape, count)
            return
        length = self._length(tape.extent.op)
        number = self.b.op("arith.floordivsi", count, length)
        first = self.b.muli(number, length)
        with self.b.when(self.b.op("arith.cmpi", first, count, predicate="eq")):
            self.tapes.write(tape, self._place(tape.extent.op, number))
        self.tapes.write(tape, self.b.index(0))  # the last one stays

    def _segments_of(self, op: Op) -> None:
        """A ``scf.for`` that keeps the starts of its segments."""
        inits = self.new.values(For(op).inits)
        tape = self.tapes.of(op, For(op).carried)
        n = self.b.trip_bound(*self.new.values(For(op).bounds))
        loop = self.b.for_(self.b.index(0), self._count(op, n), self.b.index(1), inits)
        with self.b.at(loop.body) as block:
            number, *carried = block.args
            self.new.stand(For(op).carried, carried)
            self.tapes.write(tape, number)
            self.b.do("scf.yield", *self._segment(op, *self._ends(op, number, n), carried, None))
        self.new.stand(op.results, loop.results)

    def _chunks_of(self, op: Op) -> None:
        """A ``scf.for`` that keeps the starts of its chunks, and of the rest."""
        inits = self.new.values(For(op).inits)
        tape = self.tapes.of(op, For(op).carried)
        whole, rest = self._whole(self.b.trip_bound(*self.new.values(For(op).bounds)))

        def chunk(number: Value, count: Value, carried: Sequence[Value]) -> Sequence[Value]:
            self.new.stand(For(op).carried, carried)
            self.tapes.write(tape, number)
            return self._carried_out(op, number, count, carried, None)

        first, one = self.b.index(0), self.b.index(1)
        loop = self.b.for_(first, whole, one, inits, turns=self.tapes.chunk)
        with self.b.at(loop.body) as block:
            number, *carried = block.args
            self.b.do("scf.yield", *chunk(number, self.b.index(self.tapes.chunk), carried))
        self.new.stand(op.results, chunk(whole, rest, loop.results))

    def _whole(self, n: Value) -> tuple[Value, Value]:
        """How many whole chunks ``n`` iterations are, and how many iterations are left."""
        size = self.b.index(self.tapes.chunk)
        whole = self.b.op("arith.floordivsi", n, size)
        return whole, self.b.subi(n, self.b.muli(whole, size))

    def _carried_out(
        self, op: Op, number: Value, count: Value, inits: Sequence[Value], tape: Tape | None
    ) -> Sequence[Value]:
        """``count`` iterations of the chunk ``number``. Gives what is carried on."""
        first = self.b.muli(number, self.b.index(self.tapes.chunk))
        loop = self.b.for_(self.b.index(0), count, self.b.index(1), inits)
        loop.attrs[WRITTEN_OUT] = True
        with self.b.at(loop.body) as block:
            place, *carried = block.args
            self.new.stand(For(op).carried, carried)
            if tape is not None:
                self.tapes.write(tape, place)
            self.b.do("scf.yield", *self.new.iteration(op, self.b.addi(first, place)))
        return loop.results

    # --- backwards --------------------------------------------------------------------------------
    def last(self, op: Op) -> Value:
        """Lets what a ``scf.while`` carries be that of the last evaluation of its condition. Gives
        the number of its iterations."""
        tape = self.tapes[op]
        trips = tape.trips
        assert trips is not None
        self.new.number[op] = trips
        self.tapes.read(tape, trips if tape.segment is None else self.b.index(0))
        return trips

    def backwards(
        self, op: Op, n: Value, starts: Sequence[Value], reverse: Reverse
    ) -> Sequence[Value]:
        """A loop through the iterations ``n - 1`` to 0 of ``op``, each with what it carried in its
        place. The last one, the first to be reversed, is given ``starts``. Gives what the first one
        hands on.
        """
        if self.tapes.in_chunks(op):
            return self._backwards_in_chunks(op, n, starts, reverse)
        tape, zero = self.tapes[op], self.b.index(0)
        if tape.segment is None:
            return self._undoing(op, self._span(tape, zero, n, starts, reverse)).results
        count = self._count(op, n)
        loop = self.b.for_(zero, count, self.b.index(1), starts)
        with self.b.at(loop.body) as block:
            number = self._from_end(count, block.args[0])
            first, end = self._ends(op, number, n)
            self.tapes.read(tape, self._place(op, number))
            carried = [self.new.env[v] for v, _ in tape.values]
            self._segment(op, first, end, carried, tape.segment)
            count = self.b.subi(end, first)
            span = self._span(tape.segment, first, count, block.args[1:], reverse)
            self.b.do("scf.yield", *span.results)
        return loop.results

    def _backwards_in_chunks(
        self, op: Op, n: Value, starts: Sequence[Value], reverse: Reverse
    ) -> Sequence[Value]:
        """The same in chunks: the rest first, then those before it."""
        whole, rest = self._whole(n)

        def chunk(number: Value, count: Value, handed: Sequence[Value]) -> Sequence[Value]:
            self.tapes.read(self.tapes[op], number)
            carried = [self.new.env[v] for v, _ in self.tapes[op].values]
            tape = self.tapes.of_chunk(op)
            self._carried_out(op, number, count, carried, tape)
            first = self.b.muli(number, self.b.index(self.tapes.chunk))
            span = self._span(tape, first, count, handed, reverse)
            span.attrs[WRITTEN_OUT] = True
            return span.results

        starts = chunk(whole, rest, starts)
        first, one = self.b.index(0), self.b.index(1)
        loop = self.b.for_(first, whole, one, starts, turns=self.tapes.chunk)
        with self.b.at(loop.body) as block:
            number = self._from_end(whole, block.args[0])
            size = self.b.index(self.tapes.chunk)
            self.b.do("scf.yield", *chunk(number, size, block.args[1:]))
        return loop.results

    def forwards(self, op: Op, starts: Sequence[Value], reverse: Reverse) -> Sequence[Value]:
        """The same in the order of the iterations, where nothing is handed on from one to the
        next: the loop then is one that other parts of the compiler understand."""
        lower, upper, step = self.new.values(For(op).bounds)
        loop = self._undoing(op, self.b.for_(lower, upper, step, starts))
        with self.b.at(loop.body) as block:
            self.new.stand([For(op).index], block.args[:1])
            tape, number = self.tapes[op], self.b.steps(block.args[0], lower, step)
            self.new.number[op] = number
            self.tapes.read(tape, number)
            with self.tapes.inside(tape.extent, number):
                handed = reverse(block.args[1:])
            self.b.do("scf.yield", *handed)
        return loop.results

    def _span(
        self, tape: Tape, first: Value, count: Value, starts: Sequence[Value], reverse: Reverse
    ) -> Op:
        """A loop through ``count`` iterations, from the last to ``first``; ``tape`` begins with
        ``first``."""
        loop = self.b.for_(self.b.index(0), count, self.b.index(1), starts)
        with self.b.at(loop.body) as block:
            place = self._from_end(count, block.args[0])
            self.tapes.read(tape, place)
            with self.tapes.inside(tape.extent, block.args[0]):
                self.new.at_iteration(tape.extent.op, self.b.addi(first, place))
                handed = reverse(block.args[1:])
            self.b.do("scf.yield", *handed)
        return loop

    def _from_end(self, count: Value, number: Value) -> Value:
        return self.b.subi(self.b.subi(count, self.b.index(1)), number)

    def _undoing(self, op: Op, loop: Op) -> Op:
        loop.attrs["undoes"] = len(self.undone)
        self.undone.append(op)
        return loop

    # --- segments ---------------------------------------------------------------------------------
    def _segment(
        self, op: Op, first: Value, end: Value, inits: Sequence[Value], tape: Tape | None
    ) -> Sequence[Value]:
        """The iterations ``first`` to ``end - 1``, which certainly take place, carried out on from
        ``inits`` and written on ``tape``. Gives what is carried on."""
        args = While(op).before.args if op.name == "scf.while" else For(op).carried
        loop = self.b.for_(first, end, self.b.index(1), inits)
        with self.b.at(loop.body) as block:
            number, *carried = block.args
            self.new.stand(args, carried)
            if tape is not None:
                self.tapes.write(tape, self.b.subi(number, first))
            self.b.do("scf.yield", *self.new.iteration(op, number))
        return loop.results

    def _length(self, op: Op) -> Value:
        """How many iterations a segment of ``op`` has."""
        return self.b.op("arith.index_cast", self.tapes.segments[op], type=index)

    def _count(self, op: Op, n: Value) -> Value:
        """In how many segments ``op`` is cut, of ``n`` iterations."""
        length = self._length(op)
        padded = self.b.addi(n, self.b.subi(length, self.b.index(1)))
        return self.b.op("arith.floordivsi", padded, length)

    def _ends(self, op: Op, number: Value, n: Value) -> tuple[Value, Value]:
        """The first iteration of a segment, and the one after its last."""
        length = self._length(op)
        first = self.b.muli(number, length)
        return first, self.b.op("arith.minsi", self.b.addi(first, length), n)

    def _place(self, op: Op, number: Value) -> Value:
        """Where on the tape of starts a segment is."""
        return self.b.addi(number, self.b.index(1)) if op.name == "scf.while" else number
