"""What Taichi's people write, in the order of how many cases of its own tests need it: each with
the numbers that Taichi gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import weft as ti
from weft.lang.field import Field

vec2, vec3 = ti.math.vec2, ti.math.vec3


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Field, "defaults", Field.defaults)


def test_fields_with_an_offset() -> None:
    x = ti.field(ti.f32, shape=16, offset=-8)

    @ti.kernel
    def fill():
        for i in x:
            x[i] = i

    fill()
    assert x[-3] == -3
    assert x[7] == 7
    assert x.to_torch().tolist() == list(range(-8, 8))


def test_small_systems() -> None:
    a = ti.Matrix.field(2, 2, ti.f64, shape=())
    b, x = ti.Vector.field(2, ti.f64, shape=()), ti.Vector.field(2, ti.f64, shape=())
    a[None], b[None] = [[4.0, 1.0], [2.0, 3.0]], [1.0, 2.0]

    @ti.kernel
    def solve():
        x[None] = ti.solve(a[None], b[None])

    solve()
    np.testing.assert_allclose(x.to_numpy(), [0.1, 0.6])


@pytest.mark.parametrize("name", ["eig", "sym_eig", "svd", "polar_decompose"])
def test_decompositions(name: str) -> None:
    m = np.array([[3.0, 1.0], [1.0, 2.0]])
    a = ti.Matrix.field(2, 2, ti.f64, shape=())
    found = ti.Matrix.field(2, 2, ti.f64, shape=())
    a[None] = m

    @ti.kernel
    def eig():
        values, _ = ti.eig(a[None])
        for k in ti.static(range(2)):
            for c in ti.static(range(2)):
                found[None][k, c] = values[k, c]

    @ti.kernel
    def sym_eig():
        values, vectors = ti.sym_eig(a[None])
        d = ti.Matrix([[values[0], 0.0], [0.0, values[1]]])
        found[None] = vectors @ d @ vectors.transpose()

    @ti.kernel
    def svd():
        u, s, v = ti.svd(a[None])
        found[None] = u @ s @ v.transpose()

    @ti.kernel
    def polar_decompose():
        r, s = ti.polar_decompose(a[None])
        found[None] = r @ s

    {"eig": eig, "sym_eig": sym_eig, "svd": svd, "polar_decompose": polar_decompose}[name]()
    if name == "eig":
        values = np.sort(found.to_numpy()[:, 0])
        np.testing.assert_allclose(values, np.sort(np.linalg.eigvals(m)), rtol=1e-12)
    else:
        np.testing.assert_allclose(found.to_numpy(), m, rtol=1e-12)


def test_unsigned_integers() -> None:
    x = ti.field(ti.u64, 2)

    @ti.kernel
    def fill():
        for i in x:
            x[i] = ti.u64(1) << 63

    fill()
    assert x[1] == 1 << 63
    y = ti.field(ti.u32, 8)
    y[3] = (1 << 32) - 1
    assert y[3] == 4294967295


def test_structs() -> None:
    @ti.dataclass
    class Particle:
        position: vec3
        mass: ti.f32

        @ti.func
        def momentum(self, v):
            return self.mass * v

    p = Particle.field(shape=3)
    pair = ti.types.struct(a=ti.i32, b=vec2)
    found = pair.field(shape=())

    @ti.kernel
    def step():
        for i in p:
            p[i].mass = i + 1.0
            p[i].position += p[i].momentum(ti.Vector([1.0, 2.0, 3.0]))
        found[None] = pair(a=7, b=ti.Vector([0.5, 0.25]))

    step()
    assert p[2].position.to_list() == [3.0, 6.0, 9.0]
    assert found[None].a == 7
    assert found[None].b[1] == 0.25


def test_argument_packs() -> None:
    packed = ti.types.argpack(scale=ti.f32, shift=ti.i32)
    given = packed(scale=0.5, shift=3)

    @ti.kernel
    def apply(p: packed) -> ti.f32:
        return p.scale * p.shift

    assert apply(given) == 1.5


def test_kinds_of_types_and_their_zeros() -> None:
    x = ti.field(ti.i32, 2)

    @ti.kernel
    def fill():
        for i in x:
            if ti.static(ti.types.is_integral(x.dtype) and ti.types.is_signed(x.dtype)):
                x[i] = ti.zero(x[i]) + 2 * ti.one(x[i])

    fill()
    assert x.to_numpy().tolist() == [2, 2]


def test_components_of_elements_are_set() -> None:
    x, m = ti.Vector.field(3, ti.f32, 2), ti.Matrix.field(2, 2, ti.f32, 2)

    @ti.kernel
    def fill(v: ti.f32):
        for i in x:
            x[i][1] = 7
            x[i].xz = ti.Vector([v, -v])
            m[i][1, 0] += 1
            m[i][:, 1] = ti.Vector([2.0, 3.0])

    fill(0.5)
    assert x.to_numpy().tolist() == [[0.5, 7, -0.5]] * 2
    assert m.to_numpy().tolist() == [[[0, 2], [1, 3]]] * 2


def test_atomics_on_totals() -> None:
    x = ti.field(ti.f32, 5)
    x.from_numpy(np.array([1, -4, 9, 2, 3], np.float32))

    @ti.kernel
    def extremes() -> vec3:
        most, least, total = -math.inf, math.inf, 0.0
        for i in x:
            ti.atomic_max(most, x[i])
            ti.atomic_min(least, x[i])
            ti.atomic_add(total, x[i])
        return ti.Vector([most, least, total])

    assert extremes().to_list() == [9, -4, 11]


def test_random_numbers() -> None:
    x = ti.field(ti.f64, 4096)

    @ti.kernel
    def draw():
        for i in x:
            x[i] = ti.random(ti.f64) + ti.randn()

    torch.manual_seed(5)
    draw()
    first = x.to_torch().clone()
    torch.manual_seed(5)
    draw()
    assert x.to_torch().equal(first)
    assert abs(first.mean() - 0.5) < 0.1
    assert abs(first.var() - 13 / 12) < 0.15


def test_overflow_in_debug_mode() -> None:
    ti.init(debug=True)

    @ti.kernel
    def total(a: ti.i32, b: ti.i32) -> ti.i32:
        return a + b

    assert total(2, 3) == 5
    with pytest.raises(ti.KernelOverflowError, match="overflows i32"):
        total(2**31 - 1, 1)


def test_functions_made_in_a_loop() -> None:
    def square(v):
        return v * v

    x = ti.field(ti.f32, 3)

    @ti.kernel
    def fill():
        for i in x:
            x[i] = ti.func(square)(i)

    fill()
    assert x.to_numpy().tolist() == [0, 1, 4]


def test_bits_and_quotients() -> None:
    found = ti.field(ti.i32, 8)

    @ti.kernel
    def fill(a: ti.i32, b: ti.i32, f: ti.f32):
        for _ in range(1):
            found[0] = ti.raw_div(a, b)
            found[1] = ti.raw_mod(a, b)
            found[2] = ti.bit_shr(a, 28)
            found[3] = ti.bit_cast(f, ti.i32)
            found[4] = ti.floor(f, ti.i32)
            found[5] = ti.math.clz(b)
            found[6] = ti.math.popcnt(b)
            found[7] = ti.frexp(f)[1]

    fill(-7, 2, 2.5)
    assert found.to_numpy().tolist() == [-3, -1, 15, 0x40200000, 2, 30, 1, 2]


def test_loops_without_arguments() -> None:
    @ti.kernel
    def nothing():
        for _ in range(3):
            pass

    nothing()


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_ranges_of_no_and_of_starred_extents(dim: int) -> None:
    count = ti.field(ti.i32, ())

    @ti.kernel
    def fill():
        for _ in ti.grouped(ti.ndrange(*((0, 3),) * dim)):
            count[None] += 1

    if dim:
        fill()
        assert count[None] == 3**dim
    else:
        assert len(list(ti.ndrange())) == 1


def test_formats(capfd: pytest.CaptureFixture[str]) -> None:
    @ti.kernel
    def show(v: ti.f32):
        for i in range(1):
            print(f"{v:.2f}", i)
            print("{} and {}".format(v, i))  # noqa: UP032

    show(1.25)
    assert capfd.readouterr().out.split("\n")[:2] == ["1.25 0", "1.25 and 0"]


def test_fields_of_no_dimension_from_numpy() -> None:
    x = ti.field(ti.f32, ())
    x.from_numpy(np.array(2.5, np.float32))
    assert x[None] == 2.5


def test_matrices_of_python() -> None:
    m = ti.Matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert m.transpose().to_list() == [[1, 4], [2, 5], [3, 6]]
    v = ti.Vector([3.0, 4.0])
    assert v.norm_inv() == pytest.approx(0.2)
    v.fill(2.0)
    assert v.to_list() == [2.0, 2.0]
    f = ti.Vector.field(2, ti.f32, 3)
    assert f.to_numpy().shape == (3, 2)
    assert f.to_numpy(keep_dims=True).shape == (3, 2, 1)


def test_nested_lists_as_matrices() -> None:
    @ti.kernel
    def same(a: ti.f32) -> ti.i32:
        m = ti.Matrix([[1.0, 2.0], [3.0, a]])
        m += [[1, 1], [1, 1]]
        return (m == [[2, 3], [4, 5]]).all()

    assert same(4.0) == 1
    assert same(3.0) == 0


def test_vectors_as_elements_of_tensors() -> None:
    @ti.kernel
    def lengths(x: ti.types.ndarray(dtype=vec2, ndim=1), out: ti.types.ndarray()):
        for i in x:
            out[i] = x[i].norm()

    out = torch.empty(2)
    lengths(torch.tensor([[3.0, 4.0], [6.0, 8.0]]), out)
    assert out.tolist() == [5, 10]


def test_powers_of_run_time() -> None:
    x = ti.field(ti.i32, 5)

    @ti.kernel
    def fill():
        for i in x:
            x[i] = 1 * 2**i

    fill()
    assert x.to_numpy().tolist() == [1, 2, 4, 8, 16]


def test_rotations() -> None:
    found = ti.Matrix.field(2, 2, ti.f64, ())

    @ti.kernel
    def fill(a: ti.f64):
        for _ in range(1):
            found[None] = ti.math.rotation2d(a)

    fill(math.pi / 2)
    np.testing.assert_allclose(found.to_numpy(), [[0, -1], [1, 0]], atol=1e-6)


def test_what_is_asserted_and_printed_when_compiled(capfd: pytest.CaptureFixture[str]) -> None:
    @ti.kernel
    def fill(x: ti.template()):
        for i in x:
            ti.static_assert(x.dtype == ti.f32, "a field of f32")
            ti.static_print(x.dtype)
            x[i] = 1

    fill(ti.field(ti.f32, 2))
    assert "float32" in capfd.readouterr().out
    with pytest.raises(ti.WeftError, match="a field of f32"):
        fill(ti.field(ti.f64, 2))


def test_loops_in_order() -> None:
    @ti.kernel
    def count() -> ti.i32:
        a = 0
        ti.loop_config(serialize=True)
        for _ in range(9):
            a += 1
            if a == 5:
                break
        return a

    assert count() == 5


def test_slices_of_matrices() -> None:
    found = ti.Vector.field(3, ti.f32, ())

    @ti.kernel
    def fill():
        for _ in range(1):
            m = ti.Matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
            part = m[0:2, :]
            found[None] = ti.Vector([part[1, 0], part[1, 2], m[2, 0:2][1]])

    fill()
    assert found[None].to_list() == [4, 6, 8]


def test_messages_and_numpy_scalars() -> None:
    @ti.kernel
    def check(x: ti.types.ndarray(), most: ti.i32):
        for i in range(np.int64(2)):
            assert x[i] < most, f"{x[i]} at {i}"

    check(torch.tensor([1, 2]), 3)
    with pytest.raises(ti.KernelAssertionError, match="5 at 1"):
        check(torch.tensor([1, 5]), 3)
    assert ti.field(ti.f32, np.int64(4)).shape == (4,)
    assert ti.Matrix([np.arange(3.0), np.ones(3), np.zeros(3)])[0, 2] == 2


def test_a_column_of_scalars_is_a_vector() -> None:
    @ti.kernel
    def total(a: ti.f32, b: ti.f32) -> ti.f32:
        return ti.Matrix([a, b]).sum()

    assert total(1.5, 2.0) == 3.5


def test_what_few_write() -> None:
    x = ti.field(ti.f32, 3, needs_grad=True)
    xs = [ti.field(ti.f32, 3), ti.field(ti.f32, 3)]
    v = ti.Vector.field(2, ti.f32, 2)
    found = ti.Matrix.field(2, 2, ti.f32, ())

    @ti.kernel
    def fill():
        for i in x:
            x.grad[i] = 1.0
        for i in range(3):
            for k in ti.static(range(2)):
                xs[k][i] = k + i
        for i in range(4):
            ti.atomic_add(v[i // 2], ti.Vector([1.0, i]))
        for _ in range(1):
            m = ti.Matrix.rows([ti.Vector([1.0, 2.0]), ti.Vector([3.0, 4.0])])
            found[None] = m + ti.Matrix.cols([ti.Vector([1.0, 2.0]), ti.Vector([3.0, 4.0])])

    fill()
    assert x.grad.to_numpy().tolist() == [1, 1, 1]
    assert xs[1].to_numpy().tolist() == [1, 2, 3]
    assert v.to_numpy().tolist() == [[2, 1], [2, 5]]
    assert found.to_numpy().tolist() == [[2, 5], [5, 8]]
