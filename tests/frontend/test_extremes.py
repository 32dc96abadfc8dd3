"""Operators and functions at the ends of each dtype, on infinities, NaN and zeros of both signs:
compiled, they give what the undecorated Python gives."""

from __future__ import annotations

import itertools
import linecache
import math
from typing import Any

import pytest
import torch

import weft
from weft.lang.dtypes import scalar

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float32, torch.float64)

# What gives a number of the operands' own sort (of booleans it is refused), a float, an integer.
SAME = """-a; abs(a); a + b; a - b; a * b; a ** 3; min(a, b); max(a, b); a if a < b else b;
-(a - b); abs(a - b); (a + b) - b; a - b + b; a * 2 - a; 1 - a; a * -1; a - a; a * 0;
torch.square(a);
torch.maximum(a, b); torch.minimum(a, b); weft.math.sign(a); weft.math.min(a, b);
torch.where(a > b, a, b); a // b; a % b; a // 3; a % -3; a // -1; a % 4; a // 4;
weft.math.fmod(a, b);
torch.relu(a); torch.clamp(a, 0, 7)"""
FLOAT = """a / b; a / 8; a / 3; 1 / a; a ** 0.5; a ** -1; a * 0.5; a + 0.5; 0.0 - a; a * 0.0;
hypot(a, b); weft.math.atan2(a, b); weft.math.copysign(a, b); weft.math.sigmoid(a);
torch.expm1(a); weft.math.exp(a); weft.math.log(a); weft.math.log1p(a); weft.math.sqrt(a);
weft.math.rsqrt(a); weft.math.tanh(a); weft.math.erf(a); weft.math.atan(a); weft.math.asinh(a);
weft.math.cbrt(a); torch.reciprocal(a); a * 0.5 - a"""
INTEGER = """a < b; a <= b; a == b; a != b; not a; a < b < 3; a > 0.5; not (a < b); a and a > b;
torch.isfinite(a); weft.math.isnan(a); (a < b) == (b > a); 1 if a else 2"""
BITS = "a & b; a | b; a ^ b; ~a; a << 3; a >> 3; a >> (b & 7); a << (b & 7); weft.math.bit_count(a)"


def numbers(dtype: torch.dtype) -> list[Any]:
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        return [0.0, -0.0, 1.0, -2.5, 0.1, -100.0, math.inf, -math.inf, math.nan, info.max,
                -info.max, info.max / 2, info.tiny, info.tiny**0.75, info.max**0.75]  # fmt: skip
    info = torch.iinfo(dtype)
    own = {0, 1, -1, 2, -3, 7, 100, info.min, info.min + 1, info.max, info.max // 2 + 1}
    return sorted(v for v in own if info.min <= v <= info.max)


def function(text: str) -> Any:
    name = f"<extremes {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "weft": weft, "math": math}
    exec(compile(text, name, "exec"), scope)
    return scope["kernel"]


def compiled(terms: list[str], beside: str = "y") -> weft.Kernel:
    """``kernel(x, y, out)`` of elements, or ``kernel(x, n, out)``, where ``n`` is a number."""
    lines = [f"def kernel(x, {beside}, out):", "    for i in range(x.shape[0]):",
             "        a, b = x[i], y[i]" if beside == "y" else "        a = x[i]"]  # fmt: skip
    lines += [f"        out[{k}, i] = {term}" for k, term in enumerate(terms)]
    return weft.kernel(strict_math=True)(function("\n".join(lines) + "\n"))


def same(wanted: float, found: float, single: bool) -> bool:
    if isinstance(wanted, int):
        return found == wanted
    if math.isnan(wanted) or math.isinf(wanted):
        return found == wanted or (math.isnan(wanted) and math.isnan(found))
    # Subnormal results may be a few units off, as their functions' arguments are rounded.
    return math.isclose(found, wanted, rel_tol=3e-6, abs_tol=1e-44 if single else 1e-322)


@pytest.mark.parametrize("sort", ["same", "float", "integer", "bits"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.sampled(3)
def test_ends_of_ranges(dtype: torch.dtype, sort: str) -> None:
    integer = not dtype.is_floating_point
    if sort == "bits" and not integer:
        return
    texts = {"same": SAME, "float": FLOAT, "integer": INTEGER, "bits": BITS}
    terms = [t.strip() for t in texts[sort].split(";")]
    if sort == "float" or (sort == "same" and not integer):
        result = dtype if not integer else torch.float32
    else:
        result = torch.int64
    hypot = "math.hypot" if integer else "torch.hypot"  # torch's takes no integers
    terms = [t.replace("hypot", hypot) for t in terms]
    if dtype is torch.uint8:  # no literal of it is negative
        terms = [t for t in terms if "-1" not in t and "-3" not in t]
    pairs = list(itertools.product(numbers(dtype), numbers(dtype)))
    x, y = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
    out = torch.full((len(terms), len(pairs)), 77, dtype=result)
    compiled(terms)(x, y, out)
    wrong = []
    for k, term in enumerate(terms):
        call = function(f"def kernel(a, b):\n    return {term}\n")
        for (a, b), p, q, found in zip(pairs, x, y, out[k].tolist(), strict=True):
            try:
                value = call(scalar(p), scalar(q))
            except (RuntimeError, ZeroDivisionError):  # docs/language.md has what loops give
                continue
            wanted = value.item() if isinstance(value, torch.Tensor) else value
            if not same(wanted, found, result is not torch.float64):
                wrong.append((term, a, b, wanted, found))
    assert not wrong, f"{len(wrong)} of {sort}: {wrong[:8]}"


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_by_more_than_the_dtype_can_say(dtype: torch.dtype) -> None:
    @weft.kernel
    def shifts(x, n, out):
        for i in range(x.shape[0]):
            out[0, i] = x[i] << n
            out[1, i] = x[i] >> n

    x = torch.tensor([1, 77, 100], dtype=dtype)
    out = torch.full((2, 3), 55)
    for n in (3, 64, 256, 257, 1 << 16, 1 << 32, 1 << 40, -1, -256):
        shifts(x, n, out)
        left, right = (x << n, x >> n) if n == 3 else (x * 0, x * 0)
        assert out.tolist() == [left.tolist(), right.tolist()], n


@pytest.mark.parametrize(
    ("term", "says"),
    [
        ("max(x[i], 300)", "300 does not fit in i8"),
        ("min(-129, x[i])", "-129 does not fit in i8"),
        ("weft.math.clamp(x[i], 200, 300)", "200 does not fit in i8"),
    ],
)
def test_a_bound_that_is_always_the_result_must_fit(term: str, says: str) -> None:
    text = f"def kernel(x, out):\n    for i in range(1):\n        out[i] = {term}\n"
    x, out = torch.zeros(1, dtype=torch.int8), torch.zeros(1)
    with pytest.raises(weft.KernelValueError) as caught:
        weft.kernel(function(text))(x, out)
    assert caught.value.message == says
    assert caught.value.help == "widen the other operand, for instance weft.i64(x)"


def test_a_bound_that_is_never_the_result_need_not_fit() -> None:
    @weft.kernel
    def bounded(x, out):
        for i in range(x.shape[0]):
            out[i] = min(max(x[i], -300), 300)

    x, out = torch.tensor([-128, 5, 127], dtype=torch.int8), torch.zeros(3)
    bounded(x, out)
    assert out.tolist() == [-128.0, 5.0, 127.0]


def test_a_bound_of_run_time_is_the_result_where_it_does_not_fit() -> None:
    @weft.kernel
    def bounded(x, low: int, high: int, out):
        for i in range(x.shape[0]):
            out[0, i] = max(x[i], low)
            out[1, i] = min(high, x[i])
            out[2, i] = weft.math.clamp(x[i], low, high)
            out[3, i] = max(x[i], low) + 1000

    values = [-128, 5, 127]
    x, out = torch.tensor(values, dtype=torch.int8), torch.zeros(4, 3)
    for low, high in ((300, 1000), (-1000, -300), (-3, 7)):
        bounded(x, low, high, out)
        assert out[0].tolist() == [max(v, low) for v in values]
        assert out[1].tolist() == [min(high, v) for v in values]
        assert out[2].tolist() == [min(max(v, low), high) for v in values]
        assert out[3].tolist() == [max(v, low) + 1000 for v in values]


BESIDE = """a // n; a % n; n // a; n % a; a + n; n - a; a * n; a & n; a ^ n; weft.math.mod(a, n);
weft.math.fmod(a, n); weft.math.fmod(n, a); weft.raw_div(a, n); weft.raw_mod(n, a);
weft.max(a, n); weft.min(n, a); weft.math.clamp(a, -abs(n), abs(n)); n // 3 // a"""
BY_VALUE = (
    """math.fmod(a, n); math.fmod(n, a); weft.math.copysign(a, n); weft.math.copysign(n, a)"""
)


@pytest.mark.parametrize("dtype", [*INTEGERS, *UNSIGNED], ids=str)
@pytest.mark.sampled(3)
def test_elements_beside_ints_of_run_time_that_do_not_fit(dtype: torch.dtype) -> None:
    """An int takes the dtype of the element, as in torch; functions of Python's math do not."""
    terms = [t.strip() for t in BESIDE.split(";")]
    if dtype not in (*UNSIGNED, torch.int64):  # whose numbers are floats of Python
        terms += [t.strip() for t in BY_VALUE.split(";")]
    kernel = compiled(terms, "n")
    few = torch.tensor([v for v in numbers(dtype) if v], dtype=dtype)  # torch does not divide by 0
    for n in (300, -129, (1 << 33) + 5):
        out = torch.full((len(terms), len(few)), 77, dtype=torch.int64)
        kernel(few, n, out)
        for k, term in enumerate(terms):
            call = function(f"def kernel(a, n):\n    return {term}\n")
            for a, found in zip(few, out[k].tolist(), strict=True):
                wanted = call(scalar(a), n)
                wanted = wanted.item() if isinstance(wanted, torch.Tensor) else wanted
                same_bits = (found - int(wanted)) % (1 << 64) == 0
                assert same_bits, (term, a, n, found, wanted)


@pytest.mark.cpu
def test_the_sign_of_a_maximum_that_is_zero_is_open_and_nan_is_not() -> None:
    def extremes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(2, x.shape[0])
        for i in range(x.shape[0]):
            out[0, i] = torch.maximum(x[i], y[i])
            out[1, i] = torch.minimum(x[i], y[i])
        return out

    few = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    x, y = (v.flatten() for v in torch.meshgrid(few, few, indexing="ij"))
    expected = torch.stack([torch.maximum(x, y), torch.minimum(x, y)])
    for strict in (False, True):
        kernel = weft.kernel(extremes, strict_math=strict)
        torch.testing.assert_close(kernel(x, y), expected, rtol=0, atol=0, equal_nan=True)
        call = kernel.inspect(x, y)["llvm"].split("@llvm.maximum")[0].rpartition("call ")[2]
        assert call.startswith("contract nsz ") is not strict
