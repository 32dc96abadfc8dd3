"""Which numbers of a host part are sizes of tensors: ``n, m = u.shape``, ``out = empty_like(u)``.

Read from the text alone, for people who look at index sets: what a loop is compiled to rests on
none of it.
"""

from __future__ import annotations

import ast
from collections import Counter

from weft.source import subtree

# Methods that change the shape of a tensor where it is.
_RESHAPING = frozenset((
    "resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_",
    "swapdims_", "as_strided_",
))  # fmt: skip
_LIKE = frozenset(("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"))
_OF_SIZES = frozenset(("empty", "zeros", "ones", "rand", "randn"))

_MOST_AXES = 8
Size = tuple[str, int]  # a tensor, and one of its axes


def sizes(tree: ast.FunctionDef, loop: ast.stmt) -> dict[str | Size, Size]:
    """What is equal where ``loop``, a device loop, begins: numbers and sizes of tensors by name,
    and the size of another tensor. Only names that are assigned once, or are parameters."""
    bound = Counter(
        node.id for node in subtree(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    )  # fmt: skip
    if any(isinstance(n, ast.Attribute) and n.attr in _RESHAPING for n in subtree(tree)):
        return {}
    reader = _Reader({a.arg for a in subtree(tree.args) if isinstance(a, ast.arg)}, bound)
    for statement in tree.body:
        if any(node is loop for node in subtree(statement)):
            break
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            reader.assigned(statement.targets[0], statement.value)
    return reader.found


class _Reader:
    """``found``: what is known so far."""

    def __init__(self, parameters: set[str], bound: Counter[str]) -> None:
        self.bound = bound
        self.tensors = {name for name in parameters if not bound[name]}
        self.found: dict[str | Size, Size] = {}

    def assigned(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Tuple(elts=names), ast.Attribute(value=ast.Name(id=of), attr="shape"):
                for axis, name in enumerate(names):
                    if isinstance(name, ast.Starred):
                        return
                    self._number(name, of, axis)
            case _, ast.Subscript(value=ast.Attribute(value=ast.Name(id=of), attr="shape"),
                                  slice=ast.Constant(value=int(axis))) if axis >= 0:  # fmt: skip
                self._number(target, of, axis)
            case _, ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr="size"),
                             args=[ast.Constant(value=int(axis))]) if axis >= 0:  # fmt: skip
                self._number(target, of, axis)
            case _, ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=of)]):
                self._number(target, of, 0)
            case ast.Name(id=name), ast.Call(
                func=ast.Attribute(value=ast.Name(id="torch"), attr=maker), args=args
            ):
                self._made(name, maker, args)
            case _:
                pass

    def _number(self, target: ast.expr, of: str, axis: int) -> None:
        if isinstance(target, ast.Name) and self.bound[target.id] == 1 and of in self.tensors:
            self.found[target.id] = self.found.get((of, axis), (of, axis))

    def _made(self, name: str, maker: str, args: list[ast.expr]) -> None:
        if self.bound[name] != 1:
            return
        match args:
            case [ast.Name(id=like), *_] if maker in _LIKE and like in self.tensors:
                self.tensors.add(name)
                for axis in range(_MOST_AXES):
                    self.found[name, axis] = self.found.get((like, axis), (like, axis))
            case [ast.Tuple(elts=numbers)] | numbers if maker in _OF_SIZES:
                self.tensors.add(name)
                for axis, number in enumerate(numbers):
                    if isinstance(number, ast.Name) and number.id in self.found:
                        self.found[name, axis] = self.found[number.id]
            case _:
                pass
