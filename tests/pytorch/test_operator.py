"""A kernel as a PyTorch operator."""

import functools
import inspect
import math
import re
import types
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.errors import KernelTypeError, KernelValueError
from weft.pytorch.forward_level import has_dual
from weft.runtime import fastpath, native
from weft.runtime.overlap import OverlapWarning

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel
def prefix(x: torch.Tensor, start: float = 0.0) -> torch.Tensor:
    n, m = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(n, m):
        s = start
        for k in range(j + 1):
            s += x[i, k]
        out[i, j] = s
    return out


@weft.kernel
def scale_(x: torch.Tensor, factor: float):
    for i in range(x.shape[0]):
        x[i] *= factor
    return x


@weft.kernel
def both(x, y):
    a, b = torch.empty_like(x), torch.empty_like(y)
    for i in range(x.shape[0]):
        a[i] = x[i] + y[i]
        b[i] = x[i] - y[i]
    return a, b


@weft.kernel
def store(x, out):
    for i in range(x.shape[0]):
        out[i] = x[i] + 1


@weft.kernel
def total(x):
    s, most = 0.0, x[0]
    for i in range(x.shape[0]):
        s += x[i]
        most = max(most, x[i])
    return s, most


@weft.kernel
def apply(x, function: weft.template()):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = function(x[i])
    return out


def square(v):
    return v * v


def cube(v):
    return v * v * v


def schema(kernel):
    """The schema, without the hash in the name."""
    return re.sub(r"_[0-9a-f]{8}(?=\()", "", str(kernel.op._schema))


def test_schemas():
    assert schema(prefix) == "weft::prefix(Tensor x, float start=0.) -> Tensor"
    assert schema(scale_) == "weft::scale_(Tensor(a!) x, float factor) -> ()"
    with pytest.raises(KernelTypeError, match="nothing says what `x` is"):
        weft.kernel(both.function).op


def test_no_call_is_advised_that_makes_no_operator() -> None:
    @weft.kernel
    def of_twice(x):
        twice = x * 2
        out = torch.empty_like(twice)
        for i in range(x.shape[0]):
            out[i] = twice[i] + 1
        return out

    torch.compile(of_twice, fullgraph=True, backend="eager")(torch.ones(3))
    with pytest.raises(KernelTypeError, match="graphs of it have operators of its loops") as caught:
        _ = of_twice.op
    assert "call the kernel" not in str(caught.value)


@weft.kernel
def stepped_by(
    x: torch.Tensor, by: float = -0.5, n: int = 3, up: bool = True, y: torch.Tensor | None = None
) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] + (by * n if up else by)
    return out


@weft.kernel
def mapped(x: torch.Tensor, n=2, f=square, scale=1e-5, most=math.inf, sides=(1, 2)):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = min(f(x[i]) * scale + n, most) + sides[1]
    return out


@weft.kernel
def shifted_into(x: torch.Tensor, out: torch.Tensor, n: int = 3):
    for i in range(x.shape[0]):
        out[i] = x[i] + n


def test_defaults_are_those_of_the_schema():
    assert schema(stepped_by) == (
        "weft::stepped_by(Tensor x, float by=-0.5, SymInt n=3, bool up=True, Tensor? y=None)"
        " -> Tensor"
    )
    x = torch.randn(5)
    for call in (stepped_by.op, torch.ops.weft.stepped_by):
        for _ in range(4):  # the last by machine code, where there is some
            torch.testing.assert_close(call(x), x * x - 1.5)
        torch.testing.assert_close(call(x, 2.0), x * x + 6)
        torch.testing.assert_close(call(x, n=4), x * x - 2)
        torch.testing.assert_close(call(x, up=False), x * x - 0.5)
    out = torch.empty(5)
    for _ in range(4):
        shifted_into.op(x, out.fill_(torch.nan))
        torch.testing.assert_close(out, x + 3)
    with pytest.raises(RuntimeError, match="missing value for argument 'x'"):
        stepped_by.op()


def test_other_defaults_are_fixed_in_the_operator():
    # Infinity cannot be in a schema, nor anything that has a default before it.
    assert schema(mapped) == (
        "weft::mapped(Tensor x, SymInt n, float scale, float most, SymInt[] sides=[1, 2]) -> Tensor"
    )
    x = torch.randn(5)
    torch.testing.assert_close(mapped.op(x, 3, 0.5, math.inf), x * x * 0.5 + 5)
    torch.testing.assert_close(mapped.op(x, 3, 0.5, 3.0), (x * x * 0.5 + 3).clamp(max=3) + 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_defaults_where_torch_leaves_them_out(backend):
    op = stepped_by.op  # which Dynamo cannot make

    def f(x):
        return op(x) * op(x, n=4) + stepped_by(x)

    def expected(x):
        return (x * x - 1.5) * (x * x - 2) + x * x - 1.5

    torch._dynamo.reset()
    call = torch.compile(f, fullgraph=True, backend=backend)
    x = torch.randn(5, requires_grad=True)
    torch.testing.assert_close(call(x), expected(x))
    torch.testing.assert_close(*(torch.autograd.grad(g(x).sum(), x) for g in (call, expected)))


def test_defaults_of_derivatives_of_batches_and_of_counts():
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(stepped_by.op, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(stepped_by.op, x)
    batch = torch.randn(3, 5)
    torch.testing.assert_close(torch.vmap(stepped_by.op)(batch), batch * batch - 1.5)
    each = torch.vmap(torch.func.grad(lambda x: stepped_by.op(x).sum()))
    torch.testing.assert_close(each(batch), 2 * batch)
    for f in (stepped_by.op, lambda x: stepped_by.op(x, -0.5, 3, True, None)):
        with FlopCounterMode(display=False) as counter, warnings.catch_warnings(action="ignore"):
            f(x)
        assert counter.get_total_flops() == 15
    torch.library.opcheck(stepped_by.op, (x,))
    program = torch.export.export(_Shifted(), (x.detach(),))
    torch.testing.assert_close(program.module()(x.detach()), stepped_by(x.detach()))


class _Shifted(torch.nn.Module):
    def forward(self, x):
        return stepped_by.op(x)


def test_an_operator_changes_with_its_defaults():
    def of(default):
        @weft.kernel
        def twice(x: torch.Tensor, n: int = default) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = x[i] * n
            return out

        return twice

    a, b = of(2), of(3)
    x = torch.ones(2)
    assert a.op._schema.name != b.op._schema.name
    assert a.op(x).tolist() == [2.0, 2.0]
    assert b.op(x).tolist() == [3.0, 3.0]


def test_names_do_not_clash():
    assert weft.kernel(prefix.function).op is prefix.op
    exact = weft.kernel(strict_math=True)(prefix.function)
    assert re.fullmatch("weft::prefix_[0-9a-f]{8}", exact.op._schema.name)
    assert exact.op is not prefix.op
    mine = weft.kernel(namespace="weft_tests", name="mine")(prefix.function)
    assert mine.op._schema.name.startswith("weft_tests::mine_")
    assert torch.ops.weft_tests.mine.default is mine.op


CASES = [
    (prefix, lambda: (torch.randn(3, 5), 0.5)),
    (scale_, lambda: (torch.randn(6), 2.0)),
    (both, lambda: (torch.randn(4), torch.randn(4))),
    (store, lambda: (torch.randn(4), torch.zeros(4))),
    (total, lambda: (torch.randn(9),)),
    (apply, lambda: (torch.randn(4), square)),
]


@pytest.mark.parametrize(("kernel", "make"), CASES, ids=lambda c: getattr(c, "__name__", ""))
def test_opcheck(kernel, make):
    args = make()
    through = kernel.operators(args, {})
    del through
    tensors = tuple(a for a in args if not callable(a))
    torch.library.opcheck(kernel.op, tensors)


@pytest.mark.parametrize(("kernel", "make"), CASES, ids=lambda c: getattr(c, "__name__", ""))
@pytest.mark.sampled(3)
def test_compiled_with_fullgraph_and_dynamic_shapes(kernel, make):
    torch._dynamo.reset()

    def program(*args):
        out = kernel(*args)
        return out, args[0] + 1

    compiled = torch.compile(program, fullgraph=True, dynamic=True, backend="aot_eager")
    for _ in range(2):
        args = make()
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        torch.testing.assert_close(compiled(*args), program(*copies))
        torch.testing.assert_close(args[:1], tuple(copies[:1]))


def test_compiled_by_inductor():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: prefix(x * 2, 0.5).sin(), fullgraph=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), prefix(x * 2, 0.5).sin())


def test_one_operator_for_each_template_value():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: apply(x, square) + apply(x, cube), fullgraph=True, backend="eager"
    )
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), x**2 + x**3)


def test_a_returned_parameter_is_the_parameter():
    x = torch.ones(3)
    assert scale_(x, 2.0) is x
    assert scale_.operators((x, 2.0), {}) is x
    assert x.tolist() == [4.0] * 3


def test_keywords_and_defaults_under_compile():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: prefix(start=1.5, x=x) + prefix(x), fullgraph=True, backend="eager"
    )
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), prefix(x, 1.5) + prefix(x))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((2.0, 3.0), {}, "too many positional arguments"),
        ((), {}, "missing a required argument: 'factor'"),
        ((2.0,), {"factor": 3.0}, "multiple values for argument 'factor'"),
        ((2.0,), {"other": 3.0}, "got an unexpected keyword argument 'other'"),
    ],
)
def test_arguments_that_do_not_fit_under_compile(args, kwargs, message):
    """They were dropped there, or called another type than the annotation's."""
    torch._dynamo.reset()
    x = torch.ones(3)
    with pytest.raises(KernelTypeError) as caught:
        torch.compile(scale_, backend="eager")(x, *args, **kwargs)
    assert caught.value.message == message
    torch._dynamo.reset()
    reason = "the arguments do not fit the parameters of `scale_`"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=reason):
        torch.compile(scale_, backend="eager", fullgraph=True)(x, *args, **kwargs)
    assert x.tolist() == [1.0] * 3


def test_positions_of_parameters_under_compile():
    @weft.kernel
    def k(x: torch.Tensor, /, f: float = 2.0, *more: float, g: float, **named: float):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * f + g + sum(more) + sum(named.values())
        return out

    x = torch.ones(3)
    for args, kwargs in (
        ((x,), {"g": 1.0}),
        ((x, 3.0), {"g": 1.0}),
        ((x,), {"f": 5.0, "g": 1.0}),
        ((x, 3.0, 4.0, 5.0), {"g": 1.0}),
        ((x, 3.0), {"g": 1.0, "h": 7.0}),
    ):
        torch._dynamo.reset()
        found = torch.compile(k, backend="eager", fullgraph=True)(*args, **kwargs)
        torch.testing.assert_close(found, k(*args, **kwargs))


def test_a_method_under_compile():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = 3.0

        def forward(self, x):
            return prefix(x, self.factor)

    torch._dynamo.reset()
    layer, x = Layer(), torch.randn(2, 3)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    @weft.kernel
    def scale(self, x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = self.factor[i] * x[i]
        return out

    def scaled(self, by):
        return self.factor * by

    @weft.kernel
    def scaled_twice(self, x):
        factor = self.scaled(1)
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = factor[i] * x[i]
        return out


@weft.kernel
def scaled_by(x, config):
    factor = config.scaled(1)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = factor[i] * x[i]
    return out


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x, f: Scaled(f).scaled_twice(x), "self"),
        (lambda x, f: scaled_by(x, Scaled(f)), "config"),
    ],
)
def test_objects_whose_methods_are_called_break_the_graph(call, name):
    torch._dynamo.reset()
    x, factor = torch.randn(2, 3)
    torch.testing.assert_close(call(x, factor), x * factor)
    compiled = torch.compile(lambda x, f: call(x * 2, f) + 1, backend="eager")
    torch.testing.assert_close(compiled(x, factor), 2 * x * factor + 1)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=rf"`{name}` is an object of which"):
        torch.compile(call, fullgraph=True, backend="eager")(x, factor)


class Mixed(torch.nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.offset = offset

    @weft.kernel
    def mix(self, x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] + self.offset
        return out

    def forward(self, x):
        return self.mix(x.sin()).cos()


class Kernelled(Mixed):
    forward = Mixed.mix.function
    forward.__name__ = "forward"
    forward = weft.kernel(forward)


@pytest.mark.parametrize("kind", [Mixed, Kernelled])
def test_methods_of_modules(kind):
    torch._dynamo.reset()
    x = torch.randn(3)
    first, second = kind(1.0), kind(2.0)
    for module in (first, second):
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), module(x))
        module.offset += 1
        torch.testing.assert_close(compiled(x), module(x))


def test_the_forward_of_a_module_is_a_bound_kernel():
    module = Kernelled(1.0)
    assert module.forward.__self__ is module
    assert module.forward.__func__ is Kernelled.forward
    assert "scf" in module.forward.inspect(module, torch.ones(2))["ir"]


def test_fake_tensors():
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(3, 4, dtype=torch.float64))
        out = prefix(x)
        s, most = total(x[0])
    assert (out.shape, out.dtype) == ((3, 4), torch.float64)
    assert (s.shape, s.dtype, most.dtype) == ((), torch.float64, torch.float64)
    outside = prefix(x)  # a fake tensor without its mode
    assert type(outside) is type(x)


def test_make_fx_and_export():
    graph = make_fx(lambda x: prefix(x) * 2, tracing_mode="symbolic")(torch.randn(3, 4))
    assert "torch.ops.weft.prefix" in graph.code
    x = torch.randn(5, 6)
    torch.testing.assert_close(graph(x), prefix(x) * 2)

    class Model(torch.nn.Module):
        def forward(self, x):
            return prefix(x).relu()

    rows = torch.export.Dim("rows")
    program = torch.export.export(Model(), (torch.randn(3, 4),), dynamic_shapes=({0: rows},))
    y = torch.randn(7, 4)
    torch.testing.assert_close(program.module()(y), prefix(y).relu())


def test_an_operator_that_writes_to_arguments_has_no_gradient():
    x = torch.randn(3, 4, requires_grad=True)
    prefix.operators((x,), {}).sum().backward()
    assert x.grad is not None
    y = torch.ones(3, requires_grad=True)
    with pytest.raises(KernelValueError, match="`x` requires grad"):
        scale_.operators((y, 2.0), {})
    assert y.tolist() == [1.0] * 3
    with torch.no_grad():
        prefix.operators((x,), {})


def test_an_operator_leaves_the_modes_of_gradients_as_they_were():
    @weft.kernel
    def half(x):
        if x.shape[0] == 3:
            raise ValueError("three")
        assert not torch.is_grad_enabled()
        assert not torch._C._is_fwd_grad_enabled()
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] / 2
        return out

    for grad, forward in ((True, True), (True, False), (False, True), (False, False)):
        with torch.set_grad_enabled(grad), forward_ad._set_fwd_grad_enabled(forward):
            assert half.operators((torch.ones(2),), {}).tolist() == [0.5] * 2
            with pytest.raises(ValueError, match="three"):
                half.operators((torch.ones(3),), {})
            assert torch.is_grad_enabled() == grad
            assert torch._C._is_fwd_grad_enabled() == forward


@pytest.mark.cpu
def test_an_operator_has_builtins_of_its_own():
    @weft.kernel
    def twice(x):
        out = torch.empty_like(x).contiguous()  # a host part that takes Python
        for i in range(x.shape[0]):
            out[i] = 2 * x[i]
        return out

    for _ in range(8):
        twice(torch.ones(3))
    for _ in range(8):  # which share the kernel's
        assert twice.operators((torch.ones(3),), {}).tolist() == [2.0] * 3
    plain = len(twice._regions[0].promoted)
    for _ in range(24):  # below autograd torch's state is another
        with torch._C._AutoDispatchBelowAutograd():
            assert twice.operators((torch.ones(3),), {}).tolist() == [2.0] * 3
    if fastpath._TensorGuards is not None and native.available():
        assert (plain, len(twice._regions[0].promoted)) == (1, 2)


def test_a_dual_tensor_in_a_list():
    @weft.kernel
    def product(x, rest):
        out = torch.empty_like(x)
        y = rest[0]
        for i in range(x.shape[0]):
            out[i] = x[i] * y[i]
        return out

    x, y = torch.rand(3), torch.rand(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y, torch.ones(3))
        found = forward_ad.unpack_dual(product.operators((x, [dual]), {}))
        torch.testing.assert_close(found.tangent, x)
        assert has_dual((1, None, [x, (dual,)]))
        assert not has_dual((1, None, [x, y, 2.0], "x"))
        with forward_ad._set_fwd_grad_enabled(False):
            assert not has_dual((dual,))


def test_a_view_that_is_returned_is_copied_by_the_operator():
    @weft.kernel
    def flat(x):
        for i in range(x.shape[0]):
            x[i, 0] = 1.0
        return x.view(-1)

    x = torch.zeros(2, 2)
    assert flat(x).data_ptr() == x.data_ptr()
    out = flat.operators((x,), {})
    assert out.data_ptr() != x.data_ptr()
    assert out.tolist() == [1.0, 0.0, 1.0, 0.0]
    message = (
        "kernel `flat`: it returns memory of an argument, or one memory twice: as an operator, a "
        "copy\nhelp: what is written to the copy does not reach the argument: make the view "
        "outside of the kernel, or return x.clone()"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OverlapWarning)
        make_fx(flat, tracing_mode="fake")(x)
    assert [str(w.message) for w in caught if w.category is OverlapWarning] == [message]


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.vmap(f)(x[None]), lambda f, x: torch.func.vjp(f, x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.grad(lambda x: f(x)[0].sum())(x),
    ],
)  # fmt: skip
def test_a_transform_says_that_a_view_is_copied(transform):
    @weft.kernel
    def squared(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i]
        return out, x[1:]

    x = torch.ones(3)
    assert squared(x)[1].data_ptr() == x[1:].data_ptr()
    with pytest.warns(OverlapWarning, match="it returns memory of an argument"):
        transform(squared, x)


def test_a_captured_tensor_that_is_written_is_refused_as_an_operator():
    state = torch.zeros(3)

    @weft.kernel
    def step(x):
        for i in range(3):
            state[i] += x[i]

    step(torch.ones(3))
    assert state.tolist() == [1.0] * 3
    with pytest.raises(
        KernelValueError, match="`state` is written, and it is not a tensor argument"
    ):
        step.operators((torch.ones(3),), {})


def test_optional_tensors():
    @weft.kernel
    def shifted(x: torch.Tensor, bias: torch.Tensor | None = None):
        out = torch.empty_like(x)
        if bias is None:
            for i in range(x.shape[0]):
                out[i] = x[i]
        else:
            for i in range(x.shape[0]):
                out[i] = x[i] + bias[i]
        return out

    assert schema(shifted).endswith("(Tensor x, Tensor? bias=None) -> Tensor")
    x = torch.randn(3)
    for bias in (None, x):
        torch.testing.assert_close(shifted.operators((x, bias), {}), shifted(x, bias))


def test_the_very_first_call_may_be_traced() -> None:
    @weft.kernel
    def scaled(x: torch.Tensor, a: float) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in x:
            out[i] = a * x[i]
        return out

    traced = torch.compile(lambda x: scaled(x, 2.0) + 1, fullgraph=True, backend="eager")
    assert traced(torch.ones(3)).tolist() == [3.0] * 3


@weft.kernel
def by_lambda(x: torch.Tensor) -> None:
    whole = lambda: x.view(-1)  # noqa: E731
    y = whole()
    for i in range(y.shape[0]):
        y[i] = 3.0


@weft.kernel
def by_partial(x: torch.Tensor) -> None:
    whole = functools.partial(torch.Tensor.view, x, -1)
    y = whole()
    for i in range(y.shape[0]):
        y[i] = 3.0


@weft.kernel
def by_builtins(x: torch.Tensor) -> None:
    y = next(iter([vars(types.SimpleNamespace(held=x))["held"].view(-1)]))
    for i in range(y.shape[0]):
        y[i] = 3.0


@pytest.mark.parametrize("kernel", [by_lambda, by_partial, by_builtins])
def test_what_is_written_through_a_closure_is_known(kernel):
    torch._dynamo.reset()

    def program(x):
        z = x * 1
        kernel(z)
        return z + 1

    x = torch.ones(2, 2)
    assert schema(kernel).endswith("(Tensor(a!) x) -> ()")
    assert program(x).tolist() == [[4.0] * 2] * 2
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert compiled(x).tolist() == [[4.0] * 2] * 2


@weft.kernel
def hidden(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (write,) = [getattr(t, name) for t, name in [(x, "fill_")]]
    write(3.0)
    out = torch.empty_like(y)
    for i in range(y.shape[0]):
        out[i] = y[i]
    return out


def test_a_write_that_the_text_does_not_show_is_refused():
    torch._dynamo.reset()
    x, y = torch.zeros(2), torch.ones(2)
    assert not hidden.mutated
    with pytest.raises(KernelValueError) as info:
        hidden.op(x, y)
    assert info.value.message == "`x` is written, and the text of the kernel does not show it"
    assert info.value.help == (
        "torch.compile and other transforms must know before a call what it writes to: write to "
        "`x` by its name, or to a view that the kernel makes of it"
    )
    with pytest.raises(Exception, match="the text of the kernel does not show it"):
        torch.compile(lambda x, y: hidden(x * 1, y), backend="aot_eager")(x, y)


def test_an_argument_that_shares_memory_with_a_written_one():
    x = torch.arange(4.0)
    store.operators((x[1:], x[:3].view(3)), {})
    assert x.tolist() == [2.0, 3.0, 4.0, 3.0]


def test_a_number_that_is_returned_is_not_rounded() -> None:
    @weft.kernel
    def tenth(x: torch.Tensor):
        for i in range(x.shape[0]):
            x[i] += 1.0
        return 0.1

    x = torch.zeros(2)
    assert tenth(x) == tenth.op(x).item() == 0.1


@weft.kernel
def of_a_list(xs: list[torch.Tensor], c: torch.Tensor) -> torch.Tensor:
    a, b = xs
    out = torch.empty_like(c)
    for i in range(c.shape[0]):
        out[i] = a[i] * c[i] + b[i]
    return out


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_gradient_behind_a_list_of_tensors(backend):
    a, b, c = torch.rand(5), torch.rand(5), torch.rand(5, requires_grad=True)
    call = torch.compile(of_a_list, backend=backend, fullgraph=True)
    assert torch.equal(torch.autograd.grad(call([a, b], c).sum(), c)[0], a)


@weft.kernel
def of_a_column(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = x[:, None]
    out = torch.empty((x.shape[0], y.shape[0]), device=x.device)
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        out[i, j] = a[i, 0] * y[j]
    return out


def test_a_gradient_of_a_host_part_with_views_where_sizes_are_symbols():
    """Whether results are to be saved is found by a run of the host part, before anything else."""
    x, y = torch.rand(5), torch.rand(4, requires_grad=True)
    out = torch.compile(of_a_column, backend="aot_eager", fullgraph=True, dynamic=True)(x, y)
    (grad,) = torch.autograd.grad(out.sum(), y)
    torch.testing.assert_close(grad, x.sum().expand(4))


@pytest.mark.parametrize("first", [None, 2])
@pytest.mark.parametrize("default", [inspect.Parameter.empty, None, 3])
@pytest.mark.parametrize("kind", [float, int, bool])
def test_a_number_that_may_be_none_is_optional_in_the_schema(kind, default, first):
    """Whatever calls there were before; of a bool, torch takes None for False."""

    def scaled(x: torch.Tensor, a) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            v = x[i] * 3
            if a is not None:
                v *= a
            out[i] = v
        return out

    scaled.__annotations__["a"] = kind | None
    empty = default is inspect.Parameter.empty
    default = default if empty or default is None else kind(default)
    scaled.__defaults__ = None if empty else (default,)
    kernel = weft.kernel(scaled)
    x = torch.randn(4, requires_grad=True)
    for value in (first and kind(first), None, kind(2)):
        torch._dynamo.reset()
        torch.compile(lambda x, value=value: kernel(x, value), backend="aot_eager")(x)
        for _ in range(3):
            wanted = 3 * x if value is None else 3 * x * value
            torch.testing.assert_close(kernel.op(x, value), wanted)
        torch.library.opcheck(kernel.op, (x, value))
        (gradient,) = torch.autograd.grad(kernel.op(x, value).sum(), x)
        torch.testing.assert_close(
            gradient, torch.full((4,), 3.0 if value is None else 3.0 * value)
        )
        batch = torch.vmap(lambda x, value=value: kernel.op(x, value))(x.detach()[None])
        torch.testing.assert_close(batch[0], wanted.detach())
        called = functools.partial(lambda value, x: kernel.op(x, value), value)
        compiled = torch.compile(called, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), wanted)
    name = {float: "float?", int: "SymInt?", bool: "bool?"}[kind]
    assert f"Tensor x, {name} a" in str(kernel.op._schema)
    if not empty:
        torch.testing.assert_close(kernel.op(x), 3 * x if default is None else 3 * x * default)
