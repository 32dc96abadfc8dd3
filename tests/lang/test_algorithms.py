"""Taichi's algorithms on fields, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft as ti
from weft.lang.dtypes import DType
from weft.lang.field import Field

DTYPES = [ti.f32, ti.f64, ti.i8, ti.i32, ti.i64, ti.u8, ti.u16, ti.u32, ti.u64]


def made(dtype: DType, n: int, offset: int) -> tuple[Field, np.ndarray]:
    kind = np.dtype(str(dtype.torch).removeprefix("torch."))
    rng = np.random.default_rng(n)
    if kind.kind == "f":
        numbers = rng.standard_normal(n).astype(kind)
    else:
        range = np.iinfo(kind)
        numbers = rng.integers(range.min, range.max, n, kind, endpoint=True)
    x = ti.field(dtype, n, offset=offset)
    x.from_numpy(numbers)
    return x, numbers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 257])
def test_a_sort_takes_values_along(dtype: DType, n: int) -> None:
    keys, numbers = made(dtype, n, offset=-7)
    values = ti.Vector.field(2, ti.u32, n)
    values.from_numpy(np.stack([np.arange(n), np.arange(n) ** 2], 1).astype(np.uint32))
    ti.algorithms.parallel_sort(keys, values)
    order = np.argsort(numbers, kind="stable")
    np.testing.assert_array_equal(keys.to_numpy(), numbers[order])
    np.testing.assert_array_equal(values.to_numpy(), np.stack([order, order**2], 1))
    ti.algorithms.parallel_sort(keys)
    np.testing.assert_array_equal(keys.to_numpy(), numbers[order])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_prefixes(dtype: DType) -> None:
    x, numbers = made(dtype, 300, offset=11)
    ti.algorithms.PrefixSumExecutor(300).run(x)
    sums = np.cumsum(numbers, dtype=numbers.dtype)
    np.testing.assert_allclose(x.to_numpy(), sums, rtol=1e-5, atol=1e-4)


def test_shapes_are_checked() -> None:
    with pytest.raises(ti.errors.KernelValueError, match=r"`keys` has shape \(2, 2\)"):
        ti.algorithms.parallel_sort(ti.field(ti.f32, (2, 2)))
    with pytest.raises(ti.errors.KernelValueError, match=r"shape \(2,\) and `values` of \(3,\)"):
        ti.algorithms.parallel_sort(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ti.errors.KernelValueError, match=r"4 elements .* PrefixSumExecutor of 5"):
        ti.algorithms.PrefixSumExecutor(5).run(torch.zeros(4))
