"""Whole kernels: layouts, nests, reductions, atomics, control flow, checks, prints, aliases."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
import torch
from compiled import Compiled, poisoned
from samples import causal_conv, elementwise, parallel, reduction

import weft
from weft.codegen import libraries
from weft.codegen.cpu import compile_cpu
from weft.compiler import optimize_for_cpu
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.types import MemRefType, ScalarType, bf16, f16, f32, f64, i1, i8, i16, i32, i64, index
from weft.tools.cross import lowered_loops

RNG = np.random.default_rng(11)
ODD_SIZES = [0, 1, 2, 3, 17, 127]


def strided_copy(x: np.ndarray, layout: str) -> np.ndarray:
    """The same values with the strides of a layout."""
    if layout == "contiguous":
        return x
    wide = poisoned((*x.shape[:-1], 2 * x.shape[-1] + 3), x.dtype)
    view = wide[..., : x.shape[-1]] if layout == "unit" else wide[..., 1 : 1 + 2 * x.shape[-1] : 2]
    view[...] = x
    return view


@pytest.mark.parametrize("layout", ["contiguous", "unit", "strided"])
@pytest.mark.parametrize("noalias", [False, True])
def test_causal_conv(layout: str, noalias: bool) -> None:
    kernel = Compiled(causal_conv(layout), noalias=noalias)
    for batch, channels, length in ((1, 1, 1), (2, 3, 5), (3, 2, 127), (0, 2, 3), (2, 5, 64)):
        w = RNG.standard_normal((channels, length)).astype(np.float32)
        k = RNG.standard_normal((batch, channels, length)).astype(np.float32)
        out = strided_copy(poisoned(k.shape, np.float32), layout)
        kernel(strided_copy(w, layout), strided_copy(k, layout), 0.25, out)
        expected = np.full(k.shape, 0.25)
        for t in range(length):
            expected[:, :, t] += np.einsum("cu,bcu->bc", w[:, length - 1 - t :], k[:, :, : t + 1])
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["contiguous", "unit", "strided"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_nests_of_parallel_loops(rank: int, layout: str) -> None:
    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        value = b.load(args[0], indices)
        for k, i in enumerate(indices):
            weight = b.constant(10**k, index)
            term = b.op("arith.index_cast", b.op("arith.muli", i, weight), type=i64)
            value = b.op("arith.addi", value, term)
        b.store(value, args[1], indices)

    kernel = Compiled(parallel([MemRefType(i64, rank, layout)] * 2, rank, body))
    for sizes in ((3, 4, 5, 6), (17, 1, 33, 7), (1, 40, 3, 20), (2, 0, 2, 3), (45, 31, 19, 11)):
        shape = sizes[:rank]
        x = RNG.integers(-9, 9, shape)
        out = strided_copy(poisoned(shape, np.int64), layout)
        kernel(strided_copy(x, layout), out)
        grids = np.indices(shape)
        np.testing.assert_array_equal(out, x + sum(g * 10**k for k, g in enumerate(grids)))


def test_bounds_and_steps_of_parallel_loops() -> None:
    function = Function("strip", [MemRefType(i32, 1), index, index, index])
    out, lower, upper, step = function.args
    b = Builder(function.body)
    op = b.parallel([lower], [upper], [step])
    with b.at(op.regions[0]):
        (i,) = op.regions[0].args
        b.store(b.op("arith.index_cast", i, type=i32), out, [i])
        b.do("scf.reduce")
    b.do("func.return")
    kernel = Compiled(function)
    for bounds in ((0, 10, 1), (3, 50, 7), (5, 5, 1), (9, 2, 3), (1, 50, 49), (0, 50, 50)):
        got = np.full(50, -1, np.int32)
        kernel(got, *bounds)
        expected = np.full(50, -1, np.int32)
        expected[range(*bounds)] = range(*bounds)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("size", [*ODD_SIZES, 100_003])
@pytest.mark.parametrize(
    ("kind", "t", "fold"),
    [("addf", f32, np.add), ("addf", f64, np.add), ("maximumf", f32, np.maximum),
     ("minimumf", f64, np.minimum), ("addi", i32, np.add), ("muli", i64, np.multiply),
     ("maxsi", i16, np.maximum), ("minsi", i64, np.minimum), ("xori", i32, np.bitwise_xor),
     ("andi", i8, np.bitwise_and), ("ori", i64, np.bitwise_or), ("mulf", f64, np.multiply)],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_reductions(kind: str, t: ScalarType, fold: np.ufunc, size: int) -> None:
    if t.is_float:
        x = RNG.uniform(0.9, 1.1, size).astype(t.name.replace("f", "float"))
        initial = 1.5
    else:
        x = RNG.integers(-100, 100, size).astype(t.name.replace("i", "int"))
        initial = 3
    result = poisoned((), x.dtype)
    Compiled(reduction(kind, t))(x, initial, result)
    wide = x if kind == "mulf" or not t.is_float else x.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = fold(initial, fold.reduce(wide)) if size else initial
    if t.is_float:
        np.testing.assert_allclose(result, expected, rtol=3e-5)
    else:
        assert result == np.array(expected).astype(x.dtype)


def test_nan_survives_a_maximum() -> None:
    x = RNG.standard_normal(1000).astype(np.float32)
    x[777] = np.nan
    result = poisoned((), np.float32)
    Compiled(reduction("maximumf", f32))(x, 0.0, result)
    assert np.isnan(result)


def test_reduction_over_rows_of_a_view() -> None:
    x = strided_copy(RNG.standard_normal((77, 131)), "strided")
    result = poisoned((), np.float64)
    Compiled(reduction("addf", f64, 2, "strided"))(x, 0.5, result)
    np.testing.assert_allclose(result, 0.5 + x.sum(), rtol=1e-12)


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    x = RNG.standard_normal(1_000_003).astype(np.float32)
    code, sums, before = Compiled(reduction("addf", f32)), set(), torch.get_num_threads()
    available = ctypes.CFUNCTYPE(ctypes.c_int)(libraries.address_of("omp_get_max_threads"))
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)  # of OpenMP's pool, which both share
            assert available() == threads
            result = poisoned((), np.float32)
            code(x, 0.0, result)
            sums.add(result.tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(sums) == 1


NUMPY = {"i1": np.bool_, "i8": np.int8, "i32": np.int32, "i64": np.int64, "f16": np.float16,
         "bf16": np.uint16, "f32": np.float32, "f64": np.float64}  # fmt: skip


def histogram(kind: str, t: ScalarType, value: ScalarType, atomic: bool) -> Function:
    """bins[which[i]] = combine(bins[which[i]], x[i])"""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        which = b.op("arith.index_cast", b.load(args[0], indices), type=index)
        op = b.atomic_rmw(kind, b.load(args[1], indices), args[2], [which])
        op.owner.attrs["atomic"] = atomic

    return parallel([MemRefType(i32, 1), MemRefType(value, 1), MemRefType(t, 1)], 1, body)


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("kind", "t", "fold"),
    [("addf", f32, np.add), ("addf", f64, np.add), ("addf", f16, np.add),
     ("mulf", f32, np.multiply),
     ("maximumf", f32, np.maximum), ("minimumf", f64, np.minimum), ("minimumf", f16, np.minimum),
     ("addi", i32, np.add), ("addi", i8, np.add), ("muli", i64, np.multiply),
     ("maxsi", i32, np.maximum), ("minsi", i8, np.minimum), ("xori", i64, np.bitwise_xor),
     ("ori", i1, np.logical_or), ("andi", i1, np.logical_and), ("xori", i1, np.logical_xor)],
)  # fmt: skip
def test_read_modify_write(kind: str, t: ScalarType, fold: np.ufunc, atomic: bool) -> None:
    size = 999 if atomic else 7
    which = (RNG.integers(0, 7, size) if atomic else RNG.permutation(7)).astype(np.int32)
    value = f32 if t is f16 else t
    x = RNG.uniform(0.99, 1.01, size) if t.is_float else RNG.integers(-3, 3, size)
    x = x.astype(NUMPY[value.name])
    bins = np.ones(7, NUMPY[t.name])
    expected = bins.astype(np.float64 if t.is_float else bins.dtype)
    for bin, number in zip(which, x, strict=True):
        expected[bin] = fold(expected[bin], number)
    Compiled(histogram(kind, t, value, atomic))(which, x, bins)
    np.testing.assert_allclose(bins, expected, rtol=0.1 if t is f16 else 1e-3)


def test_read_modify_write_of_bfloat() -> None:
    which, x = np.zeros(100, np.int32), np.ones(100, np.float32)
    bins = np.zeros(1, np.uint16)
    Compiled(histogram("addf", bf16, f32, True))(which, x, bins)
    assert (bins.astype(np.uint32) << 16).view(np.float32) == 100


def test_compare_and_swap() -> None:
    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        zero, one = b.constant(0.0, f32), b.constant(1.0, f32)
        first = b.constant(0, index)
        old = b.op("memref.atomic_cas", zero, one, args[0], first, type=f32)
        b.store(old, args[1], indices)

    lock, seen = np.zeros(1, np.float32), poisoned((5000,), np.float32)
    Compiled(parallel([MemRefType(f32, 1)] * 2, 1, body, sizes_of=1))(lock, seen)
    assert lock[0] == 1
    assert np.sort(seen).tolist() == [0] + [1] * 4999


def collatz() -> Function:
    """steps[i] = number of steps from i + 1 down to 1; uses while, if and carried values."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        one, two, three = (b.constant(n, index) for n in (1, 2, 3))
        zero = b.constant(0, index)
        start = b.op("arith.addi", indices[0], one)
        loop = b.while_([start, zero], [index, index])
        with b.at(loop.regions[0]):
            n, count = loop.regions[0].args
            b.do("scf.condition", b.op("arith.cmpi", n, one, predicate="ne"), n, count)
        with b.at(loop.regions[1]):
            n, count = loop.regions[1].args
            even = b.op("arith.cmpi", b.op("arith.andi", n, one), zero, predicate="eq")
            choice = b.if_(even, [index])
            with b.at(choice.regions[0]):
                b.do("scf.yield", b.op("arith.floordivsi", n, two))
            with b.at(choice.regions[1]):
                b.do("scf.yield", b.op("arith.addi", b.op("arith.muli", n, three), one))
            b.do("scf.yield", choice.result, b.op("arith.addi", count, one))
        b.store(b.op("arith.index_cast", loop.results[1], type=i32), args[0], indices)

    return parallel([MemRefType(i32, 1)], 1, body)


def test_while_and_if() -> None:
    out = poisoned((300,), np.int32)
    Compiled(collatz())(out)

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert out.tolist() == [steps(n + 1) for n in range(300)]


def test_local_arrays_are_private() -> None:
    """Each iteration fills a local array with i, i+1, ... and adds it up."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        zero, one, four = (b.constant(n, index) for n in (0, 1, 4))
        local = b.alloca(i64, (4,))
        fill = b.for_(zero, four, one)
        with b.at(fill.regions[0]):
            (j,) = fill.regions[0].args
            value = b.op("arith.index_cast", b.op("arith.addi", indices[0], j), type=i64)
            b.store(value, local, [j])
            b.do("scf.yield")
        add = b.for_(zero, four, one, [b.constant(0, i64)])
        with b.at(add.regions[0]):
            j, s = add.regions[0].args
            b.do("scf.yield", b.op("arith.addi", s, b.load(local, [j])))
        b.store(add.result, args[0], indices)

    out = poisoned((100_001,), np.int64)
    Compiled(parallel([MemRefType(i64, 1)], 1, body))(out)
    np.testing.assert_array_equal(out, 4 * np.arange(100_001) + 6)


def test_accumulating_into_an_element() -> None:
    """y[i] += x[i, j] in a serial loop; the same array twice must also be right."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, y = args
        zero, one = b.constant(0, index), b.constant(1, index)
        loop = b.for_(zero, b.op("memref.dim", x, axis=1), one)
        with b.at(loop.regions[0]):
            value = b.load(x, [indices[0], loop.regions[0].args[0]])
            op = b.atomic_rmw("addf", value, y, indices)
            op.owner.attrs["atomic"] = False
            b.do("scf.yield")

    x = RNG.standard_normal((50, 33))
    for noalias in (False, True):
        y = np.ones(50)
        Compiled(parallel([MemRefType(f64, 2), MemRefType(f64, 1)], 1, body), noalias=noalias)(x, y)
        np.testing.assert_allclose(y, 1 + x.sum(1))


def test_one_array_passed_twice() -> None:
    x = RNG.standard_normal(1001).astype(np.float32)
    expected = x + x
    Compiled(elementwise("arith.addf", [f32, f32], f32))(x, x, x)
    np.testing.assert_array_equal(x, expected)


def test_scalar_arguments() -> None:
    types = [MemRefType(f64, 1), index, i32, i8, f64, f32, i1]

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        out, a, c, d, e, f, g = args
        total = b.op("arith.addf", e, b.op("arith.extf", f, type=f64))
        for value in (a, c, d):
            wide = value if value.type is i32 else b.op("arith.index_cast", value, type=i64)
            total = b.op("arith.addf", total, b.op("arith.sitofp", wide, type=f64))
        total = b.op("arith.select", g, total, e)
        b.store(total, out, indices)

    kernel = Compiled(parallel(types, 1, body))
    out = poisoned((3,), np.float64)
    kernel(out, -(2**40), -7, -3, 0.5, 0.25, True)
    np.testing.assert_array_equal(out, -(2.0**40) - 10 + 0.75)
    kernel(out, -(2**40), -7, -3, 0.5, 0.25, False)
    np.testing.assert_array_equal(out, 0.5)


def test_values_from_before_the_loop_reach_it() -> None:
    function = Function("before", [MemRefType(f32, 1), MemRefType(f32, 1), f64])
    x, out, scale = function.args
    b = Builder(function.body)
    zero, one = b.constant(0, index), b.constant(1, index)
    factor = b.op("math.sqrt", b.op("arith.truncf", scale, type=f32))
    shift = b.load(x, [zero])
    half = b.op("arith.floordivsi", b.op("memref.dim", x, axis=0), b.constant(2, index))
    op = b.parallel([zero], [half], [one])
    with b.at(op.regions[0]):
        (i,) = op.regions[0].args
        b.store(b.op("arith.addf", b.op("arith.mulf", b.load(x, [i]), factor), shift), out, [i])
        b.do("scf.reduce")
    b.do("func.return")
    values = RNG.standard_normal(101).astype(np.float32)
    got = np.zeros(101, np.float32)
    Compiled(function)(values, got, 9.0)
    np.testing.assert_allclose(got[:50], values[:50] * 3 + values[0], rtol=1e-6, atol=1e-6)
    assert not got[50:].any()


def checked() -> Function:
    """out[i] = x[i], with a bounds check and an assertion x[i] >= 0."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        x, limit, out = args
        b.do("weft.bounds", indices[0], limit, tensor="x", axis=0)
        value = b.load(x, indices)
        fine = b.op("arith.cmpf", value, b.constant(0.0, f32), predicate="oge")
        b.do("weft.assert", fine, value, indices[0], message="negative")
        b.store(value, out, indices)

    return parallel([MemRefType(f32, 1), index, MemRefType(f32, 1)], 1, body)


def test_checks_leave_a_record() -> None:
    kernel = Compiled(checked())
    assert [c.kind for c in kernel.code.checks] == ["bounds", "assert"]
    assert kernel.code.checks[1].message == "negative"
    assert kernel.code.checks[1].values == ("float", "int")
    x = RNG.uniform(1, 2, 100_000).astype(np.float32)
    out = poisoned(x.shape, np.float32)
    kernel(x, x.size, out)
    assert kernel.record[0] == 0
    np.testing.assert_array_equal(out, x)
    x[5000] = -3.5
    kernel(x, x.size, out)
    assert kernel.record[0] == 2
    assert np.array(kernel.record[1]).view(np.float64) == -3.5
    assert kernel.record[2] == 5000
    kernel(x, 4999, out)
    assert kernel.record[0] == 1
    assert kernel.record[2] == 4999


def test_prints(capfd: pytest.CaptureFixture[str]) -> None:
    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        value = b.load(args[0], indices)
        flag = b.op("arith.cmpf", value, b.constant(1.0, f32), predicate="ogt")
        b.do(
            "weft.print", indices[0], value, flag, parts=("x[", None, "] = ", None, " ", None, "\n")
        )

    x = np.array([0.5, 2.25], np.float32)
    Compiled(parallel([MemRefType(f32, 1)], 1, body))(x)
    assert capfd.readouterr().out == "x[0] = 0.5 False\nx[1] = 2.25 True\n"


def test_a_function_without_a_parallel_loop() -> None:
    function = Function("one", [MemRefType(f32, 1)])
    b = Builder(function.body)
    b.store(b.constant(2.5, f32), function.args[0], [b.constant(1, index)])
    b.do("func.return")
    out = np.zeros(3, np.float32)
    Compiled(function)(out)
    assert out.tolist() == [0, 2.5, 0]


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 64, -1, -2, -5])
def test_division_by_constants(divisor: int) -> None:
    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        c = b.constant(divisor, i64)
        value = b.load(args[0], indices)
        b.store(b.op("arith.floordivsi", value, c), args[1], indices)
        b.store(b.op("arith.remsi", value, c), args[2], indices)

    x = np.concatenate([np.arange(-300, 300), [-(2**63), 2**63 - 1]])
    quotient, rest = poisoned(x.shape, np.int64), poisoned(x.shape, np.int64)
    Compiled(parallel([MemRefType(i64, 1)] * 3, 1, body))(x, quotient, rest)
    wrapped = [((int(v) // divisor) + 2**63) % 2**64 - 2**63 for v in x]
    assert quotient.tolist() == wrapped
    assert rest.tolist() == [int(np.sign(int(v))) * (abs(int(v)) % abs(divisor)) for v in x]


def test_division_of_indices() -> None:
    """Subscripts that are known not to be negative are divided as unsigned numbers."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        i, n = indices[0], b.op("memref.dim", args[1], axis=0)
        moved = b.op("arith.subi", i, b.constant(7, index))
        for k, (a, d) in enumerate([(i, n), (moved, n), (i, b.constant(10, index))]):
            value = b.op("arith.floordivsi", a, d)
            b.store(b.op("arith.index_cast", value, type=i64), args[0], [b.constant(k, index), i])

    function = Function("divide", [MemRefType(i64, 2), MemRefType(f32, 1)])
    b = Builder(function.body)
    zero, one = b.constant(0, index), b.constant(1, index)
    op = b.parallel([zero], [b.op("memref.dim", function.args[0], axis=1)], [one])
    with b.at(op.regions[0]):
        body(b, function.args, op.regions[0].args)
        b.do("scf.reduce")
    b.do("func.return")
    out = poisoned((3, 55), np.int64)
    kernel = Compiled(function)
    for n in (0, 1, 4, 60):
        kernel(out, np.zeros(n, np.float32))
        assert out[0].tolist() == [i // n if n else 0 for i in range(55)]
        assert out[1].tolist() == [(i - 7) // n if n else 0 for i in range(55)]
        assert out[2].tolist() == [i // 10 for i in range(55)]


def test_strict_math_neither_fuses_nor_reorders() -> None:
    x = (RNG.standard_normal(4097) * 1e3).astype(np.float32)
    result = poisoned((), np.float32)
    Compiled(reduction("addf", f32), strict_math=True)(x[:2000], 0.0, result)
    total = np.float32(0)
    for value in x[:2000]:
        total = np.float32(total + value)
    assert result == total


@weft.kernel
def moved(x, y, out):
    for i in range(x.shape[0]):
        out[i] = max(2.0 * x[i] + y[i], 0.0)


@weft.kernel
def computed(x, y, out):
    for i in range(x.shape[0]):
        out[i] = weft.exp(x[i]) * y[i]


@weft.kernel
def much_computed(x, y, out):
    for i in range(x.shape[0]):
        s = x[i]
        for _ in weft.static(range(6)):
            s = s * y[i] + x[i]
        out[i] = s


@weft.kernel
def summed(x, y, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(y.shape[0]):
            s += y[j]
        out[i] = s + x[i]


@pytest.mark.parametrize(
    ("kernel", "dtype", "bits"),
    [
        (moved, torch.float32, 256), (moved, torch.float64, 256), (moved, torch.float16, 512),
        (computed, torch.float32, 512), (much_computed, torch.float32, 512),
        (summed, torch.float32, 512),
    ],
)  # fmt: skip
def test_vectors_of_what_waits_for_memory_are_short(kernel, dtype, bits) -> None:
    """Long ones made calls of microseconds wait for the processor, and gained nothing elsewhere."""
    arrays = [torch.randn(70).to(dtype) for _ in range(3)]
    (loop,) = lowered_loops(kernel, *arrays)
    code = compile_cpu(optimize_for_cpu(loop))
    assert re.findall(r'"prefer-vector-width"="(\d+)"', code.llvm) == [str(bits)]
