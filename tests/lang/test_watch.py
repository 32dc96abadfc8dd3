"""Checked interpretation: values, bounds, races, and the user's own lines."""

import inspect
import math
import sys
from typing import Any

import pytest
import torch

from weft.errors import KernelIndexError, KernelTypeError, RaceError
from weft.lang import loops as weft
from weft.lang.atomics import atomic_add, atomic_max
from weft.lang.dtypes import f32, i32
from weft.lang.field import zeros
from weft.lang.loops import func
from weft.lang.math import ivec2
from weft.lang.vectors import Vector
from weft.runtime import watch
from weft.source import read_function

LOOKUP = torch.tensor([3.0, 1.0, 2.0])


def run(function: Any, *args: Any, **kwargs: Any) -> Any:
    return watch.run(function, args, kwargs, read_function(function))


def message(error: Any, function: Any, offset: int, what: str) -> None:
    """Holds that the error is about the line ``offset`` of ``function``, and its whole text."""
    line = inspect.getsourcelines(function)[1] + offset
    assert str(error.value) == f"{__file__}:{line}: in kernel `{function.__name__}`: {what}"


def test_elements_are_values_and_results_plain_tensors():
    def kernel(x, scale=2.0):
        B, T = x.shape
        out = torch.empty_like(x)
        for b, t in weft.ndrange(B, T):
            s = x[b, t]
            r = s
            s += 1
            s *= scale
            out[b, t] = s - r
        return out, x

    x = torch.randn(2, 3)
    kept = x.clone()
    out, same = run(kernel, x)
    torch.testing.assert_close(out, 2 * (kept + 1) - kept)
    assert type(out) is torch.Tensor
    assert same is x
    assert torch.equal(x, kept)


def test_reductions_views_globals_and_negative_literals():
    def kernel(x, y):
        total = 0.0
        flat = x.view(-1)
        for i in range(len(flat)):
            total += flat[i] * LOOKUP[i % 3]
        y[0] = x[-1, 0]
        y[1:] = 5.0
        return total

    x, y = torch.randn(2, 3), torch.empty(3)
    total = run(kernel, x, y)
    torch.testing.assert_close(total, (x * LOOKUP).sum())
    assert y.tolist() == [x[1, 0], 5.0, 5.0]


def test_loops_over_tensors_grouped_and_serial():
    def kernel(x, n):
        for t in weft.serial(range(n)):
            for i in weft.grouped(x):
                x[i] = x[i] + t
        for i, j in x:
            x[i, j] *= 2

    x = torch.randn(2, 3)
    expected = (x + 0 + 1 + 2) * 2
    run(kernel, x, 3)
    torch.testing.assert_close(x, expected)


def test_annotated_locals_and_parameters_cast():
    @func
    def half(x):
        n: i32 = x / 2
        return n

    def kernel(out, k: i32, eps: f32):
        for i in range(len(out)):
            v: i32 = i * 1.5
            out[i] = v * k + half(i) + eps

    out = torch.empty(4, dtype=torch.float64)
    run(kernel, out, 2, 0.5)
    assert out.tolist() == [int(i * 1.5) * 2 + i // 2 + 0.5 for i in range(4)]


def test_updates_may_meet_and_atomics_give_the_element_before():
    def kernel(x, hist, top):
        for i in range(len(x)):
            hist[x[i]] += 1
            hist[x[i]] -= 0
            atomic_max(top[0], x[i])
        for i in weft.ndrange(4):
            atomic_add(hist[ivec2(0, 0).x], i)

    x = torch.tensor([0, 2, 2, 1])
    hist, top = torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    run(kernel, x, hist, top)
    assert hist.tolist() == [7, 1, 2]
    assert top.tolist() == [2]


def test_local_arrays_belong_to_their_iteration():
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(len(x)):
            a = zeros((2,), f32)
            a[0] = x[i]
            a[1] += 2 * a[0]
            out[i] = a[1]
        return out

    x = torch.randn(5)
    torch.testing.assert_close(run(kernel, x), 2 * x)


def test_gradients_flow():
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(len(x)):
            out[i] = x[i] * x[i]
        return out

    x = torch.randn(4, requires_grad=True)
    run(kernel, x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_an_index_out_of_range_is_named():
    def shift(x, y):
        for i in range(len(x)):
            y[i] = x[i + 1, 0]

    with pytest.raises(KernelIndexError) as error:
        run(shift, torch.zeros(3, 2), torch.zeros(3))
    message(
        error, shift, 2,
        "index (3, 0) is out of range: dimension 0 of `x` has 3 elements (its shape is (3, 2))\n"
        "    y[i] = x[i + 1, 0]\n           ^^^^^^^^^^^",
    )  # fmt: skip


def test_computed_negative_indices_are_refused():
    def back(x):
        out = torch.empty_like(x)
        for i in range(len(x)):
            out[i] = x[i - 1]

    with pytest.raises(KernelIndexError) as error:
        run(back, torch.zeros(3))
    message(
        error, back, 3,
        "index (-1) is out of range: dimension 0 of `x` has 3 elements (its shape is (3,))\n"
        "    out[i] = x[i - 1]\n             ^^^^^^^^\n"
        "help: a negative index counts from the end only where it is written as a literal; "
        "else write x.shape[0] - 1",
    )  # fmt: skip


def test_subscripts_of_the_wrong_number_or_type():
    def many(x):
        for i in range(2):
            x[i, 0] = 1.0

    with pytest.raises(KernelIndexError) as error:
        run(many, torch.zeros(3))
    message(
        error, many, 2,
        "`x` has 1 dimension, but 2 subscripts are given\n    x[i, 0] = 1.0\n    ^^^^^^^\n"
        "help: write x[i]",
    )  # fmt: skip

    def fraction(x):
        return x[len(x) / 2]

    with pytest.raises(KernelTypeError) as error:
        run(fraction, torch.zeros(4))
    message(
        error, fraction, 1,
        "a subscript of `x` is not an integer\n    return x[len(x) / 2]\n           ^^^^^^^^^^^^^\n"
        "help: write int(...) around it",
    )  # fmt: skip


def test_two_writes_of_one_element_are_a_race():
    def halves(x):
        out = torch.empty_like(x)
        for i, j in weft.ndrange(2, 2):
            out[i] = x[j]

    with pytest.raises(RaceError) as error:
        run(halves, torch.zeros(2))
    message(
        error, halves, 3,
        "iterations (0, 0) and (0, 1) both write `out[0]`, in a loop whose iterations run at once\n"
        "    out[i] = x[j]\n    ^^^^^^\n"
        "help: write to an element of the iteration's own, add with `+=`, read from a copy, "
        "or run the loop in order: weft.loop_config(serialize=True) on the line before it",
    )  # fmt: skip


def test_a_read_of_what_another_iteration_writes_is_a_race():
    def smear(x):
        for i in range(1, len(x)):
            x[i] = x[i - 1]

    def mixed(x):
        for i in range(len(x)):
            x[0] += 1.0
            x[i] = 2.0

    def peek(x, out):
        for i in range(len(x)):
            before = x[0]
            x[0] += 1.0
            out[i] = before

    def aliased(x, y):
        for i in range(1, len(x)):
            x[i] = y[i - 1]

    x = torch.zeros(3)
    with pytest.raises(RaceError, match="iteration 1 writes and iteration 2 reads `x"):
        run(smear, x)
    with pytest.raises(RaceError, match=r"updates \(by \+=\)"):
        run(mixed, x)
    with pytest.raises(RaceError):
        run(peek, x, torch.zeros(3))
    with pytest.raises(RaceError):
        run(aliased, x, x[:])


def test_a_serial_loop_is_no_race():
    def scan(x):
        for i in weft.serial(range(1, len(x))):
            x[i] = x[i] + x[i - 1]

    x = torch.ones(4)
    run(scan, x)
    assert x.tolist() == [1, 2, 3, 4]


def test_errors_come_from_the_users_line():
    def fails(x):
        for _ in range(2):
            raise ZeroDivisionError(math.pi)

    with pytest.raises(ZeroDivisionError) as error:
        run(fails, torch.zeros(2))
    last = error.traceback[-1]
    assert str(last.path) == __file__
    assert last.lineno == inspect.getsourcelines(fails)[1] + 1


def test_fields_of_vectors():
    def kernel(x, out):
        for i in range(2):
            x[i] += Vector([1, i])
            x[0] += Vector([0.5, 0.0])
        for i in range(2):
            out[i] = x[i].dot(x[i])

    x, out = Vector.field(2, f32, 2), torch.empty(2)
    run(kernel, x, out)
    assert x.tolist() == [[2.0, 0.0], [1.0, 1.0]]
    assert out.tolist() == [4.0, 2.0]


def test_breakpoints_stop_in_the_users_source(monkeypatch):
    seen = []

    def stop():
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_filename, frame.f_lineno, frame.f_locals["s"].item()))

    def kernel(x):
        for i in range(len(x)):
            s = x[i] + 1
            breakpoint()
            x[i] = s

    monkeypatch.setattr(sys, "breakpointhook", stop)
    run(kernel, torch.tensor([1.0, 2.0]))
    line = inspect.getsourcelines(kernel)[1] + 3
    assert seen == [(__file__, line, 2.0), (__file__, line, 3.0)]


def test_closures_defaults_and_host_branches():
    weight = torch.tensor([2.0])

    def kernel(x, *, twice=True):
        if twice:
            for i in range(len(x)):
                x[i] *= weight[0]
        return {"x": x, "n": len(x), "rows": [x[:1]]}

    x = torch.ones(2)
    result = run(kernel, x)
    assert result["x"] is x
    assert result["n"] == 2
    assert type(result["rows"][0]) is torch.Tensor
    assert x.tolist() == [2, 2]
    assert run(kernel, x, twice=False)["x"].tolist() == [2, 2]


def test_tensors_held_by_objects_are_checked_too():
    class Model:
        def __init__(self):
            self.table = torch.tensor([1.0, 2.0])

        def apply(self, x):
            for i in range(len(x)):
                s = self.table[i]
                s += 1
                x[i] = s
                self.table[0] = s

    model, x = Model(), torch.zeros(1)
    run(Model.apply, model, x)
    assert x.tolist() == [2]
    assert model.table.tolist() == [2, 2]
    with pytest.raises(RaceError, match=r"`self\.table\[0\]`"):
        run(Model.apply, model, torch.zeros(2))
    with pytest.raises(KernelIndexError, match=r"dimension 0 of `model\.table` has 2 elements"):
        run(look_up, model, torch.zeros(2))


def look_up(model, x):
    for i in weft.serial(range(1)):
        for j in range(len(x)):
            x[j] = model.table[j + 1 + i]
