"""Fields: how they are made, copied and filled."""

import copy
import operator
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.errors import KernelTypeError


def test_a_scalar_field_takes_a_numpy_array_of_no_dimensions():
    x = weft.field(weft.f32, shape=())
    x.from_numpy(np.array(3.0, dtype=np.float32))
    assert float(x) == 3.0
    x.from_numpy(np.float64(4.0))
    assert float(x) == 4.0


def test_extents_are_any_integers():
    assert weft.field(weft.f32, shape=np.int64(3)).shape == (3,)
    assert weft.field(weft.f32, shape=(np.int32(2), torch.tensor(3))).shape == (2, 3)
    assert weft.field(weft.f32, shape=torch.tensor(2)).shape == (2,)
    assert weft.zeros(np.int8(4)).shape == (4,)


def test_a_local_array_hands_gradients_on_in_plain_python():
    def delayed(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for _ in range(1):
            line = weft.zeros(2, weft.f64)
            for t in range(x.shape[0]):
                v = x[t] + 0.5 * line[t % 2]
                out[t] = v * v
                line[t % 2] = v
        return out

    x = torch.arange(1.0, 6.0, dtype=torch.float64, requires_grad=True)
    (plain,) = torch.autograd.grad(delayed(x).sum(), x)
    (compiled,) = torch.autograd.grad(weft.kernel(delayed)(x).sum(), x)
    assert torch.equal(plain, compiled)


def test_deep_copies_are_fields_of_their_own():
    x = weft.Vector.field(2, weft.f32, shape=3, needs_grad=True)
    y = copy.deepcopy(x)
    assert type(y) is type(x)
    assert y.element is x.element
    assert y.requires_grad
    assert y.is_leaf
    y.fill(1)
    assert x.to_numpy().sum() == 0
    both = copy.deepcopy([x, x])
    assert both[0] is both[1]


def test_elements_are_filled_and_set_by_vectors_and_lists():
    v = weft.Vector.field(2, weft.f32, shape=3)
    v.fill(weft.Vector([1, 2]))
    v[0] = [3, 4]
    v[1] = np.array([5, 6])
    assert v.to_numpy().tolist() == [[3, 4], [5, 6], [1, 2]]
    m = weft.Matrix.field(2, 2, weft.i32, shape=())
    m.fill([[1, 2], [3, 4]])
    assert m.to_numpy().tolist() == [[1, 2], [3, 4]]
    m[None] = [weft.Vector([5, 6]), weft.Vector([7, 8])]
    assert m.to_numpy().tolist() == [[5, 6], [7, 8]]


def test_vectors_of_another_size_are_refused():
    v = weft.Vector.field(2, weft.f32, shape=3)
    for value in ([1, 2, 3], weft.Vector([1, 2, 3])):
        with pytest.raises(KernelTypeError) as caught:
            v[0] = value
        assert str(caught.value) == (
            "an element of this field has 2 numbers, and 3 numbers are stored\n"
            "help: store a vector of that size, or one number"
        )
        with pytest.raises(KernelTypeError) as caught:
            v.fill(value)
        assert str(caught.value) == (
            "an element of this field has 2 numbers, and it is filled with 3 numbers\n"
            "help: fill it with a vector of that size, or a number"
        )
    with pytest.raises(KernelTypeError, match=r"^an element of this field has 1 number, and it "):
        weft.field(weft.f32, shape=3).fill([1, 2, 3])


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("kind", [weft.f32, weft.f64])
def test_an_element_beside_numpy_is_a_number(kind: Any, needs_grad: bool) -> None:
    x = weft.field(kind, shape=2, needs_grad=needs_grad)
    x[0] = 2.5
    for dtype in (np.float32, np.float64, np.int64):
        array = np.arange(1, 4, dtype=dtype)
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "ge", "ne"):
            operation = getattr(operator, name)
            for found, expected in (
                (operation(array, x[0]), operation(array, 2.5)),
                (operation(x[0], array), operation(2.5, array)),
            ):
                assert type(found) is np.ndarray
                assert found.dtype == expected.dtype
                assert (found == expected).all()
    total = whole = np.ones(3)
    total += x[0]  # in place
    total *= x[0] * np.power(np.arange(3), x[0])
    assert total is whole
    assert (whole == 3.5 * 2.5 * np.arange(3) ** 2.5).all()
    assert np.add.outer([1.0, 2.0], x[0]).tolist() == [3.5, 4.5]
    assert (float(x[0]), int(x[0]), complex(x[0])) == (2.5, 2, 2.5)
    for single in (np.sqrt(x[0]), np.float32(1) + x[0], x[0] + np.float64(1), np.float64(1) < x[0]):
        assert isinstance(single, torch.Tensor)  # beside a number it is what it is in a kernel
    assert (np.float64(1) * x[0]).dtype == kind.torch
