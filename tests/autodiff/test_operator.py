"""Derivatives of the operator of a kernel, as torch.compile and torch.func see it."""

import functools

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import weft
from tests.autodiff import kernels as k
from tests.autodiff.test_gradients import made
from weft.pytorch import autograd, history

# Two tensors made in one kernel, and what a second loop makes of the first.
SEVERAL = ["two"]
NAMES = ["axpy", "conv", "softmax", "scan", "histogram", "inplace", "product_of_all", "newton",
         *SEVERAL]  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    """The loops that were carried out so that autograd sees it, by name."""
    seen = []
    carry_out = autograd.Call.carry_out

    def counting(self, tensors):
        if getattr(self.run, "__qualname__", "").startswith("differentiate"):
            seen.append(self.loop.function.name)
        carry_out(self, tensors)

    monkeypatch.setattr(autograd.Call, "carry_out", counting)
    monkeypatch.setattr(history, "history", lambda *_: None)  # which has builtins do that
    return seen


@weft.kernel
def apart(x, w):
    """``two``, which no other test has called: its plans have no history yet."""
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = weft.math.sin(x[i]) * w[i]
    z = (y * 2).view(-1)
    s = 0.0
    for i in range(x.shape[0]):
        s += z[i] * z[i] * x[i]
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = z[i] * x[i]
    return out, s


def by_operator(kernel, *args):
    """A call whose derivative is that of the operator, as it is in graphs."""
    with forward_ad.dual_level():
        return kernel.operators(args, {})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(3)
def test_first_and_second_derivatives(name, runs):
    kernel, args = made(name)
    kernel = apart if name in SEVERAL else kernel
    assert gradcheck(functools.partial(by_operator, kernel), args)
    assert bool(runs) == (name in SEVERAL)  # one loop is not carried out again
    assert gradgradcheck(functools.partial(by_operator, kernel), args)
    assert bool(runs) == (name in SEVERAL)


@pytest.mark.parametrize("name", ["conv", "softmax", "total", "scan", "layernorm"])
@pytest.mark.sampled(5)
def test_torch_func_to_the_third_order(name):
    kernel, args = made(name)
    args = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]

    def loss(x):
        return kernel(x, *args[1:]).sin().sum()

    def of_order(n, derive):
        f = loss
        for _ in range(n):
            g = derive(f)
            f = lambda x, g=g: (g(x) ** 2).sum()  # noqa: E731
        return f

    def plain(f):
        def derivative(x):
            if not x.requires_grad:
                x = x.requires_grad_()
            return torch.autograd.grad(f(x), x, create_graph=True)[0]

        return derivative

    for n in (1, 2, 3):
        mine = of_order(n, torch.func.grad)(args[0].clone())
        expected = of_order(n, plain)(args[0].clone())
        torch.testing.assert_close(mine, expected.detach())


def saved_by(out):
    """The tensors that the graph of ``out`` keeps."""
    return [t for t in out.grad_fn.saved_tensors if isinstance(t, torch.Tensor)]


def test_only_what_must_be_saved_is():
    w, x = torch.randn(3, 8, requires_grad=True), torch.randn(2, 3, 8, requires_grad=True)
    assert len(saved_by(by_operator(k.conv, w, x, 0.1))) == 2  # the inputs
    out = by_operator(k.scan, torch.randn(2, 5, requires_grad=True), torch.randn(2))
    assert [t.shape for t in saved_by(out)] == [(2, 5), (2,), (2, 5)]  # and the states


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@pytest.mark.parametrize("name", ["conv", "scan", "total"])
@pytest.mark.sampled(5)
@pytest.mark.slow
def test_under_compile_the_loop_runs_once(name, runs):
    kernel, args = made(name)
    compiled = torch.compile(lambda *a: kernel(*a).sin().sum(), fullgraph=True)
    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    found = torch.autograd.grad(compiled(*args), tensors)
    assert runs == []
    for a, b in zip(found, torch.autograd.grad(kernel(*args).sin().sum(), tensors), strict=True):
        torch.testing.assert_close(a, b)


@weft.kernel
def of_sizes(x, z, m):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        f = x[min(i + 1, x.shape[0] - 1)]
        for _ in range(m[0]):
            f = z[0]
        out[i] = f
    return out


@pytest.mark.parametrize("turns", [0, 1])
def test_a_step_may_write_what_another_asks_for_its_sizes(turns):
    x, z = torch.randn(3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    leaves = x.requires_grad_(), z.requires_grad_()
    total = (of_sizes(x, z, torch.tensor([turns])) ** 2).sum()
    first = torch.autograd.grad(total, leaves, create_graph=True)
    second = torch.autograd.grad(
        first[0].sum() + first[1].sum(), leaves, allow_unused=True, materialize_grads=True
    )
    expected = [[0.0] * 3, [6.0, 0.0]] if turns else [[0.0, 2.0, 4.0], [0.0, 0.0]]
    assert [g.tolist() for g in second] == expected
