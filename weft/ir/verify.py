"""The verifier: ``verify`` holds a function against the table of operations.

It runs after every pass under test. Rules that follow from the table's signature words are checked
for all operations alike; what the words cannot say is one small rule for each operation below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from weft.errors import InternalError
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import CMPF, CMPI, COMBINERS, DIMENSIONS, OPS, SHUFFLES
from weft.ir.types import (
    LAYOUTS,
    SPACES,
    MemRefType,
    ScalarType,
    Type,
    compute_type,
    f32,
    f64,
    i1,
    i32,
    index,
)  # fmt: skip
from weft.ir.uniform import GROUP, WARP, divergent_wait

_CHECKS = {"weft.assert", "weft.bounds", "weft.check_race"}
# What schedules tell code generation of an operation (``schedule.marks``): which ones have it, and
# with what values.
_MARKS: dict[str, tuple[set[str], Callable[[Any], bool]]] = {
    "alone": ({"scf.parallel"}, lambda value: value is True),
    "chunks": ({"scf.parallel"}, lambda value: value is True),
    "counts": ({"scf.for"}, lambda value: value is True),
    "late": ({"arith.truncf"}, lambda value: value is True),
    "number": ({*_CHECKS, "weft.print"}, lambda value: isinstance(value, int) and value >= 0),
    "reassociate": (
        {"arith.addf", "arith.subf", "memref.atomic_rmw"}, lambda value: value is True,
    ),
    "part": (
        {"arith.addi", "arith.constant", "arith.mulf", "scf.if"},
        lambda value: value in ("begin", "end", "first", "work", "combine"),
    ),
    "poll": ({"scf.for", "scf.while"}, lambda value: value > 0 and value & (value - 1) == 0),
    "scalar": ({"scf.for"}, lambda value: value is True),
    "streaming": ({"memref.store"}, lambda value: value is True),
    "strips": ({"scf.for"}, lambda value: value > 0),
    "tail": ({"scf.for"}, lambda value: value is True),
    "warp_aggregate": ({"memref.atomic_rmw"}, lambda value: value is True),
}  # fmt: skip
_PYTHON_TYPES = {"bool": bool, "int": int, "index": int, "float": float}


def verify(function: Function, *, scheduled: bool = False) -> None:
    """Returns if ``function`` is valid; else raises ``InternalError``.

    The message reads ``IR of NAME: OP: RULE``, with the source line if the operation has a span.
    ``scheduled``: steps of a schedule for a grid are being applied, so that it may have what is
    valid there alone.
    """
    checker = _Checker(function, scheduled)
    for value in function.args:
        checker.type(None, value.type)
        checker.define(None, value)
    checker.block(None, function.body, "func.return")
    if GROUP in function.attrs and (problem := divergent_wait(function)) is not None:
        checker.fail(problem, "threads may part before they wait for each other here")


class _Checker:
    """One walk. ``visible`` holds the values that dominate this point, ``seen`` all so far."""

    def __init__(self, function: Function, scheduled: bool) -> None:
        self.function = function
        self.visible: set[Value] = set()
        self.seen: set[Value] = set()
        self.ops: set[int] = set()
        # Threads of a grid count in 32 bits.
        self.launched = scheduled or GROUP in function.attrs
        self.indices = (index, i32) if self.launched else (index,)

    def fail(self, op: Op | None, rule: str) -> NoReturn:
        where = f" (from {op.span.file}:{op.span.line})" if op and op.span is not None else ""
        name = f"{op.name}: " if op else ""
        raise InternalError(f"IR of {self.function.name}: {name}{rule}{where}")

    def check(self, op: Op, holds: bool, rule: str) -> None:
        if not holds:
            self.fail(op, rule)

    def define(self, op: Op | None, value: Value) -> None:
        if value in self.seen:
            self.fail(op, f"%{value.name} is defined twice")
        self.seen.add(value)
        self.visible.add(value)

    def type(self, op: Op | None, type: Type) -> None:
        if isinstance(type, ScalarType):
            return
        if type.layout not in LAYOUTS:
            self.fail(op, f"{type.layout!r} is not a layout")
        if type.space not in SPACES:
            self.fail(op, f"{type.space!r} is not a memory space")
        if type.rank == 0 and type.layout == "unit":
            self.fail(op, "a memref of rank 0 has no last stride, so no layout `unit`")
        if type.shape is not None and len(type.shape) != type.rank:
            self.fail(op, f"{type} has rank {type.rank}, but {len(type.shape)} sizes")

    def block(self, parent: Op | None, block: Block, terminator: str) -> None:
        """All of ``block``, which must end with ``terminator``."""
        if not block.ops or block.ops[-1].name != terminator:
            self.fail(parent, f"the region must end with {terminator}")
        defined: list[Value] = []
        for op in block.ops:
            if op.name not in OPS:
                self.fail(op, "is not in the table of operations")
            if OPS[op.name].terminator and op is not block.ops[-1]:
                self.fail(op, "a terminator must be the last of its block")
            self.operation(op)
            for value in op.results:
                self.define(op, value)
            defined += op.results
        self.visible.difference_update(defined)

    def operation(self, op: Op) -> None:
        row = OPS[op.name]
        if id(op) in self.ops:
            self.fail(op, "the same operation is in the function twice")
        self.ops.add(id(op))
        for k, value in enumerate(op.operands):
            if value not in self.visible:
                self.fail(op, f"operand {k}, %{value.name}, is not defined at this point")
        for value in op.results:
            self.type(op, value.type)
            self.check(op, value.owner is op, f"its result %{value.name} has another owner")
        for name in row.attrs:
            self.check(op, name in op.attrs, f"the attribute `{name}` is missing")
        self.signature(op, row.operands.split(), row.results.split())
        self.check(op, len(op.regions) == row.regions, f"must have {row.regions} regions")
        for name in op.attrs.keys() & _MARKS.keys():
            names, fits = _MARKS[name]
            holds = op.name in names and fits(op.attrs[name])
            self.check(op, holds, f"`{name}` = {op.attrs[name]!r} does not belong here")
        rule = _RULES.get(op.name)
        if rule:
            rule(self, op)

    def signature(self, op: Op, operands: list[str], results: list[str]) -> None:
        """Operand and result types against the words of the table's row."""
        bound: Type | None = None
        types = [v.type for v in op.operands]
        for k, (word, type) in enumerate(zip(_expand(self, op, operands), types, strict=True)):
            fits = type in self.indices if word == "index" else _matches(word, type)
            self.check(op, fits, f"operand {k} is {type}, must be {word}")
            if word.startswith("T"):
                self.check(op, bound in (None, type), f"operand {k} is {type}, must be {bound}")
                bound = type
        if results == ["?"]:
            return
        self.check(op, len(op.results) == len(results), f"must have {len(results)} results")
        for word, value in zip(results, op.results, strict=True):
            wanted = (bound,) if word == "T" else self.indices if word == "index" else (i1,)
            fits = value.type in wanted
            self.check(op, fits, f"the result is {value.type}, must be {wanted[0]}")

    def one_result(self, op: Op) -> Type:
        self.check(op, len(op.results) == 1, "must have 1 result")
        return op.results[0].type

    def same_types(self, op: Op, what: str, values: Sequence[Value], wanted: Sequence[Any]) -> None:
        given = [v.type for v in values]
        text = f"{what} are ({_list(given)}), must be ({_list(wanted)})"
        self.check(op, given == list(wanted), text)

    def index_types(self, op: Op, dims: int) -> list[Type]:
        """Of a loop's indices: those of its lower bounds."""
        return [v.type if v.type in self.indices else index for v in op.operands[:dims]]

    def region(self, op: Op, k: int, args: Sequence[Type], terminator: str) -> Op:
        """Checks region ``k`` with these block argument types, gives its terminator."""
        block = op.regions[k]
        self.same_types(op, f"the arguments of region {k}", block.args, args)
        for value in block.args:
            self.define(op, value)
        self.block(op, block, terminator)
        self.visible.difference_update(block.args)
        return block.terminator


def _list(types: Sequence[Any]) -> str:
    return ", ".join(map(str, types))


def _expand(c: _Checker, op: Op, words: list[str]) -> list[str]:
    """One word for each operand: ``word...`` stands for any number."""
    fixed = sum(not w.endswith("...") for w in words)
    repeated = len(words) - fixed
    count = len(op.operands)
    fits = count >= fixed if repeated else count == fixed
    c.check(op, fits, f"has {count} operands, must have {'at least ' * bool(repeated)}{fixed}")
    if repeated != 1:
        # scf.parallel has two repeated words; where one ends is said by `dims`, see its rule.
        return words if not repeated else ["any"] * count
    return [
        w
        for word in words
        for w in ([word[:-3]] * (count - fixed) if word.endswith("...") else [word])
    ]


def _matches(word: str, type: Type) -> bool:
    if word == "memref":
        return isinstance(type, MemRefType)
    if not isinstance(type, ScalarType):
        return False
    if word == "T:int":
        return type.is_integer
    if word == "T:float":
        return type in (f32, f64)
    if word == "i1":
        return type is i1
    return word in ("any", "T")


# --- what the signature words cannot say, for each operation -------------------------------------

Rule = Callable[[_Checker, Op], None]


def _constant(c: _Checker, op: Op) -> None:
    type, value = c.one_result(op), op.attrs["value"]
    c.check(op, isinstance(type, ScalarType), f"a literal of type {type}")
    assert isinstance(type, ScalarType)
    wanted = _PYTHON_TYPES[type.kind]
    fits = value.__class__ is wanted
    given = value.__class__.__name__
    c.check(op, fits, f"the value of type {type} is a Python {given}, must be a {wanted.__name__}")
    if type.kind in ("int", "index"):
        fits = -(1 << (type.bits - 1)) <= value < 1 << type.bits
        c.check(op, fits, f"{value} does not fit into {type}")


def _table(c: _Checker, op: Op) -> None:
    type, values = op.result.type, op.attrs["values"]
    fits = isinstance(type, ScalarType) and not type.is_storage and type is not i1
    c.check(op, fits, f"a table of {type}")
    assert isinstance(type, ScalarType)
    fits = isinstance(values, tuple) and {v.__class__ for v in values} == {_PYTHON_TYPES[type.kind]}
    c.check(op, fits, f"`values` must be a tuple of Python's numbers for {type}, one or more")
    if not type.is_float:
        fits = all(-(1 << (type.bits - 1)) <= v < 1 << (type.bits - 1) for v in values)
        c.check(op, fits, f"`values` must fit into {type}")


def _predicate(known: tuple[str, ...]) -> Rule:
    def rule(c: _Checker, op: Op) -> None:
        predicate = op.attrs["predicate"]
        c.check(op, predicate in known, f"{predicate!r} is not a predicate")

    return rule


def _cast(rule: Callable[[ScalarType, ScalarType], bool], text: str) -> Rule:
    def check(c: _Checker, op: Op) -> None:
        a, b = op.operands[0].type, c.one_result(op)
        fits = isinstance(a, ScalarType) and isinstance(b, ScalarType) and rule(a, b)
        c.check(op, fits, f"from {a} to {b}: {text}")

    return check


def _index_cast(c: _Checker, op: Op) -> None:
    a, b = op.operands[0].type, c.one_result(op)
    c.check(op, isinstance(b, ScalarType) and b.is_integer, f"from {a} to {b}: must be integers")
    one = c.launched or (a is index) != (b is index)
    c.check(op, one, f"from {a} to {b}: one of the two must be index")


def _fixed(t: ScalarType) -> bool:
    return t.kind in ("int", "bool")


def _access(c: _Checker, op: Op, k: int) -> MemRefType:
    """The memref at operand ``k``; what follows must be as many subscripts as it has dimensions."""
    type = op.operands[k].memref
    count = len(op.operands) - k - 1
    placed = {"offset", "align"} & op.attrs.keys()
    c.check(op, c.launched or not placed, "stands beside others in a function that a grid runs")
    c.check(op, count == type.rank, f"{count} subscripts, but {type} has rank {type.rank}")
    return type


def _load(c: _Checker, op: Op) -> None:
    c.same_types(op, "the results", op.results, [_access(c, op, 0).element])


def _store(c: _Checker, op: Op) -> None:
    c.same_types(op, "the values", op.operands[:1], [_access(c, op, 1).element])
    c.same_types(op, "the results", op.results, [])


def _combines(c: _Checker, op: Op, kind: Any, type: Type) -> None:
    c.check(op, kind in COMBINERS, f"{kind!r} is not a combiner")
    fits = (
        isinstance(type, ScalarType) and not type.is_storage and type.is_float == kind.endswith("f")
    )
    c.check(op, fits, f"`{kind}` does not combine {type}")


def _atomic_rmw(c: _Checker, op: Op) -> None:
    type = compute_type(_access(c, op, 1).element)
    c.same_types(op, "the values", op.operands[:1], [type])
    c.same_types(op, "the results", op.results, [type])
    _combines(c, op, op.attrs["kind"], type)
    c.check(op, isinstance(op.attrs["atomic"], bool), "`atomic` must be True or False")


def _atomic_cas(c: _Checker, op: Op) -> None:
    type = compute_type(_access(c, op, 2).element)
    c.same_types(op, "expected and desired", op.operands[:2], [type, type])
    c.same_types(op, "the results", op.results, [type])


def _dim(c: _Checker, op: Op) -> None:
    type, axis = op.operands[0].type, op.attrs["axis"]
    assert isinstance(type, MemRefType)
    fits = isinstance(axis, int) and 0 <= axis < type.rank
    c.check(op, fits, f"there is no axis {axis} in {type}")


def _alloca(c: _Checker, op: Op) -> None:
    type = c.one_result(op)
    fits = isinstance(type, MemRefType) and type.layout == "contiguous"
    if isinstance(type, MemRefType) and type.space:
        c.check(op, c.launched, "threads share memory in a function that a grid runs")
        c.check(op, op in c.function.body.ops, "shared memory is there before threads part")
    else:
        fits = fits and isinstance(type, MemRefType) and type.shape is not None
    c.check(op, fits, f"a local array has known sizes and is contiguous, not {type}")
    assert isinstance(type, MemRefType)
    count = 0 if type.shape is not None else type.rank
    c.check(op, len(op.operands) == count, f"{len(op.operands)} sizes, must be {count}")


def _flatten(c: _Checker, op: Op) -> None:
    type = op.operands[0].memref
    c.check(op, type.layout == "contiguous", f"{type} has gaps, or may have")
    c.same_types(op, "the results", op.results, [MemRefType(type.element, 1, space=type.space)])


def _parallel(c: _Checker, op: Op) -> None:
    dims, kinds = op.attrs["dims"], op.attrs["kinds"]
    c.check(op, isinstance(dims, int) and dims >= 0, f"`dims` is {dims!r}, must be a count")
    c.check(op, isinstance(kinds, tuple), f"`kinds` is {kinds!r}, must be a tuple")
    count = 3 * dims + len(kinds)
    c.check(op, len(op.operands) == count, f"has {len(op.operands)} operands, must have {count}")
    indices = c.index_types(op, dims)
    c.same_types(op, "bounds and steps", op.operands[: 3 * dims], indices * 3)
    types = [v.type for v in op.operands[3 * dims :]]
    for kind, type in zip(kinds, types, strict=True):
        _combines(c, op, kind, type)
    c.same_types(op, "the results", op.results, types)
    reduce = c.region(op, 0, indices, "scf.reduce")
    c.same_types(reduce, "the contributions", reduce.operands, types)
    if "vector" in op.attrs:
        rows, copies, lanes = op.attrs["vector"]
        fits = not kinds and dims == (2 if rows > 1 else dims) in (1, 2)
        c.check(op, fits, f"vectors are along one of 1 or 2 indices, and no sum: {dims}, {kinds}")
        c.check(op, copies % lanes == 0, f"{copies} iterations are no vectors of {lanes}")
    if "chunks" in op.attrs:
        c.check(op, dims == 1 and not kinds, f"chunks have one number and no sum: {dims}, {kinds}")


def _for(c: _Checker, op: Op) -> None:
    types = [v.type for v in op.operands[3:]]
    c.same_types(op, "the results", op.results, types)
    indices = c.index_types(op, 1)
    c.same_types(op, "bounds and step", op.operands[:3], indices * 3)
    end = c.region(op, 0, [*indices, *types], "scf.yield")
    c.same_types(end, "the carried values", end.operands, types)


def _if(c: _Checker, op: Op) -> None:
    types = [v.type for v in op.results]
    for k in range(2):
        end = c.region(op, k, [], "scf.yield")
        c.same_types(end, "the values of this branch", end.operands, types)


def _while(c: _Checker, op: Op) -> None:
    carried, types = [v.type for v in op.operands], [v.type for v in op.results]
    end = c.region(op, 0, carried, "scf.condition")
    c.same_types(end, "the values handed on", end.operands[1:], types)
    end = c.region(op, 1, types, "scf.yield")
    c.same_types(end, "the carried values", end.operands, carried)


def _register(c: _Checker, op: Op) -> None:
    c.check(op, c.launched, "stands in a function that a grid runs: with the attribute `group`")
    dimension = op.attrs["dimension"]
    c.check(op, dimension in DIMENSIONS, f"{dimension!r} is not a dimension")
    c.same_types(op, "the results", op.results, [i32])


_LANES = (1, 2, 4, 8, 16, 32)


def _copies_wait(c: _Checker, op: Op) -> None:
    c.check(op, c.launched, "stands in a function that a grid runs: with the attribute `group`")


def _barrier(c: _Checker, op: Op) -> None:
    c.check(op, c.launched, "stands in a function that a grid runs: with the attribute `group`")
    width, group = op.attrs["width"], c.function.attrs.get(GROUP, 0)
    block = isinstance(width, int) and width >= WARP and group > width and group % width == 0
    c.check(
        op,
        block or width in (0, *_LANES),
        f"`width` is {width!r}: lanes of a warp, threads of one of several blocks, or 0",
    )


def _shuffle(c: _Checker, op: Op) -> None:
    c.check(op, c.launched, "stands in a function that a grid runs: with the attribute `group`")
    c.check(op, op.attrs["width"] in _LANES, "lanes of a warp alone exchange values")
    c.check(op, op.attrs["mode"] in SHUFFLES, f"{op.attrs['mode']!r} is not a shuffle")
    c.same_types(op, "places", op.operands[1:], [i32])


def _assert(c: _Checker, op: Op) -> None:
    c.check(op, isinstance(op.attrs["message"], str), "`message` must be a string")


def _bounds(c: _Checker, op: Op) -> None:
    c.check(op, isinstance(op.attrs["tensor"], str), "`tensor` must be a string")
    c.check(op, isinstance(op.attrs["axis"], int), "`axis` must be a number")


def _chunks(c: _Checker, op: Op) -> None:
    c.same_types(op, "the wished chunks", op.operands[2:], [f64])
    c.same_types(op, "the results", op.results, [index, index])


def _copies(c: _Checker, op: Op) -> None:
    arrays = [v.memref for v in op.operands[1:]]
    for type in arrays:
        c.check(op, type.layout == "contiguous" and type.shape is None, f"{type} is no tensor")
    copies = [MemRefType(type.element, type.rank + 1, "strided") for type in arrays]
    c.same_types(op, "the results", op.results, [index, *copies])


def _copy_of(c: _Checker, op: Op) -> None:
    copies, _, array = op.operands
    made = copies.op
    c.check(op, made is not None and made.name == "weft.copies", "has copies by weft.copies")
    c.same_types(op, "the results", op.results, [array.type])


def _check_race(c: _Checker, op: Op) -> None:
    type = op.operands[0].memref
    count = len(op.operands) - 2 - type.rank
    c.check(op, count >= 3 and count % 3 == 0, f"{len(op.operands)} operands for rank {type.rank}")
    c.check(op, isinstance(op.attrs["kind"], str), "`kind` must be a string")
    places = (*op.attrs["own"], *op.attrs["against"])
    fits = len(op.attrs["own"]) in (1, 2) and all(0 <= k < op.attrs["words"] for k in places)
    c.check(op, fits, "`own` and `against` must be places among the `words`")


def _print(c: _Checker, op: Op) -> None:
    parts = op.attrs["parts"]
    fits = isinstance(parts, tuple) and all(p is None or isinstance(p, str) for p in parts)
    c.check(op, fits, "`parts` must be a tuple of strings and None")
    count = parts.count(None)
    text = f"{count} values are to be printed, {len(op.operands)} are given"
    c.check(op, count == len(op.operands), text)


_RULES: dict[str, Rule] = {
    "arith.constant": _constant,
    "arith.table": _table,
    "arith.cmpi": _predicate(CMPI),
    "arith.cmpf": _predicate(CMPF),
    "arith.extsi": _cast(lambda a, b: _fixed(b) and a.bits < b.bits, "must widen, to iN"),
    "arith.extui": _cast(lambda a, b: _fixed(b) and a.bits < b.bits, "must widen, to iN"),
    "arith.trunci": _cast(
        lambda a, b: _fixed(a) and _fixed(b) and a.bits > b.bits, "must narrow, iN to iN"
    ),
    "arith.index_cast": _index_cast,
    "arith.sitofp": _cast(lambda a, b: _fixed(a) and b in (f32, f64), "must be iN to f32 or f64"),
    "arith.uitofp": _cast(lambda a, b: _fixed(a) and b in (f32, f64), "must be iN to f32 or f64"),
    "arith.fptosi": _cast(lambda a, b: _fixed(b), "must be to iN"),
    "arith.fptoui": _cast(lambda a, b: _fixed(b), "must be to iN"),
    "arith.extf": _cast(
        lambda a, b: a.is_float and b.is_float and a.bits < b.bits, "must widen a float"
    ),
    "arith.truncf": _cast(
        lambda a, b: a.is_float and b.is_float and a.bits > b.bits, "must narrow a float"
    ),
    "arith.bitcast": _cast(
        lambda a, b: a.bits == b.bits and index not in (a, b), "must keep the width"
    ),
    "memref.load": _load,
    "memref.store": _store,
    "memref.atomic_rmw": _atomic_rmw,
    "memref.atomic_cas": _atomic_cas,
    "memref.dim": _dim,
    "memref.alloca": _alloca,
    "memref.flatten": _flatten,
    "scf.parallel": _parallel,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    **dict.fromkeys(("gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim"), _register),
    "gpu.barrier": _barrier,
    "gpu.copies_wait": _copies_wait,
    "gpu.shuffle": _shuffle,
    "weft.assert": _assert,
    "weft.bounds": _bounds,
    "weft.check_race": _check_race,
    "weft.print": _print,
    "weft.chunks": _chunks,
    "weft.copies": _copies,
    "weft.copy_of": _copy_of,
}
