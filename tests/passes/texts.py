"""Comparing functions as texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.ir.core import Function
from weft.ir.text import parse_function, print_function
from weft.ir.verify import verify
from weft.passes.run import Pass, run


def parsed(text: str) -> Function:
    """The function of ``text``, in which scf.yield without operands may be left out, as in MLIR."""
    lines: list[str] = []
    opened: list[str] = []
    for line in text.splitlines():
        code = line.strip()
        if code.startswith("}"):
            op = opened.pop() if opened else ""
            if op in ("scf.for", "scf.if") and not lines[-1].strip().startswith("scf.yield"):
                lines.append("scf.yield")
            if code.endswith("{"):
                opened.append(op)
        elif code.endswith("{"):
            found = re.search(r"scf\.\w+", code if "scf." in code else f"{lines[-1]} {code}")
            opened.append(found[0] if found else "")
        lines.append(line)
    function = parse_function("\n".join(lines))
    verify(function)
    return function


def in_function(arguments: str, body: str, **attributes: object) -> str:
    """A function with some constants and ``body``."""
    told = ", ".join(f"{name} = {str(value).lower()}" for name, value in attributes.items())
    return f"""
func.func @f({arguments}) attributes {{{told}}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
{body}
  func.return
}}
"""


def normal(text: str) -> str:
    """``text`` as it is printed."""
    return print_function(parsed(text))


def result_of(passes: Sequence[Pass], text: str) -> str:
    """The text after ``passes``, verified after each."""
    return print_function(run(parsed(text), passes, verify=True))
