"""What scheduled functions say of single operations: what the verifier takes, what they mean."""

from __future__ import annotations

import numpy as np
import pytest

from weft.codegen import cpu, cuda
from weft.errors import InternalError
from weft.ir.core import Function, Op, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule.language import parse
from weft.schedule.machine import CpuMachine

TEXT = """
func.func @f(%x: memref<?x?xf32>, %s: memref<?xf32>, %y: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = "weft.dim"(%x) {axis = 0} : (memref<?x?xf32>) -> index
  %n = "weft.dim"(%x) {axis = 1} : (memref<?x?xf32>) -> index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%rows) step (%c1) {
    %total = scf.for %j = %c0 to %n step %c1 iter_args(%sum = %zero) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<?x?xf32>
      %next = arith.addf %sum, %v : f32
      %twice = arith.addf %v, %v : f32
      %ok = arith.cmpf oge, %twice, %zero : f32
      "weft.assert"(%ok) {message = "negative"} : (i1) -> ()
      scf.yield %next : f32
    }
    %old = memref.atomic_rmw addf %total, %s[%c0] {atomic = true} : (f32, memref<?xf32>) -> f32
    memref.store %total, %y[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""


def marked(function: Function, name: str) -> list[Op]:
    return [op for op in walk(function.body) if name in op.attrs]


def scheduled(device: str) -> Function:
    function = parse_function(TEXT)
    if device == "cpu":
        return cpu.scheduled(function, (), CpuMachine(32)).function
    return cuda.scheduled(function, parse("bind(i, x); block(256, 1)")).bound.function


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_code_is_told_is_in_the_ir(device: str) -> None:
    function = scheduled(device)
    verify(function)
    assert same(parse_function(print_function(function)), function)
    add, update = marked(function, "reassociate")
    assert (add.name, update.name) == ("arith.addf", "memref.atomic_rmw")
    assert add.operands[0] is not add.operands[1]  # not `twice`
    assert [op.attrs["number"] for op in marked(function, "number")] == [0]
    lanes = marked(function, "warp_aggregate")
    assert [op.name for op in lanes] == ["memref.atomic_rmw"] * (device == "cuda")
    assert not marked(parse_function(TEXT), "number"), "the function itself stays as it is"


@pytest.mark.parametrize(
    ("end", "marks"),
    [("%n", {}), ("%long", {"strips": 1 << 16}), ("%long step %long", {"poll": 4096})],
    ids=["of a tensor", "of any length", "of any length, by steps"],
)
def test_loops_of_any_length_ask_whether_they_have_to_end(end: str, marks: dict[str, int]) -> None:
    text = TEXT.replace("%y: memref<?xf32>)", "%y: memref<?xf32>, %long: index)")
    text = text.replace("%x[%i, %j]", "%x[%i, %c0]")
    text = text.replace("%n step %c1", end if "step" in end else f"{end} step %c1")
    function = cpu.scheduled(parse_function(text), (), CpuMachine(32)).function
    verify(function)
    (loop,) = (op for op in walk(function.body)
               if op.name == "scf.for" and "counts" not in op.attrs)  # fmt: skip
    assert {k: v for k, v in loop.attrs.items() if k in ("poll", "strips")} == marks


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 17)])
def test_it_means_the_same(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(sum(shape)).random(shape, np.float32)
    found: list[np.ndarray] = []
    for function in (parse_function(TEXT), scheduled("cpu")):
        y, s = np.full(shape[0], np.nan, np.float32), np.zeros(1, np.float32)
        run(function, [x, s, y])
        found += [np.concatenate([y, s])]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("addf %v, %v : f32", "mulf %v, %v {reassociate = true} : f32"),
        ('{message = "negative"}', '{message = "negative", number = -1}'),
        ("memref.store %total, %y[%i]", "memref.store %total, %y[%i] {warp_aggregate = true}"),
        ("memref.store %total, %y[%i]", "memref.store %total, %y[%i] {poll = 16}"),
    ],
)  # fmt: skip
def test_the_verifier_knows_where_it_belongs(before: str, after: str) -> None:
    verify(parse_function(TEXT))
    with pytest.raises(InternalError, match="does not belong here"):
        verify(parse_function(TEXT.replace(before, after)))


@pytest.mark.parametrize(
    ("element", "subscript", "scalar"),
    [("i8", "%k", True), ("f16", "%k", True), ("f32", "%k", False), ("i8", "%i", False)],
)
def test_elements_that_no_instruction_gathers_are_loaded_one_by_one(
    element: str, subscript: str, scalar: bool
) -> None:
    function = parse_function(f"""
func.func @f(%at: memref<?xi64>, %x: memref<?x{element}>, %y: memref<?x{element}>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%at) {{axis = 0}} : (memref<?xi64>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {{
    %j = memref.load %at[%i] : memref<?xi64>
    %k = arith.index_cast %j : i64 to index
    %v = memref.load %x[{subscript}] : memref<?x{element}>
    memref.store %v, %y[%i] : memref<?x{element}>
    scf.reduce
  }}
  func.return
}}""")
    made = cpu.scheduled(function, (), CpuMachine(64)).function
    verify(made)
    assert len(marked(made, "scalar")) == scalar
