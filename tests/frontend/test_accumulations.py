"""What accumulates into a variable though it is not written so: atomics on variables, flags."""

from __future__ import annotations

import functools
import operator

import pytest
import torch

import weft
from tests.frontend.test_language import same
from weft import atomic_add


@weft.kernel
def reduced(x):
    hi, lo, s, n, p, a, o, e = -100.0, 100.0, 0.0, 0, 1.0, 255, 0, 0
    for i in x:
        weft.atomic_max(hi, x[i])
        weft.atomic_min(lo, x[i])
        atomic_add(s, x[i])
        weft.atomic_sub(n, 1)
        weft.atomic_mul(p, 1.01)
        weft.atomic_and(a, i + 5)
        weft.atomic_or(o, i)
        weft.atomic_xor(e, i)
    return hi, lo, s, n, p, a, o, e


@weft.func
def helper(y):
    acc = 1.0
    weft.atomic_add(acc, y)
    return acc


@weft.func
def by_reference(t: weft.template(), y):
    weft.atomic_add(t, y)


@weft.kernel
def local(x, out):
    for i in range(out.shape[0]):
        s, old = 0.0, 0.0
        v = weft.math.vec2(0.0, 1.0)
        for j in range(i):
            old = weft.atomic_add(s, x[j])
            weft.atomic_max(v, weft.math.vec2(x[j], x[j] * 2))
            if s > 2:
                weft.atomic_sub(s, helper(1.0))
        out[i] = s + old + v.sum()


larger = weft.atomic_add  # by another name


@weft.func
def counted(a, n):
    old = [0.0, 0.0]
    count = 0
    for k in range(n):
        old[count % 2] = weft.atomic_add(count, k + 1)
        old[1] += weft.math.floor(a)
    return old[0] + old[1]


@weft.kernel
def stored(x, out, last):
    for i in range(out.shape[0]):
        s = i
        out[i] = weft.atomic_add(s, out[i] + 3)
        if x[i] > 0:
            larger(s, 2)
            out[i] = weft.atomic_max(s, 5)
            out[i] += counted(x[i], 4)
        last[i] = s


@weft.kernel
def references(out):
    for i in range(out.shape[0]):
        t = 1.0
        by_reference(t, i)
        out[i] = t


@weft.kernel
def flags(x):
    some, every, neither = False, True, False
    found = False
    positive = True
    for i in x:
        if x[i] > 2.0:
            found = True
        if x[i] < -1:
            positive = False
        elif x[i] == 0 and i > 3:
            found = True
    return found, positive, some, every, neither


@weft.kernel
def flags_of_one_statement(x):
    total, found, positive = 0.0, False, True
    large: bool = False
    small = tiny = True
    for i in x:
        total += x[i]
        if x[i] > 2.0:
            found = True
        if x[i] < -1:
            positive = False
            tiny = False
        if x[i] > 3:
            large = True
            small = False
    return total, found, positive, large, small, tiny


@weft.kernel
def in_host_lists(x, rounds: int):
    hits, first, again = torch.zeros(rounds), torch.zeros(rounds, dtype=torch.int64), False
    totals = torch.zeros(rounds)
    for t in weft.serial(range(rounds)):
        found, best, at = False, -100.0, -1
        total = weft.Struct(a=0.0, b=0.0)
        for i in range(x.shape[0]):
            if x[i] > t - 1:
                found = True
        for i in range(x.shape[0]):
            if x[i] > best:
                best = x[i]
                at = i
        for i in range(x.shape[0]):
            total.a += x[i]
            total.b += 1
        hits[t], first[t] = found, at
        totals[t] = total.a / total.b
        if t == 0:
            for i in range(x.shape[0]):
                if x[i] < 0:
                    again = True
        x[at] = -50.0
    go, turns = True, 0
    while go:
        go = False
        for i in range(x.shape[0]):
            if x[i] > turns - 40:
                go = True
        turns += 1
    return hits, first, totals, again, turns


@weft.kernel
def no_flag_any_more(x):
    found = False
    for i in x:
        if x[i] > 0:
            found = True
    known, found = found, 7
    for i in x:
        if x[i] > 0:
            found = True
    return known, found


@pytest.mark.parametrize("n", [1, 2, 3, 17, 127])
def test_accumulations_in_lists_of_the_host_part(n: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    for rounds in (1, 3):
        same(in_host_lists, x.clone(), rounds)


@weft.kernel
def in_one_statement(x):
    low, high, count, total = 1e9, -1e9, 0, 0.0
    for i in range(x.shape[0]):
        v = x[i] * x[i]
        low, high = min(low, v), max(high, v)
        if x[i] > 0:
            count, total = count + 1, total + v
    return low, high, count, total


@pytest.mark.parametrize("n", [1, 3, 127])
def test_accumulations_in_one_statement(n: int) -> None:
    same(in_one_statement, torch.randn(n, generator=torch.Generator().manual_seed(n)))


@weft.kernel
def beside_a_lambda(x):
    first, _ = sorted([3, 1], key=lambda v: -v)
    low, high = 1e9, -1e9 + first
    for i in range(x.shape[0]):
        v = sum(x[i] * w for w in (0.5, 0.25))
        low, high = min(low, v), max(high, v)
    return low, high


@pytest.mark.parametrize("n", [1, 127])
def test_what_is_read_later_does_not_count_where_it_is_another(n: int) -> None:
    same(beside_a_lambda, torch.randn(n, generator=torch.Generator().manual_seed(n)))


def test_what_reads_anothers_new_value_is_not_taken_apart() -> None:
    @weft.kernel
    def fibonacci(x):
        for i in range(x.shape[0]):
            a, b, n = 0, 1, 0
            for _ in range(i):
                a, b, n = b, a + b, n + 1
            x[i] = 100 * n + a

    x = torch.zeros(7)
    fibonacci(x)
    assert x.tolist() == [0, 101, 201, 302, 403, 505, 608]


def test_a_variable_that_is_a_number_by_then_is_no_flag() -> None:
    with pytest.raises(weft.KernelNameError, match="`found` is read after the device loop"):
        no_flag_any_more(torch.ones(3))


@pytest.mark.parametrize("n", [1, 2, 3, 17, 127])
def test_accumulations(n: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    same(reduced, x)
    same(local, x, torch.full((n,), torch.nan))
    for values in (x, x.abs(), 9 * x, x.new_zeros(n)):
        same(flags, values)
        same(flags_of_one_statement, values)


@pytest.mark.parametrize("n", [1, 2, 17])
def test_what_an_atomic_on_a_variable_gives_is_stored(n: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    out = torch.arange(n, dtype=torch.float32)

    def expected(i: int) -> tuple[int, int]:
        return i, i + i + 3

    found = stored(torch.full((n,), -1.0), out, last := torch.full((n,), -9))
    assert found is None
    assert [*zip(out.tolist(), last.tolist(), strict=True)] == [expected(i) for i in range(n)]
    same(stored, x, torch.arange(n, dtype=torch.float32), torch.full((n,), torch.nan))


def test_templates_are_references() -> None:
    out = torch.full((5,), torch.nan)
    references(out)
    assert out.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(weft.KernelSyntaxError, match=r"`by_reference` assigns to `t`"):
        references.interpret(out)


def test_empty_loops_leave_variables_as_they_are() -> None:
    assert [float(v) for v in reduced(torch.empty(0))] == [-100, 100, 0, 0, 1, 255, 0, 0]
    assert [bool(v) for v in flags(torch.empty(0))] == [False, True, False, True, False]


def test_nan_is_the_maximum_of_an_atomic() -> None:
    x = torch.tensor([1.0, torch.nan, 2.0])
    assert reduced(x)[0].isnan()
    assert reduced.interpret(x)[0].isnan()


def test_the_gradient_of_an_atomic_sum() -> None:
    x = torch.randn(5, requires_grad=True)
    reduced(x)[2].backward()
    assert x.grad.tolist() == [1.0] * 5


@weft.kernel
def of_vectors(f: weft.template(), x):
    for i in x:
        weft.atomic_add(f[i % 4], weft.math.vec3(x[i], 1, 2))
    for i in range(9):
        weft.atomic_max(f[0], weft.math.vec3(i, i, i))


def test_atomics_on_vectors_in_fields() -> None:
    found = []
    for kernel in (of_vectors, of_vectors.interpret):
        f = weft.Vector.field(3, weft.f32, shape=4)
        kernel(f, torch.arange(9.0))
        found.append(f.to_torch())
    assert torch.equal(*found)
    assert found[0].tolist() == [[12, 8, 8], [6, 2, 4], [8, 2, 4], [10, 2, 4]]


@weft.kernel
def of_tensor(x, s):
    for i in x:
        weft.atomic_add(s, x[i])


def test_a_tensor_is_no_variable() -> None:
    with pytest.raises(weft.KernelTypeError) as info:
        of_tensor(torch.zeros(3), torch.zeros(()))
    assert info.value.message == "an atomic on `s`, which is a tensor of 0 dimensions"
    assert info.value.help == "write s[None], its element"


@pytest.mark.parametrize("how", ["add", "min", "max", "xor"])
def test_atomics_on_what_the_host_part_read_from_a_field(how: str) -> None:
    atomic = getattr(weft, f"atomic_{how}")

    @weft.kernel
    def reduced(x: weft.template()) -> weft.i32:
        s = x[0]
        for i in range(1, 9):
            atomic(s, x[i])
        return s

    x = weft.field(weft.i32, 9)
    x.from_torch(torch.randint(-99, 99, (9,), dtype=torch.int32))
    expected = {"add": x.sum, "min": x.min, "max": x.max}
    values = [int(v) for v in x.to_numpy()]
    wanted = functools.reduce(operator.xor, values) if how == "xor" else int(expected[how]())
    assert reduced(x) == reduced.interpret(x) == wanted


def test_sums_in_another_name_of_a_tensor_are_refused() -> None:
    """Python would change the tensor."""

    @weft.kernel
    def summed(x, y):
        s = y
        for i in range(x.shape[0]):
            s += x[i]
        return s

    @weft.kernel
    def by_atomics(x, y):
        s = y
        for i in range(x.shape[0]):
            weft.atomic_add(s, x[i])
        return s

    for kernel in (summed, by_atomics):
        with pytest.raises(weft.errors.KernelTypeError, match="`s` is another name of a tensor"):
            kernel(torch.ones(4), torch.tensor(1.0))
    assert summed(torch.ones(4), 1.0) == 5
