"""Arrays of a shader: where their elements are, and accesses to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from weft.codegen.shader.dialects import Dialect, UnsupportedInShaderError, type_of
from weft.codegen.shader.memory import SIDES, Accesses, Buffer, View
from weft.codegen.shader.rules import Expressions, narrowed, widened
from weft.codegen.shader.runs import WIDTH, Place
from weft.codegen.shader.writer import Writer
from weft.ir.core import Function, Op, Value, walk
from weft.ir.interp import evaluate
from weft.ir.views import memory


class Arrays(Writer):
    """``views``, ``names``: of the function's arguments. ``private``: elements of a shared array
    whose size a call decides. ``atomic``: arrays that are updated atomically. ``joined``: see
    ``runs``."""

    def __init__(
        self, dialect: Dialect, e: Expressions, private: int, views: Mapping[Value, View],
        names: Mapping[Value, str], atomic: Set[Value], joined: Mapping[Op, Place], watch: bool,
    ) -> None:  # fmt: skip
        super().__init__(dialect, e, names, watch)
        self.private, self.atomic, self.views = private, atomic, dict(views)
        self.accesses = Accesses(self)
        self.runs = joined
        self.lanes: Mapping[Op, int] = {}  # of other accesses to vectors
        self.vectors = {whole(memory(op)[0]) for op in joined}
        self.done: set[Op] = set()  # of these runs, what is written
        self.numbers: dict[Value, int | None] = {}  # what integers are known to be
        self.guard = ""  # of loads that stand where a branch had them: else they are of place 0
        self.known: dict[str, str] = {}  # names of what was computed already, by its text
        self.rows = Counter[tuple[Value, ...]]()  # how often elements of each are accessed

    def view(self, memref: Value) -> View:
        found = self.views[memref]
        self.made.used.add(found.buffer.name)
        return found

    def access(self, op: Op) -> None:
        if (place := self.runs.get(op)) is not None:
            self.four(op, place)
            return
        _, _, values = memory(op)
        view, at = self.place_of(op)
        element = view.buffer.element
        if op.name == "memref.load":
            self.loaded(op, view.buffer, at)
        elif op.name == "memref.store":
            self.accesses.store(view.buffer, at, self.of(values[0]), self.lanes.get(op))
        elif not view.buffer.atomic:  # no two iterations can meet
            found = self.accesses.load(view.buffer, at)
            self.let(op, op.result, widened(self.e, found, element))
            made = self.e.combined(
                op.attrs["kind"], op.result.scalar, self.of(op.result), self.of(values[0])
            )
            self.accesses.store(view.buffer, at, narrowed(self.e, made, element))
        else:
            self.let(
                op, op.result, self.accesses.atomic(op, view.buffer, at, list(map(self.of, values)))
            )

    def loaded(self, op: Op, buffer: Buffer, at: str) -> None:
        """A load; of what nobody writes, the one that is there already."""
        constant = buffer.bound and not (buffer.written or buffer.atomic)
        key = f"{buffer.name}[{at}]"
        if constant and key in self.known:
            self.names[op.result] = self.known[key]
            return
        self.let(op, op.result, self.accesses.load(buffer, at, self.lanes.get(op)))
        if constant:
            self.known[key] = self.names[op.result]

    def place_of(self, op: Op) -> tuple[View, str]:
        """The array that ``op`` accesses, and where."""
        memref, subscripts, _ = memory(op)
        view = self.view(memref)
        self.noted(op, *subscripts)
        # Loads ahead of turns that a loop does not have are never carried out; naga refuses them.
        known = [self.number_of(v) for v in subscripts]
        nowhere = any(n is not None and n < 0 for n in known)
        behind = op.attrs.get("offset", 0)
        if (at := _constant(view, [0 if nowhere else n for n in known])) is not None:
            return view, self.guarded(str(max(at + behind, 0)), "i32")
        texts = [self.e.literal(0, v.scalar) if nowhere else self.of(v) for v in subscripts]
        type = type_of(subscripts[0].scalar)
        at = self.offset(view, texts, type, again=self.rows[(memref, *subscripts[:-1])] > 1)
        return view, self.guarded(f"{at} + {behind}" if behind else at, type)

    def number_of(self, value: Value) -> int | None:
        """The number that ``value`` is known to be."""
        if value not in self.numbers:
            self.numbers[value] = self._found(value)
        return self.numbers[value]

    def _found(self, value: Value) -> int | None:
        op = value.op
        if op is None or not op.name.startswith("arith.") or value.scalar.is_float:
            return None
        if op.name == "arith.constant":
            return int(op.attrs["value"])
        known: list[int] = []
        for operand in op.operands:
            if (number := self.number_of(operand)) is None:
                return None
            known.append(number)
        return int(evaluate(op, known))

    def guarded(self, at: str, type: str) -> str:
        return f"select({type}(0), {type}({at}), {self.guard})" if self.guard and at != "0" else at

    def four(self, op: Op, place: Place) -> None:
        """What ``op`` is one of four of: loads at the first of them, stores at the last."""
        run = place.run
        if run[place.k] is not op:  # loaded already
            self.names[op.result] = self.names[run[place.k].result]
            return
        first = op not in self.done and not any(o in self.done for o in run)
        self.done.add(op)
        load = op.name == "memref.load"
        if first if load else all(o in self.done for o in run):
            view, at = self.place_of(run[0])
            if load:
                loaded = self.accesses.load_four(view.buffer, at)
                self.names.update(zip((o.result for o in run), loaded, strict=True))
            else:
                values = [self.of(memory(o)[2][0]) for o in run]
                self.accesses.store_four(view.buffer, at, values)

    def either_four(self, values: Sequence[Value], vector: str, no: str) -> None:
        """Lets ``values`` be the elements of ``vector`` where the guard holds, else ``no``."""
        type, name = f"vec4<{type_of(values[0].scalar)}>", self.accesses.name("four")
        self.line(self.d.let(name, type, f"select({type}({no}), {vector}, {self.guard})"))
        self.names.update(zip(values, (f"{name}.{side}" for side in SIDES), strict=True))

    def offset(self, view: View, subscripts: Sequence[str], type: str, *, again: bool) -> str:
        """``again``: other elements of the row are accessed, too."""
        terms = [
            s if stride in ("1", "i32(1)") else f"{s} * {stride}"
            for s, stride in zip(subscripts, view.strides, strict=True)
        ]
        row = " + ".join(terms[:-1])
        if again and "*" in row:
            if row not in self.known:
                self.known[row] = self.accesses.name("row")
                self.line(self.d.let(self.known[row], type, row))
            terms = [self.known[row], terms[-1]]
        return " + ".join(terms) or "0"

    def alloca(self, op: Op) -> None:
        type = op.result.memref
        if type.shape is None and type.space == "shared":
            self.private_array(op)
            return
        if type.shape is None:
            raise UnsupportedInShaderError(
                "a local array whose size is known at run time", op.span,
                "give it a constant size",
            )  # fmt: skip
        count, strides = 1, []
        for extent in reversed(type.shape):
            strides.insert(0, str(count))
            count *= extent
        sizes = tuple(f"i32({n})" for n in type.shape)
        self.array(op, max(count, 1), sizes, tuple(strides))

    def private_array(self, op: Op) -> None:
        """The block's copy of an array, contiguous; there is room for the next power of two."""
        sizes = tuple(map(self.of, op.operands))
        strides = (" * ".join(f"({s})" for s in sizes[k + 1 :]) or "1" for k in range(len(sizes)))
        self.array(op, self.private, sizes, tuple(strides))

    def array(self, op: Op, count: int, sizes: tuple[str, ...], strides: tuple[str, ...]) -> None:
        type = op.result.memref
        name, shared = self.fresh(op.result), type.space == "shared"
        vectors = op.result in self.vectors
        count = -(-count // WIDTH) if vectors else count
        buffer = Buffer(name, type.element, False, True, op.result in self.atomic, vectors)
        text = self.d.array(name, buffer.type, count, shared=shared)
        if shared:
            self.made.shared.append(text)
            self.made.bytes += count * max(type.element.bytes, 4) * (WIDTH if vectors else 1)
        else:
            self.line(text)
        self.views[op.result] = View(buffer, sizes, strides)

    def flatten(self, op: Op) -> None:
        view = self.view(op.operand)
        count = " * ".join(view.sizes) or "i32(1)"
        self.views[op.result] = View(view.buffer, (f"({count})",), ("1",))

    def dim(self, op: Op) -> None:
        size = self.views[op.operand].sizes[op.attrs["axis"]]
        t = type_of(op.result.scalar)
        if t == "i32" and size.isidentifier():
            self.names[op.result] = size
        else:
            self.let(op, op.result, size if size.startswith(t) else f"{t}({size})")


def atomically_updated(function: Function) -> set[Value]:
    """The memrefs of which an element is updated atomically."""
    found = set()
    for op in walk(function.body):
        if op.name in ("memref.atomic_rmw", "memref.atomic_cas") and op.attrs.get("atomic", True):
            found.add(whole(memory(op)[0]))
    return found


def whole(memref: Value) -> Value:
    """What ``memref`` is a flat view of, if it is one."""
    while memref.op is not None and memref.op.name == "memref.flatten":
        memref = memref.op.operand
    return memref


def _constant(view: View, subscripts: Sequence[int | None]) -> int | None:
    """Where these subscripts are, if that is known: naga takes no constant of 64 bits there."""
    found = 0
    for n, stride in zip(subscripts, view.strides, strict=True):
        factor = "1" if stride == "i32(1)" else stride
        if n is None or not factor.isdigit():
            return None
        found += n * int(factor)
    return found
