"""Python's garbage collector, paused while weft or its compiler is imported."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def paused() -> Generator[None]:
    """No collection inside of a ``with``.

    After ``import torch`` Python has hundreds of thousands of objects and has not yet looked for
    cycles among them; the next import that makes some objects of its own would wait for that, 50 ms
    of its 120. Not for long-running work: garbage cycles stay until the end.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
