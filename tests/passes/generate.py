"""Random functions, on which passes are held to the interpreter."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.interp import run
from weft.ir.ops import CMPF, CMPI
from weft.ir.types import MemRefType, ScalarType, f32, f64, i1, i8, i32, index

SIZE = 8  # of every axis of every memref: subscripts are kept below it
INTEGERS = (index, i32, i8)
FLOATS = (f32, f64)
SCALARS = (*INTEGERS, *FLOATS, i1)

_INTEGER_OPS = (
    "addi", "addi", "subi", "subi", "muli", "andi", "ori", "xori",
    "minsi", "maxsi", "minui", "maxui",
)  # fmt: skip
_FLOAT_OPS = ("addf", "addf", "subf", "mulf", "mulf", "divf", "maximumf", "minimumf")
_DIVISIONS = ("floordivsi", "divui", "remsi", "remui")
_UNARY = ("absf", "sqrt", "floor", "trunc", "roundeven")
_INTEGER_NUMBERS = (0, 1, 2, 3, 4, 8, -1, -2, 7, 100, -128)
_FLOAT_NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 4.0, 0.1, -3.3, 1e30, float("inf"), float("nan"))


def random_function(seed: int, length: int = 40) -> Function:
    """A valid function of about ``length`` operations, which never leaves its memrefs.

    Arguments: x, y: memref<?xf32>; m: memref<?x?xf32>; k: memref<?xi32>; r: memref<f32>, and a
    scalar of each type. Passes may assume nothing about aliasing (``noalias`` is not set).
    """
    return _Generator(random.Random(seed)).function(length)


def random_arguments(seed: int, alias: bool = False) -> list[Any]:
    """Arguments for ``random_function``; with ``alias`` x and y are the same array."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> Any:
        special = np.array(_FLOAT_NUMBERS, np.float32)
        values = rng.standard_normal(shape).astype(np.float32)
        return np.where(rng.random(shape) < 0.3, rng.choice(special, shape), values)

    x = floats(SIZE)
    y = x if alias else floats(SIZE)
    k = rng.integers(-9, 9, SIZE, dtype=np.int32)
    integers = rng.integers(-5, 5, len(INTEGERS)).tolist()
    scalars = [np.float32(rng.standard_normal()), np.float64(rng.standard_normal())]
    r = np.array(rng.standard_normal(), np.float32)
    return [x, y, floats(SIZE, SIZE), k, r, *integers, *scalars, bool(rng.random() < 0.5)]


def outcome(function: Function, seed: int, alias: bool = False) -> list[Any]:
    """The memory that ``function`` leaves behind, NaNs all alike."""
    args = random_arguments(seed, alias)
    run(function, args)
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    return [np.where(np.isnan(a), np.float32(np.nan), a).view(np.int32).tolist() for a in arrays]


class _Generator:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.pool: dict[ScalarType, list[Value]] = {t: [] for t in SCALARS}
        self.memrefs: list[Value] = []
        self.subscripts: list[Value] = []  # index values that are known to be below SIZE
        self.depth = 0

    def function(self, length: int) -> Function:
        types = [MemRefType(f32, 1), MemRefType(f32, 1), MemRefType(f32, 2), MemRefType(i32, 1),
                 MemRefType(f32, 0), *SCALARS]  # fmt: skip
        names = ["x", "y", "m", "k", "r", *(f"a_{t}" for t in SCALARS)]
        function = Function("random", types, names)
        self.b = Builder(function.body)
        self.memrefs = function.args[:5]
        for value in function.args[5:]:
            self.pool[value.type].append(value)  # type: ignore[index]
        self.local()
        dims = self.rng.choice((1, 2))
        zero, one = self.b.constant(0, index), self.b.constant(1, index)
        extent = self.rng.choice((self.b.op("memref.dim", self.memrefs[0], axis=0), one))
        parallel = self.b.parallel([zero] * dims, [extent] * dims, [one] * dims)
        with self.b.at(parallel.regions[0]):
            self.subscripts += parallel.regions[0].args
            self.pool[index] += parallel.regions[0].args
            self.body(length)
            self.b.do("scf.reduce")
        self.b.do("func.return")
        return function

    def local(self) -> None:
        """A local array with contents."""
        array = self.b.alloca(f32, (SIZE,))
        for k in range(SIZE):
            self.b.store(self.constant(f32), array, [self.b.constant(k, index)])
        self.memrefs = [*self.memrefs, array]

    def body(self, length: int) -> None:
        while length > 0:
            kind = self.rng.random()
            if kind < 0.1 and self.depth < 3:
                self.for_(length // 3)
            elif kind < 0.2 and self.depth < 3:
                self.if_(length // 3)
            elif kind < 0.23 and self.depth < 3:
                self.while_(length // 4)
            elif kind < 0.4:
                self.store()
            else:
                self.scalar()
                length += 1
            length -= 2

    def constant(self, type: ScalarType) -> Value:
        if type is i1:
            return self.b.constant(self.rng.random() < 0.5, type)
        return self.b.constant(
            self.rng.choice(_FLOAT_NUMBERS if type.is_float else _INTEGER_NUMBERS), type
        )

    def value(self, type: ScalarType) -> Value:
        if self.rng.random() < 0.25:
            return self.constant(type)
        return self.rng.choice(self.pool[type][-6:])  # recent ones, so that most are used

    def subscript(self) -> Value:
        kind = self.rng.random()
        if kind < 0.5:
            return self.rng.choice(self.subscripts)
        if kind < 0.8:
            return self.b.constant(self.rng.randrange(SIZE), index)
        return self.b.op("arith.andi", self.value(index), self.b.constant(SIZE - 1, index))

    def place(self) -> tuple[Value, list[Value]]:
        memref = self.rng.choice(self.memrefs)
        return memref, [self.subscript() for _ in range(memref.type.rank)]  # type: ignore[union-attr]

    def store(self) -> None:
        memref, subscripts = self.place()
        value = self.value(memref.type.element)  # type: ignore[union-attr]
        if self.rng.random() < 0.2:
            kind = "addf" if value.type is f32 else "addi"
            self.b.atomic_rmw(kind, value, memref, subscripts)
        else:
            self.b.store(value, memref, subscripts)

    def scalar(self) -> None:
        made = self.rng.choice((self.integer, self.float, self.compare, self.cast, self.load))()
        self.pool[made.type].append(made)  # type: ignore[index]

    def integer(self) -> Value:
        type = self.rng.choice((*INTEGERS, i1))
        a, b = self.value(type), self.value(type)
        kind = self.rng.random()
        if type is not i1 and kind < 0.15:
            b = self.b.constant(self.rng.choice((1, 2, 3, 4, 8, 7)), type)
            return self.b.op(f"arith.{self.rng.choice(_DIVISIONS)}", a, b)
        if type is not i1 and kind < 0.25:
            b = self.b.constant(self.rng.choice((0, 1, 3)), type)
            return self.b.op(f"arith.{self.rng.choice(('shli', 'shrsi', 'shrui'))}", a, b)
        names = ("andi", "ori", "xori") if type is i1 else _INTEGER_OPS
        return self.b.op(f"arith.{self.rng.choice(names)}", a, b)

    def float(self) -> Value:
        type = self.rng.choice(FLOATS)
        kind = self.rng.random()
        if kind < 0.15:
            return self.b.op("arith.negf", self.value(type))
        if kind < 0.3:
            return self.b.op(f"math.{self.rng.choice(_UNARY)}", self.value(type))
        if kind < 0.35:  # only of f32, where the interpreter rounds x ** 2.0 as x * x
            return self.b.op("math.powf", self.value(f32), self.constant(f32))
        return self.b.op(f"arith.{self.rng.choice(_FLOAT_OPS)}", self.value(type), self.value(type))

    def compare(self) -> Value:
        if self.rng.random() < 0.3:
            type = self.rng.choice(SCALARS)
            return self.b.op("arith.select", self.value(i1), self.value(type), self.value(type))
        type = self.rng.choice((*INTEGERS, *FLOATS))
        name, predicates = ("arith.cmpf", CMPF) if type.is_float else ("arith.cmpi", CMPI)
        predicate = self.rng.choice(predicates)
        return self.b.op(name, self.value(type), self.value(type), predicate=predicate)

    def cast(self) -> Value:
        name, source, target = self.rng.choice((
            ("extsi", i8, i32), ("extui", i8, i32), ("extui", i1, i32), ("trunci", i32, i8),
            ("index_cast", i32, index), ("index_cast", index, i32), ("index_cast", index, i8),
            ("index_cast", i8, index), ("sitofp", i32, f32), ("uitofp", i8, f64),
            ("sitofp", i8, f32), ("fptosi", f32, i32), ("fptoui", f64, i8), ("extf", f32, f64),
            ("truncf", f64, f32), ("bitcast", f32, i32), ("bitcast", i32, f32),
        ))  # fmt: skip
        return self.b.op(f"arith.{name}", self.value(source), type=target)

    def load(self) -> Value:
        return self.b.load(*self.place())

    def scope(self, length: int) -> None:
        """Operations in a region, whose values are forgotten after."""
        saved = {t: list(values) for t, values in self.pool.items()}
        subscripts, memrefs = list(self.subscripts), self.memrefs
        self.depth += 1
        self.body(length)
        self.depth -= 1
        self.inner, self.pool = self.pool, saved
        self.subscripts, self.memrefs = subscripts, memrefs

    def inner_value(self, type: ScalarType) -> Value:
        return self.rng.choice(self.inner[type][-3:])

    def for_(self, length: int) -> None:
        lower = self.rng.choice((0, 0, 1))
        bounds = [self.b.constant(lower, index)]
        bounds.append(self.b.constant(lower + self.rng.choice((0, 1, 2, 4)), index))
        if self.rng.random() < 0.4:
            bounds[1] = self.b.op("arith.andi", self.value(index), self.b.constant(3, index))
        bounds.append(self.b.constant(self.rng.choice((1, 2)), index))
        types = [self.rng.choice(SCALARS) for _ in range(self.rng.choice((0, 1, 2)))]
        op = self.b.for_(*bounds, [self.value(t) for t in types])
        block = op.regions[0]
        saved = {t: list(values) for t, values in self.pool.items()}
        subscripts = list(self.subscripts)
        self.subscripts.append(block.args[0])
        for arg in block.args:
            self.pool[arg.type].append(arg)  # type: ignore[index]
        with self.b.at(block):
            self.scope(length)
            yielded = [
                arg if self.rng.random() < 0.2 else self.inner_value(t)
                for arg, t in zip(block.args[1:], types, strict=True)
            ]
            self.b.do("scf.yield", *yielded)
        self.pool, self.subscripts = saved, subscripts
        self.results(op.results)

    def if_(self, length: int) -> None:
        types = [self.rng.choice(SCALARS) for _ in range(self.rng.choice((0, 1, 2)))]
        op = self.b.if_(self.value(i1), types)
        for block in op.regions:
            with self.b.at(block):
                self.scope(self.rng.choice((0, length)))
                self.b.do("scf.yield", *(self.inner_value(t) for t in types))
        self.results(op.results)

    def while_(self, length: int) -> None:
        """Counts down from at most 3."""
        type = self.rng.choice(SCALARS)
        start = self.b.op("arith.andi", self.value(index), self.b.constant(3, index))
        op = self.b.while_([start, self.value(type)], [index, type])
        before, after = op.regions
        with self.b.at(before):
            zero = self.b.constant(0, index)
            go_on = self.b.op("arith.cmpi", before.args[0], zero, predicate="sgt")
            self.b.do("scf.condition", go_on, *before.args)
        with self.b.at(after):
            saved = {t: list(values) for t, values in self.pool.items()}
            self.pool[type].append(after.args[1])
            self.scope(length)
            minus = self.b.op("arith.subi", after.args[0], self.b.constant(1, index))
            self.b.do("scf.yield", minus, self.inner_value(type))
            self.pool = saved
        self.results(op.results)

    def results(self, values: list[Value]) -> None:
        for value in values:
            self.pool[value.type].append(value)  # type: ignore[index]
