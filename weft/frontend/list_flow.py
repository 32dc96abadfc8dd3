"""Which lists of a device loop may have two names where one of them is changed.

A name that holds one list after another has memory of its own, into which it is copied
(``moves.py``). That differs from Python where a list with two names is changed by one of them,
where something else holds the list, and where a row of it is used after its name was assigned
again. A walk over the statements, which have no jumps any more, finds each.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TypeGuard

from weft.frontend.desugar import RETURN_VALUE
from weft.frontend.growing import CHANGING
from weft.frontend.names import own_nodes, without_subscripts
from weft.source import children, subtree
from weft.values import mutable

Pair = tuple[str, str]
Problem = tuple[ast.AST, str, str]  # where, what, and what to write instead


@mutable
class Known:
    """What lowering a frame has found out of its lists."""

    homes: frozenset[str]
    body: Sequence[ast.stmt]
    listed: set[str] = field(default_factory=set)  # names that hold lists
    shared: dict[int, set[str]] = field(default_factory=dict)  # whose lists targets are given
    parts: set[int] = field(default_factory=set)  # targets that are given rows of lists
    writes: dict[int, set[str]] = field(default_factory=dict)  # what calls change
    given: dict[str, str] = field(default_factory=dict)  # parameters, and the caller's names

    def only_lists(self, name: str) -> bool:
        """Whether ``name`` is assigned lists, and nothing that is written as a tuple."""
        values: dict[str, list[ast.expr]] = {}
        for node in (n for statement in self.body for n in own_nodes(statement)):
            for target, value in _pairs(node.targets, node.value) if _is_assign(node) else []:
                if isinstance(target, ast.Name) and value is not None:
                    values.setdefault(target.id, []).append(value)
        seen, left, found = {name}, [name], set[bool]()
        while left:
            for value in values.get(left.pop(), []):
                written = value.value if isinstance(value, ast.Subscript) else value
                if isinstance(written, ast.Name) and written.id not in seen:
                    seen.add(written.id)
                    left.append(written.id)
                found |= _makes_list(value)
        return found == {True}


def _is_assign(node: ast.AST) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign)


def _makes_list(node: ast.expr) -> set[bool]:
    """Whether ``node`` makes lists; nothing where it does not tell."""
    match node:
        case ast.List() | ast.ListComp() | ast.Call(func=ast.Name(id="list" | "sorted")):
            return {True}
        case ast.Call(func=ast.Attribute(attr="copy")):
            return {True}
        case ast.BinOp(left=left, right=right):
            return _makes_list(left) | _makes_list(right)
        case ast.Tuple() | ast.Call(func=ast.Name(id="tuple")):
            return {False}
        case _:
            return set()


def _pairs(
    targets: Iterable[ast.expr], value: ast.expr
) -> list[tuple[ast.expr, ast.expr | None]]:  # fmt: skip
    """The single targets of an assignment, each with what is written for it; None where that is
    not known."""
    found: list[tuple[ast.expr, ast.expr | None]] = []
    for target in targets:
        if not isinstance(target, ast.Tuple | ast.List):
            found.append((target, value))
        elif isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            for one, own in zip(target.elts, value.elts, strict=True):
                found += _pairs([one], own)
        else:
            names = [n for n in subtree(target) if isinstance(n, ast.Name)]
            found += [(n, None) for n in names]
    return found


def check_flow(known: Known) -> Problem | None:
    """The first thing that copies would make differ."""
    for statement in known.body:
        if found := _Held(known.homes).statement(statement):
            return found
    flow = _Flow(known)
    flow.walk(known.body, flow.begin())
    return flow.problem


class _Held:
    """Finds names with homes where what holds the list would stay with the old one."""

    def __init__(self, homes: frozenset[str]) -> None:
        self.homes = homes
        self.problem: Problem | None = None

    def statement(self, node: ast.AST) -> Problem | None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target, own in _pairs(targets, value):
                    self.place(target)
                    copied = isinstance(target, ast.Name | ast.Subscript)
                    self.visit(value if own is None else own, copied)
            case ast.AugAssign(target=target, value=value):
                self.visit(value, True)
                self.place(target)
            case ast.AnnAssign(target=ast.Name(id=name)) if name in self.homes:
                self.bound(node, name, "an annotated assignment")
            case ast.For(target=target, iter=over, body=body, orelse=orelse):
                for n in subtree(target):
                    if isinstance(n, ast.Name) and n.id in self.homes:
                        self.bound(n, n.id, "a loop")
                self.visit(over, True)
                self.kept(node)
                for statement in (*body, *orelse):
                    self.statement(statement)
            case ast.While(test=test, body=body) | ast.If(test=test, body=body):
                self.visit(test, True)
                for statement in (*body, *node.orelse):
                    self.statement(statement)
            case ast.FunctionDef():
                for default in (*node.args.defaults, *node.args.kw_defaults):
                    self.visit(default, False)
            case _:
                for child in children(node):
                    self.visit(child, isinstance(node, ast.Assert))
        return self.problem

    def kept(self, node: ast.For) -> None:
        """A loop goes over the list that its name held when it began."""
        over = {n.id for n in _whole(node.iter)} & self.homes
        for inner in (n for s in node.body for n in subtree(s)):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store) and (
                inner.id in over
            ):  # fmt: skip
                self.found(inner, f"a loop over `{inner.id}` assigns that name",
                           f"loop over a copy: {inner.id}[:]")  # fmt: skip

    def place(self, target: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            self.visit(target.value, True)
            self.visit(target.slice, False)

    def visit(self, node: ast.AST | None, free: bool) -> None:
        """``free``: a list may stand here."""
        match node:
            case None:
                pass
            case ast.Name(id=name):
                if name in self.homes and isinstance(node.ctx, ast.Load) and not free:
                    self.found(node, f"`{name}` is assigned one list after another, and something "
                               "else would hold the list that it is here",
                               f"use a copy: {name}[:]")  # fmt: skip
            case ast.Subscript(value=value, slice=subscript):
                self.visit(value, True)
                self.visit(subscript, False)
            case ast.Call(func=func, args=args, keywords=keywords):
                self.visit(func.value if isinstance(func, ast.Attribute) else func, True)
                for arg in (*args, *(k.value for k in keywords)):
                    self.visit(arg, True)
            case ast.Lambda():
                for default in (*node.args.defaults, *node.args.kw_defaults):
                    self.visit(default, False)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                if name in self.homes:
                    self.bound(node, name, "`:=`")
                self.visit(value, False)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.visit(test, True)
                self.visit(body, free)
                self.visit(orelse, free)
            case ast.comprehension(iter=over, ifs=ifs):
                for child in (over, *ifs):
                    self.visit(child, True)
            case _:
                takes = (ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Attribute,
                         ast.FormattedValue, ast.Starred)  # fmt: skip
                for child in children(node):
                    self.visit(child, isinstance(node, takes))

    def bound(self, node: ast.AST, name: str, by: str) -> None:
        self.found(node, f"`{name}` is assigned one list after another, here by {by}",
                   f"write {name} = ... in a statement of its own")  # fmt: skip

    def found(self, node: ast.AST, message: str, help: str) -> None:
        self.problem = self.problem or (node, message, help)


def _whole(node: ast.AST) -> Iterable[ast.Name]:
    """The names in ``node`` that stand for whole lists."""
    if isinstance(node, ast.Name):
        yield node
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return
    elif not isinstance(node, ast.Subscript | ast.ListComp | ast.GeneratorExp):
        for child in children(node):
            yield from _whole(child)


@mutable
class _State:
    """Which names may have one list, which may hold a row of which, and rows that are gone."""

    same: frozenset[Pair]
    parts: frozenset[Pair] = frozenset()
    gone: frozenset[str] = frozenset()

    def __or__(self, other: _State) -> _State:
        return _State(self.same | other.same, self.parts | other.parts, self.gone | other.gone)

    @property
    def all(self) -> tuple[object, ...]:
        return self.same, self.parts, self.gone

    def are_same(self, a: str, b: str) -> bool:
        return a == b or (a, b) in self.same or (b, a) in self.same

    def names(self) -> set[str]:
        return {name for pair in (*self.same, *self.parts) for name in pair}


class _Flow:
    def __init__(self, known: Known) -> None:
        self.known = known
        self.problem: Problem | None = None

    def begin(self) -> _State:
        """A parameter's list is the caller's, too, and that of parameters which are given it."""
        given = self.known.given
        pairs = {(name, outer) for name, outer in given.items()}
        pairs |= {(a, b) for a in given for b in given if a < b and given[a] == given[b]}
        return _State(frozenset(pairs))

    def walk(self, body: Iterable[ast.stmt], state: _State) -> _State:
        for node in body:
            state = self.statement(node, state)
        return state

    def statement(self, node: ast.stmt, state: _State) -> _State:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                self.reads(test, state)
                return self.walk(body, state) | self.walk(orelse, state)
            case ast.For(iter=over):
                self.reads(over, state)
                return self.loop(node, state)
            case ast.While():
                return self.loop(node, state)
            case ast.FunctionDef():
                return state
            case _:
                self.reads(node, state)
                self.changes(node, state)
                if isinstance(node, ast.Assign):
                    return self.assign(node, state)
                return state

    def loop(self, node: ast.For | ast.While, state: _State) -> _State:
        while True:
            begin = state
            if isinstance(node, ast.While):
                self.reads(node.test, state)
                self.changes(node.test, state)
            else:
                begin = self.target(node, state)
            after = state | self.walk(node.body, begin)
            if after.all == state.all:
                return self.walk(node.orelse, state)
            state = after

    def target(self, node: ast.For, state: _State) -> _State:
        over = [n.id for n in subtree(node.iter) if isinstance(n, ast.Name)]
        names = {n.id for n in subtree(node.target) if isinstance(n, ast.Name)}
        rows = {(name, one) for name in names for one in over if one in self.known.listed}
        parts = frozenset(p for p in state.parts if p[0] not in names)
        return _State(state.same, parts | rows, state.gone - names)

    def reads(self, node: ast.AST, state: _State) -> None:
        for n in subtree(node):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in state.gone:
                self.problem = self.problem or (
                    n, f"`{n.id}` is a row of a list whose name has been assigned another one",
                    f"keep a copy of the row: {n.id} = ...[:]",
                )  # fmt: skip

    def changes(self, node: ast.AST, state: _State) -> None:
        """Refuses a change of a list that may have another name, which would not see it."""
        for n in subtree(node):
            place: ast.expr | None = None
            match n:
                case ast.Subscript(ctx=ast.Store() | ast.Del()):
                    place = n
                case ast.AugAssign(target=place):
                    pass
                case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in CHANGING:
                    place = value
                case _:
                    pass
            names = self.known.writes.get(id(n), set()) if isinstance(n, ast.Call) else set()
            root = without_subscripts(place) if place is not None else None
            for name in {*names, *([root.id] if isinstance(root, ast.Name) else [])}:
                self.change(n, name, state)

    def change(self, node: ast.AST, name: str, state: _State) -> None:
        if name not in self.known.listed and all(name != row for row, _ in state.parts):
            return
        homes, seen = self.known.homes, {name} | {t for row, t in state.parts if row == name}
        while more := {
            b for pair in state.same for a, b in (pair, pair[::-1])
            if a in seen and b not in seen and a not in homes and b not in homes
        }:  # fmt: skip
            seen |= more
        for a, b in (way for pair in sorted(state.same) for way in (pair, pair[::-1])):
            if a in seen and b not in seen:
                other = f"`{b}`" if b[0] != " " else "the caller's list"
                copy = b if b[0] != " " else a
                self.problem = self.problem or (
                    node, f"`{a}` and {other} may be one list, which is changed here by the name "
                    f"`{name}`", f"make a copy where one gets the other: {copy} = {a}[:]"
                    if b[0] != " " else f"begin with a copy: {a} = {a}[:]",
                )  # fmt: skip
                return

    def assign(self, node: ast.Assign, state: _State) -> _State:
        origins: dict[str, set[str]] = {}
        rows: set[Pair] = set()
        for target, value in _pairs(node.targets, node.value):
            if not isinstance(target, ast.Name) or target.id == RETURN_VALUE:
                continue
            written = node.value if value is None else value
            read = {n.id for n in subtree(written) if isinstance(n, ast.Name)} & self.known.listed
            origins[target.id] = set()
            if id(target) in self.known.parts:
                rows |= {(target.id, one) for one in read}
            elif isinstance(written, ast.Name):
                origins[target.id] = read
            else:
                origins[target.id] = self.known.shared.get(id(target), set())
        if not origins:
            return state
        names = state.names() | origins.keys() | set().union(*origins.values())
        held = {name: origins.get(name, {name}) for name in names}
        same = frozenset(
            (a, b) for a in names for b in names
            if a < b and any(state.are_same(s, t) for s in held[a] for t in held[b])
        )  # fmt: skip
        lost = {row for row, one in state.parts if one in origins and one in self.known.homes}
        parts = {pair for pair in state.parts if not {*pair} & origins.keys()} | rows
        return _State(same, frozenset(parts), (state.gone | lost) - origins.keys())
