"""``x op= v`` of an element, where ``v`` is of another dtype: what ``x = x op v`` gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import weft
from tests.fuzz.check import function

INTS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*INTS, *FLOATS)
# Beyond float16: torch rounds the int before it adds, which is an infinity.
PAIRS = [pair for pair in itertools.product(DTYPES, DTYPES) if pair != ("uint16", "float16")]
OWN = "out[i] {op} x[i]"
UPDATES = {
    "own": OWN,
    "computed": "out[i] {op} x[i] // 2",
    "function": "out[i] {op} min(x[i], 50)",
    "row": "out[i:i + 1] {op} x[i:i + 1]",
    "inner loop": "for j in range(3):\n            out[i] {op} x[j]",
    "local array": "a = weft.zeros(2, {out})\n        a[1] = out[i]\n        a[1] {op} x[i]\n"
    "        out[i] = a[1]",
}


def ends(name: str) -> torch.Tensor:
    dtype = getattr(torch, name)
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max
        return torch.tensor([1e-3 - 1, most / 4, -2.25, 0.3, 1e-30, 5.0], dtype=dtype)
    found = torch.iinfo(dtype)
    return torch.tensor([found.min, found.max, 3, 5, found.max // 2 + 1, 0], dtype=dtype)


def same(plain: Any, x: torch.Tensor, out: torch.Tensor) -> None:
    expected, found = out.clone(), out.clone()
    weft.kernel(plain).interpret(x, expected)
    weft.kernel(plain)(x, found)
    close = 2e-3 if out.dtype in (torch.float16, torch.bfloat16) else 0.0  # computed in float32
    assert torch.allclose(found.double(), expected.double(), rtol=8 * close, atol=0, equal_nan=True)


def plain(update: str, out: str) -> Any:
    text = update.format(op="{op}", out="weft." + out.replace("uint", "u").replace("int", "i")
                         .replace("bfloat", "bf").replace("float", "f"))  # fmt: skip
    return lambda op: function(
        f"def kernel(x, out):\n    for i in range(out.shape[0]):\n        {text.format(op=op)}\n"
    )


@pytest.mark.sampled(9)
@pytest.mark.parametrize("op", ["+=", "-=", "*="])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair(pair: tuple[str, str], op: str) -> None:
    given, kept = map(ends, pair)
    kernel = plain(OWN, pair[1])(op)
    if given.dtype.is_floating_point and not kept.dtype.is_floating_point:
        with pytest.raises(weft.CompileError, match="a float is accumulated into it"):
            weft.kernel(kernel)(given, kept)
        return
    same(kernel, given, kept)


@pytest.mark.parametrize("form", UPDATES)
@pytest.mark.parametrize("pair", [("uint8", "float32"), ("int8", "int32"), ("uint8", "int64"),
                                  ("float64", "float32")], ids="-".join)  # fmt: skip
def test_every_place(pair: tuple[str, str], form: str) -> None:
    for op in ("+=", "-="):
        same(plain(UPDATES[form], pair[1])(op), *map(ends, pair))


@weft.kernel
def taken_off_one(x, out):
    for i in range(x.shape[0]):
        out[0] -= x[i]


@weft.kernel
def by_the_function(x, out):
    for i in range(x.shape[0]):
        weft.atomic_sub(out[i % 2], x[i])


@pytest.mark.parametrize("kernel", [taken_off_one, by_the_function], ids=["own", "function"])
@pytest.mark.parametrize("dtype", ["int64", "float32", "complex64"])
def test_elements_that_iterations_share(kernel: weft.Kernel, dtype: str) -> None:
    x = torch.tensor([1, 2, 200, 255], dtype=torch.uint8)
    out = torch.zeros(2, dtype=getattr(torch, dtype))
    expected = out.clone()
    for i, v in enumerate(x.tolist()):
        expected[0 if kernel is taken_off_one else i % 2] -= v
    kernel(x, out)
    assert torch.equal(out, expected)


def test_frames_that_are_taken_off_again() -> None:
    @weft.kernel
    def moving(total, new, old):
        for i, j in weft.ndrange(*total.shape):
            total[i, j] += new[i, j]
            total[i, j] -= old[i, j]

    new, old = torch.randint(0, 256, (2, 5, 7), dtype=torch.uint8)
    total = torch.zeros(5, 7)
    moving(total, new, old)
    assert torch.equal(total, new.float() - old.float())


def test_members_and_fields() -> None:
    @weft.kernel
    def kernel(xs, x):
        for k in weft.static(range(2)):
            for i in range(x.shape[0]):
                xs[k][i] -= x[i]

    x = torch.tensor([1, 200, 255], dtype=torch.uint8)
    xs = [torch.zeros(3), torch.ones(3)]
    kernel(xs, x)
    assert torch.equal(xs[0], -x.float())
    assert torch.equal(xs[1], 1 - x.float())


def test_in_order_too() -> None:
    @weft.kernel
    def kernel(x, out):
        for t in weft.serial(range(x.shape[0])):
            out[t] += x[t]
            out[t] *= x[t]

    x = torch.tensor([1e-9 - 1, 1e-9 - 1, 0.1, 4e38], dtype=torch.float64)
    out = torch.tensor([1.0, -3e38, 1e20, -3e38])
    expected = ((out.double() + x).float().double() * x).float()
    kernel(x, out)
    assert torch.equal(out, expected)


def test_gradients_of_a_wider_float() -> None:
    @weft.kernel
    def kernel(x):
        out = torch.ones(x.shape[0])
        for i in range(x.shape[0]):
            out[i] += x[i] * x[i]
            out[i] -= x[i]
        return out

    x = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    kernel(x).sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach() - 1)
