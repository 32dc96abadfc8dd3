"""Loops of the host part over elements: compiled where that means what it means to Python, and
left to Python elsewhere. The undecorated function is the oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.frontend.hints import is_once

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.float16, torch.uint8)
SIZES = (0, 1, 2, 17)
FACTOR = 0.75


def recurrence(x, n: int):
    for t in weft.serial(range(1, n)):
        x[t] = 0.5 * x[t - 1] + x[t]


def by_shape(x, n: int):
    for t in weft.serial(range(1, x.shape[0])):
        x[t] = x[t] - FACTOR * x[t - 1]
    return x


def downwards(x, n: int):
    for t in weft.serial(range(n - 2, -1, -1)):
        x[t] += 0.25 * x[t + 1]


def by_steps(x, n: int):
    for t in weft.serial(range(len(x) - 1, 2, -3)):
        x[t] -= x[t - 3]


def carried(x, n: int):
    s, last, count = 0.0, -1, 0
    for t in weft.serial(range(n)):
        s = 0.5 * s + x[t]
        if x[t] > 1:
            last = t
        if x[t] > 100:
            break
        count += 1
    return s, last, count


def summed(x, n: int):
    s = 0
    for t in weft.serial(range(n)):
        if x[t] == 0:
            continue
        s += x[t]
        s -= 1
    return s * 2


def flagged(x, n: int):
    found, at = False, 0
    for t in weft.serial(range(n)):
        if x[t] > 1 and t % 2 == 1:
            found = True
            at = t
            break
    else:
        at = -1
    return found, at, [n] * (at + 2)


def returned(x, n: int):
    for t in weft.serial(range(n)):
        if x[t] > 1:
            return t, x[t] * 2
    return -1, x


def returns_nothing(x, n: int):
    for t in weft.serial(range(n)):
        if x[t] < 0:
            return
        x[t] *= 2
    x += 100


def nested(x, n: int):
    y = torch.zeros(n, n, dtype=x.dtype)
    for i in weft.serial(range(n)):
        for j in weft.serial(range(i + 1)):
            if j == 3:
                continue
            y[i, j] = x[i] * x[j]
            if j > 0:
                y[i][j] += y[i, j - 1]
            elif i > 0:
                y[i, j] -= y[i - 1, j]
            if j > 7:
                break
    return y


def searched(x, n: int):
    """Insertion sort: the inner loop is a ``while``, and its index comes close to -1."""
    for t in weft.serial(range(1, n)):
        v = x[t] + 0
        j = t - 1
        while j >= 0 and x[j] > v:
            x[j + 1] = x[j]
            j -= 1
        x[j + 1] = v


def ring(x, n: int):
    work = torch.zeros(4, dtype=x.dtype)
    for t in weft.serial(range(n)):
        work[t % 4] = x[t] + work[(t + 1) % 4]
        x[t] = work[t % 4] * 0.5
    return work


def functions(x, n: int):
    y = torch.ones_like(x)
    for t in weft.serial(range(1, n)):
        v = torch.tanh(y[t - 1] * x[t])
        y[t] = torch.where(v > 0, torch.exp(v), -v) + max(v, 0.0) + min(x[t], 1) + abs(v) / 2
        y[t] = y[t] if y[t] < 3 else 3.0
    return y


def swapped(x, n: int):
    a, b = 0.0, 1.0
    for t in weft.serial(range(n)):
        a, b = b * 0.5, a + x[t]
    return a, b


def of_numbers(x, n: int):
    w = 1.0
    for t in weft.serial(range(n)):
        w = w * 0.9
        x[t] = w * x[t]
    return w


def in_a_host_loop(x, n: int):
    k, s = 0, 0.0
    while k < 3:
        x[0:1] += s
        for t in weft.serial(range(n)):
            s = 0.25 * s + x[t]
        k += 1
    return s


COMPILED = (recurrence, by_shape, downwards, by_steps, carried, summed, flagged, returned,
            returns_nothing, nested, searched, ring, functions, swapped, of_numbers,
            in_a_host_loop)  # fmt: skip


def outcome(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """What a call gives, or the class of what it raises, and the arguments after it."""
    given = copy.deepcopy(args)
    try:
        return function(*given), given
    except Exception as error:
        return type(error), given


def same(found: Any, expected: Any) -> None:
    """A name that elements are added to is a tensor, also where no turn has added any."""
    if isinstance(expected, tuple | list):
        assert type(found) is type(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    elif isinstance(expected, torch.Tensor) or isinstance(found, torch.Tensor):
        ours, theirs = torch.as_tensor(found), torch.as_tensor(expected)
        if isinstance(expected, torch.Tensor):
            assert ours.dtype == theirs.dtype
        torch.testing.assert_close(
            ours.double(), theirs.double(), rtol=1e-4, atol=1e-5, equal_nan=True
        )
    else:
        assert type(found) is type(expected)
        assert found == expected


def check(function: Callable[..., Any], kernel: Any, *args: Any) -> None:
    same(outcome(kernel, *args), outcome(function, *args))


@pytest.mark.parametrize("function", COMPILED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_such_loops_mean_what_they_mean_to_python(function: Any, dtype: torch.dtype) -> None:
    kernel = weft.kernel(function)
    for n in SIZES:
        x = (torch.randn(n) * 2).to(dtype)
        if n:
            check(function, kernel, x, n)
            check(function, kernel, torch.stack([x, x], 1)[:, 1], n)
        check(function, kernel, x, max(n - 1, 0))
        check(function, kernel, x, n + 1)  # beyond the end: Python's error, where it is met
    if dtype == torch.float32:
        assert kernel.specializations, "the loop is not compiled"
        assert all(s.line == kernel.parts.regions[0].span.line for s in kernel.specializations)
    if dtype in (torch.float16, torch.int32, torch.uint8):
        assert not kernel.specializations


# --- what stays Python's -----------------------------------------------------------------------


def wraps(x, n: int):
    for t in weft.serial(range(n)):
        x[t] = x[t - 1] + 1  # x[-1], the last one, at first


def changes_an_element(x, n: int):
    s = x[0]
    for t in weft.serial(range(1, n)):
        s += x[t]
    return s


def changes_a_second_name(x, n: int):
    s, best = x[0] * 1, 0
    for t in weft.serial(range(1, n)):
        s += x[t]
        if s > best:
            best = s
    return best


def keeps_an_element(x, n: int):
    for t in weft.serial(range(1, n)):
        v = x[t]
        x[t] = 0
        x[t - 1] = v


def keeps_it_by_names(x, n: int):
    y = x.view(-1)
    for t in weft.serial(range(1, n)):
        u = y[t]
        v = u if n > 1 else 0.0
        x[t] = 0
        x[t - 1] = v


def swaps_elements(x, n: int):
    for t in weft.serial(range(1, n)):
        x[t], x[t - 1] = x[t - 1], x[t]


def hands_on_an_element(x, n: int):
    last = 0
    for t in weft.serial(range(1, n)):
        last = x[t]
    x += 1
    return last


def returns_an_element(x, n: int):
    for t in weft.serial(range(n)):
        if x[t] > 0:
            return x[t]
    return None


def fibonacci(x, n: int):
    a, b = 0, 1
    for t in weft.serial(range(n * 10)):
        x[0] = t
        a, b = b, a + b
    return a


def congruences(x, n: int):
    seed = 12345
    for t in weft.serial(range(n)):
        seed = (seed * 25214903917 + 11) % 281474976710656
        x[t] = seed % 7
    return seed


def doubles(x, n: int):
    c = 1
    for t in weft.serial(range(n * 5)):
        x[0] = t
        c += c
    return c


def divides_by_zero(x, n: int):
    for t in weft.serial(range(n)):
        x[t] = 1 / t


def rounds(x, n: int):
    import math

    for t in weft.serial(range(n)):
        x[t] = math.exp(x[t]) + int(x[t])


def gathers(x, n: int):
    at = torch.tensor([0, -1, 0, -1, 0, -1] * 4)
    for t in weft.serial(range(n)):
        x[t] += x[at[t]]


def rows(x, n: int):
    y = torch.stack([x, x + 1], 1)
    for t in weft.serial(range(1, n)):
        y[t] = 0.5 * y[t - 1] + y[t]
    return y


def whole_tensors(x, n: int):
    for t in weft.serial(range(n)):
        x[t] = x.sum() * 0.5


def of_lists(x, n: int):
    held = [0.0] * n
    for t in weft.serial(range(n)):
        held[t] = x[t] * 2
        x[t] = held[t] + 1
    return held


def over_elements(x, n: int):
    s = 0
    for v in weft.serial(x):
        s = s + v
    for t in weft.serial([1, 0]):
        s = s + x[t] if n > 1 else s
    for t, v in weft.serial(enumerate(x)):
        s = s + t * v
    return s


def without_a_value(x, n: int):
    for t in weft.serial(range(n)):
        if t > 0:
            x[t] = before + 1  # noqa: F821
        before = x[t] * 2  # noqa: F841
    return t


def appends(x, n: int):
    seen = []
    for t in weft.serial(range(n)):
        seen.append(x[t] * 2)
    return seen


def truncates(x, n: int):
    y = torch.zeros(n, dtype=torch.int64)
    for t in weft.serial(range(n)):
        y[t] = x[t] * 1.5
    return y


def shared_row(x, n: int):
    y = x[:1].expand(n)
    for t in weft.serial(range(n)):
        y[t] = y[t] + 1


def of_another_name(x, n: int):
    out = torch.zeros(n)
    for t in weft.serial(range(n)):
        y = x
        v = y[t]
        u = (y * 2)[t]
        out[t] = v + u
    return out


def unrolled(x, n: int):
    for t in weft.static(range(n)):
        x[t] = x[t] * 2


def nan_is_no_integer(x, n: int):
    count = n
    for t in weft.serial(range(n)):
        if x[t] != x[t]:
            count = 0.5
    return count


STAYING = (wraps, changes_an_element, changes_a_second_name, keeps_an_element, keeps_it_by_names,
           swaps_elements, hands_on_an_element, returns_an_element, fibonacci, congruences,
           doubles, divides_by_zero, rounds, gathers, rows, whole_tensors, of_lists, over_elements,
           without_a_value, appends, truncates, shared_row, of_another_name, unrolled)  # fmt: skip


@pytest.mark.parametrize("function", STAYING, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_what_compiled_code_would_change_stays_pythons(function: Any, dtype: torch.dtype) -> None:
    kernel = weft.kernel(function)
    for n in (2, 17):
        x = (torch.randn(n) * 2).to(dtype)
        check(function, kernel, x, n)
    assert not kernel.specializations


def test_a_number_that_is_changed_in_place_is_the_callers() -> None:
    def into(x, s, n: int):
        for t in weft.serial(range(n)):
            s += x[t]
        return s

    kernel = weft.kernel(into)
    x = torch.randn(5)
    for start in (0, 0.5, torch.tensor(0.5)):
        check(into, kernel, x, start, 5)
    check(nan_is_no_integer, weft.kernel(nan_is_no_integer), x, 5)
    with pytest.raises(IndexError):
        weft.kernel(recurrence)(x, 6)


def test_a_loop_over_time_around_device_loops_is_pythons() -> None:
    @weft.kernel
    def smoothed(x, steps: int):
        for _ in weft.serial(range(steps)):
            y = x.clone()
            for i in range(1, x.shape[0] - 1):
                x[i] = (y[i - 1] + y[i + 1]) / 2
            for k in weft.serial(range(1, 3)):
                x[k] = x[k] + x[k - 1]

    def parallel(x, steps: int):
        for t in weft.serial(range(steps)):
            for i in range(x.shape[0]):
                x[i] = x[i] * 0.5 + t

    x = torch.randn(9)
    check(smoothed.function, smoothed, x, 3)
    assert [r.either is None for r in smoothed.parts.regions] == [True, False]
    kernel = weft.kernel(parallel)
    check(parallel, kernel, x, 3)
    (region,) = kernel.parts.regions
    assert region.either is None
    assert not is_once(region.node)


# --- gradients, graphs, modes ------------------------------------------------------------------


def filtered(x, a):
    out, s = torch.empty_like(x), 0.0
    for t in weft.serial(range(x.shape[0])):
        s = a[0] * s + x[t]
        out[t] = torch.tanh(s)
        if t > 0:
            out[t] = out[t] * out[t - 1] + s * x[t]
    return out, s


def in_place(x, a):
    y = x * 1
    for t in weft.serial(range(1, y.shape[0])):
        y[t] = y[t] * y[t - 1] + a[0] * y[t]
    return y


def mixed(x, a):
    """Loops in turn: compiled, torch's, a parallel one."""
    y = torch.sin(x)
    for t in weft.serial(range(y.shape[0] - 2, -1, -1)):
        y[t] = y[t] + a[0] * y[t + 1]
    z = y * y
    out = torch.empty_like(x)
    for i in range(out.shape[0]):
        out[i] = z[i] * x[i]
    return out


@pytest.mark.parametrize("function", [filtered, in_place, mixed], ids=lambda f: f.__name__)
def test_gradients_are_those_of_the_loop(function: Any) -> None:
    kernel = weft.kernel(function)
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    a = torch.randn(1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(kernel, (x, a))
    assert torch.autograd.gradgradcheck(kernel, (x, a))
    assert kernel.specializations

    def reference(x, a):  # out of place, as torch's gradients want it
        if function is filtered:
            s, out = torch.zeros((), dtype=x.dtype), []
            for t in range(5):
                s = a[0] * s + x[t]
                now = torch.tanh(s)
                out.append(now if t == 0 else now * out[-1] + s * x[t])
            return torch.stack(out), s
        y = [*(x * 1 if function is in_place else torch.sin(x))]
        if function is in_place:
            for t in range(1, 5):
                y[t] = y[t] * y[t - 1] + a[0] * y[t]
            return torch.stack(y)
        for t in range(3, -1, -1):
            y[t] = y[t] + a[0] * y[t + 1]
        return torch.stack(y) ** 2 * x

    found, expected = kernel(x, a), reference(x, a)
    torch.testing.assert_close(found, expected)
    if isinstance(found, tuple):
        found, expected = (sum(v.sum() for v in each) for each in (found, expected))
    ours = torch.autograd.grad(found.sum(), (x, a))
    torch.testing.assert_close(ours, torch.autograd.grad(expected.sum(), (x, a)))
    _, tangent = torch.func.jvp(kernel, (x.detach(), a.detach()), (torch.ones(5).double(),) * 1
                                + (torch.zeros(1).double(),))  # fmt: skip
    _, other = torch.func.jvp(reference, (x.detach(), a.detach()), (torch.ones(5).double(),
                              torch.zeros(1).double()))  # fmt: skip
    torch.testing.assert_close(tangent, other)
    grads = torch.func.grad(lambda x: sum(v.sum() for v in _all(kernel(x, a.detach()))))(x.detach())
    torch.testing.assert_close(grads, ours[0])


def _all(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("function", [filtered, in_place, mixed], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [False, True])
def test_such_loops_are_in_graphs(function: Any, dynamic: bool) -> None:
    kernel = weft.kernel(function)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, a: kernel(x * 2, a), fullgraph=True, dynamic=dynamic, backend="aot_eager"
    )
    for n in (1, 2, 5):
        x, a = torch.randn(n), torch.randn(1)
        torch.testing.assert_close(compiled(x, a), kernel(x * 2, a))
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    a = torch.randn(1, dtype=torch.float64, requires_grad=True)
    grads = []
    for f in (compiled, lambda x, a: kernel(x * 2, a)):
        found = f(x, a)
        loss = sum(v.sum() for v in found) if isinstance(found, tuple) else found.sum()
        grads.append(torch.autograd.grad(loss, (x, a)))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("function", [filtered, in_place, mixed], ids=lambda f: f.__name__)
def test_such_loops_under_vmap(function: Any) -> None:
    kernel = weft.kernel(function)
    x, a = torch.randn(3, 5), torch.randn(3, 1)
    found = torch.vmap(kernel)(x, a)
    expected = [kernel(*each) for each in zip(x, a, strict=True)]
    if isinstance(found, tuple):
        for k, each in enumerate(found):
            torch.testing.assert_close(each, torch.stack([e[k] for e in expected]))
    else:
        torch.testing.assert_close(found, torch.stack(expected))


def energy(x, a):
    h = torch.empty_like(x)
    e = 0.0
    for t in weft.serial(range(x.shape[0])):
        h[t] = a[0] * x[t]
        e = e + h[t] * h[t]
    return e


def test_gradients_of_such_loops_under_vmap() -> None:
    """Of what Python does torch has none: it keeps the element `h[t]`, a view."""
    kernel = weft.kernel(energy)
    x, a = torch.randn(3, 5), torch.tensor([0.5])
    expected = 2 * a * a * x
    torch.testing.assert_close(
        torch.vmap(torch.func.grad(kernel), in_dims=(0, None))(x, a), expected
    )
    jacobian = torch.func.jacrev(lambda x: torch.vmap(kernel, in_dims=(0, None))(x, a))(x)
    torch.testing.assert_close(jacobian, torch.diag_embed(expected.T).permute(1, 2, 0))


def test_inductor_takes_gradients_of_such_loops() -> None:
    """It lowers their derivative with tensors that have no data."""
    kernel = weft.kernel(energy)
    torch._dynamo.reset()
    x, a = torch.randn(5, requires_grad=True), torch.tensor([0.5])
    torch.compile(kernel, fullgraph=True)(x, a).backward()
    torch.testing.assert_close(x.grad, 2 * a * a * x.detach())


@pytest.mark.parametrize("function", COMPILED, ids=lambda f: f.__name__)
def test_such_loops_in_debug_mode_and_interpreted(function: Any) -> None:
    kernel = weft.kernel(debug=True)(function)
    for dtype in (torch.float32, torch.int64):
        x = (torch.randn(17) * 2).to(dtype)
        check(function, kernel, x, 17)
    x = torch.randn(17)
    check(function, weft.kernel(function).interpret, x, 17)


def test_a_result_is_a_number_where_python_has_one() -> None:
    def counted(x, n: int):
        count = 0
        for t in weft.serial(range(n)):
            if x[t] > 0:
                count += 1
        return count, torch.zeros(count), ["a"] * count

    kernel = weft.kernel(counted)
    x = torch.randn(17)
    check(counted, kernel, x, 17)
    assert type(kernel(x, 17)[0]) is int
    assert kernel.specializations
