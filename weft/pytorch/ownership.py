"""Whether anything but a backward that is being carried out refers to a gradient given to it.

Torch hands one gradient to hooks, to ``autograd.grad`` and to other nodes, all of which may keep
it; where none of them does, a backward may overwrite it. A time loop that fills one tensor hands
the gradient of all of it from step to step: a copy at each would cost time in proportion to T².
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch

from weft.frames import user_frames
from weft.pytorch.dynamo import is_compiled

# pyright: reportPrivateUsage=false


def _references(grads: Sequence[torch.Tensor | None], k: int) -> tuple[int, int, int]:
    """How many hold the object, its tensor and its memory."""
    memory = torch._C._storage_Use_Count(grads[k].untyped_storage()._cdata)  # type: ignore[union-attr]
    return sys.getrefcount(grads[k]), grads[k]._use_count(), memory  # type: ignore[union-attr]


def owned(ctx: Any, grads: Sequence[torch.Tensor | None]) -> frozenset[int]:
    """The positions of the gradients that may be overwritten. To be called first thing in a
    ``backward`` that is decorated with ``user_frames``, on what this was given."""
    if torch.is_grad_enabled() or is_compiled(ctx):
        # Compiled autograd has frames of its own, which refer to what later nodes take.
        return frozenset()
    alone = _alone()
    return frozenset(
        k for k in range(len(grads))
        if type(grads[k]) is torch.Tensor  # and no batch:
        and torch._C._has_storage(grads[k])  # type: ignore[arg-type]
        and all(n <= most for n, most in zip(_references(grads, k), alone, strict=True))
    )  # fmt: skip


class _Probe(torch.autograd.Function):
    """Its gradient is new, and it is told to ``seen`` by how much that is held."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seen: list[tuple[int, int, int]]) -> torch.Tensor:
        ctx.seen = seen
        return x.clone()

    @staticmethod
    @user_frames
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        ctx.seen.append(_references(grads, 0))
        return torch.ones(1), None


@functools.cache
def _alone() -> tuple[int, int, int]:
    """The references to a gradient that only the backward of this release of torch has: counted in
    a thread of its own, which has no modes and hooks."""
    seen: list[tuple[int, int, int]] = []

    def count() -> None:
        x = torch.zeros(1, requires_grad=True)
        _Probe.apply(_Probe.apply(x, seen), seen).sum().backward()

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    return seen[-1]
