"""recognise_reductions: elements that all iterations accumulate into become reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.passes.texts import in_function, parsed
from weft.ir.core import Function
from weft.ir.interp import run
from weft.ir.text import same
from weft.passes.recognise_reductions import recognise_reductions

ARGS = "%x: memref<?xf32>, %s: memref<?xf32>, %t: memref<f32>, %n: index, %m: index"
LOAD = "%v = memref.load %x[%i] : memref<?xf32>\n"


def loop(body: str, **attributes: object) -> str:
    attributes = {"noalias": True, **attributes}
    text = f"scf.parallel (%i) = (%c0) to (%n) step (%c1) {{{LOAD}{body}scf.reduce\n}}"
    return in_function(ARGS, text, **attributes)


def update(place: str, name: str = "%o", kind: str = "addf", value: str = "%v") -> str:
    array = "memref<?xf32>" if place.startswith("%s") else "memref<f32>"
    types = f"(f32, {array}) -> f32"
    return f"{name} = memref.atomic_rmw {kind} {value}, {place} {{atomic = true}} : {types}\n"


def test_an_element_of_an_array_becomes_a_reduction_where_it_is_one() -> None:
    after = in_function(
        ARGS,
        """
        %size = "weft.dim"(%s) {axis = 0} : (memref<?xf32>) -> index
        %there = arith.cmpi slt, %c0, %size : index
        %before = scf.if %there -> (f32) {
          %b = memref.load %s[%c0] : memref<?xf32>
          scf.yield %b : f32
        } else {
          %nothing = arith.constant -0.0 : f32
          scf.yield %nothing : f32
        }
        %r = scf.parallel (%i) = (%c0) to (%n) step (%c1) init (%before) -> f32 {
          %none = arith.constant -0.0 : f32
          %v = memref.load %x[%i] : memref<?xf32>
          %a = arith.addf %none, %v : f32
          scf.reduce(%a : f32) {
          ^bb0(%a$: f32, %b$: f32):
            %c$ = arith.addf %a$, %b$ : f32
            scf.reduce.return %c$ : f32
          }
        }
        scf.if %there {
          memref.store %r, %s[%c0] : memref<?xf32>
        }
        """,
        noalias=True,
    )
    assert same(recognise_reductions(parsed(loop(update("%s[%c0]")))), parsed(after))


def both(function: Function, *sizes: int) -> list[Any]:
    """What ``s`` and ``t`` hold after ``function``, and after it with reductions."""
    found: list[Any] = []
    for each in (function, recognise_reductions(function)):
        random = np.random.default_rng(sizes)
        x = random.integers(-9, 9, sizes[0]).astype(np.float32)  # sums of these are exact
        s, t = np.arange(sizes[1], dtype=np.float32), np.array(-3, np.float32)
        run(each, [x, s, t, sizes[0], sizes[1]], races=True)
        found.append([*s, t.item()])
    return found


GUARD = "%q = arith.cmpf ogt, %v, %zero : f32\nscf.if %q {{\n{}scf.yield\n}}\n"
INNER = "scf.for %k = %c0 to %m step %c1 {{\n{}scf.yield\n}}\n"


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (1, 2), (17, 3)])
@pytest.mark.parametrize(
    "body",
    [
        update("%t[]"),
        update("%t[]", kind="maximumf"),
        GUARD.format(update("%t[]")),
        INNER.format(GUARD.format(update("%t[]"))),
        update("%t[]") + GUARD.format(INNER.format(update("%t[]", "%p"))),
        GUARD.format("%e = arith.cmpi slt, %c1, %m : index\nscf.if %e {\n" + update("%s[%c1]")
                     + "scf.yield\n}\n") + update("%t[]", "%p", "minimumf"),
        "%e = arith.cmpi slt, %c1, %m : index\nscf.if %e {\n" + update("%s[%c0]")
        + update("%s[%c1]", "%p", "mulf", "%zero") + "scf.yield\n} else {\n" + update("%t[]", "%w")
        + "scf.yield\n}\n",
    ],
    ids=["sum", "max", "guard", "loop", "two", "of two arrays", "elements"],
)  # fmt: skip
def test_what_it_comes_to_stays(body: str, sizes: tuple[int, int]) -> None:
    """Also where an array has no such element, and no iteration asks for it."""
    function = parsed(loop(body))
    assert recognise_reductions(function) is not function
    before, after = both(function, *sizes)
    assert before == after


@pytest.mark.parametrize(
    ("body", "attributes"),
    [
        (update("%s[%i]"), {}),
        (update("%s[%c0]"), {"noalias": False}),
        (update("%s[%c0]"), {"strict_math": True}),
        (update("%s[%c0]") + update("%s[%n]", "%p"), {}),
        (update("%s[%c0]") + update("%s[%c0]", "%p", "maximumf"), {}),
        (update("%s[%c0]") + "memref.store %o, %x[%i] : memref<?xf32>\n", {}),
        (update("%s[%c0]") + "%p = memref.load %s[%c1] : memref<?xf32>\n", {}),
    ],
    ids=["chosen", "overlap", "strict", "perhaps one", "two combiners", "used", "read"],
)
def test_what_stays(body: str, attributes: dict[str, object]) -> None:
    function = parsed(loop(body, **attributes))
    assert recognise_reductions(function) is function


def many(x, b, s, h, t):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        if x[i] > 0:
            s[0] += x[i] * x[i]
            t[None] += 1
        s[1] -= x[i]
        weft.atomic_max(s[2], x[i])
        h[b[i]] += 1


@pytest.mark.parametrize("n", [0, 1, 3, 127, 70_001])
def test_totals_beside_a_histogram_have_the_same_bits_on_any_number_of_threads(n: int) -> None:
    kernel = weft.kernel(many)
    x, b = torch.randn(n), torch.randint(0, 7, (n,))
    found: list[torch.Tensor] = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            s, h, t = (
                torch.tensor([1.0, 2, 3, 4]),
                torch.zeros(7, dtype=torch.int32),
                torch.tensor(5),
            )
            kernel(x, b, s, h, t)
            found.append(s)
            assert h.tolist() == torch.bincount(b, minlength=7).tolist()
            assert t == 5 + (x > 0).sum()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], s) for s in found)
    y = x.double()
    squares = (y.relu() ** 2).sum() + 1
    want = torch.stack(
        [squares, 2 - y.sum(), y.clamp(min=3).max() if n else torch.tensor(3.0), torch.tensor(4.0)]
    )
    torch.testing.assert_close(found[0].double(), want.double(), rtol=1e-5, atol=1e-3)
    text = kernel.inspect(x, b, s, h, t)["ir after recognise_reductions"]
    assert text.count("atomic_rmw") == 1
