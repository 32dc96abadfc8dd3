"""Rows whose elements are named by numbers: a loop along them is there for such rows, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft.codegen import cpu
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule.known_rows import known_rows
from weft.schedule.machine import CpuMachine

WIDE = CpuMachine(64)


def loop(accesses: str, layout: str = "") -> Function:
    x = f"memref<?x?x?xf32{layout}>"
    function = parse_function(
        f"""
func.func @f(%x: {x}, %o: memref<?x?xf32>) attributes {{noalias = true}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %n = "weft.dim"(%x) {{axis = 0}} : ({x}) -> index
  %m = "weft.dim"(%x) {{axis = 1}} : ({x}) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {{
    %total = scf.for %j = %c0 to %m step %c1 iter_args(%sum = %zero) -> (f32) {{
      {accesses.replace("X", x)}
      %next = arith.addf %sum, %v : f32
      memref.store %next, %o[%i, %j] : memref<?x?xf32>
      scf.yield %next : f32
    }}
    scf.reduce
  }}
  func.return
}}"""
    )
    return cpu.scheduled(function, (), WIDE).function


ENDS = """
      %a = memref.load %x[%i, %j, %c0] : X
      %b = memref.load %x[%i, %j, %c2] : X
      %v = arith.subf %a, %b : f32
"""
ANY = """
      %a = memref.load %x[%i, %j, %c0] : X
      %b = memref.load %x[%i, %j, %j] : X
      %v = arith.subf %a, %b : f32
"""
FIRST = "      %v = memref.load %x[%i, %j, %c0] : X"
FIXED = """
      %a = memref.load %x[%i, %c1, %c0] : X
      %b = memref.load %x[%i, %c1, %c2] : X
      %v = arith.subf %a, %b : f32
"""


def test_both_loops_mean_the_same() -> None:
    made = loop(ENDS)
    verify(made)
    assert same(parse_function(print_function(made)), made)
    names = [op.name for op in walk(made.body)]
    assert names.count("memref.flatten") == 1
    assert sum("scalar" in op.attrs for op in walk(made.body)) == 1
    rng = np.random.default_rng(1)
    for shape in ((3, 5, 3), (2, 4, 4), (1, 17, 3), (0, 2, 3), (2, 0, 3), (2, 3, 3)):
        x, o = rng.standard_normal(shape).astype(np.float32), np.full(shape[:2], 9, np.float32)
        run(made, [x, o])
        wanted = np.cumsum(x[..., 0] - x[..., 2], axis=1, dtype=np.float32)
        assert np.array_equal(o, wanted)


@pytest.mark.parametrize(
    ("accesses", "layout"),
    [(ANY, ""), (FIRST, ""), (FIXED, ""), (ENDS, ", strided<[?, ?, 1]>")],
    ids=["any element", "one element", "one row", "gaps"],
)
def test_other_loops_stay(accesses: str, layout: str) -> None:
    made = loop(accesses, layout)
    assert known_rows(made) is made
    assert not any(op.name == "memref.flatten" for op in walk(made.body))


@weft.kernel
def gray(x: torch.Tensor, out: torch.Tensor) -> None:
    for i, j in out:
        out[i, j] = 0.25 * x[i, j, 0] + 0.5 * x[i, j, 1] + 0.25 * x[i, j, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("shape", [(3, 50, 3), (40, 7, 4), (1, 127, 3), (0, 3, 3), (5, 64, 9)])
def test_pixels_of_any_number_of_floats(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    for image in (x, x.transpose(0, 1), x[:, ::2]):
        out = torch.full(image.shape[:2], torch.nan, dtype=dtype)
        gray(image, out)
        wanted = (image[..., :3].double() * torch.tensor([0.25, 0.5, 0.25])).sum(-1)
        torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2 * torch.finfo(dtype).eps)


def test_lanes_part_neighbouring_rows() -> None:
    """LLVM loads whole vectors in the loop of rows of three; it gathers in no loop."""
    text = gray.inspect(torch.rand(30, 40, 3), torch.rand(30, 40))["llvm optimized"]
    assert "load <" in text
    assert "shufflevector <" in text
    assert "masked.gather" not in text


@weft.kernel
def turned(p: torch.Tensor) -> None:
    for i in range(p.shape[0]):
        x, y = p[i, 0], p[i, 1]
        p[i, 0] = 0.6 * x - 0.8 * y
        p[i, 1] = 0.8 * x + 0.6 * y


@pytest.mark.parametrize("n", [0, 1, 17, 127, 1000])
@pytest.mark.parametrize("width", [2, 3])
def test_points_are_changed_in_place(n: int, width: int) -> None:
    p = torch.randn(n, width)
    x, y = p[:, 0].double(), p[:, 1].double()
    wanted = torch.stack([0.6 * x - 0.8 * y, 0.8 * x + 0.6 * y, *p.double().T[2:]], 1)
    turned(p)
    torch.testing.assert_close(p.double(), wanted, rtol=0, atol=1e-6)


def test_complex_numbers_are_pairs() -> None:
    @weft.kernel
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * y[i]
        return out

    x, y = (torch.randn(77, dtype=torch.complex64) for _ in range(2))
    torch.testing.assert_close(product(x, y), x * y)
    assert "shufflevector" in product.inspect(x, y)["llvm optimized"]
