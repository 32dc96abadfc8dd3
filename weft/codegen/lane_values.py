"""Values of a register tile: which instances of iterations each has, and their names.

A value that no lane and no jammed iteration sees differently is one scalar; one that depends on the
jammed index alone is a scalar for each of its iterations; an index that grows evenly with the lane
is the scalar of the first lane (the vector is made when somebody needs it); everything else is a
vector of lanes, for each vector of the tile.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import reduce

from weft.codegen.emit import Emitter, llvm_type
from weft.ir.core import Op, Value
from weft.ir.views import For
from weft.schedule.variation import Variation

Instance = tuple[int, int]  # (jammed iteration, vector)
Masks = dict[Instance, str]


class LaneValues:
    """The values of ``jam`` x ``vectors`` x ``width`` lanes, and which of these lanes are active.
    ``varying``: how values vary down the rows and along the columns."""

    def __init__(
        self, e: Emitter, varying: tuple[Variation, Variation], jam: int, vectors: int, width: int
    ) -> None:
        self.e = e
        self.vary(*varying)
        self.jam, self.vectors, self.width = jam, vectors, width
        self.instances = [(j, m) for j in range(jam) for m in range(vectors)]  # all of the tile
        self.bits = self.of("i1")
        self.names: dict[Value, dict[Instance, str]] = {}
        self.splats: dict[tuple[str, str], str] = {}  # of the enclosing blocks
        self.mask: Masks | None = None  # None: every lane is active
        self.certain = True  # some lane of each jammed iteration is active here
        self.partial = False  # lanes are off that must keep what they carry

    def vary(self, down: Variation, along: Variation) -> None:
        """Goes by these from here on."""
        self.varying, self.slope, self.stride = (down, along), along.slope, along.stride
        self.shared = down.uniform  # by the jammed iterations

    def of(self, ty: str) -> str:
        """The type of vectors."""
        return f"<{self.width} x {ty}>"

    def type(self, value: Value) -> str:
        name = llvm_type(value.type)
        return name if self.slope(value) == 0 else self.of(name)

    @contextmanager
    def wide(self) -> Generator[None]:
        """In the ``with``, rules write vectors."""
        self.e.lanes = self.width
        yield
        self.e.lanes = 1

    @contextmanager
    def under(self, mask: Masks | None, *, certain: bool, partial: bool) -> Generator[None]:
        """In the ``with``, lanes are active by ``mask``."""
        before = self.mask, self.certain, self.partial
        self.mask, self.certain, self.partial = mask, certain, partial
        yield
        self.mask, self.certain, self.partial = before

    def copies(self, value: Value) -> list[Instance]:
        """The instances in which a value exists."""
        jams = (0,) if self.shared(value) else range(self.jam)
        vectors = range(self.vectors) if self.slope(value) is None else (0,)
        return [(j, m) for j in jams for m in vectors]

    def name(self, value: Value, at: Instance) -> str:
        """What a value is called: a scalar, the scalar of the tile's first lane, or a vector."""
        if value not in self.names:
            return self.e.name(value)
        j, m = at
        key = 0 if self.shared(value) else j, m if self.slope(value) is None else 0
        return self.names[value][key]

    def vector(self, value: Value, at: Instance) -> str:
        """The numbers of all lanes."""
        t = value.scalar
        if value in self.e.constants:
            with self.wide():
                return self.e.literal(self.e.constants[value], t)
        stride = self.slope(value)
        name = self.name(value, at)
        if stride is None:
            return name
        splat = self.splat(name, llvm_type(t))
        if stride == 0:
            return splat
        return self.e.inst(f"add {self.of('i64')} {splat}, {self.ramp(stride, at, 'i64')}")

    def splat(self, name: str, ty: str) -> str:
        key = (name, ty)
        if key not in self.splats:
            vector, zeros = self.of(ty), f"{self.of('i32')} zeroinitializer"
            one = self.e.inst(f"insertelement {vector} poison, {ty} {name}, i64 0")
            self.splats[key] = self.e.inst(
                f"shufflevector {vector} {one}, {vector} poison, {zeros}"
            )
        return self.splats[key]

    def ramp(self, stride: int, at: Instance, ty: str, start: int = 0) -> str:
        """What an index is in each lane that is ``start`` in the tile's first lane."""
        first = at[1] * self.width
        numbers = (start + stride * (first + k) for k in range(self.width))
        return "<" + ", ".join(f"{ty} {number}" for number in numbers) + ">"

    def reverse(self, vector: str, ty: str) -> str:
        order = ", ".join(f"i32 {lane}" for lane in reversed(range(self.width)))
        kind = self.of(ty)
        return self.e.inst(
            f"shufflevector {kind} {vector}, {kind} poison, {self.of('i32')} <{order}>"
        )

    def active(self, at: Instance) -> str | None:
        return None if self.mask is None else self.mask[at]

    def like(self, model: Value, value: Value, at: Instance) -> str:
        """``value`` as a scalar or a vector, as ``model`` is."""
        return self.name(value, at) if self.slope(model) == 0 else self.vector(value, at)

    def across_all(self, word: str, masks: Masks) -> str:
        """Whether all ("and") or some ("or") lanes of ``masks`` are active."""
        name = f"llvm.vector.reduce.{word}.v{self.width}i1"
        mask = self.joined(word, sorted(set(masks.values())))
        return self.e.intrinsic(name, "i1", (self.bits, mask))

    def joined(self, word: str, masks: Sequence[str]) -> str:
        """One mask of several, by "and" or "or"."""
        return reduce(lambda a, b: self.e.inst(f"{word} {self.bits} {a}, {b}"), masks)


class LaneBounds:
    """The bounds of a serial loop over the tile: what they are at least and at most, and which
    lanes are between them."""

    def __init__(self, values: LaneValues) -> None:
        self.v, self.e = values, values.e

    def ragged(self, bound: Value) -> bool:
        return self.v.slope(bound) != 0 or (self.v.jam > 1 and not self.v.shared(bound))

    def extremes(self, bound: Value) -> tuple[str, str]:
        """The least and the greatest of a loop bound over the tile."""
        v, stride = self.v, self.v.slope(bound)
        if not self.ragged(bound):
            name = v.name(bound, (0, 0))
            return name, name
        least, most = "", ""
        for at in v.copies(bound):
            if stride is None:
                low, high = (self.across(bound, at, f) for f in ("smin", "smax"))
            else:
                first = v.name(bound, at)
                last = self.e.inst(f"add nsw i64 {first}, {stride * (v.width * v.vectors - 1)}")
                low, high = (first, last) if stride >= 0 else (last, first)
            least = low if not least else pick(self.e, "smin", least, low)
            most = high if not most else pick(self.e, "smax", most, high)
        return least, most

    def across(self, bound: Value, at: Instance, function: str) -> str:
        """The extreme of a vector over its active lanes: of all rows, where these share it."""
        kind, value = self.v.of("i64"), self.v.vector(bound, at)
        if self.v.mask is not None:
            rows = range(self.v.jam) if self.v.shared(bound) else (at[0],)
            mask = self.v.joined("or", list(dict.fromkeys(self.v.mask[j, at[1]] for j in rows)))
            neutral = (1 << 62) if function == "smin" else -(1 << 62)
            value = self.e.inst(f"select {self.v.bits} {mask}, {kind} {value}, {kind}"
                                f" splat (i64 {neutral})")  # fmt: skip
        name = f"llvm.vector.reduce.{function}.v{self.v.width}i64"
        return self.e.intrinsic(name, "i64", (kind, value))

    def masks(self, op: Op, induction: str) -> Masks:
        """Which of the active lanes run this iteration of a serial loop."""
        found: Masks = {}
        made: dict[tuple[str, Instance], str] = {}
        for j, m in self.v.instances:
            terms = [] if self.v.mask is None else [self.v.mask[j, m]]
            for bound, predicate in ((For(op).lower, "sge"), (For(op).upper, "slt")):
                if not self.ragged(bound):
                    continue
                key = predicate, (0 if self.v.shared(bound) else j, m)
                if key not in made:
                    made[key] = self.compare(bound, predicate, induction, (j, m))
                terms.append(made[key])
            found[j, m] = self.v.joined("and", terms)
        return found

    def compare(self, bound: Value, predicate: str, induction: str, at: Instance) -> str:
        """A mask: ``induction <predicate> bound``."""
        e, v, stride = self.e, self.v, self.v.slope(bound)
        if stride is None:
            left = v.splat(induction, "i64")
            return e.inst(f"icmp {predicate} {v.of('i64')} {left}, {v.vector(bound, at)}")
        # In 32 bits, which makes narrower vectors: the distance to lane 0's bound, kept small.
        limit = abs(stride) * v.width * v.vectors + 1
        distance = e.inst(f"sub nsw i64 {induction}, {v.name(bound, at)}")
        distance = pick(e, "smax", pick(e, "smin", distance, str(limit)), str(-limit))
        narrow = v.splat(e.inst(f"trunc i64 {distance} to i32"), "i32")
        return e.inst(f"icmp {predicate} {v.of('i32')} {narrow}, {v.ramp(stride, at, 'i32')}")


def pick(e: Emitter, function: str, a: str, b: str) -> str:
    return a if a == b else e.extreme(function, a, b)
