"""Random numbers of an iteration (``weft.lang.random``): what they are computed of.

A number is arithmetic on words, ``math.philox`` of three things. The **key** of the launch is one
more argument of the loop, a 0-d tensor that the launcher draws from torch's generator: so PyTorch
sees a tensor, which graphs, checkpoints, transforms and gradients treat as any other. The
**iteration** follows from the values of the loop's indices, so that neither the order nor the
schedule matters. The **number** of the word counts what the iteration has drawn before; it is known
once the whole iteration is lowered, and ``number`` carries it through branches and loops.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

from weft.errors import CompileError, KernelSyntaxError, KernelTypeError, KernelValueError, Span
from weft.frontend.casts import Handler, dtype_name
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    STORAGE,
    Operand,
    Scalar,
    Static,
    describe,
    dtype_of,
    is_int,
    promote,
)
from weft.frontend.signatures import argument
from weft.ir import types as ir
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.views import constant_of
from weft.lang import random as meaning
from weft.lang.random import KEY, KEY_NAME, read_key
from weft.values import mutable


@mutable
class Stream:
    """What the words of the iteration that is lowered are made of, besides their numbers."""

    key: Value
    iteration: Value


def begin(cx: Lowering, indices: Sequence[Value], bounds: Sequence[tuple[Value, Value]]) -> None:
    """An iteration of the device loop begins, which has these indices; ``bounds`` are those of a
    loop with several."""
    if not any(arg.key == KEY for arg in cx.region.args):
        return  # nothing was drawn in rounds before
    b, span = cx.builder, cx.builder.span
    key = cx.read_scalar(cx.reached(KEY_NAME, Static(None, KEY, read_key)), span)
    wide = [b.op("arith.index_cast", v, type=ir.i64) for v in indices]
    iteration = wide[0]
    for value, (low, high) in zip(wide[1:], bounds[1:], strict=True):
        extent = high if constant_of(low) == 0 else b.op("arith.subi", high, low)
        extent = b.op("arith.index_cast", extent, type=ir.i64)
        iteration = b.addi(b.muli(iteration, extent), value)
    assert isinstance(key, Scalar)
    cx.stream = Stream(key.value, iteration)


def _words(cx: Lowering, count: int, span: Span) -> list[Value]:
    """The next ``count`` words (1, 2 or 4) of the iteration, i32."""
    b = cx.builder
    if cx.stream is None:
        cx.reached(KEY_NAME, Static(None, KEY, read_key))  # asks for the key
        raise KernelSyntaxError(
            "a random number decides how far a device loop goes", span,
            help="draw it in the host part: n = int(torch.randint(low, high, ()))",
        )  # fmt: skip
    first = b.constant(0, ir.i64)
    assert first.op is not None
    cx.draws[first.op] = cx.stream.iteration, count
    numbers = [first, *(b.op("arith.ori", first, b.constant(k, ir.i64)) for k in range(1, count))]
    return [b.op("math.philox", cx.stream.key, cx.stream.iteration, n, type=ir.i32)
            for n in numbers]  # fmt: skip


def _joined(b: Builder, words: Sequence[Value]) -> Value:
    """Two words as an i64, the high one first."""
    high, low = (b.op("arith.extui", w, type=ir.i64) for w in words)
    return b.op("arith.ori", b.op("arith.shli", high, b.constant(32, ir.i64)), low)


def _uniform(b: Builder, words: Sequence[Value], bits: int, type: ir.ScalarType) -> Value:
    """A float in [0, 1) of so many bits: 53 of two words, or up to 24 of the first."""
    whole, width = (_joined(b, words), 64) if bits > 32 else (words[0], 32)
    kept = b.op("arith.shrui", whole, b.constant(width - bits, whole.scalar))
    scaled = b.op("arith.sitofp", kept, type=type)
    return b.op("arith.mulf", scaled, b.constant(2.0**-bits, type))


def _dtype(x: Operand | None, check: Any, span: Span) -> Any:
    """The dtype that a draw names, ``float`` where it names none."""
    if x is None:
        return float
    try:
        return check(x.value if isinstance(x, Static) else x)
    except CompileError as error:  # said again with the user's own line
        message = error.message if isinstance(x, Static) else f"{describe(x)} is not a type"
        raise KernelTypeError(
            message, span, help=error.help or "write a dtype such as weft.f32, float or int"
        ) from None


def _random(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    b, span = cx.builder, cx.span(node)
    found = _dtype(argument(arguments, 0), lambda d: meaning.number_type(d, "random"), span)
    name, words = dtype_name(found), _words(cx, 1 + meaning.is_wide(found), span)
    if name == "f64" or (name == "float" and cx.scalars.float_type is ir.f64):
        return Scalar(_uniform(b, words, 53, ir.f64), name)
    if name == "float" or name in meaning.FLOAT_BITS:
        return Scalar(_uniform(b, words, meaning.FLOAT_BITS.get(name, 24), ir.f32), name)
    if name == "bool":
        return Scalar(b.op("arith.trunci", words[0], type=ir.i1), name)
    bits = Scalar(_joined(b, words), "i64") if len(words) == 2 else Scalar(words[0], "i32")
    return cx.scalars.cast(bits, name, span)


def _randn(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """By Box and Muller: one uniform number gives the radius, the other the angle."""
    b, span = cx.builder, cx.span(node)
    found = _dtype(argument(arguments, 0), meaning.float_type, span)
    name, wide = dtype_name(found), meaning.is_wide(found)
    words = _words(cx, 4 if wide else 2, span)
    type = cx.scalars.type(name)

    def number(value: float) -> Value:
        return b.constant(value, type)

    if type is ir.f64:
        shift = b.constant(11, ir.i64)
        kept, bits = b.op("arith.shrui", _joined(b, words[:2]), shift), 53
        turn, circle = _joined(b, words[2:]), 64
        size = b.op("arith.sitofp", kept, type=type)
    else:  # of a weak float, the high words
        turn, bits, circle = words[2 if wide else 1], 32, 32
        size = b.op("arith.uitofp", words[0], type=type)
    size = b.op("arith.mulf", size, number(2.0**-bits))
    size = b.op("arith.addf", size, number(2.0 ** -(bits + 1)))  # not 0
    radius = b.op("math.sqrt", b.op("arith.mulf", number(-2.0), b.op("math.log", size)))
    angle = b.op("arith.sitofp", turn, type=type)
    angle = b.op("arith.mulf", angle, number(2 * math.pi * 2.0**-circle))
    value = b.op("arith.mulf", radius, b.op("math.cos", angle))
    if name in STORAGE and STORAGE[name].is_storage:
        return cx.scalars.cast_exactly(Scalar(value, "f32"), name, span)
    return Scalar(value, name)


def _randint(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    b, span = cx.builder, cx.span(node)
    low, high = (cx.read_scalar(a, span) for a in arguments)
    dtypes = [dtype_of(low) or "", dtype_of(high) or ""]
    if not all(map(is_int, dtypes)):
        raise KernelTypeError("randint() of floats", span, help="write int(...) around the bounds")
    if isinstance(low, Static) and isinstance(high, Static):
        if high.value <= low.value:
            raise KernelValueError(
                f"randint({low.value}, {high.value}): no integer is between them", span,
                help="the first bound is less than the second",
            )  # fmt: skip
    else:
        fits = cx.scalars.truth(cx.scalars.compare("<", low, high, span), span)
        message = f"no integer is between the bounds of {ast.unparse(node)}"
        b.do("weft.assert", fits, message=message)
    begin, end = (cx.scalars.cast(cx.scalars.cast(v, "int", span), "i64", span).value
                  for v in (low, high))  # fmt: skip
    words = _words(cx, 2, span)
    scaled = _high_product(b, words, b.op("arith.subi", end, begin))
    value = cx.scalars.cast(Scalar(b.addi(begin, scaled), "i64"), "int", span)
    return cx.scalars.cast(value, promote(*dtypes), span)


def _high_product(b: Builder, words: Sequence[Value], range_: Value) -> Value:
    """The high 64 bits of the product of two words and ``range_``, unsigned, from four products of
    halves."""
    mask, half = b.constant(0xFFFFFFFF, ir.i64), b.constant(32, ir.i64)

    def high(x: Value) -> Value:
        return b.op("arith.shrui", x, half)

    def low(x: Value) -> Value:
        return b.op("arith.andi", x, mask)

    top, bottom = (b.op("arith.extui", w, type=ir.i64) for w in words)
    first = b.addi(b.muli(top, low(range_)), high(b.muli(bottom, low(range_))))
    second = b.addi(b.muli(bottom, high(range_)), low(first))
    return b.addi(b.addi(b.muli(top, high(range_)), high(first)), high(second))


HANDLERS: dict[str, Handler] = {"random": _random, "randn": _randn, "randint": _randint}


# --- the numbers of the words -------------------------------------------------------------------
_State = tuple[Value | None, int]  # what an iteration has drawn so far: a value and a number


def number(function: Function, draws: dict[Op, tuple[Value, int]]) -> None:
    """Gives each draw of ``draws`` (a constant that stands for the number of its first word; with
    the iteration, and how many words there are) its number, in place."""
    if draws:
        _Numbering(draws).block(function.body, {})


class _Numbering:
    def __init__(self, draws: dict[Op, tuple[Value, int]]) -> None:
        self.draws = draws

    def block(self, block: Block, states: dict[Value, _State]) -> dict[Value, _State]:
        """Numbers the draws in ``block``; gives what iterations have drawn at its end."""
        states = dict(states)
        ops, block.ops = block.ops, []
        b = Builder(block)
        for op in ops:
            if op in self.draws:
                self._draw(b, op, states)
            elif op.regions:
                self._inside(b, op, states)
            block.ops.append(op)
        return states

    def _draw(self, b: Builder, op: Op, states: dict[Value, _State]) -> None:
        """The words of a draw begin at a multiple of how many they are."""
        iteration, count = self.draws[op]
        base, offset = states.get(iteration, (None, 0))
        if base is None:
            start = -(-offset // count) * count
            op.attrs["value"] = start
            states[iteration] = None, start + count
            return
        b.span = op.span
        ahead = b.addi(base, b.constant(offset + count - 1, ir.i64))
        op.name, op.operands = "arith.andi", [ahead, b.constant(-count, ir.i64)]
        op.attrs.clear()
        states[iteration] = op.result, count

    def _inside(self, b: Builder, op: Op, states: dict[Value, _State]) -> None:
        """``op`` carries what iterations that began before it have drawn."""
        below = {inner for region in op.regions for inner in walk(region)}
        drawn = {self.draws[inner][0] for inner in below if inner in self.draws}
        outer = sorted((v for v in drawn if v.op not in below), key=lambda v: v.serial)
        if op.name == "scf.if":
            ends = [self.block(region, states) for region in op.regions]
            for value in outer:
                one, other = (end.get(value, (None, 0)) for end in ends)
                states[value] = one
                if one != other:
                    for region, state in zip(op.regions, (one, other), strict=True):
                        self._hand_on(region, state)
                    states[value] = self._result(op), 0
            return
        own = {v: s for v, s in states.items() if v not in outer}
        for value in outer:
            op.operands.append(self._value(b, states.get(value, (None, 0))))
            states[value] = self._result(op), 0
        for region in op.regions:
            for value in outer:
                region.args.append(Value(ir.i64, "drawn", region))
                own[value] = region.args[-1], 0
            ends_ = self.block(region, own)
            for value in outer:
                self._hand_on(region, ends_[value])

    def _hand_on(self, region: Block, state: _State) -> None:
        end = region.ops.pop()
        end.operands.append(self._value(Builder(region, end.span), state))
        region.ops.append(end)

    def _result(self, op: Op) -> Value:
        op.results.append(Value(ir.i64, "drawn", op))
        return op.results[-1]

    def _value(self, b: Builder, state: _State) -> Value:
        base, offset = state
        if base is None:
            return b.constant(offset, ir.i64)
        return b.addi(base, b.constant(offset, ir.i64)) if offset else base
