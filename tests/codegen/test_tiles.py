"""Register tiles: which loops get one, and that they compute what the plain loops compute."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from compiled import Compiled, poisoned
from samples import causal_conv, elementwise, parallel

import weft
from weft.codegen.cpu_target import CpuTarget
from weft.codegen.machine import host_cpu
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.types import MemRefType, ScalarType, bf16, f16, f32, f64, i32, i64, index
from weft.schedule.default_cpu import candidates
from weft.schedule.language import parse, show
from weft.schedule.machine import CpuMachine

RNG = np.random.default_rng(17)
NO_TILES = not host_cpu().vector_bytes
Body = Callable[[Builder, list[Value], list[Value]], None]


def serial_sum(
    b: Builder, lower: Value, upper: Value, term: Callable[[Value], Value], t: ScalarType = f32
) -> Value:
    """sum of term(u) for u in range(lower, upper)."""
    loop = b.for_(lower, upper, b.constant(1, index), [b.constant(0, t)])
    with b.at(loop.regions[0]):
        u, s = loop.regions[0].args
        b.do("scf.yield", b.op("arith.addf" if t.is_float else "arith.addi", s, term(u)))
    return loop.result


def product(b: Builder, x: Value, y: Value) -> Value:
    return b.op("arith.mulf", x, y)


def matmul_body(b: Builder, args: list[Value], indices: list[Value]) -> None:
    """c[i, j] = sum of a[i, k] * b[k, j]; also for types that are only stored."""
    x, y, out = args
    (i, j), zero = indices, b.constant(0, index)
    element = out.type.element
    wide = f64 if element is f64 else f32

    def number(value: Value) -> Value:
        return value if value.type is wide else b.op("arith.extf", value, type=wide)

    total = serial_sum(
        b, zero, b.op("memref.dim", x, axis=1),
        lambda k: product(b, number(b.load(x, [i, k])), number(b.load(y, [k, j]))), wide,
    )  # fmt: skip
    b.store(total if element is wide else b.op("arith.truncf", total, type=element), out, [i, j])


def matmul(element: ScalarType = f32) -> Function:
    return parallel([MemRefType(element, 2)] * 3, 2, matmul_body, sizes_of=2)


@pytest.mark.skipif(NO_TILES, reason="this CPU has no vectors that tiles can use")
def test_which_loops_get_a_tile() -> None:
    tiled = [causal_conv(), causal_conv("unit"), matmul(), matmul(f64), matmul(f16)]
    assert all(Compiled(function).code.tiled for function in tiled)
    plain = [causal_conv("strided"), elementwise("arith.addf", [f32, f32], f32)]
    assert not any(Compiled(function).code.tiled for function in plain)


def test_the_tile_of_a_convolution_shares_the_weights_and_runs_backwards() -> None:
    schedule, plain = candidates(causal_conv(), CpuMachine(64))
    assert show(schedule) == "unroll_jam(i0, 4); vectorize(i2, 16, 64, reverse=True)"
    assert plain == ()


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (4, 8, 64), (5, 3, 65), (17, 40, 130), (3, 0, 70), (0, 2, 3)]
)
@pytest.mark.parametrize("element", [f32, f64, f16], ids=str)
@pytest.mark.sampled(3)
def test_matmul(element: ScalarType, sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    kind = element.name.replace("f", "float")
    a, c = (
        RNG.standard_normal((rows, inner)).astype(kind),
        RNG.standard_normal((inner, columns)).astype(kind),
    )
    out = poisoned((rows, columns), kind)
    Compiled(matmul(element))(a, c, out)
    tolerance = {"f16": 2e-3, "f32": 1e-5, "f64": 1e-12}[element.name]
    expected = a.astype(np.float64) @ c.astype(np.float64)
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance * 10)


def test_matmul_of_bfloat() -> None:
    bits = (
        RNG.integers(0x3F00, 0x3FFF, (6, 35)).astype(np.uint16),
        RNG.integers(0x3F00, 0x3FFF, (35, 67)).astype(np.uint16),
    )
    a, c = ((x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in bits)
    out = poisoned((6, 67), np.uint16)
    Compiled(matmul(bf16))(*bits, out)
    np.testing.assert_allclose((out.astype(np.uint32) << 16).view(np.float32), a @ c, rtol=1 / 128)


def compare(function: Function, *args: np.ndarray | float, results: int = 1) -> None:
    """The last ``results`` arrays are the same with tiles and without."""
    outcomes = []
    for tiles in (True, False):
        kernel = Compiled(function, schedule=None if tiles else ())
        assert kernel.code.tiled == (tiles and not NO_TILES)
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        kernel(*copies)
        outcomes.append(copies[-results:])
    for got, expected in zip(*outcomes, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("width", [0, 1, 5, 40])
@pytest.mark.parametrize("size", [1, 16, 63, 200])
@pytest.mark.sampled(3)
def test_sliding_windows_with_both_bounds_moving(size: int, width: int) -> None:
    """out[r, t] = sum of x[r, u] * w[u - t] for u in range(t, t + width), within x."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, w, out = args
        r, t = indices
        upper = b.op("arith.addi", t, b.op("memref.dim", w, axis=0))
        total = serial_sum(b, t, upper, lambda u: product(
            b, b.load(x, [r, u]), b.load(w, [b.op("arith.subi", u, t)])))  # fmt: skip
        b.store(total, out, [r, t])

    types = [MemRefType(f32, 2), MemRefType(f32, 1), MemRefType(f32, 2)]
    x = RNG.standard_normal((5, size + width)).astype(np.float32)
    w = RNG.standard_normal(width).astype(np.float32)
    compare(parallel(types, 2, body, sizes_of=2), x, w, poisoned((5, size), np.float32))


@pytest.mark.parametrize("size", [1, 33, 129])
def test_triangular_lower_bounds(size: int) -> None:
    """out[r, t] = sum over u >= t of a[u, t] * x[r, u]"""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        a, x, out = args
        r, t = indices
        total = serial_sum(b, t, b.op("memref.dim", a, axis=0),
                           lambda u: product(b, b.load(a, [u, t]), b.load(x, [r, u])))  # fmt: skip
        b.store(total, out, [r, t])

    a = RNG.standard_normal((size, size)).astype(np.float32)
    x = RNG.standard_normal((6, size)).astype(np.float32)
    compare(
        parallel([MemRefType(f32, 2)] * 3, 2, body, sizes_of=2), a, x, poisoned(x.shape, np.float32)
    )


def test_bounds_that_are_data() -> None:
    """out[t] = sum of x[u, t] for u < n[t], and a gathered factor after the loop"""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, n, factor, out = args
        (t,) = indices
        count = b.op("arith.index_cast", b.load(n, [t]), type=index)
        total = serial_sum(b, b.constant(0, index), count, lambda u: b.load(x, [u, t]))
        b.store(product(b, total, b.load(factor, [count])), out, [t])

    types = [MemRefType(f32, 2), MemRefType(i64, 1), MemRefType(f32, 1), MemRefType(f32, 1)]
    x = RNG.standard_normal((50, 147)).astype(np.float32)
    n, factor = RNG.integers(0, 51, 147), RNG.standard_normal(51).astype(np.float32)
    compare(parallel(types, 1, body, sizes_of=3), x, n, factor, poisoned((147,), np.float32))


def test_choices_inside_loops() -> None:
    """Only some lanes may read x[u, j + 1]: the others would leave the array."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, out = args
        i, j = indices
        one, last = b.constant(1, index), b.op("memref.dim", x, axis=1)
        following = b.op("arith.addi", j, one)
        inside = b.op("arith.cmpi", following, last, predicate="slt")

        def term(u: Value) -> Value:
            choice = b.if_(inside, [f32])
            with b.at(choice.regions[0]):
                b.do("scf.yield", b.load(x, [u, following]))
            with b.at(choice.regions[1]):
                b.do("scf.yield", b.op("math.exp", b.load(x, [u, j])))
            return choice.result

        total = serial_sum(b, b.constant(0, index), i, term)
        b.store(total, out, [i, j])

    x = RNG.standard_normal((9, 161)).astype(np.float32)
    compare(
        parallel([MemRefType(f32, 2)] * 2, 2, body, sizes_of=1), x, poisoned(x.shape, np.float32)
    )


def test_nested_loops_with_two_sums() -> None:
    """A 3 x 3 sum and the sum of its squares, with stores into the array that is being read."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, y, out = args
        i, j = indices
        zero, one, three = (b.constant(n, index) for n in (0, 1, 3))
        start = [b.constant(0.0, f32), b.constant(0.0, f32)]
        rows = b.for_(zero, three, one, start)
        with b.at(rows.regions[0]):
            p, s, q = rows.regions[0].args
            columns = b.for_(zero, three, one, [s, q])
            with b.at(columns.regions[0]):
                r, s, q = columns.regions[0].args
                value = b.load(x, [b.op("arith.addi", i, p), b.op("arith.addi", j, r)])
                b.do("scf.yield", b.op("arith.addf", s, value),
                     b.op("arith.addf", q, product(b, value, value)))  # fmt: skip
            b.do("scf.yield", *columns.results)
        b.store(rows.results[0], y, [i, j])
        b.store(b.op("arith.addf", rows.results[1], b.load(out, [i, j])), out, [i, j])

    function = parallel([MemRefType(f32, 2)] * 3, 2, body, sizes_of=1)
    x = RNG.standard_normal((13, 102)).astype(np.float32)
    old = RNG.standard_normal((11, 100)).astype(np.float32)
    compare(function, x, poisoned(old.shape, np.float32), old, results=2)


def test_integers_and_index_arithmetic() -> None:
    """out[i, j] = sum over k of (a[i, k] ^ b[k, j]) * (k * j // 3)"""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, y, out = args
        i, j = indices

        def term(k: Value) -> Value:
            weight = b.op("arith.floordivsi", b.op("arith.muli", k, j), b.constant(3, index))
            mixed = b.op("arith.xori", b.load(x, [i, k]), b.load(y, [k, j]))
            return b.op("arith.muli", mixed, b.op("arith.index_cast", weight, type=i32))

        total = serial_sum(b, b.constant(0, index), b.op("memref.dim", x, axis=1), term, i32)
        b.store(total, out, [i, j])

    a = RNG.integers(-99, 99, (7, 21)).astype(np.int32)
    c = RNG.integers(-99, 99, (21, 75)).astype(np.int32)
    out = poisoned((7, 75), np.int32)
    compare(parallel([MemRefType(i32, 2)] * 3, 2, body, sizes_of=2), a, c, out)


def guarded(nested: bool) -> Function:
    """out[r, t] = factor[k] * sum of a[u, t] * x[r, u] over u >= t where r < n and t < m, with
    k = r there; else a number and k = t. ``nested``: one comparison in the other."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        a, x, factor, n, m, out = args
        r, t = indices
        rows, columns = (b.op("arith.cmpi", v, end, predicate="slt")
                         for v, end in ((r, n), (t, m)))  # fmt: skip

        def choice(condition: Value, yes: Callable[[], list[Value]]) -> list[Value]:
            made = b.if_(condition, [f32, index])
            with b.at(made.regions[0]):
                b.do("scf.yield", *yes())
            with b.at(made.regions[1]):
                b.do("scf.yield", b.constant(-2.0, f32), t)
            return made.results

        def total() -> list[Value]:
            end = b.op("memref.dim", a, axis=0)
            return [serial_sum(b, t, end, lambda u: product(
                b, b.load(a, [u, t]), b.load(x, [r, u]))), r]  # fmt: skip

        if nested:
            value, k = choice(columns, lambda: choice(rows, total))
        else:
            value, k = choice(b.op("arith.andi", rows, columns), total)
        b.store(product(b, value, b.load(factor, [k])), out, [r, t])

    types = [MemRefType(f32, 2)] * 2 + [MemRefType(f32, 1), index, index, MemRefType(f32, 2)]
    return parallel(types, 2, body, sizes_of=5)


@pytest.mark.skipif(NO_TILES, reason="this CPU has no vectors that tiles can use")
def test_comparisons_of_indices_do_not_keep_rows_from_sharing() -> None:
    for width in (32, 64):
        schedule, _ = candidates(guarded(nested=False), CpuMachine(width))
        assert show(schedule) == f"unroll_jam(i0, 4); vectorize(i1, {width // 4}, {width})"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("lanes", [0, 8])  # as chosen; half as many lanes
@pytest.mark.parametrize(("n", "m"), [(9, 150), (9, 70), (6, 150), (5, 67), (0, 150), (9, 0)])
@pytest.mark.sampled(3)
def test_whole_tiles_behind_a_comparison_have_no_masks(
    nested: bool, lanes: int, n: int, m: int
) -> None:
    function = guarded(nested)
    a = RNG.standard_normal((150, 150)).astype(np.float32)
    x = RNG.standard_normal((9, 150)).astype(np.float32)
    factor = RNG.standard_normal(150).astype(np.float32)
    schedule = parse(f"unroll_jam(i0, 4); vectorize(i1, {lanes}, {4 * lanes})") if lanes else None
    if NO_TILES and lanes:
        return
    out = poisoned(x.shape, np.float32)
    Compiled(function, schedule=schedule)(a, x, factor, n, m, out)
    total = np.array([[(a[t:, t] * x[r, t:]).sum() for t in range(150)] for r in range(9)])
    expected = np.tile(-2.0 * factor, (9, 1))
    expected[:n, :m] = (total * factor[:9, None])[:n, :m]
    np.testing.assert_allclose(out, expected, rtol=2e-4, atol=1e-4)


def gathering(contiguous: bool) -> Function:
    """out[i, j] = sum of x[k, n[j]] over k, or of x[n[j], k], whose turns are a row of memory."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, n, out = args
        i, j = indices
        place = b.op("arith.index_cast", b.load(n, [j]), type=index)

        def term(k: Value) -> Value:
            value = b.load(x, [place, k] if contiguous else [k, place])
            inside = b.op("arith.cmpi", place, i, predicate="sgt")
            made = b.if_(inside, [f32])
            with b.at(made.regions[0]):
                b.do("scf.yield", product(b, value, b.load(x, [i, place])))
            with b.at(made.regions[1]):
                b.do("scf.yield", value)
            b.store(made.result, out, [i, j])
            return made.result

        total = serial_sum(b, b.constant(0, index), b.op("memref.dim", x, axis=0), term)
        b.store(total, out, [i, j])

    types = [MemRefType(f32, 2), MemRefType(i32, 1), MemRefType(f32, 2)]
    return parallel(types, 2, body, sizes_of=2)


def test_lanes_gather_where_turns_have_no_rows_of_their_own() -> None:
    steps, _ = candidates(gathering(contiguous=False), CpuMachine(64))
    assert show(steps) == "vectorize(i1, 16, 16)"
    assert candidates(gathering(contiguous=True), CpuMachine(64)) == [()]
    assert candidates(gathering(contiguous=False), CpuMachine(32)) == [()]  # slow there
    if host_cpu().vector_bytes == 64:
        x = RNG.standard_normal((70, 70)).astype(np.float32)
        n = RNG.integers(0, 70, 53).astype(np.int32)
        compare(gathering(contiguous=False), x, n, poisoned((9, 53), np.float32))


def picking(t: ScalarType, layout: str) -> Function:
    """out[c, j] = x[c, at[j], at[j]] for all c in turn, or 1 where at[j] is none of its rows."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, at, out = args
        (j,), zero, one = indices, b.constant(0, index), b.constant(1, t)
        place = b.op("arith.index_cast", b.op("arith.fptosi", b.load(at, [j]), type=i64),
                     type=index)  # fmt: skip
        rows = b.op("memref.dim", x, axis=1)
        inside = b.op("arith.andi", b.op("arith.cmpi", place, zero, predicate="sge"),
                      b.op("arith.cmpi", place, rows, predicate="slt"))  # fmt: skip
        loop = b.for_(zero, b.op("memref.dim", x, axis=0), b.constant(1, index))
        with b.at(loop.body):
            (c,) = loop.body.args
            made = b.if_(inside, [t])
            with b.at(made.regions[0]):
                b.do("scf.yield", b.load(x, [c, place, place]))
            with b.at(made.regions[1]):
                b.do("scf.yield", one)
            b.store(made.result, out, [c, j])
            b.do("scf.yield")

    types = [MemRefType(t, 3, layout=layout), MemRefType(f32, 1), MemRefType(t, 2)]
    return parallel(types, 1, body, sizes_of=1)


@pytest.mark.skipif(NO_TILES, reason="this CPU has no vectors that tiles can use")
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("t", [f32, f64], ids=str)
@pytest.mark.parametrize("gathers", [True, False], ids=["gathers", "loads"])
def test_lanes_load_elements_of_their_own(
    gathers: bool, t: ScalarType, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuTarget, "gathers", gathers)
    lanes, kind = (8, np.float32) if t is f32 else (4, np.float64)
    kernel = Compiled(picking(t, layout), schedule=parse(f"vectorize(i0, {lanes}, {2 * lanes})"))
    assert ("masked.gather" in kernel.code.llvm) == gathers
    for rows, n in [(0, 17), (1, 3), (3, 127), (17, 64), (17, 0)]:
        every = RNG.standard_normal((2, rows, 2 * rows)).astype(kind)
        x = every[:, :, ::2] if layout == "strided" else np.ascontiguousarray(every[:, :, ::2])
        at = RNG.uniform(-2, rows + 2, n).astype(np.float32)
        at[::7], at[1::7], at[2::7] = math.nan, 2.0**63, -math.inf
        places = [0 if math.isnan(v) else -1 if math.isinf(v) else int(v) for v in at.tolist()]
        out = poisoned((2, n), kind)
        kernel(x, at, out)
        wanted = [[x[c, k, k] if 0 <= k < rows else 1 for k in places] for c in range(2)]
        np.testing.assert_array_equal(out, np.array(wanted, x.dtype).reshape(2, n))


@pytest.mark.parametrize(
    "columns", [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 63, 64, 130]
)
@pytest.mark.parametrize("element", [f32, f64], ids=str)
@pytest.mark.sampled(9)
def test_sums_of_few_columns(element: ScalarType, columns: int) -> None:
    """out[j] = the sum of exp(x[i, j]) and that of its squares, for any number of columns."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, squares, out = args
        (j,) = indices
        zero, rows = b.constant(0, index), b.op("memref.dim", x, axis=0)
        total = serial_sum(b, zero, rows, lambda i: b.op("math.exp", b.load(x, [i, j])), element)
        again = serial_sum(
            b, zero, rows, lambda i: product(b, b.load(x, [i, j]), b.load(x, [i, j])), element
        )
        b.store(again, squares, [j])
        b.store(total, out, [j])

    types = [MemRefType(element, 2), MemRefType(element, 1), MemRefType(element, 1)]
    kind = element.name.replace("f", "float")
    x = RNG.standard_normal((37, columns)).astype(kind)
    squares, out = poisoned((columns,), kind), poisoned((columns,), kind)
    Compiled(parallel(types, 1, body, sizes_of=2))(x, squares, out)
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64)).sum(0), rtol=2e-6)
    np.testing.assert_allclose(squares, (x.astype(np.float64) ** 2).sum(0), rtol=2e-6)


@weft.kernel
def carried_through_an_arm(x, y, out, n: int):
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        f = 0.5
        for k in range(n):
            if x[i, j] > 0.25 * k:
                g = f
                for q in range(n):
                    g = g * 0.5 + y[q]
                f = g
        out[i, j] = f


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_loop_carries_into_an_arm_differs_between_lanes(dtype: torch.dtype) -> None:
    """Also where all lanes take the arm, whose other operands they share."""
    x, y = torch.rand(5, 37, dtype=dtype), torch.rand(7, dtype=dtype)
    expected, out = torch.zeros_like(x), torch.zeros_like(x)
    carried_through_an_arm.interpret(x, y, expected, 4)
    carried_through_an_arm(x, y, out, 4)
    torch.testing.assert_close(out, expected)


@weft.kernel
def sampled(image, places, out):
    """Two numbers of a place tell what is read; an odd first one reads the second again."""
    for i, j in weft.ndrange(out.shape[1], out.shape[2]):
        for c in range(out.shape[0]):
            s = image[c, weft.i32(places[i, j, 0])]
            if weft.i32(places[i, j, 0]) % 2 == 1:
                s += 2 * image[c, weft.i32(places[i, j, 1])]
            out[c, i, j] = s


@pytest.mark.skipif(NO_TILES, reason="this CPU has no vectors that tiles can use")
@pytest.mark.parametrize("steps", ["vectorize(j, 4, 8)", "unroll_jam(i, 2); vectorize(j, 4, 4)"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("length", [2, 3, 7], ids=["as named", "longer", "much longer"])
def test_lanes_part_rows_whose_elements_are_named(
    length: int, dtype: torch.dtype, steps: str
) -> None:
    """Also behind conditions that some lanes meet, and where a tile is not whole."""
    kernel = weft.kernel(schedule={"cpu": steps})(sampled.function)
    for columns in (1, 8, 21, 64):
        places = torch.randint(0, 50, (3, columns, length), dtype=torch.int32).to(dtype)
        image, out = torch.rand(2, 50), torch.full((2, 3, columns), torch.nan)
        kernel(image, places, out)
        x, y = places[..., 0].long(), places[..., 1].long()
        torch.testing.assert_close(out, image[:, x] + (x % 2 == 1) * 2 * image[:, y])
    assert "shufflevector <8 x " in str(kernel.inspect(image, places, out)["llvm"])


@weft.kernel
def windows(x, weights, out):
    """A sum over five by three neighbours."""
    for c, i, j in out:
        s = out[c, i, j]
        for p in range(5):
            for q in range(3):
                s += x[c, i + p, j + q] * weights[c, p, q]
        out[c, i, j] = s


@pytest.mark.skipif(NO_TILES, reason="this CPU has no vectors that tiles can use")
@pytest.mark.parametrize("steps", ["vectorize(j, 4, 16)", "unroll_jam(i, 2); vectorize(j, 4, 16)"])
@pytest.mark.parametrize("columns", [1, 4, 5, 8, 9, 16, 17, 20, 23, 30])
def test_edges_of_few_columns(columns: int, steps: str) -> None:
    """By one, two or four vectors, each with masks; whole rows vector by vector."""
    kernel = weft.kernel(schedule={"cpu": steps})(windows.function)
    x, weights = torch.rand(2, 11, columns + 2), torch.rand(2, 5, 3)
    out = torch.rand(2, 7, columns)
    shifted = [x[:, p : p + 7, q : q + columns] * weights[:, p, q, None, None]
               for p in range(5) for q in range(3)]  # fmt: skip
    wanted = out + sum(shifted)
    kernel(x, weights, out)
    torch.testing.assert_close(out, wanted)
    assert (
        masked(kernel, x, weights, out)
        == {
            "vectorize(j, 4, 16)": ["1, 4, 4", "1, 8, 4", "1, 16, 4"],
            "unroll_jam(i, 2); vectorize(j, 4, 16)": ["2, 4, 4", "1, 16, 4"],
        }[steps]
    )


def masked(kernel: weft.Kernel, *arguments: torch.Tensor | int) -> list[str]:
    """The sizes of the vector loops that have masks."""
    text = str(kernel.inspect(*arguments)["scheduled ir"])
    return re.findall(r"masked = true, (?:reverse = true, )?vector = \[(.*?)\]", text)


@weft.kernel
def products(x, y, out):
    for i, j in out:
        s = out[i, j] * 0.5
        for k in range(x.shape[1]):
            s += x[i, k] * y[k, j]
        out[i, j] = s


@pytest.mark.skipif(NO_TILES, reason="this CPU has no vectors that tiles can use")
@pytest.mark.parametrize("steps", [
    "vectorize(j, 4, 16)", "vectorize(j, 4, 16, reverse=True)",
    "unroll_jam(i, 3); vectorize(j, 4, 16)", "unroll_jam(i, 3); vectorize(j, 4, 8, reverse=True)",
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16])
def test_edges_of_products(steps: str, dtype: torch.dtype) -> None:
    """Rows that are whole go together at an edge, vector by vector. Numbers are small integers:
    sums of them are exact in any order."""
    kernel = weft.kernel(schedule={"cpu": steps})(products.function)
    for rows, columns, turns in ((3, 1, 5), (4, 17, 9), (7, 31, 3), (1, 5, 0), (6, 0, 2), (0, 7, 2),
                                 (5, 16, 1), (9, 20, 4)):  # fmt: skip
        x = torch.randint(-2, 3, (turns, rows)).to(dtype).t()
        y = torch.randint(-2, 3, (turns, 2 * columns)).to(dtype)[:, ::2]
        out = (2 * torch.randint(-2, 3, (rows, columns))).to(dtype)
        wanted = out.double() * 0.5 + x.double() @ y.double()
        kernel(x, y, out)
        assert torch.equal(out.double(), wanted)
    few = "16" if "16" in steps else "8"
    if "unroll_jam" in steps:
        assert masked(kernel, x, y, out) == ["3, 4, 4", f"1, {few}, 4"]
    else:
        assert masked(kernel, x, y, out) == ["1, 4, 4", f"1, {few}, 4"]


@weft.kernel
def three(x, out):
    for i, j in out:
        s = 0.0
        for k in range(3):
            s += x[i + k, j]
        out[i, j] = s


@weft.kernel
def ninety(x, out):
    for i, j in out:
        s = 0.0
        for k in range(90):
            s += x[i + k, j]
        out[i, j] = s


@weft.kernel
def as_many_as_asked(x, out, n: int):
    for i, j in out:
        s = 0.0
        for k in range(n):
            s += x[i + k, j]
        out[i, j] = s


@weft.kernel
def exponentials(x, out):
    for i, j in out:
        s = 0.0
        for k in range(3):
            s += math.exp(x[i + k, j])
        out[i, j] = s


@pytest.mark.skipif(NO_TILES, reason="this CPU has no vectors that tiles can use")
@pytest.mark.parametrize(
    ("kernel", "more", "turns"),
    [(three, (), 3), (ninety, (), 90), (as_many_as_asked, (3,), 3), (exponentials, (), 3)],
    ids=["few", "many", "unknown", "a function"],
)  # fmt: skip
def test_few_turns_of_little_code_are_unrolled(
    kernel: weft.Kernel, more: tuple[int, ...], turns: int
) -> None:
    by_lanes = weft.kernel(schedule={"cpu": "vectorize(j, 8, 8)"})(kernel.function)
    x, out = torch.rand(99, 24), torch.empty(5, 24)
    by_lanes(x, out, *more)
    terms = x.exp() if kernel is exponentials else x
    torch.testing.assert_close(out, sum(terms[k : 5 + k] for k in range(turns)))
    llvm = str(by_lanes.inspect(x, out, *more)["llvm"])
    chunk = llvm[: llvm.index("define internal void @body0")]
    assert ("!llvm.loop" not in chunk) == (kernel is three)
