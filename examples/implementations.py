"""Kernels that a project has already, in Triton, Numba and CUDA C++, as implementations of loops.

The loop says what is computed: it is the oracle, the gradient, the fake kernel, the count of FLOPs,
and what runs on a CPU. What is registered runs where it applies, after it was compared with that.
``python -m examples.implementations`` shows what is there. Without a GPU it registers for the CPU
what an interpreter can run: ``TRITON_INTERPRET=1 NUMBA_ENABLE_CUDASIM=1``.
"""

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import weft

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FLOATS = [torch.float32, torch.float64]


@weft.kernel
def square(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i, j in weft.ndrange(*x.shape):
        out[i, j] = x[i, j] * x[i, j]
    return out


@weft.kernel
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + y[i]
    return out


@weft.kernel
def mysin(x: torch.Tensor) -> torch.Tensor:
    """Its gradient is that of the loop: ``grad * cos(x)``, which nobody has to write."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = weft.sin(x[i])
    return out


@weft.kernel
def mycos(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = weft.cos(x[i])
    return out


# --- CUDA C++ ------------------------------------------------------------------------------------
# Types of parameters are read from the declaration: what is passed is checked, and converted.
SOURCE = weft.cuda_source("""
__global__ void square(const float* x, float* out, long long rows, long long columns) {
    const long long row = blockIdx.y * (long long)blockDim.y + threadIdx.y;
    const long long column = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row < rows && column < columns) {
        const float v = x[row * columns + column];
        out[row * columns + column] = v * v;
    }
}
""")


@square.implementation("cuda", dtypes=[torch.float32], when=lambda x: x.is_contiguous())
def square_cuda(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    rows, columns = x.shape
    SOURCE.square((-(-columns // 32), -(-rows // 8)), (32, 8), x, out, rows, columns)
    return out


# --- C -------------------------------------------------------------------------------------------
PLAIN_C = weft.c_source("""
void add(const float *x, const float *y, float *restrict out, long n) {
    for (long i = 0; i < n; i++) out[i] = x[i] + y[i];
}
""")


def contiguous(*tensors: torch.Tensor) -> bool:
    return all(t.is_contiguous() for t in tensors)


@add.implementation("cpu", dtypes=[torch.float32], when=contiguous)
def add_c(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    PLAIN_C.add(x, y, out, x.numel())
    return out


# --- Triton and Numba, where they are installed and can run --------------------------------------
def runs(package: str, interpreted: str) -> bool:
    """Whether ``package`` is there, and a GPU, or its interpreter is asked for."""
    return find_spec(package) is not None and (
        DEVICE == "cuda" or os.environ.get(interpreted) == "1"
    )


TRITON = runs("triton", "TRITON_INTERPRET")
NUMBA = runs("numba", "NUMBA_ENABLE_CUDASIM")

if TRITON:
    from examples import triton_kernels as in_triton

    rows_together = square.implementation(
        DEVICE, dtypes=FLOATS, when=lambda x: x.stride(1) == 1 and x.shape[1] < 1 << 16
    )
    rows_together(in_triton.square_triton)
    for each in (in_triton.add_tuned, in_triton.add_triton, in_triton.add_heuristic,
                 in_triton.add_heuristic_above, in_triton.add_guessed):  # fmt: skip
        add.implementation(DEVICE, dtypes=FLOATS, when=contiguous)(each)
    mysin.implementation(DEVICE, dtypes=[torch.float32], when=contiguous)(in_triton.sine_triton)
    mycos.implementation(DEVICE, dtypes=[torch.float32], when=contiguous)(in_triton.cosine_triton)

if NUMBA:
    from examples import numba_kernels as in_numba

    square.implementation(DEVICE, dtypes=FLOATS, when=contiguous)(in_numba.square_numba)


# --- a tensor subclass that says what happens to it ----------------------------------------------
class Logged(torch.Tensor):
    """Prints each operator that it meets, and goes on with the tensor inside."""

    inner: torch.Tensor
    lines: list[str] = []  # noqa: RUF012 - one log for all

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Logged":
        made: Any = torch.Tensor._make_wrapper_subclass
        out = made(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        out.inner = inner
        return out

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.lines.append(str(func))

        def unwrapped(value: Any) -> Any:
            return value.inner if isinstance(value, Logged) else value

        out = func(*map(unwrapped, args), **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


def shown(kernel: weft.Kernel, *args: torch.Tensor) -> None:
    """Which of a kernel's implementations agree with it, each by itself, and are how fast."""
    kernel(*args)
    print(weft.bench(kernel, *args, seconds=0.02), end="\n\n")


def main() -> None:
    size = 4096 if DEVICE == "cuda" else 60
    shown(square, torch.randn(size, size, device=DEVICE))
    shown(add, *torch.randn(2, size * size, device=DEVICE))
    x = torch.randn(size, device=DEVICE, requires_grad=True)
    y = torch.compile(mysin, fullgraph=True, backend="aot_eager")(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, mycos(x.detach()))
    print("the gradient of mysin, under torch.compile, is mycos")
    torch.testing.assert_close(mysin(x.detach().cpu()), x.detach().cpu().sin())
    print("on the CPU the loop runs")
    with FlopCounterMode(display=False) as counter:
        mysin(x.detach())
    print(f"{counter.get_total_flops():,} FLOPs, counted of the loop")
    mysin(Logged(x.detach()))
    print("a tensor subclass saw", ", ".join(Logged.lines))


if __name__ == "__main__":
    main()
