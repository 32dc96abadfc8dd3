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
* ``mod`` has the sign of the divisor (Python's ``%``), ``fmod`` that of the dividend (C's);
  ``fmod_exact`` is Python's ``math.fmod``, where no int takes the dtype of an element;
* ``pow`` is ``**``, ``pow_float`` Python's ``math.pow``, which gives a float.
"""

from __future__ import annotations

import builtins
import cmath
import collections
import functools
import itertools
import math as python_math
import operator
from typing import Any

import numpy as np
import torch

from weft.lang import atomics, elements, field, loops, math, pending, random
from weft.lang.vectors import Matrix, Vector

# One row a scalar function: the canonical name, what takes how many operands, and where it is found
# by that name: Python's math, torch, weft.math.
UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "isnan", "isinf", "sigmoid", "radians", "degrees", "bit_count",
    "floor", "ceil", "round", "trunc", "abs", "sign", "fract",
    "floor_int", "ceil_int", "round_int", "trunc_int", "isfinite", "fabs",
    "square", "reciprocal", "relu", "neg", "logical_not", "invert",
)  # fmt: skip
BINARY = (
    "pow", "atan2", "copysign", "mod", "fmod", "fmod_exact", "hypot", "fmin", "fmax", "step",
    "floordiv", "pow_float",
    "add", "sub", "mul", "truediv", "divmod",
    "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "and", "or", "xor",
)  # fmt: skip
# Of complex numbers: torch's, and Python's cmath, whose functions give complex numbers of any.
COMPLEX = ("conj", "angle", "sgn", "real", "imag", "polar", "complex")
CMATH = ("exp", "log", "sqrt", "sin", "cos", "sinh", "cosh")
# Of rows and whole tensors: torch's, which are called as functions and as methods.
ROWS = (
    "sum",
    "mean",
    "prod",
    "max",
    "min",
    "amax",
    "amin",
    "any",
    "all",
    "argmax",
    "argmin",
    "logsumexp",
    "softmax",
    "log_softmax",
    "norm",
    "var",
    "std",
    "dot",
    "mv",
    "matmul",
    "numel",
)
CASTS = ("int", "float", "bool")
ATOMICS = (
    "atomic_add", "atomic_sub", "atomic_mul", "atomic_min", "atomic_max", "atomic_and",
    "atomic_or", "atomic_xor", "atomic_exchange", "atomic_cas",
)  # fmt: skip
# What else weft.math, Python's math and torch have under its canonical name.
_SHARED = (
    "fma", "select", "clamp", "mix", "smoothstep", "dot", "cross", "length", "distance",
    "normalize", "reflect", "determinant", "inverse", "eye",
)  # fmt: skip
# What has another meaning under its name: torch's work on whole tensors, Python's give ints.
_OTHERWISE = {
    torch: {"dot", "cross", "inverse", "eye", "select", "normalize", "determinant"},
    python_math: {"floor", "ceil", "trunc"},
    math: set[str](),
}

# Canonical names by those of NumPy and of torch, where these differ.
NUMPY: dict[str, str] = {
    **{name: name for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "sin", "cos",
        "tan", "sinh", "cosh", "tanh", "isnan", "isinf", "isfinite", "floor", "ceil", "trunc",
        "square", "reciprocal", "fmod", "fmin", "fmax", "hypot", "copysign", "radians", "degrees",
        "logical_and", "logical_or", "logical_not",
    )},
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "absolute": "abs", "fabs": "fabs", "rint": "round",
    "deg2rad": "radians", "rad2deg": "degrees", "power": "pow", "float_power": "pow",
    "mod": "mod", "remainder": "mod", "add": "add", "subtract": "sub", "multiply": "mul",
    "divide": "truediv", "floor_divide": "floordiv", "negative": "neg", "invert": "invert",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "where": "select",
    "maximum": "maximum", "minimum": "minimum",
}  # fmt: skip
TORCH: dict[str, str] = {
    "special.exp2": "exp2", "special.log1p": "log1p", "special.round": "round", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "clip": "clamp", "true_divide": "truediv",
}  # fmt: skip

ITERTOOLS = (
    "accumulate", "batched", "chain", "combinations", "combinations_with_replacement", "compress",
    "count", "cycle", "dropwhile", "filterfalse", "groupby", "islice", "pairwise", "permutations",
    "product", "repeat", "starmap", "takewhile", "tee", "zip_longest",
)  # fmt: skip
BUILTINS: dict[Any, str] = {}


for _module, _except in _OTHERWISE.items():
    for _word in (*UNARY, *BINARY, *_SHARED):
        if _word in vars(_module) and _word not in _except:
            BUILTINS[getattr(_module, _word)] = _word
for _module, _words in (
    (builtins, (
        *CASTS, "range", "len", "print", "sum", "any", "all", "tuple", "list", "enumerate", "zip",
        "reversed", "isinstance", "next", "map", "filter", "abs", "min", "max", "pow", "divmod",
    )),
    (operator, ("abs", "pow", "mod", "add", "sub", "mul", "truediv", "floordiv", "neg", "invert",
                "xor", "lt", "le", "gt", "ge", "eq", "ne")),
    (loops, ("ndrange", "grouped", "serial", "static", "loop_config", "func",
             "static_assert", "static_print", "loop_unique", "stop_grad")),
    (field, ("zeros", "field")),
    (math, ("cast", "clz", "zero", "one", "bit_shr", "bit_cast", "raw_div", "raw_mod", "frexp",
            "widened", "narrowed")),
    (pending, ("sync",)), (elements, ("needs", "whole")),
    (random, ("random", "randn", "randint")),
    (torch.special, ("erf", "erfc", "expm1")),
    (torch, COMPLEX), (cmath, ("isnan", "isinf", "isfinite")),
    (torch.nn.functional, ("relu", "sigmoid", "tanh")),
):  # fmt: skip
    for _word in _words:
        BUILTINS[getattr(_module, _word)] = _word
for _word in ROWS:
    BUILTINS[getattr(torch, _word)] = f"torch.{_word}"
for _word in CMATH:
    BUILTINS[getattr(cmath, _word)] = f"c_{_word}"
for _word in ATOMICS:
    BUILTINS[getattr(atomics, _word, None) or getattr(atomics, f"{_word}_")] = _word
BUILTINS.update({
    torch.nn.functional.softmax: "torch.softmax", torch.linalg.vector_norm: "torch.vector_norm",
    torch.nn.functional.log_softmax: "torch.log_softmax", torch.linalg.norm: "torch.vector_norm",
    **{getattr(torch, word): "array" for word in ("zeros", "ones", "empty", "full")},
    builtins.complex: "complex", builtins.sorted: "sorted",
    functools.reduce: "reduce", python_math.prod: "product",
    **{f: f"itertools.{word}" for word in ITERTOOLS if (f := getattr(itertools, word, None))},
    collections.deque: "list", builtins.dict: "dict", builtins.set: "set",
    builtins.frozenset: "set",
    cmath.phase: "phase", cmath.rect: "polar",
    torch.conj_physical: "conj",
    python_math.floor: "floor_int", python_math.ceil: "ceil_int", python_math.trunc: "trunc_int",
    builtins.round: "round_int", torch.fix: "trunc", torch.frexp: "frexp",
    python_math.frexp: "frexp", python_math.fabs: "fabs",
    python_math.fmod: "fmod_exact", python_math.pow: "pow_float",
    torch.absolute: "abs", math.min: "minimum", torch.minimum: "minimum", math.max: "maximum",
    torch.maximum: "maximum", torch.remainder: "mod", torch.where: "select",
    torch.deg2rad: "radians", torch.rad2deg: "degrees", torch.arcsin: "asin",
    torch.arccos: "acos", torch.arctan: "atan", torch.arctan2: "atan2",
    torch.special.expit: "sigmoid", torch.subtract: "sub", torch.multiply: "mul",
    torch.div: "truediv", torch.divide: "truediv", torch.true_divide: "truediv",
    torch.floor_divide: "floordiv", torch.negative: "neg", torch.bitwise_not: "invert",
    operator.and_: "and", torch.bitwise_and: "and", operator.or_: "or", torch.bitwise_or: "or",
    torch.bitwise_xor: "xor", Vector: "Vector", Matrix: "Matrix", Vector.zero: "Vector.zero",
    Vector.one: "Vector.one", Vector.unit: "Vector.unit", Matrix.zero: "Matrix.zero",
    Matrix.one: "Matrix.one", Matrix.identity: "Matrix.identity", Matrix.diag: "Matrix.diag",
    Matrix.rows: "Matrix.rows", Matrix.cols: "Matrix.cols", field.var: "field",
    Vector.field: "field", Matrix.field: "field",
})  # fmt: skip


for _module, _table in ((np, NUMPY), (torch, TORCH)):
    for _path, _word in _table.items():
        BUILTINS.setdefault(operator.attrgetter(_path)(_module), _word)


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
