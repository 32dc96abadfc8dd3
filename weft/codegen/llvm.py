"""The rule table: how each operation of the IR is written in LLVM IR.

A rule gets the emitter, the operation and its operands' LLVM names, and gives the results' names.
Rules of scalar operations ask the emitter for types, so they write scalar code or code on vectors
of lanes alike. Where LLVM leaves something undefined (division by zero, wide shifts, conversions
out of range), the rules give it a meaning, without branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.emit import INDEX_BITS, Emitter, View, literal, llvm_type, memory_type
from weft.ir.core import Block, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, ScalarType, bf16, f16, f32, f64, i1, i32, index

Rule = Callable[[Emitter, Op, list[str]], Sequence[str]]

RULES: dict[str, Rule] = {}


def emit_block(e: Emitter, block: Block) -> list[str]:
    """Emits a block's operations; gives the operands of its terminator."""
    for op in block.ops[:-1]:
        emit_op(e, op)
    return [e.name(v) for v in block.terminator.operands]


def emit_op(e: Emitter, op: Op) -> None:
    """Emits one operation and notes the names of its results."""
    operands = [e.name(v) for v in op.operands]
    results = RULES[op.name](e, op, operands)
    for value, name in zip(op.results, results, strict=True):
        if value not in e.constants and value not in e.views:
            e.names[value] = name
    note_range(e, op)


def scalar(value: Value) -> ScalarType:
    """The type of a value that is known to be a scalar."""
    assert isinstance(value.type, ScalarType)
    return value.type


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return add


# -- what is known of integers: enough to make `//` by positive numbers cheap


def note_range(e: Emitter, op: Op) -> None:
    """Notes an upper bound, in bits, of a result that cannot be negative."""
    if op.name == "arith.constant" and scalar(op.result).is_integer:
        value = int(op.attrs["value"])
        if value >= 0:
            e.bits[op.result] = value.bit_length()
        return
    if op.name == "memref.dim":
        e.bits[op.result] = INDEX_BITS
        return
    known = [e.bits.get(v) for v in op.operands]
    if not known or any(k is None for k in known):
        return
    first, *rest = [k for k in known if k is not None]
    bits = 64
    match op.name, rest:
        case "arith.addi", [second]:
            bits = max(first, second) + 1
        case "arith.muli", [second]:
            bits = first + second
        case ("arith.floordivsi" | "arith.remsi" | "arith.index_cast" | "arith.extsi"), _:
            bits = first
        case ("arith.minsi" | "arith.andi"), [second]:
            bits = min(first, second)
        case ("arith.maxsi" | "arith.ori" | "arith.xori"), [second]:
            bits = max(first, second)
    width = min(scalar(v).bits for v in op.results) if op.results else 0
    if bits < width:
        e.bits[op.result] = bits


# -- constants and integers


@rule("arith.constant")
def _constant(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    e.constants[op.result] = op.attrs["value"]
    return [""]


def _binary(instruction: str) -> Rule:
    def emit(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        a, b = operands
        return [e.inst(f"{instruction} {e.type(scalar(op.result))} {a}, {b}")]

    return emit


for _name, _instruction in {
    "addi": "add", "subi": "sub", "muli": "mul", "andi": "and", "ori": "or", "xori": "xor",
}.items():  # fmt: skip
    RULES[f"arith.{_name}"] = _binary(_instruction)


def _divisor(e: Emitter, op: Op, b: str) -> tuple[str, str | None]:
    """A divisor that is not zero, and the condition under which it was (None: never)."""
    constant = e.constants.get(op.operands[1])
    if constant is not None and constant != 0:
        return b, None
    t = scalar(op.result)
    zero = e.inst(f"icmp eq {e.type(t)} {b}, {e.literal(0, t)}")
    return _select(e, zero, t, e.literal(1, t), b), zero


def _select(e: Emitter, condition: str, t: ScalarType, a: str, b: str) -> str:
    return e.inst(f"select {e.type(i1)} {condition}, {e.type(t)} {a}, {e.type(t)} {b}")


def _or_zero(e: Emitter, t: ScalarType, zero: str | None, value: str) -> str:
    return value if zero is None else _select(e, zero, t, e.literal(0, t), value)


@rule("arith.floordivsi")
def _floordivsi(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    t = scalar(op.result)
    ty = e.type(t)
    constant = e.constants.get(op.operands[1])
    if t is i1:  # one bit, the sign: a // -1 wraps to a
        return [e.inst(f"and {ty} {a}, {b}")]
    if isinstance(constant, int) and constant > 0 and constant & (constant - 1) == 0:
        return [e.inst(f"ashr {ty} {a}, {e.literal(constant.bit_length() - 1, t)}")]
    b, zero = _divisor(e, op, b)
    if op.operands[0] in e.bits and op.operands[1] in e.bits:
        return [_or_zero(e, t, zero, e.inst(f"udiv {ty} {a}, {b}"))]
    minus_one = None
    if constant is None:  # the smallest integer // -1 traps: divide by 1 and negate (it wraps)
        minus_one = e.inst(f"icmp eq {ty} {b}, {e.literal(-1, t)}")
        b = _select(e, minus_one, t, e.literal(1, t), b)
    elif constant == -1:
        return [e.inst(f"sub {ty} {e.literal(0, t)}, {a}")]
    q = e.inst(f"sdiv {ty} {a}, {b}")
    r = e.inst(f"sub {ty} {a}, {e.inst(f'mul {ty} {q}, {b}')}")
    inexact = e.inst(f"icmp ne {ty} {r}, {e.literal(0, t)}")
    signs = e.inst(f"icmp slt {ty} {e.inst(f'xor {ty} {r}, {b}')}, {e.literal(0, t)}")
    down = e.inst(f"and {e.type(i1)} {inexact}, {signs}")
    q = e.inst(f"add {ty} {q}, {e.inst(f'sext {e.type(i1)} {down} to {ty}')}")
    if minus_one is not None:
        q = _select(e, minus_one, t, e.inst(f"sub {ty} {e.literal(0, t)}, {a}"), q)
    return [_or_zero(e, t, zero, q)]


@rule("arith.divui", "arith.remui")
def _unsigned_division(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    t = scalar(op.result)
    b, zero = _divisor(e, op, b)
    instruction = "udiv" if op.name == "arith.divui" else "urem"
    return [_or_zero(e, t, zero, e.inst(f"{instruction} {e.type(t)} {a}, {b}"))]


@rule("arith.remsi")
def _remsi(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    t = scalar(op.result)
    ty = e.type(t)
    if t is i1:
        return [e.literal(False, t)]
    b, zero = _divisor(e, op, b)
    if op.operands[0] in e.bits and op.operands[1] in e.bits:
        return [_or_zero(e, t, zero, e.inst(f"urem {ty} {a}, {b}"))]
    if op.operands[1] not in e.constants or e.constants[op.operands[1]] == -1:
        minus_one = e.inst(f"icmp eq {ty} {b}, {e.literal(-1, t)}")
        b = _select(e, minus_one, t, e.literal(1, t), b)  # the remainder by -1 is 0, as by 1
    return [_or_zero(e, t, zero, e.inst(f"srem {ty} {a}, {b}"))]


@rule("arith.shli", "arith.shrui", "arith.shrsi")
def _shift(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    t = scalar(op.result)
    ty = e.type(t)
    if t is i1:  # LLVM has no shift of one bit by one
        return [a if op.name == "arith.shrsi" else
                e.inst(f"and {ty} {a}, {e.inst(f'xor {ty} {b}, {e.literal(1, t)}')}")]  # fmt: skip
    constant = e.constants.get(op.operands[1])
    known = isinstance(constant, int) and 0 <= constant < t.bits
    if op.name == "arith.shrsi":
        if not known:
            last = e.literal(t.bits - 1, t)
            b = e.intrinsic(f"llvm.umin.{e.suffix(t)}", ty, (ty, b), (ty, last))
        return [e.inst(f"ashr {ty} {a}, {b}")]
    instruction = "shl" if op.name == "arith.shli" else "lshr"
    if known:
        return [e.inst(f"{instruction} {ty} {a}, {b}")]
    fits = e.inst(f"icmp ult {ty} {b}, {e.literal(t.bits, t)}")
    shifted = e.inst(f"{instruction} {ty} {a}, {b}")
    return [_select(e, fits, t, shifted, e.literal(0, t))]


def _intrinsic(name: str, extra: str = "", *, fast: bool = False) -> Rule:
    """A rule that calls ``llvm.<name>.<type>``."""

    def emit(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        t = scalar(op.operands[0])
        pairs = [(e.type(t), operand) for operand in operands]
        if extra:
            pairs.append(("i1", extra))
        full = f"llvm.{name}.{e.suffix(t)}"
        return [e.intrinsic(full, e.type(t), *pairs, flags=e.fast if fast else "")]

    return emit


for _name, _full in {"minsi": "smin", "maxsi": "smax", "minui": "umin", "maxui": "umax"}.items():
    RULES[f"arith.{_name}"] = _intrinsic(_full)
RULES["math.absi"] = _intrinsic("abs", "false")
RULES["math.ctpop"] = _intrinsic("ctpop")


@rule("arith.cmpi")
def _cmpi(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    return [e.inst(f"icmp {op.attrs['predicate']} {e.type(scalar(op.operands[0]))} {a}, {b}")]


@rule("arith.select")
def _select_rule(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    condition, a, b = operands
    t = scalar(op.result)
    ty = e.type(t)
    flags = e.fast if t in (f32, f64) else ""
    return [e.inst(f"select {flags}{e.type(i1)} {condition}, {ty} {a}, {ty} {b}")]


# -- floats


def _float_binary(instruction: str) -> Rule:
    def emit(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        a, b = operands
        # Sums may be reordered, products and quotients may not: they could overflow on the way.
        flags = e.sums if instruction in ("fadd", "fsub") else e.fast
        return [e.inst(f"{instruction} {flags}{e.type(scalar(op.result))} {a}, {b}")]

    return emit


for _name in ("add", "sub", "mul", "div", "rem"):
    RULES[f"arith.{_name}f"] = _float_binary(f"f{_name}")
RULES["arith.maximumf"] = _intrinsic("maximum", fast=True)
RULES["arith.minimumf"] = _intrinsic("minimum", fast=True)
for _name, _full in {
    "absf": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "roundeven": "roundeven", "copysign": "copysign", "fma": "fma",
}.items():  # fmt: skip
    RULES[f"math.{_name}"] = _intrinsic(_full)


@rule("arith.negf")
def _negf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    return [e.inst(f"fneg {e.fast}{e.type(scalar(op.result))} {operands[0]}")]


@rule("arith.cmpf")
def _cmpf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    return [e.inst(f"fcmp {op.attrs['predicate']} {e.type(scalar(op.operands[0]))} {a}, {b}")]


@rule("math.isnan")
def _isnan(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a = operands[0]
    return [e.inst(f"fcmp uno {e.type(scalar(op.operands[0]))} {a}, {a}")]


@rule("math.isinf")
def _isinf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    t = scalar(op.operands[0])
    magnitude = e.intrinsic(f"llvm.fabs.{e.suffix(t)}", e.type(t), (e.type(t), operands[0]))
    return [e.inst(f"fcmp oeq {e.type(t)} {magnitude}, {e.literal(float('inf'), t)}")]


@rule("math.rsqrt")
def _rsqrt(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    t = scalar(op.result)
    root = e.intrinsic(f"llvm.sqrt.{e.suffix(t)}", e.type(t), (e.type(t), operands[0]))
    return [e.inst(f"fdiv {e.type(t)} {e.literal(1.0, t)}, {root}")]


@rule(
    "math.exp", "math.exp2", "math.expm1", "math.log", "math.log2", "math.log10", "math.log1p",
    "math.sin", "math.cos", "math.tan", "math.asin", "math.acos", "math.atan", "math.sinh",
    "math.cosh", "math.tanh", "math.asinh", "math.acosh", "math.atanh", "math.erf", "math.erfc",
    "math.cbrt", "math.powf", "math.atan2",
)  # fmt: skip
def _math(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    function = op.name.removeprefix("math.")
    return [e.target.math_call(e, function, scalar(op.result), operands)]


# -- conversions


@rule("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
def _integer_cast(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    source, target = scalar(op.operands[0]), scalar(op.result)
    if source.bits == target.bits:
        return operands
    if source.bits > target.bits:
        instruction = "trunc"
    else:
        instruction = "zext" if op.name == "arith.extui" else "sext"
    return [e.inst(f"{instruction} {e.type(source)} {operands[0]} to {e.type(target)}")]


@rule("arith.sitofp", "arith.uitofp")
def _int_to_float(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    source, target = scalar(op.operands[0]), scalar(op.result)
    instruction = op.name.removeprefix("arith.")
    return [e.inst(f"{instruction} {e.type(source)} {operands[0]} to {e.type(target)}")]


@rule("arith.fptosi", "arith.fptoui")
def _float_to_int(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    source, target = scalar(op.operands[0]), scalar(op.result)
    name = f"llvm.{op.name.removeprefix('arith.')}.sat.{e.suffix(target)}.{e.suffix(source)}"
    return [e.intrinsic(name, e.type(target), (e.type(source), operands[0]))]


@rule("arith.extf")
def _extf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    return [widen(e, scalar(op.operands[0]), scalar(op.result), operands[0])]


@rule("arith.truncf")
def _truncf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    return [narrow(e, scalar(op.operands[0]), scalar(op.result), operands[0])]


def widen(e: Emitter, source: ScalarType, target: ScalarType, value: str) -> str:
    """A float as a wider one."""
    if source is target:
        return value
    if source is bf16:
        wide = e.inst(f"zext {e.type(source)} {value} to {e.type(i32)}")
        high = e.inst(f"shl {e.type(i32)} {wide}, {e.literal(16, i32)}")
        value = e.inst(f"bitcast {e.type(i32)} {high} to {e.type(f32)}")
        return widen(e, f32, target, value)
    if source is f16 and target is f64:
        return widen(e, f32, target, widen(e, f16, f32, value))
    return e.inst(f"fpext {e.type(source)} {value} to {e.type(target)}")


def narrow(e: Emitter, source: ScalarType, target: ScalarType, value: str) -> str:
    """A float as a narrower one, to nearest even. From f64 to 16 bits it goes through f32, as
    torch does."""
    if source is target:
        return value
    if source is f64 and target in (f16, bf16):
        return narrow(e, f32, target, narrow(e, f64, f32, value))
    if target is bf16:
        return _narrow_to_bf16(e, value)
    return e.inst(f"fptrunc {e.type(source)} {value} to {e.type(target)}")


def _narrow_to_bf16(e: Emitter, value: str) -> str:
    ty, half = e.type(i32), e.type(bf16)
    bits = e.inst(f"bitcast {e.type(f32)} {value} to {ty}")
    odd = e.inst(f"and {ty} {e.inst(f'lshr {ty} {bits}, {e.literal(16, i32)}')}, {e.literal(1, i32)}")
    sum = e.inst(f"add {ty} {bits}, {e.inst(f'add {ty} {odd}, {e.literal(0x7FFF, i32)}')}")
    quiet = e.inst(f"or {ty} {bits}, {e.literal(0x400000, i32)}")  # a NaN must stay one
    nan = e.inst(f"fcmp uno {e.type(f32)} {value}, {value}")
    chosen = _select(e, nan, i32, quiet, sum)
    high = e.inst(f"lshr {ty} {chosen}, {e.literal(16, i32)}")
    return e.inst(f"trunc {ty} {high} to {half}")


@rule("arith.bitcast")
def _bitcast(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    source, target = e.type(scalar(op.operands[0])), e.type(scalar(op.result))
    return operands if source == target else [e.inst(f"bitcast {source} {operands[0]} to {target}")]


# -- memory


def address(e: Emitter, view: View, indices: Sequence[str]) -> str:
    """The address of an element. Subscripts in range cannot wrap, so LLVM may assume it."""
    rank = len(indices)
    if rank == 0:
        return view.pointer
    if view.strides:
        terms = [index if stride == "1" else e.inst(f"mul nsw i64 {index}, {stride}")
                 for index, stride in zip(indices, view.strides, strict=True)]  # fmt: skip
        offset = terms[0]
        for term in terms[1:]:
            offset = e.inst(f"add nsw i64 {offset}, {term}")
    else:
        offset = indices[0]
        for axis in range(1, rank):
            scaled = e.inst(f"mul nsw i64 {offset}, {view.sizes[axis]}")
            offset = e.inst(f"add nsw i64 {scaled}, {indices[axis]}")
    element = memory_type(view.type.element)
    return e.inst(f"getelementptr inbounds {element}, ptr {view.pointer}, i64 {offset}")


def access_tail(e: Emitter, view: View) -> str:
    """Alignment and metadata of a load or store."""
    tail = f", align {view.type.element.bytes}"
    if e.groups and view.parallel:
        tail += f", !llvm.access.group {e.groups[-1]}"
    return tail


def load(e: Emitter, view: View, pointer: str) -> str:
    element = view.type.element
    tail = access_tail(e, view)
    value = e.inst(f"load {memory_type(element)}, ptr {pointer}{tail}")
    return e.inst(f"icmp ne i8 {value}, 0") if element is i1 else value


def store(e: Emitter, view: View, pointer: str, value: str) -> None:
    element = view.type.element
    if element is i1:
        value = e.inst(f"zext i1 {value} to i8")
    e.line(f"store {memory_type(element)} {value}, ptr {pointer}{access_tail(e, view)}")


@rule("memref.load")
def _load(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view = e.views[op.operands[0]]
    return [load(e, view, address(e, view, operands[1:]))]


@rule("memref.store")
def _store(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view = e.views[op.operands[1]]
    store(e, view, address(e, view, operands[2:]), operands[0])
    return ()


@rule("memref.dim")
def _dim(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    return [e.views[op.operands[0]].sizes[op.attrs["axis"]]]


@rule("memref.alloca")
def _alloca(e: Emitter, op: Op, _: list[str]) -> Sequence[str]:
    type = op.result.type
    assert isinstance(type, MemRefType) and type.shape is not None
    count = 1
    for extent in type.shape:
        count *= extent
    pointer = e.fresh("local")
    element = memory_type(type.element)
    e.allocas.append(f"{pointer} = alloca [{count} x {element}], align 64")
    e.views[op.result] = View(pointer, type, [str(n) for n in type.shape], [], parallel=False)
    return [pointer]


# LLVM's atomicrmw operations that exist for a combiner. The others loop around a cmpxchg.
_INTEGER_ATOMICS = {
    "addi": "add", "maxsi": "max", "minsi": "min", "maxui": "umax", "minui": "umin",
    "andi": "and", "ori": "or", "xori": "xor",
}  # fmt: skip
_FLOAT_ATOMICS = {"addf": "fadd"}


@rule("memref.atomic_rmw")
def _atomic_rmw(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view = e.views[op.operands[1]]
    element = view.type.element
    pointer = address(e, view, operands[2:])
    kind, value, value_type = op.attrs["kind"], operands[0], scalar(op.operands[0])
    if not op.attrs["atomic"]:
        old = widen_element(e, element, value_type, load(e, view, pointer))
        new = combine(e, kind, value_type, old, value)
        store(e, view, pointer, narrow_element(e, value_type, element, new))
        return [old]
    native = _FLOAT_ATOMICS if element.is_float else _INTEGER_ATOMICS
    if kind in native and element not in (f16, bf16, i1):
        ty, align = memory_type(element), element.bytes
        return [e.inst(f"atomicrmw {native[kind]} ptr {pointer}, {ty} {value} monotonic, align {align}")]
    return [_cmpxchg_loop(e, view, pointer, kind, value, value_type)]


def _cmpxchg_loop(
    e: Emitter, view: View, pointer: str, kind: str, value: str, value_type: ScalarType
) -> str:
    """Combines by reading, combining and exchanging until nobody came between."""
    element = view.type.element
    bits = f"i{element.bytes * 8}"
    plain = memory_type(element)
    before = e.block
    first = e.inst(f"load atomic {bits}, ptr {pointer} monotonic, align {element.bytes}")
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
    pair = e.inst(f"cmpxchg ptr {pointer}, {ty} {expected}, {ty} {new} monotonic monotonic")
    kind = f"{{ {ty}, i1 }}"
    return e.inst(f"extractvalue {kind} {pair}, 0"), e.inst(f"extractvalue {kind} {pair}, 1")


@rule("memref.atomic_cas")
def _atomic_cas(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    view = e.views[op.operands[2]]
    element = view.type.element
    pointer = address(e, view, operands[3:])
    bits, plain = f"i{element.bytes * 8}", memory_type(element)
    words = []
    for value, operand in zip(operands[:2], op.operands[:2], strict=True):
        word = narrow_element(e, scalar(operand), element, value)
        if element is i1:
            word = e.inst(f"zext i1 {word} to i8")
        words.append(word if plain == bits else e.inst(f"bitcast {plain} {word} to {bits}"))
    found, _ = _cmpxchg(e, pointer, bits, words[0], words[1])
    if plain != bits:
        found = e.inst(f"bitcast {bits} {found} to {plain}")
    if element is i1:
        found = e.inst(f"icmp ne i8 {found}, 0")
    return [widen_element(e, element, scalar(op.result), found)]


def widen_element(e: Emitter, element: ScalarType, target: ScalarType, value: str) -> str:
    return widen(e, element, target, value) if element.is_float else value


def narrow_element(e: Emitter, source: ScalarType, element: ScalarType, value: str) -> str:
    return narrow(e, source, element, value) if element.is_float else value


def combine(e: Emitter, kind: str, t: ScalarType, a: str, b: str) -> str:
    """a combined with b by the arith operation ``kind``."""
    op = Op(f"arith.{kind}", [Value(t), Value(t)], [t])
    (result,) = RULES[op.name](e, op, [a, b])
    return result


def identity(kind: str, t: ScalarType) -> bool | int | float:
    """The value that ``kind`` combines with anything to that thing."""
    ones = (1 << t.bits) - 1
    return {
        "addf": 0.0, "mulf": 1.0, "maximumf": float("-inf"), "minimumf": float("inf"),
        "addi": 0, "muli": 1, "andi": ones, "ori": 0, "xori": 0, "maxui": 0, "minui": ones,
        "maxsi": -(1 << (t.bits - 1)), "minsi": ones >> 1,
    }[kind]  # fmt: skip


# -- control flow


@rule("scf.for")
def _for(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    lower, upper, step, *inits = operands
    body = op.regions[0]
    if op.operands[0] in e.bits:
        e.bits[body.args[0]] = INDEX_BITS
    return loop(
        e, lower, upper, step, inits, [llvm_type(v.type) for v in op.results],
        lambda induction, carried: _loop_body(e, body, [induction, *carried]),
    )  # fmt: skip


def _loop_body(e: Emitter, body: Block, names: Sequence[str]) -> list[str]:
    for value, name in zip(body.args, names, strict=True):
        e.names[value] = name
    return emit_block(e, body)


def loop(
    e: Emitter,
    lower: str,
    upper: str,
    step: str,
    inits: Sequence[str],
    types: Sequence[str],
    body: Callable[[str, list[str]], Sequence[str]],
    *,
    metadata: str = "",
) -> list[str]:
    """``for i in range(lower, upper, step)`` with carried values of LLVM types ``types``; gives the
    last ones."""
    head, inside, out = e.label("for"), e.label("body"), e.label("end")
    before = e.block
    e.jump(head)
    e.start(head)
    induction, slot = e.phi("i64")
    phis = [e.phi(t) for t in types]
    e.branch(e.inst(f"icmp slt i64 {induction}, {upper}"), inside, out)
    e.start(inside)
    nexts = body(induction, [name for name, _ in phis])
    after = e.inst(f"add nsw i64 {induction}, {step}")
    e.fill(slot, (lower, before), (after, e.block))
    for (_, place), init, following in zip(phis, inits, nexts, strict=True):
        e.fill(place, (init, before), (following, e.block))
    e.line(f"br label %{head}" + (f", !llvm.loop {metadata}" if metadata else ""))
    e.start(out)
    return [name for name, _ in phis]


@rule("scf.if")
def _if(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    yes, no, out = e.label("then"), e.label("else"), e.label("join")
    e.branch(operands[0], yes, no)
    arms: list[tuple[list[str], str]] = []
    for label, region in zip((yes, no), op.regions, strict=True):
        e.start(label)
        values = emit_block(e, region)
        arms.append((values, e.block))
        e.jump(out)
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
    for value, (name, _) in zip(before.args, phis, strict=True):
        e.names[value] = name
    condition, *handed = emit_block(e, before)
    e.branch(condition, inside, out)
    e.start(inside)
    for value, name in zip(after.args, handed, strict=True):
        e.names[value] = name
    nexts = emit_block(e, after)
    for (_, slot), init, following in zip(phis, operands, nexts, strict=True):
        e.fill(slot, (init, entry), (following, e.block))
    e.jump(head)
    e.start(out)
    return handed


@rule("scf.parallel")
def _parallel(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """A parallel loop that is not the kernel's outermost: loops, one in the other."""
    dims = op.attrs["dims"]
    lowers, uppers, steps = (operands[k * dims : (k + 1) * dims] for k in range(3))
    types = [scalar(v) for v in op.results]
    body = op.regions[0]

    def nest(depth: int, carried: list[str]) -> list[str]:
        if depth == dims:
            parts = emit_block(e, body)
            return [combine(e, kind, t, a, b) for kind, t, a, b
                    in zip(op.attrs["kinds"], types, carried, parts, strict=True)]  # fmt: skip

        def inner(induction: str, values: list[str]) -> list[str]:
            e.names[body.args[depth]] = induction
            return nest(depth + 1, values)

        return loop(e, lowers[depth], uppers[depth], steps[depth], carried, [llvm_type(t) for t in types], inner)

    return nest(0, operands[3 * dims :])


def _no_code(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """Terminators: the operation that they end reads their operands."""
    return ()


for _name, _row in OPS.items():
    if _row.terminator:
        RULES[_name] = _no_code


# -- checks and prints


@rule("weft.assert")
def _assert(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    e.target.check(e, op, operands[0], operands[1:])
    return ()


@rule("weft.bounds")
def _bounds(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    subscript, extent = operands
    ok = e.inst(f"icmp ult i64 {subscript}, {extent}")  # extent >= 0: negative ones are huge
    e.target.check(e, op, ok, operands)
    return ()


@rule("weft.print")
def _print(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    e.target.print(e, op, operands)
    return ()


def word(e: Emitter, value: str, t: ScalarType) -> str:
    """A scalar as a 64-bit word: integers sign-extended (a bool is 0 or 1), floats as a double."""
    if t.is_float:
        wide = widen(e, t, f64, value)
        return e.inst(f"bitcast double {wide} to i64")
    if t.bits == 64:
        return value
    return e.inst(f"{'zext' if t is i1 else 'sext'} {llvm_type(t)} {value} to i64")


def from_word(e: Emitter, value: str, t: ScalarType) -> str:
    """The inverse of ``word``."""
    if t.is_float:
        wide = e.inst(f"bitcast i64 {value} to double")
        return narrow(e, f64, t, wide)
    if t.bits == 64:
        return value
    return e.inst(f"trunc i64 {value} to {llvm_type(t)}")


__all__ = [
    "RULES", "Rule", "address", "combine", "emit_block", "emit_op", "from_word", "identity",
    "index", "literal", "loop", "scalar", "word",
]  # fmt: skip
