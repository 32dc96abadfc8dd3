"""Random kernels in the places where people keep them: a global, a closure, a method of an object
or a module, a static method, an attribute, a list; of an object that is an argument. They take
numbers, dtypes, tensors, functions and objects from around them, which change between compiled
calls: values, sizes and gradients must be those of plain calls.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import types
from random import Random
from typing import Any

import torch

_numbers = itertools.count()
_HEAD = """
import torch, weft

class Inner:
    def __init__(self): self.n, self.rate, self.act = 1, 0.25, half

def half(v): return v * 0.5
def softened(v): return v / (1.0 + v * v)
def eighth(): return 0.125
def third(): return 0.375
"""
_STATE = {
    "n": "2", "rate": "0.5", "flag": "False", "kind": "torch.float32", "row": "[1, 2]",
    "table": "{'k': 1}", "inner": "Inner()", "act": "half", "give": "eighth", "mode": "'a'",
    "most": "None", "w": "torch.tensor([1.5, 2.0])",
}  # fmt: skip
_SIZES = ("~n", "~row[0]", "~table['k']", "~inner.n", "len(~row)", "(1 if ~flag else 2)",
          "(1 if ~mode == 'a' else 2)", "(0 if ~most is None else 3)", "(~n if ~flag else 1)",
          "max(~n, ~inner.n)")  # fmt: skip
_VALUES = ("~n", "~rate", "~row[1]", "~table['k']", "~inner.rate", "~inner.n",
           "~inner.act(x[0])", "~give()", "~act(x[i % x.shape[0]])", "~w[i % 2]",
           "(1.0 if ~flag else 2.0)", "~w[0] * x[i % 2]")  # fmt: skip
_HOST = ("~rate * 2", "~inner.n + 1", "~n if ~flag else ~rate", "~give()", "float(~n)",
         "~inner.rate", "~row[1]")  # fmt: skip
_NAMED = {"inner": ("c.n", "c.rate", "c.act(x[0])"), "row": ("c[0]", "len(c)"),
          "table": ("c['k']",), "w": ("c[0]", "c[i % 2]")}  # fmt: skip
_OF_OBJECTS = ("method", "module", "argument", "of a child")
PLACES = (*_OF_OBJECTS, "global", "closure", "static", "attribute", "list")


class Program:
    """``text``: a module with ``call``, ``get`` and ``put``; ``names``: of the state that the
    kernel takes."""

    def __init__(self, random: Random) -> None:
        self.random, self.place = random, random.choice(PLACES)
        kernel = self._kernel()
        self.names = [name for name in _STATE if f"~{name}" in kernel]
        prefix = {"argument": "held.", "of a child": "self.child."}.get(
            self.place, "self." if self.place in _OF_OBJECTS else ""
        )
        first = {"argument": "held, "}.get(self.place, "self, " if "self" in prefix else "")
        text = kernel.replace("~", prefix).replace("(x", f"({first}x", 1)
        self.text = _HEAD + getattr(self, f"_in_{self.place.replace(' ', '_')}")(text)

    def _kernel(self) -> str:
        random = self.random
        size = " + ".join(["1", *random.sample(_SIZES, random.randint(0, 3))])
        lines = ["assert x.shape[0] > 0"] * (random.random() < 0.5)
        values = random.sample(_VALUES, random.randint(1, 3))
        if random.random() < 0.4:
            lines.append(f"v = {random.choice(_HOST)}")
            values.append("v")
        kind = random.choice(("x.dtype", "x.dtype", "~kind"))
        lines.append(random.choice((
            f"out = torch.zeros({size}, dtype={kind})", f"out = x.new_zeros({size}, dtype={kind})",
            f"out = torch.empty({size}, dtype={kind})",
        )))  # fmt: skip
        written = "out"
        if random.random() < 0.2:
            written = "y"
            lines[-1] = "out = y * 1.0" if random.random() < 0.5 else "out = y"
        if random.random() < 0.3:
            named = random.choice(("inner", "row", "table", "w"))
            lines.insert(0, f"c = ~{named}")
            values.append(random.choice(_NAMED[named]))
        value = " + ".join(["x[i % x.shape[0]] * 0.5", *values])
        lines.append(f"for i in range({written}.shape[0]):")
        lines.append(f"    {written}[i] {'+=' if written == 'y' else '='} {value}")
        if random.random() < 0.3:
            factor = random.choice(_VALUES)
            lines += ["for i in range(out.shape[0]):", f"    out[i] = out[i] * 0.5 + {factor}"]
        lines.append("return out" if written == "out" else "return y * 1.0")
        return "\n".join(["@weft.kernel", "def kernel(x, y):", *[f"    {line}" for line in lines]])

    @staticmethod
    def _state(prefix: str = "") -> str:
        return "".join(f"{prefix}{name} = {value}\n" for name, value in _STATE.items())

    def _globals(self, rest: str) -> str:
        return (f"{self._state()}{rest}\n"
                "def get(name): return globals()[name]\n"
                "def put(name, value): globals()[name] = value\n")  # fmt: skip

    def _in_global(self, kernel: str) -> str:
        return self._globals(f"{kernel}\ncall = kernel\n")

    def _in_static(self, kernel: str) -> str:
        method = _in("@staticmethod\n" + kernel)
        return self._globals(f"class Held:\n{method}\ncall = Held.kernel\n")

    def _in_attribute(self, kernel: str) -> str:
        return self._globals(f"{kernel}\nclass Held: pass\nheld = Held()\nheld.run = kernel\n"
                             "def call(x, y): return held.run(x, y)\n")  # fmt: skip

    def _in_list(self, kernel: str) -> str:
        return self._globals(f"def make():\n{_in(kernel)}\n    return [kernel]\nkernels = make()\n"
                             "def call(x, y): return kernels[0](x, y)\n")  # fmt: skip

    def _in_closure(self, kernel: str) -> str:
        names = ", ".join(_STATE)
        puts = "".join(f"        if name == {n!r}: {n} = value\n" for n in _STATE)
        return (f"def make():\n{_in(self._state())}\n{_in(kernel)}\n"
                f"    def get(name): return dict({', '.join(f'{n}={n}' for n in _STATE)})[name]\n"
                f"    def put(name, value):\n        nonlocal {names}\n{puts}"
                "    return kernel, get, put\ncall, get, put = make()\n")  # fmt: skip

    def _objects(self, text: str, held: str = "held") -> str:
        return (f"{text}\ndef get(name): return getattr({held}, name)\n"
                f"def put(name, value): setattr({held}, name, value)\n")  # fmt: skip

    def _init(self, base: str = "") -> str:
        before = "super().__init__()\n" if base else ""
        return f"def __init__(self):\n{_in(before + self._state('self.'))}\n"

    def _in_method(self, kernel: str) -> str:
        held = f"class Held:\n{_in(self._init() + kernel)}\nheld = Held()\n"
        through = "def call(x, y): return held.kernel(x, y)"
        return self._objects(held + self.random.choice(("call = held.kernel", through)))

    def _in_module(self, kernel: str) -> str:
        body = _in(self._init("Module") + kernel.replace("def kernel(", "def forward("))
        held = f"class Held(torch.nn.Module):\n{body}\nheld = Held()\n"
        through = "def call(x, y): return held(x, y)"
        return self._objects(held + self.random.choice(("call = held", through)))

    def _in_argument(self, kernel: str) -> str:
        base = self.random.choice(("", "torch.nn.Module"))
        return self._objects(f"class Held{f'({base})' * bool(base)}:\n{_in(self._init(base))}\n"
                             f"held = Held()\n{kernel}\n"
                             "def call(x, y): return kernel(held, x, y)")  # fmt: skip

    def _in_of_a_child(self, kernel: str) -> str:
        return self._objects(f"class Child:\n{_in(self._init())}\n"
                             "class Held:\n    def __init__(self): self.child = Child()\n"
                             f"{_in(kernel)}\nheld = Held()\n"
                             "def call(x, y): return held.kernel(x, y)", "held.child")  # fmt: skip

    def change(self, module: Any) -> str:
        """Changes one thing that the kernel takes: what was done."""
        random, name = self.random, self.random.choice([*self.names, *self.names, *_STATE])
        if name in ("row", "table", "inner") and random.random() < 0.8:
            held, k = module.get(name), random.randint(0, 4)
            if name == "row":
                held[random.randrange(2)] = k
                held += [1] * (random.random() < 0.3)
            elif name == "table":
                held["k"] = k
            else:
                setattr(held, *random.choice((
                    ("n", k), ("rate", k / 4), ("act", module.softened)
                )))  # fmt: skip
            return f"{name} = {held if name != 'inner' else vars(held)}"
        if name == "w" and random.random() < 0.5:
            with torch.no_grad():
                module.get("w")[0] = random.random()
            return "w[0]"
        value = {
            "n": random.randint(0, 5), "rate": random.choice((0.5, 1.5, 2, 3.0)),
            "flag": random.random() < 0.5, "kind": random.choice((torch.float32, torch.float64)),
            "row": [random.randint(0, 4)] * random.randint(2, 4),
            "table": {"k": random.randint(0, 4)}, "inner": module.Inner(),
            "act": random.choice((module.half, module.softened)),
            "give": random.choice((module.eighth, module.third)),
            "mode": random.choice("ab"), "most": random.choice((None, 1, 2)),
            "w": torch.tensor([random.random(), 1.0],
                              requires_grad=self.place in _OF_OBJECTS and random.random() < 0.5),
        }[name]  # fmt: skip
        module.put(name, value)
        return f"{name} = {value}"


def _in(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def check(random: Random) -> None:
    """Draws a kernel in its place, and changes; AssertionError where a graph keeps what was."""
    program = Program(random)
    module = types.ModuleType(f"places_{next(_numbers)}")
    file = f"<{module.__name__}>"
    linecache.cache[file] = (len(program.text), None, program.text.splitlines(True), file)
    # Dynamo does not trace plain functions of a module that it does not find.
    imported = "def call(" in program.text or random.random() < 0.5
    if imported:
        sys.modules[module.__name__] = module
    torch.compiler.reset()
    exec(compile(program.text, file, "exec"), vars(module))

    def caller(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = module.call(x, y)
        return out * out.shape[0] + y.sum()

    backend, differentiated = random.choice(("eager", "aot_eager")), random.random() < 0.6
    compiled = torch.compile(caller, backend=backend, fullgraph=True)
    done: list[str] = []
    try:
        for _ in range(5):
            for _ in range(2):  # the second time by the graph that the first has made
                _compare(compiled, caller, module, differentiated)
            done.append(program.change(module))
    except Exception as error:
        if "no gradient of a kernel that writes to its arguments" in str(error):
            return  # of one whose host part no graph holds
        error.add_note(f"{program.place}, {imported=}, {backend}, after {done}\n{program.text}")
        raise
    finally:
        sys.modules.pop(module.__name__, None)
        del linecache.cache[file]


def _compare(compiled: Any, plain: Any, module: Any, differentiated: bool) -> None:
    results: list[list[torch.Tensor]] = []
    for call in (compiled, plain):
        x = torch.tensor([1.0, 2.0], requires_grad=differentiated)
        y = torch.tensor([0.5, 3.0], requires_grad=differentiated)
        own = y * 1.0  # a tensor that may be written to
        out = call(x, own)
        results.append([out, own])
        wanted = [v for v in (x, y, module.get("w")) if v.requires_grad]
        if out.requires_grad:
            grads = torch.autograd.grad((out * out).sum() + own.sum(), wanted, allow_unused=True)
            results[-1] += [torch.zeros(()) if g is None else g for g in grads]
    for found, expected in zip(*results, strict=True):
        said = f"{found}, not {expected}"
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), said
        assert torch.allclose(found, expected, 1e-5, 1e-5, equal_nan=True), said
