"""The derivative of each scalar operation: one row each, as a function that builds IR.

``RULES[name](d)`` gives, for each operand, its adjoint (None: zero). ``d`` is a ``Local``:
``d.g`` is the adjoint of the result, ``d.a``, ``d.b``, ``d.c`` the operands, ``d.y`` the result.
``ZERO`` names the operations whose derivative is zero wherever it exists. An operation that is in
neither is refused by name. At ties, minimum and maximum of two values from tensors share the
adjoint, as torch.maximum does; ``max(x, bound)``, where the bound is a number, gives all of it to
``x``, as torch.clamp does; the absolute value has derivative 0 at 0. An ``unshared`` choice is one
that the program makes (``a if a > b else b``): all goes to what it took, of an extremum to the
first operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.ir.builder import Builder
from weft.ir.core import Op, Value
from weft.ir.types import ScalarType, compute_type


def _binary(name: str) -> Callable[[Local, Value, Value], Value]:
    return lambda d, x, y: d.builder.op(f"arith.{name}", x, y)


class Local:
    """The neighbourhood of one operation, with short names for what rules are made of."""

    def __init__(
        self, builder: Builder, op: Op, operands: Sequence[Value], y: Value, g: Value,
        varied: Sequence[bool] = (),
    ) -> None:  # fmt: skip
        """``varied``: which of the operands have an adjoint at all."""
        self.builder = builder
        self.source = op
        self.a, self.b, self.c = (*operands, y, y)[:3]
        self.y = y
        self.g = g
        self.varied = varied

    def number(self, value: float) -> Value:
        return self.builder.constant(value, self.g.scalar)

    add, sub, mul, div = map(_binary, ("addf", "subf", "mulf", "divf"))

    def neg(self, x: Value) -> Value:
        return self.builder.op("arith.negf", x)

    def math(self, name: str, *operands: Value) -> Value:
        return self.builder.op(f"math.{name}", *operands)

    def less(self, x: Value, y: Value) -> Value:
        return self.builder.op("arith.cmpf", x, y, predicate="olt")

    def equal(self, x: Value, y: Value) -> Value:
        return self.builder.op("arith.cmpf", x, y, predicate="oeq")

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        return self.builder.op("arith.select", condition, x, y)


Rule = Callable[[Local], Sequence[Value | None]]


def _scaled(factor: Callable[[Local], Value]) -> Rule:
    """The adjoint times the derivative."""
    return lambda d: [d.mul(d.g, factor(d))]


def _over(divisor: Callable[[Local], Value]) -> Rule:
    """The adjoint divided by the derivative's reciprocal."""
    return lambda d: [d.div(d.g, divisor(d))]


def _one_plus_square(d: Local) -> Value:
    return d.add(d.number(1.0), d.mul(d.a, d.a))


def _one_minus_square(d: Local) -> Value:
    return d.sub(d.number(1.0), d.mul(d.a, d.a))


def _root_of_square_minus_one(d: Local) -> Value:
    """Of a number from 1 on, without an overflow."""
    parts = d.sub(d.a, d.number(1.0)), d.add(d.a, d.number(1.0))
    return d.mul(*(d.math("sqrt", part) for part in parts))


def _share(d: Local, first: int) -> bool:
    """Whether a tie of the operands from ``first`` on is shared: each varies, or would if a
    gradient were asked for of the tensor that it comes from."""
    pairs = list(zip(d.varied, d.source.operands, strict=False))
    return all(varied or _from_tensors(value) for varied, value in pairs[first:])


def _from_tensors(value: Value) -> bool:
    """Whether ``value`` is computed from elements, not counting what loops carry."""
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        owner = waiting.pop().op
        if owner is None:
            continue
        if owner.name == "memref.load":
            return True
        waiting += [v for v in owner.operands if v not in seen]
        seen.update(owner.operands)
    return False


def _extremum(d: Local, less: bool) -> list[Value | None]:
    """All to the operand that is the result, half to each at a tie (all to the one that varies, if
    the other is a number), all to the NaN."""
    zero, tie = d.number(0.0), d.equal(d.a, d.b)
    first = "unshared" in d.source.attrs
    half = d.mul(d.g, d.number(0.5)) if not first and _share(d, 0) else d.g
    x, y = (d.a, d.b) if less else (d.b, d.a)
    loses_a, loses_b = d.less(y, x), d.less(x, y)
    return [
        d.select(tie, half, d.select(loses_a, zero, d.g)),
        d.select(tie, zero if first else half, d.select(loses_b, zero, d.g)),
    ]


def _choice(d: Local) -> list[Value | None]:
    """``max(a, b)`` arrives as a choice by comparison: a tie is shared, as in ``_extremum``."""
    zero = d.number(0.0)
    test, yes, no = d.source.operands
    shares = [d.select(d.a, d.g, zero), d.select(d.a, zero, d.g)]
    compare = test.op
    if (
        compare is not None
        and compare.name == "arith.cmpf"
        and "unshared" not in d.source.attrs
        and _share(d, 1)
        and ({*compare.operands} == {yes, no} and compare.attrs["predicate"] in _ORDERS)
    ):
        tie, half = d.equal(d.b, d.c), d.mul(d.g, d.number(0.5))
        shares = [d.select(tie, half, share) for share in shares]
    return [None, *shares]


_ORDERS = ("olt", "ole", "ogt", "oge", "ult", "ule", "ugt", "uge")


def _absolute(d: Local) -> list[Value | None]:
    zero = d.number(0.0)
    negative = d.select(d.less(d.a, zero), d.neg(d.g), zero)
    return [d.select(d.less(zero, d.a), d.g, negative)]


def _power(d: Local) -> list[Value | None]:
    """torch's conventions: the base's is 0 where the exponent is 0, the exponent's where the base
    is 0 (and the exponent is not negative)."""
    zero, one = d.number(0.0), d.number(1.0)
    constant = d.equal(d.b, zero)  # its further derivatives are 0, not 0 times an infinite one
    below = d.math("powf", d.a, d.sub(d.select(constant, one, d.b), one))
    base = d.select(constant, zero, d.mul(d.g, d.mul(d.b, below)))
    nothing = d.builder.op("arith.andi", d.equal(d.a, zero),
                           d.builder.op("arith.cmpf", d.b, zero, predicate="oge"))  # fmt: skip
    some = d.select(nothing, one, d.a)  # the logarithm of 0 has derivatives that are NaN
    log = d.mul(d.g, d.mul(d.y, d.math("log", some)))
    return [base, d.select(nothing, zero, log)]


def _quotient(d: Local) -> list[Value | None]:
    share = d.div(d.g, d.b)
    return [share, d.neg(d.mul(share, d.y))]


def _atan2(d: Local) -> list[Value | None]:
    """The quotients by the distance, twice: its square may be infinite, or 0, where it is not. 0 at
    the origin, as torch has it, and all further derivatives."""
    zero, one = d.number(0.0), d.number(1.0)
    none = d.builder.op("arith.andi", d.equal(d.a, zero), d.equal(d.b, zero))
    distance = d.math("hypot", d.select(none, one, d.a), d.b)
    share = d.select(none, zero, d.div(d.g, distance))
    return [d.mul(share, d.div(d.b, distance)), d.neg(d.mul(share, d.div(d.a, distance)))]


def _hypot(d: Local) -> list[Value | None]:
    return [d.mul(d.g, d.div(x, d.y)) for x in (d.a, d.b)]


def _copysign(d: Local) -> list[Value | None]:
    zero = d.number(0.0)
    same = d.math("copysign", d.number(1.0), d.a)
    wanted = d.math("copysign", d.number(1.0), d.b)
    signed = d.mul(d.g, d.mul(same, wanted))
    return [d.select(d.equal(d.a, zero), zero, signed), None]


def _remainder(d: Local) -> list[Value | None]:
    gone = d.select(d.equal(d.y, d.y), d.sub(d.a, d.y), d.a)  # no rest: a / 0, which is infinite
    whole = d.math("roundeven", d.div(gone, d.b))  # a / b may be rounded up to it
    return [d.g, d.neg(d.mul(d.g, whole))]


def _cast(d: Local) -> list[Value | None]:
    """Widening and narrowing: the adjoint of an f16 is carried in f32."""
    operand = d.source.operand.scalar
    have, need = d.g.scalar.bits, max(operand.bits, 32)
    if have == need:
        return [d.g]
    wide = d.builder.op("arith.extf" if need > have else "arith.truncf", d.g,
                        type=adjoint_type(operand))  # fmt: skip
    return [wide]


def adjoint_type(type: ScalarType) -> ScalarType:
    """The type in which the adjoint of a value of ``type`` is carried: f32 for f16 and bf16."""
    return compute_type(type)


_ROOT_PI = 2.0 / math.sqrt(math.pi)

RULES: dict[str, Rule] = {
    "arith.addf": lambda d: [d.g, d.g],
    "arith.subf": lambda d: [d.g, d.neg(d.g)],
    "arith.mulf": lambda d: [d.mul(d.g, d.b), d.mul(d.g, d.a)],
    "arith.divf": _quotient,
    "arith.remf": _remainder,
    "arith.negf": lambda d: [d.neg(d.g)],
    "arith.maximumf": lambda d: _extremum(d, less=False),
    "arith.minimumf": lambda d: _extremum(d, less=True),
    "arith.maxnumf": lambda d: _extremum(d, less=False),
    "arith.minnumf": lambda d: _extremum(d, less=True),
    "arith.select": _choice,
    "arith.extf": _cast,
    "arith.truncf": _cast,
    "math.absf": _absolute,
    "math.exp": _scaled(lambda d: d.y),
    "math.exp2": _scaled(lambda d: d.mul(d.y, d.number(math.log(2.0)))),
    "math.expm1": _scaled(lambda d: d.math("exp", d.a)),  # y + 1 has few digits where y is near -1
    "math.log": _over(lambda d: d.a),
    "math.log2": _over(lambda d: d.mul(d.a, d.number(math.log(2.0)))),
    "math.log10": _over(lambda d: d.mul(d.a, d.number(math.log(10.0)))),
    "math.log1p": _over(lambda d: d.add(d.a, d.number(1.0))),
    "math.sqrt": _over(lambda d: d.mul(d.number(2.0), d.y)),
    "math.rsqrt": _scaled(lambda d: d.mul(d.number(-0.5), d.mul(d.y, d.mul(d.y, d.y)))),
    "math.cbrt": _over(lambda d: d.mul(d.number(3.0), d.mul(d.y, d.y))),
    "math.sin": _scaled(lambda d: d.math("cos", d.a)),
    "math.cos": _scaled(lambda d: d.neg(d.math("sin", d.a))),
    "math.tan": _scaled(lambda d: d.add(d.number(1.0), d.mul(d.y, d.y))),
    "math.asin": _over(lambda d: d.math("sqrt", _one_minus_square(d))),
    "math.acos": _over(lambda d: d.neg(d.math("sqrt", _one_minus_square(d)))),
    "math.atan": _over(_one_plus_square),
    "math.sinh": _scaled(lambda d: d.math("cosh", d.a)),
    "math.cosh": _scaled(lambda d: d.math("sinh", d.a)),
    "math.tanh": _scaled(lambda d: d.sub(d.number(1.0), d.mul(d.y, d.y))),
    # Of the result: where exp(-x) overflows, what 1 / (1 + exp(-x)) gives step by step is NaN.
    "math.sigmoid": _scaled(lambda d: d.mul(d.y, d.sub(d.number(1.0), d.y))),
    "math.asinh": _over(lambda d: d.math("hypot", d.a, d.number(1.0))),
    "math.acosh": _over(_root_of_square_minus_one),
    "math.atanh": _over(_one_minus_square),
    "math.erf": _scaled(lambda d: d.mul(d.number(_ROOT_PI), d.math("exp", d.neg(d.mul(d.a, d.a))))),
    "math.erfc": _scaled(
        lambda d: d.mul(d.number(-_ROOT_PI), d.math("exp", d.neg(d.mul(d.a, d.a))))
    ),
    "math.powf": _power,
    "math.atan2": _atan2,
    "math.hypot": _hypot,
    "math.copysign": _copysign,
    "math.fma": lambda d: [d.mul(d.g, d.b), d.mul(d.g, d.a), d.g],
}  # fmt: skip

# Piecewise constant, or without floats among operands or results.
ZERO = frozenset((
    "arith.constant", "arith.addi", "arith.subi", "arith.muli", "arith.floordivsi", "arith.divui",
    "arith.remsi", "arith.remui", "arith.andi", "arith.ori", "arith.xori", "arith.shli",
    "arith.shrsi", "arith.shrui", "arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui",
    "arith.table", "arith.cmpi", "arith.cmpf", "arith.extsi", "arith.extui", "arith.trunci",
    "arith.index_cast",
    "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui", "math.floor", "math.ceil",
    "math.trunc", "math.roundeven", "math.absi", "math.isnan", "math.isinf", "math.ctpop",
    "math.philox", "math.detach",
    "memref.dim",
))  # fmt: skip

# Declared without a rule: a float's bits taken as a number have no derivative that means anything.
REFUSED: frozenset[str] = frozenset({"arith.bitcast"})
