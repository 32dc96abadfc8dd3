"""Vectors and matrices against numpy."""

import numpy as np
import pytest
import torch

from weft.errors import KernelTypeError
from weft.lang import dtypes
from weft.lang import math as wm
from weft.lang.loops import Index
from weft.lang.vectors import Matrix, Vector

random = np.random.default_rng()


def close(found, expected):
    values = found.to_list() if hasattr(found, "to_list") else float(found)
    np.testing.assert_allclose(values, expected, rtol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_arithmetic_matches_numpy(n):
    a, b = random.normal(size=n), random.normal(size=n)
    v, w = Vector(a.tolist()), Vector(b.tolist())
    for found, expected in [
        (v + w, a + b), (v - 2, a - 2), (3 - v, 3 - a), (v * w, a * b), (v / w, a / b),
        (v // w, a // b), (v % w, a % b), (-v, -a), (abs(v), abs(a)), (v.dot(w), a @ b),
        (v @ w, a @ b), (v.norm(), np.linalg.norm(a)), (v.norm_sqr(), a @ a), (v.sum(), a.sum()),
        (v.max(), a.max()), (v.min(), a.min()), (v.normalized(), a / np.linalg.norm(a)),
        (v.outer_product(w), np.outer(a, b)), (2.0 ** v, 2.0 ** a),
    ]:  # fmt: skip
        close(found, expected)
    assert (v < w).any() == (a < b).any()
    assert (v < w).all() == (a < b).all()
    assert (v == v).all()
    assert v.n == len(v) == n
    assert v.m == 1


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_matrices_match_numpy(n):
    a, b, x = random.normal(size=(n, n)), random.normal(size=(n, n)), random.normal(size=n)
    m, k, v = Matrix(a.tolist()), Matrix(b.tolist()), Vector(x.tolist())
    close(m @ k, a @ b)
    close(m @ v, a @ x)
    close(v @ m, x @ a)
    close(m * k, a * b)
    close(m.transpose(), a.T)
    close(m.determinant(), np.linalg.det(a))
    close(m.trace(), np.trace(a))
    np.testing.assert_allclose(m.inverse().to_list(), np.linalg.inv(a), rtol=1e-6)
    assert (m.n, m.m, m[0, n - 1]) == (n, n, a[0, n - 1])


def test_cross_product():
    a, b = random.normal(size=3), random.normal(size=3)
    close(Vector(a).cross(Vector(b)), np.cross(a, b))
    close(Vector(a[:2]).cross(Vector(b[:2])), a[0] * b[1] - a[1] * b[0])


def test_swizzles_read_and_write():
    v = wm.vec4(1, 2, 3, 4)
    assert v.wzyx.to_list() == [4.0, 3.0, 2.0, 1.0]
    assert (v.r, v.ga.to_list()) == (1.0, [2.0, 4.0])
    v.xy = v.yx
    v.w = 9
    v[2] += 1
    assert v.to_list() == [2.0, 1.0, 4.0, 9]
    with pytest.raises(AttributeError, match=r"^a vector of 2 elements has no 'z'$"):
        _ = Vector([1, 2]).z
    with pytest.raises(AttributeError, match=r"^'xx' of a vector of 4 elements cannot be set$"):
        v.xx = v.xy


def test_types_convert_their_elements():
    x, y = wm.ivec2(3.9, -1.5)
    assert (x.item(), y.item(), x.dtype) == (3, -1, torch.int32)
    assert wm.vec3(wm.vec2(1, 2), 3).to_list() == [1.0, 2.0, 3.0]
    assert wm.vec2(torch.tensor(1.0, dtype=torch.float64), 0)[0].dtype == torch.float64
    assert wm.vec3(7).to_list() == [7.0] * 3
    assert Vector([1, 2], dtypes.f64)[1].dtype == torch.float64
    assert dtypes.i32(wm.vec2(1.5, -1.5)).to_list() == [1, -1]
    assert (wm.ivec2(7, -7) // 2).to_list() == [3, -4]
    assert Vector.unit(3, 1).to_list() == [0, 1, 0]
    assert wm.mat2([1, 2], [3, 4]).to_list() == [[1.0, 2.0], [3.0, 4.0]]
    assert Matrix.cols([Vector([1, 2]), Vector([3, 4])]).to_list() == [[1, 3], [2, 4]]


def test_augmented_assignment_makes_a_new_vector():
    v = Vector([1, 2])
    w = v
    w += 1
    assert v.to_list() == [1, 2]
    assert w.to_list() == [2, 3]


def test_an_index_vector_subscripts_plain_tensors():
    x, i = torch.arange(6).reshape(2, 3), Index((1, 0))
    assert x[i] == 3
    assert x[i + Index((0, 2))] == 5
    assert x[i - (1, 0)] == 0
    assert (i.x, i[1], i.n, list(2 * i)) == (1, 0, 2, [2, 0])
    assert x[i.yx] == x[i.gr] == 1
    with pytest.raises(AttributeError, match="an index vector of 2 elements has no 'xz'"):
        _ = i.xz


def test_sizes_that_differ_are_refused():
    with pytest.raises(KernelTypeError) as error:
        Vector([1, 2]) + Vector([1, 2, 3])
    assert str(error.value) == (
        "operands have 2 and 3 elements\n"
        "help: element-wise operations need equal shapes, or a scalar on one side"
    )
    with pytest.raises(KernelTypeError) as error:
        wm.vec3(1, 2)
    assert str(error.value) == (
        "a vector of 3 elements is made from 2\n"
        "help: pass 3 scalars, vectors that add up to 3, or one scalar"
    )


def test_the_truth_of_a_vector_is_refused():
    for value, kind in ((Vector([0, 0]), "vector"), (Matrix([[0]]), "matrix")):
        for ask in (bool, lambda v: v or 1, lambda v: not v, lambda v: any([v])):
            with pytest.raises(KernelTypeError) as caught:
                ask(value)
            assert str(caught.value) == (
                f"a {kind} is neither true nor false\nhelp: write .any() or .all() on it"
            )
    m = Matrix([[0, 1], [0, 0]])
    assert m.any()
    assert not m.all()
    with pytest.raises(KernelTypeError):
        any(m)  # of its rows
