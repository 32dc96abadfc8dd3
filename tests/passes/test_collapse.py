"""collapse: loops of a nest that become dimensions of the parallel loop."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.fuzz import nests
from tests.fuzz.check import arguments, function
from tests.passes.texts import normal, result_of
from weft.ir import interp
from weft.ir.core import Function
from weft.ir.verify import verify
from weft.passes.collapse import collapse
from weft.passes.relax_atomics import relax_atomics
from weft.schedule.legal_cpu import outermost
from weft.schedule.nest import axes_of, loops_of
from weft.tools.cross import lowered_loops

HEAD = """
func.func @product(%a: memref<?x?xf32>, %b: memref<?x?xf32>, %c: memref<?x?xf32>, %n: index)"""


def test_a_matrix_product_in_any_order_of_its_loops() -> None:
    before = (
        HEAD
        + """ attributes {noalias = true} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      scf.parallel (%i) = (%c0) to (%n) step (%c1) {
        scf.for %k = %c0 to %n step %c1 {
          %0 = memref.load %a[%i, %k] : memref<?x?xf32>
          %1 = "weft.dim"(%c) {axis = 1} : (memref<?x?xf32>) -> index
          scf.for %j = %c0 to %1 step %c1 {
            %2 = memref.load %b[%k, %j] : memref<?x?xf32>
            %3 = arith.mulf %0, %2 : f32
            %4 = memref.load %c[%i, %j] : memref<?x?xf32>
            %5 = arith.addf %4, %3 : f32
            memref.store %5, %c[%i, %j] : memref<?x?xf32>
          }
        }
        scf.reduce
      }
      func.return
    }"""
    )
    after = (
        HEAD
        + """ attributes {noalias = true} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %0 = "weft.dim"(%c) {axis = 1} : (memref<?x?xf32>) -> index
      scf.parallel (%i, %j) = (%c0, %c0) to (%n, %0) step (%c1, %c1) {
        scf.for %k = %c0 to %n step %c1 {
          %1 = memref.load %a[%i, %k] : memref<?x?xf32>
          %2 = "weft.dim"(%c) {axis = 1} : (memref<?x?xf32>) -> index
          %3 = memref.load %b[%k, %j] : memref<?x?xf32>
          %4 = arith.mulf %1, %3 : f32
          %5 = memref.load %c[%i, %j] : memref<?x?xf32>
          %6 = arith.addf %5, %4 : f32
          memref.store %6, %c[%i, %j] : memref<?x?xf32>
        }
        scf.reduce
      }
      func.return
    }"""
    )
    assert result_of([collapse], before) == normal(after)
    aliased = before.replace("noalias = true", "noalias = false")
    assert result_of([collapse], aliased) == normal(aliased)


# The body of a loop over i, and what becomes of its loops: parallel indices, serial ones.
NESTS = {
    "a product": ("""
        for j in range(m):
            s = 0.0
            for k in range(K):
                s += a[i, k] * b[k, j]
            c[i, j] = s""", "ij", "k"),
    "j before i, which goes along rows": ("""
        for j in range(m):
            for k in range(K):
                c[j, i] += a[j, k] * b[k, i]""", "ji", "k"),
    "a stencil": ("""
        for j in range(1, m - 1):
            c[i, j] = a[i, j - 1] + a[i, j] + a[i, j + 1]""", "ij", ""),
    "downwards, in steps": ("""
        for j in range(m - 1, 0, -2):
            c[i, j] = a[i, j]""", "ij", ""),
    "a load of what nobody writes": ("""
        s = a[i, 0]
        for j in range(m):
            c[i, j] = s * b[i, j]""", "ij", ""),
    "two loops in one": ("""
        for y in range(m):
            for x in range(K):
                for k in range(n):
                    d[i, y, x] += a[y, k] * b[k, x]""", "iyx", "k"),
    "what no iteration may take from another": ("""
        for j in range(m):
            if idx[i, j] > 0:
                e[i, idx[i, j]] += 1.0
            c[i, j] = 1.0""", "i", "j"),
    "accumulations that meet anyhow": ("""
        for j in range(m):
            f[idx[i, j]] += 1.0""", "ij", ""),
    "accumulations that have an order": ("""
        for j in range(m):
            f[i] += a[i, j]""", "i", "j"),
    "the one before": ("""
        for j in range(1, m):
            c[i, j] = c[i, j - 1] + a[i, j]""", "i", "j"),
    "a loop that carries a value": ("""
        s = 0.0
        for j in range(m):
            s += a[i, j]
            c[i, j] = s""", "i", "j"),
    "something after the loop": ("""
        for j in range(m):
            c[i, j] = a[i, j]
        f[i] = 1.0""", "i", "j"),
    "a load of what is written": ("""
        s = c[i, 0]
        for j in range(1, m):
            c[i, j] = s""", "i", "j"),
    "a short loop": ("""
        for j in range(4):
            c[i, j] = a[i, j]""", "i", "j"),
    "a short loop in between": ("""
        for q in range(3):
            for j in range(m):
                c[i, j] += a[i, j] * q""", "ij", "q"),
    "much in front of a loop": ("""
        p = a[i, 0] * a[i, 1] + a[i, 2] * a[i, 3] - a[i, 4] * a[i, 5]
        for j in range(m):
            c[i, j] = a[i, j] * p""", "i", "j"),
    "much in front of more": ("""
        p = a[i, 0] * a[i, 1] + a[i, 2] * a[i, 3] - a[i, 4] * a[i, 5]
        for j in range(m):
            for k in range(K):
                c[i, j] += a[i, k] * p""", "ij", "k"),
    "a triangle": ("""
        for j in range(i + 1, n):
            for k in range(K):
                c[i, j] += a[i, k] * b[k, j]""", "ij", "k"),
    "a triangle with a store across": ("""
        for j in range(i, n):
            c[i, j] = 0.0
            for k in range(K):
                c[i, j] += a[k, i] * a[k, j]
            c[j, i] = c[i, j]""", "ij", "k"),
    "a triangle that falls": ("""
        for j in range(n - i):
            for k in range(j, K):
                c[j, i] += a[k, i] * a[k, j]""", "ji", "k"),
    "a triangle inside of what is moved": ("""
        for y in range(m):
            for x in range(y):
                for k in range(K):
                    d[i, y, x] += a[y, k] * b[k, x]""", "iyx", "k"),
    "a triangle of little work": ("""
        for j in range(i, n):
            c[i, j] = a[i, j]""", "i", "j"),
    "a triangle that is a short row of a long one": ("""
        for j in range(i, m):
            for k in range(K):
                c[i, j] += a[i, k] * b[k, j]""", "i", "jk"),
    "a band": ("""
        for j in range(i, i + 9):
            for k in range(K):
                c[i, j] += a[i, k] * b[k, j]""", "i", "jk"),
    "every second one of a triangle": ("""
        for j in range(i, n, 2):
            for k in range(K):
                c[i, j] += a[i, k] * b[k, j]""", "i", "jk"),
    "a triangle along a loop in order": ("""
        for k in range(1, n):
            for j in range(k):
                c[i, j] += c[i, k]
                for q in range(m):
                    c[i, j] += a[q, k]""", "i", "kjq"),
    "a length from memory": ("""
        for j in range(idx[0, 0]):
            c[i, j] = a[i, j]""", "i", "j"),
    "an assertion": ("""
        for j in range(m):
            assert a[i, j] > 0
            c[i, j] = a[i, j]""", "i", "j"),
    "a print": ("""
        for j in range(m):
            print(j)
            c[i, j] = a[i, j]""", "i", "j"),
    "a local array": ("""
        v = weft.zeros(4, weft.f32)
        for j in range(m):
            v[j % 4] += a[i, j]
            c[i, j] = v[0]""", "i", "j"),
    "an exchange": ("""
        for j in range(m):
            c[i, j] = weft.atomic_add(f[0], 1.0)""", "i", "j"),
}  # fmt: skip


def lowered(body: str, head: str = "    for i in range(n):") -> Function:
    names = "a, b, c, d, e, f, idx"
    text = f"def kernel({names}):\n    n, m = c.shape\n    K = a.shape[1]\n{head}{body}\n"
    matrix = torch.empty(8, 8)
    tensors = [matrix, matrix, matrix, torch.empty(8, 8, 8), matrix, torch.empty(8)]
    (found,) = lowered_loops(
        weft.kernel(function(text)), *tensors, torch.empty(8, 8, dtype=torch.int64)
    )
    found.attrs["noalias"] = True
    return relax_atomics(found)


@pytest.mark.parametrize("name", NESTS)
def test_which_loops_become_dimensions(name: str) -> None:
    body, parallel, serial = NESTS[name]
    made = collapse(lowered(body))
    verify(made)
    loop = outermost(made)
    assert loop is not None
    assert ("".join(axes_of(loop)), "".join(loops_of(loop))) == (parallel, serial)


@pytest.mark.parametrize("head", ["    for i in range(1):", "    t = 0.0\n    for i in range(n):"])
def test_loops_that_run_in_order_or_reduce_stay(head: str) -> None:
    reduced = "\n        t += 1.0" * ("t = " in head)
    before = lowered(f"{reduced}\n        for j in range(m):\n            c[i, j] = 1.0", head)
    assert collapse(before) is before


def test_a_triangle_of_little_work_where_iterations_go_to_threads() -> None:
    """As is done for a GPU."""
    made = collapse(lowered(NESTS["a triangle of little work"][0]), ragged=True)
    loop = outermost(made)
    assert loop is not None
    assert (axes_of(loop), loops_of(loop)) == (("i", "j"), {})


def test_a_loop_that_is_named_stays() -> None:
    made = collapse(lowered(NESTS["two loops in one"][0]), stay={"y"})
    loop = outermost(made)
    assert loop is not None
    assert (axes_of(loop), tuple(loops_of(loop))) == (("i", "x"), ("y", "k"))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(3)
def test_means_the_same_in_any_order_and_has_no_races(seed: int) -> None:
    random = Random(seed)
    drawn = nests.kernel(random)
    tensors = {k: t[:5, :5] if t.dim() == 2 else t for k, t in arguments(random, drawn).items()}
    kernel = weft.kernel(function(drawn.text))
    (before,) = lowered_loops(kernel, *tensors.values(), 4, 0.75)
    before.attrs["noalias"] = True
    after = collapse(relax_atomics(before), ragged=bool(seed % 2))
    verify(after)
    outcomes: list[list[Any]] = []
    for made, races in ((before, False), (after, True)):
        given: dict[str, Any] = {name: _array(t) for name, t in tensors.items()}
        sizes = iter(tensors["x"].shape)
        given |= {"n": 4, "a": np.float64(0.75)}
        values = [next(sizes) if arg.name == "x.shape" else given[arg.name] for arg in made.args]
        interp.run(made, values, races=races, order="random" if races else "forward", seed=seed)
        outcomes.append(values)
    for x, y in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(x, y)


def _array(tensor: torch.Tensor) -> Any:
    bits = tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor
    return bits.numpy().copy()


@weft.kernel
def lines(x: Any, y: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        if x[i] > 0:
            a = y[i, 0]
            b = y[i, 1] * 2
        else:
            a = y[i, 1]
            b = 2.0
        for j in range(out.shape[1]):
            out[i, j] = a + b * j


def test_what_an_arm_gives_several_values_of_is_repeated() -> None:
    x, y = torch.randn(7), torch.randn(7, 2)
    out, expected = torch.empty(7, 5), torch.empty(7, 5)
    lines(x, y, out)
    lines.interpret(x, y, expected)
    torch.testing.assert_close(out, expected)
