"""``weft.init(debug=False)`` leaves asserts out, as Taichi does."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.errors import KernelAssertionError
from weft.lang import field


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field.Field, "defaults", field.Defaults())


@weft.func
def positive(v):
    assert v > 0
    return v


def roots(x, n):
    assert n > 5, "of the host part"
    for i in x:
        assert x[i] > 1
        x[i] = positive(x[i]) + n


@pytest.mark.parametrize("interpreted", [False, True])
def test_asserts_are_left_out_where_init_says_so(interpreted: bool) -> None:
    for debug, checked in ((None, True), (True, True), (False, False)):
        weft.init(debug=debug)
        kernel = weft.kernel(roots)
        run = kernel.interpret if interpreted else kernel
        x = torch.tensor([-1.0, 2.0])
        if checked:
            with pytest.raises(AssertionError, match="of the host part"):
                run(x, 1)
            with pytest.raises(AssertionError):
                run(x, 7)
        else:
            run(x, 1)
            assert x.tolist() == [0.0, 3.0]


@weft.func
def called_by_the_host(a, b=2, *, c: weft.i32 = 3):
    assert a > 100
    return positive(a) + b + c


def in_the_host_part(n):
    return called_by_the_host(n) + called_by_the_host(n, 5, c=1.5)


@pytest.mark.parametrize("interpreted", [False, True])
def test_those_of_functions_that_the_host_part_calls(interpreted: bool) -> None:
    for debug, checked in ((None, True), (False, False)):
        weft.init(debug=debug)
        kernel = weft.kernel(in_the_host_part)
        run = kernel.interpret if interpreted else kernel
        if checked:
            with pytest.raises(AssertionError):
                run(-1)
        else:
            assert run(-1) == -1 + 5 - 1 + 5 + 1


def test_a_kernel_that_asks_for_debug_has_its_asserts() -> None:
    weft.init(debug=False)
    with pytest.raises(AssertionError, match="of the host part"):
        weft.kernel(debug=True)(roots)(torch.ones(2), 1)


@weft.func
def marked(out, i):
    out[i] += 1
    return 0


@weft.kernel
def marking(out):
    assert marked(out, 2)
    for i in range(2):
        assert marked(out, i) > 7, f"{i}"


def test_what_is_asserted_is_computed_all_the_same() -> None:
    weft.init(debug=False)
    for run in (marking, marking.interpret):
        out = torch.zeros(3)
        run(out)
        assert out.tolist() == [1.0, 1.0, 1.0]


@weft.kernel
def drawn(out, n: int):
    for i in out:
        out[i] = weft.randint(n, 0)


def test_asserts_of_the_language_stay() -> None:
    weft.init(debug=False)
    with pytest.raises(KernelAssertionError):
        drawn(torch.zeros(2), 3)
