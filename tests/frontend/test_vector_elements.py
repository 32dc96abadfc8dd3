"""Vectors and matrices as elements of plain tensors, by their annotation."""

from __future__ import annotations

import pytest
import torch

import weft as ti
from weft import KernelTypeError

vec2, mat2 = ti.math.vec2, ti.math.mat2
points = ti.types.ndarray(dtype=vec2, ndim=1)
matrices = ti.types.ndarray(dtype=mat2, ndim=1)


@ti.kernel
def moved(x: points, v: ti.types.ndarray(dtype=ti.types.vector(2, ti.f32), ndim=1)) -> torch.Tensor:  # type: ignore
    out = torch.zeros(x.shape[0])
    for i in x:
        out[i] = x[i].norm() + x[i].x * 2 + v[i].dot(x[i])
        v[i] = x[i] * 2 + vec2(1.0, 0.5)
        v[i] += x[i]
    return out


@pytest.mark.parametrize("count", [0, 1, 17])
def test_elements_are_vectors_also_in_the_interpreter(count: int) -> None:
    x, v = torch.randn(2 * count, 2)[::2], torch.randn(count, 2)
    expected = x.norm(dim=1) + 2 * x[:, 0] + (v * x).sum(1)
    for run in (moved, moved.interpret):
        written = v.clone()
        torch.testing.assert_close(run(x, written), expected)
        torch.testing.assert_close(written, 3 * x + torch.tensor([1, 0.5]))


@ti.kernel
def products(m: matrices, x: points, out: points) -> None:  # type: ignore
    for i in x:
        out[i] = m[i] @ x[i] * m[i][0, 1]


@ti.kernel
def quadratic(m: matrices, x: points) -> torch.Tensor:  # type: ignore
    out = torch.empty(x.shape[0], dtype=m.dtype)
    for i in x:
        out[i] = x[i].dot(m[i] @ x[i])
    return out


def test_gradients_and_transforms() -> None:
    m = torch.randn(5, 2, 2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(quadratic, (m, x))
    expected = torch.einsum("ni,nij,nj->n", x, m, x)
    torch.testing.assert_close(quadratic(m, x), expected)
    compiled = torch.compile(quadratic, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(m, x), expected)
    mapped = torch.vmap(quadratic)(m.expand(3, 5, 2, 2), x.expand(3, 5, 2))
    torch.testing.assert_close(mapped[2], expected)
    out = torch.full((5, 2), torch.nan, dtype=torch.float64)
    products(m.detach(), x.detach(), out)
    torch.testing.assert_close(out, (m @ x[..., None])[..., 0].detach() * m[:, :1, 1].detach())


def test_sizes_are_checked() -> None:
    with pytest.raises(KernelTypeError) as caught:
        moved(torch.zeros(5, 3), torch.zeros(5, 2))
    assert "`x` is annotated with elements of 2, and a tensor of shape (5, 3)" in str(caught.value)
    with pytest.raises(KernelTypeError) as caught:
        moved(torch.zeros(5, 2, 2), torch.zeros(5, 2))
    assert "`x` is annotated with 2 dimensions" in str(caught.value)

    @ti.kernel
    def wrong(x: points) -> None:  # type: ignore
        for i in x:
            x[i] = ti.math.vec3(1.0)

    with pytest.raises(KernelTypeError) as caught:
        wrong(torch.zeros(5, 2))
    assert "an element of `x` has 2 numbers, and this is a vector (3 x float)" in str(caught.value)


def weights(x: torch.Tensor) -> torch.Tensor:
    """Quadratic weights of a particle, one vector of them for each neighbour."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        near = [ti.Vector([x[i], 2.0]), ti.Vector([0.5, x[i] * x[i]]), ti.Vector([1.0, 3.0])]
        turned = [ti.Matrix([[1.0, x[i]], [2.0, 3.0]]), ti.Matrix([[x[i], 1.0], [0.0, 1.0]])]
        s = 0.0
        for j in range(3):
            for k in range(3):
                s += near[j][0] * near[k][1] * (j + 1)
            v = turned[(i + j) % 2] @ near[(i + j) % 3]
            s += v[0] - v[1] * j
        out[i] = s
    return out


def test_a_list_of_vectors_is_subscripted_at_run_time() -> None:
    kernel = ti.kernel(weights)
    for n in (1, 2, 17):
        x = torch.randn(n, dtype=torch.float64)
        torch.testing.assert_close(kernel(x), weights(x))
        torch.testing.assert_close(kernel.interpret(x), weights(x))
    assert torch.autograd.gradcheck(kernel, torch.randn(4, dtype=torch.float64, requires_grad=True))
