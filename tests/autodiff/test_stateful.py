"""Gradients of loops that carry local arrays from turn to turn: states of recurrences."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from benchmarks import recurrences
from weft.autodiff import state as states
from weft.passes import write_out
from weft.pytorch import workspaces


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


@weft.kernel
def cell(x, w):
    """A linear recurrent network whose state is a vector: s = w s + x."""
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        s = weft.zeros((3,), weft.f64)
        for t in range(x.shape[1]):
            new = weft.zeros((3,), weft.f64)
            for i in range(3):
                for j in range(3):
                    new[i] += w[i, j] * s[j]
            for i in range(3):
                s[i] = new[i] + x[b, t, i]
                out[b, t, i] = s[i] * s[i]
    return out


@weft.kernel
def linear_attention(q, k, v, g):
    """Gated linear attention, with a state of four times four."""
    out = torch.empty_like(v)
    for b in range(q.shape[0]):
        s = weft.zeros((4, 4), weft.f64)
        for t in range(q.shape[1]):
            for j in range(4):
                y = 0.0
                for i in range(4):
                    s[i, j] = math.exp(-g[b, t, i] * g[b, t, i]) * s[i, j] + k[b, t, i] * v[b, t, j]
                    y += q[b, t, i] * s[i, j]
                out[b, t, j] = y
    return out


@weft.kernel
def kalman(z, a, q, r: float):
    """A filter of position and speed, its covariance two times two."""
    out = torch.empty_like(z)
    for b in range(z.shape[0]):
        x = weft.zeros((2,), weft.f64)
        p = weft.zeros((3,), weft.f64)
        p[0] = 1.0
        p[2] = 1.0
        for t in range(z.shape[1]):
            x[0] = x[0] + a[b] * x[1]
            p[0] = p[0] + 2.0 * a[b] * p[1] + a[b] * a[b] * p[2] + q[b]
            p[1] = p[1] + a[b] * p[2]
            gain = p[0] / (p[0] + r)
            slow = p[1] / (p[0] + r)
            error = z[b, t] - x[0]
            x[0] = x[0] + gain * error
            x[1] = x[1] + slow * error
            p[2] = p[2] - slow * p[1] + q[b]
            p[1] = (1.0 - gain) * p[1]
            p[0] = (1.0 - gain) * p[0]
            out[b, t] = x[0] * x[1]
    return out


@weft.kernel
def mamba(x, dt, a, b, c):
    """The state loop of Mamba-2: a scalar decay for all of a head's state."""
    out = torch.empty_like(x)
    for n, h in weft.ndrange(x.shape[0], x.shape[2]):
        s = weft.zeros((4,), weft.f64)
        for t in range(x.shape[1]):
            decay = math.exp(-a[h] * a[h] * dt[n, t])
            y = 0.0
            for j in range(4):
                s[j] = decay * s[j] + dt[n, t] * b[n, t, j] * x[n, t, h]
                y += c[n, t, j] * s[j]
            out[n, t, h] = y
    return out


@weft.kernel
def rwkv7(r, w, k, v, a, b):
    """The state loop of RWKV-7, as in ``benchmarks.recurrences``."""
    y = torch.empty_like(v)
    for n, h, i in weft.ndrange(r.shape[0], r.shape[2], r.shape[3]):
        state = weft.zeros((3,), weft.f64)
        for t in range(r.shape[1]):
            known = 0.0
            for j in range(3):
                known += a[n, t, h, j] * state[j]
            s = 0.0
            for j in range(3):
                decay = math.exp(-math.exp(w[n, t, h, j]))
                state[j] = state[j] * decay + known * b[n, t, h, j] + v[n, t, h, i] * k[n, t, h, j]
                s += state[j] * r[n, t, h, j]
            y[n, t, h, i] = s
    return y


@weft.kernel
def backwards(x, y):
    """Back through time, with a branch and a turn that is left out."""
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        s = weft.zeros((3,), weft.f64)
        for t in range(x.shape[1] - 1, -1, -1):
            if t % 5 == 3:
                continue
            for j in range(3):
                if x[b, t] > 0:
                    s[j] = math.sin(s[j]) * x[b, t] + y[j]
                else:
                    s[j] = 0.5 * s[j] - y[j] * y[j]
            out[b, t] = s[0] * s[1] + s[2]
        for t in range(3, x.shape[1], 5):
            out[b, t] = 0.0
    return out


@weft.kernel
def shifted(x):
    """An array whose elements move on to the next place: no turn has some of its own."""
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        s = weft.zeros((4,), weft.f64)
        for t in range(x.shape[1]):
            for j in range(3):
                s[j] = s[j + 1] * x[b, t] + 0.1 * s[j]
            s[3] = x[b, t] + 0.3 * s[0]
            out[b, t] = s[0] + s[1] * s[2]
    return out


@weft.kernel
def running(x, w):
    """Elements are added to, of which the next turn asks; and which others add to the same."""
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        s = weft.zeros((5,), weft.f64)
        r = weft.zeros((5,), weft.f64)
        for t in range(x.shape[1]):
            for j in range(1, 5):
                s[j] += s[j - 1] * w[j - 1] + 0.1 * x[b, t]
                r[5 - j] += s[j] * s[j]
                r[2] += w[j - 1] * x[b, t]
            s[0] = 0.3 * r[2] + s[4] * r[4]
            out[b, t] = s[2] * r[1]
            for j in range(5):
                r[j] *= 0.1
                s[j] = math.sin(s[j])
    return out


CASES = {
    "cell": lambda n: (cell, draw(2, n, 3), 0.4 * draw(3, 3)),
    "linear attention": lambda n: (linear_attention, *(draw(2, n, 4) for _ in range(4))),
    "kalman": lambda n: (kalman, draw(2, n), draw(2), draw(2).abs() + 0.1, 0.3),
    "mamba": lambda n: (mamba, draw(2, n, 3), draw(2, n), draw(3), draw(2, n, 4), draw(2, n, 4)),
    "rwkv7": lambda n: (rwkv7, *(0.5 * draw(2, n, 2, 3) for _ in range(6))),
    "backwards": lambda n: (backwards, draw(2, n), draw(3)),
    "shifted": lambda n: (shifted, draw(2, n)),
    "running": lambda n: (running, 0.5 * draw(2, n), draw(4)),
}


def given(name, turns):
    torch.manual_seed(turns)
    kernel, *args = CASES[name](turns)
    return kernel, [a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]


@pytest.fixture(autouse=True)
def arrays(monkeypatch):
    """Small states, as quick to try, stay arrays, as larger ones are."""
    monkeypatch.setattr(write_out, "MOST_JOINT", 0)


@pytest.fixture(params=["tapes", "checkpoints", "columns", "rows"])
def form(request, monkeypatch):
    if request.param == "rows":
        monkeypatch.setattr(workspaces, "CHUNK", {"cpu": 3})
        monkeypatch.setattr(workspaces, "LEAST_CHUNK", 1)
    if request.param == "columns":
        monkeypatch.setattr(workspaces, "CHUNK", {"cpu": 3})
        monkeypatch.setattr(workspaces, "_ROWS_TOGETHER", (3, 2))
        monkeypatch.setattr(states, "_LEAST", 1)
    if request.param != "tapes":
        monkeypatch.setattr(workspaces, "_SHORT", 0)
        monkeypatch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)
        monkeypatch.setattr(workspaces, "_ROOM", 1 << 60)
        monkeypatch.setattr(workspaces, "REMEMBERED", 0)
    return request.param


@pytest.mark.sampled(19)
@pytest.mark.parametrize("turns", [0, 1, 2, 7])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_recurrences(name, turns, form):
    kernel, args = given(name, turns)
    assert gradcheck(lambda *a: kernel(*a), args)


@pytest.mark.sampled(19)
@pytest.mark.parametrize("turns", [1, 7])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_states_as_numbers(name, turns, form, monkeypatch):
    monkeypatch.undo()
    if form == "checkpoints":
        monkeypatch.setattr(workspaces, "CHUNK", {"cpu": 3})
        monkeypatch.setattr(workspaces, "_SHORT", 0)
        monkeypatch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)
        monkeypatch.setattr(workspaces, "_ROOM", 1 << 60)
    kernel, args = given(name, turns)
    assert gradcheck(weft.kernel(kernel.function), args)


@weft.kernel
def read_again(x, w):
    """Each turn of the inner loop reads ``x[b, t]``."""
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        s = weft.zeros((5,), weft.f64)
        for t in range(x.shape[1]):
            for j in range(1, 5):
                s[j] += s[j - 1] * w[j - 1] + 0.1 * x[b, t]
            s[0] = 0.3 * s[4]
            out[b, t] = s[2]
    return out


@pytest.mark.parametrize("turns", [1, 4])
def test_an_element_read_again_by_turns_that_are_undone_in_parts(turns, monkeypatch):
    """A chunk of three turns and a rest of one both accumulate into the gradient of an element:
    the first of them alone may store."""
    monkeypatch.setattr(workspaces, "CHUNK", {"cpu": 3})
    monkeypatch.setattr(workspaces, "_SHORT", 0)
    monkeypatch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)
    monkeypatch.setattr(workspaces, "_ROOM", 1 << 60)
    x = torch.randn(2, turns, dtype=torch.float64, requires_grad=True)
    assert gradcheck(read_again, (x, torch.randn(4, dtype=torch.float64, requires_grad=True)))


@pytest.mark.parametrize("name", ["cell", pytest.param("rwkv7", marks=pytest.mark.slow), "shifted"])
def test_second_derivatives(name):
    kernel, args = given(name, 3)
    assert gradgradcheck(lambda *a: kernel(*a), args)


@pytest.mark.parametrize("name", ["cell", "linear attention", "mamba", "rwkv7"])
def test_turns_that_have_elements_of_their_own_need_no_tape(name):
    """A state is written down at each turn of the outer loop, not of those through its elements."""
    kernel, args = given(name, 4)
    kernel(*args).sum().backward()
    text = kernel.backward.inspect(*args)
    tapes = [line for line in text.splitlines() if line.startswith("workspace tape")]
    assert len(tapes) == 1
    assert tapes[0].count("loop at line") == 1


def test_the_adjoint_of_a_sum_asks_for_nothing_of_it():
    """What elements of an array add up to on the way is neither kept nor computed once more, and
    the loops through terms go forwards."""
    kernel, args = given("cell", 4)
    kernel(*args).sum().backward()
    lines = str(kernel.backward.inspect(*args)).splitlines()
    sums = [line for line in lines if "atomic_rmw addf" in line and "memref<3xf64>" in line]
    assert len(sums) == 2  # in the loop, and in a turn that is carried out again
    inner = [line for line in lines if "scf.for %j" in line]
    assert len(inner) == 3


@pytest.mark.slow
def test_loops_through_elements_have_no_segments(monkeypatch):
    """They keep nothing but what sums over iterations would need, which is no tape."""
    monkeypatch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)
    monkeypatch.setattr(workspaces, "_ROOM", 1 << 60)
    args = [(0.5 * torch.randn(1, 20, 1, 16)).requires_grad_() for _ in range(6)]
    kernel = weft.kernel(recurrences.rwkv7.function)
    kernel(*args, 16).sum().backward()
    tapes = [line for line in kernel.backward.inspect(*args, 16).splitlines() if "tape" in line]
    tapes = [line for line in tapes if line.startswith("workspace")]
    assert len(tapes) == 2
    assert all("segment" in line and line.count("loop at line") == 1 for line in tapes)


def test_elements_that_other_turns_change_are_taped():
    kernel, args = given("shifted", 4)
    kernel(*args).sum().backward()
    assert kernel.backward.inspect(*args).count("\nworkspace tape") == 2
