"""Determinants and inverses of matrices with more than four rows, compiled and in plain Python."""

import itertools
import math

import pytest
import torch

import weft
from weft.lang import elimination
from weft.lang.vectors import Matrix


@weft.kernel
def inverse_of_5(x, y):
    for b in range(x.shape[0]):
        m = weft.Matrix.zero(float, 5, 5)
        for i in weft.static(range(5)):
            for j in weft.static(range(5)):
                m[i, j] = x[b, i, j]
        w = m.inverse()
        for i in weft.static(range(5)):
            for j in weft.static(range(5)):
                y[b, i, j] = w[i, j]


@weft.kernel
def determinant_of_5(x, y):
    for b in range(x.shape[0]):
        m = weft.Matrix.zero(float, 5, 5)
        for i in weft.static(range(5)):
            for j in weft.static(range(5)):
                m[i, j] = x[b, i, j]
        y[b] = m.determinant()


@weft.kernel
def whole_determinant_of_5(x, y):
    for b in range(x.shape[0]):
        m = weft.Matrix.zero(weft.i32, 5, 5)
        for i in weft.static(range(5)):
            for j in weft.static(range(5)):
                m[i, j] = x[b, i, j]
        y[b] = m.determinant()


def matrices(n: int) -> torch.Tensor:
    """Random ones, permutations, needing pivots in rows and columns, and nearly singular."""
    random = torch.randn(4, n, n, dtype=torch.float64)
    small = torch.randn(n, n, dtype=torch.float64)
    small[torch.arange(n), torch.arange(n)] = 1e-14
    zero_corner = torch.randn(n, n, dtype=torch.float64)
    zero_corner[: n // 2, : n // 2] = 0.0
    near = torch.randn(n, n, dtype=torch.float64)
    near[-1] = near[:-1].sum(0) + 1e-7 * near[-1]
    orders = [torch.eye(n, dtype=torch.float64)[torch.randperm(n)] for _ in range(3)]
    return torch.stack([*random, small, zero_corner, near, *orders])


def rows_of(m: Matrix) -> torch.Tensor:
    return torch.tensor(m.to_list(), dtype=torch.float64)


def test_an_inverse_is_as_accurate_as_torchs():
    x = matrices(5)
    y = torch.full_like(x, math.nan)
    inverse_of_5(x, y)
    plain = torch.stack([rows_of(Matrix(m.tolist()).inverse()) for m in x])
    of_tensors = torch.stack([rows_of(Matrix(list(m)).inverse()) for m in x])
    exact = torch.linalg.inv(x)
    tolerance = 1e-15 * 50 * torch.linalg.cond(x) * torch.linalg.matrix_norm(exact)
    for found in (y, plain, of_tensors):
        assert (torch.linalg.matrix_norm(found - exact) <= tolerance).all()


@pytest.mark.parametrize("n", [6, 8, 11])
def test_larger_ones_in_plain_python(n):
    for m in matrices(n):
        w, d = rows_of(Matrix(m.tolist()).inverse()), Matrix(m.tolist()).determinant()
        exact = torch.linalg.inv(m)
        bound = 1e-15 * 50 * torch.linalg.cond(m)
        assert torch.linalg.matrix_norm(w - exact) <= bound * torch.linalg.matrix_norm(exact)
        assert abs(d - torch.linalg.det(m)) <= bound * torch.linalg.det(m).abs()


def test_a_determinant_is_as_accurate_as_torchs():
    x = matrices(5)
    y = torch.full((len(x),), math.nan, dtype=torch.float64)
    determinant_of_5(x, y)
    plain = torch.tensor([Matrix(m.tolist()).determinant() for m in x], dtype=torch.float64)
    exact = torch.linalg.det(x)
    for found in (y, plain):
        assert ((found - exact).abs() <= 1e-14 * torch.linalg.cond(x) * exact.abs()).all()


def singular() -> torch.Tensor:
    """Of rank 4 (by a row, and by a column of zeros) and 3."""
    x = torch.randint(-4, 5, (3, 5, 5)).double() + 9 * torch.eye(5, dtype=torch.float64)
    x[0, 3] = x[0, 1] * 2
    x[1, :, 0] = 0.0
    x[2, 3], x[2, 4] = x[2, 1], 0.0
    return x


def test_determinants_of_singular_matrices_have_their_derivatives():
    x = singular().requires_grad_()
    y = torch.empty(3, dtype=torch.float64)
    determinant_of_5(x, y)
    torch.testing.assert_close(y, torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)
    y.sum().backward()
    expected = torch.zeros_like(x)
    for b, i, j in itertools.product(range(3), range(5), range(5)):
        rows = [r for r in range(5) if r != i]
        columns = [c for c in range(5) if c != j]
        minor = x.detach()[b][rows][:, columns]
        expected[b, i, j] = (-1) ** (i + j) * torch.linalg.det(minor)
    torch.testing.assert_close(x.grad, expected, atol=1e-8, rtol=1e-9)


def test_an_inverse_of_a_singular_matrix_is_not_finite():
    x = singular()[1:2]
    y = torch.zeros_like(x)
    inverse_of_5(x, y)
    assert not y.isfinite().all()
    assert not rows_of(Matrix(x[0].tolist()).inverse()).isfinite().all()


def test_gradients():
    x = matrices(5)[[0, 5, 8]].requires_grad_()

    def inverse(x):
        y = torch.empty_like(x)
        inverse_of_5(x, y)
        return y

    def determinant(x):
        y = torch.empty(len(x), dtype=x.dtype)
        determinant_of_5(x, y)
        return y

    torch.autograd.gradcheck(inverse, x)
    torch.autograd.gradcheck(determinant, x)


def test_a_determinant_of_integers_is_exact_and_wraps():
    x = torch.randint(-9, 10, (5, 5, 5), dtype=torch.int32)
    x[3] *= 1000
    y = torch.empty(5, dtype=torch.int32)
    whole_determinant_of_5(x, y)
    for m, found in zip(x.tolist(), y.tolist(), strict=True):
        exact = sum(
            (-1) ** sum(p[i] > p[j] for i in range(5) for j in range(i + 1, 5))
            * math.prod(m[k][p[k]] for k in range(5))
            for p in itertools.permutations(range(5))
        )  # fmt: skip
        assert Matrix(m).determinant() == exact
        assert (found - exact) % 2**32 == 0


def test_nan_is_not_lost():
    for i, j in itertools.product(range(5), range(5)):
        m = torch.randn(5, 5).tolist()
        m[i][j] = math.nan
        assert math.isnan(Matrix(m).determinant())


@pytest.mark.parametrize("function", ["determinant", "whole_determinant", "inverse"])
def test_operations_grow_with_a_power_of_the_rows(function):
    """From 6 to 12 rows, n**3 makes 8 of 1 and n**4 (of integers) 16 in the end."""

    def count(n: int) -> int:
        done = 0

        def any_of(*_) -> str:
            nonlocal done
            done += 1
            return "x"

        arithmetic = elimination.Arithmetic(any_of, any_of, any_of, any_of, any_of, any_of)
        getattr(elimination, function)(arithmetic, [["x"] * n for _ in range(n)])
        return done

    assert count(8) < 6000
    assert count(12) < (20 if function == "whole_determinant" else 8.5) * count(6)
