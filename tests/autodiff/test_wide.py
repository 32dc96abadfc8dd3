"""Gradients that need, for each element, what a sequential loop carries."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from weft.pytorch import workspaces


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@weft.kernel
def powers(x, w):
    """Every row uses the same weights, one at each step."""
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        p = 1.0
        for t in range(w.shape[0]):
            p = p * w[t] + math.sin(p) * x[i]
        out[i] = p
    return out


@weft.kernel
def dense_cell(x, w):
    """A recurrent cell: its state is an array, its weights are shared by rows and steps."""
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        h = weft.zeros((3,), weft.f64)
        for t in range(x.shape[1]):
            g = weft.zeros((3,), weft.f64)
            for p in range(3):
                for q in range(3):
                    g[p] += w[p, q] * h[q]
            for p in range(3):
                h[p] = math.tanh(g[p] + x[i, t])
        out[i] = h[0] * h[1] + h[2]
    return out


@weft.kernel
def gated(x, w):
    """A condition around the use, that depends on what is carried."""
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        p = x[i]
        for t in range(w.shape[0]):
            if p > 0:
                p = p * w[t] - 0.3
            elif t % 3 < 2:
                p = p + w[t] * w[t] * x[i]
        out[i] = p * p
    return out


def notes(kernel):
    (found,) = {tuple(a.notes.items()) for s in kernel.specializations if s.derived
                for a in s.derived.adjoints}  # fmt: skip
    return dict(found)


@pytest.mark.parametrize(
    ("kernel", "args"),
    [(powers, lambda: (draw(4), draw(6))), (gated, lambda: (draw(4), draw(6)))],
)
@pytest.mark.slow
def test_shared_weights_are_gathered(kernel, args):
    torch.manual_seed(0)
    given = args()
    assert gradcheck(lambda *a: kernel(*a), given)
    assert gradgradcheck(lambda *a: kernel(*a), given)
    assert notes(kernel)["d.w"] == "gather (with a workspace of the whole iteration space)"
    assert "(the whole iteration space)" in kernel.backward.inspect(*given)


def test_a_recurrent_cell():
    torch.manual_seed(0)
    x, w = draw(3, 4), draw(3, 3)
    assert gradcheck(lambda *a: dense_cell(*a), (x, w))
    h = torch.zeros(3, 3, dtype=torch.float64)
    for t in range(4):
        h = torch.tanh(h @ w.t() + x[:, t, None])
    expected = torch.autograd.grad((h[:, 0] * h[:, 1] + h[:, 2]).sum(), (x, w))
    found = torch.autograd.grad(dense_cell(x, w).sum(), (x, w))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_large_workspaces_give_way_to_atomics(monkeypatch):
    torch.manual_seed(0)
    args = draw(5), draw(40)
    expected = torch.autograd.grad(powers(*args).sum(), args)
    monkeypatch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)
    monkeypatch.setattr(workspaces, "_ROOM", 1 << 60)
    monkeypatch.setattr(workspaces, "REMEMBERED", 0)
    found = torch.autograd.grad(powers(*args).sum(), args)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    forms = [a.notes["d.w"] for s in powers.specializations for a in s.derived.adjoints]
    assert any(note.startswith("atomic") for note in forms)
