"""Which names a piece of a kernel reads and assigns, and what the names around it stand for."""

from __future__ import annotations

import ast
import builtins
import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

from weft.lang import names
from weft.lang.dtypes import DType
from weft.lang.vectors import MatrixType, VectorType
from weft.source import children, subtree
from weft.values import mutable

MISSING: Any = object()
SKIPPED = "weft_skipped"  # a mark of a name that is read, see `is_skipped`
SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Attributes of a constant's module whose members the compiler knows itself.
KNOWN_MODULES = ("math", "cmath", "torch", "numpy", "weft", "builtins", "operator", "functools")


@mutable
class Scope:
    """What the names that a function does not define stand for: its closure cells, its globals and
    the builtins, looked up now."""

    globals: dict[str, Any]
    cells: dict[str, types.CellType] = field(default_factory=dict)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Scope:
        code = getattr(function, "__code__", None)
        names = code.co_freevars if code else ()
        cells = getattr(function, "__closure__", None) or ()
        return cls(getattr(function, "__globals__", {}), dict(zip(names, cells, strict=True)))

    def lookup(self, name: str) -> Any:
        """The value of ``name``, or ``MISSING`` (an empty closure cell counts as missing)."""
        if name in self.cells:
            try:
                return self.cells[name].cell_contents
            except ValueError:
                return MISSING
        if name in self.globals:
            return self.globals[name]
        return names.member(builtins, name, MISSING)

    def resolve(self, node: ast.expr) -> Any:
        """The value of a dotted name, or ``MISSING`` where it is anything else."""
        if isinstance(node, ast.Name):
            return self.lookup(node.id)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            if base is not MISSING:
                return (
                    inspect.getattr_static(base, node.attr, MISSING)
                    if not isinstance(base, types.ModuleType)
                    else names.member(base, node.attr, MISSING)
                )
        return MISSING

    def called(self, node: ast.expr, locals: frozenset[str] = frozenset()) -> str:
        """The name of the function that ``node`` (the ``func`` of a call) stands for, or ""."""
        value = self.resolve(node) if root_name(node) not in locals else MISSING
        if value is not MISSING:
            return getattr(value, "__name__", "") or ""
        return dotted(node).rpartition(".")[2]


def arguments(node: ast.Call) -> list[ast.expr]:
    """What a call is given, by place and by name."""
    return [*node.args, *(k.value for k in node.keywords)]


def root_name(node: ast.AST) -> str | None:
    """``a`` of ``a.b.c``; None where ``node`` is no dotted name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def dotted(node: ast.AST) -> str:
    """``"a.b.c"`` of a dotted name, else ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def is_known(value: Any) -> bool:
    """True for what a kernel names but does not capture: modules, classes, builtins, and functions
    of weft itself."""
    if isinstance(value, types.ModuleType | type | types.BuiltinFunctionType | types.GenericAlias):
        return True
    if isinstance(value, DType | VectorType | MatrixType):
        return True
    if isinstance(value, types.FunctionType):
        module = value.__module__ or ""
        inner = getattr(value, "__wrapped__", None)
        return inner is None and module.partition(".")[0] in KNOWN_MODULES
    return type(value).__module__.startswith("torch._C") and callable(value)


def is_known_module(value: Any) -> bool:
    """True for a module whose members the compiler knows (so that they are no captured values)."""
    return isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in KNOWN_MODULES


def parameter_names(arguments: ast.arguments) -> list[str]:
    """The names of a function's parameters, ``*args`` and ``**kwargs`` last."""
    single = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [a.arg for a in (*single, arguments.vararg, arguments.kwarg) if a is not None]


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and what is in it, without the bodies of functions that are defined in it."""
    yield node
    for child in children(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from own_nodes(child)


def statement_lists(node: ast.AST) -> list[list[ast.stmt]]:
    """The statement lists inside a statement."""
    lists = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    lists += [handler.body for handler in getattr(node, "handlers", [])]
    lists += [case.body for case in getattr(node, "cases", [])]
    return [body for body in lists if isinstance(body, list) and body]


def bound_names(node: ast.AST) -> list[str]:
    """Names that ``node`` assigns in the enclosing function's scope, in order of appearance."""
    names: list[str] = []
    left = [node]  # no recursion: expressions may have thousands of levels
    while left:
        one = left.pop()
        if _bind(one, names):
            left += reversed(children(one))
    return names


def only_targets(body: Iterable[ast.stmt]) -> frozenset[str]:
    """The names that ``body`` assigns as targets of loops alone."""
    every, loops = Counter[str](), Counter[str]()
    for statement in body:
        every.update(bound_names(statement))
        for node in subtree(statement):
            if isinstance(node, ast.For):
                loops.update(bound_names(node.target))
    return frozenset(name for name, count in loops.items() if every[name] == count)


def own_of_loops(body: Sequence[ast.stmt], names: set[str]) -> set[str]:
    """Those of ``names`` that are targets of loops alone, each read in the body of its loop alone:
    no value goes from one of these loops to another."""
    names = names & only_targets(body)
    shared: set[str] = set()

    def visit(node: ast.AST, inside: frozenset[str]) -> None:
        before: list[ast.AST] = []
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in inside:
            shared.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.Lambda):  # called somewhere else, perhaps
            shared.update(n.id for n in subtree(node) if isinstance(n, ast.Name))
        own = frozenset[str]()
        if isinstance(node, ast.For):
            own = frozenset(bound_names(node.target)) & names
            shared.update(own & inside)  # the loop outside goes on with what this one leaves
            before = [node.target, node.iter, *node.orelse]
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            own = frozenset(n for g in node.generators for n in bound_names(g.target))
            visit(node.generators[0].iter, inside)
        for child in before:
            visit(child, inside)
        for child in children(node):
            if child not in before:
                visit(child, inside | own)

    for statement in body if names else ():
        visit(statement, frozenset())
    return names - shared


def _bind(node: ast.AST, names: list[str]) -> bool:
    """Adds what ``node`` itself assigns. Whether what is inside of it assigns there as well."""
    match node:
        case ast.Name(id=name, ctx=ctx):  # the most frequent one
            if not isinstance(ctx, ast.Load):
                names.append(name)
            return False
        case ast.alias(name=name, asname=asname):
            names.append(asname or name.partition(".")[0])
        case ast.FunctionDef(name=name):
            names.append(name)
            return False
        case ast.ExceptHandler(name=str(name)) | ast.MatchMapping(rest=str(name)):
            names.append(name)
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            names.append(name)
        case _ if isinstance(node, SCOPES):
            found = (n.target.id for n in subtree(node) if isinstance(n, ast.NamedExpr))
            names.extend(found)
            return False
        case _:
            pass
    return True


def stored_into(node: ast.AST) -> set[str]:
    """The names, dotted ones too, into whose elements ``node`` stores: ``v[i] = a``, ``v.x += a``,
    ``atomic_add(v[i], a)``; of ``s.v.x = a`` both ``s.v`` and ``s``."""
    found: set[str] = set()
    for child in subtree(node):
        place: ast.AST | None = None
        if isinstance(child, ast.Subscript | ast.Attribute) and isinstance(child.ctx, ast.Store):
            place = child
        elif isinstance(child, ast.Call) and child.args:
            name = getattr(child.func, "attr", getattr(child.func, "id", ""))
            place = child.args[0] if name.startswith("atomic_") else None
        while isinstance(place, ast.Subscript):
            place = place.value
            if root_name(place) is not None:
                found.add(dotted(place))
        while isinstance(place, ast.Attribute):
            place = place.value
            if root_name(place) is not None:
                found.add(dotted(place))
    return found


# The attribute of a call that holds the names of lists into which the called function stores.
STORES = "weft_stores"


def stored_lists(node: ast.AST) -> set[str]:
    """``stored_into(node)``, and the names of what holds another one: of ``row = t[k]`` and
    ``for row in t``, where elements of ``row`` are assigned, ``t``."""
    found = stored_into(node)
    for child in subtree(node):
        found |= getattr(child, STORES, set())
    held = [pair for child in subtree(node) for pair in _held(child)]
    while more := {holder for name, holder in held if name in found} - found:
        found |= more
    return found


def _held(node: ast.AST) -> list[tuple[str, str]]:
    """Pairs of names, of which the first may be that of an item of the second."""
    match node:
        case ast.Assign(targets=targets, value=value):
            return [pair for target in targets for pair in _named(target, value)]
        case ast.For(target=target, iter=over):
            read = [n.id for n in subtree(over) if isinstance(n, ast.Name)]
            return [(name, other) for name in bound_names(target) for other in read]
        case _:
            return []


def _named(target: ast.expr, value: ast.expr) -> list[tuple[str, str]]:
    """The same pairs of an assignment. Two names of one list are pairs both ways."""
    match target, value:
        case ((ast.Tuple() | ast.List()), (ast.Tuple() | ast.List())):
            pairs = zip(target.elts, value.elts, strict=False)
            return [found for pair in pairs for found in _named(*pair)]
        case ((ast.Tuple() | ast.List()), _):
            return [found for each in target.elts for found in _named(each, value)]
        case _, ast.IfExp(body=first, orelse=second):
            return [*_named(target, first), *_named(target, second)]
        case ast.Name(id=name), ast.Name(id=other):
            return [(name, other), (other, name)]
        case ast.Name(id=name), ast.Subscript():
            root = root_name(without_subscripts(value))
            return [(name, root)] if root else []
        case _:
            return []


def without_subscripts(node: ast.expr) -> ast.expr:
    """``a`` of ``a[i][j]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


@mutable
class Reads:
    """What a statement list reads that it has not certainly assigned before.

    ``chains`` are the expressions read: names, and the longest dotted names that are not called.
    """

    chains: list[ast.expr] = field(default_factory=list)

    def statements(self, body: list[ast.stmt], assigned: frozenset[str]) -> frozenset[str]:
        """Walks ``body``; returns the names certainly assigned after it."""
        for statement in body:
            assigned = self.statement(statement, assigned)
        return assigned

    def statement(self, node: ast.stmt, assigned: frozenset[str]) -> frozenset[str]:
        match node:
            case ast.For():
                self.expression(node.iter, assigned)
                inside = assigned | frozenset(bound_names(node.target))
                self.target(node.target, assigned)
                self.statements(node.body, inside)
                self.statements(node.orelse, assigned)
                return assigned
            case ast.While():
                self.expression(node.test, assigned)
                self.statements(node.body, assigned)
                self.statements(node.orelse, assigned)
                return assigned
            case ast.If():
                self.expression(node.test, assigned)
                then = self.statements(node.body, assigned)
                otherwise = self.statements(node.orelse, assigned)
                if _leaves(node.body):
                    return otherwise
                if node.orelse and _leaves(node.orelse):
                    return then
                return then & otherwise
            case ast.FunctionDef():
                for default in (*node.args.defaults, *node.args.kw_defaults):
                    if default is not None:
                        self.expression(default, assigned)
                inner = {n for s in node.body for n in bound_names(s)}
                own = frozenset({*parameter_names(node.args), *inner})
                self.statements(node.body, assigned | own)
                return assigned | {node.name}
            case ast.Match():
                self.expression(node.subject, assigned)
                for case in node.cases:
                    inside = assigned | frozenset(bound_names(case.pattern))
                    self.expression(case.pattern, assigned)
                    if case.guard is not None:
                        self.expression(case.guard, inside)
                    self.statements(case.body, inside)
                return assigned
            case ast.Assign():
                self.expression(node.value, assigned)
                for target in node.targets:
                    self.target(target, assigned)
                return assigned | frozenset(n for t in node.targets for n in bound_names(t))
            case ast.AnnAssign():
                self.expression(node.annotation, assigned)
                if node.value is None:
                    return assigned
                self.expression(node.value, assigned)
                self.target(node.target, assigned)
                return assigned | frozenset(bound_names(node.target))
            case ast.AugAssign():
                if isinstance(node.target, ast.Name):
                    read = ast.Name(node.target.id, ast.Load())
                    self.name(ast.copy_location(read, node.target), assigned)
                self.target(node.target, assigned)
                self.expression(node.value, assigned)
                return assigned | frozenset(bound_names(node.target))
            case _:
                pass
        for child in children(node):
            if isinstance(child, ast.stmt):
                self.statement(child, assigned)
            else:
                self.expression(child, assigned)
        return assigned | frozenset(
            name for c in children(node) if isinstance(c, ast.expr) for name in bound_names(c)
        )

    def target(self, node: ast.expr, assigned: frozenset[str]) -> None:
        """The reads within an assignment's target: tensors and subscripts."""
        if isinstance(node, ast.Name):
            return
        if isinstance(node, ast.Tuple | ast.List):
            for item in node.elts:
                self.target(item, assigned)
        elif isinstance(node, ast.Starred):
            self.target(node.value, assigned)
        elif isinstance(node, ast.Attribute):
            self.expression(node.value, assigned)
        else:
            self.expression(node, assigned)

    def expression(self, node: ast.AST, assigned: frozenset[str]) -> None:
        match node:
            case ast.Name():
                if isinstance(node.ctx, ast.Load):
                    self.name(node, assigned)
                return
            case ast.Attribute() if (root := root_name(node)) is not None:
                self.chain(node, root, assigned)
                return
            case ast.Call(func=ast.Attribute() as func) if (root := root_name(func)) is not None:
                self.chain(func.value, root, assigned)
                for argument in arguments(node):
                    self.expression(argument, assigned)
                return
            case ast.NamedExpr():
                self.expression(node.value, assigned)
                return
            case _:
                pass
        if isinstance(node, SCOPES):
            assigned |= frozenset(_own_names(node))
        for child in children(node):
            self.expression(child, assigned)

    def chain(self, node: ast.expr, root: str, assigned: frozenset[str]) -> None:
        if root not in assigned:
            self.chains.append(node)

    def name(self, node: ast.Name, assigned: frozenset[str]) -> None:
        self.chain(node, node.id, assigned)


def _own_names(scope: ast.AST) -> Iterator[str]:
    """The names that a lambda or a comprehension binds for itself."""
    if isinstance(scope, ast.Lambda):
        yield from parameter_names(scope.args)
    else:
        for generator in scope.generators:  # type: ignore[attr-defined]
            yield from bound_names(generator.target)


def _leaves(body: list[ast.stmt]) -> bool:
    """True where the end of ``body`` is never reached."""
    return bool(body) and isinstance(body[-1], ast.Continue | ast.Break | ast.Return | ast.Raise)


def read_first(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that ``statements`` read before they certainly assign them."""
    reads = Reads()
    reads.statements([*statements], frozenset())
    return {root for chain in reads.chains if (root := root_name(chain)) is not None}


def is_skipped(node: ast.Name) -> bool:
    """Whether it is read where what assigns it by ``:=`` may have been skipped."""
    return hasattr(node, SKIPPED)
