"""Taichi's algorithms on fields of one dimension: a sort, and the sums of all prefixes."""

from __future__ import annotations

import operator
from typing import Any

import torch

from weft.errors import KernelValueError

UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def parallel_sort(keys: torch.Tensor, values: torch.Tensor | None = None) -> None:
    """Sorts ``keys``, of shape ``(n,)`` and any real dtype, in place and upwards. Elements of
    ``values``, whose first dimension has n elements, go where their keys go; those of equal keys
    keep their order. Raises ``KernelValueError`` for other shapes."""
    _check_line("keys", keys)
    if values is not None and (values.dim() == 0 or values.size(0) != keys.size(0)):
        raise KernelValueError(
            f"`keys` of shape {tuple(keys.size())} and `values` of {tuple(values.size())}",
            help="each key has a value: give both as many elements",
        )
    with torch.no_grad():
        plain = _signed(keys)
        # The order of unsigned numbers is that of signed ones whose first bit is the other.
        flipped = plain ^ torch.iinfo(plain.dtype).min if keys.dtype in UNSIGNED else plain
        order = torch.argsort(flipped, stable=True)
        for x in (keys, values):
            if x is not None:
                part = _signed(x)
                part.copy_(part[order])


class PrefixSumExecutor:
    """``PrefixSumExecutor(n).run(x)`` replaces each element of ``x`` by the sum of all up to it."""

    def __init__(self, length: Any) -> None:
        self.length = operator.index(length)

    def run(self, x: torch.Tensor) -> None:
        """``x`` has shape ``(length,)``. Integers wrap. Raises ``KernelValueError`` for another
        shape."""
        _check_line("x", x)
        if x.size(0) != self.length:
            raise KernelValueError(
                f"a field of {x.size(0)} elements is summed by a PrefixSumExecutor of "
                f"{self.length}",
                help="make one of that length",
            )
        with torch.no_grad():
            plain = _signed(x)
            plain.copy_(torch.cumsum(plain, 0, dtype=plain.dtype))


def _check_line(name: str, x: torch.Tensor) -> None:
    if x.dim() != 1:
        raise KernelValueError(
            f"`{name}` has shape {tuple(x.size())}", help="a field of numbers, of one dimension"
        )


def _signed(x: torch.Tensor) -> torch.Tensor:
    """The memory of ``x``, which torch computes with: unsigned integers as signed ones."""
    plain = x.as_subclass(torch.Tensor).detach()
    return plain.view(UNSIGNED[x.dtype]) if x.dtype in UNSIGNED else plain
