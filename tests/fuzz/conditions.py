"""What is set while some random programs run, so that small ones take the ways of large ones. None
of it is in a key of the disk cache, which is off meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from weft.options import default_options
from weft.pytorch import workspaces
from weft.schedule import chunks, copies, parts, streaming


@contextlib.contextmanager
def _patched() -> Iterator[pytest.MonkeyPatch]:
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WEFT_CACHE", "0")
            yield patch
    finally:
        default_options.cache_clear()


@contextlib.contextmanager
def many_chunks() -> Iterator[None]:
    """A few operations are worth a chunk, a part, a copy."""
    with _patched() as patch:
        patch.setattr(chunks, "COST", 3)
        patch.setattr(copies, "COST", 0.05)
        patch.setattr(parts, "LEAST", 2)
        default_options.cache_clear()
        yield


@contextlib.contextmanager
def past_caches() -> Iterator[None]:
    """All stores stream that may, of loops of a few iterations and many operations, too."""
    with _patched() as patch:
        patch.setattr(streaming, "SHORTEST", 3)
        patch.setattr(streaming, "MOST", 1000)
        patch.setenv("WEFT_STREAMING_MB", "0")
        default_options.cache_clear()
        yield


@contextlib.contextmanager
def tapes_in_chunks() -> Iterator[None]:
    """As on a GPU where tapes are long: three turns of a serial loop at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(workspaces.CHUNK, "cpu", 3)
        patch.setattr(workspaces, "_SHORT", 0)
        patch.setattr(workspaces, "REMEMBERED", 0)
        patch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)
        patch.setattr(workspaces, "_ROOM", 1 << 60)
        yield
