"""The gradient of an extreme value over a loop goes to the iterations that have it, however they
are rounded where they are computed a second time."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import weft


@weft.kernel
def grown(x, n: int = 2):
    out = torch.zeros_like(x)
    total = 1.5
    for i in range(x.shape[0]):
        f = 0.5
        g = x[i]
        if int(float(x[i]) * 4) % 11 != 0:
            for _ in range(min(n, 4)):
                out[i] /= 1.5 + weft.math.tanh(f)
        for _ in range(4):
            f = g
            g += weft.math.tanh(f)
        total = max(total, f)
    return out, total


@weft.kernel
def shrunk(x):
    out = torch.zeros_like(x)
    least = 10.0
    for i in range(x.shape[0]):
        f = x[i]
        for k in range(5):
            f = f * 0.9 + weft.math.sin(f) / (k + 1)
        out[i] = f * f
        least = min(least, f * x[i] + 0.3)
    return out, least


@pytest.mark.parametrize("kernel", [grown, shrunk])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_share_is_lost(kernel, dtype):
    torch.manual_seed(0)
    for _ in range(60):
        x = torch.randn(3, dtype=dtype).requires_grad_()
        weights, direction = torch.randn(3, dtype=dtype), torch.randn(3, dtype=dtype)
        out, total = kernel(x)
        (found,) = torch.autograd.grad((out * weights).sum() + 3.0 * total, x)
        with forward_ad.dual_level():
            pair = kernel(forward_ad.make_dual(x.detach(), direction))
            tangents = [forward_ad.unpack_dual(value).tangent for value in pair]
        expected = (tangents[0] * weights).sum() + 3.0 * tangents[1]
        torch.testing.assert_close((found * direction).sum(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kernel", [grown, shrunk])
def test_against_differences(kernel):
    x = torch.tensor([0.3, 1.2, -0.4], dtype=torch.float64, requires_grad=True)
    assert gradcheck(kernel, [x], check_forward_ad=True)
    assert gradgradcheck(kernel, [x])


@weft.kernel
def in_a_branch(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        h = weft.zeros((3,), weft.f64)
        h[i % 3] = 0.7
        if x[i] >= -0.5:
            h[i % 3] *= weft.math.tanh(x[i])
        out[i] = weft.math.tanh(h[i % 3])
    return out


def test_what_an_update_in_a_branch_found():
    x = torch.tensor([0.3, -0.2, 0.9, -0.9], dtype=torch.float64, requires_grad=True)
    assert gradcheck(in_a_branch, [x], check_forward_ad=True)
    assert gradgradcheck(in_a_branch, [x])
