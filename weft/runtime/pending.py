"""Checks of kernels on a GPU that failed: found when a later launch looks, or when one waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from weft.codegen.interface import Check
from weft.lang import field


class Pending:
    """Error records of launches that may still run."""

    def __init__(self) -> None:
        self.records: deque[tuple[Any, ...]] = deque()

    def add(
        self, record: torch.Tensor, checks: tuple[Check, ...], device: int,
        error: Callable[[Check, list[int]], Exception],
    ) -> None:  # fmt: skip
        with torch.cuda.device(device):
            event = torch.cuda.Event()
            event.record()
        self.records.append((record, event, checks, error))

    def poll(self, *, wait: bool) -> None:
        """Reads the records of launches that are done, of all if ``wait``. Raises what they say."""
        while self.records:
            record, event, checks, error = self.records[0]
            if not wait and not event.query():
                return
            self.records.popleft()
            words = record.tolist()
            if words[0]:
                raise error(checks[words[0] - 1], words[1:])


pending = Pending()
field.after_sync.append(lambda: pending.poll(wait=True))


def synchronize() -> None:
    """Waits for all launches. Raises the first check of a kernel that failed."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    pending.poll(wait=True)
