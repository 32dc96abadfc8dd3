"""The code of a team's members: shared loops, stores of one member, waiting for each other.

See ``cooperative_loops``. A team is part of a warp, a warp, or a block of several warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.arith import combine, from_word, identity, word
from weft.codegen.emit import Emitter, llvm_type
from weft.codegen.llvm import loop, loop_body
from weft.codegen.threadwise import Bounds, barrier, in_block, index_of, register, shuffle, to
from weft.codegen.trips import divide
from weft.ir.core import Op, walk
from weft.ir.trips import unravel
from weft.ir.types import ScalarType
from weft.schedule.grid import WARP

_SHARED = "weft_team"  # what the warps of a team hand over


class Members:
    """What a thread knows of its team. ``width``: members, at most those of a warp; more than that
    for a team that is a block, of as many warps as it has. ``parallel``: the loop whose
    iterations teams have. ``columns``: teams that a block has side by side, whose first members are
    neighbours; 0 if a team's members are."""

    def __init__(self, e: Emitter, width: int, parallel: Op, columns: int = 0) -> None:
        self.width = min(width, WARP)
        self.several = width > WARP
        self.columns = columns
        side = "y" if columns else "x"
        self.number = register(e, f"tid.{side}")
        self.size = register(e, f"ntid.{side}") if self.several else str(width)
        self.there = "true"  # whether the team has an iteration
        self.mask = "-1"
        if self.several:
            inside = walk(parallel.body)
            most = max(len(op.results) for op in inside if op.name == "scf.for")
            words = WARP * most * max(columns, 1)
            shared_words(e, _SHARED, words)
        if width < WARP:
            thread, _ = in_block(e)
            first = e.inst(f"and i32 {thread}, {WARP - width}")
            self.mask = e.inst(f"shl i32 {(1 << width) - 1}, {first}")

    def shared_loop(self, e: Emitter, op: Op, operands: Sequence[str]) -> list[str]:
        """Each member's iterations of a loop, and what all of them carried."""
        lower, upper, _, *inits = operands
        kinds: Sequence[str] = op.attrs["team"]
        types = [v.scalar for v in op.results]
        body = op.body
        ty = llvm_type(body.args[0].type)
        if self.there != "true":
            upper = e.inst(f"select i1 {self.there}, {ty} {upper}, {ty} {lower}")
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
        return pairs(e, kinds, types, inits, totals)

    def alone(self, e: Emitter, op: Op, store: Callable[[], object]) -> None:
        """What the first member does for all."""
        if op.attrs["ordered"]:
            self.wait(e)
        yes, out = e.label("first"), e.label("others")
        chosen = e.inst(f"icmp eq i32 {self.number}, 0")
        e.branch(e.inst(f"and i1 {chosen}, {self.there}"), yes, out)
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
        if not self.several:
            return _in_warp(e, kinds, types, values, self.width, 1, self.mask)
        return in_whole_block(e, kinds, types, values, _SHARED, self.columns)


def shared_words(e: Emitter, name: str, words: int) -> None:
    """Declares memory that a block's threads hand over what they hold in."""
    e.declare(f"@{name} = internal addrspace(3) global [{words} x i64] undef, align 16")


def in_whole_block(
    e: Emitter, kinds: Sequence[str], types: list[ScalarType], values: list[str], shared: str,
    columns: int = 0,
) -> list[str]:  # fmt: skip
    """What the threads of a block of whole warps hold, combined, in each of them: by shuffles in
    the warps, then through the words ``shared``, ``WARP`` of them for each value (and column).
    ``columns``: that many neighbours are combined each for itself, with those of other rows."""
    least = max(columns, 1)  # how far those that are combined are from each other in a warp
    values = _in_warp(e, kinds, types, values, WARP, least, "-1")
    thread, threads = in_block(e)
    lane = e.inst(f"and i32 {thread}, {WARP - 1}")
    warp = e.inst(f"lshr i32 {thread}, 5")
    row = e.inst(f"mul nuw nsw i32 {warp}, {least}")

    def place(k: int, n: str) -> str:
        number = e.inst(f"add nuw nsw i32 {n}, {WARP * least * k}")
        return e.inst(f"getelementptr i64, ptr addrspace(3) @{shared}, i32 {number}")

    yes, out = e.label("hand"), e.label("handed")
    e.branch(e.inst(f"icmp ult i32 {lane}, {least}"), yes, out)
    e.start(yes)
    own = e.inst(f"add nuw nsw i32 {row}, {lane}")
    for k, (value, t) in enumerate(zip(values, types, strict=True)):
        e.line(f"store i64 {word(e, value, t)}, ptr addrspace(3) {place(k, own)}")
    e.jump(out)
    e.start(out)
    barrier(e)
    neutral = [e.literal(identity(kind, t), t) for kind, t in zip(kinds, types, strict=True)]
    warps = e.inst(f"lshr i32 {threads}, 5")

    def taken(number: str) -> list[str]:
        return [
            from_word(e, e.inst(f"load i64, ptr addrspace(3) {place(k, number)}"), t)
            for k, t in enumerate(types)
        ]

    if columns:
        column = register(e, "tid.x")
        end = e.inst(f"mul nuw nsw i32 {warps}, {least}")
        totals = loop(
            e, column, end, str(least), neutral, [llvm_type(t) for t in types],
            lambda number, sums: pairs(e, kinds, types, sums, taken(number)), type="i32",
        )  # fmt: skip
        barrier(e)
        return totals
    there = e.inst(f"icmp ult i32 {lane}, {warps}")
    parts = [
        e.inst(f"select i1 {there}, {llvm_type(t)} {value}, {llvm_type(t)} {none}")
        for value, none, t in zip(taken(lane), neutral, types, strict=True)
    ]
    barrier(e)
    return _in_warp(e, kinds, types, parts, WARP, 1, "-1")


def _in_warp(
    e: Emitter, kinds: Sequence[str], types: list[ScalarType], values: list[str],
    width: int, least: int, mask: str,
) -> list[str]:  # fmt: skip
    """What the ``width`` lanes of ``mask`` hold that are multiples of ``least`` apart, combined."""
    offset = width // 2
    while offset >= least:
        others = [shuffle(e, t, v, str(offset), mask) for t, v in zip(types, values, strict=True)]
        values = pairs(e, kinds, types, values, others)
        offset //= 2
    return values


def row(
    e: Emitter, op: Op, bounds: list[Bounds], trips: dict[int, str]
) -> tuple[str, Callable[[], None]]:
    """Whether the thread's team has an iteration of ``op``, and what names its indices. Blocks
    count along x, teams of a block along y. ``bounds``: lower, upper, step of each index;
    ``trips``: how many there are."""
    args, ty = op.body.args, "i64"
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
        axes = list(reversed(range(len(args))))
        parts = unravel(number, (wide[k] for k in axes[:-1]), divide(e, ty))
        for k, part in zip(axes, parts, strict=True):
            kind = llvm_type(args[k].type)
            e.names[args[k]] = index_of(e, to(e, part, ty, kind), bounds[k], kind)

    return e.inst(f"icmp slt {ty} {number}, {total}"), bind


def column(
    e: Emitter, members: Members, op: Op, bounds: list[Bounds], trips: dict[int, str],
    first: int,
) -> None:  # fmt: skip
    """Names the indices of the iteration of ``op`` that the thread's team has. Blocks count along
    x: those of the other indices, and neighbours along the index ``first``. A team beyond the last
    iteration takes that, and does nothing in it."""
    args, ty = op.body.args, "i64"
    block, lane = (
        to(e, register(e, name), "i32", ty, unsigned=True) for name in ("ctaid.x", "tid.x")
    )
    wide = [to(e, trips[k], llvm_type(arg.type), ty) for k, arg in enumerate(args)]
    raised = e.inst(f"add nuw nsw {ty} {wide[first]}, {members.columns - 1}")
    groups = e.inst(f"udiv {ty} {raised}, {members.columns}")
    left = e.inst(f"udiv {ty} {block}, {groups}")
    group = e.inst(f"sub {ty} {block}, {e.inst(f'mul {ty} {left}, {groups}')}")
    begin = e.inst(f"mul nuw nsw {ty} {group}, {members.columns}")
    place = e.inst(f"add nuw nsw {ty} {begin}, {lane}")
    members.there = e.inst(f"icmp slt {ty} {place}, {wide[first]}")
    last = e.inst(f"sub {ty} {wide[first]}, 1")
    parts = {first: e.intrinsic(f"llvm.smin.{ty}", ty, (ty, place), (ty, last))}
    others = [k for k in reversed(range(len(args))) if k != first]
    parts |= zip(others, unravel(left, (wide[k] for k in others), divide(e, ty)), strict=False)
    for k, part in parts.items():
        kind = llvm_type(args[k].type)
        e.names[args[k]] = index_of(e, to(e, part, ty, kind), bounds[k], kind)


def pairs(
    e: Emitter, kinds: Sequence[str], types: Sequence[ScalarType], a: list[str], b: list[str]
) -> list[str]:
    """Each of ``a`` combined with the one of ``b``."""
    return [combine(e, kind, t, x, y) for kind, t, x, y in zip(kinds, types, a, b, strict=True)]
