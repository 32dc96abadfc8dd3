"""RWKV's wkv: a mean of all values so far, in which older ones weigh less.

y[t] = (sum of e^((t-1-i) w + k[i]) v[i] over i < t, plus e^(u + k[t]) v[t]) / (the same without v),
for each channel (Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023, section 3.1).
The exponentials would overflow, so the loop keeps both sums divided by e^largest, with the largest
exponent so far.
"""

import math

import torch

import weft
from examples.beside import Case, report

SIZES = ((8, 256, 256), (4, 100, 77))


@weft.kernel
def wkv(w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """``w`` (C,): logarithm of the decay, < 0; ``u`` (C,): bonus of the present; ``k``, ``v``: keys
    and values (B, T, C). Gives (B, T, C)."""
    B, T, C = k.shape
    y = torch.empty_like(v)
    for b, c in weft.ndrange(B, C):
        above = 0.0  # the two sums, divided by e^largest
        below = 0.0
        largest = -1e38
        for t in range(T):
            m = max(largest, u[c] + k[b, t, c])
            past = math.exp(largest - m)
            now = math.exp(u[c] + k[b, t, c] - m)
            y[b, t, c] = (past * above + now * v[b, t, c]) / (past * below + now)
            m = max(largest + w[c], k[b, t, c])
            past = math.exp(largest + w[c] - m)
            now = math.exp(k[b, t, c] - m)
            above = past * above + now * v[b, t, c]
            below = past * below + now
            largest = m
    return y


def torch_wkv(w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch, a step of time at once."""
    above, below = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
    largest = torch.full_like(k[:, 0], torch.finfo(k.dtype).min / 2)
    out = []
    for k_t, v_t in zip(k.unbind(1), v.unbind(1), strict=True):
        m = torch.maximum(largest, u + k_t)
        past, now = torch.exp(largest - m), torch.exp(u + k_t - m)
        out.append((past * above + now * v_t) / (past * below + now))
        m = torch.maximum(largest + w, k_t)
        past, now = torch.exp(largest + w - m), torch.exp(k_t - m)
        above, below = past * above + now * v_t, past * below + now
        largest = m
    return torch.stack(out, 1)


def textbook_wkv(
    w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """The formula as it stands, for small keys: weights (B, T, T, C) of each value at each time."""
    t = torch.arange(k.shape[1], dtype=k.dtype)
    age = (t[:, None] - 1 - t[None, :])[..., None]
    logarithm = torch.where(age == -1, u, age * w) + k[:, None]
    weights = torch.where(age >= -1, logarithm.exp(), 0.0)
    return (weights * v[:, None]).sum(2) / weights.sum(2)


def inputs(batch: int, time: int, channels: int) -> tuple[torch.Tensor, ...]:
    """Decays between e^-1 and nearly 1, random bonuses, keys and values."""
    generator = torch.Generator().manual_seed(0)
    shape = batch, time, channels
    return (
        -torch.rand(channels, generator=generator),
        torch.randn(channels, generator=generator),
        torch.randn(shape, generator=generator),
        torch.randn(shape, generator=generator),
    )


def main() -> None:
    """Check values and gradients, and time them beside PyTorch."""
    cases = []
    for size in SIZES:
        name = "B={} T={} C={}".format(*size)
        cases.append(Case(name, wkv, torch_wkv, inputs(*size)))
    report("RWKV's wkv", cases, rounds=5)


if __name__ == "__main__":
    main()
