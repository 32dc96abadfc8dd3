"""Where the largest or smallest element is: ``if x[i] > best: best = x[i]; at = i``.

A parallel loop reduces one variable at a time, so this becomes two loops: one that reduces
``best``, one that reduces the first index whose element is that. The element is read again in the
second, and has to be the same to the last bit: it is a subscript, or ``abs`` or ``-`` of one. (What
is computed may be rounded otherwise in another loop.)
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from weft.frontend.desugar import placed
from weft.frontend.hints import rewritten
from weft.frontend.names import Scope, bound_names
from weft.lang import names
from weft.source import copied_tree, subtree
from weft.values import frozen

_NONE = (1 << 62) - 1  # more than any index


@frozen
class _Pair:
    """``if value > best: best = value; at = index`` at the end of a loop."""

    best: str
    at: str
    index: str
    test: ast.Compare
    value: ast.expr


def arg_extremes(tree: ast.FunctionDef, scope: Scope) -> ast.FunctionDef:
    """The kernel with two loops in place of each such loop of its host part."""

    def step(node: ast.stmt, made: list[ast.stmt], starts: set[str]) -> set[str]:
        """``starts``: variables that are integers."""
        before = made[-1] if made else None
        pair = _pair(node, scope) if isinstance(node, ast.For) else None
        configured = isinstance(before, ast.Expr) and isinstance(before.value, ast.Call)
        if pair is not None and pair.at in starts and not configured:
            assert isinstance(node, ast.For)
            made += _two_loops(node, pair)  # ``at`` is an integer afterwards, too
            return starts
        made.append(node)
        return (starts - set(bound_names(node))) | set(_integers(node))

    new = copy.copy(tree)
    new.body = rewritten(tree.body, scope, set(), step, lambda node: set(bound_names(node)))
    return new


def _integers(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Constant(value=int()) | ast.UnaryOp(operand=ast.Constant(value=int())),
        ):
            yield name
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            for target, value in zip(targets, values, strict=False):
                yield from _integers(ast.Assign([target], value))
        case _:
            pass


def _pair(loop: ast.For, scope: Scope) -> _Pair | None:
    """The pair that the loop ends with, if that and reads are all it does."""
    match loop:
        case ast.For(target=ast.Name(id=index), body=[*before, ast.If() as test], orelse=[]):
            pass
        case _:
            return None
    match test:
        case ast.If(
            test=ast.Compare(left=left, ops=[ast.Gt() | ast.Lt()], comparators=[right]) as compare,
            body=[ast.Assign() as one, ast.Assign() as other],
            orelse=[],
        ):
            pass
        case _:
            return None
    for first, second in ((one, other), (other, one)):
        match first, second:
            case (
                ast.Assign(targets=[ast.Name(id=best)], value=value),
                ast.Assign(targets=[ast.Name(id=at)], value=ast.Name(id=found)),
            ) if found == index and best != at:
                sides = {ast.dump(left), ast.dump(right)}
                known = {ast.dump(value), ast.dump(ast.Name(best, ast.Load()))}
                pair = _Pair(best, at, index, compare, value)
                if sides == known and _reads_only(loop, before, pair, scope):
                    return pair
            case _:
                pass
    return None


def _reads_only(loop: ast.For, before: list[ast.stmt], pair: _Pair, scope: Scope) -> bool:
    """Whether iterations may run twice, and give the same."""
    own: dict[str, ast.expr] = {}
    for statement in before:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in own:
                own[name] = value
            case _:
                return False
    mentioned = [n.id for part in (*own.values(), pair.value, loop.iter) for n in subtree(part)
                 if isinstance(n, ast.Name)]  # fmt: skip
    mine = {pair.best, pair.at}
    return (
        mine.isdisjoint((*mentioned, *own, pair.index))
        and pair.index not in own
        and _ascends(loop.iter, scope)
        and all(_is_element(value, own, scope) for value in (*own.values(), pair.value))
    )


def _ascends(iterable: ast.expr, scope: Scope) -> bool:
    """Whether indices go up: the first of equal elements is that with the smallest index."""
    match iterable:
        case ast.Call(func=ast.Name() as function, args=args, keywords=[]):
            is_range = names.canonical(scope.resolve(function)) == "range"
            literal = len(args) < 3 or (
                isinstance(args[2], ast.Constant)
                and isinstance(args[2].value, int)
                and args[2].value > 0
            )
            return is_range and literal
        case ast.Name():
            return True
        case _:
            return False


def _is_element(value: ast.expr, own: dict[str, ast.expr], scope: Scope) -> bool:
    match value:
        case ast.Subscript():
            return not any(isinstance(n, ast.Call | ast.NamedExpr) for n in subtree(value))
        case ast.Name(id=name):
            return name in own
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_element(inner, own, scope)
        case ast.Call(func=ast.Name() as function, args=[inner], keywords=[]):
            known = names.canonical(scope.resolve(function)) == "abs"
            return known and _is_element(inner, own, scope)
        case _:
            return False


def _two_loops(loop: ast.For, pair: _Pair) -> list[ast.stmt]:
    """With hidden names: ``start`` is ``best`` from before, ``first`` the index."""
    start, first = f"weft_start_{pair.best}", f"weft_first_{pair.at}"

    def load(name: str) -> ast.Name:
        return ast.Name(name, ast.Load())

    def assign(name: str, value: ast.expr) -> ast.stmt:
        return ast.Assign([ast.Name(name, ast.Store())], value)

    def without(last: ast.stmt) -> ast.stmt:
        new = copied_tree(loop)
        new.body[-1] = last
        return new

    def beyond(name: str) -> ast.Compare:
        """The test, with ``name`` in place of ``best``."""
        new = copied_tree(pair.test)
        for node in subtree(new):
            if isinstance(node, ast.Name) and node.id == pair.best:
                node.id = name
        return new

    equal = ast.Compare(copied_tree(pair.value), [ast.Eq()], [load(pair.best)])
    smaller = ast.If(
        ast.Compare(load(pair.index), [ast.Lt()], [load(first)]),
        [assign(first, load(pair.index))], [],
    )  # fmt: skip
    is_first = ast.BoolOp(ast.And(), [equal, beyond(start)])
    found = ast.Compare(load(first), [ast.Lt()], [ast.Constant(_NONE)])
    # at + (first - at) * (first < none): nobody has to wait for the loop to look at a number.
    step = ast.BinOp(ast.BinOp(load(first), ast.Sub(), load(pair.at)), ast.Mult(), found)
    statements = [
        assign(start, load(pair.best)),
        without(ast.If(copied_tree(pair.test), [assign(pair.best, copied_tree(pair.value))], [])),
        assign(first, ast.Constant(_NONE)),
        without(ast.If(is_first, [smaller], [])),
        assign(pair.at, ast.BinOp(load(pair.at), ast.Add(), step)),
    ]
    return [placed(statement, loop) for statement in statements]
