"""What goes wrong in other systems."""

import math

import pytest
import torch
from torch.autograd import forward_ad

import weft
from weft.errors import GradientError


@weft.kernel
def side_channel(x, mask):
    best = torch.zeros(x.shape[0], dtype=torch.int64)
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m = -math.inf
        at = 0
        for j in range(x.shape[1]):
            if mask[i, j] and x[i, j] > m:
                m = x[i, j]
                at = j
        best[i] = at
        out[i] = m * m
    return out, best


def test_integers_and_masks_beside_floats():
    torch.manual_seed(0)
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(5, 7) > 0.4
    mask[:, 0] = True
    out, best = side_channel(x, mask)
    assert not best.requires_grad
    (g,) = torch.autograd.grad(out.sum(), x)
    expected = torch.zeros_like(g)
    rows = torch.arange(5)
    expected[rows, best] = 2 * x.detach()[rows, best]
    torch.testing.assert_close(g, expected)


@weft.kernel
def rows_of_views(x):
    out = torch.empty_like(x)
    for r in weft.serial(range(x.shape[0])):
        row = out[r]
        source = x[r]
        for j in range(x.shape[1]):
            row[j] = source[j] * source[j] * (r + 1)
    return out


def test_launches_that_write_to_views():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    out = rows_of_views(x)
    (g,) = torch.autograd.grad(out.sum(), x)
    factors = torch.arange(1, 4, dtype=torch.float64)[:, None]
    torch.testing.assert_close(g, 2 * x.detach() * factors)


@weft.kernel
def polynomial(x, n: int):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        before = math.sin(x[i])
        s = 0.0
        for _ in range(n):
            s = s * before + 1.0
        out[i] = s * before
    return out


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_value_from_before_a_loop_used_after_it(n):
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: polynomial(x, n), [x])


def test_empty_tensors():
    x = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(polynomial(x, 3).sum(), x)
    assert g.shape == (0,)


@weft.kernel
def counted(x):
    n = torch.zeros(1, dtype=torch.int64)
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        if x[i] > 0:
            k = weft.atomic_add(n[0], 1)
            out[k] = x[i] * 2
    return out


def test_what_an_atomic_found_is_refused():
    with pytest.raises(GradientError, match="is different when the loop is carried out again"):
        counted(torch.ones(3, requires_grad=True))


@weft.kernel
def largest(x, idx):
    out = torch.full((2,), -math.inf)
    for i in range(x.shape[0]):
        weft.atomic_max(out[idx[i]], x[i])
    return out


def test_an_atomic_maximum_is_refused():
    with pytest.raises(GradientError, match="an atomic maximum of floats has no derivative"):
        largest(torch.ones(3, requires_grad=True), torch.tensor([0, 1, 1]))


@weft.kernel
def decay(x, steps: int, dt: float, k):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        position = x[i]
        speed = 0.0
        for _ in range(steps):
            speed += dt * (-k[0] * position - 0.3 * speed)
            position += dt * speed
        out[i] = position
    return out


def test_a_spring_through_a_thousand_steps():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, k: decay(x, 1000, 0.01, k), [x, k])


def test_aliasing_reads():
    @weft.kernel
    def dot(a, b):
        s = 0.0
        for i in range(a.shape[0]):
            s += a[i] * b[i]
        return s

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(dot(x, x), x)
    torch.testing.assert_close(g, 2 * x.detach())
    (g,) = torch.autograd.grad(dot(x[1:], x[:-1]), x)
    assert torch.autograd.gradcheck(lambda x: dot(x[1:], x[:-1]), [x])


@weft.kernel
def halves(x):
    out = torch.zeros_like(x)
    left, right = out[: x.shape[0] // 2], out[x.shape[0] // 2 :]
    for i in range(x.shape[0] // 2):
        left[i] = x[i] * x[i]
        right[i] = x[i] * 3
    return out


def test_a_launch_that_writes_to_two_views_is_refused():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(GradientError, match="the loop writes to 2 tensors, and `left` is a view"):
        halves(x)


@weft.kernel
def as_often_as_columns(x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 1.0
        for k in range(y.shape[1]):
            if s > 1e9:
                break
            s *= x[i] + k
        out[i] = s
    return out


def test_a_loop_over_the_second_size_of_a_tensor_that_is_not_read():
    # The sizes are a tuple, two arguments of one name: the tape has to be as long as the second.
    x, y = torch.randn(3, dtype=torch.float64, requires_grad=True), torch.empty(2, 500)
    out = as_often_as_columns(x, y[:, :5])
    assert torch.autograd.gradcheck(lambda x: as_often_as_columns(x, y[:, :5]), [x])
    found = as_often_as_columns.backward.interpret(x, y[:, :5])[0]
    torch.testing.assert_close(found, torch.autograd.grad(out.sum(), x)[0])


@weft.kernel
def moved(x, v):
    for i in range(x.shape[0]):
        x[i] = x[i] * x[i]
        v[i] = v[i] * 3


def test_forward_mode_of_a_launch_that_writes_to_two_tensors():
    """A dual tensor is a view of what it was made of."""
    x, v, dx, dv = torch.randn(4, 5, dtype=torch.float64)
    expected = 2 * x * dx, 3 * dv

    def call(x, v):
        moved(x, v)
        return x, v

    outs, tangents = torch.func.jvp(call, (x.clone(), v.clone()), (dx, dv))
    torch.testing.assert_close(outs, (x * x, 3 * v))
    torch.testing.assert_close(tangents, expected)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t.clone(), u) for t, u in ((x, dx), (v, dv))]
        moved(*duals)
        found = [forward_ad.unpack_dual(t) for t in duals]
        torch.testing.assert_close(tuple(t.primal for t in found), (x * x, 3 * v))
        torch.testing.assert_close(tuple(t.tangent for t in found), expected)
        both = forward_ad.make_dual(torch.stack((x, v)), torch.stack((dx, dv)))
        moved(*both.unbind())
        tangent = forward_ad.unpack_dual(both).tangent
        torch.testing.assert_close(tuple(tangent.unbind()), expected)

    def of_rows(both):
        rows = both * 1
        moved(rows[0], rows[1])
        return rows

    with pytest.raises(GradientError, match="writes to several tensors, and one of them is a view"):
        torch.func.jvp(of_rows, (torch.stack((x, v)),), (torch.stack((dx, dv)),))


@weft.kernel
def rms_norm(x, w, least):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total += x[i, j] * x[i, j]
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * w[j] * torch.rsqrt(total + least)
    return out


@weft.kernel
def with_temperature(x, w, t):
    out = x.new_zeros(x.shape[0])
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i] += torch.exp(x[i, j] * w[j] / t)
    return out


def test_rows_that_read_a_tensor_without_dimensions() -> None:
    """What stands beside rows in a sum over them has no subscripts."""
    x, w = torch.rand(3, 4, requires_grad=True), torch.rand(4, requires_grad=True)
    for t in (torch.tensor(0.5), torch.tensor(0.5, requires_grad=True)):
        given = [v for v in (x, w, t) if v.requires_grad]
        for found, expected in (
            (rms_norm(x, w, t), x * w * torch.rsqrt((x * x).sum(1, keepdim=True) + t)),
            (with_temperature(x, w, t), torch.exp(x * w / t).sum(1)),
        ):
            pairs = [torch.autograd.grad(o.sum(), given, create_graph=True)
                     for o in (found, expected)]  # fmt: skip
            for f, e in zip(*pairs, strict=True):
                assert torch.allclose(f, e, rtol=1e-4)
            second = [torch.autograd.grad(sum(g.square().sum() for g in each), given)
                      for each in pairs]  # fmt: skip
            for f, e in zip(*second, strict=True):
                assert torch.allclose(f, e, rtol=1e-3, atol=1e-5)
