"""Register tiles are IR: the interpreter computes by them what it computes without."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import weft
from examples import causal_conv
from tests.schedule.test_split_reduction import column_sums
from weft.autodiff.reverse import reverse
from weft.codegen.machine import host_cpu
from weft.compiler import optimize_for_cpu
from weft.errors import InternalError
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule.default_cpu import candidates
from weft.schedule.language import Vectorize, only, parse
from weft.schedule.legal_cpu import check, outermost
from weft.schedule.machine import CpuMachine
from weft.schedule.register_tile import all_vectors, register_tile
from weft.tools.cross import lowered_loops

MACHINE = CpuMachine(64, sleef=True)


@weft.kernel
def shifted(x, out):
    for i, j in weft.ndrange((1, x.shape[0]), (2, x.shape[1])):
        s = 0.0
        for k in range(j):
            s += x[i - 1, k] * x[i, j]
        out[i, j] = s


@weft.kernel
def summed_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[1])
    for j in range(x.shape[1]):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i, j]
        out[j] = s
    return out


def tiled(kernel, text, *arrays, **attributes):
    """The loop of ``kernel`` before and after the steps of ``text``."""
    (loop,) = lowered_loops(kernel, *arrays)
    function = optimize_for_cpu(loop)
    function.attrs |= attributes
    schedule = parse(text)
    check(function, schedule, MACHINE)
    made, parallel = register_tile(function, outermost(function), schedule, MACHINE)
    verify(made)
    assert outermost(made) is parallel
    assert same(parse_function(print_function(made)), made)
    return function, made


def test_what_a_caller_knows_of_columns_is_not_asked() -> None:
    """A loop for few of them, which LLVM vectorised, was half of the time that LLVM took."""
    x, out = torch.randn(30, 70), torch.empty(70)
    function, asks = tiled(column_sums, "vectorize(j, 16, 64)", x, out)
    _, known = tiled(column_sums, "vectorize(j, 16, 64)", x, out, columns="many")
    assert known.attrs["columns"] == (0, 1, 2)  # fewer than two along the second axis of x
    assert all_vectors(known)
    assert not all_vectors(asks)
    for columns in (1, 5, 70):
        x = torch.randn(6, columns)
        plain, tiles = (arguments(function, (x, torch.empty(columns))) for _ in range(2))
        run(function, plain)
        run(known, tiles, races=True)
        np.testing.assert_allclose(tiles[1], plain[1], rtol=1e-5)


def test_code_for_few_columns_is_made_where_a_call_has_few() -> None:
    if not host_cpu().vector_bytes:
        pytest.skip("there are no tiles on a processor without vectors")
    kernel = weft.kernel(summed_columns.function)
    for columns in (70, 1, 70, 1, 3):
        x = torch.randn(300, columns)
        torch.testing.assert_close(kernel(x), x.sum(0), rtol=1e-4, atol=1e-4)
        (special,) = kernel.specializations
        made = special.compiled
    assert made.header.columns
    assert "vectorize" in made.header.schedule
    assert "vectorize" not in made.beside.header.schedule
    assert made.every is None
    for columns in (1, 70, 1, 70):  # machine code of the operator, which is the same for all sizes
        x = torch.randn(300, columns)
        torch.testing.assert_close(kernel.op(x), x.sum(0), rtol=1e-4, atol=1e-4)
    every = made.for_all_sizes()  # which that machine code calls
    assert (every.job.columns, every.header.columns) == ("", ())
    assert made.for_all_sizes() is every.for_all_sizes() is every


def arguments(function, arrays):
    return [a.numpy().copy() if isinstance(a, torch.Tensor) else a for a in arrays]


@pytest.mark.parametrize(
    "text",
    [
        "vectorize(j, 2, 4)", "unroll_jam(i, 2); vectorize(j, 4, 4)",
        "unroll_jam(i, 3); vectorize(j, 2, 4, reverse=True)",
        "unroll_jam(i, 1); vectorize(j, 2, 2)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (3, 6), (4, 10), (6, 13)])
def test_a_tile_means_what_the_loop_means(text: str, shape: tuple[int, int]) -> None:
    x, out = torch.randn(shape), torch.full(shape, 77.0)
    function, made = tiled(shifted, text, x, out)
    plain, by_tiles = arguments(function, (x, out)), arguments(function, (x, out))
    run(function, plain)
    run(made, by_tiles, order="random", seed=sum(shape), races=True)
    np.testing.assert_array_equal(by_tiles[1], plain[1])


@weft.kernel
def guarded(x, out):
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        s = 0.5
        if 2 * min(j, 9) < x.shape[1] + 3 * max(i - 2, 0):
            for k in range(3):
                s += x[i, j] * k
        out[i, j] = s


@weft.kernel
def guarded_by_what_goes_up_and_down(x, out):
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        s = 0.5
        if max(j, 7 - j) < x.shape[1] - i:
            for k in range(3):
                s += x[i, j] * k
        out[i, j] = s


@weft.kernel
def guarded_by_data(x, out):
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        s = 0.5
        if x[i, j] > 0.0:
            for k in range(3):
                s += x[i, j] * k
        out[i, j] = s


def guards(function: Function) -> list[bool]:
    """For each loop of vectors, whether there is a branch in it."""
    loops = [op for op in walk(function.body) if "vector" in op.attrs]
    return [any(inner.name == "scf.if" for inner in walk(op.body)) for op in loops]


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        ("vectorize(j, 2, 4)", 2), ("unroll_jam(i, 2); vectorize(j, 4, 4)", 2),
        ("unroll_jam(i, 3); vectorize(j, 2, 4, reverse=True)", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kernel", [guarded, guarded_by_what_goes_up_and_down, guarded_by_data])
def test_a_condition_that_holds_in_a_whole_tile_is_not_in_it(kernel, text, edges) -> None:
    """It was there twice: without masks, where it holds, and with masks. ``edges``: for so many
    forms of a tile's edge there is code."""
    for shape in ((1, 2), (4, 10), (7, 14), (9, 13), (13, 9)):
        x, out = torch.randn(13, 14), torch.full(shape, 77.0)
        function, made = tiled(kernel, text, x, out)
        assert guards(made) == [kernel is not guarded, *[True] * edges]
        plain, by_tiles = arguments(function, (x, out)), arguments(function, (x, out))
        run(function, plain)
        run(made, by_tiles, order="random", seed=sum(shape), races=True)
        np.testing.assert_array_equal(by_tiles[1], plain[1])


def test_a_gradient_asks_once_for_a_tile_whether_there_are_iterations() -> None:
    w, k = torch.randn(3, 9), torch.randn(5, 3, 9)
    (loop,) = lowered_loops(causal_conv.causal_conv, w, k, 0.1)
    names = [a.name for a in loop.args]
    wanted, kept = [names.index("w"), names.index("k")], [names.index("out")]
    for step in reverse(loop, wanted, kept).steps:
        function = optimize_for_cpu(step)
        schedule = candidates(function, MACHINE)[0]
        made, _ = register_tile(function, outermost(function), schedule, MACHINE)
        assert guards(made) == [False, True]


@pytest.mark.parametrize("columns", [0, 1, 3, 4, 7, 8, 9, 16, 17, 24, 33, 65])
def test_a_tile_of_a_short_sum_means_what_it_means(columns: int) -> None:
    x, out = torch.randn(2, columns), torch.full((columns,), 77.0)
    function, made = tiled(column_sums, "vectorize(j, 16, 32)", x, out)
    _, apart = print_function(made).split("{edge = true}", 1)  # behind the strips
    assert apart.count("vector = ") == 5, "whole, one vector, half of one, masked"
    plain, by_tiles = arguments(function, (x, out)), arguments(function, (x, out))
    run(function, plain)
    run(made, by_tiles, races=True)
    np.testing.assert_array_equal(by_tiles[1], plain[1])


@weft.kernel
def two_sums(x, y, out, wide):
    for j in range(x.shape[1]):
        s, t = 0.5, weft.f64(0.25)
        for i in range(1, x.shape[0]):
            s += x[i, j] * x[0, j]
            t += y[i, j]
        out[j] = s
        wide[j] = t


@weft.kernel
def running(x, y, out, wide):
    for j in range(x.shape[1]):
        s = 0.5
        for i in range(1, x.shape[0]):
            s = s * 0.5 + x[i, j] * y[i, j]
        out[j] = s
        wide[j] = 0.0


@pytest.mark.parametrize("rows", [0, 1, 8, 9, 17, 127])
@pytest.mark.parametrize("columns", [5, 8])
def test_a_sum_of_one_vector_is_several(rows: int, columns: int) -> None:
    x, y = torch.randn(rows, columns), torch.randn(rows, columns, dtype=torch.float64)
    arrays = x, y, torch.full((columns,), 77.0), torch.full((columns,), 77.0, dtype=torch.float64)
    function, made = tiled(two_sums, "vectorize(j, 8, 16)", *arrays)
    parts = ", ".join(["f32, f64"] * 8)
    assert print_function(made).count(f"-> ({parts})") == 3, "vectors, halves of them, with masks"
    plain, by_tiles = arguments(function, arrays), arguments(function, arrays)
    run(function, plain)
    run(made, by_tiles, races=True)
    np.testing.assert_allclose(by_tiles[2], plain[2], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_tiles[3], plain[3], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", [two_sums, running])
def test_what_has_an_order_is_one_sum(kernel) -> None:
    x, y = torch.randn(30, 5), torch.randn(30, 5, dtype=torch.float64)
    arrays = x, y, torch.full((5,), 77.0), torch.full((5,), 77.0, dtype=torch.float64)
    function, made = tiled(kernel, "vectorize(j, 8, 16)", *arrays, strict_math=True)
    assert "-0.0" not in print_function(made)
    if kernel is running:
        assert "-0.0" not in print_function(tiled(kernel, "vectorize(j, 8, 16)", *arrays)[1])
    plain, by_tiles = arguments(function, arrays), arguments(function, arrays)
    run(function, plain)
    run(made, by_tiles, races=True)
    for got, wanted in zip(by_tiles, plain, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("columns", [12, 16, 31, 64, 65, 75])
@pytest.mark.parametrize("rows", [64, 71, 80])
@pytest.mark.sampled(3)
def test_a_strip_of_tiles_means_what_the_loop_means(
    columns: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, out = torch.randn(rows, columns), torch.full((columns,), 77.0)
    function, made = tiled(column_sums, "vectorize(j, 4, 4)", x, out)
    assert "weft.threads" in print_function(made)
    plain, by_strips = arguments(function, (x, out)), arguments(function, (x, out))
    run(function, plain)
    run(made, by_strips, order="random", seed=columns, races=True)
    whole = columns // 4 * 4
    np.testing.assert_array_equal(by_strips[1][:whole], plain[1][:whole])
    np.testing.assert_allclose(by_strips[1], plain[1], rtol=1e-5, atol=1e-5)
    monkeypatch.setattr("weft.schedule.register_tile.strip_loop", lambda parallel: None)
    _, without = tiled(column_sums, "vectorize(j, 4, 4)", x, out)
    assert "weft.threads" not in print_function(without)
    by_tiles = arguments(function, (x, out))
    run(without, by_tiles)
    np.testing.assert_array_equal(by_strips[1], by_tiles[1])  # edges, too
    for threads in (2, 3, 9):
        by_more = arguments(function, (x, out))
        run(made, by_more, threads=threads)
        np.testing.assert_array_equal(by_more[1], by_strips[1])


def test_the_ir_before_and_after() -> None:
    w, k = torch.empty(3, 77), torch.empty(2, 3, 77)
    text = causal_conv.causal_conv.inspect(w, k, 0.1)["scheduled ir"]
    if "vector" not in text:
        pytest.skip("this CPU has no vectors that tiles can use")
    assert "scf.parallel (%b_1, %t_1) = (" in text
    assert text.count("memref.store") == 2, "of a whole tile, and of one row of a part"


def test_a_vector_loop_has_the_iterations_that_it_says() -> None:
    x, out = torch.randn(2, 16), torch.empty(16)
    _, made = tiled(column_sums, "vectorize(j, 4, 8)", x, out)
    apart = outermost(made).body.ops[-2]  # two rows: no strips
    (whole, *_) = [op for op in walk(apart.body) if "vector" in op.attrs]
    whole.attrs["vector"] = (1, 4, 4)
    with pytest.raises(InternalError, match="a loop of 4 iterations has 8"):
        run(made, arguments(made, (x, out)))
    whole.attrs["vector"] = (1, 6, 4)
    with pytest.raises(InternalError, match="6 iterations are no vectors of 4"):
        verify(made)
    whole.attrs["vector"] = (2, 8, 4)
    with pytest.raises(InternalError, match="vectors are along one of 1 or 2 indices"):
        verify(copy.copy(made))


@pytest.mark.parametrize(("loops", "taken"), [(1, True), (3, True), (9, False)])
def test_a_tile_that_would_be_much_code_is_not_taken(loops: int, taken: bool) -> None:
    """Each loop up to `%j` is written for the part that all lanes share, and for the rest."""
    opened = [
        f"%r{k} = scf.for %k{k} = %c0 to %j step %c1 "
        f"iter_args(%s{k} = {f'%s{k - 1}' if k else '%x0'}) -> (f32) {{" for k in range(loops)
    ]  # fmt: skip
    closed = [f"scf.yield %r{k} : f32\n}}" for k in reversed(range(1, loops))]
    text = f"""
func.func @f(%x: memref<?xf32>, %y: memref<?xf32>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {{axis = 0}} : (memref<?xf32>) -> index
  %x0 = arith.constant 0.0 : f32
  scf.parallel (%j) = (%c0) to (%n) step (%c1) {{
    {chr(10).join(opened)}
    %v = memref.load %x[%j] : memref<?xf32>
    %w = memref.load %x[%k{loops - 1}] : memref<?xf32>
    %p = arith.mulf %v, %w : f32
    %q = arith.addf %s{loops - 1}, %p : f32
    scf.yield %q : f32
    }}
    {chr(10).join(closed)}
    memref.store %r0, %y[%j] : memref<?xf32>
    scf.reduce
  }}
  func.return
}}
"""
    first, second = candidates(parse_function(text), MACHINE)
    assert (only(first, Vectorize) is not None) == taken
    assert (only(second, Vectorize) is not None) != taken
