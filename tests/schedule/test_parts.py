"""Parts: the serial loops of few iterations, shared by threads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.codegen.compiled import Compiled, poisoned
from tests.passes.texts import in_function
from weft.ir.core import Op, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule import chunks, parts
from weft.schedule.apply_cpu import apply_cpu
from weft.schedule.language import parse
from weft.schedule.machine import CpuMachine

ROWS = "%x: memref<?x?xT>, %s: memref<?xT>, %t: memref<?xT>, %n: index, %m: index"


def column(type: str, combine: str, init: str, *, last: str = "", **attributes: object) -> str:
    """``for j: a = b = init; for i: a, b = combine(a, x[i, j]), combine(b, x[i, j] + x[i, j]);
    s[j] = a; t[j + 1] = b``"""
    add = "addf" if type[0] == "f" else "addi"
    body = f"""
    scf.parallel (%j) = (%c0) to (%m) step (%c1) {{
      %k = arith.addi %j, %c1 : index
      %z = {init}
      %a, %b = scf.for %i = %c0 to %n step %c1 iter_args(%p = %z, %q = %z) -> (T, T) {{
        %v = memref.load %x[%i, %j] : memref<?x?xT>
        %w = arith.{add} %v, %v : T
        %c = arith.{combine} %p, %v : T
        %d = arith.{combine} %q, %w : T
        scf.yield %c, %d : T, T
      }}
      memref.store %a, %s[%j] : memref<?xT>
      memref.store %b, %t[%k] : memref<?xT>
      {last}
      scf.reduce
    }}
    """
    return in_function(ROWS, body, **{"noalias": True, **attributes}).replace("T", type)


LOADED = "memref.load %s[%j] : memref<?xT>"
TYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64}
SUMS = [
    column("f32", "addf", "arith.constant 0.0 : T"), column("f32", "addf", LOADED),
    column("i64", "muli", LOADED), column("i64", "minsi", LOADED),
    column("f64", "maximumf", LOADED), column("f64", "subf", LOADED),
]  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is worth its while for a few turns."""
    monkeypatch.setattr(chunks, "COST", 8)
    monkeypatch.setattr(parts, "LEAST", 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("schedule", ["", "vectorize(j, 4, 4)"])
@pytest.mark.parametrize("text", SUMS)
def test_parts_mean_the_same(text: str, schedule: str) -> None:
    function = parse_function(text)
    made = apply_cpu(parse_function(text), parse(schedule), CpuMachine(16))
    verify(made)
    assert same(parse_function(print_function(made)), made)
    several: list[int] = []

    def watch(op: Op, operands: Any, results: Any) -> None:
        if op.name == "weft.copies":
            several.append(results[0])

    for n, m in ((0, 2), (1, 1), (5, 1), (37, 3)):
        random = np.random.default_rng(n)
        type = {"f32": np.float32, "f64": np.float64, "i64": np.int64}[
            text.split("memref<?x?x")[1][:3]
        ]
        x, start = (random.integers(-4, 9, k).astype(type) for k in ((n, m), m + 1))
        found = []
        for each, order in itertools.product((function, made), ("forward", "random")):
            s, t = start[:m].copy(), start.copy()
            run(each, [x, s, t, n, m], races=True, order=order, watch=watch)
            found.append((s, t))
        for s, t in found[1:]:
            np.testing.assert_array_equal(s, found[0][0])
            np.testing.assert_array_equal(t, found[0][1])
    assert several[:4] == [0, 0, 0, 0]
    assert several[-1] > 2


@pytest.mark.parametrize(
    "text",
    [
        column("f32", "mulf", LOADED),  # 1e30 * 1e30 * 1e-30 * 1e-30
        column("f32", "addf", LOADED, strict_math=True),
        column("f32", "addf", LOADED, noalias=False),
        column("f32", "addf", LOADED, last="memref.store %a, %s[%k] : memref<?xT>"),
        column("f32", "addf", LOADED).replace("memref.load %x[%i, %j] : memref<?x?xf32>",
                                              "memref.load %t[%i] : memref<?xf32>"),
        column("f32", "addf", LOADED).replace("%i = %c0 to %n", "%i = %c0 to %c1"),
    ],
    ids=["product", "strict", "overlap", "stored twice", "reads what is stored", "one turn"],
)  # fmt: skip
def test_what_stays_whole(text: str) -> None:
    made = apply_cpu(parse_function(text), (), CpuMachine(16))
    assert "weft.copies" not in {op.name for op in walk(made.body)}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("place", "n", "m", "wanted"),
    [("%i, %j", 900, 2, 64), ("%i, %j", 90, 128, 32), ("%i, %j", 20, 256, 10),
     ("%j, %i", 900, 2, 32), ("%j, %i", 900, 16, 4), ("%j, %i", 40, 64, 1)],
)  # fmt: skip
def test_iterations_are_shared_before_they_have_parts(
    place: str, n: int, m: int, wanted: int
) -> None:
    """Down columns as many iterations as vectors have lanes make a chunk; along rows one does."""
    text = SUMS[0].replace("%x[%i, %j]", f"%x[{place}]")
    made = apply_cpu(parse_function(text), (), CpuMachine(16))
    given: list[int] = []

    def watch(op: Op, operands: Any, results: Any) -> None:
        if op.name == "weft.copies":
            given.append(results[0])

    x = np.ones((n, m) if place == "%i, %j" else (m, n), np.float32)
    s, t = np.zeros(m, np.float32), np.zeros(m + 1, np.float32)
    run(made, [x, s, t, n, m], watch=watch)
    assert given == [wanted]
    np.testing.assert_array_equal(s, np.full(m, n))


def test_machine_code_of_parts() -> None:
    """400,000 rows: what is summed fits into float32 only by parts, or in float64."""
    run = Compiled(parse_function(SUMS[1]))
    for m in (1, 2, 3, 7):
        x = np.random.default_rng(m).random((400_000, m), np.float32)
        s, t = np.ones(m, np.float32), poisoned((m + 1,), np.float32)
        run(x, s, t, len(x), m)
        wanted = x.sum(0, dtype=np.float64)
        np.testing.assert_allclose(s, wanted + 1, rtol=1e-5)
        np.testing.assert_allclose(t[1:], 2 * wanted + 1, rtol=1e-5)
