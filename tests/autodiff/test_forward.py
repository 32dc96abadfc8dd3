"""Forward mode: tangents against finite differences, against reverse mode, and against torch."""

import math

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import weft
from tests.autodiff import kernels as k
from tests.autodiff.test_gradients import CASES, draw, made
from weft.errors import GradientError

SECOND = ["softmax", "product", "scan", "local", "histogram", "inplace", "maximum",
          "product_of_all", "two", "wkv", "nested"]  # fmt: skip


def jvp(kernel, args, tangents):
    """(results, their tangents) of a kernel, as tuples; ``tangents`` may have None."""
    with forward_ad.dual_level():
        duals = [a if t is None else forward_ad.make_dual(a, t)
                 for a, t in zip(args, tangents, strict=True)]  # fmt: skip
        out = kernel(*duals)
        parts = [forward_ad.unpack_dual(o) for o in (out if isinstance(out, tuple) else (out,))]
    return tuple(p.primal for p in parts), tuple(p.tangent for p in parts)


def direction(x):
    is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
    return torch.randn_like(x) if is_float else None


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_tangents_are_those_of_finite_differences(name):
    kernel, args = made(name)
    assert gradcheck(lambda *a: kernel(*a), args, check_forward_ad=True, check_backward_ad=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SECOND)
def test_forward_over_reverse(name):
    kernel, args = made(name)
    assert gradgradcheck(
        lambda *a: kernel(*a), args, check_fwd_over_rev=True, check_rev_over_rev=False,
        check_undefined_grad=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.sampled(3)
def test_reverse_over_forward(name):
    kernel, args = made(name)
    tangents = [t if t is None else t.detach().requires_grad_() for t in map(direction, args)]
    given = [t for t in tangents if t is not None]

    def tangent(*values):
        found = iter(values[len(args) :])
        along = [t if t is None else next(found) for t in tangents]
        _, out = jvp(kernel, values[: len(args)], along)
        return tuple(t for t in out if t is not None)

    assert gradcheck(tangent, (*args, *given))


@weft.kernel
def recurrence(x, y, m):
    for i in range(x.shape[0]):
        for t in range(m):
            y[i] = y[i] * x[i, t] + math.sin(y[i])


@pytest.mark.parametrize("with_tangent", [True, False])
def test_what_a_kernel_overwrites_again_and_again(with_tangent):
    x, y = draw(4, 6), draw(4)
    tx, ty = torch.randn_like(x), torch.randn_like(y) if with_tangent else None
    moved = []
    for h in (1e-6, -1e-6):
        z = y + h * (0 if ty is None else ty)
        recurrence(x + h * tx, z, 6)
        moved.append(z)
    with forward_ad.dual_level():
        a, b = forward_ad.make_dual(x, tx), y.clone()
        kept = None
        if ty is not None:
            kept = ty.clone()
            b = forward_ad.make_dual(b, kept)
        assert recurrence(a, b, 6) is None
        value, tangent = forward_ad.unpack_dual(b)
    torch.testing.assert_close(tangent, (moved[0] - moved[1]) / 2e-6, rtol=1e-5, atol=1e-6)
    z = y.clone()
    recurrence(x, z, 6)
    torch.testing.assert_close(value, z)
    if kept is not None:
        torch.testing.assert_close(kept, tangent)  # in place, as torch's operations do it


def test_a_tangent_that_is_the_memory_that_is_written():
    x, y = draw(4), draw(4)
    expected = 2 * x * y
    with forward_ad.dual_level():
        k.accumulate(forward_ad.make_dual(x, y), y)
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, expected)


@weft.kernel
def rows(x):
    out = torch.empty_like(x)
    for r in weft.serial(range(x.shape[0])):
        row, source = out[r], x[r]
        for j in range(x.shape[1]):
            row[j] = source[j] * source[j] * (r + 1)
    return out


def test_views_that_are_written():
    x, t = draw(3, 4), draw(3, 4)
    _, (found,) = jvp(rows, [x], [t])
    torch.testing.assert_close(found, 2 * x * t * torch.arange(1, 4, dtype=torch.float64)[:, None])


def test_strided_expanded_and_absent_tangents():
    a, b = draw(4, 6), draw(6, 4)
    for x, t in ((a.t(), b), (a.t()[::2], b[::2]), (a, draw(6).expand(4, 6)), (a, b.t())):
        _, (found,) = jvp(k.softmax, [x], [t])
        (expected,) = jvp(lambda x: torch.softmax(x, 1), [x], [t])[1]
        torch.testing.assert_close(found, expected)
    x, y = draw(5), draw(5)
    _, (found,) = jvp(k.axpy, [draw(), x, y], [None, None, torch.ones_like(y)])
    assert found.tolist() == [1.0] * 5
    assert jvp(k.axpy, [draw(), x, y], [None] * 3)[1] == (None,)


def test_an_input_twice():
    x, t = draw(5), draw(5)
    _, (found,) = jvp(lambda x: k.axpy(x[0], x, x), [x], [t])
    torch.testing.assert_close(found, t[0] * x + x[0] * t + t)


@weft.kernel
def channels(x, mask):
    best = torch.zeros(x.shape[0], dtype=torch.int64)
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m = -math.inf
        at = 0
        for j in range(x.shape[1]):
            if not mask[i, j]:
                continue
            if x[i, j] > m:
                m = x[i, j]
                at = j
        best[i] = at
        out[i] = m * m + math.floor(m) * x[i, 0]
    return out, best


def test_integers_and_masks_beside_floats():
    x, t, mask = draw(5, 7), draw(5, 7), torch.rand(5, 7) > 0.4
    mask[:, 0] = True
    (out, best), (found, none) = jvp(channels, [x, mask], [t, None])
    assert none is None
    row = torch.arange(5)
    m = x[row, best]
    torch.testing.assert_close(found, 2 * m * t[row, best] + m.floor() * t[:, 0])
    torch.testing.assert_close(out, m * m + m.floor() * x[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_floats_have_tangents_computed_in_float32(dtype):
    torch.manual_seed(0)
    x, t = torch.randn(5, 40).to(dtype), torch.randn(5, 40).to(dtype)
    (out,), (found,) = jvp(k.softmax, [x], [t])
    (expected,) = jvp(lambda x: torch.softmax(x, 1), [x.double()], [t.double()])[1]
    assert found.dtype == out.dtype == dtype
    roundings = 3 if dtype is torch.float32 else 1  # of sums of 40, in the order of the lanes
    allowed = roundings * torch.finfo(dtype).eps * expected.abs().max()
    assert (found.double() - expected).abs().max() <= allowed


@pytest.mark.slow
def test_ties_are_those_of_reverse_mode():
    one = torch.ones(3)
    for kernel, args in (
        (lambda x: k.clamped(x, -0.5, 0.5), [torch.tensor([-0.5, 0.5, 0.0])]),
        (k.larger, [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 0.0])]),
        (lambda x: k.maximum(x[None]), [torch.tensor([1.0, -2.0, 2.0])]),
        (k.product_of_all, [torch.tensor([0.0, -1.0, 3.0])]),
        (k.product_of_all, [torch.tensor([-1.0, -1.0, 3.0])]),
    ):
        for n in range(len(args)):
            leaves = [a.clone().requires_grad_() for a in args]
            kernel(*leaves).sum().backward()
            # (as in reverse mode, where all arguments vary)
            tangents = [one if j == n else torch.zeros(3) for j in range(len(args))]
            _, (found,) = jvp(kernel, args, tangents)
            torch.testing.assert_close(found.sum(), leaves[n].grad.sum())


@weft.kernel
def largest_size(x, low):
    out = torch.empty_like(low)
    for i in range(x.shape[0]):
        m = low[i]
        for j in range(x.shape[1]):
            m = max(m, abs(x[i, j]))
        out[i] = m * m
    return out


def test_what_equals_a_running_maximum_shares_as_in_reverse_mode():
    x = torch.tensor([[2.0, -2.0, 2.0, 1.0], [0.5, 0.5, 3.0, -3.0], [1.0, 2.0, 2.0, math.nan]])
    low = torch.tensor([2.0, 4.0, 1.0])
    u, v = torch.randn_like(x), torch.randn_like(low)
    leaves = x.clone().requires_grad_(), low.clone().requires_grad_()
    out = largest_size(*leaves)
    jacobian = [torch.autograd.grad(o, leaves, retain_graph=True) for o in out]
    expected = [(gx * u).sum() + (gl * v).sum() for gx, gl in jacobian]
    _, (found,) = jvp(largest_size, [x, low], [u, v])
    torch.testing.assert_close(found, torch.stack(expected))
    # A bound that does not vary gets nothing and takes nothing away.
    _, (found,) = jvp(largest_size, [x, low], [u, None])
    torch.testing.assert_close(found[0], 4 * (u[0, 0] - u[0, 1] + u[0, 2]) / 3)


@weft.kernel
def smallest(x, first):
    m = first[()] * 1.0
    for i in range(x.shape[0]):
        m = min(m, x[i] * x[i])
    return m


@pytest.mark.parametrize("first", [-1.0, 5.0])
def test_a_minimum_that_starts_from_a_value(first):
    x, t, first = draw(5), draw(5), torch.tensor(first, dtype=torch.float64)
    _, (found,) = jvp(smallest, [x, first], [t, torch.tensor(7.0, dtype=torch.float64)])
    at = x.abs().argmin()
    expected = 7.0 if first < 0 else 2 * x[at] * t[at]
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64))


def test_extremes_of_nothing_and_of_nan():
    _, (found,) = jvp(k.maximum, [torch.zeros(0, 3)], [torch.ones(0, 3)])
    assert found == 0
    (out,), (found,) = jvp(k.maximum, [torch.full((1, 3), math.nan)], [torch.ones(1, 3)])
    assert (out, found) == (-math.inf, 0)  # as Python's max passes over a NaN
    (out,), (found,) = jvp(k.softmax, [torch.zeros(0, 3)], [torch.zeros(0, 3)])
    assert out.shape == found.shape == (0, 3)


@weft.kernel
def largest(x, idx):
    out = torch.full((2,), -math.inf)
    for i in range(x.shape[0]):
        weft.atomic_max(out[idx[i]], x[i])
    return out


@weft.kernel
def scaled(x, y):
    out = y.clone()
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i] *= x[i, j]
    return out


def test_atomic_operations_other_than_sums():
    x = torch.randn(3)
    with pytest.raises(GradientError, match="an atomic maximum of floats has no derivative"):
        jvp(largest, [x, torch.tensor([0, 1, 1])], [x, None])
    x, y, t = draw(3, 4), draw(3), draw(3, 4)  # no two iterations meet: an ordinary update
    _, (found,) = jvp(scaled, [x, y], [t, None])
    torch.testing.assert_close(found, y * x.prod(1) * (t / x).sum(1))


@weft.kernel
def doubled_and_largest(x):
    out = x.clone()
    m = -math.inf
    for i in range(x.shape[0]):
        out[i] += x[i]
        m = max(m, out[i])
    return m


def test_a_maximum_beside_an_update_of_an_element():
    x, t = draw(5), draw(5)
    assert jvp(doubled_and_largest, [x], [t])[1] == (2 * t[x.argmax()],)


@weft.kernel
def largest_and_count(x):
    m, product, count, some = -math.inf, 1.0, 0, False
    for i in range(x.shape[0]):
        m = max(m, x[i])
        product *= x[i]
        if x[i] > 0:
            count += 1
        some = some or x[i] > 9
    return m, product, count, some


def test_a_count_beside_a_maximum():
    x, t = draw(5), draw(5)
    with forward_ad.dual_level():
        parts = largest_and_count(forward_ad.make_dual(x, t))
        m, product = (forward_ad.unpack_dual(p).tangent for p in parts[:2])
    assert m == t[x.argmax()]
    torch.testing.assert_close(product, (x.prod() * t / x).sum())
    assert parts[2:] == ((x > 0).sum(), False)


@weft.kernel
def compacted(x):
    n = torch.zeros(1, dtype=torch.int64)
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        if x[i] > 0:
            at = weft.atomic_add(n[0], 1)
            out[at] = x[i] * x[i]
    return out


def test_numbers_that_are_handed_out():
    x, t = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([1.0, 1.0, 10.0])
    (out,), (found,) = jvp(compacted, [x], [t])
    assert sorted(zip(out.tolist(), found.tolist(), strict=True)) == [(0, 0), (1, 2), (9, 60)]


def test_memory_that_two_arguments_share_is_refused():
    x = torch.zeros(4)
    with (
        pytest.raises(GradientError, match="also read or written through another argument"),
        forward_ad.dual_level(),
    ):
        k.accumulate(forward_ad.make_dual(x, torch.ones(4))[1:], x[:-1])


def test_a_derivative_of_tangents_that_is_not_there_is_refused_where_it_is_asked_for():
    x = draw(4).requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(4, dtype=torch.float64))
        with torch.no_grad():
            assert forward_ad.unpack_dual(compacted(dual)).tangent is not None
        with pytest.raises(GradientError, match="what an atomic operation found"):
            compacted(dual)
        found = forward_ad.unpack_dual(compacted(forward_ad.make_dual(x.detach(), x * 1))).tangent
        with pytest.raises(GradientError, match="what an atomic operation found"):
            found.sum().backward()


def test_without_forward_mode_nothing_is_carried():
    x = draw(3, 4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        with forward_ad._set_fwd_grad_enabled(False):
            out = k.softmax(dual)
        assert forward_ad.unpack_dual(out).tangent is None


@weft.kernel
def signs(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 1.0 if x[i] > 0 else -1.0
    return out


def test_a_loop_without_a_derivative_beside_reverse_mode():
    x, t = draw(4).requires_grad_(), draw(4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        (g,) = torch.autograd.grad((signs(dual) * dual * dual).sum(), x)
        value, tangent = forward_ad.unpack_dual(g)
    torch.testing.assert_close(value, 2 * x.detach().abs())
    torch.testing.assert_close(tangent, 2 * x.detach().sign() * t)


def test_a_loop_that_does_nothing_with_what_it_reads() -> None:
    """Nothing of it is left that takes a tensor, but its assertion."""

    @weft.kernel
    def idle(x, n: int):
        for _ in range(1):
            s = 0.5
            for i in range(n):
                s = s * 0.5 + x[i]
            assert n < 3, "long"

    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        idle(x, 2)
        with pytest.raises(weft.KernelAssertionError, match="long"):
            idle(x, 3)
