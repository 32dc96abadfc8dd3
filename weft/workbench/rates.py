"""What was measured of one provider at some sizes."""

from __future__ import annotations

from weft.values import frozen


@frozen
class Row:
    """One provider at some sizes. Times in milliseconds: median and quartiles of ``samples``.
    ``bytes`` and ``flops``: what the kernel's loops move and compute, by ``kernel.cost``; 0 where
    it is not known. ``failure``: why there is no time."""

    sizes: tuple[tuple[str, int], ...]
    provider: str
    median: float = 0.0
    lower: float = 0.0
    upper: float = 0.0
    samples: int = 0
    bytes: int = 0
    flops: int = 0
    failure: str = ""

    @property
    def bandwidth(self) -> float | None:
        """Gigabytes a second."""
        return self.bytes / self.median / 1e6 if self.bytes and self.median else None

    @property
    def rate(self) -> float | None:
        """GFLOP/s."""
        return self.flops / self.median / 1e6 if self.flops and self.median else None
