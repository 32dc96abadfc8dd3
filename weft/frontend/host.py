"""The host part's own meaning of what is plain Python: a few statements are given a call each.

Annotated names are cast, as in a device loop (``d: weft.i32 = 3.7``), parameters that are annotated
with a dtype become numbers of it, and assigning a vector or a struct to a name copies it. Where no
annotation is a dtype and no element or member is set, nothing is changed. In debug mode integers
are checked (``host_overflow``).

``total += x[i]`` in a device loop, where ``total`` is a parameter, means what it means in Python:
where a number is passed, the name is another number afterwards; a tensor is added to in place, by a
copy of the loop's result into it. That is so where no other update gives the name another meaning
in Python, too, as ``total = max(total, x[i])`` does.
"""

from __future__ import annotations

import ast
import functools
import math
import types
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from weft.errors import KernelSyntaxError
from weft.frontend.names import Scope, bound_names, is_known, root_name, stored_into
from weft.frontend.parameters import (
    Parameter,
    converting,
    converts,
    copies,
    is_clamped,
    refuse_references,
)
from weft.lang.dtypes import DTYPES, DType
from weft.lang.loops import is_func
from weft.lang.numbers import NUMBERS, cast, converted, copied, strong
from weft.lang.vectors import MatrixType, VectorType
from weft.source import FunctionSource, children, copied_tree, subtree

CAST, COPY, DETACH = "__weft_cast__", "__weft_copy__", "__weft_detach__"
CONVERT, PLAIN = "__weft_converting__", "__weft_without_asserts__"
Check = Callable[[Parameter, Any], None]
IN_PLACE = "weft_in_place"  # the attribute of a device loop: the parameters that it adds to
BOTH = "weft_both"  # and those to which it or a later one adds, and the other does not
# What never is a vector or a struct that has another name.
_FRESH = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr, ast.ListComp,
          ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.Dict, ast.Set)  # fmt: skip


def rewritten(
    tree: ast.FunctionDef, source: FunctionSource, scope: Scope,
    parameters: Sequence[Parameter], launchers: str, passed: Iterable[str], check: Check,
    debug: bool,
) -> dict[str, Any]:  # fmt: skip
    """Changes ``tree``, a host function whose loops are calls of ``launchers`` by now. ``passed``
    are the parameters that a loop which always runs checks. Gives the functions that it calls."""
    locals = {p.name for p in parameters}
    rewriter = _Rewriter(source, scope, locals, launchers, stored_into(tree), debug)
    rewriter.clamped = {p.name for p in parameters if is_clamped(p)}
    read = {n.id for s in tree.body for n in _host_nodes(s, launchers) if isinstance(n, ast.Name)}
    tree.body = [rewriter.visit(statement) for statement in tree.body]
    if "__class__" in scope.cells and scope.lookup("super") is super:
        _name_supers(tree)
    head: list[ast.stmt] = []
    for parameter in parameters:
        name = parameter.name
        if parameter.dtype is not None and (name in read or name not in passed):
            function = f"__weft_argument_{name}__"
            rewriter.hidden[function] = _argument(parameter, check)
            head.append(_assign(name, function, tree))
        elif getattr(parameter.annotation, "needs_grad", None) is False:
            rewriter.hidden[DETACH] = _detached
            head.append(_assign(name, DETACH, tree))
    first = 1 if ast.get_docstring(tree) is not None else 0
    tree.body[first:first] = head
    return rewriter.hidden


def _name_supers(tree: ast.FunctionDef) -> None:
    """Gives each ``super()`` its arguments: without them Python takes the first parameter, which
    is the launchers here."""
    own = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args)]
    left: list[ast.AST] = list(tree.body) if own else []
    while left:
        node = left.pop()
        match node:
            case ast.Call(func=ast.Name("super"), args=[], keywords=[]):
                given = ("__class__", own[0])
                node.args = [ast.copy_location(ast.Name(n, ast.Load()), node) for n in given]
            case ast.FunctionDef() | ast.Lambda():  # it has a first parameter of its own
                continue
            case _:
                left += children(node)


def _host_nodes(node: ast.AST, launchers: str) -> Iterable[ast.AST]:
    """The nodes of a host statement, without the arguments of launches."""
    if is_launch(node, launchers):
        return
    yield node
    for child in children(node):
        yield from _host_nodes(child, launchers)


def is_launch(node: ast.AST, launchers: str) -> bool:
    """Whether ``node`` calls one of ``launchers``."""
    match node:
        case ast.Call(func=ast.Subscript(value=ast.Name(id=name))):
            return name == launchers
        case _:
            return False


def _argument(parameter: Parameter, check: Check) -> Callable[[Any], Any]:
    dtype = DTYPES[parameter.dtype or ""]
    low, high = converted(-math.inf, dtype), converted(math.inf, dtype)
    made = NUMBERS.get(dtype)

    def argument(value: Any) -> Any:
        if type(value) is int and made is not None and dtype.kind == "int" and low <= value <= high:
            return made(value)  # soon done: this is in the way of each call
        check(parameter, value)
        return strong(value, dtype) if isinstance(value, int | float) else value

    return argument


@functools.lru_cache(256)
def _converting(function: Callable[..., Any]) -> Callable[..., Any]:
    return converting(function, cast, copies(function))


@functools.lru_cache(256)
def _without_asserts(function: types.FunctionType) -> Callable[..., Any]:
    from weft.frontend.asserts import without_asserts  # where Taichi's rule is asked for

    made = without_asserts(function)
    return converting(made, cast, copies(function)) if converts(function) else made


def _is_in_range(item: ast.expr) -> bool:
    """Whether torch reads a subscript as a clamped one would be, or refuses it."""
    if isinstance(item, ast.Constant):
        return not isinstance(item.value, float)
    return isinstance(item, ast.Slice)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _assign(name: str, function: str, at: ast.AST) -> ast.stmt:
    call = ast.Call(ast.Name(function, ast.Load()), [ast.Name(name, ast.Load())], [])
    return _at(ast.Assign([ast.Name(name, ast.Store())], call), at)


def _at(node: ast.stmt, at: ast.AST) -> ast.stmt:
    for child in subtree(node):
        if isinstance(child, ast.stmt | ast.expr) and not hasattr(child, "lineno"):
            ast.copy_location(child, at)
            child.end_lineno, child.end_col_offset = child.lineno, child.col_offset
    return node


def _placed(node: ast.expr, at: ast.expr) -> Any:
    for child in subtree(node):
        if isinstance(child, ast.expr) and not hasattr(child, "lineno"):
            ast.copy_location(child, at)
    return node


def _is_constant(node: ast.AST) -> bool:
    """Whether it is computed of literals alone."""
    return not any(isinstance(n, ast.Name | ast.Call | ast.Await) for n in subtree(node))


def _is_read_twice_alike(target: ast.expr) -> bool:
    """Whether nothing that reading ``target`` evaluates does anything."""
    harmless = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.Constant, ast.UnaryOp,
                ast.expr_context, ast.unaryop)  # fmt: skip
    return all(isinstance(n, harmless) for n in subtree(target))


def _changed(tree: ast.AST) -> set[str]:
    """Names of what a method may change: of ``s.v.fill(0)``, a statement, ``s``."""
    calls = [n.value.func for n in subtree(tree)
             if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]  # fmt: skip
    roots = [root_name(f.value) for f in calls
             if isinstance(f, ast.Attribute) and not f.attr.endswith("_")]  # fmt: skip
    return {root for root in roots if root is not None}


class _Rewriter(ast.NodeTransformer):
    def __init__(
        self, source: FunctionSource, scope: Scope, locals: set[str], launchers: str,
        stored: set[str], debug: bool,
    ) -> None:  # fmt: skip
        self.source = source
        self.checks: Any = None
        if debug:
            from weft.frontend import host_overflow  # which few kernels need

            self.checks = host_overflow
        self.scope = scope
        self.locals = locals
        self.launchers = launchers
        self.stored = {name.partition(".")[0] for name in stored} | _changed(source.tree)
        self.clamped: set[str] = set()  # parameters whose subscripts clamp
        self.hidden: dict[str, Any] = {}

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _hidden(self, function: Callable[..., Any]) -> ast.expr:
        name = f"__weft_checked_{len(self.hidden)}__"
        self.hidden[name] = function
        return ast.Name(name, ast.Load())

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        span = self.source.span(node)
        made = self.checks.binary(type(node.op), False, span) if self.checks else None
        if made is None or all(isinstance(v, ast.Constant) for v in (node.left, node.right)):
            return node
        return _placed(ast.Call(self._hidden(made), [node.left, node.right], []), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        span = self.source.span(node)
        made = self.checks.binary(type(node.op), True, span) if self.checks else None
        if made is None or not _is_read_twice_alike(node.target):
            return node
        old = copied_tree(node.target)
        old.ctx = ast.Load()
        new = ast.Call(self._hidden(made), [old, node.value], [])
        return _at(ast.copy_location(ast.Assign([node.target], new), node), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not self.checks or not isinstance(node.op, ast.USub) or _is_constant(node):
            return node
        made = self.checks.negation(self.source.span(node))
        return _placed(ast.Call(self._hidden(made), [node.operand], []), node)

    def _checked_cast(self, node: ast.Call, dtype: DType) -> ast.Call:
        if self.checks and len(node.args) == 1 and not _is_constant(node.args[0]):
            span = self.source.span(node)
            fits = functools.partial(self.checks.fitting, dtype, span=span)
            node.args = [_placed(ast.Call(self._hidden(fits), node.args, []), node)]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.clamped:
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if not all(map(_is_in_range, items)):
                raise KernelSyntaxError(
                    f'a subscript of `{node.value.id}`, whose boundary is "clamp", in the host '
                    "part: it is torch's, and would not clamp", self.source.span(node),
                    help="read it in a device loop",
                )  # fmt: skip
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        root = root_name(node.func)
        function = self.scope.resolve(node.func) if root and root not in self.locals else None
        if isinstance(function, DType):
            return self._checked_cast(node, function)
        if not isinstance(function, types.FunctionType):
            return node
        refuse_references(function, self.source.span(node))
        plain = is_func(function) and not self.source.asserts
        if converts(function) or plain:
            hidden = PLAIN if plain else CONVERT
            self.hidden[hidden] = _without_asserts if plain else _converting
            place = ast.copy_location(ast.Name(hidden, ast.Load()), node.func)
            node.func = ast.copy_location(ast.Call(place, [node.func], []), node.func)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return node
        node.value = self._value(node.value, list(bound_names(node.target)))
        if not self._casts(node.annotation):
            return node
        function = ast.Name(CAST, ast.Load())
        if self.checks and not _is_constant(node.value):
            span = self.source.span(node)
            check = functools.partial(self.checks.fitting, span=span)
            function = self._hidden(lambda kind, value: cast(kind, check(kind, value)))
        else:
            self.hidden[CAST] = cast
        call = ast.Call(function, [node.annotation, node.value], [])
        return _at(ast.copy_location(ast.Assign([node.target], call), node), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        names = [name for target in node.targets for name in bound_names(target)]
        node.value = self._value(node.value, names)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        node.value = self._value(node.value, [node.target.id])
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        for name in self.stored.intersection(bound_names(node.target)):
            self.hidden[COPY] = copied
            node.body.insert(0, _assign(name, COPY, node.body[0]))
        return node

    def _casts(self, annotation: ast.expr) -> bool:
        """Whether an annotation of a local is, or may be, a type that converts."""
        root = root_name(annotation)
        if root in self.locals:
            return True
        value = self.scope.resolve(annotation) if root is not None else None
        kinds = (DType, VectorType, MatrixType, torch.dtype)
        if isinstance(annotation, ast.Call):  # ti.types.vector(3, ti.f32)
            value = self.scope.resolve(annotation.func)
            return getattr(value, "__module__", None) == "weft.lang.types"
        return isinstance(value, kinds) or value in (int, float, bool)

    def _value(self, value: ast.expr, names: list[str]) -> ast.expr:
        """``value`` as it is assigned to ``names``: vectors and structs that have another name are
        copied."""
        if isinstance(value, ast.Tuple | ast.List):
            value.elts = [self._value(item, names) for item in value.elts]
            return value
        if isinstance(value, (ast.Starred, *_FRESH)):
            return value
        read = {n.id for n in subtree(value) if isinstance(n, ast.Name)}
        if self.stored.isdisjoint(read.union(names)):  # nobody sees a difference
            return value
        if isinstance(value, ast.Call) and self._makes_new(value):
            return value
        self.hidden[COPY] = copied
        call = ast.Call(ast.Name(COPY, ast.Load()), [value], [])
        return ast.copy_location(call, value)

    def _makes_new(self, call: ast.Call) -> bool:
        if is_launch(call, self.launchers):
            return True
        if isinstance(call.func, ast.Name) and call.func.id.startswith("__weft_"):
            return True
        if isinstance(call.func, ast.Call):  # of a function whose arguments are converted
            return False
        root = root_name(call.func)
        function = self.scope.resolve(call.func) if root not in self.locals else None
        return function is not None and is_known(function)


# --- totals that are parameters -------------------------------------------------------------------
def in_place(
    loops: Iterable[ast.stmt], parameters: Sequence[Parameter], assigned: Collection[str]
) -> frozenset[str]:
    """The parameters that may be tensors to which ``loops`` add, and which none of them gives
    another meaning. Notes them at the loops, and those with two meanings at the first that has one,
    if the host part has not ``assigned`` others."""
    known = {p.name for p in parameters if p.kind in ("", "tensor") and p.dtype is None}
    found = {loop: {n: _is_added_to(loop, n) for n in known & {*bound_names(loop)}}
             for loop in sorted(loops, key=lambda loop: loop.lineno)}  # fmt: skip
    pairs = [pair for names in found.values() for pair in names.items()]
    ways = {name: {way for n, way in pairs if n == name} for name, _ in pairs}
    added = frozenset(name for name, way in ways.items() if way == {True})
    both = {name for name, way in ways.items() if len(way) > 1} - {*assigned}
    for loop, names in found.items():
        setattr(loop, IN_PLACE, added & {*names})
        setattr(loop, BOTH, frozenset(both & {*names}))
        both -= {*names}
    return added


def _is_added_to(loop: ast.AST, name: str) -> bool:
    """Whether augmented assignments alone assign ``name``."""
    binders = [n for n in subtree(loop) if isinstance(n, ast.Name) and n.id == name
               and isinstance(n.ctx, ast.Store | ast.Del)]  # fmt: skip
    added = [n.target for n in subtree(loop) if isinstance(n, ast.AugAssign)]
    return all(any(node is target for target in added) for node in binders)


def given_to(
    names: Sequence[str], call: ast.expr, in_place: Collection[str]
) -> list[ast.stmt]:  # fmt: skip
    """``names = call``, where ``name = name.copy_(new) if hasattr(name, "copy_") else new`` follows
    for each of them that is ``in_place``."""
    changed = {name: f"__weft_new_{name}__" for name in names if name in in_place}
    targets: list[ast.expr] = [ast.Name(changed.get(n, n), ast.Store()) for n in names]
    target = targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())
    statements: list[ast.stmt] = [ast.Assign([target], call)]
    for name, given in changed.items():
        old, new = ast.Name(name, ast.Load()), ast.Name(given, ast.Load())
        test = ast.Call(ast.Name("hasattr", ast.Load()), [old, ast.Constant("copy_")], [])
        copied = ast.Call(ast.Attribute(old, "copy_", ast.Load()), [new], [])
        statements.append(ast.Assign([ast.Name(name, ast.Store())], ast.IfExp(test, copied, new)))
    return statements
