"""Every scalar operation again, as shaders: on WebGPU, and in Metal's language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.codegen import test_ops as operations
from tests.codegen.test_ops import *  # noqa: F403 - the same tests
from tests.codegen.test_ops import random_floats, run
from tests.conftest import adapter
from tests.shader import metal
from weft.ir.core import Function
from weft.ir.types import MemRefType, ScalarType, bf16, f32, f64, i1
from weft.options import Options
from weft.runtime.function import CompiledFunction
from weft.runtime.webgpu import device

pytestmark = [pytest.mark.webgpu, pytest.mark.slow]


class AsShader:
    """As ``compiled.Compiled``."""

    def __init__(self, function: Function, **attributes: bool) -> None:
        function.attrs |= {name: True for name, given in attributes.items() if given}
        self.types = [arg.type for arg in function.args]
        self.function = CompiledFunction(function, Options(on="webgpu", cache=False))

    def __call__(self, *args: Any) -> None:
        values = [a if not isinstance(a, np.ndarray) else torch.from_numpy(a).view(torch.bfloat16)
                  if isinstance(t, MemRefType) and t.element is bf16 else torch.from_numpy(a)
                  for a, t in zip(args, self.types, strict=True)]  # fmt: skip
        try:
            self.function(values)
        except TypeError as error:
            if not any(word in str(error) for word in ("Metal has no float64", " of float64")):
                raise
            pytest.skip(f"{error}")


# What WebGPU leaves to drivers, where theirs is not a CPU's arithmetic.
OPEN = {
    "test_float_arithmetic[webgpu-divf-f32]": "divides to 2.5 units in the last place",
    "test_exact_functions[webgpu-sqrt-f32]": "has roots to some units in the last place",
    "test_bfloat_conversions[webgpu]": "takes numbers below 1.2e-38 for 0",
    "test_tanh_is_within_two_units_in_the_last_place[webgpu]": "divides to 2.5 units",
}


@pytest.fixture(autouse=True, params=["webgpu", "metal"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operations of these tests run."""
    if request.param == "metal":
        metal.in_place_of_webgpu(monkeypatch)
    else:
        adapter()
        if not device().name.startswith("llvmpipe"):
            if request.node.name in OPEN:
                pytest.skip(f"{device().name} {OPEN[request.node.name]}")
            monkeypatch.setattr(operations, "SMALLEST", 1.2e-38)
    monkeypatch.setattr(operations, "Compiled", AsShader)
    exact = operations.assert_ulps
    monkeypatch.setattr(operations, "assert_ulps", lambda a, b, most: exact(a, b, 3.25 * most))


@pytest.mark.parametrize("t", [f32, f64], ids=str)
def test_float_predicates_and_sign(t: ScalarType) -> None:
    """WebGPU lets drivers round the product of ``fma``."""
    x, y = random_floats(t, "x"), random_floats(t, "y")
    np.testing.assert_array_equal(run("math.isnan", [x], [t], i1), np.isnan(x))
    np.testing.assert_array_equal(run("math.isinf", [x], [t], i1), np.isinf(x))
    np.testing.assert_array_equal(run("arith.negf", [x], [t], t), -x)
    np.testing.assert_array_equal(run("math.copysign", [x, y], [t, t], t), np.copysign(x, y))
    got = run("math.fma", [x, y, x], [t, t, t], t)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        exact, room = wide * y + wide, np.finfo(t.name.replace("f", "float")).eps
        room *= np.abs(wide * y) + np.abs(wide)
        assert np.all((np.abs(got - exact) <= room) | (got == exact) | np.isnan(exact))
    assert np.isnan(got[np.isnan(exact)]).all()


def test_what_drivers_round_is_near() -> None:
    x, y = random_floats(f32, "x"), random_floats(f32, "y")
    with np.errstate(all="ignore"):
        for name, args, exact in (
            ("arith.divf", [x, y], x.astype(np.float64) / y),
            ("math.sqrt", [x], np.sqrt(x.astype(np.float64))),
            ("math.tanh", [x], np.tanh(x.astype(np.float64))),
        ):
            got, wanted = run(name, args, [f32] * len(args), f32), exact.astype(np.float32)
            normal = np.isfinite(wanted) & (np.abs(wanted) > 1.2e-38) & (np.abs(y) > 1.2e-38)
            off = np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(wanted))
            assert off[normal & (np.abs(x) > 1.2e-38)].max() <= 5, name
            assert np.isnan(got[np.isnan(wanted)]).all(), name
