"""Gradients that Inductor fuses with PyTorch's own."""

import math

import pytest
import torch

import weft
from tests.pytorch.test_fusion import ROUNDS, calls, kernels, on_devices, softmax

Tensor = torch.Tensor
pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel
def wave(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * math.sin(x[i])
    return out


@weft.kernel
def product(x, y, factor: float, n: int):
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] ** n * y[i, j] * factor + max(x[i, j], y[i, j])
    return out


@weft.kernel
def several(x, y):
    a, b = torch.empty_like(x), torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    s = 0.0
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        a[i, j] = x[i, j] * y[j]
        b[j, i] = math.exp(x[i, j])
        s += math.sin(x[i, j])
    return a, b, s


@weft.kernel
def hyperbolic(x):  # whose gradient reads what it has written
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = math.tanh(x[i])
    return out


@weft.kernel
def differences(x):
    out = torch.empty(x.shape[0] - 2, dtype=x.dtype, device=x.device)
    for i in range(x.shape[0] - 2):
        out[i] = x[i] + 2 * x[i + 1] * x[i + 2]
    return out


@weft.kernel
def repeated(v, n: int):
    out = torch.empty(n, v.shape[0], dtype=v.dtype, device=v.device)
    for i, j in weft.ndrange(n, v.shape[0]):
        out[i, j] = v[j] * v[j]
    return out


@weft.kernel
def row_sums(x):
    out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j] * x[i, j]
        out[i] = s
    return out


def gradient(f, *args, **options):
    """The gradients of ``f(*args)`` under Inductor, and the code of each of its graphs."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    call = torch.compile(f, fullgraph=True, **options)
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]

    def both():
        return torch.autograd.grad(call(*args), wanted)

    with config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        return run_and_get_code(both)


def check(f, *args, **options):
    """Compares them with the eager ones. Gives the codes."""
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    found, codes = gradient(f, *args, **options)
    torch.testing.assert_close(found, torch.autograd.grad(f(*args), wanted))
    return codes


def leaf(*shape, dtype=torch.float64, device="cpu"):
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)


@on_devices
@pytest.mark.slow
def test_a_gradient_becomes_one_kernel_with_its_neighbours(device):
    x = leaf(1000, dtype=torch.float32, device=device)
    codes = check(lambda x: torch.relu(wave(x) * 2).sum(), x)
    own = check(lambda x: torch.relu(x * torch.sin(x) * 2).sum(), x)
    assert list(map(calls, codes)) == [0, 0]
    assert list(map(kernels, codes)) == list(map(kernels, own)) == [1, 1]


@on_devices
@pytest.mark.slow
def test_gradients_of_many_forms_and_sizes_are_fused(device):
    def f(x, y, v):
        a, b, s = several(x * 2, v)
        return (
            (product(x.t(), y.t() * 2, 0.5, 3).sin() * 2).sum() + product(x, x, 1.5, 2).sum()
            + (a * b.t()).sum() * s + hyperbolic(v * 3).cos().sum() + differences(v).exp().sum()
            + (repeated(v, 7) * 2).sin().sum() + (row_sums(y).sin() * 2).sum()
        )  # fmt: skip

    def drawn(n, m):
        return [leaf(*shape, device=device) for shape in ((n, m), (n, m), (m,))]

    args = drawn(5, 17)
    found, codes = gradient(f, *args, dynamic=True)
    torch.testing.assert_close(found, torch.autograd.grad(f(*args), args))
    assert list(map(calls, codes)) == [0, 0]
    call = torch.compile(f, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for args in (drawn(8, 9), drawn(4, 30)):
            torch.testing.assert_close(*(torch.autograd.grad(g(*args), args) for g in (call, f)))


@pytest.mark.slow
def test_gradients_of_halves_beside_one_that_stays_a_call():
    x, y, z = leaf(200, dtype=torch.bfloat16), leaf(200, dtype=torch.float16), leaf(6, 7)
    codes = check(
        lambda x, y, z: (wave(x) * 2).sum() + (wave(y) * 2).sum() + softmax(z).cos().sum(), x, y, z
    )
    halves = 0 if ROUNDS else 2  # which stay calls
    assert list(map(calls, codes)) == [halves, halves + 1]


@weft.kernel
def gathered(x, index):
    out = torch.empty(index.shape[0], dtype=x.dtype)
    for i in range(index.shape[0]):
        out[i] = x[index[i]] * 2
    return out


@weft.kernel
def doubled_after(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = math.tanh(x[i])
    out *= 2
    return out


@weft.kernel
def halved_before(x):
    half = x / 2
    out = torch.empty_like(x)
    for i in range(half.shape[0]):
        out[i] = half[i] * half[i]
    return out


@weft.kernel
def added_to_copy(x, y):
    out = x.clone()
    for i in range(y.shape[0]):
        out[i] += y[i] * y[i]
    return out


@weft.kernel
def twice(x):
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = x[i] * 2
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = y[i] * x[i]
    return out


def says(kernel, *args):
    return kernel.backward.inspect(*args).rpartition("=== inductor ===\n")[2]


@pytest.mark.slow
def test_inspect_says_what_a_gradient_becomes():
    x, v = leaf(4, 7), leaf(7)
    assert says(wave, v) == "Pointwise d.x over [7]"
    assert says(repeated, v, 3) == "Reduction over [3] for [7]\nPointwise d.v over [7]"
    for kernel, args, reason in (
        (softmax, (x,), "it reads `d.x`, which it writes to"),
        (gathered, (v, torch.tensor([1, 2, 1])), "its gradient is accumulated"),
        (doubled_after, (v,), "its host part writes to a tensor"),
        (halved_before, (v,), "its host part computes `half`"),
        (added_to_copy, (v, v), "its host part copies to `out`"),
        (twice, (v,), "it has several loops"),
        (weft.kernel(fuse=False)(wave.function), (v,), "fuse=False is asked for"),
        (weft.kernel(strict_math=True)(wave.function), (v,), "strict_math=True is asked for"),
    ):
        assert says(kernel, *args) == f"a call: {reason}", kernel
