"""Debug mode: integers that wrap are an error with line, values and indices."""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import emulated
from weft.tools.cross import compile_for

DTYPES = [torch.int8, torch.int16, torch.int32, torch.int64,
          torch.uint8, torch.uint16, torch.uint32, torch.uint64]  # fmt: skip
# What is written, and what Python's integers give.
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "x[i] + y[i]": lambda a, b: a + b, "x[i] - y[i]": lambda a, b: a - b,
    "x[i] * y[i]": lambda a, b: a * b, "x[i] << y[i]": lambda a, b: a << min(b, 80),
    "x[i] // y[i]": lambda a, b: a // b, "-x[i]": lambda a, b: -a, "x[i] ** 3": lambda a, b: a**3,
    "x[i] ** 63": lambda a, b: a**63,
}  # fmt: skip


def kernel_of(expression: str) -> weft.Kernel:
    text = f"def kernel(x, y, o):\n    for i in range(x.shape[0]):\n        o[i] = {expression}\n"
    name, scope = f"<overflow of {expression}>", {"weft": weft}
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), scope)
    return weft.kernel(scope["kernel"], debug=True)  # type: ignore[arg-type]


KERNELS = {expression: kernel_of(expression) for expression in OPERATIONS}


def pairs(dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Numbers at the ends of the range, at its roots, and small ones."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    root, third = int(high**0.5), int(high ** (1 / 3))
    some = [low, low + 1, high, high - 1, 0, 1, 2, 5, high // 2, high // 2 + 1, root, root + 1,
            third, third + 1]  # fmt: skip
    return itertools.product(some + ([-1, -2, low // 2, -root] if low else []), repeat=2)


@pytest.mark.parametrize("expression", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sampled(4)
def test_what_wraps_and_nothing_else_is_an_error(expression: str, dtype: torch.dtype) -> None:
    info, of_python, unary = torch.iinfo(dtype), OPERATIONS[expression], "y" not in expression
    for a, b in pairs(dtype):
        if (unary and b) or ("<<" in expression and b < 0) or ("//" in expression and not b):
            continue
        x, y = torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype)
        out, wanted = torch.zeros(1, dtype=dtype), of_python(a, b)
        if info.min <= wanted <= info.max:
            KERNELS[expression](x, y, out)
            assert out.item() == wanted, (a, b)
            continue
        with pytest.raises(weft.KernelOverflowError):
            KERNELS[expression](x, y, out)


@weft.kernel(debug=True)
def table(x: torch.Tensor, n: int, out: torch.Tensor) -> None:
    for i, j in weft.ndrange(x.shape[0], n):
        out[i, j] = x[i] * 1000 + j


@pytest.mark.parametrize("place", [lambda kernel: kernel, emulated], ids=["compiled", "emulated"])
def test_the_error_has_line_values_and_indices(place: Any) -> None:
    x, out = torch.tensor([1, 3_000_000], dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32)
    with pytest.raises(OverflowError) as error:
        place(table)(x, 1, out)
    assert isinstance(error.value, weft.KernelOverflowError)
    first, *rest = str(error.value).splitlines()
    assert first.endswith("in kernel `table`: 3000000 * 1000 overflows i32, at i = 1, j = 0")
    assert [line.strip() for line in rest[:2]] == ["out[i, j] = x[i] * 1000 + j", "^" * 11]
    assert rest[2].startswith("help: compute in a wider type, weft.i64(x)")


@weft.kernel(debug=True)
def in_order(x: torch.Tensor) -> torch.Tensor:
    n = weft.i8(0)
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        n = n + x[i]
    return n


def test_a_loop_in_order_has_its_own_indices() -> None:
    with pytest.raises(weft.KernelOverflowError, match=r"100 \+ 100 overflows i8, at i = 1\n"):
        in_order(torch.full((5,), 100, dtype=torch.int8))


@weft.kernel(debug=True)
def casts(x: torch.Tensor, n: int, out: torch.Tensor, which: weft.template()) -> None:  # type: ignore[valid-type]
    for i in range(x.shape[0]):
        if weft.static(which == 0):
            out[i] = weft.i8(x[i])
        elif weft.static(which == 1):
            out[i] = x[i]
        elif weft.static(which == 2):
            out[i] = weft.u32(x[i])
        elif weft.static(which == 3):
            out[i] += x[i]
        elif weft.static(which == 4):
            out[i] -= x[i]
        else:
            out[i] = out[i] + n


@pytest.mark.parametrize(
    ("which", "dtype", "good", "bad", "text"),
    [
        (0, torch.int64, -128, 128, "128 does not fit in i8"),
        (1, torch.int8, 127, -129, "-129 does not fit in i8"),
        (2, torch.uint64, 2**32 - 1, -1, "-1 does not fit in u32"),
        (3, torch.int8, 27, 28, "100 + 28 overflows i8"),
        (4, torch.uint8, 100, 101, "100 - 101 overflows u8"),
        (5, torch.int16, 32767 - 100, 32768 - 100, "100 + 32668 overflows i16"),
        (5, torch.int16, -300, 40000, "40000 does not fit in i16"),
    ],
)
def test_casts_stores_and_accumulations(
    which: int, dtype: torch.dtype, good: int, bad: int, text: str
) -> None:
    out = torch.full((1,), 100, dtype=dtype)
    casts(torch.tensor([good]), good, out, which)
    out = torch.full((1,), 100, dtype=dtype)
    with pytest.raises(weft.KernelOverflowError, match=text.replace("+", r"\+")):
        casts(torch.tensor([bad]), bad, out, which)


@weft.kernel(debug=True)
def guarded(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] * 2 if x[i] < 100 else x[i]
        if x[i] < 100 and x[i] * 2 > 7:
            out[i] += 1


@weft.kernel(debug=True)
def histogram(x: torch.Tensor, counts: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        counts[x[i] % 3] += 1


@weft.kernel
def wrapping(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] * 1000


@weft.kernel(debug=True)
def masked(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = weft.u32((weft.u64(x[i]) * 2654435761) & 0xFFFFFFFF)


def test_what_is_not_computed_does_not_overflow() -> None:
    x = torch.tensor([3, 101, 4, 127], dtype=torch.int8)
    out = torch.zeros_like(x)
    guarded(x, out)
    assert out.tolist() == [6, 101, 9, 127]
    counts = torch.zeros(3, dtype=torch.int32)
    histogram(torch.arange(1000), counts)
    assert counts.tolist() == [334, 333, 333]
    with pytest.raises(weft.KernelOverflowError, match="127 \\+ 1 overflows i8"):
        histogram(torch.arange(1000), torch.zeros(3, dtype=torch.int8))
    wrapped = torch.zeros(1, dtype=torch.int32)
    wrapping(torch.tensor([3_000_000], dtype=torch.int32), wrapped)
    assert wrapped.item() == 3_000_000_000 - (1 << 32)
    hashed = torch.zeros(2, dtype=torch.uint32)
    masked(torch.tensor([1, 2**32 - 1], dtype=torch.uint32), hashed)
    assert hashed.tolist() == [2654435761, (2**32 - 1) * 2654435761 % 2**32]


def test_the_text_for_cuda_has_the_checks() -> None:
    args = torch.empty(3, dtype=torch.int32), 1, torch.empty(3, 1, dtype=torch.int32)
    (loop,) = compile_for("sm_90", table, *args)
    assert loop.ptx.count("atom") >= 2  # of the record: a product and a sum


def accumulated(x: torch.Tensor, n: int, which: int) -> None:
    for i in range(x.shape[0]):
        if which == 0:
            x[i] *= n
        elif which == 1:
            x[i] <<= n
        elif which == 2:
            x[i] **= 3
        elif which == 3:
            x[i] //= n
        else:
            x[i] %= n


def test_operators_that_assign_are_checked_too() -> None:
    kernel = weft.kernel(accumulated, debug=True)
    for which, n, last in ((0, 3, 126), (1, 1, 84), (2, 0, 74088), (3, 5, 8), (4, 5, 2)):
        x = torch.tensor([42], dtype=torch.int32 if which == 2 else torch.int8)
        kernel(x, n, which)
        assert x.item() == last
    for which, n, text in ((0, 4, "42 \\* 4"), (1, 2, "42 << 2"), (2, 0, "42 \\*\\* 3")):
        with pytest.raises(weft.KernelOverflowError, match=text + " overflows i8, at i = 0"):
            kernel(torch.tensor([42], dtype=torch.int8), n, which)
    for which, symbol in ((3, "//"), (4, "%")):
        with pytest.raises(weft.KernelAssertionError, match=f"42 {symbol} 0: division by zero"):
            kernel(torch.tensor([42], dtype=torch.int8), 0, which)


def quotients(i: int, j: int, out: torch.Tensor) -> None:
    for _ in range(1):
        out[0] = i // j
        out[1] = int(i / j)
        out[2] = round(i / j)
        out[3] = math.floor(i / j)
        out[4] = math.ceil(i / j)
        out[5] = math.trunc(i / j)


def test_quotients_by_zero_are_zero_and_an_error_in_debug_mode() -> None:
    plain, out = weft.kernel(quotients), torch.empty(6, dtype=torch.int64)
    for i in (7, 1, 0, -7):
        plain(i, 0, out.fill_(9))
        assert out.tolist() == [0] * 6
        with pytest.raises(weft.KernelAssertionError, match=f"{i} // 0: division by zero"):
            weft.kernel(quotients, debug=True)(i, 0, out)
        expected = torch.empty_like(out)
        plain(i, -2, out)
        quotients(i, -2, expected)
        assert out.tolist() == expected.tolist()


def summed(x, start):
    s = start[0]
    for i in range(x.shape[0]):
        s += x[i]
    return s


@pytest.mark.filterwarnings("ignore:.*wraps")
def test_sums_of_a_parallel_loop() -> None:
    kernel = weft.kernel(debug=True)(summed)
    seen = set()
    for dtype in DTYPES:
        ends = torch.iinfo(dtype)
        for first, values in itertools.product(
            (ends.min, ends.max, 0),
            (
                [ends.max, ends.min, 1],
                [ends.max, 1],
                [1],
                [ends.min, ends.min // 2, -1],
                [0] * 3000,
            ),
        ):
            numbers = [v for v in values if ends.min <= v <= ends.max]
            x, start = torch.tensor(numbers, dtype=dtype), torch.tensor([first], dtype=dtype)
            total = first + sum(numbers)
            fits = ends.min <= total <= ends.max
            seen.add(fits)
            if fits:
                assert kernel(x, start).item() == total, (dtype, first, values)
            else:
                with pytest.raises(weft.errors.KernelOverflowError, match="the sum `s` overflows"):
                    kernel(x, start)
    assert seen == {False, True}


def subtracted(x, start):
    s = start[0]
    for i in range(x.shape[0]):
        s -= x[i]
        if i % 2 == 0:
            s -= x[i]
    return s


def both_ways(x, start):
    s = start[0]
    for i in range(x.shape[0]):
        s += 2
        s -= x[i]
    return s


def assigned_both_ways(x, start):
    s = start[0]
    for i in range(x.shape[0]):
        s = 2 + s
        s = s - x[i]
    return s


def assigned(x, start):
    s = start[0]
    for i in range(x.shape[0]):
        s = s - x[i]
        if i % 2 == 0:
            s = s - x[i]
    return s


@pytest.mark.parametrize("taken", [subtracted, assigned])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:.*wraps")
def test_differences_of_a_parallel_loop(dtype: torch.dtype, taken) -> None:
    kernel, most = weft.kernel(debug=True)(taken), torch.iinfo(dtype).max
    for start, values, fits in (
        (100, [1, 2, 3], True), (most, [most // 3, most // 9, 0], True), (10, [2, 2, 2], True),
        (most, [most // 2 + 1, 1], dtype.is_signed and most < 2**31), (9, [2, 2, 2], False),
        (0, [], True), (0, [1], False),
    ):  # fmt: skip
        x, first = torch.tensor(values, dtype=dtype), torch.tensor([start], dtype=dtype)
        total = start - sum(v * (2 - k % 2) for k, v in enumerate(values))
        if fits or (dtype.is_signed and total >= -most and 2 * max(values) <= most):
            assert kernel(x, first).item() == total
        elif total < torch.iinfo(dtype).min:
            with pytest.raises(weft.errors.KernelOverflowError, match="the sum `s` overflows"):
                kernel(x, first)
    if not dtype.is_signed:
        x = torch.tensor([1, 4, 2], dtype=dtype)
        ways = both_ways if taken is subtracted else assigned_both_ways
        assert weft.kernel(debug=True)(ways)(x, torch.tensor([5], dtype=dtype)).item() == 4


def test_a_sum_of_a_parallel_loop_for_cuda() -> None:
    kernel = emulated(weft.kernel(debug=True)(counted_sum))
    assert kernel(torch.ones(3000, dtype=torch.int64))[0].item() == 3000
    with pytest.raises(weft.errors.KernelOverflowError, match="the sum `s` overflows i64"):
        kernel(torch.full((3000,), 1 << 60))


def counted_sum(x):
    s, n = 0, 0.0
    for i in range(x.shape[0]):
        s += x[i]
        n += 1.0
    return s, n
