"""Long loops keep what they carry at checkpoints only."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

import weft
from tests.autodiff import kernels as k
from weft.autodiff.activity import read_and_written
from weft.autodiff.adjoint import Buffer, Extent, segment_length
from weft.autodiff.reverse import reverse
from weft.ir.core import Op
from weft.passes.write_out import as_numbers
from weft.pytorch import workspaces
from weft.tools.cross import lowered_loops


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture
def always(monkeypatch):
    """Checkpoints even where the tape would be small, and segments, on a GPU too. Gives the
    workspaces of each launch."""
    monkeypatch.setattr(workspaces, "CHUNK", {})
    return _always(monkeypatch)


@pytest.fixture
def chunks(monkeypatch):
    """The same in chunks of four iterations, as on a GPU."""
    monkeypatch.setattr(workspaces, "CHUNK", {"cpu": 4, "cuda": 4})
    return _always(monkeypatch)


def _always(monkeypatch):
    monkeypatch.setattr(workspaces, "_SHORT", 0)
    monkeypatch.setattr(workspaces, "_FEW", -1)  # no tape is afforded, on a GPU neither
    monkeypatch.setattr(workspaces.Workspaces, "scans_rows", False)
    monkeypatch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)
    monkeypatch.setattr(workspaces, "_ROOM", 1 << 60)
    monkeypatch.setattr(workspaces, "REMEMBERED", 0)
    return record(monkeypatch)


def record(monkeypatch):
    made = []
    make = workspaces.Workspaces.make

    def recording(self, device, **how):
        made.append(make(self, device, **how))
        return made[-1]

    monkeypatch.setattr(workspaces.Workspaces, "make", recording)
    return made


@weft.kernel
def strided(x, lower: int, step: int):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        p = 1.0
        for j in range(lower, x.shape[1], step):
            if j % 5 == 4:
                continue
            p *= x[i, j]
        out[i] = p * p
    return out


@weft.kernel
def collatz(x, n):
    """A while loop whose trips depend on data, left early, with a loop and an array in it."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        a = weft.zeros((3,), weft.f64)
        v = x[i]
        m = n[i]
        while m != 1:
            m = m // 2 if m % 2 == 0 else 3 * m + 1
            for q in range(m % 4):
                a[q % 3] += v * v
                v = 0.5 * v + 0.1 * a[(q + 1) % 3]
            if v > 3.0:
                break
        out[i] = v * a[0] + a[1] * a[2]
    return out


@weft.kernel
def triangle(x):
    """Nested loops that both carry something; the inner one's bound is the outer one's index."""
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        p = 1.0
        for s in range(x.shape[1]):
            q = p
            for t in range(s):
                q = q * x[i, t] + 0.3
            p = 0.5 * p * x[i, s] + q
        out[i] = p
    return out


@weft.kernel
def states(x, a):
    """A recurrence that is not linear: going back needs every state."""
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        h = 0.0
        for t in range(x.shape[1]):
            h = math.sin(a[i] * h + x[i, t])
        out[i] = h * h
    return out


@weft.kernel
def flags(x):
    """What is carried is a number, an integer and a truth value."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        h = 0.5
        count = 0
        on = False
        for t in range(x.shape[1]):
            h = h * x[i, t] + count if on else math.sin(h) - x[i, t]
            on = x[i, t] > 0.2
            count += 2 if on else 1
            out[i, t] = h * h
    return out


@weft.kernel
def in_order(x):
    """No index is parallel."""
    out = torch.zeros_like(x)
    weft.loop_config(serialize=True)
    for i in range(x.shape[0]):
        h = 0.5 if i == 0 else out[i - 1, 0]
        for t in range(x.shape[1]):
            h = math.sin(h + x[i, t])
            out[i, t] = h
    return out


CASES = {
    "in order": lambda: (in_order, draw(3, 9)),
    "product": lambda: (k.product, draw(3, 11)),
    "newton": lambda: (k.newton, draw(3).abs() + 0.5),
    "states": lambda: (states, draw(2, 17), draw(2)),
    "breaks": lambda: (k.breaks, draw(4, 9)),
    "local": lambda: (k.local, draw(2, 7)),
    "wkv": lambda: (k.wkv, -draw(3).abs(), draw(3), draw(2, 10, 3), draw(2, 10, 3)),
    "nested": lambda: (k.nested, draw(3, 4), torch.tensor([2, 0, 4])),
    "strided": lambda: (strided, draw(2, 23), 2, 3),
    "no trips": lambda: (strided, draw(2, 3), 7, 2),
    "collatz": lambda: (collatz, draw(5), torch.tensor([1, 2, 7, 12, 27])),
    "triangle": lambda: (triangle, draw(2, 7)),
    "flags": lambda: (flags, draw(2, 11)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(5)
def test_gradients_with_checkpoints(name, always):
    torch.manual_seed(1)
    kernel, *args = CASES[name]()
    for a in args:
        if isinstance(a, torch.Tensor) and a.is_floating_point():
            a.requires_grad_()
    assert gradcheck(lambda *a: kernel(*a), args)
    assert any(n.startswith("segment") for made in always for n in made)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_gradients_in_chunks(name, chunks):
    torch.manual_seed(2)
    kernel, *args = CASES[name]()
    for a in args:
        if isinstance(a, torch.Tensor) and a.is_floating_point():
            a.requires_grad_()
    assert gradcheck(lambda *a: kernel(*a), args)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 5, 15, 16, 17])
@pytest.mark.parametrize("kernel", [states, flags], ids=["states", "flags"])
@pytest.mark.sampled(6)
def test_chunks_and_a_rest(kernel, turns, chunks):
    """The same gradients, bit by bit, as from a tape of every turn."""
    args = [draw(3, turns), *([draw(3)] if kernel is states else [])]
    leaves = [a.requires_grad_() for a in args]
    g = torch.randn_like(kernel(*leaves))
    found = torch.autograd.grad(weft.kernel(kernel.function)(*leaves), leaves, g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspaces.Workspaces, "tape_bytes", 0)
        expected = torch.autograd.grad(weft.kernel(kernel.function)(*leaves), leaves, g)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.cpu  # the text is of the form for it
def test_a_chunk_is_written_out(chunks):
    """What a whole chunk carries is in no array, and each element of a gradient is stored."""
    kernel, *args = weft.kernel(states.function), draw(2, 17), draw(2)
    x, a = (v.requires_grad_() for v in args)
    kernel(x, a).sum().backward()
    text = kernel.backward.inspect(x, a)
    assert "and of the segments of the loop at line" in text
    assert re.search(r"segments of the loop at line \d+: 80 bytes\n", text)
    assert text.count("{turns = 4}") == 2  # loops through chunks, forwards and backwards
    assert text.count("memref.alloca") == 1  # of the rest
    assert len(re.findall(r"memref.store .*%d.x\[", text)) == 4 + 1
    assert not re.findall(r"atomic_rmw addf .*%d.x\[", text)


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 4, 15, 16, 17, 99_999])
@pytest.mark.parametrize("name", ["scf.for", "scf.while"])
def test_segments_cover_the_loop(trips, name):
    op = type("Op", (), {"name": name})
    starts, segment = (Extent(op, part).length(trips) for part in ("starts", "segment"))  # type: ignore[arg-type]
    assert segment == segment_length(trips)
    assert (starts - (name == "scf.while")) * segment >= trips
    assert starts + segment <= 2 * trips**0.5 + 4


def backwards_by_hand(x, a):
    """The gradients of ``states(x, a).sum()``, in float64."""
    x, a = x.detach().double().numpy().T, a.detach().double().numpy()
    h = np.zeros((len(x) + 1, len(a)))
    for t, row in enumerate(x):
        h[t + 1] = np.sin(a * h[t] + row)
    gx, ga, g = np.empty_like(x), np.zeros_like(a), 2 * h[-1]
    for t in range(len(x) - 1, -1, -1):
        g = g * np.cos(a * h[t] + x[t])
        gx[t], ga, g = g, ga + g * h[t], g * a
    return torch.from_numpy(gx.T), torch.from_numpy(ga)


@pytest.mark.cpu
def test_a_hundred_thousand_steps_in_bounded_memory(monkeypatch):
    made = record(monkeypatch)
    rows, steps, dtype = 24, 100_000, torch.float64
    torch.manual_seed(0)
    x = (0.5 * torch.randn(rows, steps, dtype=dtype)).requires_grad_()
    a = (0.9 + 0.2 * torch.rand(rows, dtype=dtype)).requires_grad_()
    states(x, a).sum().backward()
    (spaces,) = made
    used = sum(t.nbytes for t in spaces.values() if isinstance(t, torch.Tensor))
    assert used == (317 + 316) * rows * dtype.itemsize  # the whole tape is 100,000 for each row
    for mine, expected in zip((x.grad, a.grad), backwards_by_hand(x, a), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)


def test_short_tapes_are_kept_whole(monkeypatch):
    made = record(monkeypatch)
    x = torch.randn(3, 100, requires_grad=True)
    states(x, torch.ones(3)).sum().backward()
    (spaces,) = made
    assert [tuple(t.shape) for t in spaces.values()] == [(3, 100)]


def test_second_derivatives_keep_everything(always):
    x, a = draw(2, 9).requires_grad_(), draw(2).requires_grad_()
    assert gradgradcheck(lambda *args: states(*args), (x, a))


def test_a_gpu_with_few_iterations_may_have_longer_tapes(monkeypatch):
    """Threads share a loop that is in one piece."""
    with FakeTensorMode():
        tensors = {"x": torch.empty(64, 1 << 20, device="cuda"), "n": 3}
        on_cpu = {"x": torch.empty(64, 1 << 20, device="cpu")}
    long, short = Op("scf.for", []), Op("scf.for", [])
    trips = {long: 1 << 20, short: 3}

    def made(*tapes):
        kept = (Buffer(f"tape{k}", "f32", long, tuple(map(Extent, loops)), shape)
                for k, (loops, shape) in enumerate(tapes))  # fmt: skip
        return SimpleNamespace(taped=list(kept), steps=())

    def afforded(*tapes, space=(64,), env=tensors):
        return workspaces.Workspaces(made(*tapes), env, [*space], trips).afforded

    largest = 4 * 64 << 20
    assert afforded(([long], ())) == largest
    assert afforded(([long], (2,)), ([long], ())) == 3 * largest
    assert afforded(([long, short], (3,))) == 4 * largest
    assert afforded(([long], ()), ([short], (2,))) == largest + 64 * 3 * 2 * 4
    assert afforded(([long], ()), space=(64, 1 << 20)) == 0
    assert afforded(([long], ()), env=on_cpu) == 0
    sizes = workspaces.Workspaces(made(([long], ())), tensors, [64, 1 << 20], trips)
    monkeypatch.setattr(workspaces.Workspaces, "scans_rows", True)
    assert sizes.afforded == largest


def along(x, c):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        h = weft.zeros(2)
        for j in range(x.shape[1]):
            t = c[0] * h[0] + c[1] * h[1] + x[i, j]
            h[1] = h[0]
            h[0] = t
            out[i, j] = t
    return out


def down(x, c):
    out = torch.empty_like(x)
    for i in range(x.shape[1]):
        s = 0.0
        for j in range(x.shape[0]):
            s = c[0] * s + x[j, i]
            out[j, i] = s
    return out


def bent(x, c):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s = c[0] * s * s + x[i, j]
            out[i, j] = s
    return out


@pytest.mark.parametrize(("function", "scanned"), [(along, True), (down, False), (bent, False)])
def test_turns_that_compose_along_rows_may_have_them_too(function, scanned):
    """A thread for each of many rows would read a column of these at a time."""
    x, c = torch.empty(9, 8, device="meta"), torch.empty(2, device="meta")
    (loop,) = lowered_loops(weft.kernel(function), x, c)
    wanted, kept = read_and_written(loop)
    adjoint = reverse(as_numbers(loop), wanted, kept)
    assert workspaces.Workspaces(adjoint, {}, [], {}).scans_rows == scanned
