"""Calls in calls, and chains of methods: what they share memory with is looked at once."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

import weft
from weft.frontend.mutation import Calls, Values


@dataclass
class Pair:
    a: float
    b: float

    def add(self, other):
        return Pair(self.a + other.a, self.b * 0.5 + other.b)


class Named(NamedTuple):
    a: float
    b: float

    def add(self, other):
        return Named(self.a + other.a, self.b * 0.5 + other.b)


class Builder:
    def __init__(self, a):
        self.a = a

    def bump(self, k):
        self.a = self.a * 0.5 + k
        return self


def halved(v):
    return v * 0.5 + 1


def called(function, v):
    return function(v)


def nested(before: str, inner: str, after: str) -> Callable[[int], str]:
    return lambda depth: before * depth + inner + after * depth


LAMBDA = "f = lambda v: v * 0.5 + 1"
LEAST = "def least(a, b):\n    return a if a < b else b"
PUT = "def put(k, v):\n    s[k] = s[k] * 0.5 + v\n    return v + 1"
# The host part, the loop, and what one level of depth is of the expression ``@``.
FORMS = {
    "lambda": ("pass", f"{LAMBDA}\nout[i] = @", nested("f(", "x[i]", ")")),
    "lambda of the host part": (LAMBDA, "out[i] = @", nested("f(", "x[i]", ")")),
    "two arguments": ("pass", f"{LEAST}\nout[i] = @", nested("least(", "x[i]", ", 0.5)")),
    "last argument": ("pass", f"{LEAST}\nout[i] = @", nested("least(0.5, ", "x[i]", ")")),
    "by keyword": ("pass", f"{LEAST}\nout[i] = @", nested("least(b=0.5, a=", "x[i]", ")")),
    "changes a list": (
        "pass", f"s = [0.0, 0.0]\n{PUT}\nout[i] = @ + s[1]", nested("put(1, ", "x[i]", ")"),
    ),
    "given a function": ("pass", f"{LAMBDA}\nout[i] = @", nested("called(f, ", "x[i]", ")")),
    "in branches": (
        "pass", f"{LAMBDA}\nout[i] = @", nested("(f(", "x[i]", ") if x[i] > 0 else 0.5)"),
    ),
    "host": (f"{LAMBDA}\ny = @", "out[i] = y[i]", nested("f(", "x", ")")),
    "host, in place": ("f = lambda v: v.add_(1)\ny = @", "out[i] = y[i]", nested("f(", "x", ")")),
    "host, given a function": (
        f"{LAMBDA}\ny = @", "out[i] = y[i]", nested("called(f, ", "x", ")"),
    ),
    "methods of a tensor": ("y = @", "out[i] = y[i]", nested("", "x", ".abs()")),
    "views": ("y = @\ny.add_(1)", "out[i] = y[i]", nested("", "x", "[:].view(-1)")),
    "methods in methods": ("y = @", "out[i] = y[i]", nested("x.add(", "x", ")")),
    "methods of an element": ("pass", "out[i] = @", nested("", "x[i]", ".abs()")),
    "methods of a dataclass": (
        "pass", "p = Pair(x[i], 1.0)\nr = @\nout[i] = r.a + r.b", nested("", "p", ".add(p)"),
    ),
    "dataclasses in methods": (
        "pass", "p = Pair(x[i], 1.0)\nr = @\nout[i] = r.a + r.b", nested("p.add(", "p", ")"),
    ),
    "methods of a named tuple": (
        "pass", "p = Named(x[i], 1.0)\nr = @\nout[i] = r.a + r.b", nested("", "p", ".add(p)"),
    ),
    "builder": ("pass", "p = Builder(x[i])\nr = @\nout[i] = r.a", nested("", "p", ".bump(1)")),
    "of the module": ("pass", "out[i] = @", nested("halved(", "x[i]", ")")),
    "lambdas in lambdas": ("pass", "f = @\nout[i] = x[i]", nested("(lambda v: ", "0", ")")),
}  # fmt: skip


def made(host: str, loop: str, deep: str) -> Any:
    """The kernel with ``deep`` for each ``@``."""
    host, loop = host.replace("\n", "\n    "), loop.replace("\n", "\n        ")
    text = f"def k(x, out):\n    {host}\n    for i in range(out.shape[0]):\n        {loop}\n"
    text = text.replace("@", deep)
    file = f"<deep {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = dict(globals())
    exec(compile(text, file, "exec"), scope)
    return weft.kernel(scope["k"])


def inputs() -> list[torch.Tensor]:
    return [torch.linspace(-1, 2, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often it was asked what a call gives, or writes to."""
    found = [0]

    def count(method: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            found[0] += 1
            assert found[0] < 5_000, "far more often than there are calls"
            return method(*args)

        return counting

    monkeypatch.setattr(Values, "_result", count(Values._result))
    monkeypatch.setattr(Values, "apply", count(Values.apply))
    monkeypatch.setattr(Calls, "_calls", count(Calls._calls))
    return found


def agrees(kernel: Any) -> None:
    found, expected = inputs(), inputs()
    kernel(*found)
    kernel.__wrapped__(*expected)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", FORMS)
def test_looks_grow_with_the_depth(looks: list[int], name: str) -> None:
    host, loop, expression = FORMS[name]
    counts = list[int]()
    for depth in (20, 40):
        looks[0] = 0
        agrees(made(host, loop, expression(depth)))
        counts.append(looks[0])
    assert 0 < counts[1] < 2.1 * counts[0]


def test_functions_of_which_each_calls_the_one_before_twice(looks: list[int]) -> None:
    """Each is looked at where it stands, with all that it calls."""
    counts = list[int]()
    for depth in (8, 16):
        looks[0] = 0
        lines = [f"f{k} = lambda v: f{k - 1}(f{k - 1}(v))" for k in range(1, depth)]
        agrees(made("f0 = lambda v: v * 0.5\n@\ny = f2(x)", "out[i] = y[i]", "\n    ".join(lines)))
        counts.append(looks[0])
    assert 0 < counts[1] < 4.2 * counts[0]


@pytest.mark.parametrize(
    ("host", "mutated"),
    [
        ("y = f(f(x))\ny.add_(1)", {"x", "out"}),
        ("a = x.abs()\nfor t in weft.serial(range(2)):\n    y = f(f(a))\n    a = x\ny.add_(1)",
         {"x", "out"}),
        ("g = lambda v: f(f(v))\ny = g(x.abs())\ny = g(x)\ny.add_(1)", {"x", "out"}),
        ("g = lambda v: f(f(v))\ny = g(x)\ny = g(x.abs())\ny.add_(1)", {"out"}),
        ("h = lambda v: v.add_(1)\ng = lambda v: h(f(v))\ny = g(x.abs())\ny = g(x)",
         {"x", "out"}),
        ("a = [x.abs()]\ng = lambda: f(f(a[0]))\ny = g()\na.append(x)\ny = g()\ny.add_(1)",
         {"x", "out"}),
    ],
)  # fmt: skip
def test_what_was_found_before_a_name_changed_is_not_found_after_it(
    host: str, mutated: set[str]
) -> None:
    kernel = made(f"f = lambda v: v.view(-1)\n{host}", "out[i] = y[i]", "")
    assert kernel.mutated == mutated
    agrees(kernel)
