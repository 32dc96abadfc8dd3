"""Fields in Taichi's words: offsets, elements of elements as targets, lists of fields, layouts."""

import numpy as np
import pytest
import torch

import weft as ti
from weft.errors import KernelIndexError, KernelTypeError, KernelValueError

FIELDS = [ti.field(ti.f32, 4) for _ in range(3)]


def twice(kernel, *fields):
    """What a kernel leaves in fields of zeros, compiled, which is what ``interpret`` leaves."""
    for field in fields:
        field.fill(0)
    kernel()
    compiled = [field.to_numpy() for field in fields]
    for field in fields:
        field.fill(0)
    kernel.interpret()
    for field, values in zip(fields, compiled, strict=True):
        np.testing.assert_array_equal(field.to_numpy(), values)
    return compiled


@pytest.mark.parametrize("offset", [(-1, 2), (0, 0), (23333, -23333)])
def test_subscripts_of_a_field_begin_at_its_offset(offset):
    x = ti.field(ti.f32, shape=(3, 4), offset=offset)
    a, b = offset

    @ti.kernel
    def fill():
        for cell in ti.grouped(x):
            x[cell] = cell[0] * 10 + cell[1]
        for i, j in x:
            x[i, j] += 0.5 * j
        for i, j in ti.ndrange((a, a + 3), (b, b + 4)):
            x[i, j] *= 2
        x[a, b] += 1

    (found,) = twice(fill, x)
    i, j = np.mgrid[a : a + 3, b : b + 4].astype(np.float32)
    expected = (i * 10 + j + 0.5 * j) * 2
    expected[0, 0] += 1
    np.testing.assert_array_equal(found, expected)
    met = []
    for index in x:
        met.append(index)
    assert met[:2] == [(a, b), (a, b + 1)]
    assert x[a + 2, b + 3] == expected[2, 3]
    x[a + 1, b] = 7
    assert x.to_numpy()[1, 0] == 7


def test_an_offset_and_the_gradient():
    x = ti.Vector.field(2, ti.f32, shape=5, offset=-3, needs_grad=True)
    x.from_numpy(np.random.default_rng(1).random((5, 2), np.float32))

    @ti.kernel
    def products(out: ti.types.ndarray()):
        for i in x:
            out[i + 3] = x[i][0] * x[i].y * i

    out = torch.zeros(5)
    products(out)
    out.sum().backward()
    index = np.arange(-3, 2)
    np.testing.assert_allclose(out.detach().numpy(), x.to_numpy().prod(1) * index, rtol=1e-6)
    assert x.grad[-3][1] == -3 * x[-3].x

    @ti.kernel
    def halve():
        for i in x:
            x.grad[i] *= 0.5
            x.grad[i].y = i

    before = x.grad.to_numpy()
    with torch.no_grad():
        halve()
    np.testing.assert_array_equal(x.grad.to_numpy()[:, 0], before[:, 0] * 0.5)
    np.testing.assert_array_equal(x.grad.to_numpy()[:, 1], index)


def test_offsets_are_part_of_what_is_compiled():
    @ti.kernel
    def numbered(x: ti.template()):
        for i in x:
            x[i] = i

    for offset in (0, 5, -5, 0):
        x = ti.field(ti.i32, shape=3, offset=offset)
        numbered(x)
        assert x.to_numpy().tolist() == [offset, offset + 1, offset + 2]
    plain = ti.field(ti.i32, shape=3)
    numbered(plain)
    assert plain.to_numpy().tolist() == [0, 1, 2]


def test_subscripts_out_of_range_of_an_offset():
    x = ti.field(ti.f32, shape=4, offset=2)
    for i in (1, 6, -1):
        with pytest.raises(KernelIndexError) as caught:
            x[i]
        assert str(caught.value) == (
            f"subscript {i} of a field whose dimension 0 has those from 2 to 5"
        )

    @ti.kernel(debug=True)
    def beyond():
        for i in range(1):
            x[i + 6] = 1

    with pytest.raises(KernelIndexError, match="subscript 4 of `x, 2 taken off` is out of range"):
        beyond()
    with pytest.raises(KernelIndexError, match="subscript 6 of a field"):
        beyond.interpret()
    with pytest.raises(KernelTypeError, match="a slice of a field with an offset"):
        x[2:4]
    with pytest.raises(KernelValueError, match="an offset of 2 numbers for a field of 1 dim"):
        ti.field(ti.f32, shape=3, offset=(3, 4))


def test_elements_of_elements_are_assigned():
    v = ti.Vector.field(3, ti.f32, shape=5)
    m = ti.Matrix.field(2, 3, ti.i32, shape=(5, 2))

    @ti.kernel
    def parts():
        for i in v:
            v[i][1] = 7
            v[i][2] += i
            v[i].xz += ti.Vector([1.0, 2.0])
            v[i].y *= 2
            w = v[i]
            w[0] = 100  # a copy
            v[i].zx = w.yz + 0 * v[i][1:]
        for i in range(5):
            for j in range(2):
                for k in range(3):
                    m[i, j][1, k] = i + k
                m[i, j][0, -1] -= j
                ti.atomic_add(m[i, j][0, 0], 5)
        v[0][1] = -1
        v[1].xy = ti.Vector([-2.0, -3.0])

    found, matrices = twice(parts, v, m)
    i = np.arange(5, dtype=np.float32)
    expected = np.stack([i + 2, np.full(5, 14), np.full(5, 14)], 1)
    expected[0, 1], expected[1, :2] = -1, (-2, -3)
    np.testing.assert_array_equal(found, expected)
    whole = np.zeros((5, 2, 2, 3), np.int32)
    whole[..., 1, :] = (np.arange(5)[:, None] + np.arange(3))[:, None]
    whole[:, 1, 0, 2] = -1
    whole[..., 0, 0] = 5
    np.testing.assert_array_equal(matrices, whole)


def test_a_subscript_beyond_an_element_is_an_error():
    v = ti.Vector.field(3, ti.f32, shape=5)

    @ti.kernel
    def beyond():
        for i in v:
            v[i][3] = 1

    with pytest.raises(KernelIndexError, match="subscript 3 of 3 elements"):
        beyond()


def test_python_sets_elements_of_elements_where_they_have_no_name():
    m = ti.Matrix.field(2, 2, ti.f32, shape=3)
    m[1][0, 1] = 4
    m[1][1, 1] += 5
    v = ti.Vector.field(2, ti.f32, shape=())
    v[None].y = 3
    v[None][0] += 1
    assert m[1].to_list() == [[0, 4], [0, 5]]
    assert v[None].to_list() == [1, 3]
    w = v[None]
    with pytest.raises(KernelTypeError, match=r"`v = x\[i\]` of a field of vectors is a copy"):
        w[0] = 5


def test_fields_of_a_list():
    @ti.kernel
    def levels():
        for i in range(4):
            for level in ti.static(range(3)):
                FIELDS[level][i] = 10 * level + i
        for x in ti.static(FIELDS):
            for i in x:
                x[i] += 1

    for values, level in zip(twice(levels, *FIELDS), range(3), strict=True):
        assert values.tolist() == [10 * level + i + 1 for i in range(4)]
    old, FIELDS[1] = FIELDS[1], ti.field(ti.f32, 4)
    levels()
    assert FIELDS[1].to_numpy().tolist() == [11, 12, 13, 14]
    assert old.to_numpy().tolist() == [11, 12, 13, 14]


@ti.data_oriented
class Levels:
    def __init__(self):
        self.grids = [[ti.field(ti.f32, 3, needs_grad=True)] for _ in range(2)]
        self.weights = [[1.0, 2.0], [3.0, 4.0]]

    @ti.kernel
    def total(self) -> torch.Tensor:
        out = torch.zeros(3)
        for i in range(3):
            for level in ti.static(range(2)):
                out[i] += self.grids[level][0][i] * self.weights[level][1]
        return out

    @ti.kernel
    def shift(self):
        for i in range(3):
            self.grids[1][0][i] += 1


def test_fields_of_a_list_of_an_object():
    levels, others = Levels(), Levels()
    with torch.no_grad():
        levels.shift()
        levels.shift()
        others.shift()
        Levels.shift.interpret(others)
        levels.grids[0][0].fill(5)
        assert levels.total().tolist() == [18.0] * 3
        assert others.total().tolist() == [8.0] * 3
    levels.grids[1][0] = ti.field(ti.f32, 3, needs_grad=True)
    levels.weights[0][1] = 3.0
    found = levels.total()
    found.sum().backward()
    assert found.tolist() == [15.0] * 3
    assert levels.grids[0][0].grad.tolist() == [3.0] * 3
    assert levels.grids[1][0].grad.tolist() == [4.0] * 3


def test_fields_are_placed():
    x, z = ti.field(ti.f32), ti.field(ti.f32)
    y = ti.Vector.field(3, ti.f32)
    ti.root.dense(ti.ij, (4, 2)).dense(ti.j, 3).place(x, y, offset=(-1, 0))
    ti.root.place(z, z.grad)
    assert z.requires_grad

    @ti.kernel
    def fill():
        for i, j in x:
            x[i, j] = i * 10 + j
            y[i, j][1] = i

    found, vectors = twice(fill, x, y)
    np.testing.assert_array_equal(found, np.arange(-1, 3)[:, None] * 10 + np.arange(6))
    assert vectors.shape == (4, 6, 3)
    assert y[2, 5].to_list() == [0, 2, 0]
    with pytest.raises(KernelTypeError, match="weft has no sparse layouts"):
        ti.root.pointer(ti.ij, 4)
    with pytest.raises(KernelValueError, match=r"a field of shape \(4, 6\) is placed"):
        ti.root.dense(ti.i, 4).place(x)
    assert ti.axes(0, 2) == ti.ik
    with pytest.raises(AttributeError):
        ti.ijz


def test_fields_and_ndarrays_of_types():
    assert ti.types.vector(3, ti.i32).field(shape=2)[1].to_list() == [0, 0, 0]
    matrices = ti.math.mat2.field(shape=(2,), offset=1)
    assert (matrices.shape, matrices.element_shape) == ((2,), (2, 2))
    assert matrices.size() == (2, 2, 2)
    assert ti.field(ti.math.ivec2, 3).dtype is torch.int32
    assert ti.ndarray(ti.math.vec3, shape=4).shape == (4,)
    assert ti.Matrix.ndarray(2, 3, ti.f64, shape=(3,)).dtype is torch.float64
    assert ti.Vector.field(3, [ti.f32] * 3, shape=1, layout=ti.Layout.SOA).dtype is torch.float32
    with pytest.raises(KernelTypeError, match="its components have one dtype"):
        ti.Vector.field(2, [ti.f32, ti.i32], shape=1)


@ti.data_oriented
class Squares:
    def __init__(self):
        self.x = ti.field(ti.f32, 4, needs_grad=True)
        self.loss = ti.field(ti.f32, (), needs_grad=True)

    @ti.kernel
    def add(self, scale: ti.f32):
        for i in self.x:
            self.loss[None] += scale * self.x[i] ** 2


def test_the_gradient_of_a_kernel_of_an_object():
    squares, others = Squares(), Squares()
    for one, value in ((squares, 3.0), (others, 5.0)):
        one.x.fill(value)
        one.add(2.0)
        one.loss.grad[None] = 1.0
    squares.add.grad(2.0)
    Squares.add.grad(others, 2.0)
    assert squares.x.grad.tolist() == [12.0] * 4
    assert others.x.grad.tolist() == [20.0] * 4
    assert squares.add.__self__ is squares


def test_the_shape_of_a_field_of_vectors_is_without_these():
    x = ti.Vector.field(3, ti.f32, shape=(4, 2))
    y = ti.Matrix.field(2, 2, ti.f32, shape=(), offset=())
    out = ti.field(ti.i32, 6)

    @ti.kernel
    def sizes(a: ti.types.ndarray(ti.math.vec3, ndim=2)):
        rows = x.shape[0]
        for _ in range(1):
            out[0], out[1], out[2] = rows, x.shape[1], len(x.shape)
            out[3], out[4] = len(y.shape), len(a.shape)
            for n in ti.static(a.shape):
                out[5] += n

    for run in (sizes, sizes.interpret):
        for a, wanted in ((x, [2, 6]), (x.to_torch(), [3, 9])):  # a tensor's shape is torch's
            out.fill(0)
            run(a)
            assert out.to_numpy().tolist() == [4, 2, 2, 0, *wanted]
    assert (x.shape, y.shape, x.ndim, tuple(x.size())) == ((4, 2), (), 3, (4, 2, 3))
    assert torch.empty_like(x).shape == (4, 2, 3)


def test_slices_of_the_matrices_of_a_field_are_written():
    f = ti.Matrix.field(2, 3, ti.f32, shape=4)
    v = ti.Vector.field(3, ti.i32, shape=(2, 2))

    @ti.kernel
    def parts():
        for i in f:
            f[i][:, 0] = ti.Vector([1.0 * i, 2.0 * i])
            f[i][1, 1:] += ti.Vector([5.0, 6.0])
            f[i][i % 2, :2] -= 10.0
        for i, j in v:
            v[i, j][1:] = [i, j]
            v[i, j][:2] *= 3

    found, vectors = twice(parts, f, v)
    wanted = np.zeros((4, 2, 3))
    for i in range(4):
        wanted[i, :, 0] = i, 2 * i
        wanted[i, 1, 1:] = 5, 6
        wanted[i, i % 2, :2] -= 10
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(vectors[1, 1], [0, 3, 1])
    with pytest.raises(KernelTypeError, match=r"a vector .3 x float. is stored where there is"):
        too_long(f)


@ti.kernel
def too_long(f: ti.template()):
    for i in f:
        f[i][:, 0] = ti.Vector([1.0, 2.0, 3.0])


def test_dimensions_of_an_annotation_are_those_of_the_field():
    @ti.kernel
    def first(x: ti.types.ndarray(ndim=1)) -> ti.f32:
        s = 0.0
        for i in x:
            s += x[i][1]
        return s

    x = ti.Vector.field(3, ti.f32, shape=2)
    x.fill(1.5)
    assert first(x) == 3.0
    with pytest.raises(KernelTypeError, match=r"annotated with 1 dimensions, and .* \(2, 3\)"):
        first(x.to_torch())


def test_sizes_of_a_field_of_vectors_are_those_of_the_tensor():
    """``shape`` leaves out the vector, ``size()`` does not, in loops as in Python."""
    x = ti.Vector.field(3, ti.f32, shape=(2, 5))
    x.fill(1.0)

    @ti.kernel
    def total(a: ti.template()) -> ti.f32:
        s = 0.0
        for i, j in ti.ndrange(a.size(0), a.size(1)):
            for k in range(a.size(-1)):
                s += a[i, j][k]
        return s

    @ti.kernel
    def told(a: ti.template(), out: ti.types.ndarray()):
        for _ in range(1):
            out[0], out[1], out[2], out[3] = a.size(-1), a.size(-2), len(a.size()), len(a.shape)

    out = torch.zeros(4, dtype=torch.int32)
    told(x, out)
    assert out.tolist() == [3, 5, 3, 2]
    assert total(x) == total.interpret(x) == 30


def test_fields_of_vectors_are_tuned():
    x, y = ti.Vector.field(3, ti.f32, shape=4), ti.Vector.field(3, ti.f32, shape=4)

    @ti.kernel
    def doubled(a: ti.template(), b: ti.template()):
        for i in a:
            b[i] = a[i] * 2.0

    x.fill(1.5)
    ti.tune(doubled, x, y, most=1)
    doubled(x, y)
    assert y.to_numpy().tolist() == [[3.0] * 3] * 4
