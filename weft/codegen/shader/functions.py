"""Functions of a module, for what takes more than an expression.

Written in the part of WGSL that ``Dialect.function`` knows: T is the type, U the unsigned one of as
many bits.
"""

from __future__ import annotations

import re

from weft.codegen.shader.dialects import Dialect, type_of, unsigned_of
from weft.ir.types import ScalarType, f32, index

_INTEGERS = {
    "floordivsi": """fn floordivsi_t(a: T, b: T) -> T {
  if (b == T(0)) { return T(0); }
  if (b == T(-1)) { return T(U(0u) - U(a)); }
  let q: T = a / b;
  let r: T = a - q * b;
  return select(q, q - T(1), r != T(0) && (r ^ b) < T(0));
}""",
    "remsi": """fn remsi_t(a: T, b: T) -> T {
  if (b == T(0) || b == T(-1)) { return T(0); }
  return a % b;
}""",
    "divui": """fn divui_t(a: U, b: U) -> U {
  if (b == U(0u)) { return U(0u); }
  return a / b;
}""",
    "remui": """fn remui_t(a: U, b: U) -> U {
  if (b == U(0u)) { return U(0u); }
  return a % b;
}""",
}

_EXTREMUM = """fn NAME_t(a: T, b: T) -> T {
  if (isnan_t(a)) { return FIRST; }
  if (isnan_t(b)) { return SECOND; }
  if (a == b) { return bitcast<T>(bitcast<U>(a) SIGN bitcast<U>(b)); }
  return select(b, a, a ORDER b);
}"""


def _extremum(name: str, *, number: bool, largest: bool) -> str:
    words = {
        "NAME": name, "FIRST": "b" if number else "a", "SECOND": "a" if number else "b",
        "SIGN": "&" if largest else "|", "ORDER": ">" if largest else "<",
    }  # fmt: skip
    text = _EXTREMUM
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


_FLOATS = {
    "isnan": """fn isnan_t(a: T) -> bool {
  return (bitcast<U>(a) & MAGNITUDE) > INFINITE;
}""",
    "isinf": """fn isinf_t(a: T) -> bool {
  return (bitcast<U>(a) & MAGNITUDE) == INFINITE;
}""",
    "copysign": """fn copysign_t(a: T, b: T) -> T {
  return bitcast<T>((bitcast<U>(a) & MAGNITUDE) | (bitcast<U>(b) & (U(1u) << TOP)));
}""",
    "maximumf": _extremum("maximumf", number=False, largest=True),
    "minimumf": _extremum("minimumf", number=False, largest=False),
    "maxnumf": _extremum("maxnumf", number=True, largest=True),
    "minnumf": _extremum("minnumf", number=True, largest=False),
    # Each difference is exact: what is taken off is b times a power of two, and more than a half.
    "remf": """fn remf_t(a: T, b: T) -> T {
  if (isnan_t(a) || isnan_t(b) || isinf_t(a) || b == T(0.0)) { return nan_t(); }
  var x: T = abs(a);
  let y: T = abs(b);
  if (isinf_t(b) || x < y) { return a; }
  while (x >= y) {
    var z: T = y;
    while (z <= x * T(0.5)) { z = z + z; }
    x = x - z;
  }
  return copysign_t(x, a);
}""",
}

_HALVES = {
    "widened_f16": """fn widened_f16(bits: u32) -> f32 {
  let sign: u32 = (bits & 0x8000u) << 16u;
  let exponent: u32 = (bits >> 10u) & 31u;
  let fraction: u32 = bits & 1023u;
  if (exponent == 31u) { return bitcast<f32>(sign | 0x7f800000u | (fraction << 13u)); }
  if (exponent == 0u) {
    let size: f32 = f32(fraction) * 5.9604644775390625e-8f;
    return select(size, -size, sign != 0u);
  }
  return bitcast<f32>(sign | ((exponent + 112u) << 23u) | (fraction << 13u));
}""",
    "narrowed_f16": """fn narrowed_f16(x: f32) -> u32 {
  let bits: u32 = bitcast<u32>(x);
  let sign: u32 = (bits >> 16u) & 0x8000u;
  let size: u32 = bits & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x47800000u) { return sign | 0x7c00u; }
  if (size >= 0x38800000u) {
    return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
  }
  if (size < 0x33000000u) { return sign; }
  let whole: u32 = (size & 0x7fffffu) | 0x800000u;
  let shift: u32 = 126u - (size >> 23u);
  let half: u32 = 1u << (shift - 1u);
  return sign | ((whole + half - 1u + ((whole >> shift) & 1u)) >> shift);
}""",
    "narrowed_bf16": """fn narrowed_bf16(x: f32) -> u32 {
  let bits: u32 = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return (bits >> 16u) | 0x40u; }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}""",
}

_BEFORE = {
    **dict.fromkeys(("maximumf", "minimumf", "maxnumf", "minnumf"), ("isnan",)),
    "remf": ("isnan", "isinf", "copysign", "special"),
}


def functions(needs: set[tuple[str, ScalarType]], dialect: Dialect) -> list[str]:
    """The text of functions, each behind those that it calls."""
    order: dict[tuple[str, ScalarType], None] = {}
    for name, t in sorted(needs, key=lambda need: (need[0], need[1].name)):
        order.update(dict.fromkeys((inner, t) for inner in _BEFORE.get(name, ())))
        order[name, t] = None
    return [_function(name, t, dialect) for name, t in order]


def _function(name: str, t: ScalarType, dialect: Dialect) -> str:
    if name in ("special", "zero"):
        return dialect.special(t) if name == "special" else dialect.zero(t)
    if f"{name}_{t.name}" in _HALVES:
        return dialect.function(_HALVES[f"{name}_{t.name}"])
    own, unsigned = type_of(t), unsigned_of(t)
    if name in _INTEGERS:
        text = _INTEGERS[name]
    else:
        exponent, fraction = (8, 23) if t is f32 else (11, 52)
        numbers = {
            "MAGNITUDE": f"(({unsigned}(1u) << {t.bits - 1}u) - {unsigned}(1u))",
            "INFINITE": f"({unsigned}({(1 << exponent) - 1}u) << {fraction}u)",
            "TOP": f"{t.bits - 1}u",
        }
        text = re.sub("|".join(numbers), lambda found: numbers[found[0]], _FLOATS[name])
    suffix = "i64" if t is index else t.name
    text = re.sub(r"(\w)_t\(", rf"\1_{suffix}(", text)
    text = re.sub(r"\bT\b", own, re.sub(r"\bU\b", unsigned, text))
    return dialect.function(text)
