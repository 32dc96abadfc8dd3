"""What is loaded under a condition and then overwritten is what was there before, in all lanes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft


def taken(x, a, o):
    for i in range(x.shape[0]):
        if x[i] > 0:
            v = a[i] + 0
            a[i] = 0
        else:
            v = x[i] + 0
        o[i] = v


def loaded_in_front(x, a, o):
    for i in range(x.shape[0]):
        v = a[i] + 0
        if x[i] > 0:
            a[i] = 0
            w = v
        else:
            w = x[i] + 0
        o[i] = w


def two_conditions(x, a, o):
    for i in range(x.shape[0]):
        v = x[i] + 0
        if x[i] > 0:
            v = a[i] + 0
        if x[i] > 0:
            a[i] = 7
        o[i] = v


def exchanged(x, a, o):
    for i in range(x.shape[0]):
        if x[i] > 0:
            v, a[i] = a[i] + 0, x[i] + 0
        else:
            v = x[i] + 0
        o[i] = v


def nested(x, a, o):
    for i in range(x.shape[0]):
        v = x[i] + 0
        if i % 3 != 1:
            v = a[i] + 0 if x[i] > 0 else x[i] * 2
            a[i] = 9
        o[i] = v


def updated(x, a, o):
    for i in range(x.shape[0]):
        if x[i] > 0:
            v = a[i] + 0
            for k in range(3):
                a[i] = a[i] + k
        else:
            v = x[i] + 0
        o[i] = v


def of_flags(x, a, o):
    for i in range(x.shape[0]):
        v = x[i] > 1
        if x[i] > 0:
            v = a[i] > 0
            a[i] = -1
        o[i] = 1 if v else 2


KERNELS = [taken, loaded_in_front, two_conditions, exchanged, nested, updated, of_flags]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int8]


@pytest.mark.parametrize("plain", KERNELS, ids=lambda f: f.__name__)
def test_what_is_overwritten_is_loaded_before(plain: Callable[..., None]) -> None:
    kernel, random = weft.kernel(plain), torch.Generator().manual_seed(3)
    for dtype in DTYPES:
        x, a = ((torch.randn(67, generator=random) * 9).to(dtype) for _ in range(2))
        expected = [x.clone(), a.clone(), torch.zeros_like(x)]
        plain(*expected)
        found = [x, a, torch.zeros_like(x)]
        kernel(*found)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other), dtype


def test_the_gradient_of_branches_that_all_store() -> None:
    """Each branch of the gradient takes what is in an element, and sets it to 0."""

    @weft.kernel
    def branches(x, out):
        for i in range(x.shape[0]):
            if i % 4 == 0:
                out[i] = x[i]
            elif x[i] > 0:
                out[i] = 3 * x[i]
            else:
                out[i] = -1.0

    x = torch.randn(67, dtype=torch.float64, requires_grad=True)
    branches(x, out := torch.zeros_like(x))
    (found,) = torch.autograd.grad(out.sum(), x)
    expected = torch.where(torch.arange(67) % 4 == 0, 1.0, torch.where(x > 0, 3.0, 0.0))
    assert torch.equal(found, expected.double())


def test_what_no_condition_guards_is_loaded_as_ever() -> None:
    @weft.kernel
    def scaled(x, a, o):
        for i in range(x.shape[0]):
            a[i] = a[i] * x[i]
            if x[i] > 0:
                o[i] = x[i]

    x = torch.ones(67)
    assert "freeze" not in scaled.inspect(x, x.clone(), x.clone())["llvm"]
