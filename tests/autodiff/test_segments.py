"""Under torch.use_deterministic_algorithms(True), elements of rows that data picks are summed by
rows: what picks them is sorted once for all elements of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

import weft
from weft.pytorch import autograd


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(autograd, "_MANY", 0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def embedding(w, ids):
    out = w.new_empty(ids.shape[0], w.shape[1])
    for i, j in weft.ndrange(ids.shape[0], w.shape[1]):
        out[i, j] = w[int(ids[i, 0]), j] ** 2
    return out


def of_pairs(w, ids):
    """Two indices have keys, and some columns and iterations none."""
    out = w.new_zeros(ids.shape[0], ids.shape[1], w.shape[1])
    for i in range(1, ids.shape[0], 2):
        for t, j in weft.ndrange(ids.shape[1], (2, w.shape[1] - 1)):
            out[i, t, j] = 3.0 * w[int(ids[i, t]), j] * w[int(ids[i, t]), j]
    return out


def padded(w, ids):
    out = w.new_zeros(ids.shape[0], w.shape[1])
    for j, i in weft.ndrange(w.shape[1], ids.shape[0]):
        if ids[i, 0] > 1:
            out[i, j] = w[int(ids[i, 0]) - 1, j] * j
        elif ids[i, 1] != 2:
            out[i, j] = w[int(ids[i, 1]), j] + w[0, j] ** 2
    return out


def columns(w, ids):
    out = w.new_empty(w.shape[0], ids.shape[0])
    for i, j in weft.ndrange(ids.shape[0], w.shape[0]):
        s = 0.0
        for t in range(ids.shape[1]):
            s += float(ids[i, t]) * (1.0 + j)
        out[j, i] = w[j, int(ids[i, 1])] * s
    return out


def crossed(w, ids):
    """A row by two subscripts, of which one is a sum."""
    out = w.new_empty(ids.shape[0], 2, 3)
    for i, k, j in weft.ndrange(ids.shape[0], 2, 3):
        out[i, k, j] = w[int(ids[i, k]) // 2 + k, j] * (k + 1)
    return out


def by_column(w, ids):
    """The row depends on the column: there are no rows to be sorted."""
    out = w.new_empty(ids.shape)
    for i, j in weft.ndrange(ids.shape[0], ids.shape[1]):
        out[i, j] = w[int(ids[i, j]), j] ** 2
    return out


def inside(w, ids):
    out = w.new_empty(ids.shape[0], w.shape[1])
    for i, j in weft.ndrange(ids.shape[0], w.shape[1]):
        s = 0.0
        for t in range(ids.shape[1]):
            s += w[int(ids[i, t]), j] ** 2
        out[i, j] = s
    return out


def notes(kernel: weft.Kernel) -> list[str]:
    return [n for s in kernel.specializations if s.derived
            for a in s.derived.adjoints for n in a.notes.values()]  # fmt: skip


@pytest.mark.parametrize(("function", "rows"), [
    (embedding, True), (of_pairs, True), (padded, True), (columns, True), (crossed, True),
    (by_column, False), (inside, False),
])  # fmt: skip
def test_gradients_by_rows(function: Callable[..., Any], rows: bool) -> None:
    torch.manual_seed(0)
    kernel = weft.kernel(function)
    ids = torch.randint(0, 4, (7, 2))
    w = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda w: kernel(w, ids), (w,))
    assert (
        any(n.startswith("sorted by rows (data-dependent subscript") for n in notes(kernel)) == rows
    )
    assert torch.autograd.grad(kernel(w, ids[:0]).sum(), w)[0].eq(0).all()


def test_whole_rows_have_no_conditions() -> None:
    """A gradient is as large as what it is the gradient of."""
    for function, conditions in ((embedding, False), (of_pairs, True)):
        kernel, ids = weft.kernel(function), torch.randint(0, 4, (7, 2))
        kernel(torch.randn(4, 5, requires_grad=True), ids).sum().backward()
        texts = [str(a) for s in kernel.specializations if s.derived for a in s.derived.adjoints]
        (text,) = {t for t in texts if "sorted by rows" in t}
        assert ("arith.select" in text) == conditions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_order_is_that_of_the_iterations(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    kernel, ids = weft.kernel(embedding), torch.randint(0, 40, (3000, 1))
    w, grad = torch.randn(40, 20, dtype=dtype, requires_grad=True), torch.randn(3000, 20).to(dtype)
    first, *others = (torch.autograd.grad(kernel(w, ids), w, grad)[0] for _ in range(3))
    assert all(torch.equal(first, g) for g in others)
    terms = grad.float() * (2 * w.detach().float()[ids[:, 0]])
    expected = torch.zeros(40, 20)
    for row, term in zip(ids[:, 0].tolist(), terms, strict=True):
        expected[row] += term
    tolerance = 1e-2 if dtype is torch.float16 else 1e-5
    torch.testing.assert_close(first.float(), expected, rtol=tolerance, atol=tolerance)


def test_small_gradients_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few elements have no use for a thread each; a derivative of the gradient needs the list."""
    monkeypatch.undo()
    kernel, ids = weft.kernel(embedding), torch.randint(0, 4, (7, 1))
    w = torch.randn(4, 5, requires_grad=True)
    kernel(w, ids).sum().backward()
    assert any(n.startswith("sorted (") for n in notes(kernel))
    large = torch.randn(4096, 4, requires_grad=True)
    (g,) = torch.autograd.grad(kernel(large, ids).sum(), large, create_graph=True)
    assert not any(n.startswith("sorted by rows") for n in notes(kernel))
    torch.autograd.grad(kernel(large, ids).sum(), large)
    assert any(n.startswith("sorted by rows") for n in notes(kernel))
    torch.autograd.grad(g.sum(), large)
