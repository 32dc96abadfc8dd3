"""Accesses to memory: buffers of whole words, of parts of words, and of words that are atomic.

A buffer is an array of one type. Elements of 8 and 16 bits are parts of words of 32, where the
language has no types of their size; a store to one clears its part of the word and sets it, two
atomic operations, so that stores to its neighbours are not lost. Where a shader updates any element
of a buffer atomically, all its accesses are atomic, and elements of 8 and 16 bits parts of words.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.shader.dialects import UnsupportedInShaderError, stored, type_of
from weft.codegen.shader.rules import narrowed, widened
from weft.codegen.shader.writer import Writer
from weft.ir.core import Op
from weft.ir.types import ScalarType, compute_type, f32, i1, i32
from weft.values import frozen

# Of 32-bit integers; what is not here is a loop of compare and exchange.
_ATOMIC = {"addi": "add", "minsi": "min", "maxsi": "max", "andi": "and", "ori": "or", "xori": "xor"}


SIDES = "xyzw"  # of a vector


def vector_of(elements: Sequence[str]) -> str:
    """The name of the vector that has just these elements, in this order; "" where none does."""
    name, _, _ = elements[0].rpartition(".")
    whole = name.isidentifier() and [*elements] == [f"{name}.{side}" for side in SIDES]
    return name if whole else ""


@frozen
class Buffer:
    """An array that a shader binds, or has: of ``element``s of the IR. ``bound``: others see it.
    ``atomic``: some of its elements are updated atomically. ``vectors``: it is one of vectors of
    four of them. ``part``: the type of elements of 8 and 16 bits that are no parts of words;
    ``lead``: else the number of elements in front of the first, in its word, and ``place``: the
    type of an element's place."""

    name: str
    element: ScalarType
    bound: bool
    written: bool
    atomic: bool
    vectors: bool = False
    part: str = ""
    lead: str = ""
    place: str = "u32"

    @property
    def parts(self) -> int:
        """How many elements a word has."""
        packed = self.bound and self.element.bytes < 4 and not self.part
        return 4 // self.element.bytes if packed else 1

    @property
    def words(self) -> bool:
        """Whether it is an array of unsigned words."""
        return self.parts > 1 or (self.atomic and self.element is f32)

    @property
    def by_atomics(self) -> bool:
        return self.atomic or (self.parts > 1 and self.written)

    @property
    def type(self) -> str:
        """That of its elements, in the shader."""
        plain = "u32" if self.words else self.part or type_of(self.element)
        if not self.bound and self.element is i1:
            plain = "i32"
        if self.vectors:
            return f"vec4<{plain}>"
        return f"atomic<{plain}>" if self.by_atomics else plain


@frozen
class View:
    """A memref: where its elements are, and its sizes and strides, as expressions."""

    buffer: Buffer
    sizes: tuple[str, ...]
    strides: tuple[str, ...]


class Accesses:
    """Writes accesses."""

    def __init__(self, writer: Writer) -> None:
        self.e, self.line, self.loop = writer.e, writer.line, writer.loop
        self.count = 0

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}_{self.count}_"

    # -- parts of words

    def place(self, buffer: Buffer, at: str, lane: int | None = None) -> tuple[str, str]:
        """The word that an element is in, and by how many bits it is shifted there. ``lane``: its
        place in a vector, if that is known."""
        if buffer.vectors and lane is not None:
            return f"{buffer.name}[u32({at}) >> 2u].{SIDES[lane]}", "0u"
        if buffer.vectors:
            number = self.name("at")
            self.line(self.e.dialect.let(number, "u32", f"u32({at})"))
            return f"{buffer.name}[{number} >> 2u][{number} & 3u]", "0u"
        if buffer.parts == 1:
            return f"{buffer.name}[{at}]", "0u"
        number, t = self.name("at"), "u32" if at.isdigit() else buffer.place
        where = f"{t}({at})" + (f" + {t}({buffer.lead})" if buffer.lead else "")
        self.line(self.e.dialect.let(number, t, where))
        shift = {2: 1, 4: 2}[buffer.parts]
        bits = 32 // buffer.parts
        return (
            f"{buffer.name}[{number} >> {shift}u]",
            f"((u32({number}) & {buffer.parts - 1}u) * {bits}u)"
            if t != "u32"
            else f"(({number} & {buffer.parts - 1}u) * {bits}u)",
        )

    def decoded(self, buffer: Buffer, word: str, shift: str) -> str:
        """The element that the bits of a word are."""
        element = buffer.element
        if buffer.part:
            return f"({word} != 0)" if element is i1 else f"i32({word})"
        if buffer.parts == 1:
            return f"bitcast<f32>({word})" if buffer.words else word
        if element is i1:
            return f"(({word} >> {shift} & 255u) != 0u)"
        bits = 8 * element.bytes
        if stored(element):
            return f"i32({word} >> {shift} & {(1 << bits) - 1}u)"
        return f"(i32(({word} >> {shift}) << {32 - bits}u) >> {32 - bits}u)"

    def encoded(self, buffer: Buffer, value: str) -> str:
        """The bits of an element, at the low end of a word."""
        element = buffer.element
        if buffer.part:
            return f"{buffer.part}({f'select(0, 1, {value})' if element is i1 else value})"
        if buffer.parts == 1:
            return f"bitcast<u32>({value})" if buffer.words else value
        if element is i1:
            return f"select(0u, 1u, {value})"
        return f"(u32({value}) & {(1 << 8 * element.bytes) - 1}u)"

    def joined(self, buffer: Buffer, old: str, value: str, shift: str) -> str:
        """The word ``old`` with another element."""
        new = self.encoded(buffer, value)
        if buffer.parts == 1:
            return new
        mask = (1 << 8 * buffer.element.bytes) - 1
        return f"(({old} & ~({mask}u << {shift})) | ({new} << {shift}))"

    # -- accesses

    def load_four(self, buffer: Buffer, at: str) -> list[str]:
        """Four elements from ``at`` on, a multiple of four."""
        whole = self.name("four")
        t = type_of(buffer.element)
        self.line(self.e.dialect.let(whole, f"vec4<{t}>", f"{buffer.name}[u32({at}) >> 2u]"))
        return [f"{whole}.{side}" for side in SIDES]

    def store_four(self, buffer: Buffer, at: str, values: Sequence[str]) -> None:
        made = vector_of(values) or f"{buffer.type}({', '.join(values)})"
        self.line(f"{buffer.name}[u32({at}) >> 2u] = {made};")

    def load(self, buffer: Buffer, at: str, lane: int | None = None) -> str:
        place, shift = self.place(buffer, at, lane)
        word = self.e.dialect.load_atomic(place) if buffer.by_atomics else place
        if not buffer.bound and buffer.element is i1:
            return f"({word} != 0)"
        return self.decoded(buffer, word, shift)

    def store(self, buffer: Buffer, at: str, value: str, lane: int | None = None) -> None:
        place, shift = self.place(buffer, at, lane)
        if not buffer.bound and buffer.element is i1:
            value = f"select(0, 1, {value})"
        new = self.encoded(buffer, value) if buffer.bound or buffer.words else value
        if buffer.parts > 1:
            mask = (1 << 8 * buffer.element.bytes) - 1
            both = (("and", f"~({mask}u << {shift})"), ("or", f"{new} << {shift}"))
            for kind, operand in both:
                self.line(f"{self.e.dialect.rmw(kind, place, operand)};")
        elif buffer.by_atomics:
            self.line(self.e.dialect.store_atomic(place, new))
        else:
            self.line(f"{place} = {new};")

    def atomic(self, op: Op, buffer: Buffer, at: str, operands: Sequence[str]) -> str:
        """``memref.atomic_rmw`` or ``atomic_cas``: what was there before. Raises
        ``UnsupportedInShaderError``."""
        e, element = self.e, buffer.element
        if element.bytes == 8:
            raise UnsupportedInShaderError(
                "shaders have no atomic operations of 64 bits", op.span,
                "accumulate into a tensor of 32 bits",
            )  # fmt: skip
        t = compute_type(element)
        kind = op.attrs.get("kind", "")
        place, shift = self.place(buffer, at)
        if kind in _ATOMIC and element is i32:
            before = self.name("before")
            self.line(
                e.dialect.let(before, "i32", e.dialect.rmw(_ATOMIC[kind], place, operands[0]))
            )
            return before
        old = self.name("old")
        word = "u32" if buffer.words else "i32"
        self.line(e.dialect.variable(old, word, e.dialect.load_atomic(place)))
        done = self.name("done")
        self.line(e.dialect.variable(done, "bool", "false"))
        with self.loop(f"!{done}"):
            now = widened(e, self.decoded(buffer, old, shift), element)
            if kind:
                made = narrowed(e, e.combined(kind, t, now, operands[0]), element)
                new = self.joined(buffer, old, made, shift)
            else:
                expected, desired = (narrowed(e, v, element) for v in operands)
                same = f"{self.encoded(buffer, narrowed(e, now, element))} == "
                same += self.encoded(buffer, expected)
                new = f"select({old}, {self.joined(buffer, old, desired, shift)}, {same})"
            for text in e.dialect.exchange(place, old, new, done):
                self.line(text)
        return widened(e, self.decoded(buffer, old, shift), element)
