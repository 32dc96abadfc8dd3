"""Starting the peers, each once in its process. A peer that is missing raises ImportError.

Imports are local: a worker loads only the peer that it measures.
"""

import functools
import importlib
import os
from typing import Any


def threads() -> int:
    """The number of threads that every provider uses."""
    return int(os.environ.get("BENCH_THREADS", "2"))


@functools.cache
def taichi(name: str) -> Any:
    """``taichi``, or ``quadrants``, which speaks the same language."""
    module = importlib.import_module(name)
    module.init(
        arch=module.cpu, cpu_max_num_threads=threads(), log_level="error", offline_cache=False
    )
    return module


@functools.cache
def warp() -> Any:
    """``warp``, quiet. Its CPU kernels are serial."""
    wp = importlib.import_module("warp")
    wp.config.quiet = True
    wp.init()
    return wp


@functools.cache
def numba() -> Any:
    """``numba`` with as many threads as the others."""
    module = importlib.import_module("numba")
    module.set_num_threads(threads())
    return module
