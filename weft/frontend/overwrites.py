"""In which order the host part of a kernel reads and writes memory: what a device loop has read may
be overwritten later, by another loop or by a statement of the host part.

From the syntax tree alone, and conservatively: names may share memory as ``mutation.py`` says, both
branches of an ``if`` are taken, and what stands in one host loop comes before and after itself.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Container, Iterator, Sequence

from weft.errors import Span
from weft.frontend.callees import PLAIN_ATTRIBUTES
from weft.frontend.host import IN_PLACE
from weft.frontend.mutation import Mutations, mutations
from weft.frontend.names import Scope, bound_names
from weft.settings import deeply
from weft.source import FunctionSource, children, subtree
from weft.values import frozen


@frozen
class Later:
    """The names whose memory may be overwritten after a loop has read it: by device loops, or by
    statements of the host part."""

    by_loops: frozenset[str]
    by_host: frozenset[str]


@frozen
class _Event:
    """A device loop, or what the host part does in one statement. ``loops``: the host loops around
    it. ``reads`` and ``writes``: the roots of what it mentions and writes."""

    region: ast.AST | None
    loops: frozenset[ast.AST]
    reads: frozenset[str]
    writes: frozenset[str]


class Order:
    """The order in which the host part of a kernel reads and writes. ``regions``: its device loops.
    It is found out when it is asked for."""

    def __init__(self, source: FunctionSource, scope: Scope, regions: Container[ast.AST]) -> None:
        self.source, self.tree, self.scope, self.regions = source, source.tree, scope, regions

    @functools.cached_property
    def span(self) -> Span:
        return self.source.span(self.tree)

    @functools.cached_property
    def _local(self) -> set[str]:
        """The names that the kernel assigns, and which are none of its parameters."""
        assigned = {n for s in self.tree.body for n in bound_names(s)}
        return assigned - {a.arg for a in subtree(self.tree.args) if isinstance(a, ast.arg)}

    @functools.cached_property
    @deeply
    def _mutations(self) -> Mutations:
        return mutations(self.tree, self.scope, self.regions, self._local)

    @functools.cached_property
    @deeply
    def _events(self) -> list[_Event]:
        return list(self._walk(self.tree.body, frozenset()))

    def _walk(self, body: list[ast.stmt], loops: frozenset[ast.AST]) -> Iterator[_Event]:
        for node in body:
            if node in self.regions:
                yield self._event([node], loops, node)
                for name in getattr(node, IN_PLACE, ()):  # which the host part copies back
                    yield _Event(None, loops, frozenset(), self._roots(name))
                continue
            parts = children(node)
            blocks = [p for p in parts if isinstance(p, ast.ExceptHandler | ast.match_case)]
            inner = [p for p in parts if isinstance(p, ast.stmt)]
            if not blocks and not inner:
                yield self._event([node], loops)
                continue
            head = [p for p in parts if not isinstance(p, ast.stmt) and p not in blocks]
            around = loops | {node} if isinstance(node, ast.For | ast.While) else loops
            yield self._event(head, around)
            for block in (inner, *(b.body for b in blocks)):
                yield from self._walk(block, around)

    def _event(
        self, nodes: list[ast.AST], loops: frozenset[ast.AST], region: ast.AST | None = None
    ) -> _Event:
        found = self._mutations
        writes = frozenset[str]().union(*map(found.writes, nodes))
        names = {n for node in nodes for n in _mentioned(node)}
        return _Event(region, loops, frozenset[str]().union(*map(self._roots, names)), writes)

    def _roots(self, name: str) -> frozenset[str]:
        return self._mutations.at.aliases.get(name, frozenset())

    def _around(self, region: ast.AST, forwards: bool) -> Iterator[_Event]:
        """What may come after a device loop, or before it."""
        events = self._events
        at = next(k for k, e in enumerate(events) if e.region is region)
        for k, event in enumerate(events):
            if (k > at if forwards else k < at) or event.loops & events[at].loops:
                yield event

    def later(self, region: ast.AST, names: Sequence[str]) -> Later:
        """Which of ``names`` (dotted, as a device loop knows its arguments and results) may share
        memory with what is overwritten after the loop ``region``. A kernel that writes to its own
        arguments may be called again."""
        loops: set[str] = set()
        host: set[str] = set()
        for event in self._events:
            (host if event.region is None else loops).update(event.writes - self._local)
        for event in self._around(region, True):
            (host if event.region is None else loops).update(event.writes)
        return Later(
            frozenset(n for n in names if self._roots(n.partition(".")[0]) & loops),
            frozenset(n for n in names if self._roots(n.partition(".")[0]) & host),
        )

    def written(self, region: ast.AST, names: Sequence[str]) -> set[int]:
        """The places of those of ``names`` whose memory the loop ``region`` may write to."""
        writes = next(event.writes for event in self._events if event.region is region)
        return {k for k, n in enumerate(names) if self._roots(n.partition(".")[0]) & writes}

    def apart(self, names: Sequence[str]) -> bool:
        """Whether no two of ``names`` may share memory by what the host part does."""
        roots = [self._roots(n.partition(".")[0]) for n in names]
        return sum(map(len, roots)) == len(frozenset[str]().union(*roots))

    def met_before(self, region: ast.AST, name: str) -> bool:
        """Whether something that comes before the loop ``region`` may have read ``name``."""
        root = name.partition(".")[0]
        if region in self.tree.body:  # what is common, in microseconds
            before = self.tree.body[: self.tree.body.index(region)]  # pyright: ignore[reportArgumentType]
            mentioned = [set(_mentioned(node)) for node in before]
            makers = [m for node, m in zip(before, mentioned, strict=True)
                      if root in bound_names(node)]  # fmt: skip
            if root not in set().union(*mentioned) and not set().union(*makers) & self._local:
                return False
        roots = self._roots(root)
        return any(event.reads & roots for event in self._around(region, False))


def _mentioned(node: ast.AST) -> Iterator[str]:
    """The names that are read in ``node``, but for their shapes and the like."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    if isinstance(node, ast.Attribute) and node.attr in PLAIN_ATTRIBUTES:
        return
    if isinstance(node, ast.AugAssign):
        yield from (n.id for n in subtree(node.target) if isinstance(n, ast.Name))
    for child in children(node):
        yield from _mentioned(child)
