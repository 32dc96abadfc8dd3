"""Matrix product as the triple loop, beside MKL's."""

import torch

import weft
from benchmarks import peers
from benchmarks.calls import Call, Provider, calling, on_arrays, on_warp, poisoned
from benchmarks.harness import Case, Subject, main


@weft.kernel
def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    rows, inner = a.shape
    cols = b.shape[1]
    for i, j in weft.ndrange(rows, cols):
        s = 0.0
        for k in range(inner):
            s += a[i, k] * b[k, j]
        out[i, j] = s


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two random squares and a place for the result."""
    generator = torch.Generator().manual_seed(0)
    n = case.sizes["n"]
    a, b = torch.randn(n, n, generator=generator), torch.randn(n, n, generator=generator)
    return a, b, poisoned(n, n)


def numba(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(a, b, out):
        for i in nb.prange(a.shape[0]):
            for j in range(b.shape[1]):
                s = nb.float32(0.0)
                for k in range(a.shape[1]):
                    s += a[i, k] * b[k, j]
                out[i, j] = s

    return on_arrays(kernel, *inputs(case))


def numba_tuned(case: Case) -> Call:
    """The loops exchanged, so that the innermost runs along rows and vectorises."""
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(a, b, out):
        for i in nb.prange(a.shape[0]):
            for j in range(b.shape[1]):
                out[i, j] = 0
            for k in range(a.shape[1]):
                factor = a[i, k]
                for j in range(b.shape[1]):
                    out[i, j] += factor * b[k, j]

    return on_arrays(kernel, *inputs(case))


def taichi(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(
            a: ti.types.ndarray(ndim=2), b: ti.types.ndarray(ndim=2), out: ti.types.ndarray(ndim=2)
        ):
            for i, j in out:
                s = 0.0
                for k in range(a.shape[1]):
                    s += a[i, k] * b[k, j]
                out[i, j] = s

        return calling(kernel, *inputs(case))

    return provider


def warp(case: Case) -> Call:
    wp = peers.warp()
    plane = wp.array2d(dtype=wp.float32)

    @wp.kernel
    def matmul_kernel(a: plane, b: plane, out: plane):
        i, j = wp.tid()
        s = float(0.0)
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        out[i, j] = s

    n = case.sizes["n"]
    return on_warp(matmul_kernel, (n, n), *inputs(case))


SUBJECTS = (
    Subject(
        "matmul",
        "matrix product, triple loop, given output",
        (Case("512³", {"n": 512}),),
        {
            "weft": lambda case: calling(matmul, *inputs(case)),
            "torch, MKL": lambda case: calling(
                lambda a, b, out: torch.mm(a, b, out=out), *inputs(case)
            ),
            "numba": numba,
            "numba, tuned": numba_tuned,
            "taichi": taichi("taichi"),
            "quadrants": taichi("quadrants"),
            "warp": warp,
        },
        lambda case: inputs(case)[0].double() @ inputs(case)[1].double(),
    ),
)


if __name__ == "__main__":
    main("matmul", SUBJECTS)
