"""What calls of functions of torch, NumPy and Python's ``math`` stand for in a kernel, where it is
a formula of others: ``FORMULAS`` has a row ``name: where`` for each function of ``formulas.py``.
``docs/functions.md`` is made of it, and of the tables of ``names.py``.
"""

from __future__ import annotations

import functools
import importlib
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
    **{name: f"{_S}.{name}" for name in (
        "erfcx", "log_ndtr", "multigammaln", "spherical_bessel_j0",
        *(f"{form}chebyshev_polynomial_{kind}" for form in ("", "shifted_") for kind in "tuvw"),
        "hermite_polynomial_h",
        "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
    )},
    "gamma": "math.gamma", "ieee_remainder": "math.remainder", "modf": "math.modf numpy.modf",
    "dist": "math.dist", "sign_or_nan": "numpy.sign",
    "isclose": "torch.isclose numpy.isclose", "math_isclose": "math.isclose",
    "heaviside": "torch.heaviside numpy.heaviside", "signbit": "torch.signbit numpy.signbit",
    "frac": "torch.frac", "clip": "numpy.clip", "lerp": "torch.lerp",
}  # fmt: skip
# The function of whole_numbers.py: what it is elsewhere.
OF_INTEGERS: dict[str, str] = {
    "gcd": "torch.gcd numpy.gcd",
    "math_gcd": "math.gcd",
    "lcm": "torch.lcm numpy.lcm",
    "math_lcm": "math.lcm",
    **{name: f"math.{name}" for name in ("isqrt", "factorial", "perm", "comb")},
}
FORMULAS.update(OF_INTEGERS)
# The function of heaps.py: what it is elsewhere.
OF_LISTS: dict[str, str] = {
    **{name: f"heapq.{name}"
       for name in ("heappush", "heappop", "heapreplace", "heappushpop", "heapify")},
    "bisect_left": "bisect.bisect_left", "bisect_right": "bisect.bisect_right bisect.bisect",
    "insort_left": "bisect.insort_left", "insort_right": "bisect.insort_right bisect.insort",
}  # fmt: skip


def named(path: str) -> Any:
    """The object of a dotted name."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _elsewhere() -> dict[int, tuple[Any, str]]:
    """By the identity of a function of another library: itself, and the formula of that name."""
    both = [*FORMULAS.items(), *OF_LISTS.items()]
    rows = ((named(path), name) for name, paths in both for path in paths.split())
    return {id(function): (function, name) for function, name in rows}


def formula(name: str) -> Any:
    """The function of ``formulas.py``, ``whole_numbers.py`` or ``heaps.py``."""
    module = "heaps" if name in OF_LISTS else "whole_numbers" if name in OF_INTEGERS else "formulas"
    return getattr(importlib.import_module(f"weft.lang.{module}"), name)


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


# Classes whose objects are constants, where what they are made from is.
LIMITS = (torch.finfo, torch.iinfo, np.finfo, np.iinfo)
