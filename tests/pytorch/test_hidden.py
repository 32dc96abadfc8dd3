"""Tensors that a kernel finds by other ways than its arguments, and that need a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fw
from torch.func import functional_call, grad, jacfwd, jvp, vjp, vmap
from torch.torch_version import TorchVersion

import weft
from weft.errors import GradientError

W = torch.full((3,), 2.0)
FOUND: dict[str, Any] = {"w": W, "number": 2.0}
LISTED = [W]


class Held:
    def __init__(self) -> None:
        self.w, self.found = W, FOUND


HELD = Held()


def element(i: Any) -> Any:
    return W[i]


@weft.kernel
def by_dict(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * FOUND["w"][i]
    return out


@weft.kernel
def by_list(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * LISTED[0][i]
    return out


@weft.kernel
def by_function(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * element(i)
    return out


@weft.kernel
def by_dict_of_object(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * HELD.found["w"][i]
    return out


@weft.kernel
def in_host_part(x):
    y = x * FOUND["w"]
    out = torch.empty_like(x)
    for i in out:
        out[i] = y[i]
    return out


@weft.kernel
def named(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * W[i]
    return out


@weft.kernel
def by_kernel(x):
    y = named(x)
    out = torch.empty_like(x)
    for i in out:
        out[i] = y[i]
    return out


@weft.kernel
def called(x, f):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * f(i)
    return out


def by_lambda(x: torch.Tensor) -> torch.Tensor:
    return called(x, lambda i: W[i])


@weft.kernel
def of_shape(x):
    y = x * FOUND["w"].size(0) + FOUND["w"].detach()
    out = torch.empty_like(x)
    for i in out:
        out[i] = y[i]
    return out


KERNELS = [by_dict, by_list, by_function, by_dict_of_object, in_host_part, by_kernel, by_lambda]
WAYS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "vmap": lambda k, x: vmap(k)(x[None]),
    "vjp": lambda k, x: vjp(k, x)[0],
    "grad": lambda k, x: grad(lambda x: k(x).sum())(x),
    "jvp": lambda k, x: jvp(k, (x,), (x,))[1],
}


@pytest.fixture
def known() -> Any:
    W.requires_grad_()
    yield
    W.requires_grad_(False)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("way", WAYS)
def test_they_are_refused_by_transforms(kernel: Any, way: str) -> None:
    """They were constants."""
    x = torch.ones(3)
    assert kernel(x).requires_grad
    with pytest.raises(GradientError, match="is not an argument of the kernel"):
        WAYS[way](kernel, x)
    with torch.no_grad():
        assert torch.equal(vmap(kernel)(x[None])[0], 2 * x)
    W.requires_grad_(False)
    for f in WAYS.values():
        assert f(kernel, x).shape in ((3,), (1, 3))


@weft.kernel
def by_local(x):
    w = HELD.w
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * w[i]
    return out


@weft.kernel
def by_sum(x):
    total = HELD.w.sum()
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * total
    return out


GRAPHS = [by_dict, by_list, by_function, by_kernel, by_lambda, by_local, by_sum]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("kernel", GRAPHS)
def test_they_are_refused_by_graphs(kernel: Any, needs: bool) -> None:
    """Where an argument needs a derivative, too, they were constants."""
    torch._dynamo.reset()
    said = "is not an argument of the kernel"
    if kernel is by_lambda and TorchVersion(torch.__version__) < "2.11":
        said = "is not a constant"  # of a function that is defined in what it traces, Dynamo's own
    with pytest.raises(Exception, match=said):
        torch.compile(kernel, backend="aot_eager")(torch.ones(3, requires_grad=needs))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize(
    "kernel", [named, by_dict_of_object, *(k for k in GRAPHS if k is not by_lambda)]
)
def test_graphs_notice_that_one_needs_a_derivative(kernel: Any, needs: bool) -> None:
    """A layer that is trained from some step on: it was a constant of the graph."""
    if kernel in (by_dict, by_dict_of_object) and TorchVersion(torch.__version__) < "2.12":
        pytest.skip("older Dynamos have no guards for tensors of dicts which no graph holds")
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=needs)
    compiled = torch.compile(kernel, backend="aot_eager")
    expected = kernel(x)
    assert torch.equal(compiled(x), expected)
    W.requires_grad_()
    try:
        with torch.no_grad():
            assert torch.equal(compiled(x), expected)
        with pytest.raises(Exception, match="is not an argument of the kernel"):
            compiled(x)
    finally:
        W.requires_grad_(False)
    assert torch.equal(compiled(x), expected)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("way", WAYS)
def test_shapes_and_constants_are_no_use(way: str) -> None:
    assert not of_shape(torch.ones(3)).requires_grad
    WAYS[way](of_shape, torch.ones(3))


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((3,), 2.0))

    def element(self, i: Any) -> Any:
        return self.w[i]

    def host(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w

    @weft.kernel
    def by_method(self, x):
        out = torch.empty_like(x)
        for i in out:
            out[i] = x[i] * self.element(i)
        return out

    @weft.kernel
    def by_host(self, x):
        y = self.host(x)
        out = torch.empty_like(x)
        for i in out:
            out[i] = y[i]
        return out

    @weft.kernel
    def by_name(self, x):
        w = getattr(self, "w")  # noqa: B009
        out = torch.empty_like(x)
        for i in out:
            out[i] = x[i] * w[i]
        return out

    def forward(self, x: torch.Tensor, way: str) -> torch.Tensor:
        return getattr(self, way)(x)


@pytest.mark.parametrize("way", ["by_method", "by_host", "by_name"])
def test_parameters_of_a_module(way: str) -> None:
    """``functional_call`` gives it tensors of the transform: gradients were zeros."""
    module, x = Scaled(), torch.ones(3)
    own = {"w": torch.full((3,), 5.0)}

    def total(own: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(module, own, (x, way)).sum()

    for f in (grad(total), jacfwd(total), lambda p, x: vmap(grad(total), (None, 0))(p, x[None])):
        with pytest.raises(GradientError, match="belongs to a transform"):
            f(own, x)
    assert total(own, x) == 15


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kernel", [by_dict, by_list, by_function, by_dict_of_object, named])
def test_tangents_of_captured_tensors(
    kernel: Any, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first call of a kernel, too."""
    own = weft.kernel(kernel.function)
    x = torch.ones(3)
    if before:
        own(x)
    with fw.dual_level():
        dual = fw.make_dual(torch.full((3,), 4.0), torch.full((3,), 7.0))
        monkeypatch.setitem(globals(), "W", dual)
        monkeypatch.setitem(FOUND, "w", dual)
        monkeypatch.setitem(globals(), "LISTED", [dual])
        for _ in range(2):
            found = fw.unpack_dual(own(x))
            assert torch.equal(found.primal, torch.full((3,), 4.0))
            assert torch.equal(found.tangent, torch.full((3,), 7.0))


@pytest.mark.parametrize("transform", [torch.func.hessian, torch.func.jacfwd])
@pytest.mark.parametrize("kernel", [by_dict, by_function, in_host_part, by_kernel])
def test_constants_in_nested_transforms(transform: Any, kernel: Any) -> None:
    x = torch.rand(3)
    found = transform(lambda x: kernel(x * x).sum())(x)
    assert torch.allclose(found, transform(lambda x: (2 * x * x).sum())(x))


@weft.kernel
def of_found_number(x, y):
    z = x * FOUND["number"]
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        out[i] = z[i] * z[i] * y[i]
    if x.shape[0] > 1:
        out = out * x
    return out


IN_GRAPHS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "vmap": lambda k, x, y: vmap(k, in_dims=(0, None))(x, y),
    "vmap of vmap": lambda k, x, y: vmap(vmap(k, (None, 0)), (0, None))(x, y[None]),
    "jacfwd": lambda k, x, y: jacfwd(k)(x[0], y),
    "vmap of grad": lambda k, x, y: vmap(grad(lambda x: k(x, y).sum()))(x),
    "jvp of vmap": lambda k, x, y: jvp(vmap(lambda x: k(x, y)), (x,), (x,))[1],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("way", IN_GRAPHS)
def test_what_a_transform_in_a_graph_makes_is_its_own(way: str, backend: str) -> None:
    """The operators that carry such out took it for a tensor of a transform around them."""
    torch._dynamo.reset()
    x, y = torch.rand(2, 5, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    transform = IN_GRAPHS[way]
    found = torch.compile(lambda x, y: transform(of_found_number, x, y), backend=backend)(x, y)
    torch.testing.assert_close(found, transform(lambda x, y: (2 * x) ** 2 * y * x, x, y))


def test_a_kernel_that_calls_one_which_reads_a_tensor_around_it() -> None:
    """`out` is on meta and `W` on cpu, where an argument needs a gradient."""
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    out = torch.compile(by_kernel, backend="aot_eager", fullgraph=True)(x)
    (found,) = torch.autograd.grad(out.sum(), x)
    assert out.tolist() == found.tolist() == [2.0] * 3
