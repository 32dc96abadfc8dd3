"""sink and keep: loops over the same range that share elements and dear values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import weft
from tests.passes.texts import in_function, normal, parsed, result_of
from weft.ir import interp
from weft.ir.core import Function, Op, Value, walk
from weft.ir.parse import parse_function
from weft.passes import same_range_loops
from weft.passes.merge_updates import merge_updates
from weft.passes.reuse_output_as_scratch import reuse_output_as_scratch

ARGUMENTS = "%x: memref<?xf32>, %y: memref<?xf32>, %n: index"

EXP_TWICE = """
  %s = scf.for %j = %c0 to %n step %c1 iter_args(%a = %zero) -> (f32) {
    %1 = memref.load %x[%j] : memref<?xf32>
    %2 = math.exp %1 : f32
    %3 = arith.addf %a, %2 : f32
    scf.yield %3 : f32
  }
  scf.for %k = %c0 to %n step %c1 {
    %4 = memref.load %x[%k] : memref<?xf32>
    %5 = math.exp %4 : f32
    %6 = arith.mulf %5, %s : f32
    memref.store %6, %y[%k] : memref<?xf32>
    scf.yield
  }
"""

EXP_ONCE = """
  %s = scf.for %j = %c0 to %n step %c1 iter_args(%a = %zero) -> (f32) {
    %1 = memref.load %x[%j] : memref<?xf32>
    %2 = math.exp %1 : f32
    memref.store %2, %y[%j] : memref<?xf32>
    %3 = arith.addf %a, %2 : f32
    scf.yield %3 : f32
  }
  scf.for %k = %c0 to %n step %c1 {
    %4 = memref.load %x[%k] : memref<?xf32>
    %5 = memref.load %y[%k] : memref<?xf32>
    %6 = arith.mulf %5, %s : f32
    memref.store %6, %y[%k] : memref<?xf32>
    scf.yield
  }
"""

ADDED = """
  scf.for %j = %c0 to %n step %c1 {
    %1 = memref.load %x[%j] : memref<?xf32>
    %2 = arith.mulf %1, %1 : f32
    memref.store %2, %y[%j] : memref<?xf32>
    scf.yield
  }
  scf.for %k = %c0 to %n step %c1 {
    %3 = memref.load %y[%k] : memref<?xf32>
    %4 = memref.load %x[%k] : memref<?xf32>
    %5 = arith.addf %3, %4 : f32
    memref.store %5, %y[%k] : memref<?xf32>
    scf.yield
  }
"""

AT_ONCE = """
  scf.for %j = %c0 to %n step %c1 {
    %1 = memref.load %x[%j] : memref<?xf32>
    %2 = arith.mulf %1, %1 : f32
    scf.yield
  }
  scf.for %k = %c0 to %n step %c1 {
    %3 = memref.load %x[%k] : memref<?xf32>
    %4 = arith.mulf %3, %3 : f32
    %5 = memref.load %x[%k] : memref<?xf32>
    %6 = arith.addf %4, %5 : f32
    memref.store %6, %y[%k] : memref<?xf32>
    scf.yield
  }
"""


def text(body: str, noalias: bool = True) -> str:
    return "\n" + normal(in_function(ARGUMENTS, body, noalias=noalias))


def after(step, body: str, noalias: bool = True) -> str:
    return "\n" + result_of([step], text(body, noalias))


def same_meaning(step, body: str) -> None:
    before = parsed(text(body))
    for n in (0, 1, 5):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        y = np.full(n, 7, np.float32)
        z = y.copy()
        interp.run(before, [x, y, n])
        interp.run(step(before), [x, z, n])
        np.testing.assert_array_equal(y, z)


def test_what_is_dear_is_kept_in_what_is_overwritten():
    assert after(reuse_output_as_scratch, EXP_TWICE) == text(EXP_ONCE)
    same_meaning(reuse_output_as_scratch, EXP_TWICE)


def test_the_last_of_several_loops_computes_the_sum():
    assert after(merge_updates, ADDED) == text(AT_ONCE)
    same_meaning(merge_updates, ADDED)


LEFT_BY_KEEP = {
    "arguments overlap": (EXP_TWICE, False),
    "other range": (EXP_TWICE.replace("%k = %c0", "%k = %c1"), True),
    "other place": (EXP_TWICE.replace("%y[%k]", "%y[%c0]"), True),
    "under a condition": (
        EXP_TWICE.replace(
            "    memref.store %6, %y[%k] : memref<?xf32>\n",
            "    %t = arith.cmpf ogt, %6, %zero : f32\n    scf.if %t {\n"
            "      memref.store %6, %y[%k] : memref<?xf32>\n      scf.yield\n    }\n",
        ),
        True,
    ),
    "read before": (
        EXP_TWICE.replace("    %3 =", "    %r = memref.load %y[%j] : memref<?xf32>\n    %3 ="),
        True,
    ),
    "what is read changes": (EXP_TWICE.replace("%y[%k]", "%x[%k]"), True),
    "computed after the store": (
        EXP_TWICE.replace("    %5 = math.exp %4 : f32\n    %6 = arith.mulf %5, %s : f32\n", "")
        .replace("store %6", "store %4")
        .replace("    scf.yield\n", "    %5 = math.exp %4 : f32\n    scf.yield\n"),
        True,
    ),
    "an array made later": (
        EXP_TWICE.replace("%y[%k] : memref<?xf32>", "%z[%k] : memref<4xf32>")
        .replace("  scf.for %k", "  %z = memref.alloca() : memref<4xf32>\n  scf.for %k"),
        True,
    ),
    "not dear": (EXP_TWICE.replace("math.exp", "math.absf"), True),
}  # fmt: skip


@pytest.mark.parametrize("why", LEFT_BY_KEEP)
def test_keep_leaves(why):
    body, noalias = LEFT_BY_KEEP[why]
    assert after(reuse_output_as_scratch, body, noalias) == text(body, noalias)


CHANGED = "memref.store %zero, %x[%c0] : memref<?xf32>"
LEFT_BY_SINK = {
    "arguments overlap": (ADDED, False),
    "other range": (ADDED.replace("%k = %c0", "%k = %c1"), True),
    "read by another iteration": (ADDED.replace("load %y[%k]", "load %y[%c0]"), True),
    "dear": (ADDED.replace("arith.mulf %1, %1", "math.exp %1"), True),
    "read meanwhile": (
        ADDED.replace("  scf.for %k", "  %r = memref.load %y[%c0] : memref<?xf32>\n  scf.for %k"),
        True,
    ),
    "what it is made of changes": (ADDED.replace("store %5, %y", "store %5, %x"), True),
    "what it is made of changes meanwhile": (
        ADDED.replace("  scf.for %k", f"  {CHANGED}\n  scf.for %k"),
        True,
    ),
    "stored twice": (
        ADDED.replace("    memref.store %2, %y[%j]",
                      "    memref.store %1, %y[%j] : memref<?xf32>\n    memref.store %2, %y[%j]"),
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", LEFT_BY_SINK)
def test_sink_leaves(why):
    body, noalias = LEFT_BY_SINK[why]
    assert after(merge_updates, body, noalias) == text(body, noalias)


def test_what_a_loop_carries_is_not_computed_again():
    carrying = "  %s = scf.for %j = %c0 to %n step %c1 iter_args(%a = %zero) -> (f32) {"
    body = ADDED.replace("  scf.for %j = %c0 to %n step %c1 {", carrying)
    body = body.replace("%1, %1", "%1, %a").replace("scf.yield", "scf.yield %2 : f32", 1)
    assert after(merge_updates, body) == text(body)


@weft.kernel
def softmax(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        largest = -float("inf")
        for j in range(x.shape[1]):
            largest = max(largest, x[i, j])
        total = 0.0
        for j in range(x.shape[1]):
            total += weft.math.exp(x[i, j] - largest)
        for j in range(x.shape[1]):
            out[i, j] = weft.math.exp(x[i, j] - largest) / total
    return out


def exps(function) -> int:
    return sum(op.name == "math.exp" for op in walk(function.body))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("shape", [(3, 1), (5, 33), (2, 1000), (4, 0)])
@pytest.mark.sampled(3)
def test_softmax(dtype, shape):
    x = torch.randn(shape).to(dtype)
    torch.testing.assert_close(softmax(x), x.softmax(1))
    strided = torch.randn(shape[::-1]).to(dtype).T
    torch.testing.assert_close(softmax(strided), strided.softmax(1))
    if dtype is not torch.float16:
        y = x.double().requires_grad_()
        assert torch.autograd.gradcheck(lambda a: softmax(a), y)


def test_softmax_computes_one_exponential_and_its_gradient_too():
    stages = softmax.inspect(torch.randn(3, 5))
    assert stages["ir"].count("math.exp") == 2
    assert stages["ir after dce"].count("math.exp") == 1


def test_the_result_in_the_place_of_the_argument():
    @weft.kernel
    def into(x, out):
        for i in range(x.shape[0]):
            total = 0.0
            for j in range(x.shape[1]):
                total += weft.math.exp(x[i, j])
            for j in range(x.shape[1]):
                out[i, j] = weft.math.exp(x[i, j]) / total

    x = torch.randn(7, 40)
    expected = x.softmax(1)
    into(x, x)
    torch.testing.assert_close(x, expected)


def test_an_operation_of_several_results_beside_what_is_kept():
    @weft.kernel
    def both(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            total, least, most = 0.0, 0.0, 0.0
            for j in range(x.shape[1]):
                total += weft.math.exp(x[i, j])
                if x[i, j] > 0.0:
                    most += x[i, j]
                    if j > 2:
                        least += most
                    else:
                        total += 1.0
                else:
                    least -= x[i, j]
            for j in range(x.shape[1]):
                out[i, j] = weft.math.exp(x[i, j]) / total + least
        return out

    x = torch.randn(3, 9, dtype=torch.float64)
    torch.testing.assert_close(both(x), both.interpret(x))


@pytest.mark.parametrize("change", [merge_updates, reuse_output_as_scratch])
def test_each_of_many_loops_is_walked_once(
    change: Callable[[Function], Function], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though every pair of them is looked at."""
    many, walked = 40, list[Op]()
    arguments = ", ".join(f"%a{k}: memref<?xf64>" for k in range(many))
    loops = "\n".join(
        f"""scf.for %k{k} = %c0 to %n step %c1 {{
          %v{k} = memref.load %a{k}[%k{k}] : memref<?xf64>
          %w{k} = math.exp %v{k} : f64
          memref.store %w{k}, %a{k}[%k{k}] : memref<?xf64>
          scf.yield
        }}"""
        for k in range(many)
    )
    function = parse_function(f"""func.func @f(%n: index, {arguments}) {{
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        {loops}
        func.return
    }}""")
    function.attrs["noalias"] = True
    touches = same_range_loops.touches

    def counted(op: Op) -> Iterator[tuple[Op, Value]]:
        walked.append(op)
        return touches(op)

    monkeypatch.setattr(same_range_loops, "touches", counted)
    change(function)
    assert len(walked) == len({*walked}) == many + 3
