"""Whether a loop over elements means the same compiled as it does to Python, in a given call.

The loop is carried out on kinds (``element_kinds``): integers are bounds, which begin as the
numbers of the call, so that subscripts are known to be in range, divisors not to be 0, and
integers to have 64 bits. Where any of that is not found, and where torch would have other dtypes,
``Stays`` is raised: Python runs the loop, as it is written. No condition is decided: both branches
are taken, with what the condition says of integers.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from weft.frontend import element_kinds as kinds
from weft.frontend.element_kinds import Element, Int, Kind, Stays
from weft.frontend.element_loops import ends_of
from weft.frontend.element_values import Env, Values
from weft.frontend.hints import NOTED

_ROUNDS = 6  # bounds are widened in the second: then kinds alone may change


def results(
    loop: ast.For, values: Mapping[str, Any], names: Sequence[str], shared: frozenset[str]
) -> list[Kind]:
    """The kinds of ``names`` after the loop. ``values``: those of the names that it reads.
    ``shared``: those that must not be elements where ``+=`` changes them. Raises ``Stays``."""
    proof = _Proof(values, shared)
    after = proof.loop(loop, dict(proof.start))
    return [after[name] for name in names]


class _Proof(Values):
    def __init__(self, values: Mapping[str, Any], shared: frozenset[str]) -> None:
        super().__init__(values)
        self.shared = shared
        self.left: list[dict[type[ast.stmt], list[Env]]] = []  # of the loops around, by statement
        self.returned: list[Env] = []

    # --- statements ------------------------------------------------------------------------------
    def loop(self, node: ast.For, env: Env) -> Env:
        """The outermost loop: what its names are when it has ended, also by ``return``. One that
        has no turn is left to Python, which knows what they were."""
        if self._range(ends_of(node), env) is None:
            raise Stays
        after = self._for(node, env)
        for each in self.returned:
            after = _joined(after, each)
        if after is None:
            raise Stays
        return after

    def block(self, body: Sequence[ast.stmt], env: Env | None) -> Env | None:
        """The names after ``body``; None where its end is not reached."""
        for node in body:
            if env is None:
                return None
            env = self.statement(node, env)
        return env

    def statement(self, node: ast.stmt, env: Env) -> Env | None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, value, env)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                before = self.name(name, env)
                if name in self.shared and isinstance(before, Element):
                    raise Stays
                env[name] = kinds.binary(op, before, self.value(value, env))
            case ast.AugAssign(target=ast.Subscript() as target, op=op, value=value):
                kinds.updated(op, self.element(target, env).dtype, self.value(value, env))
            case ast.If(test=test, body=body, orelse=orelse):
                self.tested(self.value(test, env))
                then = self.block(body, self.where(test, True, env))
                return _joined(then, self.block(orelse, self.where(test, False, env)))
            case ast.For():
                return self._for(node, env)
            case ast.While():
                return self._while(node, env)
            case ast.Break() | ast.Continue():
                self.left[-1][type(node)].append(dict(env))
                return None
            case ast.Return():
                for noted in getattr(node, NOTED, ()):
                    if isinstance(noted, ast.Assign):
                        self._assign(noted.targets[0], noted.value, env)
                self.returned.append(dict(env))
                return None
            case ast.Pass():
                pass
            case _:
                raise Stays
        return env

    def _assign(self, target: ast.expr, value: ast.expr, env: Env) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            found = [self.value(item, env) for item in value.elts]
            for item, kind in zip(target.elts, found, strict=True):
                assert isinstance(item, ast.Name)
                self._bind(item.id, kind, env)
            return
        kind = self.value(value, env)
        if isinstance(target, ast.Name):
            self._bind(target.id, kind, env)
        else:
            kinds.stored(self.element(target, env).dtype, kind)

    def _bind(self, name: str, kind: Kind, env: Env) -> None:
        if name in self.arrays:
            raise Stays
        env[name] = kind

    def _for(self, node: ast.For, env: Env) -> Env | None:
        assert isinstance(node.target, ast.Name)
        index = self._range(ends_of(node), env)
        name = node.target.id

        def turn(inside: Env) -> Env | None:
            if index is None:
                return None
            self._bind(name, index, inside)
            return self.block(node.body, inside)

        return self._repeated(node, env, turn, lambda inside: inside)

    def _while(self, node: ast.While, env: Env) -> Env | None:
        def turn(inside: Env) -> Env | None:
            self.tested(self.value(node.test, inside))
            return self.block(node.body, self.where(node.test, True, inside))

        def ended(inside: Env) -> Env | None:
            return self.where(node.test, False, inside)

        return self._repeated(node, env, turn, ended)

    def _repeated(self, node: ast.For | ast.While, env: Env, turn: Any, ended: Any) -> Env | None:
        """A loop: its names are what they are in any turn. (Where bounds were widened too far, what
        a turn leaves of them holds after it.)"""
        start = env
        for number in range(_ROUNDS):
            self.left.append({ast.Break: [], ast.Continue: []})
            back = turn(dict(env))
            left = self.left.pop()
            for each in left[ast.Continue]:
                back = _joined(back, each)
            grown = env if back is None else _joined(env, back)
            assert grown is not None
            if grown == env:
                exact = _joined({n: k for n, k in start.items() if n in env}, back)
                after = self.block(node.orelse, ended(dict(exact or env)))
                for each in left[ast.Break]:
                    after = _joined(after, each)
                return after
            if number:
                grown = {n: kinds.widened(env.get(n, k), k) for n, k in grown.items()}
            env = grown
        raise Stays

    def _range(self, ends: Sequence[ast.expr], env: Env) -> Int | None:
        """The numbers of a range; None where it has none."""
        found = [self.value(end, env) for end in ends]
        lower, upper, step = {1: (Int(0, 0), *found, Int(1, 1)), 2: (*found, Int(1, 1)),
                              3: tuple(found)}[len(found)]  # fmt: skip
        if not (isinstance(lower, Int) and isinstance(upper, Int) and isinstance(step, Int)):
            raise Stays
        if step.low != step.high or step.low == 0:
            raise Stays
        if lower.low == lower.high and upper.low == upper.high:
            numbers = range(lower.low, upper.low, step.low)
            return (
                Int(min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])) if numbers else None
            )
        if step.low > 0:
            low, high = lower.low, upper.high - 1
        else:
            low, high = upper.low + 1, lower.high
        return Int(low, high) if low <= high else None


def _joined(one: Env | None, other: Env | None) -> Env | None:
    """The names after two ways; those that have no value on one of them are not read after."""
    if one is None or other is None:
        return other if one is None else one
    return {n: kinds.join(k, other[n]) for n, k in one.items() if n in other}
