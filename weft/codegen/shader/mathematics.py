"""Functions of float32 as text: each is in a module once, however often it is called."""

from __future__ import annotations

import functools

from weft.codegen.shader.dialects import MSL, Dialect
from weft.codegen.shader.expand import WRITTEN_OUT, expand
from weft.codegen.shader.functions import functions
from weft.codegen.shader.printer import Printer
from weft.codegen.shader.rules import Expressions, choice
from weft.codegen.shader.runs import Forms
from weft.ir.types import ScalarType, f32

Needs = frozenset[tuple[str, ScalarType]]


def all_functions(needs: set[tuple[str, ScalarType]], dialect: Dialect) -> list[str]:
    """The text of functions, each behind those that it calls."""
    own = {name for name, t in needs if t is f32 and name in WRITTEN_OUT}
    found = [_function(name, dialect) for name in sorted(own)]
    rest = {need for need in needs if need[0] not in own}.union(*(inner for _, inner in found))
    return [*functions(rest, dialect), *(text for text, _ in found)]


@functools.cache
def _function(name: str, dialect: Dialect) -> tuple[str, Needs]:
    """Its text, and what it calls. Drivers take choices in it for minima and maxima, which are no
    NaN where one of two numbers is: what is NaN is that of a function of one number, too."""
    function = expand(name)
    single = len(function.args) == 1 and dialect is not MSL
    e = Expressions(dialect, numbers=single)
    names = {arg: arg.name for arg in function.args}
    printer = Printer(function, dialect, e, (1, 1, 1), 0, {}, names, {}, set(), {}, Forms(), False)
    lines = [f"  {line}" for line in printer.run().body]
    args = ", ".join(f"{arg}: f32" for arg in names.values())
    head = dialect.function(f"fn {name}_f32({args}) -> f32 {{")
    (value,) = function.body.terminator.operands
    result = printer.of(value)
    if single:
        (arg,) = names.values()
        result = choice(e.call("isnan", f32, arg), arg, result)
    return "\n".join([head, *lines, f"  return {result};", "}"]), frozenset(e.needs)
