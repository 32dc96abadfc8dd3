"""The names by which the steps of an adjoint know their arguments (see README.md)."""

from __future__ import annotations

from weft.ir.core import Function


def unique_names(function: Function) -> list[str]:
    """The arguments' names, made different where a tuple gave several the same."""
    names: list[str] = []
    for k, value in enumerate(function.args):
        name = value.name or f"a{k}"
        names.append(name if name not in names else f"{name}.{k}")
    return names


def adjoint_prefix(function: Function) -> str:
    """What names of adjoints begin with: ``d.``, and ``d2.`` where ``function`` is an adjoint."""
    order = function.attrs.get("order", 0) + 1
    return "d." if order == 1 else f"d{order}."


def before_name(name: str) -> str:
    """The argument that holds the contents of ``name`` from before the loop."""
    return f"before.{name}"


def work_name(name: str) -> str:
    """The argument in which the loop is carried out again on the contents from before it."""
    return f"work.{name}"
