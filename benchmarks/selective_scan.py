"""The selective scan of Mamba on a CUDA device, beside a copy of the loop in CUDA C++.

``python -m benchmarks.selective_scan`` compares the loop with PyTorch in float64, a step of time at
once, and prints medians of event-timed launches: weft's own choice, the loop as it is written
(``index_width(32)``), and the copy, which loads ahead, with ``expf`` and ``__expf``; and the
gradient that weft derives beside one by hand (``selective_scan_backward.cu``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import weft
from benchmarks.gpu_check import timed


@weft.kernel
def selective_scan(
    u: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
    N: weft.template(),  # type: ignore[valid-type]
) -> torch.Tensor:  # fmt: skip
    """Mamba (Gu and Dao, 2023), section 3: ``u``, ``dt`` (B, L, D), ``a`` (D, N), ``b``, ``c``
    (B, L, N)."""
    B, L, D = u.shape
    y = torch.empty_like(u)
    for n, d in weft.ndrange(B, D):
        state = weft.zeros(N)
        for t in range(L):
            s = 0.0
            for j in range(N):
                update = dt[n, t, d] * u[n, t, d] * b[n, t, j]
                state[j] = math.exp(dt[n, t, d] * a[d, j]) * state[j] + update
                s += state[j] * c[n, t, j]
            y[n, t, d] = s
    return y


# A thread for each (b, d). What the next K turns load is loaded before these: a thread's own
# numbers into registers, rows that all threads of a block read into shared memory. N is 16, L a
# multiple of K, D one of THREADS.
SOURCE = r"""
#define N 16
#define K 8
// The loop as it is written, a thread for each (b, d); what the next K turns load is loaded ahead:
// a thread's own numbers into registers, rows that all threads of a block read into shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) selective_scan(
    const float* __restrict__ u, const float* __restrict__ dt, const float* __restrict__ A,
    const float* __restrict__ B, const float* __restrict__ C, float* __restrict__ y, int L, int D)
{
    __shared__ float4 rows[2][2][K][N / 4];
    int d = blockIdx.x * THREADS + threadIdx.x, b = blockIdx.y;
    float a[N], s[N], un[K], dn[K];
    for (int n = 0; n < N; n++) { a[n] = A[d * N + n]; s[n] = 0.0f; }
    const float* up = u + (size_t)b * L * D + d;
    const float* dp = dt + (size_t)b * L * D + d;
    float* yp = y + (size_t)b * L * D + d;
    const float4* Bp = (const float4*)(B + (size_t)b * L * N);
    const float4* Cp = (const float4*)(C + (size_t)b * L * N);
    int t = threadIdx.x;
    const int words = K * N / 4;
    if (t < words) ((float4*)rows[0][0])[t] = Bp[t];
    else if (t < 2 * words) ((float4*)rows[0][1])[t - words] = Cp[t - words];
#pragma unroll
    for (int k = 0; k < K; k++) { un[k] = up[(size_t)k * D]; dn[k] = dp[(size_t)k * D]; }
    for (int t0 = 0; t0 < L; t0 += K) {
        __syncthreads();
        int at = (t0 / K) & 1, next = t0 + K < L ? t0 + K : 0;
        float uk[K], dk[K];
#pragma unroll
        for (int k = 0; k < K; k++) { uk[k] = un[k]; dk[k] = dn[k]; }
#pragma unroll
        for (int k = 0; k < K; k++) {
            un[k] = up[(size_t)(next + k) * D]; dn[k] = dp[(size_t)(next + k) * D];
        }
        float4 row;
        if (t < words) row = Bp[next * (N / 4) + t];
        else if (t < 2 * words) row = Cp[next * (N / 4) + t - words];
#pragma unroll
        for (int k = 0; k < K; k++) {
            float sum = 0.0f, x = dk[k] * uk[k];
            const float* Bs = (const float*)rows[at][0][k];
            const float* Cs = (const float*)rows[at][1][k];
#pragma unroll
            for (int n = 0; n < N; n++) {
                s[n] = EXP(dk[k] * a[n]) * s[n] + x * Bs[n];
                sum += s[n] * Cs[n];
            }
            yp[(size_t)(t0 + k) * D] = sum;
        }
        if (t < words) ((float4*)rows[at ^ 1][0])[t] = row;
        else if (t < 2 * words) ((float4*)rows[at ^ 1][1])[t - words] = row;
    }
}
"""


def torch_selective_scan(u: Any, dt: Any, a: Any, b: Any, c: Any, count: int) -> torch.Tensor:
    state, out = u.new_zeros(*u[:, 0].shape, count), []
    for u_, dt_, b_, c_ in zip(*(t.unbind(1) for t in (u, dt, b, c)), strict=True):
        state = torch.exp(dt_[..., None] * a) * state + (dt_ * u_)[..., None] * b_[:, None]
        out.append(torch.einsum("bdn,bn->bd", state, c_))
    return torch.stack(out, 1)


def inputs(batch: int, time: int, width: int, n: int) -> list[Any]:
    u, dt = torch.randn(2, batch, time, width, device="cuda").unbind()
    b, c = torch.randn(2, batch, time, n, device="cuda").unbind()
    return [u, 0.1 * dt.sigmoid(), -torch.rand(width, n, device="cuda") - 0.1, b, c, n]


def copy_of_the_loop(exp: str, threads: int = 64) -> Callable[..., torch.Tensor]:
    source = f"#define THREADS {threads}\n#define EXP {exp}\n{SOURCE}"
    kernel = torch.cuda._compile_kernel(source, "selective_scan")  # pyright: ignore[reportPrivateUsage]

    def call(u: torch.Tensor, *rest: Any) -> torch.Tensor:
        (batch, time, width), y = u.shape, torch.empty_like(u)
        kernel(grid=(width // threads, batch, 1), block=(threads, 1, 1),
               args=[u, *rest[:-1], y, time, width])  # fmt: skip
        return y

    return call


def gradient_by_hand(threads: int = 64) -> Callable[..., list[torch.Tensor]]:
    """The gradients of ``u``, ``dt``, ``a``, ``b`` and ``c``, of the arguments of
    ``selective_scan`` with N = 16 and the gradient of its result."""
    text = Path(__file__).with_name("selective_scan_backward.cu").read_text()
    source = f"#define THREADS {threads}\n{text}"
    kernel = torch.cuda._compile_kernel(source, "selective_scan_backward")  # pyright: ignore[reportPrivateUsage]

    def call(u: torch.Tensor, *rest: Any) -> list[torch.Tensor]:
        dt, a, b, c, n, grad = rest
        batch, time, width = u.shape
        kept = u.new_empty(time // 4 * n * batch * width)
        made = [torch.empty_like(u), torch.empty_like(dt), *map(torch.zeros_like, (a, b, c))]
        kernel(grid=(width // threads, batch, 1), block=(threads, 1, 1),
               args=[u, dt, a, b, c, grad, *made, kept, time, width])  # fmt: skip
        return made

    return call


def gradients(by_hand: Callable[..., list[torch.Tensor]]) -> tuple[float, float]:
    """The times of the gradient that weft derives and of that by hand, which are compared with
    PyTorch's in float64 on smaller tensors."""
    *tensors, n = inputs(2, 48, 128, 16)
    wide = [t.double().requires_grad_() for t in tensors]
    y = torch_selective_scan(*wide, n)  # type: ignore[call-arg]
    grad = torch.randn_like(y)
    expected = torch.autograd.grad(y, wide, grad)
    leaves = [t.requires_grad_() for t in tensors]
    made = torch.autograd.grad(selective_scan(*leaves, n), leaves, grad.float())
    for found in (made, by_hand(*(t.detach() for t in tensors), n, grad.float())):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)

    *tensors, n = inputs(8, 4096, 2048, 16)
    leaves = [t.requires_grad_() for t in tensors]
    y = selective_scan(*leaves, n)
    grad = torch.randn_like(y)
    derived = timed(lambda: torch.autograd.grad(y, leaves, grad, retain_graph=True), 0.3)
    return derived, timed(lambda: by_hand(*(t.detach() for t in tensors), n, grad), 0.3)


def main() -> None:
    args = inputs(2, 48, 128, 16)
    wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
    expected = torch_selective_scan(*wide)  # type: ignore[arg-type]
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(selective_scan.function)
    copies = copy_of_the_loop("expf"), copy_of_the_loop("__expf")
    for call in (selective_scan, plain, *copies):
        torch.testing.assert_close(call(*args).double(), expected, rtol=1e-4, atol=1e-4)
    args = inputs(8, 4096, 2048, 16)
    times = [timed(lambda f=f: f(*args), 0.3) for f in (selective_scan, plain, *copies)]
    print("| ms | weft | as written | CUDA C++, expf | __expf |\n| --- | --- | --- | --- | --- |")
    print("| selective scan (Mamba), B=8 L=4096 D=2048 N=16 |", *(f"{t:.4g} |" for t in times))
    derived, by_hand = gradients(gradient_by_hand())
    print(f"| its gradient | {derived:.4g} | | {by_hand:.4g} | |")


if __name__ == "__main__":
    main()
