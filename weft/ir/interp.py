"""The reference interpreter: slow, obvious, the oracle that passes and back ends are held to.

Values are Python objects: ``bool`` for i1, ``int`` (signed, wrapped to its width) for iN and
index, ``numpy.float16/32/64`` for f16/f32/f64; a bf16 or a float of
8 bits is a ``numpy.float32`` that it can hold.
Memrefs are numpy arrays with any strides; memrefs of these are ``uint16`` and ``uint8``
arrays of the bits.
Every operation is computed in its own type. ``RULES`` has one rule for each row of the table.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from weft.errors import (
    InternalError,
    KernelAssertionError,
    KernelIndexError,
    KernelOverflowError,
    KernelTypeError,
    RaceError,
)  # fmt: skip
from weft.ir.chunks import chunks
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import COMBINERS
from weft.ir.scalar import SCALAR_RULES, bits_of, from_bits, literal, to_float, wrap
from weft.ir.types import ScalarType, Type, bf16, f8e4m3, f8e5m2

_NUMPY: dict[str, tuple[str, ...]] = {
    "i1": ("bool",), "i8": ("int8", "uint8"), "i16": ("int16", "uint16"),
    "i32": ("int32", "uint32"), "i64": ("int64", "uint64"), "index": ("int64",),
    "f8e4m3": ("uint8",), "f8e5m2": ("uint8",), "f16": ("float16",), "bf16": ("uint16",),
    "f32": ("float32",), "f64": ("float64",),
}  # fmt: skip
# Called after each operation with the operation, its operands and its results.
Watch = Callable[[Op, Sequence[Any], Sequence[Any]], object]
_AS_BITS = (bf16, f8e4m3, f8e5m2)  # which numpy has no type for
_LINE = 16  # elements of a line of memory
_UNDEFINED = {"float": np.nan, "int": 77, "index": 7777777, "bool": True}


def run(
    function: Function,
    args: Sequence[Any],
    *,
    races: bool = False,
    order: str = "forward",
    seed: int = 0,
    watch: Watch | None = None,
    threads: int = 1,
) -> None:
    """Runs ``function`` on ``args``: a numpy array for each memref, a number for each scalar.

    ``order`` is the order in which scf.parallel's iterations run: "forward", "reverse" or "random"
    (by ``seed``). With ``races``, two iterations of one scf.parallel that touch one element raise
    ``RaceError`` if one of them at least writes it non-atomically. ``watch`` is called after each
    operation. ``threads``: how many there are said to be (``weft.threads``).
    Raises ``KernelIndexError`` for a subscript out of range, whether or not the function checks it,
    ``KernelAssertionError`` for a failing assertion, and ``KernelTypeError`` for arguments that do
    not fit.
    """
    if order not in ("forward", "reverse", "random"):
        raise ValueError(f"order is {order!r}, must be forward, reverse or random")
    machine = Machine(races, order, random.Random(seed), watch, threads)
    with np.errstate(all="ignore"):
        machine.block(function.body, checked(function, args))


def evaluate(op: Op, operands: Sequence[Any]) -> Any:
    """The result of one pure arith or math operation on values as this module has them.

    Constant folding calls it, so that folding and running agree in every bit.
    """
    with np.errstate(all="ignore"):
        return SCALAR_RULES[op.name](op, *operands)


class Machine:
    """The state of one run: values by SSA value, the parallel loops around this point."""

    def __init__(
        self, races: bool, order: str, random: random.Random, watch: Watch | None = None,
        threads: int = 1,
    ) -> None:  # fmt: skip
        self.values: dict[Value, Any] = {}
        self.races = races
        self.order = order
        self.watch, self.threads = watch, threads
        self.random = random
        self.loops: list[Touches] = []
        # Local arrays stay alive to the end: an address is never used for two of them.
        self.locals: list[np.ndarray[Any, Any]] = []
        # What weft.check_race noted: by address and place, an iteration.
        self.noted: dict[int, dict[int, int]] = {}
        # Of a thread in a grid: its place, by operation and dimension, and its block's arrays.
        self.registers: dict[tuple[str, str], int] = {}
        self.shared: dict[Op, Any] = {}
        # What it has stored with the attribute `copies`, and did not wait for.
        self.copies: list[tuple[Any, tuple[int, ...], Any]] = []

    def block(self, block: Block, args: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Runs ``block`` and gives the operands of its terminator."""
        self.values.update(zip(block.args, args, strict=True))
        result: Any = ()
        for op in block.ops:
            operands = [self.values[v] for v in op.operands]
            result = RULES[op.name](self, op, *operands)
            if len(op.results) == 1:
                result = (result,)
            if op.results:
                self.values.update(zip(op.results, result, strict=True))
            if self.watch is not None:
                self.watch(op, operands, result if op.results else ())
        return result

    def element(
        self, op: Op, memref: Any, subscripts: Sequence[int], writes: bool
    ) -> tuple[int, ...]:
        """The checked subscripts; notes the access. ``writes`` means non-atomically."""
        if "offset" in op.attrs:
            subscripts = (*subscripts[:-1], subscripts[-1] + op.attrs["offset"])
        for axis, (subscript, extent) in enumerate(zip(subscripts, memref.shape, strict=True)):
            if not 0 <= subscript < extent:
                raise KernelIndexError(
                    f"subscript {subscript} is out of range for axis {axis} of size {extent}",
                    op.span,
                )
        align = op.attrs.get("align", 1)
        if self.loops or align > 1:
            pairs = zip(subscripts, memref.strides, strict=True)
            address = memref.__array_interface__["data"][0] + sum(s * t for s, t in pairs)
            assert address % align == 0, f"{subscripts} is not at a multiple of {align} bytes"
            for loop in self.loops:
                loop.touch(op, address, writes)
        return tuple(subscripts)


class Touches(Protocol):
    """What is told of each access to memory."""

    def touch(self, op: Op, address: int, writes: bool) -> None: ...


class _Touched:
    """Which iterations of one execution of an scf.parallel touched each address."""

    def __init__(self) -> None:
        self.iteration: tuple[int, ...] = ()
        self.touched: dict[int, list[tuple[int, ...]]] = {}  # the first two iterations that did
        self.written: dict[int, tuple[int, ...]] = {}

    def touch(self, op: Op, address: int, writes: bool) -> None:
        mine = self.iteration
        others = [self.written[address]] if address in self.written else []
        if writes:
            others += self.touched.get(address, [])
        for other in others:
            if other != mine:
                raise RaceError(
                    f"iterations {other} and {mine} touch the same element, and one writes it",
                    op.span,
                )
        seen = self.touched.setdefault(address, [])
        if len(seen) < 2 and mine not in seen:
            seen.append(mine)
        if writes:
            self.written[address] = mine


# --- arguments and elements --------------------------------------------------------------------


def checked(function: Function, args: Sequence[Any]) -> list[Any]:
    """The arguments as the interpreter has them. Raises ``KernelTypeError``."""
    if len(args) != len(function.args):
        raise KernelTypeError(f"{len(function.args)} arguments are needed, got {len(args)}")
    pairs = zip(function.args, args, strict=True)
    return [_argument(value.type, arg, value.name) for value, arg in pairs]


def _argument(type: Type, arg: Any, name: str) -> Any:
    if isinstance(type, ScalarType):
        return np.dtype(_NUMPY[type.name][0]).type(arg) if type.is_float else wrap(int(arg), type)
    if not isinstance(arg, np.ndarray) or arg.dtype.name not in _NUMPY[type.element.name]:
        got = arg.dtype if isinstance(arg, np.ndarray) else arg.__class__.__name__
        raise KernelTypeError(f"`{name}` must be a numpy array for {type}, got {got}")
    if arg.ndim != type.rank or type.shape not in (None, arg.shape):
        raise KernelTypeError(f"`{name}` must be a {type}, got shape {arg.shape}")
    steps = [s for s, n in zip(arg.strides, arg.shape, strict=True) if n != 1]
    unit = not arg.size or not type.rank or arg.shape[-1] == 1 or steps[-1] == arg.itemsize
    if type.layout == "contiguous" and not arg.flags.c_contiguous:
        raise KernelTypeError(f"`{name}` must be contiguous, as {type} says")
    if type.layout == "unit" and not unit:
        raise KernelTypeError(f"the last stride of `{name}` must be 1, as {type} says")
    return arg


def _read(type: ScalarType, element: Any) -> Any:
    """A numpy scalar from memory as a value of the interpreter."""
    if type in _AS_BITS:
        return from_bits(int(element), type)
    return element if type.is_float else wrap(int(element), type)


def _written(type: ScalarType, dtype: Any, value: Any) -> Any:
    """A value as numpy scalar to be put into memory of ``dtype``."""
    if type in _AS_BITS:
        return dtype.type(bits_of(value, type))
    if type.kind in ("int", "index"):
        return np.array(value, dtype=np.int64).astype(dtype)[()]  # astype wraps
    return dtype.type(value)


# --- memory ------------------------------------------------------------------------------------


def _load(m: Machine, op: Op, memref: Any, *subscripts: int) -> Any:
    at = m.element(op, memref, subscripts, writes=False)
    return _read(op.operands[0].memref.element, memref[at])


def _store(m: Machine, op: Op, value: Any, memref: Any, *subscripts: int) -> tuple[()]:
    at = m.element(op, memref, subscripts, writes=True)
    stored = _written(op.operands[1].memref.element, memref.dtype, value)
    if "copies" in op.attrs:  # which comes when it is waited for: until then it is anything
        m.copies.append((memref, at, stored))
        stored = np.array(-1, f"i{memref.itemsize}").view(memref.dtype)
    memref[at] = stored
    return ()


def _copies_wait(m: Machine, op: Op) -> tuple[()]:
    for memref, at, stored in m.copies:
        memref[at] = stored
    m.copies.clear()
    return ()


def _atomic_rmw(m: Machine, op: Op, value: Any, memref: Any, *subscripts: int) -> Any:
    at = m.element(op, memref, subscripts, writes=not op.attrs["atomic"])
    element, type = op.operands[1].memref.element, op.result.type
    old = _widened(element, _read(element, memref[at]))
    new = _narrowed(element, combine(op.attrs["kind"], type, old, value))
    memref[at] = _written(element, memref.dtype, new)
    return old


def _atomic_cas(m: Machine, op: Op, expected: Any, desired: Any, memref: Any, *subs: int) -> Any:
    at = m.element(op, memref, subs, writes=False)
    element = op.operands[2].memref.element
    old = _read(element, memref[at])
    # Equal means equal bits, as the processor compares: -0.0 is not 0.0, and a NaN is itself.
    if bits_of(old, element) == bits_of(_narrowed(element, expected), element):
        memref[at] = _written(element, memref.dtype, _narrowed(element, desired))
    return _widened(element, old)


def _widened(element: ScalarType, value: Any) -> Any:
    """An element's value in its compute type: narrow floats are computed with in f32."""
    return np.float32(value) if element.is_storage else value


def _narrowed(element: ScalarType, value: Any) -> Any:
    return to_float(value, element) if element.is_storage else value


def _undefined(element: ScalarType) -> Any:
    """What stands in memory of undefined contents: something that a test will notice."""
    dtype = np.dtype(_NUMPY[element.name][0])
    return _written(element, dtype, literal(_UNDEFINED[element.kind], element))


def _alloca(m: Machine, op: Op, *sizes: int) -> Any:
    type = op.result.memref
    if op in m.shared:
        return m.shared[op]
    array = np.full(sizes if type.shape is None else type.shape, _undefined(type.element))
    m.locals.append(array)
    if type.space:
        m.shared[op] = array
    return array


def _copies(m: Machine, op: Op, count: int, *arrays: Any) -> tuple[Any, ...]:
    made = []
    for array, value in zip(arrays, op.operands[1:], strict=True):
        copies = np.empty((count if count > 1 else 0, *array.shape), array.dtype)
        copies[...] = _undefined(value.memref.element)
        m.locals.append(copies)
        made.append(copies)
    return (count, *made)


def combine(kind: str, type: Type, a: Any, b: Any) -> Any:
    """One step of a reduction of values of ``type`` by the combiner ``kind``."""
    assert kind in COMBINERS
    assert isinstance(type, ScalarType)
    return SCALAR_RULES[f"arith.{kind}"](Op(f"arith.{kind}", [], [type]), a, b)


# --- control -----------------------------------------------------------------------------------


def _terminator(m: Machine, op: Op, *operands: Any) -> tuple[Any, ...]:
    return operands


def unpacked(op: Op, values: tuple[Any, ...]) -> Any:
    """One result stands for itself, several are a tuple: as ``Machine.block`` expects."""
    return values[0] if len(op.results) == 1 else values


def _parallel(m: Machine, op: Op, *operands: Any) -> Any:
    dims, kinds = op.attrs["dims"], op.attrs["kinds"]
    bounds = zip(*(operands[k * dims : (k + 1) * dims] for k in range(3)), strict=True)
    iterations = list(itertools.product(*(range(*b) for b in bounds)))
    rows, copies, _ = op.attrs.get("vector", (0, 0, 0))
    if len(iterations) > rows * copies > 0 or (
        len(iterations) < rows * copies and "masked" not in op.attrs
    ):
        raise InternalError(f"a loop of {rows * copies} iterations has {len(iterations)}")
    if m.order == "reverse":
        iterations.reverse()
    elif m.order == "random":
        m.random.shuffle(iterations)
    totals = list(operands[3 * dims :])
    touched = _Touched()
    if m.races:
        m.loops.append(touched)
    for iteration in iterations:
        touched.iteration = iteration
        contributions = m.block(op.regions[0], iteration)
        for k, (kind, part) in enumerate(zip(kinds, contributions, strict=True)):
            totals[k] = combine(kind, op.results[k].type, totals[k], part)
    if m.races:
        m.loops.pop()
    return unpacked(op, tuple(totals))


def _for(m: Machine, op: Op, lower: int, upper: int, step: int, *carried: Any) -> Any:
    for i in range(lower, upper, step):
        carried = m.block(op.regions[0], (i, *carried))
    return unpacked(op, carried)


def _if(m: Machine, op: Op, condition: bool) -> Any:
    return unpacked(op, m.block(op.regions[0 if condition else 1]))


def _while(m: Machine, op: Op, *carried: Any) -> Any:
    while True:
        go_on, *values = m.block(op.regions[0], carried)
        if not go_on:
            return unpacked(op, tuple(values))
        carried = m.block(op.regions[1], values)


def _register(m: Machine, op: Op) -> int:
    return m.registers[op.name, op.attrs["dimension"]]


def _wait(m: Machine, op: Op, *operands: Any) -> Any:
    raise InternalError(f"{op.name}: there is one thread here, and no other to wait for")


# --- checks and printing -------------------------------------------------------------------------


def _numbers(op: Op, values: Sequence[Any]) -> list[Any]:
    """Values as Python's numbers: those that ``op`` marks are unsigned."""
    marked = op.attrs.get("unsigned", ())
    return [
        v % (1 << 64) if k in marked else float(v) if isinstance(v, np.floating) else v
        for k, v in enumerate(values)
    ]


def _assert(m: Machine, op: Op, condition: bool, *operands: Any) -> tuple[()]:
    if not condition:
        message = op.attrs["message"]
        if operands:
            message = message.format(*_numbers(op, operands))
        error = KernelOverflowError if "overflow" in op.attrs else KernelAssertionError
        raise error(message, op.span)
    return ()


def _bounds(m: Machine, op: Op, subscript: int, extent: int) -> tuple[()]:
    if not 0 <= subscript < extent:
        raise KernelIndexError(
            f"subscript {subscript} is out of range for axis {op.attrs['axis']} "
            f"of `{op.attrs['tensor']}`, which has size {extent}",
            op.span,
        )
    return ()


def _check_race(m: Machine, op: Op, memref: Any, iteration: int, *rest: int) -> tuple[()]:
    pairs = zip(rest, memref.strides, strict=False)
    address = memref.__array_interface__["data"][0] + sum(s * t for s, t in pairs)
    noted = m.noted.setdefault(address, {})
    own = op.attrs["own"]
    met = [noted.setdefault(own[0], iteration)] if len(own) == 1 else []
    if len(own) == 2 and noted.setdefault(own[0], iteration) != iteration:
        noted.setdefault(own[1], iteration)
    met += [noted[place] for place in op.attrs["against"] if place in noted]
    for other in met:
        if other != iteration:
            raise RaceError(
                f"iterations {other} and {iteration} meet where the latter {op.attrs['kind']}",
                op.span,
            )
    return ()


def _print(m: Machine, op: Op, *operands: Any) -> tuple[()]:
    forms = op.attrs.get("formats") or [""] * len(operands)
    texts = map(format, _numbers(op, operands), forms)
    print("".join(next(texts) if part is None else part for part in op.attrs["parts"]), end="")
    return ()


def _scalar(rule: Callable[..., Any]) -> Callable[..., Any]:
    def run(m: Machine, op: Op, *operands: Any) -> Any:
        return rule(op, *operands)

    return run


RULES: dict[str, Callable[..., Any]] = {
    **{name: _scalar(rule) for name, rule in SCALAR_RULES.items()},
    "memref.load": _load,
    "memref.store": _store,
    "memref.atomic_rmw": _atomic_rmw,
    "memref.atomic_cas": _atomic_cas,
    "memref.dim": lambda m, op, memref: memref.shape[op.attrs["axis"]],
    "memref.flatten": lambda m, op, memref: memref.reshape(-1),
    "memref.alloca": _alloca,
    "scf.parallel": _parallel,
    "scf.reduce": _terminator,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "scf.condition": _terminator,
    "scf.yield": _terminator,
    "func.return": _terminator,
    **{f"gpu.{name}": _register for name in ("thread_id", "block_id", "block_dim", "grid_dim")},
    "gpu.barrier": _wait,
    "gpu.copies_wait": _copies_wait,
    "gpu.shuffle": _wait,
    "weft.assert": _assert,
    "weft.bounds": _bounds,
    "weft.check_race": _check_race,
    "weft.print": _print,
    "weft.chunks": lambda m, op, total, row, wished: chunks(total, row, float(wished)),
    "weft.copies": _copies,
    "weft.copy_of": lambda m, op, copies, k, array: copies[k] if len(copies) else array,
    "weft.prefetch": lambda m, op, *operands: None,
    "weft.rows_follow": lambda m, op, *operands: False,
    "weft.threads": lambda m, op: m.threads,
    "weft.rare": lambda m, op: True,
    "weft.to_line": lambda m, op, memref, *subscripts: -sum(subscripts) % _LINE,
}
