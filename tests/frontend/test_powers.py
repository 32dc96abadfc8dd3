"""Powers at special values: torch's ``**`` of elements, Python's ``math.pow``."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from tests.fuzz.check import function

INF = math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, math.nan, 2.0, -2.0, 0.5, -3.0, 1e-30, -1e-30, 0.75]
FORMS = ["x[i] ** ({})", "pow(x[i], {})", "torch.pow(x[i], {})", "weft.math.pow(x[i], {})",
         "(weft.Vector([x[i], 1.0]) ** ({}))[0]"]  # fmt: skip
EXPONENTS = ["0.5", "-0.5", "2", "-1", "-2", "3", "0", "1.5", "-1.5", "0.25", "-3.0", "math.inf",
             "math.nan", "17"]  # fmt: skip


def computed(form: str, *args: torch.Tensor, strict: bool = False) -> torch.Tensor:
    text = (
        f"import math\ndef kernel(x, n, out):\n    for i in range(17):\n        out[i] = {form}\n"
    )
    out = torch.full((17,), 5.0, dtype=args[0].dtype)
    weft.kernel(strict_math=strict)(function(text))(*args, out)
    return out


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 1e-5 if expected.dtype == torch.float32 else 1e-13
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0, equal_nan=True)
    known = ~expected.isnan()
    assert torch.equal(found.signbit()[known], expected.signbit()[known])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_powers_of_elements_are_torchs(form: str, strict: bool, dtype: torch.dtype) -> None:
    x = torch.tensor([*SPECIAL, 3.0, 9.0, -0.0], dtype=dtype)
    for exponent in EXPONENTS:
        found = computed(form.format(exponent), x, x, strict=strict)
        same(found, torch.pow(x, eval(exponent)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 2, 3.0, 1.5])
def test_pow_of_math_is_pythons(exponent: float, dtype: torch.dtype) -> None:
    own = [v for v in SPECIAL if v >= 0 or v == -INF or exponent == int(exponent)]
    own = [v for v in own if v != 0 or exponent > 0]
    x = torch.tensor((own * 17)[:17], dtype=dtype)
    expected = torch.tensor([math.pow(v, exponent) for v in x.tolist()], dtype=dtype)
    same(computed(f"math.pow(x[i], {exponent})", x, x), expected)


@pytest.mark.parametrize("form", [
    "math.pow(n[i], 2)", "math.pow(n[i], 3.0)", "math.pow(i, 2)", "math.pow(n[i], i % 3)",
    "math.pow(n[i], -1)", "math.pow(2, i)", "math.pow(3, 2)",
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.uint8, torch.int64])
def test_pow_of_math_gives_floats_of_integers(form: str, dtype: torch.dtype) -> None:
    n = torch.arange(100, 117, dtype=dtype) * (1000 if dtype.itemsize > 1 else 1)
    values = [eval(form, {"math": math, "n": n, "i": i}) for i in range(17)]
    found = computed(form, torch.zeros(17, dtype=torch.float64), n)
    expected = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
