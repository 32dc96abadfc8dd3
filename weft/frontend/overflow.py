"""Overflow of integers, which debug mode checks: arithmetic, negation, shifts and casts that wrap;
and division by zero.

A check stands beside what is computed, and changes nothing of it. Not checked: products that a
parallel loop reduces, or that several of its iterations leave in one element, and powers with an
exponent of run time.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import Span
from weft.frontend import complexes
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    UNSIGNED,
    Operand,
    Scalar,
    Static,
    int_range,
    is_int,
)
from weft.ir import types as ir
from weft.ir.core import Value

_LOW = (1 << 32) - 1


def arithmetic(cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    """``a symbol b`` of two numbers, as a person wrote it."""
    result = complexes.arithmetic(cx.scalars, symbol, a, b, span)
    if cx.debug and isinstance(result, Scalar) and is_int(result.dtype):
        _check_binary(cx, symbol, a, b, result, span)
    return result


def negated(cx: Lowering, x: Operand, span: Span) -> Scalar | Static:
    """``-x``."""
    result = cx.scalars.negate(x, span)
    if cx.debug and isinstance(result, Scalar) and is_int(result.dtype):
        value, least = cx.scalars.cast(x, result.dtype, span).value, int_range(result.dtype)[0]
        worst = cx.builder.constant(least, value.scalar)
        ok = cx.builder.op("arith.cmpi", value, worst, predicate="ne" if least else "eq")
        _fail(cx, ok, f"-{{}} overflows {_named(result.dtype)}", [x], span)
    return result


def fits(cx: Lowering, x: Operand, dtype: str, span: Span) -> None:
    """Checks that an integer ``x`` is one of ``dtype``, an integer type."""
    if not cx.debug or not isinstance(x, Scalar) or not is_int(x.dtype) or not is_int(dtype):
        return
    b, (low, high), (least, most) = cx.builder, int_range(x.dtype), int_range(dtype)
    tests: list[Value] = []
    if low < least:
        end = b.constant(least, x.value.scalar)
        tests.append(b.op("arith.cmpi", x.value, end, predicate="sge"))
    if high > most:
        end = b.constant(most, x.value.scalar)
        predicate = "ule" if x.dtype in UNSIGNED else "sle"
        tests.append(b.op("arith.cmpi", x.value, end, predicate=predicate))
    if tests:
        ok = b.op("arith.andi", *tests) if len(tests) == 2 else tests[0]
        _fail(cx, ok, f"{{}} does not fit in {_named(dtype)}", [x], span)


def added(cx: Lowering, symbol: str, old: Scalar, x: Operand, span: Span) -> None:
    """Checks that ``x`` could be added to an element that was ``old``, be taken off, or be
    multiplied with it."""
    if cx.debug and is_int(old.dtype) and symbol in "+-*":
        new = cx.scalars.cast(x, old.dtype, span)
        _check_binary(cx, symbol, old, new, cx.scalars.binary(symbol, old, new, span), span)


def _check_binary(
    cx: Lowering, symbol: str, a: Operand, b: Operand, result: Operand, span: Span
) -> None:
    assert isinstance(result, Scalar)
    dtype, s, op = result.dtype, cx.scalars, cx.builder.op
    if symbol == "**" and isinstance(b, Static):
        _check_power(cx, a, b, dtype, span)
        return
    if symbol in ("//", "%"):
        divisor_is_not_zero(cx, symbol, a, b, dtype, span)
    if symbol not in ("+", "-", "*", "<<", "//"):
        return
    if symbol != "//":
        for x in (a, b) if symbol != "<<" else (a,):
            fits(cx, x, dtype, span)
    x, y = (s.cast(v, dtype, span).value for v in (a, b))
    r, unsigned = result.value, dtype in UNSIGNED
    zero = cx.builder.constant(0, r.scalar)
    if symbol == "+" and unsigned:
        ok = op("arith.cmpi", r, x, predicate="uge")
    elif symbol == "-" and unsigned:
        ok = op("arith.cmpi", x, y, predicate="uge")
    elif symbol in "+-":  # the signs of what is added are alike, and that of the sum is not
        other = op("arith.xori", *((y, r) if symbol == "+" else (x, y)))
        wrong = op("arith.andi", op("arith.xori", x, r), other)
        ok = op("arith.cmpi", wrong, zero, predicate="sge")
    elif symbol == "<<":
        back = op("arith.shrui" if unsigned else "arith.shrsi", r, y)
        ok = op("arith.cmpi", back, x, predicate="eq")
    elif symbol == "//":
        if unsigned:
            return
        ends = (cx.builder.constant(end, r.scalar) for end in (int_range(dtype)[0], -1))
        pairs = zip((x, y), ends, strict=True)
        ok = op("arith.ori", *(op("arith.cmpi", v, end, predicate="ne") for v, end in pairs))
    else:
        ok = _product_fits(cx, x, y, r, unsigned)
    _fail(cx, ok, f"{{}} {symbol} {{}} overflows {_named(dtype)}", [a, b], span)


def taken_off(
    cx: Lowering, name: str, symbol: str, old: Operand, x: Operand, span: Span
) -> Operand:
    """``name symbol= x`` in a loop that subtracts from an unsigned total: what an iteration has,
    ``old``, is 0 at first, and less than 0 then. The whole is checked after the loop."""
    assert isinstance(old, Scalar)
    fits(cx, x, old.dtype, span)
    result = cx.scalars.binary(symbol, old, x, span)
    if cx.frame.differences[name]:
        assert isinstance(result, Scalar)
        zero = Scalar(cx.builder.constant(0, old.value.scalar), old.dtype)
        sizes = [cx.scalars.binary("-", zero, v, span) for v in (old, result)]
        before, after = (v.value for v in sizes if isinstance(v, Scalar))
        ok = cx.builder.op("arith.cmpi", after, before, predicate="uge")
        _fail(cx, ok, f"the sum `{name}` overflows {_named(old.dtype)}", [], span)
    return result


def divisor_is_not_zero(
    cx: Lowering, symbol: str, a: Operand, b: Operand, dtype: str, span: Span
) -> None:
    """Checks that ``a symbol b`` of two integers, computed in ``dtype``, is no division by zero."""
    if not cx.debug or isinstance(b, Static):  # 0 is an error of its own
        return
    y = cx.scalars.cast(b, dtype, span).value
    ok = cx.builder.op("arith.cmpi", y, cx.builder.constant(0, y.scalar), predicate="ne")
    _fail(cx, ok, f"{{}} {symbol} {{}}: division by zero", [a, b], span, wraps=False)


def _product_fits(cx: Lowering, x: Value, y: Value, r: Value, unsigned: bool) -> Value:
    """Whether ``r`` is the product of ``x`` and ``y``."""
    op, const = cx.builder.op, cx.builder.constant
    if r.scalar.bits < 64:
        extend = "arith.extui" if unsigned else "arith.extsi"
        wide = [op(extend, v, type=ir.i64) for v in (x, y, r)]
        return op("arith.cmpi", op("arith.muli", *wide[:2]), wide[2], predicate="eq")
    # By dividing again: what is left of a product that wraps differs from the product by 2**64 or
    # more, and so by more than one divisor. -1 is apart: dividing by it wraps itself.
    zero = const(0, r.scalar)
    back = op("arith.divui" if unsigned else "arith.floordivsi", r, x)
    ok = op("arith.cmpi", back, y, predicate="eq")
    if not unsigned:
        minus = op("arith.cmpi", x, const(-1, r.scalar), predicate="eq")
        least = op("arith.cmpi", y, const(-(1 << 63), r.scalar), predicate="eq")
        ok = op("arith.select", op("arith.andi", minus, least), const(False, ir.i1), ok)
    return op("arith.ori", ok, op("arith.cmpi", x, zero, predicate="eq"))


def _check_power(cx: Lowering, a: Operand, b: Static, dtype: str, span: Span) -> None:
    """Checks the products that a literal exponent stands for, by repeated squaring: each square is
    a factor of the power, and so does not fit where it wraps."""

    def times(x: Value, y: Value) -> Value:
        product = cx.builder.op("arith.muli", x, y)
        ok = _product_fits(cx, x, y, product, dtype in UNSIGNED)
        _fail(cx, ok, f"{{}} ** {b.value} overflows {_named(dtype)}", [a], span)
        return product

    square, result, left = cx.scalars.cast(a, dtype, span).value, None, int(b.value)
    while left > 0:
        if left & 1:
            result = square if result is None else times(result, square)
        left >>= 1
        if left:
            square = times(square, square)


def _named(dtype: str) -> str:
    return "64 bits" if dtype == "int" else dtype


def _fail(
    cx: Lowering, ok: Value, message: str, values: Sequence[Operand], span: Span,
    wraps: bool = True,
) -> None:  # fmt: skip
    """Stops the kernel with ``message``, the ``values`` in it, and where the iteration is."""
    operands, unsigned = [], []
    for x in values:
        if isinstance(x, Static):
            message = message.replace("{}", str(x.value), 1)
            continue
        assert isinstance(x, Scalar)
        message = message.replace("{}", "{:d}", 1)
        if x.dtype in UNSIGNED:
            unsigned.append(len(operands))
        operands.append(_word(cx, x, span))
    places = [f"{v.name} = {{:d}}" for v in cx.iteration]
    message += f", at {', '.join(places)}" if places else ""
    marks = {"unsigned": tuple(unsigned)} if unsigned else {}
    marks |= {"overflow": True} if wraps else {}
    with cx.builder.about(span):
        check = cx.builder.do("weft.assert", ok, *operands, *cx.iteration, message=message, **marks)
    cx.checks.append(check)


def _word(cx: Lowering, x: Scalar, span: Span) -> Value:
    return x.value if x.dtype == "u64" else cx.scalars.cast(x, "int", span).value


class Sum:
    """A sum of integers that a parallel loop reduces into: its upper and lower 32 bits are summed
    once more, in 64 bits each, so that what the whole would be is known. ``less``: a difference of
    unsigned integers, in which what an iteration has is less than 0."""

    def __init__(
        self, cx: Lowering, name: str, dtype: str, starts: list[Value], less: bool = False
    ) -> None:
        self.cx, self.name, self.dtype = cx, name, dtype
        self.inits = self.halves(starts)
        self.less = less

    def parts(self, values: list[Value]) -> list[Value]:
        """``halves`` of what an iteration adds."""
        if not self.less:
            return self.halves(values)
        op, zero = self.cx.builder.op, self.cx.builder.constant
        sizes = [op("arith.subi", zero(0, v.scalar), v) for v in values]
        return [op("arith.subi", zero(0, ir.i64), half) for half in self.halves(sizes)]

    def halves(self, values: list[Value]) -> list[Value]:
        """The upper and the lower bits of each of ``values``."""
        b, found = self.cx.builder, list[Value]()
        for value in values:
            if value.type is ir.index:
                value = b.op("arith.index_cast", value, type=ir.i64)
            elif value.scalar.bits < 64:
                extend = "arith.extui" if self.dtype in UNSIGNED else "arith.extsi"
                value = b.op(extend, value, type=ir.i64)
            shift = "arith.shrui" if self.dtype in UNSIGNED else "arith.shrsi"
            found.append(b.op(shift, value, b.constant(32, ir.i64)))
            found.append(b.op("arith.andi", value, b.constant(_LOW, ir.i64)))
        return found

    def check(self, high: Value, low: Value, span: Span) -> None:
        """Checks the sum of which these are the bits."""
        op, const = self.cx.builder.op, self.cx.builder.constant
        carried = op("arith.addi", high, op("arith.shrsi", low, const(32, ir.i64)))
        rest = op("arith.andi", low, const(_LOW, ir.i64))
        least, most = int_range(self.dtype)
        ends = []
        for end, beyond, within in ((least, "sgt", "uge"), (most, "slt", "ule")):
            upper, lower = const(end >> 32, ir.i64), const(end & _LOW, ir.i64)
            inside = op("arith.cmpi", carried, upper, predicate=beyond)
            same = op("arith.cmpi", carried, upper, predicate="eq")
            near = op("arith.cmpi", rest, lower, predicate=within)
            ends.append(op("arith.ori", inside, op("arith.andi", same, near)))
        message = f"the sum `{self.name}` overflows {_named(self.dtype)}"
        _fail(self.cx, op("arith.andi", *ends), message, [], span)


def check_sums(sums: Sequence[Sum], bits: Sequence[Value], span: Span) -> None:
    """Checks sums whose upper and lower bits, one after the other, a loop has reduced."""
    pairs = zip(bits[::2], bits[1::2], strict=True)
    for one in sums:
        for _ in range(len(one.inits) // 2):
            one.check(*next(pairs), span)
