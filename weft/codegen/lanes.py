"""Writing a register tile: every operation once for each instance that differs.

A value that no lane and no jammed iteration sees differently is one scalar; one that depends on the
jammed index alone is a scalar for each of its iterations; an index that grows evenly with the lane
is the scalar of the first lane (the vector is made when somebody needs it); everything else is a
vector of lanes, for each vector of the tile. Serial loops whose bounds differ between lanes run the
part that all share without masks, and the ragged rest with them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from weft.codegen.arith import RULES, note_range
from weft.codegen.emit import Emitter, View, llvm_type, memory_type
from weft.codegen.llvm import address, loop
from weft.ir.core import Block, Op, Value, walk
from weft.ir.types import i64
from weft.ir.views import For, If, memory
from weft.schedule.language import Schedule, UnrollJam, Vectorize, only
from weft.schedule.nest import axes_of
from weft.schedule.variation import Variation

Instance = tuple[int, int]  # (jammed iteration, vector)
SMALL = 16  # operations of an iteration


class Tile:
    """A register tile, as a schedule says: its two sides, and how values vary along these."""

    def __init__(self, parallel: Op, schedule: Schedule, vector: Vectorize) -> None:
        axes, self.body = axes_of(parallel), parallel.body
        self.column = axes.index(vector.axis)
        self.width, self.vectors = vector.width, vector.copies // vector.width
        self.reverse = vector.reverse
        rows = only(schedule, UnrollJam)
        self.row = axes.index(rows.axis) if rows is not None else None
        self.rows = rows.copies if rows is not None else 1
        # Such loops may have few iterations; code for these is compiled where it is little.
        self.alone = len(axes) == 1 and not self.reverse and _is_small(self.body)
        self.down, self.along = self.variations(frozenset())

    def variations(self, whole: Set[Op]) -> tuple[Variation, Variation]:
        """Down the rows and along the columns, where all iterations take the first arm of the
        branches ``whole``."""
        jammed = {} if self.row is None else {self.body.args[self.row]: 1}
        down = Variation(self.body, jammed, masked=True, whole=whole)
        lane = {self.body.args[self.column]: -1 if self.reverse else 1}
        return down, Variation(self.body, lane, beside=down, whole=whole)

    @property
    def columns(self) -> int:
        return self.width * self.vectors


def _is_small(body: Block) -> bool:
    return sum(1 for op in walk(body) if op.name != "arith.constant") <= SMALL


def tile_of(parallel: Op, schedule: Schedule) -> Tile | None:
    """The register tile that a schedule asks for."""
    vector = only(schedule, Vectorize)
    return None if vector is None else Tile(parallel, schedule, vector)


class VectorEmitter:
    """Writes the body of a parallel loop for ``jam`` x ``vectors`` x lanes iterations at once."""

    def __init__(self, e: Emitter, tile: Tile, jam: int, vectors: int, width: int) -> None:
        self.e, self.tile = e, tile
        self.whole: frozenset[Op] = frozenset()  # branches whose first arm all iterations take
        self.vary(tile.down, tile.along)
        self.jam = jam
        self.vectors = vectors
        self.width = width
        self.names: dict[Value, dict[Instance, str]] = {}
        self.splats: dict[tuple[str, str], str] = {}  # of the enclosing blocks
        self.mask: dict[Instance, str] | None = None  # None: every lane is active
        self.certain = True  # some lane of each jammed iteration is active here
        self.partial = False  # lanes are off that must keep what they carry

    def vary(self, down: Variation, along: Variation) -> None:
        """Goes by these from here on."""
        self.slope, self.stride = along.slope, along.stride
        self.shared = down.uniform  # by the jammed iterations
        self.varying = down, along

    # -- instances

    def instances(self) -> list[Instance]:
        """All of the tile."""
        return [(j, m) for j in range(self.jam) for m in range(self.vectors)]

    def bind(self, value: Value, instances: dict[Instance, str]) -> None:
        self.names[value] = instances

    def copies(self, value: Value) -> list[Instance]:
        """The instances in which a value exists."""
        jams = (0,) if self.shared(value) else range(self.jam)
        vectors = range(self.vectors) if self.slope(value) is None else (0,)
        return [(j, m) for j in jams for m in vectors]

    def name(self, value: Value, at: Instance) -> str:
        """What a value is called: a scalar, the scalar of the tile's first lane, or a vector."""
        if value not in self.names:
            return self.e.name(value)
        j, m = at
        key = (
            0 if self.shared(value) else j,
            m if self.slope(value) is None else 0,
        )
        return self.names[value][key]

    def vector(self, value: Value, at: Instance) -> str:
        """The numbers of all lanes."""
        t = value.scalar
        if value in self.e.constants:
            with _lanes(self.e, self.width):
                return self.e.literal(self.e.constants[value], t)
        stride = self.slope(value)
        name = self.name(value, at)
        if stride is None:
            return name
        splat = self.splat(name, llvm_type(t))
        if stride == 0:
            return splat
        return self.e.inst(f"add <{self.width} x i64> {splat}, {self.ramp(stride, at, 'i64')}")

    def splat(self, name: str, ty: str) -> str:
        key = (name, ty)
        if key not in self.splats:
            vector = f"<{self.width} x {ty}>"
            one = self.e.inst(f"insertelement {vector} poison, {ty} {name}, i64 0")
            zeros = f"<{self.width} x i32> zeroinitializer"
            self.splats[key] = self.e.inst(
                f"shufflevector {vector} {one}, {vector} poison, {zeros}"
            )
        return self.splats[key]

    def ramp(self, stride: int, at: Instance, ty: str, start: int = 0) -> str:
        """What an index is in each lane that is ``start`` in the tile's first lane."""
        first = at[1] * self.width
        numbers = (start + stride * (first + k) for k in range(self.width))
        return "<" + ", ".join(f"{ty} {number}" for number in numbers) + ">"

    def reverse(self, vector: str, ty: str) -> str:
        order = ", ".join(f"i32 {lane}" for lane in reversed(range(self.width)))
        kind = f"<{self.width} x {ty}>"
        return self.e.inst(
            f"shufflevector {kind} {vector}, {kind} poison, <{self.width} x i32> <{order}>"
        )

    # -- operations

    def block(self, block: Block) -> None:
        """Writes a block's operations, its terminator excepted."""
        for op in block.ops[:-1]:
            match op.name:
                case "scf.for":
                    self.loop(op)
                case "scf.if":
                    self.choice(op)
                case "memref.load":
                    self.load_all(op)
                case "memref.store":
                    self.store_all(op)
                case "arith.constant":
                    RULES[op.name](self.e, op, [])
                case "memref.dim":
                    self.names[op.result] = {(0, 0): RULES[op.name](self.e, op, [""])[0]}
                case _:
                    self.names[op.result] = {at: self.pure(op, at) for at in self.copies(op.result)}
                    note_range(self.e, op)

    def pure(self, op: Op, at: Instance) -> str:
        if self.slope(op.result) is not None:  # on the first lane it gives the first lane
            return RULES[op.name](self.e, op, [self.name(v, at) for v in op.operands])[0]
        operands = [self.vector(v, at) for v in op.operands]
        with _lanes(self.e, self.width):
            return RULES[op.name](self.e, op, operands)[0]

    def active(self, at: Instance) -> str | None:
        return None if self.mask is None else self.mask[at]

    def places(
        self, op: Op, view: View, indices: Sequence[Value], step: int
    ) -> dict[Instance, str]:
        """For each vector of an access with ``step`` 1 or -1, the address of its lowest lane."""
        ty = memory_type(view.type.element)
        jams = range(self.jam) if not self.shared(*op.operands) else (0,)
        found = {}
        for j in jams:
            first = address(self.e, view, [self.name(v, (j, 0)) for v in indices])
            for m in range(self.vectors):
                offset = m * self.width if step == 1 else 1 - (m + 1) * self.width
                found[(j, m)] = first if offset == 0 else self.e.inst(
                    f"getelementptr {ty}, ptr {first}, i64 {offset}")  # fmt: skip
        return found

    def load_all(self, op: Op) -> None:
        memref, indices, _ = memory(op)
        view, step = self.e.views[memref], self.stride(op)
        if step in (1, -1):
            places = self.places(op, view, indices, step)
            self.names[op.result] = {
                (j, m): self.load_vector(view, places.get((j, m), places[(0, m)]), (j, m), step)
                for j, m in self.copies(op.result)
            }  # fmt: skip
        else:
            load = self.load_scalar if step == 0 else self.gather
            self.names[op.result] = {at: load(op, at) for at in self.copies(op.result)}

    def load_scalar(self, op: Op, at: Instance) -> str:
        memref, indices, _ = memory(op)
        e, view = self.e, self.e.views[memref]
        ty, size = memory_type(view.type.element), view.type.element.bytes
        pointer = address(e, view, [self.name(v, at) for v in indices])
        if not self.certain:
            rows = range(self.jam) if self.shared(op.result) else (at[0],)
            pointer = self.if_any(pointer, rows)
        return e.inst(f"load {ty}, ptr {pointer}, align {size}")

    def load_vector(self, view: View, pointer: str, at: Instance, step: int) -> str:
        ty, size = memory_type(view.type.element), view.type.element.bytes
        kind, mask = f"<{self.width} x {ty}>", self.active(at)
        if mask is None:
            value = self.e.inst(f"load {kind}, ptr {pointer}, align {size}")
        else:
            if step == -1:
                mask = self.reverse(mask, "i1")
            value = self.e.intrinsic(
                f"llvm.masked.load.v{self.width}{_suffix(ty)}.p0", kind, ("ptr", pointer),
                ("i32", str(size)), (f"<{self.width} x i1>", mask), (kind, "zeroinitializer"),
            )  # fmt: skip
        return self.reverse(value, ty) if step == -1 else value

    def if_any(self, pointer: str, rows: Sequence[int]) -> str:
        """``pointer`` where a lane of these jammed iterations is active, or else memory of ours."""
        e = self.e
        assert self.mask is not None
        masks = {(j, m): self.mask[(j, m)] for j in rows for m in range(self.vectors)}
        any_lane = self.across_all("or", masks)
        if not any("%nowhere =" in line for line in e.allocas):
            e.allocas.append("%nowhere = alloca i64, align 8")
        return e.inst(f"select i1 {any_lane}, ptr {pointer}, ptr %nowhere")

    def gather(self, op: Op, at: Instance) -> str:
        """Loads an element for each lane on its own."""
        memref, indices, _ = memory(op)
        element, kind = self.e.views[memref].type.element, f"<{self.width} x i1>"
        ty, mask = memory_type(element), self.active(at) or "splat (i1 true)"
        vector = f"<{self.width} x {ty}>"
        return self.e.intrinsic(
            f"llvm.masked.gather.v{self.width}{_suffix(ty)}.v{self.width}p0", vector,
            self.pointers(memref, indices, at), ("i32", str(element.bytes)), (kind, mask),
            (vector, "zeroinitializer"),
        )  # fmt: skip

    def scatter(self, op: Op, at: Instance) -> None:
        """Stores an element of each lane on its own."""
        memref, indices, (stored,) = memory(op)
        element, kind = self.e.views[memref].type.element, f"<{self.width} x i1>"
        ty, mask = memory_type(element), self.active(at) or "splat (i1 true)"
        name = f"llvm.masked.scatter.v{self.width}{_suffix(ty)}.v{self.width}p0"
        vector, (pointer, places) = f"<{self.width} x {ty}>", self.pointers(memref, indices, at)
        self.e.declare(f"declare void @{name}({vector}, {pointer}, i32, {kind})")
        self.e.line(f"call void @{name}({vector} {self.vector(stored, at)}, {pointer} {places}, "
                    f"i32 {element.bytes}, {kind} {mask})")  # fmt: skip

    def pointers(self, memref: Value, indices: Sequence[Value], at: Instance) -> tuple[str, str]:
        """Type and name of the addresses of the lanes' elements."""
        e, view = self.e, self.e.views[memref]
        with _lanes(e, self.width):
            ty64 = e.type(i64)
        offset = ""
        for axis, value in enumerate(indices):
            index = self.vector(value, at)
            if view.strides:
                stride = self.splat(view.strides[axis], "i64")
                index = e.inst(f"mul {ty64} {index}, {stride}")
            elif offset:
                size = self.splat(view.sizes[axis], "i64")
                offset = e.inst(f"mul {ty64} {offset}, {size}")
            offset = e.inst(f"add {ty64} {offset}, {index}") if offset else index
        ty = memory_type(view.type.element)
        found = e.inst(f"getelementptr {ty}, ptr {view.pointer}, {ty64} {offset}")
        return f"<{self.width} x ptr>", found

    def store_all(self, op: Op) -> None:
        memref, indices, (stored,) = memory(op)
        e, view = self.e, self.e.views[memref]
        step = self.stride(op)
        if step not in (1, -1):
            for at in self.instances():
                self.scatter(op, at)
            return
        ty, size = memory_type(view.type.element), view.type.element.bytes
        kind, lanes = f"<{self.width} x {ty}>", f"<{self.width} x i1>"
        places = self.places(op, view, indices, step)
        if self.mask is not None:  # a row that does not depend on the jammed index may be one's own
            places = {at: places.get(at, places[(0, at[1])]) for at in self.mask}
        for at, pointer in places.items():
            value, mask = self.vector(stored, at), self.active(at)
            if step == -1:
                value = self.reverse(value, ty)
                mask = mask and self.reverse(mask, "i1")
            if mask is None:
                e.line(f"store {kind} {value}, ptr {pointer}, align {size}")
                continue
            name = f"llvm.masked.store.v{self.width}{_suffix(ty)}.p0"
            e.declare(f"declare void @{name}({kind}, ptr, i32, {lanes})")
            e.line(f"call void @{name}({kind} {value}, ptr {pointer}, i32 {size}, {lanes} {mask})")

    # -- choices

    def choice(self, op: Op) -> None:
        """Both arms are run, each for its lanes. A loop that some lanes run, and nothing besides,
        is jumped over where none does, and has no masks where all do."""
        e, condition = self.e, If(op).condition
        everywhere = self.instances()
        kind = f"<{self.width} x i1>"
        yes = {at: self.vector(condition, at) for at in everywhere}
        outer, certain, partial = self.mask, self.certain, self.partial
        loops = any(inner.name == "scf.for" for inner in walk(If(op).then))
        if loops and not op.results and len(If(op).otherwise.ops) == 1:
            whole, some, out = e.label("all"), e.label("some"), e.label("none")
            if outer is None:
                rest = e.label("rest")
                e.branch(self.across_all("and", yes), whole, rest)
                e.start(whole)
                self.alone(If(op).then)
                e.jump(out)
                e.start(rest)
            else:
                yes = {at: e.inst(f"and {kind} {yes[at]}, {outer[at]}") for at in everywhere}
            e.branch(self.across_all("or", yes), some, out)
            e.start(some)
            self.mask, self.certain, self.partial = yes, False, True
            self.alone(If(op).then)
            self.mask, self.certain, self.partial = outer, certain, partial
            e.jump(out)
            e.start(out)
            return
        if loops and outer is None:
            self.together(op, yes)
            return
        self.apart(op, yes)

    def together(self, op: Op, yes: dict[Instance, str]) -> None:
        """A choice that makes values: where all lanes take the first arm, it has no masks."""
        e, then = self.e, If(op).then
        whole, rest, join = e.label("all"), e.label("rest"), e.label("join")
        e.branch(self.across_all("and", yes), whole, rest)
        places = [(r, v, at) for r, v in zip(op.results, then.terminator.operands, strict=True)
                  for at in self.copies(r)]  # fmt: skip
        alike = {r for r in op.results if self.slope(r) == 0}
        splats, varying, certain = dict(self.splats), self.varying, self.whole
        e.start(whole)
        self.whole |= {op}
        self.vary(*self.tile.variations(self.whole))
        self.block(then)
        ends = [[(self.name if r in alike else self.vector)(v, at) for r, v, at in places]]
        blocks = [e.block]
        e.jump(join)
        self.splats, self.whole = dict(splats), certain
        self.vary(*varying)
        e.start(rest)
        self.apart(op, yes)
        ends.append([self.names[r][at] for r, _, at in places])
        blocks.append(e.block)
        e.jump(join)
        self.splats = splats
        e.start(join)
        phis = [e.phi(self.type(r)) for r, _, _ in places]
        for (_, slot), *values in zip(phis, *ends, strict=True):
            e.fill(slot, *zip(values, blocks, strict=True))
        for (r, _, at), (name, _) in zip(places, phis, strict=True):
            self.names[r] = {**(self.names[r] if at != self.copies(r)[0] else {}), at: name}

    def apart(self, op: Op, yes: dict[Instance, str]) -> None:
        """Both arms, with masks, and a choice between their values."""
        e, condition, everywhere = self.e, If(op).condition, self.instances()
        kind, outer = f"<{self.width} x i1>", self.mask
        certain, partial = self.certain, self.partial
        self.certain, self.partial = False, True
        arms: list[dict[Value, dict[Instance, str]]] = []
        for number, region in enumerate(op.regions):
            self.mask = {}
            for at in everywhere:
                mask = yes[at] if number == 0 else e.inst(f"xor {kind} {yes[at]}, splat (i1 true)")
                self.mask[at] = mask if outer is None else e.inst(f"and {kind} {mask}, {outer[at]}")
            self.block(region)
            values = dict(zip(op.results, region.terminator.operands, strict=True))
            arms.append({result: {at: self.start(result, v, at) for at in everywhere}
                         for result, v in values.items()})  # fmt: skip
        self.mask, self.certain, self.partial = outer, certain, partial
        for result in op.results:
            ty, (then, other) = self.type(result), (arm[result] for arm in arms)
            alike = self.slope(result) == 0
            self.names[result] = {
                at: e.inst(f"select {'i1' if alike else kind} {self.start(result, condition, at)}, "
                           f"{ty} {then[at]}, {ty} {other[at]}")
                for at in self.copies(result)
            }  # fmt: skip

    def alone(self, block: Block) -> None:
        """Writes a block whose values nobody else uses."""
        splats = dict(self.splats)
        self.block(block)
        self.splats = splats

    def across_all(self, word: str, masks: dict[Instance, str]) -> str:
        """Whether all ("and") or some ("or") lanes of ``masks`` are active."""
        kind, (mask, *others) = f"<{self.width} x i1>", sorted(set(masks.values()))
        for other in others:
            mask = self.e.inst(f"{word} {kind} {mask}, {other}")
        return self.e.intrinsic(f"llvm.vector.reduce.{word}.v{self.width}i1", "i1", (kind, mask))

    # -- loops

    def loop(self, op: Op) -> None:
        lower, upper, _ = For(op).bounds
        carried = For(op).carried
        inits = zip(carried, For(op).inits, strict=True)
        state = [self.start(arg, init, at) for arg, init in inits for at in self.copies(arg)]
        ragged_low, ragged_high = self.ragged(lower), self.ragged(upper)
        low_min, low_max = self.extremes(lower)
        high_min, high_max = self.extremes(upper)
        if self.mask is not None:  # with no active lane an extreme is neutral: then no part runs
            if ragged_low:
                low_max = pick(self.e, "smax", low_max, low_min)
            if ragged_high:
                high_min = pick(self.e, "smin", high_min, high_max)
        if ragged_low:
            end = pick(self.e, "smin", low_max, high_max)
            state = self.part(op, low_min, end, state, masked=True)
        state = self.part(op, low_max, high_min, state, masked=False)
        if ragged_high:
            begin = pick(self.e, "smax", low_max, high_min)
            state = self.part(op, begin, high_max, state, masked=True)
        names = iter(state)
        for arg, result in zip(carried, op.results, strict=True):
            self.names[result] = {at: next(names) for at in self.copies(arg)}

    def start(self, arg: Value, init: Value, at: Instance) -> str:
        return self.name(init, at) if self.slope(arg) == 0 else self.vector(init, at)

    def ragged(self, bound: Value) -> bool:
        return self.slope(bound) != 0 or (self.jam > 1 and not self.shared(bound))

    def extremes(self, bound: Value) -> tuple[str, str]:
        """The least and the greatest of a loop bound over the tile."""
        if not self.ragged(bound):
            name = self.name(bound, (0, 0))
            return name, name
        stride = self.slope(bound)
        least, most = "", ""
        for at in self.copies(bound):
            if stride is None:
                low, high = (self.across(bound, at, f) for f in ("smin", "smax"))
            else:
                first = self.name(bound, at)
                reach = stride * (self.width * self.vectors - 1)
                last = self.e.inst(f"add nsw i64 {first}, {reach}")
                low, high = (first, last) if stride >= 0 else (last, first)
            least = low if not least else pick(self.e, "smin", least, low)
            most = high if not most else pick(self.e, "smax", most, high)
        return least, most

    def across(self, bound: Value, at: Instance, function: str) -> str:
        """The extreme of a vector over its active lanes."""
        kind, value = f"<{self.width} x i64>", self.vector(bound, at)
        mask = self.active(at)
        if mask is not None:
            neutral = (1 << 62) if function == "smin" else -(1 << 62)
            value = self.e.inst(f"select <{self.width} x i1> {mask}, {kind} {value}, {kind}"
                                f" splat (i64 {neutral})")  # fmt: skip
        name = f"llvm.vector.reduce.{function}.v{self.width}i64"
        return self.e.intrinsic(name, "i64", (kind, value))

    def part(self, op: Op, low: str, high: str, state: list[str], *, masked: bool) -> list[str]:
        """One of the loops that a serial loop becomes."""
        body, e = op.body, self.e
        carried = For(op).carried
        types = [self.type(arg) for arg in carried for _ in self.copies(arg)]
        outer, splats = self.mask, dict(self.splats)
        certain, partial = self.certain, self.partial

        bounds = For(op).bounds[:2]
        one_sided = sum(map(self.ragged, bounds)) == 1 and self.shared(*bounds)

        def inside(induction: str, values: list[str]) -> list[str]:
            self.splats = dict(splats)
            self.names[body.args[0]] = {(0, 0): induction}
            names = iter(values)
            for arg in carried:
                self.names[arg] = {at: next(names) for at in self.copies(arg)}
            before = {arg: self.names[arg] for arg in carried}
            if masked:
                self.mask = self.masks(op, induction, outer)
                self.certain, self.partial = self.certain and outer is None and one_sided, True
            self.block(body)
            nexts = []
            for arg, following in zip(carried, For(op).yielded, strict=True):
                for at in self.copies(arg):
                    value = self.start(arg, following, at)
                    mask = self.active(at)
                    if self.partial and mask and self.slope(arg) != 0:
                        ty = self.type(arg)
                        value = e.inst(f"select <{self.width} x i1> {mask}, {ty} {value},"
                                       f" {ty} {before[arg][at]}")  # fmt: skip
                    nexts.append(value)
            self.mask, self.certain, self.partial = outer, certain, partial
            return nexts

        flags = [e.module.node('!{!"llvm.loop.vectorize.enable", i1 false}'),
                 e.module.node('!{!"llvm.loop.unroll.disable"}')]  # fmt: skip
        metadata = e.module.node(f"!{{{{self}}, {', '.join(flags)}}}")
        results = loop(e, low, high, "1", state, types, inside, metadata=metadata)
        self.splats = splats
        return results

    def type(self, value: Value) -> str:
        name = llvm_type(value.type)
        return name if self.slope(value) == 0 else f"<{self.width} x {name}>"

    def masks(
        self, op: Op, induction: str, outer: dict[Instance, str] | None
    ) -> dict[Instance, str]:
        """Which lanes run this iteration of a serial loop."""
        found: dict[Instance, str] = {}
        kind = f"<{self.width} x i1>"
        made: dict[tuple[str, Instance], str] = {}
        for j in range(self.jam):
            for m in range(self.vectors):
                terms = [] if outer is None else [outer[(j, m)]]
                for bound, predicate in ((For(op).lower, "sge"), (For(op).upper, "slt")):
                    if not self.ragged(bound):
                        continue
                    key = (predicate, (0 if self.shared(bound) else j, m))
                    if key not in made:
                        made[key] = self.compare(bound, predicate, induction, (j, m))
                    terms.append(made[key])
                mask = terms[0]
                for term in terms[1:]:
                    mask = self.e.inst(f"and {kind} {mask}, {term}")
                found[(j, m)] = mask
        return found

    def compare(self, bound: Value, predicate: str, induction: str, at: Instance) -> str:
        """A mask: ``induction <predicate> bound``."""
        e, stride = self.e, self.slope(bound)
        if stride is None:
            left = self.splat(induction, "i64")
            return e.inst(f"icmp {predicate} <{self.width} x i64> {left}, {self.vector(bound, at)}")
        # In 32 bits, which makes narrower vectors: the distance to lane 0's bound, kept small.
        limit = abs(stride) * self.width * self.vectors + 1
        distance = e.inst(f"sub nsw i64 {induction}, {self.name(bound, at)}")
        distance = pick(e, "smax", pick(e, "smin", distance, str(limit)), str(-limit))
        narrow = self.splat(e.inst(f"trunc i64 {distance} to i32"), "i32")
        return e.inst(
            f"icmp {predicate} <{self.width} x i32> {narrow}, {self.ramp(stride, at, 'i32')}"
        )


class _lanes:
    """``with _lanes(e, n):`` rules write vectors of n lanes."""

    def __init__(self, e: Emitter, lanes: int) -> None:
        self.e, self.lanes = e, lanes

    def __enter__(self) -> None:
        self.e.lanes = self.lanes

    def __exit__(self, *_: object) -> None:
        self.e.lanes = 1


def pick(e: Emitter, function: str, a: str, b: str) -> str:
    return a if a == b else e.extreme(function, a, b)


def _suffix(ty: str) -> str:
    """What an intrinsic's name says of a type."""
    return {"float": "f32", "double": "f64", "half": "f16"}.get(ty, ty)
