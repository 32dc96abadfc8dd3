"""Numba; the cache's place is ``NUMBA_CACHE_DIR``."""

import numba as nb
import torch


@nb.njit(parallel=True, fastmath=True, cache=True)
def kernel(w, k, eps, out):
    B, C, T = k.shape
    for i in nb.prange(B * C):
        b = i // C
        c = i % C
        for t in range(T):
            weights = w[c, T - 1 - t :]
            samples = k[b, c, : t + 1]
            s = nb.float32(eps)
            for u in range(t + 1):
                s += weights[u] * samples[u]
            out[b, c, t] = s


def conv(w: torch.Tensor, k: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    kernel(w.numpy(), k.numpy(), eps, out.numpy())
