"""The 5-point stencil: mean of a point and its four neighbours, the border left alone."""

import torch
import torch.nn.functional as F

import weft
from benchmarks import peers
from benchmarks.calls import Call, Provider, calling, compiled, on_arrays, on_warp
from benchmarks.harness import Case, Subject, main


@weft.kernel
def stencil(x: torch.Tensor, out: torch.Tensor) -> None:
    rows, cols = x.shape
    for i, j in weft.ndrange((1, rows - 1), (1, cols - 1)):
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """A random square and a place for the result, zero at the border."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.sizes["n"], case.sizes["n"], generator=generator)
    out = torch.zeros_like(x)
    out[1:-1, 1:-1] = float("nan")
    return x, out


def sliced(x: torch.Tensor) -> torch.Tensor:
    """The inside of the result by slices of the whole."""
    sides = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    return 0.2 * (x[1:-1, 1:-1] + sides)


def torch_slices(case: Case) -> Call:
    return calling(lambda x, out: out[1:-1, 1:-1].copy_(sliced(x)), *inputs(case))


def torch_convolution(case: Case) -> Call:
    x, out = inputs(case)
    weight = torch.tensor([[0.0, 1, 0], [1, 1, 1], [0, 1, 0]])[None, None] * 0.2
    return calling(
        lambda x, out: out[1:-1, 1:-1].copy_(F.conv2d(x[None, None], weight)[0, 0]), x, out
    )


def torch_compile(case: Case) -> Call:
    x, out = inputs(case)
    kernel = compiled(sliced)
    inside = out[1:-1, 1:-1]

    def call() -> torch.Tensor:
        kernel(x, inside)
        return out

    return call


def numba(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(x, out):
        rows, cols = x.shape
        for i in nb.prange(1, rows - 1):
            for j in range(1, cols - 1):
                total = x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]
                out[i, j] = nb.float32(0.2) * total

    return on_arrays(kernel, *inputs(case))


def taichi(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(ndim=2), out: ti.types.ndarray(ndim=2)):
            for i, j in ti.ndrange((1, x.shape[0] - 1), (1, x.shape[1] - 1)):
                total = x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]
                out[i, j] = 0.2 * total

        return calling(kernel, *inputs(case))

    return provider


def taichi_rows(name: str) -> Provider:
    """Rows in parallel, columns in order: no division to find the indices."""

    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(ndim=2), out: ti.types.ndarray(ndim=2)):
            for i in range(1, x.shape[0] - 1):
                for j in range(1, x.shape[1] - 1):
                    total = x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]
                    out[i, j] = 0.2 * total

        return calling(kernel, *inputs(case))

    return provider


def warp(case: Case) -> Call:
    wp = peers.warp()
    plane = wp.array2d(dtype=wp.float32)

    @wp.kernel
    def stencil_kernel(x: plane, out: plane):
        a, b = wp.tid()
        i = a + 1
        j = b + 1
        total = x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]
        out[i, j] = 0.2 * total

    n = case.sizes["n"]
    return on_warp(stencil_kernel, (n - 2, n - 2), *inputs(case))


SUBJECTS = (
    Subject(
        "stencil",
        "5-point stencil, given output",
        (Case("4096²", {"n": 4096}),),
        {
            "weft": lambda case: calling(stencil, *inputs(case)),
            "torch": torch_slices,
            "torch, conv2d": torch_convolution,
            "torch.compile": torch_compile,
            "numba": numba,
            "taichi": taichi("taichi"),
            "taichi, tuned": taichi_rows("taichi"),
            "quadrants": taichi("quadrants"),
            "quadrants, tuned": taichi_rows("quadrants"),
            "warp": warp,
        },
        lambda case: F.pad(sliced(inputs(case)[0].double()), (1, 1, 1, 1)),
    ),
)


if __name__ == "__main__":
    main("stencil", SUBJECTS)
