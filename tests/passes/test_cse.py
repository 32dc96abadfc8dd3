"""cse: text before, text after."""

from __future__ import annotations

from tests.passes.texts import normal, result_of
from weft.passes.cse import cse


def test_equal_expressions_are_computed_once():
    assert result_of(
        [cse],
        """
        func.func @f(%m: memref<?xi32>, %x: index, %a: i32, %b: i32) {
          %s = arith.addi %a, %b : i32
          %t = arith.addi %b, %a : i32
          %u = arith.subi %a, %b : i32
          %v = arith.subi %b, %a : i32
          %w = arith.subi %a, %b : i32
          memref.store %s, %m[%x] : memref<?xi32>
          memref.store %t, %m[%x] : memref<?xi32>
          memref.store %u, %m[%x] : memref<?xi32>
          memref.store %v, %m[%x] : memref<?xi32>
          memref.store %w, %m[%x] : memref<?xi32>
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xi32>, %x: index, %a: i32, %b: i32) {
          %s = arith.addi %a, %b : i32
          %u = arith.subi %a, %b : i32
          %v = arith.subi %b, %a : i32
          memref.store %s, %m[%x] : memref<?xi32>
          memref.store %s, %m[%x] : memref<?xi32>
          memref.store %u, %m[%x] : memref<?xi32>
          memref.store %v, %m[%x] : memref<?xi32>
          memref.store %u, %m[%x] : memref<?xi32>
          func.return
        }""")


def test_attributes_and_types_count():
    text = """
        func.func @f(%m: memref<?xi1>, %x: index, %a: i32, %z: memref<?xf32>, %zz: memref<?xf64>) {
          %s = arith.cmpi slt, %a, %a : i32
          %t = arith.cmpi sle, %a, %a : i32
          %u = arith.sitofp %a : i32 to f32
          %v = arith.sitofp %a : i32 to f64
          %c = arith.constant 0.0 : f32
          %d = arith.constant -0.0 : f32
          memref.store %s, %m[%x] : memref<?xi1>
          memref.store %t, %m[%x] : memref<?xi1>
          memref.store %u, %z[%x] : memref<?xf32>
          memref.store %v, %zz[%x] : memref<?xf64>
          memref.store %c, %z[%x] : memref<?xf32>
          memref.store %d, %z[%x] : memref<?xf32>
          func.return
        }"""
    assert result_of([cse], text) == normal(text)


def test_what_a_branch_computes_is_not_known_after_it():
    assert result_of(
        [cse],
        """
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %c: i1) {
          %s = arith.addf %a, %a : f32
          scf.if %c {
            %t = arith.addf %a, %a : f32
            %u = arith.mulf %a, %a : f32
            memref.store %t, %m[%x] : memref<?xf32>
            memref.store %u, %m[%x] : memref<?xf32>
          } else {
            %v = arith.mulf %a, %a : f32
            memref.store %v, %m[%x] : memref<?xf32>
          }
          %w = arith.mulf %a, %a : f32
          memref.store %w, %m[%x] : memref<?xf32>
          memref.store %s, %m[%x] : memref<?xf32>
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %c: i1) {
          %s = arith.addf %a, %a : f32
          scf.if %c {
            %u = arith.mulf %a, %a : f32
            memref.store %s, %m[%x] : memref<?xf32>
            memref.store %u, %m[%x] : memref<?xf32>
          } else {
            %v = arith.mulf %a, %a : f32
            memref.store %v, %m[%x] : memref<?xf32>
          }
          %w = arith.mulf %a, %a : f32
          memref.store %w, %m[%x] : memref<?xf32>
          memref.store %s, %m[%x] : memref<?xf32>
          func.return
        }""")


def two_loads(attributes: str, target: str) -> str:
    return f"""
        func.func @f(%r: memref<?xf32>, %w: memref<?xf32>, %x: index, %a: f32){attributes} {{
          %l = memref.alloca() : memref<4xf32>
          %s = memref.load %r[%x] : memref<?xf32>
          memref.store %s, {target}
          %t = memref.load %r[%x] : memref<?xf32>
          "weft.print"(%s, %t) {{parts = [unit, unit]}} : (f32, f32) -> ()
          func.return
        }}"""


def loads(text: str) -> int:
    return text.count("memref.load")


def test_loads_are_shared_if_nothing_can_write_the_argument():
    local, argument = "%l[%x] : memref<4xf32>", "%w[%x] : memref<?xf32>"
    noalias = " attributes {noalias = true}"
    assert loads(result_of([cse], two_loads("", local))) == 1
    assert loads(result_of([cse], two_loads("", argument))) == 2
    assert loads(result_of([cse], two_loads(noalias, argument))) == 1
