"""What Python's functions, lists and comprehensions take of a whole tensor is its elements, or its
rows, as in the undecorated Python (a ``for`` statement goes over subscripts)."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.fuzz.check import function

EXPRESSIONS = [
    "sum(x)", "max(x)", "max(x, key=lambda v: -v)", "min(x, default=3)", "sum(sorted(x)[:2])",
    "sorted(x, key=lambda v: -v)[0]", "sum(v * k for k, v in enumerate(x))", "list(x)[1]",
    "sum(v for v in reversed(x))", "len(list(x))", "1 if x[1] in x else 0", "1 if 7.0 in x else 0",
    "sum(list(x) + [1.0])", "sum([v for v in x])", "sum([v for v in x if v > 0.5])",
    "sum(v for v in x if v > 0.5)", "any(v > 0.5 for v in x)", "all(v > 0.0 for v in x)",
    "max(v for v in x)", "max(max(r) for r in y)", "sum(sum(r) for r in y)", "sorted(y[1])[0]",
    "sum(v for r in y for v in r if v > 0.3)", "max(y[1], key=lambda v: -v)", "len(y)",
    "sum([sum(r) for r in y])", "sum([r[1] for r in y if r[0] > 0.3])", "list(x) == list(x)",
    "max(enumerate(x), key=lambda p: p[1])[0]", "sorted(zip(x, range(3)))[0][1]",
    "max((v, k) for k, v in enumerate(x))[1]", "sorted(range(3), key=lambda k: x[k])[0]",
    "min((v, k) for k, v in enumerate(x) if v > min(x))[1]", "min(range(3), key=lambda k: x[k])",
    "sum(v * w for v, w in sorted(zip(x, y[0])))",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_items_of_a_whole_tensor_are_pythons(expression: str) -> None:
    loop = f"for i in range(out.shape[0]):\n        out[i] = {expression}"
    plain = function(f"def kernel(x, y, out):\n    {loop}\n")
    x, y, found = torch.rand(3), torch.rand(2, 3), torch.full((3, 2), float("nan"))
    plain(x, y, found[0])
    weft.kernel(plain)(x, y, found[1])
    weft.kernel(plain).interpret(x, y, found[2])
    torch.testing.assert_close(found[1:], found[:1].expand(2, -1))


@pytest.mark.parametrize("expression", [
    "sum(x) + sum(v for v in x)", "max([v for r in y for v in r])", "x[:1].sum() + list(x)[2]",
    "sum(v * w for v, w in zip(x, y[0]))", "sum(k * v for k, v in enumerate(x)) + max(*x)",
])  # fmt: skip
def test_items_of_a_whole_tensor_in_the_host_part_are_pythons(expression: str) -> None:
    loop = "for i in range(2):\n        out[i] = s + b"
    plain = function(f"def kernel(x, y, out):\n    s = {expression}\n    a, b, c = x\n    {loop}\n")
    x, y, found = torch.rand(3), torch.rand(2, 3), torch.full((3, 2), float("nan"))
    plain(x, y, found[0])
    weft.kernel(plain)(x, y, found[1])
    weft.kernel(plain).interpret(x, y, found[2])
    torch.testing.assert_close(found[1:], found[:1].expand(2, -1))


def test_a_function_takes_items_and_its_loops_subscripts() -> None:
    def plain(x):
        total = sum(x) + max(v for v in x) + sum([v for r in range(2) for v in x])
        for i in x:
            total += i * x[i]
        return total

    marked = weft.func(plain)

    @weft.kernel
    def both(x, out):
        for k in range(1):
            out[k] = plain(x)
            out[k + 1] = marked(x)

    x, expected = torch.tensor([1.5, 2.5, 4.5]), torch.full((2,), 3 * 8.5 + 4.5 + 2.5 + 9.0)
    for run in (both, both.interpret):
        out = torch.full((2,), float("nan"))
        run(x, out)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("offset", [None, -1])
def test_items_of_a_field_are_its_elements(offset: int | None) -> None:
    def plain(f: weft.template(), out):
        for k in range(1):
            s = sum(f) + sum(j * v for j, v in enumerate(f)) + max(v for v in f)
            for j in f:
                s += j * f[j]
            out[k] = s

    f = weft.field(weft.f32, 3, offset=offset)
    f.from_torch(torch.tensor([1.5, 2.5, 4.5]))
    below = 8.5 if offset else 0.0
    for run in (plain, weft.kernel(plain), weft.kernel(plain).interpret):
        out = torch.full((1,), float("nan"))
        run(f, out)
        assert out.item() == 8.5 + 11.5 + 4.5 + 11.5 - below


def test_interpretation_notes_which_elements_items_are() -> None:
    @weft.kernel
    def spread(x):
        for i in range(3):
            x[i] = sum(x)

    with pytest.raises(weft.RaceError, match=r"iteration 0 writes and iteration 1 reads"):
        spread.interpret(torch.rand(3))


@pytest.mark.parametrize("expression", ["sorted(y)[0]", "list(y)[0]", "max(y)"])
def test_rows_are_no_items_of_a_list(expression: str) -> None:
    text = f"def kernel(y):\n    for i in range(2):\n        y[i, 0] = {expression}\n"
    with pytest.raises(weft.CompileError):
        weft.kernel(function(text))(torch.rand(2, 3))
