"""Who is told of a schedule's steps while they are applied: ``inspect`` and reports."""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.core import Function
from weft.schedule.language import Schedule, show

# (text of one or more steps, what came of them)
Listener = Callable[[str, Function], None]


def ignored(text: str, function: Function) -> None:
    """Nobody listens."""


def tell(listener: Listener, schedule: Schedule, kinds: tuple[type, ...], made: Function) -> None:
    """``made`` came of the steps of these kinds."""
    listener(show([step for step in schedule if isinstance(step, kinds)]), made)
