"""Words of Taichi's for small vectors and matrices, in kernels and beside them in Python."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

import weft as ti
from weft.errors import KernelIndexError, KernelTypeError
from weft.lang import absent


def flat(values: Any) -> list[float]:
    """All numbers of scalars, vectors and matrices, one after the other."""
    found: list[float] = []
    for value in values:
        items = value.entries() if hasattr(value, "entries") else [value]
        found += [float(item) for item in items]
    return found


@ti.func
def parts(x):
    m = ti.Matrix([[1.0, 2.0, x], [4.0, 5.0, 6.0]])
    v = ti.Vector([1, 2, 3, 4])
    c = ti.Matrix([7, 8, x])
    n = 2
    return (
        m[0:1, :], m[:, 1:], m[:, -1], m[1, ::2], m[1:], v[1:n], v[::-1], c[1:],
        m * [[1, 1, 1], [x, 1, 1]], [1, 2, 3, 4] * v, ti.max(v, [2, 2, 2, 2]), m @ [1, 0, x],
        ti.Matrix.rows([v, v]), ti.Matrix.cols([c, [1, 2, 3]]), ti.Matrix.diag(2, x),
        ti.Vector.unit(3, 1), ti.Vector([c.norm_inv()]), c.transpose(), c.transpose() @ c,
    )  # fmt: skip


@ti.func
def turns(x):
    axis = ti.Vector([1.0, 2.0, x])
    return (
        ti.math.rotation2d(x), ti.math.vdir(x), ti.math.rot_by_axis(axis, x + 0.25),
        ti.math.rotation3d(0.52, -0.785, x), ti.math.translate(1, 2, x), ti.math.scale(x, 1, 2),
        ti.math.refract(ti.Vector([1.0, 1.0, x]), ti.Vector([0.0, 1.0, 0.0]), 2.0),
        ti.math.refract(ti.Vector([3.0, 0.0]), ti.Vector([0.0, 1.0]), x),
        ti.math.cpow(ti.Vector([x, 0.5]), 3.0), ti.math.csqrt(ti.Vector([0.0, 0.0])),
    )  # fmt: skip


@ti.func
def stored(out, i, k, part):
    if ti.static(len(part.shape) == 1):
        for a in ti.static(range(part.shape[0])):
            out[i, k + a] = part[a]
        k += part.shape[0]
    else:
        for row in ti.static(part):
            for item in ti.static(row):
                out[i, k] = item
                k += 1
    return k


@ti.kernel
def both(f: ti.template(), x, out):
    for i in x:
        k = 0
        made = f(x[i])
        for q in ti.static(range(len(made))):
            k = stored(out, i, k, made[q])


@pytest.mark.parametrize("function", [parts, turns])
def test_a_kernel_makes_what_python_makes(function):
    x = torch.rand(3, dtype=torch.float64)
    expected = [flat(function(float(item))) for item in x]
    out = torch.full((3, len(expected[0])), math.nan, dtype=torch.float64)
    both(function, x, out)
    torch.testing.assert_close(out, torch.tensor(expected, dtype=torch.float64))


def test_rotations_are_those_of_their_formulas():
    """rotation3d's example in Taichi's documentation, and what each rotation is made of."""
    found = ti.math.rotation3d(0.52, -0.785, 1.046)
    expected = [[0.05048351, -0.61339645, -0.78816002], [0.65833154, 0.61388511, -0.4355969],
                [0.75103329, -0.49688014, 0.4348093]]  # fmt: skip
    np.testing.assert_allclose(found.to_numpy()[:3, :3], expected, atol=1e-7)
    np.testing.assert_array_equal(found.to_numpy()[3], [0, 0, 0, 1])
    turn = ti.math.rot_by_axis(ti.Vector([0.0, 0.0, 5.0]), 0.3).to_numpy()
    np.testing.assert_allclose(turn[:2, :2].T, ti.math.rotation2d(0.3).to_numpy(), atol=1e-15)
    axis = np.array([1.0, 2.0, -0.5])
    turn = ti.math.rot_by_axis(ti.Vector(axis.tolist()), 1.1).to_numpy()[:3, :3]
    np.testing.assert_allclose(axis @ turn, axis, atol=1e-15)
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-15)
    assert np.trace(turn) == pytest.approx(1 + 2 * math.cos(1.1))
    assert (ti.math.translate(1, 2, 3) @ ti.Vector([5, 5, 5, 1])).to_list() == [6, 7, 8, 1]
    bent = ti.math.refract(ti.Vector([1.0, 1.0, 1.0]), ti.Vector([0.0, 1.0, 0.0]), 2.0)
    assert bent.to_list() == [2, -1, 2]


def test_complex_numbers_as_vectors():
    z, w = ti.Vector([0.6, -1.25]), ti.Vector([-2.0, 0.5])
    a, b = complex(0.6, -1.25), complex(-2.0, 0.5)
    m = ti.math
    pairs = [
        (m.cmul(z, w), a * b), (m.cdiv(z, w), a / b), (m.cinv(w), 1 / b), (m.cexp(z), cmath.exp(a)),
        (m.clog(w), cmath.log(b)), (m.cpow(w, 3.0), b**3), (m.csqrt(w), cmath.sqrt(b)),
        (m.cconj(z), a.conjugate()), (m.cpow(0.0 * z, 2.0), 0j),
    ]  # fmt: skip
    for found, expected in pairs:
        assert complex(*found.to_list()) == pytest.approx(expected)


def test_names_that_are_not_there_are_refused_with_the_page():
    with pytest.raises(AttributeError) as caught:
        ti.GUI
    assert str(caught.value) == (
        "weft has no GUI and no images: `GUI`; show or write the tensor with another library; "
        "docs/port-taichi.md says what there is"
    )
    assert not hasattr(ti, "block_local")
    assert ti.TaichiTypeError is KernelTypeError

    @ti.kernel
    def hinted(x: torch.Tensor):
        for i in x:
            ti.block_local(x)
            x[i] = 1.0

    with pytest.raises(KernelTypeError) as caught:
        hinted(torch.ones(1))
    assert "weft has no such hints for caches: `block_local`" in str(caught.value)
    assert "docs/port-taichi.md says what there is" in str(caught.value)
    for name in absent.ABSENT:
        assert name.isidentifier()
        assert not hasattr(ti, name), f"{name} is there"


def test_vectors_and_matrices_in_python():
    v, m = ti.Vector([1.0, 2.0, 2.0]), ti.Matrix([[1, 2], [3, 4]])
    assert v.norm_inv() == pytest.approx(1 / 3)
    assert ti.Vector([0.0]).norm_inv() == math.inf
    assert v.transpose().to_list() == [[1, 2, 2]]
    assert v.to_numpy(keep_dims=True).shape == (3, 1)
    assert m.to_numpy(keep_dims=True).tolist() == [[1, 2], [3, 4]]
    assert (m == [[1, 2], [3, 4]]).all()
    assert (m * [[1, 1], [0, 2]]).to_list() == [[1, 2], [0, 8]]
    assert m[:1, 1:].to_list() == [[2]]
    assert m[:, 1].to_list() == [2, 4]
    assert m[1, :].to_list() == [3, 4]
    assert isinstance(ti.Matrix([1, 2]), ti.Vector)
    m.fill(7)
    assert m.to_list() == [[7, 7], [7, 7]]
    field = ti.Vector.field(2, ti.i32, shape=3)
    kept = np.arange(6, dtype=np.int32).reshape(3, 2, 1)
    field.from_numpy(kept)
    assert (field.to_numpy(keep_dims=True) == kept).all()
    assert field.to_numpy(dtype=np.float64).dtype == np.float64
    for cell in ti.grouped(ti.ndrange(1)):
        assert cell.cast(ti.f32)[0].dtype is torch.float32


def test_what_slices_and_lists_cannot_be():
    @ti.kernel
    def computed(n: int, o: torch.Tensor):
        for i in o:
            v = ti.Vector([1.0, 2.0, 3.0])
            o[i] = v[:n].sum()

    with pytest.raises(KernelTypeError, match="a bound of a slice that is only known at run time"):
        computed(2, torch.zeros(1))

    @ti.kernel
    def empty(o):
        for i in o:
            o[i] = ti.Vector([1.0, 2.0])[2:].sum()

    with pytest.raises(KernelIndexError, match=r"a slice of a vector .* that holds nothing"):
        empty(torch.zeros(1))
    for wrong in ([[1, 2]], [1, 2], [[1, 2], [3]]):
        with pytest.raises(KernelTypeError, match="operands have 2x2 and"):
            ti.Matrix([[1, 2], [3, 4]]) + wrong


def test_gradients_go_through_slices_and_rotations():
    @ti.kernel
    def turned(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], 2, dtype=x.dtype)
        for i in range(x.shape[0]):
            v = ti.Vector([x[i, 0], x[i, 1], x[i, 2]])
            w = ti.math.rot_by_axis(v, x[i, 0])[0:2, 1:3] @ v[1:]
            out[i, 0] = w.x
            out[i, 1] = w.norm_inv()
        return out

    x = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(turned, x)


def parts_stored(k):
    m = ti.Matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    v = ti.Vector([10.0, 20.0, 30.0])
    m[:, 0] = v
    m[0, :] = m[:, 0]
    m[1:3, 1] = (0.5, 0.25)
    m[::2, 1:] += ti.Matrix([[1.0, 2.0], [3.0, 4.0]])
    m[k, :2] = v[::2]
    v[1:] = 7.0
    m[1] = v
    return m


@ti.kernel
def parts_stored_in_a_loop(out, k: int):
    for _ in range(1):
        m = parts_stored(k)
        for i, j in ti.static(ti.ndrange(3, 3)):
            out[i, j] = m[i, j]


def test_slices_of_matrices_and_vectors_are_written_to():
    for k in range(3):
        found, wanted = torch.empty(3, 3), parts_stored(k)
        parts_stored_in_a_loop(found, k)
        assert found.tolist() == wanted.to_list()
        assert ti.kernel(parts_stored)(k).to_list() == wanted.to_list()
    assert wanted.to_list() == [[10, 21, 32], [10, 7, 7], [10, 30, 13]]


@ti.kernel
def too_long(out):
    for i in out:
        m = ti.Matrix([[1.0, 2.0], [3.0, 4.0]])
        m[:, 0] = ti.Vector([1.0, 2.0, 3.0])
        out[i] = m[0, 0]


def test_what_does_not_fit_a_slice_is_refused():
    with pytest.raises(KernelTypeError, match="is stored where there is"):
        too_long(torch.empty(1))
    with pytest.raises(KernelTypeError, match="2 and 3 elements"):
        ti.Matrix([[1.0, 2.0], [3.0, 4.0]])[:, 0] = ti.Vector([1.0, 2.0, 3.0])


def test_formats_reflected_operators_and_casts_of_vectors() -> None:
    v, m = ti.Vector([1.25, 2.0]), ti.Matrix([[1, 2], [3, 4]])
    assert f"{v:.1f} {m:02d} {v}" == f"[1.2, 2.0] [[01, 02], [03, 04]] {v}"
    assert (6 & m).to_list() == [[0, 2], [2, 4]]
    assert (1 << m).to_list() == [[2, 4], [8, 16]]
    assert (ti.i32(8) ^ m).to_list() == [[9, 10], [11, 12]]
    assert ti.floor(v, int).to_list() == [1, 2]
    assert ti.cast(v, float).to_list() == [1.25, 2.0]
    assert ti.math.mat2(np.array([1, 2]), np.array([3, 4])).to_list() == [[1, 2], [3, 4]]


def test_bits_of_annotated_numbers_are_those_of_their_type() -> None:
    @ti.kernel
    def bits(x: ti.i32) -> tuple[ti.i32, ti.i32, ti.i32]:
        return ti.math.clz(x), ti.math.popcnt(x), ti.bit_shr(x, 4)

    assert bits(1023) == (22, 10, 63)
    assert bits(-16) == (0, 28, 2**28 - 1)


def test_a_number_is_no_collection() -> None:
    x = ti.field(ti.f32, 1)
    x[0] = 0.1
    assert not isinstance(x[0], Iterable)
    assert x[0] == pytest.approx(x[0], rel=1e-5) == 0.1
