"""Functions of types and bits, and integer powers: against the undecorated Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import weft

DTYPES = [torch.int8, torch.int16, torch.int32, torch.int64,
          torch.uint8, torch.uint16, torch.uint32, torch.uint64]  # fmt: skip


@weft.kernel
def integers(x: torch.Tensor, y: torch.Tensor, n: int, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[0, i] = weft.raw_div(x[i], y[i])
        out[1, i] = weft.raw_mod(x[i], y[i])
        out[2, i] = weft.bit_shr(x[i], i)
        out[3, i] = weft.math.clz(x[i])
        out[4, i] = weft.math.popcnt(x[i])
        out[5, i] = weft.zero(x[i]) + weft.one(y[i])
        out[6, i] = y[i] ** i
        out[7, i] = x[i] ** n
        out[8, i] = 2**i
        out[9, i] = weft.raw_div(x[i], n) + weft.raw_mod(i - 3, 2)
        if weft.static(weft.types.is_integral(x.dtype) and not weft.types.is_real(x.dtype)):
            out[10, i] = 5 if weft.static(weft.types.is_signed(x.dtype)) else 6


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_integers(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([0, 1, info.min, info.max, info.max // 3, 7], dtype=dtype)
    y = torch.tensor([3, 7, 2, 5, 1, 11], dtype=dtype)
    outs = [torch.zeros(11, 6, dtype=dtype) for _ in range(2)]
    integers(x, y, 3, outs[0])
    integers.interpret(x, y, 3, outs[1])
    assert outs[0].tolist() == outs[1].tolist()
    assert outs[0][0].tolist() == [
        a // b if a * b >= 0 else -(-a // b) for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    assert outs[0][10].tolist() == [5 if dtype.is_signed else 6] * 6


@weft.kernel
def floats(
    x: torch.Tensor, m: torch.Tensor, e: torch.Tensor, bits: torch.Tensor, back: torch.Tensor,
    whole: torch.Tensor,
) -> None:  # fmt: skip
    for i in range(x.shape[0]):
        m[i], e[i] = weft.frexp(x[i])
        bits[i] = weft.bit_cast(x[i], weft.i32 if x.dtype == torch.float32 else weft.i64)
        back[i] = weft.bit_cast(bits[i], x.dtype)
        whole[0, i] = weft.floor(x[i], weft.i32)
        whole[1, i] = weft.ceil(x[i], weft.i32) // 2
        whole[2, i] = weft.round(x[i], weft.i64) + weft.math.trunc(x[i], weft.i16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_floats(dtype: torch.dtype) -> None:
    few = [0.0, -0.0, 1.0, 1.5, -3.7, 1e30, 1e-40, 5e-324, math.inf, -math.inf, 0.1, 2.0**-126,
           2.0**-149, -(2.0**-130), 2.5]  # fmt: skip
    x = torch.tensor(few, dtype=dtype)
    runs = []
    for run in (floats, floats.interpret, floats.function):
        given = [torch.zeros_like(x), torch.zeros(15, dtype=torch.int32),
                 torch.zeros(15, dtype=torch.int32 if dtype is torch.float32 else torch.int64),
                 torch.zeros_like(x), torch.zeros(3, 15, dtype=torch.int64)]  # fmt: skip
        run(x, *given)
        runs.append(given)
    for found in runs[:2]:
        assert all(torch.equal(a, b) for a, b in zip(found, runs[2], strict=True))
    assert torch.equal(runs[0][0], torch.frexp(x).mantissa)
    assert torch.equal(runs[0][2], x.view(runs[0][2].dtype))


def test_a_negative_power_of_an_integer_is_an_error() -> None:
    @weft.kernel
    def powers(n: int, out: torch.Tensor) -> None:
        for i in out:
            out[i] = 3 ** (n - i)

    out = torch.zeros(3, dtype=torch.int64)
    powers(2, out)
    assert out.tolist() == [9, 3, 1]
    with pytest.raises(weft.KernelAssertionError) as caught:
        powers(1, out)
    assert "an integer is raised to a negative power: write float(x) ** n" in str(caught.value)


def test_bits_of_another_width_are_refused() -> None:
    @weft.kernel
    def wrong(x: torch.Tensor) -> None:
        for i in x:
            x[i] = weft.bit_cast(x[i], weft.i64)

    with pytest.raises(weft.KernelTypeError) as caught:
        wrong(torch.zeros(2))
    assert "bit_cast of a f32 to i64: they have 32 and 64 bits" in str(caught.value)
    with pytest.raises(weft.KernelTypeError, match="bit_cast of 32 bits to weft"):
        weft.bit_cast(weft.f32(1), weft.i64)


def test_outside_of_loops() -> None:
    zeros = weft.zero(weft.Vector([1, 2.5]))
    assert list(zeros) == [0, 0.0]
    assert weft.one(3.5) == 1.0
    assert (weft.raw_div(-7, 2), weft.raw_mod(-7, 2), weft.raw_div(7.0, 2)) == (-3, -1, 3.5)
    assert (weft.bit_shr(-1, 60), weft.math.clz(1), weft.bit_cast(1.0, weft.i32)) == (
        15,
        63,
        0x3F800000,
    )
    assert weft.types.is_real(weft.f16)
    assert weft.types.is_tensor(weft.math.vec3)


def test_numpy_scalars_are_numbers() -> None:
    step, gain, on = np.int64(2), np.float32(0.5), np.bool_(True)

    @weft.kernel
    def scaled(x: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        width = np.int64(1)
        out = torch.zeros(tuple(np.array(x.shape)))
        for i in range(begin, end, step):
            if on:
                out[i] = x[i] * gain + width + np.float32(0.1) + np.pi  # type: ignore
        for i in weft.ndrange((begin, np.int32(3))):
            out[i] += 1
        return out

    x = torch.rand(6)
    found = scaled(x, np.int32(1), np.int64(6))
    expected = torch.zeros(6)
    expected[1::2] = x[1::2].mul(0.5) + 1.1 + math.pi
    expected[1:3] += 1
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(scaled.function(x, np.int32(1), np.int64(6)), expected)


MASK, RATE = 255, 2.5


def test_methods_of_constant_numbers(monkeypatch):
    @weft.kernel
    def counted(out):
        for i in out:
            out[i] = MASK.bit_count() + 10 * (256).bit_length() + (100 if RATE.is_integer() else 0)

    for mask, rate in ((255, 2.5), (7, 2.0), (3, 4.0)):
        monkeypatch.setattr(f"{__name__}.MASK", mask)
        monkeypatch.setattr(f"{__name__}.RATE", rate)
        counted(out := torch.zeros(2))
        counted.interpret(expected := torch.zeros(2))
        assert torch.equal(out, expected)
        assert out[0] == mask.bit_count() + 90 + 100 * (rate != 2.5)
