"""The causal convolution for each tool as a file of its own, as a user's would be.

Each has ``conv(w, k, eps, out)`` and keeps what it compiles in the folder ``BENCH_CACHE``.
"""
