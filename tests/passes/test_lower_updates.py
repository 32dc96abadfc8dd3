"""expand: text before, text after."""

from __future__ import annotations

import pytest

from tests.passes.texts import normal, result_of
from weft.passes.forward_stores import forward_stores
from weft.passes.lower_updates import lower_updates

HEAD = "\nfunc.func @f(%x: memref<?xf32>, %h: memref<?xf16>, %n: memref<?xi32>, %i: index) {"
FOUR = "%v = arith.constant 4.0 : f32\n"


def text(body: str) -> str:
    return f"{HEAD}\n{FOUR}{body}\nfunc.return\n}}"


def rmw(memref: str, type: str, kind: str, value: str = "%v", atomic: bool = False) -> str:
    compute = {"f16": "f32"}.get(type, type)
    flag = "" if atomic else " {atomic = false}"
    return (
        f"%o = memref.atomic_rmw {kind} {value}, %{memref}[%i]{flag} : "
        f"({compute}, memref<?x{type}>) -> {compute}"
    )


@pytest.mark.parametrize(("before", "after"), [
    (rmw("x", "f32", "addf"),
     """%o = memref.load %x[%i] : memref<?xf32>
        %0 = arith.addf %o, %v : f32
        memref.store %0, %x[%i] : memref<?xf32>"""),
    (rmw("x", "f32", "maximumf") + "\nmemref.store %o, %x[%i] : memref<?xf32>",
     """%o = memref.load %x[%i] : memref<?xf32>
        %0 = arith.maximumf %o, %v : f32
        memref.store %0, %x[%i] : memref<?xf32>
        memref.store %o, %x[%i] : memref<?xf32>"""),
    ("%w = arith.constant 3 : i32\n" + rmw("n", "i32", "ori", "%w"),
     """%w = arith.constant 3 : i32
        %o = memref.load %n[%i] : memref<?xi32>
        %0 = arith.ori %o, %w : i32
        memref.store %0, %n[%i] : memref<?xi32>"""),
    (rmw("x", "f32", "addf", atomic=True), rmw("x", "f32", "addf", atomic=True)),
    (rmw("h", "f16", "addf"), rmw("h", "f16", "addf")),
])  # fmt: skip
def test_text(before: str, after: str) -> None:
    assert result_of([lower_updates], text(before)) == normal(text(after))


def test_a_second_update_needs_no_second_load() -> None:
    twice = rmw("x", "f32", "addf") + "\n" + rmw("x", "f32", "addf").replace("%o", "%p")
    after = """%o = memref.load %x[%i] : memref<?xf32>
        %p = arith.addf %o, %v : f32
        memref.store %p, %x[%i] : memref<?xf32>
        %0 = arith.addf %p, %v : f32
        memref.store %0, %x[%i] : memref<?xf32>"""
    assert result_of([lower_updates, forward_stores], text(twice)) == normal(text(after))
