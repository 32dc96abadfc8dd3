"""The objects that the IR is made of: values, operations, blocks and functions.

Plain slotted objects. There are no use lists: a pass walks a function once, from top to bottom,
carries a substitution and builds a new one (see ``builder.Rewriter``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from weft.ir.types import MemRefType, ScalarType, Type

_serials = itertools.count()


class Value:
    """An SSA value: the result of an operation or an argument of a block.

    ``name`` is a hint for printing (the Python variable it came from), not an identity. ``serial``
    orders values by when they were made: what is sorted is so in each process, unlike by address.
    """

    __slots__ = ("name", "owner", "serial", "type")

    def __init__(self, type: Type, name: str = "", owner: Op | Block | None = None) -> None:
        self.type = type
        self.name = name
        self.owner = owner
        self.serial = next(_serials)

    @property
    def op(self) -> Op | None:
        """The operation whose result it is; None for an argument of a block."""
        return self.owner if isinstance(self.owner, Op) else None

    @property
    def scalar(self) -> ScalarType:
        """The type of a value that is known to be a scalar."""
        assert isinstance(self.type, ScalarType)
        return self.type

    @property
    def memref(self) -> MemRefType:
        """The type of a value that is known to be a memref."""
        assert isinstance(self.type, MemRefType)
        return self.type

    def __repr__(self) -> str:
        return f"<%{self.name or '?'}: {self.type}>"


class Op:
    """One operation. ``name`` is a key of ``ops.OPS``; ``span`` says which source text it is."""

    __slots__ = ("attrs", "name", "operands", "regions", "results", "span")

    def __init__(
        self,
        name: str,
        operands: list[Value],
        result_types: list[Type] | tuple[Type, ...] = (),
        attrs: dict[str, Any] | None = None,
        regions: list[Block] | None = None,
        span: Any = None,
    ) -> None:
        self.name = name
        self.operands = operands
        self.results = [Value(t, "", self) for t in result_types] if result_types else []
        self.attrs = attrs if attrs is not None else {}
        self.regions = regions if regions is not None else []
        self.span = span

    @property
    def result(self) -> Value:
        (value,) = self.results
        return value

    @property
    def body(self) -> Block:
        """The region of a loop."""
        return self.regions[0]

    @property
    def operand(self) -> Value:
        """The operand of an operation that has one."""
        (value,) = self.operands
        return value

    @property
    def left(self) -> Value:
        """The first one of two operands."""
        return self.operands[0]

    @property
    def right(self) -> Value:
        """The second one of two operands."""
        return self.operands[1]

    @property
    def last(self) -> Value:
        """The last operand."""
        return self.operands[-1]

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Block:
    """A list of operations that ends with a terminator, and the arguments it is entered with.

    A region of an operation is always exactly one block: control flow is structured.
    """

    __slots__ = ("args", "ops")

    def __init__(self, arg_types: list[Type] | tuple[Type, ...] = ()) -> None:
        self.args = [Value(t, owner=self) for t in arg_types]
        self.ops: list[Op] = []

    @property
    def terminator(self) -> Op:
        return self.ops[-1]


class Function:
    """One device loop: arguments (memrefs and scalars), a body, no results.

    What a loop reduces into is a memref argument of rank 0. ``attrs`` may hold ``"kernel"`` (the
    Python function's name), ``"float"`` (the kernel's own float, ``"f32"`` or ``"f64"``) and
    ``"rows"`` (which arguments must not share memory: ``overlap.refuse_rows``); of what is
    compiled, ``"noalias"`` (no memory written through one argument is accessed through another),
    ``"strict_math"`` and ``"lines"`` (only where it is so).
    """

    __slots__ = ("attrs", "body", "name", "span")

    def __init__(
        self,
        name: str,
        arg_types: list[Type] | tuple[Type, ...],
        arg_names: list[str] | tuple[str, ...] = (),
        attrs: dict[str, Any] | None = None,
        span: Any = None,
    ) -> None:
        self.name = name
        self.body = Block(arg_types)
        for value, hint in zip(self.body.args, arg_names, strict=False):
            value.name = hint
        self.attrs = attrs if attrs is not None else {}
        self.span = span

    @property
    def args(self) -> list[Value]:
        return self.body.args

    @property
    def strict(self) -> bool:
        """Whether arithmetic stays as it is written (``strict_math``)."""
        return bool(self.attrs.get("strict_math"))

    @property
    def lined(self) -> bool:
        """Whether machine code says which source lines it comes from (``Options.lines``)."""
        return bool(self.attrs.get("lines"))

    def without_body(self) -> Function:
        types, names = [a.type for a in self.args], [a.name for a in self.args]
        return Function(self.name, types, names, dict(self.attrs), self.span)


def below(op: Op) -> Iterator[Op]:
    """``op`` itself, and every operation inside it."""
    yield op
    for region in op.regions:
        yield from walk(region)


def walk(block: Block) -> Iterator[Op]:
    """Every operation below ``block`` in program order, an operation before what is inside it."""
    # Generators in each other would hand every operation up through all of them.
    open_ = [iter(block.ops)]
    while open_:
        for op in open_[-1]:
            yield op
            if op.regions:
                open_ += [iter(region.ops) for region in reversed(op.regions)]
                break
        else:
            open_.pop()


def parents(block: Block) -> dict[Op | Block, Op | None]:
    """The operation around each operation and block below ``block``, and around itself: None."""
    found: dict[Op | Block, Op | None] = {block: None}
    for op in walk(block):
        for region in op.regions:
            found[region] = op
            found |= dict.fromkeys(region.ops, op)
    return dict.fromkeys(block.ops) | found


def defined(blocks: Iterable[Block]) -> set[Value]:
    """The values made in ``blocks``: arguments and results."""
    found: set[Value] = set()
    for block in blocks:
        found.update(block.args)
        for op in walk(block):
            found.update(op.results)
            for region in op.regions:
                found.update(region.args)
    return found


def inputs(op: Op) -> list[Value]:
    """What ``op`` and the operations in it use and do not make themselves."""
    if not op.regions:
        return op.operands
    inside = defined(op.regions)
    used = [v for region in op.regions for o in walk(region) for v in o.operands]
    return [*op.operands, *(v for v in used if v not in inside)]


def slice_of(value: Value, block: Block, may: Callable[[Op], bool]) -> list[Op] | None:
    """The operations directly in ``block`` that compute ``value``, in their order. None where one
    of them is not as ``may`` asks."""
    own, found, waiting = set(block.ops), set[Op](), [value]
    while waiting:
        op = waiting.pop().op
        if op is not None and op in own and op not in found:
            if not may(op):
                return None
            found.add(op)
            waiting += op.operands
    return [op for op in block.ops if op in found]
