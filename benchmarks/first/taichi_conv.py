"""Taichi, started with its offline cache in ``BENCH_CACHE``."""

import os

import taichi as ti

ti.init(
    arch=ti.cpu,
    cpu_max_num_threads=int(os.environ["BENCH_THREADS"]),
    log_level="error",
    offline_cache=True,
    offline_cache_file_path=os.environ["BENCH_CACHE"],
)


@ti.kernel
def conv(
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
