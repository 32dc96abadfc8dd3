"""Unsigned integers of 16, 32 and 64 bits: against Python's integers and the undecorated kernel."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import emulated
from tests.fuzz import unsigned

DTYPES = [torch.uint16, torch.uint32, torch.uint64]


def numbers(random: Random, dtype: torch.dtype, count: int, least: int = 0) -> torch.Tensor:
    high = torch.iinfo(dtype).max
    ends = [least, 1, high, high // 2, high // 2 + 1]
    return torch.tensor([random.choice([*ends, random.randint(least, high)]) for _ in range(count)],
                        dtype=dtype)  # fmt: skip


@weft.kernel
def operators(x: torch.Tensor, y: torch.Tensor, n: int, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[0, i] = x[i] + y[i]
        out[1, i] = x[i] - y[i]
        out[2, i] = x[i] * y[i] + 3
        out[3, i] = x[i] // y[i]
        out[4, i] = x[i] % y[i]
        out[5, i] = (x[i] >> 3) + (x[i] << 5)
        out[6, i] = (~x[i] ^ y[i]) & (x[i] | 12)
        out[7, i] = -x[i]
        out[8, i] = x[i] ** 3
        out[9, i] = x[i] >> n
        out[10, i] = x[i] // n * 5 + x[i] % n


def expected(x: int, y: int, n: int) -> list[int]:
    return [x + y, x - y, x * y + 3, x // y, x % y, (x >> 3) + (x << 5), (~x ^ y) & (x | 12), -x,
            x**3, x >> n, x // n * 5 + x % n]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_are_those_of_integers_that_wrap(dtype: torch.dtype) -> None:
    random = Random(3)
    for count in (0, 1, 17):
        x, y = numbers(random, dtype, count), numbers(random, dtype, count, 1)
        wrap = torch.iinfo(dtype).max + 1
        columns = zip(x.tolist(), y.tolist(), strict=True)
        wanted = [[v % wrap for v in expected(a, b, 5)] for a, b in columns]
        for run in (operators, operators.interpret, emulated(operators)):
            out = torch.full((11, count), 77, dtype=dtype)
            run(x, y, 5, out)
            assert out.t().tolist() == wanted


@weft.kernel
def comparisons(
    x: torch.Tensor, y: torch.Tensor, s: torch.Tensor, n: int, out: torch.Tensor
) -> None:
    for i in range(x.shape[0]):
        out[i, 0] = x[i] < y[i]
        out[i, 1] = x[i] >= s[i]
        out[i, 2] = s[i] > x[i]
        out[i, 3] = x[i] == n
        out[i, 4] = n <= x[i]
        out[i, 5] = x[i] > -1
        out[i, 6] = x[i] != -5
        out[i, 7] = min(x[i], y[i]) == x[i] and weft.max(x[i], y[i]) == y[i]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [-1, 7])
def test_comparisons_are_by_value_also_with_signed_numbers(dtype: torch.dtype, n: int) -> None:
    random = Random(n)
    x, y = numbers(random, dtype, 17), numbers(random, dtype, 17)
    s = torch.tensor([random.choice((-1, 0, 5, -9)) for _ in range(17)], dtype=torch.int32)
    wanted = [[a < b, a >= c, c > a, a == n, n <= a, True, True, a <= b]
              for a, b, c in zip(x.tolist(), y.tolist(), s.tolist(), strict=True)]  # fmt: skip
    for run in (comparisons, comparisons.interpret, emulated(comparisons)):
        out = torch.empty(17, 8, dtype=torch.bool)
        run(x, y, s, n, out)
        assert out.tolist() == wanted


@weft.kernel
def converted(x: torch.Tensor, f: torch.Tensor, whole: torch.Tensor, real: torch.Tensor,
              out: torch.Tensor) -> None:  # fmt: skip
    for i in range(x.shape[0]):
        whole[i] = weft.i64(x[i])
        real[i] = x[i]
        out[i] = f[i]


@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_from_and_to_integers_and_floats(dtype: torch.dtype) -> None:
    high = torch.iinfo(dtype).max
    x = torch.tensor([0, 3, high, high // 2 + 1, high - 1000], dtype=dtype)
    f = torch.tensor([-1.5, 2.75, float(high) * 2, torch.nan, high / 2], dtype=torch.float64)
    for run in (converted, converted.interpret, emulated(converted)):
        whole, out = torch.empty(5, dtype=torch.int64), torch.full((5,), 7, dtype=dtype)
        real = torch.empty(5, dtype=torch.float64)
        run(x, f, whole, real, out)
        assert whole.tolist() == [(v + (1 << 63)) % (1 << 64) - (1 << 63) for v in x.tolist()]
        assert real.tolist() == [float(v) for v in x.tolist()]
        assert out.tolist() == [0, 2, high, 0, int(high / 2)]


@weft.kernel
def gathered(x: torch.Tensor, bins: torch.Tensor, sums: torch.Tensor, tops: torch.Tensor) -> Any:
    total, top, low = weft.u64(0), weft.u64(0), weft.u64((1 << 64) - 1)
    for i in range(x.shape[0]):
        sums[bins[i]] += x[i]
        weft.atomic_max(tops[bins[i]], x[i])
        weft.atomic_min(tops[bins[i] + 3], x[i])
        total += x[i]
        top = max(top, x[i])
        low = weft.min(low, x[i])
    return total, top, low


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 127])
def test_atomics_and_reductions(dtype: torch.dtype, count: int) -> None:
    random = Random(count)
    x, high = numbers(random, dtype, count), torch.iinfo(dtype).max
    bins = torch.tensor([random.randrange(3) for _ in range(count)], dtype=torch.int64)
    parts = [[v for v, b in zip(x.tolist(), bins.tolist(), strict=True) if b == k]
             for k in range(3)]  # fmt: skip
    for run in (gathered, gathered.interpret, emulated(gathered)):
        sums = torch.zeros(3, dtype=dtype)
        tops = torch.tensor([0, 0, 0, high, high, high], dtype=dtype)
        total, top, low = run(x, bins, sums, tops)
        assert sums.tolist() == [sum(part) % (high + 1) for part in parts]
        assert tops[:3].tolist() == [max(part, default=0) for part in parts]
        assert tops[3:].tolist() == [min(part, default=high) for part in parts]
        assert int(total.item()) == sum(x.tolist()) % (1 << 64)
        assert (top.item(), low.item()) == (max(x.tolist(), default=0),
                                            min(x.tolist(), default=(1 << 64) - 1))  # fmt: skip


def test_numbers_are_printed_without_a_sign(capfd: pytest.CaptureFixture[str]) -> None:
    @weft.kernel
    def shown(x: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            print(x[i], -1, x[i] >> 1)

    for dtype in DTYPES:
        high = torch.iinfo(dtype).max
        shown(torch.tensor([high], dtype=dtype))
        assert capfd.readouterr().out == f"{high} -1 {high >> 1}\n"


@weft.kernel
def hashed(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in out:
        z = weft.u64(x[i]) + 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        out[i] = z ^ (z >> 31)


def test_a_hash_of_64_bits() -> None:
    x, out = (
        torch.tensor([0, 1, (1 << 64) - 1], dtype=torch.uint64),
        torch.empty(3, dtype=torch.uint64),
    )
    hashed(x, out)
    assert out.tolist() == [16294208416658607535, 10451216379200822465, 16490336266968443936]
    plain = torch.empty_like(out)
    for i, value in enumerate(x):  # the undecorated arithmetic, of a cast element
        z = weft.u64(value) + 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        plain[i] = z ^ (z >> 31)
    assert torch.equal(plain, out)


def test_annotated_numbers_wrap_and_what_cannot_be_passed_is_refused() -> None:
    @weft.kernel
    def squared(a: weft.u32, out: torch.Tensor) -> weft.u32:  # type: ignore
        b: weft.u32 = a * a  # type: ignore
        for i in out:
            out[i] = a * a + weft.u32(-1)
        return b

    out = torch.empty(2, dtype=torch.uint32)
    assert squared(100_000, out) == 100_000**2 % (1 << 32)
    assert out.tolist() == [100_000**2 % (1 << 32) - 1] * 2
    with pytest.raises(weft.errors.KernelValueError, match="-1, which does not fit in u32"):
        squared(-1, out)

    @weft.kernel
    def passed(a: weft.u64, out: torch.Tensor) -> None:  # type: ignore
        for i in out:
            out[i] = a

    with pytest.raises(weft.errors.KernelValueError) as caught:
        passed(1 << 63, out)
    assert "torch.tensor(value, dtype=torch.uint64)" in str(caught.value)


def test_fields_and_promotion() -> None:
    assert (weft.u32(1) - weft.i32(2)).dtype == torch.uint32
    assert (weft.u16(1) + weft.i32(2)).dtype == torch.int32
    assert (weft.u64(1) << 63).item() == 1 << 63

    def step(f: Any) -> None:
        for i in f:
            f[i] = f[i] * 5 - 1 + (f[i] >> 3)

    fields = [weft.field(weft.u32, 3) for _ in range(2)]
    for field, run in zip(fields, (step, weft.kernel(step)), strict=True):
        field.fill(1 << 31)
        run(field)
    assert fields[0].tolist() == fields[1].tolist() == [((5 << 31) - 1 + (1 << 28)) % (1 << 32)] * 3


@weft.kernel
def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = max(x[i] * 3 // y[i], y[i]) + (x[i] >> 2)
    return out


def test_pytorch_takes_them_as_others() -> None:
    x = torch.tensor([(1 << 32) - 1, 5, 7, 0], dtype=torch.uint32)
    y = torch.tensor([3, 1, 1 << 31, 9], dtype=torch.uint32)
    wanted = [max(a * 3 % (1 << 32) // b, b) + (a >> 2)
              for a, b in zip(x.tolist(), y.tolist(), strict=True)]  # fmt: skip
    assert mixed(x, y).tolist() == wanted
    compiled = torch.compile(mixed, fullgraph=True, backend="aot_eager")
    assert compiled(x, y).tolist() == wanted
    assert torch.vmap(mixed)(x.expand(2, 4), y.expand(2, 4))[1].tolist() == wanted


@pytest.mark.parametrize("seed", range(4))
def test_random_kernels_in_the_emulator(seed: int) -> None:
    unsigned.check(Random(seed), lambda kernel, given: emulated(kernel)(*given))


@pytest.mark.parametrize("dtype", [torch.uint8, *DTYPES, torch.int8, torch.int64])
def test_a_literal_is_taken_off_whose_negative_is_no_number_of_the_dtype(
    dtype: torch.dtype,
) -> None:
    least = torch.iinfo(dtype).min or 5

    @weft.kernel
    def less(out: torch.Tensor, at: torch.Tensor, shared: torch.Tensor) -> None:
        for i in range(out.shape[0]):
            out[i] -= least
            weft.atomic_sub(shared[at[i]], least)

    start = [0, 3, 200 % torch.iinfo(dtype).max]
    for run in (less, less.interpret, emulated(less)):
        out, shared = torch.tensor(start, dtype=dtype), torch.zeros(2, dtype=dtype)
        run(out, torch.tensor([1, 0, 1]), shared)
        wanted = torch.tensor(start).sub(least).to(dtype)
        assert out.tolist() == wanted.tolist()
        twice = torch.zeros(2, dtype=torch.int64).sub(least).sub(torch.tensor([0, least]))
        assert shared.tolist() == twice.to(dtype).tolist()


def test_a_literal_that_does_not_fit_is_not_taken_off() -> None:
    @weft.kernel
    def less(out: torch.Tensor) -> None:
        for i in range(out.shape[0]):
            out[i] -= 300

    with pytest.raises(weft.KernelValueError, match="300 does not fit in u8"):
        less(torch.zeros(3, dtype=torch.uint8))
