"""Writing vector loops: every operation once for each instance that differs (``lane_values``).

Serial loops whose bounds differ between lanes run the part that all share without masks, and the
ragged rest with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from weft.codegen.arith import RULES, note_extrema, note_range
from weft.codegen.emit import INDEX_BITS, Emitter
from weft.codegen.lane_memory import LaneMemory
from weft.codegen.lane_values import Instance, LaneBounds, LaneValues, Masks, pick
from weft.codegen.llvm import loop, stoppable
from weft.ir.core import Block, Op, Value, walk
from weft.ir.ops import is_slow
from weft.ir.views import For, If, Parallel, constant_of
from weft.schedule.known_rows import named_rows
from weft.schedule.variation import Variation

IN_ROWS = 4  # elements of a row, beyond which a gather of one is better than loads of all
WRITTEN_OUT = 240  # operations of all turns of a loop, up to which it is unrolled


def parallel_loop(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """A parallel loop inside of the outermost one: by vectors where it is marked so
    (``schedule.register_tile``)."""
    if "vector" not in op.attrs:
        return RULES[op.name](e, op, operands)
    VectorEmitter(e, op).emit()
    return ()


def written_out(op: Op, values: LaneValues) -> float:
    """The operations of all turns of a serial loop; infinite where only a call says how many these
    are."""
    low, high = map(constant_of, For(op).bounds[:2])
    if low is None or high is None:
        return inf
    each = 0.0
    for inner in op.body.ops[:-1]:
        if inner.name == "scf.for":
            each += written_out(inner, values)
        elif inner.regions or is_slow(inner.name):  # a function is much code
            return inf
        else:
            each += max((len(values.copies(v)) for v in inner.results), default=1)
    return max(high - low, 0) * each


class VectorEmitter:
    """Writes the parallel loop ``op``: all its iterations at once, as vectors of lanes."""

    def __init__(self, e: Emitter, op: Op) -> None:
        self.e, self.op = e, op
        jam, self.copies, width = op.attrs["vector"]
        self.reverse = "reverse" in op.attrs
        *rows, column = op.body.args
        down = Variation(op.body, dict.fromkeys(rows, 1), masked=True)
        along = Variation(op.body, {column: -1 if self.reverse else 1}, beside=down)
        self.v = LaneValues(e, (down, along), jam, self.copies // width, width)
        self.memory = LaneMemory(self.v, named_rows(list(walk(op.body)), IN_ROWS))
        self.bounds = LaneBounds(self.v)

    def emit(self) -> None:
        """Writes the loop."""
        e, v, loop = self.e, self.v, Parallel(self.op)
        for index, lower in zip(loop.indices, loop.lowers, strict=True):
            if lower in e.bits:
                e.bits[index] = INDEX_BITS
        *rows, (index, lower) = zip(loop.indices, map(e.name, loop.lowers), strict=True)
        for row, begin in rows:
            v.names[row] = {(j, 0): e.inst(f"add nsw i64 {begin}, {j}") for j in range(v.jam)}
        first = self.copies - 1 if self.reverse else 0
        v.names[index] = {(0, 0): e.inst(f"add nsw i64 {lower}, {first}")}
        if "masked" in self.op.attrs:
            stop, stride = e.name(loop.uppers[-1]), -1 if self.reverse else 1
            left = e.inst(f"trunc i64 {e.inst(f'sub nsw i64 {stop}, {lower}')} to i32")
            splat = v.splat(left, "i32")
            ramps = [v.ramp(stride, (0, m), "i32", first) for m in range(v.vectors)]
            masks = [e.inst(f"icmp slt {v.of('i32')} {ramp}, {splat}") for ramp in ramps]
            v.mask = {(j, m): masks[m] for j, m in v.instances}
        self.block(self.op.body)

    def block(self, block: Block) -> None:
        """Writes a block's operations, its terminator excepted."""
        outer = self.e.span
        for op in block.ops[:-1]:
            self.e.span = op.span or outer
            match op.name:
                case "scf.for":
                    self.loop(op)
                case "scf.if":
                    self.choice(op)
                case "memref.load":
                    self.memory.load(op)
                case "memref.store":
                    self.memory.store(op)
                case "arith.constant":
                    RULES[op.name](self.e, op, [])
                case "memref.dim":
                    self.v.names[op.result] = {(0, 0): RULES[op.name](self.e, op, [""])[0]}
                case _:
                    made = {at: self.pure(op, at) for at in self.v.copies(op.result)}
                    self.v.names[op.result] = made
                    note_range(self.e, op)
        self.e.span = outer

    def pure(self, op: Op, at: Instance) -> str:
        if self.v.slope(op.result) is not None:  # on the first lane it gives the first lane
            return RULES[op.name](self.e, op, [self.v.name(v, at) for v in op.operands])[0]
        operands = [self.v.vector(v, at) for v in op.operands]
        with self.v.wide():
            return RULES[op.name](self.e, op, operands)[0]

    # -- choices

    def choice(self, op: Op) -> None:
        """Both arms are run, each for its lanes. A loop that some lanes run, and nothing besides,
        is jumped over where none does, and has no masks where all do."""
        e, v, then = self.e, self.v, If(op).then
        yes = {at: v.vector(If(op).condition, at) for at in v.instances}
        loops = any(inner.name == "scf.for" for inner in walk(then))
        if not loops or op.results or len(If(op).otherwise.ops) > 1:
            (self.together if loops and v.mask is None else self.apart)(op, yes)
            return
        whole, some, out = e.label("all"), e.label("some"), e.label("none")
        if v.mask is None:
            rest = e.label("rest")
            e.branch(v.across_all("and", yes), whole, rest)
            e.start(whole)
            self.alone(then)
            e.jump(out)
            e.start(rest)
        else:
            yes = {at: v.joined("and", [yes[at], v.mask[at]]) for at in v.instances}
        e.branch(v.across_all("or", yes), some, out)
        e.start(some)
        with v.under(yes, certain=False, partial=True):
            self.alone(then)
        e.jump(out)
        e.start(out)

    def together(self, op: Op, yes: Masks) -> None:
        """A choice that makes values: where all lanes take the first arm, it has no masks."""
        e, v, then = self.e, self.v, If(op).then
        whole, rest, join = e.label("all"), e.label("rest"), e.label("join")
        e.branch(v.across_all("and", yes), whole, rest)
        places = [(r, end, at) for r, end in zip(op.results, then.terminator.operands, strict=True)
                  for at in v.copies(r)]  # fmt: skip
        alike = {r for r in op.results if v.slope(r) == 0}
        splats, (down, along) = dict(v.splats), v.varying
        e.start(whole)
        taken = down.where_taken(op)
        v.vary(taken, along.where_taken(op, beside=taken))
        self.block(then)
        ends = [[(v.name if r in alike else v.vector)(end, at) for r, end, at in places]]
        blocks = [e.block]
        e.jump(join)
        v.splats = dict(splats)
        v.vary(down, along)
        e.start(rest)
        self.apart(op, yes)
        ends.append([v.names[r][at] for r, _, at in places])
        blocks.append(e.block)
        e.jump(join)
        v.splats = splats
        e.start(join)
        phis = [e.phi(v.type(r)) for r, _, _ in places]
        for (_, slot), *values in zip(phis, *ends, strict=True):
            e.fill(slot, *zip(values, blocks, strict=True))
        for (r, _, at), (name, _) in zip(places, phis, strict=True):
            v.names[r] = {**(v.names[r] if at != v.copies(r)[0] else {}), at: name}

    def apart(self, op: Op, yes: Masks) -> None:
        """Both arms, with masks, and a choice between their values."""
        e, v, outer = self.e, self.v, self.v.mask
        arms: list[dict[Value, Masks]] = []
        for number, region in enumerate(op.regions):
            mask: Masks = {}
            for at in v.instances:
                own = yes[at] if number == 0 else e.inst(f"xor {v.bits} {yes[at]}, splat (i1 true)")
                mask[at] = own if outer is None else v.joined("and", [own, outer[at]])
            with v.under(mask, certain=False, partial=True):
                self.block(region)
                values = zip(op.results, region.terminator.operands, strict=True)
                arms.append({r: {at: v.like(r, end, at) for at in v.instances}
                             for r, end in values})  # fmt: skip
        for r in op.results:
            ty, (then, other) = v.type(r), (arm[r] for arm in arms)
            kind = "i1" if v.slope(r) == 0 else v.bits
            v.names[r] = {
                at: e.inst(f"select {kind} {v.like(r, If(op).condition, at)}, "
                           f"{ty} {then[at]}, {ty} {other[at]}")
                for at in v.copies(r)
            }  # fmt: skip

    def alone(self, block: Block) -> None:
        """Writes a block whose values nobody else uses."""
        splats = dict(self.v.splats)
        self.block(block)
        self.v.splats = splats

    # -- loops

    def loop(self, op: Op) -> None:
        (lower, upper, _), carried, v = For(op).bounds, For(op).carried, self.v
        note_extrema(self.e, op)
        inits = zip(carried, For(op).inits, strict=True)
        state = [v.like(arg, init, at) for arg, init in inits for at in v.copies(arg)]
        ragged_low, ragged_high = map(self.bounds.ragged, (lower, upper))
        low_min, low_max = self.bounds.extremes(lower)
        high_min, high_max = self.bounds.extremes(upper)
        if v.mask is not None:  # with no active lane an extreme is neutral: then no part runs
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
            v.names[result] = {at: next(names) for at in v.copies(arg)}

    def part(self, op: Op, low: str, high: str, state: list[str], *, masked: bool) -> list[str]:
        """One of the loops that a serial loop becomes."""
        e, v, carried = self.e, self.v, For(op).carried
        types = [v.type(arg) for arg in carried for _ in v.copies(arg)]
        bounds, splats = For(op).bounds[:2], dict(v.splats)
        one_sided = sum(map(self.bounds.ragged, bounds)) == 1 and v.shared(*bounds)
        certain = v.certain and (not masked or (v.mask is None and one_sided))

        def inside(induction: str, values: list[str]) -> list[str]:
            e.target.poll(e, op)
            v.splats = dict(splats)
            v.names[For(op).index] = {(0, 0): induction}
            names = iter(values)
            for arg in carried:
                v.names[arg] = {at: next(names) for at in v.copies(arg)}
            before = {arg: v.names[arg] for arg in carried}
            mask = self.bounds.masks(op, induction) if masked else v.mask
            with v.under(mask, certain=certain, partial=v.partial or masked):
                self.block(op.body)
                nexts: list[str] = []
                for arg, following in zip(carried, For(op).yielded, strict=True):
                    for at in v.copies(arg):
                        value = v.like(arg, following, at)
                        if v.partial and mask and v.slope(arg) != 0:
                            ty = v.type(arg)
                            value = e.inst(f"select {v.bits} {mask[at]}, {ty} {value},"
                                           f" {ty} {before[arg][at]}")  # fmt: skip
                        nexts.append(value)
            return nexts

        if written_out(op, v) <= WRITTEN_OUT:
            for turn in range(int(low), int(high)):
                state = inside(str(turn), state)
            v.splats = splats
            return state
        flags = [e.module.node('!{!"llvm.loop.vectorize.enable", i1 false}'),
                 e.module.node('!{!"llvm.loop.unroll.disable"}')]  # fmt: skip
        metadata = e.module.node(f"!{{{{self}}, {', '.join(flags)}}}")

        def run(begin: str, end: str, state: Sequence[str]) -> list[str]:
            return loop(e, begin, end, "1", state, types, inside, metadata=lambda _: metadata)

        results = stoppable(e, op, (low, high), state, types, run, once=True)
        v.splats = splats
        return results
