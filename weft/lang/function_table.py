"""What functions of torch, NumPy and Python's ``math`` mean in a kernel: one table, from which the
frontend reads what a call stands for, and of which ``docs/functions.md`` is made.

``FORMULAS``: a row ``name: where`` of a function of ``formulas.py``; ``NUMPY``: NumPy's names of
functions that ``names.py`` has under another, or the same, name.
"""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from weft.errors import KernelTypeError
from weft.lang.dtypes import from_numpy

_F, _S = "torch.nn.functional", "torch.special"
# The function of formulas.py: what it is elsewhere.
FORMULAS: dict[str, str] = {
    **{name: f"{_F}.{name}" for name in (
        "gelu", "silu", "softplus", "logsigmoid", "mish", "elu", "celu", "selu", "leaky_relu",
        "hardtanh", "relu6", "hardsigmoid", "hardswish", "softsign", "tanhshrink", "softshrink",
        "hardshrink", "threshold",
    )},
    "logaddexp": "torch.logaddexp numpy.logaddexp",
    "logaddexp2": "torch.logaddexp2 numpy.logaddexp2",
    "xlogy": f"torch.xlogy {_S}.xlogy", "xlog1py": f"{_S}.xlog1py", "entr": f"{_S}.entr",
    "logit": f"torch.logit {_S}.logit", "sinc": f"torch.sinc {_S}.sinc numpy.sinc",
    "ldexp": "torch.ldexp math.ldexp numpy.ldexp",
    "lgamma": f"torch.lgamma {_S}.gammaln math.lgamma",
    "digamma": f"torch.digamma {_S}.digamma {_S}.psi",
    "erfinv": f"torch.erfinv {_S}.erfinv", "ndtr": f"{_S}.ndtr",
    "i0": f"torch.i0 {_S}.i0 {_S}.modified_bessel_i0 numpy.i0", "i0e": f"{_S}.i0e",
    "i1": f"{_S}.i1 {_S}.modified_bessel_i1", "i1e": f"{_S}.i1e",
    "gcd": "torch.gcd math.gcd numpy.gcd", "lcm": "torch.lcm math.lcm numpy.lcm",
    "isclose": "torch.isclose numpy.isclose", "math_isclose": "math.isclose",
    "heaviside": "torch.heaviside", "signbit": "torch.signbit numpy.signbit",
    "frac": "torch.frac", "clip": "numpy.clip", "lerp": "torch.lerp",
}  # fmt: skip
# Canonical names of names.py, by NumPy's and torch's names for them where these differ.
NUMPY: dict[str, str] = {
    **{name: name for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "sin", "cos",
        "tan", "sinh", "cosh", "tanh", "isnan", "isinf", "isfinite", "floor", "ceil", "trunc",
        "square", "reciprocal", "fmod", "fmin", "fmax", "hypot", "copysign", "radians", "degrees",
        "logical_and", "logical_or", "logical_not",
    )},
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "absolute": "abs", "fabs": "abs", "rint": "round",
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


def named(path: str) -> Any:
    """The object of a dotted name."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _elsewhere() -> dict[int, tuple[Any, str]]:
    """By the identity of a function of another library: itself, and the formula of that name."""
    rows = ((named(path), name) for name, paths in FORMULAS.items() for path in paths.split())
    return {id(function): (function, name) for function, name in rows}


def formula(name: str) -> Any:
    """The function of ``formulas.py``."""
    return getattr(importlib.import_module("weft.lang.formulas"), name)


def stands_for(target: Any) -> Any:
    """What a call of a function that ``names.py`` does not know calls in a kernel: a formula, a
    dtype for one of NumPy's; ``target`` itself where there is nothing else."""
    if isinstance(target, type) and issubclass(target, np.generic):
        try:
            return from_numpy(target)
        except KernelTypeError:
            return target
    _, name = _elsewhere().get(id(target), (None, ""))
    return formula(name) if name else target


def renamed() -> Iterator[tuple[Any, str]]:
    """Functions of NumPy and torch with the canonical names that they have in ``names.py``."""
    for module, table in ((np, NUMPY), (torch, TORCH)):
        for name, canonical in table.items():
            yield operator.attrgetter(name)(module), canonical


# Classes whose objects are constants, where what they are made from is.
LIMITS = (torch.finfo, torch.iinfo, np.finfo, np.iinfo)
