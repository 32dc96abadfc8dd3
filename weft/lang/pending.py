"""Checks of kernels on a GPU that failed: found when a later launch looks, or when one waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

Error = Callable[[list[int]], Exception | None]


class Pending:
    """Error records of launches that may still run."""

    def __init__(self) -> None:
        self.devices: list[Callable[[], None]] = []  # what waits for others than CUDA's
        self._records: deque[tuple[torch.Tensor, Any, Error]] = deque()

    def add(self, record: torch.Tensor, event: Any, error: Error) -> None:
        """``event``: torch's, which is recorded behind the launch. ``error`` words what is in the
        record if its first word is not 0."""
        self._records.append((record, event, error))

    def poll(self, *, wait: bool) -> None:
        """Reads the records of launches that are done, of all if ``wait``. Raises what they say."""
        while self._records:
            record, event, error = self._records[0]
            if not wait and not event.query():
                return
            self._records.popleft()
            words = record.tolist()
            if words[0] and (found := error(words)) is not None:
                raise found


PENDING = Pending()  # of this process, as its GPUs are


def sync() -> None:
    """Waits for the GPU, if there is one, and for WebGPU's device, if a kernel ran there. Raises
    the first check of a kernel there that failed."""
    if torch.cuda.is_initialized():  # nothing ran there else; to begin takes 100 ms
        torch.cuda.synchronize()
    if torch.backends.mps.is_available():
        torch.mps.synchronize()
    PENDING.poll(wait=True)
    for wait in PENDING.devices:
        wait()
