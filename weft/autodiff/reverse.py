"""The adjoint of a device loop: redo, then undo (see README.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager

from weft.autodiff.activity import activity, is_float
from weft.autodiff.adjoint import Adjoint, Buffer, Extent
from weft.autodiff.clean import clean
from weft.autodiff.gather import gather
from weft.autodiff.memory import contents, element_written_once
from weft.autodiff.rules import REFUSED, RULES, ZERO, Local, adjoint_type
from weft.autodiff.tape import lengths
from weft.errors import GradientError
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, compute_type, i64, index

# What the redoing leaves out: the loop itself has done it, and its result stands.
_DONE = ("weft.assert", "weft.bounds", "weft.print")
_WRITES = {"memref.store": 1, "memref.atomic_rmw": 1, "memref.atomic_cas": 2}
# What may follow the parallel loop: totals are converted and written.
_TAIL = ("memref.store", "memref.atomic_rmw", "arith.truncf", "arith.extf")
_SCOPES = ("scf.for", "scf.while", "scf.if")


def reverse(
    function: Function,
    wanted: Collection[int],
    kept: Collection[int] = (),
    *,
    lasting: bool = False,
) -> Adjoint:
    """The adjoint of ``function`` with respect to its memref arguments ``wanted`` (positions).

    ``kept``: those among the arguments that are written whose adjoint *before* the loop does not
    matter, because they are fresh. ``lasting``: no place on a tape is written twice, as a
    derivative of the adjoint needs; tapes in nested loops are then larger. Raises
    ``GradientError`` for what cannot be reversed correctly.
    """
    return _Reversal(function, wanted, kept, lasting).run()


def unique_names(function: Function) -> list[str]:
    """The arguments' names, made different where a tuple gave several the same."""
    names: list[str] = []
    for k, value in enumerate(function.args):
        name = value.name or f"a{k}"
        names.append(name if name not in names else f"{name}.{k}")
    return names


def adjoint_prefix(function: Function) -> str:
    """What names of adjoints begin with: ``d.``, and ``d2.`` where ``function`` is an adjoint."""
    order = function.attrs.get("order", 0) + 1
    return "d." if order == 1 else f"d{order}."


def before_name(name: str) -> str:
    """The argument that holds the contents of ``name`` from before the loop."""
    return f"before.{name}"


class _Reversal:
    def __init__(
        self, function: Function, wanted: Collection[int], kept: Collection[int], lasting: bool
    ) -> None:
        self.lasting = lasting
        self.primal = function
        self.names = unique_names(function)
        args = function.args
        self.activity = activity(function, [args[k] for k in wanted])
        self.contents = contents(function)
        self.written = {op.operands[_WRITES[op.name]] for op in walk(function.body)
                        if op.name in _WRITES} & set(args)  # fmt: skip
        self.asked = {args[k] for k in wanted}
        self.kept = {args[k] for k in kept}
        self.once = {m for m in self.written & self.activity.arrays & self.kept
                     if element_written_once(function, m)}  # fmt: skip
        self.order = function.attrs.get("order", 0) + 1
        self.prefix = adjoint_prefix(function)
        self.new = Function(f"{function.name}_adjoint", [a.type for a in args], self.names,
                            {**function.attrs, "order": self.order}, function.span)  # fmt: skip
        self.b = Builder(self.new.body, function.span)
        self.env: dict[Value, Value] = dict(zip(args, self.new.args, strict=True))
        self.adj: dict[Value, Value] = {}
        self.frozen: set[Value] = set()  # adjoints that are known, and not to be added to
        self.shadow: dict[Value, Value] = {}  # arrays -> their adjoints
        self.before: dict[Value, Value] = {}
        self.buffers: list[Buffer] = []
        self.extents: list[Extent] = []
        self.tapes: dict[Op, _Tape] = {}
        # The sequential loops that are being undone around this point, and the iteration of each.
        self.around: list[tuple[Extent, Value]] = []
        self.inner: dict[Value, Value] = {}  # adjoints at the end of the iteration just undone
        self.snapshots: dict[Op, list[tuple[Value, Value]]] = {}
        self.parallel: Op | None = None
        self.first: list[Function] = []  # launched before the adjoint
        self.indices: list[Value] = []  # of the iteration, from 0: where it writes on tapes
        for op, which in self.contents.items():
            memref = op.operands[0]
            if which == "before" and memref not in self.before:
                self.before[memref] = self._argument(before_name(self._name(memref)), memref.type)
        for k, memref in enumerate(args):
            if memref in self.activity.arrays:
                assert isinstance(memref.type, MemRefType)
                type = MemRefType(compute_type(memref.type.element), memref.type.rank)
                self.shadow[memref] = self._argument(self.prefix + self.names[k], type)

    def _name(self, memref: Value) -> str:
        return self.names[self.primal.args.index(memref)]

    def _argument(self, name: str, type: object) -> Value:
        value = Value(type, name, self.new.body)  # type: ignore[arg-type]
        self.new.body.args.append(value)
        return value

    # --- the whole --------------------------------------------------------------------------------
    def run(self) -> Adjoint:
        ops = self.primal.body.ops
        places = [k for k, op in enumerate(ops) if op.name == "scf.parallel"]
        if len(places) != 1:
            raise GradientError("a loop without iterations has no gradient", self.primal.span)
        (at,) = places
        head, self.parallel, tail = ops[:at], ops[at], ops[at + 1 :]
        if any(op.regions for op in (*head, *tail)):
            raise GradientError("control flow around the parallel loop cannot be differentiated",
                                self.primal.span)  # fmt: skip
        self._check_atomics()
        for op in head:
            self._redo(op)
        self._parallel(self.parallel, tail)
        self._undo_ops(head)
        self.b.do("func.return")
        main = clean(self.new)
        steps, notes, buffers = gather(main, self._gradients(), self.parallel)
        steps = [*self.first, *steps]
        if self.lasting:
            for step in steps:
                step.attrs["tapes"] = tuple(b.name for b in self.buffers if b.extents)
        left = {a.name for step in steps for a in step.args}
        workspaces = [w for w in (*self.buffers, *buffers) if w.name in left]
        needed = [x for x in self.extents if any(x in w.extents for w in workspaces)]
        sizes = lengths(self.primal, [x.op for x in needed]) if workspaces else None
        return Adjoint(
            self.primal, tuple(self.names), tuple(steps), tuple(workspaces), tuple(needed), sizes,
            notes,
        )  # fmt: skip

    def _check_atomics(self) -> None:
        used = {v for op in walk(self.primal.body) for v in op.operands}
        for op in walk(self.primal.body):
            if op.name in ("memref.atomic_rmw", "memref.atomic_cas") and op.result in used:
                memref = op.operands[_WRITES[op.name]]
                if memref in self.written:
                    raise GradientError(
                        f"what an atomic operation found in `{memref.name}` is different when the "
                        "loop is carried out again, as a gradient needs", op.span,
                        help="compute such numbers in a loop of their own, before",
                    )  # fmt: skip

    def _gradients(self) -> list[str]:
        """The adjoints into which reads accumulate, of arrays that are not written."""
        return [v.name for m, v in self.shadow.items() if m in self.asked and m not in self.written]

    def _parallel(self, op: Op, tail: Sequence[Op]) -> None:
        dims = op.attrs["dims"]
        bounds = [self.env[v] for v in op.operands[: 3 * dims]]
        lowers, uppers, steps = bounds[:dims], bounds[dims : 2 * dims], bounds[2 * dims :]
        self._tail(op, tail)
        body = op.regions[0]
        outer = self._free([body], op)
        zeros = [self._zero(v) for v in outer]
        loop = self.b.parallel(lowers, uppers, steps, zeros, ["addf"] * len(outer))
        saved, self.adj = self.adj, {}
        with self.b.at(loop.regions[0]):
            for old, new in zip(body.args, loop.regions[0].args, strict=True):
                new.name = old.name
                self.env[old] = new
            self.indices = [
                self._count(iv, lower, step)
                for iv, lower, step in zip(loop.regions[0].args, lowers, steps, strict=True)
            ]
            self._redo_block(body, taping=True)
            for result, kind, given in zip(op.results, op.attrs["kinds"], body.terminator.operands,
                                           strict=True):  # fmt: skip
                if result in saved:
                    self._reduction(kind, saved[result], result, given, tail)
            self._undo_block(body)
            self.b.do("scf.reduce", *(self._adjoint(v) for v in outer))
        self.adj = saved
        for value, total in zip(outer, loop.results, strict=True):
            self._add(value, total)
        for kind, value, result in zip(op.attrs["kinds"], op.operands[3 * dims :], op.results,
                                       strict=True):  # fmt: skip
            if value in self.activity.values and result in self.adj:
                if kind != "addf":
                    raise GradientError("this reduction starts from a value that needs a gradient",
                                        op.span, help="combine with it after the loop")  # fmt: skip
                self._add(value, self.adj[result])

    def _tail(self, parallel: Op, tail: Sequence[Op]) -> None:
        """From the gradients of what a loop reduces into to the adjoints of its totals."""
        for value in parallel.results:  # the rules for casts do not look at it
            assert isinstance(value.type, ScalarType)
            self.env[value] = self.b.constant(0, value.type)
        for op in tail:
            if op.name not in _TAIL and any(v in self.activity.values for v in op.results):
                raise GradientError("what follows the parallel loop cannot be differentiated",
                                    op.span)  # fmt: skip
            self._redo(op)
        self._undo_ops(tail)

    def _reduction(
        self, kind: str, g: Value, result: Value, given: Value, tail: Sequence[Op]
    ) -> None:
        """The adjoint of one iteration's contribution ``given`` to a total."""
        if given not in self.activity.values:
            return
        if kind == "addf":
            self._add(given, g)
            return
        mine, zero, one = self.env[given], self._number(0.0, g), self._number(1.0, g)
        if kind in ("maximumf", "minimumf"):
            total = self._total(result, tail)
            # The extreme values share the adjoint evenly, as torch.amax has it.
            (ties,) = self._recount(given, [("addf", zero, lambda c: self._select_equal(
                c, self._total(result, tail), one, zero))], result)  # fmt: skip
            share = self.b.op("arith.divf", g, ties)
            self._add(given, self._select_equal(mine, total, share, zero))
        elif kind == "mulf":
            at = self.parallel.results.index(result)  # type: ignore[union-attr]
            first = self.parallel.operands[3 * self.parallel.attrs["dims"] + at]  # type: ignore[union-attr]
            zeros, rest = self._recount(
                given,
                [
                    ("addf", zero, lambda c: self._select_equal(c, self._zero(given), one, zero)),
                    (
                        "mulf",
                        self.env[first],
                        lambda c: self._select_equal(c, self._zero(given), one, c),
                    ),
                ],
                result,
            )
            others = self._select_equal(zeros, zero, self.b.op("arith.divf", rest, mine), zero)
            alone = self._select_equal(zeros, one, rest, zero)
            product = self._select_equal(mine, zero, alone, others)
            self._add(given, self.b.op("arith.mulf", g, product))
        else:
            raise GradientError(f"a parallel reduction by {kind} has no gradient", self.b.span)

    def _select_equal(self, x: Value, y: Value, yes: Value, no: Value) -> Value:
        same = self.b.op("arith.cmpf", x, y, predicate="oeq")
        return self.b.op("arith.select", same, yes, no)

    def _total(self, result: Value, tail: Sequence[Op]) -> Value:
        for op in tail:
            if op.name == "memref.store" and op.operands[0] is result:
                return self.b.load(self.env[op.operands[1]], [])
        raise GradientError("the total of this reduction is not kept in its own type", self.b.span)

    def _recount(
        self, given: Value, wanted: Sequence[tuple[str, Value, Callable[[Value], Value]]],
        result: Value,
    ) -> list[Value]:  # fmt: skip
        """More totals over all iterations, by a loop that is launched before the adjoint.

        Each of ``wanted`` is a combiner, its first value, and what an iteration contributes, made
        of ``given``. Gives the totals, as the adjoint reads them.
        """
        assert self.parallel is not None
        outer, body = self.new.body.args, self.parallel.regions[0]
        types, names = [a.type for a in outer], [a.name for a in outer]
        counting = Function(f"{self.primal.name}_totals{len(self.first)}", types, names,
                            dict(self.new.attrs), self.primal.span)  # fmt: skip
        saved = self.b, self.env, self.before, self.new
        places = dict(zip(outer, counting.args, strict=True))
        self.b, self.new = Builder(counting.body, self.primal.span), counting
        self.env = {old: places[new] for old, new in self.env.items() if new in places}
        self.before = {old: places[new] for old, new in self.before.items()}
        head = self.primal.body.ops[: self.primal.body.ops.index(self.parallel)]
        for op in head:
            self._redo(op)
        dims = self.parallel.attrs["dims"]
        bounds = [self.env[v] for v in self.parallel.operands[: 3 * dims]]
        # First values are constants, or what the head computes.
        inits = [self._again(first, saved[1]) for _, first, _ in wanted]
        loop = self.b.parallel(bounds[:dims], bounds[dims : 2 * dims], bounds[2 * dims :], inits,
                               [kind for kind, _, _ in wanted])  # fmt: skip
        with self.b.at(loop.regions[0]):
            self.env.update(zip(body.args, loop.regions[0].args, strict=True))
            self._redo_block(body, taping=False)
            parts = []
            for _, _, part in wanted:
                parts.append(self._remade(part, self.env[given]))
            self.b.do("scf.reduce", *parts)
        made = []
        for k, total in enumerate(loop.results):
            assert isinstance(total.type, ScalarType)
            name = f"total{self.order}.{len(self.first)}.{k}.{result.name or 'total'}"
            place = Value(MemRefType(total.type, 0), name, counting.body)
            counting.body.args.append(place)
            self.b.store(total, place, [])
            made.append((name, total.type))
        self.b.do("func.return")
        self.first.append(clean(counting))
        self.b, self.env, self.before, self.new = saved
        totals = []
        for name, type in made:
            self.buffers.append(Buffer(name, type.name, None))
            totals.append(self.b.load(self._argument(name, MemRefType(type, 0)), []))
        return totals

    def _again(self, value: Value, before: dict[Value, Value]) -> Value:
        """A constant, or a value of the head, in the function that is being built now."""
        if isinstance(value.owner, Op) and value.owner.name == "arith.constant":
            assert isinstance(value.type, ScalarType)
            return self.b.constant(value.owner.attrs["value"], value.type)
        return self.env[next(old for old, new in before.items() if new is value)]

    def _remade(self, part: Callable[[Value], Value], given: Value) -> Value:
        """``part(given)``, with the constants that it closed over made anew."""
        start = len(self.b.block.ops)
        value = part(given)
        for op in self.b.block.ops[start:]:
            for k, operand in enumerate(op.operands):
                owner = operand.owner
                if (
                    isinstance(owner, Op)
                    and owner.name == "arith.constant"
                    and (owner not in self.b.block.ops)
                ):
                    copy = Op("arith.constant", [], [operand.type], dict(owner.attrs), span=op.span)
                    self.b.block.ops.insert(start, copy)
                    op.operands[k] = copy.result
        return value

    # --- small things -----------------------------------------------------------------------------
    def _number(self, value: float, like: Value) -> Value:
        assert isinstance(like.type, ScalarType)
        return self.b.constant(value, like.type)

    def _zero(self, value: Value) -> Value:
        assert isinstance(value.type, ScalarType)
        return self.b.constant(0.0, adjoint_type(value.type))

    def _adjoint(self, value: Value) -> Value:
        found = self.adj.get(value)
        return self._zero(value) if found is None else found

    def _add(self, value: Value, g: Value | None) -> None:
        if g is None or value not in self.activity.values or value in self.frozen:
            return
        known = self.adj.get(value)
        self.adj[value] = g if known is None else self.b.op("arith.addf", known, g)

    def _count(self, iv: Value, lower: Value, step: Value) -> Value:
        distance = self.b.op("arith.subi", iv, lower)
        return self.b.op("arith.floordivsi", distance, step)

    def _one(self) -> Value:
        return self.b.constant(1, index)

    def _free(self, blocks: Sequence[Block], op: Op) -> list[Value]:
        """The values with adjoints that are used in ``blocks`` and come from outside."""
        inside: set[Value] = set()
        used: dict[Value, None] = {}
        for block in blocks:
            inside.update(block.args)
            for inner in walk(block):
                inside.update(inner.results)
                for region in inner.regions:
                    inside.update(region.args)
                used.update(dict.fromkeys(inner.operands))
        return [v for v in used if v not in inside and v in self.activity.values
                and v not in self.frozen]  # fmt: skip

    # --- redoing ----------------------------------------------------------------------------------
    def _redo_block(self, block: Block, *, taping: bool, later: Sequence[Op] = ()) -> None:
        """Carries out ``block`` again, without its terminator.

        ``taping``: the loops directly in it write down what they carry, because this is the pass
        that the walk backwards follows. ``later``: what is carried out after it, before that walk.
        """
        for k, op in enumerate(block.ops[:-1]):
            if taping and op.name in _SCOPES:
                self._snapshot(op, [*block.ops[k + 1 :], *later])
            self._redo(op, taping=taping)

    def _redo(self, op: Op, *, taping: bool = False) -> None:
        self.b.span = op.span
        match op.name:
            case name if name in _DONE or name == "func.return":
                return
            case "scf.for":
                self._redo_for(op, taping)
            case "scf.while":
                self._redo_while(op, taping)
            case "scf.if":
                self._redo_if(op)
            case "memref.load":
                memref = op.operands[0]
                source = self.env[memref]
                if self.contents.get(op) == "before":
                    source = self.before[memref]
                at = [self.env[v] for v in op.operands[1:]]
                self._stand(op, self.b.load(source, at))
            case "memref.store" | "memref.atomic_rmw" | "memref.atomic_cas":
                self._redo_write(op)
            case _:
                copy = Op(op.name, [self.env[v] for v in op.operands],
                          [r.type for r in op.results], dict(op.attrs))  # fmt: skip
                self.b.append(copy)
                for old, new in zip(op.results, copy.results, strict=True):
                    new.name = old.name
                    self.env[old] = new

    def _stand(self, op: Op, value: Value) -> None:
        value.name = op.result.name
        self.env[op.result] = value

    def _redo_write(self, op: Op) -> None:
        memref = op.operands[_WRITES[op.name]]
        if memref not in self.written:  # a local array
            copy = Op(op.name, [self.env[v] for v in op.operands],
                      [r.type for r in op.results], dict(op.attrs))  # fmt: skip
            self.b.append(copy)
            for old, new in zip(op.results, copy.results, strict=True):
                self.env[old] = new
        # Writes to arguments stand. What an atomic found before cannot be had a second time: it is
        # left undefined, and refused where it is used (see ``_check_atomics``).

    def _body(self, old: Block, new: Block, extra: Sequence[Value] = ()) -> None:
        for a, b in zip(old.args, new.args, strict=False):
            b.name = a.name
            self.env[a] = b

    def _redo_for(self, op: Op, taping: bool) -> None:
        lower, upper, step, *inits = (self.env[v] for v in op.operands)
        loop = self.b.for_(lower, upper, step, inits)
        old, new = op.regions[0], loop.regions[0]
        with self.b.at(new):
            self._body(old, new)
            if taping:
                tape = self._tape(op, old.args[1:], self._stored_in(op))
                tape.write(self._count(new.args[0], lower, step), self)
            self._redo_block(old, taping=False)
            self.b.do("scf.yield", *(self.env[v] for v in old.terminator.operands))
        self._results(op, loop.results)

    def _redo_while(self, op: Op, taping: bool) -> None:
        inits = [self.env[v] for v in op.operands]
        zero = self.b.constant(0, index)
        before, after = op.regions
        types = [r.type for r in op.results]
        loop = self.b.while_([*inits, zero], [*types, index])
        with self.b.at(loop.regions[0]) as block:
            self._body(before, block)
            count = block.args[-1]
            if taping:
                tape = self._tape(op, before.args, self._stored_in(op))
                tape.write(count, self)
            self._redo_block(before, taping=False)
            self.b.do("scf.condition", *(self.env[v] for v in before.terminator.operands), count)
        with self.b.at(loop.regions[1]) as block:
            self._body(after, block)
            self._redo_block(after, taping=False)
            count = self.b.op("arith.addi", block.args[-1], self._one())
            self.b.do("scf.yield", *(self.env[v] for v in after.terminator.operands), count)
        self._results(op, loop.results[:-1])
        if taping:
            self.tapes[op].trips = loop.results[-1]

    def _redo_if(self, op: Op) -> None:
        branch = self.b.if_(self.env[op.operands[0]], [r.type for r in op.results])
        for old, new in zip(op.regions, branch.regions, strict=True):
            with self.b.at(new):
                self._redo_block(old, taping=False)
                self.b.do("scf.yield", *(self.env[v] for v in old.terminator.operands))
        self._results(op, branch.results)

    def _results(self, op: Op, values: Sequence[Value]) -> None:
        for old, new in zip(op.results, values, strict=True):
            new.name = old.name
            self.env[old] = new

    # --- tapes and snapshots ----------------------------------------------------------------------
    def _stored_in(self, op: Op) -> list[Value]:
        """The local arrays from outside of ``op`` that it writes."""
        inner = {v for o in walk_regions(op) for v in o.results}
        found = {o.operands[_WRITES[o.name]]: None for o in walk_regions(op) if o.name in _WRITES}
        return [m for m in found if m not in self.written and m not in inner]

    def _loaded_in(self, op: Op) -> list[Value]:
        inner = {v for o in walk_regions(op) for v in o.results}
        found = {o.operands[0]: None for o in walk_regions(op) if o.name == "memref.load"}
        args = set(self.primal.args)
        return [m for m in found if m not in args and m not in inner]

    def _snapshot(self, op: Op, later: Sequence[Op]) -> None:
        """Copies of the local arrays that ``op`` reads and that change before it is undone."""
        own = self._stored_in(op)
        behind = {
            o.operands[_WRITES[o.name]]
            for x in later for o in (x, *walk_regions(x)) if o.name in _WRITES
        }  # fmt: skip
        copies = []
        for memref in self._loaded_in(op):
            if memref in behind or (memref in own and op.name == "scf.if"):
                type = memref.type
                assert isinstance(type, MemRefType)
                copy = self.b.alloca(type.element, type.shape or ())
                self.copy_array(type.shape or (), lambda at, m=memref: self.b.load(self.env[m], at),
                           lambda v, at, c=copy: self.b.store(v, c, at))  # fmt: skip
                copies.append((memref, copy))
        self.snapshots[op] = copies

    def _restore(self, op: Op) -> None:
        for memref, copy in self.snapshots.get(op, ()):
            type = memref.type
            assert isinstance(type, MemRefType)
            self.copy_array(type.shape or (), lambda at, c=copy: self.b.load(c, at),
                       lambda v, at, m=memref: self.b.store(v, self.env[m], at))  # fmt: skip

    def copy_array(
        self, shape: Sequence[int], read: Callable[[list[Value]], Value],
        write: Callable[[Value, list[Value]], object], at: tuple[Value, ...] = (),
    ) -> None:  # fmt: skip
        """For every subscript of an array of ``shape``: ``write(read(at), at)``."""
        if not shape:
            write(read(list(at)), list(at))
            return
        zero, n, one = (self.b.constant(k, index) for k in (0, shape[0], 1))
        loop = self.b.for_(zero, n, one)
        with self.b.at(loop.regions[0]):
            self.copy_array(shape[1:], read, write, (*at, loop.regions[0].args[0]))
            self.b.do("scf.yield")

    def places(self) -> list[Value]:
        """The subscripts on a tape that come before the number of the iteration."""
        return [*self.indices, *(number for _, number in self.around if self.lasting)]

    def _tape(self, op: Op, carried: Sequence[Value], arrays: Sequence[Value]) -> _Tape:
        tape = self.tapes.get(op)
        if tape is None:
            extent = Extent(op, len(self.extents))
            self.extents.append(extent)
            around = [x for x, _ in self.around] if self.lasting else []
            tape = self.tapes[op] = _Tape(list(carried), list(arrays), extent)
            assert self.parallel is not None
            for value in (*carried, *arrays):
                element = value.type
                shape: tuple[int, ...] = ()
                if isinstance(element, MemRefType):
                    element, shape = element.element, element.shape or ()
                name = f"tape{self.order}.{len(self.buffers)}.{value.name or 'v'}"
                rank = len(self.indices) + len(around) + 1 + len(shape)
                tape.buffers.append(self._argument(name, MemRefType(stored(element), rank)))
                self.buffers.append(
                    Buffer(name, stored(element).name, self.parallel, (*around, extent), shape)
                )
        return tape

    # --- undoing ----------------------------------------------------------------------------------
    def _undo_block(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "memref.alloca" and op.result in self.activity.arrays:
                self._make_shadow(op.result)
        self._undo_ops(block.ops[:-1])

    def _make_shadow(self, memref: Value) -> None:
        type = memref.type
        assert isinstance(type, MemRefType)
        element = compute_type(type.element)
        shadow = self.b.alloca(element, type.shape or ())
        zero = self.b.constant(0.0, element)
        self.copy_array(
            type.shape or (), lambda at: zero, lambda v, at: self.b.store(v, shadow, at)
        )
        shadow.name = f"d.{memref.name}"
        self.shadow[memref] = shadow

    def _undo_ops(self, ops: Sequence[Op]) -> None:
        for op in reversed(ops):
            self.b.span = op.span
            match op.name:
                case "memref.load":
                    self._undo_load(op)
                case "memref.store":
                    self._undo_store(op)
                case "memref.atomic_rmw" | "memref.atomic_cas":
                    self._undo_atomic(op)
                case "scf.for":
                    self._undo_for(op)
                case "scf.while":
                    self._undo_while(op)
                case "scf.if":
                    self._undo_if(op)
                case "memref.alloca" | "func.return" | "memref.dim":
                    pass
                case name if name in _DONE:
                    pass
                case _:
                    self._undo_scalar(op)

    def _undo_scalar(self, op: Op) -> None:
        if op.name in ZERO or len(op.results) != 1:
            return
        if op.name in REFUSED or op.name not in RULES:
            if any(v in self.activity.values for v in op.operands):
                raise GradientError(f"{op.name} has no derivative", op.span)
            return
        g = self.adj.get(op.result)
        if g is None:
            return
        operands = [self.env[v] for v in op.operands]
        varied = [v in self.activity.values for v in op.operands]
        local = Local(self.b, op, operands, self.env.get(op.result, g), g, varied)
        for operand, share in zip(op.operands, RULES[op.name](local), strict=True):
            self._add(operand, share)

    def _undo_load(self, op: Op) -> None:
        g = self.adj.get(op.result)
        shadow = self.shadow.get(op.operands[0])
        if g is None or shadow is None:
            return
        at = [self.env[v] for v in op.operands[1:]]
        if op.operands[0] in self.primal.args:
            self.b.atomic_rmw("addf", g, shadow, at)
        else:
            self.b.store(self.b.op("arith.addf", self.b.load(shadow, at), g), shadow, at)

    def _undo_store(self, op: Op) -> None:
        value, memref, *subscripts = op.operands
        shadow = self.shadow.get(memref)
        if shadow is None or not is_float(value):
            return
        at = [self.env[v] for v in subscripts]
        g = self.b.load(shadow, at)
        if memref not in self.once:
            assert isinstance(shadow.type, MemRefType)
            self.b.store(self.b.constant(0.0, shadow.type.element), shadow, at)
        self._add(value, g)

    def _undo_atomic(self, op: Op) -> None:
        memref = op.operands[_WRITES[op.name]]
        shadow = self.shadow.get(memref)
        if shadow is None:
            return
        if op.attrs.get("kind") != "addf":
            kind = op.attrs.get("kind", "compare-and-swap")
            raise GradientError(
                f"an atomic {kind} of floats has no gradient",
                op.span,
                help="accumulate with +=, or reduce into a local variable",
            )
        if op.result in self.adj:
            raise GradientError("the value from before an atomic += has no gradient", op.span)
        at = [self.env[v] for v in op.operands[2:]]
        self._add(op.operands[0], self.b.load(shadow, at))

    @contextmanager
    def _scope(self, adjoints: dict[Value, Value]) -> Generator[None]:
        """Adjoints of a scope of its own; what is undone in it adds to ``adjoints`` only."""
        saved, self.adj = self.adj, adjoints
        try:
            yield
        finally:
            self.adj = saved

    def _undo_if(self, op: Op) -> None:
        outer = self._free(op.regions, op)
        if not outer and not self._touches(op):
            return
        self._restore(op)
        start = [self._adjoint(v) for v in outer]
        branch = self.b.if_(self.env[op.operands[0]], [v.type for v in start])
        results = {r: self.adj[r] for r in op.results if r in self.adj}
        for old, new in zip(op.regions, branch.regions, strict=True):
            with self.b.at(new), self._scope(dict(zip(outer, start, strict=True))):
                self._redo_block(old, taping=True)
                for given, result in zip(old.terminator.operands, op.results, strict=True):
                    self._add(given, results.get(result))
                self._undo_block(old)
                self.b.do("scf.yield", *(self.adj[v] for v in outer))
        self.adj.update(zip(outer, branch.results, strict=True))

    def _touches(self, op: Op) -> bool:
        """Whether anything in ``op`` reads or writes memory that has an adjoint."""
        names = ("memref.load", "memref.store", "memref.atomic_rmw", "memref.atomic_cas")
        arrays = self.activity.arrays
        return any(
            o.name in names and any(v in arrays for v in o.operands) for o in walk_regions(op)
        )

    def _undo_for(self, op: Op) -> None:
        body = op.regions[0]
        carried = [v for v in body.args[1:] if v in self.activity.values]
        outer = self._free([body], op)
        results = {c: self.adj.get(r) for c, r in zip(body.args[1:], op.results, strict=True)}
        if not outer and not self._touches(op) and not any(results[c] for c in carried):
            return
        self._restore(op)
        lower, upper, step = (self.env[v] for v in op.operands[:3])
        given = dict(zip(body.args[1:], body.terminator.operands, strict=True))
        sums = [c for c in carried if passes_through(c, given[c], body)]
        chain = [c for c in carried if c not in sums]
        starts = [results[c] or self._zero(c) for c in chain]
        starts += [self._adjoint(v) for v in outer]
        # Backwards, unless nothing is handed on from iteration to iteration.
        plain = (
            not chain
            and not self._stored_in(op)
            and not self._overwrites(op)
            and all(is_unread(v, given[v], body) for v in body.args[1:] if v not in sums)
        )
        n = self._trips(lower, upper, step)
        zero, one = self.b.constant(0, index), self._one()
        loop = (self.b.for_(lower, upper, step, starts) if plain
                else self.b.for_(zero, n, one, starts))  # fmt: skip
        with self.b.at(loop.regions[0]) as block:
            if plain:
                iv, number = block.args[0], self._count(block.args[0], lower, step)
            else:
                number = self.b.op("arith.subi", self.b.op("arith.subi", n, one), block.args[0])
                iv = self.b.op("arith.addi", lower, self.b.op("arith.muli", number, step))
            block.args[0].name = body.args[0].name
            self.env[body.args[0]] = iv
            self.tapes[op].read(number, self)
            self.around.append((self.tapes[op].extent, number if plain else block.args[0]))
            self._undo_iteration(body, sums, chain, outer, block.args[1:], results)
            self.around.pop()
            self.b.do("scf.yield", *(self._inner_adj(v) for v in (*chain, *outer)))
        self._after(op.operands[3:], body.args[1:], sums, chain, outer, results, loop.results)

    def _overwrites(self, op: Op) -> bool:
        """Whether an element of an argument may be written by several iterations of ``op``, or
        written by one and read by another."""
        inner = walk_regions(op)
        read = {o.operands[0] for o in inner if o.name == "memref.load"}
        stores = {o.operands[1] for o in inner if o.name in _WRITES}
        return any(
            m in self.shadow and m in self.written and (m not in self.once or m in read)
            for m in stores
        )

    def _undo_iteration(
        self, body: Block, sums: Sequence[Value], chain: Sequence[Value], outer: Sequence[Value],
        args: Sequence[Value], results: dict[Value, Value | None],
    ) -> None:  # fmt: skip
        self._redo_block(body, taping=True)
        given = dict(zip(body.args[1:], body.terminator.operands, strict=True))
        handed = dict(zip(chain, args, strict=False))
        self.inner = dict(zip(outer, args[len(chain) :], strict=True))
        frozen = self.frozen
        self.frozen = frozen | set(sums)
        with self._scope(dict(self.inner)):
            for c in (*sums, *chain):
                self._add(given[c], results[c] if c in sums else handed[c])
            self._undo_block(body)
            self.inner = self.adj
        self.frozen = frozen

    def _inner_adj(self, value: Value) -> Value:
        found = self.inner.get(value)
        return self._zero(value) if found is None else found

    def _after(
        self, inits: Sequence[Value], args: Sequence[Value], sums: Sequence[Value],
        chain: Sequence[Value], outer: Sequence[Value], results: dict[Value, Value | None],
        totals: Sequence[Value],
    ) -> None:  # fmt: skip
        """After a loop was undone: the adjoints of what it used and of what it started from."""
        self.adj.update(zip(outer, totals[len(chain) :], strict=True))
        start = dict(zip(args, inits, strict=True))
        for c, g in zip(chain, totals, strict=False):
            self._add(start[c], g)
        for c in sums:
            self._add(start[c], results[c])

    def _trips(self, lower: Value, upper: Value, step: Value) -> Value:
        distance = self.b.op("arith.subi", upper, lower)
        less = self.b.op("arith.subi", step, self._one())
        return self.b.op("arith.floordivsi", self.b.op("arith.addi", distance, less), step)

    def _undo_while(self, op: Op) -> None:
        before, after = op.regions
        carried = [v for v in before.args if v in self.activity.values]
        outer = self._free(op.regions, op)
        results = {r: self.adj.get(r) for r in op.results}
        if not outer and not self._touches(op) and not any(results.values()):
            return
        self._restore(op)
        tape = self.tapes[op]
        trips = tape.trips
        assert trips is not None
        # The last evaluation of the condition, which gave the results.
        tape.read(trips, self)
        handed = [results[r] for r in op.results]
        self.around.append((tape.extent, trips))
        self._undo_part(before, before.terminator.operands[1:], handed, outer)
        self.around.pop()
        starts = [self._inner_adj(v) for v in (*carried, *outer)]
        zero, one = self.b.constant(0, index), self._one()
        loop = self.b.for_(zero, trips, one, starts)
        with self.b.at(loop.regions[0]) as block:
            last = self.b.op("arith.subi", trips, one)
            tape.read(self.b.op("arith.subi", last, block.args[0]), self)
            self.around.append((tape.extent, block.args[0]))
            self._redo_block(before, taping=True, later=after.ops)
            for old, value in zip(after.args, before.terminator.operands[1:], strict=True):
                self.env[old] = self.env[value]
            incoming = dict(zip(carried, block.args[1:], strict=False))
            totals = dict(zip(outer, block.args[1 + len(carried) :], strict=True))
            with self._scope(totals):
                self._redo_block(after, taping=True)
                for arg, value in zip(before.args, after.terminator.operands, strict=True):
                    self._add(value, incoming.get(arg))
                self._undo_block(after)
                for arg, value in zip(after.args, before.terminator.operands[1:], strict=True):
                    self._add(value, self.adj.get(arg))
                self._undo_block(before)
                self.b.do("scf.yield", *(self._adjoint(v) for v in (*carried, *outer)))
            self.around.pop()
        self.adj.update(zip(outer, loop.results[len(carried) :], strict=True))
        start = dict(zip(before.args, op.operands, strict=True))
        for c, g in zip(carried, loop.results, strict=False):
            self._add(start[c], g)

    def _undo_part(
        self, block: Block, given: Sequence[Value], handed: Sequence[Value | None],
        outer: Sequence[Value],
    ) -> None:  # fmt: skip
        self._redo_block(block, taping=True)
        with self._scope({v: self._adjoint(v) for v in outer}):
            for value, g in zip(given, handed, strict=True):
                self._add(value, g)
            self._undo_block(block)
            self.inner = self.adj


class _Tape:
    """What a sequential loop carries, by iteration."""

    def __init__(self, carried: list[Value], arrays: list[Value], extent: Extent) -> None:
        self.carried = carried
        self.extent = extent
        self.arrays = arrays
        self.buffers: list[Value] = []
        self.trips: Value | None = None

    def write(self, number: Value, r: _Reversal) -> None:
        for value, buffer in zip(self.carried, self.buffers, strict=False):
            r.b.store(_to_memory(r.b, r.env[value]), buffer, [*r.places(), number])
        for memref, buffer in zip(self.arrays, self.buffers[len(self.carried) :], strict=True):
            type = memref.type
            assert isinstance(type, MemRefType)
            r.copy_array(
                type.shape or (),
                lambda at, m=memref: r.b.load(r.env[m], at),
                lambda v, at, t=buffer: r.b.store(v, t, [*r.places(), number, *at]),
            )

    def read(self, number: Value, r: _Reversal) -> None:
        for value, buffer in zip(self.carried, self.buffers, strict=False):
            loaded = r.b.load(buffer, [*r.places(), number])
            r.env[value] = _from_memory(r.b, loaded, value.type)
        for memref, buffer in zip(self.arrays, self.buffers[len(self.carried) :], strict=True):
            type = memref.type
            assert isinstance(type, MemRefType)
            r.copy_array(
                type.shape or (),
                lambda at, t=buffer: r.b.load(t, [*r.places(), number, *at]),
                lambda v, at, m=memref: r.b.store(v, r.env[m], at),
            )


def stored(type: object) -> ScalarType:
    """The element type of a tape for values of ``type``: no tensor has elements of type index."""
    assert isinstance(type, ScalarType)
    return i64 if type is index else type


def _to_memory(b: Builder, value: Value) -> Value:
    type = stored(value.type)
    return value if type is value.type else b.op("arith.index_cast", value, type=type)


def _from_memory(b: Builder, value: Value, type: object) -> Value:
    return value if value.type is type else b.op("arith.index_cast", value, type=type)  # type: ignore[arg-type]


def walk_regions(op: Op) -> list[Op]:
    return [inner for region in op.regions for inner in walk(region)]


def _uses(value: Value, block: Block) -> list[Op]:
    return [op for op in walk(block) if value in op.operands]


def passes_through(value: Value, given: Value, block: Block) -> bool:
    """Whether ``given`` is ``value`` plus something, and neither ``value`` nor the sums on the way
    are used for anything else: the adjoint is then the same before and after."""
    ends = block.terminator
    if ends.operands.count(given) != 1:
        return False
    chain: set[Op] = {ends}
    sums: set[Value] = {value, given}
    if given is not value and not _is_sum(value, given, chain, sums):
        return False
    return all(op in chain for v in sums for op in _uses(v, block))


def _is_sum(value: Value, given: Value, chain: set[Op], sums: set[Value]) -> bool:
    """Whether ``given`` is ``value`` plus other things; collects operations and partial sums."""
    if given is value:
        return True
    op = given.owner
    if not isinstance(op, Op):
        return False
    if op.name == "scf.if":
        k = op.results.index(given)
        ends = [region.terminator for region in op.regions]
        if any(end.operands.count(end.operands[k]) != 1 for end in ends):
            return False
        chain.update(ends)
        sums.update(end.operands[k] for end in ends)
        return all(_is_sum(value, end.operands[k], chain, sums) for end in ends)
    if op.name not in ("arith.addf", "arith.subf"):
        return False
    chain.add(op)
    a, b = op.operands
    if a is b:
        return False
    inner_chain, inner_sums = set(chain), {*sums, a}
    if _is_sum(value, a, inner_chain, inner_sums) and b not in inner_sums:
        chain |= inner_chain
        sums |= inner_sums
        return True
    sums.add(b)
    return op.name == "arith.addf" and _is_sum(value, b, chain, sums) and a not in sums


def is_unread(value: Value, given: Value, block: Block) -> bool:
    """A carried value that no iteration looks at but to hand it on."""
    return all(op is block.terminator for op in _uses(value, block))
