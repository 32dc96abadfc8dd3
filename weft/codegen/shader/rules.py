"""Expressions: one rule for each scalar operation, in words that both languages have.

What a language leaves open (division by zero, wide shifts, numbers that do not fit) has the meaning
of the IR. Where that takes more than an expression it is a function of the module
(``functions.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from weft.codegen.shader.dialects import (
    MSL,
    Dialect,
    UnsupportedInShaderError,
    literal,
    stored,
    type_of,
    unsigned_of,
)
from weft.codegen.shader.expand import WRITTEN_OUT
from weft.ir.core import Op, Value
from weft.ir.types import ScalarType, bf16, f64, i1, i32, i64, index
from weft.ir.views import Select, constant_of, made_by

# Functions that floats of 64 bits have, too.
_EXACT = {
    "math.absf", "math.sqrt", "math.rsqrt", "math.floor", "math.ceil", "math.trunc",
    "math.roundeven", "math.fma", "math.copysign", "math.isnan", "math.isinf",
}  # fmt: skip


class Expressions:
    """``needs``: functions that the text calls, with the type that they are of. ``numbers``: what
    is NaN is asked elsewhere."""

    def __init__(self, dialect: Dialect, *, numbers: bool = False) -> None:
        self.dialect = dialect
        self.numbers = numbers
        self.needs: set[tuple[str, ScalarType]] = set()

    def call(self, name: str, t: ScalarType, *operands: str) -> str:
        t = i64 if t is index else t
        self.needs.add((name, t))
        return f"{name}_{t.name}({', '.join(operands)})"

    def literal(self, value: float, t: ScalarType) -> str:
        text = literal(value, t)
        if text.endswith("()"):
            self.needs.add(("special", t))
        return text

    def unsigned(self, value: str, t: ScalarType) -> str:
        """An integer as the unsigned one of its bits."""
        whole = f"{unsigned_of(t)}({value})"
        return whole if t.bits >= 32 else f"({whole} & {(1 << t.bits) - 1}u)"

    def wrapped(self, value: str, t: ScalarType) -> str:
        """An i32 as the integer of fewer bits that its low bits are."""
        if t.bits >= 32 or t is i1:
            return value
        return f"(i32(u32({value}) << {32 - t.bits}u) >> {32 - t.bits}u)"

    def of(self, op: Op, a: list[str]) -> str:
        """The value of a scalar operation of the operands ``a``. Raises
        ``UnsupportedInShaderError``."""
        rule = _RULES.get(op.name)
        if op.name.removeprefix("math.") in WRITTEN_OUT:
            rule = _called
        is_wide = op.name.startswith("math.") and op.left.type is f64 and op.name not in _EXACT
        if rule is None or is_wide:
            told = f"shaders have no `{op.name.partition('.')[2]}`"
            told += " of float64, in which this is computed" * is_wide
            raise UnsupportedInShaderError(told, op.span, "run the kernel on a CPU or with CUDA")
        return rule(self, op, a)

    def combined(self, kind: str, t: ScalarType, a: str, b: str) -> str:
        """a combined with b by the arith operation ``kind``."""
        return self.of(Op(f"arith.{kind}", [Value(t), Value(t)], [t]), [a, b])


def choice(condition: str, yes: str, no: str) -> str:
    return f"select({no}, {yes}, {condition})"


_Rule = Callable[[Expressions, Op, list[str]], str]
_RULES: dict[str, _Rule] = {}


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    def add(function: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return add


# -- integers


@_rule("arith.addi", "arith.subi", "arith.muli")
def _arithmetic(e: Expressions, op: Op, a: list[str]) -> str:
    t = op.result.scalar
    if t is i1:
        return f"({a[0]} && {a[1]})" if op.name == "arith.muli" else f"({a[0]} != {a[1]})"
    sign = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*"}[op.name]
    if e.dialect is MSL:  # where overflow of signed integers is undefined
        made = f"{type_of(t)}({unsigned_of(t)}({a[0]}) {sign} {unsigned_of(t)}({a[1]}))"
    else:
        made = f"({a[0]} {sign} {a[1]})"
    return e.wrapped(made, t)


@_rule("arith.andi", "arith.ori", "arith.xori")
def _bitwise(e: Expressions, op: Op, a: list[str]) -> str:
    signs = ("&&", "||", "!=") if op.result.scalar is i1 else ("&", "|", "^")
    sign = signs[["arith.andi", "arith.ori", "arith.xori"].index(op.name)]
    return f"({a[0]} {sign} {a[1]})"


@_rule("arith.floordivsi", "arith.remsi")
def _division(e: Expressions, op: Op, a: list[str]) -> str:
    t, name = op.result.scalar, op.name.removeprefix("arith.")
    if t is i1:  # one bit, the sign
        return f"({a[0]} && {a[1]})" if name == "floordivsi" else "false"
    divisor = int(constant_of(op.right) or 0)
    if name == "floordivsi" and divisor > 0 and divisor & (divisor - 1) == 0:
        return f"({a[0]} >> {divisor.bit_length() - 1}u)"
    return e.wrapped(e.call(name, _word(t), *a), t)


@_rule("arith.divui", "arith.remui")
def _unsigned_division(e: Expressions, op: Op, a: list[str]) -> str:
    t, name = op.result.scalar, op.name.removeprefix("arith.")
    if t is i1:
        return f"({a[0]} && {a[1]})" if name == "divui" else "false"
    found = e.call(name, _word(t), *(e.unsigned(v, t) for v in a))
    return e.wrapped(f"{type_of(t)}({found})", t)


def _word(t: ScalarType) -> ScalarType:
    return i64 if t.bits == 64 else i32


@_rule("arith.shli", "arith.shrui", "arith.shrsi")
def _shift(e: Expressions, op: Op, a: list[str]) -> str:
    t, number = op.result.scalar, constant_of(op.right)
    if t is i1:
        return a[0] if op.name == "arith.shrsi" else f"({a[0]} && !{a[1]})"
    known = number is not None and 0 <= int(number) < t.bits
    amount, last = e.unsigned(a[1], t), f"{unsigned_of(t)}({t.bits - 1}u)"
    if op.name == "arith.shrsi":
        by = f"{number}u" if known else f"u32(min({amount}, {last}))"
        return f"({a[0]} >> {by})"
    by = f"{number}u" if known else f"u32({amount} & {unsigned_of(t)}({max(t.bits, 32) - 1}u))"
    sign = "<<" if op.name == "arith.shli" else ">>"
    made = e.wrapped(f"{type_of(t)}({e.unsigned(a[0], t)} {sign} {by})", t)
    return made if known else choice(f"{amount} <= {last}", made, e.literal(0, t))


@_rule("arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui")
def _extremum(e: Expressions, op: Op, a: list[str]) -> str:
    t, name = op.result.scalar, op.name.removeprefix("arith.")
    if t is i1:  # as a signed number true is -1
        return f"({a[0]} {'||' if name in ('minsi', 'maxui') else '&&'} {a[1]})"
    if name.endswith("si"):
        return f"{name[:3]}({a[0]}, {a[1]})"
    larger = f"{e.unsigned(a[0], t)} > {e.unsigned(a[1], t)}"
    return choice(larger, *(a if name == "maxui" else a[::-1]))


@_rule("math.absi")
def _absi(e: Expressions, op: Op, a: list[str]) -> str:
    t = op.result.scalar
    if t is i1:
        return a[0]
    minus = f"{type_of(t)}({unsigned_of(t)}(0u) - {unsigned_of(t)}({a[0]}))"
    return e.wrapped(choice(f"{a[0]} < {literal(0, t)}", minus, a[0]), t)


@_rule("math.ctpop")
def _ctpop(e: Expressions, op: Op, a: list[str]) -> str:
    t = op.result.scalar
    if t is i1:
        return a[0]
    bits = e.unsigned(a[0], t)
    if t.bits == 64:
        return e.dialect.longer(
            f"countOneBits(u32({bits})) + countOneBits(u32({bits} >> 32u))", "i64"
        )
    return f"i32(countOneBits({bits}))"


_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@_rule("arith.cmpi")
def _cmpi(e: Expressions, op: Op, a: list[str]) -> str:
    predicate, t = op.attrs["predicate"], op.left.scalar
    if predicate in ("eq", "ne"):
        return f"({a[0]} {_SIGNS[predicate]} {a[1]})"
    if t is i1:
        one = literal(-1 if predicate[0] == "s" else 1, i32)
        a = [choice(v, one, literal(0, i32)) for v in a]
    elif predicate[0] == "u":
        a = [e.unsigned(v, t) for v in a]
    return f"({a[0]} {_SIGNS[predicate[1:]]} {a[1]})"


# -- floats


@_rule("arith.cmpf")
def _cmpf(e: Expressions, op: Op, a: list[str]) -> str:
    predicate, t = op.attrs["predicate"], op.left.scalar
    if predicate in ("ord", "uno"):
        nans = " || ".join(e.call("isnan", t, v) for v in a)
        return f"({nans})" if predicate == "uno" else f"(!({nans}))"
    if predicate in ("one", "ueq"):
        differ = f"({a[0]} < {a[1]} || {a[0]} > {a[1]})"
        return differ if predicate == "one" else f"(!{differ})"
    if predicate[0] == "o":
        return f"({a[0]} {_SIGNS[predicate[1:]]} {a[1]})"
    # Compilers of WGSL take `!=` for false where an operand is NaN: the opposite is denied.
    other = {"ne": "==", "lt": ">=", "le": ">", "gt": "<=", "ge": "<"}[predicate[1:]]
    return f"(!({a[0]} {other} {a[1]}))"


@_rule("arith.addf", "arith.subf", "arith.mulf", "arith.divf")
def _float(e: Expressions, op: Op, a: list[str]) -> str:
    sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[op.name[6:9]]
    if sign == "-" and a[0] == a[1]:  # which drivers take for 0.0, also of infinity and NaN
        return f"abs({a[0]} * {e.call('zero', op.left.scalar)})"
    if sign == "*":  # drivers take a product with 0.0 for 0.0, also of infinity and NaN
        pairs = zip(op.operands, a, strict=True)
        a = [e.call("zero", v.scalar) if constant_of(v) == 0.0 else text for v, text in pairs]
    return f"({a[0]} {sign} {a[1]})"


@_rule(
    "arith.remf", "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf",
    "math.isnan", "math.isinf", "math.copysign",
)  # fmt: skip
def _called(e: Expressions, op: Op, a: list[str]) -> str:
    return e.call(op.name.partition(".")[2], op.left.scalar, *a)


@_rule("math.philox")
def _random(e: Expressions, op: Op, a: list[str]) -> str:
    return e.call("philox", i64, *a)


@_rule("arith.negf")
def _negf(e: Expressions, op: Op, a: list[str]) -> str:
    return f"(-{a[0]})"


@_rule("math.absf", "math.sqrt", "math.floor", "math.ceil", "math.trunc", "math.fma")
def _own(e: Expressions, op: Op, a: list[str]) -> str:
    name = "abs" if op.name == "math.absf" else op.name.removeprefix("math.")
    return f"{name}({', '.join(a)})"


@_rule("math.roundeven")
def _roundeven(e: Expressions, op: Op, a: list[str]) -> str:
    return f"{'rint' if e.dialect is MSL else 'round'}({a[0]})"


@_rule("math.rsqrt")
def _rsqrt(e: Expressions, op: Op, a: list[str]) -> str:
    return f"({e.literal(1.0, op.result.scalar)} / sqrt({a[0]}))"


# -- others


@_rule("arith.select")
def _select(e: Expressions, op: Op, a: list[str]) -> str:
    found, choose = choice(*a), Select(op)
    test = made_by(choose.condition, "arith.cmpf")
    if e.numbers or e.dialect is MSL or test is None:
        return found
    if not {choose.yes, choose.no} <= {test.left, test.right}:
        return found
    # Drivers take it for a minimum or a maximum, which is no NaN where one of both is a number.
    both = {choose.yes: a[1], choose.no: a[2]}
    asked = [e.call("isnan", v.scalar, text) for v, text in both.items() if constant_of(v) is None]
    other = a[2] if test.attrs["predicate"][0] == "o" else a[1]
    return choice(f"({' || '.join(asked)})", other, found) if asked else found


@_rule("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
def _cast(e: Expressions, op: Op, a: list[str]) -> str:
    source, target, value = op.operand.scalar, op.result.scalar, a[0]
    if source is target:
        return value
    if target is i1:
        return f"(({value} & {literal(1, source)}) != {literal(0, source)})"
    if source is i1:
        one = literal(1 if op.name == "arith.extui" else -1, target)
        return choice(value, one, literal(0, target))
    if op.name == "arith.extui" and source.bits < target.bits:
        # Compilers of WGSL extend the sign where an unsigned number becomes a longer signed one.
        value = f"{unsigned_of(target)}({e.unsigned(value, source)})"
        return f"{type_of(target)}({value})"
    if target.bits == 64 and source.bits <= 32:
        return e.dialect.longer(value, type_of(target))
    return e.wrapped(f"{type_of(target)}({value})", target)


@_rule("arith.sitofp", "arith.uitofp")
def _to_float(e: Expressions, op: Op, a: list[str]) -> str:
    source, target = op.operand.scalar, op.result.scalar
    signed = op.name == "arith.sitofp"
    if source is i1:
        return choice(a[0], literal(-1.0 if signed else 1.0, target), literal(0.0, target))
    return f"{type_of(target)}({a[0] if signed else e.unsigned(a[0], source)})"


@_rule("arith.fptosi", "arith.fptoui")
def _to_int(e: Expressions, op: Op, a: list[str]) -> str:
    source, target, x = op.operand.scalar, op.result.scalar, a[0]
    signed = op.name == "arith.fptosi"
    if target is i1:
        return f"({x} {'<=' if signed else '>='} {literal(-1.0 if signed else 1.0, source)})"
    low = -(1 << target.bits - 1) if signed else 0
    high = (1 << target.bits) - 1 + low
    bottom, top = literal(float(low), source), literal(float(high + 1), source)
    inside = choice(f"{x} > {bottom} && {x} < {top}", x, literal(0.0, source))
    whole = f"{type_of(target) if signed else unsigned_of(target)}({inside})"
    last = literal(-1 if not signed else high, target)
    made = choice(f"{x} >= {top}", last, e.wrapped(f"{type_of(target)}({whole})", target))
    return choice(f"{x} <= {bottom}", literal(low, target), made) if signed else made


@_rule("arith.extf")
def _extf(e: Expressions, op: Op, a: list[str]) -> str:
    _check_width(op, op.operand.scalar)
    return f"{type_of(op.result.scalar)}({widened(e, a[0], op.operand.scalar)})"


def _check_width(op: Op, element: ScalarType) -> None:
    """Raises ``UnsupportedInShaderError`` for floats of 8 bits, which shaders only copy."""
    if element.bits == 8:
        raise UnsupportedInShaderError(
            f"shaders do not compute with {element.name}", op.span,
            "pass the tensor as float16, or run the kernel on a CPU or with CUDA",
        )  # fmt: skip


def widened(e: Expressions, value: str, source: ScalarType) -> str:
    """A float of 16 bits, which is its bits, as an f32."""
    if not stored(source):
        return value
    if source is bf16:
        return f"bitcast<f32>(u32({value}) << 16u)"
    return e.call("widened", source, f"u32({value})")


@_rule("arith.truncf")
def _truncf(e: Expressions, op: Op, a: list[str]) -> str:
    _check_width(op, op.result.scalar)
    return narrowed(e, f"f32({a[0]})", op.result.scalar)


def narrowed(e: Expressions, value: str, target: ScalarType) -> str:
    """An f32 as a float of 16 bits (its bits), to nearest even."""
    return f"i32({e.call('narrowed', target, value)})" if stored(target) else value


@_rule("arith.bitcast")
def _bitcast(e: Expressions, op: Op, a: list[str]) -> str:
    source, target = (type_of(v.scalar) for v in (op.operand, op.result))
    return a[0] if source == target else f"bitcast<{target}>({a[0]})"
