"""What ``forward`` makes: functions to be launched one after the other, and their workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from weft.autodiff.adjoint import Buffer
from weft.index.expression import Poly
from weft.ir.core import Function
from weft.ir.text import print_function
from weft.values import mutable

PREFIX = "t."  # of the names of tangents


def prefix_of(names: Sequence[str]) -> str:
    """``PREFIX``, or, where the loop is itself one of tangents, one that begins none of its
    ``names``."""
    prefix = PREFIX
    while any(name.startswith(prefix) for name in names):
        prefix = f"t{prefix}"
    return prefix


@mutable
class Tangent:
    """``primal`` together with its derivative along a direction.

    Launching ``steps`` in their order does what the primal does, and to the tangents what follows
    from it. Their arguments' names say what is passed: an argument of the primal by its name in
    ``names``, ``prefix`` and that name (``t.x``) for the tangent of ``x`` (the shape and dtype of
    ``x``, contiguous; for what is written, in: the tangent from before the loop, out: that from
    after it), or a workspace of ``workspaces``, whose extents are ``space``. ``active``: positions
    of the arguments that have a tangent. ``notes``: what is special, by the name of the value.
    """

    primal: Function
    names: tuple[str, ...]
    prefix: str
    active: tuple[int, ...]
    steps: tuple[Function, ...]
    workspaces: tuple[Buffer, ...] = ()
    space: tuple[Poly, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """The arguments with tangents, then what is special, then the workspaces."""
        active = ", ".join(self.prefix + self.names[k] for k in self.active)
        lines = [f"tangents: {active or 'none'}"]
        lines += [f"{name}: {note}" for name, note in self.notes.items()]
        lines += [f"workspace {w.name}" for w in self.workspaces]
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self.describe(), *map(print_function, self.steps)])
