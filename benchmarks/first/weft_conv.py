"""weft; the cache's place is ``WEFT_CACHE_DIR``."""

import torch

import weft


@weft.kernel
def conv(w: torch.Tensor, k: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    B, C, T = k.shape
    for b, c, t in weft.ndrange(B, C, T):
        s = eps
        for u in range(t + 1):
            s += w[c, T - 1 - t + u] * k[b, c, u]
        out[b, c, t] = s
