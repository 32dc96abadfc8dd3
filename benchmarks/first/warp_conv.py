"""Warp, its kernel cache in ``BENCH_CACHE``."""

import os

import torch
import warp as wp

wp.config.quiet = True
wp.config.kernel_cache_dir = os.environ["BENCH_CACHE"]
wp.init()
weights_type, samples_type = wp.array2d(dtype=wp.float32), wp.array3d(dtype=wp.float32)


@wp.kernel
def kernel(w: weights_type, k: samples_type, eps: float, out: samples_type):
    b, c, t = wp.tid()
    s = float(eps)
    for u in range(t + 1):
        s += w[c, k.shape[2] - 1 - t + u] * k[b, c, u]
    out[b, c, t] = s


def conv(w: torch.Tensor, k: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    arrays = [wp.from_torch(tensor) for tensor in (w, k)]
    wp.launch(kernel, tuple(out.shape), [*arrays, eps, wp.from_torch(out)], device="cpu")
