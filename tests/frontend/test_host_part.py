"""What the statements of a host part mean where annotations and vectors make a difference."""

import copy
import itertools
import operator
import pickle
import random
import traceback

import pytest
import torch

import weft
from weft.errors import KernelTypeError, KernelValueError
from weft.lang.numbers import NUMBERS, strong


@weft.kernel
def wraps(a: weft.i32) -> weft.i32:
    return a * a // 3


@weft.kernel
def float_of_product(a: weft.i32) -> weft.f64:
    return a * a


@weft.kernel
def rounded(a: weft.f32) -> weft.f64:
    d: weft.f32 = 0.1
    return a + 1e-9 + d


@weft.kernel
def annotated_locals() -> weft.f64:
    a: weft.i32 = 3.7
    b: weft.i8 = 300
    c: int = 2.9
    d: float = 3
    e: bool = 2
    v: weft.types.vector(2, weft.i32) = 1.9
    return a + 10 * float(b) + 100 * c + d / 2 + e * 0.25 + v[1] * 1000


@weft.kernel
def strong_in_a_loop(x, n: weft.i8):
    m: weft.i8 = n + 100
    out = torch.zeros(2, dtype=torch.int64)
    for i in out:
        out[i] = m * x[i]  # i8 times i8
    for i in out:
        out[i] += n
    return out


@weft.kernel
def two(x) -> (weft.i32, weft.f32):
    s = 0.0
    for i in x:
        s += x[i]
    return s, s + 0.1


@pytest.mark.parametrize("run", [lambda k, *a: k(*a), lambda k, *a: k.interpret(*a)])
def test_annotated_numbers_are_of_their_dtype(run):
    assert run(wraps, 100000) == 470021802
    assert run(float_of_product, 100000) == 1410065408.0
    assert run(rounded, 1.0) == float(torch.tensor(1.0) + torch.tensor(0.1))
    assert run(two, torch.full((3,), 0.5)) == (1, pytest.approx(1.6, rel=1e-6))
    assert type(run(wraps, 3)) is int
    assert type(run(float_of_product, 3)) is float


def test_annotated_locals_cast():
    assert annotated_locals() == 3 + 440 + 200 + 1.5 + 0.25 + 1000


def test_an_annotated_number_is_strong_in_a_loop():
    x = torch.tensor([2, -2], dtype=torch.int8)
    for _ in range(3):
        assert strong_in_a_loop(x, 27).tolist() == [-2 + 27, 2 + 27]  # 127 * 2 wraps
    assert strong_in_a_loop(x, 28).tolist() == [0 + 28, 0 + 28]  # 28 + 100 is -128


@weft.kernel
def unused(a: weft.i32, x):
    for i in x:
        x[i] = 1


@weft.kernel
def in_a_branch(a: weft.i32, x, go: bool):
    if go:
        for i in x:
            x[i] = a


@pytest.mark.parametrize("run", [lambda k, *a: k(*a), lambda k, *a: k.interpret(*a)])
def test_arguments_that_no_loop_reads_are_checked(run):
    x = torch.zeros(2)
    for kernel, args in ((unused, (x,)), (in_a_branch, (x, False)), (wraps, ())):
        with pytest.raises(KernelTypeError) as caught:
            run(kernel, 1.75, *args)
        assert caught.value.message == "`a` is annotated weft.i32, and a float was passed"
        with pytest.raises(KernelValueError) as caught:
            run(kernel, 1 << 40, *args)
        assert caught.value.message == "`a` is 1099511627776, which does not fit in i32"


@weft.kernel
def reduced(x) -> weft.i32:
    total = 0.0
    for i in x:
        total += x[i]
    return total


def test_results_are_cast_in_a_compiled_graph_too():
    x = torch.full((3,), 0.5)
    assert reduced(x) == 1
    found = torch.compile(reduced, fullgraph=True, backend="aot_eager")(x)
    assert (found.dtype, found.item()) == (torch.int32, 1)


def test_numbers_of_a_dtype():
    i, f, u = strong(100000, weft.i32), strong(0.1, weft.f32), strong(-1, weft.u8)
    assert (i * i, 2 - i, -strong(-(2**31), weft.i32)) == (1410065408, -99998, -(2**31))
    assert (i << 20, ~i, abs(-i), divmod(i, 7), i**2) == (1778384896, -100001, i, (14285, 5), i * i)
    assert u == 255
    assert u + 1 == 0
    assert type(u + strong(1, weft.i8)).__name__ == "I16"
    assert type(i * 1.5) is float
    assert (type(i + f), i + f) == (type(f), float(torch.tensor(100000.0) + 0.1))
    assert f * f == float(torch.tensor(0.1) * torch.tensor(0.1))
    assert strong(1e300, weft.f32) == float("inf")
    assert [strong(v, weft.i8) for v in (300.0, -300.0, float("nan"), 300)] == [127, -128, 0, 44]
    for made in (copy.deepcopy(i), pickle.loads(pickle.dumps(i))):
        assert (type(made), made) == (type(i), i)
    assert torch.zeros(strong(3, weft.i32), 2).shape == (3, 2)
    assert (torch.ones(2) * f).dtype == (f * torch.ones(2)).dtype == torch.float32
    with pytest.raises(ZeroDivisionError):
        i // strong(0, weft.i32)


BYTE = weft.field(weft.u8, shape=())


@weft.kernel
def beside_an_element() -> tuple[weft.i64, weft.i64, weft.bool_]:
    v: weft.u16 = 1000
    v -= BYTE[None]
    w: weft.u16 = 1000
    return v, BYTE[None] - w, BYTE[None] < w


def test_an_element_of_a_field_joins_a_number_of_the_host_part():
    BYTE[None] = 255
    assert beside_an_element() == (745, 65536 - 745, True)


@pytest.mark.parametrize("word", ["add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor",
                                  "lshift", "rshift", "truediv", "lt", "ge", "eq"])  # fmt: skip
def test_elements_and_numbers_of_all_integers_join_in_both_orders(word):
    operation, draw = getattr(operator, word), random.Random(word)
    kinds = [d for d in NUMBERS if d.kind == "int"]
    for left, right in itertools.product(kinds, kinds):
        a = strong(draw.choice([3, 100, 250, 1000, 70000, 2**33 + 5, -7]), left)
        b = strong(draw.choice([3] if "shift" in word else [5, 200, 60000, 2**32 - 3, -3]), right)
        wanted, x, y = operation(a, b), weft.field(left, ()), weft.field(right, ())
        x[None], y[None] = int(a), int(b)
        for found in (operation(x[None], b), operation(a, y[None]), operation(x[None], y[None])):
            if word == "truediv":  # of integers a float32; of numbers alone Python's
                assert found.dtype == torch.float32
                torch.testing.assert_close(found.item(), wanted, rtol=3e-7, atol=0)
                continue
            assert found.item() == wanted, (a, b, left, right)
            assert found.dtype == getattr(wanted, "dtype", torch.bool)


@weft.kernel
def copies():
    a = weft.Vector([1, 2])
    b = c = a
    b[0] = 5
    d, e = a, c
    d[1] = 7
    f = a if a[0] == 1 else b
    f.x = 9
    for v in weft.static((a, e)):
        v[0] = 100
    (w := a)[0] = 50
    return a, b, c, d, e, f, w


def test_a_vector_is_a_value_in_the_host_part():
    found = [v.to_list() for v in copies()]
    assert found == [[50, 2], [5, 2], [5, 2], [1, 7], [5, 2], [9, 2], [50, 2]]


@weft.kernel
def over_time(x):
    v = weft.Vector([0.0, 0.0])
    for _ in weft.serial(range(3)):
        before = v
        for i in x:
            v[0] += x[i]
        v[1] += before[0]
    for i in x:
        w = weft.Vector([x[i], 0.0])
        before, other = w, w
        w[0] = 7.0
        other.y = 2.0
        x[i] = before.x + 10 * before.y + 100 * other.x
    return v[0], v[1]


def test_a_vector_is_a_value_under_interpretation_too():
    for run in (over_time, over_time.interpret):
        x = torch.ones(3)
        assert [float(v) for v in run(x)] == [9, 9]
        assert x.tolist() == [101] * 3


def returned_as_it_is(v):
    return v


@weft.kernel
def through_a_function(x):
    a = weft.Vector([0.0, 0.0])
    b = returned_as_it_is(a)
    for i in range(2):
        a[i] = x[i]
    b[1] = 3.0
    return a[0] + 10 * a[1] + 100 * b[0] + 1000 * b[1]


def test_what_a_function_returns_is_a_value_too():
    assert through_a_function(torch.tensor([1.0, 2.0])) == 3021.0


@weft.kernel
def misspelt(x, n: int):
    m = lenght(x)  # noqa: F821
    for i in range(m):
        x[i] = 1.0


@weft.kernel
def divided_by(x, n: int):
    half = 1 // n
    for i in range(half):
        x[i] = 1.0


@weft.kernel
def after_its_loop(x, n: int):
    for i in x:
        x[i] = 1.0
    return x.lenght


@pytest.mark.parametrize(
    ("kernel", "error", "line"),
    [
        (misspelt, NameError, "m = lenght(x)  # noqa: F821"),
        (divided_by, ZeroDivisionError, "half = 1 // n"),
        (after_its_loop, AttributeError, "return x.lenght"),
    ],
)
def test_errors_of_the_host_part_are_pythons_own(kernel, error, line):
    with pytest.raises(error) as info:
        kernel(torch.zeros(3), 0)
    assert not isinstance(info.value, weft.WeftError)
    frame = traceback.extract_tb(info.tb)[-1]
    assert (frame.filename, frame.line) == (__file__, line)
