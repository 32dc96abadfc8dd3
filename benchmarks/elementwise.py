"""Element-wise loops: memory speed (16.7 M floats), and out of the cache (1 M)."""

import torch

import weft
from benchmarks import peers
from benchmarks.calls import Call, Provider, calling, compiled, on_arrays, on_warp, poisoned
from benchmarks.harness import Case, Subject, main


@weft.kernel
def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i] + y[i]


@weft.kernel
def square(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i] * x[i]


def two(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two random vectors and a place for the result."""
    generator = torch.Generator().manual_seed(0)
    n = case.sizes["n"]
    x, y = torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    return x, y, poisoned(n)


def one(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """One random vector and a place for the result."""
    x, _, out = two(case)
    return x, out


def numba_add(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(x, y, out):
        for i in nb.prange(out.shape[0]):
            out[i] = x[i] + y[i]

    return on_arrays(kernel, *two(case))


def numba_square(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(x, out):
        for i in nb.prange(out.shape[0]):
            out[i] = x[i] * x[i]

    return on_arrays(kernel, *one(case))


def taichi_add(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(), y: ti.types.ndarray(), out: ti.types.ndarray()):
            for i in range(out.shape[0]):
                out[i] = x[i] + y[i]

        return calling(kernel, *two(case))

    return provider


def taichi_square(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(), out: ti.types.ndarray()):
            for i in range(out.shape[0]):
                out[i] = x[i] * x[i]

        return calling(kernel, *one(case))

    return provider


def warp_add(case: Case) -> Call:
    wp = peers.warp()
    floats = wp.array(dtype=wp.float32)

    @wp.kernel
    def add_kernel(x: floats, y: floats, out: floats):
        i = wp.tid()
        out[i] = x[i] + y[i]

    return on_warp(add_kernel, case.sizes["n"], *two(case))


def warp_square(case: Case) -> Call:
    wp = peers.warp()
    floats = wp.array(dtype=wp.float32)

    @wp.kernel
    def square_kernel(x: floats, out: floats):
        i = wp.tid()
        out[i] = x[i] * x[i]

    return on_warp(square_kernel, case.sizes["n"], *one(case))


SUBJECTS = (
    Subject(
        "add",
        "element-wise add, given output",
        (Case("16.7 M", {"n": 1 << 24}),),
        {
            "weft": lambda case: calling(add, *two(case)),
            "torch": lambda case: calling(lambda x, y, out: torch.add(x, y, out=out), *two(case)),
            "torch.compile": lambda case: calling(compiled(torch.add), *two(case)),
            "numba": numba_add,
            "taichi": taichi_add("taichi"),
            "quadrants": taichi_add("quadrants"),
            "warp": warp_add,
        },
        lambda case: two(case)[0].double() + two(case)[1],
    ),
    Subject(
        "square",
        "square, given output",
        (Case("1 M", {"n": 1 << 20}),),
        {
            "weft": lambda case: calling(square, *one(case)),
            "torch": lambda case: calling(lambda x, out: torch.mul(x, x, out=out), *one(case)),
            "torch.compile": lambda case: calling(compiled(lambda x: x * x), *one(case)),
            "numba": numba_square,
            "taichi": taichi_square("taichi"),
            "quadrants": taichi_square("quadrants"),
            "warp": warp_square,
        },
        lambda case: one(case)[0].double() ** 2,
    ),
)


if __name__ == "__main__":
    main("elementwise", SUBJECTS)
