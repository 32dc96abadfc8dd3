"""Warnings about loops that mean what they say, which is rarely what their writer meant."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from weft.errors import warn
from weft.source import FunctionSource

_NARROW = {"i8": 8, "u8": 8, "i16": 16}


class LoopWarning(UserWarning):
    """A device loop that compiles, and probably means something else than was meant."""


def advise(
    loop: ast.For, source: FunctionSource, dtypes: Mapping[str, str], *, over_tensor: bool
) -> None:
    """Warns, once, of what stands in ``loop``. ``dtypes``: of the scalars that it assigns."""
    if over_tensor and isinstance(loop.iter, ast.Name) and isinstance(loop.target, ast.Name):
        _elements(loop, source, loop.iter.id, loop.target.id)
    _sums(loop, source, dtypes)


def _warn(source: FunctionSource, node: ast.AST, message: str, help: str) -> None:
    warn(LoopWarning, message, source.span(node), help, source.warned)


def _elements(loop: ast.For, source: FunctionSource, tensor: str, index: str) -> None:
    """``for v in x: s += v`` adds up indices."""
    derived, size = {index}, 0
    while len(derived) > size:
        size = len(derived)
        for node in ast.walk(loop):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if _names(node.value) & derived:
                    derived |= {name for t in targets for name in _names(t)}
    uses = [n for n in _below(loop) if isinstance(n, ast.Name) and n.id == index]
    for node in _below(loop):
        subscript = isinstance(node, ast.Subscript) and _names(node.slice) & derived
        inner = isinstance(node, ast.For) and _names(node.iter) & derived
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if subscript or inner or (called and _names(node) & derived) or tensor in _read(node):
            return
    if uses:
        _warn(
            source, uses[0],
            f"`{index}` is an index of `{tensor}`, not an element: no subscript uses it",
            f"write {tensor}[{index}] for the element, or `for {index} in "
            f"range({tensor}.shape[0])` if the index is meant",
        )  # fmt: skip


def _below(loop: ast.For) -> list[ast.AST]:
    return [node for statement in loop.body for node in ast.walk(statement)]


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _read(node: ast.AST) -> set[str]:
    """The name of the tensor that a subscript is of."""
    return _names(node.value) if isinstance(node, ast.Subscript) else set()


def _sums(loop: ast.For, source: FunctionSource, dtypes: Mapping[str, str]) -> None:
    """``s = 0`` before ``s += x[i]`` gives ``s`` the type of the elements."""
    literal = {
        target.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and type(getattr(node.value, "value", None)) is int
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(loop):
        if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Name):
            continue
        name, sums = node.target.id, isinstance(node.op, (ast.Add, ast.Sub, ast.Mult))
        bits = _NARROW.get(dtypes.get(name, ""))
        if sums and name in literal and bits:
            _warn(
                source, node,
                f"`{name}` has the type of what is accumulated, {dtypes[name]}: it wraps at "
                f"{bits} bits",
                f"start from a wider number, `{name} = weft.i64(0)`, or accumulate weft.i64(...)",
            )  # fmt: skip
