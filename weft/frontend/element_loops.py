"""Loops of the host part over elements: which ``weft.serial`` loops may be compiled, by their text.

Such a loop is both: Python's own, and the only iteration of a parallel one, as
``loop_config(serialize=True)`` makes it. Which of them a call runs is decided by its arguments
(``element_proofs``), so that compiled code never means anything else than Python does. What is
here finds the loops of which that is worth asking: names, numbers and elements of tensors are all
that is in them. Device loops are not, nor what works on whole tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

import torch

from weft.frontend.names import Reads, Scope, bound_names, parameter_names, read_first, root_name
from weft.lang.loops import serial
from weft.source import children, subtree
from weft.values import frozen

# Functions of elements that give a new element, by how many of their arguments are elements.
OF_ELEMENTS: dict[str, int] = {
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos",
         "tan", "tanh", "sinh", "cosh", "sigmoid", "relu", "erf", "floor", "ceil", "square",
         "abs"), 1,
    ),
    **dict.fromkeys(("minimum", "maximum", "atan2"), 2),
    "where": 3,
}  # fmt: skip
_BUILTINS = {"abs": abs, "min": min, "max": max, "len": len}
_STATEMENTS = (ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Break, ast.Continue,
               ast.Return, ast.Pass)  # fmt: skip
_EXPRESSIONS = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call,
    ast.Subscript, ast.Attribute, ast.Tuple,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr,
    ast.BitXor, ast.USub, ast.Not, ast.And, ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt,
    ast.GtE, ast.Load, ast.Store,
)  # fmt: skip


@frozen
class ElementLoop:
    """What the text says of such a loop. ``kept``: the names that it hands on. ``views``: pairs of
    a tensor of which the loop gives an element a name, and one into which it stores: these must not
    share memory, for Python's name is the element. ``summed``: the names that ``+=`` changes in
    place, where they are tensors; ``shared``: those of them that may have a second name."""

    kept: frozenset[str]
    views: tuple[tuple[str, str], ...]
    summed: frozenset[str]
    shared: frozenset[str]


def of_elements(
    loop: ast.For, tree: ast.FunctionDef, scope: Scope, assigned: Iterable[str],
    following: Sequence[ast.stmt],
) -> ElementLoop | None:  # fmt: skip
    """What is known of ``loop`` if all that is in it are elements and numbers; None otherwise.
    ``assigned``: names that have a value before it, certainly. ``following``: what is carried out
    after it."""
    local = frozenset(parameter_names(tree.args)).union(*map(bound_names, tree.body))
    if any(isinstance(node, ast.Delete) for node in subtree(tree)):
        return None
    text = _Text(scope, local)
    if not text.is_loop(loop) or not all(map(text.is_plain, _nodes(loop))):
        return None
    if not any(isinstance(n, ast.Subscript) for s in loop.body for n in subtree(s)):
        return None
    reads = Reads()
    reads.statement(loop, frozenset())
    before = {root_name(chain) for chain in reads.chains} & local
    bound = frozenset(bound_names(loop))
    kept = bound & read_first(following)
    if not (before | kept) <= {*assigned}:
        return None  # Python would raise, or not, as it turns out
    stored = {_tensor(n) for n in subtree(loop)
              if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)}  # fmt: skip
    named = set(_named(loop))
    summed = {n.target.id for n in subtree(loop)
              if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}  # fmt: skip
    seen = kept | {n.id for r in subtree(loop) if isinstance(r, ast.Return)
                   for n in subtree(r) if isinstance(n, ast.Name)}  # fmt: skip
    if any(name in seen for name, _ in named):
        return None
    shared = frozenset(name for name in summed if not _is_own(name, tree))
    views = {(of, into) for _, of in named for into in stored}
    if any(of == into for of, into in views) or not {n for v in views for n in v} <= before:
        return None
    return ElementLoop(kept, tuple(sorted(views)), frozenset(summed), shared)


def _nodes(loop: ast.For) -> Iterator[ast.AST]:
    """What has to be plain: all but what loops go over, which ``is_loop`` looks at."""
    left: list[ast.AST] = [*loop.body, *loop.orelse, *ends_of(loop)]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.For):
            left += [*node.body, *node.orelse, *ends_of(node)]
        elif isinstance(node, ast.Call):
            left += node.args
        else:
            left += children(node)


def ends_of(loop: ast.For) -> list[ast.expr]:
    """The bounds and the step of the range that a loop goes over."""
    match loop.iter:
        case ast.Call(args=[ast.Call(args=ends)]):
            return ends
        case _:
            return []


def _tensor(node: ast.expr) -> str:
    """The name of what a subscript is of; "" where it has none."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


class _Text:
    def __init__(self, scope: Scope, local: frozenset[str]) -> None:
        self.scope, self.local = scope, local

    def _is(self, node: ast.expr, function: object) -> bool:
        return root_name(node) not in self.local and self.scope.resolve(node) is function

    def is_loop(self, node: ast.For) -> bool:
        """Whether ``node`` is ``for name in weft.serial(range(...))``."""
        match node.iter:
            case ast.Call(
                func=outer, args=[ast.Call(func=inner, args=[_, *_] as ends, keywords=[])],
                keywords=[],
            ):  # fmt: skip
                starred = any(isinstance(a, ast.Starred) for a in ends)
                over = self._is(outer, serial) and self._is(inner, range)
                plain = not starred and len(ends) <= 3 and isinstance(node.target, ast.Name)
                return over and plain
            case _:
                return False

    def is_plain(self, node: ast.AST) -> bool:
        match node:
            case ast.For():
                return self.is_loop(node)
            case ast.Assign(targets=[target], value=value):
                if not isinstance(target, ast.Tuple):
                    return isinstance(target, ast.Name) or bool(_tensor(target))
                return (isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
                        and all(isinstance(t, ast.Name) for t in target.elts))  # fmt: skip
            case ast.Assign():
                return False
            case ast.AugAssign(target=target, op=op):
                plain = isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div)
                return plain and (isinstance(target, ast.Name) or bool(_tensor(target)))
            case ast.Return(value=value):  # an element would be a view
                items = value.elts if isinstance(value, ast.Tuple) else [value]
                return not any(v is not None and [*_bare(v)] for v in items)
            case ast.Call(func=func, args=args, keywords=[]):
                starred = any(isinstance(a, ast.Starred) for a in args)
                return not starred and self._is_function(func, len(args))
            case ast.Attribute():
                return node.attr == "shape" and isinstance(node.value, ast.Name)
            case ast.Constant(value=value):
                return type(value) in (int, float, bool)
            case ast.Name(id=name, ctx=ast.Load()) if name not in self.local:
                return type(self.scope.lookup(name)) in (int, float, bool)
            case _:
                return isinstance(node, (*_STATEMENTS, *_EXPRESSIONS))

    def _is_function(self, func: ast.expr, count: int) -> bool:
        match func:
            case ast.Name(id=name) if name in _BUILTINS:
                known = 1 if name in ("abs", "len") else max(count, 2)
                return count == known and self._is(func, _BUILTINS[name])
            case ast.Attribute(value=module, attr=name) if name in OF_ELEMENTS:
                return self._is(module, torch) and count == OF_ELEMENTS[name]
            case _:
                return False


def _bare(value: ast.expr) -> Iterator[ast.expr]:
    """The names and elements that may themselves be the value of an expression."""
    match value:
        case ast.Subscript(value=ast.Attribute()):
            return
        case ast.Subscript() | ast.Name():
            if isinstance(value, ast.Subscript):
                yield value
        case ast.IfExp(body=a, orelse=b):
            yield from _bare(a)
            yield from _bare(b)
        case ast.BoolOp(values=values):
            for each in values:
                yield from _bare(each)
        case ast.Call(func=ast.Name(id="min" | "max"), args=args):
            for each in args:
                yield from _bare(each)
        case _:
            pass


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What an assignment assigns, and to what."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _named(loop: ast.For) -> Iterator[tuple[str, str]]:
    """The names that elements have in a loop, also through other names, and their tensors."""
    found: set[tuple[str, str]] = set()
    assigned = [(t.id, v) for n in subtree(loop) if isinstance(n, ast.Assign)
                for t, v in _pairs(n) if isinstance(t, ast.Name)]  # fmt: skip
    found |= {(name, _tensor(e)) for name, value in assigned for e in _bare(value)}
    while True:
        held = {name for name, _ in found}
        more = {(name, of) for name, value in assigned for n in subtree(value)
                if isinstance(n, ast.Name) and n.id in held
                for known, of in found if known == n.id and _hands_on(value)}  # fmt: skip
        if more <= found:
            break
        found |= more
    yield from found


def _hands_on(value: ast.expr) -> bool:
    """Whether the value of an expression may be what a name in it has."""
    is_extreme = isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("min", "max")
    return isinstance(value, ast.Name | ast.IfExp | ast.BoolOp) or is_extreme


def _is_own(name: str, tree: ast.FunctionDef) -> bool:
    """Whether nothing else in the kernel is the tensor that ``name`` is, which ``name += v``
    changes in place: it is only ever assigned what is new, and has no second name."""
    around = {child: node for node in subtree(tree) for child in children(node)}
    for node in subtree(tree):
        if not (isinstance(node, ast.Name) and node.id == name):
            continue
        parent = around[node]
        if isinstance(node.ctx, ast.Load):
            if not _is_read_alone(node, parent, around):
                return False
        elif isinstance(parent, ast.Assign | ast.Tuple):
            statement = parent if isinstance(parent, ast.Assign) else around[parent]
            if not isinstance(statement, ast.Assign) or not all(
                _is_new(v) for t, v in _pairs(statement)
                if name in {n.id for n in subtree(t) if isinstance(n, ast.Name)}
            ):  # fmt: skip
                return False
        elif not isinstance(parent, ast.AugAssign):
            return False
    return True


def _is_new(value: ast.expr) -> bool:
    """Whether no name has what an expression gives."""
    return isinstance(value, ast.Constant | ast.BinOp | ast.Compare) or (
        isinstance(value, ast.UnaryOp) and not isinstance(value.op, ast.UAdd)
    )


def _is_read_alone(node: ast.Name, parent: ast.AST, around: dict[ast.AST, ast.AST]) -> bool:
    match parent:
        case ast.Tuple():
            return isinstance(around[parent], ast.Return | ast.Subscript)
        case ast.Subscript():
            return parent.slice is node
        case ast.Call(func=ast.Name(id="range")):
            return True
        case ast.Assign(targets=targets):
            return all(isinstance(t, ast.Subscript) for t in targets)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return test is node
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)):
            return name in OF_ELEMENTS
        case ast.UnaryOp(op=op):
            return not isinstance(op, ast.UAdd)
        case _:
            return isinstance(parent, ast.BinOp | ast.Compare | ast.AugAssign | ast.Return)
