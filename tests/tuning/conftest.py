"""What tests of tuning share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from weft import options
from weft.runtime import cache, tuned


class Stopwatch:
    """Runs what it is given once, and says that each took as long as ``times`` says, the last of
    them for all that follow."""

    def __init__(self, *times: float) -> None:
        self.times = times
        self.calls = 0

    def __call__(
        self, runs: Sequence[Callable[[], Any]], device: torch.device, restore: Callable[[], Any]
    ) -> list[float]:
        self.calls += 1
        for run in runs:
            restore()
            run()
        return [self.times[min(k, len(self.times) - 1)] for k in range(len(runs))]


@pytest.fixture(autouse=True)
def nothing_known(tmp_path, monkeypatch):
    """A disk cache of its own, and no files: what other tests have measured is not known."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned.records, "_files", {})
    for cached in (options.default_options, cache._cache_in):
        cached.cache_clear()
    yield
    for cached in (options.default_options, cache._cache_in):
        cached.cache_clear()
