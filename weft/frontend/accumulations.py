"""What accumulates into a variable though it is not written so: atomics and flags.

``weft.atomic_add(s, v)`` is the statement ``s += v``: a variable belongs to one iteration, or is
what a parallel loop reduces into. ``old = weft.atomic_add(s, v)`` keeps the value from before, as
``x[i] = weft.atomic_add(s, v)`` does. What stands in any other place keeps its call, and is refused
there.

A flag that loops only ever set, ``found = False`` before and ``if ...: found = True`` in it, is
``found = found or True``.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter

from weft.frontend.arg_extremes import arg_extremes
from weft.frontend.desugar import placed
from weft.frontend.names import Scope, bound_names, statement_lists
from weft.lang import names
from weft.source import FunctionSource

ATOMIC = "weft_atomic"  # the attribute of a statement that was an atomic: its name
_OPERATORS: dict[str, ast.operator] = {
    "atomic_add": ast.Add(), "atomic_sub": ast.Sub(), "atomic_mul": ast.Mult(),
    "atomic_and": ast.BitAnd(), "atomic_or": ast.BitOr(), "atomic_xor": ast.BitXor(),
}  # fmt: skip
_EXTREMES = {"atomic_max": "max", "atomic_min": "min"}


def atomics(source: FunctionSource, scope: Scope) -> ast.FunctionDef:
    """The function with the atomics on its variables as assignments."""
    new = copy.copy(source.tree)
    new.body = _block(new.body, scope)
    return new


def accumulating(source: FunctionSource, scope: Scope) -> ast.FunctionDef:
    """The kernel with these as accumulations."""
    return arg_extremes(flags(atomics(source, scope)), scope)


def flags(tree: ast.FunctionDef) -> ast.FunctionDef:
    """The kernel with the flags that its loops only set, each to one value, as accumulations."""
    known = {name for statement in tree.body for name, _ in _set(statement)}
    new = copy.copy(tree)
    new.body = [_setting(s, known) if isinstance(s, ast.For) and known else s for s in tree.body]
    return new


def _set(node: ast.AST) -> list[tuple[str, bool]]:
    """The variable that a statement sets to a literal bool, if it does, and which one."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=bool() as value)):
            return [(name, value)]
        case _:
            return []


def _setting(loop: ast.For, known: set[str]) -> ast.For:
    nodes = list(ast.walk(loop))
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    every = [each for node in nodes for each in _set(node)]
    bound = Counter(bound_names(loop))
    wanted = {
        name
        for name in known - read
        if len({v for n, v in every if n == name}) == 1
        and bound[name] == sum(n == name for n, _ in every)
    }
    if not wanted:
        return loop
    loop = copy.deepcopy(loop)
    for node in ast.walk(loop):
        for name, value in _set(node):
            if name in wanted:
                assert isinstance(node, ast.Assign)
                both = [ast.Name(name, ast.Load()), node.value]
                node.value = ast.BoolOp(ast.Or() if value else ast.And(), both)
                placed(node, node)
    return loop


def _block(body: list[ast.stmt], scope: Scope) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for node in body:
        made = _assignments(node, scope)
        if made is None and statement_lists(node):
            node = copy.copy(node)
            for name in ("body", "orelse"):
                if isinstance(getattr(node, name, None), list):
                    setattr(node, name, _block(getattr(node, name), scope))
        found += [node] if made is None else made
    return found


def _assignments(node: ast.stmt, scope: Scope) -> list[ast.stmt] | None:
    """What an atomic on a variable does; None for any other statement."""
    kept = ""
    match node:
        case ast.Expr(value=ast.Call() as call):
            before: list[ast.stmt] = []
        case ast.Assign(targets=[ast.Name(id=kept)], value=ast.Call() as call):
            before = [ast.Assign(node.targets, call.args[0])] if call.args else []
        case ast.Assign(targets=[ast.Subscript()], value=ast.Call(args=[ast.Name(id=name), _])):
            old = f"weft_old_{name}"
            first = ast.Assign([ast.Name(old, ast.Store())], node.value)
            taken = _assignments(placed(first, node), scope)
            last = ast.Assign(node.targets, ast.Name(old, ast.Load()))
            return None if taken is None else [*taken, placed(last, node)]
        case _:
            return None
    match call:
        case ast.Call(func=func, args=[ast.Name(id=name), value], keywords=[]):
            own = names.canonical(scope.resolve(func)) or ""
        case _:
            return None
    if kept == name:
        return None
    target = ast.Name(name, ast.Store())
    if own in _OPERATORS:
        made: ast.stmt = ast.AugAssign(target, _OPERATORS[own], value)
    elif own in _EXTREMES and isinstance(func, ast.Attribute):
        extreme = ast.Attribute(func.value, _EXTREMES[own], ast.Load())  # NaN where either is
        made = ast.Assign([target], ast.Call(extreme, [call.args[0], value], []))
    else:
        return None
    setattr(made, ATOMIC, own)
    return [placed(statement, node) for statement in (*before, made)]
