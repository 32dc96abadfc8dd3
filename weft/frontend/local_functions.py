"""Functions that a kernel's host part defines, and its device loops call."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator

from weft.frontend.names import bound_names, statement_lists
from weft.source import children, copied_tree, subtree


def into_loops(tree: ast.FunctionDef, is_region: Callable[[ast.stmt], bool]) -> None:
    """Moves such functions into the device loops that call them. A function reads the names around
    it as they are when it is called, so that it means the same there. Those that the host part
    itself calls stay where they are."""
    defined = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef) and _is_plain(n)}
    if not defined:
        return
    counts = Counter(name for statement in tree.body for name in bound_names(statement))
    used: list[tuple[ast.For, set[str]]] = []  # by device loops: functions, one through another
    known: set[str] = set()
    host: set[str] = set()
    for statement in tree.body:
        if statement in defined.values():
            known.add(statement.name)  # type: ignore[attr-defined]
            continue
        for node in _parts(statement, is_region):
            names = _read(node)
            if not isinstance(node, ast.For):
                host |= names
                continue
            while more := {n for f in names & set(defined) for n in _read(defined[f])} - names:
                names |= more
            host |= names - known  # it is defined later
            used.append((node, names))
    while more := {n for f in host & set(defined) for n in _read(defined[f])} - host:
        host |= more
    moved = [name for name in defined if name not in host and counts[name] == 1]
    for loop, names in used:
        own = [copied_tree(defined[name]) for name in moved if name in names]
        loop.body = [*own, *loop.body]
    rest = [s for s in tree.body if s not in [defined[name] for name in moved]]
    tree.body = rest or [ast.copy_location(ast.Pass(), tree.body[0])]


def _is_plain(node: ast.FunctionDef) -> bool:
    """Whether it means the same where it is called as where it is defined."""
    given = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
    return not node.decorator_list and all(isinstance(d, ast.Constant) for d in given)


def _parts(node: ast.stmt, is_region: Callable[[ast.stmt], bool]) -> Iterator[ast.AST]:
    """The device loops in ``node``, and what else is in it."""
    if isinstance(node, ast.For) and is_region(node):
        yield node
        return
    blocks = statement_lists(node)
    inner = {id(s) for block in blocks for s in block}
    if not blocks:
        yield ast.Module([node], [])
        return
    for child in children(node):
        if id(child) not in inner:
            yield ast.Module([child], [])  # type: ignore[list-item]
    for block in blocks:
        for statement in block:
            yield from _parts(statement, is_region)


def _read(node: ast.AST) -> set[str]:
    return {n.id for n in subtree(node) if isinstance(n, ast.Name)}
