"""What the expressions of a loop over elements may be, and what its conditions say of integers.

See ``element_proofs``, which carries out its statements.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.frontend import element_kinds as kinds
from weft.frontend.element_kinds import Bool, Element, Float, Int, Kind, Stays, Unset
from weft.frontend.names import dotted, root_name
from weft.values import frozen

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
            ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt,
             ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}  # fmt: skip
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
            ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE,
            ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}  # fmt: skip

Env = dict[str, Kind]


@frozen
class Array:
    """A tensor that has elements."""

    dtype: torch.dtype
    sizes: tuple[int, ...]


@frozen
class Shape:
    sizes: tuple[int, ...]


def _kind(name: str, value: Any) -> Kind | Array | Shape:
    """What a value is that the loop is given."""
    if name.startswith("__weft_value_"):
        return Unset()
    if isinstance(value, Int):
        return value
    if type(value) is bool:
        return Bool()
    if type(value) is int or isinstance(value, torch.SymInt):
        return kinds.bounded(int(value), int(value))
    if type(value) is float:
        return Float(value != 0)
    if isinstance(value, torch.Size):
        return Shape(tuple(map(int, value)))
    if isinstance(value, torch.Tensor) and value.dtype in kinds.ELEMENTS:
        shape = tuple(map(int, value.shape))
        return Array(value.dtype, shape) if shape else Element(value.dtype)
    raise Stays


class Values:
    """``arrays``: the tensors and shapes that the loop is given; ``start``: its numbers."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        found = {name: _kind(name, value) for name, value in values.items()}
        self.arrays = {n: k for n, k in found.items() if isinstance(k, Array | Shape)}
        self.start: Env = {n: k for n, k in found.items() if not isinstance(k, Array | Shape)}

    def value(self, node: ast.expr, env: Env) -> Kind:
        match node:
            case ast.Constant(value=bool()):
                return Bool()
            case ast.Constant(value=int(value)):
                return kinds.bounded(value, value)
            case ast.Constant(value=float(value)):
                return Float(value != 0)
            case ast.Name(id=name):
                return self.name(name, env)
            case ast.BinOp(left=left, op=op, right=right):
                return kinds.binary(op, self.value(left, env), self.value(right, env))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return kinds.negated(self.value(operand, env))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.tested(self.value(operand, env))
                return Bool()
            case ast.BoolOp(op=op, values=values):
                return self._choice(op, values, env)
            case ast.Compare(left=left, comparators=others):
                return self._compared([self.value(v, env) for v in (left, *others)])
            case ast.IfExp(test=test, body=a, orelse=b):
                self.tested(self.value(test, env))
                ways = (a, self.where(test, True, env)), (b, self.where(test, False, env))
                found = [self.value(v, e) for v, e in ways if e is not None]
                return kinds.join(found[0], found[-1])
            case ast.Subscript(value=ast.Attribute(), slice=ast.Constant(value=int(axis))):
                sizes = self._sizes(node.value)
                if not -len(sizes) <= axis < len(sizes):
                    raise Stays
                return Int(sizes[axis], sizes[axis])
            case ast.Subscript():
                return Element(self.element(node, env).dtype)
            case ast.Call():
                return self._call(node, env)
            case _:
                raise Stays

    def name(self, name: str, env: Env) -> Kind:
        found = env.get(name)
        if found is None or isinstance(found, Unset):
            raise Stays
        return found

    def tested(self, kind: Kind) -> None:
        """What an ``if`` may ask. A number's truth is left to Python."""
        if not (isinstance(kind, Bool) or (isinstance(kind, Element) and kind.dtype == torch.bool)):
            raise Stays

    def _choice(self, op: ast.boolop, values: Sequence[ast.expr], env: Env) -> Kind:
        found: Kind | None = None
        for node in values:
            kind = self.value(node, env)
            self.tested(kind)
            found = kind if found is None else kinds.join(found, kind)
            after = self.where(node, isinstance(op, ast.And), env)
            if after is None:
                break
            env = after
        assert found is not None
        return found

    def _compared(self, found: Sequence[Kind]) -> Kind:
        elements = [k for k in found if isinstance(k, Element)]
        if any(isinstance(k, Bool | Unset) for k in found):
            raise Stays
        if any(k.dtype == torch.bool for k in elements):
            raise Stays
        if any(isinstance(k, Float) for k in found):
            kinds.exact(*found)
        return Element(torch.bool, all(k.loose for k in elements)) if elements else Bool()

    def _call(self, node: ast.Call, env: Env) -> Kind:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name == "len" and isinstance(node.func, ast.Name):
            sizes = self._sizes(node.args[0])
            if not sizes:
                raise Stays
            return Int(sizes[0], sizes[0])
        args = [self.value(a, env) for a in node.args]
        if isinstance(node.func, ast.Attribute):
            return kinds.of_function(name, args)
        return kinds.magnitude(args[0]) if name == "abs" else kinds.extreme(name, args)

    def _sizes(self, node: ast.expr) -> tuple[int, ...]:
        """``x.shape``, or the tensor ``x``."""
        of = self.arrays.get(dotted(node)) or self.arrays.get(root_name(node) or "")
        if of is None:
            raise Stays
        return of.sizes

    def element(self, node: ast.expr, env: Env) -> Array:
        """The tensor of which ``node`` is an element: as many subscripts as it has dimensions, each
        in its range."""
        items: list[ast.expr] = []
        while isinstance(node, ast.Subscript):
            own = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            items[:0] = own
            node = node.value
        array = self.arrays.get(dotted(node)) if isinstance(node, ast.Name) else None
        if not isinstance(array, Array) or len(items) != len(array.sizes):
            raise Stays
        for item, size in zip(items, array.sizes, strict=True):
            kind = self.value(item, env)
            if not isinstance(kind, Int):
                raise Stays
            literal = isinstance(item, ast.UnaryOp) and isinstance(item.operand, ast.Constant)
            if kind.low < (-size if literal else 0) or kind.high >= size:
                raise Stays
        return array

    # --- what conditions say of integers ---------------------------------------------------------
    def where(self, test: ast.expr, holds: bool, env: Env) -> Env | None:
        """The names where ``test`` holds, or where it does not; None where that cannot be."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.where(operand, not holds, env)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == holds:
                inside: Env | None = env
                for each in values:
                    inside = None if inside is None else self.where(each, holds, inside)
                return inside
            case ast.Compare(left=left, ops=ops, comparators=others) if holds or len(ops) == 1:
                env = dict(env)
                for one, op, other in zip((left, *others), ops, others, strict=False):
                    way = type(op) if holds else _OPPOSITE[type(op)]
                    sides = (one, way, other), (other, _SWAPPED[way], one)
                    if not all(self._narrow(*side, env) for side in sides):
                        return None
            case _:
                pass
        return dict(env)

    def _narrow(
        self, node: ast.expr, op: type[ast.cmpop], bound: ast.expr, env: Env
    ) -> bool:  # fmt: skip
        """Where ``node`` is less, or more, than ``bound``: whether that can be."""
        known = env.get(node.id) if isinstance(node, ast.Name) else None
        if not (isinstance(known, Int) and isinstance(node, ast.Name)):
            return True
        limit = self.value(bound, env)
        if not isinstance(limit, Int):
            return True
        low, high = known.low, known.high
        if op in (ast.Lt, ast.LtE, ast.Eq):
            high = min(high, limit.high - (op is ast.Lt))
        if op in (ast.Gt, ast.GtE, ast.Eq):
            low = max(low, limit.low + (op is ast.Gt))
        if low <= high:
            env[node.id] = Int(low, high)
        return low <= high
