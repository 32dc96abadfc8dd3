"""What launching a kernel on a GPU needs to know of it: plain data.

Here nothing is compiled: a process whose kernels are all in the disk cache imports no more than
this and ``schedule.choose``.
"""

from __future__ import annotations

import re

from weft.codegen.interface import Check, Slot
from weft.errors import WeftError
from weft.schedule.nest import Nest
from weft.values import frozen


@frozen
class Facts:
    """What launching needs to know, whichever candidate runs. ``candidates``: as texts (see
    ``choose.candidate``), those that a call prefers first; the first ``asked`` are a person's."""

    symbol: str
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    prints: tuple[tuple[tuple[str | None, ...], tuple[str, ...]], ...]
    nest: Nest
    candidates: tuple[str, ...]
    asked: int = 0


def entries(ptx: str) -> list[str]:
    """The names of the kernels in PTX, in the order in which they run."""
    return re.findall(r"\.entry (\w+)", ptx)


def overlap(arch: str) -> bool:
    """Whether blocks of a launch may wait for the one ahead of it: PTX ISA, ``griddepcontrol``."""
    return int(arch.removeprefix("sm_")) >= 90


# -- architectures

# Architectures that LLVM 22 knows: a GPU that is newer than all of them runs the last one's PTX.
KNOWN = (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
LEAST = 70


class UnsupportedArchitectureError(WeftError, ValueError):
    """A GPU that is too old, or a name that is none."""


def architecture(name: str | tuple[int, int]) -> str:
    """``sm_90`` for "sm_90", "90" or a capability (9, 0): of a GPU that is newer than those known,
    the newest one that runs there; a name has to be known.

    Raises ``UnsupportedArchitectureError``.
    """
    if isinstance(name, tuple):
        number = 10 * name[0] + name[1]
    else:
        match = re.fullmatch(r"(?:sm_|compute_)?(\d+)[af]?", name)
        number = int(match.group(1)) if match else 0
        if match is None or (number not in KNOWN and number >= LEAST):
            raise UnsupportedArchitectureError(
                f"{name!r} is no architecture that is known: there are "
                f"{', '.join(f'sm_{k}' for k in KNOWN)}"
            )
    usable = [k for k in KNOWN if k <= number]
    if not usable:
        raise UnsupportedArchitectureError(
            f"sm_{number} is too old: kernels need capability {LEAST // 10}.{LEAST % 10} or more"
        )
    return f"sm_{usable[-1]}"
