"""Floats of eight bits as elements: each bit pattern and each case of rounding against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import emulated
from tests.fuzz import float8
from weft.ir import float8 as formats
from weft.ir.types import SCALARS
from weft.tools.cross import compile_for

Kernel = Callable[..., Any]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DTYPES = [E4M3, E5M2]


@weft.kernel
def copy(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in x:
        out[i] = x[i]


@weft.kernel
def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in x:
        out[i] = x[i] * w[i]
    return out


@pytest.fixture(params=["compiled", "emulated"])
def place(request: pytest.FixtureRequest, device: str) -> Kernel:
    """Where kernels run: as they are called, or what is written for CUDA on this CPU."""
    if request.param == "emulated" and device != "cpu":
        pytest.skip("the emulator takes tensors of the CPU")
    return emulated if request.param == "emulated" else lambda kernel: kernel


def every(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def to_torch(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """torch's conversion: from 2.13 on, one to e4m3 stops at the largest number."""
    return (x.float().clamp(-448, 448) if dtype is E4M3 else x).to(dtype)


def roundings(dtype: torch.dtype) -> torch.Tensor:
    """Each number, each tie between two and beyond the last, the float32 on both sides of these,
    what is not finite, and random bits."""
    numbers = every(dtype).double()
    numbers = numbers[numbers.isfinite()].unique()
    beyond = torch.tensor([464.0, 480.0, 61440.0, 65536.0, 1e9, 3e38, 1e-45, 0.0])
    around = torch.cat([numbers, (numbers[1:] + numbers[:-1]) / 2, beyond, -beyond]).float()
    up, down = torch.full_like(around, math.inf), torch.full_like(around, -math.inf)
    random = torch.randint(-(2**31), 2**31, (20_000,)).to(torch.int32).view(torch.float32)
    return torch.cat([around, torch.nextafter(around, up), torch.nextafter(around, down), up[:1],
                      down[:1], torch.tensor([math.nan, -math.nan]), random])  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_all_bit_patterns_are_read_as_torch_reads_them(
    place: Kernel, dtype: torch.dtype, wide: torch.dtype
) -> None:
    x, found = every(dtype), torch.full((256,), 7.0, dtype=wide)
    place(copy)(x, found)
    wanted = x.to(wide)
    assert torch.equal(found.isnan(), wanted.isnan())
    numbers = ~wanted.isnan()
    assert torch.equal(found[numbers], wanted[numbers])
    assert torch.equal(found[numbers].signbit(), wanted[numbers].signbit())
    back = torch.zeros(256, dtype=torch.uint8).view(dtype)
    place(copy)(x, back)
    assert torch.equal(back.float().isnan(), x.float().isnan())
    assert torch.equal(back.view(torch.uint8)[numbers], x.view(torch.uint8)[numbers])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_all_cases_of_rounding_are_torchs(
    place: Kernel, dtype: torch.dtype, wide: torch.dtype
) -> None:
    x = roundings(dtype).to(wide)
    found = torch.zeros(x.shape, dtype=dtype)
    place(copy)(x, found)
    assert same_bits(found, to_torch(x, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_interpreters_round_as_torch_does(dtype: torch.dtype) -> None:
    x = roundings(dtype)[:2000]
    type = SCALARS["f8e4m3" if dtype is E4M3 else "f8e5m2"]
    bits = [formats.encode(v, type) for v in x.tolist()]
    wanted = to_torch(x, dtype)
    assert bits == wanted.view(torch.uint8).tolist()
    decoded = torch.tensor([formats.decode(b, type) for b in range(256)])
    torch.testing.assert_close(decoded, every(dtype).float(), rtol=0, atol=0, equal_nan=True)
    found = torch.zeros(300, dtype=dtype)
    copy.interpret(x[:300], found)
    assert same_bits(found, wanted[:300])


@weft.kernel
def values(x: torch.Tensor, o: torch.Tensor, f: torch.Tensor, b: torch.Tensor) -> None:
    for i in x:
        few = weft.zeros(2, dtype=weft.f8e5m2)
        few[0] = x[i] * 0.7
        half: weft.f8e4m3 = x[i] / 3
        f[i] = half + few[0]
        x[i] += 1.0  # an element of its own: read, added to in float32, rounded
        o[i] = weft.f8e4m3(f[i]) * 2 if x.dtype == weft.f8e4m3 else few[1]
        f[i] += weft.bit_cast(b[i], weft.f8e4m3)


def test_values_are_float32_and_casts_round(place: Kernel) -> None:
    x = torch.randn(33).to(E4M3)
    o, f = torch.zeros(33, dtype=E5M2), torch.zeros(33)
    b = torch.arange(33, dtype=torch.uint8) * 3
    wanted = [t.clone() for t in (x, o, f)]
    values.interpret(*wanted, b)
    place(values)(x, o, f, b)
    for found, other in zip((x, o, f), wanted, strict=True):
        assert torch.equal(found.float(), other.float())


@weft.kernel
def rounded_argument(o: torch.Tensor, a: weft.f8e5m2) -> None:
    for i in o:
        o[i] = a


def test_numbers_are_rounded_by_casts_and_annotations() -> None:
    assert [weft.f8e4m3(v).item() for v in (1.3, 1000, -3)] == [1.25, 448.0, -3.0]
    assert weft.f8e5m2(1e9).item() == math.inf
    assert weft.cast(1.3, weft.float8_e5m2).dtype == torch.float32
    o, other = torch.empty(2), torch.empty(2)
    rounded_argument(o, 0.3)
    rounded_argument.interpret(other, 0.3)
    assert o.tolist() == other.tolist() == [0.3125] * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_in_the_dtype_of_their_tensors(dtype: torch.dtype) -> None:
    x, w, g = torch.randn(3, 33)
    mine = [x.to(dtype).requires_grad_(), w.clone().requires_grad_()]
    torchs = [x.to(dtype).requires_grad_(), w.clone().requires_grad_()]
    product(*mine).backward(g.to(dtype))
    (torchs[0].float() * torchs[1]).to(dtype).backward(g.to(dtype))
    assert mine[0].grad is not None
    assert mine[0].grad.dtype is dtype
    for a, b in zip(mine, torchs, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad.float(), b.grad.float())


@weft.kernel
def picked(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty(index.shape[0])
    for i in index:
        out[i] = x[index[i]] * 2
    return out


@weft.kernel
def recurrence(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty(index.shape[0])
    for i in index:
        s = 0.0
        for t in range(x.shape[0]):
            s = weft.tanh(s * 0.5) + x[t]
        out[i] = s * s
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", [picked, recurrence], ids=["picked", "recurrence"])
def test_gradients_are_accumulated_in_float32(kernel: weft.Kernel, dtype: torch.dtype) -> None:
    x, index = torch.randn(300).to(dtype), torch.randint(0, 300, (40,))
    narrow, wide = x.clone().requires_grad_(), x.float().requires_grad_()
    kernel(narrow, index).sum().backward()
    kernel(wide, index).sum().backward()
    assert narrow.grad is not None
    assert wide.grad is not None
    found, wanted = narrow.grad.float(), wide.grad.to(dtype).float()
    unit = torch.finfo(dtype).eps  # where the last bits of the sums differ
    torch.testing.assert_close(found, wanted, rtol=2 * unit, atol=1e-3)
    assert bool((found != 0).any())


def test_transforms_take_them() -> None:
    x, w = torch.randn(3, 9).to(E4M3), torch.randn(9)
    wanted = (x.float() * w).to(E4M3).float()
    batched = torch.func.vmap(product, in_dims=(0, None))(x, w)
    assert torch.equal(batched.float(), wanted)
    primal, tangent = torch.func.jvp(product, (x[0], w), (x[0], w))
    assert torch.equal(primal.float(), wanted[0])
    assert torch.equal(tangent.float(), (2 * x[0].float() * w).to(E4M3).float())


@pytest.mark.slow  # Inductor has the C++ compiler make it
def test_a_compiled_program_rounds_them_as_weft_does() -> None:
    x, w = torch.randn(9).to(E5M2), torch.randn(9)
    program = torch.compile(lambda a, b: product(a, b).float() * 2, fullgraph=True)
    assert torch.equal(program(x, w), (x.float() * w).to(E5M2).float() * 2)


def test_fields_hold_them() -> None:
    f = weft.field(weft.f8e5m2, shape=(4,))
    f.fill(2.2)
    f[1] = 1.3
    copy(f, f)
    assert f.to_torch().float().tolist() == [2.0, 1.25, 2.0, 2.0]
    assert f[1] * 2 == 2.5
    with pytest.raises(weft.errors.KernelTypeError, match="numpy has no float8_e5m2"):
        f.to_numpy()


def test_code_for_cuda_is_complete() -> None:
    x, out = torch.empty(64, dtype=E4M3), torch.empty(64, dtype=E5M2)
    (loop,) = compile_for("sm_90", copy, x, out)
    assert "ld.global" in loop.ptx
    assert "call" not in loop.ptx  # conversions are arithmetic, no library's


@weft.kernel
def collide(x: torch.Tensor) -> None:
    for _i in range(3):
        x[0] += 1.0


@weft.kernel
def atomic(x: torch.Tensor) -> None:
    for _i in range(3):
        weft.atomic_max(x[0], 1.0)


@weft.kernel
def drawn(out: torch.Tensor) -> None:
    for i in out:
        out[i] = weft.random(weft.f8e4m3)


def test_what_cannot_be_is_refused_by_name() -> None:
    x = torch.zeros(3).to(E4M3)
    with pytest.raises(weft.errors.RaceError):
        collide(x)
    for call in (atomic, atomic.interpret):
        with pytest.raises(
            weft.errors.KernelTypeError, match=r"atomic_max.* on a tensor of .*e4m3"
        ):
            call(x)
    for call in (drawn, drawn.interpret):
        with pytest.raises(weft.errors.KernelTypeError, match=r"random\(\) of weft.f8e4m3"):
            call(torch.zeros(2))
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        other = torch.zeros(3, dtype=torch.uint8).view(getattr(torch, name))
        with pytest.raises(weft.errors.KernelTypeError, match=f"has dtype {name}, which kernels"):
            copy(other, other)


@pytest.mark.parametrize("seed", range(8))
def test_random_kernels(place: Kernel, seed: int) -> None:
    float8.check(Random(seed), lambda kernel, given: place(kernel)(*given))
