"""The scalar part of the rule table: arithmetic, mathematics, conversions.

Rules ask the emitter for types, so they write scalar code or code on vectors of lanes alike. Where
LLVM leaves something undefined (division by zero, wide shifts), they give it a meaning, without
branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

from weft.codegen.emit import INDEX_BITS, Emitter, llvm_type
from weft.ir import float8
from weft.ir.core import Op, Value
from weft.ir.types import ScalarType, bf16, f8e5m2, f16, f32, f64, i1, i16, i32
from weft.ir.views import For, constant_of, made_by

Rule = Callable[[Emitter, Op, list[str]], Sequence[str]]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return add


# -- what is known of integers: enough to make `//` by positive numbers cheap


def note_range(e: Emitter, op: Op) -> None:
    """Notes an upper bound, in bits, of a result that cannot be negative."""
    if op.name == "arith.constant" and op.result.scalar.is_integer:
        value = int(op.attrs["value"])
        if value >= 0:
            e.bits[op.result] = value.bit_length()
        return
    if op.name == "memref.dim":
        e.bits[op.result] = INDEX_BITS
        return
    if op.name == "arith.table" and op.result.scalar.is_integer and min(op.attrs["values"]) >= 0:
        e.bits[op.result] = max(op.attrs["values"]).bit_length()
        return
    known = [e.bits.get(v) for v in op.operands]
    if not known or any(k is None for k in known):
        return
    first, *rest = [k for k in known if k is not None]
    match op.name, rest:
        case "arith.addi", [second]:
            bits = max(first, second) + 1
        case "arith.muli", [second]:
            bits = first + second
        case (("arith.floordivsi" | "arith.remsi" | "arith.index_cast" | "arith.extsi"), _):
            bits = first
        case (("arith.minsi" | "arith.andi"), [second]):
            bits = min(first, second)
        case (("arith.maxsi" | "arith.ori" | "arith.xori"), [second]):
            bits = max(first, second)
        case _:
            return
    width = min(v.scalar.bits for v in op.results) if op.results else 0
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
        flags = f" {op.attrs['overflow']}" if "overflow" in op.attrs else ""
        return [e.inst(f"{instruction}{flags} {e.type(op.result.scalar)} {a}, {b}")]

    return emit


for _name, _instruction in {
    "addi": "add", "subi": "sub", "muli": "mul", "andi": "and", "ori": "or", "xori": "xor",
}.items():  # fmt: skip
    RULES[f"arith.{_name}"] = _binary(_instruction)


def _divisor(e: Emitter, op: Op, b: str) -> tuple[str, str | None]:
    """A divisor that is not zero, and the condition under which it was (None: never). It is frozen:
    LLVM takes ``c << n`` for a number other than zero, whatever n is, and divides in all lanes."""
    constant = e.constants.get(op.right)
    if constant or "nonzero" in op.attrs or "positive" in op.attrs:
        return b, None
    t = op.result.scalar
    if e.target.traps:
        b = e.inst(f"freeze {e.type(t)} {b}")
    zero = e.inst(f"icmp eq {e.type(t)} {b}, {e.literal(0, t)}")
    return _select(e, zero, t, e.literal(1, t), b), zero


def _select(e: Emitter, condition: str, t: ScalarType, a: str, b: str) -> str:
    return e.inst(f"select {e.type(i1)} {condition}, {e.type(t)} {a}, {e.type(t)} {b}")


def _or_zero(e: Emitter, t: ScalarType, zero: str | None, value: str) -> str:
    return value if zero is None else _select(e, zero, t, e.literal(0, t), value)


@rule("arith.floordivsi")
def _floordivsi(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    t = op.result.scalar
    ty = e.type(t)
    constant = e.constants.get(op.right)
    if t is i1:  # one bit, the sign: a // -1 wraps to a
        return [e.inst(f"and {ty} {a}, {b}")]
    if isinstance(constant, int) and constant > 0 and constant & (constant - 1) == 0:
        return [e.inst(f"ashr {ty} {a}, {e.literal(constant.bit_length() - 1, t)}")]
    b, zero = _divisor(e, op, b)
    if op.left in e.bits and op.right in e.bits:
        return [_or_zero(e, t, zero, e.inst(f"udiv {ty} {a}, {b}"))]
    if "positive" in op.attrs:  # the divisor
        q = e.inst(f"sdiv {ty} {a}, {b}")
        r = e.inst(f"sub {ty} {a}, {e.inst(f'mul {ty} {q}, {b}')}")
        down = e.inst(f"ashr {ty} {r}, {t.bits - 1}")
        return [e.inst(f"add {ty} {q}, {down}")]
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
    t = op.result.scalar
    b, zero = _divisor(e, op, b)
    instruction = "udiv" if op.name == "arith.divui" else "urem"
    return [_or_zero(e, t, zero, e.inst(f"{instruction} {e.type(t)} {a}, {b}"))]


@rule("arith.remsi")
def _remsi(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    t = op.result.scalar
    ty = e.type(t)
    if t is i1:
        return [e.literal(False, t)]
    b, zero = _divisor(e, op, b)
    if op.left in e.bits and op.right in e.bits:
        return [_or_zero(e, t, zero, e.inst(f"urem {ty} {a}, {b}"))]
    if e.constants.get(op.right, -1) == -1:
        minus_one = e.inst(f"icmp eq {ty} {b}, {e.literal(-1, t)}")
        b = _select(e, minus_one, t, e.literal(1, t), b)  # the remainder by -1 is 0, as by 1
    return [_or_zero(e, t, zero, e.inst(f"srem {ty} {a}, {b}"))]


@rule("arith.shli", "arith.shrui", "arith.shrsi")
def _shift(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    t = op.result.scalar
    ty = e.type(t)
    if t is i1:  # LLVM has no shift of one bit by one
        return [a if op.name == "arith.shrsi" else
                e.inst(f"and {ty} {a}, {e.inst(f'xor {ty} {b}, {e.literal(1, t)}')}")]  # fmt: skip
    constant = e.constants.get(op.right)
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


def intrinsic(name: str, extra: str = "", *, fast: bool = False, zeros: bool = True) -> Rule:
    """A rule that calls ``llvm.<name>.<type>``. ``fast``: contraction is allowed; without ``zeros``
    the sign of a zero is open then, too."""

    def emit(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        t = op.left.scalar
        pairs = [(e.type(t), operand) for operand in operands]
        if extra:
            pairs.append(("i1", extra))
        full = f"llvm.{name}.{e.suffix(t)}"
        flags = e.fast if fast else ""
        if flags and not zeros:
            flags += "nsz "
        return [e.intrinsic(full, e.type(t), *pairs, flags=flags)]

    return emit


for _name, _full in {"minsi": "smin", "maxsi": "smax", "minui": "umin", "maxui": "umax"}.items():
    RULES[f"arith.{_name}"] = intrinsic(_full)
RULES["math.absi"] = intrinsic("abs", "false")
RULES["math.ctpop"] = intrinsic("ctpop")


def _number(name: str) -> Rule:
    """``llvm.maximumnum`` and ``minimumnum``. With AVX-512 LLVM 22 gives NaN where it knows that
    one operand is a number and the other is NaN: where it may know that, the first is chosen.

    A running extremum is a number, and the sign of its zero is free: NaN is no candidate, which is
    asked beside the chain of turns, and each turn is one instruction, sums across lanes a tree."""
    lowest = -math.inf if name == "maximumnum" else math.inf

    def emit(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        t = op.left.scalar
        if op.left in e.running:
            e.running.add(op.result)
            ty, (carried, x) = e.type(t), operands
            suffix = e.suffix(t)
            no_nan = (ty, x), (ty, e.literal(lowest, t))
            candidate = e.intrinsic(f"llvm.{name}.{suffix}", ty, *no_nan)
            function = f"llvm.{name.replace('imum', '')}.{suffix}"
            pairs = (ty, carried), (ty, candidate)
            return [e.intrinsic(function, ty, *pairs, flags="nnan nsz ")]
        (found,) = intrinsic(name)(e, op, operands)
        for known, (value, other) in zip(op.operands, (operands, operands[::-1]), strict=True):
            if known.op is not None and known.op.name not in ("memref.load", "arith.constant"):
                unordered = e.inst(f"fcmp uno {e.type(t)} {other}, {other}")
                found = _select(e, unordered, t, value, found)
        return [found]

    return emit


def note_extrema(e: Emitter, loop: Op) -> None:
    """Notes which values that ``loop`` carries are running extrema: they begin as a number, and
    each turn's is the extremum of the last one's and others."""
    if not e.fast:  # the order of turns decides which zero is kept
        return
    for carried, init, following, last in For(loop).rows:
        name = "" if following.op is None else following.op.name
        if name in ("arith.maxnumf", "arith.minnumf") and _is_number(e, init):
            value = following
            while value.op is not None and value.op.name == name:
                value = value.op.left
            if value is carried:
                e.running |= {carried, last}


def _is_number(e: Emitter, value: Value) -> bool:
    known = constant_of(value)
    return value in e.running or (known is not None and not math.isnan(known))


@rule("arith.cmpi", "arith.cmpf")
def _compare(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a, b = operands
    instruction = "icmp" if op.name == "arith.cmpi" else "fcmp"
    return [e.inst(f"{instruction} {op.attrs['predicate']} {e.type(op.left.scalar)} {a}, {b}")]


@rule("arith.select")
def _select_rule(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    condition, a, b = operands
    t = op.result.scalar
    ty = e.type(t)
    flags = e.fast if t in (f32, f64) else ""
    return [e.inst(f"select {flags}{e.type(i1)} {condition}, {ty} {a}, {ty} {b}")]


# -- floats


def _cancels(op: Op) -> bool:
    """Whether ``op`` takes a value from itself: ``p - p``, ``p + -p``."""
    if op.name == "arith.subf":
        return op.left is op.right
    if op.name != "arith.addf":
        return False
    pairs = ((op.left, op.right), (op.right, op.left))
    return any((by := made_by(a, "arith.negf")) and by.operand is b for a, b in pairs)


def _float_binary(instruction: str) -> Rule:
    def emit(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        a, b = operands
        # Sums of many terms may be reordered; products may not: they could overflow on the way.
        any_order = "reassociate" in op.attrs
        flags = e.reordered if any_order else e.fast
        if _cancels(op):  # 0 where a product is finite; contracted it would be what rounding left
            flags = ""
        return [e.inst(f"{instruction} {flags}{e.type(op.result.scalar)} {a}, {b}")]

    return emit


for _name in ("add", "sub", "mul", "div", "rem"):
    RULES[f"arith.{_name}f"] = _float_binary(f"f{_name}")
RULES["arith.maxnumf"] = _number("maximumnum")
RULES["arith.minnumf"] = _number("minimumnum")
RULES["arith.maximumf"] = intrinsic("maximum", fast=True)
RULES["arith.minimumf"] = intrinsic("minimum", fast=True)
for _name, _full in {
    "absf": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "roundeven": "roundeven", "copysign": "copysign", "fma": "fma",
}.items():  # fmt: skip
    RULES[f"math.{_name}"] = intrinsic(_full)


@rule("arith.negf")
def _negf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    return [e.inst(f"fneg {e.fast}{e.type(op.result.scalar)} {operands[0]}")]


@rule("math.detach")
def _detach(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    return operands


@rule("math.isnan")
def _isnan(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    a = operands[0]
    return [e.inst(f"fcmp uno {e.type(op.operand.scalar)} {a}, {a}")]


@rule("math.isinf")
def _isinf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    t = op.operand.scalar
    magnitude = e.intrinsic(f"llvm.fabs.{e.suffix(t)}", e.type(t), (e.type(t), operands[0]))
    return [e.inst(f"fcmp oeq {e.type(t)} {magnitude}, {e.literal(float('inf'), t)}")]


@rule("math.rsqrt")
def _rsqrt(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    t = op.result.scalar
    root = e.intrinsic(f"llvm.sqrt.{e.suffix(t)}", e.type(t), (e.type(t), operands[0]))
    return [e.inst(f"fdiv {e.type(t)} {e.literal(1.0, t)}, {root}")]


@rule(
    "math.exp", "math.exp2", "math.expm1", "math.log", "math.log2", "math.log10", "math.log1p",
    "math.sin", "math.cos", "math.tan", "math.asin", "math.acos", "math.atan", "math.sinh",
    "math.cosh", "math.tanh", "math.asinh", "math.acosh", "math.atanh", "math.erf", "math.erfc",
    "math.cbrt", "math.powf", "math.atan2", "math.hypot",
)  # fmt: skip
def _math(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    function = op.name.removeprefix("math.")
    return [e.target.math_call(e, function, op.result.scalar, operands)]


@rule("math.sigmoid")
def _sigmoid(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    t = op.result.scalar
    ty, one = e.type(t), e.literal(1.0, t)
    grown = e.target.math_call(e, "exp", t, [e.inst(f"fneg {ty} {operands[0]}")])
    return [e.inst(f"fdiv {ty} {one}, {e.inst(f'fadd {ty} {one}, {grown}')}")]


# -- conversions


@rule("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
def _integer_cast(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    source, target = op.operand.scalar, op.result.scalar
    if source.bits == target.bits:
        return operands
    if source.bits > target.bits:
        instruction = "trunc"
    else:
        instruction = "zext" if op.name == "arith.extui" else "sext"
    return [e.inst(f"{instruction} {e.type(source)} {operands[0]} to {e.type(target)}")]


@rule("arith.sitofp", "arith.uitofp")
def _int_to_float(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    source, target = op.operand.scalar, op.result.scalar
    instruction = op.name.removeprefix("arith.")
    return [e.inst(f"{instruction} {e.type(source)} {operands[0]} to {e.type(target)}")]


@rule("arith.fptosi", "arith.fptoui")
def _float_to_int(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    source, target = op.operand.scalar, op.result.scalar
    instruction = op.name.removeprefix("arith.")
    if not e.target.saturates and source in (f32, f64):
        return [_saturated(e, instruction, source, target, operands[0])]
    name = f"llvm.{instruction}.sat.{e.suffix(target)}.{e.suffix(source)}"
    return [e.intrinsic(name, e.type(target), (e.type(source), operands[0]))]


def _saturated(e: Emitter, instruction: str, source: ScalarType, target: ScalarType, x: str) -> str:
    """What ``llvm.fpto*.sat`` gives, of instructions that there are for vectors: LLVM converts
    lane by lane for the intrinsic, and vectorises no loop around it."""
    ty, to, signed = e.type(source), e.type(target), instruction == "fptosi"
    least, most = (-(1 << target.bits - 1) if signed else 0), (1 << target.bits - signed) - 1

    def choice(predicate: str, bound: float, type: str, then: str, other: str) -> str:
        test = e.inst(f"fcmp {predicate} {ty} {x}, {e.literal(bound, source)}")
        return e.inst(f"select {e.type(i1)} {test}, {type} {then}, {type} {other}")

    near = choice("ogt", float(least), ty, x, e.literal(float(least), source))
    made = e.inst(f"{instruction} {ty} {near} to {to}")  # poison above: not taken
    made = choice("olt", float(most + 1), to, made, e.literal(most, target))
    return choice("ord", 0.0, to, made, e.literal(0, target))


@rule("arith.extf")
def _extf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    return [widen(e, op.operand.scalar, op.result.scalar, operands[0])]


@rule("arith.truncf")
def _truncf(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    return [narrow(e, op.operand.scalar, op.result.scalar, operands[0])]


def widen(e: Emitter, source: ScalarType, target: ScalarType, value: str) -> str:
    """A float as a wider one."""
    if source is target:
        return value
    if source is bf16:
        wide = e.inst(f"zext {e.type(source)} {value} to {e.type(i32)}")
        high = e.inst(f"shl {e.type(i32)} {wide}, {e.literal(16, i32)}")
        value = e.inst(f"bitcast {e.type(i32)} {high} to {e.type(f32)}")
        return widen(e, f32, target, value)
    if source.bits == 8:
        return widen(e, f32, target, _widen_8_bits(e, source, value))
    if source is f16 and target is f64:
        return widen(e, f32, target, widen(e, f16, f32, value))
    return e.inst(f"fpext {e.type(source)} {value} to {e.type(target)}")


def narrow(e: Emitter, source: ScalarType, target: ScalarType, value: str) -> str:
    """A float as a narrower one, to nearest even. From f64 to 16 or 8 bits it goes through f32,
    as torch does."""
    if source is target:
        return value
    if source is f64 and target.is_storage:
        return narrow(e, f32, target, narrow(e, f64, f32, value))
    if target is bf16:
        return _narrow_to_bf16(e, value)
    if target.bits == 8:
        return _narrow_to_8_bits(e, target, value)
    return e.inst(f"fptrunc {e.type(source)} {value} to {e.type(target)}")


def _widen_8_bits(e: Emitter, source: ScalarType, value: str) -> str:
    """By way of f16, which has f8e5m2's exponent; it holds a number of f8e4m3, whose exponent
    has a bias less by 8, divided by 2**8."""
    ty, half, single = e.type(i16), e.type(f16), e.type(f32)
    wide = e.inst(f"sext {e.type(source)} {value} to {ty}")
    if source is f8e5m2:
        moved = e.inst(f"shl {ty} {wide}, {e.literal(8, i16)}")
        return e.inst(f"fpext {half} {e.inst(f'bitcast {ty} {moved} to {half}')} to {single}")
    moved = e.inst(f"shl {ty} {wide}, {e.literal(7, i16)}")
    kept = e.inst(f"and {ty} {moved}, {e.literal(0xBFFF, i16)}")  # the sign once
    small = e.inst(f"fpext {half} {e.inst(f'bitcast {ty} {kept} to {half}')} to {single}")
    number = e.inst(f"fmul {single} {small}, {e.literal(256.0, f32)}")
    magnitude = e.inst(f"and {ty} {kept}, {e.literal(0x3F80, i16)}")
    nan = e.inst(f"icmp eq {ty} {magnitude}, {e.literal(0x3F80, i16)}")
    return _select(e, nan, f32, e.literal(float("nan"), f32), number)


def _narrow_to_8_bits(e: Emitter, target: ScalarType, value: str) -> str:
    """What ``float8.encode`` gives, as torch computes it: the mantissa is rounded by integer
    arithmetic, and that of a subnormal number by adding a number whose last bit is the unit."""
    form, ty, single = float8.FORMATS[target.name], e.type(i32), e.type(f32)
    cut = 23 - form.mantissa  # bits of the mantissa that are rounded off

    def i(number: int) -> str:
        return e.literal(number, i32)

    bits = e.inst(f"bitcast {single} {value} to {ty}")
    sign = e.inst(f"and {ty} {e.inst(f'lshr {ty} {bits}, {i(24)}')}, {i(0x80)}")
    magnitude = e.inst(f"and {ty} {bits}, {i(0x7FFFFFFF)}")
    odd = e.inst(f"and {ty} {e.inst(f'lshr {ty} {magnitude}, {i(cut)}')}, {i(1)}")
    rebased = ((form.bias - 127) << 23) + (1 << (cut - 1)) - 1
    sum = e.inst(f"add {ty} {e.inst(f'add {ty} {magnitude}, {i(rebased)}')}, {odd}")
    normal = e.inst(f"lshr {ty} {sum}, {i(cut)}")
    unit = (127 - form.bias + 1 + cut) << 23
    positive = e.inst(f"bitcast {ty} {magnitude} to {single}")
    aligned = e.inst(f"fadd {single} {positive}, {e.inst(f'bitcast {ty} {i(unit)} to {single}')}")
    small = e.inst(f"sub {ty} {e.inst(f'bitcast {single} {aligned} to {ty}')}, {i(unit)}")
    is_small = e.inst(f"icmp ult {ty} {magnitude}, {i((128 - form.bias) << 23)}")
    nearest = _select(e, is_small, i32, small, normal)
    huge = e.inst(f"icmp uge {ty} {magnitude}, {i(0x47800000)}")  # 65536: more than both have
    bounded = e.intrinsic(f"llvm.umin.{e.suffix(i32)}", ty, (ty, nearest), (ty, i(form.most)))
    finite = _select(e, huge, i32, i(form.most), bounded)
    nan = e.inst(f"icmp ugt {ty} {magnitude}, {i(0x7F800000)}")
    whole = e.inst(f"or {ty} {_select(e, nan, i32, i(float8.NAN), finite)}, {sign}")
    return e.inst(f"trunc {ty} {whole} to {e.type(target)}")


def _narrow_to_bf16(e: Emitter, value: str) -> str:
    ty, half = e.type(i32), e.type(bf16)
    bits = e.inst(f"bitcast {e.type(f32)} {value} to {ty}")
    odd = e.inst(
        f"and {ty} {e.inst(f'lshr {ty} {bits}, {e.literal(16, i32)}')}, {e.literal(1, i32)}"
    )
    sum = e.inst(f"add {ty} {bits}, {e.inst(f'add {ty} {odd}, {e.literal(0x7FFF, i32)}')}")
    quiet = e.inst(f"or {ty} {bits}, {e.literal(0x400000, i32)}")  # a NaN must stay one
    nan = e.inst(f"fcmp uno {e.type(f32)} {value}, {value}")
    chosen = _select(e, nan, i32, quiet, sum)
    high = e.inst(f"lshr {ty} {chosen}, {e.literal(16, i32)}")
    return e.inst(f"trunc {ty} {high} to {half}")


@rule("arith.bitcast")
def _bitcast(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    source, target = e.type(op.operand.scalar), e.type(op.result.scalar)
    return operands if source == target else [e.inst(f"bitcast {source} {operands[0]} to {target}")]


def combine(e: Emitter, kind: str, t: ScalarType, a: str, b: str, *, reorder: bool = True) -> str:
    """a combined with b by the arith operation ``kind``. ``reorder``: sums in any order."""
    if kind == "addf":
        return e.inst(f"fadd {e.reordered if reorder else e.fast}{e.type(t)} {a}, {b}")
    op = Op(f"arith.{kind}", [Value(t), Value(t)], [t])
    (result,) = RULES[op.name](e, op, [a, b])
    return result


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


class Instructions:
    """Integers of LLVM's type ``ty``, by their names, as ``trips.Arithmetic``."""

    # The dividend of a trip count is never negative, and may need all bits.
    _OPS: ClassVar = {"addi": "add", "subi": "sub nsw", "floordivsi": "udiv"}

    def __init__(self, e: Emitter, ty: str) -> None:
        self.e = e
        self.ty = ty

    def constant(self, value: str) -> int | None:
        return None if value.startswith("%") else int(value)

    def number(self, value: int) -> str:
        return str(value)

    def op(self, name: str, a: str, b: str) -> str:
        if name == "maxsi":
            return self.e.extreme("smax", a, b, self.ty)
        return self.e.inst(f"{self._OPS[name]} {self.ty} {a}, {b}")
