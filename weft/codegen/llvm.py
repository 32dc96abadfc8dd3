"""The rule table: how each operation of the IR is written in LLVM IR.

A rule gets the emitter, the operation and its operands' LLVM names, and gives the results' names.
This module adds memory, control flow and effects to the scalar rules of ``arith``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.codegen import starts
from weft.codegen.arith import RULES, combine, narrow, note_extrema, note_range, rule, widen
from weft.codegen.constant_tables import looked_up
from weft.codegen.copies import LINE
from weft.codegen.emit import INDEX_BITS, Emitter, View, llvm_type, memory_type
from weft.codegen.philox import random_word
from weft.codegen.pool import AVAILABLE, CUT
from weft.ir.core import Block, Op, walk
from weft.ir.ops import OPS
from weft.ir.types import ScalarType, i1
from weft.ir.views import (
    CheckRace,
    For,
    Parallel,
    Prefetch,
    RowsFollow,
    ToLine,
    constant_of,
    memory,
)


def emit_block(e: Emitter, block: Block) -> list[str]:
    """Emits a block's operations; gives the operands of its terminator."""
    for op in block.ops[:-1]:
        emit_op(e, op)
    return [e.name(v) for v in block.terminator.operands]


def emit_op(e: Emitter, op: Op) -> None:
    """Emits one operation and notes the names of its results."""
    operands = [e.name(v) for v in op.operands]
    emit = e.target.rules.get(op.name) or RULES[op.name]
    outer, e.span = e.span, op.span or e.span
    results = emit(e, op, operands)
    e.span = outer
    for value, name in zip(op.results, results, strict=True):
        if value not in e.constants and value not in e.views:
            e.names[value] = name
    note_range(e, op)


# -- memory


def address(e: Emitter, view: View, indices: Sequence[str], ty: str = "") -> str:
    """The address of an element. Subscripts in range cannot wrap, so LLVM may assume it. ``ty``:
    their type, where it is another one than usual."""
    rank, ty = len(indices), ty or e.offset_type
    if rank == 0:
        return view.pointer
    if view.strides:
        terms = [index if stride == "1" else e.inst(f"mul nsw {ty} {index}, {stride}")
                 for index, stride in zip(indices, view.strides, strict=True)]  # fmt: skip
        offset = terms[0]
        for term in terms[1:]:
            offset = e.inst(f"add nsw {ty} {offset}, {term}")
    else:
        offset = indices[0]
        for axis in range(1, rank):
            scaled = e.inst(f"mul nsw {ty} {offset}, {view.sizes[axis]}")
            offset = e.inst(f"add nsw {ty} {scaled}, {indices[axis]}")
    element = memory_type(view.type.element)
    return e.inst(f"getelementptr inbounds {element}, ptr {view.pointer}, {ty} {offset}")


def place(e: Emitter, op: Op, view: View, indices: Sequence[str]) -> tuple[str, int]:
    """The address of what a load or store accesses, and the bytes that it is a multiple of."""
    element = view.type.element
    _, subscripts, _ = memory(op)
    pointer = address(e, view, indices, llvm_type(subscripts[0].type) if subscripts else "")
    if offset := op.attrs.get("offset"):
        ty = memory_type(element)
        pointer = e.inst(f"getelementptr inbounds {ty}, ptr {pointer}, i64 {offset}")
    return pointer, op.attrs.get("align", element.bytes)


def access_tail(e: Emitter, view: View, align: int = 0, *, streams: bool = False) -> str:
    """Alignment and metadata of a load or store."""
    tail = f", align {align or view.type.element.bytes}"
    groups = e.groups[-1:] if view.parallel else []
    if groups or streams:
        group = e.module.streaming(groups) if streams else groups[0]
        tail += f", !llvm.access.group {group}"
    return tail


def load(e: Emitter, view: View, pointer: str, align: int = 0, *, overwritten: bool = False) -> str:
    """``overwritten``: as ``codegen/overwritten.py`` says."""
    element = view.type.element
    tail = access_tail(e, view, align)
    value = e.inst(f"load {memory_type(element)}, ptr {pointer}{tail}")
    if overwritten:
        value = e.inst(f"freeze {memory_type(element)} {value}")
    return e.inst(f"icmp ne i8 {value}, 0") if element is i1 else value


def store(
    e: Emitter, view: View, pointer: str, value: str, align: int = 0, *, streams: bool = False
) -> None:
    element = view.type.element
    if element is i1:
        value = e.inst(f"zext i1 {value} to i8")
    tail = access_tail(e, view, align, streams=streams)
    e.line(f"store {memory_type(element)} {value}, ptr {pointer}{tail}")


@rule("memref.load")
def _load(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view, indices, _ = e.access(op, operands)
    kept = e.overwritten.get(op, False)
    return [load(e, view, *place(e, op, view, indices), overwritten=kept)]


@rule("memref.store")
def _store(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view, indices, (value,) = e.access(op, operands)
    pointer, align = place(e, op, view, indices)
    streams = e.target.marks_streams and "streaming" in op.attrs
    store(e, view, pointer, value, align, streams=streams)
    return ()


@rule("memref.dim")
def _dim(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    return [e.views[op.operand].sizes[op.attrs["axis"]]]


@rule("memref.alloca")
def _alloca(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    type = op.result.memref
    assert type.shape is not None
    pointer, element = e.fresh("local"), memory_type(type.element)
    e.allocas.append(f"{pointer} = alloca [{math.prod(type.shape)} x {element}], align 64")
    e.views[op.result] = View(pointer, type, [str(n) for n in type.shape], [], parallel=False)
    return [pointer]


@rule("memref.flatten")
def _flattened(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view, count = e.views[op.operand], "1"
    for size in view.sizes:
        count = e.inst(f"mul nsw {e.offset_type} {count}, {size}")
    e.views[op.result] = View(view.pointer, op.result.memref, [count], [], view.parallel)
    return operands


# LLVM's atomicrmw operations that exist for a combiner. The others loop around a cmpxchg.
_INTEGER_ATOMICS = {
    "addi": "add", "maxsi": "max", "minsi": "min", "maxui": "umax", "minui": "umin",
    "andi": "and", "ori": "or", "xori": "xor",
}  # fmt: skip
_FLOAT_ATOMICS = {"addf": "fadd"}


@rule("memref.atomic_rmw")
def _atomic_rmw(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view, indices, (value,) = e.access(op, operands)
    element = view.type.element
    pointer = address(e, view, indices)
    kind, value_type = op.attrs["kind"], op.result.scalar
    if not op.attrs["atomic"]:
        loaded = load(e, view, pointer, overwritten=e.overwritten.get(op, False))
        old = widen_element(e, element, value_type, loaded)
        reorder = "reassociate" in op.attrs
        new = combine(e, kind, value_type, old, value, reorder=reorder)
        store(e, view, pointer, narrow_element(e, value_type, element, new))
        return [old]
    native = _FLOAT_ATOMICS if element.is_float else _INTEGER_ATOMICS
    if kind in native and element is not i1 and not element.is_storage:
        ty, align = memory_type(element), element.bytes
        place = f"ptr {pointer}, {ty} {value} {e.ordering}, align {align}"
        return [e.inst(f"atomicrmw {native[kind]} {place}")]
    return [_cmpxchg_loop(e, view, pointer, kind, value, value_type)]


def _cmpxchg_loop(
    e: Emitter, view: View, pointer: str, kind: str, value: str, value_type: ScalarType
) -> str:
    """Combines by reading, combining and exchanging until nobody came between."""
    element = view.type.element
    bits = f"i{element.bytes * 8}"
    plain = memory_type(element)
    before = e.block
    first = e.inst(f"load atomic {bits}, ptr {pointer} {e.ordering}, align {element.bytes}")
    loop, done = e.label("exchange"), e.label("exchanged")
    e.jump(loop)
    e.start(loop)
    expected, slot = e.phi(bits)
    stored = expected if plain == bits else e.inst(f"bitcast {bits} {expected} to {plain}")
    if element is i1:
        stored = e.inst(f"icmp ne i8 {stored}, 0")
    old = widen_element(e, element, value_type, stored)
    new = narrow_element(e, value_type, element, combine(e, kind, value_type, old, value))
    if element is i1:
        new = e.inst(f"zext i1 {new} to i8")
    elif plain != bits:
        new = e.inst(f"bitcast {plain} {new} to {bits}")
    found, ok = _cmpxchg(e, pointer, bits, expected, new)
    e.fill(slot, (first, before), (found, e.block))
    e.branch(ok, done, loop)
    e.start(done)
    return old


def _cmpxchg(e: Emitter, pointer: str, ty: str, expected: str, new: str) -> tuple[str, str]:
    pair = e.inst(f"cmpxchg ptr {pointer}, {ty} {expected}, {ty} {new} {e.ordering} monotonic")
    kind = f"{{ {ty}, i1 }}"
    return e.inst(f"extractvalue {kind} {pair}, 0"), e.inst(f"extractvalue {kind} {pair}, 1")


@rule("memref.atomic_cas")
def _atomic_cas(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view, indices, values = e.access(op, operands)
    element = view.type.element
    pointer = address(e, view, indices)
    bits, plain = f"i{element.bytes * 8}", memory_type(element)
    words = []
    for value, operand in zip(values, memory(op)[2], strict=True):
        word = narrow_element(e, operand.scalar, element, value)
        if element is i1:
            word = e.inst(f"zext i1 {word} to i8")
        words.append(word if plain == bits else e.inst(f"bitcast {plain} {word} to {bits}"))
    found, _ = _cmpxchg(e, pointer, bits, words[0], words[1])
    if plain != bits:
        found = e.inst(f"bitcast {bits} {found} to {plain}")
    if element is i1:
        found = e.inst(f"icmp ne i8 {found}, 0")
    return [widen_element(e, element, op.result.scalar, found)]


def widen_element(e: Emitter, element: ScalarType, target: ScalarType, value: str) -> str:
    return widen(e, element, target, value) if element.is_float else value


def narrow_element(e: Emitter, source: ScalarType, element: ScalarType, value: str) -> str:
    return narrow(e, source, element, value) if element.is_float else value


# -- control flow


# Of longer loops LLVM gains nothing by interleaving, and where much of one does not depend on the
# index it takes endless time to find that out (of each operand, for each operation that reads it).
MOST_INTERLEAVED = 200  # lines


@rule("scf.for")
def _for(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    lower, upper, step, *inits = operands
    body = op.body
    inits = _fenced(e, op, inits)
    if For(op).lower in e.bits or "counts" in op.attrs:
        e.bits[body.args[0]] = INDEX_BITS
    note_extrema(e, op)
    marked = any("streaming" in inner.attrs for inner in body.ops)
    said: list[str] = []
    # What is left of a loop by vectors does not stream: it is short.
    single = marked and e.target.marks_streams
    said += [e.module.node('!{!"llvm.loop.interleave.count", i32 1}')] if single else []
    if op.attrs.get("independent"):  # iterations of what was a parallel loop
        group = e.module.node("!{}")
        said.insert(0, e.module.node(f'!{{!"llvm.loop.parallel_accesses", {group}}}'))
        e.groups.append(group)
    if "unroll" in op.attrs:  # what runs rarely, or not for long: see schedule/unroll_jam.py
        times = op.attrs["unroll"]
        word = f'count", i32 {times}' if times > 1 else 'disable"'
        said = [e.module.node('!{!"llvm.loop.unroll.' + word + "}")]
        if vectors := op.attrs.get("vectors"):
            said.append(e.module.node(f'!{{!"llvm.loop.interleave.count", i32 {vectors}}}'))
    elif not e.target.copies_loops and _has_longer_loops(op):
        said.append(e.module.node('!{!"llvm.loop.unroll.disable"}'))
    if "tail" in op.attrs:  # of a row: see schedule/tails.py
        said.append(e.module.node('!{!"llvm.loop.vectorize.predicate.enable", i1 true}'))
        said.append(e.module.node('!{!"llvm.loop.interleave.count", i32 1}'))
        said.append(e.module.node('!{!"llvm.loop.unroll.disable"}'))
    if "short" in op.attrs:  # longer code would be for nobody
        said.append(e.module.node('!{!"llvm.loop.unroll.disable"}'))
    if "scalar" in op.attrs or "short" in op.attrs:
        said.append(e.module.node('!{!"llvm.loop.vectorize.enable", i1 false}'))
    usual = e.module.node(f"!{{{{self}}, {', '.join(said)}}}") if said else ""
    types = [llvm_type(v.type) for v in op.results]
    innermost = not any(inner.name in ("scf.for", "scf.while") for inner in walk(body))

    # LLVM lets no address in a loop begin at the recurrence of a loop around it: each turn would
    # multiply anew for each address. A frozen index is none.
    around = any("staged" in inner.attrs for inner in walk(body))

    def iteration(induction: str, carried: list[str]) -> list[str]:
        e.target.poll(e, op)
        if around:
            induction = e.inst(f"freeze {llvm_type(body.args[0].type)} {induction}")
        return loop_body(e, body, [induction, *carried])

    def metadata(lines: int) -> str:
        if not e.target.vectorises or not innermost or lines <= MOST_INTERLEAVED:
            return usual
        alone = e.module.node('!{!"llvm.loop.interleave.count", i32 1}')
        return e.module.node(f"!{{{{self}}, {', '.join(dict.fromkeys([*said, alone]))}}}")

    def run(begin: str, end: str, carried: Sequence[str]) -> list[str]:
        index_type = llvm_type(body.args[0].type)
        return loop(
            e, begin, end, step, carried, types, iteration, type=index_type, metadata=metadata
        )  # fmt: skip

    rare = op.attrs.get("unroll") == 1 or "short" in op.attrs
    results = stoppable(e, op, (lower, upper), inits, types, run, once=rare)
    if op.attrs.get("independent"):
        e.groups.pop()
    return results


def _fenced(e: Emitter, op: Op, inits: Sequence[str]) -> list[str]:
    """``inits`` of the loop ``op``, where what sums start from is no factor for LLVM (see
    ``starts``)."""
    given = []
    for value, init, fence in zip(For(op).inits, inits, starts.fenced(op), strict=True):
        kind = e.type(value.scalar) if fence else ""
        name = f"llvm.arithmetic.fence.{e.suffix(value.scalar)}"
        given.append(e.intrinsic(name, kind, (kind, init)) if fence else init)
    return given


def _has_longer_loops(op: Op) -> bool:
    """Whether the loop ``op``, which LLVM would write out as it has a few iterations, has loops in
    it that are not: these gain nothing by that, and each of their copies is compiled. Where there
    are local arrays in it, their elements may become registers so."""
    view, inside = For(op), list(walk(op.body))
    if constant_of(view.lower) is None or constant_of(view.upper) is None:
        return False
    loops = (o for o in inside if o.name == "scf.while" or o.name == "scf.for")
    if all(o.name == "scf.for" and constant_of(For(o).upper) is not None for o in loops):
        return False
    arrays = (memory(o)[0].op for o in inside if o.name in ("memref.load", "memref.store"))
    return not any(array is not None and array.name == "memref.alloca" for array in arrays)


def stoppable(
    e: Emitter, op: Op, ends: tuple[str, str], inits: Sequence[str], types: Sequence[str],
    run: Callable[[str, str, Sequence[str]], list[str]], *, once: bool = False,
) -> list[str]:  # fmt: skip
    """The loop ``op``, which ``run`` emits from, to, with carried values: in one piece, and a
    second time in strips where it may take so long that people stop it. Short ones are as fast as
    without, for LLVM knows less of a loop in strips. ``once``: it stands in strips alone, where
    LLVM has nothing left to do but to write it."""
    lower, upper = ends
    length = op.attrs.get("strips")
    strip = e.target.strip(e, op, upper, run)
    if strip is None:
        return run(lower, upper, inits)
    if once:
        return loop(e, lower, upper, str(length), inits, types, strip)
    short, long, out = e.label("short"), e.label("long"), e.label("ran")
    distance = e.inst(f"sub i64 {upper}, {lower}")
    e.branch(e.inst(f"icmp sle i64 {distance}, {length}"), short, long)
    e.start(short)
    whole = run(lower, upper, inits)
    before = e.block
    e.jump(out)
    e.start(long)
    cut = loop(e, lower, upper, str(length), inits, types, strip)
    blocks = before, e.block
    e.jump(out)
    e.start(out)
    phis = [e.phi(t) for t in types]
    for (_, slot), *values in zip(phis, whole, cut, strict=True):
        e.fill(slot, *zip(values, blocks, strict=True))
    return [name for name, _ in phis]


def loop_body(e: Emitter, body: Block, names: Sequence[str]) -> list[str]:
    """One iteration: what it hands on to the next, for ``names`` of index and carried values."""
    e.names.update(zip(body.args, names, strict=True))
    return emit_block(e, body)


def loop(
    e: Emitter, lower: str, upper: str, step: str, inits: Sequence[str], types: Sequence[str],
    body: Callable[[str, list[str]], Sequence[str]], *,
    metadata: Callable[[int], str] = lambda lines: "", type: str = "i64",
) -> list[str]:  # fmt: skip
    """``for i in range(lower, upper, step)`` with carried values of LLVM types ``types``; gives the
    last ones. ``type`` is that of the index; ``metadata`` names what is said of the loop, if it has
    so many lines."""
    head, inside, out = e.label("for"), e.label("body"), e.label("end")
    before = e.block
    e.jump(head)
    e.start(head)
    induction, slot = e.phi(type)
    phis = [e.phi(t) for t in types]
    e.branch(e.inst(f"icmp slt {type} {induction}, {upper}"), inside, out)
    e.start(inside)
    first = len(e.lines)
    nexts = body(induction, [name for name, _ in phis])
    after = e.inst(f"add nsw {type} {induction}, {step}")
    e.fill(slot, (lower, before), (after, e.block))
    for (_, place), init, following in zip(phis, inits, nexts, strict=True):
        e.fill(place, (init, before), (following, e.block))
    said = metadata(len(e.lines) - first)
    e.line(f"br label %{head}" + (f", !llvm.loop {said}" if said else ""))
    e.start(out)
    return [name for name, _ in phis]


@rule("scf.if")
def _if(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    yes, no, out = e.label("then"), e.label("else"), e.label("join")
    e.branch(operands[0], yes, no)
    arms: list[tuple[list[str], str]] = []
    outer = e.target.leave
    for label, region in zip((yes, no), op.regions, strict=True):
        e.target.leave = no if label is yes and op.attrs.get("leave") else outer
        e.start(label)
        values = emit_block(e, region)
        arms.append((values, e.block))
        e.jump(out)
    e.target.leave = outer
    e.start(out)
    results = []
    for k, value in enumerate(op.results):
        name, slot = e.phi(llvm_type(value.type))
        e.fill(slot, *((values[k], block) for values, block in arms))
        results.append(name)
    return results


@rule("scf.while")
def _while(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    head, inside, out = e.label("while"), e.label("do"), e.label("done")
    before, after = op.regions
    entry = e.block
    e.jump(head)
    e.start(head)
    phis = [e.phi(llvm_type(v.type)) for v in before.args]
    condition, *handed = loop_body(e, before, [name for name, _ in phis])
    e.branch(condition, inside, out)
    e.start(inside)
    e.names.update(zip(after.args, handed, strict=True))
    e.target.poll(e, op)
    nexts = emit_block(e, after)
    for (_, slot), init, following in zip(phis, operands, nexts, strict=True):
        e.fill(slot, (init, entry), (following, e.block))
    e.jump(head)
    e.start(out)
    return handed


@rule("scf.parallel")
def _parallel(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """A parallel loop that is not the kernel's outermost: loops, one in the other."""
    lowers, uppers, steps, inits = Parallel(op).split(operands)
    types = [v.scalar for v in op.results]
    body = op.body

    def nest(depth: int, carried: list[str]) -> list[str]:
        if depth == len(lowers):
            parts = emit_block(e, body)
            return [combine(e, kind, t, a, b) for kind, t, a, b
                    in zip(op.attrs["kinds"], types, carried, parts, strict=True)]  # fmt: skip

        def inner(induction: str, values: list[str]) -> list[str]:
            e.names[body.args[depth]] = induction
            return nest(depth + 1, values)

        return loop(
            e, lowers[depth], uppers[depth], steps[depth], carried, [llvm_type(t) for t in types],
            inner, type=llvm_type(body.args[depth].type),
        )  # fmt: skip

    return nest(0, list(inits))


def _no_code(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """Terminators: the operation that they end reads their operands."""
    return ()


for _name, _row in OPS.items():
    if _row.terminator:
        RULES[_name] = _no_code
RULES["math.philox"] = random_word
RULES["arith.table"] = looked_up


# -- checks and prints


@rule("weft.assert")
def _assert(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    ok, *values = operands
    e.target.check(e, op, ok, values)
    return ()


@rule("weft.bounds")
def _bounds(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    subscript, extent = operands
    ty = llvm_type(op.left.type)
    ok = e.inst(f"icmp ult {ty} {subscript}, {extent}")  # extent >= 0: negative ones are huge
    e.target.check(e, op, ok, operands)
    return ()


@rule("weft.check_race")
def _check_race(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    check = CheckRace(op)
    view = e.views[check.memref]
    pointer = address(e, view, check.split(operands)[1])
    e.target.check_race(e, op, pointer, operands)
    return ()


@rule("weft.threads")
def _threads(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    e.declare(f"declare i64 @{AVAILABLE}()")
    return [e.inst(f"call i64 @{AVAILABLE}()")]


@rule("weft.rare")
def _rare(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    return ["true"]  # where nothing is left out (see ``threads.py``)


@rule("weft.chunks")
def _chunks(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    total, row, wished = operands
    e.declare(f"declare {{ i64, i64 }} @{CUT}(i64, i64, double)")
    pair = e.inst(f"call {{ i64, i64 }} @{CUT}(i64 {total}, i64 {row}, double {wished})")
    return [e.inst(f"extractvalue {{ i64, i64 }} {pair}, {k}") for k in range(2)]


@rule("weft.rows_follow")
def _rows_follow(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    trips, deeper, *_ = operands
    found = "true"
    for memref in RowsFollow(op).memrefs:
        view = e.views[memref]
        axis = view.type.rank - 1 - op.attrs["behind"]
        pair = (view.strides[axis - 1], deeper) if view.strides else (view.sizes[axis], trips)
        found = e.inst(f"and i1 {found}, {e.inst(f'icmp eq i64 {pair[0]}, {pair[1]}')}")
    return [found]


@rule("weft.to_line")
def _to_line(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view, (_, subscripts) = e.views[ToLine(op).memref], ToLine(op).split(operands)
    number = e.inst(f"ptrtoint ptr {address(e, view, subscripts)} to i64")
    ahead = e.inst(f"and i64 {e.inst(f'sub i64 0, {number}')}, {LINE - 1}")
    return [e.inst(f"lshr i64 {ahead}, {view.type.element.bytes.bit_length() - 1}")]


@rule("weft.prefetch")
def _prefetch(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view, (_, subscripts) = e.views[Prefetch(op).memref], Prefetch(op).split(operands)
    read, all_caches, data = (("i32", word) for word in ("0", "3", "1"))
    e.call_void("llvm.prefetch.p0", ("ptr", address(e, view, subscripts)), read, all_caches, data)
    return ()


@rule("weft.print")
def _print(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    e.target.print(e, op, operands)
    return ()
