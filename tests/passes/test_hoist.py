"""hoist: what leaves a loop and what stays."""

from __future__ import annotations

from tests.passes.texts import normal, result_of
from weft.passes.hoist import hoist

_HEAD = """
        func.func @f(%m: memref<?xf32>, %z: memref<f32>, %o: memref<?xf32>, %x: index, %n: index,
                     %a: f32, %c: i1) {"""


def check(before: str, after: str) -> None:
    wrapped = [_HEAD + text + "func.return\n}" for text in (before, after)]
    assert result_of([hoist], wrapped[0]) == normal(wrapped[1])


def stays(text: str) -> None:
    check(text, text)


def test_invariants_leave_all_loops_they_do_not_depend_on():
    check(
        """
          scf.for %i = %x to %n step %n {
            scf.for %j = %x to %n step %n {
              %s = arith.addf %a, %a : f32
              %t = arith.addi %i, %x : index
              %u = arith.addi %t, %j : index
              memref.store %s, %m[%t] : memref<?xf32>
              memref.store %s, %m[%u] : memref<?xf32>
            }
          }
          """,
        """
          %s = arith.addf %a, %a : f32
          scf.for %i = %x to %n step %n {
            %t = arith.addi %i, %x : index
            scf.for %j = %x to %n step %n {
              %u = arith.addi %t, %j : index
              memref.store %s, %m[%t] : memref<?xf32>
              memref.store %s, %m[%u] : memref<?xf32>
            }
          }
          """,
    )


def test_out_of_an_if_only_together_with_a_loop():
    stays("""
          scf.if %c {
            %s = arith.addf %a, %a : f32
            memref.store %s, %m[%x] : memref<?xf32>
          }
          """)
    check(
        """
          scf.if %c {
            scf.for %i = %x to %n step %n {
              scf.if %c {
                %s = arith.addf %a, %a : f32
                %t = arith.addi %i, %n : index
                memref.store %s, %m[%t] : memref<?xf32>
              }
            }
          }
          """,
        """
          scf.if %c {
            %s = arith.addf %a, %a : f32
            scf.for %i = %x to %n step %n {
              scf.if %c {
                %t = arith.addi %i, %n : index
                memref.store %s, %m[%t] : memref<?xf32>
              }
            }
          }
          """,
    )


def test_out_of_a_while_and_a_parallel():
    check(
        """
          scf.parallel (%i) = (%x) to (%n) step (%n) {
            %w = scf.while (%p = %c) : (i1) -> (i1) {
              %s = arith.addf %a, %a : f32
              memref.store %s, %m[%i] : memref<?xf32>
              scf.condition(%p) %p : i1
            } do {
            ^bb0(%q: i1):
              %t = arith.addi %i, %n : index
              memref.store %a, %m[%t] : memref<?xf32>
              scf.yield %q : i1
            }
            scf.reduce
          }
          """,
        """
          %s = arith.addf %a, %a : f32
          scf.parallel (%i) = (%x) to (%n) step (%n) {
            %t = arith.addi %i, %n : index
            %w = scf.while (%p = %c) : (i1) -> (i1) {
              memref.store %s, %m[%i] : memref<?xf32>
              scf.condition(%p) %p : i1
            } do {
            ^bb0(%q: i1):
              memref.store %a, %m[%t] : memref<?xf32>
              scf.yield %q : i1
            }
            scf.reduce
          }
          """,
    )


def test_a_division_that_may_trap_is_not_speculated():
    stays("""
          scf.for %i = %x to %n step %n {
            %q = arith.floordivsi %x, %n : index
            memref.store %a, %m[%q] : memref<?xf32>
          }
          """)
    check(
        """
          %two = arith.constant 2 : index
          scf.for %i = %x to %n step %n {
            %q = arith.floordivsi %x, %two : index
            memref.store %a, %m[%q] : memref<?xf32>
          }
          """,
        """
          %two = arith.constant 2 : index
          %q = arith.floordivsi %x, %two : index
          scf.for %i = %x to %n step %n {
            memref.store %a, %m[%q] : memref<?xf32>
          }
          """,
    )


def test_a_load_that_may_fault_stays_in_a_loop_that_may_not_run():
    stays("""
          %l = memref.alloca() : memref<4xf32>
          scf.for %i = %x to %n step %n {
            %s = memref.load %m[%x] : memref<?xf32>
            memref.store %s, %l[%i] : memref<4xf32>
          }
          """)


def test_a_load_that_cannot_fault_leaves():
    check(
        """
          %l = memref.alloca() : memref<4xf32>
          scf.for %i = %x to %n step %n {
            %s = memref.load %z[] : memref<f32>
            memref.store %s, %l[%i] : memref<4xf32>
          }
          """,
        """
          %l = memref.alloca() : memref<4xf32>
          %s = memref.load %z[] : memref<f32>
          scf.for %i = %x to %n step %n {
            memref.store %s, %l[%i] : memref<4xf32>
          }
          """,
    )


def certain(first: str = "", load: str = "%s = memref.load %m[%x] : memref<?xf32>",
            before: str = "", target: str = "%l[%i] : memref<4xf32>") -> str:  # fmt: skip
    return f"""
          %l = memref.alloca() : memref<4xf32>
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c3 = arith.constant 3 : index
          {before}
          scf.for %i = %c0 to %c3 step %c1 {{
            {first}
            {load}
            memref.store %s, {target}
          }}
          """


LOAD = "%s = memref.load %m[%x] : memref<?xf32>"
ASSERT = '"weft.assert"(%c) {message = "m"} : (i1) -> ()'
BOUNDS = '"weft.bounds"(%x, %n) {axis = 0, tensor = "m"} : (index, index) -> ()'


def test_a_load_leaves_a_loop_that_surely_runs():
    check(certain(), certain(load="", before=LOAD))


def test_a_load_stays_behind_what_may_stop_the_kernel():
    varies = "%d = arith.cmpi slt, %i, %n : index"
    stays(certain(first=f"{varies}\n{ASSERT.replace('%c', '%d')}"))
    stays(certain(first=BOUNDS))


def test_an_assertion_leaves_loops_whose_iterations_make_it_alike():
    check(certain(first=ASSERT), certain(before=f"{ASSERT}\n{LOAD}", load=""))
    check(
        f"""
          scf.for %i = %x to %n step %n {{
            memref.store %a, %m[%i] : memref<?xf32>
            scf.for %j = %i to %n step %n {{
              {ASSERT}
              memref.store %a, %o[%j] : memref<?xf32>
            }}
          }}
          """,
        """
          scf.for %i = %x to %n step %n {
            memref.store %a, %m[%i] : memref<?xf32>
            %0 = arith.cmpi sge, %i, %n : index
            %1 = arith.ori %0, %c : i1
            "weft.assert"(%1) {message = "m"} : (i1) -> ()
            scf.for %j = %i to %n step %n {
              memref.store %a, %o[%j] : memref<?xf32>
            }
          }
          """,
    )
    check(
        f"""
          scf.for %i = %x to %n step %n {{
            scf.for %j = %x to %n step %n {{
              {ASSERT}
            }}
            {ASSERT}
          }}
          """,
        """
          %0 = arith.cmpi sge, %x, %n : index
          %1 = arith.ori %0, %c : i1
          %2 = arith.cmpi sge, %x, %n : index
          %3 = arith.ori %2, %1 : i1
          "weft.assert"(%3) {message = "m"} : (i1) -> ()
          %4 = arith.cmpi sge, %x, %n : index
          %5 = arith.ori %4, %c : i1
          "weft.assert"(%5) {message = "m"} : (i1) -> ()
          scf.for %i = %x to %n step %n {
            scf.for %j = %x to %n step %n {
            }
          }
          """,
    )


def test_an_assertion_stays_where_something_comes_before_it():
    for before in (BOUNDS, '"weft.print"() {parts = ["once"]} : () -> ()'):
        stays(
            f"""
              scf.for %i = %x to %n step %n {{
                {before}
                {ASSERT}
              }}
              """
        )
    stays(
        f"""
          scf.for %i = %x to %n step %n {{
            scf.if %c {{
              {ASSERT}
            }}
          }}
          """
    )


def test_a_load_stays_if_the_loop_may_write_the_memref():
    stays(certain(target="%o[%i] : memref<?xf32>"))
    stays(certain(target="%m[%i] : memref<?xf32>"))


def test_a_load_in_an_if_stays():
    stays(certain(first="""scf.if %c {
              %q = memref.load %m[%x] : memref<?xf32>
              memref.store %q, %l[%i] : memref<4xf32>
            }""", load="%s = memref.load %m[%i] : memref<?xf32>"))  # fmt: skip
