"""Every scalar operation against NumPy in float64 or in Python's unbounded integers."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch
from compiled import Compiled, poisoned
from samples import elementwise, parallel

from weft.codegen import float32
from weft.ir import philox
from weft.ir.builder import Builder
from weft.ir.core import Value
from weft.ir.ops import CMPF, CMPI
from weft.ir.types import (
    SCALARS,
    MemRefType,
    ScalarType,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
    index,
)  # fmt: skip
from weft.schedule.machine import CpuMachine

NUMPY = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "index": np.int64, "f8e4m3": np.uint8, "f8e5m2": np.uint8,
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
INTEGERS = (i8, i16, i32, i64, index)
SIZE = 1039  # not a multiple of any vector


def run(op: str, inputs: list[np.ndarray], operands: list[ScalarType], result: ScalarType, **attrs):
    out = poisoned(inputs[0].shape, NUMPY[result.name])
    Compiled(elementwise(op, operands, result, **attrs))(*inputs, out)
    return out


def random_integers(t: ScalarType, seed: str, size: int = SIZE) -> np.ndarray:
    """Integers of all magnitudes, with the extremes and small ones among them."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    info = np.iinfo(NUMPY[t.name])
    wide = rng.integers(info.min, info.max, size, dtype=info.dtype, endpoint=True)
    values = wide >> rng.integers(0, t.bits, size).astype(info.dtype)
    special = np.array([0, 1, -1, 2, -2, 7, info.min, info.max], info.dtype)
    values[rng.integers(0, size, size // 4)] = rng.choice(special, size // 4)
    return values


def wrap(value: int, t: ScalarType) -> int:
    value &= (1 << t.bits) - 1
    return value - (1 << t.bits) if value >> (t.bits - 1) else value


def unsigned(value: int, t: ScalarType) -> int:
    return value & ((1 << t.bits) - 1)


def c_rem(a: int, b: int) -> int:
    return 0 if b == 0 else int(math.copysign(1, a)) * (abs(a) % abs(b))


INTEGER_MEANING = {
    "addi": lambda a, b, t: a + b,
    "subi": lambda a, b, t: a - b,
    "muli": lambda a, b, t: a * b,
    "floordivsi": lambda a, b, t: a // b if b else 0,
    "divui": lambda a, b, t: unsigned(a, t) // unsigned(b, t) if b else 0,
    "remsi": lambda a, b, t: c_rem(a, b),
    "remui": lambda a, b, t: unsigned(a, t) % unsigned(b, t) if b else 0,
    "andi": lambda a, b, t: a & b,
    "ori": lambda a, b, t: a | b,
    "xori": lambda a, b, t: a ^ b,
    "shli": lambda a, b, t: a << b if 0 <= b < t.bits else 0,
    "shrsi": lambda a, b, t: a >> (b if 0 <= b < t.bits else t.bits - 1),
    "shrui": lambda a, b, t: unsigned(a, t) >> b if 0 <= b < t.bits else 0,
    "minsi": lambda a, b, t: min(a, b),
    "maxsi": lambda a, b, t: max(a, b),
    "minui": lambda a, b, t: min(unsigned(a, t), unsigned(b, t)),
    "maxui": lambda a, b, t: max(unsigned(a, t), unsigned(b, t)),
}


@pytest.mark.parametrize("t", INTEGERS, ids=str)
@pytest.mark.parametrize("op", INTEGER_MEANING)
@pytest.mark.sampled(3)
def test_integer_arithmetic(op: str, t: ScalarType) -> None:
    a, b = random_integers(t, f"{op}a"), random_integers(t, f"{op}b")
    if op.startswith("sh"):
        b = (b % (t.bits + 4)).astype(b.dtype) - 2  # also amounts that are too wide, or negative
    got = run(f"arith.{op}", [a, b], [t, t], t)
    expected = [wrap(INTEGER_MEANING[op](int(x), int(y), t), t) for x, y in zip(a, b, strict=True)]
    assert got.tolist() == expected


@pytest.mark.parametrize("op", ["andi", "ori", "xori"])
def test_bool_arithmetic(op: str) -> None:
    a, b = (random_integers(i8, op + x) > 0 for x in "ab")
    expected = {"andi": a & b, "ori": a | b, "xori": a ^ b}[op]
    got = run(f"arith.{op}", [a, b], [i1, i1], i1)
    assert got.view(np.uint8).max() <= 1
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("t", [i8, i32, i64], ids=str)
@pytest.mark.parametrize("predicate", CMPI)
def test_integer_comparison(predicate: str, t: ScalarType) -> None:
    a = random_integers(t, predicate)
    b = np.where(np.arange(SIZE) % 3 == 0, a, random_integers(t, predicate + "b"))
    compare = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
               "gt": np.greater, "ge": np.greater_equal}[predicate[-2:]]  # fmt: skip
    kind = NUMPY[t.name]
    if predicate[0] == "u":
        kind = np.dtype(kind).str.replace("i", "u")
    got = run("arith.cmpi", [a, b], [t, t], i1, predicate=predicate)
    np.testing.assert_array_equal(got, compare(a.view(kind), b.view(kind)))


def random_floats(t: ScalarType, seed: str) -> np.ndarray:
    """Floats with the special ones among them."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    values = rng.standard_normal(SIZE) * np.exp(rng.standard_normal(SIZE) * 3)
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, 2.5, -2.5]
    values[rng.integers(0, SIZE, SIZE // 4)] = rng.choice(special, SIZE // 4)
    return values.astype(NUMPY[t.name])


FLOAT_MEANING = {
    "addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide, "remf": np.fmod,
    "maximumf": np.maximum, "minimumf": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("t", [f32, f64], ids=str)
@pytest.mark.parametrize("op", FLOAT_MEANING)
def test_float_arithmetic(op: str, t: ScalarType) -> None:
    a, b = random_floats(t, op), random_floats(t, op + "b")
    with np.errstate(all="ignore"):
        expected = FLOAT_MEANING[op](a, b)
    np.testing.assert_array_equal(run(f"arith.{op}", [a, b], [t, t], t), expected)


@pytest.mark.parametrize("t", [f32, f64], ids=str)
@pytest.mark.parametrize("op", ["maxnumf", "minnumf"])
def test_an_extremum_of_nan_and_what_llvm_knows_to_be_a_number(op: str, t: ScalarType) -> None:
    """LLVM 22 gave NaN with AVX-512."""

    def body(b: Builder, args: list[Value], at: list[Value]) -> None:
        number = b.op("arith.sitofp", b.load(args[0], at), type=t)
        b.store(b.op(f"arith.{op}", number, b.load(args[1], at)), args[2], at)

    function = parallel([MemRefType(i8, 1), MemRefType(t, 1), MemRefType(t, 1)], 1, body)
    numbers = np.arange(SIZE).astype(np.int8)
    nan, out = np.full(SIZE, np.nan, NUMPY[t.name]), poisoned((SIZE,), NUMPY[t.name])
    Compiled(function, strict_math=True)(numbers, nan, out)
    np.testing.assert_array_equal(out, numbers.astype(out.dtype))


def test_a_number_shifted_out_of_its_bits_divides_as_zero_does() -> None:
    """LLVM 22 divided by ``3 << n`` in all lanes, and by 0 where n is 32 or more: SIGFPE. (With the
    other stores vectors pay.)"""

    def body(b: Builder, args: list[Value], at: list[Value]) -> None:
        n = b.op("arith.extui", b.load(args[0], at), type=i32)
        shifted = b.op("arith.shli", b.constant(3, i32), n)
        for k, other in enumerate(args[2:]):
            b.store(b.op("arith.xori", n, b.constant(k, i32)), other, at)
        b.store(b.op("arith.divui", shifted, shifted), args[1], at)

    function = parallel([MemRefType(i8, 1), *[MemRefType(i32, 1)] * 17], 1, body)
    n, (out, *others) = np.arange(SIZE).astype(np.int8), poisoned((17, SIZE), np.int32)
    Compiled(function)(n, out, *others)
    np.testing.assert_array_equal(out, (n.view(np.uint8) < 32).astype(np.int32))


@pytest.mark.parametrize("predicate", CMPF)
def test_float_comparison(predicate: str) -> None:
    a, b = random_floats(f32, "a"), random_floats(f32, "b")
    b = np.where(np.arange(SIZE) % 3 == 0, a, b)
    nan = np.isnan(a) | np.isnan(b)
    if predicate in ("ord", "uno"):
        expected = nan if predicate == "uno" else ~nan
    else:
        compare = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
                   "gt": np.greater, "ge": np.greater_equal}[predicate[1:]]  # fmt: skip
        expected = np.where(nan, predicate[0] == "u", compare(a, b))
    got = run("arith.cmpf", [a, b], [f32, f32], i1, predicate=predicate)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("t", [i1, i16, i64, f16, bf16, f32, f64], ids=str)
def test_select(t: ScalarType) -> None:
    condition = random_integers(i8, "c") > 0
    a, b = ((random_integers(i16, x) >> 2).astype(NUMPY[t.name]) for x in "ab")
    got = run("arith.select", [condition, a, b], [i1, t, t], t)
    np.testing.assert_array_equal(got, np.where(condition, a, b))


UNARY = {
    "absf": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "roundeven": np.round,
}  # fmt: skip


@pytest.mark.parametrize("t", [f32, f64], ids=str)
@pytest.mark.parametrize("op", UNARY)
def test_exact_functions(op: str, t: ScalarType) -> None:
    x = random_floats(t, op)
    with np.errstate(all="ignore"):
        expected = UNARY[op](x)
    np.testing.assert_array_equal(run(f"math.{op}", [x], [t], t), expected)


@pytest.mark.parametrize("t", [f32, f64], ids=str)
def test_float_predicates_and_sign(t: ScalarType) -> None:
    x, y = random_floats(t, "x"), random_floats(t, "y")
    np.testing.assert_array_equal(run("math.isnan", [x], [t], i1), np.isnan(x))
    np.testing.assert_array_equal(run("math.isinf", [x], [t], i1), np.isinf(x))
    np.testing.assert_array_equal(run("arith.negf", [x], [t], t), -x)
    np.testing.assert_array_equal(run("math.copysign", [x, y], [t, t], t), np.copysign(x, y))
    got = run("math.fma", [x, y, x], [t, t, t], t)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, x.astype(np.float64) * y + x, rtol=1e-5)


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_integer_functions(t: ScalarType) -> None:
    x = random_integers(t, "x")
    got = run("math.absi", [x], [t], t)
    assert got.tolist() == [wrap(abs(int(v)), t) for v in x]
    got = run("math.ctpop", [x], [t], t)
    assert got.tolist() == [unsigned(int(v), t).bit_count() for v in x]


def test_random_words_are_philox() -> None:
    wide = [random_integers(i64, name) for name in "xyz"]
    got = run("math.philox", wide, [i64] * 3, i32)
    assert got.tolist() == [wrap(philox.word(*map(int, v)), i32) for v in zip(*wide, strict=True)]


@pytest.mark.parametrize("source", [i1, *INTEGERS], ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_integer_conversions(source: ScalarType, target: ScalarType) -> None:
    x = random_integers(i8, "x") > 0 if source is i1 else random_integers(source, "x")
    if target.bits > source.bits:
        if source is not i1:
            got = run("arith.extsi", [x], [source], target)
            assert got.tolist() == [int(v) for v in x]
        got = run("arith.extui", [x], [source], target)
        assert got.tolist() == [wrap(unsigned(int(v), source), target) for v in x]
    else:
        got = run("arith.trunci", [x], [source], target)
        assert got.tolist() == [wrap(int(v), target) for v in x]
    if index in (source, target) and source is not i1:
        got = run("arith.index_cast", [x], [source], target)
        assert got.tolist() == [wrap(int(v), target) for v in x]


@pytest.mark.parametrize("t", [f32, f64], ids=str)
@pytest.mark.parametrize("source", [i1, i8, i32, i64], ids=str)
def test_integers_to_floats(source: ScalarType, t: ScalarType) -> None:
    x = random_integers(i8, "x") > 0 if source is i1 else random_integers(source, "x")
    kind = NUMPY[t.name]
    if source is not i1:
        np.testing.assert_array_equal(run("arith.sitofp", [x], [source], t), x.astype(kind))
    u = x if source is i1 else x.view(x.dtype.str.replace("i", "u"))
    np.testing.assert_array_equal(run("arith.uitofp", [x], [source], t), u.astype(kind))


@pytest.mark.parametrize("t", [f32, f64], ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_floats_to_integers_saturate(target: ScalarType, t: ScalarType) -> None:
    x = random_floats(t, "x") * NUMPY[t.name](1e3)
    half = 1 << (target.bits - 1)
    ends = np.array([2 * half, half, half - 1, half + 1, -half, -half - 1, -1, 1], x.dtype)
    near = [*ends, *(np.nextafter(ends, x.dtype.type(end)) for end in (0, 1e30, -1e30))]
    x[:36] = [1e30, -1e30, math.nan, -0.0, *np.hstack(near)]

    def saturate(low: int, high: int) -> list[int]:
        return [0 if math.isnan(v) else min(max(int(v) if math.isfinite(v) else
                (high if v > 0 else low), low), high) for v in map(float, x)]  # fmt: skip

    assert run("arith.fptosi", [x], [t], target).tolist() == saturate(-half, half - 1)
    got = run("arith.fptoui", [x], [t], target)
    assert [unsigned(int(v), target) for v in got] == saturate(0, 2 * half - 1)


def test_half_precision_conversions() -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(run("arith.extf", [every], [f16], f32), every.astype(np.float32))
    np.testing.assert_array_equal(run("arith.extf", [every], [f16], f64), every.astype(np.float64))
    x = random_floats(f32, "half")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run("arith.truncf", [x], [f32], f16), x.astype(np.float16))
        wide = x.astype(np.float64)
        np.testing.assert_array_equal(run("arith.truncf", [wide], [f64], f16), x.astype(np.float16))


def test_bfloat_conversions() -> None:
    every = np.arange(65536, dtype=np.uint16)
    expected = (every.astype(np.uint32) << 16).view(np.float32)
    expected_wide = np.array([float(v) for v in expected])
    np.testing.assert_array_equal(run("arith.extf", [every], [bf16], f32), expected)
    np.testing.assert_array_equal(run("arith.extf", [every], [bf16], f64), expected_wide)
    back = run("arith.truncf", [expected], [f32], bf16)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(back[numbers], every[numbers])
    assert np.isnan((back.astype(np.uint32) << 16).view(np.float32)[~numbers]).all()
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF], np.uint32)
    got = run("arith.truncf", [ties.view(np.float32)], [f32], bf16)
    assert got.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80]


def test_narrowing_to_f32_and_bitcast() -> None:
    x = random_floats(f64, "narrow")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run("arith.truncf", [x], [f64], f32), x.astype(np.float32))
    y = x.astype(np.float32)
    np.testing.assert_array_equal(run("arith.extf", [y], [f32], f64), y.astype(np.float64))
    np.testing.assert_array_equal(run("arith.bitcast", [y], [f32], i32), y.view(np.int32))
    np.testing.assert_array_equal(run("arith.bitcast", [y.view(np.int32)], [i32], f32), y)
    np.testing.assert_array_equal(run("arith.bitcast", [x], [f64], i64), x.view(np.int64))
    h = y.astype(np.float16)
    np.testing.assert_array_equal(run("arith.bitcast", [h], [f16], i16), h.view(np.int16))


# Row: function -> (its meaning on float64, an interval of arguments)
TRANSCENDENTAL = {
    "exp": (np.exp, (-80, 80)), "exp2": (np.exp2, (-120, 120)), "expm1": (np.expm1, (-5, 5)),
    "log": (np.log, (1e-6, 1e6)), "log2": (np.log2, (1e-6, 1e6)), "log10": (np.log10, (1e-6, 1e6)),
    "log1p": (np.log1p, (-0.9, 10)), "rsqrt": (lambda x: 1 / np.sqrt(x), (1e-6, 1e6)),
    "cbrt": (np.cbrt, (-100, 100)), "sin": (np.sin, (-30, 30)), "cos": (np.cos, (-30, 30)),
    "tan": (np.tan, (-1.5, 1.5)), "asin": (np.arcsin, (-1, 1)), "acos": (np.arccos, (-1, 1)),
    "atan": (np.arctan, (-30, 30)), "sinh": (np.sinh, (-10, 10)), "cosh": (np.cosh, (-10, 10)),
    "tanh": (np.tanh, (-5, 5)), "asinh": (np.arcsinh, (-30, 30)), "acosh": (np.arccosh, (1, 30)),
    "atanh": (np.arctanh, (-0.99, 0.99)), "erf": (np.vectorize(math.erf), (-3, 3)),
    "erfc": (np.vectorize(math.erfc), (-3, 6)),
}  # fmt: skip


def assert_ulps(got: np.ndarray, expected: np.ndarray, ulps: float) -> None:
    """Errors against values in higher precision, in units of the last place of ``got``."""
    unit = np.spacing(np.abs(expected.astype(got.dtype))).astype(np.float64)
    worst = np.max(np.abs(got.astype(np.float64) - expected.astype(np.float64)) / unit)
    assert worst <= ulps, f"{worst} ulp"


@pytest.mark.parametrize("op", TRANSCENDENTAL)
def test_transcendental_functions_f32(op: str) -> None:
    meaning, (low, high) = TRANSCENDENTAL[op]
    x = np.random.default_rng(5).uniform(low, high, SIZE).astype(np.float32)
    got = run(f"math.{op}", [x], [f32], f32)
    assert_ulps(got, meaning(x.astype(np.float64)), 2.0)


SMALLEST = 0.0  # a device may take what is smaller for 0


@pytest.mark.parametrize("scales", [True, False], ids=["as this machine", "without AVX-512"])
@pytest.mark.parametrize("op", float32.FUNCTIONS)
def test_written_out_functions_on_all_of_float32(
    op: str, scales: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not scales:
        monkeypatch.setattr(CpuMachine, "scales", False)
    bits = np.arange(0, 1 << 32, 50_021, dtype=np.uint64).astype(np.uint32)
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 1e-45, -1e-45, 88.722, 88.723, -87.34,
             -103.97, -104.0, 127.999, 128.0, -149.0, -150.0, 0.625, 0.9, 4.0, 3.4e38]  # fmt: skip
    x = np.concatenate([bits.view(np.float32), np.array(edges, np.float32)])
    x = x[~((np.abs(x) < SMALLEST) & (x != 0))]
    expected = getattr(torch, op)(torch.from_numpy(x).double()).numpy()
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
    got = run(f"math.{op}", [x], [f32], f32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(rounded[finite]))
    small = finite & (np.abs(rounded) < SMALLEST)
    assert np.all(np.abs(got[small]) <= SMALLEST)
    assert_ulps(got[finite & ~small], expected[finite & ~small], 1.5)


@pytest.mark.parametrize("op", TRANSCENDENTAL)
def test_transcendental_functions_f64(op: str) -> None:
    meaning, (low, high) = TRANSCENDENTAL[op]
    x = np.random.default_rng(6).uniform(low, high, SIZE)
    got = run(f"math.{op}", [x], [f64], f64)
    assert_ulps(got, meaning(x), 4.0)  # NumPy's own error is in this figure


@pytest.mark.parametrize("t", [f32, f64], ids=str)
def test_functions_of_two_numbers(t: ScalarType) -> None:
    rng = np.random.default_rng(7)
    kind = NUMPY[t.name]
    a, b = rng.uniform(0.1, 9, SIZE).astype(kind), rng.uniform(-5, 5, SIZE).astype(kind)
    wide = a.astype(np.float64), b.astype(np.float64)
    assert_ulps(run("math.powf", [a, b], [t, t], t), np.power(*wide), 2.0)
    assert_ulps(run("math.atan2", [b, a], [t, t], t), np.arctan2(wide[1], wide[0]), 2.0)


@pytest.mark.parametrize("op", ["exp", "log", "sqrt", "tanh", "sin"])
def test_special_values(op: str) -> None:
    x = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1e38, -1e38] * 8, np.float32)
    with np.errstate(all="ignore"):
        expected = getattr(np, op)(x.astype(np.float64)).astype(np.float32)
    got = run(f"math.{op}", [x], [f32], f32)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_tanh_is_within_two_units_in_the_last_place() -> None:
    rng = np.random.default_rng(3)
    x = np.exp(rng.uniform(-90, 5, 200_003)) * rng.choice([-1, 1], 200_003)
    x = np.concatenate([x, rng.uniform(-1, 1, 200_000)]).astype(np.float32)
    got = run("math.tanh", [x], [f32], f32)
    exact = np.tanh(x.astype(np.float64))
    assert np.all(np.abs(got - exact) <= 2 * np.spacing(np.abs(exact).astype(np.float32)))
    zero = run("math.tanh", [np.full(33, -0.0, np.float32)], [f32], f32)
    assert np.all(np.signbit(zero))


@pytest.mark.parametrize("t", list(SCALARS.values()), ids=str)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 127])
@pytest.mark.sampled(3)
def test_copies_of_every_dtype_and_size(t: ScalarType, size: int) -> None:
    flags = np.random.default_rng(8).integers(0, 2, size).astype(np.bool_)
    x = (random_integers(i16, "copy", size + 8)[:size] >> 2).astype(NUMPY[t.name])
    got = run("arith.select", [flags, x, x], [i1, t, t], t)
    np.testing.assert_array_equal(got, x)
