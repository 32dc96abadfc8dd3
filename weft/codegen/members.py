"""The code of a team's members: shared loops, stores of one member, waiting for each other.

See ``teams``. A team is part of a warp, a warp, or a block of several warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.arith import combine, from_word, identity, scalar, word
from weft.codegen.emit import Emitter, llvm_type
from weft.codegen.launching import WARP
from weft.codegen.llvm import loop, loop_body
from weft.codegen.threadwise import barrier, in_block, index_of, register, shuffle, to
from weft.ir.core import Op, Value, walk
from weft.ir.types import ScalarType

_SHARED = "weft_team"  # what the warps of a team hand over


class Members:
    """What a thread knows of its team. ``width``: members, at most those of a warp; more than that
    for a team that is a block, of as many warps as it has. ``parallel``: the loop whose
    iterations teams have."""

    def __init__(self, e: Emitter, width: int, parallel: Op) -> None:
        self.width = min(width, WARP)
        self.several = width > WARP
        self.number = register(e, "tid.x")
        self.size = register(e, "ntid.x") if self.several else str(width)
        self.mask = "-1"
        if self.several:
            inside = walk(parallel.regions[0])
            most = max(len(op.results) for op in inside if op.name == "scf.for")
            e.declare(
                f"@{_SHARED} = internal addrspace(3) global [{WARP * most} x i64] undef, align 16"
            )
        if width < WARP:
            thread, _ = in_block(e)
            first = e.inst(f"and i32 {thread}, {WARP - width}")
            self.mask = e.inst(f"shl i32 {(1 << width) - 1}, {first}")

    def shared_loop(self, e: Emitter, op: Op, operands: Sequence[str]) -> list[str]:
        """Each member's iterations of a loop, and what all of them carried."""
        lower, upper, _, *inits = operands
        kinds: Sequence[str] = op.attrs["team"]
        types = [scalar(v) for v in op.results]
        body = op.regions[0]
        ty = llvm_type(body.args[0].type)
        begin = e.inst(f"add nsw {ty} {lower}, {to(e, self.number, 'i32', ty, unsigned=True)}")
        neutral = [e.literal(identity(k, t), t) for k, t in zip(kinds, types, strict=True)]
        if op.attrs["ordered"]:
            self.wait(e)
        parts = loop(
            e, begin, upper, to(e, self.size, "i32", ty, unsigned=True), neutral,
            [llvm_type(t) for t in types],
            lambda induction, carried: loop_body(e, body, [induction, *carried]), type=ty,
        )  # fmt: skip
        if op.attrs["ordered"]:
            self.wait(e)
        if not parts:
            return []
        totals = self._combined(e, kinds, types, parts)
        return _pairs(e, kinds, types, inits, totals)

    def alone(self, e: Emitter, op: Op, store: Callable[[], object]) -> None:
        """What the first member does for all."""
        if op.attrs["ordered"]:
            self.wait(e)
        yes, out = e.label("first"), e.label("others")
        e.branch(e.inst(f"icmp eq i32 {self.number}, 0"), yes, out)
        e.start(yes)
        store()
        e.jump(out)
        e.start(out)
        if op.attrs["ordered"]:
            self.wait(e)

    def wait(self, e: Emitter) -> None:
        """Until all members are here, and see what each has written."""
        if self.several:
            barrier(e)
        else:
            e.declare("declare void @llvm.nvvm.bar.warp.sync(i32)")
            e.line(f"call void @llvm.nvvm.bar.warp.sync(i32 {self.mask})")

    def _combined(
        self, e: Emitter, kinds: Sequence[str], types: list[ScalarType], values: list[str]
    ) -> list[str]:
        """What the members hold, combined: the same bits in each."""
        values = self._butterfly(e, kinds, types, values, self.width)
        if not self.several:
            return values
        shared = f"@{_SHARED}"
        lane = e.inst(f"and i32 {self.number}, {WARP - 1}")
        warp = e.inst(f"lshr i32 {self.number}, 5")
        place = lambda k, n: e.inst(  # noqa: E731
            f"getelementptr i64, ptr addrspace(3) {shared}, "
            f"i32 {e.inst(f'add nuw nsw i32 {n}, {WARP * k}')}"
        )
        yes, out = e.label("hand"), e.label("handed")
        e.branch(e.inst(f"icmp eq i32 {lane}, 0"), yes, out)
        e.start(yes)
        for k, (value, t) in enumerate(zip(values, types, strict=True)):
            e.line(f"store i64 {word(e, value, t)}, ptr addrspace(3) {place(k, warp)}")
        e.jump(out)
        e.start(out)
        barrier(e)
        there = e.inst(f"icmp ult i32 {lane}, {e.inst(f'lshr i32 {self.size}, 5')}")
        taken = []
        for k, (kind, t) in enumerate(zip(kinds, types, strict=True)):
            value = from_word(e, e.inst(f"load i64, ptr addrspace(3) {place(k, lane)}"), t)
            neutral = e.literal(identity(kind, t), t)
            taken.append(
                e.inst(f"select i1 {there}, {llvm_type(t)} {value}, {llvm_type(t)} {neutral}")
            )
        barrier(e)
        return self._butterfly(e, kinds, types, taken, WARP)

    def _butterfly(
        self,
        e: Emitter,
        kinds: Sequence[str],
        types: list[ScalarType],
        values: list[str],
        width: int,
    ) -> list[str]:
        offset = width // 2
        while offset:
            others = [
                shuffle(e, t, v, offset, how="bfly", mask=self.mask)
                for t, v in zip(types, values, strict=True)
            ]
            values = _pairs(e, kinds, types, values, others)
            offset //= 2
        return values


def row(
    e: Emitter, op: Op, bounds: list[list[Value]], trips: dict[int, str]
) -> tuple[str, Callable[[], None]]:
    """Whether the thread's team has an iteration of ``op``, and what names its indices. Blocks
    count along x, teams of a block along y. ``bounds``: lower, upper, step of each index;
    ``trips``: how many there are."""
    args, ty = op.regions[0].args, "i64"
    block, place, size = (
        to(e, register(e, name), "i32", ty, unsigned=True)
        for name in ("ctaid.x", "tid.y", "ntid.y")
    )
    number = e.inst(f"add nuw nsw {ty} {e.inst(f'mul nuw nsw {ty} {block}, {size}')}, {place}")
    wide = [to(e, trips[k], llvm_type(arg.type), ty) for k, arg in enumerate(args)]
    total = wide[0]
    for trip in wide[1:]:
        total = e.inst(f"mul nsw {ty} {total}, {trip}")

    def bind() -> None:
        rest = number
        for k in reversed(range(len(args))):
            part = rest
            if k:
                quotient = e.inst(f"udiv {ty} {rest}, {wide[k]}")
                product = e.inst(f"mul {ty} {quotient}, {wide[k]}")
                part, rest = e.inst(f"sub {ty} {rest}, {product}"), quotient
            kind = llvm_type(args[k].type)
            e.names[args[k]] = index_of(e, to(e, part, ty, kind), bounds[k], kind)

    return e.inst(f"icmp slt {ty} {number}, {total}"), bind


def _pairs(
    e: Emitter, kinds: Sequence[str], types: list[ScalarType], a: list[str], b: list[str]
) -> list[str]:
    return [combine(e, kind, t, x, y) for kind, t, x, y in zip(kinds, types, a, b, strict=True)]
