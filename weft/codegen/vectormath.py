"""Transcendental functions: C's names for one number, and SLEEF's for vectors of them.

SLEEF's vector functions are exported by torch's ``libtorch_cpu``; their names end with the largest
error in tenths of a unit in the last place.
"""

from __future__ import annotations

from weft.ir.types import ScalarType, f32

# Row: our name -> (C's name for double, SLEEF's bound on the error in 0.1 ulp)
FUNCTIONS: dict[str, tuple[str, str]] = {
    "exp": ("exp", "10"), "exp2": ("exp2", "10"), "expm1": ("expm1", "10"),
    "log": ("log", "10"), "log2": ("log2", "10"), "log10": ("log10", "10"),
    "log1p": ("log1p", "10"), "sin": ("sin", "10"), "cos": ("cos", "10"), "tan": ("tan", "10"),
    "asin": ("asin", "10"), "acos": ("acos", "10"), "atan": ("atan", "10"),
    "sinh": ("sinh", "10"), "cosh": ("cosh", "10"), "tanh": ("tanh", "10"),
    "asinh": ("asinh", "10"), "acosh": ("acosh", "10"), "atanh": ("atanh", "10"),
    "erf": ("erf", "10"), "erfc": ("erfc", "15"), "cbrt": ("cbrt", "10"),
    "powf": ("pow", "10"), "atan2": ("atan2", "10"), "hypot": ("hypot", "05"),
}  # fmt: skip


def scalar_name(function: str, t: ScalarType) -> str:
    """The function in libm: ``expf`` for float32, ``exp`` for float64."""
    return FUNCTIONS[function][0] + ("f" if t is f32 else "")


def sleef_name(function: str, t: ScalarType, lanes: int) -> str:
    """SLEEF's function on ``lanes`` numbers: ``Sleef_expf16_u10``, ``Sleef_expd8_u10``."""
    name, ulp = FUNCTIONS[function]
    return f"Sleef_{name}{'f' if t is f32 else 'd'}{lanes}_u{ulp}"


def variants(function: str, t: ScalarType, lanes: tuple[int, ...]) -> list[str]:
    """The vector-function-abi-variant strings that tell LLVM of SLEEF's vector functions."""
    operands = "vv" if function in ("powf", "atan2", "hypot") else "v"
    scalar = scalar_name(function, t)
    return [f"_ZGV_LLVM_N{n}{operands}_{scalar}({sleef_name(function, t, n)})" for n in lanes]
