"""Random kernels of rows that are given jagged tensors: refused, or what the undecorated Python
gives for each component of the batch, and gradients that the kernel has for each component.

Most of them work on each row by itself. Some use its number, its neighbours, sums over rows, or
make tensors of other sizes: these must be refused.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function
from tests.fuzz.points import Text

WIDTHS = {"x": 4, "y": 3}  # of the rows of what is ragged
HELPERS = """
table = torch.arange(1.0, 6.0, dtype=torch.float64)


def bent(v, k):
    return v * table[k % 5] if v < 0.5 else v - table[0]


"""


class Draw(Text):
    """``batch``: the kernel is of a whole batch, with the ragged dimension second. ``row``: the
    subscripts of a row."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.batch = random.random() < 0.4
        self.row = "b, i" if self.batch else "i"
        self.rows = ["B", "n"] if self.batch else ["n"]
        self.apart = random.random() < 0.8  # the host part takes a shape apart
        self.widths: dict[str, str] = {}  # of what is made, by name
        self.k = 0

    def text(self) -> str:
        self.lines = ["def kernel(x, y, w, ws, k: int):"]
        sizes = [*self.rows, "d"]
        if self.apart:
            self.emit(1, f"{', '.join(sizes)} = x.shape")
        else:
            for axis, name in enumerate(sizes):
                at = axis - len(sizes) if self.random.random() < 0.3 else axis
                self.emit(1, f"{name} = x.shape[{at}]")
        self.emit(1, "e = y.shape[-1]", "h = d // 2 + e")
        for name in ("p", "q")[: self.random.randint(1, 2)]:
            self.make(name)
        if self.random.random() < 0.5:
            around = ", ".join(self.rows)
            index = f"weft.ndrange({around})" if self.batch else f"range({around})"
            self.emit(1, f"for {self.row} in {index}:")
            self.body(2)
        elif self.batch:
            self.emit(1, "for b in range(B):")
            self.in_order(2, "for i in range(n):", 3)
        else:
            self.in_order(1, f"for i in range({self.few('n - 1', 'n', 0.05)}):", 2)
        names = [*self.widths]
        self.emit(1, f"return {', '.join(names)}")
        return HELPERS + "\n".join(self.lines) + "\n"

    def few(self, rare: str, usual: str, share: float = 0.04) -> str:
        """What is wrong for rows that stand by themselves, and what is not."""
        return rare if self.random.random() < share else usual

    def make(self, name: str) -> None:
        if self.random.random() < 0.3:
            like = self.pick("x", "y")
            self.emit(1, f"{name} = torch.zeros_like({like})")
            self.widths[name] = "d" if like == "x" else "e"
            return
        width = self.pick("d", "e", "k", "h", "2", "w.shape[0]")
        rows = ", ".join(self.rows)
        others = ("e, n", "B, d", "n, B", f"{rows} + 1") if self.batch else ("e", "d", "n + 1")
        rows = self.few(self.pick(*others), rows)
        self.emit(1, self.pick(
            f"{name} = x.new_zeros({rows}, {width})", f"{name} = y.new_zeros(({rows}, {width}))",
            f"{name} = torch.zeros({rows}, {width}, dtype=w.dtype)",
        ))  # fmt: skip
        self.widths[name] = width

    def in_order(self, indent: int, loop: str, inside: int) -> None:
        kept = self.random.random() < 0.1  # from row to row
        self.emit(indent, *["s = 0.5"] * kept, loop)
        self.emit(inside, *["s = s * 0.5 + 1.0"] * kept)
        self.body(inside)

    def body(self, indent: int) -> None:
        self.emit(indent, "t = 0.5", self.few("a = weft.f64(i)", "a = 1.5", 0.03))
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent, 0)
        for name, width in self.widths.items():
            j = self.index()
            self.emit(indent, f"for {j} in range({width}):")
            at = f"{name}[{self.where()}, {j}]"
            self.emit(indent + 1, f"{at} {self.pick('=', '+=')} {self.value(j)}")

    def index(self) -> str:
        self.k += 1
        return f"j{self.k}"

    def where(self) -> str:
        other = "b, n - 1 - i" if self.batch else "n - 1 - i"
        return self.few(other, self.row, 0.03)

    def statement(self, indent: int, depth: int) -> None:
        j = self.index()
        width = self.pick("d", "e", "k", "w.shape[0]")
        match self.random.randrange(4 if depth < 2 else 2):
            case 0:
                self.emit(indent, f"t = 0.0 + {self.value('0')}")  # no view of an element
            case 1:
                self.emit(indent, f"for {j} in range({width}):", f"    t += {self.value(j)}")
            case 2:
                self.emit(indent, f"if {self.value('1')} < {self.value('0')}:")
                self.statement(indent + 1, depth + 1)
            case _:
                self.emit(indent, f"for {j} in range({self.few('n', width)}):")
                self.statement(indent + 1, depth + 1)

    def value(self, j: str, depth: int = 0) -> str:
        if depth > 1 or self.random.random() < 0.5:
            return self.pick(
                f"x[{self.where()}, {j} % d]", f"x[{self.where()}, ({j} + 1) % 4]",
                f"y[{self.where()}, {j} % e]", f"w[{j} % 5]", f"ws[1][{j} % 2]", "ws[0][0]", "t",
                "a", "0.5", self.few("w[i % 5]", f"bent(w[{j} % 5], {j})"),
                self.few("weft.f64(n)", "weft.f64(k)"),
            )  # fmt: skip
        one, two = self.value(j, depth + 1), self.value(j, depth + 1)
        return self.pick(f"({one} + {two})", f"({one} * {two})", f"({one} - {two})",
                         f"weft.sin({one})", f"max({one}, {two})", f"bent({one}, {j})")  # fmt: skip


def check(random: Random) -> str:
    """Draws a kernel and compares; AssertionError where it differs. Gives "agrees" or "refused"."""
    draw = Draw(random)
    text = draw.text()
    plain, generator = function(text), torch.Generator().manual_seed(random.randrange(1 << 30))
    lengths = [random.choice((0, 1, 2, 3, 5)) for _ in range(random.randint(1, 4))]

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    parts = {name: [numbers(n, width) for n in lengths] for name, width in WIDTHS.items()}
    w, ws, k = numbers(5), [numbers(1), numbers(2)], random.randint(1, 3)
    dense = random.random() < 0.1  # one beside is as many rows as there are, which none has
    x = torch.nested.nested_tensor(parts["x"], layout=torch.jagged, requires_grad=True)
    values = torch.cat(parts["y"])
    y: Any = torch.nested.nested_tensor_from_jagged(values, x.offsets())
    if dense:
        y = values[None] if draw.batch else values
    made = weft.kernel(plain)
    w = w.requires_grad_()
    for _ in range(2):  # the second call knows what functions reach
        try:
            found = made(x, y, w, ws, k)
        except weft.KernelTypeError as error:
            if "is a jagged tensor, and" in str(error):
                return "refused"
            raise AssertionError(f"{text}\n{error}") from error
    found = found if isinstance(found, tuple) else (found,)
    weights = [torch.randn(t.values().shape, generator=generator, dtype=t.dtype) for t in found]
    loss = 0.0 * w.sum() + 0.0 * x.values().sum()  # what does not depend on one has a gradient, too
    loss = loss + sum((t.values() * g).sum() for t, g in zip(found, weights, strict=True))
    gradients = torch.autograd.grad(loss, (x, w))
    other, of_x, of_w = w.detach().clone().requires_grad_(), [], torch.zeros_like(w)
    ends = x.offsets().tolist()
    for number, pair in enumerate(zip(parts["x"], parts["y"], strict=True)):
        p, q = (t[None] if draw.batch else t for t in pair)
        p = p.clone().requires_grad_()
        with torch.no_grad():
            expected = plain(p, q, w, ws, k)
        expected = expected if isinstance(expected, tuple) else (expected,)
        own = made(p, q, other, ws, k)
        rows = slice(ends[number], ends[number + 1])
        loss = 0.0 * other.sum()
        for n, result in enumerate(own if isinstance(own, tuple) else (own,)):
            flat = [t[0] if draw.batch else t for t in (expected[n], result)]
            got = found[n].unbind()[number]
            assert got.shape == flat[0].shape, f"{text}\n{lengths}\n{got}\n{flat[0]}"
            assert torch.allclose(got, flat[0]), f"{text}\n{lengths}\n{got}\n{flat[0]}"
            loss = loss + (flat[1] * weights[n][rows]).sum()
        inputs = [p, other]
        grads = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
        of_x.append(grads[0][0] if draw.batch else grads[0])
        of_w += grads[1]
    assert torch.allclose(gradients[0].values(), torch.cat(of_x)), f"{text}\n{lengths}"
    assert torch.allclose(gradients[1], of_w), f"{text}\n{lengths}\n{gradients[1]}\n{of_w}"
    return "agrees"
