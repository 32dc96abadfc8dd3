"""``match`` as ``if``, ``elif`` and ``else``. One with patterns of classes or mappings is left as
it is, and refused where it is lowered.

What a pattern captures is written in place of its name in the case's guard, and assigned where the
case's body begins. Python binds it where the pattern matches, even if the guard fails: where
something else may read the name, it is assigned before the guard is asked, which a flag remembers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from weft.source import children, copied_tree, subtree


def without_match(body: list[ast.stmt], read_after: Iterable[str] = ()) -> list[ast.stmt]:
    """``body`` with ``if`` statements for ``match``. The statements given are not changed.

    ``read_after``: names that are read where ``body`` has ended.
    """
    if not any(isinstance(n, ast.Match) for statement in body for n in subtree(statement)):
        return body
    names = {*read_after, *_read_elsewhere(body, frozenset())}
    key = names, [id(statement) for statement in body]
    known = getattr(body[0], "weft_without_match", None)
    if known is not None and known[0] == key:
        return known[1]  # what lowering has noted on its nodes stays there
    visitor = _Matching(names)
    result: list[ast.stmt] = []
    for statement in body:
        made = visitor.visit(copied_tree(statement))
        result += made if isinstance(made, list) else [made]
    body[0].weft_without_match = key, result  # type: ignore[attr-defined]
    return result


def _read_elsewhere(nodes: Iterable[ast.AST], captured: frozenset[str]) -> Iterator[str]:
    """The names that are read where no case around captures them."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name not in captured:
                yield name
            case ast.AugAssign(target=ast.Name(id=name)) if name not in captured:
                yield name
            case ast.match_case():
                own = captured.union(_captures(node.pattern))
                yield from _read_elsewhere(children(node), own)
                continue
            case _:
                pass
        yield from _read_elsewhere(children(node), captured)


def _captures(pattern: ast.pattern) -> Iterator[str]:
    """The names that a pattern assigns."""
    for node in subtree(pattern):
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None:
            yield node.name


class _Matching(ast.NodeTransformer):
    """``read_elsewhere``: what other statements read than those of cases that capture it."""

    def __init__(self, read_elsewhere: set[str]) -> None:
        self.read_elsewhere = read_elsewhere

    def visit_Match(self, node: ast.Match) -> list[ast.stmt] | ast.Match:
        self.generic_visit(node)
        patterns = (n for case in node.cases for n in subtree(case.pattern))
        return node if any(map(_is_foreign, patterns)) else self._branches(node)

    def _branches(self, node: ast.Match) -> list[ast.stmt]:
        name = f"subject {node.lineno}:{node.col_offset}"
        subject = ast.Name(name, ast.Load())
        begin = ast.Assign([ast.Name(name, ast.Store())], node.subject)
        rest: list[ast.stmt] = []
        for case in reversed(node.cases):
            captured: dict[str, ast.expr] = {}
            tests = _tests(case.pattern, subject, captured)
            assigned: list[ast.stmt] = [
                ast.Assign([ast.Name(n, ast.Store())], value) for n, value in captured.items()
            ]
            before: list[ast.stmt] = []
            if case.guard is not None and not self.read_elsewhere.isdisjoint(captured):
                flag = f"guard {case.guard.lineno}:{case.guard.col_offset}"
                holds = [ast.If(case.guard, [_set(flag, True)], [])]
                before = [_set(flag, False), *_where(tests, [*assigned, *holds], [], case.pattern)]
                tests = [*tests, ast.Name(flag, ast.Load())]
            elif case.guard is not None:
                tests.append(_Capturing(captured).visit(case.guard))
            rest = [*before, *_where(tests, [*assigned, *case.body], rest, case.pattern)]
        for statement in (begin, *rest):
            for child in subtree(statement):
                if isinstance(child, ast.stmt | ast.expr) and not hasattr(child, "lineno"):
                    ast.copy_location(child, node.subject)
        return [begin, *rest]


def _where(
    tests: list[ast.expr], body: list[ast.stmt], rest: list[ast.stmt], at: ast.AST
) -> list[ast.stmt]:
    """``body`` where all ``tests`` hold, else ``rest``."""
    if not tests:
        return body
    test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
    return [ast.copy_location(ast.If(test, body, rest), at)]


def _set(flag: str, value: bool) -> ast.stmt:
    return ast.Assign([ast.Name(flag, ast.Store())], ast.Constant(value))


class _Capturing(ast.NodeTransformer):
    def __init__(self, captured: dict[str, ast.expr]) -> None:
        self.captured = captured

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.captured.get(node.id, node)


def _is_foreign(node: ast.AST) -> bool:
    """Whether a pattern is none of what is compiled."""
    if isinstance(node, ast.MatchOr):
        return any(isinstance(n, ast.MatchAs | ast.MatchStar) and n.name for n in subtree(node))
    true = isinstance(node, ast.MatchSingleton) and node.value is not None
    return true or isinstance(node, ast.MatchClass | ast.MatchMapping)


def _tests(
    pattern: ast.pattern, subject: ast.expr, captured: dict[str, ast.expr]
) -> list[ast.expr]:
    """What holds where ``subject`` matches. Notes what names are assigned."""
    match pattern:
        case ast.MatchAs(pattern=inner, name=name):
            tests = [] if inner is None else _tests(inner, subject, captured)
            if name is not None:
                captured[name] = subject
            return tests
        case ast.MatchValue(value=value):
            return [ast.Compare(subject, [ast.Eq()], [value])]
        case ast.MatchSingleton(value=None):
            return [ast.Compare(subject, [ast.Is()], [ast.Constant(None)])]
        case ast.MatchOr(patterns=patterns):
            either = [_tests(p, subject, captured) for p in patterns]
            if not all(either):
                return []
            joined = [t[0] if len(t) == 1 else ast.BoolOp(ast.And(), t) for t in either]
            return [ast.BoolOp(ast.Or(), joined)]
        case ast.MatchSequence(patterns=patterns):
            return _sequence(patterns, subject, captured)
        case _:
            raise AssertionError(pattern)


def _sequence(
    patterns: list[ast.pattern], subject: ast.expr, captured: dict[str, ast.expr]
) -> list[ast.expr]:
    star = next((k for k, p in enumerate(patterns) if isinstance(p, ast.MatchStar)), None)
    count = len(patterns) - (star is not None)
    length = ast.Call(ast.Name("len", ast.Load()), [subject], [])
    way = ast.Eq() if star is None else ast.GtE()
    tests: list[ast.expr] = [ast.Compare(length, [way], [ast.Constant(count)])]
    for k, inner in enumerate(patterns):
        if isinstance(inner, ast.MatchStar):
            after = len(patterns) - k - 1
            upper = ast.UnaryOp(ast.USub(), ast.Constant(after)) if after else None
            if inner.name is not None:
                part = ast.Slice(ast.Constant(k), upper)
                captured[inner.name] = ast.Subscript(subject, part, ast.Load())
            continue
        place = k if star is None or k < star else k - len(patterns)
        item = ast.Subscript(subject, ast.Constant(place), ast.Load())
        tests += _tests(inner, item, captured)
    return tests
