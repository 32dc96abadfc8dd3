"""States: local arrays that the iterations of a parallel loop carry through a sequential one.

Each turn goes through the elements of these one by one, and sums over them. The functions here are
the loop itself, with something done to each sum, and the loop with a parallel iteration for each
element.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from weft.autodiff.clean import clean
from weft.autodiff.memory import element_written_once
from weft.autodiff.names import unique_names
from weft.index.access import accesses
from weft.ir.builder import Builder, Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, compute_type
from weft.ir.views import For, Parallel, constant_of, is_constant, memory
from weft.ir.writes import written
from weft.schedule.unroll import turns
from weft.values import mutable

_LEAST = 8  # elements of a state, below which a row's threads meet seldom

_ACCESSES = ("memref.load", "memref.store", "memref.atomic_rmw")


@mutable
class State:
    """A loop ``loop`` that carries the local ``arrays``, of ``width`` elements each, with the
    numbers that they are filled with. ``first``, ``inner``, ``last``: the loops through the
    elements before it, in each turn, and behind it. ``row``: the parallel index along which rows
    are. ``sums``: the results of ``inner`` that something else than one store uses. ``direct``:
    those that are only stored, with the store."""

    function: Function
    parallel: Op
    loop: Op
    arrays: dict[Value, Value | None]
    width: int
    first: list[Op]
    inner: list[Op]
    last: list[Op]
    row: int
    sums: list[Value]
    direct: dict[Value, Op]

    def known(self, value: Value) -> str:
        return f"kept.{self.sums.index(value)}.{value.name or 'sum'}"

    def port(self, value: Value) -> str:
        return f"sum.{self.sums.index(value)}.{value.name or 'sum'}"

    def type(self, value: Value) -> MemRefType:
        return MemRefType(value.scalar, Parallel(self.parallel).dims + 1)

    def vector(self, array: Value) -> int:
        """How many elements of ``array`` are kept side by side."""
        return math.gcd(self.width, 16 // array.memref.element.bytes)

    def place(self, indices: Sequence[Value], turn: Value) -> list[Value]:
        """Where a row and turn have their place in what is kept."""
        return [turn, *indices]

    def shared(self, wanted: Collection[int]) -> frozenset[int]:
        """The arguments of ``wanted`` whose gradients the loop by element gives: what is read for
        elements alone, and not in ways that differ from row to row only."""
        args, row = self.function.args, self.parallel.body.args[self.row]
        elements = {For(op).index for op in (*self.first, *self.inner, *self.last)}
        direct = _leaves(
            [v for op in self.loop.body.ops if op.name == "memref.store" for v in op.operands]
            + [v for op in self.inner for v in For(op).inits]
        )
        found: set[int] = set()
        for k in wanted:
            loads = [op for op in walk(self.parallel.body)
                     if op.name == "memref.load" and memory(op)[0] is args[k]]  # fmt: skip
            leaves = [_leaves(memory(op)[1]) for op in loads]
            whole = all(row not in each for each in leaves) or all(elements & e for e in leaves)
            if loads and whole and not any(op.result in direct for op in loads):
                found.add(k)
        return frozenset(found)


def state_of(function: Function, kept: Collection[int]) -> State | None:
    """The state that the loop of ``function`` carries; None where there is none whose elements meet
    in sums alone. ``kept``: written arguments that were fresh."""
    outer = [op for op in function.body.ops if op.name == "scf.parallel"]
    if len(outer) != 1 or any(op.regions for op in function.body.ops if op not in outer):
        return None
    (parallel,) = outer
    view = Parallel(parallel)
    plain = all(is_constant(low, 0) and is_constant(step, 1) for low, _, step in view.axes)
    loops = [op for op in parallel.body.ops if op.regions]
    serial = [k for k, op in enumerate(loops) if any(o.regions for r in op.regions for o in r.ops)]
    arrays = _filled(parallel)
    if view.kinds or not plain or len(serial) != 1 or not arrays:
        return None
    (at,) = serial
    loop = loops[at]
    (width,) = {array.memref.shape[0] for array in arrays}  # type: ignore[index]
    if loop.name != "scf.for" or loop.results or not is_constant(For(loop).step, 1):
        return None
    leaves = _leaves([For(loop).upper])
    if (
        not is_constant(For(loop).lower, 0)
        or leaves & {*parallel.body.args}
        or any(v.op is not None and not OPS[v.op.name].pure for v in leaves)
    ):
        return None
    fresh, every = written(function) & {function.args[k] for k in kept}, accesses(function)
    once = {m for m in fresh if element_written_once(function, every, m)}
    inner = [op for op in loop.body.ops if op.regions]
    state = State(function, parallel, loop, arrays, width, loops[:at], inner, loops[at + 1 :],
                  view.dims - 1, [], {})  # fmt: skip
    if width < _LEAST or not _by_element(state, once):
        return None
    uses: dict[Value, list[Op]] = {}
    for op in walk(loop.body):
        for value in op.operands:
            uses.setdefault(value, []).append(op)
    for value in (v for op in inner for v in op.results):
        users = uses.get(value, [])
        if len(users) == 1 and users[0].name == "memref.store" and users[0] in loop.body.ops:
            memref, subscripts, stored = memory(users[0])
            alone = sum(memory(op)[0] is memref for op in walk(parallel.body)
                        if op.name == "memref.store") == 1  # fmt: skip
            if memref in once and alone and stored == [value] and value not in subscripts:
                state.direct[value] = users[0]
                continue
        if users:
            state.sums.append(value)
    return state


def _filled(parallel: Op) -> dict[Value, Value | None]:
    """The local arrays, of one length, and the number that each is filled with first, if it is;
    none where that is not how they begin."""
    arrays = [op.result for op in walk(parallel.body) if op.name == "memref.alloca"]
    found: dict[Value, Value | None] = {}
    begin = next((k for k, op in enumerate(parallel.body.ops) if op.regions), 0)
    stores = [op for op in parallel.body.ops[:begin] if op.name == "memref.store"]
    for array in arrays:
        mine = [memory(op) for op in stores if memory(op)[0] is array]
        places = {constant_of(at) for _, (at, *_), _ in mine}
        numbers = {repr(constant_of(value)) for _, _, (value,) in mine}
        shape, element = array.memref.shape or (), array.memref.element
        if not element.is_float or compute_type(element) is not element:
            return {}
        if len(shape) != 1 or (mine and (places != {*range(shape[0])} or len(numbers) != 1)):
            return {}
        if any(constant_of(value) is None for _, _, (value,) in mine):
            return {}
        found[array] = mine[0][2][0] if mine else None
    return found if len({array.memref.shape for array in found}) == 1 else {}


def _by_element(state: State, once: Collection[Value]) -> bool:
    """Whether everything goes through elements one by one, and sums over them in turns. ``once``:
    arguments whose elements are stored at most once."""
    args = {*state.function.args}
    own, inside = written(state.function) & args, {*state.loop.body.ops}
    begin = state.parallel.body.ops.index((*state.first, state.loop)[0])
    for k, op in enumerate((*state.parallel.body.ops[:-1], *state.loop.body.ops[:-1])):
        if op.regions or OPS[op.name].pure or op.name == "memref.alloca":
            continue
        memref = memory(op)[0] if op.name in ("memref.load", "memref.store") else None
        filled = memref in state.arrays and op.name == "memref.store" and k < begin
        stored = memref in own and op.name == "memref.store" and op in inside
        if not filled and not stored and (memref not in args - own or op.name != "memref.load"):
            return False
    now = {array for array, number in state.arrays.items() if number is not None}
    used = {v for op in walk(state.parallel.body) for v in op.operands
            if v.op is not None and v.op.name == "memref.atomic_rmw"}  # fmt: skip
    for op in (*state.first, *state.inner, *state.last):
        if op.name != "scf.for" or turns(op) != state.width or not is_constant(For(op).lower, 0):
            return False
        if None in _contributions(op) or (op.results and op not in state.inner):
            return False
        for o in op.body.ops[:-1]:
            if OPS[o.name].pure and not o.regions:
                continue
            if o.name not in _ACCESSES:
                return False
            memref, subscripts, _ = memory(o)
            if memref in state.arrays:
                unknown = o.name != "memref.store" and memref not in now
                if subscripts != [For(op).index] or unknown or not used.isdisjoint(o.results):
                    return False
                now.add(memref)
            elif o.name == "memref.atomic_rmw" or (
                op not in state.last or memref not in once
                if o.name == "memref.store"
                else (memref in own)
            ):
                return False
    return now == {*state.arrays}


def _contributions(op: Op) -> Iterator[Value | None]:
    """What a turn adds to each of the sums that a loop carries; None where it does other things
    with one."""
    used = [v for o in walk(op.body) for v in o.operands]
    for carried, value in zip(For(op).carried, op.body.terminator.operands, strict=True):
        add = value.op
        alone = used.count(carried) == used.count(value) == 1
        if add is None or add.name != "arith.addf" or carried not in add.operands or not alone:
            yield None
        else:
            yield add.right if add.left is carried else add.left


def _leaves(values: Sequence[Value]) -> set[Value]:
    """All that values are computed from, by pure operations, themselves included."""
    found, waiting = set[Value](), [*values]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            if value.op is not None and OPS[value.op.name].pure and not value.op.regions:
                waiting += value.op.operands
    return found


# -- by rows


def known_sums(
    state: State, names: Collection[str], begun: Sequence[str] = (), chunk: int = 1
) -> Function:
    """The loop that keeps the sums of these ``names``, and what the arrays of the state are where
    chunks of so many turns begin, in the arguments ``begun``; and does nothing else."""
    return clean(_ByRow(state, names, begun, chunk).made("sums"))


def with_ports(state: State) -> Function:
    """The loop in which an input is added to each sum: its gradient is the sum's adjoint."""
    return _ByRow(state, None).made("ports")


class _ByRow(Rewriter):
    """``names``: the sums to keep, None if all get ports. ``begun``, ``chunk``: see
    ``known_sums``."""

    def __init__(
        self, state: State, names: Collection[str] | None, begun: Sequence[str] = (),
        chunk: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.state, self.names, self.begun, self.chunk = state, names, begun, chunk
        self.more: dict[str, Value] = {}

    def made(self, name: str) -> Function:
        made = self.function(self.state.function)
        made.name += f"_{name}"
        for a, own in zip(made.args, unique_names(self.state.function), strict=True):
            a.name = own
        for value in self.more.values():
            value.owner = made.body
        made.body.args += self.more.values()
        return made

    def rewrite(self, op: Op) -> None:
        state = self.state
        if op is state.loop.body.ops[0]:
            self._begin(self.lookup(For(state.loop).index))
        if (
            self.names is not None
            and op.name == "memref.store"
            and (memory(op)[0] in state.function.args)
        ):
            return
        super().rewrite(op)
        if op is state.loop:
            self._begin(self.lookup(For(op).upper))
        for value in op.results if op in state.inner else ():
            if value not in state.sums:
                continue
            indices = map(self.lookup, Parallel(state.parallel).indices)
            place = state.place([*indices], self.lookup(For(state.loop).index))
            if self.names is None:
                port = self.load(self._argument(state.port(value), value), place)
                self.replacement[value] = self.op("arith.addf", self.lookup(value), port)
            elif state.known(value) in self.names:
                kept = self._argument(state.known(value), value)
                self.store(self.lookup(value), kept, place)

    def _begin(self, turn: Value) -> None:
        """Keeps the state where a chunk begins: before ``turn``, or behind the last one."""
        if not self.begun:
            return
        place = [*map(self.lookup, Parallel(self.state.parallel).indices)]
        number = self.op("arith.floordivsi", turn, self.number(self.chunk, turn))
        start = self.muli(number, self.number(self.chunk, turn))
        with self.when(self.op("arith.cmpi", turn, start, predicate="eq")):
            for name, array in zip(self.begun, self.state.arrays, strict=True):
                type = MemRefType(array.memref.element, len(place) + 3)
                kept = self.more.setdefault(name, Value(type, name))
                width = self.state.vector(array)

                def one(at: list[Value], kept: Value = kept, array: Value = array) -> None:
                    first = self.muli(at[0], self.index(self.state.vector(array)))
                    now = self.load(self.lookup(array), [self.addi(first, at[1])])
                    self.store(now, kept, [number, *place[:-1], at[0], place[-1], at[1]])

                sizes = self.state.width // width, width
                self.nest([lambda n=n: self.index(n) for n in sizes], one)

    def _argument(self, name: str, value: Value) -> Value:
        return self.more.setdefault(name, Value(self.state.type(value), name))


# -- by element


def by_element(state: State) -> tuple[Function, Op]:
    """The loop over rows and elements, which adds to where sums are what each element does; and its
    loop through turns."""
    function, turns = _ByElement(state).made()
    _late_last(turns)
    return function, turns


def _late_last(turns: Op) -> None:
    """Adds what a turn is handed on to the sum of all else, as the last term: so turns wait for
    one operation of those before them."""
    body, late = turns.body, {*For(turns).carried}
    for op in body.ops:
        if not late.isdisjoint(op.operands):
            late.update(op.results)
    used, inside = Counter(v for op in body.ops for v in op.operands), {*body.ops}

    def terms(value: Value) -> list[Value]:
        op = value.op
        if op is None or op.name != "arith.addf" or op not in inside:
            return [value]
        return [t for v in op.operands for t in (terms(v) if used[v] == 1 else [v])]

    for value in body.terminator.operands:
        found = terms(value)
        early = [v for v in found if v not in late]
        if value.op is None or len(early) < 2 or len(found) != len(early) + 1:
            continue
        place = body.ops.index(value.op)
        total = early[0]
        for v in early[1:]:
            add = Op("arith.addf", [total, v], [v.type], span=value.op.span)
            body.ops.insert(place, add)
            place, total = place + 1, add.result
        value.op.operands = [*(v for v in found if v in late), total]


class _ByElement:
    def __init__(self, state: State) -> None:
        old = state.function
        names = unique_names(old)
        self.state = state
        self.function = Function(f"{old.name}_elements", [a.type for a in old.args], names,
                                 dict(old.attrs), old.span)  # fmt: skip
        self.b = Builder(self.function.body, old.span)
        self.env: dict[Value, Value] = dict(zip(old.args, self.function.args, strict=True))
        self.more: dict[str, Value] = {}
        self.indices: list[Value] = []
        self.element: Value | None = None
        self.turn: Value | None = None

    def made(self) -> tuple[Function, Op]:
        state, b = self.state, self.b
        view = Parallel(state.parallel)
        lowers, uppers, steps = ([*map(self.value, side)] for side in view.ranges)
        zero, one = b.index(0), b.index(1)
        loop = b.parallel([*lowers, zero], [*uppers, b.index(state.width)], [*steps, one])
        with b.at(loop.body) as block:
            self._stand(view.indices, block.args[:-1])
            self.indices, self.element = block.args[:-1], block.args[-1]
            self.element.name = For(state.inner[0]).index.name
            now = {array: self.value(number) for array, number in state.arrays.items()
                   if number is not None}  # fmt: skip
            for op in state.first:
                self._turn_of(op, now)
            turns = b.for_(zero, self.value(For(state.loop).upper), one,
                           [now[array] for array in state.arrays])  # fmt: skip
            before = dict(self.env)
            with b.at(turns.body) as body:
                self.turn, *elements = body.args
                self._stand([For(state.loop).index], [self.turn])
                now = dict(zip(state.arrays, elements, strict=True))
                for op in state.inner:
                    self._turn_of(op, now)
                b.do("scf.yield", *(now[array] for array in state.arrays))
            self.env = before
            now = dict(zip(state.arrays, turns.results, strict=True))
            for op in state.last:
                self._turn_of(op, now)
            b.do("scf.reduce")
        b.do("func.return")
        for value in self.more.values():
            value.owner = self.function.body
        self.function.body.args += self.more.values()
        return self.function, turns

    def _turn_of(self, op: Op, now: dict[Value, Value]) -> None:
        """What the loop ``op`` does with its element of each array, which is ``now`` so."""
        assert self.element is not None
        self.env[For(op).index] = self.element
        for o in op.body.ops[:-1]:
            memref = memory(o)[0] if o.name in _ACCESSES else None
            if memref is None or (memref not in self.state.arrays and o.name == "memref.load"):
                continue
            if memref not in self.state.arrays:
                _, subscripts, (value,) = memory(o)
                self.b.store(self.value(value), self.value(memref), [*map(self.value, subscripts)])
            elif o.name == "memref.load":
                self.env[o.result] = now[memref]
            elif o.name == "memref.atomic_rmw":
                given = self.value(memory(o)[2][0])
                now[memref] = self.b.op(f"arith.{o.attrs['kind']}", now[memref], given)
            else:
                now[memref] = self.value(memory(o)[2][0])
        for result, given in zip(op.results, _contributions(op), strict=True):
            assert given is not None
            store = self.state.direct.get(result)
            if store is not None:
                memref, subscripts, _ = memory(store)
                self._add(given, self.value(memref), [*map(self.value, subscripts)])
            elif result in self.state.sums:
                port = self._argument(self.state.port(result), result)
                self._add(given, port, self._place())

    def _add(self, given: Value, memref: Value, place: list[Value]) -> None:
        self.b.atomic_rmw("addf", self.value(given), memref, place)

    def _place(self) -> list[Value]:
        assert self.turn is not None
        return self.state.place(self.indices, self.turn)

    def _argument(self, name: str, value: Value) -> Value:
        return self.more.setdefault(name, Value(self.state.type(value), name))

    def _stand(self, old: Sequence[Value], new: Sequence[Value]) -> None:
        for before, after in zip(old, new, strict=True):
            after.name = before.name
            self.env[before] = after

    def value(self, value: Value) -> Value:
        """What stands for ``value``, computed here if it was not yet."""
        found = self.env.get(value)
        if found is not None:
            return found
        op = value.op
        assert op is not None
        if value in self.state.sums:
            name = self.state.known(value)
            made = self.b.load(self._argument(name, value), self._place())
        else:
            self.b.span = op.span
            for operand in op.operands:
                self.value(operand)
            made = self.b.copied(op, self.env.__getitem__).result
        made.name = value.name
        self.env[value] = made
        return made
