"""Transforms of ``torch.func`` that ``torch.compile`` traces."""

import pytest
import torch
from torch.func import grad, jacrev, jvp, vjp, vmap

import weft

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


def test_a_compiled_batch(x):
    both = torch.stack([x, 2 * x])
    torch.testing.assert_close(compiled(vmap(square), both), both**2)


@pytest.mark.parametrize(
    ("f", "size"), [(vmap(grad(loss)), 6), (jacrev(square), 3)], ids=["vmap", "jacrev"]
)
def test_batched_gradients_are_refused_by_name(f, size):
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a kernel has no batching rule yet"):
        compiled(f, torch.rand(size // 3, 3) if size > 3 else torch.rand(3))
