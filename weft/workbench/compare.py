"""Whether compiled code computes what the Python does, but for rounding.

What rounding may do to a result is asked of the Python itself, in float64, with noise of that size
on what it reads: where it gives NaN or an infinity all the same, compiled code must, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import torch

from weft.values import frozen

# What results may be off, relatively: sums of a few thousand numbers, in any order. Elements of 16
# bits are computed with 32 by compiled code, with 16 by Python.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}
# So many roundings are the noise, and so much further than noise rounding may drive a result. Less
# of those of 16 bits, which are so large that nothing would be wrong: compiled code has them where
# elements are stored, not in each operation.
_ROUNDINGS, _AMPLIFIED = 8, 50.0
_ROUNDINGS_16, _AMPLIFIED_16 = 1, 10.0


@frozen
class Difference:
    """Where a result differs most: ``name`` of the result, the element's subscripts, the numbers
    there; ``count`` of so many elements differ. Or, in ``text``, another reason."""

    name: str
    text: str
    place: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def tolerance(*dtypes: torch.dtype) -> float:
    """The largest tolerance that one of ``dtypes`` asks for."""
    return max((_TOLERANCE.get(d.to_real(), 0.0) for d in dtypes), default=0.0)


def is_inexact(value: object) -> TypeGuard[torch.Tensor]:
    """Whether ``value`` is a tensor of floating-point or complex numbers."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def widened(value: torch.Tensor) -> torch.Tensor:
    """Floats as float64, complex numbers as complex128, others as they are."""
    if not is_inexact(value):
        return value
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def parts(value: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of floats, in one more dimension; others as they are."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def kind(values: torch.Tensor) -> torch.Tensor:
    """0 for a finite number, then infinity, minus infinity, NaN."""
    values = values.double()
    return values.isposinf() * 1 + values.isneginf() * 2 + values.isnan() * 3


def with_noise(
    values: torch.Tensor, amount: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """The same numbers, relatively off by ``amount``; finite ones stay finite."""
    if values.is_complex():
        return torch.view_as_complex(with_noise(parts(values).contiguous(), amount, generator))
    noise = values * amount * torch.randn(values.size(), generator=generator, dtype=values.dtype)
    moved = values + noise
    moved = torch.where(moved.isfinite(), moved, values - noise)  # of the largest numbers
    return torch.where(values.isfinite(), moved, values)


def noise_of(*dtypes: torch.dtype) -> float:
    """What some roundings in the least precise of ``dtypes`` amount to."""
    floats = [d.to_real() for d in dtypes if d.is_floating_point or d.is_complex]
    eps = max((torch.finfo(d).eps for d in floats), default=0.0)
    return eps * (_ROUNDINGS_16 if eps >= torch.finfo(torch.float16).eps else _ROUNDINGS)


def close(expected: torch.Tensor, found: torch.Tensor, most: float) -> torch.Tensor:
    """Which elements agree: relatively, or beside the largest, to ``most``. Integers do exactly."""
    if not expected.is_floating_point() and not found.is_floating_point():
        return expected == found
    a, b = expected.double(), found.double()
    finite = a[a.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.isclose(b, a, most, most * min(scale, 1.0), equal_nan=True)


def allowed(
    exact: torch.Tensor, moved: Sequence[torch.Tensor], found: torch.Tensor, most: float
) -> torch.Tensor:
    """Which elements are as near to the Python in float64 as rounding lets them be, by what noise
    does to it (``moved``)."""
    slack = torch.zeros(exact.size(), dtype=torch.float64)
    amplified = _AMPLIFIED if most < _TOLERANCE[torch.float16] else _AMPLIFIED_16
    for value in moved:
        off = amplified * (value.double() - exact.double()).abs()
        same = kind(value) == kind(exact)  # what noise takes away, NaN or infinity, says nothing
        slack = torch.maximum(slack, torch.where(same, off.nan_to_num(0.0), math.inf))
    near = close(exact.double(), found.double(), most)
    return near | ((found.double() - exact.double()).abs() <= slack) | slack.isinf()


def described(
    name: str, expected: torch.Tensor, found: torch.Tensor, good: torch.Tensor,
    first: bool = False,
) -> Difference:  # fmt: skip
    """Of the elements that are not ``good``, the one that is off most, or the ``first``."""
    off = (found.double() - expected.double()).abs().nan_to_num(math.inf)
    off = torch.ones_like(off) if first else off
    flat = int(torch.where(good, -1.0, off).reshape(-1).argmax()) if good.dim() else 0
    place = tuple(int(n) for n in torch.unravel_index(torch.tensor(flat), good.size()))
    count = int((~good).sum())
    text = (
        f"{count:,} of {good.numel():,} elements differ; at {list(place)} there is "
        f"{found[place].item():.9g} in place of {expected[place].item():.9g}"
    )
    return Difference(name, text, place)
