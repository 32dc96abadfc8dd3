"""``python -m tests.lang.functions_page``: writes docs/functions.md from the tables."""

from __future__ import annotations

import inspect
import operator
from pathlib import Path

import numpy as np
import torch

from weft.lang import function_table, names

PAGE = Path(__file__).parents[2] / "docs" / "functions.md"
MODULES = {
    "math": "math", "cmath": "cmath", "torch": "torch", "numpy": "numpy", "_operator": "operator",
    "torch.special": "torch.special", "torch._C._special": "torch.special",
    "torch.nn.functional": "torch.nn.functional",
}  # fmt: skip
HEAD = """# Functions of elements

Which functions of `torch`, NumPy and Python's `math` a device loop may call on elements, and what
they are called in `weft.math`. Each is differentiable where it has a derivative, and takes
vectors element by element. This page is made by `python -m tests.lang.functions_page` from the
tables that the compiler reads.

What is not here is refused by name; call it on the whole tensor, in the host part.

"""
FORMULAS = """
## Formulas

These are formulas of those above, written in the language (`weft/lang/formulas.py`): a call is
inlined, and differentiated as it stands. Errors are within 8 roundings of the result (of the
largest argument where the result crosses 0: `logaddexp`, `tanhshrink`, `sinc`, `entr`, `logit`),
for floats of any size, infinities and NaN as torch has them; `lgamma` and `digamma` in float64
within 64 roundings of the larger of result, argument and 1; `gamma` in float64 within 64 of the
result, below -10 within 600. `gamma`, `lgamma`, `digamma`, `erfinv`, `i0`, `i0e`, `i1` and `i1e`
compute in float64 and round once. Products of integers (`comb`, `perm`, `factorial`) wrap where
they do not fit; a negative number is a `KernelAssertionError` there.

| function | meaning | elsewhere |
| --- | --- | --- |
"""
CONSTANTS = """
## Constants and types

`math.pi`, `np.pi` and the like are numbers; `torch.finfo(x.dtype)`, `np.finfo`, `torch.iinfo` and
`np.iinfo` are known when a kernel is compiled. `np.float32(x)`, `np.int64(x)`, ... cast as
`weft.f32(x)` does. `functools.partial` of any of these can be called, and so can an object whose
class has `__call__` written in Python.
"""


SHOWN = {*names.UNARY, *names.BINARY, "minimum", "maximum", "select", "clamp", "fma"}


def builtin_rows() -> list[str]:
    """The functions that are operations of the IR, or few of them, by their canonical names."""
    found: dict[str, set[str]] = {}
    for function, word in names.BUILTINS.items():
        if word not in (
            *names.UNARY,
            *names.BINARY,
            "minimum",
            "maximum",
            "select",
            "clamp",
            "fma",
        ):
            continue
        module = MODULES.get(getattr(function, "__module__", None) or "", "")
        name = getattr(function, "__name__", "")
        if isinstance(function, np.ufunc):
            module = "numpy"
        if not module and getattr(torch, name, None) is function:
            module = "torch"
        if module == "torch.special":
            name = name.removeprefix("special_")
        if module and module != "operator":
            found.setdefault(word, set()).add(f"`{module}.{name}`")
    return [f"| `{word}` | {', '.join(sorted(found[word]))} |" for word in sorted(found)]


def page() -> str:
    """The page's text."""
    rows = "\n".join(["| meaning | called |", "| --- | --- |", *builtin_rows()])
    formulas: list[str] = []
    for name, paths in sorted(function_table.FORMULAS.items(), key=operator.itemgetter(0)):
        function = function_table.formula(name)
        text = " ".join((inspect.getdoc(function) or "").split()) or "as torch has it"
        elsewhere = ", ".join(f"`{path}`" for path in paths.split())
        formulas.append(
            f"| `{name}` | {text.replace('``', '`').replace('|', chr(92) + '|')} | {elsewhere} |"
        )
    return HEAD + rows + "\n" + FORMULAS + "\n".join(formulas) + "\n" + CONSTANTS


if __name__ == "__main__":
    PAGE.write_text(page())
