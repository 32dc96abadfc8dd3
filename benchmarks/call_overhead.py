"""What one call costs when there is nothing to compute: three tensors of 16 floats."""

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
def add_allocating(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + y[i]
    return out


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two random vectors and a place for the result."""
    generator = torch.Generator().manual_seed(0)
    n = case.sizes["n"]
    return torch.randn(n, generator=generator), torch.randn(n, generator=generator), poisoned(n)


def weft_allocating(case: Case) -> Call:
    x, y, _ = inputs(case)
    return lambda: add_allocating(x, y)


def weft_operator(case: Case) -> Call:
    """Through PyTorch's dispatcher, as `torch.compile`d code calls it."""
    x, y, _ = inputs(case)
    operator = add_allocating.op
    return lambda: operator(x, y)


def weft_host_part(case: Case) -> Call:
    """What the host part of `add_allocating` costs by itself."""
    x, y, out = inputs(case)

    def host(x: torch.Tensor, y: torch.Tensor) -> int:
        torch.empty_like(x)
        return x.shape[0]

    def call() -> torch.Tensor:
        host(x, y)
        return out

    torch.add(x, y, out=out)
    return call


def torch_allocating(case: Case) -> Call:
    x, y, _ = inputs(case)
    return lambda: torch.add(x, y)


def numba_kernel(parallel: bool):
    """The loop, on one thread or on all."""
    nb = peers.numba()

    @nb.njit(parallel=parallel, fastmath=True)
    def kernel(x, y, out):
        for i in nb.prange(out.shape[0]):
            out[i] = x[i] + y[i]

    return kernel


def numba_arrays(parallel: bool) -> Provider:
    return lambda case: on_arrays(numba_kernel(parallel), *inputs(case))


def numba_tensors(case: Case) -> Call:
    """Serial, from torch tensors: each is turned into an array at every call."""
    kernel = numba_kernel(False)
    x, y, out = inputs(case)

    def call() -> torch.Tensor:
        kernel(x.numpy(), y.numpy(), out.numpy())
        return out

    return call


def taichi(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(x: ti.types.ndarray(), y: ti.types.ndarray(), out: ti.types.ndarray()):
            for i in range(out.shape[0]):
                out[i] = x[i] + y[i]

        return calling(kernel, *inputs(case))

    return provider


def warp_kernel():
    wp = peers.warp()
    floats = wp.array(dtype=wp.float32)

    @wp.kernel
    def add_kernel(x: floats, y: floats, out: floats):
        i = wp.tid()
        out[i] = x[i] + y[i]

    return add_kernel


def warp_arrays(case: Case) -> Call:
    return on_warp(warp_kernel(), case.sizes["n"], *inputs(case))


def warp_tensors(case: Case) -> Call:
    wp = peers.warp()
    kernel = warp_kernel()
    arguments = inputs(case)

    def call() -> torch.Tensor:
        arrays = [wp.from_torch(tensor) for tensor in arguments]
        wp.launch(kernel, dim=case.sizes["n"], inputs=arrays, device="cpu")
        return arguments[-1]

    return call


SUBJECTS = (
    Subject(
        "call_overhead",
        "one small call",
        (Case("3 tensors, 16 floats", {"n": 16}),),
        {
            "weft": lambda case: calling(add, *inputs(case)),
            "weft, allocating": weft_allocating,
            "weft, allocating, as torch.ops": weft_operator,
            "torch, the host part of allocating": weft_host_part,
            "torch": lambda case: calling(
                lambda x, y, out: torch.add(x, y, out=out), *inputs(case)
            ),
            "torch, allocating": torch_allocating,
            "torch.compile": lambda case: calling(compiled(torch.add), *inputs(case)),
            "numba, serial, arrays": numba_arrays(False),
            "numba, arrays": numba_arrays(True),
            "numba, serial, tensors": numba_tensors,
            "taichi": taichi("taichi"),
            "quadrants": taichi("quadrants"),
            "warp, arrays": warp_arrays,
            "warp, tensors": warp_tensors,
        },
        lambda case: inputs(case)[0].double() + inputs(case)[1],
        unit="µs",
    ),
)


if __name__ == "__main__":
    main("call_overhead", SUBJECTS)
