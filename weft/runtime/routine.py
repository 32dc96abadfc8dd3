"""The machine code of ``native.py``: one function of CPython's C API, the same for all plans.

It reads a record and objects, which ``record.py`` lays out; ``recorded.py`` has the functions that
have to do with autograd. Of CPython only functions are used, and
no layout of its objects. A function of this module writes one of the code, whose header stands in
``_PARTS``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from weft.codegen.emit import Emitter, Module
from weft.runtime import record


class Writer(Emitter):
    """Writes a function that calls CPython's. ``%self`` is the builtin's tuple, ``%true`` the
    address of the object True."""

    def __init__(self, module: Module) -> None:
        super().__init__(module, cast(Any, None))  # there is no operation that it would lower

    def api(self, name: str, *operands: str | int) -> str:
        """A call of a function of CPython."""
        result, _, types = record.FUNCTIONS[name].removesuffix(")").partition(" (")
        self.declare(f"declare {result} @{name}({types})")
        pairs = zip(types.split(", ") if types else [], map(str, operands), strict=True)
        text = f"call {result} @{name}({', '.join(map(' '.join, pairs))})"
        if result != "void":
            return self.inst(text)
        self.line(text)
        return ""

    def one(self, function: str, argument: str) -> str:
        """``function(argument)``; null with an error set."""
        return self.inst(f"call ptr @one(ptr {function}, ptr {argument})")

    def points(self, tensor: str, slot: str, keys: str | int) -> str:
        operands = f"ptr %self, ptr %record, i64 %true, ptr {tensor}, ptr {slot}, i64 {keys}"
        return self.inst(f"call i1 @points({operands})")

    def says(self, function: str) -> str:
        """What a function of torch at this address says, 0 or 1."""
        return self.inst(
            f"zext i1 {self.inst(f'call zeroext i1 {self.pointer(function)}()')} to i64"
        )

    def clean(self) -> str:
        """Whether no error is set."""
        return self.null(self.api("PyErr_Occurred"))

    def object(self, name: str) -> str:
        """One of the objects of the builtin."""
        return self.api("PyTuple_GetItem", "%self", record.OBJECTS.index(name))

    def operand(self, step: dict[str, str], k: int) -> str:
        """One of the objects of a step."""
        number = self.inst(f"add i64 {step['low']}, {k}") if k else step["low"]
        return self.api("PyTuple_GetItem", "%self", number)

    # --- words -----------------------------------------------------------------------------------
    def at(self, base: str, k: str | int, type: str = "i64") -> str:
        return self.inst(f"getelementptr {type}, ptr {base}, i64 {k}")

    def load(self, place: str, type: str = "i64") -> str:
        return self.inst(f"load {type}, ptr {place}")

    def store(self, type: str, value: str | int, place: str) -> None:
        self.line(f"store {type} {value}, ptr {place}")

    def copy(self, to: str, begin: str, count: str | int) -> None:
        self.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        operands = f"ptr {to}, ptr {begin}, i64 {count}, i1 false"
        self.line(f"call void @llvm.memcpy.p0.p0.i64({operands})")

    def words(self, base: str, names: Sequence[str]) -> dict[str, str]:
        """The words of a record, by name."""
        return {name: self.load(self.at(base, k)) for k, name in enumerate(names)}

    def room(self, type: str, align: int = 8) -> str:
        name = self.fresh()
        self.allocas.append(f"{name} = alloca {type}, align {align}")
        return name

    def address(self, pointer: str) -> str:
        return self.inst(f"ptrtoint ptr {pointer} to i64")

    def pointer(self, address: str) -> str:
        return self.inst(f"inttoptr i64 {address} to ptr")

    # --- tests and ways --------------------------------------------------------------------------
    def test(self, relation: str, a: str, b: str | int, type: str = "i64") -> str:
        return self.inst(f"icmp {relation} {type} {a}, {b}")

    def null(self, pointer: str) -> str:
        return self.test("eq", pointer, "null", "ptr")

    def need(self, condition: str, otherwise: str = "no") -> None:
        """What follows is for where the condition holds."""
        then = self.label("then")
        self.branch(condition, then, otherwise)
        self.start(then)

    def refuse(self, condition: str, to: str = "no") -> None:
        """What follows is for where the condition does not hold."""
        then = self.label("then")
        self.branch(condition, to, then)
        self.start(then)

    @contextmanager
    def where(self, condition: str) -> Generator[None]:
        """What is written within is for where the condition holds."""
        inside, after = self.label("where"), self.label("after")
        self.branch(condition, inside, after)
        self.start(inside)
        yield
        self.jump(after)
        self.start(after)

    @contextmanager
    def each(self, count: str) -> Generator[str]:
        """A loop over the numbers below ``count``."""
        head, inside, after = self.label("head"), self.label("inside"), self.label("after")
        before = self.block
        self.jump(head)
        self.start(head)
        k, slot = self.phi("i64")
        self.branch(self.test("ult", k, count), inside, after)
        self.start(inside)
        yield k
        self.fill(slot, ("0", before), (self.inst(f"add i64 {k}, 1"), self.block))
        self.jump(head)
        self.start(after)

    def switch(self, value: str, otherwise: str, cases: dict[int, str]) -> None:
        labels = " ".join(f"i64 {number}, label %{label}" for number, label in cases.items())
        self.line(f"switch i64 {value}, label %{otherwise} [ {labels} ]")

    def give(self, type: str, value: str | int, at: str = "") -> None:
        """Returns ``value``; ``at``: a label that this stands at."""
        if at:
            self.start(at)
        self.line(f"ret {type} {value}")


def _asks(w: Writer) -> None:
    """1 where the call gives True, 0 where it gives another object, -1 with an error set."""
    found = w.api("PyObject_Vectorcall", "%function", "%args", "%count", "null")
    w.refuse(w.null(found), "error")
    same = w.test("eq", w.address(found), "%true")
    w.api("Py_DecRef", found)
    w.give("i32", w.inst(f"zext i1 {same} to i32"))
    w.give("i32", -1, at="error")


def _one(w: Writer) -> None:
    """A call with one argument."""
    args = w.room("ptr")
    w.store("ptr", "%argument", args)
    w.give("ptr", w.api("PyObject_Vectorcall", "%function", args, 1, "null"))


def _is(w: Writer) -> None:
    """Whether an object is of exactly this type, given by its address."""
    kind = w.api("PyObject_Type", "%value")
    w.api("Py_DecRef", kind)
    w.give("i1", w.test("eq", w.address(kind), "%type"))


def _points(w: Writer) -> None:
    """Writes the address of a tensor's data; false where it has none to give, or other dispatch
    keys than ``keys`` (0 where it may be anything, ``ANY`` where it is a tensor); an error may be
    set."""
    names = ("export", "held", "keys", "data")
    export, held, keys, data = (w.load(w.at("%record", record.HEAD.index(name))) for name in names)
    view = w.room(f"[{record.VIEW} x i8]")
    known = w.inst(f"select i1 {w.test('eq', held, 0)}, i64 0, i64 %keys")
    w.refuse(w.test("eq", known, 0), "describe")
    handle = w.at("%tensor", held, "i8")
    found = w.load(w.at(w.load(handle, "ptr"), keys, "i8"))
    same, any = w.test("eq", found, "%keys"), w.test("eq", "%keys", record.ANY)
    w.need(w.inst(f"or i1 {same}, {any}"))
    result = w.inst(f"call i32 {w.pointer(data)}(ptr {handle}, ptr %slot)")
    w.refuse(w.test("eq", result, 0, "i32"), "yes")
    w.jump("describe")
    w.start("describe")
    w.refuse(w.test("eq", export, 0), "ask")
    result = w.inst(f"call i32 {w.pointer(export)}(ptr %tensor, ptr {view})")
    given = w.test("eq", result, 0, "i32")
    w.store("i64", w.load(view), "%slot")
    w.give("i1", given)
    w.start("ask")
    nested = w.api("PyObject_GetAttr", "%tensor", w.object("nested"))
    w.refuse(w.null(nested))
    w.api("Py_DecRef", nested)
    w.refuse(w.test("eq", w.address(nested), "%true"))
    number = w.one(w.object("data_ptr"), "%tensor")
    w.refuse(w.null(number))
    address = w.api("PyLong_AsUnsignedLongLong", number)
    w.store("i64", address, "%slot")
    w.api("Py_DecRef", number)
    w.need(w.test("eq", address, -1), "yes")  # which stands for an error, too
    w.give("i1", w.clean())
    w.give("i1", "true", at="yes")
    w.give("i1", "false", at="no")


# --- the steps: each ends in a jump, or gives whether the argument is as it has to be -------------
Step = dict[str, str]


def _tensor(w: Writer, step: Step) -> None:
    place = w.at("%tensors", step["low"], "ptr")
    with w.where(w.test("ne", step["high"], 0)):
        w.need(w.test("eq", step["value"], w.load(place, "ptr"), "ptr"))
    w.store("ptr", step["value"], place)
    w.give("i1", w.points(step["value"], step["place"], step["keys"]))


def _integer(w: Writer, step: Step) -> None:
    number = w.api("PyLong_AsLongLong", step["value"])
    w.store("i64", number, step["place"])
    above, below = w.test("sge", number, step["low"]), w.test("sle", number, step["high"])
    w.branch(w.inst(f"and i1 {above}, {below}"), "stored", "no")


def _float(w: Writer, step: Step) -> None:
    w.store("double", w.api("PyFloat_AsDouble", step["value"]), step["place"])
    w.jump("stored")


def _same(w: Writer, step: Step) -> None:
    w.give("i1", w.test("eq", w.operand(step, 0), step["value"], "ptr"))


def _equal(w: Writer, step: Step) -> None:
    answer = w.api("PyObject_RichCompareBool", step["value"], w.operand(step, 0), 2)
    w.give("i1", w.test("eq", answer, 1, "i32"))


def _size(w: Writer, step: Step) -> None:
    w.need(w.test("eq", w.api("PyTuple_Size", step["value"]), step["high"]))
    with w.each(step["high"]) as k:
        item = w.api("PyTuple_GetItem", step["value"], k)
        w.need(w.inst(f"call i1 @is(ptr {item}, i64 {step['low']})"))
        w.store("i64", w.api("PyLong_AsLongLong", item), w.at(step["place"], k))
    w.jump("stored")


def _attribute(w: Writer, step: Step) -> None:
    held = w.api("PyObject_GetAttr", w.operand(step, 0), w.operand(step, 1))
    w.refuse(w.null(held))
    w.api("Py_DecRef", held)
    w.give("i1", w.test("eq", held, w.operand(step, 2), "ptr"))


def _asked(w: Writer, step: Step) -> None:
    held = w.api("PyObject_Vectorcall", w.operand(step, 0), "null", 0, "null")
    w.refuse(w.null(held))
    w.api("Py_DecRef", held)
    w.give("i1", w.test("eq", held, w.operand(step, 1), "ptr"))


def _answered(w: Writer, step: Step) -> None:
    w.give("i1", w.test("eq", w.says(step["low"]), step["high"]))


def _callback(w: Writer, step: Step) -> None:
    answer = w.one(w.operand(step, 0), step["value"])
    w.refuse(w.null(answer))
    agrees = w.api("PyObject_RichCompareBool", answer, w.operand(step, 1), 2)
    w.api("Py_DecRef", answer)
    w.need(w.test("eq", agrees, 1, "i32"))
    w.refuse(w.test("eq", step["high"], 0), "yes")
    packed = w.one(w.operand(step, 2), step["value"])
    w.refuse(w.null(packed))
    whole = w.test("eq", w.api("PyBytes_Size", packed), step["high"])
    with w.where(whole):
        w.copy(step["place"], w.api("PyBytes_AsString", packed), step["high"])
    w.api("Py_DecRef", packed)
    w.give("i1", whole)


_STEPS: dict[int, Callable[[Writer, Step], None]] = {
    record.TENSOR: _tensor, record.INTEGER: _integer, record.FLOAT: _float, record.IDENTITY: _same,
    record.EQUAL: _equal, record.SIZE: _size, record.CALLBACK: _callback, record.ASKED: _asked,
    record.ATTRIBUTE: _attribute, record.ANSWERED: _answered,
}  # fmt: skip


def _fits(w: Writer) -> None:
    """One step: whether the argument is as it has to be; where not, an error may be set."""
    step = w.words("%step", record.STEP)
    step["value"] = w.load(w.at("%args", step["argument"], "ptr"), "ptr")
    step["place"] = w.at("%block", step["slot"])
    with w.where(w.test("ne", step["type"], 0)):
        w.need(w.inst(f"call i1 @is(ptr {step['value']}, i64 {step['type']})"))
    labels = {kind: w.label("step") for kind in _STEPS}
    w.switch(step["kind"], "no", labels)
    for kind, write in _STEPS.items():
        w.start(labels[kind])
        write(w, step)
    w.start("stored")
    w.give("i1", w.clean())
    w.give("i1", "true", at="yes")
    w.give("i1", "false", at="no")


def _drives(w: Writer) -> None:
    """One call of the driver; whether it was made, where not, an error may be set."""
    config = w.room(f"[{record.CONFIG} x i8]")
    extra, bytes = w.room("[5 x i64]"), w.room("i64")
    launch = w.load("%cell", "ptr")
    w.refuse(w.null(launch))
    head = w.words(launch, record.WORDS)
    device = w.object("device")
    several = w.inst(f"and i64 %flags, {record.SEVERAL}")
    with w.where(w.test("ne", several, 0)):
        current = w.api("PyObject_Vectorcall", w.object("current"), "null", 0, "null")
        w.refuse(w.null(current))
        number = w.api("PyLong_AsLongLong", current)
        w.api("Py_DecRef", current)
        w.need(w.test("eq", number, w.api("PyLong_AsLongLong", device)))
    template = w.at(launch, record.LAUNCH.size, "i8")
    ending = w.at(template, record.CONFIG, "i8")
    tests = w.at(ending, head["rest"], "i8")
    with w.each(head["tests"]) as k:
        test = w.words(w.at(tests, k, "[3 x i64]"), ("place", "mask", "wanted"))
        word = w.load(w.at("%block", test["place"], "i8"))
        w.need(w.test("eq", w.inst(f"and i64 {word}, {test['mask']}"), test["wanted"]))
    number = w.one(w.object("stream"), device)
    w.refuse(w.null(number))
    stream = w.api("PyLong_AsUnsignedLongLong", number)
    w.api("Py_DecRef", number)
    total = w.inst(f"add i64 {head['taken']}, {head['rest']}")
    whole = w.inst(f"alloca i8, i64 {total}, align 16")
    w.copy(config, template, record.CONFIG)
    w.store("i64", stream, w.at(config, record.STREAM, "i8"))
    w.copy(whole, "%block", head["taken"])
    w.copy(w.at(whole, head["taken"], "i8"), ending, head["rest"])
    w.store("i64", total, bytes)
    w.store("[5 x i64]", "[ i64 1, i64 0, i64 2, i64 0, i64 0 ]", extra)
    w.store("ptr", whole, w.at(extra, 1))
    w.store("ptr", bytes, w.at(extra, 3))
    driver, function = w.pointer(head["driver"]), w.pointer(head["function"])
    thread = w.api("PyEval_SaveThread")
    operands = f"ptr {config}, ptr {function}, ptr null, ptr {extra}"
    result = w.inst(f"call i32 {driver}({operands})")
    w.api("PyEval_RestoreThread", thread)
    w.give("i1", w.test("eq", result, 0, "i32"))
    w.give("i1", "false", at="no")


def _checks(w: Writer) -> None:
    """Whether the tensors are as those of the plan, or but for one that is the same element
    everywhere: of that, a copy is written out in ``room``. Where not, an error may be set."""
    operands = "ptr %found, i64 %count, i64 %true"
    with w.where(w.test("ne", "%spread", 0)):
        cell = w.pointer(w.load(w.at("%words", record.SPREAD.index("cell"))))
        with w.where(w.test("ne", w.load(cell), 0)):
            alike = w.inst(f"call i32 @asks(ptr {w.object('alike')}, {operands})")
            w.refuse(w.test("eq", alike, 1, "i32"), "spreads")
            w.need(w.clean())
            w.store("i64", 0, cell)
    same = w.inst(f"call i32 @asks(ptr {w.object('check')}, {operands})")
    w.refuse(w.test("eq", same, 1, "i32"), "yes")
    w.refuse(w.test("eq", "%spread", 0))
    w.need(w.clean())
    alike = w.inst(f"call i32 @asks(ptr {w.object('alike')}, {operands})")
    w.need(w.test("eq", alike, 1, "i32"))
    w.store("i64", 1, w.pointer(w.load(w.at("%words", record.SPREAD.index("cell")))))
    w.jump("spreads")
    w.start("spreads")
    words = w.words("%words", record.SPREAD)
    slot = w.at("%block", words["slot"])
    element = w.pointer(w.load(slot))
    w.store("i64", w.address("%room"), slot)
    types = {bytes: f"i{8 * bytes}" for bytes in record.SPREADS}
    labels = {bytes: w.label("element") for bytes in types}
    w.switch(words["bytes"], "no", labels)
    for bytes, type in types.items():
        w.start(labels[bytes])
        value = w.load(element, type)
        with w.each(words["count"]) as k:
            w.store(type, value, w.at("%room", k, type))
        w.jump("yes")
    w.give("i1", "true", at="yes")
    w.give("i1", "false", at="no")


def _carries(w: Writer) -> None:
    """Carries out a call whose arguments are packed: what the builtin gives."""
    names = (
        "results", "mutated", "size", "flags", "way", "code", "none", "makers", "plain",
    )  # fmt: skip
    head = {name: w.load(w.at("%record", record.HEAD.index(name))) for name in names}
    held, slots = w.room("ptr"), w.at("%mutated", head["mutated"])
    none, count = w.pointer(head["none"]), head["results"]
    w.store("ptr", "null", held)
    with w.where(w.test("ne", head["results"], 0)):
        made = w.api("PyTuple_New", count)
        w.store("ptr", made, held)
        w.refuse(w.null(made), "fail")
        with w.each(head["results"]) as k:
            number = w.inst(f"add i64 {w.inst(f'shl i64 {k}, 1')}, {head['makers']}")
            numbers = number, w.inst(f"add i64 {number}, 1")
            maker = [w.api("PyTuple_GetItem", "%self", n) for n in numbers]
            w.refuse(w.null(fresh := w.api("PyObject_Call", *maker, "null")), "fail")
            w.api("PyTuple_SetItem", made, k, fresh)
            slot = w.at("%block", w.load(w.at(slots, k)))
            plain = w.inst(f"call i1 @is(ptr {fresh}, i64 {head['plain']})")
            keys = w.inst(f"select i1 {plain}, i64 {record.ANY}, i64 0")
            w.need(w.points(fresh, slot, keys), "fail")
    code = w.pointer(head["code"])
    ways = {record.HOLDING: "holding", record.RELEASING: "releasing", record.DRIVER: "driver"}
    w.switch(head["way"], "python", ways)
    w.start("holding")
    w.line(f"call void {code}(ptr %block)")
    w.jump("called")
    w.start("releasing")
    thread = w.api("PyEval_SaveThread")
    w.line(f"call void {code}(ptr %block)")
    w.api("PyEval_RestoreThread", thread)
    w.jump("called")
    w.start("driver")
    operands = f"ptr %self, ptr {code}, ptr %block, i64 {head['flags']}"
    w.refuse(w.inst(f"call i1 @drives({operands})"), "called")
    w.branch(w.clean(), "python", "fail")
    w.start("python")
    bytes = w.api("PyBytes_FromStringAndSize", "%block", head["size"])
    w.refuse(w.null(bytes), "fail")
    returned = w.one(w.object("call"), bytes)
    w.api("Py_DecRef", bytes)
    w.refuse(w.null(returned), "fail")
    w.api("Py_DecRef", returned)
    w.jump("called")
    w.start("called")
    with w.where(w.test("ne", head["mutated"], 0)):
        w.refuse(w.null(written := w.api("PyTuple_New", head["mutated"])), "fail")
        with w.each(head["mutated"]) as k:
            tensor = w.load(w.at("%args", w.load(w.at("%mutated", k)), "ptr"), "ptr")
            w.api("Py_IncRef", tensor)
            w.api("PyTuple_SetItem", written, k, tensor)
        told = w.one(w.object("increment"), written)
        w.api("Py_DecRef", written)
        w.refuse(w.null(told), "fail")
        w.api("Py_DecRef", told)
    made = w.load(held, "ptr")
    with w.where(w.test("ne", "%recording", 0, "i32")):
        operands = f"ptr %self, ptr %record, ptr %args, ptr {made}, ptr {slots}"
        told = w.inst(f"call ptr @told({operands})")
        w.refuse(w.null(told), "fail")
        w.api("Py_DecRef", told)
    w.switch(count, "several", {0: "nothing", 1: "single"})
    w.start("nothing")
    w.api("Py_IncRef", none)
    w.give("ptr", none)
    w.start("single")
    result = w.api("PyTuple_GetItem", made, 0)
    w.api("Py_IncRef", result)
    w.api("Py_DecRef", made)
    w.give("ptr", result)
    w.give("ptr", made, at="several")
    w.start("fail")
    w.api("Py_DecRef", w.load(held, "ptr"))
    w.give("ptr", "null")


def _holds(w: Writer) -> None:
    """Whether dicts have what they have to; where not, an error may be set."""
    with w.each("%count") as k:
        item = w.words(w.at("%items", k, f"[{len(record.ITEM)} x i64]"), record.ITEM)
        held = w.api("PyDict_GetItemWithError", w.pointer(item["owner"]), w.pointer(item["name"]))
        w.need(w.test("eq", w.address(held), item["value"]))
        with w.where(w.null(held)):
            w.need(w.clean())
    w.give("i1", "true")
    w.give("i1", "false", at="no")


def _builtin(w: Writer) -> None:
    """The builtin: tests, then ``_carries``."""
    one, room = w.room("ptr"), w.room(f"[{record.MOST_SPREAD} x i8]", 64)
    start = w.api("PyBytes_AsString", w.object("record"))
    head = w.words(start, record.HEAD)
    w.need(w.null("%names"), "fallback")
    w.need(w.test("eq", "%given", head["arguments"]), "fallback")
    steps = w.at(start, len(record.HEAD))
    step_words = f"[{len(record.STEP)} x i64]"
    extents = w.at(steps, head["steps"], step_words)
    disjoint = w.at(extents, head["tensors"])
    mutated = w.at(disjoint, head["disjoint"], "[2 x i64]")
    template = mutated
    for name in ("mutated", "results", *record.TOLD):
        template = w.at(template, head[name])
    items, template = template, w.at(template, head["items"], f"[{len(record.ITEM)} x i64]")
    spread, template = template, w.at(template, head["spread"])
    block = w.inst(f"alloca i8, i64 {head['size']}, align 16")
    found = w.inst(f"alloca ptr, i64 {head['checked']}")
    w.copy(block, template, head["size"])
    true = f"i64 {head['true']}"
    w.need(w.inst(f"call i1 @holds(ptr {items}, i64 {head['items']})"), "unexpected")
    with w.each(head["steps"]) as k:
        places = f"ptr %args, ptr {block}, ptr {found}"
        step = w.at(steps, k, step_words)
        fits = w.inst(f"call i1 @fits(ptr %self, ptr {start}, ptr {step}, {places}, {true})")
        w.need(fits, "unexpected")

    def answers(function: str, arguments: str, count: str | int, wanted: int) -> None:
        """Goes on where a function gives True (``wanted`` 1), or something else (0)."""
        operands = f"ptr {function}, ptr {arguments}, i64 {count}, {true}"
        answer = w.inst(f"call i32 @asks({operands})")
        w.need(w.test("eq", answer, wanted, "i32"), "unexpected")

    with w.where(w.test("ne", head["checked"], 0)):
        places = f"ptr {spread}, ptr {room}, ptr {block}"
        operands = f"ptr {found}, i64 {head['checked']}, {true}, i64 {head['spread']}, {places}"
        w.need(w.inst(f"call i1 @checks(ptr %self, {operands})"), "unexpected")
    recording = w.room("i32")
    w.store("i32", 0, recording)
    with w.where(w.test("ne", w.inst(f"and i64 {head['flags']}, {record.GRAD}"), 0)):
        asked = w.inst(f"call i32 @records(ptr %self, i64 {head['gradient']}, {true})")
        w.store("i32", asked, recording)
    with w.where(w.test("ne", w.load(recording, "i32"), 0, "i32")):
        w.need(w.test("eq", w.load(recording, "i32"), 1, "i32"), "unexpected")
        known = w.inst(f"and i64 {head['flags']}, {record.HISTORY}")
        w.need(w.test("ne", known, 0), "fallback")
        asked = w.inst(f"and i64 {head['flags']}, {record.TRANSFORMED}")
        with w.where(w.test("ne", asked, 0)):
            answers(w.object("transforms"), "null", 0, 0)
    with w.where(w.test("ne", w.inst(f"and i64 {head['flags']}, {record.GUARDED}"), 0)):
        w.store("ptr", w.object("guards"), one)
        answers(w.object("holds"), one, 1, 1)
    with w.each(head["tensors"]) as k:
        nowhere = w.test("eq", w.load(w.at(block, k)), 0)
        needed = w.test("ne", w.load(w.at(extents, k)), 0)
        w.refuse(w.inst(f"and i1 {nowhere}, {needed}"), "fallback")
    with w.each(head["disjoint"]) as k:
        pair = w.at(disjoint, k, "[2 x i64]")
        i, j = w.load(pair), w.load(w.at(pair, 1))
        begins = [w.load(w.at(block, n)) for n in (i, j)]
        ends = [w.inst(f"add i64 {begin}, {w.load(w.at(extents, n))}")
                for n, begin in zip((i, j), begins, strict=True)]  # fmt: skip
        before = [w.test("ult", begins[1], ends[0]), w.test("ult", begins[0], ends[1])]
        w.refuse(w.inst(f"and i1 {before[0]}, {before[1]}"), "fallback")
    places = (
        f"ptr %self, ptr {start}, ptr %args, ptr {block}, ptr {mutated}, {true}, "
        f"i32 {w.load(recording, 'i32')}"
    )
    w.give("ptr", w.inst(f"call ptr @carries({places})"))
    w.start("unexpected")
    w.refuse(w.clean(), "fallback")
    usual = w.api("PyErr_ExceptionMatches", w.pointer(head["exception"]))
    w.refuse(w.test("eq", usual, 0, "i32"), "raise")
    w.api("PyErr_Clear")
    w.jump("fallback")
    w.start("fallback")
    operands = w.object("fallback"), "%args", "%given", "%names"
    w.give("ptr", w.api("PyObject_Vectorcall", *operands))
    w.give("ptr", "null", at="raise")


_PARTS: dict[str, Callable[[Writer], None]] = {
    "internal i32 @asks(ptr %function, ptr %args, i64 %count, i64 %true)": _asks,
    "internal ptr @one(ptr %function, ptr %argument)": _one,
    "internal i1 @is(ptr %value, i64 %type)": _is,
    "internal i1 @points(ptr %self, ptr %record, i64 %true, ptr %tensor, ptr %slot, i64 %keys)": (
        _points
    ),
    "internal i1 @fits(ptr %self, ptr %record, ptr %step, ptr %args, ptr %block, ptr %tensors, "
    "i64 %true)": _fits,
    "internal i1 @drives(ptr %self, ptr %cell, ptr %block, i64 %flags)": _drives,
    "internal i1 @checks(ptr %self, ptr %found, i64 %count, i64 %true, i64 %spread, ptr %words, "
    "ptr %room, ptr %block)": _checks,
    "internal i1 @holds(ptr %items, i64 %count)": _holds,
    "internal ptr @carries(ptr %self, ptr %record, ptr %args, ptr %block, ptr %mutated, i64 %true, "
    "i32 %recording)": _carries,
    f"ptr @{record.SYMBOLS[0]}(ptr %self, ptr %args, i64 %given, ptr %names)": _builtin,
}  # fmt: skip


def text(more: Mapping[str, Callable[[Writer], None]]) -> str:
    """The LLVM IR, with ``more`` functions, by their headers."""
    module = Module()
    for header, write in {**more, **_PARTS}.items():
        writer = Writer(module)
        write(writer)
        writer.finish(f"define {header}")
    return str(module)
