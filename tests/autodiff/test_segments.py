"""Under torch.use_deterministic_algorithms(True), elements of rows that data picks are summed by
rows: what picks them is sorted once for all elements of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

import weft
from tests.cuda.emulator import gradients
from weft.autodiff import segments
from weft.autodiff.adjoint import RUN
from weft.pytorch import fitting, sorted_rows, workspaces


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fitting, "_MANY", 0)
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


def cubes(w, ids):
    """Two subscripts say the row, or none but one."""
    w = w.view(2, 2, 5)
    out = w.new_empty(ids.shape[0], 5)
    for i, j in weft.ndrange(ids.shape[0], 5):
        out[i, j] = w[int(ids[i, 0]) % 2, int(ids[i, 1]) // 2, j] ** 2
    for i, k, j in weft.ndrange(ids.shape[0], 2, 5):
        out[i, j] += w[int(ids[i, 0]) % 2, k, j] ** 3
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


def gradient_by_torch(
    kernel: weft.Kernel, w: torch.Tensor, ids: torch.Tensor, *, grad: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(kernel(w, ids), w, grad)


def notes(kernel: weft.Kernel) -> list[str]:
    return [n for s in kernel.specializations if s.derived
            for a in s.derived.adjoints for n in a.notes.values()]  # fmt: skip


@pytest.mark.parametrize("run", [RUN, 2])
@pytest.mark.parametrize(("function", "rows"), [
    (embedding, True), (of_pairs, True), (padded, True), (columns, True), (crossed, True),
    (cubes, True), (by_column, False), (inside, False),
])  # fmt: skip
@pytest.mark.sampled(6)
def test_gradients_by_rows(
    function: Callable[..., Any], rows: bool, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (segments, workspaces):
        monkeypatch.setattr(module, "RUN", run)
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
        # Of runs of iterations, and of what is left of them, there are two.
        assert (text.count("arith.select") > 2) == conditions


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


@pytest.mark.parametrize("run", [gradient_by_torch, gradients])
def test_long_rows_are_summed_by_runs(run: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    """Iterations with one key are no longer one sum: that of each `RUN` of them stands by itself.
    Rows begin and end anywhere."""
    lengths = [0, 1, RUN - 1, RUN, RUN + 1, 3 * RUN + 7, 2 * RUN, 5, 3 * RUN - 1, 0]
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))]
    kernel = weft.kernel(embedding)
    w = torch.randn(len(lengths), 3, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(len(ids), 3, dtype=torch.float64)
    (found,) = run(kernel, w, ids[:, None], grad=grad)
    (expected,) = torch.autograd.grad(w[ids] ** 2, w, grad)
    torch.testing.assert_close(found, expected)

    # One sum of these in float32 would stay what it begins with.
    w = torch.full((2, 3), 0.5, requires_grad=True)
    grad = torch.ones(20 * RUN, 3)
    grad[0] = 2.0**24
    (found,) = run(kernel, w, torch.zeros(len(grad), 1, dtype=torch.int64), grad=grad)
    assert (found[0] > 2.0**24 + 18 * RUN).all()
    assert (found[1] == 0).all()


def test_memory_that_is_written_is_not_filled() -> None:
    """In this mode torch fills what `torch.empty` makes: a pass over memory for nothing."""
    unfilled = workspaces.unfilled((3, 5), dtype=torch.float16, device=torch.device("cpu"))
    assert (unfilled.shape, unfilled.stride(), unfilled.dtype) == ((3, 5), (5, 1), torch.float16)
    w, ids = torch.randn(400, 50, requires_grad=True), torch.randint(0, 400, (70, 1))
    out = weft.kernel(embedding)(w, ids)
    with torch.profiler.profile(record_shapes=True) as profile:
        torch.autograd.grad(out.sum(), w)
    filled = [e.input_shapes[0] for e in profile.events() if e.name == "aten::fill_"]
    assert [400, 50] not in filled


@pytest.mark.parametrize("rows", [3, (1 << 16) - 2, (1 << 16) - 1])
def test_keys_of_any_width_are_sorted(rows: int) -> None:
    keys = torch.tensor([[rows - 1, 0, -1, rows - 1], [rows // 2, -1, 0, rows - 1]])
    order, starts = sorted_rows.order_of(keys, torch.empty(2, rows, device="meta"), (1,))
    assert order.tolist() == [2, 5, 1, 6, 4, 0, 3, 7]
    assert starts.dtype == torch.int64
    assert starts[[0, 1, rows // 2, rows // 2 + 1, -2, -1]].tolist() == [2, 4, 4, 5, 5, 8]


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


def by_default(monkeypatch: pytest.MonkeyPatch, threads: int, kernel: Any, *args: Any) -> Any:
    """The gradient where determinism is not asked for, of sizes that count as large."""
    torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(workspaces, "_LEAST_ADDITIONS", 0)
    monkeypatch.setattr(workspaces.Workspaces, "private", lambda *_, **__: {})
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return gradient_by_torch(kernel, *args[:2], grad=args[2])[0]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("columns", "sums"), [(64, True), (16, False)])
def test_long_rows_are_sorted_on_a_cpu(
    columns: int, sums: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There sorting rows costs less than atomic additions to all of their elements. Not where they
    are short; nor for one thread, which needs no atomics."""
    torch.manual_seed(0)
    ids, grad = torch.randint(0, 40, (300, 1)), torch.randn(300, columns)
    w = torch.randn(40, columns, requires_grad=True)
    kernel, alone = weft.kernel(embedding), weft.kernel(embedding)
    first, second = (by_default(monkeypatch, 2, kernel, w, ids, grad) for _ in range(2))
    assert any(n.startswith("sorted by rows") for n in notes(kernel))  # was tried, at least
    derived = [s.derived for s in kernel.specializations if s.derived]
    (launched,) = (d.launched for d in derived)
    assert launched is not None
    assert launched.notes["d.w"].startswith("sorted by rows" if sums else "atomic")
    torch.testing.assert_close(first, second, rtol=0 if sums else 1e-5, atol=0 if sums else 1e-5)
    by_default(monkeypatch, 1, alone, w, ids, grad)
    assert not any(n.startswith("sorted") for n in notes(alone))
    expected = torch.zeros_like(w).index_add_(0, ids[:, 0], 2 * w.detach()[ids[:, 0]] * grad)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-4)
