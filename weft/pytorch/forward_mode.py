"""Launches with tangents: forward mode in eager PyTorch (``torch.autograd.forward_ad``).

A launch some of whose tensors are dual carries out the steps of its ``Tangent`` instead of the
loop: they compute what the loop computes, and the tangents of what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.errors import GradientError
from weft.index.expression import evaluate
from weft.pytorch.batches import is_batched, under_vmap
from weft.pytorch.dynamo import untraced
from weft.pytorch.loop import Loop
from weft.pytorch.transforms import is_batch
from weft.pytorch.workspaces import numbers
from weft.runtime.overlap import extent
from weft.runtime.signature import TORCH_DTYPES

# pyright: reportPrivateUsage=false


class Along:
    """One launch of ``loop`` on ``values`` along ``tangents`` (by position of the argument).

    Either ``carry_out`` does it all and nothing is recorded. Or, where a derivative of the tangents
    may be asked for, or they are batches (``recording``), they are computed by themselves, in
    operations that autograd sees, from values as they were before: ``launch`` launches a loop so,
    also under ``vmap``, and gives what is a batch from then on.
    """

    def __init__(
        self, loop: Loop, values: Sequence[Any], tangents: dict[int, torch.Tensor],
        launch: Callable[[Loop, list[Any]], Mapping[str, torch.Tensor]],
    ) -> None:  # fmt: skip
        self.loop = loop
        self.made = loop.forwarded(frozenset(tangents))
        self.tangents = tangents
        self.found: dict[int, torch.Tensor] = {}  # tangents of what was written
        self.values = list(values)
        self.leaves = [v for v in (*values, *tangents.values())
                       if isinstance(v, torch.Tensor) and v.requires_grad]  # fmt: skip
        self.launch, self.batches = launch, any(map(is_batch, tangents.values()))
        self.recording = self.batches or (torch.is_grad_enabled() and bool(self.leaves))
        self.before = {k: values[k].clone() for k in loop.written} if self.recording else {}

    def carry_out(self) -> None:
        """Does what the loop does, and computes ``found``."""

        def run(step: Loop, values: list[Any]) -> Mapping[str, torch.Tensor]:
            step.run(values)
            return {}

        with torch.no_grad():
            self._run(run)

    def _recorded(self, *tangents: torch.Tensor) -> Sequence[torch.Tensor]:
        """Computes ``found`` along ``tangents``, batches maybe."""
        given, self.tangents = self.tangents, dict(zip(self.tangents, tangents, strict=True))
        self._run(self.launch)
        self.tangents = given
        return list(self.found.values())

    def handed_over(self) -> tuple[torch.Tensor | None, ...]:
        """The tangents of what is written, as torch wants them: in the memory of those from before
        where there were any."""
        if self.recording:
            try:
                found = under_vmap(self._recorded, list(self.tangents.values()))
                self.found = dict(zip(self.found, found, strict=True))
            except GradientError as error:  # said where a derivative of the tangents is asked for
                if self.batches:
                    raise
                self.carry_out()
                self.found = {k: Refused.apply(error, t, *self.leaves)
                              for k, t in self.found.items()}  # fmt: skip
        result: list[torch.Tensor | None] = []
        for k in self.loop.written:
            found, before = self.found.get(k), self.tangents.get(k)
            if found is not None and before is not None:
                before.copy_(found)
                found = before
            elif found is None and self.values[k].is_floating_point():
                found = torch.zeros_like(self.values[k])  # torch takes no other word for zero
            result.append(found)
        return tuple(result)

    def _run(self, launch: Callable[[Loop, list[Any]], Mapping[str, torch.Tensor]]) -> None:
        loop, tangent = self.loop, self.made.tangent
        for k, tensor in self.before.items():
            self.values[k] = tensor.clone()
        env: dict[str, Any] = dict(zip(loop.names, self.values, strict=True))
        written = [self.values[k] for k in loop.written]
        for k in tangent.active:
            env[tangent.prefix + loop.names[k]] = self._buffer(k, written)
        env |= self._workspaces()
        for step in self.made.steps:
            env |= launch(step, [env[name] for name in step.names])
        active = set(tangent.active)
        self.found = {k: env[tangent.prefix + loop.names[k]] for k in loop.written if k in active}

    def _buffer(self, k: int, written: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tangent of argument ``k``, contiguous; in memory of its own where it is written, or
        where it shares memory with something that is."""
        value, given = self.values[k], self.tangents.get(k)
        if given is not None and is_batched(given):
            return given.to(value.dtype).clone(memory_format=torch.contiguous_format)
        if given is None or given._is_zerotensor():
            return torch.zeros(value.size(), dtype=value.dtype, device=value.device)
        found = given.resolve_neg().to(value.dtype).contiguous()
        if k in self.loop.written or any(_share_memory(found, w) for w in written):
            found = found.clone() if found.data_ptr() == given.data_ptr() else found
        return found

    def _workspaces(self) -> dict[str, torch.Tensor]:
        tangent = self.made.tangent
        if not tangent.workspaces:
            return {}
        sizes = numbers(tangent.primal.args, self.values)
        space = [max(evaluate(p, sizes), 0) for p in tangent.space]
        device = next(v.device for v in self.values if isinstance(v, torch.Tensor))
        made = {}
        for w in tangent.workspaces:
            dtype = TORCH_DTYPES[w.element]
            made[w.name] = torch.empty(space if w.parallel else (), dtype=dtype, device=device)
        return made


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    low, high = a.data_ptr(), b.data_ptr()
    return low < high + extent(b) and high < low + extent(a)


class Refused(torch.autograd.Function):
    """``apply(error, tensor, *leaves)``: the tensor, whose gradient is ``error``."""

    @staticmethod
    def forward(ctx: Any, error: GradientError, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        ctx.error = error
        return tensor.view_as(tensor)

    @staticmethod
    @untraced
    def backward(ctx: Any, *_: Any) -> Any:
        raise ctx.error
