"""What a person who used weft for the first time ran into: one small kernel for each finding."""

from __future__ import annotations

import concurrent.futures
import copy
import enum
import functools
import itertools
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft


def doubled(x):
    return 2 * x


GRID = weft.field(weft.f32, shape=8)
LUT = torch.tensor([3.0, 1.0, 4.0, 1.0])
NUMBERS = {"a": 1.5, "b": 2.0}
RATIO = np.float32(0.5)


@weft.func
def deposit(i, amount):
    GRID[i % 4] += amount


@weft.func
def looked_up(i):
    return LUT[i % 4]


@weft.kernel
def plus_one(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + 1
    return out


@pytest.mark.cpu
def test_a_called_function_reads_and_writes_global_tensors() -> None:
    @weft.kernel
    def fill(n: int):
        for i in range(n):
            deposit(i, 1.0)

    @weft.kernel
    def both(x):
        for i in range(x.shape[0]):
            x[i] = looked_up(i) + LUT[0]

    GRID.fill(0.0)
    for n in (100, 4):
        fill(n)
    assert GRID.to_numpy().tolist() == [26.0] * 4 + [0.0] * 4
    x = torch.zeros(5)
    both(x)
    assert x.tolist() == [6.0, 4.0, 7.0, 4.0, 6.0]
    (special,) = both.specializations
    assert special.signature.count("LUT") == 1  # the kernel's own, not a second argument
    assert "LUT" in both.inspect(x)["ir"]


@pytest.mark.cpu
def test_a_global_tensor_of_a_called_function_is_never_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            x[i] = looked_up(i)

    x = torch.zeros(2)
    f(x)
    monkeypatch.setitem(globals(), "LUT", torch.tensor([7, 8, 9, 10]))
    f(x)
    assert x.tolist() == [7.0, 8.0]


@dataclass
class Simulation:
    n: int
    dt: float = 0.5
    x: torch.Tensor = field(default_factory=lambda: torch.arange(4.0))
    y: torch.Tensor = field(default_factory=lambda: torch.zeros(4))

    def force(self, i):
        return self.x[i] * self.dt

    def kick(self, i, v):
        self.y[i] = v

    @weft.kernel
    def step(self):
        for i in range(self.n):
            self.kick(i, self.force(i) + self.x[i])

    @weft.kernel
    def steps(self):
        for i in range(self.n):
            self.y[i] += self.force(i)


def test_methods_reach_the_tensors_of_their_object() -> None:
    first, second = Simulation(4), Simulation(3, dt=2.0)
    for simulation in (first, second, first):
        simulation.step()
    assert first.y.tolist() == [0.0, 1.5, 3.0, 4.5]
    assert second.y.tolist() == [0.0, 3.0, 6.0, 0.0]
    first.y = torch.ones(4)
    first.steps()
    assert first.y.tolist() == [1.0, 1.5, 2.0, 2.5]


class Twice:
    """Its loop and a method that the loop calls have the same tensor."""

    def __init__(self, value: float) -> None:
        self.u = torch.full((4, 3), value, dtype=torch.float64)

    def at(self, t, i):
        return self.u[t, i] * self.u[t, i]

    @weft.kernel
    def step(self, t: int):
        for i in range(3):
            self.u[t + 1, i] = self.at(t, i)


def test_what_a_method_reaches_and_the_loop_has_is_one_argument() -> None:
    for value in (2.0, 3.0, 2.0):
        made = Twice(value)
        start = torch.full((4, 3), value, dtype=torch.float64, requires_grad=True)
        made.u = start.clone()
        for t in range(3):
            made.step(t)
        made.u[3].sum().backward()
        assert torch.equal(made.u[3], start[0].detach() ** 8)
        assert torch.equal(start.grad[0], 8 * start[0].detach() ** 7)


def test_tensors_in_a_dict() -> None:
    @weft.kernel
    def f(parameters, out):
        for i in range(out.shape[0]):
            out[i] = parameters["w"][i] * parameters["scale"]

    out = torch.zeros(3)
    for scale in (2.0, 3.0):
        f({"w": torch.arange(3.0), "scale": scale}, out)
        assert out.tolist() == [0.0, scale, 2 * scale]


@pytest.mark.cpu
def test_many_threads_find_the_tensors_of_a_called_function() -> None:
    target = torch.zeros(64)

    def bump(i):
        target[i] += 1 + looked_up(i) * 0

    @weft.kernel
    def f(n: int):
        for i in range(n):
            bump(i)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(f, [64] * 40))
    # Calls at the same time may write over each other, but every element was written.
    assert target.min() >= 1
    assert target.max() <= 40


def test_containers_that_change_in_place_are_never_stale() -> None:
    numbers = [1.0, 2.0]
    config = Simulation(1)
    config.x = {"scale": 1.0}  # type: ignore[assignment]

    def total():
        return numbers[0] + len(numbers) + config.x["scale"]

    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            x[i] = total()

    x = torch.zeros(1)
    results = []
    for change in (lambda: None, lambda: numbers.append(0.0), lambda: config.x.update(scale=-0.5)):  # type: ignore[attr-defined]
        change()
        f(x)
        results.append(x.item())
    assert results == [4.0, 5.0, 3.5]


def test_a_zero_that_changes_its_sign_is_never_stale() -> None:
    sign = [0.0]

    def zero():
        return sign[0]

    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            x[i] = zero()

    x = torch.ones(1)
    f(x)
    sign[0] = -0.0
    f(x)
    assert math.copysign(1.0, x.item()) == -1.0


def test_numpy_scalars_are_numbers() -> None:
    @weft.kernel
    def f(x, a, n):
        for i in range(n):
            x[i] = x[i] * a + RATIO

    for a in (np.float32(2.0), np.float64(2.0), np.int32(2), 2):
        for _ in range(2):
            x = torch.ones(3)
            f(x, a, np.int64(2))
            assert x.tolist() == [2.5, 2.5, 1.0]


def test_numpy_scalars_in_lists_and_dicts_are_numbers() -> None:
    """They were objects there: "this must be a scalar, and is a float32"."""
    table = {"a": np.float32(1.5), "n": np.int64(2)}
    several = [np.float16(0.5), np.int16(2), np.bool_(True)]

    @weft.kernel
    def f(x, given):
        for i in range(x.shape[0]):
            x[i] = x[i] * table["a"] + given[0]
            if several[2]:
                for v in several[:2]:
                    x[i] += v
            for j in weft.static(range(several[1])):
                x[i] += j

    for a in (1.5, np.float32(2.5), np.float64(0.25)):
        table["a"] = a
        x = torch.ones(2)
        f(x, [np.float32(3.0)])
        assert x.tolist() == [float(a) + 6.5] * 2


def test_constant_dicts_strings_and_characters() -> None:
    @weft.kernel
    def upper(text, mode):
        out = torch.empty_like(text)
        for i in range(text.shape[0]):
            c = text[i]
            if mode in ("upper", "both") and ord("a") <= c <= ord("z"):
                c -= 32
            out[i] = c
        return out

    @weft.kernel
    def scaled(x):
        for i in range(x.shape[0]):
            x[i] = NUMBERS["a"] * x[i] + NUMBERS["b"]

    text = torch.tensor(list(b"Hi, z{`"), dtype=torch.uint8)
    assert bytes(upper(text, "upper").tolist()) == b"HI, Z{`"
    assert bytes(upper(text, "as is").tolist()) == b"Hi, z{`"
    x = torch.ones(1)
    scaled(x)
    assert x.item() == 3.5


class Mode(enum.Enum):
    ADD = 1
    SUB = 2


def test_enums_and_strings_are_compared() -> None:
    @weft.kernel
    def f(x, mode):
        for i in range(x.shape[0]):
            if mode is Mode.ADD:
                x[i] += 1
            elif mode == Mode.SUB:
                x[i] -= 1

    x = torch.zeros(1)
    f(x, Mode.ADD)
    assert x.item() == 1
    f(x, Mode.SUB)
    assert x.item() == 0


SQUARE = lambda v: v * v  # noqa: E731


def test_lambdas_and_partial_functions_are_inlined() -> None:
    shift = 3.0
    cube = lambda v, s=1.0: v * v * v + s * shift  # noqa: E731
    third = functools.partial(pow_of, n=3)

    @weft.kernel
    def f(x, g):
        for i in range(x.shape[0]):
            x[i] = SQUARE(x[i]) + cube(x[i], s=2.0) + third(x[i]) + g(x[i])

    x = torch.tensor([2.0])
    f(x, lambda v: v + 0.25)
    assert x.item() == 4 + (8 + 6) + 8 + 2.25


def pow_of(x, n):
    result = 1.0
    for _ in weft.static(range(n)):
        result *= x
    return result


def test_one_of_two_alike_lambdas_on_one_line_is_refused() -> None:
    pair = (lambda v: v + 1, lambda v: v + 2)
    first = pair[0]

    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            x[i] = first(x[i])

    with pytest.raises(weft.SourceUnavailableError, match="has more than one such lambda"):
        f(torch.zeros(1))


def test_rows_have_names() -> None:
    def row_sum(row):
        s = 0.0
        for j in range(row.shape[0]):
            s += row[j]
        return s

    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            plane = x[i]
            for k in range(plane.shape[0]):
                row = plane[k]
                for j in range(x[i].shape[1]):
                    row[j] += 1
                out[i] += row_sum(row)

    x, out = torch.randn(3, 2, 4), torch.zeros(3)
    expected = x + 1
    f(x, out)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(out, expected.sum((1, 2)))


def test_text_that_is_less_indented_than_its_function() -> None:
    @weft.kernel
    def f(x):
        """A docstring
        with a line at the margin.
        """
        for i in range(x.shape[0]):
            x[i] += 1

    # and a comment there

    x = torch.zeros(2)
    f(x)
    f.interpret(x)
    assert x.tolist() == [2.0, 2.0]


def test_carets_count_characters_not_bytes() -> None:
    @weft.kernel
    def f(größe):
        for i in range(größe.shape[0]):
            größe[i] = unbekannt  # noqa: F821

    with pytest.raises(weft.KernelNameError) as info:
        f(torch.zeros(1))
    _, line, carets, _ = str(info.value).split("\n")
    assert line.index("unbekannt") == carets.index("^")


def test_a_kernel_is_pickled_and_copied_by_name() -> None:
    assert pickle.loads(pickle.dumps(plus_one)) is plus_one
    assert copy.deepcopy({"kernel": plus_one})["kernel"] is plus_one


def test_a_decorator_below_the_kernels_is_refused() -> None:
    with pytest.raises(weft.KernelTypeError) as info:
        weft.kernel(torch.no_grad()(doubled))
    assert str(info.value) == (
        "`doubled` is decorated below weft.kernel, and the loops are compiled from the function "
        "inside\nhelp: put weft.kernel directly above the `def`"
    )


def test_loops_that_are_told_to_be_serial() -> None:
    @weft.kernel
    def prefix(x):
        weft.loop_config(serialize=True)
        for i in range(1, x.shape[0]):
            x[i] += x[i - 1]

    for call in (prefix, prefix.interpret):
        x = torch.ones(5)
        call(x)
        assert x.tolist() == [1, 2, 3, 4, 5]


def test_taichi_casts_and_return_types() -> None:
    @weft.kernel
    def total(x: weft.types.ndarray()) -> weft.f32:
        s = 0.0
        for i in x:
            s += weft.cast(x[i], weft.i32) + weft.cast(i, float) / 2
        return s

    result = total(torch.tensor([1.9, 2.9]))
    assert isinstance(result, float)
    assert result == 3.5


def test_index_vectors_have_methods_when_interpreted() -> None:
    @weft.kernel
    def f(x):
        for index in weft.grouped(x):
            x[index] = index.sum() * 10 + index.max()

    compiled, interpreted = torch.zeros(2, 3), torch.zeros(2, 3)
    f(compiled)
    f.interpret(interpreted)
    torch.testing.assert_close(compiled, interpreted)


def test_an_int_for_a_float_parameter_is_a_float_when_interpreted() -> None:
    @weft.kernel
    def f(x, a: float):
        for i in range(x.shape[0]):
            x[i] = a // 2 + x[i] / 4 * a

    compiled, interpreted = torch.full((2,), 3), torch.full((2,), 3)
    f(compiled, 3)
    f.interpret(interpreted, 3)
    assert compiled.tolist() == interpreted.tolist()


def test_breakpoint_says_how_to_stop() -> None:
    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            breakpoint()
            x[i] = 1.0

    with pytest.raises(weft.KernelSyntaxError, match=r"WEFT_INTERPRET=1, or f.interpret\(...\)"):
        f(torch.zeros(1))


def _sum_in_child(queue: Any) -> None:
    queue.put(plus_one(torch.zeros(300_000)).sum().item())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.cpu
def test_a_forked_process_runs_kernels() -> None:
    plus_one(torch.zeros(300_000))  # the threads of the pool exist now, and not in the child
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
        child = context.Process(target=_sum_in_child, args=(queue,))
        child.start()
    child.join(30)
    hangs = child.is_alive()
    child.kill()
    assert not hangs
    assert queue.get() == 300_000


GRAVITY = weft.Vector([0.0, -10.0])


def drift(v, dt):
    return v + GRAVITY * dt


@pytest.mark.cpu
def test_fields_of_vectors() -> None:
    position = weft.Vector.field(2, dtype=weft.f32, shape=8)
    velocity = weft.Vector.field(2, weft.f32, 8)

    @weft.kernel
    def start(n: int):
        for i in range(n):
            position[i] = [i * 0.5, 1.0]
            velocity[i] = weft.Vector([1.0, 0.0])

    @weft.kernel
    def step(dt: float):
        for i in position:
            velocity[i] = drift(velocity[i], dt)
            position[i] += velocity[i] * dt
            if position[i].y < 0.5:
                position[i, 1] = 0.5
                velocity[i] *= -1.0

    start(8)
    for _ in range(3):
        step(0.1)
    expected = torch.stack([torch.arange(8) * 0.5 + 0.3, torch.full((8,), 0.5)], 1)
    torch.testing.assert_close(position.to_torch(), expected)
    torch.testing.assert_close(velocity.to_torch(), torch.tensor([-1.0, 3.0]).expand(8, 2))
    before = position.to_torch(), velocity.to_torch()
    step(0.1)
    after = position.to_torch(), velocity.to_torch()
    position.from_torch(before[0])
    velocity.from_torch(before[1])
    step.interpret(0.1)
    torch.testing.assert_close((position.to_torch(), velocity.to_torch()), after)


@pytest.mark.cpu
def test_a_field_of_vectors_and_one_of_scalars_in_the_same_shape() -> None:
    @weft.kernel
    def rank(x: weft.template(), out):
        for index in weft.grouped(x):
            weft.atomic_max(out[index[0], 0], index.n)

    out = torch.zeros(3, 2)
    for made, expected in (
        (weft.field(weft.f32, (3, 2)), 2.0), (weft.Vector.field(2, weft.f32, 3), 1.0),
        (weft.field(weft.f32, (3, 2)), 2.0),
    ):  # fmt: skip
        out.zero_()
        rank(made, out)
        assert out[:, 0].tolist() == [expected] * 3


def test_vectors_of_another_size_are_refused() -> None:
    position = weft.Vector.field(2, dtype=weft.f32, shape=8)

    @weft.kernel
    def f(n: int):
        for i in range(n):
            position[i] = weft.Vector([1.0, 2.0, 3.0])

    with pytest.raises(weft.KernelTypeError) as info:
        f(3)
    found = "an element of `position` has 2 numbers, and this is a vector (3 x float)"
    assert found in str(info.value)


def test_vectors_are_arguments_and_constants_that_are_never_stale() -> None:
    @weft.kernel
    def f(x, v):
        for i in range(x.shape[0]):
            x[i] = v[0] + v.y * i + drift(v, 0.5).y

    x = torch.zeros(2)
    f(x, weft.math.vec2(1.0, 2.0))
    assert x.tolist() == [-2.0, 0.0]
    f(x, weft.math.vec2(2.0, 2.0))
    assert x.tolist() == [-1.0, 1.0]
    GRAVITY[1] = -20.0
    f(x, weft.math.vec2(2.0, 2.0))
    GRAVITY[1] = -10.0
    assert x.tolist() == [-6.0, -4.0]


TYPED = """\
import torch, weft
@weft.kernel
def f(x):
    for i in range(x.shape[0]):
        x[i] += 1

first = f
@weft.kernel
def f(x):
    for i in range(x.shape[0]):
        x[i] += 2

x = torch.zeros(2)
f(x)
first(x)
print("RESULT", x.tolist())
exit()
"""


@pytest.mark.cpu
@pytest.mark.slow
def test_the_interactive_prompt() -> None:
    pty = pytest.importorskip("pty")
    pytest.importorskip("readline")
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(Path(weft.__file__).parents[1]), "TERM": "dumb"}
    command = [sys.executable, "-i", "-q"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as child:
        os.close(theirs)
        os.write(ours, TYPED.encode())
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # how the end of a terminal is told
            pass
        child.wait(30)
    os.close(ours)
    assert b"RESULT [3.0, 3.0]" in said


@pytest.mark.slow
def test_more_elements_than_fit_in_32_bits() -> None:
    @weft.kernel
    def mark(x, step: int):
        n = x.shape[0]
        for i in range(0, n, step):
            x[i] += 1
        for i in range(n - 3, n):
            x[i] += 2

    n = 3_000_000_000
    x = torch.zeros(n, dtype=torch.int8)
    mark(x, 1_000_000_007 // 3)
    places = list(range(0, n, 1_000_000_007 // 3))
    assert x[places].tolist() == [1] * len(places)
    assert x[-3:].tolist() == [2, 2, 2]
    assert x[2**31 - 2 : 2**31 + 2].tolist() == [0] * 4


def test_a_loop_that_no_lane_of_a_tile_reaches_ends() -> None:
    """Its bounds over the lanes were those of an empty set: it ran for ever."""

    @weft.kernel
    def f(x, m, out, n: int):
        for i in weft.ndrange(out.shape[0]):
            f1 = x[i] * 1.0
            c0 = 1
            c1 = i * 2 + 1
            if max(5, n) > 0:
                continue
            for k in range(abs((c1 - 2) % 15) % 7, -2, -2):
                c1 += (n if k <= int(m[i]) % 3 else k) % 7
                f1, c0 = 0.25 * f1, (c0 + k) % 13
            out[i] = f1 * c0 - c1

    out = torch.zeros(5, dtype=torch.float64)
    f(torch.randn(10)[::2], torch.ones(5, dtype=torch.int16), out, 4)
    assert out.tolist() == [0.0] * 5


def test_a_loop_without_arguments_runs() -> None:
    @weft.kernel
    def nothing():
        for _ in range(10):
            pass

    @weft.kernel
    def five():
        for i in range(10):
            assert i < 5, "five"

    nothing()
    with pytest.raises(weft.KernelAssertionError, match="five"):
        five()


def test_names_beyond_ascii() -> None:
    @weft.kernel
    def ядро(икс, ω: float):
        сумма = 0.0
        for и in икс:
            икс[и] = икс[и] * ω
            сумма += икс[и]
        return сумма

    assert ядро(torch.ones(3), 2.0) == 6.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_roots_and_powers_of_infinity_are_those_of_torch(dtype: torch.dtype) -> None:
    @weft.kernel
    def powers(x, o):
        for i in range(x.shape[0]):
            o[i, 0] = x[i] ** 0.5
            o[i, 1] = x[i] ** -0.5
            o[i, 2] = x[i] ** math.inf
            o[i, 3] = x[i] ** -math.inf
            o[i, 4] = x[i] ** math.nan

    numbers = [-math.inf, -0.0, 0.0, 1.0, 4.0, math.inf, math.nan, -1.0]
    x = torch.tensor(numbers * 3, dtype=dtype)
    o, expected = torch.zeros(24, 5, dtype=dtype), torch.zeros(24, 5, dtype=dtype)
    powers(x, o)
    powers.function(x, expected)
    torch.testing.assert_close(o, expected, equal_nan=True)
    zeros = (o == 0) & (expected == 0)
    assert (o.signbit() == expected.signbit())[zeros].all()


def test_the_power_of_a_python_number_is_that_of_python() -> None:
    @weft.kernel
    def power(a: float, o):
        for i in o:
            o[i] = a**0.5

    for a in (-math.inf, -0.0, 4.0):
        o = torch.zeros(3, dtype=torch.float64)
        power(a, o)
        assert (o == a**0.5).all()
        assert not o.signbit().any()


def run(kernel, *args):
    kernel(*args)
    weft.sync()  # a GPU says it late


@pytest.mark.parametrize("debug", [False, True])
def test_a_step_that_all_iterations_share_and_that_is_zero_is_an_error(debug: bool) -> None:
    @weft.kernel(debug=debug)
    def every(x, n: int, m: int):
        for i in x:
            if m > 0:
                for _ in range(0, m, n):
                    x[i] += 1.0

    @weft.kernel(debug=debug)
    def own(x, rows):
        for i in range(0, 3, rows.shape[0]):
            x[i] += 1.0

    x = torch.zeros(3)
    every(x, -1, 5)
    every(x, 2, 5)
    every(x, 0, 0)  # the loop is not reached
    every(x[:0], 0, 5)
    own(x, x)
    assert x.tolist() == [4.0, 3.0, 3.0]
    with pytest.raises(weft.KernelAssertionError, match="the step of a range is 0") as caught:
        run(every, x, 0, 5)
    assert "for _ in range(0, m, n):" in str(caught.value)
    with pytest.raises(weft.KernelAssertionError, match="the step of a range is 0"):
        run(own, x, x[:0])


ENDS = [-(1 << 63), 1 - (1 << 63), -(1 << 62), -5, 0, 7, 1 << 62, (1 << 63) - 1]
STEPS = [1, 3, 1 << 61, 1 << 62, (1 << 62) + 1, (1 << 63) - 1, -1, -3, -(1 << 62), -(1 << 63)]


def numbers_of(a: int, b: int, step: int) -> tuple[int, int]:
    """How many numbers a range has, and the last one. ``len`` takes no more than 64 bits."""
    count = max((b - a + step - (1 if step > 0 else -1)) // step, 0)
    return count, a + (count - 1) * step if count else 0


def test_ranges_of_64_bits_have_the_numbers_of_python() -> None:
    @weft.kernel
    def inner(a, b, steps, count, last):
        for i in a:
            n = 0
            end = 0
            for k in range(a[i], b[i], steps[i]):
                n += 1
                end = k
            count[i] = n
            last[i] = end

    @weft.kernel
    def literal(a, b, count):
        for i in a:
            for _ in range(a[i], b[i], 4611686018427387905):
                count[i, 0] += 1
            for _ in range(a[i], b[i], -4611686018427387905):
                count[i, 1] += 1

    cases = [c for c in itertools.product(ENDS, ENDS, STEPS) if numbers_of(*c)[0] < 9]
    a, b, steps = (torch.tensor(column) for column in zip(*cases, strict=True))
    count, last, few = (torch.zeros(len(a), n, dtype=torch.int64).squeeze(1) for n in (1, 1, 2))
    inner(a, b, steps, count, last)
    assert list(zip(count.tolist(), last.tolist(), strict=True)) == [numbers_of(*c) for c in cases]
    literal(a, b, few)
    step = 4611686018427387905
    assert few.tolist() == [[numbers_of(a, b, s)[0] for s in (step, -step)] for a, b, _ in cases]


def test_a_device_loop_whose_numbers_need_more_bits_is_an_error() -> None:
    @weft.kernel
    def counted(o, a: int, b: int, step: int):
        n = 0
        for _ in range(a, b, step):
            n += 1
        o[0] = n

    o = torch.zeros(1, dtype=torch.int64)
    least: list[int] = []
    message = None
    for case in itertools.product(ENDS, ENDS, STEPS):
        if numbers_of(*case)[0] > 99:
            continue
        try:
            run(counted, o, *case)
        except weft.KernelAssertionError as error:
            message = error.message
            least.append(abs(case[0] - case[1]) + 2 * abs(case[2]))
        else:
            assert o.item() == numbers_of(*case)[0], case
    assert len(least) > 9
    assert min(least) >= 1 << 63
    assert message == "the numbers of this range and the one behind them need more than 64 bits"


def test_a_step_from_elements_or_indices_that_is_zero_is_an_error():
    @weft.kernel
    def every(x, steps):
        for i in x:
            for _ in range(0, 6, steps[i]):
                x[i] += 1.0

    @weft.kernel
    def multiples(x, first: int):
        for i in range(first, 4):
            for _ in range(0, 6, i):
                x[i] += 1.0

    x = torch.zeros(4)
    every(x, torch.tensor([1, 2, -1, 7]))
    multiples(x, 1)
    assert x.tolist() == [6.0, 9.0, 3.0, 3.0]

    for kernel, argument in ((every, torch.tensor([1, 2, 0, 7])), (multiples, 0)):
        with pytest.raises(weft.KernelAssertionError) as caught:
            run(kernel, x, argument)
        assert caught.value.message == "the step of a range is 0"


def test_a_step_of_a_device_loop_that_comes_to_be_zero_is_an_error():
    @weft.kernel
    def every(x: torch.Tensor, a: int, b: int, n: int):
        for i in range(a, b, n):
            x[i] = 1.0

    x = torch.zeros(6)
    for _ in range(4):  # later calls take another way
        every(x, 5, -1, -3)
    assert x.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    for call in (every, every.op):
        with pytest.raises(weft.KernelValueError) as caught:
            call(x, 0, 6, 0)
        assert caught.value.message == "the step of a range is 0"
        assert caught.value.help == "use a positive or a negative one"
    with pytest.raises(ValueError, match="must not be zero"):
        every.interpret(x, 0, 6, 0)
    assert x.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]


def test_an_element_counted_from_both_ends_of_a_matrix_is_set():
    @weft.kernel
    def kernel(out):
        for _ in range(1):
            m = weft.Matrix.zero(float, 2, 5)
            m[-1, -1] = 7.0
            for i in weft.static(range(2)):
                for j in weft.static(range(5)):
                    out[i, j] = m[i, j]

    out = torch.empty(2, 5)
    kernel(out)
    assert out.nonzero().tolist() == [[1, 4]]


def test_subscripts_of_unrolled_loops_select_nothing():
    """Names that several loops assign are constants of the IR, not run-time positions."""

    @weft.kernel
    def kernel(x, out):
        for _ in range(1):
            m = weft.Matrix.zero(float, 3, 3)
            for i in weft.static(range(3)):
                for j in weft.static(range(3)):
                    m[i, j] = x[i, j]
            for i in weft.static(range(3)):
                for j in weft.static(range(3)):
                    out[i, j] = m[j, i]

    x, out = torch.randn(3, 3), torch.empty(3, 3)
    kernel(x, out)
    assert torch.equal(out, x.T)
    assert "arith.select" not in kernel.inspect(x, out)["ir"]


def test_the_index_of_an_unrolled_loop_that_is_left_keeps_its_value() -> None:
    """It had the last one, whatever the iteration that `break` left."""

    @weft.kernel
    def left(out: torch.Tensor):
        for t in out:
            s = 0.0
            for i in weft.static(range(4)):
                s += 1 + 0 * i
                if s > 1.0 + t:
                    break
            for v, w in weft.static(((1, 2), (3, 4))):
                s += v + 0 * w
                if s > 3:
                    break
            out[t] = s + 100 * i + 1000 * v + 10000 * w

    out, expected = torch.zeros(6), torch.zeros(6)
    left(out)
    left.interpret(expected)
    assert out.tolist() == expected.tolist()


def test_the_index_of_several_unrolled_loops_is_known_in_each() -> None:
    @weft.kernel
    def known(out: torch.Tensor):
        for t in out:
            v = weft.Vector([1.0, 2.0, 3.0])
            s = 0.0
            if t > 1:
                for i in weft.static(range(3)):
                    s += v[i] if weft.static(i < 2) else 10.0
            else:
                for i in weft.static(range(2)):
                    for j in weft.static(range(i + 1)):
                        s += v[j]
            out[t] = s + 100 * i

    out, expected = torch.zeros(4), torch.zeros(4)
    known(out)
    known.interpret(expected)
    assert out.tolist() == expected.tolist()


def test_text_without_a_module_is_interpreted(tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text("def kernel(x, out):\n    for i in range(2): out[i] = torch.exp(x[i]).sum()\n")
    scope: dict[str, Any] = {"torch": torch}  # no __name__
    exec(compile(path.read_text(), str(path), "exec"), scope)
    x, out = torch.randn(2, 3), torch.empty(2)
    weft.kernel(scope["kernel"]).interpret(x, out)
    torch.testing.assert_close(out, x.exp().sum(1))
