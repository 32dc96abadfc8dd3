"""Gradients of what all rows of a state share: a thread has a column of it.

Iterations along one parallel index, the *rows*, each carry local arrays through a sequential loop,
and what that loop reads for an element of these, all rows read. Each row then adds to the gradient
of it in every turn, and threads with a row each meet there all the time. But elements of a row only
meet in sums: where these are known (one number for each row and turn), each element is a recurrence
of its own. So the adjoint is several functions:

* what the sums are (``known_sums``, which keeps the state where chunks begin, too), and what their
  adjoints are (``with_ports``): the adjoint of the loop by rows, in which each sum has an input of
  its own added to it;
* the gradients of what rows share: from a loop over rows *and* elements (``by_element``) that is
  reversed like any other loop, in chunks, and whose rows then go inside of the chunks
  (``rows_inside.py``): a thread has the sums over rows in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from weft.autodiff.activity import read_and_written
from weft.autodiff.adjoint import Adjoint, Buffer, Extent
from weft.autodiff.clean import clean
from weft.autodiff.lengths import lengths
from weft.autodiff.names import adjoint_prefix
from weft.autodiff.primal import Primal
from weft.autodiff.reverse import reverse
from weft.autodiff.rows_inside import rows_inside
from weft.autodiff.state import State, by_element, known_sums, state_of, with_ports
from weft.autodiff.stored_sums import Pairs, Sums, read_once, renamed
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, below, walk
from weft.ir.types import MemRefType
from weft.ir.views import For, Parallel, constant_of, memory
from weft.passes.hoist import hoist


def by_columns(
    function: Function, wanted: Collection[int], kept: Collection[int], *, rows: int,
    checkpoints: Collection[Op] = (), stored: Collection[str] = (), chunk: int = 0, **_: Any,
) -> Adjoint | None:  # fmt: skip
    """The adjoint in which the gradients of what rows of a state share have loops of their own, for
    ``rows`` at a time, of which there is a multiple; None where there is no such state. The rest:
    see ``reverse``."""
    state = (
        state_of(function, kept) if {*wanted}.isdisjoint(read_and_written(function)[1]) else None
    )
    shared = state.shared(wanted) if state and state.loop in checkpoints else frozenset[int]()
    if state is None or not shared:
        return None
    elements, turns = by_element(state)
    ports = [k for k, a in enumerate(elements.args) if a.name.startswith("sum.")]
    made = reverse(elements, shared, [*kept, *ports], checkpoints=[turns], chunk=chunk, atomic=True)
    alone = all(w.interleaved and [x.op for x in w.extents] == [turns] for w in made.workspaces)
    if len(made.steps) != 1 or not alone:
        return None
    primal = Primal(function, wanted, kept)
    step, begun = made.steps[0], list[str]()
    given = {a.name for a in step.args}
    if not given.isdisjoint(map(state.known, state.sums)):  # the loop by rows runs anyway
        step, begun = _begun(step, state) or (step, begun)
    names = {w.name: f"kept.{w.name}" if begun else f"{w.name}.{elements.name}"
             for w in made.workspaces}  # fmt: skip
    vectors = dict(zip(begun, map(state.vector, state.arrays), strict=False))
    buffers = [
        Buffer(names[w.name], w.element, primal.parallel,
               tuple(Extent(state.loop, x.part, x.chunk) for x in w.extents), (state.width,),
               by_element=not begun, vector=vectors.get(names[w.name], 0))
        for w in made.workspaces
    ]  # fmt: skip
    step = rows_inside(step, state.row, rows, made.notes, names)
    for a in step.args:
        a.name = names.get(a.name, a.name)
    step, whole = _stored(state, elements, step, {*shared}, stored, rows, chunk)
    given = {a.name for a in step.args}
    prefix = adjoint_prefix(function)
    sums = {prefix + state.port(v): v for v in state.sums} | {state.known(v): v for v in state.sums}
    by_row = _by_row(state, frozenset(wanted) - shared, kept, stored, chunk, given & sums.keys())
    if by_row is None:
        return None
    given |= {a.name for s in by_row.steps for a in s.args}
    buffers += [
        Buffer(name, value.scalar.name, primal.parallel, (Extent(state.loop),), interleaved=True)
        for name, value in sums.items() if name in given
    ]  # fmt: skip
    known = {state.known(v) for v in state.sums} & given
    first = [known_sums(state, known, begun, chunk)] if known else []
    buffers += by_row.workspaces
    return Adjoint(
        function, tuple(primal.names), (*first, *by_row.steps, step), tuple(buffers),
        by_row.segments, lengths(primal, [state.loop]),
        by_row.notes | {name: "plain store" if name in whole and name in stored else
                        f"atomic, of the sums over {rows} rows each" for name in made.notes},
        defined=by_row.defined | (whole.keys() & {*stored}), dense=by_row.dense | whole,
        copies=primal.copies,
    )  # fmt: skip


def _begun(step: Function, state: State) -> tuple[Function, list[str]] | None:
    """``step`` without the loop that keeps the arrays of ``state`` where chunks begin, and the
    workspaces of these: the loop by rows keeps them then. None where there is more in it."""
    arrays = len(state.arrays)
    (parallel,) = (op for op in step.body.ops if op.name == "scf.parallel")
    loop = next(op for op in parallel.body.ops if op.name == "scf.for")
    writes = [op for op in walk(parallel.body) if op.name == "memref.store"
              and memory(op)[0] in step.args]  # fmt: skip
    inside = [op for op in writes if op in loop.body.ops]
    behind = [op for op in writes if op in parallel.body.ops]
    tapes = [memory(op)[0] for op in inside]
    if (
        len({*tapes}) != arrays or len(writes) != 2 * arrays
        or [memory(op)[2] for op in inside] != [[v] for v in For(loop).carried]
        or [memory(op)[2] for op in behind] != [[v] for v in loop.results]
        or [memory(op)[0] for op in behind] != tapes
        or any(memory(op)[1][0] is not For(loop).upper for op in behind)
        or any(op.name == "memref.atomic_rmw" for op in walk(loop.body))
    ):  # fmt: skip
        return None

    new, vectors = step.without_body(), dict[Value, int]()
    for tape, array in zip(tapes, state.arrays, strict=True):
        kept = new.args[step.args.index(tape)]
        kept.type = MemRefType(tape.memref.element, tape.memref.rank + 1)
        vectors[kept] = state.vector(array)

    def read(tape: Value, at: Sequence[Value], r: Rewriter) -> Value:
        *outer, row, element = at
        width = r.index(vectors[tape])
        first, place = (r.op(f"arith.{n}", element, width) for n in ("floordivsi", "remsi"))
        return r.load(tape, [*outer, first, row, place])

    def last(op: Op, r: Rewriter) -> list[Value] | None:
        """What was kept where the last chunk begins, which has fewer turns."""
        places = [memory(o) for o in behind] if op is loop else []
        return [read(r.lookup(tape), [*map(r.lookup, at)], r) for tape, at, _ in places] or None

    def kept_so(op: Op, r: Rewriter) -> list[Value] | None:
        tape, at, _ = memory(op) if op.name in ("memref.load", "memref.store") else (None, (), ())
        if tape not in vectors or len(at) == tape.memref.rank:
            return None
        return [read(tape, at, r)] if op.name == "memref.load" else []

    made = Rewriter(kept_so, last).into(step, new)
    return made, [f"kept.{tape.name}" for tape in tapes]


def _stored(
    state: State, elements: Function, step: Function, shared: Collection[int],
    stored: Collection[str], rows: int, chunk: int,
) -> tuple[Function, dict[str, Pairs]]:  # fmt: skip
    """``step``, that stores those of the gradients that are sums over all rows which ``stored``
    names, and when which of them may be stored."""
    last = constant_of(Parallel(state.parallel).uppers[state.row])
    if last != rows:
        return step, {}
    sums, prefix = Sums(step, chunk), adjoint_prefix(state.function)
    gradients = {a.name: a for a in step.args}
    names = {elements.args[k].name for k in shared}
    whole = {
        prefix + name: renamed(pairs, name, gradients[prefix + name])
        for name, pairs in read_once(elements, state.row).items()
        if name in names and prefix + name in sums.whole
    }  # fmt: skip
    return sums.stored(whole.keys() & {*stored}), whole


def _by_row(
    state: State, wanted: Collection[int], kept: Collection[int], stored: Collection[str],
    chunk: int, sums: Collection[str],
) -> Adjoint | None:  # fmt: skip
    """The adjoint of the loop by rows, that stores the adjoints of ``sums``; its workspaces as of
    the state's loop. None where it would have to accumulate these."""
    function = hoist(with_ports(state))  # what all elements read is read once
    prefix, args = adjoint_prefix(function), function.args
    ports = [k for k, a in enumerate(args) if prefix + a.name in sums]
    names = {prefix + args[k].name for k in ports}
    form: dict[str, Any] = {"wide": False, "stored": {*stored, *names}}
    asked = {*wanted, *ports}
    if not asked:
        return Adjoint(state.function, (), (), (), (), None)
    made = reverse(function, asked, kept, **form)
    (parallel,) = (op for op in function.body.ops if op.name == "scf.parallel")
    (loop,) = (op for op in parallel.body.ops if any(o.regions for o in below(op) if o is not op))
    if any(w.extents for w in made.workspaces):
        made = reverse(function, asked, kept, checkpoints=[loop], chunk=chunk, **form)
    made.steps = tuple(map(_without_ports, made.steps))
    extents = [x.op for w in made.workspaces for x in w.extents]
    if not names <= made.defined or any(op is not loop for op in extents):
        return None
    for w in made.workspaces:
        if w.parallel is not None:
            w.parallel = state.parallel
        w.extents = tuple(Extent(state.loop, x.part, x.chunk) for x in w.extents)
    made.segments = tuple((name, state.loop) for name, _ in made.segments)
    made.notes = {name: note for name, note in made.notes.items() if name not in names}
    made.dense = {name: pairs for name, pairs in made.dense.items() if name not in names}
    made.defined -= names
    return made


def _without_ports(function: Function) -> Function:
    """``function``, where ports are known to add nothing."""

    def visit(op: Op, _: Rewriter) -> list[Value] | None:
        port = op.right.op if op.name == "arith.addf" else None
        if (
            port is None
            or port.name != "memref.load"
            or not memory(port)[0].name.startswith("sum.")
        ):
            return None
        return [op.left]

    return clean(Rewriter(visit).function(function))
