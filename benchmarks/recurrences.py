"""Recurrences on a CUDA device: loops whose steps need each other.

``python -m benchmarks.recurrences`` compares each kernel with PyTorch in float64, a step of time at
once, on a part of the batch, and prints medians of event-timed launches: weft's own choice, and the
loop as it is written (``index_width(32)``). Sums and affine maps along rows are compared, and timed
with their gradients, beside ``torch.cumsum``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import weft
from benchmarks.gpu_check import timed
from examples import wkv


@weft.kernel
def decayed(x: torch.Tensor, a: float) -> torch.Tensor:
    """s = a s + x, along the first dimension of ``x`` (T, C)."""
    out = torch.empty_like(x)
    for c in range(x.shape[1]):
        s = 0.0
        for t in range(x.shape[0]):
            s = a * s + x[t, c]
            out[t, c] = s
    return out


@weft.kernel
def summed(x: torch.Tensor) -> torch.Tensor:
    """The sums of a row (N, T) up to each element."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for t in range(x.shape[1]):
            s += x[i, t]
            out[i, t] = s
    return out


@weft.kernel
def mapped(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """s = a s + x along each row (N, T)."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for t in range(x.shape[1]):
            s = a[i, t] * s + x[i, t]
            out[i, t] = s
    return out


@weft.kernel
def rwkv7(
    r: torch.Tensor, w: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor,
    b: torch.Tensor, N: weft.template(),  # type: ignore[valid-type]
) -> torch.Tensor:  # fmt: skip
    """The state loop of RWKV-7 (Peng et al., 2025, section 4): each of N rows of a head's state
    decays by e^-e^w, is moved by what it says of ``a`` along ``b``, and learns ``v`` at ``k``. All
    arguments (B, T, H, N)."""
    B, T, H, _ = r.shape
    y = torch.empty_like(v)
    for n, h, i in weft.ndrange(B, H, N):
        state = weft.zeros(N)
        for t in range(T):
            known = 0.0
            for j in range(N):
                known += a[n, t, h, j] * state[j]
            s = 0.0
            for j in range(N):
                decay = math.exp(-math.exp(w[n, t, h, j]))
                state[j] = state[j] * decay + known * b[n, t, h, j] + v[n, t, h, i] * k[n, t, h, j]
                s += state[j] * r[n, t, h, j]
            y[n, t, h, i] = s
    return y


@weft.kernel
def gated_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
    K: weft.template(),  # type: ignore[valid-type]
) -> torch.Tensor:  # fmt: skip
    """Gated linear attention (Yang et al., 2024): ``q``, ``k``, ``g`` (B, T, H, K), ``v`` (B, T, H,
    V)."""
    B, T, H, V = v.shape
    out = torch.empty_like(v)
    for n, h, i in weft.ndrange(B, H, V):
        state = weft.zeros(K)
        for t in range(T):
            s = 0.0
            for j in range(K):
                state[j] = state[j] * math.exp(g[n, t, h, j]) + k[n, t, h, j] * v[n, t, h, i]
                s += state[j] * q[n, t, h, j]
            out[n, t, h, i] = s
    return out


@weft.kernel
def mamba2(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
    N: weft.template(),  # type: ignore[valid-type]
) -> torch.Tensor:  # fmt: skip
    """The state loop of Mamba-2 (Dao and Gu, 2024): ``x`` (B, T, H, P), ``dt`` (B, T, H), ``a``
    (H,), ``b``, ``c`` (B, T, N)."""
    B, T, H, P = x.shape
    y = torch.empty_like(x)
    for n, h, p in weft.ndrange(B, H, P):
        state = weft.zeros(N)
        for t in range(T):
            s = 0.0
            for j in range(N):
                update = dt[n, t, h] * x[n, t, h, p] * b[n, t, j]
                state[j] = state[j] * math.exp(dt[n, t, h] * a[h]) + update
                s += state[j] * c[n, t, j]
            y[n, t, h, p] = s
    return y


def torch_decayed(x: torch.Tensor, a: float) -> torch.Tensor:
    s, out = torch.zeros_like(x[0]), []
    for x_t in x:
        s = a * s + x_t
        out.append(s)
    return torch.stack(out)


def torch_rwkv7(*args: Any) -> torch.Tensor:
    *tensors, n = args
    state = tensors[0].new_zeros(*tensors[0][:, 0].shape, n)
    out = []
    for r, w, k, v, a, b in zip(*(t.unbind(1) for t in tensors), strict=True):
        known = torch.einsum("nhij,nhj->nhi", state, a)
        state = state * torch.exp(-torch.exp(w))[..., None, :] + known[..., None] * b[..., None, :]
        state = state + v[..., None] * k[..., None, :]
        out.append(torch.einsum("nhij,nhj->nhi", state, r))
    return torch.stack(out, 1)


def torch_gated_attention(*args: Any) -> torch.Tensor:
    *tensors, count = args
    state, out = tensors[2].new_zeros(*tensors[2][:, 0].shape, count), []
    for q, k, v, g in zip(*(t.unbind(1) for t in tensors), strict=True):
        state = state * torch.exp(g)[..., None, :] + v[..., None] * k[..., None, :]
        out.append(torch.einsum("nhij,nhj->nhi", state, q))
    return torch.stack(out, 1)


def torch_mamba2(x: Any, dt: Any, a: Any, b: Any, c: Any, count: int) -> torch.Tensor:
    state, out = x.new_zeros(*x[:, 0].shape, count), []
    for x_, dt_, b_, c_ in zip(*(t.unbind(1) for t in (x, dt, b, c)), strict=True):
        state = state * torch.exp(dt_ * a)[..., None, None]
        state = state + (dt_[..., None] * x_)[..., None] * b_[:, None, None, :]
        out.append(torch.einsum("nhij,nj->nhi", state, c_))
    return torch.stack(out, 1)


def check(kernel: weft.Kernel, reference: Callable[..., torch.Tensor], *args: Any) -> None:
    wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
    torch.testing.assert_close(kernel(*args).double(), reference(*wide), rtol=1e-4, atol=1e-4)


def rwkv7_inputs(batch: int, time: int, heads: int, n: int) -> list[Any]:
    """As the model makes them: ``a`` of unit length, ``b`` against it."""
    r, w, k, v, a, rate = torch.randn(6, batch, time, heads, n, device="cuda").unbind()
    a = torch.nn.functional.normalize(a, dim=-1)
    return [r, w - 4, 0.3 * k, v, a, -a * rate.sigmoid(), n]


def gated_inputs(batch: int, time: int, heads: int, k: int, v: int) -> list[Any]:
    shape = batch, time, heads
    q, keys, g = torch.randn(3, *shape, k, device="cuda").unbind()
    gates = torch.nn.functional.logsigmoid(g) / 16
    return [q, keys, torch.randn(*shape, v, device="cuda"), gates, k]


def mamba2_inputs(batch: int, time: int, heads: int, p: int, n: int) -> list[Any]:
    dt = torch.rand(batch, time, heads, device="cuda") * 0.1
    b, c = torch.randn(2, batch, time, n, device="cuda").unbind()
    x = torch.randn(batch, time, heads, p, device="cuda")
    return [x, dt, -torch.rand(heads, device="cuda"), b, c, n]


def row(name: str, kernel: weft.Kernel, *args: Any) -> None:
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(kernel.function)
    torch.testing.assert_close(kernel(*args), plain(*args), rtol=1e-4, atol=1e-4)
    times = [timed(lambda f=f: f(*args), 0.2) for f in (kernel, plain)]
    print(f"| {name} | {times[0]:.4g} | {times[1]:.4g} |", flush=True)


def gradient(kernel: weft.Kernel, reference: Callable[..., torch.Tensor], *args: Any) -> float:
    """The time of the gradient with respect to all tensors; checked on two rows of the batch."""
    tensors = [a.requires_grad_() for a in args if isinstance(a, torch.Tensor)]
    rest = args[len(tensors) :]
    y = kernel(*tensors, *rest)
    grad = torch.randn_like(y)
    made = timed(lambda: torch.autograd.grad(y, tensors, grad, retain_graph=True), 0.3)
    small = [(a[:2, :40] if a.dim() > 1 else a).detach().requires_grad_() for a in tensors]
    wide = [a.detach().double().requires_grad_() for a in small]
    found = torch.autograd.grad(kernel(*small, *rest).sum(), small)
    expected = torch.autograd.grad(reference(*wide, *rest).sum(), wide)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)
    return made


def along_rows(rows: int, length: int) -> None:
    x, a = torch.rand(2, rows, length, device="cuda").unbind()
    for kernel, args in ((summed, [x - 0.5]), (mapped, [x - 0.5, a])):
        expected = kernel(*(t.double().cpu()[:, : 1 << 16] for t in args))
        torch.testing.assert_close(
            kernel(*args)[:, : 1 << 16].double().cpu(), expected, rtol=1e-4, atol=1e-3
        )
        given = [t.requires_grad_() for t in args]
        y = kernel(*given)
        times = [
            timed(lambda k=kernel, g=given: k(*(t.detach() for t in g)), 0.2),
            timed(lambda y=y, g=given: torch.autograd.grad(y, g, x, retain_graph=True), 0.2),
        ]
        name = f"{kernel.__name__} along rows, {rows} x {length}"
        print(f"| {name}, forward / backward | {times[0]:.4g} / {times[1]:.4g} | |", flush=True)
    print(f"| torch.cumsum | {timed(lambda: x.cumsum(1), 0.2):.4g} | |", flush=True)


def main() -> None:
    small = [a.cuda() for a in wkv.inputs(2, 77, 33)]
    check(wkv.wkv, wkv.torch_wkv, *small)
    check(decayed, torch_decayed, torch.randn(77, 33, device="cuda"), 0.9)
    for n in (16, 40, 64):
        check(rwkv7, torch_rwkv7, *rwkv7_inputs(2, 41, 3, n))
        check(gated_attention, torch_gated_attention, *gated_inputs(2, 41, 3, n, 72))
        check(mamba2, torch_mamba2, *mamba2_inputs(2, 41, 3, 72, n))
    print("| ms | weft | the loop as written |\n| --- | --- | --- |")
    for name, kernel, reference, args in (
        ("wkv (RWKV-4), B=32 T=1024 C=768", wkv.wkv, wkv.torch_wkv,
         [a.cuda() for a in wkv.inputs(32, 1024, 768)]),
        ("RWKV-7's state, B=8 T=1024 H=64 N=64", rwkv7, torch_rwkv7,
         rwkv7_inputs(8, 1024, 64, 64)),
    ):  # fmt: skip
        row(name, kernel, *args)
        print(f"| its gradient | {gradient(kernel, reference, *args):.4g} | |", flush=True)
    row("gated linear attention, B=8 T=1024 H=32 K=64 V=128", gated_attention,
        *gated_inputs(8, 1024, 32, 64, 128))  # fmt: skip
    for n in (16, 64):
        row(f"Mamba-2's state, B=8 T=1024 H=64 P=64 N={n}", mamba2,
            *mamba2_inputs(8, 1024, 64, 64, n))  # fmt: skip
    for shape in ((65536, 4096), (1024, 65536)):
        row(
            f"s = a s + x, T={shape[0]} C={shape[1]}",
            decayed,
            torch.randn(shape, device="cuda"),
            0.9,
        )
    for sizes in ((512, 65536), (1, 1 << 22), (1, 1 << 25)):
        along_rows(*sizes)


if __name__ == "__main__":
    main()
