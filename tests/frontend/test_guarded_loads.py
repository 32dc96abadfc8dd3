"""Elements that one side of a choice takes, and that may be out of range: they are read there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.frontend import guarded_loads


@weft.kernel
def shifted(x):
    out = torch.empty_like(x)
    for i in x:
        out[i] = weft.select(i > 0, x[i - 1], 0.0)
    return out


def by_place(x, i):
    return x[i - 1]


@weft.kernel
def neighbours(x):
    out = torch.empty_like(x)
    n = x.shape[0]
    for i in x:
        left = weft.select(i > 1, 1 / x[i - 2], weft.select(i > 0, by_place(x, i), -1.0))
        out[i] = left * weft.select(i + 1 < n, torch.exp(x[i + 1]), 1.0)
    return out


def neighbours_of(x):
    ones = torch.ones(1, dtype=x.dtype)
    left = torch.cat([-ones, x[:1], 1 / x[:-2]])
    return left * torch.cat([x[1:].exp(), ones])


@weft.kernel
def joined(x, y):
    out = torch.empty(x.shape[0] + y.shape[0], dtype=x.dtype)
    n = x.shape[0]
    for i in out:
        out[i] = weft.select(i >= n, y[i - n], x[i])
    return out


@weft.kernel
def padded(x, at):
    out = torch.empty(at.shape[0], dtype=x.dtype)
    for i in at:
        out[i] = weft.select(at[i] >= 0, x[at[i]] + 1, 0)
    return out


@weft.kernel
def edges(x):
    out = torch.zeros_like(x)
    for i in x:
        if (i > 0) & (x[i - 1] > 0) & (x[i] < 0) | (i == 0) | (x[i - 1] == 9):
            out[i] = 1.0
    return out


def edges_of(x):
    inner = (x[:-1] > 0) & (x[1:] < 0) | (x[:-1] == 9)
    return torch.cat([torch.ones(1, dtype=torch.bool), inner]).to(x.dtype)


@weft.kernel
def rows(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = torch.where(torch.tensor(i > 0), x[i - 1] * 2, x[i])
    return out


@weft.kernel
def of_rows(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = torch.where(i > 0, x[i - 1] * 2, x[i])
    return out


@weft.kernel
def windows(x, k: int):
    out = torch.empty_like(x)
    for i in x:
        s = 0.0
        for j in range(-k, k + 1):
            s += weft.select((i + j >= 0) & (i + j < x.shape[0]), x[i + j], 0.0)
        out[i] = s
    return out


@weft.kernel
def turned(z):
    out = torch.empty_like(z)
    for i in z:
        out[i] = weft.select(i > 0, z[i - 1] * z[i].conj(), 1 + 0j)
    return out


@weft.kernel
def summed(x):
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        out[i] = weft.select(i > 0, sum(x[i - 1, j] for j in range(x.shape[1])), 0.0)
    return out


@weft.kernel
def peaks(x):
    out = torch.zeros_like(x)
    for i in x:
        end = (i == 0) | (i == x.shape[0] - 1)
        if end | ((x[i - 1] < x[i]) & (x[i + 1] < x[i])):
            out[i] = 1.0
        if (i == 0) | (i == x.shape[0] - 1) | ((x[i - 1] > x[i]) & (x[i + 1] > x[i])):
            out[i] -= 1.0
    return out


def peaks_of(x):
    a, b, c = x[:-2], x[1:-1], x[2:]
    inner = ((a < b) & (c < b)).to(x.dtype) - ((a > b) & (c > b)).to(x.dtype)
    return torch.nn.functional.pad(inner, (1, 1))


def shifted_by_one(x):
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]])


X = torch.randn(9, dtype=torch.float64)
AT = torch.tensor([3, -1, 0, -1, 8])
KERNELS: list[tuple[Any, Callable[..., torch.Tensor], tuple[Any, ...]]] = [
    (shifted, shifted_by_one, (X,)),
    (neighbours, neighbours_of, (X,)),
    (joined, lambda x, y: torch.cat([x, y]), (X[:4], X[4:])),
    (padded, lambda x, at: torch.where(at >= 0, x[at] + 1, 0.0), (X, AT)),
    (edges, edges_of, (torch.tensor([1.0, -1.0, -2.0, 9.0, 1.0, -1.0]),)),
    (turned, lambda z: torch.cat([torch.ones(1, dtype=z.dtype), z[:-1] * z[1:].conj()]),
     (torch.randn(5, dtype=torch.complex128),)),
    (summed, lambda x: torch.cat([x.new_zeros(1), x[:-1].sum(1)]),
     (torch.randn(4, 3, dtype=torch.float64),)),
    (peaks, peaks_of, (X,)),
    (windows, lambda x, k: torch.stack([x[max(i - k, 0) : i + k + 1].sum() for i in range(len(x))]),
     (X, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "reference", "args"), KERNELS, ids=lambda v: "")
@pytest.mark.parametrize("how", ["compiled", "debug", "interpreted", "compiled graph"])
def test_what_nobody_takes_is_not_read(kernel, reference, args, how):
    asked = {
        "compiled": kernel, "debug": weft.kernel(debug=True)(kernel.function),
        "interpreted": kernel.interpret,
        "compiled graph": torch.compile(kernel, fullgraph=True, backend="aot_eager"),
    }[how]  # fmt: skip
    torch.testing.assert_close(asked(*args), reference(*args))


@pytest.mark.parametrize("debug", [False, True])
def test_rows_are_not_read_either(debug):
    x = torch.randn(4, 3)
    expected = torch.cat([x[:1], x[:-1] * 2])
    torch.testing.assert_close(weft.kernel(debug=debug)(of_rows.function)(x), expected)
    torch.testing.assert_close(rows.interpret(x), expected)


def test_no_load_is_carried_out_where_it_does_not_count():
    """By what is written: memory in front of a tensor has no number to tell."""
    text = shifted.inspect(X)["ir"]
    assert text.index("scf.if") < text.index("memref.load")


@pytest.mark.parametrize(
    ("kernel", "args"), [(k, a) for k, _, a in KERNELS if k not in (edges, peaks)],
    ids=lambda v: "",
)  # fmt: skip
def test_gradients_of_what_is_taken(kernel, args):
    given = [a.clone().requires_grad_() if torch.is_tensor(a) and a.dtype != AT.dtype else a
             for a in args]  # fmt: skip
    assert torch.autograd.gradcheck(kernel, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(kernel, given)


def test_debug_mode_checks_what_is_taken_alone():
    """Of integers, overflow and division by zero too; and it checks what is taken."""

    @weft.kernel(debug=True)
    def quotients(x):
        out = torch.empty_like(x)
        for i in x:
            out[i] = weft.select(i > 0, (x[i - 1] + 1) // (x[i - 1] - 1), 7)
        return out

    x = torch.tensor([3, 5, 1], dtype=torch.int32)
    assert quotients(x).tolist() == [7, 2, 1]
    with pytest.raises(weft.KernelAssertionError, match="division by zero"):
        quotients(torch.tensor([3, 1, 5], dtype=torch.int32))

    @weft.kernel(debug=True)
    def beyond(x, n: int):
        out = torch.empty_like(x)
        for i in x:
            out[i] = weft.select(i > 0, x[i - n], 0.0)
        return out

    with pytest.raises(weft.KernelIndexError, match="-1"):
        beyond(torch.ones(4), 2)


def test_choices_of_checks_are_no_choices_of_elements():
    """Whether a product overflows takes some: nobody asks for the row but its checks."""

    @weft.kernel(debug=True)
    def rows(x, m):
        for i in x:
            t = [[0.0] * 2 for _ in range(3)]
            _ = t[(1 + i * m[i]) % 3]
            x[i] = t[0][0]

    x = torch.ones(2)
    rows(x, torch.tensor([1, 2]))
    assert x.tolist() == [0.0, 0.0]
    with pytest.raises(weft.KernelOverflowError, match="overflows i64"):
        rows(x, torch.tensor([1, 2**63 - 1]))


def test_what_is_known_to_be_there_is_loaded_as_it_is_written():
    @weft.kernel
    def chosen(x, y, out):
        for i in out:
            out[i] = weft.select(x[i] > 0, y[i], x[i + 1])

    text = chosen.inspect(torch.ones(4), torch.ones(3), torch.ones(3))["ir"]
    assert "scf.if" not in text
    assert "arith.select" in text


def test_a_name_that_is_read_elsewhere_is_read():
    """It is needed where the condition does not hold, so that it is out of range there."""

    @weft.kernel
    def kept(x, out):
        for i in x:
            before = x[i - 1]
            out[i] = weft.select(i > 0, before, 0.0) + before

    with pytest.raises(weft.KernelIndexError, match="is -1 in one iteration"):
        kept(torch.ones(4), torch.ones(4))


def test_what_stores_is_done_on_both_sides():
    @weft.kernel
    def counted(x, out):
        weft.loop_config(serialize=True)
        for i in range(1, x.shape[0]):
            out[i] = weft.select(i > 2, weft.atomic_add(x[0], 1.0) + x[i - 1], 0.0)

    x, out = torch.zeros(5), torch.zeros(5)
    counted(x, out)
    assert x[0] == 4.0
    assert out.tolist() == [0.0, 0.0, 0.0, 2.0, 3.0]


def test_what_is_looked_at_grows_with_the_loop(monkeypatch):
    """Not with its square: each choice looks at what it alone asks for."""
    looked = [0]
    moves = guarded_loads._Guards._moves

    def counting(guards, op):
        looked[0] += 1
        return moves(guards, op)

    monkeypatch.setattr(guarded_loads._Guards, "_moves", counting)

    def looks(steps):
        @weft.kernel
        def forward(em, trans):
            out = torch.empty(em.shape[0])
            for b in out:
                a = em[b, 0]
                for t in weft.static(range(1, steps)):
                    a = torch.logaddexp(a + trans[t % 2], a * 0.5) + em[b, t]
                out[b] = a
            return out

        looked[0] = 0
        forward(torch.rand(2, steps), torch.rand(2))
        return looked[0]

    assert 0 < looks(24) < 2.5 * looks(12)
