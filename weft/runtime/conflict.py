"""Two iterations that meet on an element at run time: which ones may, and the error if not."""

from __future__ import annotations

import ast
from typing import Any

from weft.errors import RaceError
from weft.source import Span, subtree

# What an iteration does with an element: one of these, or an update, called as in ``UPDATES``.
READ, WRITE = "reads", "writes"
EXCHANGES = ("atomic_exchange", "atomic_cas")

# Updates that may meet each other in any order, by the name of the operation: two iterations may
# both do what has the same name here. Other augmented assignments (/=, //=, %=, **=) are writes.
UPDATES = {
    "add": "+=", "sub": "+=", "mul": "*=", "and_": "&=", "or_": "|=", "xor": "^=",
    "min": "atomic_min", "max": "atomic_max", "exchange": "atomic_exchange", "cas": "atomic_cas",
}  # fmt: skip


def may_meet(first: str, second: str) -> bool:
    """Whether two iterations may do this and that with one element: two reads, updates of one kind,
    or an exchange and any update."""
    if first == second:
        return first != WRITE
    exchanged = first in EXCHANGES or second in EXCHANGES
    return exchanged and not {READ, WRITE} & {first, second}


def race(
    first: tuple[str, Any, Span], second: tuple[str, Any, Span], position: tuple[int, ...],
    own: Span,
) -> RaceError:  # fmt: skip
    """The error about two iterations, each (what it does, its index or indices, where), and the
    element at ``position`` of the tensor that is subscripted at ``own``, one of these places. (They
    may subscript different tensors, in memory that overlaps.)"""
    (kind, one, where), (other_kind, two, other_where) = first, second
    span = other_where if other_kind != READ else where
    element = f"`{subject(own)}[{', '.join(map(str, position))}]`"
    if not position and subscript(own) is None:
        element = "a tensor of no dimensions"
    if kind == other_kind:
        what = f"iterations {one} and {two} both write {element}"
    else:
        what = f"iteration {one} {_verb(kind)} and iteration {two} {_verb(other_kind)} {element}"
    return RaceError(
        f"{what}, in a loop whose iterations run at once",
        span,
        "write to an element of the iteration's own, add with `+=`, read from a copy, "
        "or run the loop in order: weft.loop_config(serialize=True) on the line before it",
    )


def _verb(kind: str) -> str:
    return kind if kind in (READ, WRITE) else f"updates (by {kind})"


def subscript(span: Span) -> ast.Subscript | None:
    """The subscript expression at ``span``, where it stands in one line."""
    if span.end_line != span.line:
        return None
    try:
        tree = ast.parse(span.text[span.column : span.end_column].strip())
    except SyntaxError:  # a position that is no whole expression
        return None
    return next((node for node in subtree(tree) if isinstance(node, ast.Subscript)), None)


def subject(span: Span) -> str:
    """The tensor that is subscripted at ``span``, as written."""
    node = subscript(span)
    return "tensor" if node is None else ast.unparse(node.value)
