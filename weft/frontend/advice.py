"""Warnings about loops that mean what they say, which is rarely what their writer meant."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Set

from weft.errors import warn
from weft.source import FunctionSource, subtree

_NARROW = {"i8": 8, "u8": 8, "i16": 16, "u16": 16}


class LoopWarning(UserWarning):
    """A device loop that compiles, and probably means something else than was meant."""


def advise(
    loop: ast.For, source: FunctionSource, dtypes: Mapping[str, str], tensors: Set[str]
) -> None:
    """Warns, once, of what stands in ``loop``. ``dtypes``: of the numbers and vectors that it
    assigns; ``tensors``: names of tensors that it reads."""
    for inner in subtree(loop):
        over = getattr(inner.iter, "id", "") if isinstance(inner, ast.For) else ""
        if isinstance(inner, ast.For) and over in tensors:
            _elements(inner, source, over, loop)
    _sums(loop, source, dtypes)


def _warn(source: FunctionSource, node: ast.AST, message: str, help: str) -> None:
    warn(LoopWarning, message, source.span(node), help, source.warned)


def _elements(loop: ast.For, source: FunctionSource, tensor: str, region: ast.For) -> None:
    """``for v in x: s += v`` adds up indices. ``region``: the device loop that it is in."""
    indices = _names(loop.target)
    derived, size = set(indices), 0
    while len(derived) > size:
        size = len(derived)
        for node in subtree(region):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if _names(node.value) & derived:
                    derived |= {name for t in targets for name in _changed(t)}
    uses = [n for n in _below(loop) if isinstance(n, ast.Name) and n.id in indices]
    own = set(_below(loop))
    for node in _below(region):
        subscript = isinstance(node, ast.Subscript) and _names(node.slice) & derived
        inner = isinstance(node, ast.For) and _names(node.iter) & derived
        called = isinstance(node, ast.Call) and _takes_indices(node.func, source)
        if subscript or inner or (called and _names(node) & derived):
            return
        if node in own and tensor in _read(node):
            return
    if uses:
        all_of = ast.unparse(loop.target).strip("()")
        over = (
            f"range({tensor}.shape[0])" if len(indices) == 1 else f"weft.ndrange(*{tensor}.shape)"
        )
        _warn(
            source, uses[0],
            f"`{uses[0].id}` is an index of `{tensor}`, not an element: no subscript uses it",
            f"write {tensor}[{all_of}] for the element, or `for {all_of} in {over}` if the index "
            "is meant",
        )  # fmt: skip


def _takes_indices(function: ast.expr, source: FunctionSource) -> bool:
    """Whether ``function`` may read elements: a function of the program, none of numbers."""
    if not isinstance(function, ast.Name):
        return False
    known = getattr(source.function, "__globals__", {})
    return function.id in known or not hasattr(builtins, function.id)


def _below(loop: ast.For) -> list[ast.AST]:
    return [node for statement in loop.body for node in subtree(statement)]


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in subtree(node) if isinstance(inner, ast.Name)}


def _changed(target: ast.expr) -> set[str]:
    """The names that an assignment to ``target`` gives a value: of ``o[i]``, not ``i``."""
    return _names(target.value if isinstance(target, ast.Subscript) else target)


def _read(node: ast.AST) -> set[str]:
    """The name of the tensor that a subscript is of."""
    return _names(node.value) if isinstance(node, ast.Subscript) else set()


def _sums(loop: ast.For, source: FunctionSource, dtypes: Mapping[str, str]) -> None:
    """``s = 0`` before ``s += x[i]`` gives ``s`` the type of the elements."""
    literal = {
        target.id
        for node in subtree(source.tree)
        if isinstance(node, ast.Assign)
        for target, value in _pairs(node)
        if isinstance(target, ast.Name) and _is_of_integers(value)
    }
    for node in subtree(loop):
        name, operation = _accumulation(node)
        bits = _NARROW.get(dtypes.get(name, ""))
        if isinstance(operation, (ast.Add, ast.Sub, ast.Mult)) and name in literal and bits:
            _warn(
                source, node,
                f"`{name}` has the type of what is accumulated, {dtypes[name]}: it wraps at "
                f"{bits} bits",
                f"start from a wider number, `{name} = weft.i64(0)`, or accumulate weft.i64(...)",
            )  # fmt: skip


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """What is assigned to what: also of ``a, b = 0, 1``."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets:
        match target, node.value:
            case ast.Tuple(elts=left), ast.Tuple(elts=right):
                pairs += zip(left, right, strict=False)
            case _:
                pairs.append((target, node.value))
    return pairs


def _is_of_integers(value: ast.expr) -> bool:
    """Whether it is an integer, or a vector of such, as it is written."""
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        items = value.args[0].elts if isinstance(value.args[0], (ast.List, ast.Tuple)) else []
        return name == "Vector" and bool(items) and all(map(_is_of_integers, items))
    return type(getattr(value, "value", None)) is int


def _accumulation(node: ast.AST) -> tuple[str, ast.operator | None]:
    """The name that ``s += ...``, ``s[k] += ...`` or ``s = 10 * s + ...`` accumulates into, and
    how."""
    match node:
        case ast.AugAssign(
            target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)), op=op
        ):
            return name, op
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp() as value):
            around, others = _operations(value, name)
            wraps = [op for op in around if isinstance(op, (ast.Add, ast.Sub, ast.Mult))]
            return (name, wraps[0]) if wraps and others else ("", None)
        case _:
            return "", None


def _operations(value: ast.expr, name: str) -> tuple[list[ast.operator], bool]:
    """The operations of ``value`` that have ``name`` within an operand, or that one within theirs;
    and whether there is anything but ``name`` and constants. A mask says that wrapping is meant."""
    found: list[ast.operator] = []
    others = False
    pending: list[tuple[ast.expr, list[ast.operator]]] = [(value, [])]
    while pending:
        node, around = pending.pop()
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitAnd):
            pending += [(node.left, [*around, node.op]), (node.right, [*around, node.op])]
        elif isinstance(node, ast.Name) and node.id == name:
            found += around
        else:
            others |= not isinstance(node, ast.Constant)
    return found, others
