"""Private copies on a CPU: each chunk accumulates into its own copy of an array, without atomics.

The entry asks the pool (``pool.COPIES``) how a call accumulates: in copies, which it adds to the
array in the order of the chunks; plainly, where one thread runs the loop; or by atomic operations.
Where chunks begin depends on the sizes alone, and so do the bits of sums in copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.codegen import pool
from weft.codegen.arith import combine
from weft.codegen.emit import Emitter, llvm_type
from weft.codegen.llvm import loop
from weft.ir.builder import identity
from weft.ir.core import Function, Value
from weft.schedule.language import Privatize, Schedule, several
from weft.schedule.legal import accumulated
from weft.schedule.legal_cpu import outermost
from weft.schedule.nest import LoopNest
from weft.values import frozen

_LINE = 64  # bytes of a cache line, where each copy begins


def private_arrays(function: Function, schedule: Schedule) -> dict[Value, str]:
    """The arrays that chunks have copies of by ``schedule``, with what combines their elements."""
    parallel, steps = outermost(function), several(schedule, Privatize)
    if parallel is None:
        return {}
    nest = LoopNest(function, parallel)
    return {nest.array(step.array): str(accumulated(nest, step)) for step in steps}


@frozen
class Copies:
    """The copies of a chunk: elements of each array, where its copy begins, all elements and bytes.
    These are names in the function that is being written."""

    counts: Mapping[Value, str]
    offsets: Mapping[Value, str]
    elements: str
    bytes: str


def copies_of(e: Emitter, arrays: Sequence[Value]) -> Copies:
    """Emits how large copies of ``arrays`` are."""
    counts: dict[Value, str] = {}
    offsets: dict[Value, str] = {}
    elements = end = "0"
    for array in arrays:
        count = "1"
        for size in e.views[array].sizes:
            count = e.inst(f"mul nsw i64 {count}, {size}")
        counts[array], offsets[array] = count, end
        size = e.inst(f"mul nsw i64 {count}, {array.memref.element.bytes}")
        size = e.inst(f"and i64 {e.inst(f'add nsw i64 {size}, {_LINE - 1}')}, {-_LINE}")
        end = e.inst(f"add nsw i64 {end}, {size}")
        elements = e.inst(f"add nsw i64 {elements}, {count}")
    return Copies(counts, offsets, elements, end)


def cleared(e: Emitter, arrays: Mapping[Value, str], copy: str) -> dict[Value, str]:
    """The memory that a chunk accumulates into: its ``copy``, with nothing in it, or the arrays
    themselves where that is null."""
    clear, go = e.label("clear"), e.label("go")
    copies = copies_of(e, list(arrays))
    there = e.inst(f"icmp ne ptr {copy}, null")
    pointers: dict[Value, str] = {}
    for array, offset in copies.offsets.items():
        own = e.inst(f"getelementptr i8, ptr {copy}, i64 {offset}")
        pointers[array] = e.inst(f"select i1 {there}, ptr {own}, ptr {e.views[array].pointer}")
    e.branch(there, clear, go)
    e.start(clear)
    for array, kind in arrays.items():
        element = array.memref.element
        nothing = e.literal(identity(kind, element), element)

        def clear_one(k: str, _: list[str], array: Value = array, text: str = nothing) -> list[str]:
            ty = llvm_type(array.memref.element)
            place = e.inst(f"getelementptr {ty}, ptr {pointers[array]}, i64 {k}")
            e.line(f"store {ty} {text}, ptr {place}")
            return []

        loop(e, "0", copies.counts[array], "1", [], [], clear_one)
    e.jump(go)
    e.start(go)
    return pointers


@frozen
class Way:
    """How a call accumulates: the function that runs a chunk, copies or null, words of a chunk's
    copies, the work to share (a double), and whether one thread runs all."""

    body: str
    memory: str
    words: str
    work: str
    alone: str
    copies: Copies


def way(e: Emitter, arrays: Sequence[Value], work: str) -> Way:
    """Emits the choice."""
    copies = copies_of(e, arrays)
    e.declare(f"declare i64 @{pool.COPIES}(double, i64, i64)")
    e.declare("declare noalias ptr @aligned_alloc(i64, i64)")
    e.declare("declare void @free(ptr)")
    amount = f"double {work}, i64 {copies.elements}, i64 {copies.bytes}"
    count = e.inst(f"call i64 @{pool.COPIES}({amount})")
    ask, chosen, before = e.label("copies"), e.label("chosen"), e.block
    many = e.inst(f"icmp sgt i64 {count}, 1")
    e.branch(many, ask, chosen)
    e.start(ask)
    size = e.inst(f"mul nsw i64 {count}, {copies.bytes}")
    given = e.inst(f"call ptr @aligned_alloc(i64 {_LINE}, i64 {size})")
    e.jump(chosen)
    e.start(chosen)
    memory, slot = e.phi("ptr")
    e.fill(slot, ("null", before), (given, ask))
    there = e.inst(f"icmp ne ptr {memory}, null")
    alone = e.inst(f"icmp eq i64 {count}, 1")
    plain = e.inst(f"or i1 {there}, {alone}")
    body = e.inst(f"select i1 {plain}, ptr @body.plain, ptr @body")
    words = e.inst(f"select i1 {there}, i64 {e.inst(f'lshr i64 {copies.bytes}, 3')}, i64 0")
    shared = e.inst(f"sitofp i64 {e.inst(f'mul nsw i64 {count}, {pool.CHUNK_COST}')} to double")
    work = e.inst(f"select i1 {there}, double {shared}, double {work}")
    return Way(body, memory, words, work, alone, copies)


def added(e: Emitter, arrays: Mapping[Value, str], way: Way, chunks: str, failed: str) -> None:
    """Adds the copies of ``chunks`` to the arrays, unless a chunk ``failed``, and frees them."""
    look, add, free, out = (e.label(s) for s in ("look", "add", "free", "out"))
    e.branch(e.inst(f"icmp ne ptr {way.memory}, null"), look, out)
    e.start(look)
    e.branch(failed, free, add)
    e.start(add)

    def one_chunk(chunk: str, _: list[str]) -> list[str]:
        first = e.inst(f"mul nsw i64 {chunk}, {way.copies.bytes}")
        own = e.inst(f"getelementptr i8, ptr {way.memory}, i64 {first}")
        for array, kind in arrays.items():
            begin = e.inst(f"getelementptr i8, ptr {own}, i64 {way.copies.offsets[array]}")

            def one(k: str, _: list[str], array: Value = array, kind: str = kind,
                    begin: str = begin) -> list[str]:  # fmt: skip
                t = array.memref.element
                places = [e.inst(f"getelementptr {llvm_type(t)}, ptr {p}, i64 {k}")
                          for p in (e.views[array].pointer, begin)]  # fmt: skip
                a, b = (e.inst(f"load {llvm_type(t)}, ptr {p}") for p in places)
                total = combine(e, kind, t, a, b, reorder=False)
                e.line(f"store {llvm_type(t)} {total}, ptr {places[0]}")
                return []

            loop(e, "0", way.copies.counts[array], "1", [], [], one)
        return []

    loop(e, "0", chunks, "1", [], [], one_chunk)
    e.jump(free)
    e.start(free)
    e.line(f"call void @free(ptr {way.memory})")
    e.jump(out)
    e.start(out)
