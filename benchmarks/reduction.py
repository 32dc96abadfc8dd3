"""Sum and maximum of a long vector, and sums of rows."""

from collections.abc import Callable

import torch

import weft
from benchmarks import peers
from benchmarks.calls import Call, Provider, calling, compiled, on_arrays, on_warp, poisoned
from benchmarks.harness import Case, Subject, main
from examples.gallery import largest, total


@weft.kernel
def row_sums(x: torch.Tensor, out: torch.Tensor) -> None:
    rows, cols = x.shape
    for i in range(rows):
        s = 0.0
        for j in range(cols):
            s += x[i, j]
        out[i] = s


def vector(case: Case) -> torch.Tensor:
    """Random numbers in [0, 1): the sum is far from zero."""
    return torch.rand(case.sizes["n"], generator=torch.Generator().manual_seed(0))


def matrix(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """A random square and a place for the sums of its rows."""
    n = case.sizes["n"]
    return torch.rand(n, n, generator=torch.Generator().manual_seed(0)), poisoned(n)


def of_vector(function: Callable[[torch.Tensor], object]) -> Provider:
    """``function(x)`` as a provider."""

    def provider(case: Case) -> Call:
        x = vector(case)
        return lambda: function(x)

    return provider


def numba_total(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(x):
        s = nb.float32(0.0)
        for i in nb.prange(x.shape[0]):
            s += x[i]
        return s

    x = vector(case).numpy()
    return lambda: kernel(x)


def numba_largest(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(x):
        m = nb.float32(-3.0e38)
        for i in nb.prange(x.shape[0]):
            m = max(m, x[i])
        return m

    x = vector(case).numpy()
    return lambda: kernel(x)


def numba_rows(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(x, out):
        for i in nb.prange(x.shape[0]):
            s = nb.float32(0.0)
            for j in range(x.shape[1]):
                s += x[i, j]
            out[i] = s

    return on_arrays(kernel, *matrix(case))


def taichi_total(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(ndim=1)) -> ti.f32:
            s = 0.0
            for i in range(x.shape[0]):
                s += x[i]
            return s

        x = vector(case)
        return lambda: kernel(x)

    return provider


def taichi_largest(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(ndim=1)) -> ti.f32:
            m = -3.0e38
            for i in range(x.shape[0]):
                ti.atomic_max(m, x[i])
            return m

        x = vector(case)
        return lambda: kernel(x)

    return provider


def taichi_rows(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(ndim=2), out: ti.types.ndarray(ndim=1)):
            for i in range(x.shape[0]):
                s = 0.0
                for j in range(x.shape[1]):
                    s += x[i, j]
                out[i] = s

        return calling(kernel, *matrix(case))

    return provider


def warp_total(case: Case) -> Call:
    wp = peers.warp()
    x = wp.from_torch(vector(case))
    return lambda: wp.utils.array_sum(x)


def warp_rows(case: Case) -> Call:
    wp = peers.warp()
    plane, column = wp.array2d(dtype=wp.float32), wp.array(dtype=wp.float32)

    @wp.kernel
    def rows_kernel(x: plane, out: column):
        i = wp.tid()
        s = float(0.0)
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i] = s

    return on_warp(rows_kernel, case.sizes["n"], *matrix(case))


LONG = (Case("16.7 M", {"n": 1 << 24}),)
SUBJECTS = (
    Subject(
        "total",
        "sum of a vector",
        LONG,
        {
            "weft": of_vector(total),
            "torch": of_vector(torch.sum),
            "torch.compile": of_vector(torch.compile(torch.sum, dynamic=False)),
            "numba": numba_total,
            "taichi": taichi_total("taichi"),
            "quadrants": taichi_total("quadrants"),
            "warp, array_sum": warp_total,
        },
        lambda case: vector(case).double().sum(),
        tolerance=1e-4,
    ),
    Subject(
        "largest",
        "maximum of a vector",
        LONG,
        {
            "weft": of_vector(largest),
            "torch": of_vector(torch.max),
            "torch.compile": of_vector(torch.compile(torch.max, dynamic=False)),
            "numba": numba_largest,
            "taichi": taichi_largest("taichi"),
            "quadrants": taichi_largest("quadrants"),
        },
        lambda case: vector(case).double().max(),
        tolerance=0.0,
    ),
    Subject(
        "row_sums",
        "sums of rows, given output",
        (Case("4096 × 4096", {"n": 4096}),),
        {
            "weft": lambda case: calling(row_sums, *matrix(case)),
            "torch": lambda case: calling(lambda x, out: torch.sum(x, 1, out=out), *matrix(case)),
            "torch.compile": lambda case: calling(
                compiled(lambda x: torch.sum(x, 1)), *matrix(case)
            ),
            "numba": numba_rows,
            "taichi": taichi_rows("taichi"),
            "quadrants": taichi_rows("quadrants"),
            "warp": warp_rows,
        },
        lambda case: matrix(case)[0].double().sum(1),
    ),
)


if __name__ == "__main__":
    main("reduction", SUBJECTS)
