"""Names that have a value after a loop because each way out of it assigns them.

``for j in range(n): if x[j] > 1: k = j; break`` with ``else: k = -1``, or with an ``else`` that
returns, ``while True: k = f(); if k > 1: break``, ``while (k := f()) > 1``, and ``for j in
range(3): k = x[j]``.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from weft.frontend.names import SKIPPED, bound_names, dotted
from weft.source import children, subtree


def names_after(loop: ast.For | ast.While) -> frozenset[str]:
    """The names that ``loop``, with its ``else``, has assigned wherever it ends, and does not read
    before."""
    endless = (
        isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and loop.test.value
    )
    body, other = _Paths(), _Paths()
    into = out = _NOTHING
    if isinstance(loop, ast.While):
        into, out = body.asked(loop.test, _NOTHING)
    body.walk(loop.body, into.union(*map(bound_names, _targets(loop))))
    end = other.walk(loop.orelse, out)
    ways = body.at_breaks if endless or end is None else [*body.at_breaks, end]
    if not ways:
        return _NOTHING
    return frozenset.intersection(*ways) - body.read - other.read


def names_of_turns(loop: ast.For | ast.While) -> frozenset[str]:
    """The names that each turn of ``loop`` assigns, which is known to have a turn: after it they
    have what the last one gave them."""
    if not isinstance(loop, ast.For) or not _has_turns(loop.iter):
        return _NOTHING
    body = _Paths(of_turns=True)
    end = body.walk(loop.body, frozenset(bound_names(loop.target)))
    ways = [*body.at_breaks, *body.at_continues, *([] if end is None else [end])]
    return frozenset.intersection(*ways) - body.read if ways else _NOTHING


def _has_turns(over: ast.expr) -> bool:
    """Whether a loop goes over a range that is written in numbers, and holds some."""
    if not isinstance(over, ast.Call) or over.keywords or not over.args:
        return False
    name = dotted(over.func).rpartition(".")[2]
    if name == "serial":
        return _has_turns(over.args[0])
    try:
        return name == "range" and bool(range(*map(ast.literal_eval, over.args)))
    except (TypeError, ValueError):
        return False


def mark_skipped(body: Sequence[ast.stmt]) -> None:
    """Marks what ``body`` reads of the names that a part of an expression assigns by ``:=``, where
    that part may have been skipped: ``c and (k := 3)``. See ``names.is_skipped``."""
    lists = [n for s in body for n in subtree(s) if isinstance(n, ast.NamedExpr)]
    if not lists:
        return
    paths = _Paths()
    paths.walk(body, _NOTHING)
    names = {n.target.id for n in lists}
    for node in paths.reads:
        if node.id in names:
            setattr(node, SKIPPED, True)


def _targets(loop: ast.For | ast.While) -> list[ast.expr]:
    return [loop.target] if isinstance(loop, ast.For) else []


_NOTHING: frozenset[str] = frozenset()
_Ends = tuple[frozenset[str], frozenset[str]]


class _Paths:
    """What is certainly assigned where; ``read``: what is read where it may not be, by ``reads``
    among others; ``of_turns``: loops that have turns assign what each of these does."""

    def __init__(self, of_turns: bool = False) -> None:
        self.of_turns = of_turns
        self.at_breaks: list[frozenset[str]] = []
        self.at_continues: list[frozenset[str]] = []
        self.read: set[str] = set()
        self.reads: list[ast.Name] = []

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
            case ast.Continue():
                self.at_continues.append(have)
                return None
            case ast.Return():
                self.note(node, have)
                return None
            case ast.If(test=test, body=body, orelse=orelse):
                ends = [
                    self.walk(*each)
                    for each in zip((body, orelse), self.asked(test, have), strict=True)
                ]
                known = [end for end in ends if end is not None]
                return frozenset.intersection(*known) if known else None
            case ast.For() | ast.While():  # it may not run at all, and its breaks are its own
                if isinstance(node, ast.For):
                    into = out = self.value(node.iter, have)
                else:
                    into, out = self.asked(node.test, have)
                inner = _Paths()
                inner.walk(node.body, into.union(*map(bound_names, _targets(node))))
                self.read |= inner.read
                self.reads += inner.reads
                self.walk(node.orelse, out)  # whose breaks are not
                turns = names_of_turns(node) if self.of_turns else _NOTHING
                return have | names_after(node) | turns
            case ast.Assert(test=test):
                return self.asked(test, have)[0]
            case ast.Assign(targets=targets, value=value):
                have = self.value(value, have)
                for target in targets:
                    self.note(target, have)
                return have.union(*map(bound_names, targets))
            case ast.AnnAssign(target=target, value=value) if value is not None:
                have = self.value(value, have)
                self.note(target, have)
                return have.union(bound_names(target))
            case ast.AugAssign(target=target, value=value):
                if isinstance(target, ast.Name) and target.id not in have:
                    self.read.add(target.id)
                self.note(target, have)
                return self.value(value, have).union(bound_names(target))
            case ast.Expr(value=value):
                return self.value(value, have)
            case _:
                self.note(node, have)
                return have

    def asked(self, test: ast.expr, have: frozenset[str]) -> _Ends:
        """What is assigned where ``test`` has given true, and where it has given false."""
        match test:
            case ast.BoolOp(op=op, values=values):
                conjunction, others = isinstance(op, ast.And), list[frozenset[str]]()
                for value in values:
                    yes, no = self.asked(value, have)
                    have, other = (yes, no) if conjunction else (no, yes)
                    others.append(other)
                left = frozenset.intersection(*others)
                return (have, left) if conjunction else (left, have)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yes, no = self.asked(operand, have)
                return no, yes
            case ast.Compare(left=left, comparators=[right, *others]):
                early = have = self.value(right, self.value(left, have))
                for other in others:  # which are evaluated where what stands before them holds
                    have = self.value(other, have)
                return have, early
            case ast.IfExp(test=inner, body=body, orelse=orelse):
                ways = zip((body, orelse), self.asked(inner, have), strict=True)
                (a, b), (c, d) = (self.asked(*way) for way in ways)
                return a & c, b & d
            case _:
                have = self.value(test, have)
                return have, have

    def value(self, node: ast.AST, have: frozenset[str]) -> frozenset[str]:
        """What is assigned once the expression ``node`` has been evaluated."""
        if not any(isinstance(n, ast.NamedExpr) for n in subtree(node)):
            self.note(node, have)
            return have
        match node:
            case ast.NamedExpr(target=target, value=value):
                return self.value(value, have) | {target.id}
            case ast.BoolOp() | ast.Compare() | ast.IfExp() | ast.UnaryOp(op=ast.Not()):
                yes, no = self.asked(node, have)
                return yes & no
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                have = self.value(node.generators[0].iter, have)
                self.note(node, have.union(bound_names(node)))  # it may have no item
                return have
            case ast.Lambda():
                self.note(node, have)
                return have
            case _:
                for child in children(node):
                    have = self.value(child, have)
                return have

    def note(self, node: ast.AST, have: frozenset[str]) -> None:
        for child in subtree(node):
            if (
                isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)
                and child.id not in have
            ):  # fmt: skip
                self.read.add(child.id)
                self.reads.append(child)
