"""``kernel.interpret`` computes floats that meet no tensor in the kernel's own float."""

import dataclasses
import math
from typing import Any

import pytest
import torch

import weft

VALUES = [2, 3, 1, 9, 16777217]  # the last is no float32


@weft.kernel
def operators(s, y, a: float, out, kind: weft.template()):
    for i in s:
        v = kind(s[i])
        out[i, 0] = v + a
        out[i, 1] = a - v
        out[i, 2] = v * 0.1
        out[i, 3] = v / 3
        out[i, 4] = 3 / v
        out[i, 5] = v / v
        out[i, 6] = v // 0.3
        out[i, 7] = a % v
        out[i, 8] = v**0.3
        out[i, 9] = a**v
        out[i, 10] = v**-2
        out[i, 11] = 1.0 if v < 16777216.5 else 0.0
        out[i, 12] = 1.0 if a >= v else 0.0
        out[i, 13] = (v > 2) * 0.1
        out[i, 14] = 1.0 / (v * 0.0)
        out[i, 15] = v * 0.1 * y[i]  # float32, as y is
        out[i, 16] = y[i] - v / 3
        out[i, 17] = (v * a) ** 0.5
        out[i, 18] = -(v * 0.1) + 3
        w = v + 0
        w = w * 0.1
        w += 0.1
        out[i, 19] = w


@weft.kernel
def functions(s, y, a: float, out, kind: weft.template()):
    for i in s:
        v = kind(s[i])
        out[i, 0] = weft.sqrt(v)
        out[i, 1] = torch.sin(v)
        out[i, 2] = math.atan2(v, 3)
        out[i, 3] = weft.atan2(v, -1)
        out[i, 4] = weft.max(v, a) * 0.1
        out[i, 5] = max(v, a) * 0.1
        out[i, 6] = weft.select(v > 2, v, a) * 0.1
        out[i, 7] = torch.where(v > 2, v * 0.1, 0.3)
        out[i, 8] = weft.math.cbrt(v)
        out[i, 9] = weft.math.copysign(v, -1)
        out[i, 10] = weft.math.clamp(v, 0.1, 2.7)
        out[i, 11] = weft.math.log1p(v)
        out[i, 12] = weft.math.fma(v, 0.1, a)
        out[i, 13] = weft.Vector([v, 1]).norm()
        out[i, 14] = (weft.Vector([v, 1]) / 3).sum()
        out[i, 15] = weft.max(v * 0.1, y[i])
        out[i, 16] = torch.lerp(v * 0.1, v * 0.2, a)
        out[i, 17] = weft.math.vec2(v, 0.1).x * 0.1
        out[i, 18] = v if v > 2 else a
        out[i, 19] = sum((v * 0.1, a))


@weft.kernel
def casts(s, y, a: float, out, kind: weft.template()):
    for i in s:
        v = kind(s[i])
        out[i, 0] = float(v) * 0.1
        out[i, 1] = int(v * 0.7)
        out[i, 2] = round(v * 0.1)
        out[i, 3] = weft.floor(v * 0.37)
        out[i, 4] = weft.f32(v * 0.1)
        out[i, 5] = weft.f64(v) * 0.1
        out[i, 6] = weft.cast(v, weft.f64) / 3
        out[i, 7] = weft.cast(v * a, weft.i32)
        out[i, 8] = math.floor(v / 3)
        d: weft.i64 = v * a
        out[i, 9] = d
        e: float = v
        out[i, 10] = e * 0.1
        out[i, 11] = weft.f16(v * 0.001)


KINDS = [weft.i8, weft.i16, weft.i32, weft.i64, weft.u8, weft.u16, weft.u32, weft.u64]


@pytest.mark.parametrize("kernel", [operators, functions, casts])
@pytest.mark.parametrize("kind", KINDS)
def test_an_integer_beside_a_float_of_python(kernel: Any, kind: Any) -> None:
    s = torch.tensor(VALUES if kind.bits > 16 else VALUES[:4])
    y = torch.rand(len(s), generator=torch.Generator().manual_seed(0))
    both = []
    for call in (kernel, kernel.interpret):
        out = torch.full((len(s), 20), math.nan, dtype=torch.float64)
        call(s, y, 0.7, out, kind)
        both.append(out[:, : 12 if kernel is casts else None])
    found, interpreted = both
    assert not found.isnan().any()
    torch.testing.assert_close(interpreted, found, rtol=1e-14, atol=0)


def test_elements_of_integers_are_such_numbers() -> None:
    @weft.kernel
    def tenth(s, out):
        for i in s:
            s[i] += 1
            out[i] = s[i] * 0.1

    s, out = torch.tensor([2, 16777216], dtype=torch.int32), torch.empty(2, dtype=torch.float64)
    tenth.interpret(s, out)
    assert out.tolist() == [3 * 0.1, 16777217 * 0.1]


def test_where_no_tensor_is_of_float64_torchs_float32_stays() -> None:
    @weft.kernel
    def tenth(s, out, wide):
        for i in s:
            out[i] = s[i] * 0.1
        for i in wide:  # another loop
            wide[i] = s[i] * 0.1

    s = torch.tensor([3, 7], dtype=torch.int32)
    both = []
    for call in (tenth, tenth.interpret):
        out, wide = torch.empty(2), torch.empty(2, dtype=torch.float64)
        call(s, out, wide)
        both.append((out.tolist(), wide.tolist()))
    assert both[0] == both[1]
    assert both[1][1] == [3 * 0.1, 7 * 0.1]


TABLE = torch.tensor([1.0, 2.0], dtype=torch.float64)


def _reaches(i):
    return TABLE[i]


@dataclasses.dataclass
class Pair:
    small: torch.Tensor
    large: torch.Tensor


def test_float64_is_seen_wherever_a_loop_has_it() -> None:
    table, narrow = TABLE, torch.zeros(2)

    @weft.kernel
    def around(s, out):
        for i in range(2):
            out[i] = s[i] * 0.1 + 0 * table[i]

    @weft.kernel
    def by_function(s, out):
        for i in range(2):
            out[i] = s[i] * 0.1 + 0 * _reaches(i)

    @weft.kernel
    def member(s, out, pair):
        for i in range(2):
            out[i] = s[i] * 0.1 + 0 * pair.large[i]

    @weft.kernel
    def other_member(s, out, pair):
        for i in range(2):
            out[i] = s[i] * 0.1 + 0 * pair.small[i]

    @weft.kernel
    def item(s, out, xs):
        for i in range(2):
            out[i] = s[i] * 0.1 + 0 * xs[1][i]

    @weft.kernel
    def number(s, out, w: weft.f64):
        for i in range(2):
            out[i] = s[i] * 0.1 + 0 * w

    @weft.kernel
    def size(s, out, x):
        for i in range(x.shape[0]):
            out[i] = s[i] * 0.1

    pair = Pair(narrow, table)
    given: list[tuple[Any, tuple[Any, ...]]] = [
        (around, ()), (by_function, ()), (member, (pair,)), (other_member, (pair,)),
        (item, ([narrow, table],)), (number, (1.0,)), (size, (table,)),
    ]  # fmt: skip
    s = torch.tensor([16777217, 7], dtype=torch.int32)
    for kernel, more in given:
        both = []
        for call in (kernel, kernel.interpret):
            out = torch.empty(2, dtype=torch.int64)  # whole numbers show which it was
            call(s * 10, out, *more)
            both.append(out.tolist())
        assert both[0] == both[1], kernel
        wide = kernel not in (other_member, size)
        assert (both[1][0] == 16777217) == wide, kernel


def test_an_error_in_a_loop_leaves_nothing_behind() -> None:
    @weft.kernel
    def beyond(x):
        for i in x:
            x[i] = x[i + 1]

    with pytest.raises(weft.errors.KernelIndexError):
        beyond.interpret(torch.zeros(2, dtype=torch.float64))
    assert weft.sqrt(weft.i32(2)).dtype is torch.float32
