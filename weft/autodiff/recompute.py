"""Recomputation: operations of the primal carried out again, so that each value has its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager

from weft.autodiff.adjoint import Buffer
from weft.autodiff.clean import clean
from weft.autodiff.primal import Primal, array_of
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value
from weft.ir.types import SCALARS, MemRefType, Type, index
from weft.ir.views import For, If, Parallel, While, memory


def _nothing(value: Value) -> None:
    pass


class Recomputation:
    """A function that is being built, in which operations of ``primal`` are carried out again.

    ``env``: what stands for a value of the primal. ``indices``: the iteration of the parallel loop,
    each index counted from 0. ``number``: the iteration, likewise, of each sequential loop around.
    ``work``: the copies on which what overwrites elements is carried out, in place of arguments.
    ``unread``: local arrays of which nothing is asked here, and in which nothing is written.
    ``stored_again``: arguments to which stores are carried out, which find there what they store.
    """

    def __init__(self, primal: Primal, name: str, like: Recomputation | None = None) -> None:
        """The function has the arguments of the primal, or those of ``like``."""
        self.primal = primal
        function = primal.function
        attrs = {**function.attrs, "order": primal.order}
        args = (like or primal).function.args
        names = [a.name for a in args] if like else primal.names
        self.function = Function(f"{function.name}_{name}", [a.type for a in args], names, attrs,
                                 function.span)  # fmt: skip
        self.b = Builder(self.function.body, function.span)
        self.env: dict[Value, Value] = dict(zip(function.args, self.function.args, strict=False))
        self.indices: list[Value] = []
        self.number: dict[Op, Value] = {}
        self.work: dict[Value, Value] = {}
        self.unread: Collection[Value] = ()
        self.stored_again: Collection[Value] = ()
        self.recorded: Collection[Op] = ()
        self.counted: dict[Op, Callable[[Value], None]] = {}  # told how many iterations there were

    def beside(self, name: str) -> Recomputation:
        """Another function, with the arguments of this one, that begins with the primal's head."""
        made = Recomputation(self.primal, name, self)
        made.ops(self.primal.head)
        return made

    def finished(self) -> Function:
        self.b.do("func.return")
        return clean(self.function)

    def argument(self, name: str, type: Type) -> Value:
        """The argument of that name, which is added if there is none."""
        args = self.function.args
        found = next((a for a in args if a.name == name), None)
        if found is None:
            found = Value(type, name, self.function.body)
            args.append(found)
        return found

    def workspace(self, buffer: Buffer) -> Value:
        """A workspace as large as the parallel loop, or of a single number."""
        rank = 0 if buffer.parallel is None else self.primal.parallel.attrs["dims"]
        return self.argument(buffer.name, MemRefType(SCALARS[buffer.element], rank))

    @contextmanager
    def without(self, arrays: Collection[Value]) -> Generator[None]:
        """Leaves out what is written to these local ``arrays``."""
        before, self.unread = self.unread, {*self.unread, *arrays}
        yield
        self.unread = before

    def stand(self, old: Sequence[Value], new: Sequence[Value]) -> None:
        """Lets ``new`` stand for ``old``."""
        for before, after in zip(old, new, strict=True):
            after.name = before.name
            self.env[before] = after

    def values(self, values: Sequence[Value]) -> list[Value]:
        return [self.env[v] for v in values]

    def parallel(self, inits: Sequence[Value] = (), kinds: Sequence[str] = ()) -> Op:
        """The parallel loop with reductions of its own: to be filled."""
        op = self.primal.parallel
        lowers, uppers, steps = map(self.values, Parallel(op).ranges)
        loop = self.b.parallel(lowers, uppers, steps, inits, kinds)
        with self.b.at(loop.body) as block:
            self.stand(op.body.args, block.args)
            triples = zip(block.args, lowers, steps, strict=True)
            self.indices = [self.b.steps(iv, lower, step) for iv, lower, step in triples]
        return loop

    def ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.op(op)

    def op(self, op: Op) -> None:
        self.b.span = op.span
        if self.primal.is_done(op):
            return
        match op.name:
            case "scf.for":
                self.for_(op)
            case "scf.while":
                self.while_(op)
            case "scf.if":
                branch = self.b.if_(self.env[If(op).condition], [r.type for r in op.results])
                for old, new in zip(op.regions, branch.regions, strict=True):
                    with self.b.at(new):
                        self.b.do("scf.yield", *self.block(old))
                self.stand(op.results, branch.results)
            case "memref.load":
                self.stand(op.results, [self.seen(op)])
            case "memref.store" | "memref.atomic_rmw" | "memref.atomic_cas":
                self._write(op)
            case _:
                self.stand(op.results, self.b.copied(op, self.env.__getitem__).results)

    def block(self, block: Block) -> list[Value]:
        """Carries out ``block``, and gives what its terminator hands on."""
        self.ops(block.ops[:-1])
        return self.values(block.terminator.operands)

    def for_(self, op: Op, taped: Callable[[Value], None] = _nothing) -> None:
        """A ``scf.for``. ``taped`` is given the number of each iteration where it begins."""
        lower, upper, step = self.values(For(op).bounds)
        if op in self.counted:
            self.counted[op](self.b.trip_count(lower, upper, step))
        loop = self.b.for_(lower, upper, step, self.values(For(op).inits))
        with self.b.at(loop.body) as block:
            self.stand(op.body.args, block.args)
            self.number[op] = self.b.steps(block.args[0], lower, step)
            taped(self.number[op])
            self.b.do("scf.yield", *self.block(op.body))
        self.stand(op.results, loop.results)

    def while_(self, op: Op, taped: Callable[[Value], None] = _nothing) -> Value:
        """A ``scf.while``. ``taped`` is given the number of each evaluation of the condition. Gives
        the number of iterations."""
        view, types = While(op), [r.type for r in op.results]
        inits = self.values(op.operands)
        loop = self.b.while_([*inits, self.b.index(0)], [*types, index])
        with self.b.at(While(loop).before) as block:
            *args, self.number[op] = block.args
            self.stand(view.before.args, args)
            taped(self.number[op])
            self.b.do("scf.condition", *self.block(view.before), self.number[op])
        with self.b.at(While(loop).after) as block:
            *args, self.number[op] = block.args
            self.stand(view.after.args, args)
            handed = self.block(view.after)
            self.b.do("scf.yield", *handed, self.b.addi(block.args[-1], self.b.index(1)))
        *results, trips = loop.results
        self.stand(op.results, results)
        if op in self.counted:
            self.counted[op](self.b.addi(trips, self.b.index(1)))
        return trips

    def iteration(self, op: Op, number: Value) -> list[Value]:
        """One iteration of a sequential loop, counted from 0. Gives what it hands on."""
        self.at_iteration(op, number)
        if op.name == "scf.for":
            return self.block(op.body)
        before, after = op.regions
        self.ops(before.ops[:-1])
        self.env.update(zip(after.args, self.values(While(op).handed), strict=True))
        return self.block(after)

    def at_iteration(self, op: Op, number: Value) -> None:
        """Lets the index of a loop be that of iteration ``number``."""
        self.number[op] = number
        if op.name == "scf.for":
            lower, _, step = self.values(For(op).bounds)
            self.stand([For(op).index], [self.b.addi(lower, self.b.muli(number, step))])

    # --- memory -----------------------------------------------------------------------------------
    def seen(self, op: Op) -> Value:
        """What a load or an update found in the element that it accesses."""
        memref, at = array_of(op), self.values(memory(op)[1])
        match self.primal.contents.get(op):
            case "before":
                return self.b.load(self.argument(self.primal.before(memref), memref.type), at)
            case "tape" if not self.work:
                return self.b.load(*self._version(op))
            case "tape":
                value = self.b.load(self.work[memref], at)
                if op in self.recorded:
                    self.b.store(value, *self._version(op))
                return value
            case _:
                return self.b.load(self.env[memref], at)

    def _version(self, op: Op) -> tuple[Value, list[Value]]:
        """The tape of what ``op`` saw, and where on it this time is."""
        numbers = [self.number[loop] for loop in self.primal.loops_around(op)]
        order = (numbers, self.indices) if self.primal.interleaved else (self.indices, numbers)
        at = [*order[0], *order[1]]
        type = MemRefType(array_of(op).memref.element, len(at))
        return self.argument(self.primal.versions[op], type), at

    def _write(self, op: Op) -> None:
        memref = array_of(op)
        if memref in self.unread:
            return
        if op in self.primal.contents and memref in self.work:
            self.seen(op)
        if memref not in self.primal.written or memref in self.work:  # a local array, or a copy
            copy = self.b.copied(op, lambda v: self.work.get(v) or self.env[v])
            self.env.update(zip(op.results, copy.results, strict=True))
        elif memref in self.stored_again:
            self.b.copied(op, self.env.__getitem__)
        # Other writes to arguments stand. What an atomic found before cannot be had a second time:
        # it is left undefined, and refused where it is used (see ``Primal.check``).

    def on_copies(self) -> None:
        """Lets what is overwritten be copies, whose contents are those from before the loop."""
        for memref in dict.fromkeys(map(array_of, self.primal.versions)):
            self.work[memref] = self.argument(self.primal.copy(memref), memref.type)

    def carry_out(self) -> Function:
        """The whole parallel loop, without its reductions."""
        with self.b.at(self.parallel().body):
            self.ops(self.primal.parallel.body.ops[:-1])
            self.b.do("scf.reduce")
        return self.finished()
