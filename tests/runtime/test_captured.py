"""Captured numbers that change become arguments of the machine code; specialisations are few."""

from __future__ import annotations

import gc
import logging
import math
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.runtime import specialize

RATE = 0.1
COUNT = 3
CONFIG = types.SimpleNamespace(dt=0.5)


def damped(v):
    return v * RATE - CONFIG.dt


@weft.kernel
def descend(x, g):
    for i in range(x.shape[0]):
        x[i] -= RATE * g[i]


@weft.kernel
def smoothed(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = damped(x[i]) * RATE * x[i]
    return out


@pytest.fixture(autouse=True)
def numbers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RATE", 0.1)
    monkeypatch.setitem(globals(), "COUNT", 3)
    monkeypatch.setattr(CONFIG, "dt", 0.5)


def alter(rate: float) -> None:
    globals()["RATE"], CONFIG.dt = rate, rate + 1.0


def test_a_rate_that_changes_each_step_compiles_twice(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.zeros(5, dtype=torch.float64)
    expected = x.clone()
    kernel = weft.kernel(descend.function)
    with caplog.at_level(logging.DEBUG, "weft.specialize"):
        for k in range(40):
            alter(0.9**k)
            g = torch.randn(5, dtype=torch.float64)
            kernel(x, g)
            expected -= RATE * g
    torch.testing.assert_close(x, expected, rtol=1e-14, atol=1e-14)
    assert [s.signature for s in kernel.specializations] == [
        "x: f64[:], RATE: =1.0, g: f64[:]", "x: f64[:], RATE: float, g: f64[:]"
    ]  # fmt: skip
    line = kernel.span.line + 1
    assert (
        f"descend, loop at line {line}: `RATE` has another value: an argument of the machine code "
        "from now on"
    ) in caplog.messages


def test_numbers_of_called_functions_and_of_objects() -> None:
    x = torch.randn(4, dtype=torch.float64)
    kernel = weft.kernel(smoothed.function)
    for k in range(8):
        alter(0.5 + k)
        torch.testing.assert_close(kernel(x), smoothed.function(x))
    assert len(kernel.specializations) <= 2


BODIES = (
    "x[i] * (A * 0.3 + B)", "x[i] / A + 1 - B", "B * A * 7 / 3 + x[i]",
    "max(x[i], A) * min(B, x[i])", "math.exp(A) * x[i] - -A", "A if x[i] > A else B * 1.1",
    "(A + i) * (x[i] + B)", "x[i] ** 2 * A ** 2", "x[i] + (i % 3) * A // 1",
    "abs(x[i] * A) + abs(B)", "x[i] * (1.0 / A) + B % 2", "x[i] + A if i < B else B",
    "float(B) * x[i] + weft.f32(A)", "weft.math.sqrt(abs(A)) * x[i]",
    "min(A, 1) * x[i] + max(2, B) + abs(-B)", "min(A, 4) * (i + 2**25) - max(A, -1.0)",
    "(x[i] > A) * abs(A - B) + (min(B, 4) >= x[i])",
)  # fmt: skip


def made(tmp_path: Path, body: str, name: str) -> Callable[[], Any]:
    """A function that makes a kernel of ``body``; its module holds A and B."""
    file = tmp_path / f"{name}.py"
    file.write_text(
        "import math\nimport weft\n@weft.kernel(strict_math=True)\ndef kernel(x, out):\n"
        f"    for i in range(x.shape[0]):\n        out[i] = {body}\n"
    )

    def make() -> Any:
        scope: dict[str, Any] = {"__name__": name}
        exec(compile(file.read_text(), str(file), "exec"), scope)
        return types.SimpleNamespace(scope=scope, kernel=scope["kernel"])

    return make


@pytest.mark.sampled(3)
@pytest.mark.cpu  # a GPU's exp of a double is another library's
@pytest.mark.parametrize("body", BODIES)
def test_an_argument_gives_the_bits_of_the_constant(tmp_path: Path, body: str) -> None:
    make = made(tmp_path, body, "bits")
    changing = make()
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-2.0, 3.0, 9, dtype=dtype)
        for a, b in ((0.1, 3), (-1.7, 5), (math.pi, 5)):
            constant = make()
            for module in (changing, constant):
                module.scope.update(A=a, B=b)
            found, expected = torch.empty_like(x), torch.empty_like(x)
            changing.kernel(x, found)
            constant.kernel(x, expected)
            assert torch.equal(found, expected), (a, b, found, expected)


@weft.kernel
def altered(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        rate, count = RATE, COUNT
        rate *= 2
        count += 1
        if x[i] > RATE:
            rate += x[i]
        for _ in range(2):
            rate = rate * 0.75 + min(RATE, 1)
        out[i] = rate * abs(-RATE) + max(count, 2)
    return out


def test_numbers_that_the_loop_changes_and_compares_are_arguments() -> None:
    x = torch.linspace(-2.0, 3.0, 9, dtype=torch.float64)
    kernel = weft.kernel(altered.function)
    for k, rate in enumerate((0.1, -0.7, 1.0, 1.5, math.nan, 0.0)):
        globals()["COUNT"] = k
        alter(rate)
        torch.testing.assert_close(kernel(x), altered.function(x), equal_nan=True)
    assert len(kernel.specializations) <= 3  # of no captured number that changed, of one, of two


def test_what_has_to_be_known_stays_a_constant(caplog: pytest.LogCaptureFixture) -> None:
    @weft.kernel
    def powers(x, out):
        for i in range(x.shape[0]):
            s = 0.0
            for k in range(COUNT):
                s += x[i] ** COUNT + k
            out[i] = s

    x, out = torch.tensor([1.0, 2.0]), torch.zeros(2)
    with caplog.at_level(logging.DEBUG, "weft.specialize"):
        for count in (1, 2, 3, 2):
            globals()["COUNT"] = count
            powers(x, out)
            expected = [count * float(v) ** count + sum(range(count)) for v in x]
            assert out.tolist() == expected
    line = powers.span.line + 1
    text = f"powers, loop at line {line}: `COUNT` has to be known at compile time: a constant"
    assert text in caplog.messages


def test_large_ints_and_other_types_of_number_are_right() -> None:
    @weft.kernel
    def add(x):
        for i in range(x.shape[0]):
            x[i] += RATE * 3 * 2

    for value in (1, 2, 2.5, True, 1 << 40, (1 << 31) - 1, 1 << 31, -(1 << 62), 3, 0.25):
        globals()["RATE"] = value
        for _ in range(3):
            x = torch.zeros(2, dtype=torch.float64)
            add(x)
            assert x.tolist() == [float(value * 3 * 2)] * 2, value


def test_products_of_large_ints_do_not_wrap() -> None:
    @weft.kernel
    def product(x):
        for i in range(x.shape[0]):
            x[i] = RATE * RATE * RATE * 1.0

    for value in (3, 5, (1 << 31) - 1, (1 << 31) - 5):
        globals()["RATE"] = value
        x = torch.zeros(2, dtype=torch.float64)
        product(x)
        assert x.tolist() == [value**3 * 1.0] * 2


def test_derivatives_and_operators_follow_the_number() -> None:
    kernel = weft.kernel(smoothed.function)
    compiled = torch.compile(lambda x: kernel(x), backend="aot_eager", fullgraph=True)
    for rate in (0.5, 2.0, -1.25, 0.75):
        alter(rate)
        x = torch.randn(3, dtype=torch.float64, requires_grad=True)
        slope = 2 * RATE * RATE * x.detach() - CONFIG.dt * RATE
        y = kernel(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(grad, slope)
        _, tangent = torch.func.jvp(kernel, (x.detach(),), (torch.ones(3, dtype=torch.float64),))
        torch.testing.assert_close(tangent, slope)
        value = (x.detach() * RATE - CONFIG.dt) * RATE * x.detach()
        for way in (kernel, compiled, kernel.op, kernel.interpret):
            torch.testing.assert_close(way(x.detach()), value)
    assert len(kernel.specializations) <= 2


def test_forward_mode_alone_follows_the_number() -> None:
    """The launch that was there before is not given the number as one more argument."""
    kernel = weft.kernel(smoothed.function)
    ones = torch.ones(3, dtype=torch.float64)
    for rate in (0.5, 2.0, -1.25, 0.75):
        alter(rate)
        x = torch.randn(3, dtype=torch.float64)
        slope = 2 * RATE * RATE * x - CONFIG.dt * RATE
        _, tangent = torch.func.jvp(kernel, (x,), (ones,))
        torch.testing.assert_close(tangent, slope)
        with torch.autograd.forward_ad.dual_level():
            torch.testing.assert_close(kernel(x), (x * RATE - CONFIG.dt) * RATE * x)


def maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.slow
def test_many_specialisations_are_warned_of_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread runs the first form over and over."""

    @weft.kernel
    def add(x, n: weft.template()):
        for i in range(x.shape[0]):
            x[i] += n

    object.__setattr__(add.options, "specializations", 8)
    monkeypatch.setattr(specialize, "MANY", 20)
    done = threading.Event()
    other = torch.zeros(3)
    calls = 0

    def again() -> None:
        nonlocal calls
        while not done.is_set():
            add(other, 1)
            calls += 1

    x, before = torch.zeros(3), maps()
    thread = threading.Thread(target=again)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        thread.start()
        for n in range(24):
            add(x, n)
        done.set()
        thread.join()
    assert x.tolist() == [24 * 23 / 2] * 3
    assert other.tolist() == [float(calls)] * 3
    assert len(add.specializations) <= 8
    gc.collect()
    assert maps() - before < 16 * 3.2  # a form has 3.2 of them
    (warning,) = met
    assert warning.category is RuntimeWarning
    assert (warning.filename, warning.lineno) == (__file__, add.span.line + 1)
    assert str(warning.message).startswith(
        f"the loop at line {add.span.line + 1} of `add` was compiled 20 times: `n` changed "
    )
