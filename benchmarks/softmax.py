"""Softmax of every row."""

import math

import torch

import weft
from benchmarks import peers
from benchmarks.calls import Call, Provider, calling, compiled, on_arrays, on_warp, poisoned
from benchmarks.harness import Case, Subject, main


@weft.kernel
def softmax(x: torch.Tensor, out: torch.Tensor) -> None:
    rows, cols = x.shape
    for i in range(rows):
        largest = -math.inf
        for j in range(cols):
            largest = max(largest, x[i, j])
        total = 0.0
        for j in range(cols):
            e = math.exp(x[i, j] - largest)
            out[i, j] = e
            total += e
        for j in range(cols):
            out[i, j] /= total


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Random rows and a place for the result."""
    generator = torch.Generator().manual_seed(0)
    shape = case.sizes["rows"], case.sizes["cols"]
    return torch.randn(*shape, generator=generator), poisoned(*shape)


def numba(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True)
    def kernel(x, out):
        rows, cols = x.shape
        for i in nb.prange(rows):
            largest = x[i, 0]
            for j in range(1, cols):
                largest = max(largest, x[i, j])
            total = nb.float32(0.0)
            for j in range(cols):
                e = math.exp(x[i, j] - largest)
                out[i, j] = e
                total += e
            for j in range(cols):
                out[i, j] /= total

    return on_arrays(kernel, *inputs(case))


def numba_tuned(case: Case) -> Call:
    """Reductions may be reassociated, and ``exp`` is a polynomial that vectorises.

    exp(x) = 2^n exp(r) with r = x - n log 2 in [-log 2 / 2, log 2 / 2]; exp(r) by its Taylor series
    to the sixth power (relative error 2e-7 there); 2^n by squaring bits of a float, added as an
    integer to the exponent through a view.
    """
    nb = peers.numba()
    log2e, high, low = nb.float32(1.4426950), nb.float32(0.693359375), nb.float32(-2.1219444e-4)
    powers = tuple(nb.float32(1 / math.factorial(k)) for k in range(7))
    c0, c1, c2, c3, c4, c5, c6 = powers
    smallest = nb.float32(-87.0)

    @nb.njit(parallel=True, fastmath=True, error_model="numpy")
    def kernel(x, out, bits):
        rows, cols = x.shape
        for i in nb.prange(rows):
            largest = x[i, 0]
            for j in range(1, cols):
                largest = max(largest, x[i, j])
            total = nb.float32(0.0)
            for j in range(cols):
                v = max(x[i, j] - largest, smallest)
                n = nb.int32(v * log2e - nb.float32(0.5))
                r = v - nb.float32(n) * high - nb.float32(n) * low
                p = c0 + r * (c1 + r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * c6)))))
                out[i, j] = p
                bits[i, j] += n << 23
            for j in range(cols):
                total += out[i, j]
            scale = nb.float32(1.0) / total
            for j in range(cols):
                out[i, j] *= scale

    x, out = inputs(case)
    bits = out.numpy().view("int32")
    return calling(lambda x, out: kernel(x, out, bits), x.numpy(), out.numpy())


def taichi(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(ndim=2), out: ti.types.ndarray(ndim=2)):
            for i in range(x.shape[0]):
                largest = x[i, 0]
                for j in range(1, x.shape[1]):
                    largest = ti.max(largest, x[i, j])
                total = 0.0
                for j in range(x.shape[1]):
                    e = ti.exp(x[i, j] - largest)
                    out[i, j] = e
                    total += e
                for j in range(x.shape[1]):
                    out[i, j] /= total

        return calling(kernel, *inputs(case))

    return provider


def warp(case: Case) -> Call:
    wp = peers.warp()
    plane = wp.array2d(dtype=wp.float32)

    @wp.kernel
    def softmax_kernel(x: plane, out: plane):
        i = wp.tid()
        largest = x[i, 0]
        for j in range(1, x.shape[1]):
            largest = wp.max(largest, x[i, j])
        total = float(0.0)
        for j in range(x.shape[1]):
            e = wp.exp(x[i, j] - largest)
            out[i, j] = e
            total += e
        for j in range(x.shape[1]):
            out[i, j] = out[i, j] / total

    return on_warp(softmax_kernel, case.sizes["rows"], *inputs(case))


SUBJECTS = (
    Subject(
        "softmax",
        "row softmax, given output",
        (
            Case("4096 × 4096", {"rows": 4096, "cols": 4096}),
            Case("1823 × 781", {"rows": 1823, "cols": 781}),
        ),
        {
            "weft": lambda case: calling(softmax, *inputs(case)),
            "torch": lambda case: calling(
                lambda x, out: torch.softmax(x, 1, out=out), *inputs(case)
            ),
            "torch.compile": lambda case: calling(
                compiled(lambda x: torch.softmax(x, 1)), *inputs(case)
            ),
            "numba": numba,
            "numba, tuned": numba_tuned,
            "taichi": taichi("taichi"),
            "quadrants": taichi("quadrants"),
            "warp": warp,
        },
        lambda case: torch.softmax(inputs(case)[0].double(), 1),
    ),
)


if __name__ == "__main__":
    main("softmax", SUBJECTS)
