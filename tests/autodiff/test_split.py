"""Sums of gradients with few elements are computed in chunks."""

import re

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from tests.autodiff import kernels as k
from tests.autodiff.test_gradients import made
from weft.codegen.cpu import compile_cpu
from weft.compiler import optimize_for_cpu
from weft.pytorch import workspaces


@pytest.fixture
def always(monkeypatch):
    """Chunks even where there is nothing to gain."""
    monkeypatch.setattr(workspaces, "_LEAST_TERMS", 2)
    monkeypatch.setattr(workspaces, "_LEAST_SPLIT", 0)
    monkeypatch.setattr(workspaces, "REMEMBERED", 0)
    monkeypatch.setattr(workspaces, "_ITERATIONS", {"cpu": 1 << 22})


def parts(kernel):
    """The workspaces for parts of sums in what was derived from ``kernel``."""
    return [
        w.name
        for s in kernel.specializations if s.derived
        for a in s.derived.adjoints
        for w in a.taped if w.partial
    ]  # fmt: skip


NAMES = ["conv", "stride2", "layernorm", "upsample", "sumexp"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_chunks(name, always):
    kernel, args = made(name)
    assert gradcheck(lambda *a: kernel(*a), args)
    assert gradgradcheck(lambda *a: kernel(*a), args)
    assert parts(kernel)


@weft.kernel
def weighted(x, w):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * w[j] + w[j] ** 2
    return out


@pytest.mark.parametrize("rows", [0, 1, 2, 15, 16, 17, 1000, 4001])
def test_a_weight_that_many_rows_use(rows):
    torch.manual_seed(rows)
    x = torch.randn(rows, 3, dtype=torch.float64)
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    g = torch.randn(rows, 3, dtype=torch.float64)
    (found,) = torch.autograd.grad(weighted(x, w), w, g)
    torch.testing.assert_close(found, (g * (x + 2 * w.detach())).sum(0))
    for _ in range(3):
        assert torch.equal(torch.autograd.grad(weighted(x, w), w, g)[0], found)


def test_a_gradient_with_many_elements_is_one_loop():
    w, x = torch.randn(20, 30, requires_grad=True), torch.randn(5, 20, 30)
    before = len(parts(k.conv))
    k.conv(w, x, 0.1).sum().backward()
    assert len(parts(k.conv)) == before


def test_sums_of_few_terms_in_all_are_one_loop():
    """Their second launch took longer than they do, and most of the time of a first backward."""
    kernel = weft.kernel(k.conv.function)
    for channels, times, split in ((4, 16, False), (1, 90, False), (1, 127, True)):
        w, x = torch.randn(channels, times), torch.randn(1, channels, times).requires_grad_()
        kernel(w, x, 0.1).sum().backward()
        torch.testing.assert_close(x.grad[0], w.flip(-1).cumsum(-1).flip(-1))
        assert bool(parts(kernel)) == split


def test_a_sum_of_few_parts_has_no_code_for_a_long_one(always):
    """Which took half of the time of the first backward of a layer norm."""
    kernel = weft.kernel(weighted.function)
    x, w = torch.randn(1000, 40), torch.randn(40, requires_grad=True)
    kernel(x, w).sum().backward()
    torch.testing.assert_close(w.grad, (x + 2 * w.detach()).sum(0))
    (special,) = kernel.specializations
    adjoint = next(a for a in special.derived.adjoints if any(w.partial for w in a.taped))
    made = compile_cpu(optimize_for_cpu(adjoint.steps[-1]))
    assert made.simplified  # no loop is left to LLVM's vectorisers
    assert "%local" not in made.llvm, "no strips of tiles"
    assert not re.search(r"^(short|more)\d*:", made.llvm, re.MULTILINE), "nothing that is stopped"
    assert made.llvm.count(" fadd ") <= 12, "no sums in parts, and none for few columns"
