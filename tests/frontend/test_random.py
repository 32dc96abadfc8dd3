"""Random numbers in device loops: what they are, and that nothing but torch's generator decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import weft
from tests.cuda.emulator import emulated
from weft.errors import GradientError
from weft.ir.core import walk
from weft.ir.philox import word
from weft.ir.views import constant_of
from weft.lang.random import new_key
from weft.runtime.overlap import OverlapWarning

COUNT = 20_000


@weft.func
def helper(x):
    if weft.random() < 0.5:
        return x * weft.random()
    return weft.random(weft.f64)


@weft.func
def body(n):
    """Draws that depend on what was drawn."""
    s = 0.0
    if weft.random(bool):
        s += weft.f64(weft.random(weft.f32))
    while weft.random(weft.f64) < 0.6:
        if weft.random() < 0.5:
            s += weft.random(weft.f64)
            continue
        for k in range(weft.randint(0, 3)):
            if weft.random(weft.f32) < 0.2:
                break
            s += weft.f64(weft.random(weft.f32)) * k
    return s + weft.randint(-n, n) + helper(3.0)


@weft.kernel
def mixed(out, bits, n: int):
    for i, j in out:
        out[i, j] = body(n)
        bits[i, j] = weft.random(weft.i64) ^ weft.random(weft.i32)


@weft.kernel
def in_order(out, bits, n: int):
    weft.loop_config(serialize=True)
    for i, j in out:
        out[i, j] = body(n)
        bits[i, j] = weft.random(weft.i64) ^ weft.random(weft.i32)


@weft.kernel
def grouped(out, bits, n: int):
    for I in weft.grouped(out):  # noqa: E741
        out[I] = body(n)
        bits[I] = weft.random(weft.i64) ^ weft.random(weft.i32)


@weft.kernel(debug=True)
def checked(out, bits, n: int):
    for i, j in out:
        out[i, j] = body(n)
        bits[i, j] = weft.random(weft.i64) ^ weft.random(weft.i32)


@weft.kernel
def backwards(out, bits, n: int):
    for i in range(out.shape[0] - 1, -1, -1):
        out[i, 0] = body(n)
        bits[i, 0] = weft.random(weft.i64) ^ weft.random(weft.i32)


def drawn(kernel: Callable[..., Any], shape: tuple[int, ...], seed: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    out = torch.full(shape, math.nan, dtype=torch.float64)
    bits = torch.empty(shape, dtype=torch.int64)
    kernel(out, bits, 50)
    return [out, bits, torch.rand(2)]  # the generator has gone on as far


def alike(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [pytest.param((1, 1), marks=pytest.mark.slow), (5, 7)])
def test_numbers_are_the_same_in_any_order_and_in_python(shape) -> None:
    expected = drawn(mixed.interpret, shape)
    for kernel in (mixed, in_order, in_order.interpret, grouped, grouped.interpret, checked, mixed):
        alike(drawn(kernel, shape), expected)
    alike(drawn(emulated(mixed), shape), expected)
    assert not torch.equal(drawn(mixed, shape, 6)[1], expected[1])


def seldom(value):
    return weft.random() if value > 2 else 0.0


@weft.kernel
def rarely(out, bits, n: int):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            if n > 99:
                out[i, j] = weft.random()
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = seldom(j)
            bits[i, j] = i


def test_a_loop_that_draws_takes_a_key_where_no_iteration_does() -> None:
    for kernel, shape in ((mixed, (0, 3)), (in_order, (2, 0)), (in_order, (0, 1)), (rarely, (2, 3)),
                          (grouped, (0, 0)), (rarely, (2, 5))):  # fmt: skip
        alike(drawn(kernel, shape), drawn(kernel.interpret, shape))


def test_numbers_of_a_loop_backwards() -> None:
    alike(drawn(backwards, (9, 1)), drawn(backwards.interpret, (9, 1)))


def test_numbers_are_the_same_for_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(drawn(mixed, (301, 97)))
    finally:
        torch.set_num_threads(before)
    alike(found[0], found[1])
    alike(found[0], found[2])


@weft.kernel
def floats(a, b, h, c, d):
    for i in a:
        a[i] = weft.random(weft.f32)
        b[i] = weft.random(weft.f64)
        h[i] = weft.random(weft.f16)
        c[i] = weft.randn(weft.f32)
        d[i] = weft.randn(weft.f64)


def test_words_are_those_of_philox() -> None:
    torch.manual_seed(9)
    a, b, h = torch.empty(33), torch.empty(33, dtype=torch.float64), torch.empty(33).half()
    c, d = torch.empty(33), torch.empty(33, dtype=torch.float64)
    floats(a, b, h, c, d)
    torch.manual_seed(9)
    key = int(new_key("cpu"))

    def words(i: int, *numbers: int) -> int:
        found = 0
        for n in numbers:
            found = found << 32 | word(key, i, n)
        return found

    for i in range(33):
        assert a[i] == (words(i, 0) >> 8) * 2.0**-24
        assert b[i] == (words(i, 2, 3) >> 11) * 2.0**-53
        assert h[i] == (words(i, 4) >> 21) * 2.0**-11
        size, turn = words(i, 6) * 2.0**-32, words(i, 7) * 2.0**-32
        assert math.isclose(c[i], math.sqrt(-2 * math.log(size)) * math.cos(math.tau * turn),
                            rel_tol=1e-4, abs_tol=1e-5)  # fmt: skip
        size, turn = words(i, 8, 9) * 2.0**-64, words(i, 10, 11) * 2.0**-64
        assert math.isclose(d[i], math.sqrt(-2 * math.log(size)) * math.cos(math.tau * turn),
                            rel_tol=1e-9, abs_tol=1e-12)  # fmt: skip


# --- statistics, with fixed seeds ---------------------------------------------------------------
@weft.kernel
def many(u, v, h, b, n, m, r, k, w):
    for i in u:
        u[i] = weft.random(weft.f32)
        v[i] = weft.random()
        h[i] = weft.random(weft.f16)
        b[i] = weft.random(weft.bf16)
        n[i] = weft.randn(weft.f32)
        m[i] = weft.randn()
        r[i] = weft.randint(-3, 4)
        k[i] = weft.random(weft.u8)
        w[i] = weft.random(int)


def samples() -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    dtypes = {"u": torch.float32, "v": torch.float64, "h": torch.float16, "b": torch.bfloat16,
              "n": torch.float32, "m": torch.float64, "r": torch.int32, "k": torch.uint8,
              "w": torch.int64}  # fmt: skip
    found = {name: torch.zeros(COUNT, dtype=dtype) for name, dtype in dtypes.items()}
    many(**found)
    return found


def chi_square(counts: torch.Tensor) -> float:
    """The statistic of a uniform distribution, in standard deviations from what is expected."""
    expected, freedom = counts.sum() / len(counts), len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def test_distributions() -> None:
    found = {name: x.double() for name, x in samples().items()}
    for name in "uvhb":
        x = found[name]
        assert x.min() >= 0
        assert x.max() < 1
        assert abs(x.mean() - 0.5) < 4 * (1 / 12 / COUNT) ** 0.5 + 2.0**-8 * (name == "b")
        assert abs(x.var() * 12 - 1) < 0.05
        assert abs(chi_square(x.mul(64).floor().long().bincount(minlength=64))) < 4
    for name in "nm":
        x = found[name]
        assert abs(x.mean()) < 4 / COUNT**0.5
        assert abs(x.var() - 1) < 4 * (2 / COUNT) ** 0.5
        assert abs((x**4).mean() - 3) < 4 * (96 / COUNT) ** 0.5
        even = torch.special.ndtr(x).mul(64).floor().long().bincount(minlength=64)
        assert abs(chi_square(even)) < 4
    assert {*found["r"].tolist()} == {*range(-3, 4)}
    assert abs(chi_square(found["r"].long().add(3).bincount())) < 4
    assert abs(chi_square(found["k"].long().bincount(minlength=256))) < 4
    bits = torch.stack([samples()["w"] >> k & 1 for k in range(64)]).double().mean(1)
    assert (bits - 0.5).abs().max() < 4.5 / (2 * COUNT**0.5)


def test_neighbours_are_not_correlated() -> None:
    columns = {name: x.double() for name, x in samples().items()}
    pairs = [(a, b) for a in columns.values() for b in columns.values() if a is not b]
    pairs += [(x[lag:], x[:-lag]) for x in columns.values() for lag in (1, 2, 3, 8, 16)]
    for a, b in pairs:
        correlation = torch.corrcoef(torch.stack([a, b]))[0, 1]
        assert abs(correlation) < 4.5 / COUNT**0.5


@weft.kernel
def of_python(out):
    for _i in range(1):
        for k in range(out.shape[0]):
            out[k] = weft.random() + weft.randn() + weft.randint(0, 2) + weft.random(weft.bf16)


def test_python_without_the_decorator_draws_from_torch() -> None:
    torch.manual_seed(0)
    out = torch.zeros(500, dtype=torch.float64)
    of_python.function(out)
    assert abs(out.mean() - 1.5) < 4 * ((2 / 12 + 1 + 0.25) / 500) ** 0.5
    assert abs(out.var() - (2 / 12 + 1 + 0.25)) < 0.4


# --- PyTorch ------------------------------------------------------------------------------------
@weft.kernel
def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in out:
        keep = weft.random(weft.f32) >= p
        out[i] = x[i] * x[i] / (1 - p) if keep else 0.0
    return out


def half(x: torch.Tensor) -> torch.Tensor:
    return dropout(x, 0.5)


X = torch.linspace(1, 3, 103)
WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "eager": half,
    "again": half,
    "checkpoint": lambda x: checkpoint(half, x, use_reentrant=False),
    "reentrant checkpoint": lambda x: checkpoint(half, x, use_reentrant=True),
    "compiled": torch.compile(half, backend="aot_eager", fullgraph=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_is_that_of_the_numbers_drawn(way: str) -> None:
    torch.manual_seed(2)
    expected = half(X)
    assert 30 < int((expected == 0).sum()) < 73
    x = X.clone().requires_grad_()
    torch.manual_seed(2)
    y = WAYS[way](x)
    y.sum().backward()
    after = torch.get_rng_state()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(x.grad, 4 * X * (expected != 0))
    torch.manual_seed(2)
    if "checkpoint" not in way:
        torch.testing.assert_close(WAYS[way](X), expected)
    else:
        half(X)
    assert torch.equal(torch.get_rng_state(), after)


def test_derivatives_of_transforms() -> None:
    torch.manual_seed(2)
    expected = half(X)
    torch.manual_seed(2)
    found = torch.func.grad(lambda x: half(x).sum())(X)
    torch.testing.assert_close(found, 4 * X * (expected != 0))
    torch.manual_seed(2)
    value, tangent = torch.func.jvp(half, (X,), (torch.ones_like(X),))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(tangent, 4 * X * (expected != 0))


def test_samples_of_vmap_are_as_it_is_told() -> None:
    xs = torch.stack([X, X, X])
    with pytest.raises(RuntimeError, match="randomness error mode"):
        torch.vmap(half)(xs)
    same = torch.vmap(half, randomness="same")(xs) == 0
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    different = torch.vmap(half, randomness="different")(xs) == 0
    assert not torch.equal(different[0], different[1])
    assert not torch.equal(different[1], different[2])
    grads = torch.vmap(torch.func.grad(lambda x: half(x).sum()), randomness="different")(xs)
    assert not torch.equal(grads[0] == 0, grads[1] == 0)
    torch.testing.assert_close(grads, torch.where(grads != 0, 4 * xs, grads))


@weft.kernel
def walks(x: torch.Tensor, steps: int) -> torch.Tensor:
    y = x.clone()
    for _ in weft.serial(range(steps)):
        for i in y:
            y[i] += weft.randn(weft.f32)
    return y


def test_each_launch_has_numbers_of_its_own() -> None:
    torch.manual_seed(4)
    found = walks(torch.zeros(400), 16)
    torch.manual_seed(4)
    torch.testing.assert_close(walks.interpret(torch.zeros(400), 16), found)
    assert 9 < found.var() < 25
    compiled = torch.compile(lambda x: walks(x, 16), backend="aot_eager", fullgraph=True)
    torch.manual_seed(4)
    torch.testing.assert_close(compiled(torch.zeros(400)), found)
    with pytest.raises(GradientError, match="the kernel draws random numbers"):
        compiled(torch.zeros(400, requires_grad=True)).sum().backward()


def test_exported_programs_draw() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return half(x)

    traced = make_fx(half)(X)
    torch.manual_seed(7)
    expected = half(X)
    torch.manual_seed(7)
    torch.testing.assert_close(traced(X), expected)
    program = torch.export.export(Module(), (X,))
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert "aten.randint.low" in targets
    torch.manual_seed(7)
    torch.testing.assert_close(program.module()(X), expected)


@pytest.mark.slow
def test_operators_say_that_they_draw() -> None:
    torch.manual_seed(1)
    expected = half(X)
    torch.manual_seed(1)
    operator = dropout.op
    torch.testing.assert_close(operator(X, 0.5), expected)
    assert torch.Tag.nondeterministic_seeded in operator.tags
    assert weft.check(dropout, X[:17], 0.5).ok


@weft.kernel
def shift(x, y):
    for i in y:
        y[i] = x[i] + weft.random(weft.f32)


def test_numbers_of_arguments_that_share_memory() -> None:
    x = torch.zeros(9)
    torch.manual_seed(3)
    with pytest.warns(OverlapWarning):
        shift(x[:-1], x[1:])
    torch.manual_seed(3)
    apart = torch.empty(8)
    shift(torch.zeros(8), apart)
    torch.testing.assert_close(x[1:], apart.cumsum(0))


def test_taichi_seeds_torch() -> None:
    found = []
    for _ in range(2):
        weft.init(arch=weft.cpu, random_seed=3)
        found.append(half(X))
    assert torch.equal(*found)


# --- what is drawn, and what is refused ---------------------------------------------------------
@weft.kernel
def three(out):
    for i in out:
        out[i] = weft.random(weft.f32) + weft.random(weft.f32) * weft.random(weft.f32)


def test_several_draws_are_of_one_block() -> None:
    three(torch.empty(3))
    (special,) = three.specializations
    words = [op for op in walk(special.compiled.function.body) if op.name == "math.philox"]
    assert [constant_of(op.last) for op in words] == [0, 1, 2]


@weft.kernel
def empty_range(x, n: int):
    for i in x:
        x[i] = weft.randint(n, 3)


def test_a_range_without_integers() -> None:
    x = torch.zeros(4)
    empty_range(x, 2)
    assert x.tolist() == [2.0] * 4
    for call in (empty_range, empty_range.interpret):
        with pytest.raises((weft.KernelAssertionError, weft.KernelValueError), match="no integer"):
            call(x, 3)


def refusal(kernel: Callable[..., Any]) -> str:
    with pytest.raises(weft.CompileError) as info:
        weft.kernel(kernel)(torch.zeros(3), 3)
    return f"{info.value.message} | {info.value.help}"


def test_refusals() -> None:
    def complex_(x, n):
        for i in x:
            x[i] = weft.random(weft.c64).real

    def whole(x, n):
        for i in x:
            x[i] = weft.randn(weft.i32)

    def bounds(x, n):
        for i in x:
            x[i] = weft.randint(0, 2.5)

    def backwards(x, n):
        for i in x:
            x[i] = weft.randint(4, 4)

    def extent(x, n):
        for i in range(weft.randint(0, n)):
            x[i] = 0.0

    assert refusal(complex_) == (
        "random() of complex numbers | write complex(weft.random(), weft.random())"
    )
    assert refusal(whole) == "randn() of weft.i32 | normal numbers are floats: weft.f32"
    assert refusal(bounds) == "randint() of floats | write int(...) around the bounds"
    assert refusal(backwards) == (
        "randint(4, 4): no integer is between them | the first bound is less than the second"
    )
    assert refusal(extent) == (
        "a random number decides how far a device loop goes | "
        "draw it in the host part: n = int(torch.randint(low, high, ()))"
    )


@weft.kernel
def in_generators(out, n: int):
    for i in out:
        largest = max(weft.random() for j in range(3)) - min(weft.random(), 0.5)
        a = [weft.random() for j in range(weft.randint(1, n))]
        b = [v * weft.random() for v in a if v > 0.5]
        out[i] = largest + sum(weft.random() * v for v in (weft.random(), 1.0)) + sum(a) + sum(b)


def test_what_generators_and_comprehensions_draw_is_drawn_once() -> None:
    made = []
    for call in (in_generators, in_generators.interpret):
        torch.manual_seed(3)
        made.append(torch.zeros(6, dtype=torch.float64))
        call(made[-1], 4)
    torch.testing.assert_close(*made)
