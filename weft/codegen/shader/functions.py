"""Functions of a module, for what takes more than an expression.

Written in the part of WGSL that ``Dialect.function`` knows: T is the type, U the unsigned one of as
many bits.
"""

from __future__ import annotations

import re

from weft.codegen.shader.dialects import Dialect, type_of, unsigned_of
from weft.ir import philox
from weft.ir.types import ScalarType, f32, index

# Vulkan leaves open what the remainder of a negative number is (NVIDIA's driver: 28 for -4 % 8).
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
  return a - (a / b) * b;
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
}


def _remainder(t: ScalarType) -> str:
    """fmod by whole numbers, as many bits of the quotient at once as a word has room for. There is
    no loop: Mesa's driver for CPUs counts their turns, and ends them all together."""
    fraction, last, step = (23, 253, 8) if t is f32 else (52, 2045, 11)
    turn = (
        "  if (left > 0u) {\n"
        f"    let k: u32 = min(left, {step}u);\n"
        "    r = (r << k) % y;\n"
        "    left = left - k;\n"
        "  }"
    )
    shifts = [s for s in (32, 16, 8, 4, 2, 1) if s <= fraction]
    return "\n".join((
        f"""fn remf_t(a: T, b: T) -> T {{
  let top: U = U(1u) << {fraction}u;
  let m: U = bitcast<U>(a) & MAGNITUDE;
  let n: U = bitcast<U>(b) & MAGNITUDE;
  if (m >= INFINITE || n > INFINITE || n == U(0u)) {{ return nan_t(); }}
  if (m < n) {{ return a; }}
  let x: U = select(m & (top - U(1u)) | top, m, m < top);
  let y: U = select(n & (top - U(1u)) | top, n, n < top);
  var e: u32 = max(u32(n >> {fraction}u), 1u);
  var left: u32 = max(u32(m >> {fraction}u), 1u) - e;
  var r: U = x % y;""",
        *[turn for _ in range(0, last, step)],
        *(f"  if (r < (top >> {s - 1}u) && e > {s}u) {{ r = r << {s}u; e = e - {s}u; }}"
          for s in shifts),
        f"  r = select(r + (U(e - 1u) << {fraction}u), r, r == U(0u));",
        f"  return bitcast<T>(r | (bitcast<U>(a) & (U(1u) << {t.bits - 1}u)));",
        "}",
    ))  # fmt: skip


def _philox() -> str:
    """See ``weft.ir.philox``."""
    lines = ["fn philox_i64(key: i64, iteration: i64, number: i64) -> i32 {",
             "  let at: u64 = u64(number) >> 2u;"]  # fmt: skip
    whole = {"a": "at", "c": "u64(iteration)", "k": "u64(key)"}
    for (name, value), high in zip(whole.items(), "bdl", strict=True):
        lines += [f"  var {name}: u32 = u32({value} & u64({0xFFFFFFFF}u));",
                  f"  var {high}: u32 = u32({value} >> 32u);"]  # fmt: skip
    for turn in range(philox.ROUNDS):
        for name, factor in zip("ac", philox.MULTIPLIERS, strict=True):
            lines.append(f"  let {name}{turn}: u64 = u64({name}) * u64({factor}u);")
        lines += [
            f"  a = u32(c{turn} >> 32u) ^ b ^ k;",
            f"  b = u32(c{turn} & u64({0xFFFFFFFF}u));",
            f"  c = u32(a{turn} >> 32u) ^ d ^ l;",
            f"  d = u32(a{turn} & u64({0xFFFFFFFF}u));",
            f"  k = k + {philox.WEYL[0]}u;",
            f"  l = l + {philox.WEYL[1]}u;",
        ]
    lines += ["  let place: u32 = u32(number & i64(3));",
              "  return i32(select(select(a, b, place == 1u), select(c, d, place == 3u), "
              "place >= 2u));", "}"]  # fmt: skip
    return "\n".join(lines)


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
    "remf": ("special",),
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
    if name == "philox":
        return dialect.function(_philox())
    own, unsigned = type_of(t), unsigned_of(t)
    if name in _INTEGERS:
        text = _INTEGERS[name]
    else:
        text = _remainder(t) if name == "remf" else _FLOATS[name]
        exponent, fraction = (8, 23) if t is f32 else (11, 52)
        numbers = {
            "MAGNITUDE": f"(({unsigned}(1u) << {t.bits - 1}u) - {unsigned}(1u))",
            "INFINITE": f"({unsigned}({(1 << exponent) - 1}u) << {fraction}u)",
            "TOP": f"{t.bits - 1}u",
        }
        text = re.sub("|".join(numbers), lambda found: numbers[found[0]], text)
    suffix = "i64" if t is index else t.name
    text = re.sub(r"(\w)_t\(", rf"\1_{suffix}(", text)
    text = re.sub(r"\bT\b", own, re.sub(r"\bU\b", unsigned, text))
    return dialect.function(text)
