"""Scalar functions, dtypes, loops, atomics, arrays and the table of names."""

import math
import warnings

import numpy as np
import pytest
import torch

import weft
from weft.errors import KernelTypeError, KernelValueError
from weft.frontend import signatures
from weft.kernel import kernel
from weft.lang import atomics, dtypes, field, loops, names, pending, types
from weft.lang import math as wm
from weft.lang.vectors import Vector

random = np.random.default_rng()
SAME = [
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "atanh", "exp",
    "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf", "erfc", "floor",
    "ceil", "round", "trunc", "abs", "sign", "isnan", "isinf", "sigmoid",
]  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_functions_match_torch(name):
    x = random.uniform(0.05, 0.95)
    function, reference = getattr(wm, name), getattr(torch, name)
    expected = reference(torch.tensor(x, dtype=torch.float64))
    assert function(x) == expected.item()
    half = torch.tensor(x, dtype=torch.float16)
    assert function(half).dtype == reference(half).dtype
    assert function(Vector([x, -x]))[1] == pytest.approx(
        reference(torch.tensor(-x, dtype=torch.float64)).item(), nan_ok=True
    )


def test_functions_of_several_arguments():
    a, b, t = random.uniform(0.1, 2.0, size=3)
    assert wm.atan2(a, b) == pytest.approx(math.atan2(a, b))
    assert wm.mod(-a, b) == pytest.approx(-a % b)
    assert wm.fmod(-a, b) == pytest.approx(math.fmod(-a, b))
    assert wm.mix(a, b, t) == pytest.approx(a + (b - a) * t)
    assert wm.fract(-a) == pytest.approx(-a - math.floor(-a))
    assert wm.step(1.0, a) == float(a >= 1.0)
    assert wm.clamp(a, 0.5, 0.75) == min(max(a, 0.5), 0.75)
    assert wm.smoothstep(0.0, 2.0, a) == pytest.approx((a / 2) ** 2 * (3 - a))
    assert wm.fma(dtypes.f32(a), b, t).dtype == torch.float32
    assert wm.cbrt(-27.0) == pytest.approx(-3.0)
    assert wm.max(1, 2.5, dtypes.f32(2)).dtype == torch.float32
    assert math.isnan(wm.max(math.nan, 1.0))
    assert math.isnan(wm.sqrt(-1.0))
    assert wm.select(dtypes.i32(3) > 2, 1, dtypes.f32(2)).item() == 1.0
    assert wm.pow(2, 10) == 1024
    assert wm.floor(3) == 3
    assert isinstance(wm.floor(2.5), float)
    assert (wm.bit_count(-1), wm.bit_count(dtypes.u8(255)).item()) == (64, 8)


def test_a_python_number_beside_an_element_is_not_rounded_to_float32():
    t = torch.tensor(0.3, dtype=torch.float64)
    assert wm.max(0.9, t).item() == wm.select(t > 0, 0.9, t).item() == 0.9
    assert wm.min(0.1, t).item() == 0.1
    assert wm.clamp(t, 0.9, 1.0).item() == wm.copysign(0.9, t).item() == 0.9
    assert wm.fmod(0.9, t).item() == math.fmod(0.9, 0.3)
    assert wm.atan2(0.9, t).item() == pytest.approx(math.atan2(0.9, 0.3), rel=1e-15)
    assert wm.pow(0.9, t).item() == pytest.approx(0.9**0.3, rel=1e-15)
    x = torch.zeros(1, dtype=torch.float64)
    atomics.atomic_max(x[0], 0.9)
    assert x.item() == 0.9
    full = field.field(dtypes.f64, shape=2)
    full.fill(0.9)
    assert full.tolist() == [0.9, 0.9]


def test_casts_are_values_of_a_definite_dtype():
    assert dtypes.i32(-2.7).item() == -2
    assert dtypes.i8(300).item() == 44
    assert (dtypes.f16(1) * 2.0).dtype == torch.float16
    s = dtypes.f32(1.5)
    t = s
    s += 1
    assert (s.item(), t.item()) == (2.5, 1.5)
    assert (divmod(s, 2)[0].item(), round(s), math.floor(s), int(s)) == (1.0, 2, 2, 2)
    x = torch.zeros(2)
    y = dtypes.f32(x[0])
    y.add_(1)
    assert x[0] == 0
    for t in dtypes.DTYPES.values():
        assert dtypes.from_torch(t.torch) is t
        assert t(1).dtype == (torch.float32 if t.torch in dtypes.EIGHT_BITS else t.torch)
    assert dtypes.from_numpy(np.float32) is dtypes.f32
    with pytest.raises(KernelTypeError) as error:
        dtypes.f32(torch.zeros(2))
    assert str(error.value) == (
        "weft.f32(...) casts a scalar, this tensor has shape (2,)\n"
        "help: write x.to(torch.float32) for a whole tensor"
    )


def test_loops():
    assert list(loops.ndrange(3)) == [0, 1, 2]
    assert list(loops.ndrange((1, 3), 2)) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert loops.ndrange((1, 3), 2).shape == (2, 2)
    assert len(loops.ndrange(2, 0)) == 0
    assert [tuple(i) for i in loops.grouped(torch.zeros(2, 1))] == [(0, 0), (1, 0)]
    assert list(loops.serial(range(2))) == [0, 1]
    assert loops.static(range(2)) == (0, 1)
    assert loops.static(True) is True
    assert loops.loop_config(block_dim=64).block_dim == 64
    with pytest.raises(KernelTypeError) as error:
        loops.ndrange(2.5)
    assert str(error.value) == (
        "ndrange() takes ints and (begin, end) pairs, not 2.5\nhelp: write weft.ndrange(n, (1, m))"
    )


@pytest.mark.parametrize("make", [torch.clone, lambda x: x.as_subclass(field.Array)])
def test_atomics_write_the_element_and_give_the_one_before(make):
    x = make(torch.tensor([5, 5, 5, 5, 6, 6, 6, 6]))
    before = [
        atomics.atomic_add(x[0], 2), atomics.atomic_sub(x[1], 2), atomics.atomic_min(x[2], 1),
        atomics.atomic_max(x[3], 9), atomics.atomic_and_(x[4], 3), atomics.atomic_or_(x[5], 9),
        atomics.atomic_xor(x[6], 1), atomics.atomic_exchange(x[7], 0),
    ]  # fmt: skip
    assert [int(b) for b in before] == [5, 5, 5, 5, 6, 6, 6, 6]
    assert x.tolist() == [7, 3, 1, 9, 2, 15, 7, 0]
    assert atomics.atomic_cas(x[0], 7, 1) == 7
    assert atomics.atomic_cas(x[1], 7, 1) == 3
    assert x.tolist()[:2] == [1, 3]
    with pytest.raises(KernelTypeError) as error:
        atomics.atomic_add(x[0] + 1 if type(x) is field.Array else 1.0, 2)
    assert str(error.value) == (
        "atomic_add() updates an element of a tensor, not a value\n"
        "help: write weft.atomic_add(x[i], v)"
    )


def test_elements_of_local_arrays_are_values():
    a = field.zeros((2, 3), dtypes.f64)
    s = a[0, 1]
    s += 1
    a[1, 2] += 4
    a[0][0] += 2
    assert a.tolist() == [[2, 0, 0], [0, 0, 4]]
    assert a.dtype == torch.float64


def test_fields():
    values = random.normal(size=(2, 3)).astype(np.float32)
    x = field.field(dtypes.f32, (2, 3))
    x.from_numpy(values)
    np.testing.assert_array_equal(x.to_numpy(), values)
    assert type(x.to_torch()) is torch.Tensor
    met = []
    for index in x:
        met.append(index)
    assert met[1] == (0, 1)
    assert list(x)[1].tolist() == x.to_torch()[1].tolist()
    x.fill(3)
    assert x.sum() == 18
    count = field.field(int)
    count[None] += 2
    assert count[None] == 2
    assert count.dtype == torch.int32
    v = Vector.field(2, dtypes.f32, 3)
    v[1] = Vector([1, 2])
    v[1, 0] += 1
    assert v[1].to_list() == [2, 2]
    assert (v.shape, v.element_shape, v.size()) == ((3,), (2,), (3, 2))
    w = v[1]
    with pytest.raises(KernelTypeError) as error:
        w.x = 3
    assert str(error.value) == (
        "`v = x[i]` of a field of vectors is a copy: to set its elements would not reach the field"
        "\n"
        "help: write x[i][k] = value, or x[i] = vector; Vector(x[i]) makes a copy that can be set"
    )
    with pytest.raises(KernelValueError) as error:
        x.from_numpy(values.T)
    assert str(error.value) == "this field has shape (2, 3), the values have (3, 2)"
    grown = field.field(dtypes.f32, 2, needs_grad=True)
    grown[0] = 2.0
    (grown[0] * 3).backward()
    assert grown.grad.tolist() == [3, 0]


def test_init_sets_defaults_only(monkeypatch):
    monkeypatch.setattr(field.Field, "defaults", field.Defaults())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        field.init(arch=field.gpu, default_fp=dtypes.f64, debug=True)
    assert field.field(float, 2, device="cpu").dtype == torch.float64
    assert kernel(lambda: 0).options.debug
    assert not kernel(lambda: 0, debug=False).options.debug
    field.init()
    assert not kernel(lambda: 0).options.debug
    pending.sync()


def test_annotations_and_markers():
    assert types.is_template(types.template)
    assert types.is_template(types.template())
    assert types.ndarray(dtype=wm.vec3, ndim=2).rank == 3
    assert types.vector(3, dtypes.f64)(1, 2, 3)[0].dtype == torch.float64
    assert loops.is_func(loops.func(lambda: 0))
    assert not loops.is_func(test_loops)


def test_every_canonical_name_has_an_object_and_no_object_an_unknown_name():
    assert {*names.UNARY, *names.BINARY, *signatures.FUNCTIONS} <= {*names.BUILTINS.values()}
    for value, name in [
        (math.sin, "sin"), (torch.sin, "sin"), (wm.sin, "sin"), (min, "min"), (wm.min, "minimum"),
        (torch.maximum, "maximum"), (math.floor, "floor_int"), (wm.floor, "floor"),
        (round, "round_int"), (loops.ndrange, "ndrange"), (range, "range"), (Vector, "Vector"),
        (Vector.zero, "Vector.zero"), (torch.where, "select"), (int, "int"),
        (atomics.atomic_or_, "atomic_or"), (field.zeros, "zeros"), ([], None), (object(), None),
    ]:  # fmt: skip
        assert names.canonical(value) == name


def test_the_modules_can_be_imported_by_name():
    scope = {}
    exec("import weft.math as tm\nfrom weft.math import *\nfrom weft.types import ndarray", scope)
    assert scope["tm"] is weft.math
    assert scope["vec3"] is weft.math.vec3
    assert scope["ndarray"] is weft.types.ndarray
    assert all(hasattr(weft.math, name) for name in weft.math.__all__)
