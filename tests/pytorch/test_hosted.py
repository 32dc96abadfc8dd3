"""Graphs that hold the operators of a kernel's host part, and its loops."""

import functools
import math
import os
from pathlib import Path

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter
from torch.func import jvp, linearize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

import weft
from tests import processes
from tests.pytorch.test_ambient import drop
from tests.pytorch.test_boxed import by_python
from weft.errors import GradientError
from weft.pytorch.hosted import copied
from weft.pytorch.releases import WRITTEN_VIEWS
from weft.runtime import stable

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own

FACTOR = 3.0


@weft.kernel
def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    out = torch.empty_like(y)
    for i, j in weft.ndrange(y.shape[0], y.shape[1]):
        out[i, j] = y[i, j] * FACTOR
    return out


@weft.kernel
def several(x: torch.Tensor, w: torch.Tensor):
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = math.sin(x[i]) * w[i]
    z = (y * 2).view(-1)
    s = 0.0
    for i in range(x.shape[0]):
        s += z[i] * z[i] * x[i]
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] += z[i] * x[i]
    return out, s


@weft.kernel
def into(acc: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    for i in range(x.shape[0]):
        acc[i] += y[i] * y[i]
    return y


class Graphs:
    """A backend that keeps what it is given: the targets of each graph, forward and backward."""

    def __init__(self):
        self.seen = []
        self.backend = aot_autograd(fw_compiler=self.keep)

    def keep(self, graph, _):
        targets = [n.target for n in graph.graph.nodes if n.op == "call_function"]
        self.seen.append([getattr(t, "_name", str(t)) for t in targets])
        return graph

    def loops(self, k):
        return [t.partition("::")[2].rpartition("_r")[0] + ("_backward" * t.endswith("_backward"))
                for t in self.seen[k] if t.startswith("weft::")]  # fmt: skip


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    return Graphs()


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


def same(kernel, compiled, args):
    """Results and gradients of both are equal."""
    found = []
    for call in (kernel, compiled):
        outs = call(*args)
        outs = outs if isinstance(outs, tuple) else (outs,)
        leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        loss = sum((o * o).sum() for o in outs)
        found.append((outs, torch.autograd.grad(loss, leaves) if leaves else ()))
    torch.testing.assert_close(found[0], found[1])


def test_a_graph_holds_the_host_part_and_the_loops(graphs):
    compiled = torch.compile(several, fullgraph=True, backend=graphs.backend)
    same(several, compiled, (leaf(7), leaf(7)))
    assert graphs.loops(0) == ["several_loop0", "several_loop1", "several_loop2"]
    assert graphs.loops(1) == ["several_loop2_backward", "several_loop1_backward",
                               "several_loop0_backward"]  # fmt: skip
    assert {"aten::mul.Tensor", "aten::view"} <= {*graphs.seen[0]}
    same(product, torch.compile(product, fullgraph=True, backend=graphs.backend),
         (leaf(3, 4), leaf(4, 5)))  # fmt: skip
    assert "aten::mm" in graphs.seen[2]
    assert graphs.seen[3].count("aten::mm") == 2  # which the loop's operator does not repeat


def test_one_graph_for_many_sizes():
    for kernel, sizes in ((several, lambda n: ((n,), (n,))), (product, lambda n: ((n, 4), (4, 5)))):
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(kernel, fullgraph=True, backend=counter, dynamic=True)
        for n in range(3, 11):
            args = tuple(map(torch.randn, sizes(n)))
            torch.testing.assert_close(compiled(*args), kernel(*args))
        assert counter.frame_count == 1


def test_the_gradient_is_that_of_the_numbers_that_were_drawn(graphs):
    compiled = torch.compile(lambda x: drop(x, 0.5), fullgraph=True, backend=graphs.backend)
    x = torch.ones(200, requires_grad=True)
    y = compiled(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())
    assert not torch.equal(compiled(x), y)


def test_what_the_host_part_made_is_written_in_place_without_a_gradient(graphs):
    compiled = torch.compile(several, fullgraph=True, backend=graphs.backend)
    same(several, compiled, (torch.randn(6), torch.randn(6)))
    assert sum("functionalized" in t for t in graphs.seen[0]) == 1  # what was zeros


def test_a_number_that_loops_read_is_looked_up_at_each_call(monkeypatch):
    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(product, fullgraph=True, backend=counter)
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    for factor in (3.0, 4.0, 5.0):
        monkeypatch.setitem(product.function.__globals__, "FACTOR", factor)
        torch.testing.assert_close(compiled(x, w), factor * (x @ w))
    assert counter.frame_count == 1


def test_two_kernels_of_one_graph_are_told_apart():
    def made(c):
        @weft.kernel
        def scaled(x: torch.Tensor) -> torch.Tensor:
            y = x.abs()
            out = torch.empty_like(y)
            for i in range(y.shape[0]):
                out[i] = c * y[i]
            return out

        return scaled

    torch._dynamo.reset()
    compiled = torch.compile(lambda k, x: k(x), fullgraph=True, backend="aot_eager")
    x = torch.randn(3)
    for c in (2.0, 3.0):
        torch.testing.assert_close(compiled(made(c), x), c * x.abs())


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_holds_them_too(strict):
    class Module(torch.nn.Module):
        def forward(self, x, w):
            return several(x, w)

    args = torch.randn(5), torch.randn(5)
    dim = torch.export.Dim("n", min=2)
    program = torch.export.export(
        Module(), args, strict=strict, dynamic_shapes=({0: dim}, {0: dim})
    )
    names = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert [n for n in names if "several_loop" in n][:1]
    assert not [n for n in names if n.startswith("weft.several_") and "_loop" not in n]
    more = torch.randn(9), torch.randn(9)
    torch.testing.assert_close(program.module()(*more), several(*more))
    torch.testing.assert_close(program.run_decompositions().module()(*more), several(*more))


def test_make_fx_records_them():
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    traced = make_fx(lambda x, w: product(x, w))(x, w)
    assert "mm" in traced.code
    assert "product_loop0" in traced.code
    torch.testing.assert_close(traced(2 * x, w), product(2 * x, w))


def test_the_linear_function_of_linearize():
    """It is a graph, made with tensors that have tangents and require no gradient."""
    x, w, along = torch.randn(3, 5)
    _, f = linearize(lambda x: several(x, w), x)
    torch.testing.assert_close(f(along), jvp(lambda x: several(x, w), (x,), (along,))[1])


def test_operators_of_loops_are_whole():
    for kernel, args in ((several, (leaf(5), leaf(5))), (drop, (leaf(5), 0.5))):
        torch._dynamo.reset()
        calls = []

        def call(*args, kernel=kernel):  # of torch 2.11 it takes functions only
            return kernel(*args)

        graph = torch._dynamo.export(call, assume_static_by_default=True)(*args)[0]
        for node in graph.graph.nodes:
            if "_loop" in str(node.target):
                calls.append(node.target)
        assert calls
    x = torch.randn(4, requires_grad=True)
    overload = calls[-1]
    opcheck(overload, (torch.rand(4), 0.5, x, [4], [1], torch.float32, torch.device("cpu")))


SAVE = """import torch, hosted_kernel as k
program = torch.export.export(k.Model(), (torch.ones(3),))
torch.export.save(program, 'model.pt2')
"""
KERNEL = """import torch, weft
@weft.kernel
def hosted_double(x: torch.Tensor) -> torch.Tensor:
    y = x.abs()
    out = torch.empty_like(y)
    for i in range(y.shape[0]):
        out[i] = y[i] * 2
    return out
class Model(torch.nn.Module):
    def forward(self, x):
        return hosted_double(x)
"""
LOAD = """import torch, hosted_kernel
program = torch.export.load('model.pt2')
assert '_loop0' in str(program.graph)
print(program.module()(torch.ones(3)).tolist())
"""


@pytest.mark.slow
def test_an_exported_program_in_a_new_process(tmp_path: Path) -> None:
    def run(code):
        program = tmp_path / "program.py"
        program.write_text(code)
        return processes.run(program, os.environ, tmp_path)

    file = tmp_path / "hosted_kernel.py"
    file.write_text(KERNEL)
    saved = run(SAVE)
    assert saved.returncode == 0, saved.stderr
    loaded = run(LOAD)
    assert loaded.stdout == "[2.0, 2.0, 2.0]\n", loaded.stderr
    file.write_text(KERNEL.replace("* 2", "* 3"))
    assert "no kernel `hosted_double` of this process has the operator" in run(LOAD).stderr


def test_host_parts_that_a_trace_may_not_follow_stay_one_operator(graphs):
    @weft.kernel
    def branching(x: torch.Tensor) -> torch.Tensor:
        y = x.abs() if x.dim() == 1 else x
        out = torch.empty_like(y)
        for i in range(y.shape[0]):
            out[i] = y[i] * 2
        return out

    @weft.kernel
    def alone(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * 2
        return out

    assert into.operators.loops == ()  # whose arguments may share memory
    for kernel in (branching, alone):
        assert kernel.operators.loops == ()
        same(kernel, torch.compile(kernel, fullgraph=True, backend=graphs.backend), (leaf(4),))
    assert all("_loop" not in t for seen in graphs.seen for t in seen)


@weft.kernel
def add_squares(acc: torch.Tensor, x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        acc[i] += x[i] * acc[i]


@pytest.mark.parametrize("backend", [
    "aot_eager",
    pytest.param(
        "inductor", marks=pytest.mark.skipif(WRITTEN_VIEWS.missing, reason=WRITTEN_VIEWS.costs)
    ),
])  # fmt: skip
@pytest.mark.slow
def test_a_kernel_that_writes_to_its_arguments_has_a_gradient(backend):
    def views(x):
        y = x * 2
        add_squares(y[1:], x[1:])
        add_squares(y.view(2, 3)[1], x[:3])
        return (y.sin(),)

    def hosted(acc, x):
        acc = acc * 1
        y = into(acc, x)
        return acc * x, y

    def argument(acc, x):
        into(acc, x)
        return (acc * x,)

    for f, count in ((views, 1), (hosted, 2), (argument, 2)):
        found = []
        for call in (f, torch.compile(f, fullgraph=True, backend=backend)):
            torch._dynamo.reset()
            torch.manual_seed(0)
            args = [leaf(6) for _ in range(count)]
            given = args if f is not argument else [args[0].detach().clone(), args[1]]
            outs = call(*given)
            grads = torch.autograd.grad(sum(o.pow(2).sum() for o in outs), args[f is argument :])
            found.append((given, outs, grads))
        torch.testing.assert_close(*found)


@weft.kernel
def normalise(x):
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    for i in range(x.shape[0]):
        x[i] = x[i] / total
    return total


@weft.kernel
def used_again(x):
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
    z = torch.empty_like(x)
    for i in range(x.shape[0]):
        z[i] = y[i] * y[i]
    for i in range(x.shape[0]):
        y[i] = 2 * z[i] + x[i]
    return y.sum()


@pytest.mark.parametrize("kernel", [normalise, used_again])
def test_a_gradient_of_what_a_later_loop_overwrites(kernel):
    torch._dynamo.reset()
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def gradient(call):
        y = x * 1
        total = call(y)
        return torch.autograd.grad((y * total).square().sum(), x)

    compiled = torch.compile(lambda y: kernel(y), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(kernel))


@weft.kernel
def in_a_view(x):
    y = torch.zeros_like(x)
    last = y[1:]
    for i in range(last.shape[0]):
        last[i] = x[i] * x[i]
    for i in range(x.shape[0]):
        y[i] = y[i] * y[i] + 3
    return y.sum()


@weft.kernel
def squared_in_place(y):
    for i in range(y.shape[0]):
        y[i] = y[i] * y[i] + 3


@pytest.mark.parametrize(
    "how", ["in_a_view", "kernels", "kernel_of_a_view", "copy", "copy_of_a_view"]
)
def test_a_gradient_of_what_is_written_to_a_tensor_that_had_none(how):
    """Dynamo says of tensors whether they had a history when they were made: kernels that wrote to
    such a one, or to what it is a view of, refused it."""
    torch._dynamo.reset()

    def f(x):
        if how == "in_a_view":
            return in_a_view(x)
        y = torch.ones_like(x)
        last = y[1:]
        match how:
            case "kernels":
                add_squares(y, x)
            case "kernel_of_a_view":
                add_squares(last, x[1:])
            case "copy":
                y.copy_(x)
            case _:
                last.copy_(x[1:])
        squared_in_place(y)
        squared_in_place(last)
        return y.sum()

    found = []
    for call in (f, torch.compile(f, backend="aot_eager", fullgraph=True)):
        x = torch.arange(1.0, 4.0, dtype=torch.float64, requires_grad=True)
        out = call(x)
        found.append((out, *torch.autograd.grad(out, x)))
    torch.testing.assert_close(*found)


def test_a_leaf_that_is_written_is_an_error_as_in_eager_mode():
    call = torch.compile(add_squares, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in"):
        call(leaf(3), leaf(3))


@weft.kernel
def rows_of_one(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(2, x.shape[0], dtype=x.dtype)
    top = out[0]
    for i in range(x.shape[0]):
        top[i] = x[i]
        out[1, i] = x[i] * x[i]
    return out


@weft.kernel
def to_both(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        a[i] = x[i]
        b[1, i] = x[i] * x[i]


@weft.kernel
def onwards(x: torch.Tensor, a: torch.Tensor, w: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        a[i] = x[i] + w[i]


def test_copies_for_a_gradient_do_not_undo_each_other():
    """A graph copied back what a loop had written through each name of one memory: the last copy
    had the other's elements as they were before, and nothing was said."""
    torch._dynamo.reset()
    x = leaf(3)
    expected = torch.stack([x, x * x]).detach()
    out = torch.compile(rows_of_one, backend="aot_eager")(x)
    torch.testing.assert_close(out.detach(), expected)

    def whole_and_row(x):
        y = x.new_zeros(2, 3)
        to_both(x, y[0], y)
        return y

    def two_rows(x):
        y = x.new_zeros(3, 3)
        to_both(x, y[0], y[1:])
        return y

    def shifted(x):
        y = x.new_zeros(4)
        onwards(y[:-1], y[1:], x)
        return y

    refused = r"through another argument|writes to (2|several) tensors"
    for f in (whole_and_row, two_rows, shifted):
        for call in (f, torch.compile(f, backend="aot_eager")):
            with pytest.raises(RuntimeError, match=refused):  # as GradientError is
                call(x)
    with pytest.raises(GradientError, match="writes to several tensors"):
        torch.func.grad(lambda x: two_rows(x).sum())(x.detach())


def test_a_number_that_host_part_and_loop_read_is_looked_up_by_both(monkeypatch):
    @weft.kernel
    def scaled_twice(x: torch.Tensor) -> torch.Tensor:
        y = x * FACTOR
        out = torch.empty_like(y)
        for i in range(x.shape[0]):
            out[i] = y[i] + FACTOR
        return out

    class Module(torch.nn.Module):
        def forward(self, x):
            return scaled_twice(x)

    assert scaled_twice.operators.loops == ()
    program = torch.export.export(Module(), (torch.ones(2),)).module()
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert program(torch.ones(2)).tolist() == [10.0, 10.0]


@weft.kernel
def in_code(x: torch.Tensor, w: torch.Tensor, pair: torch.Tensor):
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = x[i] * w[i] * FACTOR
    z = (y * 2).view(-1)
    s = 0.5
    for i, j in weft.ndrange(pair.shape[0], pair.shape[1]):
        s += z[i] + j
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] += z[i] * x[i]
    return out, s


@pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())
def test_the_loops_of_a_graph_run_no_python():
    torch._dynamo.reset()
    compiled = torch.compile(in_code, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (3, 4, 5):
        args = torch.randn(n), torch.randn(n), torch.randn(n, n + 2)
        torch.testing.assert_close(compiled(*args), in_code(*args))
    codes = [c for launcher in in_code.launchers for c in launcher.boxed if not c.listed]
    assert [len(code._known) for code in codes] == [1, 1, 1]
    args = torch.randn(9), torch.randn(9), torch.randn(9, 2)
    call = functools.partial(compiled, *args)
    for code in codes:
        call = functools.partial(by_python, code, call)
    assert call() == 0
    torch.testing.assert_close(compiled(*args), in_code(*args))


@pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())
def test_what_a_loop_makes_is_as_the_host_part_says():
    """Sizes, strides, dtype and device are numbers of the call."""
    (first, _, _), x = in_code.launchers, torch.randn(6)
    in_code_loop = torch.compile(in_code, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        in_code_loop(x, x, x[:, None])
    (op,) = {code.name for code in first.boxed if not code.listed}
    op = getattr(torch.ops.weft, op).default
    want = x * x * FACTOR
    for size, stride, dtype in (
        ((6,), (1,), torch.float32), ((6,), (2,), torch.float32), ((6,), (1,), torch.float64),
        ((9,), (1,), torch.float32),
    ):  # fmt: skip
        for _ in range(3):
            made = op(x, x, [*size], [*stride], dtype, torch.device("cpu"))
            assert (made.shape, made.stride(), made.dtype) == (size, stride, dtype)
            torch.testing.assert_close(made[:6].float(), want)
    with pytest.raises(RuntimeError, match="negative"):
        op(x, x, [-1], [1], torch.float32, torch.device("cpu"))


@pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())
def test_the_gradients_of_a_graph_run_no_python():
    def gradients(call, args):
        leaves = [a.clone().requires_grad_() for a in args]
        out, s = call(*leaves)
        return out, s, *torch.autograd.grad((out * out).sum() + s * s, leaves[:2])

    torch._dynamo.reset()
    compiled = torch.compile(in_code, fullgraph=True, backend="aot_eager")
    for _ in range(5):
        args = torch.randn(7), torch.randn(7), torch.randn(7, 2)
        torch.testing.assert_close(gradients(compiled, args), gradients(in_code, args))
    call = functools.partial(gradients, compiled, args)
    for code in [code for launcher in in_code.launchers for code in launcher.boxed]:
        call = functools.partial(by_python, code, call)
    assert call() == 0


def test_the_namespace_is_that_of_kernels():
    """An operator of weft's own in it would be in the way of a kernel of its name."""
    assert copied._opoverload.namespace == "weft_graphs"
