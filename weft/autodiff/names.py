"""The names by which the steps of an adjoint know their arguments (see README.md).

Those of the primal's arguments are a person's, or of a derivative before: `x`, `d.x`. A member `x`
of a dataclass `d` is called `d.x`, too. So what an adjoint adds has a number of its own (see
``order_of``), or a part between dots that no name in Python has: `trips.0`.
"""

from __future__ import annotations

from weft.ir.core import Function

TRIPS = "trips.0"  # what ``Lengths.measure`` counts


def unique_names(function: Function) -> list[str]:
    """The arguments' names, made different where a tuple gave several the same."""
    names: list[str] = []
    for k, value in enumerate(function.args):
        name = value.name or f"a{k}"
        names.append(name if name not in names else f"{name}.{k}")
    return names


def order_of(function: Function) -> int:
    """The number in the names of what an adjoint of ``function`` adds: 1, which is left out of most
    of them; above that of ``function``, where it is an adjoint. The first with which they begin
    none of the names of its arguments."""
    order = function.attrs.get("order", 0) + 1
    names = [a.name for a in function.args if "." in a.name]
    while any(name.startswith(_prefixes(order)) for name in names):
        order += 1
    return order


def adjoint_prefix(function: Function) -> str:
    """What names of adjoints begin with: ``d.``, and ``d2.`` where ``function`` is an adjoint."""
    return numbered("d", order_of(function))


def before_prefix(function: Function) -> str:
    """What the names of arguments begin with that hold the contents from before the loop."""
    return numbered("before", order_of(function))


def numbered(word: str, order: int) -> str:
    """What the names begin with that ``word`` is for, in adjoints of this order."""
    return f"{word}." if order == 1 else f"{word}{order}."


def workspaces_of(order: int) -> tuple[str, ...]:
    """What the names of arguments begin with that are written and read by an adjoint of this order
    alone: tapes, and the copies on which the loop is carried out again."""
    return f"tape{order}.", numbered("work", order)


def _prefixes(order: int) -> tuple[str, ...]:
    return *workspaces_of(order), numbered("d", order), numbered("before", order)
