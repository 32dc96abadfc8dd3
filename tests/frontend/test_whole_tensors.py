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
    x, y, found = torch.rand(3), torch.rand(2, 3), torch.full((2, 2), float("nan"))
    plain(x, y, found[0])
    weft.kernel(plain)(x, y, found[1])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("expression", ["sorted(y)[0]", "list(y)[0]", "max(y)"])
def test_rows_are_no_items_of_a_list(expression: str) -> None:
    text = f"def kernel(y):\n    for i in range(2):\n        y[i, 0] = {expression}\n"
    with pytest.raises(weft.CompileError):
        weft.kernel(function(text))(torch.rand(2, 3))
