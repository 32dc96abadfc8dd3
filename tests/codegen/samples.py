"""Small IR functions that several tests of code generation run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.types import MemRefType, ScalarType, Type, f32, f64, index

Body = Callable[[Builder, list[Value], list[Value]], None]


def parallel(
    arg_types: Sequence[Type], dims: int, body: Body, *, sizes_of: int = 0, name: str = "kernel"
) -> Function:
    """A function that runs ``body(builder, args, indices)`` for each element of one argument."""
    function = Function(name, list(arg_types))
    b = Builder(function.body)
    zero, one = b.constant(0, index), b.constant(1, index)
    extents = [b.op("memref.dim", function.args[sizes_of], axis=axis) for axis in range(dims)]
    op = b.parallel([zero] * dims, extents, [one] * dims)
    with b.at(op.regions[0]):
        body(b, function.args, op.regions[0].args)
        b.do("scf.reduce")
    b.do("func.return")
    return function


def elementwise(
    op: str, operands: Sequence[ScalarType], result: ScalarType, **attrs: object
) -> Function:
    """out[i] = op(in0[i], in1[i], ...); the arguments are the inputs and the output."""

    def body(b: Builder, args: list[Value], indices: list[Value]) -> None:
        values = [b.load(memref, indices) for memref in args[:-1]]
        b.store(b.op(op, *values, type=result, **attrs), args[-1], indices)

    types = [MemRefType(t, 1) for t in (*operands, result)]
    return parallel(types, 1, body, sizes_of=len(operands), name=op.replace(".", "_"))


def reduction(
    kind: str, element: ScalarType, rank: int = 1, layout: str = "contiguous"
) -> Function:
    """result[()] = combination of all elements of x, starting from ``initial``."""
    function = Function(
        "reduction", [MemRefType(element, rank, layout), element, MemRefType(element, 0)]
    )
    x, initial, result = function.args
    b = Builder(function.body)
    zero, one = b.constant(0, index), b.constant(1, index)
    extents = [b.op("memref.dim", x, axis=axis) for axis in range(rank)]
    op = b.parallel([zero] * rank, extents, [one] * rank, [initial], [kind])
    with b.at(op.regions[0]):
        b.do("scf.reduce", b.load(x, op.regions[0].args))
    b.store(op.result, result, [])
    b.do("func.return")
    return function


def causal_conv(layout: str = "contiguous", element: ScalarType = f32) -> Function:
    """out[b, c, t] = eps + sum over u <= t of w[c, T - 1 - t + u] * k[b, c, u]."""
    three = MemRefType(element, 3, layout)
    function = Function("causal_conv", [MemRefType(element, 2, layout), three, f64, three])
    w, k, eps, out = function.args
    b = Builder(function.body)
    zero, one = b.constant(0, index), b.constant(1, index)
    extents = [b.op("memref.dim", k, axis=axis) for axis in range(3)]
    op = b.parallel([zero] * 3, extents, [one] * 3)
    with b.at(op.regions[0]):
        batch, channel, t = op.regions[0].args
        start = eps if element is f64 else b.op("arith.truncf", eps, type=element)
        last = b.op("arith.subi", extents[2], one)
        inner = b.for_(zero, b.op("arith.addi", t, one), one, [start])
        with b.at(inner.regions[0]):
            u, s = inner.regions[0].args
            place = b.op("arith.addi", b.op("arith.subi", last, t), u)
            product = b.op(
                "arith.mulf", b.load(w, [channel, place]), b.load(k, [batch, channel, u])
            )
            b.do("scf.yield", b.op("arith.addf", s, product))
        b.store(inner.result, out, [batch, channel, t])
        b.do("scf.reduce")
    b.do("func.return")
    return function
