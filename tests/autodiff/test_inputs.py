"""Every kind of tensor that comes in, and every way in which autograd asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import weft


@weft.kernel
def mixed(a, b, c):
    """An elementwise value and a sum over rows of three inputs of different use."""
    rows, cols = a.shape
    out = torch.empty_like(a)
    sums = a.new_empty(rows)
    for i in range(rows):
        s = 0.0
        for j in range(cols):
            s += a[i, j] * b[i, j] * b[i, j]
            out[i, j] = a[i, j] * c[j] + b[i, j]
        sums[i] = s * s
    return out, sums


def torch_mixed(a, b, c):
    return a * c + b, ((a * b * b).sum(1)) ** 2


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


# From a leaf to the tensor that the kernel gets, always of shape (4, 6).
VIEWS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "contiguous": ((4, 6), lambda t: t),
    "transposed": ((6, 4), lambda t: t.t()),
    "every other": ((8, 18), lambda t: t[::2, ::3]),
    "with an offset": ((5, 8), lambda t: t[1:, 1:7]),
    "flipped": ((4, 6), lambda t: t.flip(0, 1)),
    "a row for all": ((6,), lambda t: t.expand(4, 6)),
    "a column for all": ((4, 1), lambda t: t.expand(4, 6)),
    "one number for all": ((), lambda t: t.expand(4, 6)),
    "windows that overlap": ((9,), lambda t: t.unfold(0, 6, 1)),
    "a diagonal": ((4, 6, 6), lambda t: t.diagonal(dim1=1, dim2=2)),
    "computed": ((4, 6), lambda t: t.sin()),
}


def both(leaves: list[torch.Tensor], inputs: Callable[..., list[torch.Tensor]], loss: Any) -> None:
    """Compares the gradients of all leaves that want one."""
    wanted = [t for t in leaves if t.requires_grad]
    mine, theirs = (
        torch.autograd.grad(loss(*function(*inputs(*leaves))), wanted, materialize_grads=True)
        for function in (mixed, torch_mixed)
    )
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("first", VIEWS)
@pytest.mark.parametrize("second", VIEWS)
@pytest.mark.sampled(9)
def test_layouts(first: str, second: str) -> None:
    torch.manual_seed(0)
    (shape, view), (other_shape, other) = VIEWS[first], VIEWS[second]
    leaves = [t.requires_grad_() for t in (draw(*shape), draw(*other_shape), draw(6))]
    weights = draw(4, 6)
    both(leaves, lambda a, b, c: [view(a), other(b), c],
         lambda out, sums: (out * weights).sum() + sums.sum())  # fmt: skip


# From the outputs to a scalar: the gradients that come in have these layouts.
GIVEN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "expanded": lambda out, sums: out.sum() + sums.sum(),
    "transposed": lambda out, sums: (out.t() * torch.arange(24.0).view(6, 4)).sum() + sums[0],
    "strided": lambda out, sums: (out[::2, 1::2] ** 2).sum() + (sums[::3] ** 2).sum(),
    "flipped": lambda out, sums: (out.flip(1) * torch.arange(6.0)).sum() + sums.flip(0)[1:].sum(),
    "none for the second": lambda out, sums: (out**2).sum(),
    "none for the first": lambda out, sums: (sums**2).sum(),
    "one element": lambda out, sums: out[2, 3] * sums[1],
    "twice": lambda out, sums: (out * out).sum() * sums.sum() + out.sum(),
}


@pytest.mark.parametrize("name", GIVEN)
def test_gradients_that_come_in(name: str) -> None:
    torch.manual_seed(0)
    leaves = [t.requires_grad_() for t in (draw(4, 6), draw(4, 6), draw(6))]
    both(leaves, lambda *leaves: [*leaves], GIVEN[name])


@pytest.mark.parametrize("wanted", range(1, 8))
def test_only_some_inputs_need_a_gradient(wanted: int) -> None:
    torch.manual_seed(0)
    leaves = [draw(4, 6), draw(4, 6), draw(6)]
    for k, leaf in enumerate(leaves):
        leaf.requires_grad_(bool(wanted >> k & 1))
    out, sums = mixed(*leaves)
    assert out.requires_grad
    (out.sum() + sums.sum()).backward()
    for leaf in leaves:
        assert (leaf.grad is not None) == leaf.requires_grad
    both(leaves, lambda *leaves: [*leaves], lambda out, sums: out.sum() + sums.sum())


def test_an_input_given_twice_and_once_more_as_a_view() -> None:
    torch.manual_seed(0)
    x = draw(4, 6).requires_grad_()
    both([x], lambda x: [x, x, x[1]], lambda out, sums: (out * out).sum() + sums.sum())


def test_integers_and_detached_inputs_stay_without() -> None:
    a = draw(4, 6).requires_grad_()
    out, sums = mixed(a, a.detach(), torch.arange(6))
    (g,) = torch.autograd.grad(out.sum() + sums.sum(), a)
    b = a.detach()
    expected = torch.arange(6) + 2 * (b**3).sum(1, keepdim=True) * b * b
    torch.testing.assert_close(g, expected)


def test_several_backward_passes_add_up_and_need_retain_graph() -> None:
    torch.manual_seed(0)
    a, b, c = draw(4, 6).requires_grad_(), draw(4, 6), draw(6)
    out, sums = mixed(a, b, c)
    loss = out.sum() + sums.sum()
    loss.backward(retain_graph=True)
    once = a.grad.clone()
    loss.backward()
    torch.testing.assert_close(a.grad, 2 * once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.cpu
def test_hooks_see_and_change_gradients() -> None:
    torch.manual_seed(0)
    leaves = [t.requires_grad_() for t in (draw(4, 6), draw(4, 6), draw(6))]
    seen: dict[str, list[torch.Tensor]] = {"mine": [], "theirs": []}

    def gradients(name: str, function: Callable[..., Any]) -> Any:
        a, b, c = leaves
        middle = a * 1.0
        middle.register_hook(lambda g: seen[name].append(g) or 2 * g)
        out, sums = function(middle, b, c)
        out.register_hook(lambda g: g * torch.arange(6.0))
        out.retain_grad()
        total = out.sum() + sums.sum()
        found = torch.autograd.grad(total, leaves, retain_graph=True)
        total.backward()
        return *found, out.grad

    mine, theirs = gradients("mine", mixed), gradients("theirs", torch_mixed)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(seen["mine"], seen["theirs"])


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    torch.manual_seed(0)
    leaves = [t.requires_grad_() for t in (draw(4, 6), draw(4, 6), draw(6))]
    calls = []

    def block(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            calls.append(function)
            out, sums = function(a.sin(), b, c)
            return out.tanh() * sums[:, None]

        return run

    mine = checkpoint(block(mixed), *leaves, use_reentrant=reentrant).sum()
    mine.backward()
    assert calls == [mixed, mixed]
    theirs = torch.autograd.grad(block(torch_mixed)(*leaves).sum(), leaves)
    torch.testing.assert_close([t.grad for t in leaves], list(theirs))


def test_changing_what_was_saved_is_torchs_error() -> None:
    for k in range(3):
        leaves = [t.requires_grad_() for t in (draw(4, 6), draw(4, 6), draw(6))]
        inputs = [t * 1.0 for t in leaves]
        out, sums = mixed(*inputs)
        inputs[k].add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (out.sum() + sums.sum()).backward()


def test_changing_an_output_that_was_not_saved_is_allowed() -> None:
    torch.manual_seed(0)
    leaves = [t.requires_grad_() for t in (draw(4, 6), draw(4, 6), draw(6))]

    def loss(out: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        out.mul_(2.0)
        return out.sin().sum() + sums.sum()

    both(leaves, lambda *leaves: [*leaves], loss)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that it looks, and where
def test_an_anomaly_is_found_where_a_gradient_is_not_a_number() -> None:
    a = torch.tensor([[torch.inf]], dtype=torch.float64, requires_grad=True)
    b = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    with torch.autograd.detect_anomaly():
        _, sums = mixed(a, b, torch.ones(1, dtype=torch.float64))
        with pytest.raises(RuntimeError, match="returned nan values"):
            sums.sum().backward()


@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (0, 0)])
def test_empty(shape: tuple[int, int]) -> None:
    leaves = [t.requires_grad_() for t in (draw(*shape), draw(*shape), draw(shape[1]))]
    both(leaves, lambda *leaves: [*leaves], lambda out, sums: out.sum() + sums.sum())


def test_two_threads_go_backward_at_once() -> None:
    import threading

    torch.manual_seed(0)
    leaves = [t.requires_grad_() for t in (draw(40, 60), draw(40, 60), draw(60))]
    out, sums = mixed(*leaves)
    loss = out.sum() + sums.sum()
    expected = torch.autograd.grad(loss, leaves, retain_graph=True)
    found: list[Any] = []

    def work() -> None:
        for _ in range(20):
            found.append(torch.autograd.grad(loss, leaves, retain_graph=True))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    for gradients in found:
        torch.testing.assert_close(gradients, expected)


@weft.kernel
def by_atomics(x, seg):
    s = torch.ones(3, dtype=x.dtype)
    for i in range(x.shape[0]):
        weft.atomic_add(s[seg[i]], x[i] * x[i])
    return s


def test_atomic_updates_have_a_gradient_without_the_decorator() -> None:
    """What was added was lost to autograd."""
    x, seg = draw(5), torch.tensor([0, 2, 0, 1, 2])
    weights = draw(3)
    grads = []
    for call in (by_atomics, by_atomics.function, by_atomics.interpret):
        leaf = x.clone().requires_grad_()
        grads += torch.autograd.grad((call(leaf, seg) * weights).sum(), leaf)
    for grad in grads:
        torch.testing.assert_close(grad, 2 * x * weights[seg])
