"""Schedules for a CPU: whatever is legal computes the same bits; what is not says why."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import numpy as np
import pytest
from compiled import Compiled
from samples import causal_conv, elementwise, parallel, reduction

from weft.codegen.machine import host_cpu
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.interp import run
from weft.ir.types import MemRefType, f32, f64, i32, index
from weft.schedule.default_cpu import candidates
from weft.schedule.language import ScheduleError, UnrollJam, Vectorize, parse, show
from weft.schedule.legal_cpu import check
from weft.schedule.machine import CpuMachine

SIZE = 40  # of arrays that are read; loops have a third of it at most


class Random:
    """A random loop over ``dims`` indices whose iterations hold serial loops, with an array for
    each sum, and one row that a single iteration of the first index writes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dims = self.random.choice([1, 2, 2, 3])
        self.element = self.random.choice([f32, f32, f64, i32])
        self.sums = self.random.choice([1, 1, 2, 3])
        self.order = list(range(self.dims))  # of the stores' subscripts
        if self.random.random() < 0.3:
            self.random.shuffle(self.order)

    def function(self) -> Function:
        outs = [MemRefType(self.element, self.dims)] * self.sums
        row = MemRefType(self.element, max(self.dims - 1, 1))
        types = [MemRefType(self.element, 2), MemRefType(i32, 1), row, *outs]
        return parallel(types, self.dims, self.body, sizes_of=3)

    def arguments(self, largest: int) -> list[np.ndarray]:
        """Square where subscripts are in another order."""
        if self.order == sorted(self.order):
            sizes = tuple(self.random.randint(0, largest) for _ in range(self.dims))
        else:
            sizes = (self.random.randint(0, largest),) * self.dims
        rng = np.random.default_rng(self.random.randrange(1 << 30))
        kind = {f32: np.float32, f64: np.float64, i32: np.int32}[self.element]
        data = rng.integers(-9, 9, (SIZE, SIZE)).astype(kind)
        if self.element.is_float:
            data += rng.random((SIZE, SIZE)).astype(kind)
        counts = rng.integers(0, SIZE // 3, SIZE).astype(np.int32)
        row = np.full(sizes[1:] or (1,), 77, kind)
        return [data, counts, row, *(np.full(sizes, 77, kind) for _ in range(self.sums))]

    def place(self, b: Builder, indices: list[Value]) -> Value:
        """A subscript that is in range."""
        value = self.random.choice(indices)
        match self.random.randrange(6):
            case 0:
                return b.op("arith.subi", b.constant(SIZE - 1, index), value)
            case 1:
                return b.op("arith.addi", value, self.random.choice(indices))
            case 2:
                return b.constant(self.random.randrange(SIZE), index)
            case _:
                return value

    def term(self, b: Builder, data: Value, indices: list[Value]) -> Value:
        value = b.load(data, [self.place(b, indices), self.place(b, indices)])
        kind = "f" if self.element.is_float else "i"
        if self.random.random() < 0.6:
            other = b.load(data, [self.place(b, indices), self.place(b, indices)])
            value = b.op(f"arith.{self.random.choice(['add', 'mul', 'sub'])}{kind}", value, other)
        return value

    def condition(self, b: Builder, indices: list[Value]) -> Value:
        left, right = self.random.choice(indices), self.random.choice(indices)
        if self.random.random() < 0.4:
            right = b.constant(self.random.randrange(5), index)
        predicate = self.random.choice(["slt", "sge", "eq"])
        return b.op("arith.cmpi", left, right, predicate=predicate)

    def bound(self, b: Builder, counts: Value, indices: list[Value], upper: bool) -> Value:
        value = self.random.choice(indices)
        match self.random.randrange(5):
            case 0 if upper:
                return b.op("arith.addi", value, b.constant(1, index))
            case 1:
                return value
            case 2:
                loaded = b.load(counts, [value])
                return b.op("arith.index_cast", loaded, type=index)
            case _:
                return b.constant(SIZE // 3 if upper else 0, index)

    def body(self, b: Builder, args: list[Value], indices: list[Value]) -> None:
        data, counts, row, *outs = args
        zero = b.constant(0 if self.element is i32 else 0.0, self.element)
        totals = self.loop(b, data, counts, indices, [zero] * self.sums, 0)
        if self.random.random() < 0.3:
            totals = self.branch(
                b, self.condition(b, indices), totals,
                lambda b: self.loop(b, data, counts, indices, totals, 1),
            )  # fmt: skip
        for total, out in zip(totals, outs, strict=True):
            b.store(total, out, [indices[k] for k in self.order])
        if self.dims > 1 and self.random.random() < 0.5:
            number = b.constant(self.random.randrange(6), index)
            mine = b.if_(b.op("arith.cmpi", indices[0], number, predicate="eq"))
            with b.at(mine.regions[0]):
                b.store(b.constant(5 if self.element is i32 else 5.0, self.element), row,
                        indices[1:])  # fmt: skip
                b.do("scf.yield")
            with b.at(mine.regions[1]):
                b.do("scf.yield")

    def branch(
        self, b: Builder, condition: Value, otherwise: list[Value],
        then: Callable[[Builder], list[Value]],
    ) -> list[Value]:  # fmt: skip
        choice = b.if_(condition, [v.type for v in otherwise])
        with b.at(choice.regions[0]):
            b.do("scf.yield", *then(b))
        with b.at(choice.regions[1]):
            b.do("scf.yield", *otherwise)
        return choice.results

    def loop(
        self, b: Builder, data: Value, counts: Value, indices: list[Value], start: list[Value],
        depth: int,
    ) -> list[Value]:  # fmt: skip
        low = self.bound(b, counts, indices, upper=False)
        high = self.bound(b, counts, indices, upper=True)
        serial = b.for_(low, high, b.constant(1, index), start)
        add = "arith.addf" if self.element.is_float else "arith.addi"
        with b.at(serial.regions[0]):
            u, *sums = serial.regions[0].args
            places = [u, u, *indices]

            def added(b: Builder) -> list[Value]:
                return [b.op(add, s, self.term(b, data, places)) for s in sums]

            if depth == 0 and self.random.random() < 0.3:
                sums = self.loop(b, data, counts, [u, *indices], sums, 1)
            if self.random.random() < 0.3:
                sums = self.branch(b, self.condition(b, places), sums, added)
            else:
                sums = added(b)
            b.do("scf.yield", *sums)
        return serial.results

    def schedule(self, function: Function) -> tuple[UnrollJam | Vectorize, ...]:
        axes = [f"i{k}" for k in range(self.dims)]
        self.random.shuffle(axes)
        widest = host_cpu().vector_bytes // (8 if self.element is f64 else 4)
        if self.random.random() < 0.25 or not widest:
            return tuple(
                UnrollJam(axis, self.random.randint(1, 5), self.random.choice([1, 1, 3]))
                for axis in axes[: self.random.randint(1, 2)]
            )
        width = 1 << self.random.randint(1, widest.bit_length() - 1)
        axes.remove(inner := f"i{self.order[-1]}")
        copies = width * self.random.randint(1, 8)
        vector = Vectorize(inner, width, copies, reverse=self.random.random() < 0.5)
        jam = UnrollJam(axes[0], self.random.randint(1, 8)) if axes else None
        found = (vector,) if jam is None or self.random.random() < 0.2 else (jam, vector)
        try:
            check(function, found, host_cpu())
        except ScheduleError:  # other rows are stored to across
            return ()
        return found


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.sampled(3)
def test_a_random_loop_keeps_its_bits_by_random_schedules(seed: int) -> None:
    made = Random(seed)
    function = made.function()
    default = Compiled(function, strict_math=True, noalias=True)
    schedules = [made.schedule(function) for _ in range(2)]
    others = [
        Compiled(function, strict_math=True, noalias=True, schedule=schedule)
        for schedule in schedules
    ]
    for largest in (2, 13):
        args = made.arguments(largest)
        expected = copy.deepcopy(args)
        default(*expected)
        if largest == 2:
            interpreted = copy.deepcopy(args)
            run(function, interpreted)
            for want, got in zip(interpreted, expected, strict=True):
                np.testing.assert_array_equal(want, got)
        for other, schedule in zip(others, schedules, strict=True):
            got = copy.deepcopy(args)
            other(*got)
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=show(schedule))


def guarded_row(b: Builder, args: list[Value], indices: list[Value]) -> None:
    """out[i, j] = sum of x[i, k] * y[k, j], and iterations i == 3 write a row, too."""
    x, y, row, out = args
    i, j = indices
    zero, one = b.constant(0, index), b.constant(1, index)
    loop = b.for_(zero, b.op("memref.dim", x, axis=1), one, [b.constant(0.0, f32)])
    with b.at(loop.regions[0]):
        k, s = loop.regions[0].args
        product = b.op("arith.mulf", b.load(x, [i, k]), b.load(y, [k, j]))
        b.do("scf.yield", b.op("arith.addf", s, product))
    b.store(loop.result, out, [i, j])
    choice = b.if_(b.op("arith.cmpi", i, b.constant(3, index), predicate="eq"))
    with b.at(choice.regions[0]):
        b.store(b.constant(5.0, f32), row, [j])
        b.do("scf.yield")
    with b.at(choice.regions[1]):
        b.do("scf.yield")


def test_a_row_that_one_of_the_jammed_iterations_writes() -> None:
    types = [MemRefType(f32, 2), MemRefType(f32, 2), MemRefType(f32, 1), MemRefType(f32, 2)]
    function = parallel(types, 2, guarded_row, sizes_of=3)
    x, y = np.ones((8, 5), np.float32), np.ones((5, 100), np.float32)
    row, out = np.zeros(100, np.float32), np.zeros((8, 100), np.float32)
    Compiled(function)(x, y, row, out)
    np.testing.assert_array_equal(out, np.full((8, 100), 5.0))
    np.testing.assert_array_equal(row, np.full(100, 5.0))


def sums(b: Builder, args: list[Value], indices: list[Value]) -> None:
    """out[j] = sum of sigmoid(x[k, j])"""
    x, out = args
    zero, one = b.constant(0, index), b.constant(1, index)
    loop = b.for_(zero, b.op("memref.dim", x, axis=0), one, [b.constant(0.0, f32)])
    with b.at(loop.regions[0]):
        k, s = loop.regions[0].args
        value = b.op("math.sigmoid", b.load(x, [k, *indices]))
        b.do("scf.yield", b.op("arith.addf", s, value))
    b.store(loop.result, out, indices)


def test_no_tile_has_functions_that_vectors_cannot_call() -> None:
    function = parallel([MemRefType(f32, 2), MemRefType(f32, 1)], 1, sums, sizes_of=1)
    (tile, _), plain = (candidates(function, CpuMachine(64, sleef=s)) for s in (True, False))
    assert show(tile) == "vectorize(i0, 16, 64)"
    assert plain == [()]


CONV = causal_conv()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bind(i0, x)", "`bind(i0, x)`: it is no step for a CPU\n"
         "help: write unroll_jam(...), vectorize(...), privatize(...) or streaming_stores(...)"),
        ("vectorize(q, 16, 16)", "`vectorize(q, 16, 16)`: there is no parallel index `q`\n"
         "help: there are `i0`, `i1`, `i2`"),
        ("unroll_jam(i2, 2); vectorize(i2, 16, 16)",
         "`unroll_jam(i2, 2)`: `vectorize(i2, 16, 16)` has that axis\n"
         "help: leave one of them out"),
        ("unroll_jam(i0, 2); unroll_jam(i0, 2)",
         "`unroll_jam(i0, 2)`: `unroll_jam(i0, 2)` says that already\n"
         "help: leave one of them out"),
        ("vectorize(i2, 12, 12)",
         "`vectorize(i2, 12, 12)`: `width` is a power of two from 2 to 16"),
        ("vectorize(i2, 32, 32)",
         "`vectorize(i2, 32, 32)`: `width` is a power of two from 2 to 16"),
        ("vectorize(i2, 16, 24)",
         "`vectorize(i2, 16, 24)`: `copies` are one to 8 vectors of 16"),
        ("vectorize(i2, 16, 16, peel=1)",
         "`vectorize(i2, 16, 16, peel=1)`: a CPU's vectors are next to each other, and not peeled"),
        ("unroll_jam(i0, 9)", "`unroll_jam(i0, 9)`: `copies` are 1 to 8 iterations"),
        ("unroll_jam(i0, 2, stride=4); vectorize(i2, 16, 16)",
         "`unroll_jam(i0, 2, stride=4)`: iterations of a register tile are next to each other"),
        ("unroll_jam(i0, 2); unroll_jam(i1, 2); vectorize(i2, 16, 16)",
         "`unroll_jam(i0, 2)`: a register tile has one other axis at most"),
    ],
)  # fmt: skip
def test_what_is_not_legal_says_why(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        check(CONV, parse(text), CpuMachine(64, sleef=True))
    assert str(caught.value) == message


def test_loops_that_have_no_tile_say_why() -> None:
    vector = parse("vectorize(i0, 8, 8)")
    with pytest.raises(ScheduleError, match="the loop reduces"):
        check(reduction("addf", f32), vector, CpuMachine(64))
    with pytest.raises(ScheduleError, match="there are no vectors of what the loop loads and"):
        check(elementwise("arith.addf", [f32, f32], f32), vector, CpuMachine(0))
    with pytest.raises(ScheduleError, match=r"`math\.exp` has no form for vectors here"):
        check(elementwise("math.exp", [f32], f32), vector, CpuMachine(64))
