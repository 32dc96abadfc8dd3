"""Vectors and matrices of the host part, and those that are arguments, in device loops."""

import types

import pytest
import torch

import weft
from weft.errors import KernelTypeError, RaceError

OUTER = weft.Vector([0.0, 0.0])


@weft.kernel
def stored(x):
    v = weft.Vector([0.0, 5.0, 7.0])
    for i in range(2):
        v[i] = x[i]
    return v[0], v[1], v[2]


@weft.kernel
def accumulated(x):
    v = weft.Vector([0.0, 1.0])
    for i in x:
        v[0] += x[i]
        v.y += 2 * x[i]
        v.yx -= weft.Vector([x[i], 1.0])
    return v[0], v[1]


@weft.kernel
def atomic(x):
    v = weft.Vector([0.0, 0.5])
    for i in x:
        weft.atomic_max(v[0], x[i])
        weft.atomic_sub(v[1], x[i])
    return v[0], v[1]


@weft.kernel
def read_back(x):
    m = weft.Matrix([[1.0, 2.0], [3.0, 4.0]])
    for i, j in weft.ndrange(2, 2):
        m[i, j] = m[i, j] * 2 + x[i]
    v = weft.Vector([1.0, 2.0])
    for i in range(1, 2):
        v.x = x[i]
        v.y = v.x + v.norm_sqr()
    out = torch.zeros(2, dtype=x.dtype)
    for i in out:
        out[i] = m[i].sum() + v.norm_sqr() + (v + v)[i]
    return out[0], out[1]


@pytest.mark.parametrize("kernel", [stored, accumulated, read_back], ids=lambda k: k.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_what_a_loop_stores_into_a_vector_arrives(kernel, dtype):
    x = torch.tensor([1.5, 2.25], dtype=dtype)
    expected = [float(v) for v in kernel.interpret(x)]
    for _ in range(3):  # the first call compiles
        found = kernel(x)
        assert [float(v) for v in found] == pytest.approx(expected, rel=1e-3)


def test_atomics_on_elements_of_a_vector():
    assert [float(v) for v in atomic(torch.tensor([1.0, 3.0, 2.0]))] == [3.0, -5.5]


@weft.kernel
def weighted(w, x):
    v = weft.Vector([w[0], w[1]])
    out = torch.zeros_like(x)
    for i in out:
        out[i] = x[i] * v[0] + v.norm_sqr()
    return out


def test_a_vector_that_has_a_gradient_is_no_constant():
    w, x = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    weighted(w, x)
    assert torch.autograd.gradcheck(lambda a: weighted(a, x), [w.clone().requires_grad_()])
    _, tangent = torch.func.jvp(lambda a: weighted(a, x), (w,), (torch.ones_like(w),))
    assert tangent.tolist() == [7.0] * 3


@weft.kernel
def into_argument(x, v, box):
    for i in x:
        v[0] += x[i]
        box.v[1] += 1
        OUTER[1] += x[i]


def test_a_vector_that_is_an_argument_an_attribute_or_a_global_is_written():
    v, box = weft.Vector([0, 1], weft.f64), types.SimpleNamespace(v=weft.Vector([1, 2]))
    OUTER[1] = 0.0
    for _ in range(2):
        into_argument(torch.tensor([1.0, 2.0]), v, box)
    assert v.to_list() == [6.0, 1.0]
    assert v[0].dtype == torch.float64
    assert box.v.to_list() == [1, 6]
    assert OUTER.to_list() == [0.0, 6.0]


def test_gradients_go_through_a_vector_of_the_host_part():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    for kernel in (stored, accumulated, read_back):
        assert torch.autograd.gradcheck(lambda a, k=kernel: k(a)[:2], [x])
    out, tangent = torch.func.jvp(lambda a: stored(a)[0], (x.detach(),), (torch.ones_like(x),))
    assert (out, tangent) == (1.0, 1.0)


def test_a_compiled_graph_has_what_a_loop_stored():
    x = torch.tensor([1.5, 2.5])
    compiled = torch.compile(accumulated, fullgraph=True, backend="aot_eager")
    assert compiled(x) == accumulated(x)


def test_every_iteration_writing_one_element_is_a_race():
    @weft.kernel
    def last(x):
        v = weft.Vector([0.0, 0.0])
        for i in x:
            v[0] = x[i]
        return v[0]

    with pytest.raises(RaceError, match=r"iterations i=0 and i=1 both write v\[0\]"):
        last(torch.ones(2))


def test_a_store_that_would_change_the_dtype_is_refused():
    @weft.kernel
    def floats(x):
        v = weft.Vector([0, 0])
        for i in range(2):
            v[i] = x[i]
        return v[0]

    assert floats(torch.tensor([3, 4])) == 3
    with pytest.raises(KernelTypeError) as caught:
        floats(torch.ones(2))
    assert caught.value.message == ("`v` is a vector of i64, and a scalar (f32) is stored into it")
    assert caught.value.help == (
        "make it a vector of that dtype in the host part: weft.Vector([0.0, 0.0]), "
        "weft.Vector([0, 0], weft.f64)"
    )


def outer(x):
    OUTER[0] = x
    return x


def test_a_vector_that_a_called_function_reaches_is_not_written():
    @weft.kernel
    def calls(x):
        for i in x:
            x[i] = outer(x[i])

    with pytest.raises(KernelTypeError) as caught:
        calls(torch.ones(2))
    assert caught.value.message == (
        "`OUTER` is a vector from outside of the loop, and a constant in it"
    )
    assert caught.value.help == (
        "store into a weft.Vector of the kernel's host part, or into a tensor"
    )


def test_a_vector_of_the_loop_is_not_written_by_a_function_in_it():
    @weft.kernel
    def stores(x):
        for i in x:
            v = weft.Vector([x[i], 1.0])

            def put(w):
                v[0] = w  # noqa: B023
                return w

            x[i] = put(2.0) + v[0]

    with pytest.raises(
        KernelTypeError, match="changes `v`, a vector of the loop that it"
    ) as caught:
        stores(torch.ones(2))
    assert caught.value.help == "vectors are values: return a new one, or use weft.zeros(...)"


# --- loops that accumulate into whole vectors -----------------------------------------------------
@weft.kernel
def moments(x):
    s, m = weft.Vector([0.5, 0.0]), weft.Matrix([[0.0, 1.0], [0.0, 0.0]])
    low, n = weft.math.vec2(9.0, 9.0), 0
    for i in range(x.shape[0]):
        v = weft.Vector([x[i, 0], x[i, 1]])
        s += v * 2
        m = m + v.outer_product(v)
        low = weft.min(low, v)
        n += 1
    for i in range(x.shape[0]):
        weft.atomic_sub(s, weft.Vector([x[i, 0], 1.0]))
    return s[0], s[1], m[0, 0], m[0, 1], m[1, 0], m[1, 1], low.x, low.y, n


def of_torch(x):
    product = x.T @ x
    sums = [0.5 + x[:, 0].sum(), 2 * x[:, 1].sum() - x.shape[0]]
    return [*sums, product[0, 0], product[0, 1] + 1, product[1, 0], product[1, 1], *x.amin(0)]


def test_whole_vectors_are_accumulated_into(device: str) -> None:
    for _ in range(2):
        x = torch.randn(300, 2, dtype=torch.float64)
        *found, count = moments(x)
        torch.testing.assert_close(torch.stack(found), torch.stack(of_torch(x)))
        assert count == 300
    if device != "webgpu":  # where another kernel is called
        assert len(moments.specializations) == 2  # of two loops: what a vector holds is no constant
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: torch.stack(moments(x)[:8]).square(), (x,))


def test_vectors_of_integers_and_beside_complex_numbers() -> None:
    @weft.kernel
    def counted(z) -> weft.math.ivec2:
        n, total = weft.math.ivec2(0, 5), 0j
        for i in range(z.shape[0]):
            n += weft.math.ivec2(1, int(z[i].real > 0))
            total += z[i]
        assert abs(total - z.sum()) < 1e-3
        return n

    z = torch.randn(50, dtype=torch.complex64)
    assert counted(z).to_list() == [50, 5 + int((z.real > 0).sum())]


def test_a_vector_that_a_loop_in_order_carries() -> None:
    def filtered(x, out):
        s = weft.Vector([0.0, 1.0])
        weft.loop_config(serialize=True)
        for i in range(x.shape[0]):
            s = s * 0.5 + weft.Vector([x[i], s[0]])
            out[i] = s[1]
        return s[0], s[1]

    x, found, expected = torch.randn(9), torch.empty(9), torch.empty(9)
    torch.testing.assert_close(weft.kernel(filtered)(x, found), filtered(x, expected))
    torch.testing.assert_close(found, expected)


def test_a_vector_of_another_size_is_refused() -> None:
    @weft.kernel
    def f(x):
        s = weft.Vector([0.0, 1.0])
        for i in x:
            s += weft.Vector([x[i], x[i], 0.0])
        return s[0]

    with pytest.raises(KernelTypeError, match="shapes 2 and 3 do not fit"):
        f(torch.ones(3))
