"""What is known of local names at a statement, and what has been found of expressions there.

An answer is kept until something changes that it may depend on. Without that, an expression that is
asked about twice by the one around it would be looked at twice as often with every level.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Generator
from dataclasses import field
from typing import Any, TypeVar

from weft.frontend.callees import NONE, Objects
from weft.frontend.names import Scope
from weft.values import mutable

T = TypeVar("T")


@mutable
class State:
    """What is known at the statement that is looked at. What is assigned from outside, and not by
    a method, is followed by ``forget``."""

    scope: Scope
    active: frozenset[Any]
    device: bool  # in a device loop: `s += x` on a name makes a new value
    now: dict[str, frozenset[str]]  # what each name may alias here, and, below, anywhere
    held: dict[str, Objects]  # what may be called, or hold it
    captured: frozenset[str]  # names from around the function, with aliases
    closed: frozenset[str]  # names that inner functions read
    names_out: bool  # the text has the word "out", as an argument or a key
    aliases: dict[str, frozenset[str]]
    containers: set[str] = field(default_factory=set)  # names of lists, dicts and the like
    written: set[str] = field(default_factory=set)
    repeated: bool = False  # in statements that may run more than once, or in part
    applying: list[ast.AST] = field(default_factory=list)
    inside: dict[Any, Any] = field(default_factory=dict)  # of functions: see ``mutation._inside``
    memory: dict[Any, Any] = field(default_factory=dict)  # answers that hold as things stand
    lasting: int = 0  # counts the changes that outlast the call of a function of the text

    def is_local(self, name: str) -> bool:
        return name in self.held or (name in self.now and name not in self.captured)

    def forget(self) -> None:
        self.memory = {}

    def put(self, name: str, roots: frozenset[str], found: Objects) -> None:
        if self.repeated or name in self.closed:
            roots |= self.now.get(name, NONE)
        aliases, held = self.aliases.get(name, NONE), self.held.get(name)
        if self.now.get(name) != roots or held is None or not found.keys() <= held.keys():
            self.forget()
        self.lasting += not roots <= aliases
        self.now[name] = roots
        self.aliases[name] = aliases | roots
        self.held[name] = (held or {}) | found

    def contain(self, name: str) -> None:
        """``name`` is that of a list, dict or the like."""
        if name not in self.containers:
            self.containers.add(name)
            self.lasting += 1
            self.forget()

    def rebind(self, now: dict[str, frozenset[str]]) -> None:
        """From here on the names alias what ``now`` says."""
        if now != self.now:
            self.forget()
        self.now = now

    @contextlib.contextmanager
    def called(
        self, function: ast.AST, bound: dict[str, tuple[frozenset[str], Objects]]
    ) -> Generator[None]:
        """In the body of ``function``, a part of the text, with its parameters ``bound``."""
        before = self.now, self.held, self.repeated
        memory, lasting = self.memory, self.lasting
        self.now = self.now | {name: roots for name, (roots, _) in bound.items()}
        self.held = self.held | {name: found for name, (_, found) in bound.items()}
        self.repeated = True
        self.applying.append(function)
        self.forget()
        yield
        self.applying.pop()
        self.now, self.held, self.repeated = before
        self.memory = memory if self.lasting == lasting else {}

    def snapshot(self) -> Any:
        return dict(self.now), set(self.written), {n: set(held) for n, held in self.held.items()}


def remembered(
    method: Callable[[Any, ast.expr | None], T],
) -> Callable[[Any, ast.expr | None], T]:
    """A method of an object with a ``State`` as ``at`` that looks at an expression once, as long as
    nothing changes. What it finds while something changes is not kept."""

    @functools.wraps(method)
    def once(self: Any, node: ast.expr | None) -> T:
        memory, key = self.at.memory, (method, node)
        if key in memory:
            return memory[key]
        found = method(self, node)
        if self.at.memory is memory:
            memory[key] = found
        return found

    return once
