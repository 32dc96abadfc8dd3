"""Transforms of ``torch.func`` that ``torch.compile`` traces."""

from collections.abc import Callable

import pytest
import torch
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import weft
from tests.pytorch.test_batching import added_, scaled
from weft.errors import KernelValueError
from weft.pytorch.releases import COMPILED_JACFWD

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel
def square(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    return out


def loss(x, square=square):
    return square(x * x).sin().sum()


@pytest.fixture
def x():
    torch._dynamo.reset()
    return torch.rand(3, dtype=torch.float64)


def compiled(f, *args):
    return torch.compile(f, backend="aot_eager", fullgraph=True)(*args)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: grad(f)(x),
        lambda f, x: vjp(f, x)[1](torch.full((), 2.0, dtype=x.dtype))[0],
        lambda f, x: grad(lambda x: (grad(f)(x) ** 2).sum())(x),
        lambda f, x: jvp(f, (x,), (torch.ones_like(x),))[1],
    ],
    ids=["grad", "vjp", "grad of grad", "jvp"],
)
def test_compiled_transforms(transform, x):
    expected = transform(lambda x: loss(x, torch.square), x)
    torch.testing.assert_close(compiled(lambda x: transform(loss, x), x), expected)


def test_the_gradient_of_a_compiled_gradient(x):
    expected = grad(lambda x: grad(lambda x: loss(x, torch.square))(x).sum())(x)
    x.requires_grad_()
    (found,) = torch.autograd.grad(compiled(grad(loss), x).sum(), x)
    torch.testing.assert_close(found, expected)


@weft.kernel
def waved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.sin() * w
    out = torch.zeros_like(y)
    for i in range(y.shape[0]):
        out[i] += y[i] * y[i]
    return out


BOTH = ((scaled, lambda x, w: x * x * w), (waved, lambda x, w: (x.sin() * w) ** 2))
BATCHES = {
    "vmap": lambda f: vmap(f, (0, None)),
    "nested": lambda f: vmap(vmap(f, (0, None), 1), (None, 0)),
    "of samples": lambda f: vmap(grad(lambda x, w: (f(x, w) ** 2).sum(), argnums=(0, 1)), (0, 0)),
    "jacrev": lambda f: jacrev(lambda x, w: f(x[0], w[1]), argnums=(0, 1)),
    "jacrev of jacrev": lambda f: jacrev(jacrev(lambda x, w: f(x[0], w[1]).sum())),
}


@pytest.mark.parametrize("form", BATCHES)
@pytest.mark.sampled(3)
def test_compiled_batches(form):
    x, w = torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    if form == "vmap":
        w = w[0]
    for kernel, expected in BOTH:
        torch._dynamo.reset()
        found = compiled(BATCHES[form](kernel), x, w)
        torch.testing.assert_close(found, BATCHES[form](expected)(x, w))


def test_a_compiled_batch_of_what_the_host_part_fills():
    @weft.kernel
    def sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        s = w.sin()
        out = torch.zeros(3, dtype=x.dtype, device=x.device)
        for i in range(x.shape[0]):
            out[i] += x[i] * s[i]
        return out

    x, w = torch.rand(2, 3), torch.rand(3)
    for args, dims in (((x, w), (0, None)), ((w, x), (None, 0))):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(vmap(sums, dims), *args), args[0] * args[1].sin())


@pytest.mark.parametrize("form", ["of all samples", "of gradients"])
def test_a_compiled_batch_of_what_the_host_part_makes_once(form: str):
    """What it makes of sizes alone is no batch, and the loop's results are: torch's error about a
    copy in place."""

    @weft.kernel
    def of_sizes(x: torch.Tensor) -> torch.Tensor:
        s = x.sin()
        out = torch.empty(x.shape[0] * 2, device=x.device)
        for i in range(x.shape[0]):
            out[i] = s[i]
            out[i + x.shape[0]] = 2 * x[i]
        return out

    @weft.kernel
    def zeros(x: torch.Tensor) -> torch.Tensor:
        s = x.sin()
        out = torch.zeros(2 * x.shape[0], device=x.device)
        for i in range(x.shape[0]):
            out[i] += s[i]
            out[i + x.shape[0]] = 2 * x[i]
        return out

    def expected(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sin(), 2 * x])

    def batch(f: Callable[[torch.Tensor], torch.Tensor]):
        return vmap(f if form == "of all samples" else grad(lambda x: (f(x) ** 2).sum()))

    x = torch.rand(2, 3)
    for kernel in (of_sizes, zeros):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(batch(kernel), x), batch(expected)(x))


@pytest.mark.skipif(
    torch.cuda.is_available() and COMPILED_JACFWD.missing,
    reason="jacfwd of torch 2.11 cannot be compiled on a default device",
)
@pytest.mark.parametrize("argnums", [
    0,
    pytest.param((0, 1), marks=pytest.mark.skipif(
        COMPILED_JACFWD.missing,
        reason="Dynamo of torch 2.11 cannot follow how jacfwd makes a basis for several arguments",
    )),
])  # fmt: skip
def test_compiled_tangents_of_a_batch(x, argnums):
    w = x.flip(0)
    found = compiled(jacfwd(scaled, argnums=argnums), x, w)
    expected = torch.diag(2 * x * w), torch.diag(x * x)
    torch.testing.assert_close(found, expected if argnums else expected[0])


def test_a_gradient_of_a_compiled_batch():
    x, w = (torch.rand(2, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    for kernel, expected in BOTH:
        torch._dynamo.reset()
        grads = [torch.autograd.grad((f(x, w) ** 2).sum(), (x, w))
                 for f in (torch.compile(vmap(kernel), backend="aot_eager"), expected)]  # fmt: skip
        torch.testing.assert_close(*grads)


def test_a_compiled_batch_that_is_written():
    torch._dynamo.reset()
    out, x = torch.rand(2, 3), torch.rand(2, 3)
    expected = out + x * x
    compiled(lambda out, x: vmap(added_, out_dims=None)(out, x), out, x)
    torch.testing.assert_close(out, expected)


def test_flops_of_a_batch_are_those_of_its_samples():
    def count(f, *args):
        with FlopCounterMode(display=False) as counter:
            f(*args)
        return counter.get_total_flops()

    x, w = torch.rand(3, 4), torch.rand(4)
    one = count(scaled, x[0], w)
    assert count(vmap(scaled, (0, None)), x, w) == 3 * one > 0
    assert count(vmap(vmap(scaled, (0, None)), (None, 0)), x, x) == 9 * one
    loss = grad(lambda x, w: scaled(x, w).sum())
    assert count(vmap(loss, (0, None)), x, w) == 3 * count(loss, x[0], w) > 0


def test_one_graph_for_batches_of_many_sizes():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    f = torch.compile(vmap(scaled, (0, None)), fullgraph=True, backend=counter, dynamic=True)
    for n, m in ((2, 3), (4, 5), (7, 6)):
        x, w = torch.rand(n, m), torch.rand(m)
        torch.testing.assert_close(f(x, w), x * x * w)
    assert counter.frame_count == 1


def test_a_graph_has_one_operator_for_all_samples():
    x, w = torch.rand(2, 3), torch.rand(3)
    graph = make_fx(vmap(scaled, (0, None)), tracing_mode="symbolic")(x, w)
    found = [n.target for n in graph.graph.nodes if "weft" in str(n.target)]
    assert [t._schema.name for t in found] == [f"{scaled.op._schema.name}_vmap"]
    torch.testing.assert_close(graph(x, w), x * x * w)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_batch(strict):
    class Module(torch.nn.Module):
        def forward(self, x, w):
            return vmap(scaled, (0, None))(x, w)

    x, w = torch.rand(2, 3), torch.rand(3)
    program = torch.export.export(Module(), (x, w), strict=strict).run_decompositions()
    torch.testing.assert_close(program.module()(x, w), x * x * w)


def test_operators_of_batches_by_name():
    """As a graph that torch has kept asks for them."""

    @weft.kernel
    def tripled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = 3 * x[i]
        return out

    name = tripled.op._schema.name.rpartition(":")[2]
    x = torch.rand(2, 4, 3)
    every = getattr(torch.ops.weft, f"{name}_vmap_vmap").default
    torch.testing.assert_close(every(x, 4, [0], "error", 2, [0], "error"), 3 * x)
    assert getattr(torch.ops.weft, f"{name}_vmap_backward").default


def test_transforms_of_the_operator():
    x, w = torch.rand(2, 3), torch.rand(3)
    torch.testing.assert_close(vmap(scaled.op, (0, None))(x, w), x * x * w)
    each = vmap(grad(lambda w, x: scaled.op(x, w).sum()), (None, 0))(w, x)
    torch.testing.assert_close(each, x * x)
    w.requires_grad_()
    (rows,) = torch.autograd.grad(scaled.op(w, x[0]), w, torch.eye(3), is_grads_batched=True)
    torch.testing.assert_close(rows, torch.diag(2 * w * x[0]).detach())


def test_opcheck_of_a_batch():
    x, w = torch.rand(2, 3, requires_grad=True), torch.rand(3, requires_grad=True)
    vmap(scaled.op, (0, None))(x, w)
    name = scaled.op._schema.name.rpartition(":")[2]
    every = getattr(torch.ops.weft, f"{name}_vmap").default
    torch.library.opcheck(every, (x, w, 2, [0], "error"))


def test_the_linear_function_of_linearize(x):
    _, f = linearize(lambda x: scaled(x, x), x)
    torch.testing.assert_close(vmap(f)(torch.eye(3).to(x)), torch.diag(3 * x * x))


# --- memory of what is given ----------------------------------------------------------------------
class _Returned(TorchDispatchMode):
    """The operators of kernels that were called, and of these those that gave memory of what they
    were given."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []
        self.shared: list[str] = []

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function.namespace.startswith("weft"):
            self.called.append(str(function))
            given, made = (
                {t.untyped_storage().data_ptr() for t in tree_leaves(values)
                 if isinstance(t, torch.Tensor) and t.numel()}
                for values in ((args, kwargs), found)
            )  # fmt: skip
            if given & made:
                self.shared.append(str(function))
        return found


@weft.kernel
def _passed_on(x, y, z):
    """The gradients of ``y`` and ``z`` are that of the result as it is, or a view of it."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2.0 * x[i]
    return out + y, z.view(-1)


@pytest.mark.parametrize("way", ["backward", "jvp", "twice"])
def test_derivative_operators_return_no_memory_that_they_are_given(way):
    x, y = (torch.randn(4, dtype=torch.float64) for _ in range(2))
    z = torch.randn(2, 2, dtype=torch.float64)
    with _Returned() as watch:
        if way == "jvp":
            tangents = [torch.randn_like(t) for t in (x, y, z)]
            found = torch.func.jvp(_passed_on, (x, y, z), tuple(tangents))[1]
            torch.testing.assert_close(found[0], 2 * tangents[0] + tangents[1])
            torch.testing.assert_close(found[1], tangents[2].view(-1))
        else:
            leaves = [t.requires_grad_() for t in (x, y, z)]
            out = _passed_on(*leaves)
            again = way == "twice"
            weights = [torch.randn_like(o).requires_grad_(again) for o in out]
            found = torch.autograd.grad(out, leaves, weights, create_graph=again)
            expected = 2 * weights[0], weights[0], weights[1].view(2, 2)
            torch.testing.assert_close(found, expected)
            if again:
                second = torch.autograd.grad(sum(g.sum() for g in found), weights)
                torch.testing.assert_close(second[0], torch.full_like(x, 3.0))
    assert len(watch.called) == (3 if way == "twice" else 2)
    assert not watch.shared


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_functionalize_sees_an_operator(x, remove):
    def shifted(x, square=square):
        y = x * 1
        y.view(-1).add_(2)
        return square(y)

    functional = functionalize(shifted, remove=remove)
    wanted = shifted(x, torch.square)
    torch.testing.assert_close(functional(x), wanted)
    graph = make_fx(lambda x: functional(x))(x)
    torch.testing.assert_close(graph(2 * x), shifted(2 * x, torch.square))
    assert [n for n in graph.graph.nodes if "square" in str(n.target)]
    of = grad(lambda x: functional(x).sin().sum())(x)
    torch.testing.assert_close(of, grad(lambda x: shifted(x, torch.square).sin().sum())(x))
    torch.testing.assert_close(vmap(functional)(x[None])[0], wanted)
    torch.testing.assert_close(jvp(functional, (x,), (x,)), jvp(shifted, (x,), (x,)))


def test_what_functionalize_has_no_rule_for_is_refused(x):
    for transform in (
        grad(loss),
        lambda x: vmap(square)(x[None]),
        lambda x: jvp(square, (x,), (x,)),
    ):
        with pytest.raises(KernelValueError, match="functionalize around another transform"):
            functionalize(transform)(x)
    with pytest.raises(KernelValueError, match="functionalize has no rule for operators that do"):
        functionalize(lambda x: added_(x * 1, x))(x)
