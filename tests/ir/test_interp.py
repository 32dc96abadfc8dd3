"""The interpreter: each operation against numpy, torch or Python, control flow, checks, races."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.kernels import (
    axpy,
    causal_conv,
    conditional,
    function,
    histogram,
    random_arguments,
    random_function,
    sum_reduction,
    tensor,
    while_loop,
)
from weft.errors import KernelAssertionError, KernelIndexError, KernelTypeError, RaceError
from weft.ir.core import Op
from weft.ir.interp import evaluate, run
from weft.ir.ops import CMPF, CMPI
from weft.ir.text import parse_function, print_function
from weft.ir.types import ScalarType, bf16, f16, f32, f64, i1, i8, i16, i32, i64, index
from weft.source import Span

INTS = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "index": np.int64}


def compute(name: str, type: ScalarType, *values: Any, to: ScalarType | None = None, **attrs: Any):
    """The value of one operation; ``to`` is its result's type where that is not the operands'."""
    _, _, args = function("one", **{f"a{k}": type for k in range(len(values))})
    return evaluate(Op(name, list(args), [to or type], attrs), values)


def floats(type: ScalarType, low: float = -1e4, high: float = 1e4) -> list[Any]:
    g = np.random.default_rng()
    made = g.uniform(low, high, 40) * 10.0 ** g.integers(-6, 1, 40)
    return [(np.float32 if type is f32 else np.float64)(v) for v in made]


def same_float(a: Any, b: Any) -> bool:
    """Equal with signs of zeros; any NaN is any other."""
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(a) and np.isnan(b))
    return bool(a == b and np.signbit(a) == np.signbit(b))


SPECIAL = (0.0, -0.0, 1.0, -1.5, 1e-40, math.inf, -math.inf, math.nan)

UNARY = {
    "absf": torch.abs, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos,
    "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
    "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh,
    "acosh": torch.acosh, "atanh": torch.atanh, "erf": torch.erf, "erfc": torch.erfc,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "roundeven": torch.round,
    "cbrt": lambda x: torch.from_numpy(np.cbrt(x.numpy())),
}  # fmt: skip


@pytest.mark.parametrize("type", [f32, f64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_float(name: str, type: ScalarType) -> None:
    scale = 1.0 if name in ("asin", "acos", "atanh") else 30.0
    kind = np.float32 if type is f32 else np.float64
    for value in [*floats(type, -scale, scale), *map(kind, SPECIAL)]:
        got = compute(f"math.{name}", type, value)
        wide = UNARY[name](torch.tensor([float(value)], dtype=torch.float64)).numpy()[0]
        with np.errstate(over="ignore"):
            want = kind(wide)
        assert got.dtype == kind
        close = np.isclose(got, want, rtol=1e-6 if type is f32 else 1e-12, atol=0, equal_nan=True)
        assert close, (value, got, want)


@pytest.mark.parametrize("type", [f32, f64], ids=str)
def test_functions_of_two_floats(type: ScalarType) -> None:
    kind = np.float32 if type is f32 else np.float64
    dtype = torch.float32 if type is f32 else torch.float64
    special = [kind(v) for v in SPECIAL]
    pairs = [*zip(floats(type), floats(type), strict=True), *itertools.product(special, special)]
    exact = {
        "arith.addf": torch.add, "arith.subf": torch.sub, "arith.mulf": torch.mul,
        "arith.divf": torch.div, "arith.remf": torch.fmod, "math.copysign": torch.copysign,
    }  # fmt: skip
    for a, b in pairs:
        x, y = torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype)
        for name, theirs in exact.items():
            got, want = compute(name, type, a, b), theirs(x, y).numpy()[0]
            assert got.dtype == kind
            assert same_float(got, want), (name, a, b, got, want)
        for name, theirs in (("arith.maximumf", torch.maximum), ("arith.minimumf", torch.minimum)):
            assert np.array_equal(compute(name, type, a, b), theirs(x, y)[0], equal_nan=True)
        for name, theirs in (("math.powf", torch.pow), ("math.atan2", torch.atan2)):
            want = theirs(x.double(), y.double()).to(dtype).numpy()[0]
            got = compute(name, type, a, b)
            assert np.isclose(got, want, rtol=1e-6, atol=0, equal_nan=True), (name, a, b)


def test_maximum_orders_zeros() -> None:
    zero, minus = np.float32(0.0), np.float32(-0.0)
    for a, b in ((zero, minus), (minus, zero)):
        assert not np.signbit(compute("arith.maximumf", f32, a, b))
        assert np.signbit(compute("arith.minimumf", f32, a, b))


def test_f32_is_not_computed_in_f64() -> None:
    tenth, big = np.float32(0.1), np.float32(2**24)
    assert compute("arith.addf", f32, big, np.float32(1)) == big
    assert compute("arith.mulf", f32, tenth, tenth) == np.float32(np.float32(0.1) * np.float32(0.1))
    assert compute("arith.constant", f32, value=0.1, to=f32) == tenth


def test_fma_rounds_once() -> None:
    # 1 + 2**-12 squared is 1 + 2**-11 + 2**-24: the last term is lost if the product is rounded.
    a = np.float32(1 + 2**-12)
    rest = compute("math.fma", f32, a, a, np.float32(-(1 + 2**-11)))
    assert rest == np.float32(2**-24)
    d = 1 + 2.0**-30
    assert compute("math.fma", f64, *map(np.float64, (d, d, -(1 + 2**-29)))) == 2.0**-60
    # A sum just above the middle between two f32 values, which rounding to f64 first would hide.
    x, y = np.float32(1 + 2**-23), np.float32(2**-24 * (1 + 2**-23))
    assert compute("math.fma", f32, np.float32(1), x, np.float32(2**-24)) == np.float32(1 + 2**-22)
    assert compute("math.fma", f32, y, np.float32(1), np.float32(1)) == np.float32(1 + 2**-23)
    minus = compute("math.fma", f32, np.float32(-0.0), np.float32(1), np.float32(-0.0))
    assert np.signbit(minus)
    huge = np.float64(1e300)
    assert compute("math.fma", f64, huge, huge, np.float64(1)) == math.inf


@pytest.mark.parametrize("type", [i8, i16, i32, i64, index], ids=str)
def test_integer_arithmetic_wraps(type: ScalarType) -> None:
    kind = INTS[type.name]
    low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    edge = [0, 1, -1, 2, -7, low, low + 1, high]
    rng = random.Random()
    values = edge + [rng.randint(low, high) for _ in range(6)]
    unsigned = np.dtype(kind.__name__.replace("int", "uint")).type
    for a, b in itertools.product(values, values):
        x, y = np.array([a], kind), np.array([b], kind)
        u, v = x.view(unsigned), y.view(unsigned)
        want = {
            "addi": x + y, "subi": x - y, "muli": x * y, "andi": x & y, "ori": x | y,
            "xori": x ^ y, "minsi": np.minimum(x, y), "maxsi": np.maximum(x, y),
            "minui": np.minimum(u, v), "maxui": np.maximum(u, v),
        }  # fmt: skip
        if b and not (a == low and b == -1):
            want["floordivsi"], want["remsi"] = x // y, np.fmod(x, y)
        if b:
            want["divui"], want["remui"] = u // v, u % v
        if 0 <= b < type.bits:
            want["shli"], want["shrsi"] = x << y, x >> y
            want["shrui"] = u >> v
        for name, value in want.items():
            assert compute(f"arith.{name}", type, a, b) == value.view(kind)[0], (name, a, b)
        for predicate in CMPI:
            p, q = (u, v) if predicate[0] == "u" else (x, y)
            ufunc = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
                     "gt": "greater", "ge": "greater_equal"}[predicate[-2:]]  # fmt: skip
            got = compute("arith.cmpi", type, a, b, to=i1, predicate=predicate)
            assert got is bool(getattr(np, ufunc)(p, q)[0])
    for a in values:
        assert compute("math.absi", type, a) == np.abs(np.array([a], kind))[0]
        assert compute("math.ctpop", type, a) == bin(a & (1 << type.bits) - 1).count("1")


def test_integers_have_a_result_for_every_operand() -> None:
    for name in ("floordivsi", "divui", "remsi", "remui"):
        assert compute(f"arith.{name}", i32, 7, 0) == 0
    low = -(2**31)
    assert compute("arith.floordivsi", i32, low, -1) == low
    assert compute("arith.remsi", i32, low, -1) == 0
    assert compute("arith.shli", i32, 1, 32) == 0
    assert compute("arith.shrui", i32, -1, 99) == 0
    assert compute("arith.shrsi", i32, -5, 32) == -1
    assert compute("arith.shrsi", i32, -5, -1) == -1


def test_one_bit_is_a_sign() -> None:
    assert compute("arith.cmpi", i1, True, False, to=i1, predicate="slt") is True
    assert compute("arith.cmpi", i1, True, False, to=i1, predicate="ult") is False
    assert compute("arith.addi", i1, True, True) is False
    assert compute("arith.extsi", i1, True, to=i32) == -1
    assert compute("arith.extui", i1, True, to=i32) == 1
    assert compute("arith.sitofp", i1, True, to=f32) == -1.0
    assert compute("arith.uitofp", i1, True, to=f32) == 1.0


def test_float_comparisons() -> None:
    values = [np.float32(v) for v in (*SPECIAL, 2.0)]
    for a, b in itertools.product(values, values):
        nan = bool(np.isnan(a) or np.isnan(b))
        plain = {"eq": a == b, "ne": a != b and not nan, "lt": a < b, "le": a <= b,
                 "gt": a > b, "ge": a >= b}  # fmt: skip
        for predicate in CMPF:
            got = compute("arith.cmpf", f32, a, b, to=i1, predicate=predicate)
            if predicate in ("ord", "uno"):
                want = nan == (predicate == "uno")
            else:
                rest = predicate[1:]
                name = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
                want = bool(plain[name[rest]]) or (nan and predicate[0] == "u")
            assert got is want, (predicate, a, b)
    assert compute("math.isnan", f32, np.float32(math.nan), to=i1) is True
    assert compute("math.isinf", f32, np.float32(-math.inf), to=i1) is True
    assert compute("math.isinf", f32, np.float32(math.nan), to=i1) is False


def test_floats_saturate_to_integers() -> None:
    for value, want in ((1e10, 2**31 - 1), (-1e10, -(2**31)), (math.nan, 0), (-1.9, -1), (2.9, 2),
                        (math.inf, 2**31 - 1), (-math.inf, -(2**31))):  # fmt: skip
        assert compute("arith.fptosi", f32, np.float32(value), to=i32) == want
    for value, want in ((300.0, -1), (-3.0, 0), (200.0, 200 - 256), (math.nan, 0), (math.inf, -1)):
        assert compute("arith.fptoui", f64, np.float64(value), to=i8) == want


def test_integers_round_once_to_floats() -> None:
    for value in (2**24 + 1, 2**53 + 1, -(2**62) - 2**38 - 1, 2**63 - 1, 0, -5):
        got = compute("arith.sitofp", i64, value, to=f32)
        assert got == torch.tensor([value]).to(torch.float32).numpy()[0]
        assert compute("arith.sitofp", i64, value, to=f64) == float(value)
    assert compute("arith.uitofp", i8, -1, to=f32) == 255.0


@given(st.floats(width=32, allow_nan=False))
@settings(deadline=None)
def test_narrow_floats_are_torchs(value: float) -> None:
    x = torch.tensor([value], dtype=torch.float32)
    for type, dtype in ((f16, torch.float16), (bf16, torch.bfloat16)):
        got = compute("arith.truncf", f32, np.float32(value), to=type)
        assert same_float(np.float32(got), x.to(dtype).float().numpy()[0])
        assert same_float(compute("arith.extf", type, got, to=f32), np.float32(got))


def test_casts_of_integers_and_bits() -> None:
    assert compute("arith.trunci", i64, 2**40 + 200, to=i8) == 200 - 256
    assert compute("arith.trunci", i64, 3, to=i1) is True
    assert compute("arith.extui", i8, -1, to=i64) == 255
    assert compute("arith.extsi", i8, -1, to=i64) == -1
    assert compute("arith.index_cast", index, 2**32 + 5, to=i32) == 5
    assert compute("arith.index_cast", i32, -5, to=index) == -5
    assert compute("arith.bitcast", f32, np.float32(1.0), to=i32) == 0x3F800000
    assert compute("arith.bitcast", i64, -1, to=f64).view(np.uint64) == 2**64 - 1
    assert compute("arith.bitcast", bf16, np.float32(-2.0), to=i16) == 0xC000 - 2**16
    assert compute("arith.select", i32, True, 1, 2) == 1


# --- whole functions ---------------------------------------------------------------------------

ORDERS = ("forward", "reverse", "random")


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng().standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("order", ORDERS)
def test_axpy_on_any_strides(order: str) -> None:
    x, y = normal(12)[::-2], normal(6, 3)[:, 1]
    want = np.float32(2.5) * x + y
    run(axpy(layout="strided"), [x, y, 2.5], order=order, races=True)
    assert np.array_equal(y, want)


def test_causal_conv_is_torchs() -> None:
    x, w, y = normal(3, 9), normal(3, 4), np.full((3, 9), np.nan, np.float32)
    run(causal_conv(), [x, w, y], order="random", races=True)
    padded = torch.nn.functional.pad(torch.from_numpy(x).double(), (3, 0))
    kernel = torch.from_numpy(w).double().flip(1)[:, None]
    want = torch.nn.functional.conv1d(padded[None], kernel, groups=3)[0]
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "element", "want"),
    [("addf", f32, np.sum), ("maximumf", f32, lambda x: max(x.max(), 0)), ("addi", i32, np.sum)],
)
def test_reductions(kind: str, element: ScalarType, want: Any) -> None:
    x = np.random.default_rng().integers(-50, 50, (4, 5))
    x = x.astype(np.float32 if element is f32 else np.int32)
    out = np.array(77, x.dtype)
    run(sum_reduction(element, kind), [x, out], races=True)
    assert out == want(x)


def test_while_counts_collatz_steps() -> None:
    steps = np.full(5, -9)
    run(while_loop(), [np.array([1, 2, 3, 27, 97]), steps])
    assert steps.tolist() == [0, 1, 7, 111, 118]


def test_branches_and_atomics() -> None:
    x, y, count = normal(20), np.full(20, np.nan, np.float32), np.zeros(1, np.int32)
    run(conditional(), [x, y, count], races=True, order="reverse")
    assert np.array_equal(y, np.where(x > 0, np.sqrt(np.abs(x)), np.float32(-1)))
    assert count[0] == (x <= 0).sum()


@given(st.integers(0, 1 << 30))
@settings(max_examples=25, deadline=None)
def test_a_function_means_the_same_read_back(seed: int) -> None:
    rng = random.Random(seed)
    f = random_function(rng)
    args = random_arguments(rng)
    again = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    run(f, args, races=True)
    run(parse_function(print_function(f)), again)
    for a, b in zip(args, again, strict=True):
        assert np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize(
    ("element", "dtype"), [(bf16, torch.bfloat16), (f16, torch.float16)], ids=str
)
def test_half_floats_in_memory(element: ScalarType, dtype: torch.dtype) -> None:
    f, b, (x, total) = function("f", x=tensor(element, 1), total=tensor(element, 0))
    zero, one = b.constant(0, index), b.constant(1, index)
    loop = b.for_(zero, b.op("memref.dim", x, axis=0), one)
    with b.at(loop.regions[0]) as body:
        wide = b.op("arith.extf", b.load(x, body.args), type=f32)
        b.atomic_rmw("addf", wide, total, [])
        double = b.op("arith.truncf", b.op("arith.addf", wide, wide), type=element)
        b.store(double, x, body.args)
        b.do("scf.yield")
    b.do("func.return")
    values = torch.randn(7).to(dtype)
    want = torch.zeros((), dtype=dtype)
    for v in values:
        want = (want.float() + v.float()).to(dtype)
    view = torch.uint16 if element is bf16 else dtype
    array, out = values.clone().view(view).numpy(), torch.zeros((), dtype=dtype).view(view).numpy()
    run(f, [array, out])
    assert torch.equal(torch.from_numpy(array).view(dtype), values * 2)
    assert torch.equal(torch.from_numpy(out).view(dtype), want)


def test_unsigned_and_bool_memory() -> None:
    f, b, (x, y) = function("f", x=tensor(i8, 1), y=tensor(i1, 1))
    zero, one = b.constant(0, index), b.constant(1, index)
    value = b.load(x, [zero])
    big = b.op("arith.cmpi", value, b.constant(100, i8), predicate="ugt")
    b.store(big, y, [zero])
    b.store(b.load(y, [one]), y, [b.constant(2, index)])
    b.store(b.op("arith.addi", value, b.constant(100, i8)), x, [one])
    b.do("func.return")
    x8, flags = np.array([200, 0], np.uint8), np.array([False, True, False])
    run(f, [x8, flags])
    assert x8.tolist() == [200, 44]
    assert flags.tolist() == [True, True, True]


def test_compare_and_swap() -> None:
    f, b, (x, seen) = function("f", x=tensor(i32, 0), seen=tensor(i32, 1))
    for k, (expected, desired) in enumerate(((1, 5), (7, 9))):
        pair = b.constant(expected, i32), b.constant(desired, i32)
        old = b.op("memref.atomic_cas", *pair, x, type=i32)
        b.store(old, seen, [b.constant(k, index)])
    b.do("func.return")
    array, old = np.array(7, np.int32), np.zeros(2, np.int32)
    run(f, [array, old])
    assert array == 9
    assert old.tolist() == [7, 7]


# --- errors ------------------------------------------------------------------------------------


def test_subscripts_out_of_range() -> None:
    f, b, (x, i) = function("f", x=tensor(f32, 2), i=index)
    b.span = Span("model.py", 4)
    b.load(x, [b.constant(0, index), i])
    b.do("func.return")
    for i in (-1, 3):
        with pytest.raises(KernelIndexError) as caught:
            run(f, [normal(2, 3), i])
        assert str(caught.value) == (
            f"model.py:4: subscript {i} is out of range for axis 1 of size 3"
        )


def test_checks_in_the_function() -> None:
    f, b, (i, n) = function("f", i=index, n=index)
    b.do("weft.bounds", i, n, tensor="x", axis=1)
    even = b.op("arith.cmpi", i, n, predicate="ne")
    b.do("weft.assert", even, i, n, message="{} is {}")
    b.op("arith.addi", i, n)
    small = b.op("arith.cmpi", i, b.constant(3, index), predicate="slt")
    b.do("weft.assert", small, message="too big")
    b.do("func.return")
    with pytest.raises(KernelIndexError) as caught:
        run(f, [4, 4])
    assert str(caught.value) == "subscript 4 is out of range for axis 1 of `x`, which has size 4"
    with pytest.raises(KernelAssertionError) as failed:
        run(f, [3, 4])
    assert str(failed.value) == "too big"
    f.body.ops.pop(0)
    with pytest.raises(KernelAssertionError) as failed:
        run(f, [4, 4])
    assert str(failed.value) == "4 is 4"


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    f, b, (a, c) = function("f", a=f64, c=i1)
    b.do("weft.print", a, c, parts=("a = ", None, " ", None, "\n"))
    b.do("func.return")
    run(f, [0.5, True])
    assert capsys.readouterr().out == "a = 0.5 True\n"


def test_races_are_reported() -> None:
    x, bins = np.array([0, 1, 1]), np.zeros(2, np.int32)
    run(histogram(), [x, bins], races=True)
    assert bins.tolist() == [1, 2]
    run(histogram(atomic=False), [x, bins], races=False)
    with pytest.raises(RaceError) as caught:
        run(histogram(atomic=False), [x, bins], races=True)
    assert str(caught.value) == (
        "iterations (1,) and (2,) touch the same element, and one writes it"
    )


def shift(distance: int):
    """``y[i + distance] = x[i]``, in parallel; two arguments may be one array."""
    f, b, (x, y) = function("shift", x=tensor(f32, 1), y=tensor(f32, 1))
    zero, one, by = (b.constant(k, index) for k in (0, 1, distance))
    count = b.op("arith.subi", b.op("memref.dim", x, axis=0), by)
    loop = b.parallel([zero], [count], [one])
    with b.at(loop.regions[0]) as body:
        value = b.load(x, body.args)
        b.store(value, y, [b.op("arith.addi", body.args[0], by)])
        b.do("scf.reduce")
    b.do("func.return")
    return f


@pytest.mark.parametrize("order", ORDERS)
def test_races_through_overlapping_arguments(order: str) -> None:
    x = normal(6)
    run(shift(1), [x, normal(6)], races=True, order=order)
    run(shift(0), [x, x], races=True, order=order)
    with pytest.raises(RaceError):
        run(shift(1), [x, x], races=True, order=order)
    with pytest.raises(RaceError):
        run(shift(0), [x[:-1], x[1:]], races=True, order=order)


def test_a_race_shows_in_another_order() -> None:
    def result(order: str) -> list[float]:
        x = np.arange(1, 7, dtype=np.float32)
        run(shift(1), [x, x], order=order)
        return x.tolist()

    assert result("forward") == [1, 1, 1, 1, 1, 1]
    assert result("reverse") == [1, 1, 2, 3, 4, 5]


def test_local_arrays_do_not_race() -> None:
    f, b, (y,) = function("f", y=tensor(f32, 1))
    zero, one = b.constant(0, index), b.constant(1, index)
    loop = b.parallel([zero], [b.op("memref.dim", y, axis=0)], [one])
    with b.at(loop.regions[0]) as body:
        array = b.alloca(f32, (1,))
        number = b.op("arith.index_cast", body.args[0], type=i32)
        b.store(b.op("arith.sitofp", number, type=f32), array, [zero])
        b.store(b.load(array, [zero]), y, body.args)
        b.do("scf.reduce")
    b.do("func.return")
    y = normal(50)
    run(f, [y], races=True)
    assert y.tolist() == list(range(50))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([np.zeros(3, np.float32)], "3 arguments are needed, got 1"),
        ([np.zeros(3), np.zeros(3, np.float32), 1.0],
         "`x` must be a numpy array for memref<?xf32>, got float64"),
        ([[1.0], np.zeros(3, np.float32), 1.0],
         "`x` must be a numpy array for memref<?xf32>, got list"),
        ([np.zeros((3, 1), np.float32), np.zeros(3, np.float32), 1.0],
         "`x` must be a memref<?xf32>, got shape (3, 1)"),
        ([np.zeros(6, np.float32)[::2], np.zeros(3, np.float32), 1.0],
         "`x` must be contiguous, as memref<?xf32> says"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(args: list[Any], message: str) -> None:
    with pytest.raises(KernelTypeError) as caught:
        run(axpy(), args)
    assert str(caught.value) == message


def test_the_last_stride_is_checked() -> None:
    f = axpy(layout="unit")
    run(f, [normal(1)[::-1], normal(1), 1.0])
    with pytest.raises(KernelTypeError, match="the last stride of `y` must be 1"):
        run(f, [normal(4), normal(8)[::2], 1.0])
