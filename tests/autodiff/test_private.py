"""Gradients accumulated in private copies: what atomics and sums in a loop of their own give."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from tests.autodiff import kernels as k
from tests.autodiff.test_gradients import CASES, made
from weft.pytorch import workspaces


@pytest.fixture
def always(monkeypatch):
    """Copies wherever there may be some, even where there is nothing to gain."""
    monkeypatch.setattr(workspaces, "_LEAST_ADDITIONS", 0)
    monkeypatch.setattr(workspaces, "REMEMBERED", 0)
    monkeypatch.setattr(workspaces, "_FILLED_PER_ATOMIC", 1 << 40)
    monkeypatch.setattr(workspaces, "_LONG_SUM", 0)
    monkeypatch.setattr(workspaces, "_CHUNKS", range(3, 6))


def launched(kernel):
    """The notes of the adjoints that were launched last."""
    derived = [s.derived for s in kernel.specializations if s.derived]
    return [n for loop in derived if loop.launched for n in loop.launched.notes.items()]


@pytest.mark.parametrize("name", CASES)
def test_every_gradient_is_right_with_copies(name, always):
    kernel, args = made(name)
    assert gradcheck(lambda *a: kernel(*a), args)
    if name != "switch":
        assert gradgradcheck(lambda *a: kernel(*a), args)


@pytest.mark.parametrize("name", ["pick", "layernorm", "softmax"])
def test_the_interpreter_finds_no_races_among_copies(name, always):
    kernel, args = made(name)
    out = kernel(*args)
    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    expected = torch.autograd.grad(out, tensors, torch.ones_like(out))
    found = [g for g in kernel.backward.interpret(*args) if g is not None]
    torch.testing.assert_close(found, list(expected))


@weft.kernel
def looked_up(table, rows, weights):
    """Three parallel indices, a loop inside, places that depend on data."""
    out = weights.new_zeros(rows.shape)
    for a, b, c in weft.ndrange(rows.shape[0], (1, rows.shape[1]), rows.shape[2]):
        s = 0.0
        for d in range(table.shape[1]):
            s += table[rows[a, b, c], d] * weights[a, b, c]
        out[a, b, c] = s * s
    return out


def by_torch(table, rows, weights):
    out = (table[rows].sum(-1) * weights) ** 2
    return torch.cat([torch.zeros_like(out[:, :1]), out[:, 1:]], 1)


SHAPES = [(3, 5, 7), (1, 2, 1), (0, 4, 2), (2, 0, 3), (2, 1, 0), (1, 40, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_an_iteration_space_of_any_shape(shape, threads, always):
    torch.manual_seed(math.prod(shape))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = torch.randint(0, 4, shape)
        table = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        weights = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        g = torch.randn(shape, dtype=torch.float64)
        found = torch.autograd.grad(looked_up(table, rows, weights), (table, weights), g)
        expected = torch.autograd.grad(by_torch(table, rows, weights), (table, weights), g)
        torch.testing.assert_close(found, expected)
    finally:
        torch.set_num_threads(before)
    if math.prod(shape):
        assert dict(launched(looked_up))["d.table"].startswith("private copies")


def test_copies_where_they_pay():
    pick = weft.kernel(k.pick.function)

    def note(elements, picks):
        x = torch.randn(elements, requires_grad=True)
        pick(x, torch.randint(0, elements, (picks,))).sum().backward()
        return dict(launched(pick))["d.x"]

    assert note(100, 1 << 16).startswith("private copies, added up in their order (data-dependent")
    assert note(100, 1 << 8).startswith("atomic")  # few additions
    assert note(1 << 20, 1 << 15).startswith("atomic")  # the copies would be most of the work


def test_copies_that_take_too_much_memory():
    pick = weft.kernel(k.pick.function)
    x = torch.randn(3 << 20, requires_grad=True)
    idx = torch.randint(0, 3 << 20, (3 << 20,))
    g = torch.randn(3 << 20)
    (found,) = torch.autograd.grad(pick(x, idx), x, g)
    assert dict(launched(pick))["d.x"].startswith("atomic")
    expected = torch.zeros(3 << 20).index_add_(0, idx, 2 * x.detach()[idx] * g)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@weft.kernel
def scaled(x, w):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * w[j]
    return out


def test_a_long_sum_goes_along_with_the_loop_and_its_bits_do_not_depend_on_threads():
    torch.manual_seed(0)
    x = torch.randn(2000, 33, requires_grad=True)
    w = torch.randn(33, requires_grad=True)
    g = torch.randn(2000, 33)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(torch.autograd.grad(scaled(x, w), (x, w), g))
    torch.set_num_threads(before)
    assert dict(launched(scaled))["d.w"] == "private copies, added up in their order"
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    exact = (g.double() * x.detach().double()).sum(0)
    torch.testing.assert_close(found[0][1].double(), exact, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(found[0][0], g * w.detach())


def test_inspect_says_how_many_bytes():
    x = torch.randn(100)
    text = weft.kernel(k.pick.function).backward.inspect(x, torch.randint(0, 100, (1 << 16,)))
    assert "d.x: private copies, added up in their order (data-dependent subscript idx[i])" in text
    assert ": f32, d.x for each chunk of the loop" in text


def test_torch_compile_and_several_loops():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(x, idx):
        return k.pick(k.pick(x, idx), idx)

    torch.manual_seed(0)
    x = torch.randn(1 << 15, requires_grad=True)
    idx = torch.randint(0, 50, (1 << 15,))
    g = torch.randn(1 << 15)
    (found,) = torch.autograd.grad(twice(x, idx), x, g)
    y = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad((y[idx] ** 2)[idx] ** 2, y, g.double())
    torch.testing.assert_close(found.double(), expected, atol=1e-2, rtol=1e-3)


def test_what_fits_is_remembered_by_all_that_it_depends_on():
    pick = weft.kernel(k.pick.function)
    x = torch.randn(100, requires_grad=True)
    idx = torch.randint(0, 100, (1 << 15,))

    def form():
        pick(x, idx).sum().backward()
        return dict(launched(pick))["d.x"].partition(" ")[0]

    assert [form(), form()] == ["private", "private"]
    torch.use_deterministic_algorithms(True)
    try:
        assert [form(), form()] == ["sorted", "sorted"]
    finally:
        torch.use_deterministic_algorithms(False)
    assert form() == "private"
    (g,) = torch.autograd.grad(pick(x, idx).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(second, 2 * torch.bincount(idx, minlength=100).float())
