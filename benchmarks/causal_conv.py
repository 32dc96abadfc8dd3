"""RWKV's causal depthwise convolution, two sizes.

"tuned" keeps a tile of outputs in registers (or in the nearest cache) and goes over ``u`` once.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

import weft
from benchmarks import peers
from benchmarks.calls import Call, Provider, calling, compiled, on_arrays, on_warp, poisoned
from benchmarks.harness import Case, Subject, main

EPS = 0.1


@weft.kernel
def causal_conv(w: torch.Tensor, k: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    B, C, T = k.shape
    for b, c, t in weft.ndrange(B, C, T):
        s = eps
        for u in range(t + 1):
            s += w[c, T - 1 - t + u] * k[b, c, u]
        out[b, c, t] = s


@weft.kernel
def causal_conv_allocating(w: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    B, C, T = k.shape
    out = torch.empty_like(k)
    for b, c, t in weft.ndrange(B, C, T):
        s = eps
        for u in range(t + 1):
            s += w[c, T - 1 - t + u] * k[b, c, u]
        out[b, c, t] = s
    return out


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor, float, torch.Tensor]:
    """``w`` (C, T), ``k`` (B, C, T), eps, and a place for (B, C, T)."""
    generator = torch.Generator().manual_seed(0)
    batch, channels, length = (case.sizes[name] for name in "BCT")
    w = torch.randn(channels, length, generator=generator) / length**0.5
    k = torch.randn(batch, channels, length, generator=generator)
    return w, k, EPS, poisoned(batch, channels, length)


def by_conv1d(w: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    channels, length = w.shape
    return eps + F.conv1d(F.pad(k, (length - 1, 0)), w.unsqueeze(1), groups=channels)


def by_fourier(w: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    n = 2 * k.shape[-1]
    product = torch.fft.rfft(w.flip(-1), n) * torch.fft.rfft(k, n)
    return eps + torch.fft.irfft(product, n)[..., : k.shape[-1]]


def reference(case: Case) -> torch.Tensor:
    w, k, eps, _ = inputs(case)
    return by_fourier(w.double(), k.double(), eps)


def allocating(function: Callable[..., torch.Tensor]) -> Provider:
    """``function(w, k, eps)``, which makes its own output."""

    def provider(case: Case) -> Call:
        w, k, eps, _ = inputs(case)
        return lambda: function(w, k, eps)

    return provider


def torch_compile(case: Case) -> Call:
    return calling(compiled(by_conv1d), *inputs(case))


def numba(case: Case) -> Call:
    nb = peers.numba()

    @nb.njit(parallel=True, fastmath=True)
    def kernel(w, k, eps, out):
        B, C, T = k.shape
        for i in nb.prange(B * C):
            b = i // C
            c = i % C
            for t in range(T):
                # Slices: a computed index might be negative for Numba, and would not vectorise.
                weights = w[c, T - 1 - t :]
                samples = k[b, c, : t + 1]
                s = nb.float32(eps)
                for u in range(t + 1):
                    s += weights[u] * samples[u]
                out[b, c, t] = s

    return on_arrays(kernel, *inputs(case))


def numba_tuned(case: Case) -> Call:
    """Eight sums at once, four ``t`` of two batch entries: six loads for eight products."""
    nb = peers.numba()

    @nb.njit(fastmath=True)
    def finish(row, weights, samples, t, eps, s0, s1, s2, s3):
        """What the later three outputs see of the samples after ``t``; all four are stored."""
        T = weights.shape[0]
        last, before, third = weights[T - 1], weights[T - 2], weights[T - 3]
        a, b, c = samples[t + 1], samples[t + 2], samples[t + 3]
        row[t] = eps + s0
        row[t + 1] = eps + s1 + last * a
        row[t + 2] = eps + s2 + before * a + last * b
        row[t + 3] = eps + s3 + third * a + before * b + last * c

    @nb.njit(parallel=True, fastmath=True)
    def kernel(w, k, eps, out):
        B, C, T = k.shape
        for i in nb.prange(B // 2 * C):
            b = i // C * 2
            c = i % C
            k0, k1 = k[b, c], k[b + 1, c]
            for t in range(0, T, 4):
                w0, w1 = w[c, T - 1 - t :], w[c, T - 2 - t :]
                w2, w3 = w[c, T - 3 - t :], w[c, T - 4 - t :]
                s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = nb.float32(0)
                for u in range(t + 1):
                    s00 += w0[u] * k0[u]
                    s01 += w1[u] * k0[u]
                    s02 += w2[u] * k0[u]
                    s03 += w3[u] * k0[u]
                    s10 += w0[u] * k1[u]
                    s11 += w1[u] * k1[u]
                    s12 += w2[u] * k1[u]
                    s13 += w3[u] * k1[u]
                finish(out[b, c], w[c], k0, t, eps, s00, s01, s02, s03)
                finish(out[b + 1, c], w[c], k1, t, eps, s10, s11, s12, s13)

    return on_arrays(kernel, *inputs(case))


def taichi(name: str) -> Provider:
    def provider(case: Case) -> Call:
        ti = peers.taichi(name)

        @ti.kernel
        def kernel(
            w: ti.types.ndarray(ndim=2),
            k: ti.types.ndarray(ndim=3),
            eps: ti.f32,
            out: ti.types.ndarray(ndim=3),
        ):
            for b, c, t in out:
                s = eps
                for u in range(t + 1):
                    s += w[c, out.shape[2] - 1 - t + u] * k[b, c, u]
                out[b, c, t] = s

        return calling(kernel, *inputs(case))

    return provider


def taichi_tuned(name: str) -> Provider:
    """Eight outputs in registers: a sample is loaded once for eight products."""

    def provider(case: Case) -> Call:
        ti = peers.taichi(name)
        tile = 8

        @ti.kernel
        def kernel(
            w: ti.types.ndarray(ndim=2),
            k: ti.types.ndarray(ndim=3),
            eps: ti.f32,
            out: ti.types.ndarray(ndim=3),
        ):
            for b, c, block in ti.ndrange(out.shape[0], out.shape[1], out.shape[2] // tile):
                T = out.shape[2]
                t0 = block * tile
                s = ti.Vector([0.0] * tile)
                for j in ti.static(range(tile)):
                    s[j] = eps
                for u in range(t0):
                    value = k[b, c, u]
                    for j in ti.static(range(tile)):
                        s[j] += w[c, T - 1 - t0 - j + u] * value
                for v in ti.static(range(tile)):
                    value = k[b, c, t0 + v]
                    for j in ti.static(range(v, tile)):
                        s[j] += w[c, T - 1 - j + v] * value
                for j in ti.static(range(tile)):
                    out[b, c, t0 + j] = s[j]

        return calling(kernel, *inputs(case))

    return provider


def warp(case: Case) -> Call:
    wp = peers.warp()
    weights_type, samples_type = wp.array2d(dtype=wp.float32), wp.array3d(dtype=wp.float32)

    @wp.kernel
    def conv_kernel(w: weights_type, k: samples_type, eps: float, out: samples_type):
        b, c, t = wp.tid()
        s = float(eps)
        for u in range(t + 1):
            s += w[c, k.shape[2] - 1 - t + u] * k[b, c, u]
        out[b, c, t] = s

    arguments = inputs(case)
    return on_warp(conv_kernel, tuple(arguments[-1].shape), *arguments)


SUBJECTS = (
    Subject(
        "causal_conv",
        "causal depthwise convolution, given output",
        (
            Case("B=4 C=256 T=512", {"B": 4, "C": 256, "T": 512}),
            Case("B=8 C=768 T=768", {"B": 8, "C": 768, "T": 768}),
        ),
        {
            "weft": lambda case: calling(causal_conv, *inputs(case)),
            "weft, allocating": allocating(causal_conv_allocating),
            "torch, conv1d": allocating(by_conv1d),
            "torch, Fourier transform": allocating(by_fourier),
            "torch.compile": torch_compile,
            "numba": numba,
            "numba, tuned": numba_tuned,
            "taichi": taichi("taichi"),
            "taichi, tuned": taichi_tuned("taichi"),
            "quadrants": taichi("quadrants"),
            "quadrants, tuned": taichi_tuned("quadrants"),
            "warp": warp,
        },
        reference,
    ),
)


if __name__ == "__main__":
    main("causal_conv", SUBJECTS)
