"""Expressions of many operands, as programs write them: kernels are text of a file."""

from __future__ import annotations

import ast
import collections
import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.frontend import scope

_numbers = itertools.count()
Imported = Callable[[str], Any]


@pytest.fixture
def imported(tmp_path: Path) -> Imported:
    """Makes a module of the text of a kernel ``f``, and gives that."""

    def make(text: str) -> weft.Kernel:
        path = tmp_path / f"long{next(_numbers)}.py"
        path.write_text(f"import math\nimport weft\n\n\n@weft.kernel\n{text}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.f

    return make


OR = " or ".join(f"x[i] == {3 * k}" for k in range(200))
PLACE = " and ".join(f"i != {3 * k}" for k in range(200))


@pytest.mark.parametrize("test", [OR, PLACE])
def test_200_operands(imported: Imported, test: str) -> None:
    f = imported(f"def f(x, o):\n    for i in x:\n        if {test}:\n            o[i] = 1.0\n")
    x, o = torch.arange(700), torch.zeros(700)
    f(x, o)
    expected = [float(eval(test, {"x": x.tolist(), "i": i})) for i in range(700)]
    assert o.tolist() == expected


def test_a_name_that_each_of_100_static_iterations_narrows(imported: Imported) -> None:
    f = imported("""\
def f(x, o):
    for i in o:
        ok = True
        for k in weft.static(range(100)):
            ok = ok and x[i, k] > k
        if ok:
            o[i] = 1.0
""")
    x, o = torch.arange(101).repeat(20, 1)[:, 1:].contiguous(), torch.zeros(20)
    x[torch.arange(0, 20, 2), torch.arange(0, 100, 10)] -= 1
    f(x, o)
    assert o.tolist() == [0.0, 1.0] * 10


@pytest.mark.slow
def test_2000_terms_on_one_line(imported: Imported) -> None:
    terms = " + ".join(f"x[i] * {k}" for k in range(2000))
    f = imported(f"def f(x, o):\n    for i in x:\n        o[i] = {terms}\n")
    x, o = torch.tensor([1.0, -2.0]), torch.zeros(2)
    f(x, o)
    assert o.tolist() == [1999000.0, -3998000.0]


def test_a_power_of_100_000_in_debug_mode(imported: Imported) -> None:
    """Each product had a check: those of ``x[i] ** 300`` took minutes to compile."""
    text = "def f(x, o):\n    for i in x:\n        o[i] = x[i] ** 100_000\n"
    f = weft.kernel(imported(text).function, debug=True)
    o = torch.zeros(3, dtype=torch.int64)
    f(torch.tensor([-1, 0, 1]), o)
    assert o.tolist() == [1, 0, 1]
    with pytest.raises(weft.KernelOverflowError, match=r"-3 \*\* 100000 overflows i64"):
        f(torch.tensor([-3, 1, 1]), o)


def test_gradient_and_graph_of_300_terms(imported: Imported) -> None:
    """What the host part reads and writes was looked at with Python's own limit of recursion."""
    terms = " + ".join(f"x[i] * {k}" for k in range(300))
    f = imported(f"def f(x, o):\n    for i in x:\n        o[i] = {terms}\n")
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    o = torch.zeros(2)
    f(x, o)
    o.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [44850.0, 44850.0]
    graph = torch.compile(f, fullgraph=True, backend="aot_eager")
    found = torch.zeros(2)
    graph(x.detach(), found)
    assert found.tolist() == o.tolist()


def _cases(test: str, indent: str) -> str:
    """A chain of 350 `elif`s, each of which is in the `else` of the one before it."""
    heads = [f"if {test} == 0:", *(f"elif {test} == {k}:" for k in range(1, 350)), "else:"]
    values = [7, *range(1, 350), -1]
    return "".join(
        f"{indent}{head}\n{indent}    a = {a}\n" for head, a in zip(heads, values, strict=True)
    )


def test_350_cases_of_a_loop(imported: Imported) -> None:
    """Gradients and compiling for a GPU had Python's own limit of recursion."""
    cases = _cases("k", "        ")
    f = imported(
        f"def f(x, o):\n    for i in o:\n        k = 3 * i\n{cases}        o[i] = a * x[i]\n"
    )
    x, o = torch.ones(120, requires_grad=True), torch.zeros(120)
    f(x, o)
    o.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == o.tolist() == [7, *range(3, 350, 3), -1, -1, -1]
    assert weft.compile_for("sm_90", f, x.detach(), torch.zeros(120)).ptx
    assert weft.compile_for("wgsl", f, x.detach(), torch.zeros(120))


def test_each_of_120_branches_is_looked_at_a_few_times(
    imported: Imported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks which names all below it assign: a chain of 600 took 12 s, now 3."""
    lines = ["def f(x, o):", "    for i in x:", "        if x[i] < 0: r = 1.0"]
    lines += [f"        elif x[i] < {k + 1}: r = x[i] * {k}" for k in range(120)]
    f = imported("\n".join([*lines, "        else: r = 0.0", "        o[i] = r", ""]))
    count = collections.Counter[str]()
    looked = scope._Assigned._visit

    def counted(self: Any, node: ast.AST) -> None:
        count[type(node).__name__] += 1
        looked(self, node)

    monkeypatch.setattr(scope._Assigned, "_visit", counted)
    x, o = torch.arange(-1.0, 122), torch.zeros(123)
    f(x, o)
    assert o.tolist() == [1.0, *(float(k * k) for k in range(120)), 0.0, 0.0]
    assert count["If"] <= 10 * 121


def test_350_cases_of_the_host_part(imported: Imported) -> None:
    """Reading them had Python's own limit of recursion."""
    cases = _cases("n", "    ")
    f = imported(f"def f(x, n: int):\n{cases}    for i in x:\n        x[i] *= a\n")
    for n, a in (0, 7), (349, 349), (-1, -1):
        x = torch.ones(3)
        f(x, n)
        assert x.tolist() == [a] * 3


@weft.kernel
def hashed(x):
    out = torch.empty_like(x)
    for i in x:
        k = i
        for t in weft.static(range(200)):
            k = (k * 5 + t) % x.shape[0]
        out[i] = x[k] * x[k]
    return out


def _seen(x):
    hashed.inspect(x)
    hashed.backward.inspect(x)
    return hashed.cost(x), hashed.sharding(x), hashed.schedules(x)


@pytest.mark.parametrize(
    "use",
    [
        _seen, lambda x: torch.func.vmap(hashed)(x[None]).sum(),
        lambda x: torch.func.jvp(hashed, (x,), (x,)),
        lambda x: torch.compile(hashed, fullgraph=True, backend="aot_eager")(x),
    ],
    ids=["seen", "vmap", "jvp", "graph"],
)  # fmt: skip
def test_deep_subscripts_are_followed_by_all_that_asks_of_a_loop(use):
    """Not by compiled calls alone: the others ended in Python's RecursionError."""
    use(torch.rand(11, dtype=torch.float64))


def test_gradients_of_deep_subscripts():
    x = torch.rand(11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(hashed, [x])


# Each statement reads twice what the one before gave: 2 ** 40 ways lead from the last to the first.
SHARED = {
    "sums in branches": ["if x[i, j] > 0.1:", "    s += x[i, j]", "else:", "    s += y[i, j]"],
    "sums that others name": ["v = v + v * 0.25", "s = v * 1e-9 + s"],
    "choices": ["v = (v + 1 if v > 0 else v - 1) if j > 2 else (v + 2 if n > 1 else v)"],
    "extrema": ["v = min(max(v, -1.0), v + 1.0)"],
    "two carried": ["s = s * 0.5 + t * 0.5", "t = t + s * 0.1"],
    "subscripts": ["k = (k * k + k) % 7"],
    "bounds": ["q = min(q, q + 1)"],
    "squares": ["t = t * t * 0.5 + t * 0.25"],
}


@pytest.mark.parametrize("name", SHARED)
def test_what_40_statements_share_is_looked_at_once(imported: Imported, name: str) -> None:
    lines = "".join(f"            {line}\n" for _ in range(40) for line in SHARED[name])
    f = imported(f"""\
def f(x, y, n: int, out):
    for i in range(x.shape[0]):
        s, t, k, q = 0.0, 0.5, i, n
        for j in range(x.shape[1]):
            v = x[i, j]
{lines}\
            s += v + x[k % 7, j]
        for j in range(q):
            s += y[i, j]
        out[i] = s + t
""")
    x, y = (torch.rand(7, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found, expected = (torch.zeros(7, dtype=torch.float64) for _ in range(2))
    f(x, y, 3, found)
    f.__wrapped__(x.detach(), y.detach(), 3, expected)
    torch.testing.assert_close(found.detach(), expected)
    found.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    f.schedules(x.detach().float(), y.detach().float(), 3, expected.float(), device="cuda")


def test_numbers_that_move_along_40_names(imported: Imported) -> None:
    """Each round of lowering finds out that one more of them is no integer."""
    names = [f"v{k}" for k in range(40)]
    moves = "".join(f"            v{k} = v{k - 1}\n" for k in range(39, 0, -1))
    f = imported(
        "def f(x, o):\n    for i in o:\n"
        + "".join(f"        {name} = 0\n" for name in names)
        + f"        for t in range(3):\n{moves}            v0 = v0 + x[i]\n"
        + f"        o[i] = {' + '.join(f'{k + 1} * {name}' for k, name in enumerate(names))}\n"
    )
    x, o = torch.rand(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    f(x, o)
    torch.testing.assert_close(o, 10 * x)


@weft.kernel
def little_of_the_index(x, y, s, out):
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        a, b = 0.75, y[i]
        for _ in weft.static(range(6)):
            if i <= max(j, 3):
                continue
            a = 0.7 * a - weft.math.tanh(weft.math.tanh(a / (b * b + 1.0)))
            b = weft.math.tanh(weft.math.sin(b) * 2.0)
        out[i, j] += a + b * x[i, j]
        s[i // 2 % s.shape[0]] += weft.math.tanh(x[i, j])


def test_a_long_loop_of_which_little_depends_on_the_index() -> None:
    """LLVM's vectoriser took 13 s for two turns of the inner loop, and more than 60 s for three."""
    x, y = torch.randn(7, 9), torch.randn(7)
    found, expected = ((torch.zeros(3), torch.zeros(7, 9)) for _ in range(2))
    little_of_the_index(x, y, *found)
    little_of_the_index.interpret(x, y, *expected)
    torch.testing.assert_close(found, expected)
