"""Schedules that people ask for: which loop of a kernel goes by which text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import ScheduleError, Span
from weft.schedule.language import parse

DEVICES = ("cpu", "cuda")
Entry = tuple[str, str, str]  # device, name of the loop, text
Given = Mapping[str, "str | Mapping[int | str, str]"]
_GIVEN = 'write schedule={"cpu": "vectorize(i, 8)"}, or {"cpu": {0: "vectorize(i, 8)"}} of loops'


def entries(given: Given, kernel: str, lines: Sequence[int], span: Span) -> list[Entry]:
    """What ``kernel(schedule=...)`` says, as ``Options.schedules`` has it. Raises
    ``ScheduleError``."""
    found: list[Entry] = []
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScheduleError(f"`schedule={given!r}` says for no device", span, _GIVEN)
    for device, texts in given.items():
        each: Mapping[Any, str] = texts if isinstance(texts, Mapping) else {None: texts}
        for loop, text in each.items():
            found.append(entry(device, text, loop, kernel, lines, span))
    return found


def entry(
    device: str, text: str, loop: int | str | None, kernel: str, lines: Sequence[int], span: Span
) -> Entry:
    """Device, name of the loop and text, checked. ``lines``: of the device loops of ``kernel``.
    Raises ``ScheduleError``."""
    if device not in DEVICES:
        raise ScheduleError(f"there is no device `{device}`", span, 'write "cpu" or "cuda"')
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScheduleError(f"the schedule `{text!r}` is no text", span, _GIVEN)
    try:
        parse(text)
    except ScheduleError as error:
        raise ScheduleError(error.message, span, error.help) from None
    return device, name_of(loop, kernel, lines, span), text


def name_of(loop: int | str | None, kernel: str, lines: Sequence[int], span: Span) -> str:
    """The name of a loop that goes by its number among the device loops, or by its name. Raises
    ``ScheduleError``."""
    names = [f"{kernel}_{k}" for k in range(len(lines))]
    if loop is None and len(lines) == 1:
        return names[0]
    if isinstance(loop, int) and 0 <= loop < len(lines):
        return names[loop]
    if isinstance(loop, str) and any(loop == n or loop.startswith(f"{n}_") for n in names):
        return loop
    there = ", ".join(f"loop={k} (line {line})" for k, line in enumerate(lines))
    if loop is None:
        message = f"`{kernel}` has {len(lines)} device loops: say which one"
    else:
        message = f"`{kernel}` has no device loop {loop!r}"
    raise ScheduleError(message, span, f"write one of {there}" if lines else "")


def changed(
    schedules: Sequence[Entry], device: str, name: str, text: str | None
) -> tuple[Entry, ...]:
    """``schedules``, in which a loop goes by ``text``, or by none."""
    kept = tuple(entry for entry in schedules if entry[:2] != (device, name))
    return kept if text is None else (*kept, (device, name, text))


def given(schedules: Sequence[Entry]) -> Given:
    """``schedules`` as ``weft.kernel(schedule=...)`` takes them."""
    found: dict[str, dict[int | str, str]] = {}
    for device, name, text in schedules:
        found.setdefault(device, {})[name] = text
    return found
