"""The source of functions: walks over their syntax trees, places in the text."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from weft import source
from weft.source import children, copied_tree, read_function, subtree


def everything(a, b, *c, d=1, **e):
    """Of each kind of node some."""
    global left
    for i, (j, k) in enumerate(c):
        a.x[i:j, ...] += -b if not d < i <= 3 else f"{k!r:>{d}}"
    else:
        left = [*c, lambda v=2, /: v, {"q": 1, **e}, {u for u in a if u}, (w := b), w]
    with open(a) as f, b:
        del f
    try:
        assert a, b
    except (ValueError, TypeError) as error:
        raise OSError from error
    match a:
        case {"k": [1, *rest], **more} if rest:
            return more
        case complex(real=1) | None as one:
            return one
    return None


def code(nodes):
    return [node for node in nodes if not isinstance(node, ast.expr_context)]


@pytest.mark.parametrize("tree", [
    ast.parse(inspect.getsource(source)), ast.parse(inspect.getsource(everything)),
    read_function(everything).tree,
], ids=["a module", "every statement", "a function"])  # fmt: skip
def test_a_subtree_is_walked_as_ast_walks_it(tree):
    assert [*subtree(tree)] == code(ast.walk(tree))
    for node in ast.walk(tree):
        assert children(node) == code(ast.iter_child_nodes(node))


def test_a_place_is_made_once():
    found = read_function(everything)
    names = [node for node in subtree(found.tree) if isinstance(node, ast.Name)]
    assert {(s.line, s.column) for s in map(found.span, names)} == {
        (n.lineno, n.col_offset) for n in names
    }
    assert all(found.span(node) is found.span(node) for node in names)
    assert found.span(ast.Pass()).line == found.tree.lineno  # of what has no place


def test_a_tree_is_copied_with_what_its_nodes_share() -> None:
    tree: Any = ast.parse(
        "def f(x, /, *y: int) -> None:\n    return [a for a in x if a] or {**y}\n"
    )
    tree.body[0].first, tree.body[0].noted = tree.body[0].args, [("kept", tree.body[0].returns)]
    made = copied_tree(tree)
    assert ast.dump(made, include_attributes=True) == ast.dump(tree, include_attributes=True)
    assert not {*map(id, subtree(made))} & {*map(id, subtree(tree))}
    (function,) = made.body
    assert function.first is function.args
    assert function.noted == [("kept", function.returns)]
