"""Gradients of kernels whose iterations read elements and then overwrite them."""

import inspect

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from tests.autodiff import overwriting
from tests.cuda import emulator
from weft.errors import GradientError
from weft.options import default_options
from weft.pytorch import workspaces
from weft.runtime import build

KERNELS = {n: k for n, k in vars(overwriting).items() if isinstance(k, weft.Kernel)}


def arguments(kernel, n=4, m=2, dtype=torch.float64):
    torch.manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, dtype=dtype)

    a = draw(n, n)
    known = {
        "a": a @ a.T + n * torch.eye(n, dtype=dtype), "b": draw(n, n), "c": draw(n, n),
        "x": draw(m, n), "a3": draw(m, n, n) + 4 * torch.eye(n, dtype=dtype), "v": draw(n),
        "v8": draw(8), "p": torch.arange(n).roll(1) // 2,
    }  # fmt: skip
    return [known[name] for name in inspect.signature(kernel.function).parameters]


def leaves(values):
    return [v.clone().requires_grad_() if v.is_floating_point() else v for v in values]


def flat(out):
    return [t for t in (out if isinstance(out, tuple) else (out,)) if t.requires_grad]


def gradients(kernel, args, seed=1, **options):
    """Of a random combination of the results."""
    torch.manual_seed(seed)
    outs = flat(kernel(*args))
    weights = [torch.randn(o.shape, dtype=torch.float64).to(o.dtype) for o in outs]
    wanted = [a for a in args if a.requires_grad]
    return torch.autograd.grad(outs, wanted, weights, **options)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", KERNELS)
def test_derivatives_are_those_of_finite_differences(name):
    kernel = KERNELS[name]
    args = arguments(kernel)
    plain = kernel.interpret(*args)
    torch.testing.assert_close(kernel(*args), plain)
    assert gradcheck(kernel, leaves(args), check_forward_ad=True)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "name",
    [
        "softmax", "cholesky_left", "lu", "newton", "until_small", "updates_of_own_elements",
        "lengths_from_what_is_overwritten", "the_largest_of_what_is_overwritten",
    ],
)  # fmt: skip
def test_second_derivatives_too(name):
    kernel = KERNELS[name]
    args = leaves(arguments(kernel, n=3))
    assert gradgradcheck(kernel, args, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.sampled(9)
def test_interpreted_gradients_are_the_compiled_ones(name):
    """The interpreter finds no races in the derived loops, and nothing out of bounds."""
    kernel = KERNELS[name]
    args = arguments(kernel, n=3)
    given = leaves(args)
    outs = flat(kernel(*given))
    weights = [torch.randn_like(o) for o in outs]
    wanted = [a for a in given if a.requires_grad]
    expected = iter(torch.autograd.grad(outs, wanted, weights))
    found = kernel.backward.interpret(*args, grad=weights)
    for g, a in zip(found, args, strict=True):
        if a.is_floating_point():
            torch.testing.assert_close(g, next(expected))


@pytest.mark.cpu
@pytest.mark.parametrize(
    "name", ["softmax", "cholesky_left", "lu_batch", "until_small", "covariance"]
)
@pytest.mark.sampled(9)
def test_on_cuda_in_the_emulator(name, monkeypatch):
    kernel = KERNELS[name]
    args = arguments(kernel, n=3)
    expected = gradients(kernel, leaves(args))

    monkeypatch.setattr(build, "compile_region", emulator.compile_region)
    found = gradients(weft.kernel(kernel.function), leaves(args))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["softmax", "vadv", "horner", "rows_scaled_again"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.sampled(9)
def test_narrow_floats(name, dtype):
    kernel = KERNELS[name]
    args = [a.to(dtype) for a in arguments(kernel)]
    found = gradients(kernel, leaves(args))
    expected = gradients(kernel, leaves([a.double() for a in args]))
    tolerance = 0.15 if dtype is torch.bfloat16 else 1e-4
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == dtype
        torch.testing.assert_close(f.double(), e, rtol=tolerance, atol=tolerance * e.abs().max())


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "vadv", "rows_scaled_again", "gemm"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 3), (5, 1), (3, 0)])
def test_small_and_empty(name, n, m):
    kernel = KERNELS[name]
    args = arguments(kernel, n, m)
    assert gradcheck(kernel, leaves(args)) if all(a.numel() for a in args) else True
    found = gradients(kernel, leaves(args))
    assert [g.shape for g in found] == [a.shape for a in args]


def test_backward_twice_starts_from_the_same_contents():
    x = leaves(arguments(KERNELS["rows_scaled_again"]))
    out = KERNELS["rows_scaled_again"](*x)
    first, second = (torch.autograd.grad(out.sum(), x, retain_graph=True) for _ in range(2))
    assert torch.equal(*first, *second)


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@pytest.mark.parametrize("name", ["softmax", "lu_batch"])
def test_under_torch_compile(name):
    kernel = KERNELS[name]
    args = arguments(kernel)
    compiled = torch.compile(lambda *a: kernel(*a), fullgraph=True, backend="aot_eager")
    found, expected = gradients(compiled, leaves(args)), gradients(kernel, leaves(args))
    torch.testing.assert_close(found, expected)


@pytest.fixture
def tape_bound(monkeypatch):
    """Sets WEFT_TAPE_MB for kernels that are made from then on."""

    def bound(megabytes):
        monkeypatch.setenv("WEFT_TAPE_MB", str(megabytes))
        default_options.cache_clear()

    yield bound
    monkeypatch.delenv("WEFT_TAPE_MB", raising=False)
    default_options.cache_clear()


@pytest.mark.parametrize("name", ["softmax", "lu", "exchanged_by_data", "newton"])
def test_deterministic_and_in_segments(name, tape_bound):
    kernel = KERNELS[name]
    args = leaves(arguments(kernel, n=20))
    expected = gradients(kernel, args)
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(gradients(kernel, args), expected)
    finally:
        torch.use_deterministic_algorithms(False)
    tape_bound(0)
    again = weft.kernel(kernel.function)
    torch.testing.assert_close(gradients(again, args), expected)


def test_what_is_overwritten_linearly_needs_no_tape():
    """The gradient of ``A[i, j] -= A[i, k] * A[k, j]`` does not read ``A[i, j]``."""
    text = overwriting.gemm.backward.inspect(*arguments(overwriting.gemm))
    assert "version" not in text
    text = overwriting.lu.backward.inspect(*arguments(overwriting.lu))
    assert text.count("workspace version") == 1  # of A[i, k] /= A[k, k]


def test_a_tape_of_what_is_overwritten_has_a_bound(monkeypatch, tape_bound):
    def iterated(x, T):
        y = x.clone()
        for i in range(x.shape[0]):
            for _ in range(T):
                y[i] = weft.sin(y[i])
        return y

    monkeypatch.setattr(workspaces, "VERSIONS", 1 << 20)
    tape_bound(2)
    kernel = weft.kernel(iterated)
    x = torch.rand(1000, requires_grad=True)
    kernel(x, 500).sum().backward()
    with pytest.raises(GradientError) as caught:
        kernel(x, 600).sum().backward()
    assert caught.value.message == (
        "the gradient of this loop needs all that `y` held before it was overwritten: a tape of "
        "3 MB, and 2 are allowed"
    )
    assert caught.value.help == (
        "set WEFT_TAPE_MB=3 if there is so much memory, or let one call have fewer iterations"
    )
    assert "for i in range(x.shape[0]):" in str(caught.value)
    tape_bound(3)
    weft.kernel(iterated)(x, 600).sum().backward()
