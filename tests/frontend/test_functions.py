"""Functions that a kernel calls: annotated with dtypes, and with the caller's variables."""

import functools

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


def in_one_branch(v):  # noqa: RET503
    if v > 0:
        return v


def in_a_loop(v):  # noqa: RET503
    for k in range(9):
        if k > v:
            return k


def after_a_break(v):
    while True:
        if v > 9:
            break
        v += 1
        if v > 4:
            return v


@pytest.mark.parametrize(
    ("function", "kind"),
    [(in_one_branch, "f32"), (in_a_loop, "int"), (after_a_break, "f32")],
)
def test_a_function_whose_end_is_reached_returns_none_there(function, kind):
    @weft.kernel
    def kernel(x, out):
        for i in out:
            out[i] = function(x[i])

    with pytest.raises(KernelTypeError) as info:
        kernel(torch.ones(2), torch.zeros(2))
    assert info.value.message == (
        f"`{function.__name__}` returns a scalar ({kind}) here and None elsewhere"
    )
    assert info.value.help == (
        "let every path return one type; where a function ends without `return`, add a final one"
    )


def until_more_than(v, limit):
    while True:
        if v > limit:
            return v
        v += 1


def halved_until_less(v):
    if v > 1:
        while True:
            v /= 2
            if v < 1:
                return v
    return -v


def first_multiple(v):  # noqa: RET503
    for k in weft.static(range(4)):
        if k == 3:
            return k * v


def known(v):  # noqa: RET503
    if LOOPS:
        return 3 * v


def asserted(v):
    if v > -9:
        return v
    assert False  # noqa: B011, PT015


LOOPS = True


@weft.kernel
def whose_end_is_not_reached(x, out):
    for i in x:
        out[i, 0] = until_more_than(x[i], 4)
        out[i, 1] = halved_until_less(x[i])
        out[i, 2] = first_multiple(x[i])
        out[i, 3] = known(x[i])
        out[i, 4] = asserted(x[i])


def test_functions_whose_end_is_not_reached_need_no_final_return():
    x, out = torch.tensor([-0.5, 4.0, 7.0]), torch.zeros(3, 5)
    whose_end_is_not_reached(x, out)
    expected = torch.zeros(3, 5)
    whose_end_is_not_reached.interpret(x, expected)
    assert out.tolist() == expected.tolist()


def count_down(x, i):
    while True:
        if x[i] < 0:
            return
        x[i] -= 1


def claimed(x, n, i):  # noqa: RET503
    if x[i] < -0.5:
        return weft.atomic_add(n[0], 1)


def test_what_is_returned_and_not_used_may_be_none():
    @weft.kernel
    def kernel(x, n):
        for i in x:
            count_down(x, i)
            claimed(x, n, i)

    x, n = torch.tensor([2.0, 0.25, -1.0]), torch.zeros(1)
    kernel(x, n)
    assert (x.tolist(), n.tolist()) == ([-1.0, -0.75, -1.0], [3.0])


def test_objects_are_not_returned_from_inside_a_loop():
    def chosen(x, i):
        for k in range(3):
            if k > i:
                return x
        return x

    @weft.kernel
    def kernel(x):
        for i in x:
            x[i] = chosen(x, i)[i]

    with pytest.raises(KernelTypeError) as info:
        kernel(torch.ones(3))
    assert info.value.message == "`chosen` returns an object from inside a loop"
    assert info.value.help == "return numbers or vectors"


def plus_a_hundred(function):
    @functools.wraps(function)
    def wrapper(v):
        return function(v) + 100

    return wrapper


def handing_on(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@plus_a_hundred
@plus_a_hundred
def doubled(v):
    return v * 2


@handing_on
def scaled(v, by=2):
    return v * by


@torch.no_grad()
@functools.cache
def halved(v):
    return v / 2


@handing_on
def set_to_one(x, i):
    x[i] = 1.0


def by_keyword(v, **named):
    return v * named["by"]


def test_what_a_decorator_adds_to_a_function_is_compiled():
    @weft.kernel
    def kernel(x):
        out = torch.empty(5, x.shape[0])
        for i in x:
            out[0, i] = doubled(x[i])
            out[1, i] = scaled(x[i])
            out[2, i] = scaled(x[i], by=3)
            out[3, i] = halved(x[i])
            out[4, i] = by_keyword(x[i], by=5)
        return out

    x = torch.tensor([1.0, 2.5])
    expected = torch.stack([x * 2 + 200, x * 2, x * 3, x / 2, x * 5])
    assert torch.equal(kernel(x), expected)
    assert torch.equal(kernel.interpret(x), expected)


def test_stores_of_a_decorated_function_are_in_the_schema():
    @weft.kernel
    def kernel(x):
        for i in x:
            set_to_one(x, i)

    x = torch.zeros(3)
    torch.compile(kernel, fullgraph=True, backend="aot_eager")(x)
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert str(kernel.op._schema).endswith("(Tensor(a!) x) -> ()")


def test_an_object_made_by_a_decorator_is_not_taken_for_its_function():
    class Counted:
        def __init__(self, function):
            functools.update_wrapper(self, function)

        def __call__(self, v):
            return 1000 + v

    @Counted
    def counted(v):
        return v

    @weft.kernel
    def kernel(x):
        for i in x:
            x[i] = counted(x[i])

    x = torch.ones(3)
    kernel(x)
    assert x.tolist() == [1001.0] * 3


class Writers:
    def method(self, x, i):
        x[i] = 1.0

    @staticmethod
    def static_method(x, i):
        x[i] = 1.0

    @classmethod
    def class_method(cls, x, i):
        x[i] = 1.0

    def __init__(self):
        self.held = set_to_one

    def whole(self, x):
        return x[:]


writers = Writers()


@weft.kernel
def by_method(x):
    for i in range(x.shape[0]):
        writers.method(x, i)


@weft.kernel
def by_static_method(x):
    for i in range(x.shape[0]):
        writers.static_method(x, i)


@weft.kernel
def by_class_method(x):
    for i in range(x.shape[0]):
        Writers.class_method(x, i)


@weft.kernel
def by_attribute(x):
    for i in range(x.shape[0]):
        writers.held(x, i)


@weft.kernel
def by_a_view(x):
    y = writers.whole(x)
    for i in y:
        y[i] = 1.0


@weft.kernel
def by_choice(x):
    y = max(sorted([x], key=len), key=len)
    for i in y:
        y[i] = 1.0


@pytest.mark.parametrize(
    "kernel", [by_method, by_static_method, by_class_method, by_attribute, by_a_view, by_choice]
)
def test_stores_of_methods_are_in_the_schema(kernel):
    torch._dynamo.reset()  # which stops at the eighth kernel that is compiled by itself
    x = torch.zeros(3)
    torch.compile(kernel, fullgraph=True, backend="aot_eager")(x)
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert str(kernel.op._schema).endswith("(Tensor(a!) x) -> ()")


class Private(torch.nn.Module):
    __factor = 3.0

    def __init__(self):
        super().__init__()
        self.__table = torch.tensor([1.0, 2.0, 4.0])

    def __shifted(self, __value):
        return __value + self.__factor

    @weft.kernel
    def forward(self, x):
        out, __host = torch.empty_like(x), self.__factor
        for i in range(x.shape[0]):
            __own = x[i] * self.__table[i]
            out[i] = self.__shifted(__own) * __host
        return out


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: torch.compile(m, backend="eager")])
def test_private_names_of_a_class(wrap):
    torch._dynamo.reset()
    assert wrap(Private())(torch.ones(3)).tolist() == [12.0, 15.0, 21.0]


def test_a_graph_does_not_drop_a_kernel_that_returns_nothing(device):
    if device == "webgpu":
        pytest.skip("what stands for kernels there is not for Dynamo")
    torch._dynamo.reset()

    @weft.kernel
    def by_a_method(x):
        for name in weft.serial(["fill_"]):
            getattr(x, name)(1.0)

    @weft.kernel
    def asserting(x):
        for i in x:
            assert x[i] < 1

    with pytest.raises(Exception, match="`x` is written, and the text"):
        torch.compile(by_a_method, fullgraph=True, backend="aot_eager")(torch.zeros(3))

    def asserted():
        torch.compile(asserting, fullgraph=True, backend="aot_eager")(torch.ones(3))
        weft.sync()  # a GPU says it late

    with pytest.raises(weft.KernelAssertionError):
        asserted()


@weft.kernel
def multiple(v, by=2.0):
    return v * by


@weft.kernel
def copied(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


def through(v):
    return multiple(v) + multiple(v, by=3.0)


def test_a_kernel_that_a_loop_calls_is_inlined_as_any_function() -> None:
    """It was an object that can be called, whose `__call__` is weft's own: "`try` cannot be
    compiled", at a line of weft."""

    @weft.kernel
    def calls(x):
        for i in range(x.shape[0]):
            x[i] = multiple(x[i], 5.0) + through(x[i])

    @weft.kernel
    def whole_tensors(x):
        for i in range(x.shape[0]):
            x[i] = copied(x)[i]

    x = torch.ones(3)
    calls(x)
    assert x.tolist() == [10.0] * 3
    with pytest.raises(KernelTypeError, match=r"`torch\.empty_like` cannot be called") as caught:
        whole_tensors(x)
    assert "out = torch.empty_like(x)" in str(caught.value)
