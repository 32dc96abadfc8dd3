"""What PyTorch expects of something that has a gradient."""

import gc
import math
import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import weft
from tests.autodiff import kernels as k
from weft.errors import GradientError


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 8), (2, 3, 8))]


def loss(w, x):
    return k.conv(w, x, 0.1).sin().sum()


def reference(w, x):
    padded = torch.nn.functional.pad(x, (w.shape[1] - 1, 0))
    out = torch.nn.functional.conv1d(padded, w[:, None], groups=w.shape[0]) + 0.1
    return torch.autograd.grad(out.sin().sum(), (w, x))


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_eager(tensors):
    same(torch.autograd.grad(loss(*tensors), tensors), reference(*tensors))


def test_the_operator(tensors):
    out = k.conv.operators((*tensors, 0.1), {}).sin().sum()
    same(torch.autograd.grad(out, tensors), reference(*tensors))


def test_torch_func(tensors):
    detached = [t.detach() for t in tensors]
    same(torch.func.grad(loss, argnums=(0, 1))(*detached), reference(*tensors))
    _, pull = torch.func.vjp(loss, *detached)
    same(pull(torch.tensor(1.0, dtype=torch.float64)), reference(*tensors))


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_torch_compile(tensors):
    compiled = torch.compile(loss, fullgraph=True)
    same(torch.autograd.grad(compiled(*tensors), tensors), reference(*tensors))


def test_opcheck(tensors):
    k.conv.operators((*tensors, 0.1), {})
    torch.library.opcheck(k.conv.op, (*tensors, 0.1))


def test_opcheck_of_a_kernel_that_was_not_called_before():
    @weft.kernel
    def scaled(x: torch.Tensor, a: float) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = a * math.exp(x[i])
        return out

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(scaled.op, (x, 0.5))


def test_activation_checkpointing(tensors):
    out = checkpoint(loss, *tensors, use_reentrant=False)
    same(torch.autograd.grad(out, tensors), reference(*tensors))


def test_several_backward_passes_and_hooks():
    x = torch.randn(3, 4, requires_grad=True)
    seen = []
    x.register_hook(lambda g: seen.append(g.clone()))
    y = k.total(x)
    y.backward(retain_graph=True)
    y.backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())
    torch.testing.assert_close(seen[0], 2 * x.detach())


def test_only_what_is_wanted_is_computed():
    w, x = torch.randn(3, 8), torch.randn(2, 3, 8, requires_grad=True)
    k.conv(w, x, 0.1).sum().backward()
    assert x.grad is not None
    assert w.grad is None


def test_expanded_and_strided_inputs_and_gradients():
    torch.manual_seed(0)
    for shape, view in (((4,), lambda a: a.expand(3, 4)), ((4, 6), lambda a: a.t()[::2])):
        a = torch.randn(shape, requires_grad=True)
        (mine,) = torch.autograd.grad((k.softmax(view(a)).t() ** 2).sum(), a)
        (theirs,) = torch.autograd.grad((torch.softmax(view(a), 1) ** 2).sum(), a)
        torch.testing.assert_close(mine, theirs)


def test_an_input_used_twice():
    x = torch.randn(5, requires_grad=True)
    k.axpy(torch.tensor(2.0), x, x).sum().backward()
    assert x.grad.tolist() == [3.0] * 5


def test_an_output_used_partly():
    x, w = torch.randn(4, requires_grad=True), torch.randn(4)
    out, _ = k.two(x, w)
    (g,) = torch.autograd.grad(out[1], x)
    assert g[0] == 0
    assert g[1] != 0


def test_changing_a_saved_tensor_is_an_error_of_torch():
    x = torch.randn(3, 4, requires_grad=True)
    z = x * 1
    y = k.total(z)
    z.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_kernel_that_accumulates_into_its_argument():
    x, y = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    z = y * 1
    k.accumulate(x, z)
    z.sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    assert y.grad.tolist() == [1.0] * 3


def test_writing_to_an_argument_that_requires_grad_is_refused():
    x, y = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    with pytest.raises(GradientError) as caught:
        k.accumulate(x, y)
    assert "`y` requires grad and is written by the loop" in str(caught.value)
    assert "`y = y.clone()`" in str(caught.value)


def test_no_grad_records_nothing():
    x = torch.ones(3, 4, requires_grad=True)
    with torch.no_grad():
        assert not k.softmax(x).requires_grad


def test_gradients_are_the_same_bits_every_time():
    torch.manual_seed(0)
    w = torch.randn(7, 33, requires_grad=True)
    x = torch.randn(5, 7, 33, requires_grad=True)
    first = torch.autograd.grad(loss(w, x), (w, x))
    for _ in range(3):
        again = torch.autograd.grad(loss(w, x), (w, x))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.sampled(5)
@pytest.mark.slow
def test_results_are_freed_at_once(requires_grad, dual):
    x = torch.randn(3, 4, requires_grad=requires_grad)
    k.softmax(x)
    gc.collect()
    gc.disable()
    try:
        with forward_ad.dual_level():
            out = k.softmax(forward_ad.make_dual(x, torch.ones(3, 4)) if dual else x)
            seen = weakref.ref(out)
            del out
            assert seen() is None
    finally:
        gc.enable()
