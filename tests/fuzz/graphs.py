"""Random kernels whose host part a graph holds: assignments of PyTorch's functions, allocations of
every form, views, several loops that read what others have written, some by several names of one
memory; some use a tensor around the kernel, which may need a derivative. What ``torch.compile``,
``torch.func`` and ``make_fx`` make of them is compared with the undecorated Python, derivatives
with those that torch finds of it.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import torch
from torch.func import grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.runtime.overlap import OverlapWarning

Tensors = tuple[torch.Tensor, ...]
READ = "#"  # behind each element that a loop reads
_numbers = itertools.count()
_EMPTY = ("torch.empty_like(x)", "torch.empty(x.shape[0], dtype=x.dtype)", "x.new_empty(len(x))",
          "torch.empty(2 * x.shape[0], dtype=x.dtype)[: x.shape[0]]")  # fmt: skip
_FULL = ("torch.zeros_like(y)", "torch.zeros(x.shape[0], dtype=x.dtype)", "x.new_ones(len(x))",
         "torch.full((x.shape[0],), 0.5, dtype=x.dtype)", "x * 1.0", "y.clone()")  # fmt: skip
_AROUND = ("W[: x.shape[0]] * y", "x + W.sum()", "y * W[1].item()", "torch.outer(x, W[:1])[:, 0]",
           "torch.dot(W, W) * x", "W[: x.shape[0]].tanh()", "y * float(W[2])")  # fmt: skip
_TABLES = ("torch.zeros(2, x.shape[0], dtype=x.dtype)", "x.new_ones(2, len(x))",
           "torch.stack([x, y])", "torch.ones(x.shape[0], 2, dtype=x.dtype).t()")  # fmt: skip


class HostPart:
    """``vectors`` and ``tables`` may be read, ``empty`` have nothing in them yet; ``memory`` says
    whose elements a name has."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.vectors, self.tables, self.empty = ["x", "y"], list[str](), list[str]()
        self.memory = {"x": "x", "y": "y"}
        self.totals: list[str] = []
        self.lines = ["def kernel(x, y):"]
        self.around = random.random() < 0.3  # whether a tensor around the kernel is used

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def name(self, letter: str, memory: str = "") -> str:
        made = f"{letter}{len(self.memory) + len(self.totals)}"
        self.memory[made] = memory or made
        return made

    def host(self, form: int) -> None:
        if form == 0:
            v = self.pick(*self.vectors)
            made = self.name("p")
            value = self.pick(f"torch.sin({v})", f"{v} * 2.0", f"{v}.tanh()")
            self.lines.append(f"    {made} = {value}")
            self.vectors.append(made)
        elif form == 1:
            made = self.name("e")
            self.lines.append(f"    {made} = {self.pick(*_EMPTY)}")
            self.empty.append(made)
        elif form == 2:
            made = self.name("f")
            self.lines.append(f"    {made} = {self.pick(*_FULL)}")
            self.vectors.append(made)
        elif form == 3:
            made = self.name("t")
            self.lines.append(f"    {made} = {self.pick(*_TABLES)}")
            self.tables.append(made)
        elif form == 6:
            made = self.name("w")
            self.lines.append(f"    {made} = {self.pick(*_AROUND)}")
            self.vectors.append(made)
        elif self.tables:
            table = self.pick(*self.tables)
            made = self.name("v", self.memory[table])
            self.lines.append(f"    {made} = {table}[{self.pick('0', '1', '-1')}]")
            self.vectors.append(made)

    def place(self, name: str) -> str:
        return f"{name}[{self.pick('0', '1')}, i]" if name in self.tables else f"{name}[i]"

    def value(self, written: set[str], depth: int = 0) -> str:
        if self.around and self.random.random() < 0.1:
            return f"W[i]{READ}"
        if depth > 1 or self.random.random() < 0.3:
            name = self.pick(*self.vectors, *self.tables)
            if name in self.vectors and self.memory[name] not in written and depth:
                return f"{name}[(i + 1) % x.shape[0]]{READ}"
            return self.place(name) + READ
        a, b = self.value(written, depth + 1), self.value(written, depth + 1)
        return self.pick(f"({a} + {b})", f"({a} * {b})", f"torch.tanh({a})", f"({a} - 0.5 * {b})",
                         f"({a} if i % 2 == 0 else {b})")  # fmt: skip

    def loop(self) -> None:
        targets = self.random.sample([*self.vectors, *self.tables, *self.empty],
                                     self.random.choice((1, 1, 2)))  # fmt: skip
        shared = [v for v in self.vectors if self.memory[v] in self.tables]
        if shared and self.random.random() < 0.2:
            view = self.pick(*shared)
            targets = [view, self.memory[view]]
        elif self.random.random() < 0.7:
            targets = [t for t in targets if self.memory[t] not in ("x", "y")]
        written = {self.memory[t] for t in targets}
        body = []
        for target in targets:
            sign = "=" if target in self.empty else self.pick("=", "=", "+=")
            body.append(f"        {self.place(target)} {sign} {self.value(written)}")
        if self.random.random() < 0.3 or not body:
            total = f"s{len(self.memory) + len(self.totals)}"
            self.lines.append(f"    {total} = 0.0")
            body.append(f"        {total} += {self.value(written)}")
            self.totals.append(total)
        head = self.pick("range(x.shape[0])", "range(len(x))", "weft.ndrange(x.shape[0])")
        self.lines += [f"    for i in {head}:", *body]
        self.vectors += [t for t in targets if t in self.empty]
        self.empty = [e for e in self.empty if e not in targets]

    def text(self) -> str:
        views = self.random.random() < 0.4
        forms = 7 if self.around else 6
        drawn = self.random.choices(range(forms), k=self.random.randint(1, 3))
        for form in (3, 4) if views else drawn:
            self.host(form)
        self.loop()
        for _ in range(self.random.randint(0, 3)):
            if self.random.random() < 0.5:
                self.loop()
            else:
                self.host(self.random.randrange(forms))
        made = [n for n in (*self.vectors, *self.tables) if n not in ("x", "y")] or ["x.sin()"]
        outs = self.random.sample(made, self.random.randint(1, min(3, len(made))))
        outs = [self.pick(o, o, f"{o} * 1.5", f"{o}.sum()") for o in outs] + self.totals[:1]
        return "\n".join([*self.lines, *self.returned(outs), ""])

    def returned(self, outs: Sequence[str]) -> list[str]:
        """The last statements: a tuple of results, or another collection of them."""
        form = self.random.randrange(8)
        if form < 4:
            return [f"    return {', '.join(outs)},"]
        first, rest = outs[0], ", ".join(outs[1:])
        keyed = ", ".join(f"'{chr(97 + k)}': {out}" for k, out in enumerate(outs))
        value = {
            4: f"[{', '.join(outs)}]", 5: f"{{{keyed}}}",
            6: f"{self.pick('Pair', 'Record', 'Pair')}({first}, {self.pick('', 'more=')}[{rest}])",
            7: f"None, ({first}, {{'rest': [{rest}]}}), 'a name'",
        }[form]  # fmt: skip
        if self.random.random() < 0.3:
            return [f"    collected = {value}", "    return collected"]
        return [f"    return {value}"]


class Pair(NamedTuple):
    first: Any
    more: Any = None


@dataclass
class Record:
    first: Any
    more: Any
    name: str = "a name"


def tensors(value: Any) -> list[Any]:
    """What a result holds, in the order of the text. Dynamo traces this."""
    if isinstance(value, Record):
        value = (value.first, value.more)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return [] if value is None or isinstance(value, str) else [value]


def function_of_module(text: str, around: torch.Tensor, *, known: bool = True) -> Any:
    """The function ``kernel`` that ``text`` defines, in a module that Dynamo can import, if it is
    ``known``: of others it does not trace the host part. ``W`` in it is ``around``."""
    name = f"weft_random_graph_{next(_numbers)}"
    module = types.ModuleType(name)
    module.__file__ = f"<{name}>"
    linecache.cache[module.__file__] = (len(text), None, text.splitlines(True), module.__file__)
    vars(module).update(torch=torch, weft=weft, Pair=Pair, Record=Record, W=around)
    if known:
        sys.modules[name] = module
    exec(compile(text, module.__file__, "exec", dont_inherit=True), vars(module))
    return vars(module)["kernel"]


def around(f: Callable[..., Any]) -> Callable[..., Tensors]:
    """``f`` between operations of PyTorch, which see what it has written to its arguments."""

    def call(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        a, b = x * 1.25, y * 0.75
        outs = f(a, b)
        return (*tensors(outs), a.sin(), b * y)

    return call


def total(f: Callable[..., Tensors]) -> Callable[..., Any]:
    def summed(x: torch.Tensor, y: torch.Tensor) -> Any:
        return sum((torch.sin(o) * (k + 1)).sum() for k, o in enumerate(f(x, y)))

    return summed


def _gradient(f: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Tensors:
    leaves = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
    return _gradients(total(around(f))(*leaves), leaves, f)


def _gradients(total: torch.Tensor, leaves: Sequence[torch.Tensor], f: Any) -> Tensors:
    """Those of the ``leaves``, and of the tensor around ``f``, if it needs one."""
    w = getattr(f, "function", f).__globals__["W"]
    more = [w] if w.requires_grad else []
    return torch.autograd.grad(total, [*leaves, *more], materialize_grads=True, allow_unused=True)


def _by_functions(f: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return grad(total(around(f)), (0, 1))(x, y)


def _tangent(f: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return (jvp(total(around(f)), (x, y), (x.cos(), y.sin()))[1],)


def _samples(f: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return vmap(around(f), (0, None))(torch.stack([x, x.cos()]), y)


def _gradients_of_samples(f: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return vmap(grad(total(around(f)), (0, 1)))(torch.stack([x, x.cos()]), torch.stack([y, x]))


def _expected(form: Callable[..., Tensors], f: Any, x: torch.Tensor, y: torch.Tensor) -> Tensors:
    """The same by the Python ``f`` and torch's ``backward``."""
    if form is _tangent:
        by_x, by_y, *_ = _gradient(f, x, y)
        return ((by_x * x.cos()).sum() + (by_y * y.sin()).sum(),)
    if form is _samples:
        each = [around(f)(v, y) for v in (x, x.cos())]
        return tuple(map(torch.stack, zip(*each, strict=True)))
    if form is _gradients_of_samples:
        each = [_gradient(f, v, w)[:2] for v, w in ((x, y), (x.cos(), x))]
        return tuple(map(torch.stack, zip(*each, strict=True)))
    if form is _values:
        return around(f)(x, y)
    return _gradient(f, x, y) if form is _gradient else _gradient(f, x, y)[:2]


def _values(f: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return around(f)(x, y)


FORMS = (_values, _gradient, _gradient, _by_functions, _tangent, _samples, _gradients_of_samples)
# What a graph may refuse by name, if it is about derivatives or batches.
_REFUSED = ("torch cannot follow that", "is not an argument of the kernel",
            "through another argument", "there is no gradient of", "has a tangent, and",
            "modified by an inplace operation", "has no samples of its own",
            "PyTorch's graphs write to a copy",
            "as an operator, a copy",
            # 2.10 and 2.11, in graphs: "modified by an inplace operation", also without a kernel
            "cannot access PyObject for Tensor - no interpreter set")  # fmt: skip


def check_graphs(random: Random) -> str:
    """Draws a kernel and a transform; AssertionError where a graph changes the numbers. Gives
    "compared", or "refused: <why>"."""
    drawn = HostPart(random).text()
    text = drawn.replace(READ, "")
    w = torch.tensor([0.75, -1.5, 0.5, 1.25, -0.25], dtype=torch.float64)
    w.requires_grad_(random.random() < 0.4)
    kernel = weft.kernel(function_of_module(text, w, known=random.random() < 0.75))
    plain = function_of_module(drawn.replace(READ, ".clone()"), w)  # torch saves no view for them
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    size = random.choice((1, 2, 3, 5))
    x, y = (torch.randn(size, dtype=torch.float64, generator=generator) for _ in range(2))
    form = random.choice(FORMS)
    way = random.choice(("eager", "compiled", "compiled", "dynamic", "recorded"))

    def run(x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        return form(kernel, x, y)

    torch.compiler.reset()
    note = f"{form.__name__}, {way}\n{text}\n{x}\n{y}"
    try:
        if way == "recorded" and form is not _gradient:
            found = make_fx(run)(x, y)(x, y)
        elif way in ("compiled", "dynamic"):
            dynamic = True if way == "dynamic" else None
            if form is _gradient:
                compiled = torch.compile(around(kernel), backend="aot_eager", dynamic=dynamic)
                leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
                outs = compiled(*leaves)
                _compare(around(plain)(x, y), outs, note)
                found = _gradients(total(lambda *_: outs)(x, y), leaves, kernel)
            else:
                found = torch.compile(run, backend="aot_eager", dynamic=dynamic)(x, y)
        else:
            found = run(x, y)
    except (RuntimeError, ValueError, TypeError, OverlapWarning) as error:
        if any(text in str(error) for text in _REFUSED):
            return f"refused: {error}"
        error.add_note(note)
        raise
    try:
        expected = _expected(form, plain, x, y)
    except RuntimeError as error:  # a statement's result that a loop changes
        return f"refused: {error}"
    _compare(expected, found, note)
    return "compared"


def _compare(expected: Sequence[Any], found: Sequence[Any], note: str) -> None:
    assert len(expected) == len(found), note
    for e, f in zip(expected, found, strict=True):
        e, f = torch.as_tensor(e, dtype=torch.float64), torch.as_tensor(f, dtype=torch.float64)
        assert torch.allclose(e.detach(), f.detach(), 1e-8, 1e-8), f"{note}\n{e}\n{f}"
