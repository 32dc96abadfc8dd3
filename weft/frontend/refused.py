"""What Python has and a device loop cannot hold: (message, help) for each kind of node."""

from __future__ import annotations

import ast

EXPRESSIONS: dict[type, tuple[str, str]] = {
    ast.Yield: ("`yield` cannot be compiled", "store the values in a tensor"),
    ast.YieldFrom: ("`yield from` cannot be compiled", "store the values in a tensor"),
    ast.Await: ("`await` cannot be compiled", "do it in the host part"),
    ast.Starred: ("`*` cannot be compiled here", "write the items one by one"),
}

STATEMENTS: dict[type, tuple[str, str]] = {
    ast.Try: (
        "`try` cannot be compiled",
        "test for what could go wrong with `if`, or do it in the host part",
    ),
    ast.With: ("`with` cannot be compiled", "put it around the loop, in the host part"),
    ast.Raise: ("`raise` cannot be compiled", "use `assert condition, message`"),
    ast.Global: ("`global` cannot be compiled", "return the value, or write it into a tensor"),
    ast.Nonlocal: ("`nonlocal` cannot be compiled", "return the value, or write it into a tensor"),
    ast.ClassDef: (
        "a class defined inside a kernel cannot be compiled",
        "define it outside of the kernel",
    ),
    ast.Return: (
        "`return` inside a device loop",
        "store the result in a tensor and return that after the loop",
    ),
    ast.Break: (
        "`break` out of a parallel loop",
        "its iterations run at once: use `continue`, or write "
        "weft.loop_config(serialize=True) on the line before the loop",
    ),
    ast.Delete: ("`del` of what is no item of a list", "leave it out"),
    ast.Import: ("`import` cannot be compiled", "import at the top of the module"),
    ast.ImportFrom: ("`import` cannot be compiled", "import at the top of the module"),
    ast.Match: (
        "`match` cannot be compiled with such a pattern",
        "patterns of classes, mappings, True and False, and alternatives that give names: write if "
        "/ elif / else",
    ),
}
