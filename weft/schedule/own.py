"""Steps that stand in files of their own, with their rules: CONTRIBUTING shows one."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from weft.ir.core import Function, Op
from weft.schedule.language import Schedule
from weft.schedule.nest import LoopNest, Refusal

if TYPE_CHECKING:
    from weft.schedule.guards import Guard


class OwnStep(abc.ABC):
    """What such a step, a frozen dataclass, says of itself. It is a rewrite of IR, applied behind
    ``index_width``, in the order of the schedule."""

    __slots__ = ()

    def legal(self, nest: LoopNest, schedule: Schedule) -> Refusal | None:
        """Why the step is wrong for ``nest``, beside the others; None where it is not."""
        return None

    def guards(self) -> tuple[Guard, ...]:
        """What a call must satisfy."""
        return ()

    @abc.abstractmethod
    def apply(self, function: Function, parallel: Op) -> tuple[Function, Op]:
        """``function`` after the step, and its loop that was ``parallel``."""
