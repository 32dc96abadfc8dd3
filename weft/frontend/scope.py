"""Names while a kernel is lowered: frames, environments, and which names some code assigns."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from enum import Enum
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from weft.errors import KernelNameError
from weft.frontend.kinds import Operand, RegionChanged, Static, Unbound
from weft.frontend.names import bound_names, dotted, is_skipped, own_of_loops
from weft.frontend.specs import constant_key
from weft.lang import names
from weft.lang.elements import Elementwise
from weft.source import FunctionSource, Known, Span, children, known_of, subtree
from weft.values import frozen, mutable

ABSENT: Any = object()  # what a guard reads where there is nothing
OF = "()"  # in a ``Static.key``: what follows is a variable from around a function, or a default


@mutable
class Guard:
    """A value that was read at compile time from something that may change: recompile if it has.

    It is an attribute of ``owner``, or an ``item`` of that dict (``ABSENT``: there was none). The
    specialisation holds while it equals ``value``.
    """

    owner: Any
    name: str
    value: Any
    item: bool = False
    where: tuple[Any, ...] = ()  # ``Static.key`` of a number
    key: Any = field(init=False)  # of a container, which may change and stay the same object

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", constant_key(self.value))

    @property
    def place(self) -> tuple[int, str, bool]:
        """Equal for guards of one thing."""
        return id(self.owner), self.name, self.item

    @property
    def by_identity(self) -> bool:
        """Whether the same object is the same value: it is no container, whose items change."""
        return not isinstance(self.value, tuple | list | dict | set | Elementwise)

    def read(self) -> Any:
        """The present value."""
        if self.item:
            return self.owner.get(self.name, ABSENT)
        try:
            return getattr(self.owner, self.name, ABSENT)
        except ValueError:  # an empty closure cell
            return ABSENT

    def holds(self) -> bool:
        now = self.read()
        return (now is self.value and self.by_identity) or constant_key(now) == self.key


@frozen
class Asked:
    """What is the owner of a guard on what methods of Python's say of objects, by ``answer``."""

    ask: Callable[[], Any]

    @property
    def answer(self) -> bool:
        return bool(self.ask())


def answered(
    guards: list[Guard], ask: Callable[[], Any], values: Sequence[Any], methods: Sequence[str]
) -> bool:
    """What ``ask`` says of ``values``, whether they are true or equal, say: held by a guard where
    the class of one has such a method that is written in Python, whose answer may change."""
    asked = Asked(ask)
    found = asked.answer
    kinds = [type(value) for value in values if not isinstance(value, Enum)]
    if any(isinstance(inspect.getattr_static(k, m, None), FunctionType)
           for k in kinds for m in methods):  # fmt: skip
        guards.append(Guard(asked, "answer", found))
    return found


def place_of(owner: Any, key: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Where an attribute of ``owner``, which was found at ``key``, stands (see ``Static.key``)."""
    if isinstance(owner, ModuleType):
        return ("global", id(vars(owner)), name)
    return (*(key or (id(owner),)), name)


class TensorReached(RegionChanged):
    """A region uses a tensor that it does not get as an argument: one that a function that it calls
    finds among its globals, or in an object. Who called ``lower`` adds it and tries again."""

    def __init__(self, name: str, found: Static) -> None:
        super().__init__(name)
        self.name = name
        self.found = found


@mutable
class Frame:
    """One function being lowered: the kernel's loop, or a function that is inlined into it."""

    source: FunctionSource
    path: tuple[Any, ...]  # the call sites that led here: names variables across repeated lowering
    env: dict[str, Operand] = field(default_factory=dict)
    arguments: dict[str, Operand] = field(default_factory=dict)  # a region's arguments
    counts: dict[str, int] = field(default_factory=dict)  # how often each name is assigned
    # Names that several loops have each for itself, with the place of the last one that began.
    own: dict[str, tuple[int, ...]] = field(default_factory=dict)
    turns: tuple[int, ...] = ()  # of unrolled loops around: calls in each are sites of their own
    targets: set[str] = field(default_factory=set)  # of comprehensions, which are their own
    stored: set[str] = field(default_factory=set)  # names into whose elements is stored
    guarded: set[str] = field(default_factory=set)  # names with a value only where a flag says so
    grown: set[str] = field(default_factory=set)  # names of lists that grow or shrink
    # Unsigned totals that a loop subtracts from, and whether it adds nothing to them.
    differences: dict[str, bool] = field(default_factory=dict)
    conditions: set[str] = field(default_factory=set)  # totals of `and` and `or`
    around: Frame | None = None  # of a function that is defined in a device loop
    tree: ast.AST | None = None  # its own definition; else that of ``source``
    locals: frozenset[str] | None = None  # the names that it assigns, once somebody has asked
    given: frozenset[str] = frozenset()  # the parameters of an inlined function
    shared: frozenset[str] = frozenset()  # of these, the caller's own objects
    changed: set[str] = field(default_factory=set)  # of these, those with a new member
    caller: Frame | None = None
    imported: frozenset[str] = frozenset()  # variables of ``around`` that hold objects
    changed_objects: set[frozenset[Any]] = field(default_factory=set)  # see objects.py
    # Of the parameters that hold the caller's: the objects that are one of several, the body.
    lent: dict[str, tuple[frozenset[Any], Sequence[ast.AST]]] = field(default_factory=dict)
    unseen: frozenset[Any] = frozenset()  # what may be these, and is changed by other names
    moves: Any = None  # of its lists that change places (``moves.Moves``)
    skipped: set[str] = field(default_factory=set)  # names that `:=` may not have assigned
    in_part: bool = False  # of a statement, which may not run or run several times: see ``inline``
    read: list[Operand] = field(default_factory=list)  # by the expression that statements stand for
    called_at: Span | None = None  # the user's call that led to a function of weft's own
    origin: Static | None = None  # the function that is lowered, where an argument is or holds it
    cells: dict[int, Static] = field(default_factory=dict)  # of closures, as they were found first

    def check_assigned(self, node: ast.Name) -> None:
        """Refuses to read a name that a part of an expression assigns, which may be skipped."""
        if node.id in self.skipped and is_skipped(node):
            raise KernelNameError(
                f"`{node.id}` may have no value here: `:=` assigns it in a part of an expression "
                "that is not always evaluated", self.called_at or self.source.span(node),
                help=f"give `{node.id}` a value before",
            )  # fmt: skip

    def lookup(self, name: str, span: Span, guards: list[Guard]) -> Operand:
        operand = self.env.get(name)
        if operand is None:
            operand = self.arguments.get(name)
        if operand is None and name in self._assigned():
            raise KernelNameError(
                f"`{name}` may have no value here: it is assigned after this, in another turn or "
                "in another branch", span, help=f"give `{name}` a value before",
            )  # fmt: skip
        if operand is None and self.around is not None:
            return self.around.lookup(name, span, guards)
        if operand is None:
            return self._outer(name, span, guards)
        if isinstance(operand, Unbound):
            raise KernelNameError(
                f"`{name}` may have no value here: {operand.reason}", span,
                help=f"give `{name}` a value before",
            )  # fmt: skip
        return operand

    def _assigned(self) -> frozenset[str]:
        """The names that the function assigns, none of which is that of something outside."""
        if self.locals is None:
            body = getattr(self.tree or self.source.tree, "body", [])
            parts: list[ast.AST] = body if isinstance(body, list) else [body]
            names = {name for part in parts for name in bound_names(part)}
            for node in (node for part in parts for node in subtree(part)):
                if isinstance(node, ast.Global | ast.Nonlocal):
                    names.difference_update(node.names)
            self.locals = frozenset(names)
        return self.locals

    def _outer(self, name: str, span: Span, guards: list[Guard]) -> Operand:
        """A closure variable, a global or a builtin: its value now, guarded against change."""
        function = self.source.function
        code = function.__code__
        if function.__closure__ and name in code.co_freevars:
            cell = function.__closure__[code.co_freevars.index(name)]
            found = self.cells.setdefault(id(cell), _in_cell(cell, name, self.origin))
            if not isinstance(found.value, torch.Tensor):  # an argument, which each call reads
                guards.append(Guard(cell, "cell_contents", found.value, where=("cell", id(cell))))
            return Static(found.value, found.key, found.read)
        scope = function.__globals__
        if name in scope:
            value, where = scope[name], ("global", id(scope), name)
            if not isinstance(value, torch.Tensor):
                guards.append(Guard(scope, name, value, item=True, where=where))
            return Static(value, where, lambda _: scope.get(name))
        value = names.member(builtins, name, ABSENT)
        if value is not ABSENT:
            if value is not range:  # the word of loops, which the host part is split by
                guards.append(Guard(scope, name, ABSENT, item=True))
            return Static(value)
        raise KernelNameError(
            f"the name `{name}` is not known", span,
            help="a kernel sees its parameters, its own variables, and the names of its module",
        )  # fmt: skip


def cells_of(function: Any) -> dict[int, Static]:
    """What the kernel ``function`` has in its own closure, which its host part passes."""
    cells = [c for c in function.__closure__ or () if _contents(c) is not ABSENT]
    return {id(cell): _in_cell(cell, "", None) for cell in cells}


def _contents(cell: CellType) -> Any:
    return Guard(cell, "cell_contents", None).read()


def _in_cell(cell: CellType, name: str, origin: Static | None) -> Static:
    """What is in ``cell``. A function that is an argument is another one at the next call, perhaps:
    its cell is looked for in that."""
    value, source = cell.cell_contents, origin.read if origin else None
    if origin is None or source is None or type(value) in (int, float):
        return Static(value, ("cell", id(cell)), lambda _: cell.cell_contents)
    return Static(value, (*origin.key, OF, name), lambda args: _enclosed(source(args), name))


def _enclosed(function: Any, name: str) -> Any:
    """The variable ``name`` in the closure of ``function``; None where there is none."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    if name not in names:
        return None
    return _contents(function.__closure__[names.index(name)])


def default_of(origin: Static, parameter: str, value: Any) -> Static:
    """The default ``value`` of a parameter of ``origin``, known by where it stands if it is that of
    an argument."""
    source = origin.read
    if source is None or not isinstance(value, torch.Tensor):
        return Static(value)

    def read(args: Sequence[Any]) -> Any:
        function = source(args)
        if not isinstance(function, FunctionType):
            return None
        found = inspect.signature(function).parameters.get(parameter)
        return found and found.default

    return Static(value, (*origin.key, OF, parameter), read)


# The attribute of a call that holds the names of the caller's that the called function assigns, and
# of a statement that holds those of other variables that it changes.
REFERENCES = "weft_references"


def noted(node: ast.AST, names: set[str]) -> bool:
    """Has ``assigned`` know that ``node`` assigns ``names``. Whether it did not: branches and loops
    around were lowered without knowing."""
    known: set[str] = getattr(node, REFERENCES, set())
    if names <= known:
        return False
    stands(node, REFERENCES, names | known)
    return True


_changes = [0]  # what may change what ``assigned`` finds


def stands(node: ast.AST, mark: str, value: Any) -> None:
    """Sets the attribute ``mark`` of ``node``: what is lowered in its place, or what ``noted``
    knows."""
    _changes[0] += 1
    setattr(node, mark, value)


def referenced(node: ast.AST) -> set[str]:
    """The names that ``node`` assigns by calls, in what is lowered in its place, too: these are
    calls of their own."""
    found = {*getattr(node, REFERENCES, ())}
    for mark in _IN_PLACE:
        stands: ast.AST | list[ast.stmt] = getattr(node, mark, [])
        for part in stands if isinstance(stands, list) else [stands]:
            for inner in subtree(part):
                found |= referenced(inner)
    return found


# Where a node has what is lowered in its place.
_IN_PLACE = ("weft_own", "weft_statements", "weft_listed", "weft_pairs", "weft_generator",
             "weft_loop")  # fmt: skip
# What may assign names.
_ASSIGNING = (ast.NamedExpr, ast.Call, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def assigning(node: ast.expr) -> list[ast.expr]:
    """The expressions in ``node`` that may assign names. They are looked for once."""
    found: list[ast.expr] | None = getattr(node, "weft_assigning", None)
    if found is None:
        found = [n for n in subtree(node) if isinstance(n, _ASSIGNING)]
        node.weft_assigning = found  # type: ignore[attr-defined]
    return found


def _is_static(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "static"


class _Assigned:
    """The names that statements assign: how often they do, and which of them are the indices of
    loops over ``weft.static(...)``."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.unrolled = set[str]()

    def add(self, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def join(self, other: _Assigned) -> None:
        for name, count in other.counts.items():
            self.add(name, count - (name in other.unrolled and name in self.unrolled))
        self.unrolled |= other.unrolled

    def target(self, node: ast.expr) -> None:
        if isinstance(node, ast.Name):
            self.add(node.id, 1)
        elif isinstance(node, (ast.Tuple, ast.List)):
            for item in node.elts:
                self.target(item)
        elif isinstance(node, ast.Starred):
            self.target(node.value)
        elif isinstance(node, (ast.Subscript, ast.Attribute)):
            # v[0] = x and s.v.x = y make new values of v and s; stores to tensors do no harm here.
            base: ast.expr = node
            while isinstance(base, ast.Subscript | ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name):
                self.add(base.id, 2)

    def visit(self, node: ast.AST) -> None:
        """Of a branch the names are kept: a chain of them asks each for those of all below it."""
        if not isinstance(node, ast.If):
            self._visit(node)
            return
        own: _Assigned | None = known_of(node, "weft_assigned", _changes[0])
        if own is None:
            own = _Assigned()
            own._visit(node)
            node.weft_assigned = Known(node, own, _changes[0])  # type: ignore[attr-defined]
        self.join(own)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for t in node.targets:
                self.target(t)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.target(node.target)
        elif isinstance(node, ast.AugAssign):
            self.target(node.target)
            self.target(node.target)
        elif isinstance(node, ast.For):
            if not _is_static(node.iter) or not isinstance(node.target, ast.Name):
                self.target(node.target)
            elif node.target.id not in self.unrolled:
                self.unrolled.add(node.target.id)
                self.target(node.target)
        elif isinstance(node, ast.FunctionDef):
            self.add(node.name, 1)
            return
        for name in sorted(referenced(node)):
            self.add(name, 2)
        if flag := getattr(node, "weft_break", ""):
            self.add(flag, 2)
        for name in getattr(node, "weft_certain", ()):  # it has some value before the loop
            self.add(name, 1)
        for child in children(node):
            if isinstance(child, ast.stmt):
                self.visit(child)
            elif isinstance(child, ast.expr):
                for inner in assigning(child):
                    if isinstance(inner, ast.NamedExpr):
                        self.target(inner.target)
                    for name in sorted(referenced(inner)):
                        self.add(name, 2)


def assigned(nodes: Iterable[ast.AST]) -> dict[str, int]:
    """The names that statements assign, in order of first appearance, with how often they do. All
    unrolled loops over ``weft.static(...)`` count as one: the index is known in each."""
    found = _Assigned()
    for node in nodes:
        found.visit(node)
    return found.counts


def note_counts(frame: Frame, nodes: Sequence[ast.stmt]) -> None:
    """Notes how often ``nodes``, the body of ``frame``, assign each name. One that several loops
    have each for itself counts once: in each of them it may be known at compile time."""
    frame.counts = assigned(nodes)
    several = {name for name, count in frame.counts.items() if count > 1}
    frame.own = dict.fromkeys(own_of_loops(nodes, several), ())
    frame.counts |= dict.fromkeys(frame.own, 1)
