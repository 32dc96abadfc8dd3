"""Functions that a kernel calls: annotated with dtypes, and with the caller's variables."""

import pytest
import torch

import weft
from weft.errors import KernelSyntaxError, KernelTypeError


@weft.func
def whole(a: weft.i32) -> weft.i32:
    return a


@weft.func
def in_branches(a) -> weft.f32:
    if a > 3:
        return 2.5
    return a


def unmarked(a: weft.i32, b: weft.f32 = 0.1):
    return a * a + b


@weft.func
def counts(n: weft.i32, v: weft.math.ivec2):
    s = 0
    for k in weft.static(range(n)):
        s += k
    return s + v.x


@weft.func
def two(a) -> tuple[weft.i32, weft.f32]:
    return a, a


@weft.kernel
def converted(x, out):
    for i in x:
        a, b = two(x[i])
        out[i, 0] = whole(x[i])
        out[i, 1] = in_branches(x[i])
        out[i, 2] = unmarked(x[i])
        out[i, 3] = counts(3.9, weft.math.vec2(1.7, x[i]))
        out[i, 4] = a + 10 * b
        out[i, 5] = whole(100000) * whole(100000)


@pytest.mark.parametrize("run", [converted, converted.interpret])
def test_annotated_parameters_and_results_convert(run):
    out = torch.zeros(2, 6, dtype=torch.float64)
    run(torch.tensor([1.5, 4.5], dtype=torch.float64), out)
    tenth = float(torch.tensor(0.1))
    assert out.tolist() == [
        [1, 1.5, pytest.approx(1 + tenth), 4, 16, 1410065408],
        [4, 2.5, pytest.approx(16 + tenth), 4, 49, 1410065408],
    ]


@weft.kernel
def from_the_host(a: float) -> weft.f64:
    return whole(a) * whole(100000) * 100000 + unmarked(a, 0)


def test_functions_that_the_host_part_calls_convert():
    for run in (from_the_host, from_the_host.interpret):
        assert run(1.75) == float(torch.tensor(1410065409.0))  # in f32


@weft.func
def one(x: weft.template()):
    x = 1  # noqa: F841


@weft.func
def increase(x: weft.template(), by: weft.i32):
    x += by


@weft.func
def twice(x: weft.template()):
    increase(x, 2)
    increase(x, 3)


@weft.func
def swap(a: weft.template(), b: weft.template()):
    t = a
    a = b
    b = t


@weft.func
def filled(v: weft.template()):
    v[0] = 7.0
    v.y = 8.0


@weft.func
def early(x: weft.template(), c):
    if c > 1:
        x = 10
        return 5
    x = 20  # noqa: F841
    return 6


@weft.func
def stored(x: weft.template(), i):
    x[i] = 3.0


@weft.kernel
def references(out):
    for i in range(out.shape[0]):
        a = 0
        one(a)
        for j in range(4):
            increase(a, j)
        if i > 0:
            increase(by=100, x=a)
        b = 3
        swap(a, b)
        v = weft.Vector([0.0, 0.0])
        filled(v)
        c = 0.5
        r = early(c, i)
        twice(b)
        k = 0
        while k < 5:
            increase(k, 1)
        increase(v[0], 1)
        stored(out, (i, 7))
        for p, value in enumerate((a, b, v.x, v.y, c, r, k)):
            out[i, p] = value


def test_a_template_is_the_callers_variable():
    out = torch.zeros(3, 8)
    references(out)
    assert out.tolist() == [
        [3, 12, 8, 8, 20, 6, 5, 3], [3, 112, 8, 8, 20, 6, 5, 3], [3, 112, 8, 8, 10, 5, 5, 3]
    ]  # fmt: skip


def test_what_cannot_be_assigned_is_refused():
    @weft.kernel
    def an_expression(out):
        for i in range(2):
            one(i + 1)

    @weft.kernel
    def from_before(out):
        s = 0
        for i in out:
            one(s)
            out[i] = s

    @weft.kernel
    def a_tensor(out):
        for i in range(2):
            one(out)
            out[i] = 1

    @weft.kernel
    def in_the_host(out):
        s = 0
        one(s)
        return s

    for kernel, kind, message in (
        (an_expression, KernelTypeError,
         "`one` assigns to `x`, a template(), and `i + 1` is no variable"),
        (from_before, KernelTypeError,
         "`one` assigns to `x`, a template(), and `s` is from outside of the loop"),
        (a_tensor, KernelTypeError, "`one` assigns to `x`, a template(), and `out` is a tensor"),
        (in_the_host, KernelSyntaxError,
         "`one` assigns to `x`, a template(), and is called by Python"),
    ):  # fmt: skip
        with pytest.raises(kind) as caught:
            kernel(torch.zeros(2))
        assert caught.value.message == message
    with pytest.raises(KernelSyntaxError, match="and is called by Python"):
        references.interpret(torch.zeros(1, 8))


@weft.kernel
def named_in_an_expression(x, out):
    for i in out:
        z = 1
        if x[i] > 0:
            out[i] = abs(z := 3)
        out[i] += z


def test_a_name_assigned_in_an_expression_of_a_branch_keeps_its_value():
    for run in (named_in_an_expression, named_in_an_expression.interpret):
        out = torch.zeros(2)
        run(torch.tensor([-1.0, 1.0]), out)
        assert out.tolist() == [1, 6]
