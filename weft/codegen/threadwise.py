"""Small pieces of a thread's code on a GPU, and of what is asked of the function that it runs."""

from __future__ import annotations

from weft.codegen.arith import from_word, word
from weft.codegen.emit import Emitter
from weft.ir.core import Function, Op, Value
from weft.ir.types import ScalarType
from weft.ir.views import memory
from weft.ir.writes import written as written_memrefs
from weft.schedule.grid import WARP

Bounds = tuple[Value, Value, Value]  # lower, upper, step
SREG = "llvm.nvvm.read.ptx.sreg."


def updates(ops: list[Op]) -> list[tuple[str, Value]]:
    """Combiner and memref of each accumulation in ``ops`` and below."""
    found = []
    for op in ops:
        if op.name == "memref.atomic_rmw":
            found.append((op.attrs["kind"], memory(op)[0]))
        for region in op.regions:
            found += updates(region.ops)
    return found


def written(function: Function) -> set[int]:
    """Positions of the arguments that are written."""
    memrefs = written_memrefs(function)
    return {k for k, arg in enumerate(function.args) if arg in memrefs}


def to(e: Emitter, value: str, source: str, target: str, *, unsigned: bool = False) -> str:
    """An integer in another width."""
    if source == target:
        return value
    if target == "i32":
        return e.inst(f"trunc {source} {value} to {target}")
    return e.inst(f"{'zext' if unsigned else 'sext'} {source} {value} to {target}")


def index_of(e: Emitter, count: str, bounds: Bounds, ty: str) -> str:
    """The parallel index at an iteration: lower + count * step."""
    lower, _, step = bounds
    if e.constants.get(step) != 1:
        count = e.inst(f"mul nsw {ty} {count}, {e.name(step)}")
    if e.constants.get(lower) != 0:
        count = e.inst(f"add nsw {ty} {count}, {e.name(lower)}")
    return count


def shuffle(
    e: Emitter, t: ScalarType, value: str, place: str, mask: str, mode: str = "xor",
    width: int = WARP,
) -> str:  # fmt: skip
    """The value of another lane (see ``gpu.shuffle``). ``mask``: the lanes that take part."""
    bits = word(e, value, t) if t.bits == 64 or t.bits < 32 else ""
    name = {"xor": "bfly", "down": "down", "idx": "idx"}[mode]
    # Which bits of a lane's number are that of its neighbours, and its last place among these.
    clamp = WARP - 1 if mode == "xor" else (WARP - width) << 8 | WARP - 1

    def one(part: str) -> str:
        pairs = [("i32", v) for v in (mask, part, place, str(clamp))]
        return e.intrinsic(f"llvm.nvvm.shfl.sync.{name}.i32", "i32", *pairs)

    if t.bits == 32:
        raw = e.inst(f"bitcast float {value} to i32") if t.is_float else value
        other = one(raw)
        return e.inst(f"bitcast i32 {other} to float") if t.is_float else other
    low = one(e.inst(f"trunc i64 {bits} to i32"))
    if t.bits < 32 and not t.is_float:
        return from_word(e, e.inst(f"sext i32 {low} to i64"), t)
    high = one(e.inst(f"trunc i64 {e.inst(f'lshr i64 {bits}, 32')} to i32"))
    lifted = e.inst(f"zext i32 {high} to i64")
    upper, lower = e.inst(f"shl i64 {lifted}, 32"), e.inst(f"zext i32 {low} to i64")
    whole = e.inst(f"or i64 {upper}, {lower}")
    return from_word(e, whole, t)


def register(e: Emitter, name: str) -> str:
    """A special register, like ``tid.x``."""
    return e.intrinsic(SREG + name, "i32")


def position(e: Emitter, side: str, ty: str) -> tuple[str, str]:
    """The thread's first position along a side of the grid, and the length of that side."""
    thread, block, size, blocks = (
        to(e, register(e, f"{name}.{side}"), "i32", ty, unsigned=True)
        for name in ("tid", "ctaid", "ntid", "nctaid")
    )
    first = e.inst(f"mul nuw nsw {ty} {block}, {size}")
    return (e.inst(f"add nuw nsw {ty} {first}, {thread}"),
            e.inst(f"mul nuw nsw {ty} {blocks}, {size}"))  # fmt: skip


def in_block(e: Emitter) -> tuple[str, str]:
    """The number of the thread in its block, and how many there are."""
    ids = [register(e, f"tid.{side}") for side in "xyz"]
    sizes = [register(e, f"ntid.{side}") for side in "xyz"]
    number = ids[2]
    for side in (1, 0):
        scaled = e.inst(f"mul nuw nsw i32 {number}, {sizes[side]}")
        number = e.inst(f"add nuw nsw i32 {scaled}, {ids[side]}")
    count = e.inst(f"mul nuw nsw i32 {sizes[0]}, {sizes[1]}")
    return number, e.inst(f"mul nuw nsw i32 {count}, {sizes[2]}")


def block_number(e: Emitter) -> str:
    """The number of the thread's block in the grid."""
    number = register(e, "ctaid.z")
    for side in "yx":
        scaled = e.inst(f"mul i32 {number}, {register(e, f'nctaid.{side}')}")
        number = e.inst(f"add i32 {scaled}, {register(e, f'ctaid.{side}')}")
    return number


def barrier(e: Emitter) -> None:
    """Waits for the block's other threads."""
    e.declare("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
    e.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")


def between(e: Emitter, place: str, ty: str, count: int, side: int) -> str:
    """The first of ``count`` iterations of the thread at ``place``, where the threads of a warp lie
    between a thread's neighbours, but for ``side`` that are next to each other."""
    warp = e.inst(f"lshr {ty} {place}, {WARP.bit_length() - 1}")
    begin = e.inst(f"mul nuw nsw {ty} {warp}, {WARP * count}")
    lane = e.inst(f"and {ty} {place}, {WARP - 1}")
    if side > 1:
        lane = e.inst(f"mul nuw nsw {ty} {lane}, {side}")
    return e.inst(f"add nuw nsw {ty} {begin}, {lane}")
