"""Looking at the gradient of a kernel: ``kernel.backward``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from weft.runtime.launch import Launcher


class Backward:
    """What was derived from a kernel. ``call`` calls it; ``launchers`` are those of its loops."""

    def __init__(self, call: Any, launchers: list[Launcher]) -> None:
        self.call = call
        self.launchers = launchers

    def inspect(self, *args: Any, **kwargs: Any) -> str:
        """For each loop, how each gradient is accumulated, the workspaces, and the loops of the
        gradient as IR. The kernel is called on copies; every float tensor counts as wanted."""
        with torch.enable_grad():
            self.call(*map(_wanted, args), **{n: _wanted(v) for n, v in kwargs.items()})
        texts = []
        for launcher in self.launchers:
            for special in launcher.compiled.values():
                if special.derived is not None:
                    head = f"=== gradient of the loop at line {launcher.region.span.line} ==="
                    texts += [f"{head}\n{adjoint}" for adjoint in special.derived.adjoints]
        return "\n\n".join(dict.fromkeys(texts))


def _wanted(value: Any) -> Any:
    """A copy that a gradient is asked for (of an intermediate value: it may be written to)."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone()
    return copy.requires_grad_() * 1 if copy.is_floating_point() else copy
