"""Random modules whose kernel takes a size from what is around it: by attributes, items, methods,
properties and functions of objects that hold others. Between calls, numbers and objects change.
What follows a compiled call of the kernel must have the size that the Python gives.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import types
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch._dynamo.testing import CompileCounter

_numbers = itertools.count()
_KERNEL = """
@weft.kernel
def sized(x: torch.Tensor) -> torch.Tensor:
    assert x.shape[0] > 0  # no graph holds this host part
{before}
    out = x.new_zeros({size})
    for i in range(out.shape[0]):
        out[i] = x[i % x.shape[0]] * i
    return out

def caller(x):
    y = sized(x)
    return y * y.shape[0]
"""


class World:
    """The text of a module with objects ``a``, ``b`` and ``c``, lists and dicts of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.methods, self.functions = random.randint(1, 4), random.randint(1, 3)

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def number(self, held: str, methods: int, functions: int, depth: int = 0) -> str:
        """A number of the object at ``held``, by the first ``methods`` and ``functions``."""
        if depth < 2 and self.random.random() < 0.35:
            a, b = (self.number(held, methods, functions, depth + 1) for _ in range(2))
            return self.pick(f"max({a}, {b})", f"({a} + {b})", f"({a} if {b} > 2 else {b})",
                             f"min({a}, {b})")  # fmt: skip
        if methods and self.random.random() < 0.4:
            k = self.random.randrange(methods)
            return self.pick(f"{held}.f{k}()", f"{held}.f{k}()", f"{held}.p{k}")
        if functions and self.random.random() < 0.3:
            k = self.random.randrange(functions)
            return self.pick(f"g{k}({held})", f"g{k}(o={held})", f"TABLE['g{k}']({held})")
        return self.pick(f"{held}.n", f"{held}.m", f"{held}.table['k']", f"len({held}.row)",
                         f"{held}.table.get('k', 1)", f"len({held})", f"{held}[0]",
                         f"getattr({held}, 'n')", "COUNT", "SIZES['k']", "ROW[0].n", "len(ROW)",
                         "sum(h.n for h in ROW)", "max([h.n for h in ALL.values()])",
                         f"{held}.kind")  # fmt: skip

    def text(self) -> str:
        lines = ["import torch, weft", "COUNT, SIZES = 2, {'k': 1}", "class Held:", "    kind = 1",
                 "    def __init__(self, n, m, *row):",
                 "        self.n, self.m, self.row, self.table = n, m, [*row], {'k': m}",
                 "    def __len__(self): return self.m",
                 "    def __getitem__(self, k): return self.n"]  # fmt: skip
        for k in range(self.methods):
            for head in (f"def f{k}(self)", f"@property\n    def p{k}(self)"):
                lines.append(f"    {head}: return {self.number('self', k, 0)}")
        for k in range(self.functions):
            lines.append(f"def g{k}(o): return {self.number('o', self.methods, k)}")
        functions = [f"'g{k}': g{k}" for k in range(self.functions)]
        lines += ["a, b = Held(1, 2), Held(2, 1)", "c = Held(1, 1, a, b)", "ROW = [a, c]",
                  "ALL = {'a': a, 'b': b}",
                  f"TABLE = {{{', '.join(functions)}}}"]  # fmt: skip
        before, held = "    pass", self.pick("a", "c", "ROW[1]", "ALL['b']", "c.row[0]")
        if self.random.random() < 0.3:
            before, held = f"    h = {held}", "h"
        size = f"{self.number(held, self.methods, self.functions)} % 7 + 1"
        kernel = _KERNEL.replace("{before}", before).replace("{size}", f"({size})")
        return "\n".join(lines) + kernel

    def change(self) -> str:
        held, n = self.pick("a", "b", "c"), self.random.randint(1, 6)
        return self.pick(f"{held}.n = {n}", f"{held}.m = {n}", f"{held}.table['k'] = {n}",
                         f"COUNT = {n}", f"SIZES['k'] = {n}", "ROW.reverse()", "ROW.append(b)",
                         f"{held}.row.append(a)", "ALL['b'], ALL['a'] = ALL['a'], ALL['b']",
                         f"g{self.functions - 1} = g{self.random.randrange(self.functions)}",
                         "ROW[0] = b", "pass")  # fmt: skip


def check(random: Random) -> None:
    """Draws a module and changes; AssertionError where a graph keeps a size."""
    world = World(random)
    text = world.text()
    module = types.ModuleType(f"decided_{next(_numbers)}")
    file = f"<{module.__name__}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    place = random.choice(("own", "imported", "executed"))
    if place != "executed":
        sys.modules[module.__name__] = module  # where Dynamo finds its globals
    torch.compiler.reset()
    try:
        exec(compile(text, file, "exec"), vars(module))
        counter, x = CompileCounter(), torch.tensor([1.0, 2.0], dtype=torch.float64)
        caller = module.caller if place == "own" else _elsewhere(module)
        compiled = torch.compile(caller, backend=counter, fullgraph=True)
        done: list[str] = []
        for _ in range(4):
            for _ in range(2):  # the second time by the graph that the first has made
                found, expected = compiled(x), module.caller(x)
                note = f"{text}\nafter {done}\n{expected}\n{found}"
                assert torch.equal(found, expected), note
            assert counter.frame_count <= len(done) + 1, note
            done.append(world.change())
            exec(done[-1], vars(module))
    except Exception as error:
        if not isinstance(error, AssertionError):
            error.add_note(text)
        raise
    finally:
        sys.modules.pop(module.__name__, None)
        del linecache.cache[file]


def _elsewhere(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same caller in this module, whose globals are not the kernel's."""

    def caller(x: torch.Tensor) -> torch.Tensor:
        y = module.sized(x)
        return y * y.shape[0]

    return caller
