"""What ``weft.types.ndarray(...)`` says of a parameter: boundary, gradients, sizes of elements."""

import numpy as np
import pytest
import torch

import weft
from weft.errors import KernelIndexError, KernelSyntaxError, KernelTypeError, KernelValueError

Clamped = weft.types.ndarray(boundary="clamp")


def far(x, place):
    return x[place]


@weft.kernel
def blur(x: Clamped) -> torch.Tensor:
    out = torch.empty_like(x)
    for i, j in out:
        s = 0.0
        for k in range(-1, 2):
            s += x[i + k, j - k] * (k + 2) + far(x, (i, j + 3)) + x[-1, 99]
        out[i, j] = s
    return out


@weft.kernel
def add(x: Clamped, v):
    for i in range(v.shape[0]):
        x[i - 1] += v[i]


@pytest.mark.parametrize("run", [blur, blur.interpret])
@pytest.mark.parametrize("transposed", [False, True])
def test_reads_are_clamped(run, transposed):
    x = torch.rand(4, 5, dtype=torch.float64)
    x = x.T if transposed else x
    n, m = x.shape
    wide = torch.nn.functional.pad(x[None], (3, 3, 3, 3), mode="replicate")[0]
    expected = sum(wide[3 + k : 3 + n + k, 3 - k : 3 + m - k] * (k + 2) + wide[3:-3, 6:] + x[0, -1]
                   for k in range(-1, 2))  # fmt: skip
    torch.testing.assert_close(run(x), expected)


def test_memory_around_a_view_is_not_read():
    base = torch.full((6, 7), torch.nan)
    base[1:5, 1:6] = 1.0
    assert blur(base[1:5, 1:6]).tolist() == [[12.0] * 5] * 4


@pytest.mark.parametrize("run", [add, add.interpret])
def test_writes_are_clamped(run):
    x = torch.zeros(3)
    run(x, torch.ones(6))
    assert x.tolist() == [2, 1, 3]


def test_clamped_reads_have_gradients():
    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(blur, [x])
    assert torch.autograd.gradcheck(blur, [x], check_forward_ad=True, check_backward_ad=False)


def test_of_no_elements_none_is_in_range():
    @weft.kernel(debug=True)
    def first(x: Clamped, out):
        for i in out:
            out[i] = x[i]

    out = torch.zeros(2)
    first(torch.ones(1), out)
    assert out.tolist() == [1, 1]
    with pytest.raises(KernelIndexError, match="its dimension 0 has 0 elements"):
        first(torch.ones(0), out)


def test_what_would_not_clamp_is_refused():
    @weft.kernel
    def by_another_name(x: Clamped, out):
        y = x[1:]
        for i in out:
            out[i] = y[i - 1]

    @weft.kernel
    def assigned(x: Clamped, out):
        x = x.contiguous()
        for i in out:
            out[i] = x[i - 1]

    @weft.kernel
    def in_the_host_part(x: Clamped, out):
        out[0] = x[-1]
        for i in out:
            out[i] = x[i - 1]

    for kernel, message in (
        (by_another_name,
         '`y` may share the memory of `x`, whose boundary is "clamp", and does not clamp itself'),
        (assigned, '`x`, whose boundary is "clamp", is assigned'),
        (in_the_host_part, 'a subscript of `x`, whose boundary is "clamp", in the host part: it '
         "is torch's, and would not clamp"),
    ):  # fmt: skip
        with pytest.raises(KernelSyntaxError) as caught:
            kernel(torch.zeros(3), torch.zeros(3))
        assert caught.value.message == message


def test_options_that_are_not_known_are_refused():
    with pytest.raises(KernelValueError) as caught:
        weft.types.ndarray(boundary="wrap")
    assert caught.value.message == "`boundary` is 'wrap'"
    with pytest.raises(TypeError, match="boundry"):
        weft.types.ndarray(boundry="clamp")


@weft.kernel
def of_matrices(x: weft.types.ndarray(dtype=weft.math.mat3, ndim=1)):
    for i in range(x.shape[0]):
        x[i, 0, 0] = 1


def test_sizes_of_elements_are_checked():
    of_matrices(torch.zeros(2, 3, 3))
    for shape in ((2, 2, 3), (2, 3, 2), (3,)):
        with pytest.raises(KernelTypeError) as caught:
            of_matrices(torch.zeros(shape))
        assert caught.value.message == (
            f"`x` is annotated with elements of 3 x 3, and a tensor of shape {shape} was passed"
        )
    with pytest.raises(KernelTypeError, match="is annotated with 3 dimensions"):
        of_matrices(torch.zeros(3, 3))


@weft.kernel
def weighted(x: weft.types.ndarray(), y: weft.types.ndarray(needs_grad=False)) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in out:
        out[i] = x[i] * y[i]
    return out


def test_needs_grad_false_cuts_a_gradient_off():
    x, y = (torch.full((2,), v, requires_grad=True) for v in (1.0, 3.0))
    weighted(x, y).sum().backward()
    assert x.grad.tolist() == [3, 3]
    assert y.grad is None
    detached = y.detach()
    assert torch.func.grad(lambda v: weighted(x.detach(), v).sum())(detached).tolist() == [0, 0]
    out, tangent = torch.func.jvp(lambda v: weighted(x.detach(), v), (detached,), (detached,))
    assert (out.tolist(), tangent.tolist()) == ([3, 3], [0, 0])


@weft.kernel
def one_name(x):
    for i in x:
        x[i] = 10 * i[0] + i[1]


def test_one_name_for_several_dimensions_is_a_tuple():
    for x in (weft.field(weft.f32, (2, 2)), torch.zeros(2, 2)):
        for run in (one_name, one_name.interpret):
            x[:] = 0
            run(x)
            assert x.tolist() == [[0, 1], [10, 11]]


@weft.kernel(debug=True)
def from_the_end(x, k: int):
    for i in range(1):
        x[i] = x[-1]
    for i in range(1):
        x[i] += x[i + k]


def test_a_negative_literal_counts_from_the_end_of_a_field_and_a_variable_does_not():
    x = weft.field(weft.f32, 3)
    x[2] = 5
    from_the_end(x, 1)
    assert x.tolist() == [5, 0, 5]
    with pytest.raises(KernelIndexError, match="subscript -1 of `x` is out of range"):
        from_the_end(x, -1)


@weft.kernel
def raised(x: weft.types.ndarray(), by=1) -> torch.Tensor:
    for i in x:
        x[i] += by
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_numpy_arrays_share_their_memory(dtype):
    for step in (1, 3):
        whole = np.arange(17).astype(dtype)
        expected = whole.copy()
        expected[::step] += 2
        for _ in range(2):
            found = raised(whole[::step])
            assert found.data_ptr() == whole.ctypes.data
        assert np.array_equal(whole, expected)
    values = torch.zeros(3)
    raised(values, by=0.5)  # tensors and arrays, one after the other
    array = np.zeros(3, dtype)
    raised(x=array, by=2)
    assert values.tolist() == [0.5] * 3
    assert array.tolist() == [2] * 3


def test_numpy_arrays_without_a_tensor_are_refused():
    constant = np.zeros(3)
    constant.flags.writeable = False
    for array, told in (
        (constant, "`x` is a NumPy array that cannot be written to"),
        (np.zeros(3)[::-1], "`x` is a NumPy array that torch has no tensor of: .*negative"),
        (
            np.array(["a"]),
            "`x` is a NumPy array that torch has no tensor of: ",
        ),
    ):
        with pytest.raises(KernelTypeError, match=told):
            raised(array)
