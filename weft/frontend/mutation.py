"""Which parameters a function writes to: conservatively, through local aliases, from its AST alone.

Not decided here: whether the parameter is a tensor at all (``n += 1`` on an int counts as a write).
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable, Container, Iterable
from typing import Any

from weft.errors import SourceUnavailableError
from weft.frontend.names import MISSING, Scope, bound_names, is_known, root_name
from weft.lang.vectors import Matrix, Vector
from weft.source import enclosed_function, read_function

# Attributes of a tensor that share no memory with it.
PLAIN_ATTRIBUTES = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "itemsize", "nbytes",
     "requires_grad", "type"}
)  # fmt: skip
# Methods of a tensor whose result may share its memory. Every other one allocates.
VIEWS = frozenset(
    {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze",
     "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "expand",
     "expand_as", "narrow", "select", "diagonal", "unfold", "as_strided", "detach", "contiguous",
     "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char",
     "byte", "bool", "cpu", "cuda", "split", "chunk", "unbind", "tensor_split", "hsplit", "vsplit",
     "ravel", "real", "imag", "conj", "numpy", "data", "requires_grad_", "broadcast_to",
     "atleast_1d", "atleast_2d", "atleast_3d", "as_subclass", "alias", "view_as_real",
     "view_as_complex", "broadcast_tensors", "asarray", "as_tensor", "from_numpy", "adjoint",
     "positive", "resolve_conj", "resolve_neg", "to_torch", "get", "pop", "values", "items"}
)  # fmt: skip

_METHODS = (types.FunctionType, types.MethodType, staticmethod, classmethod)

# Builtins whose result may be, or hold, an object that they were given.
HANDING_ON = (vars, getattr, next, iter, sorted, functools.reduce)


class Mutations:
    """Collects, over any number of passes over the same statements, what each local may alias and
    which parameters are written."""

    def __init__(
        self, scope: Scope, parameters: list[str], regions: Container[ast.AST],
        active: frozenset[Any], device: bool,
    ) -> None:  # fmt: skip
        self.scope = scope
        self.parameters = parameters
        self.aliases: dict[str, frozenset[str]] = {name: frozenset({name}) for name in parameters}
        self.written: set[str] = set()
        self.captured: frozenset[str] = frozenset()  # names from around the function, with aliases
        self.regions = regions
        self.active = active
        self.device = device  # in a device loop: `s += x` on a name makes a new value

    def roots(self, node: ast.expr | None) -> frozenset[str]:
        """The parameters whose memory the value of ``node`` may share."""
        none: frozenset[str] = frozenset()
        match node:
            case ast.Name(id=name):
                return self.aliases.get(name, none)
            case ast.Attribute(attr=attr, value=value):
                return none if attr in PLAIN_ATTRIBUTES else self.roots(value)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                return self.roots(value)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.roots(value)
            case ast.IfExp(body=a, orelse=b):
                return self.roots(a) | self.roots(b)
            case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                return none.union(*map(self.roots, values))
            case ast.Dict(values=values):
                return none.union(*map(self.roots, values))
            case ast.Lambda(body=body):
                return self.roots(body)  # what it gives when it is called
            case ast.Call(func=func):
                called = none if isinstance(func, ast.Attribute) else self.roots(func)
                return called | self._call_roots(node, func)
            case _:
                return none

    def _call_roots(self, node: ast.Call, func: ast.expr) -> frozenset[str]:
        arguments = [*node.args, *(k.value for k in node.keywords)]
        all_roots = frozenset[str]().union(*map(self.roots, arguments))
        value = self._called(func)
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if value is MISSING and isinstance(func, ast.Attribute):
            receiver = self.roots(func.value)
            returns_receiver = name in VIEWS or (name.endswith("_") and not name.endswith("__"))
            return receiver | all_roots if returns_receiver else frozenset()
        if isinstance(value, type) and issubclass(value, Vector | Matrix):
            return frozenset()  # their elements are values
        if any(value is builtin for builtin in HANDING_ON):
            return all_roots
        if (value is max or value is min) and len(node.args) == 1:
            return all_roots  # one of a list
        if is_known(value) and value is not MISSING and not isinstance(value, type):
            return all_roots if name in VIEWS or name.endswith("_") else frozenset()
        node, value = self._unbound(node, value)
        if isinstance(value, types.FunctionType) and value not in self.active and all_roots:
            return self._returned_roots(node, value, all_roots)
        return all_roots

    def _returned_roots(
        self, node: ast.Call, function: types.FunctionType, all_roots: frozenset[str]
    ) -> frozenset[str]:
        """What a function that is written in Python returns may share memory with."""
        inner = enclosed_function(function)
        try:
            names = returned_parameters(inner, self.device, self.active)
            bound = _bound(node, inner)
        except (SourceUnavailableError, TypeError, ValueError, SyntaxError):
            return all_roots
        return frozenset[str]().union(
            *(self.roots(item) for name, items in bound for item in items if name in names)
        )

    def writes(self, node: ast.AST) -> frozenset[str]:
        """What the statement or expression ``node`` writes to, once ``run`` knows the aliases."""
        before, self.written = self.written, set()
        self._walk(node)
        found, self.written = frozenset(self.written), before
        return found

    def run(self, body: list[ast.stmt]) -> None:
        before: Any = None
        while before != (self.aliases, self.written):
            before = (dict(self.aliases), set(self.written))
            for statement in body:
                self._walk(statement)

    def _walk(self, node: ast.AST) -> None:
        outside = self.device
        self.device = outside or node in self.regions
        self._visit(node)
        for child in ast.iter_child_nodes(node):
            self._walk(child)
        self.device = outside

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=value):
                self._assign(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, value)
            case ast.For(target=target, iter=value):
                self._assign(target, value)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._assign(target, value)
            case ast.comprehension(target=target, iter=value):
                self._assign(target, value)
            case ast.AugAssign(target=target):
                if not (self.device and isinstance(target, ast.Name)):
                    self.written |= self.roots(target)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Subscript):
                        self.written |= self.roots(target)
            case ast.Call():
                self._call(node)
            case _:
                pass

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr | None] = [value] * len(target.elts)
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                values = list(value.elts)
            for item, part in zip(target.elts, values, strict=True):
                self._assign(item, part)
        elif isinstance(target, ast.Name):
            self.aliases[target.id] = self.aliases.get(target.id, frozenset()) | self.roots(value)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, value)
        elif isinstance(target, ast.Subscript):
            self.written |= self.roots(target.value)

    def _called(self, func: ast.expr) -> Any:
        """What ``func``, of a call, stands for, or ``MISSING``."""
        root = root_name(func)
        if root is None or (root in self.aliases and root not in self.captured):
            return MISSING
        value = self.scope.resolve(func)
        if root not in self.aliases or (isinstance(value, _METHODS) and not is_known(value)):
            return value
        return MISSING  # a tensor's own method

    def _call(self, node: ast.Call) -> None:
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        for keyword in node.keywords:
            if keyword.arg == "out":
                self.written |= self.roots(keyword.value)
        value = self._called(func)
        if isinstance(func, ast.Attribute) and value is MISSING:
            in_place = name.endswith("_") and not name.endswith("__")
            if in_place or name in ("fill", "from_numpy", "from_torch", "copy_from", "__setitem__"):
                self.written |= self.roots(func.value)
            return
        if not node.args and not node.keywords:
            return
        if name.startswith("atomic_") or (name.endswith("_") and not name.endswith("__")):
            self.written |= self.roots(node.args[0]) if node.args else frozenset()
        elif value is not MISSING and not is_known(value):
            self._user_call(node, value)

    def _unbound(self, node: ast.Call, function: Any) -> tuple[ast.Call, Any]:
        """The call of a method as one of the function in its class, with the receiver as its first
        argument."""
        if isinstance(function, staticmethod):
            return node, function.__func__
        receives = isinstance(function, classmethod | types.MethodType)
        if isinstance(function, types.FunctionType) and isinstance(node.func, ast.Attribute):
            base = self.scope.resolve(node.func.value)
            own = isinstance(base, types.ModuleType | type)
            receives = not own and node.func.attr not in getattr(base, "__dict__", ())
        if not receives:
            return node, function
        given = [ast.Constant(None), *node.args]  # the receiver, which is no tensor
        return ast.Call(node.func, given, node.keywords), getattr(function, "__func__", function)

    def _user_call(self, node: ast.Call, function: Any) -> None:
        """A call of a function that is written in Python, or of another kernel."""
        arguments = [*node.args, *(k.value for k in node.keywords)]
        if not any(self.roots(a) for a in arguments):
            return
        node, function = self._unbound(node, function)
        inner = enclosed_function(function)
        try:
            names = written_parameters(inner, self.device, self.active)
            bound = _bound(node, inner)
        except (SourceUnavailableError, TypeError, ValueError, SyntaxError):
            # No Python source: a library function, which says by `_` or `out=` that it writes.
            return
        for name, items in bound:
            if name in names:
                self.written |= frozenset[str]().union(*map(self.roots, items))


def _bound(node: ast.Call, function: Callable[..., Any]) -> list[tuple[str, list[ast.expr]]]:
    """The arguments of a call by the names of the function's parameters; where some are unpacked,
    each parameter may be any argument."""
    signature = inspect.signature(function, follow_wrapped=False)
    arguments = [*node.args, *(k.value for k in node.keywords)]
    if any(isinstance(a, ast.Starred) for a in node.args) or any(not k.arg for k in node.keywords):
        return [(name, arguments) for name in signature.parameters]
    bound = signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords}).arguments
    found: list[tuple[str, list[ast.expr]]] = []
    for name, value in bound.items():
        if isinstance(value, tuple):
            found.append((name, [*value]))
        else:
            found.append((name, [*value.values()] if isinstance(value, dict) else [value]))
    return found


def written_parameters(
    function: Callable[..., Any], device: bool = False, active: frozenset[Any] = frozenset()
) -> frozenset[str]:
    """Names of the parameters of ``function`` that it writes to. Raises SourceUnavailableError."""
    if function in active:
        return frozenset()
    tree, scope = read_function(function).tree, Scope.of(function)
    return frozenset(_found(tree, scope, (), active | {function}, device).written)


def returned_parameters(
    function: Callable[..., Any], device: bool = False, active: frozenset[Any] = frozenset()
) -> frozenset[str]:
    """Names of the parameters of ``function``, and of the tensors that it captures, whose memory
    its results may share. Raises SourceUnavailableError."""
    tree, scope = read_function(function).tree, Scope.of(function)
    found = _found(tree, scope, (), active | {function}, device)
    returns = [n.value for s in tree.body for n in ast.walk(s) if isinstance(n, ast.Return)]
    return frozenset[str]().union(*map(found.roots, returns))


def mutated(
    tree: ast.FunctionDef,
    scope: Scope,
    regions: Container[ast.AST] = (),
    active: frozenset[Any] = frozenset(),
    device: bool = False,
) -> tuple[frozenset[str], dict[str, frozenset[str]]]:
    """The parameters that ``tree`` writes to, and what each local name may alias.

    A captured tensor is treated as a parameter of its own name. ``regions`` are the statements of
    ``tree`` that are device loops; ``device`` says that all of it is called from one.
    """
    found = _found(tree, scope, regions, active, device)
    return frozenset(found.written), found.aliases


def mutations(
    tree: ast.FunctionDef, scope: Scope, regions: Container[ast.AST], local: Iterable[str]
) -> Mutations:
    """What ``tree`` may alias and write to; the names ``local`` count as parameters do."""
    return _found(tree, scope, regions, frozenset(), False, local)


def _found(
    tree: ast.FunctionDef, scope: Scope, regions: Container[ast.AST], active: frozenset[Any],
    device: bool, more: Iterable[str] = (),
) -> Mutations:  # fmt: skip
    a = tree.args
    parameters = [p.arg for p in [*a.posonlyargs, *a.args, *a.kwonlyargs]]
    parameters += [p.arg for p in (a.vararg, a.kwarg) if p is not None]
    local = set(parameters) | {n for s in tree.body for n in bound_names(s)}
    free = {n.id for s in tree.body for n in ast.walk(s) if isinstance(n, ast.Name)} - local
    captured = [n for n in sorted(free) if not is_known(v := scope.lookup(n)) and v is not MISSING]
    found = Mutations(scope, parameters, regions, active, device)
    found.captured = frozenset(captured)
    for name in captured:
        if not callable(scope.lookup(name)):
            found.aliases[name] = frozenset({name})
    for name in more:
        found.aliases[name] = frozenset({name})
    found.run(tree.body)
    return found
