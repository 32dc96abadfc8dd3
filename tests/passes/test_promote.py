"""promote: elements that serial loops update, carried by them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

import weft
from tests.passes.texts import normal, parsed, result_of
from weft.ir import interp
from weft.ir.core import Function, walk
from weft.ir.views import For
from weft.passes.promote import promote

HEAD = """
func.func @sums(%x: memref<?x?xf32>, %c: memref<?xf32>, %n: index, %m: index)
    attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {"""
TAIL = """
    scf.reduce
  }
  func.return
}"""
UPDATE = """
      %v = memref.load %x[%i, %k] : memref<?x?xf32>
      %s = memref.load %c[%i] : memref<?xf32>
      %t = arith.addf %s, %v : f32
      memref.store %t, %c[%i] : memref<?xf32>"""


def test_a_sum_in_memory_that_may_have_no_terms() -> None:
    before = f"{HEAD}\n    scf.for %k = %c0 to %m step %c1 {{{UPDATE}\n    }}{TAIL}"
    after = f"""{HEAD}
    %0 = arith.cmpi slt, %c0, %m : index
    %1 = scf.if %0 -> (f32) {{
      %2 = memref.load %c[%i] : memref<?xf32>
      scf.yield %2 : f32
    }} else {{
      %cst = arith.constant 0.0 : f32
      scf.yield %cst : f32
    }}
    %c_1 = scf.for %k = %c0 to %m step %c1 iter_args(%s = %1) -> (f32) {{
      %v = memref.load %x[%i, %k] : memref<?x?xf32>
      %t = arith.addf %s, %v : f32
      scf.yield %t : f32
    }}
    scf.if %0 {{
      memref.store %c_1, %c[%i] : memref<?xf32>
    }}{TAIL}"""
    assert result_of([promote], before) == normal(after)


@pytest.mark.parametrize(
    ("front", "upper"), [("\n    memref.store %zero, %c[%i] : memref<?xf32>", "%m"), ("", "%c3")]
)
def test_a_sum_that_is_stored_in_any_case(front: str, upper: str) -> None:
    before = f"{HEAD}{front}\n    scf.for %k = %c0 to {upper} step %c1 {{{UPDATE}\n    }}{TAIL}"
    after = f"""{HEAD}{front}
    %0 = memref.load %c[%i] : memref<?xf32>
    %c_1 = scf.for %k = %c0 to {upper} step %c1 iter_args(%s = %0) -> (f32) {{
      %v = memref.load %x[%i, %k] : memref<?x?xf32>
      %t = arith.addf %s, %v : f32
      scf.yield %t : f32
    }}
    memref.store %c_1, %c[%i] : memref<?xf32>{TAIL}"""
    assert result_of([promote], before) == normal(after)


def carried(function: Function) -> list[int]:
    """How many values each loop carries, from top to bottom."""
    return [len(For(op).carried) for op in walk(function.body) if op.name == "scf.for"]


def loop(inside: str, upper: str = "%m", index: str = "k") -> str:
    return f"\n    scf.for %{index} = %c0 to {upper} step %c1 {{{inside}\n    }}"


OTHER = "\n      memref.store %zero, %c[%k] : memref<?xf32>"
NEXT = """
      %next = arith.addi %i, %c1 : index
      %other = memref.load %c[%next] : memref<?xf32>
      memref.store %other, %x[%i, %k] : memref<?x?xf32>"""
AGAIN = re.sub("%([vst])\\b", "%\\g<1>_again", UPDATE)
SOME = """
      %some = arith.cmpi slt, %k, %c3 : index
      scf.if %some {"""
BODIES = {
    "through two loops": (loop(loop(UPDATE, index="k"), index="q"), [1, 1]),
    "in a loop whose length changes": (loop(loop(UPDATE, "%q", "k"), index="q"), [0, 1]),
    "also in a branch": (loop(UPDATE + SOME + AGAIN + "\n      }"), [1]),
    "in a loop that may not run, and in a branch beside it": (
        loop(loop(UPDATE, index="q") + SOME + AGAIN + "\n      }"), [0, 1],
    ),
    "in a loop that may not run and is all": (loop(loop(UPDATE, "%n", "q")), [1, 1]),
    "in a branch only": (loop(SOME + UPDATE + "\n      }"), [0]),
    "another element may be the same": (loop(UPDATE + OTHER), [0]),
    "the next element": (loop(UPDATE + NEXT), [1]),
    "an assertion": (loop(SOME.partition("scf.if")[0] + '"weft.assert"(%some) {message = "no"} : '
                          "(i1) -> ()" + UPDATE), [0]),
    "an element that moves": (loop(UPDATE.replace("%c[%i]", "%c[%k]")), [0]),
    "a load only": (loop("\n      %s = memref.load %c[%i] : memref<?xf32>"), [0]),
}  # fmt: skip


def assert_same(before: Function, after: Function, turns: Sequence[int]) -> None:
    """Both compute the same, to the bit."""
    for m in turns:
        x, c = np.random.default_rng(0).standard_normal((2, 6, 6), np.float32)
        arrays = [[x.copy(), c[0].copy()] for _ in range(2)]
        for made, given in zip((before, after), arrays, strict=True):
            interp.run(made, [*given, 5, m])
        for one, other in zip(*arrays, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", BODIES)
def test_which_loops_carry_the_element(name: str) -> None:
    body, expected = BODIES[name]
    before = parsed(f"{HEAD}{body}{TAIL}")
    after = promote(before)
    assert carried(after) == expected
    assert_same(before, after, (0, 2, 3))


OVERWRITTEN = "\n      memref.store %zero, %c[%i] : memref<?xf32>" + UPDATE


@pytest.mark.parametrize(("front", "body", "loads"), [
    ("", loop(OVERWRITTEN), 0),
    ("", loop(loop(OVERWRITTEN), index="q"), 0),
    ("", loop(loop(OVERWRITTEN, "%q"), index="q"), 0),
    ("", loop(UPDATE + re.sub("%([vst])\\b", "%\\g<1>_again", OVERWRITTEN)), 1),
    # With no turns that is what is there behind the loop.
    ("\n    memref.store %zero, %c[%i] : memref<?xf32>", loop(OVERWRITTEN), 1),
])  # fmt: skip
def test_what_is_overwritten_is_not_loaded(front: str, body: str, loads: int) -> None:
    before = parsed(f"{HEAD}{front}{body}{TAIL}")
    after = promote(before)
    found = [op for op in walk(after.body) if op.name == "memref.load"]
    assert sum(op.operands[0] is after.args[1] for op in found) == loads
    assert_same(before, after, (0, 2))


def test_arguments_that_may_overlap_stay_in_memory() -> None:
    text = f"{HEAD}{loop(UPDATE)}{TAIL}".replace("noalias = true", "noalias = false")
    assert result_of([promote], text) == normal(text)


def row_sums(x: torch.Tensor, out: torch.Tensor, first: int) -> None:
    for i in range(x.shape[0]):
        for k in range(first, x.shape[1]):
            out[i] += x[i, k]


def in_one_loop(x: torch.Tensor, out: torch.Tensor, first: int) -> None:
    for _ in range(1):
        for i in range(x.shape[0]):
            for k in range(first, x.shape[1]):
                out[i] += x[i, k]


@pytest.mark.parametrize("function", [row_sums, in_one_loop])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16])
def test_compiled(function: Callable[..., None], dtype: torch.dtype) -> None:
    x, kernel = (8 * torch.randn(7, 40)).to(dtype), weft.kernel(function)
    for first in (0, 39, 40, 90):
        out = torch.arange(7).to(dtype)
        expected = out.clone()
        for k in range(first, 40):  # each step rounds to the dtype
            expected += x[:, k]
        kernel(x, out, first)
        torch.testing.assert_close(out, expected)


def test_nothing_is_stored_where_nothing_was() -> None:
    """A loop without iterations leaves an element alone that is out of bounds."""

    @weft.kernel(debug=False)
    def sums(x: torch.Tensor, out: torch.Tensor, at: int) -> None:
        for i in range(x.shape[0]):
            for k in range(x.shape[1]):
                out[at + i] += x[i, k]

    memory = torch.full((100,), 7.0)
    sums(torch.ones(3, 0), memory[:10], 50)
    assert (memory == 7.0).all()
