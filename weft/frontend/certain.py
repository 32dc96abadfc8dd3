"""Names that have a value after a loop because each way out of it assigns them.

``for j in range(n): if x[j] > 1: k = j; break`` with ``else: k = -1``, or with an ``else`` that
returns, ``while True: k = f(); if k > 1: break``, and ``while (k := f()) > 1``.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from weft.frontend.names import bound_names


def names_after(loop: ast.For | ast.While) -> frozenset[str]:
    """The names that ``loop``, with its ``else``, has assigned wherever it ends, and does not read
    before."""
    endless = (
        isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and loop.test.value
    )
    body, other = _Paths(), _Paths()
    asked = body.asked(loop.test, frozenset()) if isinstance(loop, ast.While) else frozenset()
    body.walk(loop.body, asked.union(*map(bound_names, _targets(loop))))
    end = other.walk(loop.orelse, asked)
    ways = body.at_breaks if endless or end is None else [*body.at_breaks, end]
    if not ways:
        return frozenset()
    return frozenset.intersection(*ways) - body.read - other.read


def _targets(loop: ast.For | ast.While) -> list[ast.expr]:
    return [loop.target] if isinstance(loop, ast.For) else []


class _Paths:
    """What is certainly assigned where; ``read``: what is read where it may not be."""

    def __init__(self) -> None:
        self.at_breaks: list[frozenset[str]] = []
        self.read: set[str] = set()

    def walk(self, body: Sequence[ast.stmt], have: frozenset[str]) -> frozenset[str] | None:
        """What is assigned at the end of ``body``; None where that is never reached."""
        for node in body:
            after = self.statement(node, have)
            if after is None:
                return None
            have = after
        return have

    def statement(self, node: ast.stmt, have: frozenset[str]) -> frozenset[str] | None:
        match node:
            case ast.Break():
                self.at_breaks.append(have)
                return None
            case ast.Continue() | ast.Return():
                self.note(node, have)
                return None
            case ast.If(test=test, body=body, orelse=orelse):
                self.note(test, have)
                ends = [self.walk(body, have), self.walk(orelse, have)]
                known = [end for end in ends if end is not None]
                return frozenset.intersection(*known) if known else None
            case ast.For() | ast.While():  # it may not run at all, and its breaks are its own
                self.note(node.iter if isinstance(node, ast.For) else node.test, have)
                inner = _Paths()
                inner.walk(node.body, have.union(*map(bound_names, _targets(node))))
                self.read |= inner.read
                self.walk(node.orelse, have)  # whose breaks are not
                return have | names_after(node)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr():
                self.note(node, have)
                return have.union(bound_names(node))
            case _:
                self.note(node, have)
                return have

    def asked(self, test: ast.expr, have: frozenset[str]) -> frozenset[str]:
        """What is assigned once ``test`` has been evaluated, whatever it gives."""
        match test:
            case ast.NamedExpr(target=target, value=value):
                return self.asked(value, have) | {target.id}
            case ast.BoolOp(values=[first, *rest]):
                after = have = self.asked(first, have)
                for value in rest:  # of which none may be evaluated
                    have = self.asked(value, have)
                return after
            case ast.Compare(left=left, comparators=[right]):
                return self.asked(right, self.asked(left, have))
            case ast.UnaryOp(operand=operand):
                return self.asked(operand, have)
            case ast.BinOp(left=left, right=right):
                return self.asked(right, self.asked(left, have))
            case _:
                self.note(test, have)
                return have

    def note(self, node: ast.AST, have: frozenset[str]) -> None:
        for child in ast.walk(node):
            match child:
                case ast.Name(id=name, ctx=ast.Load()) if name not in have:
                    self.read.add(name)
                case ast.AugAssign(target=ast.Name(id=name)) if name not in have:
                    self.read.add(name)
                case _:
                    pass
