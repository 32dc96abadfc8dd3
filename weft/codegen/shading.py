"""What launching a shader needs to know of it: plain data. Here nothing is compiled."""

from __future__ import annotations

from weft.codegen.interface import Check, Slot
from weft.schedule.nest import Nest
from weft.values import frozen

DIALECTS = ("wgsl", "msl")

# What a device may have, in WebGPU's words: integers, and floats, of 64 bits.
INT64, FLOAT64 = "shader-int64", "shader-f64"

# The words of "params": infinity, minus infinity, NaN and 0; then two for each slot, which are its
# bits, and of a pointer how many elements are in front of the first in its word (``Stage.led``);
# then how many blocks there are; then each slot as a float of 32 bits.
FIRST = 4
ENTRY = "entry"  # Metal has no kernel of the name "main"
# Mesa's driver for CPUs ends loops without a word after so many turns: of all loops of a thread
# together, those counted that any thread beside it takes. That is an error, with ``STOPPED`` in
# place of a check's number.
MOST_TURNS, STOPPED = 65_535, 0xFFFFFFFF


@frozen
class Stage:
    """One module. ``buffers``: what it binds, in this order: "params", "a0" (the first argument),
    ..., "error", "partials", of which those in ``written`` change, and those in ``led`` begin with
    a whole word. ``features``: what its device must have, in WebGPU's words, and ``lines`` of the
    kernel that ask for these ("" where none does)."""

    text: str
    buffers: tuple[str, ...]
    written: tuple[str, ...]
    led: tuple[str, ...]
    features: tuple[str, ...]
    lines: tuple[str, ...]


@frozen
class Form:
    """A loop by ``schedule``, as text, with indices of 32 bits, or of 64 (``wide``). ``threads``:
    of a block, along x, y and z; ``shared``: bytes that it has together. ``word``: bytes of each
    word that blocks leave for further stages. ``folds``: a grid has nothing along z, and may have
    what does not fit along x there: block x of layer z is block x + z * (blocks along x), and there
    may be more blocks than are asked for."""

    schedule: str
    wide: bool
    threads: tuple[int, int, int]
    shared: int
    stages: tuple[Stage, ...]
    word: int
    folds: bool


@frozen
class ShaderFacts:
    """What launching needs to know of a loop, whichever candidate runs. ``slots``: the words of the
    argument block, as for other devices. ``candidates``: as texts, those that a call prefers
    first. ``copied``: positions of arguments whose contents matter."""

    dialect: str
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    nest: Nest
    candidates: tuple[str, ...]
    copied: tuple[int, ...]
    changed: tuple[int, ...]
    prints: bool


@frozen
class ShaderCode:
    """A loop as text, by the schedules of large calls in which each thread has its iterations for
    itself: one for indices of 32 bits, one for 64."""

    dialect: str
    facts: ShaderFacts
    forms: tuple[Form, ...]

    @property
    def text(self) -> str:
        """Every module, with what it is for."""
        found: list[str] = []
        for form in self.forms:
            for k, stage in enumerate(form.stages):
                what = f"{form.schedule}; indices of {64 if form.wide else 32} bits"
                if len(form.stages) > 1:
                    what += "; what is left of all blocks" if k else "; what blocks reduce"
                found.append(f"// {what}\n{stage.text}")
        return "\n".join(found)
