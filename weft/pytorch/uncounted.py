"""What ``torch.utils.flop_counter.FlopCounterMode`` does not count, or not exactly."""

from __future__ import annotations

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

# What asks for the modes has no public name.
# pyright: reportPrivateUsage=false
from weft.errors import Span, warn


class CountWarning(UserWarning):
    """FLOPs that are not counted, or not exactly."""


def warn_of_missed(span: Span) -> None:
    """For the gradient of a loop that is carried out by itself: counters see operators."""
    if any(isinstance(getattr(mode, "counter", None), FlopCounterMode)
           for mode in _get_current_dispatch_mode_stack()):  # fmt: skip
        warn(
            CountWarning, "the FLOPs of this loop's gradient are not counted, as its call was not",
            span,
            "call the kernel within FlopCounterMode, too, or ask kernel.backward.cost(...)",
        )  # fmt: skip
