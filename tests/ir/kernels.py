"""Functions in the IR for tests of every stage: a few typical ones, and random ones.

The random ones can be run: subscripts are clamped, divisors are odd, loops are short, and no two
iterations of scf.parallel touch one element except atomically.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Value
from weft.ir.ops import CMPF, CMPI, OPS
from weft.ir.types import MemRefType, ScalarType, f32, f64, i1, i8, i32, i64, index


def function(name: str, **args: Any) -> tuple[Function, Builder, list[Value]]:
    """A function with these arguments (name=type), a builder at its body, the arguments."""
    new = Function(name, list(args.values()), list(args), {"kernel": name})
    return new, Builder(new.body), new.args


def tensor(element: ScalarType, rank: int, layout: str = "contiguous") -> MemRefType:
    return MemRefType(element, rank, layout)


def axpy(element: ScalarType = f32, layout: str = "contiguous") -> Function:
    """``y[i] = a * x[i] + y[i]`` for all i. Args: x[n], y[n], a."""
    f, b, (x, y, a) = function(
        "axpy", x=tensor(element, 1, layout), y=tensor(element, 1, layout), a=element
    )
    zero, one = b.constant(0, index), b.constant(1, index)
    n = b.op("memref.dim", y, axis=0)
    loop = b.parallel([zero], [n], [one])
    with b.at(loop.regions[0]) as body:
        (i,) = body.args
        i.name = "i"
        product = b.op("arith.mulf", a, b.load(x, [i]))
        b.store(b.op("arith.addf", product, b.load(y, [i])), y, [i])
        b.do("scf.reduce")
    b.do("func.return")
    return f


def causal_conv(element: ScalarType = f32) -> Function:
    """``y[c, t] = sum over j of w[c, j] * x[c, t - j]``, where t >= j.

    Args: x[channels, time], w[channels, taps], y[channels, time].
    """
    two = tensor(element, 2)
    f, b, (x, w, y) = function("causal_conv", x=two, w=two, y=two)
    zero, one = b.constant(0, index), b.constant(1, index)
    channels, time = b.op("memref.dim", y, axis=0), b.op("memref.dim", y, axis=1)
    taps = b.op("memref.dim", w, axis=1)
    start = b.constant(0.0, element)
    loop = b.parallel([zero, zero], [channels, time], [one, one])
    with b.at(loop.regions[0]) as body:
        c, t = body.args
        c.name, t.name = "c", "t"
        inner = b.for_(zero, taps, one, [start])
        with b.at(inner.regions[0]) as block:
            j, s = block.args
            j.name, s.name = "j", "s"
            past = b.op("arith.subi", t, j)
            inside = b.op("arith.cmpi", past, zero, predicate="sge")
            branch = b.if_(inside, [element])
            with b.at(branch.regions[0]):
                product = b.op("arith.mulf", b.load(w, [c, j]), b.load(x, [c, past]))
                b.do("scf.yield", b.op("arith.addf", s, product))
            with b.at(branch.regions[1]):
                b.do("scf.yield", s)
            b.do("scf.yield", branch.result)
        b.store(inner.result, y, [c, t])
        b.do("scf.reduce")
    b.do("func.return")
    return f


def sum_reduction(element: ScalarType = f32, kind: str = "addf") -> Function:
    """``out[()] = reduce(kind, x)``. Args: x[n, m], out[]. addf, addi start at 0."""
    f, b, (x, out) = function("sum_reduction", x=tensor(element, 2), out=tensor(element, 0))
    zero, one = b.constant(0, index), b.constant(1, index)
    n, m = b.op("memref.dim", x, axis=0), b.op("memref.dim", x, axis=1)
    loop = b.parallel([zero, zero], [n, m], [one, one], [b.constant(0, element)], [kind])
    with b.at(loop.regions[0]) as body:
        b.do("scf.reduce", b.load(x, list(body.args)))
    b.store(loop.result, out, [])
    b.do("func.return")
    return f


def while_loop() -> Function:
    """``steps[i]`` = steps of the Collatz sequence from ``x[i]`` to 1. Args: x[n], steps[n]."""
    f, b, (x, steps) = function("while_loop", x=tensor(i64, 1), steps=tensor(i64, 1))
    zero, one = b.constant(0, index), b.constant(1, index)
    loop = b.parallel([zero], [b.op("memref.dim", x, axis=0)], [one])
    with b.at(loop.regions[0]) as body:
        unit, none = b.constant(1, i64), b.constant(0, i64)
        again = b.while_([b.load(x, [body.args[0]]), none], [i64, i64])
        with b.at(again.regions[0]) as before:
            value, count = before.args
            go_on = b.op("arith.cmpi", value, unit, predicate="sgt")
            b.do("scf.condition", go_on, value, count)
        with b.at(again.regions[1]) as after:
            value, count = after.args
            odd = b.op("arith.trunci", value, type=i1)
            three = b.op("arith.addi", b.op("arith.muli", value, b.constant(3, i64)), unit)
            half = b.op("arith.shrsi", value, unit)
            following = b.op("arith.select", odd, three, half)
            b.do("scf.yield", following, b.op("arith.addi", count, unit))
        b.store(again.results[1], steps, [body.args[0]])
        b.do("scf.reduce")
    b.do("func.return")
    return f


def conditional() -> Function:
    """``y[i] = sqrt(x[i]) if x[i] > 0 else -1``; counts the others. Args: x[n], y[n], count[1]."""
    f, b, (x, y, count) = function(
        "conditional", x=tensor(f32, 1), y=tensor(f32, 1), count=tensor(i32, 1)
    )
    zero, one = b.constant(0, index), b.constant(1, index)
    loop = b.parallel([zero], [b.op("memref.dim", x, axis=0)], [one])
    with b.at(loop.regions[0]) as body:
        value = b.load(x, [body.args[0]])
        positive = b.op("arith.cmpf", value, b.constant(0.0, f32), predicate="ogt")
        branch = b.if_(positive, [f32])
        with b.at(branch.regions[0]):
            b.do("scf.yield", b.op("math.sqrt", value))
        with b.at(branch.regions[1]):
            b.atomic_rmw("addi", b.constant(1, i32), count, [zero])
            b.do("scf.yield", b.constant(-1.0, f32))
        b.store(branch.result, y, [body.args[0]])
        b.do("scf.reduce")
    b.do("func.return")
    return f


def histogram(atomic: bool = True) -> Function:
    """``bins[x[i]] += 1``, atomically or not (then it races). Args: x[n] i64, bins[m] i32."""
    f, b, (x, bins) = function("histogram", x=tensor(i64, 1), bins=tensor(i32, 1))
    zero, one = b.constant(0, index), b.constant(1, index)
    loop = b.parallel([zero], [b.op("memref.dim", x, axis=0)], [one])
    with b.at(loop.regions[0]) as body:
        at = b.op("arith.index_cast", b.load(x, [body.args[0]]), type=index)
        old = b.atomic_rmw("addi", b.constant(1, i32), bins, [at])
        assert not isinstance(old.owner, Block)
        assert old.owner is not None
        old.owner.attrs["atomic"] = atomic
        b.do("scf.reduce")
    b.do("func.return")
    return f


TYPICAL = (axpy, causal_conv, sum_reduction, while_loop, conditional, histogram)

# --- random functions ----------------------------------------------------------------------------

_SCALARS = (i1, i8, i32, i64, index, f32, f64)
_BINARY_INT = (
    "addi", "subi", "muli", "andi", "ori", "xori", "minsi", "maxsi", "minui", "maxui",
    "shli", "shrsi", "shrui",
)  # fmt: skip
_BINARY_FLOAT = ("addf", "subf", "mulf", "divf", "maximumf", "minimumf", "remf")
_UNARY_FLOAT = ("arith.negf", "math.absf", "math.floor", "math.ceil", "math.trunc", "math.sqrt")
_DIVISIONS = ("floordivsi", "divui", "remsi", "remui")
_FLOAT_LITERALS = (0.0, -0.0, 1.0, -2.5, 0.1, 1e30, 1e-40, 5e-324, float("inf"), float("nan"))


def random_function(rng: random.Random, size: int = 12, *, parallel: bool = True) -> Function:
    """A valid function that can be run on ``random_arguments``: about ``size`` statements a block.

    Args: x[n] f32, d[n, m] f64 strided, k[n] i64, out[n] f32, total[] i64, a: f32, c: index.
    It writes d, out and total, in its scf.parallel; nothing with ``parallel=False``.
    """
    types = {
        "x": tensor(f32, 1), "d": tensor(f64, 2, "strided"), "k": tensor(i64, 1),
        "out": tensor(f32, 1), "total": tensor(i64, 0), "a": f32, "c": index,
    }  # fmt: skip
    f, b, args = function("random", **types)
    maker = _Maker(rng, b, dict(zip(types, args, strict=True)), size)
    maker.statements(args[5:], depth=0)
    if parallel:
        maker.parallel_part(args[5:])
    b.do("func.return")
    return f


def random_arguments(rng: random.Random) -> list[Any]:
    """Fresh arguments for ``random_function``: nothing is zero, d is not contiguous."""
    g = np.random.default_rng(rng.randrange(1 << 30))
    n, m = rng.randint(1, 5), rng.randint(1, 4)
    return [
        g.standard_normal(n).astype(np.float32), g.standard_normal((m, n)).T,
        g.integers(-(2**40), 2**40, n), np.full(n, np.nan, np.float32), np.array(12345),
        np.float32(g.standard_normal()), int(g.integers(-3, 9)),
    ]  # fmt: skip


class _Maker:
    """Appends random statements; ``pool`` is the list of scalars that may be used."""

    def __init__(self, rng: random.Random, b: Builder, args: dict[str, Value], size: int) -> None:
        self.rng, self.b, self.args, self.size = rng, b, args, size

    def literal(self, type: ScalarType) -> Value:
        rng = self.rng
        if type.is_float:
            return self.b.constant(rng.choice(_FLOAT_LITERALS), type)
        if type is i1:
            return self.b.constant(rng.random() < 0.5, type)
        high = (1 << (type.bits - 1)) - 1
        return self.b.constant(rng.choice((0, 1, 2, 3, -1, -7, high, -high - 1)), type)

    def pick(self, pool: list[Value], type: ScalarType) -> Value:
        fitting = [v for v in pool if v.type is type]
        if fitting and self.rng.random() < 0.8:
            return self.rng.choice(fitting)
        return self.literal(type)

    def place(self, pool: list[Value], memref: Value) -> list[Value]:
        """Subscripts in range: any index, clamped."""
        b, places = self.b, []
        assert isinstance(memref.type, MemRefType)
        for axis in range(memref.type.rank):
            zero, one = b.constant(0, index), b.constant(1, index)
            last = b.op("arith.subi", b.op("memref.dim", memref, axis=axis), one)
            low = b.op("arith.maxsi", self.pick(pool, index), zero)
            places.append(b.op("arith.minsi", low, last))
        return places

    def scalar(self, pool: list[Value]) -> Value:
        """One more value, by some operation without effect."""
        rng, b = self.rng, self.b
        type = rng.choice(_SCALARS)
        a = self.pick(pool, type)
        choice = rng.random()
        if choice < 0.1:
            memref = self.args[rng.choice(("x", "k"))]
            return b.load(memref, self.place(pool, memref))
        if choice < 0.25:
            return self.cast(a)
        if choice < 0.35:
            return b.op("arith.select", self.pick(pool, i1), a, self.pick(pool, type))
        if choice < 0.5:
            name, known = ("arith.cmpf", CMPF) if type.is_float else ("arith.cmpi", CMPI)
            return b.op(name, a, self.pick(pool, type), predicate=rng.choice(known))
        if type.is_float:
            if choice < 0.65:
                return b.op(rng.choice(_UNARY_FLOAT), a)
            return b.op(f"arith.{rng.choice(_BINARY_FLOAT)}", a, self.pick(pool, type))
        if choice < 0.6:
            odd = b.op("arith.ori", self.pick(pool, type), b.constant(1, type))
            return b.op(f"arith.{rng.choice(_DIVISIONS)}", a, odd)
        name = rng.choice(_BINARY_INT)
        if name.startswith("sh"):
            amount = b.constant(0 if type is i1 else rng.randint(0, 7), type)
            return b.op(f"arith.{name}", a, amount)
        return b.op(f"arith.{name}", a, self.pick(pool, type))

    def cast(self, a: Value) -> Value:
        rng, b, type = self.rng, self.b, a.type
        if type is index:
            return b.op("arith.index_cast", a, type=rng.choice((i32, i64)))
        if type in (f32, f64):
            if rng.random() < 0.5:
                name = rng.choice(("arith.fptosi", "arith.fptoui"))
                return b.op(name, a, type=rng.choice((i8, i32, i64)))
            name = "arith.extf" if type is f32 else "arith.truncf"
            return b.op(name, a, type=f64 if type is f32 else f32)
        if rng.random() < 0.3:
            return b.op("arith.index_cast", a, type=index)
        if rng.random() < 0.5:
            name = rng.choice(("arith.sitofp", "arith.uitofp"))
            return b.op(name, a, type=rng.choice((f32, f64)))
        if type is i64:
            return b.op("arith.trunci", a, type=rng.choice((i1, i8, i32)))
        return b.op(rng.choice(("arith.extsi", "arith.extui")), a, type=i64)

    def statements(self, outer: list[Value], depth: int) -> list[Value]:
        """Some statements; gives all values that are visible after them."""
        pool = list(outer)
        for _ in range(self.rng.randint(1, self.size)):
            choice = self.rng.random()
            if depth < 2 and choice < 0.08:
                pool += self.for_loop(pool, depth)
            elif depth < 2 and choice < 0.16:
                pool += self.branch(pool, depth)
            elif depth < 2 and choice < 0.2:
                pool += self.while_loop(pool, depth)
            elif choice < 0.24:
                pool.append(self.local_array(pool))
            else:
                pool.append(self.scalar(pool))
                if self.rng.random() < 0.4:
                    pool[-1].name = self.rng.choice(("s", "t", "s_1", "cfg.eps", "x"))
        return pool

    def local_array(self, pool: list[Value]) -> Value:
        b = self.b
        array = b.alloca(f64, (3,))
        for k in range(3):
            b.store(self.pick(pool, f64), array, [b.constant(k, index)])
        b.store(self.pick(pool, f64), array, self.place(pool, array))
        return b.load(array, self.place(pool, array))

    def for_loop(self, pool: list[Value], depth: int) -> list[Value]:
        b, rng = self.b, self.rng
        types = [rng.choice(_SCALARS) for _ in range(rng.randint(0, 2))]
        inits = [self.pick(pool, t) for t in types]
        low, high = b.constant(rng.randint(-1, 1), index), b.constant(rng.randint(0, 4), index)
        loop = b.for_(low, high, b.constant(rng.randint(1, 2), index), inits)
        with b.at(loop.regions[0]) as body:
            inside = self.statements(pool + body.args, depth + 1)
            b.do("scf.yield", *[self.pick(inside, t) for t in types])
        return loop.results

    def branch(self, pool: list[Value], depth: int) -> list[Value]:
        b, rng = self.b, self.rng
        types = [rng.choice(_SCALARS) for _ in range(rng.randint(0, 2))]
        branch = b.if_(self.pick(pool, i1), types)
        for region in branch.regions:
            with b.at(region):
                inside = self.statements(pool, depth + 1) if rng.random() < 0.7 else pool
                b.do("scf.yield", *[self.pick(inside, t) for t in types])
        return branch.results

    def while_loop(self, pool: list[Value], depth: int) -> list[Value]:
        """Counts down from a small number, so that it ends."""
        b, rng = self.b, self.rng
        type = rng.choice(_SCALARS)
        count = b.constant(rng.randint(0, 3), index)
        loop = b.while_([count, self.pick(pool, type)], [type, index])
        with b.at(loop.regions[0]) as before:
            count, value = before.args
            go_on = b.op("arith.cmpi", count, b.constant(0, index), predicate="sgt")
            b.do("scf.condition", go_on, value, count)
        with b.at(loop.regions[1]) as after:
            inside = self.statements(pool + after.args, depth + 1)
            down = b.op("arith.subi", after.args[1], b.constant(1, index))
            b.do("scf.yield", down, self.pick(inside, type))
        return loop.results

    def parallel_part(self, pool: list[Value]) -> None:
        """A parallel loop over d's rows and columns, with a reduction, and its result stored."""
        b, rng = self.b, self.rng
        d, out, total = self.args["d"], self.args["out"], self.args["total"]
        zero, one = b.constant(0, index), b.constant(1, index)
        sizes = [b.op("memref.dim", d, axis=k) for k in range(2)]
        kind, type = rng.choice((("addi", i64), ("maxsi", i64), ("xori", i64), ("minimumf", f64)))
        init = self.literal(type)
        loop = b.parallel([zero, zero], sizes, [one, one], [init], [kind])
        with b.at(loop.regions[0]) as body:
            i, j = body.args
            pool = self.statements([*pool, i, j, b.load(d, [i, j])], depth=0)
            b.store(self.pick(pool, f64), d, [i, j])
            b.atomic_rmw("addi", self.pick(pool, i64), total, [])
            first = b.if_(b.op("arith.cmpi", j, zero, predicate="eq"))
            with b.at(first.regions[0]):
                b.store(self.pick(pool, f32), out, [i])
                b.do("scf.yield")
            with b.at(first.regions[1]):
                b.do("scf.yield")
            b.do("scf.reduce", self.pick(pool, type))
        if type is i64:
            b.store(loop.result, total, [])


assert all(f"arith.{n}" in OPS for n in _BINARY_INT + _BINARY_FLOAT + _DIVISIONS)
