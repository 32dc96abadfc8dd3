"""Of two numbers that are shifted by one of them, one has the exponential 1."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import weft
from weft.ir import interp
from weft.ir.core import Function, walk
from weft.ir.text import parse_function
from weft.ir.verify import verify
from weft.passes.dce import dce
from weft.passes.share_exponentials import share_exponentials

SPECIAL = [0.0, -0.0, 1.0, -2.5, 3e38, -1e38, 80.0, -120.0, math.inf, -math.inf, math.nan]


def function(body: str) -> Function:
    return parse_function(f"""
func.func @f(%x: memref<?xf32>, %out: memref<?xf32>, %c: memref<?xi1>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %p = memref.load %x[%c0] : memref<?xf32>
  %q = memref.load %x[%c1] : memref<?xf32>
  %t = memref.load %c[%c0] : memref<?xi1>
{body}
  memref.store %d, %out[%c0] : memref<?xf32>
  memref.store %e, %out[%c1] : memref<?xf32>
  func.return
}}""")


def shifted(first: str, second: str, kind: str = "exp") -> str:
    return f"""
  %a = arith.subf {first} : f32
  %d = math.{kind} %a : f32
  %b = arith.subf {second} : f32
  %e = math.{kind} %b : f32"""


LARGER = "  %g = arith.cmpf ogt, %p, %q : f32\n  %m = arith.select %g, %p, %q : f32"
SMALLER = "  %g = arith.cmpf olt, %p, %q : f32\n  %m = arith.select %g, %p, %q : f32"
ANY = "  %m = arith.select %t, %q, %p : f32"


def exponentials(made: Function) -> int:
    return sum(op.name in ("math.exp", "math.exp2") for op in walk(made.body))


@pytest.mark.parametrize("kind", ["exp", "exp2"])
@pytest.mark.parametrize("order", [("%p, %m", "%q, %m"), ("%q, %m", "%p, %m")])
@pytest.mark.parametrize("choice", [LARGER, SMALLER, ANY])
def test_one_for_two_with_the_same_bits(choice: str, order: tuple[str, str], kind: str) -> None:
    before = function(choice + shifted(*order, kind))
    after = dce(share_exponentials(before))
    verify(after)
    assert (exponentials(before), exponentials(after)) == (2, 1)
    for p, q, test in itertools.product(SPECIAL, SPECIAL, (False, True)):
        found = []
        for made in (before, after):
            out = np.zeros(2, np.float32)
            with np.errstate(all="ignore"):
                interp.run(made, [np.array([p, q], np.float32), out, np.array([test])])
            found.append(out)
        np.testing.assert_array_equal(*found, err_msg=f"{p}, {q}")


KEPT = {
    "another number": LARGER + "\n  %r = arith.addf %q, %q : f32" + shifted("%p, %m", "%r, %m"),
    "the choice from a number": LARGER + shifted("%m, %p", "%m, %q"),
    "other functions": LARGER + shifted("%p, %m", "%q, %m").replace("exp %b", "exp2 %b"),
    "the same number twice": LARGER + shifted("%p, %m", "%p, %m"),
    "no choice": shifted("%p, %q", "%q, %p"),
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_stays(text: str) -> None:
    assert exponentials(share_exponentials(function(text))) == 2


def test_what_another_block_has_stays() -> None:
    body = shifted("%p, %m", "%q, %m").replace(
        "  %b = ", "  %e = scf.if %t -> (f32) {\n  %b = "
    ).replace("%e = math.exp %b : f32", "%i = math.exp %b : f32\n  scf.yield %i : f32\n  } else {\n"
              "  scf.yield %q : f32\n  }")  # fmt: skip
    assert exponentials(share_exponentials(function(LARGER + "\n" + body))) == 2


@weft.kernel
def added_logarithms(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    for i in range(a.shape[0]):
        m = max(a[i], b[i])
        out[i] = m + weft.math.log(weft.math.exp(a[i] - m) + weft.math.exp(b[i] - m))
    return out


@weft.kernel
def running_softmax(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m, total, s = -1e30, 0.0, 0.0
        for j in range(x.shape[1]):
            larger = max(m, x[i, j])
            old, new = weft.math.exp(m - larger), weft.math.exp(x[i, j] - larger)
            total = total * old + new
            s = s * old + new * v[j]
            m = larger
        out[i] = s / total
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_logarithms_of_sums(dtype: torch.dtype) -> None:
    a, b = (torch.randn(127, dtype=torch.float64).to(dtype) for _ in range(2))
    assert added_logarithms.inspect(a, b)["ir after dce"].count("math.exp ") == 1
    expected = torch.logaddexp(a.double(), b.double())
    few = 3 * torch.finfo(dtype).eps
    torch.testing.assert_close(added_logarithms(a, b).double(), expected, atol=few, rtol=few)


def test_special_numbers_are_those_of_the_python() -> None:
    a, b = torch.tensor(list(itertools.product(SPECIAL, SPECIAL))).T.contiguous()
    torch.testing.assert_close(
        added_logarithms(a, b), added_logarithms.interpret(a, b), equal_nan=True
    )


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (17, 127), (2, 0)])
def test_a_running_softmax_and_its_gradients(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    v = torch.randn(shape[1], dtype=torch.float64, requires_grad=True)
    if shape[1]:
        torch.testing.assert_close(running_softmax(x, v), torch.softmax(x, 1) @ v)
        assert torch.autograd.gradcheck(running_softmax, (x, v))
        small = x.detach()[:2, :3].clone().requires_grad_()
        few = v.detach()[: small.shape[1]].clone().requires_grad_()
        assert torch.autograd.gradgradcheck(running_softmax, (small, few))
    else:
        assert running_softmax(x, v).isnan().all()
