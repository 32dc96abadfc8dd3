"""What Inductor computes a scalar operation with: the table of operations beside ``V.ops``.

``RULES[name](ops, op, *operands)`` gives the result as a value of Inductor's; ``OPAQUE[name]`` says
why there is none. Rules give what ``ir/scalar.py`` does: correctly rounded where that is, the same
of NaN, infinities and the sign of zero. Last bits of the functions of ``math`` are Inductor's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from weft.ir.core import Op
from weft.ir.types import ScalarType

Rule = Callable[..., Any]

TORCH = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "index": torch.int64, "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2, "f16": torch.float16, "bf16": torch.bfloat16,
    "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip


def torch_type(type: Any) -> torch.dtype:
    assert isinstance(type, ScalarType)
    return TORCH[type.name]


def _named(name: str) -> Rule:
    return lambda ops, op, *operands: getattr(ops, name)(*operands)


def _cast(ops: Any, op: Op, a: Any) -> Any:
    return ops.to_dtype(a, torch_type(op.result.type))


def _negated(rule: Rule) -> Rule:
    return lambda ops, op, *operands: ops.logical_not(rule(ops, op, *operands))


def _differ(ops: Any, op: Op, a: Any, b: Any) -> Any:
    return ops.bitwise_or(ops.lt(a, b), ops.gt(a, b))


def _unordered(ops: Any, op: Op, a: Any, b: Any) -> Any:
    return ops.bitwise_or(ops.isnan(a), ops.isnan(b))


_CMPF: dict[str, Rule] = {
    "oeq": _named("eq"), "olt": _named("lt"), "ole": _named("le"), "ogt": _named("gt"),
    "oge": _named("ge"), "one": _differ, "uno": _unordered, "ord": _negated(_unordered),
    "une": _named("ne"), "ueq": _negated(_differ), "ult": _negated(_named("ge")),
    "ule": _negated(_named("gt")), "ugt": _negated(_named("le")), "uge": _negated(_named("lt")),
}  # fmt: skip
_CMPI = {"eq": "eq", "ne": "ne", "slt": "lt", "sle": "le", "sgt": "gt", "sge": "ge"}


def _cmpi(ops: Any, op: Op, a: Any, b: Any) -> Any:
    return getattr(ops, _CMPI[op.attrs["predicate"]])(a, b)


def _fmod(ops: Any, op: Op, a: Any, b: Any) -> Any:
    """By doubles, in which no quotient of floats overflows, and none is denormal: C++ gives NaN
    there, Triton takes a denormal for 0."""
    wide = (ops.to_dtype(x, torch.float64) for x in (a, b))
    return ops.to_dtype(ops.fmod(*wide), torch_type(op.result.type))


def _maximum(ops: Any, op: Op, a: Any, b: Any) -> Any:
    """Inductor's, which gives either of two zeros; their sum is -0.0 where both are."""
    zero = ops.constant(0.0, torch_type(op.result.type))
    zeros = ops.bitwise_and(ops.eq(a, zero), ops.eq(b, zero))
    return ops.where(zeros, ops.add(a, b), ops.maximum(a, b))


def _minus(ops: Any, op: Op, a: Any) -> Any:
    """Not by 0 - a, as Triton does, which is 0.0 for 0.0."""
    return ops.mul(a, ops.constant(-1.0, torch_type(op.result.type)))


def _minimum(ops: Any, op: Op, a: Any, b: Any) -> Any:
    return _minus(ops, op, _maximum(ops, op, _minus(ops, op, a), _minus(ops, op, b)))


def _skipping_nan(rule: Rule) -> Rule:
    def number(ops: Any, op: Op, a: Any, b: Any) -> Any:
        found = ops.where(ops.isnan(b), a, rule(ops, op, a, b))
        return ops.where(ops.isnan(a), b, found)

    return number


_UNARY = {
    "absf": "abs", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin",
    "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
    "erf": "erf", "erfc": "erfc", "sigmoid": "sigmoid", "floor": "floor", "ceil": "ceil",
    "trunc": "trunc", "roundeven": "round", "isnan": "isnan", "isinf": "isinf",
}  # fmt: skip

RULES: dict[str, Rule] = {
    "arith.addf": _named("add"),
    "arith.subf": _named("sub"),
    "arith.mulf": _named("mul"),
    "arith.divf": _named("div_rn"),  # of ``fusion.py``: rounded correctly on each device
    "arith.remf": _fmod,
    "arith.maximumf": _maximum,
    "arith.minimumf": _minimum,
    "arith.maxnumf": _skipping_nan(_maximum),
    "arith.minnumf": _skipping_nan(_minimum),
    "arith.negf": _minus,
    "arith.cmpf": lambda ops, op, a, b: _CMPF[op.attrs["predicate"]](ops, op, a, b),
    "arith.cmpi": _cmpi,
    "arith.select": _named("where"),
    "arith.andi": _named("bitwise_and"),
    "arith.ori": _named("bitwise_or"),
    "arith.xori": _named("bitwise_xor"),
    "arith.minsi": _named("minimum"),
    "arith.maxsi": _named("maximum"),
    "arith.extsi": _cast,
    "arith.extui": _cast,
    "arith.trunci": _cast,
    "arith.index_cast": _cast,
    "arith.sitofp": _cast,
    "arith.uitofp": _cast,
    "arith.extf": _cast,
    "arith.truncf": _cast,
    **{f"math.{name}": _named(own) for name, own in _UNARY.items()},
    "math.powf": _named("pow"),
    "math.atan2": _named("atan2"),
    "math.hypot": _named("hypot"),
    "math.copysign": _named("copysign"),
}

_WRAPS = "integers that were loaded wrap, and C++ may assume that they do not"
_BY_ZERO = "the quotient of integers by zero is 0 here, and anything there"
_ORDER = "the iterations of a loop depend on each other"
_GRID = "it is an operation of a grid of threads"

OPAQUE: dict[str, str] = {
    **dict.fromkeys(("arith.addi", "arith.subi", "arith.muli", "math.absi"), _WRAPS),
    **dict.fromkeys(("arith.floordivsi", "arith.divui", "arith.remsi", "arith.remui"), _BY_ZERO),
    **dict.fromkeys(("arith.shli", "arith.shrsi", "arith.shrui"),
                    "a shift by the width or more shifts everything out here"),
    **dict.fromkeys(("arith.minui", "arith.maxui"), "Inductor has no unsigned minimum"),
    **dict.fromkeys(("arith.fptosi", "arith.fptoui"),
                    "a float out of range saturates as an integer here"),
    "arith.bitcast": "bits are taken for another type",
    "arith.table": "it looks numbers up in a table of constants",
    "math.cbrt": "Inductor has no cube root",
    "math.fma": "Inductor has no fused multiply-add on CPUs",
    "math.detach": "its derivative is declared to be 0",
    "math.ctpop": "Inductor does not count bits",
    "math.philox": "it draws random numbers, which Inductor would number otherwise",
    "memref.atomic_rmw": "iterations accumulate in one element",
    "memref.atomic_cas": "iterations accumulate in one element",
    "memref.alloca": "it has an array of its own",
    "memref.flatten": "it reads elements by their place in memory",
    "scf.while": _ORDER,
    **dict.fromkeys(("weft.assert", "weft.bounds", "weft.check_race"), "it checks values"),
    "weft.print": "it prints",
    **dict.fromkeys(("gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim",
                     "gpu.barrier", "gpu.copies_wait", "gpu.shuffle"), _GRID),
    **dict.fromkeys(
        ("weft.chunks", "weft.copies", "weft.copy_of", "weft.rare", "weft.rows_follow",
         "weft.threads", "weft.prefetch", "weft.to_line"),
        "it is made by schedules, which Inductor has its own of",
    ),
}  # fmt: skip

# Where Inductor's C++ has a function of its own that loses digits, and the sign of zero.
OPAQUE_ON_CPU = frozenset({"math.expm1", "math.atanh", "math.erf"})


def is_lossy_on_cpu(op: Op) -> bool:
    """Whether Inductor's C++ computes it otherwise: remainders of doubles, too (see ``_fmod``)."""
    doubles = op.name == "arith.remf" and op.result.scalar.bits == 64
    return doubles or op.name in OPAQUE_ON_CPU


# What ``fusion.py`` takes apart itself.
STRUCTURE = frozenset({
    "arith.constant", "memref.load", "memref.store", "memref.dim", "scf.parallel", "scf.reduce",
    "scf.for", "scf.if", "scf.condition", "scf.yield", "func.return",
})  # fmt: skip

# Reductions: what Inductor calls them, and what it starts from.
REDUCTIONS = {
    "addf": ("sum", 0.0), "mulf": ("prod", 1.0), "maximumf": ("max", -math.inf),
    "minimumf": ("min", math.inf), "maxnumf": ("max", -math.inf), "minnumf": ("min", math.inf),
}  # fmt: skip
