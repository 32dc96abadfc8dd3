"""Small functions for the tests of index sets, written with Python's operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Value
from weft.ir.types import MemRefType, Type, f32, i32, index
from weft.source import Span


class Int:
    """An ``index`` value that knows its builder, so that ``i * n + 1`` appends operations."""

    def __init__(self, value: Value, make: Make) -> None:
        self.value = value
        self.make = make

    def _op(self, name: str, other: Int | int, swap: bool = False) -> Int:
        pair = [self.value, self.make.int(other).value]
        return Int(self.make.build.op(f"arith.{name}", *(pair[::-1] if swap else pair)), self.make)

    def __add__(self, other: Int | int) -> Int:
        return self._op("addi", other)

    __radd__ = __add__

    def __sub__(self, other: Int | int) -> Int:
        return self._op("subi", other)

    def __rsub__(self, other: int) -> Int:
        return self._op("subi", other, swap=True)

    def __mul__(self, other: Int | int) -> Int:
        return self._op("muli", other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Int | int) -> Int:
        return self._op("floordivsi", other)

    def __mod__(self, other: Int | int) -> Int:
        return self - (self // other) * other

    def compare(self, predicate: str, other: Int | int) -> Value:
        build = self.make.build
        return build.op("arith.cmpi", self.value, self.make.int(other).value, predicate=predicate)


class Make:
    """``Make(x=1, n="index")``: a function whose arguments are f32 arrays of a rank, or scalars."""

    def __init__(self, **args: int | str) -> None:
        types: list[Type] = [
            MemRefType(f32, a) if isinstance(a, int) else {"index": index, "i32": i32}[a]
            for a in args.values()
        ]
        self.function = Function("kernel", types, list(args))
        self.build = Builder(self.function.body)
        self.args = dict(zip(args, self.function.args, strict=True))

    def __getattr__(self, name: str) -> Any:
        value = self.args[name]
        return value if isinstance(value.type, MemRefType) else Int(value, self)

    def int(self, value: Int | int) -> Int:
        return value if isinstance(value, Int) else Int(self.build.constant(value, index), self)

    def at(self, line: int, text: str, part: str = "") -> None:
        """The source text of what is built next: ``part`` of the line ``text``."""
        column = text.index(part or text.strip())
        end = column + len(part or text.strip())
        self.build.span = Span("model.py", line, column, line, end, text, "kernel")

    def dim(self, memref: Value, axis: int) -> Int:
        return Int(self.build.op("memref.dim", memref, axis=axis), self)

    @contextmanager
    def parallel(self, **ends: Int | int | tuple[Int | int, ...]) -> Iterator[Any]:
        """``with make.parallel(i=n, j=(1, m), k=(0, m, 2)) as (i, j, k)``."""
        triples = [self._bounds(end) for end in ends.values()]
        op = self.build.parallel(*([t[k] for t in triples] for k in range(3)))
        with self.build.at(op.regions[0]):
            yield self._indices(op.regions[0], list(ends))
            self.build.do("scf.reduce")

    @contextmanager
    def serial(self, **ends: Int | int | tuple[Int | int, ...]) -> Iterator[Int]:
        ((name, end),) = ends.items()
        op = self.build.for_(*self._bounds(end))
        with self.build.at(op.regions[0]):
            yield self._indices(op.regions[0], [name])
            self.build.do("scf.yield")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        op = self.build.if_(condition)
        with self.build.at(op.regions[0]):
            yield
            self.build.do("scf.yield")
        with self.build.at(op.regions[1]):
            self.build.do("scf.yield")

    def _bounds(self, end: Int | int | tuple[Int | int, ...]) -> tuple[Value, Value, Value]:
        full = end if isinstance(end, tuple) else (0, end)
        lower, upper, step = (*full, 1)[:3]
        return self.int(lower).value, self.int(upper).value, self.int(step).value

    def _indices(self, block: Block, names: list[str]) -> Any:
        for value, name in zip(block.args, names, strict=True):
            value.name = name
        found = [Int(v, self) for v in block.args]
        return found[0] if len(found) == 1 else found

    def load(self, memref: Value, *subscripts: Int | int) -> Value:
        return self.build.load(memref, [self.int(s).value for s in subscripts])

    def store(self, memref: Value, *subscripts: Int | int, value: Value | None = None) -> None:
        value = value or self.build.constant(1.0, f32)
        self.build.store(value, memref, [self.int(s).value for s in subscripts])

    def add(self, memref: Value, *subscripts: Int | int, kind: str = "addf") -> None:
        value = self.build.constant(1.0, f32)
        self.build.atomic_rmw(kind, value, memref, [self.int(s).value for s in subscripts])

    def data(self, memref: Value, *subscripts: Int | int) -> Int:
        """An integer read from memory."""
        value = self.build.op("arith.fptosi", self.load(memref, *subscripts), type=index)
        return Int(value, self)

    def done(self) -> Function:
        self.build.do("func.return")
        return self.function
