"""Each function with a vector version over all of its range: in lanes and alone, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compiled import Compiled

import weft
from weft.codegen.vectormath import FUNCTIONS
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.types import MemRefType, ScalarType, f32, f64, index

_NUMPY = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh", "powf": "power", "atan2": "arctan2",
}  # fmt: skip
SPECIAL = [0.0, 1e-45, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 1e3, 1e10, 1e38, np.inf]


def exponents(dtype: type) -> np.ndarray:
    """Both ends and three numbers of each binade, subnormals and both signs; infinities, NaN."""
    bits, ints = (23, np.int32) if dtype is np.float32 else (52, np.int64)
    last = 0xFF if dtype is np.float32 else 0x7FF
    rng = np.random.default_rng(4)
    low = np.arange(last, dtype=np.int64) << bits
    inside = [low + rng.integers(0, 1 << bits, last) for _ in range(3)]
    words = np.concatenate([low, low + (1 << bits) - 1, *inside, [last << bits]])
    x = words.astype(ints).view(dtype)
    near = np.concatenate([np.linspace(-800, 800, 1601), np.linspace(-2, 2, 401)]).astype(dtype)
    return np.concatenate([x, -x, near, [np.nan]]).astype(dtype)


def reference(function: str, *x: np.ndarray) -> np.ndarray:
    """In extended precision for float64, in float64 for float32."""
    if function in ("erf", "erfc"):
        return getattr(torch, function)(torch.from_numpy(x[0].astype(np.float64))).numpy()
    wide = [v.astype(np.longdouble if v.dtype == np.float64 else np.float64) for v in x]
    return getattr(np, _NUMPY.get(function, function))(*wide)


def assert_near(got: np.ndarray, expected: np.ndarray, args: list[np.ndarray]) -> None:
    """Within 4 units in the last place, and the same infinities, NaN and signs of zeros."""
    nearest = expected.astype(got.dtype)
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    finite = np.isfinite(nearest) & np.isfinite(got)
    distance = np.abs(got.astype(expected.dtype) - expected) / np.spacing(np.abs(nearest))
    wrong = ~(same | (finite & (distance <= 4)))
    wrong |= (got == 0) & (nearest == 0) & (np.signbit(got) != np.signbit(nearest))
    where = np.flatnonzero(wrong)[:5]
    assert not wrong.any(), [(*(a[k] for a in args), got[k], nearest[k]) for k in where]


def elementwise(function: str, t: ScalarType, count: int) -> Function:
    row = MemRefType(t, 1, "contiguous")
    made = Function(f"all_{function}", [row] * (count + 1), [*"xyz"[:count], "out"])
    b = Builder(made.body)
    *inputs, out = made.args
    bounds = b.constant(0, index), b.op("memref.dim", out, axis=0), b.constant(1, index)
    loop = b.parallel(*([v] for v in bounds))
    with b.at(loop.regions[0]) as block:
        values: list[Value] = [b.load(x, block.args) for x in inputs]
        b.store(b.op(f"math.{function}", *values), out, block.args)
        b.do("scf.reduce")
    b.do("func.return")
    return made


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("t", [f32, f64], ids=lambda t: t.name)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.sampled(3)
def test_functions_hold_over_all_of_their_range(function: str, t: ScalarType, strict: bool) -> None:
    dtype = np.float32 if t is f32 else np.float64
    args = [exponents(dtype)]
    if function in ("powf", "atan2", "hypot"):
        both = np.array([*SPECIAL, *(-v for v in SPECIAL), np.nan], dtype)
        args = [a.reshape(-1).copy() for a in np.meshgrid(both, both)]
    kernel = Compiled(elementwise(function, t, len(args)), strict_math=strict)
    with np.errstate(all="ignore"):
        expected = reference(function, *args)
        lanes = np.full_like(args[0], 7.0)
        kernel(*args, lanes)
        assert_near(lanes, expected, args)
        some = np.arange(0, args[0].size, 97)
        alone = np.full(some.size, 7.0, dtype)
        for place, k in enumerate(some):  # not in a vector, as what is left over of a loop
            kernel(*(a[k : k + 1].copy() for a in args), alone[place : place + 1])
        assert_near(alone, expected[some], [a[some] for a in args])


def test_large_arguments_do_not_depend_on_the_position() -> None:
    @weft.kernel
    def inverse(x, o):
        for i in x:
            o[i] = weft.math.asinh(x[i])

    x, o = torch.full((33,), 1e25), torch.zeros(33)
    inverse(x, o)
    torch.testing.assert_close(o, torch.asinh(x))
