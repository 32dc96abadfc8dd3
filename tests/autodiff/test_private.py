"""Gradients accumulated in private copies: what atomics and sums in a loop of their own give."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import weft
from benchmarks.rows import rms_norm
from examples.layer_norm import layer_norm
from tests.autodiff import kernels as k
from tests.autodiff.test_gradients import CASES, made
from tests.cuda.emulator import EmulatedCall, gradients
from weft.pytorch import workspaces
from weft.schedule.language import FastDivision, KeepRow, only


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


@pytest.mark.sampled(9)
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
def gathered(x, at, w):
    """``w`` times elements of rows that are kept apart by ``n``; the gradient of ``x`` scatters."""
    out = torch.empty_like(w)
    for n, i, j in weft.ndrange(w.shape[0], w.shape[1], w.shape[2]):
        s = 0.0
        for c in range(2):
            s += x[w.shape[0] - 1 - n, c, at[n, i, j]]
        out[n, i, j] = s * w[n, i, j]
    return out


def gathered_by_torch(x, at, w):
    n = torch.arange(w.shape[0])[:, None, None]
    return x.flip(0).sum(1)[n, at] * w


@pytest.mark.parametrize("shape", [(0, 4, 2), (3, 0, 5), (1, 90, 100), (2, 90, 100), (3, 41, 211),
                                   (8, 50, 60), (65, 20, 21)])  # fmt: skip
def test_whole_slices_in_order_where_they_are_as_many_as_threads(shape):
    """Bits are the same with any such number of threads: no copies, no atomics."""
    torch.manual_seed(math.prod(shape))
    x = torch.randn(shape[0], 2, 9, requires_grad=True)
    w = torch.randn(shape, requires_grad=True)
    at, g = torch.randint(0, 9, shape), torch.randn(shape)
    exact = torch.autograd.grad(gathered_by_torch(x.double(), at, w.double()), (x, w), g.double())
    before, bits = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found = torch.autograd.grad(gathered(x, at, w), (x, w), g)
            for a, b in zip(found, exact, strict=True):
                torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)
            if threads <= shape[0]:
                bits.append(found[0])
                said = dict(launched(gathered))["d.x"]
                assert said.startswith("atomic")
                assert said.endswith(
                    "; in order, without atomics, by a CPU of no more threads than `n`"
                )
            elif math.prod(shape) > 1 << 14:
                assert dict(launched(gathered))["d.x"].startswith("private copies")
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, bits[0]) for a in bits)


def test_copies_where_not_all_gradients_have_slices():
    @weft.kernel
    def biased(x, b, at):
        out = torch.empty(at.shape)
        for n, i in weft.ndrange(at.shape[0], at.shape[1]):
            out[n, i] = x[n, at[n, i]] * b[at[n, i]]
        return out

    torch.manual_seed(0)
    x, b = torch.randn(7, 9, requires_grad=True), torch.randn(9, requires_grad=True)
    at, g = torch.randint(0, 9, (7, 9000)), torch.randn(7, 9000)
    found = torch.autograd.grad(biased(x, b, at), (x, b), g)
    rows = torch.arange(7)[:, None]
    exact = torch.autograd.grad(x.double()[rows, at] * b.double()[at], (x, b), g.double())
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-4)
    assert not any("in order," in note for _, note in launched(biased))


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


@pytest.mark.parametrize(("rows", "said"), [
    (100, "d.w: gather"), (128, "d.w for each chunk of the loop: 12,800 bytes"),
    (400, "of the loop: 40,000 bytes"), (9000, "of the loop: 204,800 bytes"),
])  # fmt: skip
def test_so_many_chunks_of_a_long_sum(rows: int, said: str) -> None:
    """16, 50 and 256 copies of 200 numbers."""
    text = scaled.backward.inspect(torch.randn(rows, 200), torch.randn(200))
    assert f"{said}\n" in text


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
        for loop in (s.derived for s in pick.specializations if s.derived):
            for known in loop.histories:
                known.forget()  # launches whose plan is known ask for no form
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


NORMS = {
    "layer_norm": (layer_norm, 2, lambda x, w, b, e: F.layer_norm(x, x.shape[1:], w, b, e)),
    "rms_norm": (rms_norm, 1, lambda x, w, e: F.rms_norm(x, x.shape[1:], w, e)),
}


def taken(name, rows, length, dtype=torch.float32):
    kernel, weights, _ = NORMS[name]
    shapes = [(rows, length), *[(length,)] * weights]
    args = [torch.empty(s, dtype=dtype, device="meta", requires_grad=True) for s in shapes]
    return kernel.backward.schedules(*args, 1e-5, device="cuda").taken


def test_a_gpu_adds_up_rows_in_registers_where_there_are_many():
    for name, dtype, width in (
        ("layer_norm", torch.float32, 4), ("rms_norm", torch.float32, 4),
        ("rms_norm", torch.bfloat16, 8),
    ):  # fmt: skip
        first, *totals = taken(name, 8192, 4096, dtype)
        assert f"keep_row({width}, " in first.schedule
        assert first.grid == (256, 1, 1), "copies of 2 ** 20 elements in all"
        assert [row.loop.endswith("_total") for row in totals] == [True], "one loop for both"
        arrays = (3 if dtype is torch.float32 else 1.5) * 4 * 8192 * 4096
        assert arrays < first.accessed < 1.05 * arrays, "each row once, and the weights"
    assert taken("layer_norm", 4096, 768)[0].grid == (512, 1, 1), "eight rows each"
    for rows, length, copies in ((2048, 1024, 512), (1024, 1024, 512), (512, 4096, 128)):
        assert taken("layer_norm", rows, length)[0].grid == (copies, 1, 1), "fewer, of few elements"
    for rows, length in ((200, 4096), (8192, 64)):  # few chunks, short rows
        assert not any(row.loop.endswith("_total") for row in taken("rms_norm", rows, length))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("rows", "length", "copies"), [(7, 136, 3), (5, 64, 4), (3, 1031, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_registers_give_the_same_sums(name, rows, length, copies, dtype, monkeypatch):
    def private(self, most, threads, *, strict):
        return dict.fromkeys(self.adjoint.private, copies)

    monkeypatch.setattr(workspaces.Workspaces, "private", private)
    kernel, weights, reference = NORMS[name]
    torch.manual_seed(length)
    shapes = [(rows, length), *[(length,)] * weights]
    leaves = [torch.randn(s).to(dtype).requires_grad_() for s in shapes]
    wide = [v.detach().double().requires_grad_() for v in leaves]
    g = torch.randn(rows, length).to(dtype)
    EmulatedCall.seen.clear()
    found = gradients(weft.kernel(kernel.function), *leaves, 1e-5, grad=g)
    expected = torch.autograd.grad(reference(*wide, 1e-5), wide, g.double())
    loose = 1e-5 if dtype is torch.float32 else 2e-2
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=loose, atol=loose)
    assert only(EmulatedCall.seen[1], KeepRow)
    assert only(EmulatedCall.seen[1], FastDivision), "of rows to copies"


def test_sums_that_keep_their_order_have_no_copies_on_a_gpu():
    exact = weft.kernel(strict_math=True)(rms_norm.function)
    x = torch.empty(8192, 4096, device="meta", requires_grad=True)
    w = torch.empty(4096, device="meta", requires_grad=True)
    loops = exact.backward.schedules(x, w, 1e-5, device="cuda").taken
    assert not any(row.loop.endswith("_total") for row in loops)
