"""``loop_config`` before a loop of the host part: what it says of the loop that follows.

``configured_loops`` notes the calls at the loop and carries ``serialize`` out: such a loop becomes
the only iteration of a parallel one, wherever it stands. What ``serialize`` is may be known at run
time only: then both forms are there, and the host part chooses.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable

from weft.errors import KernelSyntaxError
from weft.frontend.names import (
    Scope,
    bound_names,
    own_nodes,
    parameter_names,
    read_first,
    statement_lists,
)
from weft.source import FunctionSource, copied_tree, subtree

HOST_LOOPS = ("serial", "static")
KEPT = "weft_kept"  # the attribute of a loop in order: the names that it hands on
EITHER = "weft_either"  # that of an ``if`` between Python's form of a loop and the compiled one
NOTED = "weft_noted"  # the attribute of a ``return`` in it
_HINTS = "weft_hints"  # the attribute of a loop that holds the calls before it
ITERATION = "weft_iteration"  # that of a loop inside of a device loop that stands for one


def hints_of(loop: ast.For) -> list[ast.Call]:
    """The calls of ``loop_config`` before ``loop``."""
    return getattr(loop, _HINTS, [])


def configured(loop: ast.For, option: str) -> ast.expr | None:
    """What the ``loop_config`` before ``loop`` gives for an option; None where it gives nothing."""
    given = [k.value for call in hints_of(loop) for k in call.keywords if k.arg == option]
    return given[-1] if given else None


def configured_loops(source: FunctionSource, scope: Scope) -> ast.FunctionDef:
    """The function with its ``loop_config`` calls carried out. Raises ``KernelSyntaxError``."""
    tree = source.tree
    new = copy.copy(tree)
    new.body = _Hints(source, scope, frozenset(parameter_names(tree.args))).block(tree.body)
    return new


class _Hints:
    def __init__(self, source: FunctionSource, scope: Scope, locals: frozenset[str]) -> None:
        self.source = source
        self.scope = scope
        self.locals = locals
        self.assigned = set(locals)  # certainly, by what stands before
        self.following: list[ast.stmt] = []  # what is carried out after a statement

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A statement list of the host part. Hints hold for the next loop of the same list."""
        result: list[ast.stmt] = []
        pending: list[ast.Call] = []
        outside, following = set(self.assigned), self.following
        for place, node in enumerate(body, 1):
            self.following = [*body[place:], *following]
            call = self._hint(node)
            if call is not None:
                pending.append(call)
            elif isinstance(node, ast.For):
                result += self._loop(node, pending)
                pending = []
                continue
            elif any(isinstance(inner, ast.For) for inner in subtree(node)):
                self._refuse(pending)
            result.append(self._inside(node))
            if not statement_lists(node):
                self.assigned |= set(bound_names(node))
        self._refuse(pending)
        self.assigned, self.following = outside, following
        return result

    def _hint(self, node: ast.stmt) -> ast.Call | None:
        """``node``, if it is a call of ``loop_config``."""
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call):
            return None
        return call if self.scope.called(call.func, self.locals) == "loop_config" else None

    def _refuse(self, pending: list[ast.Call]) -> None:
        wanted = _serialize(pending)
        if wanted is not None and not (isinstance(wanted, ast.Constant) and not wanted.value):
            raise KernelSyntaxError(
                "no loop follows `loop_config(serialize=...)` here", self.source.span(pending[-1]),
                help="write it on the line before the loop that it is about",
            )  # fmt: skip

    def _inside(self, node: ast.stmt) -> ast.stmt:
        """A host statement, with what it holds; a device loop's own loops run in order anyhow."""
        if isinstance(node, ast.For) and not self._is_host_loop(node):
            return node
        following = self.following
        if not isinstance(node, ast.If):  # it may begin again
            self.following = [node, *following]
        made = with_lists(node, self.block)
        self.following = following
        return made

    def _host_loop(self, node: ast.For) -> list[ast.stmt]:
        """A loop as Python runs it, or as the host part chooses: see ``element_loops``."""
        if self._is_host_loop(node):
            from weft.frontend.element_loops import of_elements  # where there are such loops

            tree = self.source.tree
            found = of_elements(node, tree, self.scope, self.assigned, self.following)
            if found is not None:
                ordered = self._in_order(copied_tree(node), found.kept)
                at = next(k for k, s in enumerate(ordered) if hasattr(s, KEPT))
                choice = ast.If(ast.Constant(False), [node], ordered[at:])
                setattr(choice, EITHER, found)
                ast.copy_location(choice.test, node)
                return [*ordered[:at], ast.copy_location(choice, node)]
        return [self._inside(node)]

    def _is_host_loop(self, node: ast.For) -> bool:
        return is_host_loop(node, self.scope, self.locals)

    def _loop(self, node: ast.For, hints: list[ast.Call]) -> list[ast.stmt]:
        if not hints:
            return self._host_loop(node)
        loop = copy.copy(node)
        setattr(loop, _HINTS, hints)
        wanted = _serialize(hints)
        if wanted is None:
            return self._host_loop(loop)
        if isinstance(wanted, ast.Constant):
            return self._in_order(loop) if wanted.value else self._host_loop(loop)
        # Two loops that share no node: each is a region of its own.
        ordered = self._in_order(copied_tree(loop))
        choice = ast.If(copied_tree(wanted), ordered, self._host_loop(loop))
        return [ast.copy_location(choice, hints[-1])]

    def _in_order(self, loop: ast.For, kept: frozenset[str] | None = None) -> list[ast.stmt]:
        """The loop in order: names that were assigned before and are read after it are handed on
        (``kept``, if that is known), and a ``return`` in it leaves the kernel."""
        end = loop.end_lineno or loop.lineno
        read = (n for n in subtree(self.source.tree) if isinstance(n, ast.Name))
        later = {n.id for n in read if isinstance(n.ctx, ast.Load) and n.lineno > end}
        if kept is None:  # what is read above it, too, where a loop of the host part is around it
            later |= read_first(self.following)
            kept = frozenset(self.assigned.intersection(bound_names(loop), later))
        before, after = returning(loop)
        made = once(loop)
        setattr(made, KEPT, kept | {name for s in before for name in bound_names(s)})
        return [*before, made, *after]


def _serialize(hints: list[ast.Call]) -> ast.expr | None:
    """What the hints give for ``serialize``; None where they say nothing of it."""
    for call in reversed(hints):
        for keyword in call.keywords:
            if keyword.arg == "serialize":
                return keyword.value
            if keyword.arg is None:  # loop_config(**options): asked at run time
                return ast.copy_location(ast.Attribute(call, "serialize", ast.Load()), call)
    return None


def once(loop: ast.For) -> ast.stmt:
    """The loop as the only iteration of a parallel one."""
    loop = copy.copy(loop)
    setattr(loop, ITERATION, True)
    once = ast.Call(ast.Name("range", ast.Load()), [ast.Constant(1)], [])
    new = ast.For(ast.Name("__weft_once__", ast.Store()), once, [loop], [])
    setattr(new, _HINTS, getattr(loop, _HINTS, []))
    setattr(new, KEPT, frozenset[str]())
    for node in (new, once, *subtree(once), new.target):
        ast.copy_location(node, loop)
    return new


def is_once(loop: ast.For) -> bool:
    """Whether ``once`` made ``loop``."""
    return hasattr(loop, KEPT)


def returning(loop: ast.For) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Has each ``return`` in ``loop`` know what a device loop does in its place (``noting``): it
    says which one it is and what it gives. The statements in front of the loop and behind it return
    that from the kernel. What a ``return`` gives that the loop does not assign is left to them."""
    found = [node for node in own_nodes(loop) if isinstance(node, ast.Return)]
    if not found:
        return [], []
    own = set(bound_names(loop))
    flag, before, after = "__weft_return__", list[ast.stmt](), list[ast.stmt]()
    made: list[ast.stmt] = []
    for k, node in enumerate(found, 1):
        items = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        noted: list[ast.stmt] = []
        given: list[ast.expr] = []
        for place, item in enumerate(items):
            read = {n.id for n in subtree(item) if isinstance(n, ast.Name)} if item else set()
            if item is None or own.isdisjoint(read):
                given.append(item or ast.Constant(None))
                continue
            name = f"__weft_value_{k}_{place}__"
            before.append(_assigned(name, ast.Constant(False)))
            noted.append(_assigned(name, item))
            given.append(ast.Name(name, ast.Load()))
        noted += [_assigned(flag, ast.Constant(k)), ast.Return(None)]
        setattr(node, NOTED, noted)
        made += noted
        value = ast.Tuple(given, ast.Load()) if isinstance(node.value, ast.Tuple) else given[0]
        test = ast.Compare(ast.Name(flag, ast.Load()), [ast.Eq()], [ast.Constant(k)])
        after.append(ast.If(test, [ast.Return(value)], []))
    before.append(_assigned(flag, ast.Constant(0)))
    for statement in (*before, *after, *made):
        for node in subtree(statement):
            if isinstance(node, ast.stmt | ast.expr) and not hasattr(node, "lineno"):
                ast.copy_location(node, loop)
    return before, after


def _assigned(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


class _Noting(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        return getattr(node, NOTED, [node])


def noting(body: list[ast.stmt]) -> list[ast.stmt]:
    """``body`` of a loop in order, each ``return`` replaced by what a device loop does for it."""
    if not any(isinstance(n, ast.Return) for statement in body for n in own_nodes(statement)):
        return body
    return [_Noting().visit(copied_tree(statement)) for statement in body]


Block = Callable[[list[ast.stmt]], list[ast.stmt]]


def is_host_loop(node: ast.For, scope: Scope, locals: frozenset[str] = frozenset()) -> bool:
    """Whether Python runs a loop of the host part, by what it goes over."""
    call = node.iter
    return isinstance(call, ast.Call) and scope.called(call.func, locals) in HOST_LOOPS


def rewritten(
    body: list[ast.stmt], scope: Scope, known: set[str],
    step: Callable[[ast.stmt, list[ast.stmt], set[str]], set[str]],
    changed: Callable[[ast.stmt], set[str]],
) -> list[ast.stmt]:  # fmt: skip
    """A statement list of the host part, and those in it, as ``step`` rewrites them: it appends to
    the list what becomes of a statement or of a device loop, and gives of the names ``known`` of
    there (a function's are its own) those that are so after it. ``changed`` are the names that may
    not be so any more where a statement with lists of its own has begun."""
    made: list[ast.stmt] = []
    for node in body:
        own = isinstance(node, ast.For) and not is_host_loop(node, scope)
        if statement_lists(node) and not own and not isinstance(node, ast.FunctionDef):
            after = known - changed(node)
            once = isinstance(node, ast.If | ast.With | ast.Match)
            inside = functools.partial(rewritten, scope=scope, known=known if once else after,
                                       step=step, changed=changed)  # fmt: skip
            made.append(with_lists(node, inside))
            known = after
        else:
            known = step(node, made, known)
    return made


def with_lists(node: ast.stmt, block: Block) -> ast.stmt:
    """``node`` with ``block`` of each statement list that it holds."""
    if not statement_lists(node):
        return node
    new = copy.copy(node)
    for name in ("body", "orelse", "finalbody"):
        if isinstance(getattr(node, name, None), list):
            setattr(new, name, block(getattr(node, name)))
    for name in ("handlers", "cases"):
        if hasattr(node, name):
            parts = [copy.copy(part) for part in getattr(node, name)]
            for part in parts:
                part.body = block(part.body)
            setattr(new, name, parts)
    return new
