"""Sizes of tensors that the host part gives names to, in what is said of index sets."""

import ast
import textwrap

import pytest
import torch

import weft
from weft.frontend.sizes import sizes


@weft.kernel
def variation(u: torch.Tensor) -> torch.Tensor:
    n, m = u.shape
    out = torch.empty_like(u)
    for i, j in weft.ndrange(n, m):
        d = 0.0
        if i + 1 < n:
            d += abs(u[i + 1, j] - u[i, j])
        if j + 1 < m:
            d += abs(u[i, j + 1] - u[i, j])
        out[i, j] = d
    return out


@weft.kernel
def beyond(u: torch.Tensor, k: int) -> torch.Tensor:
    n = u.shape[0]
    out = torch.empty(n, k)
    for i, j in weft.ndrange(n, k):
        out[i, j] = u[i, j]
    return out


def test_accesses_within_named_sizes_are_in_range() -> None:
    found = variation.inspect(torch.randn(5, 7))
    assert found["index sets"].count("  in range\n") == 5
    assert "range not proven" not in found["index sets"]
    assert "[n, m] -> { S[i, j] -> out[i, j]" in found["index sets"]
    found = beyond.inspect(torch.randn(3, 4), 2)
    assert found["index sets"].count("range not proven") == 2, "of a number nothing is known"


@pytest.mark.parametrize(("host", "known"), [
    ("n, m = u.shape", {"n": ("u", 0), "m": ("u", 1)}),
    ("m = u.shape[1]; n = u.size(0); k = len(v)", {"m": ("u", 1), "n": ("u", 0), "k": ("v", 0)}),
    ("n, *m = u.shape", {"n": ("u", 0)}),
    ("k = len(v); n = len(u); v = torch.zeros(n, 3)", {"n": ("u", 0), ("v", 0): ("u", 0)}),
    ("n = u.shape[0]; w = torch.zeros(n, 3)", {"n": ("u", 0), ("w", 0): ("u", 0)}),
    ("n = u.shape[0]; w = torch.ones((2, n))", {"n": ("u", 0), ("w", 1): ("u", 0)}),
    ("n = u.shape[0]; n += 1", {}),
    ("n = u.shape[0]; u = u[1:]", {}),
    ("n = u.shape[0]; u.resize_(3)", {}),
    ("n = u[1:].shape[0]; m = u.shape[-1]", {}),
])  # fmt: skip
def test_only_what_stays_is_known(host: str, known: object) -> None:
    text = f"def f(u, v):\n    {host}\n    for i in range(n):\n        pass\n    n2 = u.shape[0]\n"
    (tree,) = ast.parse(textwrap.dedent(text)).body
    assert isinstance(tree, ast.FunctionDef)
    loop = next(node for node in tree.body if isinstance(node, ast.For))
    assert sizes(tree, loop) == known
