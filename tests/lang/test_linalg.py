"""Solutions and decompositions of small matrices, beside torch's of the same in float64."""

from __future__ import annotations

import itertools

import pytest
import torch

import weft
from tests.cuda.emulator import emulated
from weft.errors import KernelTypeError

# Each function, size and dtype is a compilation of `parts`: more than 64 in one process.
pytestmark = pytest.mark.filterwarnings("ignore:the loop at line .* was compiled 64 times")
linalg = weft.linalg
SQUARE = ("lu", "qr", "sym_eig", "svd", "polar_decompose", "cholesky")


def loaded(a, b, n, m):
    made = weft.Matrix.zero(float, n, m)
    for i in weft.static(range(n)):
        for j in weft.static(range(m)):
            made[i, j] = a[b, i, j]
    return made


def stored(out, b, k, part):
    """Stores all numbers of ``part``; gives the place behind them."""
    if weft.static(len(part.shape) == 1):
        for i in weft.static(range(part.shape[0])):
            out[b, k + i] = part[i]
        k += part.shape[0]
    else:
        for i in weft.static(range(part.shape[0])):
            for j in weft.static(range(part.shape[1])):
                out[b, k + i * part.shape[1] + j] = part[i, j]
        k += part.shape[0] * part.shape[1]
    return k


@weft.kernel
def parts(
    f: weft.template(), n: weft.template(), m: weft.template(), count: weft.template(), a
) -> torch.Tensor:
    """All numbers of what ``f`` gives of each matrix, in a row."""
    out = torch.full((a.shape[0], count), 7.7, dtype=a.dtype)
    for b in range(a.shape[0]):
        k = 0
        made = f(loaded(a, b, n, m))
        for q in weft.static(range(len(made))):
            k = stored(out, b, k, made[q])
    return out


def cholesky(a):
    return (linalg.cholesky(a),)


def values(a):
    return (linalg.sym_eig(a)[0],)


def solved(a):
    return (linalg.solve(a, a.transpose() + weft.Matrix.identity(float, a.n)),)


FUNCTIONS = {name: getattr(linalg, name) for name in SQUARE} | {
    "cholesky": cholesky, "values": values, "solved": solved, "eig": linalg.eig,
}  # fmt: skip


def shapes(name: str, n: int, m: int) -> list[tuple[int, ...]]:
    k = min(n, m)
    return {
        "lu": [(n, n)] * 3, "qr": [(n, m), (m, m)], "sym_eig": [(n,), (n, n)], "values": [(n,)],
        "svd": [(n, k), (k,), (m, k)], "polar_decompose": [(n, n)] * 2, "cholesky": [(n, n)],
        "solved": [(n, n)], "eig": [(n, 2), (2 * n, n)],
    }[name]  # fmt: skip


def run(name: str, a: torch.Tensor) -> list[torch.Tensor]:
    """What ``weft.linalg`` gives of a batch of matrices."""
    n, m = a.shape[1:]
    sizes = [torch.Size(shape) for shape in shapes(name, n, m)]
    out = parts(FUNCTIONS[name], n, m, sum(s.numel() for s in sizes), a)
    ends = itertools.accumulate(s.numel() for s in sizes)
    pairs = zip(ends, sizes, strict=True)
    return [out[:, end - s.numel() : end].reshape(-1, *s) for end, s in pairs]


def matrices(n: int, m: int, dtype: torch.dtype) -> torch.Tensor:
    """Random ones, and: zeros, the identity, equal rows, tiny, huge, of nearly equal rows, of
    whole numbers (ties), a permutation, a multiple of the identity."""
    a = torch.randn(24, n, m, dtype=torch.float64)
    a[0], a[1] = 0, torch.eye(n, m)
    if n > 1:
        a[2, 1] = a[2, 0]
        a[5, 1] = a[5, 0] * (1 + 1e-7)
    a[3] *= 1e-18
    a[4] *= 1e18
    a[6] = torch.randint(-2, 3, (n, m))
    a[7] = torch.eye(n, m).flip(0)
    a[8] = -3 * torch.eye(n, m)
    return a.to(dtype)


def size_of(a: torch.Tensor) -> torch.Tensor:
    size = a.abs().amax((1, 2))
    return torch.where(size == 0, 1.0, size)


def assert_close(found: torch.Tensor, expected: torch.Tensor, a: torch.Tensor) -> None:
    """Within a few roundings of the largest element."""
    scale = size_of(a).reshape(-1, *[1] * (found.dim() - 1)).double()
    error = ((found.double() - expected.double()) / scale).abs().amax().item()
    assert error < 64 * torch.finfo(a.dtype).eps, error


def assert_orthonormal(u: torch.Tensor) -> None:
    one = torch.eye(u.shape[-1], dtype=u.dtype)
    assert (u.mT @ u - one).abs().amax() < 64 * torch.finfo(u.dtype).eps


CASES = [
    pytest.param(n, n, dtype, marks=pytest.mark.slow if n > 3 or dtype is not wide else ())
    for n in (1, 2, 3, 4, 6)
    for dtype, wide in ((torch.float64, torch.float64 if n == 2 else torch.float32),
                        (torch.float32, torch.float64 if n == 2 else torch.float32))
]  # fmt: skip


def check(name: str, a: torch.Tensor) -> None:
    wide = a.double()
    if name == "lu":
        p, lower, u = run(name, a)
        assert_close(p.double() @ lower.double() @ u.double(), wide, a)
        torch.testing.assert_close(p, torch.linalg.lu(a)[0])
    elif name == "qr":
        q, r = run(name, a)
        assert_close(q.double() @ r.double(), wide, a)
        theirs, triangle = torch.linalg.qr(wide)
        # Of whole numbers a pivot may be 0 but for rounding, which says its sign then.
        triangle[6] *= torch.where((q[6] * theirs[6]).sum(0) < 0, -1.0, 1.0)[:, None]
        assert_close(r, triangle, a)
        assert_orthonormal(q)
    elif name == "sym_eig":
        whole = a + a.mT
        found, v = run(name, whole)
        assert_close(found, torch.linalg.eigvalsh(whole.double()), whole)
        again = v.double() @ torch.diag_embed(found.double()) @ v.double().mT
        assert_close(again, whole.double(), whole)
        assert_orthonormal(v)
    elif name == "svd":
        u, s, v = run(name, a)
        assert_close(s, torch.linalg.svdvals(wide), a)
        assert_close(u.double() @ torch.diag_embed(s.double()) @ v.double().mT, wide, a)
        assert_orthonormal(u)
        assert_orthonormal(v)
    elif name == "polar_decompose":
        u, p = run(name, a)
        assert_close(u.double() @ p.double(), wide, a)
        assert_orthonormal(u)
        torch.testing.assert_close(p, p.mT.contiguous())
        lowest = torch.linalg.eigvalsh((p / size_of(a)[:, None, None]).double()).min()
        assert lowest > -64 * torch.finfo(a.dtype).eps
    else:
        scaled = a / size_of(a)[:, None, None]
        definite = scaled @ scaled.mT + torch.eye(a.shape[1], dtype=a.dtype)
        (lower,) = run("cholesky", definite)
        assert_close(lower, torch.linalg.cholesky(definite.double()), definite)


@pytest.mark.parametrize(("n", "m", "dtype"), CASES)
@pytest.mark.parametrize("name", SQUARE)
def test_decompositions(name: str, n: int, m: int, dtype: torch.dtype) -> None:
    torch.manual_seed(n)
    check(name, matrices(n, m, dtype))


@pytest.mark.cpu
@pytest.mark.parametrize("name", [
    "polar_decompose", *(pytest.param(name, marks=pytest.mark.slow) for name in ("svd", "solved"))
])  # fmt: skip
def test_a_gpu_would_compute_the_same(name: str) -> None:
    """In the emulator."""
    torch.manual_seed(4)
    a = torch.randn(6, 2, 2)
    given = FUNCTIONS[name], 2, 2, sum(torch.Size(s).numel() for s in shapes(name, 2, 2)), a
    torch.testing.assert_close(emulated(parts)(*given), parts(*given))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(3, 2), (2, 3), (5, 2), (4, 1), (1, 3)])
def test_matrices_that_are_not_square(n: int, m: int) -> None:
    torch.manual_seed(n)
    check("svd", matrices(n, m, torch.float64))
    if n >= m:
        check("qr", matrices(n, m, torch.float64))


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow),
                               pytest.param(6, marks=pytest.mark.slow)])  # fmt: skip
def test_solutions(n: int) -> None:
    torch.manual_seed(n)
    a = torch.randn(64, n, n, dtype=torch.float64)
    a[0, 0, 0] = 0  # pivots
    a[1] = torch.eye(n).flip(0)
    a[2] *= 1e100
    (x,) = run("solved", a)
    expected = torch.linalg.solve(a, a.mT + torch.eye(n))
    error = (x - expected).abs().amax((1, 2)) / expected.abs().amax((1, 2))
    condition = torch.linalg.cond(a)
    assert (error / condition).amax() < 64 * torch.finfo(a.dtype).eps


def test_eigenvalues_of_a_general_matrix() -> None:
    torch.manual_seed(5)
    a = matrices(2, 2, torch.float64)
    a[9] = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    a[10] = torch.tensor([[2.0, 1.0], [0.0, 2.0]])  # one direction only
    found, vectors = run("eig", a)
    lam = torch.view_as_complex(found)  # (b, 2)
    v = torch.view_as_complex(vectors.reshape(-1, 2, 2, 2).transpose(2, 3).contiguous())
    residual = a.to(v.dtype) @ v - v * lam[:, None]
    assert (residual.abs().amax((1, 2)) / size_of(a)).amax() < 1e-14
    torch.testing.assert_close(v.abs().square().sum(1), torch.ones_like(found[..., 0]))
    expected = torch.linalg.eigvals(a)
    total = (lam.sum(1) - expected.sum(1)).abs() / size_of(a)
    product = (lam.prod(1) - expected.prod(1)).abs() / size_of(a) ** 2
    assert max(total.amax(), product.amax()) < 1e-14


def numbers(name: str, a: torch.Tensor) -> torch.Tensor:
    """The numbers of what ``name`` gives, with a history."""
    square = a @ a.mT + torch.eye(a.shape[1], dtype=a.dtype) if name == "cholesky" else a
    return torch.cat([part.flatten(1) for part in run(name, square)], 1)


GRADED = [("sym_eig", 2), ("svd", 2), ("polar_decompose", 2), ("solved", 2), ("eig", 2)]
LARGER = [(name, 3) for name in (*SQUARE, "solved")] + [("qr", 2), ("lu", 2), ("cholesky", 2)]


@pytest.mark.parametrize(("name", "n"), [
    *GRADED, *(pytest.param(*case, marks=pytest.mark.slow) for case in LARGER)
])  # fmt: skip
def test_gradients(name: str, n: int) -> None:
    torch.manual_seed(n)
    a = torch.randn(2, n, n, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: numbers(name, x), a)


@pytest.mark.slow
def test_second_derivatives() -> None:
    torch.manual_seed(1)
    a = torch.randn(1, 2, 2, dtype=torch.float64, requires_grad=True)
    for name in ("sym_eig", "svd", "polar_decompose", "solved"):
        torch.autograd.gradgradcheck(lambda x, name=name: numbers(name, x), a)


def test_derivatives_where_values_are_equal() -> None:
    """Eigenvectors of equal eigenvalues have none, the eigenvalues have, and so has the polar
    decomposition of a rotation: that of ``a = 1 + e`` has ``u = 1 + (e - e.T) / 2``."""
    a = torch.eye(2, dtype=torch.float64)[None].requires_grad_()
    found = numbers("sym_eig", a)
    (g,) = torch.autograd.grad(found[:, 3].sum(), a)
    assert not (g.abs() < 1e30).all()
    (g,) = torch.autograd.grad(numbers("values", a).sum(), a)
    torch.testing.assert_close(g, a.detach())
    weights = torch.tensor([[1.0, 2.0, 5.0, 3.0]], dtype=torch.float64)
    (g,) = torch.autograd.grad((numbers("polar_decompose", a)[:, :4] * weights).sum(), a)
    expected = torch.tensor([[[0.0, -1.5], [1.5, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(g, expected)


def test_in_python_and_by_taichis_names() -> None:
    a = weft.Matrix([[4.0, 1.0], [2.0, 3.0]])
    x = weft.solve(a, weft.Vector([1.0, 2.0]))
    torch.testing.assert_close(x.to_list(), [0.1, 0.6])
    u, s, v = weft.svd(a)
    assert s[0, 1] == 0.0
    again = (u @ s @ v.transpose()).to_list()
    torch.testing.assert_close(again, a.to_list())
    assert weft.polar_decompose is linalg.polar_decompose
    lam, vectors = weft.sym_eig(weft.Matrix([[2, 1], [1, 2]]))
    torch.testing.assert_close(lam.to_list(), [1.0, 3.0])
    assert vectors.shape == (2, 2)


def test_shapes_that_do_not_fit_are_refused_where_the_call_is() -> None:
    @weft.kernel
    def wrong(o):
        for i in range(1):
            o[i] = weft.solve(weft.Matrix([[1.0, 2.0], [3.0, 4.0]]), weft.Vector([1.0]))[0]

    with pytest.raises(KernelTypeError) as caught:
        wrong(torch.zeros(1))
    assert "solve(a, b): `b` has another number of rows than `a`" in str(caught.value)
    assert caught.value.span.file == __file__
    with pytest.raises(KernelTypeError, match=r"qr\(\) takes as many rows as columns, or more"):
        linalg.qr(weft.Matrix([[1.0, 2.0]]))
