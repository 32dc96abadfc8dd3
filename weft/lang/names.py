"""Every name that means something to the frontend, by identity of the Python object.

``BUILTINS[object]`` is the canonical name that the frontend lowers by. What is recognised by class
instead is not in the table: ``DType``, ``VectorType``, ``MatrixType``, ``NDArrayType``,
``Template``, ``Arch`` objects, and functions marked by ``weft.func``. A canonical name means one
thing:

* ``floor``, ``ceil``, ``round``, ``trunc`` keep a float a float; ``floor_int``, ``ceil_int``,
  ``round_int``, ``trunc_int`` are Python's own, which give an int (``round_int`` with digits a
  float);
* ``min`` and ``max`` are variadic and of Python's order (the first argument wins where comparison
  is false); ``minimum`` and ``maximum`` are NaN where an argument is; ``fmin``, ``fmax`` are not;
* ``mod`` has the sign of the divisor (Python's ``%``), ``fmod`` that of the dividend (C's).
"""

from __future__ import annotations

import builtins
import math as python_math
import operator
from typing import Any

import torch

from weft.lang import atomics, field, loops, math, pending
from weft.lang.vectors import Matrix, Vector

# One row a scalar function: the canonical name, what takes how many operands, and where it is found
# by that name: Python's math, torch, weft.math.
UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "isnan", "isinf", "sigmoid", "radians", "degrees", "bit_count",
    "floor", "ceil", "round", "trunc", "abs", "sign", "fract",
    "floor_int", "ceil_int", "round_int", "trunc_int", "isfinite",
    "square", "reciprocal", "relu", "neg", "logical_not", "invert",
)  # fmt: skip
BINARY = (
    "pow", "atan2", "copysign", "mod", "fmod", "hypot", "fmin", "fmax", "step", "floordiv",
    "add", "sub", "mul", "truediv", "divmod",
    "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "and", "or", "xor",
)  # fmt: skip
TERNARY = ("fma", "select", "clamp", "mix", "smoothstep")
VARIADIC = ("min", "max", "minimum", "maximum")
CASTS = ("int", "float", "bool")
ATOMICS = (
    "atomic_add", "atomic_sub", "atomic_mul", "atomic_min", "atomic_max", "atomic_and",
    "atomic_or", "atomic_xor", "atomic_exchange", "atomic_cas",
)  # fmt: skip
LOOPS = ("range", "ndrange", "grouped", "serial", "static", "loop_config")
VECTORS = (
    "Vector", "Matrix", "Vector.zero", "Vector.one", "Vector.unit", "Matrix.zero", "Matrix.one",
    "Matrix.identity", "Matrix.diag", "Matrix.rows", "Matrix.cols",
    "dot", "cross", "length", "distance", "normalize", "reflect", "determinant", "inverse", "eye",
)  # fmt: skip
OTHER = (
    "len", "print", "sum", "any", "all", "tuple", "list", "enumerate", "zip", "isinstance",
    "zeros", "func", "sync", "field",
)  # fmt: skip
CANONICAL = frozenset(
    UNARY + BINARY + TERNARY + VARIADIC + CASTS + ATOMICS + LOOPS + VECTORS + OTHER
)

BUILTINS: dict[Any, str] = {}


def _name(canonical: str, *objects: Any) -> None:
    for known in objects:
        BUILTINS[known] = canonical


# Found under the same name everywhere it exists.
for _module in (torch, python_math, math):
    for _word in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt",
        "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf", "erfc", "isnan", "isinf", "isfinite", "sigmoid",
        "radians", "degrees", "bit_count", "sign", "fract", "pow", "atan2", "copysign", "fmod",
        "hypot", "fmin", "fmax", "step", "fma", "select", "clamp", "mix", "smoothstep", "mod",
        "square", "reciprocal", "relu", "neg", "logical_not", "logical_and", "logical_or",
        "dot", "cross", "length", "distance", "normalize", "reflect", "determinant", "inverse",
        "eye",
    ):  # fmt: skip
        # torch's dot, cross, inverse, eye, select and fma-like functions work on whole tensors.
        _whole = {"dot", "cross", "inverse", "eye", "select", "normalize", "determinant"}
        if hasattr(_module, _word) and not (_module is torch and _word in _whole):
            _name(_word, getattr(_module, _word))

for _word in ("floor", "ceil", "trunc"):
    _name(_word, getattr(torch, _word), getattr(math, _word))
    _name(f"{_word}_int", getattr(python_math, _word))
_name("round", torch.round, math.round)
_name("round_int", builtins.round)
_name("trunc", torch.fix)
_name("abs", builtins.abs, python_math.fabs, operator.abs, torch.abs, torch.absolute, math.abs)
_name("min", builtins.min)
_name("max", builtins.max)
_name("minimum", math.min, torch.minimum)
_name("maximum", math.max, torch.maximum)
_name("pow", builtins.pow, operator.pow)
_name("mod", operator.mod, torch.remainder)
_name("divmod", builtins.divmod)
_name("select", torch.where)
_name("radians", torch.deg2rad)
_name("degrees", torch.rad2deg)
_name("asin", torch.arcsin)
_name("acos", torch.arccos)
_name("atan", torch.arctan)
_name("atan2", torch.arctan2)
_name("erf", torch.special.erf)
_name("erfc", torch.special.erfc)
_name("expm1", torch.special.expm1)
_name("sigmoid", torch.special.expit)
_name("relu", torch.nn.functional.relu)
_name("sigmoid", torch.nn.functional.sigmoid)
_name("tanh", torch.nn.functional.tanh)
_name("add", operator.add, torch.add)
_name("sub", operator.sub, torch.sub, torch.subtract)
_name("mul", operator.mul, torch.mul, torch.multiply)
_name("truediv", operator.truediv, torch.div, torch.divide, torch.true_divide)
_name("floordiv", operator.floordiv, torch.floor_divide)
_name("neg", operator.neg, torch.negative)
_name("invert", operator.invert, torch.bitwise_not)
_name("and", operator.and_, torch.bitwise_and)
_name("or", operator.or_, torch.bitwise_or)
_name("xor", operator.xor, torch.bitwise_xor)
for _word in ("lt", "le", "gt", "ge", "eq", "ne"):
    _name(_word, getattr(operator, _word), getattr(torch, _word))

_name("int", int)
_name("float", float)
_name("bool", bool)
for _word in (
    "len", "print", "sum", "any", "all", "tuple", "list", "enumerate", "zip", "isinstance",
):  # fmt: skip
    _name(_word, getattr(builtins, _word))

_name("range", range)
for _word in ("ndrange", "grouped", "serial", "static", "loop_config"):
    _name(_word, getattr(loops, _word))
for _word in ATOMICS:
    _python = f"{_word}_" if _word in ("atomic_and", "atomic_or") else _word
    _name(_word, getattr(atomics, _python))

_name("Vector", Vector)
_name("Matrix", Matrix)
_name("Vector.zero", Vector.zero)
_name("Vector.one", Vector.one)
_name("Vector.unit", Vector.unit)
_name("Matrix.zero", Matrix.zero)
_name("Matrix.one", Matrix.one)
_name("Matrix.identity", Matrix.identity)
_name("Matrix.diag", Matrix.diag)
_name("Matrix.rows", Matrix.rows)
_name("Matrix.cols", Matrix.cols)
_name("zeros", field.zeros)
_name("field", field.field, field.var, Vector.field, Matrix.field)
_name("sync", pending.sync)
_name("func", loops.func)

# Methods and attributes of vectors and matrices. Swizzles (``v.xyz``) are in vectors.SWIZZLES.
VECTOR_METHODS = frozenset([
    "dot", "cross", "norm", "norm_sqr", "normalized", "outer_product", "sum", "min", "max", "any",
    "all", "cast", "to_list",
])  # fmt: skip
MATRIX_METHODS = frozenset([
    "transpose", "determinant", "inverse", "trace", "row", "column", "norm", "norm_sqr", "sum",
    "min", "max", "any", "all", "cast", "to_list",
])  # fmt: skip
VECTOR_ATTRIBUTES = frozenset({"n", "m", "shape"})


# What was in these modules when weft was imported: torch.export replaces some of it for its own.
_MEMBERS = {id(m): dict(vars(m)) for m in (builtins, python_math, operator)}


def member(module: Any, name: str, default: Any) -> Any:
    """An attribute of a module; of builtins, math and operator as Python has it."""
    found = _MEMBERS.get(id(module), {}).get(name, default)
    return getattr(module, name, default) if found is default else found


def canonical(value: object) -> str | None:
    """The canonical name of a Python object, or None for what the language does not know."""
    try:
        return BUILTINS.get(value)
    except TypeError:  # not hashable: no builtin is
        return None
