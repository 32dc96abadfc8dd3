"""Stages: what iterations accumulate is computed by lanes, and added in their order."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

import weft
from tests.fuzz.check import function as made
from weft.codegen.machine import host_cpu
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule.machine import CpuMachine
from weft.schedule.stages import in_stages

WIDE, NARROW = CpuMachine(64), CpuMachine(32)
ARGS = "%x: memref<?xf32>, %w: memref<?xf32>, %s: memref<?xf32>, %o: memref<?x2xf32>, %m: index"


def loop(body: str, *, noalias: bool = True, carried: str = "") -> Function:
    told = "attributes {noalias = true} " if noalias else ""
    arguments = ARGS.replace("?x2x", "?x?x")
    function = parse_function(
        f"""
func.func @f({arguments}) {told}{{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %one = arith.constant 1.0 : f32
  %half = arith.constant 0.5 : f32
  %n = "memref.dim"(%x) {{axis = 0}} : (memref<?xf32>) -> index
  scf.for %i = %c0 to %n step %c1 {{
    {FRONT}
    {body}
    scf.yield
  }}
  func.return
}}""".replace('"memref.dim"', '"weft.dim"')
    )
    verify(function)
    return function


FRONT = """
    %a = memref.load %x[%i] : memref<?xf32>
    %b = memref.load %w[%i] : memref<?xf32>
    %ab = arith.mulf %a, %b : f32
    %q = arith.divf %ab, %half : f32
    %r = math.absf %q : f32
    %f = math.floor %r : f32
    %g = arith.subf %r, %f : f32
    %h = arith.subf %one, %g : f32
    %k = arith.fptosi %f : f32 to i64
    %k1 = arith.index_cast %k : i64 to index
    %p = arith.remsi %k1, %m : index
    %yes = arith.cmpf olt, %g, %half : f32
"""
ADD = """
    %old = memref.load %s[%p] : memref<?xf32>
    %new = arith.addf %old, %h : f32
    memref.store %new, %s[%p] : memref<?xf32>
"""
BRANCH = """
    %l0, %l1 = scf.for %c = %c0 to %c3 step %c1 iter_args(%t = %one, %u = %h) -> (f32, f32) {
      scf.if %yes {
        %z = memref.atomic_rmw addf %t, %s[%p] {atomic = false} : (f32, memref<?xf32>) -> f32
        scf.yield
      } else {
        scf.yield
      }
      %t1 = arith.mulf %t, %g : f32
      %u1 = arith.addf %u, %old : f32
      scf.yield %t1, %u1 : f32, f32
    }
    %v0 = arith.divf %l0, %half : f32
    %v1 = arith.mulf %v0, %l1 : f32
    %v2 = arith.subf %v1, %g : f32
    %v3 = math.absf %v2 : f32
    %v4 = arith.divf %v3, %half : f32
    %v5 = arith.select %yes, %v4, %v0 : f32
    memref.store %v5, %o[%i, %c0] : memref<?x?xf32>
    memref.store %q, %o[%i, %c1] : memref<?x?xf32>
"""


def outcome(function: Function, n: int) -> bytes:
    rng = np.random.default_rng(n)
    x, w = (rng.standard_normal(n).astype(np.float32) * 3 for _ in range(2))
    s, o = np.zeros(7, np.float32), np.full((n, 2), 9, np.float32)
    run(function, [x, w, s, o, 7])
    return s.tobytes() + o.tobytes()


@pytest.mark.parametrize("body", [ADD, ADD + BRANCH], ids=["add", "branch"])
def test_every_element_has_its_additions_in_their_order(body: str) -> None:
    before = loop(body)
    after = in_stages(before, WIDE)
    verify(after)
    assert same(parse_function(print_function(after)), after)
    assert sum("vector" in op.attrs for op in walk(after.body)) == (2 if body != ADD else 1)
    for n in (0, 1, 15, 16, 17, 63, 64, 65, 130):
        assert outcome(after, n) == outcome(before, n)


@pytest.mark.parametrize(
    "function",
    [
        loop(ADD, noalias=False),
        loop(ADD.replace("%s[", "%x[")),  # reads what it writes ahead of it
        loop("memref.store %h, %s[%p] : memref<?xf32>"),  # accumulates nothing
        loop(ADD.replace("[%p]", "[%i]")),  # LLVM has vectors for that
    ],
    ids=["may overlap", "read", "no sum", "along a row"],
)
def test_what_stays(function: Function) -> None:
    assert in_stages(function, WIDE) is function


def test_narrow_machines_keep_their_loops() -> None:
    function = loop(ADD)
    assert in_stages(function, NARROW) is function


# -- kernels


def program(rng: Random) -> str:
    """A loop that computes numbers and places of what is there, and accumulates there."""
    names, lines = ["a", "b"], list[str]()

    def number() -> str:
        return rng.choice([*names, *names, f"{rng.uniform(-2, 2):.3f}"])

    for k in range(rng.randint(6, 14)):
        form = rng.choice(("{} * {}", "{} + {}", "{} - {}", "{} / (1.5 + abs({}))",
                           "min({}, {})", "weft.exp(-abs({})) + {}",
                           "({0} if {0} > {1} else {1} * 0.5)",
                           "weft.floor({}) + 0.25 * {}"))  # fmt: skip
        lines.append(f"        v{k} = {form.format(number(), number())}")
        names.append(f"v{k}")
    lines.append(f"        p = int(weft.floor(abs({number()}) * 3)) % s.shape[0]")
    lines.append(f"        q = int(weft.floor(abs({number()}) * 2)) % s.shape[0]")
    for _ in range(rng.randint(1, 3)):
        where = rng.choice("pq")
        add = f"s[{where}] {rng.choice(('+=', '-='))} {number()}"
        kind = rng.randrange(3)
        if kind == 0:
            lines.append(f"        {add}")
        elif kind == 1:
            lines += [f"        if {number()} < {number()}:", f"            {add}"]
        else:
            lines += ["        z = 0.0", f"        for c in range({rng.randint(0, 3)}):",
                      f"            z += c * {number()} * t[{where}, c]",
                      f"            u[{where}, c] += {number()}"]  # fmt: skip
            names.append("z")
    if rng.random() < 0.6:
        lines += [f"        y = {number()}", *(f"        y = y * {number()} + {number()} / 3"
                                              for _ in range(rng.randint(1, 6)))]  # fmt: skip
        lines += [f"        o[i, {k}] = y * {number()}" for k in range(rng.randint(1, 2))]
    head = ["def kernel(x, w, s, t, u, o):", "    for i in range(x.shape[0]):",
            "        a = x[i]", "        b = w[i]"]  # fmt: skip
    return "\n".join([*head, *lines]) + "\n"


def check(seed: int) -> bool:
    """A random program beside its undecorated Python in float64; whether it went in stages."""
    rng = Random(seed)
    text = program(rng)
    python = made(text)
    kernel = weft.kernel(python)
    n, m = rng.choice((0, 1, 16, 17, 64, 100, 257)), rng.choice((1, 5, 40))
    torch.manual_seed(seed)
    dtype = rng.choice((torch.float32, torch.float64))
    tensors = [torch.randn(n), torch.randn(n), torch.zeros(m), torch.randn(m, 3),
               torch.zeros(m, 3), torch.full((n, 2), 7.0)]  # fmt: skip
    if rng.random() < 0.5:
        tensors[0] = torch.randn(2 * n)[::2]
    tensors = [a.to(torch.float64) for a in tensors]
    wanted = [a.clone() for a in tensors]
    python(*wanted)
    given = [a.to(dtype) for a in tensors]
    found = [a.clone() if a.is_contiguous() else a for a in given]
    kernel(*found)
    if dtype == torch.float64:
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
    own = [a.clone() for a in given]
    weft.kernel(made(text), strict_math=True).interpret(*own) if n <= 17 else None
    if n <= 17 and dtype == torch.float32:  # places may differ by a rounding where sums are fused
        exact = [a.clone() for a in given]
        weft.kernel(made(text), strict_math=True)(*exact)
        for a, b in zip(exact, own, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
    return "vector" in str(kernel.inspect(*found)["scheduled ir"])


@pytest.mark.parametrize("part", range(4))
def test_random_programs_are_what_their_python_is(part: int) -> None:
    staged = [check(100 * part + k) for k in range(6)]
    assert any(staged) == (
        host_cpu().vector_bytes >= 64
    )  # machines with narrower vectors keep loops
