"""Why a device loop cannot call a function, and what to write instead."""

from __future__ import annotations

import ast
import math
import types
from typing import Any

from weft.frontend.context import Lowering
from weft.source import subtree

_HOST = "call it in the host part and pass the result"
# What is written in place of a function, by its name.
_INSTEAD = {
    "amax": "weft.max(a, b)", "amin": "weft.min(a, b)", "max": "max(a, b) or torch.maximum(a, b)",
    "min": "min(a, b) or torch.minimum(a, b)",
    "zeros": "weft.zeros(n, weft.f32) for an array of the iteration",
    "rand": "a tensor of random numbers, made in the host part",
    "random": "a tensor of random numbers, made in the host part",
}  # fmt: skip


def reason(target: Any) -> tuple[str, str]:
    """(why, help) of a function that cannot be inlined; ("", "") of one that can."""
    module = (getattr(target, "__module__", None) or "").partition(".")[0]
    name = getattr(target, "__name__", type(target).__name__)
    if isinstance(target, types.FunctionType) and module not in ("numpy", "torch"):
        return "", ""
    instead = _INSTEAD.get(name)
    write = f"write {instead}" if instead else f"{_HOST}; docs/functions.md has what there is"
    if module == "numpy" or type(target).__module__.partition(".")[0] == "numpy":
        same = getattr(math, name, None)
        if instead is None and callable(same):
            write = f"write math.{name}(...)"
        if isinstance(target, type):
            return (
                "NumPy's types are not those of elements",
                f"write weft.{name}(...), or float(...)",
            )
        return "NumPy's functions are not compiled", write
    if module == "torch" or type(target).__module__.partition(".")[0] == "torch":
        if isinstance(target, types.FunctionType) and instead is None:
            return "", ""  # it may be Python that can be inlined
        return (
            "it works on whole tensors, or weft has none of its kind for elements",
            write,
        )
    if isinstance(target, types.BuiltinFunctionType) or module == "builtins":
        if module == "math":
            return "weft has no such function yet", write
        return (
            "it is built into Python, and none of weft's",
            write,
        )
    if callable(target) and not isinstance(target, type):
        return (
            f"it is an object of {type(target).__name__} that can be called",
            "call a method of it by its name, as object.method(...)",
        )
    if isinstance(target, type):
        return "it makes an object", "pass what the loop reads of the object as numbers and tensors"
    return f"it is an object of {type(target).__name__}", "call a function"


def host_loop(cx: Lowering) -> str:
    """More help, where the device loop looks like a loop of the host part: it holds loops, and the
    statement is its own."""
    node = cx.region.node
    inner = any(isinstance(n, ast.For) for statement in node.body for n in subtree(statement))
    if cx.frame.path or not inner:
        return ""
    return (
        f"; if this is a loop of the host part: `for {ast.unparse(node.target)} in "
        f"weft.serial({ast.unparse(node.iter)})`"
    )
