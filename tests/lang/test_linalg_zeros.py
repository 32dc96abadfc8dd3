"""Derivatives of decompositions of matrices with exact zeros: diagonal ones, triangles,
permutations, blocks. Beside torch's in float64, and differences."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd import forward_ad

import weft
from tests.lang.test_linalg import run

pytestmark = pytest.mark.filterwarnings("ignore:the loop at line .* was compiled 64 times")


def zeros_in(n: int) -> torch.Tensor:
    """Matrices (b, n, n) with zeros and singular values that differ."""
    torch.manual_seed(n)
    sizes = torch.arange(1.0, n + 1, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)[:n]
    orders = [torch.eye(n, dtype=torch.float64)[list(p)] for p in itertools.permutations(range(n))]
    full = torch.randn(n, n, dtype=torch.float64)
    upper, lower = full.triu() + 2 * torch.diag(sizes), full.tril() + 2 * torch.diag(sizes)
    made = [*(p * sizes for p in orders), *(-p * sizes.flip(0) for p in orders), upper, lower,
            torch.diag(sizes * signs), 1e-9 * torch.diag(sizes), 1e9 * upper]  # fmt: skip
    for k in range(n):  # blocks, and a column that is zero below the diagonal
        block = full + 2 * torch.diag(sizes)
        block[k, :k] = block[k, k + 1 :] = block[:k, k] = block[k + 1 :, k] = 0
        column = full.clone()
        column[k + 1 :, k] = 0
        made += [block, column]
    return torch.stack(made)


def equal(n: int) -> torch.Tensor:
    """Those that have equal singular values."""
    orders = [torch.eye(n, dtype=torch.float64)[list(p)] for p in itertools.permutations(range(n))]
    return torch.stack([*orders, *(-3 * p for p in orders)])


def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Products (b, k, n, m) of the columns of ``x`` and ``y``, in which signs of both cancel."""
    return torch.einsum("bik,bjk->bkij", x, y)


def signless(name: str, made: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """(b, count): what does not depend on the signs of vectors."""
    if name == "qr":
        q, r = made
        pieces = [outer(q, r.mT), outer(q, q)]
    elif name == "svd":
        u, s, v = made
        pieces = [s, outer(u, v), outer(u, u), outer(v, v)]
    elif name == "sym_eig":
        values, v = made
        pieces = [values, outer(v, v)]
    else:
        pieces = list(made)
    return torch.cat([piece.flatten(1) for piece in pieces], 1)


def ours(name: str, a: torch.Tensor) -> torch.Tensor:
    return signless(name, tuple(run(name, a)))


def theirs(name: str, a: torch.Tensor) -> torch.Tensor:
    if name == "svd":
        u, s, vh = torch.linalg.svd(a)
        return signless(name, (u, s, vh.mT))
    return signless(name, tuple(torch.linalg.qr(a)))


def reverse(f, name, a: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    a = a.clone().requires_grad_()
    return torch.autograd.grad((f(name, a) * weights).sum(), a)[0]


def forward(f, name, a: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(name, forward_ad.make_dual(a, tangent))).tangent


def differences(name, a: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    """Of fourth order, of what weft gives. ``tangent`` is as large as ``a``."""
    h = 1e-4

    def slope(h: float) -> torch.Tensor:
        return (ours(name, a + h * tangent) - ours(name, a - h * tangent)) / (2 * h)

    return (4 * slope(h) - slope(2 * h)) / 3


def drawn(name: str, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A tangent as large as the matrices, and weights."""
    torch.manual_seed(1)
    tangent = torch.randn_like(a) * a.abs().amax((1, 2), keepdim=True)
    return tangent, torch.randn_like(ours(name, a))


CASES = [("qr", 2), ("svd", 2), ("qr", 3), pytest.param("svd", 3, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "n"), CASES)
def test_derivatives_are_those_of_torch(name: str, n: int) -> None:
    a = torch.cat([zeros_in(n), equal(n)]) if name == "qr" else zeros_in(n)
    tangent, weights = drawn(name, a)
    size = a.abs().amax((1, 2)).clamp(min=1)[:, None]
    found, expected = (forward(f, name, a, tangent) for f in (ours, theirs))
    torch.testing.assert_close(found / size, expected / size, rtol=1e-9, atol=1e-9)
    slopes = differences(name, a, tangent)
    torch.testing.assert_close(found / size, slopes / size, rtol=1e-6, atol=1e-6)
    weights = weights / size
    found, expected = (reverse(f, name, a, weights) for f in (ours, theirs))
    scale = expected.abs().amax((1, 2), keepdim=True)
    torch.testing.assert_close(found / scale, expected / scale, rtol=1e-9, atol=1e-9)


NEIGHBOURS = ["polar_decompose", "solved", "sym_eig", "eig", "lu", "cholesky"]


@pytest.mark.parametrize(("name", "n"), [
    *((name, 2) for name in NEIGHBOURS),
    *(pytest.param(name, 3, marks=pytest.mark.slow) for name in NEIGHBOURS if name != "eig"),
])  # fmt: skip
def test_derivatives_of_the_others_are_slopes(name: str, n: int) -> None:
    a = zeros_in(n)
    a = a / a.abs().amax((1, 2), keepdim=True)
    if name in ("polar_decompose", "solved", "lu"):
        a = torch.cat([a, equal(n)])
    if name == "cholesky":
        a = a @ a.mT + torch.diag(torch.arange(1.0, n + 1))
    if name == "sym_eig":  # with eigenvalues that differ
        a = a @ a.mT
    if name == "eig":  # likewise
        a = a[(torch.linalg.eigvals(a).diff().abs() > 1e-3).flatten()]
    tangent, weights = drawn(name, a)
    tangent = tangent + tangent.mT if name == "sym_eig" else tangent
    found, slopes = forward(ours, name, a, tangent), differences(name, a, tangent)
    size = 1 + slopes.abs().amax(1, keepdim=True)
    torch.testing.assert_close(found / size, slopes / size, rtol=1e-6, atol=1e-6)
    product = (reverse(ours, name, a, weights) * tangent).sum((1, 2))
    torch.testing.assert_close(product, (found * weights).sum(1), rtol=1e-9, atol=1e-9)


def hessians(f, name: str, a: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    a = a.clone().requires_grad_()
    (g,) = torch.autograd.grad((f(name, a) * weights).sum(), a, create_graph=True)
    rows = [torch.autograd.grad(x.sum(), a, retain_graph=True)[0] for x in g.flatten(1).T]
    return torch.stack(rows, 1)


@pytest.mark.parametrize("name", ["qr", pytest.param("svd", marks=pytest.mark.slow)])
def test_second_derivatives_are_those_of_torch(name: str) -> None:
    a = zeros_in(2)
    a = a / a.abs().amax((1, 2), keepdim=True)
    weights = drawn(name, a)[1]
    found, expected = (hessians(f, name, a, weights) for f in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_triangle_is_its_own_and_the_product_is_the_matrix(dtype: torch.dtype) -> None:
    """Signs are LAPACK's: columns that are zero below the diagonal are not reflected."""
    a = torch.stack([torch.eye(3), -torch.eye(3), torch.diag(torch.tensor([2.0, -3.0, 5.0])),
                     torch.diag(torch.tensor([1.0, 1e-25, -1e-30])), 1e30 * torch.eye(3),
                     torch.randn(3, 3).triu(), torch.diag(torch.full((3,), 1e-36))])  # fmt: skip
    a = a.to(dtype).requires_grad_()
    q, r = run("qr", a)
    assert torch.equal(q, torch.eye(3, dtype=dtype).expand_as(q))
    assert torch.equal(r, a)
    weights = torch.randn_like(a)
    (g,) = torch.autograd.grad((q @ r * weights).sum(), a, retain_graph=True)
    torch.testing.assert_close(g[:6], weights[:6])
    (g,) = torch.autograd.grad(q[:, 2, 1].sum(), a)
    expected = torch.zeros_like(a)
    expected[:, 2, 1] = 1 / a.detach()[:, 1, 1]
    expected[:, 2, 0] = -(a[:, 0, 1] / a[:, 0, 0] / a[:, 1, 1]).detach()
    torch.testing.assert_close(g, expected, rtol=1e-5, atol=1e-5)


def test_derivatives_of_zero_columns_tiny_and_huge_numbers_are_not_nan() -> None:
    """A column of zeros has none; the largest numbers are scaled like others."""
    a = torch.zeros(7, 3, 3)
    a[1, :, 1:] = torch.tensor([[1.0, 2], [0, 3], [4, 0]])
    a[2] = torch.diag(torch.tensor([1.0, 0.0, 2.0]))
    a[3, 0, 1] = 2
    a[4] = 1e-40 * torch.eye(3)
    a[5] = 1e38 * torch.eye(3)
    a[6] = torch.finfo(torch.float32).max * torch.tensor([[0.5, 1, 0], [0.6, 0, 1], [1, 0, 0]])
    a.requires_grad_()
    q, r = run("qr", a)
    assert q.isfinite().all()
    assert r[:6].isfinite().all()
    torch.testing.assert_close(q[6], torch.linalg.qr(a[6].double())[0].float())
    for part in (q, r[:6]):
        (g,) = torch.autograd.grad(part.sum(), a, retain_graph=True)
        assert not g.isnan().any()


def test_the_first_power_of_a_complex_zero_has_its_derivative() -> None:
    @weft.kernel
    def powers(z):
        out = torch.empty_like(z)
        for i in range(z.shape[0]):
            w = weft.math.cpow(weft.Vector([z[i, 0], z[i, 1]]), 1.0 + i % 2)
            out[i, 0] = w.x
            out[i, 1] = w.y
        return out

    z = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[2.0, 3.0]] * 3, dtype=torch.float64)
    (g,) = torch.autograd.grad((powers(z) * weights).sum(), z)
    torch.testing.assert_close(g, torch.tensor([[2.0, 3.0], [0.0, 0.0], [2.0, 3.0]]).double())
