"""What ``reverse`` makes: functions to be launched one after the other, and their workspaces."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.autodiff.lengths import Lengths
from weft.ir.core import Function, Op
from weft.ir.text import print_function


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """How many numbers a tape has in its time dimension: the most trips of the loop ``op`` of the
    primal, and for a ``scf.while`` one more. ``number`` is its place in ``Adjoint.extents``."""

    op: Op
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A workspace: as large as the parallel loop ``parallel`` (a single element
    if that is None), then ``extents``, then
    ``shape``. Its contents need not be defined. ``element`` is the name of the scalar type."""

    name: str
    element: str
    parallel: Op | None
    extents: tuple[Extent, ...] = ()
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class Adjoint:
    """The adjoint of ``primal``. Each of ``steps`` is a function whose arguments' names say which
    buffer or scalar is passed: an argument of the primal by its name in ``names``, ``x.before``,
    ``d.x``, or a workspace of ``workspaces``."""

    primal: Function
    names: tuple[str, ...]
    steps: tuple[Function, ...]
    workspaces: tuple[Buffer, ...]
    extents: tuple[Extent, ...]
    lengths: Lengths | None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def used(self) -> set[str]:
        """The names of all that some step takes."""
        return {a.name for step in self.steps for a in step.args}

    @property
    def taped(self) -> list[Buffer]:
        """The workspaces that are left."""
        used = self.used
        return [w for w in self.workspaces if w.name in used]

    def describe(self) -> str:
        """For each gradient how it is accumulated, then the workspaces."""
        lines = [f"{name}: {note}" for name, note in self.notes.items()]
        lines += [f"workspace {w.name}" for w in self.workspaces if w.name in self.used]
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self.describe(), *map(print_function, self.steps)])
