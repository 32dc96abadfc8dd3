"""What a loop writes beside a result, and does not depend on what is differentiated: counters,
masks, running means."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import weft
from weft.errors import GradientError, KernelOverflowError


@weft.kernel
def counted(x, count, mean):
    out, mask = torch.empty_like(x), torch.zeros_like(x)
    for i in range(x.shape[0]):
        count[i] += 1.0
        mean[i] = 0.75 * mean[i] + 0.25 * x[i].detach()
        mask[i] = 1.0 if x[i] > 0 else 0.0
        out[i] = x[i] * x[i] * count[i]
    return out, mask


@pytest.mark.parametrize("backend", ["", "aot_eager", "inductor"])
def test_steps_of_training(backend: str) -> None:
    """The second step went back through the first, as the counter was of its graph."""

    def step(w: torch.Tensor, count: torch.Tensor, mean: torch.Tensor) -> Any:
        return counted(torch.arange(3.0) * w, count, mean)

    run = torch.compile(step, backend=backend, fullgraph=True) if backend else step
    w = torch.ones(3, requires_grad=True)
    count, mean = torch.zeros(3), torch.zeros(3)
    for _ in range(3):
        out, mask = run(w, count, mean)
        out.sum().backward()
    assert torch.equal(w.grad, torch.tensor([0.0, 12.0, 48.0]))
    assert torch.equal(count, torch.full((3,), 3.0))
    assert torch.allclose(mean, torch.arange(3.0) * (1 - 0.75**3))
    assert torch.equal(mask, torch.tensor([0.0, 1.0, 1.0]))
    assert not any(t.requires_grad for t in (count, mean))
    assert out.requires_grad
    assert torch.equal(copy.deepcopy(count), count)


@weft.kernel
def summed(x, count, total):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] * count[i]
        count[i] += 1.0
        total[i] += x[i] * count[i]
    return out


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", ["", "aot_eager", "inductor"])
def test_what_depends_on_the_input_has_a_history(backend: str) -> None:
    def step(x: torch.Tensor, count: torch.Tensor, total: torch.Tensor) -> Any:
        return summed(x, count, total)

    run = torch.compile(step, backend=backend, fullgraph=True) if backend else step
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    for known in (False, True):  # whether the counter has a history of its own
        start = torch.ones(2, requires_grad=known)
        count, total = start.clone(), torch.zeros(2)
        out = run(x, count, total)
        assert count.requires_grad == known
        wanted = (x, start)[: 1 + known]
        found = torch.autograd.grad(out.sum() + 3 * total.sum(), wanted)
        expected = 2 * x + 6, x * x + 3 * x
        for mine, other in zip(found, expected, strict=False):
            assert torch.allclose(mine, other)


@weft.kernel
def averaged(x, mean):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        mean[i] = 0.5 * mean[i] + 0.5 * x[i]
        out[i] = x[i] * mean[i]
    return out


def test_what_does_depend_on_it_has_a_history() -> None:
    x, mean = torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([0.5, 0.0])
    out = averaged(x, mean)
    assert mean.requires_grad
    (found,) = torch.autograd.grad(out.sum() + mean.sum(), x)
    assert torch.allclose(found, 0.5 * torch.tensor([0.5, 0.0]) + x.detach() + 0.5)


@pytest.mark.parametrize("kept", ["count", "x"])
def test_a_counter_that_is_differentiated_itself(kept: str) -> None:
    x, count = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 4.0])
    asked = {"count": count, "x": x}[kept].requires_grad_()
    given = count * 1.0 if kept == "count" else count
    out, _ = counted(x, given, torch.zeros(2))
    assert given.requires_grad == (kept == "count")
    (found,) = torch.autograd.grad(out.sum(), asked)
    squares, numbers = x.detach() ** 2, torch.tensor([2.0, 5.0])
    assert torch.allclose(found, squares if kept == "count" else 2 * x.detach() * numbers)


def test_second_derivatives_and_transforms() -> None:
    x = torch.tensor([2.0, 3.0], dtype=torch.float64)

    def total(x: torch.Tensor) -> torch.Tensor:
        none = x.detach() * 0.0  # a batch, if x is
        out, mask = counted(x, none + 1, none.clone())
        return (out * out).sum() + mask.sum()

    assert torch.autograd.gradgradcheck(total, (x.clone().requires_grad_(),))
    assert torch.allclose(torch.func.grad(total)(x), 16 * x**3)
    assert torch.allclose(torch.func.hessian(total)(x), torch.diag(48 * x**2))
    assert torch.allclose(torch.func.vmap(torch.func.grad(total))(torch.stack([x, 2 * x])),
                          torch.stack([16 * x**3, 128 * x**3]))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_debug_mode_counts_too(dtype: torch.dtype) -> None:
    """Whether a counter overflows depends on what was in it, and is no reason to refuse."""

    def kernel(x, count):
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            for _ in range(2):
                count[i] += 1
            out[i] = x[i] * x[i]
        return out

    x, count = torch.tensor([2.0, -3.0], requires_grad=True), torch.zeros(2, dtype=dtype)
    weft.kernel(debug=True)(kernel)(x, count).sum().backward()
    assert torch.equal(x.grad, torch.tensor([4.0, -6.0]))
    assert count.tolist() == [2, 2]
    count.fill_(torch.iinfo(dtype).max)
    with pytest.raises(KernelOverflowError):
        weft.kernel(debug=True)(kernel)(x, count)


def test_what_was_counted_is_read() -> None:
    @weft.kernel
    def kernel(x, count):
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            place = weft.atomic_add(count[0], 1)
            out[place] = x[i] * x[i]
        return out

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(GradientError, match="what an atomic operation found in `count`"):
        kernel(x, torch.zeros(1, dtype=torch.int64))
