"""An NVIDIA GPU as a target of the rule table: libdevice, checks and prints in a thread."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.codegen.arith import RULES, Rule, from_word, intrinsic, widen, word
from weft.codegen.emit import Emitter, View, llvm_type, memory_type
from weft.codegen.llvm import place
from weft.codegen.tables import MOST_WORDS, Reports
from weft.codegen.vectormath import FUNCTIONS
from weft.codegen.warp_sums import add_up, together
from weft.errors import KernelTypeError
from weft.ir.core import Function, Op
from weft.ir.types import ScalarType, f32, f64, i1
from weft.ir.views import memory, reported
from weft.schedule.grid import WARP, cluster

SHARED = "weft_private"  # memory of a block whose size the launch gives
ORDERING = 'syncscope("device") monotonic'


def _cuda(e: Emitter) -> CudaTarget:
    assert isinstance(e.target, CudaTarget)
    return e.target


def _call(name: str) -> Rule:
    """A rule that calls libdevice's ``name``, with an f behind it for float32."""

    def emit(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        return [_cuda(e).library_call(e, name, op.result.scalar, operands)]

    return emit


def _divided(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """A division whose divisor the call has as a reciprocal: see ``schedule.reciprocal``."""
    if "divisor" not in op.attrs:
        return RULES["arith.floordivsi"](e, op, operands)
    multiplier, shift = _cuda(e).reciprocals[op.attrs["divisor"]]
    odd = e.inst(f"or i32 {e.inst(f'shl nsw i32 {operands[0]}, 1')}, 1")
    # As LLVM IR it becomes a product of 64 by 64 bits: LLVM moves the extension out of loops.
    high = e.inst(f'call i32 asm "mul.hi.s32 $0, $1, $2;", "=r,r,r"(i32 {odd}, i32 {multiplier})')
    return [e.inst(f"ashr i32 {high}, {shift}")]


def _sreg(e: Emitter, name: str) -> str:
    """A special register, like ``tid.x``."""
    return e.intrinsic(f"llvm.nvvm.read.ptx.sreg.{name}", "i32")


def _in_block(e: Emitter) -> tuple[str, str]:
    """The number of the thread in its block, and how many there are."""
    ids = [_sreg(e, f"tid.{side}") for side in "xyz"]
    sizes = [_sreg(e, f"ntid.{side}") for side in "xyz"]
    number = ids[2]
    for side in (1, 0):
        scaled = e.inst(f"mul nuw nsw i32 {number}, {sizes[side]}")
        number = e.inst(f"add nuw nsw i32 {scaled}, {ids[side]}")
    count = e.inst(f"mul nuw nsw i32 {sizes[0]}, {sizes[1]}")
    return number, e.inst(f"mul nuw nsw i32 {count}, {sizes[2]}")


def _block_number(e: Emitter) -> str:
    """The number of the thread's block in the grid."""
    number = _sreg(e, "ctaid.z")
    for side in "yx":
        scaled = e.inst(f"mul i32 {number}, {_sreg(e, f'nctaid.{side}')}")
        number = e.inst(f"add i32 {scaled}, {_sreg(e, f'ctaid.{side}')}")
    return number


def _register(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    side, name = op.attrs["dimension"], op.name.removeprefix("gpu.")
    if (threads := _cuda(e).group) and side in ("x", "linear"):
        return [_in_cluster(e, name, threads)]
    if side != "linear":
        short = {"thread_id": "tid", "block_dim": "ntid", "block_id": "ctaid", "grid_dim": "nctaid"}
        return [_sreg(e, f"{short[name]}.{side}")]
    if name == "block_id":
        return [_block_number(e)]
    return [_in_block(e)[name == "block_dim"]]


def _in_cluster(e: Emitter, name: str, threads: int) -> str:
    """A register where blocks of so many threads, all of them along x, are as one."""
    if name in ("block_id", "grid_dim"):
        return _sreg(e, "clusterid.x" if name == "block_id" else "nclusterid.x")
    if name == "block_dim":
        return str(threads)
    size, place = threads // cluster(threads), _sreg(e, "cluster.ctarank")
    before = e.inst(f"mul nuw nsw i32 {place}, {size}")
    return e.inst(f"add nuw nsw i32 {before}, {_sreg(e, 'tid.x')}")


def _barrier(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    if 0 < (width := op.attrs["width"]) <= WARP:
        e.declare("declare void @llvm.nvvm.bar.warp.sync(i32)")
        e.line(f"call void @llvm.nvvm.bar.warp.sync(i32 {_mask(e, width)})")
    elif _cuda(e).group and not width:
        for half in ("arrive", "wait"):
            e.call_void(f"llvm.nvvm.barrier.cluster.{half}.aligned")
    else:
        # That it ends is said so that loads of what no thread writes leave loops with it.
        e.call_void("llvm.nvvm.barrier.cta.sync.aligned.all", ("i32", "0"), traits="willreturn")
    return ()


def _mask(e: Emitter, width: int) -> str:
    """The lanes of as many neighbours, the thread among them."""
    if width == WARP:
        return "-1"
    first = e.inst(f"and i32 {_in_block(e)[0]}, {WARP - width}")
    return e.inst(f"shl i32 {(1 << width) - 1}, {first}")


def _shuffle(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    value, place = operands
    return [_handed(e, value, op.result.scalar, place, op.attrs["mode"], op.attrs["width"])]


def _handed(e: Emitter, value: str, t: ScalarType, place: str, mode: str, width: int) -> str:
    """What another one of ``width`` neighbouring lanes has in place of ``value``."""
    mask = _mask(e, width)
    bits = word(e, value, t) if t.bits == 64 or t.bits < 32 else ""
    name = "bfly" if mode == "xor" else mode
    # Which bits of a lane's number are that of its neighbours, and its last place among these (its
    # first one on the way up).
    clamp = WARP - 1 if mode == "xor" else (WARP - width) << 8 | (WARP - 1) * (mode != "up")

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
    return from_word(e, e.inst(f"or i64 {upper}, {lower}"), t)


def _accumulated(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """An atomic operation. Where lanes add to one element, and a whole warp does so at once, it
    adds up what it has by shuffles, in a fixed order, and one lane adds that."""
    if "warp_aggregate" not in op.attrs:
        return RULES["memref.atomic_rmw"](e, op, operands)
    if op in _cuda(e).waiting:  # carried out with a later one
        return ["poison"]
    _, _, (value,) = e.access(op, operands)
    t = op.result.scalar
    ty = llvm_type(t)
    together, apart, one, done = labels = tuple(map(e.label, ("together", "apart", "one", "added")))
    convergent = e.module.attribute("convergent nounwind")
    lanes = e.inst(f'call i32 asm sideeffect "activemask.b32 $0;", "=r"() {convergent}')
    # Along x a warp's threads may be those of several rows.
    odd = e.inst(f"and i32 {_sreg(e, 'ntid.x')}, {WARP - 1}")
    rows = e.inst(f"icmp eq i32 {odd}, 0")
    whole = e.inst(f"and i1 {rows}, {e.inst(f'icmp eq i32 {lanes}, -1')}")
    if op in _cuda(e).together:
        lane = e.inst(f"and i32 {_sreg(e, 'tid.x')}, {WARP - 1}")
        every = _cuda(e).together[op]
        e.branch(whole, together, apart)
        add_up(e, every, labels, lane, lambda v, far: _handed(e, v, t, str(far), "xor", WARP))
        return ["poison"]
    e.branch(whole, together, apart)
    e.start(together)
    total, offset = value, WARP // 2
    while offset:
        other = _handed(e, total, t, str(offset), "xor", WARP)
        total, offset = e.inst(f"fadd {ty} {total}, {other}"), offset // 2
    lane = e.inst(f"and i32 {_sreg(e, 'tid.x')}, {WARP - 1}")
    e.branch(e.inst(f"icmp eq i32 {lane}, 0"), one, done)
    e.start(one)
    changed = [total if given == value else given for given in operands]
    RULES["memref.atomic_rmw"](e, op, changed)
    e.jump(done)
    e.start(apart)
    RULES["memref.atomic_rmw"](e, op, operands)
    e.jump(done)
    e.start(done)
    return ["poison"]  # nobody asks what was there


def _alloca(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """An array of a thread, or one that the threads of a block share."""
    type = op.result.memref
    if not type.space:
        return RULES["memref.alloca"](e, op, operands)
    if type.shape is None:  # as much as the launch gives
        name = SHARED
        e.declare(f"@{name} = external addrspace(3) global [0 x i8], align 16")
    else:
        near = type.shape[1:] if type.space == "cluster" else type.shape
        name = f"weft_{type.space}{len(e.module.declarations)}"
        array = f"[{math.prod(near)} x {memory_type(type.element)}]"
        e.declare(f"@{name} = internal addrspace(3) global {array} undef, align 16")
    pointer = e.inst(f"addrspacecast ptr addrspace(3) @{name} to ptr")
    sizes = [str(n) for n in type.shape] if type.shape is not None else operands
    strides = ["0", "1"] if type.space == "cluster" else []  # wherever the pointer is
    e.views[op.result] = View(pointer, type, sizes, strides, parallel=False)
    return [pointer]


def _store(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """A store; of what a load has given, where it says so, by a copy that goes on by itself."""
    load = memory(op)[2][0].op
    if "copies" not in op.attrs or load is None or load.name != "memref.load":
        return _in_blocks("memref.store")(e, op, operands)
    there, subscripts, _ = e.access(op, operands)
    into, _ = place(e, op, there, subscripts)
    view, subscripts, _ = e.access(load, [e.name(v) for v in load.operands])
    source, _ = place(e, load, view, subscripts)
    size = view.type.element.bytes
    far = e.inst(f"addrspacecast ptr {source} to ptr addrspace(1)")
    near = e.inst(f"addrspacecast ptr {into} to ptr addrspace(3)")
    e.call_void(f"llvm.nvvm.cp.async.ca.shared.global.{size}",
                ("ptr addrspace(3)", near), ("ptr addrspace(1)", far))  # fmt: skip
    return ()


def _copies_wait(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    e.call_void("llvm.nvvm.cp.async.wait.all", traits="willreturn")
    return ()


def _in_blocks(name: str) -> Rule:
    """The rule of a load or store that may be of what blocks of a cluster have: the row of each is
    in its own shared memory."""

    def emit(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        array = memory(op)[0]
        if array.memref.space != "cluster" or "near" in op.attrs:
            return RULES[name](e, op, operands)
        own, (_, (row, *_), _) = e.views[array], e.access(op, operands)
        far = e.intrinsic("llvm.nvvm.mapa", "ptr", ("ptr", own.pointer), ("i32", row))
        e.views[array] = View(far, own.type, own.sizes, own.strides, own.parallel)
        found = RULES[name](e, op, operands)
        e.views[array] = own
        return found

    return emit


class CudaTarget(Reports):
    """What the rules ask of a GPU. ``functions`` collects the names that libdevice has to give."""

    traps = scales = marks_streams = vectorises = False
    saturates = gathers = copies_loops = True
    constants = " addrspace(1)"  # lanes that read different elements of the constant memory wait
    rules: Mapping[str, Rule] = {
        "arith.floordivsi": _divided,
        "arith.remf": _call("fmod"),  # frem would be x - y * trunc(x / y), which is not exact
        "arith.maxnumf": intrinsic("maximumnum"),
        "arith.minnumf": intrinsic("minimumnum"),
        "math.rsqrt": _call("rsqrt"),
        "memref.alloca": _alloca,
        "memref.load": _in_blocks("memref.load"),
        "memref.store": _store,
        "memref.atomic_rmw": _accumulated,
        "gpu.barrier": _barrier,
        "gpu.copies_wait": _copies_wait,
        "gpu.shuffle": _shuffle,
        **{f"gpu.{name}": _register for name in ("thread_id", "block_id", "block_dim", "grid_dim")},
    }

    def __init__(self, functions: Iterable[Function]) -> None:
        every = list(functions)
        super().__init__(every)
        # Additions of a warp that are carried out together, by the last one, and all others.
        self.together = {op: ops for f in every for op, ops in together(f).items()}
        self.waiting = {op for ops in self.together.values() for op in ops[:-1]}
        self.functions: set[str] = set()
        self.reciprocals: list[tuple[str, str]] = []  # of divisors, by their numbers
        self.group = 0  # threads of a cluster, where its blocks are as one

    def poll(self, e: Emitter, op: Op) -> None:
        """Nothing stops a GPU."""

    def strip(self, e: Emitter, op: Op, upper: str, run: Any) -> None:
        """Loops run in one piece."""

    def check_race(self, e: Emitter, op: Op, pointer: str, operands: Sequence[str]) -> None:
        raise AssertionError("races are looked for on the CPU")

    def math_call(self, e: Emitter, function: str, t: ScalarType, operands: Sequence[str]) -> str:
        return self.library_call(e, FUNCTIONS[function][0], t, operands)

    def library_call(self, e: Emitter, name: str, t: ScalarType, operands: Sequence[str]) -> str:
        full = f"__nv_{name}{'f' if t is f32 else ''}"
        self.functions.add(full)
        ty = e.type(t)
        return e.intrinsic(full, ty, *((ty, operand) for operand in operands))

    def check(self, e: Emitter, op: Op, ok: str, operands: Sequence[str]) -> None:
        """The first thread that fails writes the record; each that fails leaves its iteration."""
        pairs = zip(reported(op), operands, strict=True)
        self.fail(e, op, ok, [(name, value.scalar) for value, name in pairs][:MOST_WORDS])

    def print(self, e: Emitter, op: Op, operands: Sequence[str]) -> None:
        """CUDA's printf: lines of the driver's buffer come out when the device is waited for."""
        number = op.attrs["number"]
        form, words = "", []
        remaining = iter(zip(op.operands, operands, strict=True))
        formats = op.attrs.get("formats") or [""] * len(operands)
        for part in op.attrs["parts"]:
            if part is not None:
                form += part.replace("%", "%%")
                continue
            unsigned = len(words) in op.attrs.get("unsigned", ())
            value, name = next(remaining)
            t = value.scalar
            if formats[len(words)]:
                directive, word_of = _directive(op, formats[len(words)], t, unsigned)
                form += directive
                words.append(word_of(e, name))
            elif t is i1:
                yes, no = (_text(e, f"weft_{w}", w) for w in ("True", "False"))
                form += "%s"
                words.append(("ptr", e.inst(f"select i1 {name}, ptr {yes}, ptr {no}")))
            elif t.is_float:
                form += "%.17g" if t is f64 else "%.9g"
                words.append(("double", widen(e, t, f64, name)))
            else:
                form += "%llu" if unsigned else "%lld"
                words.append(("i64", word(e, name, t)))
        block = e.fresh("words")
        e.allocas.append(f"{block} = alloca [{max(len(words), 1)} x i64], align 8")
        for k, (ty, name) in enumerate(words):
            place = e.inst(f"getelementptr i64, ptr {block}, i64 {k}")
            e.line(f"store {ty} {name}, ptr {place}, align 8")
        text = _text(e, f"weft_format{number}", form)
        e.intrinsic("vprintf", "i32", ("ptr", text), ("ptr", block))


_FORMAT = re.compile(r"(?: ?([<>]))?([+ -]?)(0?)([0-9]*)((?:\.[0-9]+)?)([a-zA-Z%]?)")


def _directive(
    op: Op, form: str, t: ScalarType, unsigned: bool
) -> tuple[str, Callable[[Emitter, str], tuple[str, str]]]:
    """C's directive for a format of Python, and what makes its word of the value."""
    found = _FORMAT.fullmatch(form)
    groups = found.groups("") if found is not None else ("",) * 6
    side, sign, zero, width, precision, kind = groups
    kind = kind or ("g" if t.is_float and not precision else "" if t.is_float else "d")
    whole = kind in "dxXo"
    if found is None or kind not in "dxXoeEfFgG%" or (
        not kind or (kind in "xXo" and not unsigned) or (whole and (t.is_float or precision))
        or (kind == "%" and width and side == "<")
    ):  # fmt: skip
        raise KernelTypeError(
            f"the format {form!r} on CUDA", op.span,
            help="there, formats are those of C: width, precision, `<`, `+`, `0`, and d, e, f, g "
            "or %; x and o are for unsigned integers",
        )  # fmt: skip
    if not groups[-1] and t.is_float:
        precision = ".17" if t is f64 else ".9"
    flags = ("-" if side == "<" else "") + sign.replace("-", "") + (zero if side != "<" else "")
    if whole:
        kind = f"ll{'u' if kind == 'd' and unsigned else kind}"
        return f"%{flags}{width}{kind}", lambda e, name: ("i64", word(e, name, t))
    percent = kind == "%"
    # C counts the width without the sign of percent behind.
    room = str(max(int(width) - 1, 0)) if percent and width else width
    directive = f"%{flags}{room}{precision}{'f' if percent else kind}{'%%' if percent else ''}"

    def number(e: Emitter, name: str) -> tuple[str, str]:
        if t.is_float:
            wide = widen(e, t, f64, name)
        else:
            instruction = "uitofp" if unsigned or t is i1 else "sitofp"
            wide = e.inst(f"{instruction} {e.type(t)} {name} to double")
        return "double", e.inst(f"fmul double {wide}, 100.0") if percent else wide

    return directive, number


def _text(e: Emitter, name: str, text: str) -> str:
    data = text.encode() + b"\0"
    body = "".join(f"\\{byte:02X}" for byte in data)
    e.declare(f'@{name} = internal constant [{len(data)} x i8] c"{body}"')
    return f"@{name}"
