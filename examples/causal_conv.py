"""RWKV's causal depthwise convolution: each output is a weighted sum of the samples up to its time.

``causal_conv`` is the loop for weft; ``taichi_forward_v0`` is the kernel of "Accelerate PyTorch
with Taichi" as it was printed (its ``k`` has T - 1 zeros in front); ``torch_conv`` is PyTorch's.
"""

import torch
import torch.nn.functional as F

import weft
import weft as ti

B, C, T = 8, 768, 768  # the document's RWKV sizes; the printed kernel captures T
EPS = 0.1


@weft.kernel
def causal_conv(w: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    """``w`` (C, T) and ``k`` (B, C, T) give (B, C, T)."""
    B, C, T = k.shape
    out = torch.empty_like(k)
    for b, c, t in weft.ndrange(B, C, T):
        s = eps
        for u in range(t + 1):
            s += w[c, T - 1 - t + u] * k[b, c, u]
        out[b, c, t] = s
    return out


@ti.kernel
def taichi_forward_v0(
    out: ti.types.ndarray(ndim=3),
    w: ti.types.ndarray(ndim=3),
    k: ti.types.ndarray(ndim=3),
    eps: ti.f32,
):
    for b, c, t in out:
        s = eps
        for u in range(t - T + 1, t + 1):
            s += w[c, 0, (T - 1) - (t - u)] * k[b, c, u + T - 1]
        out[b, c, t] = s


def torch_conv(w: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    """The same by ``conv1d``: ``w`` (C, T) and ``k`` (B, C, T) give (B, C, T)."""
    channels, length = w.shape
    return eps + F.conv1d(F.pad(k, (length - 1, 0)), w.unsqueeze(1), groups=channels)


def float64_conv(w: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    """The same in float64, through the Fourier transform: independent of both loops and ``conv1d``.

    ``w`` is reversed because ``w[c, T - 1]`` meets the newest sample.
    """
    length = k.shape[-1]
    spectrum = torch.fft.rfft(w.double().flip(-1), 2 * length) * torch.fft.rfft(
        k.double(), 2 * length
    )
    return eps + torch.fft.irfft(spectrum, 2 * length)[..., :length]


def inputs(batch: int, channels: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Decaying weights (C, T), as RWKV's time decay makes them, and random ``k`` (B, C, T)."""
    generator = torch.Generator().manual_seed(0)
    age = torch.arange(length - 1, -1, -1, dtype=torch.float32)
    decay = torch.rand(channels, 1, generator=generator) * 0.05 + 0.001
    w = torch.exp(-decay * age) * (1 + 0.1 * torch.randn(channels, length, generator=generator))
    return w, torch.randn(batch, channels, length, generator=generator)


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference, over the largest value of ``exact``."""
    return ((got.double() - exact).abs().max() / exact.abs().max()).item()


def main() -> None:
    """Run both kernels at the document's sizes and compare them with PyTorch and float64."""
    w, k = inputs(B, C, T)
    exact = float64_conv(w, k, EPS)
    printed = torch.full_like(k, float("nan"))
    taichi_forward_v0(printed, w.unsqueeze(1), F.pad(k, (T - 1, 0)), EPS)
    print(f"B={B} C={C} T={T}: largest error against float64, relative to the largest value")
    for name, got in {
        "causal_conv": causal_conv(w, k, EPS),
        "taichi_forward_v0": printed,
        "torch conv1d": torch_conv(w, k, EPS),
    }.items():
        error = relative_error(got, exact)
        print(f"  {name:18} {error:.1e}")
        assert error < 1e-5, name


if __name__ == "__main__":
    main()
