"""The rows of docs/language.md's table of differences from Python, in debug mode too."""

import math

import pytest
import torch

import weft

MODES = pytest.mark.parametrize("debug", [False, True])


def run(debug, function, *args):
    return weft.kernel(debug=debug)(function)(*args)


def test_integers_wrap():
    def grow(n, small, wide):
        for i in range(n.shape[0]):
            small[i] = n[i] + 100
            wide[i] = 2**62 * n[i]

    small, wide = torch.zeros(1, dtype=torch.int8), torch.zeros(1, dtype=torch.int64)
    run(False, grow, torch.tensor([100]), small, wide)
    assert small.tolist() == [200 - 256]
    assert wide.tolist() == [(2**62 * 100 + 2**63) % 2**64 - 2**63]
    with pytest.raises(weft.KernelOverflowError):
        run(True, grow, torch.tensor([100]), small, wide)


@MODES
def test_divisions_by_zero(debug):
    def divide(x, z, quotient):
        for i in range(x.shape[0]):
            quotient[i] = x[i] / z[i]

    def divide_integers(x, z, whole, rest):
        for i in range(x.shape[0]):
            whole[i] = x[i] // z[i]
            rest[i] = x[i] % z[i]

    x, z = torch.tensor([7, -7, 0]), torch.zeros(3, dtype=torch.int64)
    whole, rest, quotient = torch.ones_like(x), torch.ones_like(x), torch.ones(3)
    if debug:
        with pytest.raises(weft.KernelAssertionError, match="7 // 0: division by zero, at i = 0"):
            run(debug, divide_integers, x, z, whole, rest)
    else:
        run(debug, divide_integers, x, z, whole, rest)
        assert whole.tolist() == [0, 0, 0]
        assert rest.tolist() == x.tolist()
    run(debug, divide, x, z, quotient)
    assert quotient.tolist()[:2] == [math.inf, -math.inf]
    assert math.isnan(quotient[2])


@MODES
def test_functions_outside_of_their_domain_and_conversions(debug):
    def convert(x, logs, roots, whole):
        for i in range(x.shape[0]):
            logs[i] = math.log(x[i])
            roots[i] = math.sqrt(x[i])
            whole[i] = int(x[i])

    x = torch.tensor([-1.0, 1e30, math.nan])
    logs, roots, whole = torch.zeros(3), torch.zeros(3), torch.ones(3, dtype=torch.int64)
    run(debug, convert, x, logs, roots, whole)
    assert math.isnan(logs[0])
    assert math.isnan(roots[0])
    assert whole.tolist() == [-1, 2**63 - 1, 0]


@MODES
def test_a_loop_over_a_tensor_gives_indices(debug):
    def number(x):
        for i, j in x:
            x[i, j] = 10 * i + j

    x = torch.zeros(2, 3)
    run(debug, number, x)
    assert x.tolist() == [[0, 1, 2], [10, 11, 12]]


def test_subscripts_out_of_range_are_found_in_debug_mode():
    def before(x, out, k: int):
        for i in range(out.shape[0]):
            out[i] = x[i + k]

    for k in (-1, 1):
        with pytest.raises(weft.KernelIndexError, match="is out of range"):
            run(True, before, torch.zeros(3), torch.zeros(3), k)


@MODES
def test_a_name_of_a_loop_is_gone_after_it(debug):
    def last(x, out):
        for i in range(out.shape[0]):
            for j in range(x.shape[0]):
                v = x[j]
            out[i] = v

    def kept(x, out):
        for i in range(out.shape[0]):
            v = 0.0
            for j in range(x.shape[0]):
                v = x[j]
            out[i] = v

    x, out = torch.arange(4.0), torch.zeros(2)
    with pytest.raises(weft.KernelNameError, match="`v`"):
        run(debug, last, x, out)
    run(debug, kept, x, out)
    assert out.tolist() == [3, 3]


@MODES
def test_an_element_prints_as_its_number(debug, capsys):
    def show(x):
        for i in range(x.shape[0]):
            print(x[i], i)

    run(debug, show, torch.tensor([1.5]))
    assert capsys.readouterr().out == "1.5 0\n"


@MODES
def test_a_vector_has_a_copy_under_its_second_name(debug):
    def second(out):
        for i in range(out.shape[0]):
            a = weft.Vector([1.0, 2.0])
            b = a
            b[0] = 5.0
            out[i] = a[0] + b[0]

    out = torch.zeros(1)
    run(debug, second, out)
    assert out.tolist() == [6]
