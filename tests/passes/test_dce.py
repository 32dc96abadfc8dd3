"""dce: text before, text after."""

from __future__ import annotations

from tests.passes.texts import normal, parsed, result_of
from weft.ir.core import walk
from weft.ir.text import parse_function
from weft.passes.dce import dce


def test_unused_operations_loads_and_arrays_go():
    assert result_of(
        [dce],
        """
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32) {
          %l = memref.alloca() : memref<4xf32>
          %s = arith.addf %a, %a : f32
          %t = arith.mulf %s, %s : f32
          %u = memref.load %m[%x] : memref<?xf32>
          memref.store %t, %l[%x] : memref<4xf32>
          %o = memref.atomic_rmw addf %t, %l[%x] : (f32, memref<4xf32>) -> f32
          memref.store %a, %m[%x] : memref<?xf32>
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32) {
          memref.store %a, %m[%x] : memref<?xf32>
          func.return
        }""")


def test_an_array_that_a_later_iteration_reads_stays():
    text = """
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %n: index) {
          %l = memref.alloca() : memref<4xf32>
          memref.store %a, %l[%x] : memref<4xf32>
          scf.for %k = %x to %n step %n {
            %u = memref.load %l[%x] : memref<4xf32>
            memref.store %u, %m[%k] : memref<?xf32>
            %v = arith.negf %u : f32
            memref.store %v, %l[%x] : memref<4xf32>
          }
          func.return
        }"""
    assert result_of([dce], text) == normal(text)


def test_an_array_that_only_feeds_itself_goes():
    assert result_of(
        [dce],
        """
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %n: index) {
          %l = memref.alloca() : memref<4xf32>
          scf.for %k = %x to %n step %n {
            %u = memref.load %l[%x] : memref<4xf32>
            %v = arith.negf %u : f32
            memref.store %v, %l[%x] : memref<4xf32>
          }
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %n: index) {
          func.return
        }""")


def test_carried_values_that_only_feed_themselves_go():
    assert result_of(
        [dce],
        """
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %n: index) {
          %r, %s, %t = scf.for %k = %x to %n step %n
              iter_args(%u = %a, %v = %a, %w = %a) -> (f32, f32, f32) {
            %uu = arith.addf %u, %u : f32
            %vv = arith.addf %v, %w : f32
            %ww = arith.negf %w : f32
            scf.yield %uu, %vv, %ww : f32, f32, f32
          }
          memref.store %s, %m[%x] : memref<?xf32>
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %n: index) {
          %s, %t = scf.for %k = %x to %n step %n iter_args(%v = %a, %w = %a) -> (f32, f32) {
            %vv = arith.addf %v, %w : f32
            %ww = arith.negf %w : f32
            scf.yield %vv, %ww : f32, f32
          }
          memref.store %s, %m[%x] : memref<?xf32>
          func.return
        }""")


def test_ifs_and_loops_without_effects_go_and_unused_results_of_others():
    assert result_of(
        [dce],
        """
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %n: index, %c: i1) {
          %d = arith.xori %c, %c : i1
          %r = scf.if %d -> (f32) {
            scf.for %k = %x to %n step %n {
              %u = memref.load %m[%k] : memref<?xf32>
            }
            scf.yield %a : f32
          } else {
            %b = arith.negf %a : f32
            scf.yield %b : f32
          }
          %s, %t = scf.if %c -> (f32, f32) {
            memref.store %a, %m[%x] : memref<?xf32>
            %e = arith.negf %a : f32
            scf.yield %e, %a : f32, f32
          } else {
            %e = arith.mulf %a, %a : f32
            scf.yield %a, %e : f32, f32
          }
          memref.store %t, %m[%x] : memref<?xf32>
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %n: index, %c: i1) {
          %t = scf.if %c -> (f32) {
            memref.store %a, %m[%x] : memref<?xf32>
            scf.yield %a : f32
          } else {
            %e = arith.mulf %a, %a : f32
            scf.yield %e : f32
          }
          memref.store %t, %m[%x] : memref<?xf32>
          func.return
        }""")


def test_unused_reductions_go_and_a_while_stays():
    assert result_of(
        [dce],
        """
        func.func @f(%m: memref<f32>, %x: index, %a: f32, %n: index, %c: i1) {
          %r, %s = scf.parallel (%i) = (%x) to (%n) step (%n) init (%a, %a) -> (f32, f32) {
            %u = arith.mulf %a, %a : f32
            %v = arith.negf %a : f32
            %w = scf.while (%p = %c) : (i1) -> (i1) {
              scf.condition(%p) %p : i1
            } do {
            ^bb0(%q: i1):
              scf.yield %q : i1
            }
            REDUCE
          }
          memref.store %s, %m[] : memref<f32>
          func.return
        }""".replace("REDUCE", reduce("%u", "%v")),
    ) == normal(
        """
        func.func @f(%m: memref<f32>, %x: index, %a: f32, %n: index, %c: i1) {
          %s = scf.parallel (%i) = (%x) to (%n) step (%n) init (%a) -> (f32) {
            %v = arith.negf %a : f32
            %w = scf.while (%p = %c) : (i1) -> (i1) {
              scf.condition(%p) %p : i1
            } do {
            ^bb0(%q: i1):
              scf.yield %q : i1
            }
            REDUCE
          }
          memref.store %s, %m[] : memref<f32>
          func.return
        }""".replace("REDUCE", reduce("%v"))
    )


def reduce(*values: str) -> str:
    """The end of a parallel loop that adds up ``values``, as MLIR spells it."""
    regions = ", ".join(
        [
            """{
            ^bb0(%p: f32, %q: f32):
              %o = arith.addf %p, %q : f32
              scf.reduce.return %o : f32
            }"""
        ]
        * len(values)
    )
    return f"scf.reduce({', '.join(values)} : {', '.join(['f32'] * len(values))}) {regions}"


def test_a_function_that_is_all_alive_is_given_back():
    function = parse_function("""
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32) {
          memref.store %a, %m[%x] : memref<?xf32>
          func.return
        }""")
    assert dce(function) is function


def test_a_workspace_that_is_read_for_itself_alone() -> None:
    """What nobody looks at afterwards goes, however it is handed on."""
    text = """
func.func @f(%n: index, %x: memref<?xf32>, %tape: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %v = memref.load %tape[%i] : memref<?xf32>
    %w = arith.addf %v, %v : f32
    memref.store %w, %tape[%i] : memref<?xf32>
    memref.store %KEPT, %x[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}"""
    for kept, stores in (("one", 1), ("v", 2)):
        source = text.replace("%KEPT", f"%{kept}").replace(
            "%c1 =", "%one = arith.constant 1.0 : f32\n  %c1 =", 1
        )
        function = parsed(source)
        (tape,) = (a for a in function.args if a.name == "tape")
        found = dce(function, [tape])
        assert sum(op.name == "memref.store" for op in walk(found.body)) == stores
