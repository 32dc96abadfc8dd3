"""Stores past the caches: which loops have them, what the step makes, and what it means."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import weft
from benchmarks.brick import wall_rgb
from tests.schedule.test_marks import marked
from weft import compiler
from weft.codegen import cpu
from weft.ir.core import Function
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule.machine import CpuMachine
from weft.schedule.streaming import accessed
from weft.tools.cross import lowered_loops

ADD = """
func.func @f(%x: memref<?x?xf32>, %y: memref<?xf32>, %o: memref<?x?xf32>)
    attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%o) {axis = 0} : (memref<?x?xf32>) -> index
  %m = "weft.dim"(%o) {axis = 1} : (memref<?x?xf32>) -> index
  scf.parallel (%i, %j) = (%c0, %c0) to (%n, %m) step (%c1, %c1) {
    %a = memref.load %x[%i, %j] : memref<?x?xf32>
    %b = memref.load %y[%j] : memref<?xf32>
    %c = arith.addf %a, %b : f32
    memref.store %c, %o[%i, %j] : memref<?x?xf32>
    scf.reduce
  }
  func.return
}
"""


def scheduled(text: str, limit: int | None) -> Function:
    machine = CpuMachine(64)
    return cpu.scheduled(parse_function(text), (), machine, streaming_beyond=limit).function


def test_a_second_loop_has_the_stores_that_stream() -> None:
    usual, both = scheduled(ADD, None), scheduled(ADD, 1 << 20)
    verify(both)
    assert same(parse_function(print_function(both)), both)
    assert not marked(usual, "streaming")
    assert len(marked(usual, "chunks")) == 1
    assert len(marked(both, "chunks")) == 2
    (store,) = marked(both, "streaming")
    assert store.operands[1].name == "o"
    assert [array.name for array in accessed(usual)] == ["x", "y", "o"]


@pytest.mark.parametrize(("n", "m"), [(0, 5), (1, 1), (3, 127), (2, 128), (2, 131), (1, 300)])
def test_it_means_the_same_where_arrays_are_larger_and_where_not(n: int, m: int) -> None:
    x, y = np.random.rand(n, m).astype(np.float32), np.random.rand(m).astype(np.float32)
    for limit in (0, 1 << 40):
        o = np.full((n, m), np.nan, np.float32)
        run(scheduled(ADD, limit), [x, y, o])
        assert np.array_equal(o, x + y)


# -- which loops


@weft.kernel
def copied(x, o):
    for i, j in o:
        o[i, j] = x[i, j]


@weft.kernel
def twice(x, o, p):
    for i, j in o:
        o[i, j] = x[i, j]
        p[i, j] = x[i, j] * 2


@weft.kernel
def shifted(x, o):
    for i, j in weft.ndrange((1, o.shape[0]), (1, o.shape[1])):
        o[i - 1, j - 1] = x[i, j] + x[i - 1, j]


@weft.kernel
def centred(x, o):
    for i in range(o.shape[0]):
        s = 0.0
        for j in range(o.shape[1]):
            s += x[i, j]
        for j in range(o.shape[1]):
            o[i, j] = x[i, j] - s / o.shape[1]


@weft.kernel
def cumulative(x, o):
    for i in range(o.shape[0]):
        s = 0.0
        for j in range(o.shape[1]):
            s += x[i, j]
            o[i, j] = s


@weft.kernel
def normalised(x, o):
    for i in range(o.shape[0]):
        s = 0.0
        for j in range(o.shape[1]):
            o[i, j] = weft.exp(x[i, j])
            s += o[i, j]
        for j in range(o.shape[1]):
            o[i, j] = o[i, j] / s


@weft.kernel
def in_place(x, o):
    for i, j in o:
        o[i, j] += x[i, j]


@weft.kernel
def read_elsewhere(x, o):
    for i in range(o.shape[0] - 1):
        o[i, 0] = x[i, 0] + o[o.shape[0] - 1, 0]


@weft.kernel
def gaps(x, o):
    for i, j in x:
        o[i, 2 * j] = x[i, j]


@weft.kernel
def where_positive(x, o):
    for i, j in o:
        if x[i, j] > 0:
            o[i, j] = x[i, j]


@weft.kernel
def much(x, o):
    for i, j in o:
        o[i, j] = weft.sin(weft.exp(x[i, j])) + weft.log(x[i, j])


@weft.kernel
def across(x, o):
    for i, j in o:
        o[i, j] = x[j, i]


@weft.kernel
def two_values(x, o, p):
    for i, j in o:
        a, b = 0.0, 1.0
        if x[i, j] > 0.5:
            a = x[i, j] * 3
            b = x[i, j] + 1
        o[i, j] = a
        p[i, j] = b


@weft.kernel
def row_sums(x, o):
    for i in range(o.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        o[i, 0] = s


@weft.kernel
def found(x, o):
    for i, j in x:
        o[int(x[i, j]), j] = 1.0


X, NARROW = torch.ones(3, 4), torch.ones(3, 4, dtype=torch.int16)
YES = {
    "copied": (copied, X, X), "twice": (twice, X, X, X), "shifted": (shifted, X, X),
    "a branch that makes two values": (two_values, X, X, X),
    "bricks": (wall_rgb, torch.ones(2, 3, 3), torch.ones(4, 5, 3), 1, 2, 3),
    "rows in turn": (centred, X, X), "rows of a wider one": (copied, X, torch.ones(3, 8)[:, :4]),
}  # fmt: skip
NO = {
    "in place": (in_place, X, X), "a sum goes on": (cumulative, X, X),
    "what it read again": (normalised, X, X), "read elsewhere": (read_elsewhere, X, X),
    "gaps": (gaps, X, torch.ones(3, 8)), "where positive": (where_positive, X, X),
    "much": (much, X, X), "across": (across, X, X), "row sums": (row_sums, X, X),
    "narrow": (copied, NARROW, NARROW), "columns": (copied, X, torch.ones(4, 3).T),
    "any place": (found, X, X),
    "checked": (weft.kernel(debug=True)(copied.function), X, X),
}  # fmt: skip


@pytest.mark.parametrize("case", [*YES, *NO])
def test_which_loops_are_bound_by_what_they_store(case: str) -> None:
    kernel, *arguments = {**YES, **NO}[case]
    (loop,) = lowered_loops(kernel, *arguments)
    function = compiler.optimize_for_cpu(loop, kernel.options)
    made = cpu.compile_cpu(function)
    if made.cpu or cpu.host_cpu().vector_bytes < 32:
        pytest.skip("this machine has no vectors of 8 floats")
    assert bool(made.accessed) == (case in YES)


def test_not_where_arguments_may_share_memory() -> None:
    function = scheduled(ADD.replace("noalias = true", "noalias = false"), 0)
    assert len(marked(function, "chunks")) == 1
    assert not list(itertools.chain(marked(function, "streaming"), accessed(function)))
