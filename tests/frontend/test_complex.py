"""Complex numbers in device loops: against the undecorated Python, and against torch."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

DTYPES = [torch.complex64, torch.complex128]
EPS = {torch.complex64: 2.0**-23, torch.complex128: 2.0**-52}


def random(n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(n, dtype=dtype) * torch.exp(torch.randn(n)).to(dtype)


def close(found: torch.Tensor, wanted: torch.Tensor, ulps: float = 8.0) -> None:
    """Within so many units in the last place of the absolute value."""
    assert found.dtype == wanted.dtype
    error = (found - wanted).abs()
    eps = EPS.get(found.dtype) or EPS[torch.complex(found[:0], found[:0]).dtype]
    same = (found == wanted) | (error <= ulps * eps * wanted.abs())
    assert same.all(), (found[~same], wanted[~same])


def against_python(kernel: Any, *args: Any, ulps: float = 8.0) -> None:
    """The compiled kernel, its checked interpretation and the undecorated function write alike:
    into complex tensors that are poisoned first."""
    written = kernel.mutated
    names = list(kernel.signature.parameters)
    runs: list[list[Any]] = []
    for run in (kernel.function, kernel, kernel.interpret):
        given = [torch.full_like(v, math.nan) if n in written and n != "total" else
                 v.clone() if isinstance(v, torch.Tensor) else v
                 for n, v in zip(names, args, strict=True)]  # fmt: skip
        result = run(*given)
        runs.append([v for n, v in zip(names, given, strict=True) if n in written])
        runs[-1] += [result] if isinstance(result, torch.Tensor) else []
    for others in runs[1:]:
        for found, wanted in zip(others, runs[0], strict=True):
            close(found, wanted, ulps)


@weft.kernel
def operators(x: torch.Tensor, y: torch.Tensor, r: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i, 0] = x[i] + y[i]
        out[i, 1] = x[i] - y[i] * 2
        out[i, 2] = x[i] * y[i]
        out[i, 3] = x[i] / y[i]
        out[i, 4] = -x[i]
        out[i, 5] = r[i] * x[i] + 1.5
        out[i, 6] = r[i] / x[i] - 1j
        out[i, 7] = (2 + 3j) * x[i]
        out[i, 8] = 1j / x[i]
        out[i, 9] = x[i] ** 3
        out[i, 10] = x[i] ** -2
        out[i, 11] = x[i] ** 0
        out[i, 12] = r[i] * 1j
        out[i, 13] = i - x[i]
        out[i, 14] = x[i].conj() * x[i].real + x[i].imag
        out[i, 15] = r[i]


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_are_those_of_the_undecorated_python(dtype: torch.dtype) -> None:
    x, y = random(17, dtype), random(17, dtype)
    out = torch.empty(17, 16, dtype=dtype)
    against_python(operators, x, y, random(17, dtype).real.clone(), out)
    against_python(operators, x[::2], y[8:].flip(0), x.imag[::2], out[:9])  # strided views


@weft.kernel
def conjugated(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i].conjugate() + (2j * x[i]).conjugate()


def test_conjugate_is_a_method_of_numbers_that_are_interpreted() -> None:
    x, out, expected = random(3, torch.complex64), *torch.zeros(2, 3, dtype=torch.complex64)
    conjugated(x, out)
    conjugated.interpret(x, expected)
    assert torch.equal(out, expected)
    torch.testing.assert_close(out, (x + 2j * x).conj().resolve_conj())


@weft.kernel
def flow(x: torch.Tensor, y: torch.Tensor, c: complex, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0j
        best = x[i]
        for k in range(y.shape[0]):
            s += x[i] * y[k]
            if abs(y[k]) > abs(best):
                best = y[k]
            elif y[k] == x[i] or y[k] != y[k]:
                continue
            if s.real > 4.0:
                s = s.conj() - c
                break
        a, b = s, best if s.imag > 0 else 1j
        while abs(a) > 2.0:
            a = a / 2 + 0.25j
        out[i] = a * b if i % 2 else torch.where(a.real > 0, a, b)
        out[i] += c
        out[i] *= x[i]
        out[i] -= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_variables_are_carried_through_loops_and_branches(dtype: torch.dtype) -> None:
    for n, m in ((1, 1), (3, 2), (17, 5)):
        x, y = random(n, dtype), random(m, dtype)
        against_python(flow, x, y, 0.5 - 1.5j, torch.empty(n, dtype=dtype), ulps=64)


@weft.func
def squared(z, by=1):
    return z * z.conj() * by


@weft.kernel
def sums(x: torch.Tensor, total: torch.Tensor):
    acc, size = 0j, 0.0
    for i in range(x.shape[0]):
        acc += x[i] * (1 + i)
        size += abs(squared(x[i], 2j))
        weft.atomic_add(total[i % 2], x[i])
        total[2] -= x[i]
    return acc + size


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_complex_numbers(dtype: torch.dtype) -> None:
    for n in (0, 1, 2, 127):
        x = random(n, dtype)
        totals = [torch.zeros(3, dtype=dtype) for _ in range(2)]
        found, wanted = sums(x, totals[0]), sums.function(x, totals[1])
        assert isinstance(found, torch.Tensor)
        size = x.abs().sum() * n + 1
        assert abs(found - wanted) <= 64 * EPS[dtype] * (size + (x.abs() ** 2).sum() * 2)
        assert ((totals[0] - totals[1]).abs() <= 64 * EPS[dtype] * size).all()


SPECIAL = [0j, -0.0 + 0j, complex(0.0, -0.0), 1 + 0j, -1 + 0j, 1j, -1j, 2 - 3j, 1e-3 + 1j,
           complex(-2.0, 0.0), complex(-2.0, -0.0), 0.6 + 0.8j, 1 + 1e-5j, -1e-4 - 1j]  # fmt: skip
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "abs": (abs, torch.abs, 4), "exp": (torch.exp, torch.exp, 4), "log": (torch.log, torch.log, 4),
    "sqrt": (torch.sqrt, torch.sqrt, 6), "sin": (torch.sin, torch.sin, 6),
    "cos": (torch.cos, torch.cos, 6), "sinh": (cmath.sinh, torch.sinh, 6),
    "cosh": (cmath.cosh, torch.cosh, 6), "angle": (torch.angle, torch.angle, 4),
    "sgn": (torch.sgn, torch.sgn, 4), "square": (torch.square, torch.square, 4),
    "reciprocal": (torch.reciprocal, torch.reciprocal, 4), "conj": (torch.conj, torch.conj, 0),
    "cmath.sqrt": (cmath.sqrt, torch.sqrt, 6), "cmath.exp": (cmath.exp, torch.exp, 4),
}  # fmt: skip


@weft.kernel
def mapped(f: weft.template(), x: torch.Tensor, out: torch.Tensor) -> None:  # type: ignore[valid-type]
    for i in range(x.shape[0]):
        out[i] = f(x[i])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sampled(3)
def test_functions_are_torchs_to_rounding(name: str) -> None:
    f, reference, ulps = FUNCTIONS[name]
    for dtype in DTYPES:
        x = torch.cat([torch.tensor(SPECIAL, dtype=dtype), random(40, dtype)])
        if name == "reciprocal":  # of 0, torch's differs among its own vectors and scalars
            x = x[x != 0]
        wanted = reference(x.to(torch.complex128)).resolve_conj()
        out = torch.full_like(reference(x).resolve_conj(), math.nan)
        mapped(f, x, out)
        close(out, wanted.to(out.dtype), ulps)
        if name in ("sqrt", "log", "angle", "conj", "cmath.sqrt"):  # the branch cut, signed zeros
            parts = torch.view_as_real if out.is_complex() else torch.Tensor.clone
            mine, theirs = parts(out), parts(wanted.to(out.dtype))
            assert torch.equal(torch.signbit(mine)[:13], torch.signbit(theirs)[:13]), name


@weft.kernel
def powers(x: torch.Tensor, y: torch.Tensor, r: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i, 0] = x[i] ** y[i]
        out[i, 1] = x[i] ** 0.5
        out[i, 2] = x[i] ** 2.5
        out[i, 3] = r[i] ** y[i]
        out[i, 4] = torch.polar(abs(r[i]), y[i].real)
        out[i, 5] = torch.complex(r[i], y[i].imag)
        out[i, 6] = weft.c64(r[i])
        out[i, 7] = torch.angle(r[i]) + torch.conj(r[i]) * torch.sgn(r[i]) * 1j
        out[i, 8] = cmath.phase(r[i]) + cmath.sqrt(-abs(r[i]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_and_numbers_made_of_two(dtype: torch.dtype) -> None:
    x, y = random(17, dtype), torch.randn(17, dtype=dtype)
    x[3], y[3] = 0, 1.5
    r = torch.randn(17, dtype=x.real.dtype)
    r[5], y[5] = -0.0, 2.0
    found, wanted = (torch.full((17, 9), math.nan, dtype=dtype) for _ in range(2))
    powers(x, y, r, found)
    powers.function(x, y, r, wanted)
    error = (found - wanted).abs() / wanted.abs().clamp_min(1e-30)
    assert (error[:, 4:] <= 4 * EPS[dtype]).all()
    size = 1 + (y * torch.log(x + (x == 0))).abs() + (y * torch.log(r.to(dtype) + (r == 0))).abs()
    assert (error <= 16 * EPS[dtype] * size[:, None]).all()


@weft.kernel
def quotients(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i, 0] = x[i] / y[i]
        out[i, 1] = abs(x[i])
        out[i, 2] = torch.sqrt(x[i])
        out[i, 3] = torch.log(x[i])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_overflows_in_between(dtype: torch.dtype) -> None:
    """At magnitudes whose squares are no numbers any more."""
    big, tiny = (1e30, 1e-38) if dtype is torch.complex64 else (1e300, 1e-306)
    x = torch.tensor(
        [big * (1 + 1j), big * (3 - 1j), tiny * (1 + 2j), tiny * (2 - 1j)], dtype=dtype
    )
    y = torch.tensor([big * (1 - 1j), big * 2j, tiny * (1 - 1j), tiny * (1 + 1j)], dtype=dtype)
    out = torch.full((4, 4), math.nan, dtype=dtype)
    quotients(x, y, out)
    close(out[:, 0], torch.tensor([1j, -0.5 - 1.5j, -0.5 + 1.5j, 0.5 - 1.5j], dtype=dtype))
    for column, f in ((1, torch.abs), (2, torch.sqrt), (3, torch.log)):
        reference = f(x.to(torch.complex128)).to(dtype)
        close(out[:, column].clone(), reference)


def test_a_zero_divisor_gives_what_torch_gives() -> None:
    x = torch.tensor([1 + 1j, -1 + 2j, 0j], dtype=torch.complex128)
    out = torch.zeros(3, 4, dtype=torch.complex128)
    quotients(x, torch.zeros_like(x), out)
    wanted = torch.stack([a / torch.tensor(0j, dtype=torch.complex128) for a in x])
    assert str(out[:, 0]) == str(wanted)


@weft.kernel
def local(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        row = weft.zeros(4, weft.c128)
        for k in range(4):
            row[k] = x[i] * (k + 1j)
            row[k] += 1j
        pair = (row[0], row[3])
        z: weft.c64 = pair[1] if complex(pair[0]) == pair[0] else 0j
        out[i] = z + (1 if x[i] else 0)


def test_local_arrays_casts_tuples_and_truth() -> None:
    x = random(5, torch.complex64)
    x[2] = 0
    out = torch.full_like(x, math.nan)
    local(x, out)
    wanted = torch.where(x != 0, x * (3 + 1j) + 1j + 1, torch.tensor(1j))
    close(out, wanted)


GLOBAL = 2 - 1j
TENSOR = torch.tensor(1 + 1j)


@weft.kernel
def around(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    zero = torch.zeros((), dtype=x.dtype)
    for i in range(x.shape[0]):
        out[i] = x[i] * GLOBAL + zero + x.real[i]
    for i in range(x.shape[0]):
        out[i] = out[i] if out[i].dtype == torch.complex64 else 0j
    return out


def test_what_is_around_the_loop() -> None:
    x = random(6, torch.complex64)
    close(around(x), x * GLOBAL + x.real)
    close(around(x.conj()), (x.conj() * GLOBAL + x.real).resolve_conj())
    real = torch.randn(6)
    with pytest.raises(weft.WeftError):
        around(real)  # of a float tensor, `x.dtype` makes `zero` real, and a complex is stored


@weft.kernel
def either(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i].real


def test_one_kernel_for_real_and_complex_tensors_of_the_same_memory() -> None:
    """Plans of the two are not taken for each other's."""
    z = random(8, torch.complex64)
    for _ in range(6):
        for x in (z, torch.view_as_real(z)[:, 1].clone(), z.conj(), z.to(torch.complex128)):
            out = torch.full((8,), math.nan)
            either(x, out)
            assert torch.equal(out, x.real.float())


def refused(kernel: Any, *args: Any) -> str:
    with pytest.raises(weft.WeftError) as info:
        kernel(*args)
    return str(info.value)


@weft.kernel
def ordered(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        if x[i] < 1j:
            out[i] = x[i]


@weft.kernel
def narrowed(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i]


@weft.kernel
def begun_real(x: torch.Tensor):
    acc = 0.0
    for i in range(x.shape[0]):
        acc += x[i]
    return acc


@weft.kernel
def multiplied(x: torch.Tensor):
    acc = 1 + 0j
    for i in range(x.shape[0]):
        acc *= x[i]
    return acc


@weft.kernel
def floored(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] // 2


@weft.kernel
def tangents(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = torch.tan(x[i])


@weft.kernel
def exchanged(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = weft.atomic_add(x[i], 1j)


def test_what_is_not_there_is_refused_by_name() -> None:
    z, out = random(3, torch.complex64), torch.zeros(3)
    told = {
        refused(ordered, z, z.clone()): ("`<` of complex numbers, which have no order", "abs(z)"),
        refused(narrowed, z, out): ("a complex number (c64)", "write z.real, z.imag or abs(z)"),
        refused(begun_real, z): ("`acc`, which is real before the loop", "acc = 0j"),
        refused(multiplied, z): ("accumulates complex numbers by mul", "serialize=True"),
        refused(floored, z, z.clone()): ("`//` of complex numbers", "z.real"),
        refused(tangents, z, z.clone()): ("`torch.tan` of complex numbers is not there", "z.real"),
        refused(exchanged, z, z.clone()): ("the two parts are added one by one", "statement"),
    }
    for message, parts in told.items():
        assert all(part in message for part in parts), message
    with pytest.warns(UserWarning, match="ComplexHalf"):
        half = torch.zeros(3, dtype=torch.complex32)
    assert "dtype complex32" in refused(narrowed, half, out)
    assert "lazily conjugated" in refused(narrowed, z, z.clone().conj())


QUARTERS = (1 + 0j, 1j, -1, -1j)
SIXTEENTHS = tuple(cmath.rect(1, -math.pi * k / 8) for k in range(16))
SQUARE = ((1, 1j), (2j, 3))


def turned(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(4, x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        computed = [x[0] * 1j, x[1] * 2, 1.5]
        out[0, i] = computed[i % 3]
        out[1, i] = x[i] * QUARTERS[i % 4] + QUARTERS[i - 2]
        out[2, i] = x[i] * SIXTEENTHS[i * 5 % 16]
        factor, z = [(1, x[i]), (2, x[0] * 2)][i % 2]
        out[3, i] = factor * z + SQUARE[i % 2][i // 2]
    return out


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_of_a_tuple_are_chosen_at_run_time(dtype: torch.dtype) -> None:
    x = random(4, dtype)
    torch.testing.assert_close(weft.kernel(turned)(x), turned(x))
    x = random(4, torch.complex128).requires_grad_()
    torch.autograd.gradcheck(weft.kernel(turned), (x,))
