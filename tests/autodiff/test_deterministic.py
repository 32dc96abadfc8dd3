"""Under torch.use_deterministic_algorithms(True) no gradient depends on the order of additions."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from tests.autodiff import kernels as k
from tests.autodiff.test_gradients import CASES, made


@pytest.fixture(autouse=True)
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@weft.kernel
def embedded(table, ids, weights):
    """Reads at data-dependent places: in a loop that is left early, under a condition."""
    out = table.new_empty(ids.shape[0])
    for i in range(ids.shape[0]):
        s = 1.0
        for j in range(ids.shape[1]):
            if ids[i, j] < 0:
                continue
            s = s * table[ids[i, j], j % 2] + weights[i]
            if s > 5.0:
                break
        if ids[i, 0] >= 0:
            s += table[ids[i, 0], 1] ** 2
        out[i] = s
    return out


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def notes(kernel):
    return [n for s in kernel.specializations if s.derived
            for a in s.derived.adjoints for n in a.notes.values()]  # fmt: skip


def test_places_that_depend_on_data_are_sorted():
    torch.manual_seed(0)
    ids = torch.randint(-1, 4, (5, 6))
    args = draw(4, 2), ids, draw(5)
    assert gradcheck(lambda *a: embedded(*a), args)
    assert gradgradcheck(lambda *a: embedded(*a), args)
    assert any(n.startswith("sorted (data-dependent subscript") for n in notes(embedded))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", [n for n in CASES if n != "switch"])
def test_every_gradient_is_there(name):
    kernel, args = made(name)
    assert gradcheck(lambda *a: kernel(*a), args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_bits_are_the_same_every_time(dtype):
    torch.manual_seed(0)
    x = torch.randn(7).to(dtype).requires_grad_()
    idx = torch.randint(0, 7, (5000,))
    weights = torch.randn(5000).to(dtype)
    first, *others = (torch.autograd.grad(k.pick(x, idx), x, weights)[0] for _ in range(4))
    assert all(torch.equal(first, g) for g in others)
    terms = 2 * x.detach().double()[idx] * weights.double()
    expected = torch.zeros(7, dtype=torch.float64).index_add_(0, idx, terms)
    torch.testing.assert_close(first.double(), expected, atol=0.5 if dtype.itemsize == 2 else 1e-3,
                               rtol=1e-2 if dtype.itemsize == 2 else 1e-4)  # fmt: skip


def test_nothing_that_is_read():
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(k.pick(x, torch.zeros(0, dtype=torch.int64)).sum(), x)
    assert g.tolist() == [0.0] * 3
