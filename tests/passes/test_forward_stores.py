"""forward: which loads find their value."""

from __future__ import annotations

import pytest

from tests.passes.texts import result_of
from weft.passes.forward_stores import forward_stores


def loads(body: str, attributes: str = "") -> int:
    """How many loads are left in a function with this body."""
    lines = "\n          ".join(body.split("; "))
    text = f"""
        func.func @f(%m: memref<?xf32>, %o: memref<?xf32>, %x: index, %y: index,
                     %a: f32, %b: f32, %c: i1){attributes} {{
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %x1 = arith.addi %x, %c1 : index
          %l = memref.alloca() : memref<4xf32>
          %k = memref.alloca() : memref<4xf32>
          {lines}
          func.return
        }}"""
    return result_of([forward_stores], text).count("memref.load")


def store(memref: str, subscript: str, value: str = "%a") -> str:
    size = "?" if memref in ("m", "o") else "4"
    return f"memref.store {value}, %{memref}[{subscript}] : memref<{size}xf32>"


def load(name: str, memref: str, subscript: str) -> str:
    size = "?" if memref in ("m", "o") else "4"
    return f"%{name} = memref.load %{memref}[{subscript}] : memref<{size}xf32>"


@pytest.mark.parametrize(("before", "between", "after", "left"), [
    (store("l", "%c0"), "", load("r", "l", "%c0"), 0),
    (store("l", "%x"), "", load("r", "l", "%x"), 0),
    (store("m", "%x"), "", load("r", "m", "%x"), 0),
    (load("q", "m", "%x"), "", load("r", "m", "%x"), 1),
    (store("l", "%c0"), store("l", "%c1", "%b"), load("r", "l", "%c0"), 0),
    (store("l", "%x"), store("l", "%x1", "%b"), load("r", "l", "%x"), 0),
    (store("l", "%x"), store("l", "%y", "%b"), load("r", "l", "%x"), 1),
    (store("l", "%c0"), store("l", "%x", "%b"), load("r", "l", "%c0"), 1),
    (store("l", "%x"), store("k", "%x", "%b"), load("r", "l", "%x"), 0),
    (store("l", "%x"), store("m", "%x", "%b"), load("r", "l", "%x"), 0),
    (store("m", "%x"), store("o", "%x", "%b"), load("r", "m", "%x"), 1),
    (store("m", "%x"), store("o", "%x1", "%b"), load("r", "m", "%x"), 1),
    (store("m", "%x"), store("l", "%x", "%b"), load("r", "m", "%x"), 0),
    (store("m", "%x"), f"scf.if %c {{; {store('m', '%y', '%b')}; }}", load("r", "m", "%x"), 1),
    (store("m", "%x"), f"scf.if %c {{; {load('q', 'm', '%x')}; }}", load("r", "m", "%x"), 0),
    ("", f"scf.if %c {{; {load('q', 'm', '%x')}; }}", load("r", "m", "%x"), 2),
    ("", f"scf.if %c {{; {store('m', '%x')}; }} else {{; {load('q', 'm', '%x')}; }}",
     load("r", "m", "%x"), 2),
    (store("m", "%x"), f"scf.for %i = %x to %y step %c1 {{; {load('q', 'm', '%x')}; }}",
     load("r", "m", "%x"), 0),
    (store("m", "%x"),
     f"scf.for %i = %x to %y step %c1 {{; {load('q', 'm', '%x')}; {store('m', '%i', '%b')}; }}",
     load("r", "m", "%x"), 2),
])  # fmt: skip
def test_loads_left(before, between, after, left):
    body = "; ".join(filter(None, (before, between, after, store("o", "%y", "%r"))))
    assert loads(body) == left


def test_noalias_separates_arguments():
    body = "; ".join((store("m", "%x"), store("o", "%x", "%b"), load("r", "m", "%x"),
                      store("o", "%y", "%r")))  # fmt: skip
    assert loads(body) == 1
    assert loads(body, " attributes {noalias = true}") == 0


def test_the_value_is_the_one_stored_last():
    text = result_of(
        [forward_stores],
        """
        func.func @f(%m: memref<?xf32>, %x: index, %a: f32, %b: f32) {
          memref.store %a, %m[%x] : memref<?xf32>
          memref.store %b, %m[%x] : memref<?xf32>
          %r = memref.load %m[%x] : memref<?xf32>
          %s = arith.negf %r : f32
          memref.store %s, %m[%x] : memref<?xf32>
          func.return
        }""",
    )
    assert "arith.negf %b" in text
